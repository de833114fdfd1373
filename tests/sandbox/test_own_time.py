"""What counts as a program's own time: a core, and sleep; not the wait for a core, and not what the caller does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from behind_walls import WIDE

from rewardkit.sandbox import Callback, Limits, Remote, Sandbox, looking
from rewardkit.sandbox.looking import Look

SHORT = Limits(cpu_seconds=0.3, wall_seconds=20)

SLEEPS = {
    "sleep": "import time; time.sleep(50)",
    "short sleeps": "import time\nwhile True: time.sleep(0.005)",
    "asyncio": "import asyncio; asyncio.run(asyncio.sleep(50))",
    "a lock": "import threading\nlock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a pipe": "import os\nreader, writer = os.pipe()\nos.read(reader, 1)",
    "our pipe": "import os\nos.read(3, 1)",
    "threads": "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(50,)).start()",
    "without its first thread": "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(50,)).start()\nctypes.CDLL(None).pthread_exit(None)",
    "output": "import time\nwhile True: time.sleep(0.013); print(1, flush=True)",
}


@pytest.mark.parametrize("name", SLEEPS)
def test_sleep_is_a_programs_own_time(strict: Sandbox, name: str) -> None:
    done = strict.run(SLEEPS[name], limits=SHORT)
    assert (done.status, done.detail) == ("timeout", "sleep"), done
    assert done.slept_seconds is not None and done.slept_seconds + done.cpu_seconds >= 0.29


def test_sleep_counts_at_every_level(any_level: Sandbox) -> None:
    done = any_level.run(SLEEPS["sleep"], limits=SHORT)
    assert (done.status, done.detail) == ("timeout", "sleep")


def test_sleep_and_computing_count_together(strict: Sandbox) -> None:
    source = """
import time
for _ in range(20):
    end = time.process_time() + 0.03
    while time.process_time() < end: pass
    time.sleep(0.03)
"""
    assert strict.run(source, limits=Limits(cpu_seconds=3, wall_seconds=60)).status == "exited"
    done = strict.run(source, limits=Limits(cpu_seconds=0.8, wall_seconds=60))
    assert (done.status, done.detail) == ("timeout", "sleep") and done.cpu_seconds < 0.7


def test_a_sleep_within_the_limit(strict: Sandbox) -> None:
    done = strict.run("import time; time.sleep(0.5)", limits=WIDE)
    assert done.status == "exited" and done.slept_seconds is not None
    assert 0.2 < done.slept_seconds < 0.7
    assert strict.run("print(1)", limits=WIDE).slept_seconds is not None


def test_without_looking_only_the_wall_clock_ends_a_sleep(strict: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc hides other users' processes."""

    def hidden(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(looking, "_read", hidden)
    done = strict.run(SLEEPS["sleep"], limits=Limits(cpu_seconds=0.2, wall_seconds=1))
    assert (done.status, done.detail, done.slept_seconds) == ("timeout", "wall", None)


@contextmanager
def one_busy_core(others: int = 4) -> Iterator[None]:
    """What starts here shares one core with processes that never rest."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = []
    try:
        for _ in range(others):  # each in a session of its own, since the kernel may share cores among sessions
            busy.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True))
        yield
    finally:
        os.sched_setaffinity(0, before)
        for process in busy:
            process.kill()
            process.wait()


COMPUTES = """
import time
end = time.process_time() + 0.3
while time.process_time() < end: pass
"""
COMPUTES_IN_THREADS = """
import threading, time
def work():
    end = time.thread_time() + 0.01
    while time.thread_time() < end: pass
for _ in range(30):
    thread = threading.Thread(target=work); thread.start(); thread.join()
"""


@pytest.mark.parametrize("source", [COMPUTES, COMPUTES_IN_THREADS])
def test_waiting_for_a_core_is_not_a_programs_own_time(source: str) -> None:
    with one_busy_core(), Sandbox() as sandbox:
        done = sandbox.run(source, limits=Limits(cpu_seconds=0.6, wall_seconds=60))
    assert done.status == "exited", done
    assert done.wall_seconds > 0.6 > done.cpu_seconds, "the core was not busy"
    assert done.slept_seconds is not None and done.slept_seconds < 0.15


def test_what_the_caller_does_meanwhile_is_not_the_programs_time(strict: Sandbox) -> None:
    def slow(value: int) -> int:
        time.sleep(0.5)
        return value + 1

    source = "import time\ndef f(g):\n    value = g(1)\n    time.sleep(0.08)\n    return value"
    with strict.session(source, limits=SHORT) as session:
        assert session.call("f", [Callback(slow)]).value == 2
        time.sleep(0.5)
        assert session.call("f", [Callback(slow)]).value == 2


def test_a_judge_may_sleep_and_the_program_that_it_tests_does_not_pay(strict: Sandbox) -> None:
    test = "import time\ndef check(f):\n    for _ in range(2):\n        time.sleep(0.4)\n        assert f() == 1"
    with (
        strict.session("def f(): return 1", limits=SHORT) as session,
        strict.judge(test, remote=session, names=["f"], limits=SHORT) as judge,
    ):
        assert judge.call("check", [Remote("f")]).ok
        finished = session.finish()
        assert finished.slept_seconds is not None and finished.slept_seconds < 0.2


def test_looking_leaves_no_descriptor(strict: Sandbox) -> None:
    def descriptors() -> int:
        assert strict.pid is not None
        with open(f"/proc/{strict.pid}/task/{strict.pid}/children", encoding="ascii") as file:
            server = file.read().split()[0]
        return len(os.listdir("/proc/self/fd")) + len(os.listdir(f"/proc/{server}/fd"))

    source = "import time; time.sleep(0.1)"
    strict.run(source, limits=WIDE)
    before = descriptors()
    for _ in range(5):
        assert strict.run(source, limits=WIDE).slept_seconds
    with strict.session("def f():\n    import time; time.sleep(0.1)") as session:
        session.call("f")
    time.sleep(0.1)
    assert descriptors() <= before + 1  # the next child that stands ready


def test_a_look_at_a_program_that_has_ended() -> None:
    with Sandbox() as sandbox:
        look = Look(sandbox._start().send, 12345)
        time.sleep(0.1)
        assert (look.asleep(), look.cpu_seconds(), look.seen) == (False, 0.0, False)
        look.close()
        server = sandbox.pid
        assert sandbox.run("print(1)").stdout == b"1\n" and sandbox.pid == server, "the server ended of it"


@pytest.mark.parametrize(
    ("states", "asleep"),
    [
        ("S", True), ("SS", True), ("SR", False), ("RS", False), ("D", False), ("SD", False), ("T", True), ("t", True),
        ("ZS", True), ("Z", False), ("X", False), ("", False),
    ],
)  # fmt: skip
def test_states_in_which_a_program_sleeps(monkeypatch: pytest.MonkeyPatch, states: str, asleep: bool) -> None:
    def read(path: str) -> bytes:
        if "fdinfo" in path:
            return b"pos:\t0\nPid:\t77\nNSpid:\t77\t2\t1\n"
        state = states[int(path.split("/")[-2])]
        return f"77 (a) R (b) {state} 1 1 1 0 -1 4194304 85 0 0 0 150 25 0 0 20 0".encode()

    monkeypatch.setattr(looking.os, "listdir", lambda path: [str(number) for number in range(len(states))])
    monkeypatch.setattr(looking, "_read", read)
    look = Look(lambda message, fds: None, 1)
    monkeypatch.setattr(look, "_process", 9)
    assert look.asleep() is asleep and look.seen is bool(states)
    monkeypatch.setattr(look, "_process", -1)
    look.close()


def test_cpu_time_from_outside() -> None:
    """It is what the kernel says of all threads of the process."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    pidfd = os.pidfd_open(process.pid)
    look = Look(lambda message, fds: None, 1)
    look._process = pidfd
    try:
        time.sleep(0.3)
        clock = time.clock_gettime((~process.pid << 3) | 2)
        assert look.cpu_seconds() == pytest.approx(clock, abs=0.2) and clock > 0
        assert not look.asleep()
    finally:
        process.kill()
        process.wait()
    assert (look.asleep(), look.cpu_seconds()) == (False, 0.0)
    look.close()
