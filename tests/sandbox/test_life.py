"""A sandbox from start to end: nothing is left behind, whoever dies first; threads, asyncio, forks, other users."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from behind_walls import WIDE, printed, started
from other_user import USER, run_as_another

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import LEVELS, Level, Limits, Sandbox, SandboxDied, available, programs, reasons, self_test

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def temporary_folders_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """What is left behind is counted; folders that other processes make meanwhile are none of it."""
    tmp_path_factory.getbasetemp()  # made now, since in a folder of one test it would not outlive that
    with tempfile.TemporaryDirectory(prefix="of-one-test-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o1777)  # other users run programs here too
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def descendants(pid: int) -> set[int]:
    """All processes below one, over the borders of pid namespaces."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                text = Path("/proc", name, "stat").read_text()
                parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    pending = [pid]
    while pending:
        below = parents.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found


def server_and_programs(outer: int) -> tuple[int, set[int]]:
    """Return the first process of the server's pid namespace and the programs below it; none that stands ready."""
    (server,) = (pid for pid in descendants(outer) if descendants(pid) or len(descendants(outer)) == 1)
    return server, {pid for pid in descendants(server) if filters(pid) > 1}


def filters(pid: int) -> int:
    """How many system call filters a process has: the second goes into a child when it gets a program."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("Seccomp_filters:")[2].split()[0])


def spare(sandbox: Sandbox) -> int | None:
    """The child that stands ready for the next program."""
    assert sandbox.pid is not None
    (server,) = (pid for pid in descendants(sandbox.pid) if descendants(pid) or len(descendants(sandbox.pid)) == 1)
    return next((pid for pid in descendants(server) if filters(pid) == 1), None)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def at_rest(sandbox: Sandbox) -> dict[str, int]:
    """What is there between two programs. At `strict` that is with the child that stands ready: a server with more to
    do makes none, so programs are run until one stands."""

    def ready() -> bool:
        if sandbox.level != "strict":
            return True
        with contextlib.suppress(OSError, ValueError):  # a program that was ending while we looked
            if spare(sandbox) is not None:
                return True
        sandbox.run("")
        return False

    gc.collect()
    assert wait_until(ready)
    return counts(sandbox)


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie whose parent has not looked yet does not."""
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                running.add(pid)
    return running


def counts(sandbox: Sandbox) -> dict[str, int]:
    assert sandbox.pid is not None
    servers = {sandbox.pid, *descendants(sandbox.pid)}
    found = {
        "descendants": len(descendants(os.getpid())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "folders": sum(name.startswith("rewardkit-") for name in os.listdir(tempfile.gettempdir())),
    }
    if os.geteuid() == 0:
        found["server descriptors"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in servers)
    found["server mounts"] = sum(len(Path(f"/proc/{pid}/mounts").read_text().splitlines()) for pid in servers)
    return found


def test_hundreds_of_runs_leave_nothing_behind(any_level: Sandbox) -> None:
    def work(sandbox: Sandbox) -> None:
        sandbox.run("print(input()); open('left', 'w')" if sandbox.level != "landlock" else "input()", stdin=b"x\n")
        with sandbox.session("def f(x): return x") as session, sandbox.judge("", remote=session, names=["f"]) as judge:
            assert judge.call("f", [1]).value == 1
        with sandbox.session("while True: pass", limits=Limits(cpu_seconds=5)):
            pass  # closed while it runs
        with sandbox.session("import os; os._exit(1)") as session, contextlib.suppress(SandboxDied):
            _ = session.loaded

    work(any_level)
    before = at_rest(any_level)
    for _ in range(60):
        work(any_level)
    assert wait_until(lambda: at_rest(any_level) == before), (before, at_rest(any_level))


def test_closing_ends_everything() -> None:
    with started("strict") as sandbox:
        session = sandbox.session("import time\ndef f(): return 1\n", limits=WIDE)
        assert session.call("f").value == 1
        assert sandbox.pid is not None
        assert wait_until(lambda: spare(sandbox) is not None)
        pids = {sandbox.pid, *descendants(sandbox.pid)}
        assert len(pids) == 4  # the waiting process, the server, the program, and the child that stands ready
    assert alive(pids) == set()
    sandbox.close()
    with pytest.raises(SandboxUnavailable):
        sandbox.run("")
    with pytest.raises(SandboxDied, match="closed"):
        session.call("f")


def test_the_child_that_stands_ready_has_the_limits_of_its_program() -> None:
    """It is made for the last program's work folder; a program with another one gets another child."""
    source = "import os; s = os.statvfs('.'); print(s.f_blocks * s.f_frsize >> 10, s.f_files, os.listdir('.'))"
    with started("strict") as sandbox:
        for disk, files in [(1 << 20, 64), (1 << 20, 64), (2 << 20, 64), (2 << 20, 32), (1 << 20, 64)]:
            limits = Limits(cpu_seconds=20, disk=disk, files=files)
            assert printed(sandbox, source, limits) == f"{disk >> 10} {files} []"
        limits = Limits(cpu_seconds=0.2, memory=64 << 20)
        assert sandbox.run("while True: pass", limits=limits).status == "timeout"
        assert sandbox.run("x = bytearray(80 << 20)", limits=limits).status == "memory"


def test_a_child_that_stood_ready_and_died_is_no_programs_fault() -> None:
    with started("strict") as sandbox, sandbox.session("def f(): return 1", limits=WIDE) as session:
        assert session.call("f").value == 1
        assert wait_until(lambda: spare(sandbox) is not None)
        ready = spare(sandbox)
        assert ready is not None
        os.kill(ready, signal.SIGKILL)
        assert wait_until(lambda: not alive({ready}))
        assert sandbox.run("print(1)", limits=WIDE).stdout == b"1\n"
        assert session.call("f").value == 1


def test_dropping_a_sandbox_ends_it() -> None:
    sandbox = started("strict")
    assert sandbox.pid is not None
    pids = {sandbox.pid, *descendants(sandbox.pid)}
    del sandbox
    gc.collect()
    assert wait_until(lambda: not alive(pids))


HOST = """
import signal, sys, time
from rewardkit.sandbox import Sandbox, Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would start without
sandbox = Sandbox(sys.argv[1])
session = sandbox.session("def f():\\n    while True: pass", limits=Limits(cpu_seconds=20))
_ = session.loaded
print(sandbox.pid, flush=True)
try: session.call("f")
finally: print("left", flush=True)
"""


def host_process(level: str) -> tuple[subprocess.Popen[str], set[int]]:
    process = subprocess.Popen([sys.executable, "-c", HOST, level], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    assert wait_until(lambda: len(descendants(server)) >= (2 if level == "strict" else 1))
    return process, {server, *descendants(server)}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_callers_death_is_the_end_of_everything(level: Level, number: signal.Signals) -> None:
    started(level).close()
    process, pids = host_process(level)
    with process:
        os.kill(process.pid, number)
        process.wait(20)
    assert wait_until(lambda: not alive(pids)), alive(pids)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("which", ["outer", "server"])
def test_the_servers_death_is_told_and_the_next_run_starts_another(level: Level, which: str) -> None:
    folders = work_folders()
    with started(level) as sandbox:
        session = sandbox.session("def f():\n    while True: pass", limits=Limits(cpu_seconds=20))
        _ = session.loaded
        assert sandbox.pid is not None
        pids = {sandbox.pid, *descendants(sandbox.pid)}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(session.call, "f")
            time.sleep(0.2)
            target = server_and_programs(sandbox.pid)[0] if which == "server" and level == "strict" else sandbox.pid
            os.kill(target, signal.SIGKILL)
            with pytest.raises(SandboxUnavailable):
                call.result(30)
        assert wait_until(lambda: not alive(pids))
        assert sandbox.run("print(1)").stdout == b"1\n"
    assert work_folders() <= folders


def work_folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("rewardkit-")}


def test_many_threads_share_a_sandbox(strict: Sandbox) -> None:
    def work(number: int) -> bytes:
        if number % 2:
            with strict.session("def f(x): return x", limits=WIDE) as session:
                return b"%d\n" % session.call("f", [number]).value
        return strict.run("print(input())", stdin=b"%d" % number, limits=WIDE).stdout

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(80))) == [b"%d\n" % number for number in range(80)]


def test_the_thread_that_started_it_may_end() -> None:
    """A parent's-death signal is bound to a thread; the server must not depend on one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sandbox = pool.submit(started, "strict").result()
    time.sleep(0.1)
    with sandbox:
        pid = sandbox.pid
        assert sandbox.run("print(1)").stdout == b"1\n"
        assert sandbox.pid == pid


def test_under_asyncio(strict: Sandbox) -> None:
    async def main() -> list[bytes]:
        runs = (asyncio.to_thread(strict.run, f"print({number})") for number in range(6))
        return [done.stdout for done in await asyncio.gather(*runs)]

    assert asyncio.run(main()) == [b"%d\n" % number for number in range(6)]


def test_a_fork_of_the_caller_has_a_server_of_its_own() -> None:
    with started("strict") as sandbox:
        pid = sandbox.pid
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                done = sandbox.run("print(2)")
                os.write(writer, done.stdout + str(sandbox.pid != pid).encode())
                sandbox.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 99) == b"2\nTrue"
        os.close(reader)
        os.close(writer)
        assert sandbox.run("print(1)").stdout == b"1\n" and sandbox.pid == pid


def test_ids_by_which_a_program_runs_own_nothing(strict: Sandbox) -> None:
    """Seen from outside: another user than the caller when that is root, else the caller's own; no capability."""
    with strict.session("def f(): return 1") as session:
        assert session.call("f").value == 1
        assert strict.pid is not None
        (program,) = server_and_programs(strict.pid)[1]
        status = Path(f"/proc/{program}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2" and int(fields["Seccomp_filters"]) >= 2
    uids = {int(word) for word in fields["Uid"].split()}
    assert uids == ({os.geteuid()} if os.geteuid() else uids - {0}) and len(uids) == 1


AS_ANOTHER = """
import json, os, sys
from rewardkit.sandbox import Sandbox, self_test
assert os.geteuid() != 0
found = {}
for level in ("strict", "landlock", "unsafe"):
    tried = self_test(level)
    with Sandbox(level) as sandbox, sandbox.session("def f(x): return x + 1") as session:
        missed = sum(not refusal for _, refusal in tried)
        found[level] = [missed, session.call("f", [1]).value, sandbox.run("print(1)").code]
    with Sandbox(level) as sandbox:
        found[level].append(sandbox.run("import os; print(os.getuid())").stdout.decode().strip())
print(json.dumps(found))
"""


def test_an_unprivileged_user_has_the_same_walls() -> None:
    done = run_as_another(["-c", AS_ANOTHER], needs="rewardkit.sandbox")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["strict"] == [0, 2, 0, "65534"]
    assert found["landlock"] == [0, 2, 0, str(USER)]
    assert found["unsafe"][1:] == [2, 0, str(USER)]


def test_available_says_which(strict: Sandbox) -> None:
    found = available()
    assert list(found) == list(LEVELS)
    assert found["strict"] is None


def test_the_self_test_lists_what_it_tried(strict: Sandbox) -> None:
    tried = dict(self_test("strict"))
    assert len(tried) >= 14 and all(tried.values())
    assert not dict(self_test("unsafe"))["start a process"]


# What a level says when it cannot start. Each of these is a kernel that says no, from a copy that asks for too much.


@pytest.mark.parametrize(
    ("file", "old", "new", "step"),
    [
        ("namespaces.py", '"unshare", _ALL)', '"unshare", 1 << 35)', "new namespaces"),
        ("namespaces.py", 'b"none", b"/", 0, _REC', 'b"none", b"/nowhere", 0, _REC', "private mounts"),
        ("namespaces.py", '"pivot_root", base, base', '"pivot_root", base, b"/', "new root"),
        ("server.py", "from . import child", "import nothing_of_that_name", "starting"),
        (
            "server.py",
            "namespaces.work_folder(",
            "kernel.call('the work folder', 'mount', 0, 0, 0, 0, 0), (",
            "the work folder",
        ),
    ],
)
def test_a_level_that_cannot_start_says_where(
    without: Callable[..., Sandbox], file: str, old: str, new: str, step: str
) -> None:
    new = new if not new.endswith('b"/') else '"pivot_root", b"/", b"/"), (b""'
    with pytest.raises(SandboxUnavailable) as caught:
        without((file, old, new), probe=True).run("")
    assert step in caught.value.step, caught.value
    assert caught.value.cause and "'strict'" in str(caught.value)


def test_user_namespaces_that_are_used_up(tmp_path: Path) -> None:
    """A real kernel that says no: inside a namespace in which none may be made."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.geteuid(), os.getegid()
assert libc.unshare(0x10000000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
from rewardkit.sandbox import Sandbox
from rewardkit.errors import SandboxUnavailable
print(Sandbox("landlock").run("print(1)").status)
try: Sandbox()
except SandboxUnavailable as problem: print(problem.step, "|", problem.cause, "|", *problem.ways_out, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    if "AssertionError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip("no user namespace to be had here, or its settings are out of reach")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["exited", "new namespaces"]
    assert "No space left" in done.stdout and "max_user_namespaces" in done.stdout and "landlock" in done.stdout


OUTER_FILTER = """
import errno
from rewardkit.sandbox import Sandbox, kernel, seccomp
from rewardkit.errors import SandboxUnavailable
numbers = [number for number in range(500) if number not in (165, 272, 308)]  # mount, unshare, setns
allowed = seccomp.allow_list(numbers)
kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
seccomp.Filter(allowed).install()
print(Sandbox("landlock").run("print(1)").status)
try: Sandbox()
except SandboxUnavailable as problem: print(problem.step, problem.cause, *problem.ways_out, sep="\\n")
"""


def test_a_containers_profile_that_refuses_namespaces() -> None:
    """As under Docker's default profile: `strict` says so, `landlock` works."""
    command = [sys.executable, "-c", OUTER_FILTER]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["exited", "new namespaces", "Operation not permitted"]
    assert "docker run" in done.stdout and "landlock" in done.stdout


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons.platform, "machine", lambda: "aarch64")
    for level in LEVELS:
        with pytest.raises(SandboxUnavailable, match="x86-64 Linux only, this is Linux on aarch64"):
            Sandbox(level)


def test_a_process_without_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.sys, "_base_executable", "/nowhere/python")
    with pytest.raises(SandboxUnavailable, match="starting /nowhere/python"):
        Sandbox()


def test_the_preload_list_may_name_what_is_not_there() -> None:
    with started("strict"), Sandbox("strict", preload=["math", "nothing_of_that_name"]) as sandbox:
        assert printed(sandbox, "import json; print(json.dumps([1]))") == "[1]"
