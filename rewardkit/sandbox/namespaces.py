"""The strict level's walls: user, mount, pid, network, ipc, host name and cgroup namespaces, and a root of its own."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence

from . import kernel, places, privileges

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_ALL = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET

_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE, _DETACH = 2, 4, 8, 4096, 16384, 1 << 18, 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_AT_RECURSIVE = 0x8000

INSIDE = 1_000
"""The user and group id of programs as they see it themselves before their own user namespace hides it."""

WORK = "/tmp"
"""The work folder's path, as programs see it."""


def enter() -> bool:
    """Leave for new namespaces of every kind; the next fork is the first process of the new pid namespace.

    Return whether ids were mapped such that this process is still the user who started it, and `become(INSIDE, …)`
    leads to one that owns nothing. Raises Refused.
    """
    others = _others()
    if others is None:
        user, group = os.geteuid(), os.getegid()
        kernel.call("new namespaces", "unshare", _ALL)
        _write("self", user=f"{INSIDE} {user} 1", group=f"{INSIDE} {group} 1", groups="deny")
        return False
    with _helper(*others) as go:
        kernel.call("new namespaces", "unshare", _ALL)
        go()
    return True


def _others() -> tuple[int, int] | None:
    """Return the ids that root is to change to; None for a normal user, or where there is but one id."""
    if os.geteuid() != 0:
        return None
    user, group = (privileges.other_id(read_map(name)) for name in ("uid_map", "gid_map"))
    if user is None or group is None:
        with_one_id = all(
            sum(int(line.split()[2]) for line in read_map(name).splitlines()) == 1 for name in ("uid_map", "gid_map")
        )
        if with_one_id:
            return None
        raise kernel.Refused("leaving root", errno.EPERM, "this user namespace has no id that owns nothing")
    return user, group


@contextlib.contextmanager
def _helper(user: int, group: int) -> Iterator[Callable[[], None]]:
    """Give a function that maps two ids into the caller's new user namespace, from a process outside of it."""
    caller, (hear, say) = os.getpid(), os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 0
        try:
            os.close(say)
            if os.read(hear, 1):
                _write(str(caller), user=f"0 0 1\n{INSIDE} {user} 1", group=f"0 0 1\n{INSIDE} {group} 1")
        except OSError as problem:
            code = problem.errno or errno.EPERM
        except kernel.Refused as problem:
            code = problem.number
        finally:
            os._exit(code)

    def go() -> None:
        os.write(say, b"+")
        if code := os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]):
            raise kernel.Refused("mapping ids", code)

    try:
        yield go
    finally:
        for fd in (hear, say):
            os.close(fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(helper, 0)


def read_map(name: str) -> str:
    with open(f"/proc/self/{name}", encoding="ascii") as file:
        return file.read()


def _write(process: str, *, user: str, group: str, groups: str = "") -> None:
    for name, text in (("setgroups", groups), ("gid_map", group), ("uid_map", user)):
        if not text:
            continue
        try:
            with open(f"/proc/{process}/{name}", "w", encoding="ascii") as file:
                file.write(text)
        except OSError as problem:
            raise kernel.Refused("mapping ids", problem.errno or errno.EPERM) from None


def build_root(folders: Sequence[str], masked: Sequence[str]) -> None:
    """Make a small read-only root of folders of the old one, go there, and let go of the old one. Raises Refused."""
    kernel.call("private mounts", "mount", b"none", b"/", 0, _REC | _PRIVATE, 0)
    base = next((name for name in (b"/tmp", b"/run", b"/mnt", b"/var") if os.path.isdir(name)), b"/dev")
    _tmpfs(base, _NOSUID | _NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.mkdir(base + b"/old", 0o700)
    kernel.call("new root", "pivot_root", base, base + b"/old")
    os.chdir("/")
    os.umask(0o022)
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
        _show("/old" + folder, folder)
    for folder in masked:
        _tmpfs(os.fsencode(folder), _NOSUID | _NODEV, "size=4k,nr_inodes=2,mode=555")
        _read_only(folder, _ATTR_NOEXEC)
    os.mkdir("/dev")
    for device in places.DEVICES:
        if os.path.exists("/old" + device):
            with open(device, "xb"):
                pass
            kernel.call(f"showing {device}", "mount", os.fsencode("/old" + device), os.fsencode(device), 0, _BIND, 0)
            _read_only(device, _ATTR_NOEXEC, 0)
    os.mkdir(WORK, 0o755)
    kernel.call("detaching the old root", "umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _read_only("/", 0)
    kernel.call("host name", "sethostname", b"sandbox", 7)


def _show(source: str, target: str) -> None:
    kernel.call(f"showing {target}", "mount", os.fsencode(source), os.fsencode(target), 0, _BIND | _REC, 0)
    _read_only(target, 0, _ATTR_NODEV, _AT_RECURSIVE)


def _read_only(path: str, more: int, nodev: int = _ATTR_NODEV, how: int = 0) -> None:
    attributes = ctypes.create_string_buffer(
        struct.pack("=QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | nodev | more, 0, 0, 0), 32
    )
    kernel.call(
        f"making {path} read-only", "mount_setattr", -100, os.fsencode(path), how, ctypes.addressof(attributes), 32
    )


def _tmpfs(path: bytes, flags: int, options: str) -> None:
    kernel.call("tmpfs", "mount", b"tmpfs", path, b"tmpfs", flags, options.encode())


def fork_first(server: int) -> int:
    """Fork a child that is the first process of a new pid namespace. `server` is a pidfd of the caller."""
    kernel.call("pid namespace", "unshare", NEWPID)
    pid = kernel.fork()
    if pid:
        kernel.call("going back to the pid namespace", "setns", server, NEWPID)
    return pid


def work_folder(size: int, files: int) -> None:
    """Give the calling process mounts of its own and an empty work folder, and go there. Raises Refused."""
    kernel.call("mount namespace", "unshare", NEWNS)
    _tmpfs(WORK.encode(), _NOSUID | _NODEV | _NOEXEC, f"size={size},nr_inodes={files},mode=777")
    os.chdir(WORK)


def own_users() -> None:
    """Give the calling process a user namespace without any id in it: threads are counted apart."""
    kernel.call("user namespace", "unshare", NEWUSER)
