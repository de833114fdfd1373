"""The landlock level's wall: the file system read-only and only where the standard library is. Needs no privilege.

Structures and bits are those of linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_SINCE_5 = (1 << 16) - 1  # with device ioctl
_NETWORK = 3
_SCOPES = 3  # abstract sockets and signals
_BY_PATH = 1


def version() -> int:
    """Return the version of Landlock's interface here. Raises Refused where there is none."""
    return kernel.call("Landlock", "landlock_create_ruleset", 0, 0, 1)


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Hold the calling process, and all that it starts, to these folders and devices. Needs no_new_privs."""
    abi = version()
    files = _ALL_OF_ABI.get(abi, _ALL_SINCE_5)
    rules = struct.pack("=QQQ", files, _NETWORK if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    buffer = ctypes.create_string_buffer(rules, len(rules))
    ruleset = kernel.call("Landlock rules", "landlock_create_ruleset", ctypes.addressof(buffer), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        kernel.call("Landlock", "landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno == errno.ENOENT:
            return
        raise kernel.Refused(f"showing {path}", problem.errno or errno.EPERM) from None
    try:
        rule = struct.pack("=Qi", access, fd)
        buffer = ctypes.create_string_buffer(rule, len(rule))
        kernel.call(f"showing {path}", "landlock_add_rule", ruleset, _BY_PATH, ctypes.addressof(buffer), 0)
    finally:
        os.close(fd)
