"""The caller's side: starts the fork server, runs programs in it, holds them to their limits, and speaks with them.

The caller itself is never forked: the server is a new interpreter, and every program is a child of that. Everything
that a program sends is checked before it is looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec

from rewardkit.errors import OptionError, SandboxUnavailable
from rewardkit.sandbox import reasons, wire
from rewardkit.sandbox.limits import LEVELS, Finished, Level, Limits, Status
from rewardkit.sandbox.wire import HEADER, LARGEST_JOB, LARGEST_MESSAGE, Tree, WireError

BOOT = Path(__file__).with_name("boot.py")
PROBE = Path(__file__).with_name("probe.py")
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}
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

_START = 60.0  # seconds for the server to start
_END = 30.0  # seconds for a killed child to be gone
_CHUNK = 1 << 16
_PIPES = (("in", False), ("out", True), ("err", True), ("job", False), ("reply", True), ("status", True))
_MOST_TEXT = 4000  # characters of an exception's text that are kept
_MOST_NESTED = 50  # calls that call back
_OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


class Handle(msgspec.Struct, frozen=True):
    """An object inside a session, by its number: made from a wire tree `["h", id, type name]`."""

    id: int
    type_name: str = "object"


class Remote(msgspec.Struct, frozen=True):
    """As an argument: a global name of the program that is called."""

    name: str


class Callback(msgspec.Struct, frozen=True, eq=False):
    """As an argument: a trusted function that the program may call. It gets values made of what the program sent."""

    function: Callable[..., Any]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back from a call: a value (a checked wire tree), an exception, or neither as it cannot cross."""

    value: Tree = None
    exception: str = ""
    """The name of the nearest builtin exception class that may cross; "" when none was raised."""
    text: str = ""
    original: str = ""
    """The name of the exception's own class, as the program says."""
    arguments: list[Tree] | None = None
    """With writeback: the positional arguments after the call."""
    missing: str = ""
    """The global name that the program has not."""
    refused: str = ""
    """Why the value cannot cross: too deep, too large, broken."""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return not (self.exception or self.missing or self.refused)


class SandboxDied(Exception):
    """A program ended, or was ended by a limit, before it answered."""

    def __init__(self, finished: Finished, who: Session) -> None:
        super().__init__(f"{finished.status} {finished.detail}".strip())
        self.finished, self.who = finished, who


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
        self._server: _Server | None = None
        self._closed = False
        self._servers: list[_Server] = []
        weakref.finalize(self, _end_all, self._servers)
        _OPEN.add(self)
        self._start()

    def run(self, source: str, *, stdin: bytes = b"", limits: Limits = Limits()) -> Finished:  # noqa: B008
        """Run a source as a script with this standard input, to its end or the limits'."""
        with _Child(self, "run", source, (), limits, stdin) as child:
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

    def _start(self) -> _Server:
        """Return the server that runs; start and try out a new one where there is none. Raises SandboxUnavailable."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("this sandbox is closed")
            if self._server is not None and self._server.alive():
                return self._server
            _end_all(self._servers)
            self._server = _Server(self.level, self._preload)
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


def _end_all(servers: list[_Server]) -> None:
    while servers:
        servers.pop().end()


def _after_fork() -> None:
    for sandbox in list(_OPEN):
        sandbox._disown()


os.register_at_fork(after_in_child=_after_fork)


class _Server:
    """The process of a fork server, and the socket on which it is spoken with."""

    def __init__(self, level: Level, preload: Sequence[str]) -> None:
        reasons.require_machine(level)
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
        if not interpreter:
            raise reasons.unavailable(level, "finding Python", 0, "this process knows no Python interpreter to start")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            configuration = {"level": level, "control": theirs.fileno(), "preload": list(preload)}
            command = [interpreter, "-s", "-S", "-B", "-P", "-X", "utf8", str(BOOT), json.dumps(configuration)]
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    env=ENVIRONMENT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as problem:
                ours.close()
                raise reasons.unavailable(level, f"starting {interpreter}", problem.errno or 0) from None
        self.pid = self._popen.pid
        self._socket, self._folder = ours, ""
        self._greet(level)

    def _greet(self, level: Level) -> None:
        self._socket.settimeout(_START)
        try:
            message = json.loads(self._socket.recv(_CHUNK) or b"[]")
        except TimeoutError:
            message = ["failed", "starting", 0, f"nothing was heard of it within {_START:g} seconds"]
        except (OSError, ValueError):
            message = []
        assert self._popen.stderr is not None
        if message[:1] == ["ready"]:
            self.kept_uid, self._folder = bool(message[1]), str(message[2])
            self._popen.stderr.close()
            self._socket.settimeout(None)
            return
        self._popen.kill()
        words = self._popen.stderr.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        self.end()
        _, step, number, text = message or ["failed", "starting", 0, words[-1] if words else "it ended at once"]
        raise reasons.unavailable(level, step, number, text)

    def alive(self) -> bool:
        """Tell whether it still runs."""
        return self._popen.poll() is None

    def send(self, message: list[Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises SandboxUnavailable when the server has gone."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
        except OSError:
            raise SandboxUnavailable("the sandbox's server has ended") from None

    def end(self) -> None:
        """Close, kill, reap."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._popen.stderr is not None:
            self._popen.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(2)
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()
        self._popen.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def disown(self) -> None:
        self._socket.close()
        self._popen.returncode = 0


class _Child:
    """One program's process as seen from here: its pipes, its budget of time, its end."""

    def __init__(
        self, sandbox: Sandbox, mode: str, source: str, options: Sequence[Any], limits: Limits, stdin: bytes = b""
    ) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._number = next(sandbox._numbers)
        self._began = time.monotonic()
        self._waited = 0.0
        self._kept = {"out": bytearray(), "err": bytearray()}
        self._heard, self._told = bytearray(), bytearray()
        self._to_send: dict[str, memoryview] = {}
        self._fds: dict[str, int] = {}
        self._poll = select.poll()
        self._roles: dict[int, str] = {}
        self._why: tuple[Status, str] | None = None
        self.ran_out = False  # of memory, as it said itself
        self.finished: Finished | None = None
        job = wire.pack([mode, source, *options], LARGEST_JOB)
        self._spawn(mode, limits)
        self.queue("job", job)
        self.queue("in", stdin)

    def _spawn(self, mode: str, limits: Limits) -> None:
        server = self._sandbox._start()
        theirs: list[int] = []
        try:
            for role, reads in _PIPES if mode == "run" else _PIPES[1:]:  # others get the server's /dev/null as input
                reader, writer = os.pipe()
                ours, other = (reader, writer) if reads else (writer, reader)
                self._fds[role] = ours
                theirs.append(other)
                os.set_blocking(ours, False)
                self._roles[ours] = role
                if reads:
                    self._poll.register(ours, select.POLLIN)
            server.send(["s", self._number, mode, msgspec.structs.asdict(limits)], theirs)
        except BaseException:
            self._close_all()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._server = server

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end("closed")

    # Moving bytes.

    def queue(self, role: str, data: bytes) -> None:
        """Put bytes behind those that wait to be written."""
        if role not in self._fds:
            return
        waiting = self._to_send.get(role)
        self._to_send[role] = memoryview(bytes(waiting) + data if waiting else data)
        self._write(role)

    def _write(self, role: str) -> None:
        left = self._to_send[role]
        fd = self._fds[role]
        try:
            while left:
                left = left[os.write(fd, left[: 1 << 20]) :]
        except BlockingIOError:
            self._to_send[role] = left
            self._poll.register(fd, select.POLLOUT)
            return
        except OSError:  # it does not read any more
            left = memoryview(b"")
        self._to_send[role] = memoryview(b"")
        if role == "in":
            self._close(role)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)

    def step(self) -> None:
        """Wait for something to happen and deal with it; at most until the wall-clock limit."""
        began = time.monotonic()
        left = self._limits.wall - self._waited
        if left <= 0:
            self._stop("timeout", "wall")
        events = self._poll.poll(1000 * max(0.0, left) if self._why is None else 1000 * _END)
        if not events and self._why is not None:
            self._lose()
        for fd, _ in events:
            role = self._roles.get(fd, "")  # none when what came before in this round was its end
            if role in ("job", "in"):
                self._write(role)
            elif role:
                self._read(role, fd)
        if self._why is None:
            self._waited += time.monotonic() - began

    def _read(self, role: str, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(role)
            if role == "status" and self.finished is None:
                self._lose()
        elif role in self._kept:
            kept = self._kept[role]
            room = self._limits.output - len(kept)
            kept += data[:room]
            if len(data) > room:
                self._stop("output", f"more than {self._limits.output} bytes")
        elif role == "status":
            self._told += data
            self._hear_status()
        else:
            self._heard += data
            if len(self._heard) > LARGEST_MESSAGE + _CHUNK:
                self._heard.clear()
                self._stop("killed", "broke the protocol: more than a message may hold")

    def _hear_status(self) -> None:
        while len(self._told) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._told)
            if len(self._told) < HEADER.size + size:
                return
            message = json.loads(bytes(self._told[HEADER.size : HEADER.size + size]))
            del self._told[: HEADER.size + size]
            if message[0] == "f":
                self._close_all()
                raise reasons.unavailable(self._sandbox.level, *message[1:])
            self._conclude(*message[1:])

    def _conclude(self, status: int, cpu_seconds: float, why: str) -> None:
        """Put together how it ended."""
        for role in ("out", "err", "reply"):
            fd = self._fds.get(role)
            while fd is not None and role in self._fds:
                before = len(self._kept.get(role, self._heard))
                self._read(role, fd)
                if len(self._kept.get(role, self._heard)) == before:
                    break
        code = os.waitstatus_to_exitcode(status)
        frame = wire.pack(["memory"])
        if self._why is not None:
            kind, detail = self._why
        elif why:
            kind, detail = ("timeout", why) if why == "cpu" else ("killed", "the sandbox was closed")
        elif code >= 0:
            kind, detail = ("memory" if code and (self.ran_out or frame in self._heard) else "exited"), ""
        elif code == -signal.SIGKILL:
            kind, detail = "killed", "by the machine"
        else:
            kind, detail = "signal", _signal_name(-code)
        self.finished = Finished(
            status=kind,
            code=abs(code),
            stdout=bytes(self._kept["out"]),
            stderr=bytes(self._kept["err"]),
            cpu_seconds=cpu_seconds,
            wall_seconds=time.monotonic() - self._began,
            level=self._sandbox.level,
            detail=detail,
        )
        self._close_all()

    def _lose(self) -> NoReturn:
        """The server has gone, or does not do what it is told."""
        self._close_all()
        if self._server.alive():
            self._server.end()
        raise SandboxUnavailable("the sandbox's server has ended while a program ran")

    # Ending.

    def _stop(self, status: Status, detail: str) -> None:
        if self._why is None:
            self._why = (status, detail)
            self._server.send(["k", self._number])

    def run_to_end(self) -> Finished:
        """Wait for its end."""
        while self.finished is None:
            self.step()
        return self.finished

    def end(self, why: str) -> None:
        """Kill it when it still runs, without waiting."""
        if self.finished is None and self._fds:
            with contextlib.suppress(SandboxUnavailable):
                self._server.send(["k", self._number])
        self._close_all()

    def finish(self, status: Status, detail: str) -> Finished:
        """Kill it when it still runs, and wait for its end."""
        if self.finished is None:
            self._stop(status, detail)
        return self.run_to_end()

    def _close(self, role: str) -> None:
        fd = self._fds.pop(role, None)
        if fd is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
            os.close(fd)
            del self._roles[fd]

    def _close_all(self) -> None:
        for role in list(self._fds):
            self._close(role)

    # Messages.

    def message(self) -> bytes | None:
        """Return the body of the next whole message that it sent; None while there is none. Raises WireError."""
        if len(self._heard) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._heard)
        if size > LARGEST_MESSAGE:
            raise WireError(f"a message of {size} bytes")
        end = HEADER.size + size
        if len(self._heard) < end:
            return None
        body = bytes(memoryview(self._heard)[HEADER.size : end])
        del self._heard[:end]
        return body


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Session:
    """A program that answers calls. One thread at a time."""

    _refused: ClassVar[frozenset[str]] = wire.TRUSTED

    def __init__(self, sandbox: Sandbox, mode: str, source: str, options: Sequence[Any], limits: Limits) -> None:
        self._callbacks: list[Callable[..., Any]] = []
        self._loaded: Reply | None = None
        self._over: tuple[Finished, Session] | None = None  # it waits for an answer that will never come
        self._depth = 0
        self._child = _Child(sandbox, mode, source, options, limits)

    @property
    def loaded(self) -> Reply:
        """The reply to executing the source. Raises SandboxDied."""
        if self._loaded is None:
            self._loaded = self._wait_for_reply()
        return self._loaded

    @property
    def finished(self) -> Finished | None:
        """How the program ended; None while it runs."""
        return self._child.finished

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        handle: Handle | None = None,
        writeback: bool = False,
        awaited: bool = False,
    ) -> Reply:
        """Call a global by its dotted name, or with a handle that object ("") or its method. Raises SandboxDied.

        Arguments are plain values (else WireError, a ValueError); Handle, Callback and Remote may stand in them. With
        awaited, a coroutine that comes of it is run to its end there, and its result is the value.
        """
        if handle is not None and name:
            inner = [name, list(args), dict(kwargs or {})]
            reply = self._ask(["o", handle.id], "run_method" if awaited else "method", inner, {}, writeback)
            if reply.arguments is not None and len(reply.arguments) == len(inner):
                theirs = reply.arguments[1]
                reply = msgspec.structs.replace(reply, arguments=_arguments([theirs]))
            return reply
        target = ["n", name] if handle is None else ["o", handle.id]
        return self._ask(target, "run" if awaited else "call", list(args), dict(kwargs or {}), writeback)

    def feed(self, text: str) -> Reply:
        """Give the program a standard input that holds a text. Raises SandboxDied."""
        return self._ask(["n", ""], "feed", [text], {}, False)

    def get(self, name: str, *, handle: Handle | None = None) -> Reply:
        """Return the value of a global, or of a handle's attribute. Raises SandboxDied."""
        if handle is None:
            return self._ask(["n", name], "value", [], {}, False)
        return self._ask(["o", handle.id], "get", [name], {}, False)

    def finish(self) -> Finished:
        """End the program when it still runs; return how it ended, and what it printed."""
        return self._child.finish("killed", "no longer needed")

    def close(self) -> None:
        """End the program without waiting."""
        self._child.end("closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, target: list[Any], operation: str, arguments: list[Any], keywords: dict[str, Any], writeback: bool
    ) -> Reply:
        encoder = wire.Encoder(self._special, wire=True)
        frame = wire.pack(["call", target, operation, encoder.tree(arguments), encoder.tree(keywords), writeback])
        if self._over is not None:
            raise SandboxDied(*self._over)
        if self._child.finished is not None:
            raise SandboxDied(self._child.finished, self)
        self._child.queue("job", frame)
        _ = self.loaded
        return self._wait_for_reply()

    def _special(self, value: Any) -> Tree:
        if isinstance(value, Handle):
            return ["o", value.id]
        if isinstance(value, Remote):
            return ["n", value.name]
        if isinstance(value, Callback):
            self._callbacks.append(value.function)
            return ["k", len(self._callbacks) - 1, "callback"]
        raise WireError(f"a {type(value).__name__} cannot cross")

    def _wait_for_reply(self) -> Reply:
        return _reply(self._answer(self._call_back)[1])

    def _answer(self, called: Callable[[bytes, list[Any]], bytes]) -> tuple[bytes, list[Any]]:
        """Return the next answer, as it came and checked; calls before it are handed on. Raises SandboxDied."""
        child = self._child
        while True:
            try:
                while (body := child.message()) is None:
                    if child.finished is not None:
                        raise SandboxDied(child.finished, self)
                    child.step()
                message = _checked(body, self._refused)
            except WireError as problem:
                raise SandboxDied(child.finish("killed", f"broke the protocol: {problem}"), self) from None
            if message[0] == "answer":
                return body, message
            if message[0] == "memory":
                child.ran_out = True
                continue
            child.queue("job", self._nested(called, body, message))

    def _nested(self, called: Callable[[bytes, list[Any]], bytes], body: bytes, message: list[Any]) -> bytes:
        if self._depth >= _MOST_NESTED:
            raise SandboxDied(self._child.finish("killed", f"calls nested more than {_MOST_NESTED} deep"), self)
        self._depth += 1
        try:
            return called(body, message)
        finally:
            self._depth -= 1

    def _call_back(self, body: bytes, message: list[Any]) -> bytes:
        """Answer a call of one of our own functions."""
        _, target, operation, arguments, keywords, _ = message
        encoder = wire.Encoder(self._special, wire=True)
        try:
            if operation != "call" or target[0] != "o":
                raise WireError("nothing but functions can be asked")
            function = self._callbacks[target[1]]
            named = wire.to_value(keywords, _handle)
            value = function(*wire.to_value(arguments, _handle), **named)
            return wire.pack(["answer", "v", encoder.tree(value)])
        except Exception as problem:
            name = wire.nearest_builtin(type(problem))
            return wire.pack(["answer", "x", name, wire.text_of(problem), type(problem).__name__])


def _handle(tree: list[Tree]) -> Any:
    if tree[0] == "h":
        return Handle(tree[1], tree[2])
    raise WireError("nothing that a program could send")


class Judge(Session):
    """Trusted test code in a process of its own, whose remote names are handed on to the program that it tests."""

    _refused: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, sandbox: Sandbox, source: str, remote: Session, names: Sequence[str], writeback: bool, limits: Limits
    ) -> None:
        self._remote = remote
        self.calls = 0
        """How often the test has asked the program for something."""
        super().__init__(sandbox, "judge", source, (list(names), writeback), limits)

    def _call_back(self, body: bytes, message: list[Any]) -> bytes:
        """Hand a call of the test on to the program, and a call of the program back to the test."""
        remote = self._remote
        self.calls += 1
        try:
            if remote.finished is not None:
                raise SandboxDied(remote.finished, remote)
            remote._child.queue("job", _framed(body))
            _ = remote.loaded
            answer, _ = remote._answer(self._call_test)
        except SandboxDied as died:
            self._over = (died.finished, died.who)
            raise
        return _framed(answer)

    def _call_test(self, body: bytes, message: list[Any]) -> bytes:
        """Hand a call of the program back to the test, which answers for the functions that it has given away only."""
        self._child.queue("job", _framed(body))
        answer, _ = self._answer(self._call_back)
        return _framed(answer)


def _framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


def _checked(body: bytes, refused: frozenset[str]) -> list[Any]:
    """Return a message from a program with everything in it checked. Raises WireError."""
    message = wire.unpack(body)
    kind, *parts = message
    if kind == "memory" and not parts:
        return message
    if kind == "call" and len(parts) == 5:
        target, operation, arguments, keywords, _ = parts
        if not _target(target) or target[0] in refused or type(operation) is not str:
            raise WireError("no call")
        message[3], message[4] = wire.check(arguments, refused), wire.check(keywords, refused)
        if message[3][:1] != ["l"] or message[4][:1] != ["d"]:
            raise WireError("no arguments")
        return message
    if kind == "answer" and parts:
        return [kind, parts[0], *_outcome(parts[0], parts[1:], refused)]
    raise WireError("no message of that kind")


def _target(target: Any) -> bool:
    if type(target) is not list or len(target) != 2:
        return False
    return (target[0] == "o" and type(target[1]) is int) or (target[0] == "n" and type(target[1]) is str)


def _outcome(kind: Any, parts: list[Any], refused: frozenset[str]) -> Iterator[Any]:
    texts = {"v": 0, "x": 3, "a": 1, "r": 1}.get(kind, -1) if type(kind) is str else -1
    trees = len(parts) - texts
    if (
        texts < 0
        or any(type(part) is not str for part in parts[:texts])
        or not (kind == "v") <= trees <= (kind == "v") + (kind in "vx")
    ):
        raise WireError("no answer of that kind")
    if kind == "x" and parts[0] not in wire.EXCEPTIONS:
        raise WireError("no such exception")
    yield from parts[:texts]
    yield from (wire.check(part, refused) for part in parts[texts:])


def _reply(message: list[Any]) -> Reply:
    kind, *parts = message[1:]
    if kind == "v":
        return Reply(value=parts[0], arguments=_arguments(parts[1:]))
    if kind == "x":
        text, original = parts[1][:_MOST_TEXT], parts[2][:_MOST_TEXT]
        return Reply(exception=parts[0], text=text, original=original, arguments=_arguments(parts[3:]))
    text = parts[0][:_MOST_TEXT]
    return Reply(missing=text or "?") if kind == "a" else Reply(refused=text or "broken")


def _arguments(trees: list[Tree]) -> list[Tree] | None:
    if not trees or type(trees[0]) is not list:
        return None
    return trees[0][1:] if trees[0][0] == "l" else None


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
