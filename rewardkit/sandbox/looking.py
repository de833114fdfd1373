"""A program's process seen from outside, by the caller: does it sleep, and how much CPU time has it used.

What is read is the kernel's own account, in the caller's /proc. The program is not asked, and cannot see it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from rewardkit.errors import SandboxUnavailable

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = b"RD"  # runs or wants a core, or waits for a disk: the machine's time, not the program's
_IDLE = b"STt"  # sleeps or waits, or is stopped
_LARGEST = 4096


class Look:
    """Looks at one program of a server. Where /proc does not show it, it is never seen asleep."""

    def __init__(self, send: Callable[[list[Any], Sequence[int]], None], number: int) -> None:
        """Ask the server, by `send`, for a descriptor of the process; the answer is not waited for."""
        self._answer: socket.socket | None = None
        self._process = -1
        self.seen = False
        """Whether it could be looked at."""
        with contextlib.suppress(OSError, SandboxUnavailable):
            self._answer, theirs = socket.socketpair()
            with theirs:
                self._answer.setblocking(False)
                send(["w", number], [theirs.fileno()])

    def asleep(self) -> bool:
        """Tell whether no thread of it is on a core, waits for one, or waits for a disk."""
        idle = False
        try:
            folder = f"/proc/{self._pid()}/task"
            for task in os.listdir(folder):
                state = _fields(f"{folder}/{task}/stat")[0]
                self.seen = True
                if state in _BUSY:
                    return False
                idle = idle or state in _IDLE
        except (OSError, ValueError, IndexError):  # not known yet, hidden, or it is ending
            return False
        return idle

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads; 0 where it cannot be seen."""
        try:
            user, system = _fields(f"/proc/{self._pid()}/stat")[11:13]
            return (int(user) + int(system)) / _TICKS
        except (OSError, ValueError):
            return 0.0

    def close(self) -> None:
        """Let go of the process."""
        if self._answer is not None:
            self._answer.close()
        if self._process >= 0:
            os.close(self._process)
        self._answer, self._process = None, -1

    def _pid(self) -> int:
        """Return its number in our /proc, asked anew each time as that number may go to another. Raises OSError."""
        if self._process < 0:
            if self._answer is None:
                raise ProcessLookupError
            _, fds, _, _ = socket.recv_fds(self._answer, 1, 1, socket.MSG_CMSG_CLOEXEC)
            self._process = fds[0] if fds else -1
            self._answer.close()
            self._answer = None
        for line in _read(f"/proc/self/fdinfo/{self._process}").splitlines():
            if line.startswith(b"Pid:") and int(line[4:]) > 0:
                return int(line[4:])
        raise ProcessLookupError


def _fields(path: str) -> list[bytes]:
    """Return what follows the name in a file `stat`: state, parent, …; the name may hold anything, blanks too."""
    return _read(path).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LARGEST)
    finally:
        os.close(fd)
