"""The threat table: every attack is tried for real and stopped, and succeeds once its layer is cut out of a copy.

Attacks are bounded: what they would do without the layer is harmless. Without the second half of each test, a test that
passes because its attack is broken would look like a wall that holds.
"""

from __future__ import annotations

import os
import socket
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from behind_walls import WIDE, Cut, printed

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import Limits, Sandbox, seccomp

Without = Callable[..., Sandbox]

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""

NO_CHILD_FILTER: Cut = ("server.py", "        self._child_filter.install()\n", "")
NO_KILL_FILTER: Cut = ("seccomp.py", "    program += _when(_KILL, _one_of(0, (own_pid,), errno.EPERM))\n", "")


def allowing(**calls: int) -> Cut:
    """The cut that adds calls to the allow-list."""
    more = ", ".join(f'"{name}": {number}' for name, number in calls.items())
    return ("seccomp.py", '    "read": 0,', f'    {more}, "read": 0,')


def assert_layer(strict: Sandbox, without: Without, source: str, stopped: str, works: str, *cuts: Cut) -> None:
    """The program prints `stopped` behind all walls, and `works` behind those that are left without the cuts."""
    assert printed(strict, source) == stopped
    assert printed(without(*cuts), source) == works


# Network


def test_a_socket_is_refused(strict: Sandbox, without: Without) -> None:
    source = """
import socket
try:
    socket.socket().close(); print("socket")
except PermissionError:
    print("refused")
"""
    assert_layer(strict, without, source, "refused", "socket", allowing(socket=41))


def test_a_server_on_the_same_machine_is_out_of_reach(without: Without) -> None:
    """The second wall: a network namespace of its own, also where a socket could be had."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 2).close(); print("connected")
except OSError:
    print("unreachable")
"""
        sockets = allowing(socket=41, connect=42)
        assert printed(without(sockets), source) == "unreachable"
        shared = ("namespaces.py", "NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET", "NEWUTS | NEWIPC | NEWUSER | NEWPID")
        assert printed(without(sockets, shared), source) == "connected"


def test_asyncio_and_socket_pairs_work(strict: Sandbox) -> None:
    source = """
import asyncio, socket
async def main():
    await asyncio.sleep(0.001)
    return "ran"
a, b = socket.socketpair(); a.sendall(b"x"); print(asyncio.run(main()), b.recv(1))
"""
    assert printed(strict, source) == "ran b'x'"


# Files, environment, other processes


def test_files_of_the_machine_are_out_of_sight(strict: Sandbox, without: Without) -> None:
    source = """
import os
print([path for path in ("/etc", "/proc", "/sys", "/home", "/bin", "/var") if os.path.exists(path)] and "seen")
"""
    no_root = ("server.py", "        namespaces.build_root(folders, masked)\n", "")
    assert_layer(strict, without, source, "[]", "seen", no_root)


def test_everything_but_the_work_folder_is_read_only(strict: Sandbox, without: Without) -> None:
    source = """
import os, sysconfig
for path in ("/", sysconfig.get_path("stdlib"), "/dev/null"):
    print(bool(os.statvfs(path).f_flag & os.ST_RDONLY), end=" ")
"""
    writable = ("namespaces.py", "_ATTR_RDONLY | _ATTR_NOSUID", "_ATTR_NOSUID")
    assert_layer(strict, without, source, "True True True", "False False False", writable)


def test_the_work_folder_is_fresh_and_writable_and_nothing_in_it_is_executed(strict: Sandbox, without: Without) -> None:
    source = """
import os
print(os.listdir("."), os.getcwd())
open("left", "w").write("x")
flags = os.statvfs(".").f_flag
print(bool(flags & os.ST_NOEXEC), bool(flags & os.ST_NOSUID), bool(flags & os.ST_NODEV))
"""
    for _ in range(2):
        assert printed(strict, source) == "[] /tmp\nTrue True True"
    executable = ("namespaces.py", "_NOSUID | _NODEV | _NOEXEC", "0")
    assert printed(without(executable), source) == "[] /tmp\nFalse False False"


def test_installed_packages_look_absent(strict: Sandbox, without: Without) -> None:
    packages = Path(sysconfig.get_path("stdlib"), "site-packages")
    source = f"import os; print(os.path.isdir({str(packages)!r}) and len(os.listdir({str(packages)!r})))"
    if not packages.is_dir() or not os.listdir(packages):
        pytest.skip("this interpreter has no packages beside its standard library")
    assert printed(strict, source) == "0"
    unmasked = ("server.py", "places.shown(), places.masked()", "places.shown(), []")
    assert int(printed(without(unmasked), source)) > 0


def test_the_environment_is_clean(strict: Sandbox, without: Without, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import os; print('SECRET_TOKEN' in os.environ)"
    monkeypatch.setenv("SECRET_TOKEN", "x")
    assert printed(strict, source) == "False"
    from rewardkit.sandbox import programs

    host_environment = {**programs.ENVIRONMENT, "SECRET_TOKEN": "x"}
    monkeypatch.setattr(programs, "ENVIRONMENT", host_environment)
    kept = ("server.py", "    os.environ.clear()\n", "")
    assert printed(without(kept), source) == "True"


def test_other_programs_cannot_be_signalled(strict: Sandbox, without: Without) -> None:
    """Neither through the filter nor, without it, through the pid namespace."""
    source = """
import os
found = set()
for pid in range(2, 4000):
    try:
        os.kill(pid, 0); found.add("reached")
    except ProcessLookupError: found.add("nobody")
    except PermissionError: found.add("refused")
print(*sorted(found))
"""
    assert printed(strict, source) == "refused"
    assert printed(without(NO_KILL_FILTER), source) == "nobody"
    shared = ("server.py", "namespaces.fork_first(self._self)", "os.fork()")
    assert "reached" in printed(without(NO_KILL_FILTER, shared), source)


def test_no_descriptor_of_the_server_is_left(strict: Sandbox, without: Without) -> None:
    source = """
import os
found = []
for fd in range(5, 200):
    try: os.fstat(fd); found.append(fd)
    except OSError: pass
print(bool(found))
"""
    kept = (
        "server.py",
        '            kernel.call("closing descriptors", "close_range", _STATUS + 1, 0xFFFFFFFF, 0)\n',
        "",
    )
    assert_layer(strict, without, source, "False", "True", kept)


# Processes and programs


def test_fork_is_refused(strict: Sandbox, without: Without) -> None:
    source = """
import os
try:
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0); print("forked")
except PermissionError:
    print("refused")
"""
    assert_layer(strict, without, source, "refused", "forked", NO_CHILD_FILTER)


def test_clone3_does_not_get_past_the_filter(strict: Sandbox, without: Without) -> None:
    source = (
        CALL
        + """
arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17)
pid = libc.syscall(435, arguments, 64)
if pid == 0: libc.syscall(231, 0)
print("cloned" if pid > 0 else errno.errorcode[ctypes.get_errno()])
"""
    )
    open_door = ("seccomp.py", "_refuse(errno.ENOSYS)", "(_RETURN, 0, 0, _ALLOW)")
    assert_layer(strict, without, source, "ENOSYS", "cloned", open_door)


def test_a_program_cannot_be_executed(strict: Sandbox, without: Without) -> None:
    source = """
import os
try:
    os.execv("/lib64/ld-linux-x86-64.so.2", ["ld.so", "--version"])
except PermissionError:
    print("refused")
"""
    assert printed(strict, source) == "refused"
    # It runs and ends well, but its output goes nowhere: the pipes are closed when a program is executed.
    assert printed(without(allowing(execve=59)), source) == ""


def test_new_namespaces_are_refused(strict: Sandbox, without: Without) -> None:
    """By the filter; without it, by missing capabilities."""
    source = CALL + "print(call(272, 0x00020000))"
    assert printed(strict, source) == "EPERM"
    assert printed(without(NO_CHILD_FILTER), source) == "EPERM"
    capable = (
        "server.py",
        "        privileges.drop_capabilities()\n\n    def _child_strict",
        "\n    def _child_strict",
    )
    assert printed(without(NO_CHILD_FILTER, capable), source) == "done"


def test_privileges_can_never_be_gained(strict: Sandbox, without: Without) -> None:
    source = CALL + "print(libc.prctl(39, 0, 0, 0, 0), os.getuid())"
    cut = ("privileges.py", '    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)\n', "")
    assert printed(strict, source) == "1 65534"
    assert printed(without(cut, NO_CHILD_FILTER), source) == "0 65534"


# Resources


def test_threads_are_limited(strict: Sandbox, without: Without) -> None:
    source = """
import threading
threading.stack_size(1 << 18)
stop, started = threading.Event(), 0
try:
    while started < 150: threading.Thread(target=stop.wait).start(); started += 1
except RuntimeError: pass
print(started < 64 and "stopped" or started); stop.set()
"""
    cut = ("server.py", "                resource.RLIMIT_NPROC: tasks,\n", "")
    assert_layer(strict, without, source, "stopped", "150", cut)


def test_a_thread_bomb_leaves_threads_for_the_others(strict: Sandbox, without: Without) -> None:
    """Threads are counted for each program alone."""
    bomb = """
import threading
threading.stack_size(1 << 18)
stop = threading.Event()
def f():
    n = 0
    try:
        while n < 150: threading.Thread(target=stop.wait, daemon=True).start(); n += 1
    except RuntimeError: pass
    return n
"""
    honest = "import threading\ndef f():\n    t = threading.Thread(target=print); t.start(); t.join(); return 'ran'"
    common = ("server.py", "        namespaces.own_users()\n", "")
    for sandbox, outcome in ((strict, "ran"), (without(common), None)):
        with sandbox.session(bomb, limits=WIDE) as first, sandbox.session(honest, limits=WIDE) as second:
            assert 0 < first.call("f").value < 64
            assert second.call("f").value == outcome


def test_memory_is_limited(strict: Sandbox, without: Without) -> None:
    source = """
try:
    data = bytearray(700 << 20); print("allocated")
except MemoryError:
    print("refused")
"""
    cut = ("server.py", '                resource.RLIMIT_AS: self._space + limits["memory"],\n', "")
    assert_layer(strict, without, source, "refused", "allocated", cut)
    assert printed(strict, "print(len(bytearray(450 << 20)))") == str(450 << 20)


@pytest.mark.parametrize(
    ("name", "number", "arguments"), [("memfd_create", 319, "b'x', 0"), ("shmget", 29, "0, 4096, 0o600")]
)
def test_memory_outside_the_limit_is_refused(
    strict: Sandbox, without: Without, name: str, number: int, arguments: str
) -> None:
    source = CALL + f"print(call({number}, {arguments}))"
    assert_layer(strict, without, source, "EPERM", "done", allowing(**{name: number}))


def test_the_disk_is_limited(strict: Sandbox, without: Without) -> None:
    source = """
written = 0
try:
    for name in range(24):
        with open(str(name), "wb", buffering=0) as file: written += file.write(bytes(1 << 20))
except OSError: pass
print("stopped" if written <= 16 << 20 else written >> 20)
"""
    cut = ("namespaces.py", '"size={size},nr_inodes={files},mode=777"', '"size=64m,nr_inodes={files},mode=777"')
    assert_layer(strict, without, source, "stopped", "24", cut)


def test_the_number_of_files_is_limited(strict: Sandbox, without: Without) -> None:
    source = """
made = 0
try:
    for made in range(1000): open(str(made), "w").close()
except OSError: pass
print("stopped" if made < 256 else made)
"""
    cut = ("namespaces.py", '"size={size},nr_inodes={files},mode=777"', '"size={size},mode=777"')
    assert_layer(strict, without, source, "stopped", "999", cut)


BUSY = Limits(cpu_seconds=0.3, wall_seconds=60)
NO_WATCH: Cut = ("server.py", "            self._watch_cpu()\n", "            self._patience = lambda: None\n")
NO_CPU_LIMIT: Cut = ("server.py", "                resource.RLIMIT_CPU: cpu,\n", "")


def test_cpu_time_is_limited_by_the_server_and_by_the_kernel(strict: Sandbox, without: Without) -> None:
    busy = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    for sandbox, reason in ((strict, "cpu"), (without(NO_WATCH), "cpu"), (without(NO_CPU_LIMIT), "cpu")):
        done = sandbox.run(busy, limits=BUSY)
        assert (done.status, done.detail) == ("timeout", reason)
    done = without(NO_WATCH, NO_CPU_LIMIT).run(busy, limits=Limits(cpu_seconds=0.3, wall_seconds=3))
    assert (done.status, done.detail) == ("timeout", "wall")


def test_cpu_time_of_all_threads_counts(strict: Sandbox) -> None:
    """hashlib lets go of the interpreter lock, so two threads take two seconds in one."""
    source = """
import hashlib, threading
def work():
    data = bytes(1 << 22)
    while True: hashlib.sha256(data).digest()
for _ in range(3): threading.Thread(target=work).start()
"""
    done = strict.run(source, limits=Limits(cpu_seconds=0.5, wall_seconds=30))
    assert (done.status, done.detail) == ("timeout", "cpu")
    assert done.cpu_seconds < 3


def test_wall_time_is_the_backstop(strict: Sandbox) -> None:
    sleep = "import time; time.sleep(1.5)"
    done = strict.run(sleep, limits=Limits(cpu_seconds=5, wall_seconds=0.3))
    assert (done.status, done.detail) == ("timeout", "wall")
    assert strict.run(sleep, limits=Limits(cpu_seconds=5, wall_seconds=30)).status == "exited"


def test_output_is_limited(strict: Sandbox) -> None:
    source = "for number in range(1_000_000): print(number)"
    done = strict.run(source, limits=WIDE)
    assert (done.status, len(done.stdout)) == ("output", 1 << 20)
    done = strict.run(source, limits=Limits(cpu_seconds=20, output=8 << 20))
    assert (done.status, done.stdout.count(b"\n")) == ("exited", 1_000_000)


# Kernel surface


def test_the_filters_allow_what_the_lists_say_and_nothing_else() -> None:
    """The assembled programs, interpreted by a second, slow reading of BPF."""
    names = {**seccomp.READING, **seccomp.WRITING, **seccomp.SERVER_ONLY}
    first = seccomp.allow_list(names.values())
    second = seccomp.child_list(1, seccomp.SERVER_ONLY.values())
    for number in range(600):
        assert (interpret(first, number) == "allow") == (number in names.values()), number
        if number in seccomp.SERVER_ONLY.values():
            assert interpret(second, number) == "refuse"
    for program in (first, second):
        assert interpret(program, 0x40000000) == "kill", "the x32 numbers"
        assert interpret(program, 0, arch=0x40000003) == "kill", "32-bit calls"
    assert interpret(second, 56, [0x003D0F00]) == "allow", "a thread"
    for flags in (17, 0x003D0F00 | 0x10000000, 0x003D0F00 & ~0x00010000, 0x4100 | 17):
        assert interpret(second, 56, [flags]) == "refuse", hex(flags)
    assert interpret(second, 62, [1]) == "allow"
    assert [interpret(second, 62, [pid]) for pid in (0, 2, 0xFFFFFFFF)] == ["refuse"] * 3
    assert interpret(second, 16, [0, 0x5412]) == "refuse", "TIOCSTI"
    assert interpret(second, 72, [0, 8]) == "refuse", "F_SETOWN"
    assert interpret(second, 157, [1]) == "refuse", "PR_SET_PDEATHSIG"
    assert interpret(second, 302, [7]) == "refuse", "prlimit of another process"


def interpret(
    program: list[tuple[int, int, int, int]], number: int, arguments: list[int] | None = None, arch: int = 0xC000003E
) -> str:
    words = {0: number, 4: arch}
    for place, argument in enumerate([*(arguments or []), 0, 0, 0, 0, 0, 0][:6]):
        words[16 + 8 * place], words[20 + 8 * place] = argument & 0xFFFFFFFF, argument >> 32
    accumulator = place = 0
    while True:
        code, yes, no, constant = program[place]
        place += 1
        if code == 0x20:
            accumulator = words[constant]
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x00050000: "refuse", 0x80000000: "kill"}[constant & 0xFFFF0000]
        else:
            test = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: bool(accumulator & constant)}
            place += yes if test[code] else no


def test_every_other_system_call_is_refused_for_real(strict: Sandbox, without: Without) -> None:
    allowed = {*seccomp.READING.values(), *seccomp.WRITING.values()}
    refused = [number for number in range(470) if number not in allowed and number not in (335, 336)]
    source = (
        CALL
        + f"""
minus = ctypes.c_long(-1)
got = {{number: call(number, *[minus] * 6) for number in {refused}}}
print([number for number, outcome in got.items() if outcome != ("ENOSYS" if number == 435 else "EPERM")])
"""
    )
    assert printed(strict, source) == "[]"
    assert "319" in printed(without(allowing(memfd_create=319)), source)


@pytest.mark.parametrize(
    ("attempt", "stopped", "name"),
    [
        ("call(16, 0, 0x5411, ctypes.byref(ctypes.c_int()))", "ENOTTY", "_IOCTL"),
        ("call(72, 0, 8, 1)", "EINVAL", "_FCNTL"),
        ("call(157, 4, 0, 0, 0, 0)", "EPERM", "_PRCTL"),
        ("call(302, 2, 7, 0, 0)", "EPERM", "_PRLIMIT"),
        ("call(234, 2, 2, 0)", "EPERM", "_TGKILL"),
    ],
)
def test_arguments_of_allowed_calls_are_looked_at(
    strict: Sandbox, without: Without, attempt: str, stopped: str, name: str
) -> None:
    source = CALL + f"import socket; a, b = socket.socketpair(); os.dup2(a.fileno(), 0); print({attempt})"
    assert printed(strict, source) == stopped
    text = Path(seccomp.__file__).read_text(encoding="utf-8")
    line = next(line for line in text.splitlines(True) if line.startswith(f"    program += _when({name}, "))
    assert printed(without(("seccomp.py", line, "")), source) != stopped


# After the answer


def test_threads_do_not_outlive_the_answer(strict: Sandbox) -> None:
    source = """
import threading, time
def f():
    def work():
        while True: time.sleep(0.01)
    threading.Thread(target=work).start()
    return 1
"""
    with strict.session(source) as session:
        assert session.call("f").value == 1
        done = session.finish()
    assert (done.status, done.code) == ("killed", 9)


def test_the_self_test_finds_a_wall_that_is_missing(without: Without) -> None:
    for cut in (
        NO_CHILD_FILTER,
        allowing(socket=41),
        ("server.py", "        namespaces.build_root(folders, masked)\n", ""),
    ):
        with pytest.raises(SandboxUnavailable, match="not stopped") as caught:
            without(cut, probe=True)
        assert caught.value.step == "self-test"
