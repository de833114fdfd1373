"""What the self-test executes inside the walls. It is read as text, not imported. Every attempt must be refused."""

import ctypes
import errno
import os
import socket
from collections.abc import Callable

_syscall = ctypes.CDLL(None, use_errno=True).syscall


def _call(number: int, *arguments: object) -> None:
    # Any other error says that the kernel has looked at the arguments, which are wrong on purpose.
    if _syscall(number, *arguments) < 0 and ctypes.get_errno() in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def _new_socket() -> None:
    socket.socket().close()


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _write(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"x")
    os.unlink(path)


ATTEMPTS: dict[str, Callable[[], object]] = {
    "open a socket": _new_socket,
    "start a process": _fork,
    "execute a program": lambda: _call(59, 1, 0, 0),
    "read /etc/passwd": lambda: _read("/etc/passwd"),
    "read /proc/self/environ": lambda: _read("/proc/self/environ"),
    "write into the root folder": lambda: _write("/rewardkit-probe"),
    "signal its parent": lambda: os.kill(os.getppid() or 2, 0),
    "trace a process": lambda: _call(101, 0, 0, 0, 0),
    "make namespaces": lambda: _call(272, 0x10000000),
    "mount": lambda: _call(165, b"none", b"/", 0, 0x4000, 0),
    "set up io_uring": lambda: _call(425, 1, 0),
    "load a BPF program": lambda: _call(321, 0, 0, 0),
    "keep a secret file in memory": lambda: _call(319, b"x", 0),
}

NAMES = list(ATTEMPTS)


def attempt(name: str) -> str:
    """Try it; return "" when it worked, else what refused it."""
    try:
        ATTEMPTS[name]()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


class Liar:
    def __eq__(self, other: object) -> bool:
        return True


def lie() -> Liar:
    return Liar()
