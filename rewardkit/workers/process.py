"""One child process: started, talked to with time limits, killed. The only file that starts processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rewardkit.workers.wire import (
    HEADER,
    LARGEST_FRAME,
    Page,
    decoder,
    shared_page,
)

if TYPE_CHECKING:
    import subprocess


_LAST_WORDS = 8 << 10  # bytes of standard error kept to explain a death
TICK = 0.5  # seconds between two looks at things that no pipe tells: a cancelled future, a death without end of file


class Late(Exception):
    """The deadline passed."""


class Ended(Exception):
    """The process ended, or speaks something else than the protocol."""


class Dropped(Exception):
    """Nobody waits for the answer any more."""


class Process:
    """One child process: its pipes, its end, its last words on standard error."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str | None) -> None:
        import subprocess

        pipe = subprocess.PIPE
        with shared_page() as page:
            self.page = Page(page)
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                [*command, str(page)],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                cwd=folder,
                env=environment,
                pass_fds=(page,),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.greeted = False
        self.loaded: set[int] = set()
        self.last_words = b""
        self._files = [file for file in (self._popen.stdin, self._popen.stdout, self._popen.stderr) if file]
        self._in, self._out, self._err = (file.fileno() for file in self._files)
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)
        self._received = bytearray()
        # Re-entrant: the garbage collector may close a dropped pool in the middle of this thread's own work.
        self._lock = threading.RLock()

    def send(self, frame: bytes, until: float, abandoned: Callable[[], bool]) -> None:
        """Write a whole frame. Raises Late, Ended, Dropped."""
        left = memoryview(frame)
        while left:
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                self._poll.register(self._in, select.POLLOUT)
                try:
                    self._wait(until, abandoned)
                finally:
                    self._poll.unregister(self._in)
            except OSError:
                raise Ended from None

    def receive(self, until: float, abandoned: Callable[[], bool]) -> list[Any]:
        """Return the next message. Raises Late, Ended, Dropped."""
        while (body := self._next_frame()) is None:
            self._wait(until, abandoned)
        try:
            message = decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, TypeError):
            raise Ended from None
        if not isinstance(message, list) or not message:
            raise Ended
        return message

    @property
    def inbox(self) -> int:
        """The descriptor that leads to the child's standard input."""
        return self._in

    def alive(self) -> bool:
        """Tell whether an idle child still listens; drains what it wrote to standard error meanwhile."""
        for fd, _ in self._poll.poll(0):
            if fd != self._err:
                return False  # nothing was asked, so this is its end
            self._listen_to_last_words()
        return True

    def _next_frame(self) -> bytes | None:
        buffer = self._received
        if len(buffer) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(buffer)
        if size > LARGEST_FRAME:
            raise Ended
        end = HEADER.size + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[HEADER.size : end])
        del buffer[:end]
        return body

    def _wait(self, until: float, abandoned: Callable[[], bool]) -> None:
        """Wait for the child to do something, at most one tick. Raises Late, Ended, Dropped."""
        left = until - time.monotonic()
        events = self._poll.poll(1000 * max(0.0, min(left, TICK)))
        progress = False
        for fd, _ in events:
            if fd == self._err:
                self._listen_to_last_words()
                continue
            progress = True
            if fd == self._out:
                self._hear()
        if progress:
            return
        if time.monotonic() >= until:
            raise Late
        if abandoned():
            raise Dropped
        if not events and self._has_exited():
            raise Ended

    def _hear(self) -> None:
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise Ended
        self._received += data

    def _listen_to_last_words(self) -> None:
        try:
            data = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(self._err)
        self.last_words = (self.last_words + data)[-_LAST_WORDS:]

    def _has_exited(self) -> bool:
        """Tell whether the child ended although something it left behind holds its pipes open."""
        if not hasattr(os, "waitid"):
            with self._lock:
                return self._popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Kill the child and everything in its process group. Safe from any thread, and more than once."""
        with self._lock:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Kill, reap and close; return the exit status, negative for a signal, None when it cannot be reaped."""
        self.kill()
        pause, until = 0.0002, time.monotonic() + 10.0
        while True:
            with self._lock:
                status = self._popen.poll()
            if status is not None or time.monotonic() > until:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        for _ in range(64):
            before = self.last_words
            with contextlib.suppress(KeyError):  # its end was read before
                self._listen_to_last_words()
            if self.last_words == before:
                break
        self.close_pipes()
        return status

    def close_pipes(self) -> None:
        self.page.close()
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()

    def disown(self) -> None:
        """Let go of it in a fork of the caller: it belongs to the parent, and is no child of this process."""
        self.close_pipes()
        self._popen.returncode = 0

    def obituary(self, status: int | None) -> str:
        """Say how it ended, with the last line that it wrote."""
        if status is None:
            text = "the worker cannot be reached"
        elif status >= 0:
            text = f"the worker ended with exit code {status}"
        else:
            names = {item.value: item.name for item in signal.Signals}
            text = f"the worker was ended by {names.get(-status, f'signal {-status}')}"
        lines = self.last_words.decode("utf-8", "replace").strip().splitlines()
        if lines:
            shown = "".join(char if char.isprintable() else "?" for char in lines[-1].strip()[:300])
            text += f"; its last line was: {shown}"
        return text
