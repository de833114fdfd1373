"""System calls that programs may use: an allow-list as a BPF filter, assembled here, for x86-64.

Two filters are laid over each other; the stricter answer of the two counts. The long allow-list is installed once, in
the server. The short second one goes into every child, takes away what only the server needs, and looks at arguments.
Numbers are those of the kernel's unistd_64.h, structures those of linux/seccomp.h and linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence

from . import kernel

READING = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24,
    "mremap": 25, "msync": 26, "mincore": 27, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35,
    "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "sendfile": 40, "sendto": 44, "recvfrom": 45,
    "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52, "socketpair": 53,
    "setsockopt": 54, "getsockopt": 55, "clone": 56, "exit": 60, "wait4": 61, "kill": 62, "uname": 63, "fcntl": 72,
    "flock": 73, "fsync": 74, "fdatasync": 75, "getdents": 78, "getcwd": 79, "chdir": 80, "fchdir": 81, "readlink": 89,
    "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102,
    "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118,
    "getresgid": 120, "getpgid": 121, "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130, "sigaltstack": 131, "statfs": 137, "fstatfs": 138, "getpriority": 140, "sched_getparam": 143,
    "sched_getscheduler": 145, "sched_get_priority_max": 146, "sched_get_priority_min": 147,
    "sched_rr_get_interval": 148, "prctl": 157, "setrlimit": 160, "gettid": 186, "futex": 202,
    "sched_getaffinity": 204, "epoll_create": 213, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219,
    "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234, "waitid": 247, "openat": 257, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "get_robust_list": 274,
    "epoll_pwait": 281, "signalfd": 282, "timerfd_create": 283, "eventfd": 284, "timerfd_settime": 286,
    "timerfd_gettime": 287, "signalfd4": 289, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293,
    "preadv": 295, "pwritev": 296, "prlimit64": 302, "getcpu": 309, "getrandom": 318, "membarrier": 324,
    "copy_file_range": 326, "preadv2": 327, "pwritev2": 328, "statx": 332, "rseq": 334, "close_range": 436,
    "faccessat2": 439, "epoll_pwait2": 441, "futex_waitv": 449,
}  # fmt: skip
"""What an interpreter with threads and asyncio needs, server and child alike."""

WRITING = {
    "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
    "symlink": 88, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132, "utimes": 235,
    "mkdirat": 258, "fchownat": 260, "futimesat": 261, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "fchmodat": 268, "utimensat": 280, "fallocate": 285, "renameat2": 316,
}  # fmt: skip
"""What changes files and folders. Without a mount namespace Landlock would let some of it through (chmod, utime)."""

SERVER_ONLY = {
    "sendmsg": 46, "recvmsg": 47, "wait4": 61, "waitid": 247, "capset": 126, "mount": 165, "unshare": 272, "setns": 308,
    "seccomp": 317, "pidfd_open": 434,
}  # fmt: skip
"""What the server needs to start and end children, and no child may."""

_CLONE, _CLONE3, _KILL, _TGKILL, _IOCTL, _FCNTL, _PRCTL, _PRLIMIT = 56, 435, 62, 234, 16, 72, 157, 302

_CLONE_THREAD = 0x00010000
_THREAD_FLAGS = 0x007D0F00  # every flag that a C library sets for a thread
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)  # no F_SETOWN, F_SETSIG, F_NOTIFY, F_SETLEASE, F_SETPIPE_SZ
_PRCTLS = (15, 16, 3, 39, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS, PR_SET_VMA

_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCH_X86_64 = 0xC000003E
_X32 = 0x40000000
_LOAD, _RETURN, _JEQ, _JGE, _JSET, _AND = 0x20, 0x06, 0x15, 0x35, 0x45, 0x54
_NUMBER, _ARCH = 0, 4

Instruction = tuple[int, int, int, int]


def _argument(index: int, high: bool = False) -> int:
    return 16 + 8 * index + 4 * high


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


_PROLOGUE: list[Instruction] = [
    (_LOAD, 0, 0, _ARCH),
    (_JEQ, 1, 0, _AUDIT_ARCH_X86_64),
    (_RETURN, 0, 0, _KILL_PROCESS),
    (_LOAD, 0, 0, _NUMBER),
    (_JGE, 0, 1, _X32),
    (_RETURN, 0, 0, _KILL_PROCESS),
]


def allow_list(numbers: Iterable[int]) -> list[Instruction]:
    """Return a filter that lets these calls through and answers EPERM to all others, ENOSYS to clone3."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    edges = [edge for pair in ranges for edge in pair]
    clone3 = [
        (_JEQ, 0, 1, _CLONE3),
        _refuse(errno.ENOSYS),
    ]  # the C library then falls back to clone, whose flags we see
    return [*_PROLOGUE, *clone3, *_search(edges, 0, len(edges))]


def _search(edges: Sequence[int], low: int, high: int) -> list[Instruction]:
    """Binary search over the edges of ranges: after an odd number of edges a call is inside one."""
    if low == high:
        return [(_RETURN, 0, 0, _ALLOW) if low % 2 else _refuse(errno.EPERM)]
    middle = (low + high) // 2
    below = _search(edges, low, middle)
    above = _search(edges, middle + 1, high)
    return [(_JGE, len(below), 0, edges[middle]), *below, *above]


def child_list(own_pid: int, server_only: Iterable[int]) -> list[Instruction]:
    """Return the filter of a child: nothing of the server's, and only harmless arguments of a few calls."""
    program = list(_PROLOGUE)
    for number in sorted(server_only):
        program += [(_JEQ, 0, 1, number), _refuse(errno.EPERM)]
    flags = ~_THREAD_FLAGS & 0xFFFFFFFF
    program += _when(
        _CLONE,
        [
            (_LOAD, 0, 0, _argument(0)),
            (_JSET, 1, 0, flags),  # any other flag: refused
            (_JSET, 1, 0, _CLONE_THREAD),
            _refuse(errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    program += _when(_KILL, _one_of(0, (own_pid,), errno.EPERM))
    program += _when(_TGKILL, _one_of(0, (own_pid,), errno.EPERM))
    program += _when(_PRLIMIT, _one_of(0, (0, own_pid), errno.EPERM))
    program += _when(_IOCTL, _one_of(1, _IOCTLS, errno.ENOTTY))
    program += _when(_FCNTL, _one_of(1, _FCNTLS, errno.EINVAL))
    program += _when(_PRCTL, _one_of(0, _PRCTLS, errno.EPERM))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    return [(_JEQ, 0, len(body), number), *body]


def _one_of(index: int, values: Sequence[int], code: int) -> list[Instruction]:
    """Allow the call when the low half of an argument is one of the values (the kernel takes an int there)."""
    tests = [(_JEQ, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(_LOAD, 0, 0, _argument(index)), *tests, _refuse(code), (_RETURN, 0, 0, _ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Filter:
    """An assembled filter, ready to be installed without allocating anything."""

    def __init__(self, program: Sequence[Instruction]) -> None:
        packed = b"".join(struct.pack("=HBBI", code, yes, no, k) for code, yes, no, k in program)
        self._code = ctypes.create_string_buffer(packed, len(packed))
        self._program = _Program(len(program), ctypes.addressof(self._code))

    def install(self) -> None:
        """Hold the calling process, and all that it starts, to the filter, for good. Needs no_new_privs."""
        kernel.call("seccomp filter", "seccomp", 1, 0, ctypes.addressof(self._program), 0)
