"""The pool: jobs in, futures out; as many workers as there is work for, up to a limit."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from rewardkit.errors import UsageError, WorkerError
from rewardkit.types import Generation, Score
from rewardkit.workers.wire import (
    Stuck,
    frame,
    leaf_to_data,
    plain,
)
from rewardkit.workers.worker import Job, Worker

if TYPE_CHECKING:
    import weakref
    from concurrent.futures import Future

    from rewardkit.leaf import Leaf

DEFAULT_MEMORY = 2 << 30
"""What a reward may allocate in a worker when it does not say, in bytes."""


class Stats(msgspec.Struct, frozen=True):
    """What happened to a pool's processes so far.

    Attributes:
        kills: Killed over a deadline, or because their job was cancelled.
        deaths: Ended without being asked to.
        restarts: Replaced for whatever reason, also after the memory cap.
    """

    kills: int = 0
    deaths: int = 0
    restarts: int = 0


class Core:
    """What a pool shares with its threads. It does not hold the pool, so a forgotten pool can be collected."""

    def __init__(self, leaves: Sequence[Leaf], limit: int, start_timeout: float) -> None:
        self.leaves = tuple(leaves)
        self.limit = limit
        self.start_timeout = start_timeout
        self.owner = os.getpid()
        self.closed = False
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.workers: list[Worker] = []
        self.counts = {"kills": 0, "deaths": 0, "restarts": 0}
        self._refused: dict[int | None, str] = {}
        self._unfinished = 0
        self._lock = threading.Lock()
        self.command = worker_command()
        self.folder = working_folder()
        self._root = package_root()
        self.greeting = self._greeting()

    def _greeting(self) -> bytes:
        init = {
            "leaves": [leaf_to_data(leaf) for leaf in self.leaves],
            "memory": [leaf.worker_memory or DEFAULT_MEMORY for leaf in self.leaves],
            "timeouts": [leaf.deadline for leaf in self.leaves],
            "path": [place for place in sys.path if isinstance(place, str)],
            "pythonpath": os.environ.get("PYTHONPATH"),
            "digits": sys.get_int_max_str_digits(),
            "depth": sys.getrecursionlimit(),
            "parent": self.owner,
        }
        try:
            return frame(plain(init))
        except Stuck as stuck:
            raise WorkerError(f"an option of a reward holds a {stuck}, which cannot be sent to a worker") from None

    def environment(self) -> dict[str, str]:
        """Return the caller's environment; only a rewardkit that is not installed needs to be pointed out."""
        environment = dict(os.environ)
        if self._root is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (self._root, environment.get("PYTHONPATH"))))
        return environment

    def submit(self, job: Job) -> Future[list[Score]]:
        problem = self._refused.get(None) or self._refused.get(job.leaf)
        if problem is not None:
            job.settle(WorkerError(problem))
            return job.future
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self.workers) < self.limit:
                worker = Worker(self, len(self.workers) + 1)
                self.workers.append(worker)
                worker.thread.start()
        self.jobs.put(job)
        if self.closed:  # closed meanwhile, maybe after its last look at the queue
            self._drain()
        return job.future

    def finished(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def refuse(self, leaf: int | None, text: str) -> NoReturn:
        """Remember that a reward (None: any process) cannot start, so that the next job fails at once. Raises it."""
        self._refused[leaf] = text
        raise WorkerError(text)

    def close(self) -> None:
        # No lock: the garbage collector may call this at any point of any thread.
        if os.getpid() != self.owner:
            return
        self.closed = True
        self._drain()
        for worker in self.workers:
            worker.interrupt()
        self.jobs.put(None)
        until = time.monotonic() + 5.0
        for worker in self.workers:
            if worker.thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError):  # not started yet
                    worker.thread.join(max(0.0, until - time.monotonic()))

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                if job is not None:
                    job.cancel()
        self.jobs.put(None)

    def disown(self) -> None:
        """In a fork of the owner: touch none of its processes."""
        self.closed = True
        for worker in self.workers:
            if worker.process is not None:
                worker.process.disown()


class WorkerPool:
    """Worker processes for a set of rewards. Use it as a context manager, or call `close`.

    Processes start when there is work for them. A pool that is forgotten, or left open when the interpreter exits,
    takes its processes with it; in a fork of this process it refuses to work and leaves them alone.
    """

    def __init__(self, leaves: Sequence[Leaf], *, workers: int | None = None, start_timeout: float = 60.0) -> None:
        """Make a pool; nothing is started yet.

        Args:
            leaves: The rewards; `submit` names one by its place here.
            workers: How many processes at most. Default: one for each CPU this process may use.
            start_timeout: Seconds that a process may take to start, and a reward to be imported in it.

        Raises:
            WorkerError: A reward lives where no other process can load it, or this system has no such processes.
        """
        import weakref

        limit = cpu_count() if workers is None else workers
        if limit < 1:
            raise UsageError(f"at least 1 worker is needed, got {limit}")
        self._core = Core(leaves, limit, start_timeout)
        _remember(self._core)
        self._finalizer: weakref.finalize[Any, WorkerPool] = weakref.finalize(self, self._core.close)

    def submit(self, leaf: int, generation: Generation, at: Sequence[int] | None = None) -> Future[list[Score]]:
        """Score a group's completions, or those at some places of it, with one reward; never blocks.

        The future holds one score for each place, in order. Whatever happens to a row is in its score.

        Args:
            leaf: The place of the reward in the list the pool was made with.
            generation: The group.
            at: Places in `generation.completions`; default all. A group reward judges the whole group all the same.

        Raises:
            WorkerError: The pool is closed, or this process is a fork of the one that made it. In the future: no
                process can be started, or the reward does not load there.
            ContractError, UsageError: In the future: the reward raised one, which stops a run.
        """
        core = self._core
        if os.getpid() != core.owner:
            raise WorkerError("this worker pool belongs to the process that made it; make a new one after a fork")
        if core.closed:
            raise WorkerError("this worker pool is closed")
        count = len(generation.completions)
        places = list(range(count)) if at is None else list(at)
        if not 0 <= leaf < len(core.leaves) or any(not 0 <= place < count for place in places):
            raise IndexError(f"no reward {leaf} or no completion at one of {places}")
        job = Job(self, leaf, generation, places)
        if not places:
            job.settle([])
            return job.future
        return core.submit(job)

    def close(self) -> None:
        """Kill and reap all processes; cancel what is not answered. May be called more than once."""
        self._core.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        """The ids of the processes that run now."""
        return [process.pid for worker in self._core.workers if (process := worker.process) is not None]

    @property
    def stats(self) -> Stats:
        """How many processes were killed, died, and were replaced so far."""
        return Stats(**self._core.counts)


_pools: weakref.WeakSet[Core] | None = None


def _remember(core: Core) -> None:
    """Have forks of this process let go of the pool."""
    import weakref

    global _pools
    if _pools is None:
        _pools = weakref.WeakSet()
        os.register_at_fork(after_in_child=_disown_all)
    _pools.add(core)


def _disown_all() -> None:
    for core in list(_pools or ()):
        core.disown()


def cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def worker_command() -> list[str]:
    """Return the command of a worker, with this interpreter's own flags where they change what code does."""
    if not sys.executable or not hasattr(os, "killpg") or not hasattr(select, "poll"):
        raise WorkerError("worker processes need a POSIX system and a Python that can be started (sys.executable)")
    flags = ["-O"] * sys.flags.optimize + ["-B"] * sys.dont_write_bytecode
    flags += [f"-W{option}" for option in sys.warnoptions]
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    return [sys.executable, *flags, "-P", "-m", "rewardkit.workers"]


def working_folder() -> str | None:
    """Return the folder that workers start in: the present one; None where it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def package_root() -> str | None:
    """Return the folder that this package was imported from, unless every interpreter finds it by itself."""
    import site
    import sysconfig

    root = str(Path(__file__).resolve().parents[2])
    known = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return None if root in {str(Path(place).resolve()) for place in known} else root
