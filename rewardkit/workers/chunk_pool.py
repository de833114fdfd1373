"""Worker processes for pieces of a file. A piece whose worker dies twice, or cannot do it, comes back undone."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

import msgspec

from rewardkit.errors import WorkerError
from rewardkit.records.chunks import Chunk
from rewardkit.workers.chunk_scorer import PieceResult, ScoringPlan
from rewardkit.workers.pool import package_root, worker_command, working_folder
from rewardkit.workers.process import Dropped, Ended, Late, Process
from rewardkit.workers.wire import HEADER, Stuck, frame, plain

MOST = 8
"""How many processes are worth starting: the caller's share of the work keeps no more of them busy."""

_TRIES = 2
_START = 60.0  # seconds that a process may take to start and to import its rewards
_PIPE = 1 << 20  # bytes; a piece goes through in one go then


class ChunkPool:
    """Processes that score pieces of one file. Use it as a context manager.

    Attributes:
        workers: How many processes there are at most.
    """

    def __init__(self, plan: ScoringPlan, workers: int) -> None:
        """Make a pool; nothing is started yet.

        Raises:
            WorkerError: This system has no such processes, or the plan cannot be sent.
        """
        self.workers = workers
        self._closed = False
        self._broken = False
        self._command = worker_command()
        self._folder = working_folder()
        self._environment = _environment()
        self._greeting = _greeting(plan)
        self._jobs: queue.SimpleQueue[tuple[Chunk, Future[PieceResult | None]] | None] = queue.SimpleQueue()
        self._processes: set[Process] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the processes."""
        for number in range(self.workers):
            thread = threading.Thread(target=self._serve, name=f"rewardkit-chunks-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, chunk: Chunk) -> Future[PieceResult | None]:
        """Have a piece scored. The result is None where it has to be scored here, in order."""
        future: Future[PieceResult | None] = Future()
        if self._broken:
            future.set_result(None)
        else:
            self._jobs.put((chunk, future))
        return future

    @property
    def worker_pids(self) -> list[int]:
        """The ids of the processes that run now."""
        return [process.pid for process in list(self._processes)]

    def close(self) -> None:
        """Kill and reap all processes; what is not done stays undone."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for process in list(self._processes):
            process.kill()
        until = time.monotonic() + 5.0
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> ChunkPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- one thread a process

    def _serve(self) -> None:
        process: Process | None = None
        try:
            with contextlib.suppress(WorkerError, OSError, Ended, Late, Dropped):  # the first piece tries again
                process = self._start()
            while (job := self._jobs.get()) is not None and not self._closed:
                chunk, future = job
                answer: Any = None
                for _ in range(_TRIES):
                    try:
                        process = process or self._start()
                        answer = self._ask(process, chunk)
                        break
                    except (Ended, Late, OSError, msgspec.MsgspecError):
                        self._end(process)
                        process = None
                    except (WorkerError, Dropped):
                        self._end(process)
                        process = None
                        self._broken = True
                        break
                future.set_result(answer)
        finally:
            self._end(process)
            # Nobody may wait for ever for what this thread leaves behind.
            if self._closed or self._broken:
                self._drain()

    def _drain(self) -> None:
        ends = 0  # each is meant for another thread, which would wait for it for ever
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is None:
                    ends += 1
                else:
                    job[1].set_result(None)
        for _ in range(ends):
            self._jobs.put(None)

    def _start(self) -> Process:
        process = Process(self._command, self._environment, self._folder)
        self._processes.add(process)
        _widen(process)
        try:
            until = time.monotonic() + _START
            process.send(self._greeting, until, self._abandoned)
            answer = process.receive(until, self._abandoned)
        except BaseException:
            self._end(process)
            raise
        if answer[0] != "ready":
            self._end(process)
            raise WorkerError(str(answer[-1]))
        return process

    def _abandoned(self) -> bool:
        return self._closed

    def _ask(self, process: Process, chunk: Chunk) -> PieceResult | None:
        body = msgspec.msgpack.encode(chunk)
        process.send(HEADER.pack(len(body)), math.inf, self._abandoned)
        process.send(body, math.inf, self._abandoned)
        kind, data = process.receive(math.inf, self._abandoned)
        return msgspec.convert(data, PieceResult) if kind == "done" else None

    def _end(self, process: Process | None) -> None:
        if process is not None:
            self._processes.discard(process)
            process.end()


def _greeting(plan: ScoringPlan) -> bytes:
    init = {
        "scoring": {
            "read": msgspec.to_builtins(plan.read),
            "rewards": plan.rewards,
            "labels": plan.labels,
            "step": plan.step,
        },
        "path": [place for place in sys.path if isinstance(place, str)],
        "pythonpath": os.environ.get("PYTHONPATH"),
        "digits": sys.get_int_max_str_digits(),
        "depth": sys.getrecursionlimit(),
        "parent": os.getpid(),
    }
    try:
        return frame(plain(init))
    except Stuck as stuck:
        raise WorkerError(f"an option of a reward holds a {stuck}, which cannot be sent to a worker") from None


def _environment() -> dict[str, str]:
    environment, root = dict(os.environ), package_root()
    if root is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    return environment


def _widen(process: Process) -> None:
    """Let a whole piece into the pipe at once, where the system allows it."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(process.inbox, fcntl.F_SETPIPE_SZ, _PIPE)
