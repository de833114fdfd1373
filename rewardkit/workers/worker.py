"""One worker: a thread that does jobs with a child process, and replaces the process when it has to go."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rewardkit import errors
from rewardkit.errors import ContractError, RewardkitError, WorkerError
from rewardkit.types import BlameMachine, Generation, Score
from rewardkit.workers.process import Dropped, Ended, Late, Process
from rewardkit.workers.wire import (
    Stuck,
    frame,
    record_data,
    score_from,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rewardkit.workers.pool import Core, WorkerPool


class Job:
    """One group, or some of its completions, for one reward."""

    def __init__(self, pool: WorkerPool, leaf: int, generation: Generation, at: Sequence[int]) -> None:
        from concurrent.futures import Future

        self.pool = pool  # keeps the pool alive until the answer is there
        self.leaf = leaf
        self.generation = generation
        self.at = at
        self.scores: dict[int, Score] = {}
        self.todo: list[int] = []  # places of the group that are still to be judged
        self.sample: list[Any] = []
        self.completions: dict[int, list[Any]] = {}
        self.batch: list[int] = []  # the places that the current process was given
        self.phase = "start"  # then load, work
        self.step = 0  # what was over the deadline: 0 the reference, else the place in the batch from 1
        self.deaths: dict[tuple[str, int], int] = {}
        self.future: Future[list[Score]] = Future()

    def settle(self, result: list[Score] | BaseException) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def cancel(self) -> None:
        """Cancel it and wake whoever waits. Only for the one who took it from the queue."""
        self.future.cancel()
        self.future.set_running_or_notify_cancel()


class Worker:
    """A thread that has one child process at a time and does jobs with it, one after another."""

    def __init__(self, core: Core, number: int) -> None:
        self.core = core
        self.process: Process | None = None
        self.job: Job | None = None
        self.thread = threading.Thread(target=self._serve, name=f"rewardkit-worker-{number}", daemon=True)

    def interrupt(self) -> None:
        """Cancel the job and kill the process, from another thread."""
        job, process = self.job, self.process
        if job is not None:
            job.future.cancel()
        if process is not None:
            process.kill()

    def _serve(self) -> None:
        core = self.core
        try:
            while not core.closed:
                self.job = core.jobs.get()
                if self.job is None:
                    break
                if self.job.future.cancelled():
                    self.job.settle([])
                else:
                    self._answer(self.job)
                core.finished()
                self.job = None
        finally:
            core.jobs.put(None)  # hands the word to stop on to the next worker
            if self.process is not None:
                self.process.end()
                self.process = None

    def _answer(self, job: Job) -> None:
        result: list[Score] | BaseException
        try:
            self._pack(job)
            while job.todo:
                self._attempt(job)
            result = [job.scores[place] for place in job.at]
        except RewardkitError as problem:
            result = problem
        except BaseException as problem:  # also Dropped: the child may be in the middle of anything
            result = problem
            with contextlib.suppress(Exception):
                self._replace("kills")
        if self.core.closed or isinstance(result, Dropped):
            job.future.cancel()
        job.settle(result)

    def _pack(self, job: Job) -> None:
        """Make the job's data; what cannot be sent becomes an error score."""
        leaf = self.core.leaves[job.leaf]
        completions = job.generation.completions
        places = range(len(completions)) if leaf.takes_group else sorted(set(job.at))
        try:
            job.sample = record_data(job.generation.sample)
        except Stuck as stuck:
            job.scores = dict.fromkeys(places, Score.error("raised", str(stuck), name=leaf.label))
            return
        for place in places:
            try:
                job.completions[place] = record_data(completions[place])
                job.todo.append(place)
            except Stuck as stuck:
                job.scores[place] = Score.error("raised", str(stuck), name=leaf.label)
        if leaf.takes_group and job.scores:
            job.scores = dict.fromkeys(places, next(iter(job.scores.values())))
            job.todo.clear()

    def _attempt(self, job: Job) -> None:
        """Go on with a job until it is done or the process is lost."""
        job.phase = "start"
        try:
            self._converse(self._ready(), job)
        except Late:
            if self.core.closed:
                raise Dropped from None
            self._late(job)
        except Ended:
            if self.core.closed:
                raise Dropped from None
            self._died(job)

    def _ready(self) -> Process:
        """Return a process that has said hello."""
        process = self.process
        if process is not None and process.greeted and not process.alive():
            self._replace("deaths")
            process = self.process
        if process is None:
            process = self._start()
        if not process.greeted:
            until = time.monotonic() + self.core.start_timeout
            process.send(self.core.greeting, until, self._abandoned)
            if process.receive(until, self._abandoned)[0] != "ready":
                raise Ended
            process.greeted = True
        return process

    def _start(self) -> Process:
        try:
            self.process = process = Process(self.core.command, self.core.environment(), self.core.folder)
        except OSError as problem:
            raise WorkerError(f"a worker process cannot be started: {problem}") from problem
        if self.core.closed:  # closed while it was starting, so nobody else can have killed it
            raise Dropped
        return process

    def _abandoned(self) -> bool:
        return self.core.closed or (self.job is not None and self.job.future.cancelled())

    def _converse(self, process: Process, job: Job) -> None:
        """Send the job, take the answers."""
        core, leaf = self.core, self.core.leaves[job.leaf]
        fresh = job.leaf not in process.loaded
        job.phase, job.batch = "load" if fresh else "work", list(job.todo)
        until = time.monotonic() + core.start_timeout
        process.page.mark(0)
        process.send(self._request(job), until, self._abandoned)
        if not fresh:
            until = 0.0  # the shared page knows better
        while job.todo:
            kind, *rest = self._heard(process, job, until)
            until = 0.0
            match kind, rest:
                case "loaded", []:
                    process.loaded.add(job.leaf)
                    job.phase = "work"
                case "scores", [scores, spent]:
                    for data in scores:
                        job.scores[job.todo.pop(0)] = score_from(data)
                    if spent:
                        self._replace("restarts")
                        return
                case "all", [data, spent]:
                    self._all(job, score_from(data))
                    if spent:
                        self._replace("restarts")
                        return
                case "stop", [name, text]:
                    raise _error(name, text)
                case "unloadable", [text]:
                    core.refuse(job.leaf, f"reward {leaf.label!r} cannot be loaded in a worker process: {text}")
                case _:
                    raise Ended

    def _request(self, job: Job) -> bytes:
        group, takes_group = job.generation, self.core.leaves[job.leaf].takes_group
        extra = [group.model, group.start, group.where, group.key] if takes_group else None
        return frame([job.leaf, job.sample, [job.completions[place] for place in job.batch], extra])

    def _heard(self, process: Process, job: Job, until: float) -> list[Any]:
        """Return the next answer. Each step that the child marks on the shared page has its own deadline."""
        timeout = self.core.leaves[job.leaf].deadline
        while True:
            mark = process.page.read()
            if job.phase == "work":
                until = math.inf if timeout is None else mark[1] + timeout
            try:
                return process.receive(until, self._abandoned)
            except Late:
                if process.page.read() == mark:
                    job.step = mark[0]
                    raise

    def _late(self, job: Job) -> None:
        leaf, process, step = self.core.leaves[job.leaf], self.process, job.step
        self._replace("kills")
        if job.phase != "work":
            what = "a worker process did not start" if job.phase == "start" else f"reward {leaf.label!r} did not load"
            self._refuse(job, f"{what} within {_seconds(self.core.start_timeout)}", process)
        limit = _seconds(leaf.deadline or 0.0)
        if step == 0:
            self._all(job, self._error(job, "deadline_reference", f"reading the reference took longer than {limit}"))
        elif leaf.takes_group:
            detail = f"judging took longer than {limit} for the whole group of {len(job.todo)}"
            self._all(job, self._error(job, "raised", detail))
        else:
            text = f"judging took longer than {limit}"
            self._one(job, step, Score(0.0, text, reason="deadline", name=leaf.label, seconds=leaf.deadline))

    def _died(self, job: Job) -> None:
        process, leaf = self.process, self.core.leaves[job.leaf]
        step = process.page.read()[0] if process is not None and job.phase == "work" else 0
        status = self._replace("deaths")
        item = (job.phase, job.batch[min(step, len(job.batch)) - 1] if step else -1)
        job.deaths[item] = job.deaths.get(item, 0) + 1
        outside = status == -signal.SIGKILL and job.phase != "work"  # no reward was running yet
        if job.deaths[item] < (5 if outside else 2):
            return
        how = process.obituary(status) if process is not None else "the worker ended"
        if job.phase != "work":
            what = "a worker process" if job.phase == "start" else f"reward {leaf.label!r} in a worker process"
            self._refuse(job, f"{what} cannot be started: {how}", process)
        score = self._error(job, "worker_died", how)
        if step == 0 or leaf.takes_group:
            self._all(job, score)
        else:
            self._one(job, step, score)

    def _refuse(self, job: Job, text: str, process: Process | None) -> NoReturn:
        words = process.last_words.decode("utf-8", "replace").strip() if process is not None else ""
        self.core.refuse(None if job.phase == "start" else job.leaf, f"{text}; it wrote:\n{words}" if words else text)

    def _one(self, job: Job, step: int, score: Score) -> None:
        """Give the completion that the child was at its score; those it had judged but not told are judged again."""
        place = job.batch[min(step, len(job.batch)) - 1]
        place = place if place in job.todo else job.todo[0]
        job.scores[place] = score
        job.todo.remove(place)

    def _error(self, job: Job, reason: BlameMachine, detail: str) -> Score:
        return Score.error(reason, detail, name=self.core.leaves[job.leaf].label)

    def _all(self, job: Job, score: Score) -> None:
        job.scores.update(dict.fromkeys(job.todo, score))
        job.todo.clear()

    def _replace(self, why: str) -> int | None:
        """End the process and start the next one at once; return the exit status."""
        process, self.process = self.process, None
        status = process.end() if process is not None else None
        self.core.count(why)
        if not self.core.closed:
            if why != "restarts":
                self.core.count("restarts")
            with contextlib.suppress(WorkerError, Dropped):  # if it cannot, the next job says so
                self._start()
        return status


def _error(kind: str, text: str) -> RewardkitError:
    """Return the exception that ended a reward in the child: a broken contract or a wrong option."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, RewardkitError):
        return found(text)
    return ContractError(text)


def _seconds(value: float) -> str:
    return f"{value:g} s"
