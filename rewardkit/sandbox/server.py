"""The fork server: builds the walls once, then starts a child for every program and tells how it ended.

It hears `["s", number, mode, limits]` (start; with the child's six descriptors), `["k", number]` (kill) and
`["w", number]` (who; with a socket, on which a descriptor of the process is sent) on a socket, and ends when that
does. It never sees a program, a test or an answer: those go between the caller and the child. Through the child's
status pipe it says `["e", wait status, CPU seconds, why]`, or the child says `["f", step, errno, text]` first.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from . import child, kernel, landlock, namespaces, places, privileges, seccomp

_THREAD_STACK = 4 << 20  # else each thread takes as much address space as the main thread's stack may
_LARGEST = 1 << 16
_READY = 5.0  # seconds for a child that is to stand ready
_CORES = os.cpu_count() or 1
_HEADER = struct.Struct(">I")
_STATUS = 5  # the child's status pipe, behind stdin, stdout, stderr, job and reply
_NO_CORE = {resource.RLIMIT_CORE: 0, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0}


class _Running:
    """A child that runs: its process, where its end is told, its CPU limit."""

    def __init__(self, pid: int, status: int, cpu_seconds: float, folder: str) -> None:
        self.pid, self.pidfd, self.status = pid, os.pidfd_open(pid), status
        self.cpu_seconds, self.folder = cpu_seconds, folder
        self.clock = (~pid << 3) | 2
        self.look_at = time.monotonic() + cpu_seconds / _CORES
        self.why = ""


class _Spare:
    """A child that stands ready behind its walls: all it waits for is its descriptors and limits."""

    def __init__(self, pid: int, talk: socket.socket, folder: tuple[int, int]) -> None:
        self.pid, self.talk, self.folder = pid, talk, folder


def main(level: str, control: int, preload: list[str]) -> None:
    """Set up a level's walls, say so, and serve. Never returns."""
    conversation = socket.socket(fileno=control)
    try:
        _prepare(preload)
        server = Server(level, conversation)
    except kernel.Refused as refused:
        _tell_failure(conversation, refused.step, refused.number, refused.text)
    except Exception as problem:
        number = (isinstance(problem, OSError) and problem.errno) or 0
        _tell_failure(conversation, f"starting ({type(problem).__name__})", number, str(problem)[:500])
    conversation.send(json.dumps(["ready", server.kept_uid, server.folder]).encode())
    with contextlib.suppress(ConnectionError):
        server.serve()
    os._exit(0)


def _tell_failure(conversation: socket.socket, step: str, number: int, text: str) -> None:
    with contextlib.suppress(OSError):
        conversation.send(json.dumps(["failed", step, number, text]).encode())
    os._exit(1)


def _prepare(preload: list[str]) -> None:
    """Import what programs will want, before anything is out of reach."""
    sys.path = [path for path in sys.path if "-packages" not in path]
    for name in preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    child.make_streams()
    child.warm_up()
    threading.stack_size(_THREAD_STACK)
    os.environ.clear()
    os.environ.update(HOME=namespaces.WORK, TMPDIR=namespaces.WORK, LANG="C.UTF-8", PATH="/usr/bin:/bin")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):  # standard error stays until the walls stand: its last words explain a failure
        os.dup2(null, fd)
    if null > 2:
        os.close(null)


class Server:
    """A level's walls, and the children inside them."""

    def __init__(self, level: str, conversation: socket.socket) -> None:
        self.level = level
        self.kept_uid = False
        self.folder = (
            ""  # of the work folders, where no namespace hides them; the caller removes it should we be killed
        )
        self._conversation = conversation
        self._children: dict[int, _Running] = {}
        self._numbers: dict[int, int] = {}  # pidfd -> number
        self._spare: _Spare | None = None
        self._folder_size = (0, 0)  # bytes and files of the last child's work folder
        self._poll = select.poll()
        getattr(self, f"_enter_{level}")()
        os.dup2(0, 2)
        self._poll.register(conversation, select.POLLIN)
        child.prepare(namespaces.WORK if level == "strict" else "")
        gc.collect()
        gc.freeze()

    # The walls of each level.

    def _enter_strict(self) -> None:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        folders, masked = places.shown(), places.masked()
        two_ids = namespaces.enter()
        namespaces.build_root(folders, masked)
        self._go_on_as_first_process(proc, two_ids)
        privileges.lock_down()
        kernel.prctl("parent's death", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of ids would undo it
        self._self = kernel.call("pidfd", "pidfd_open", os.getpid(), 0)
        self._space = privileges.address_space(proc)
        os.close(proc)
        privileges.limit(_NO_CORE)
        self._server_only = seccomp.SERVER_ONLY
        seccomp.Filter(
            seccomp.allow_list([*seccomp.READING.values(), *seccomp.WRITING.values(), *self._server_only.values()])
        ).install()
        self._child_filter = seccomp.Filter(seccomp.child_list(1, self._server_only.values()))

    def _go_on_as_first_process(self, proc: int, two_ids: bool) -> None:
        """Go on in a child that is pid 1: its end is the end of everything inside. This process waits for it."""
        first = os.fork()
        if two_ids:  # both, for the signal that one sends the other at its death
            privileges.become(namespaces.INSIDE, namespaces.INSIDE, keep_capabilities=True)
        if first:
            os.close(proc)
            self._conversation.close()
            os.dup2(0, 2)
            privileges.lock_down()
            privileges.drop_capabilities()
            _, status = os.waitpid(first, 0)
            os._exit(max(0, os.waitstatus_to_exitcode(status)))

    def _enter_landlock(self) -> None:
        folders = places.shown()
        landlock.version()
        self.kept_uid = os.geteuid() == 0 and not self._leave_root(folders)
        privileges.lock_down()
        privileges.drop_capabilities()
        self._space = privileges.address_space("/proc")
        self._uid_tasks = _tasks_of(os.geteuid())
        landlock.restrict(folders, places.DEVICES)
        privileges.limit(_NO_CORE)
        self._server_only = {
            name: seccomp.SERVER_ONLY[name]
            for name in ("recvmsg", "sendmsg", "wait4", "waitid", "seccomp", "pidfd_open")
        }
        seccomp.Filter(seccomp.allow_list([*seccomp.READING.values(), *self._server_only.values()])).install()

    def _leave_root(self, folders: list[str]) -> bool:
        """Become a user who owns nothing; not where that user could not read the standard library."""
        ids = [privileges.other_id(namespaces.read_map(name)) for name in ("uid_map", "gid_map")]
        if None in ids or not all(_open_to_others(folder) for folder in folders):
            return False
        try:
            privileges.become(ids[0] or 0, ids[1] or 0, keep_capabilities=False)
        except kernel.Refused:
            return os.geteuid() != 0
        return True

    def _enter_unsafe(self) -> None:
        self.folder = _temporary("/tmp")
        privileges.limit(_NO_CORE)
        self._space = privileges.address_space("/proc")

    # The work.

    def serve(self) -> None:
        """Start, end and reap children until the caller has gone."""
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                if fd == self._conversation.fileno():
                    if not self._hear():
                        return self._end_all()
                else:
                    self._reap(self._numbers[fd])
            self._watch_cpu()
            if self._spare is None and len(self._children) == 1 and self.level == "strict" and not self._poll.poll(0):
                self._make_spare(self._folder_size)

    def _patience(self) -> float | None:
        if not self._children:
            return None
        return 1000 * max(0.0, min(running.look_at for running in self._children.values()) - time.monotonic())

    def _hear(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._conversation, _LARGEST, 6, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        kind, number, *rest = json.loads(data)
        if kind == "s":
            mode, limits = rest
            self._start(number, mode, limits, fds)
        elif kind == "w":
            self._hand_out(number, fds)
        elif number in self._children:
            self._kill(self._children[number])
        return True

    def _hand_out(self, number: int, fds: list[int]) -> None:
        """Give the caller a descriptor of a child's process, by which it can look at it from outside the walls."""
        for fd in fds:
            with socket.socket(fileno=fd) as asked, contextlib.suppress(OSError):  # nobody wants it any more
                if number in self._children:
                    socket.send_fds(asked, [b"+"], [self._children[number].pidfd])

    def _start(self, number: int, mode: str, limits: dict[str, Any], fds: list[int]) -> None:
        status = fds[-1]
        folder = _temporary(self.folder) if self.level == "unsafe" else ""
        try:
            pid = self._send_spare(mode, limits, fds) or self._fork()
        except (kernel.Refused, OSError) as problem:
            _write(status, ["f", "starting a process", _error_number(problem), str(problem)])
            for fd in fds:
                os.close(fd)
            return
        if pid == 0:
            self._become_child(mode, limits, fds, folder)
        for fd in fds[:-1]:
            os.close(fd)
        running = _Running(pid, status, limits["cpu_seconds"], folder)
        self._children[number] = running
        self._numbers[running.pidfd] = number
        self._poll.register(running.pidfd, select.POLLIN)
        self._folder_size = (limits["disk"], limits["files"])

    def _fork(self) -> int:
        return namespaces.fork_first(self._self) if self.level == "strict" else kernel.fork()

    # The next child is started before it is asked for, while the one before it runs: half of a short run is starting.
    # Where several run at once all cores are busy, and it would only cost.

    def _make_spare(self, folder: tuple[int, int]) -> None:
        """Start the next child, up to where it must know what it is for. Where that fails the next start says why."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_READY)
        with theirs:
            try:
                pid = self._fork()
            except kernel.Refused:
                ours.close()
                return
            if pid == 0:
                self._become_spare(theirs.fileno(), folder)
        self._spare = _Spare(pid, ours, folder)

    def _become_spare(self, talk: int, folder: tuple[int, int]) -> None:
        """In the child: go behind its own walls, and wait for what it is to run. Never returns."""
        try:
            os.dup2(talk, 3, inheritable=False)
            kernel.call("closing descriptors", "close_range", 4, 0xFFFFFFFF, 0)
            self._walls(folder)
            conversation = socket.socket(fileno=3)
            conversation.send(b"+")
            data, fds, _, _ = socket.recv_fds(conversation, _LARGEST, 6, socket.MSG_CMSG_CLOEXEC)
            if not data:
                os._exit(0)
            mode, limits = json.loads(data)
            conversation.detach()
        except BaseException:
            os._exit(1)
        self._become_child(mode, limits, fds, "", ready=True)

    def _send_spare(self, mode: str, limits: dict[str, Any], fds: list[int]) -> int:
        """Let the child that stands ready run this; return its pid, or 0 when there is none that fits."""
        spare = self._spare
        if spare is None:
            return 0
        if spare.folder == (limits["disk"], limits["files"]):
            with contextlib.suppress(OSError):
                if spare.talk.recv(1):
                    socket.send_fds(spare.talk, [json.dumps([mode, limits]).encode()], fds)
                    self._spare = None
                    spare.talk.close()
                    return spare.pid
        self._drop_spare()
        return 0

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.talk.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(spare.pid, signal.SIGKILL)
            os.waitpid(spare.pid, 0)

    def _become_child(
        self, mode: str, limits: dict[str, Any], fds: list[int], folder: str, *, ready: bool = False
    ) -> None:
        """In the child: take its descriptors, go behind its own walls, and run the program. Never returns."""
        try:
            high = [os.dup(fd) for fd in fds] if min(fds) < len(fds) else fds
            for place, fd in enumerate(high, _STATUS + 1 - len(high)):  # without input of its own: our /dev/null
                os.dup2(fd, place, inheritable=False)
            kernel.call("closing descriptors", "close_range", _STATUS + 1, 0xFFFFFFFF, 0)
            if not ready and self.level == "strict":
                self._walls((limits["disk"], limits["files"]))
            getattr(self, f"_child_{self.level}")(limits, folder)
            os.close(_STATUS)
        except BaseException as problem:
            step = getattr(problem, "step", "setting up a process")
            with contextlib.suppress(OSError):
                _write(_STATUS, ["f", step, _error_number(problem), str(problem)[:500]])
            os._exit(1)
        child.main(mode, 3, 4)

    def _walls(self, folder: tuple[int, int]) -> None:
        """Mounts, work folder and users of the child's own, and no capability."""
        size, files = folder
        namespaces.work_folder(size, files)
        namespaces.own_users()
        privileges.drop_capabilities()

    def _child_strict(self, limits: dict[str, Any], folder: str) -> None:
        self._limit(limits, limits["processes"])
        self._child_filter.install()

    def _child_landlock(self, limits: dict[str, Any], folder: str) -> None:
        kernel.prctl("parent's death", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        self._limit(limits, limits["processes"] + self._uid_tasks + len(self._children))
        seccomp.Filter(seccomp.child_list(os.getpid(), self._server_only.values())).install()

    def _child_unsafe(self, limits: dict[str, Any], folder: str) -> None:
        kernel.prctl("parent's death", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.chdir(folder)
        os.environ.update(HOME=folder, TMPDIR=folder)
        sys.path.insert(0, folder)
        self._limit(limits, limits["processes"] + _tasks_of(os.geteuid()))

    def _limit(self, limits: dict[str, Any], tasks: int) -> None:
        cpu = int(limits["cpu_seconds"]) + 2  # whole seconds only, so the server's watch comes first
        privileges.limit(
            {
                resource.RLIMIT_CPU: cpu,
                resource.RLIMIT_AS: self._space + limits["memory"],
                resource.RLIMIT_NPROC: tasks,
                resource.RLIMIT_NOFILE: limits["files"],
                resource.RLIMIT_FSIZE: limits["disk"],
            }
        )

    def _watch_cpu(self) -> None:
        now = time.monotonic()
        for running in self._children.values():
            if now < running.look_at:
                continue
            with contextlib.suppress(OSError):  # it has just ended
                left = running.cpu_seconds - time.clock_gettime(running.clock)
                if left <= 0 and not running.why:
                    running.why = "cpu"
                    self._kill(running)
                running.look_at = now + max(left / _CORES, 0.005)

    def _kill(self, running: _Running) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.level == "unsafe":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(running.pid, signal.SIGKILL)
            os.kill(running.pid, signal.SIGKILL)

    def _reap(self, number: int) -> None:
        running = self._children.pop(number)
        self._poll.unregister(running.pidfd)
        del self._numbers[running.pidfd]
        os.close(running.pidfd)
        if self.level == "unsafe":
            self._kill(running)  # what it started
        _, status, usage = os.wait4(running.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        if not running.why and cpu >= running.cpu_seconds and os.WIFSIGNALED(status):
            running.why = "cpu"
        if running.folder:
            import shutil

            shutil.rmtree(running.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # nobody waits for it
            _write(running.status, ["e", status, round(cpu, 6), running.why])
        os.close(running.status)

    def _end_all(self) -> None:
        self._drop_spare()
        for running in list(self._children.values()):
            running.why = running.why or "closed"
            self._kill(running)
        for number in list(self._children):
            self._reap(number)
        if self.folder:
            os.rmdir(self.folder)


def _error_number(problem: BaseException) -> int:
    return getattr(problem, "number", 0) or getattr(problem, "errno", 0) or 0


def _write(fd: int, message: list[Any]) -> None:
    body = json.dumps(message).encode()
    os.write(fd, _HEADER.pack(len(body)) + body)


def _temporary(above: str) -> str:
    import tempfile  # only here: such imports make every fork dearer

    return tempfile.mkdtemp(prefix="rewardkit-", dir=above)


def _tasks_of(user: int) -> int:
    """Return how many threads a user has: where no namespace counts apart, a limit must allow for them."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _open_to_others(folder: str) -> bool:
    path = os.path.realpath(folder)
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True
