"""What a process may do as a user: ids, capabilities, resource limits."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import struct
from collections.abc import Mapping

from . import kernel

_LAST_CAPABILITY = 63
_HEADER = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)  # version 3, this process
_NOTHING = ctypes.create_string_buffer(24)
# NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock: capabilities only ever shrink from here.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80
_KEEP_ON_SETUID = 0x04

LOWEST_OTHER, HIGHEST_OTHER = 1_000, 1_999_999_999


def other_id(map_text: str) -> int | None:
    """Return a user or group id that owns nothing, from the text of an id map; None when the map has no such id."""
    best = None
    for line in map_text.splitlines():
        inside, _, count = (int(field) for field in line.split())
        last = min(inside + count - 1, HIGHEST_OTHER)
        if last >= max(inside, LOWEST_OTHER) and last not in (65534, 65535):
            best = max(best or 0, last)
    return best


def become(user: int, group: int, keep_capabilities: bool) -> None:
    """Change to another user and group for good, and leave all other groups. Raises Refused."""
    if keep_capabilities:
        kernel.prctl("securebits", kernel.PR_SET_SECUREBITS, _KEEP_ON_SETUID)
    kernel.call("leaving the groups", "setgroups", 0, 0)
    kernel.call("changing the group", "setresgid", group, group, group)
    kernel.call("changing the user", "setresuid", user, user, user)
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)


def lock_down() -> None:
    """Nothing that this process starts can ever gain a privilege. Its own capabilities stay. Raises Refused."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            kernel.prctl("bounding set", kernel.PR_CAPBSET_DROP, capability)
        except kernel.Refused as refused:
            if refused.number == errno.EINVAL:  # past the last one that this kernel knows
                break
            if refused.number != errno.EPERM:
                raise
            break  # no capability to drop from the set; no_new_privs does the same
    with contextlib.suppress(kernel.Refused):
        kernel.prctl("securebits", kernel.PR_SET_SECUREBITS, _SECUREBITS)
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability for good. Raises Refused.

    A new user namespace has brought back a bounding set; under the locked bits, no_new_privs and a filter without exec
    it means nothing.
    """
    with contextlib.suppress(kernel.Refused):
        kernel.prctl("securebits", kernel.PR_SET_SECUREBITS, _SECUREBITS)
    kernel.call("dropping capabilities", "capset", ctypes.addressof(_HEADER), ctypes.addressof(_NOTHING))


def limit(limits: Mapping[int, int]) -> None:
    """Set resource limits, soft and hard; never above what is there."""
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))


def raise_stack(size: int) -> None:
    """Set the soft limit of the stack; it holds for the next program that is executed."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_STACK, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def address_space(proc: int | str) -> int:
    """Return the bytes of address space of this process, from a descriptor or path of /proc."""
    folder = proc if isinstance(proc, int) else os.open(proc, os.O_PATH)
    try:
        with open(os.open("self/statm", os.O_RDONLY, dir_fd=folder), encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    finally:
        if folder != proc:
            os.close(folder)
