"""System calls that Python has no function for, through the C library, on x86-64 Linux."""

from __future__ import annotations

import ctypes
import os
from typing import Any

NUMBERS = {
    "setresuid": 117, "setresgid": 119, "setgroups": 116, "capset": 126, "pivot_root": 155, "prctl": 157, "mount": 165,
    "umount2": 166, "sethostname": 170, "unshare": 272, "setns": 308, "seccomp": 317, "pidfd_open": 434,
    "close_range": 436, "mount_setattr": 442, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}  # fmt: skip

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 28, 38


class Refused(Exception):
    """The kernel refused a step of setting up the sandbox."""

    def __init__(self, step: str, number: int, text: str = "") -> None:
        super().__init__(f"{step}: {text or os.strerror(number)}")
        self.step, self.number, self.text = step, number, text or os.strerror(number)


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def call(step: str, name: str, *arguments: Any) -> int:
    """Make a system call. Raises Refused, naming the step.

    Integers travel in full width, bytes as pointers to zero-terminated text.
    """
    full = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = _syscall(ctypes.c_long(NUMBERS[name]), *full)
    if result < 0:
        raise Refused(step, ctypes.get_errno())
    return int(result)


_fork = ctypes.PyDLL(None, use_errno=True).fork


def fork() -> int:
    """Fork a process with one thread. Raises Refused.

    Not os.fork: its handlers (threading, random, logging) would touch, and so copy, 150 pages in every child. They have
    nothing to do where there is one thread, except that random must be seeded.
    """
    pid = int(_fork())
    if pid < 0:
        raise Refused("fork", ctypes.get_errno())
    return pid


def prctl(step: str, option: int, *arguments: int) -> None:
    """Set an attribute of the process. Raises Refused."""
    call(step, "prctl", option, *(*arguments, 0, 0, 0, 0)[:4])
