"""A fork server and the programs in it as the caller holds them: processes, pipes, limits, and how each ended.

The caller itself is never forked: the server is a new interpreter, and every program is a child of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import reasons, wire
from rewardkit.sandbox.limits import Finished, Level, Limits, Status
from rewardkit.sandbox.looking import Look
from rewardkit.sandbox.wire import HEADER, LARGEST_JOB, LARGEST_MESSAGE, WireError

if TYPE_CHECKING:
    from rewardkit.sandbox.host import Sandbox

BOOT = Path(__file__).with_name("boot.py")
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}

_START = 60.0  # seconds for the server to start
_END = 30.0  # seconds for a killed child to be gone
_CHUNK = 1 << 16
_LOOK = 0.02  # seconds between two looks at whether a program sleeps
_PIPES = (("in", False), ("out", True), ("err", True), ("job", False), ("reply", True), ("status", True))


class Server:
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


class Child:
    """One program's process as seen from here: its pipes, its budget of time, its end."""

    def __init__(
        self, sandbox: Sandbox, mode: str, source: str, options: Sequence[Any], limits: Limits, stdin: bytes = b""
    ) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._number = next(sandbox._numbers)
        self._began = time.monotonic()
        self._waited = 0.0
        self._looked = 0.0 if mode != "judge" else float("inf")  # the time waited at the last look; a test may sleep
        self._slept = 0.0
        self._look: Look | None = None
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

    def __enter__(self) -> Child:
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
        """Wait for something to happen and deal with it; at most until the wall-clock limit, or the next look."""
        began = time.monotonic()
        left = self._limits.wall - self._waited
        if left <= 0:
            self._stop("timeout", "wall")
        patience = max(0.0, min(left, self._looked + _LOOK - self._waited)) if self._why is None else _END
        events = self._poll.poll(1000 * patience)
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
            if not events and self._waited >= self._looked + _LOOK:
                self._look_at()

    def _look_at(self) -> None:
        """Count the time since the last look as slept when no thread of the program can go on.

        That is only asked when it has sent nothing and has taken all that it can, so it does not wait for us. A look
        that comes very late, as this process had no core either, says little of the time before it. The first only
        asks for the process, and so the child's start does not count.
        """
        spent = min(self._waited - self._looked, 2 * _LOOK)
        self._looked = self._waited
        if self._look is None:
            self._look = Look(self._server.send, self._number)
        if self._look.asleep():
            self._slept += spent
            if self._slept + self._look.cpu_seconds() >= self._limits.cpu_seconds:
                self._stop("timeout", "sleep")

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
        seen = self._look.seen if self._look is not None else self._waited < _LOOK
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
            slept_seconds=self._slept if seen else None,
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
        if self._look is not None:
            self._look.close()

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
