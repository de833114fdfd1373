"""The child's side: reads jobs, judges them under a memory cap, answers, and ends with its parent."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from rewardkit.errors import ContractError, RewardkitError
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.workers.pool import cpu_count
from rewardkit.workers.wire import (
    HEADER,
    SECONDS,
    Page,
    Stuck,
    decoder,
    frame,
    leaf_from_data,
    score_data,
)

if TYPE_CHECKING:
    import io

    from rewardkit.leaf import Leaf

_GATHER = 0.005  # seconds that a finished score may wait for the next one of its group
_SPARE = 1.0  # CPU seconds beyond its deadline that an orphan may spin, where the kernel cannot tie it to its parent


class _Limits:
    """The child's memory cap, and what ends it when its parent is gone."""

    def __init__(self, parent: int) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._memory: tuple[int, int, int, int] | None = None  # resource, field of statm, soft and hard limit
        self._statm = -1
        with contextlib.suppress(ImportError, OSError, ValueError):
            self._choose_memory()
        self._base = self.used()
        self._tied = _die_with(parent)

    def _choose_memory(self) -> None:
        """Take the first limit that the kernel really enforces."""
        import resource

        self._resource = resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        for limit, field in ((resource.RLIMIT_DATA, 5), (resource.RLIMIT_AS, 0)):
            soft, hard = resource.getrlimit(limit)
            self._memory = (limit, field, soft, hard)
            if self._is_enforced():
                return
        self._memory = None

    def _is_enforced(self) -> bool:
        import mmap

        try:
            self.cap(16 << 20)
            mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            return True
        finally:
            self.lift()
        return False

    def used(self) -> int:
        """Return the bytes that count towards the cap."""
        if self._memory is None:
            return 0
        return int(os.pread(self._statm, 100, 0).split()[self._memory[1]]) * self._page

    def cap(self, size: int) -> None:
        """Let what comes next allocate at most `size` bytes more than there are now."""
        if self._memory is None:
            return
        limit, _, soft, hard = self._memory
        wanted = self.used() + size
        for other in (soft, hard):
            if other != self._resource.RLIM_INFINITY:
                wanted = min(wanted, other)
        self._resource.setrlimit(limit, (wanted, hard))

    def lift(self) -> None:
        """Take the cap away: for our own work, and for imports."""
        if self._memory is not None:
            limit, _, soft, hard = self._memory
            self._resource.setrlimit(limit, (soft, hard))

    def rebase(self) -> None:
        """Count what is allocated now as the worker's own: the modules of its rewards."""
        self._base = self.used()

    def worn(self, size: int) -> bool:
        """Tell whether what was left behind has outgrown a whole cap, so that a fresh process is better."""
        return self.used() > self._base + size

    def bound_cpu(self, timeout: float | None) -> None:
        """Have the kernel end this process when it spins on as an orphan, where nothing better ties it to its parent.

        The limit counts the CPU time of all threads, so that honest parallel work must never reach it. Processes
        that a reward starts inherit it; that is why this is only the second choice.
        """
        if self._tied:
            return
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            soft = hard
            if timeout is not None:
                usage = resource.getrusage(resource.RUSAGE_SELF)
                soft = math.ceil(usage.ru_utime + usage.ru_stime + (timeout + _SPARE) * cpu_count())
                if hard != resource.RLIM_INFINITY:
                    soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _die_with(parent: int) -> bool:
    """Have the kernel kill this process when the parent's thread that started it is gone; False where it cannot.

    The watcher thread does the same, but not while judging code holds the interpreter's lock.
    """
    set_death_signal = 1  # PR_SET_PDEATHSIG
    try:
        import ctypes

        if ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0) != 0:
            return False
    except (ImportError, OSError, AttributeError):
        return False
    if os.getppid() != parent:
        _end()
    return True


def _watch(inbox: int) -> None:
    """End with the parent: its end of the pipe closes when it is gone, however it went."""
    poll = select.poll()
    poll.register(inbox, 0)  # reports nothing but the closing

    def wait() -> None:
        poll.poll()
        _end()

    threading.Thread(target=wait, name="rewardkit-parent-watch", daemon=True).start()


def _end() -> NoReturn:
    """End this process and what it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _OutOfMemory:
    """Stands for the result of a call that ran into the memory cap."""


class _Child:
    """The worker's side: answers jobs until its parent is gone."""

    def __init__(self, requests: io.BufferedReader, answers: int, page: Page) -> None:
        self._requests = requests
        self._answers = answers
        self._page = page
        self._pid = os.getpid()
        self._loaded: dict[int, Leaf] = {}
        self._runner: Any = None

    def serve(self) -> NoReturn:
        init = self._receive()
        if "scoring" in init:
            self._serve_chunks(init)
        self._data: list[Any] = init["leaves"]
        self._memory: list[int] = init["memory"]
        self._timeouts: list[float | None] = init["timeouts"]
        _adopt(init["path"], init["pythonpath"])
        sys.set_int_max_str_digits(init["digits"])
        sys.setrecursionlimit(init["depth"])
        self._limits = _Limits(init["parent"])
        self._send("ready")
        while True:
            self._work(*self._receive())

    def _serve_chunks(self, init: Any) -> NoReturn:
        """Score pieces of a file until the parent is gone."""
        import gc

        import msgspec

        _adopt(init["path"], init["pythonpath"])
        sys.set_int_max_str_digits(init["digits"])
        sys.setrecursionlimit(init["depth"])
        _Limits(init["parent"])
        try:
            from rewardkit.records.chunks import Chunk
            from rewardkit.workers.chunk_scorer import ChunkScorer, ScoringPlan

            scorer = ChunkScorer(msgspec.convert(init["scoring"], ScoringPlan))
        except BaseException as problem:
            self._send("unloadable", _printable(f"{type(problem).__name__}: {problem}"))
            _end()
        # The modules stay; looking through them again and again for cycles costs more than the scoring makes.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        decode = msgspec.msgpack.Decoder(Chunk).decode
        self._send("ready")
        while True:
            chunk = decode(self._receive_bytes())
            try:
                result = scorer(chunk)
            except BaseException as problem:  # the caller meets it, too, and in its place
                self._send("undone", _printable(type(problem).__name__))
            else:
                self._send("done", msgspec.to_builtins(result, builtin_types=(bytes,)))

    def _receive(self) -> Any:
        return decoder.decode(self._receive_bytes())

    def _receive_bytes(self) -> bytes:
        header = self._requests.read(HEADER.size)
        if len(header) < HEADER.size:
            _end()
        (size,) = HEADER.unpack(header)
        return self._requests.read(size)

    def _send(self, *message: Any) -> None:
        left = memoryview(frame(list(message)))
        while left:
            left = left[os.write(self._answers, left) :]

    def _work(self, number: int, sample_data: list[Any], completions: list[list[Any]], group: list[Any] | None) -> None:
        leaf = self._leaf(number)
        if leaf is None:
            return
        self._page.mark(0)
        memory = self._memory[number]
        sample = Sample(*sample_data)
        outputs = tuple(Completion(*data) for data in completions)
        try:
            prepared = self._step(0, number, leaf.prepare, sample)
            if prepared is _OutOfMemory:
                detail = f"reading the reference needs more than {_size(memory)}"
                prepared = Score(None, detail, reason="bad_reference", name=leaf.label)
            if isinstance(prepared, Score):
                self._limits.lift()
                self._send("all", self._data_of(leaf, prepared), self._limits.worn(memory))
            elif group is None:
                self._judge_each(leaf, number, prepared, sample, outputs)
            else:
                self._judge_group(leaf, number, prepared, Generation(sample, outputs, *group))
        except RewardkitError as problem:  # `failure` lets through what stops a run
            self._limits.lift()
            self._send("stop", type(problem).__name__, _printable(str(problem)))

    def _leaf(self, number: int) -> Leaf | None:
        leaf = self._loaded.get(number)
        if leaf is None:
            try:
                leaf = leaf_from_data(self._data[number])
                leaf.warm()
            except BaseException as problem:
                text = str(problem) if isinstance(problem, RewardkitError) else f"{type(problem).__name__}: {problem}"
                self._send("unloadable", _printable(text))
                return None
            self._loaded[number] = leaf
            self._limits.rebase()
            self._page.mark(0)
            self._send("loaded")
        return leaf

    def _judge_each(
        self, leaf: Leaf, number: int, prepared: object, sample: Sample, outputs: tuple[Completion, ...]
    ) -> None:
        """Judge one after another. Answers wait a little for each other, since each wakes the parent."""
        memory = self._memory[number]
        ready: list[list[Any]] = []
        sent = time.perf_counter()
        for place, completion in enumerate(outputs, 1):
            started = time.perf_counter()
            if ready and started - sent > _GATHER:
                self._send("scores", ready, False)
                ready, sent = [], started
            score = self._step(place, number, self._judge, leaf, prepared, sample, completion)
            spent = score is _OutOfMemory
            if spent:
                score = Score(0.0, f"judging needed more than {_size(memory)}", reason="memory", name=leaf.label)
            ready.append(self._data_of(leaf, score, time.perf_counter() - started))
            if spent:
                break
        self._limits.lift()
        self._send("scores", ready, spent or self._limits.worn(memory))

    def _judge(self, leaf: Leaf, prepared: object, sample: Sample, completion: Completion) -> Any:
        score = leaf.judge(prepared, sample, completion)
        return score if isinstance(score, Score) else self._awaited(score)

    def _awaited(self, score: Awaitable[Score]) -> Any:
        import asyncio

        async def wait() -> Score:
            return await score

        if self._runner is None:  # one loop for all, since a reward's clients outlive one call
            self._runner = asyncio.Runner()
        return self._runner.run(wait())

    def _judge_group(self, leaf: Leaf, number: int, prepared: object, generation: Generation) -> None:
        started = time.perf_counter()
        memory, count = self._memory[number], len(generation.completions)
        scores = self._step(1, number, leaf.judge_group, prepared, generation)
        seconds = (time.perf_counter() - started) / count
        self._limits.lift()
        spent = scores is _OutOfMemory
        if spent:
            scores = Score.error("raised", f"judging the whole group needed more than {_size(memory)}", name=leaf.label)
        if isinstance(scores, Score):
            scores = [scores] * count
        if len(scores) != count:
            raise ContractError(f"reward {leaf.label!r} returned {len(scores)} scores for a group of {count}")
        data = [self._data_of(leaf, score, seconds) for score in scores]
        self._send("scores", data, spent or self._limits.worn(memory))

    def _step(self, step: int, number: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the reward's code under the cap and mark its end; what it raises becomes an error score."""
        self._limits.bound_cpu(self._timeouts[number])
        try:
            self._limits.cap(self._memory[number])
            return function(*arguments)
        except MemoryError:
            result: Any = _OutOfMemory
        except BaseException as problem:
            result = _failure(self._loaded[number], problem)
        finally:
            if os.getpid() != self._pid:  # the reward forked, and this is the fork: it must not answer
                os._exit(0)
            self._page.mark(step + 1)  # the next step's deadline begins
        self._limits.lift()
        return result

    def _data_of(self, leaf: Leaf, score: Any, seconds: float | None = None) -> list[Any]:
        if not isinstance(score, Score):
            score = _failure(leaf, TypeError(f"{leaf.label} returned a {type(score).__name__}, not a Score"))
        try:
            data = score_data(score)
        except Stuck as stuck:
            data = score_data(_failure(leaf, TypeError(f"a score holds a {stuck}, which is no data")))
        if seconds is not None:
            data[SECONDS] = seconds
        return data


def _failure(leaf: Leaf, problem: BaseException) -> Score:
    from rewardkit.leaf import failure

    return failure(leaf.label, problem)


def _adopt(path: list[str], pythonpath: str | None) -> None:
    """Take over where the caller finds its modules, in its order."""
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
    os.environ.pop("PYTHONPATH", None)
    if pythonpath is not None:
        os.environ["PYTHONPATH"] = pythonpath


def _size(count: int) -> str:
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _take_streams() -> tuple[int, int]:
    """Move the protocol away from standard input and output, so that a reward that prints or reads cannot touch it."""
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return inbox, outbox


def main() -> int:
    """Run one worker: `python -m rewardkit.workers`, started by a `WorkerPool` and by nothing else."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        print("rewardkit.workers is started by a WorkerPool, not by hand", file=sys.stderr)
        return 2
    page = int(sys.argv[1])
    shared = Page(page)
    os.close(page)
    requests, answers = _take_streams()
    _watch(requests)
    with contextlib.suppress(BrokenPipeError), open(requests, "rb") as inbox:  # the parent may go at any time
        _Child(inbox, answers, shared).serve()
    _end()
