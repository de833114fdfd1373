"""The sandbox: a level's walls with a fork server behind them, which is started, tried out and ended here.

programs.py holds the server's process and its programs', sessions.py speaks with them.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from rewardkit.errors import OptionError, SandboxUnavailable
from rewardkit.sandbox import reasons, wire
from rewardkit.sandbox.limits import LEVELS, Finished, Level, Limits
from rewardkit.sandbox.programs import Child, Server
from rewardkit.sandbox.sessions import Judge, Remote, SandboxDied, Session

PROBE = Path(__file__).with_name("probe.py")
PRELOAD = (
    *(
        "abc",
        "array",
        "ast",
        "base64",
        "bisect",
        "calendar",
        "cmath",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
    ),
    *(
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "inspect",
        "io",
        "itertools",
        "json",
    ),
    *(
        "math",
        "numbers",
        "operator",
        "queue",
        "random",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "threading",
    ),
    *("time", "traceback", "typing", "unicodedata", "warnings"),
)
"""Modules of the standard library that the server has imported before a program needs them."""

_OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


class Sandbox:
    """A level's walls with a fork server behind them. Safe to use from several threads, and under asyncio from threads.

    Raises SandboxUnavailable when the level cannot be started here; never takes a weaker one instead.
    """

    def __init__(self, level: Level = "strict", preload: Sequence[str] = PRELOAD) -> None:
        if level not in LEVELS:
            raise OptionError(f"there is no sandbox level {level!r}; the levels are {', '.join(LEVELS)}")
        self.level: Level = level
        self._preload = tuple(preload)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # re-entered by the self-test, before which nobody may use a server
        self._server: Server | None = None
        self._closed = False
        self._servers: list[Server] = []
        weakref.finalize(self, _end_all, self._servers)
        _OPEN.add(self)
        self._start()

    def run(self, source: str, *, stdin: bytes = b"", limits: Limits = Limits()) -> Finished:  # noqa: B008
        """Run a source as a script with this standard input, to its end or the limits'."""
        with Child(self, "run", source, (), limits, stdin) as child:
            return child.run_to_end()

    def session(self, source: str, *, limits: Limits = Limits()) -> Session:  # noqa: B008
        """Execute a source and keep its process to answer calls."""
        return Session(self, "solution", source, ([], False), limits)

    def judge(
        self,
        source: str,
        *,
        remote: Session,
        names: Sequence[str] = (),
        writeback: bool = False,
        limits: Limits = Limits(),  # noqa: B008
    ) -> Judge:
        """Execute trusted test code in a process of its own, in which `names` are those of the program `remote`.

        With writeback, what the program does to a list, dict or set that it was given is done to the test's own.
        """
        return Judge(self, source, remote, names, writeback, limits)

    def close(self) -> None:
        """End the server and every program in it. More than once does no harm."""
        with self._lock:
            self._closed, self._server = True, None
            _end_all(self._servers)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id of the server's outermost process; None when closed."""
        server = self._server
        return None if server is None else server.pid

    def _start(self) -> Server:
        """Return the server that runs; start and try out a new one where there is none. Raises SandboxUnavailable."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("this sandbox is closed")
            if self._server is not None and self._server.alive():
                return self._server
            _end_all(self._servers)
            self._server = Server(self.level, self._preload)
            self._servers.append(self._server)
            try:
                if self.level != "unsafe":
                    _probe(self)
            except BaseException as problem:
                self._server = None
                _end_all(self._servers)
                if isinstance(problem, SandboxDied):
                    raise reasons.unavailable(self.level, "self-test", 0, f"it ended: {problem}") from None
                raise
            return self._server

    def _disown(self) -> None:
        """In a fork of the caller: let go of the server, which belongs to the parent. The fork gets one of its own."""
        self._lock, self._server = threading.RLock(), None
        for server in self._servers:
            server.disown()
        self._servers.clear()


def _end_all(servers: list[Server]) -> None:
    while servers:
        servers.pop().end()


def _after_fork() -> None:
    for sandbox in list(_OPEN):
        sandbox._disown()


os.register_at_fork(after_in_child=_after_fork)


def available() -> dict[Level, str | None]:
    """Return for every level None when it works here, else why not."""
    found: dict[Level, str | None] = {}
    for level in LEVELS:
        try:
            with Sandbox(level):
                found[level] = None
        except SandboxUnavailable as problem:
            found[level] = str(problem)
    return found


def self_test(level: Level = "strict") -> list[tuple[str, str]]:
    """Try in a level what it must stop; return (attempt, what refused it or "" when nothing did) pairs.

    Raises SandboxUnavailable when the level cannot be started, or does not stop what it must.
    """
    with Sandbox(level) as sandbox:
        return _probe(sandbox)


_LIE = "def equal(answer):\n    return answer() == 1\n"


def _probe(sandbox: Sandbox) -> list[tuple[str, str]]:
    """Try everything in the probe. Raises SandboxUnavailable when something is not stopped that the level must stop."""
    found = []
    with sandbox.session(PROBE.read_text(encoding="utf-8")) as session:
        for name in wire.to_value(session.get("NAMES").value) or ():
            found.append((name, str(session.call("attempt", [name]).value)))
        with sandbox.judge(_LIE, remote=session, names=["lie"]) as judge:
            lie = judge.call("equal", [Remote("lie")])
            found.append(("pass with an object that equals everything", lie.text if lie.exception else ""))
    missed = [name for name, refusal in found if not refusal]
    if not found[1:] or (missed and sandbox.level != "unsafe"):
        raise reasons.unavailable(
            sandbox.level, "self-test", 0, f"not stopped: {', '.join(missed) or 'it did not answer'}"
        )
    return found
