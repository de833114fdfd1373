"""Programs that end in every way, inputs that are odd, and what an honest one may rely on."""

from __future__ import annotations

import hashlib

import pytest
from behind_walls import WIDE, printed

from rewardkit.errors import OptionError
from rewardkit.sandbox import Limits, Remote, Sandbox, SandboxDied

SHORT = Limits(cpu_seconds=0.4, wall_seconds=20)


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        ("", "exited", 0),
        ("import sys; sys.exit()", "exited", 0),
        ("import sys; sys.exit(3)", "exited", 3),
        ("import sys; sys.exit('no')", "exited", 1),
        ("import os; os._exit(0)", "exited", 0),
        ("raise SystemExit(2)", "exited", 2),
        ("1 / 0", "exited", 1),
        ("def", "exited", 1),
        ("print(1)\0", "exited", 1),
        ("x = '\ud800'", "exited", 1),
        ("import atexit, os; atexit.register(os._exit, 7)", "exited", 7),
        ("import threading; threading.Thread(target=print, args=('late',)).start()", "exited", 0),
        ("import ctypes; ctypes.string_at(0)", "signal", 11),
        ("x = []\nwhile True: x.append(bytearray(16 << 20))", "memory", 1),
        ("bytearray(1 << 40)", "memory", 1),
        ("while True: pass", "timeout", 9),
        ("while True: print('x' * 999)", "output", 9),
        ("import sys\nwhile True: sys.stderr.write('x' * 999)", "output", 9),
        ("import os\nos.close(1); os.close(2); os.closerange(0, 256)", "exited", 120),
        ("import sys; sys.stdout = sys.stderr = None", "exited", 0),
        ("import builtins; builtins.print = builtins.len = builtins.open = None", "exited", 0),
        ("import sys; sys.excepthook = None; 1 / 0", "exited", 1),
        ("import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "timeout", 9),
        ("import os\nwhile True: os.write(4, b'x' * 9999)", "killed", 9),
    ],
)
def test_how_a_program_ends(strict: Sandbox, source: str, status: str, code: int) -> None:
    done = strict.run(source, limits=SHORT if status == "timeout" else WIDE)
    if "setrecursionlimit" in source and done.status in ("memory", "signal"):  # other versions of Python end so
        return
    if "closerange" in source and done.code == 0:
        return
    assert (done.status, done.code, done.level) == (status, code, "strict"), done


@pytest.mark.parametrize("status", ["timeout", "memory", "output", "signal", "exited"])
def test_levels_agree_on_how_programs_end(any_level: Sandbox, status: str) -> None:
    source = {
        "timeout": "while True: pass",
        "memory": "bytearray(1 << 40)",
        "output": "while True: print('x' * 999)",
        "signal": "import ctypes; ctypes.string_at(0)",
        "exited": "print(input())",
    }[status]
    done = any_level.run(source, stdin=b"x\n", limits=SHORT)
    assert (done.status, done.level) == (status, any_level.level)


def test_a_traceback_shows_the_program_and_nothing_else(strict: Sandbox) -> None:
    done = strict.run("def f():\n    return 1 / 0\nf()\n")
    lines = [line for line in done.stderr.decode().splitlines() if line.strip(" ~^")]
    assert lines[:5] == [
        "Traceback (most recent call last):",
        '  File "solution.py", line 3, in <module>',
        "    f()",
        '  File "solution.py", line 2, in f',
        "    return 1 / 0",
    ]


def test_ten_megabytes_of_source(strict: Sandbox) -> None:
    assert printed(strict, "x = '" + "a" * 10_000_000 + "'\nprint(len(x))") == "10000000"
    done = strict.run("x = 1\n" * 1_700_000, limits=SHORT)
    assert done.status in ("timeout", "memory")


def test_large_input_and_input_that_nobody_reads(strict: Sandbox) -> None:
    data = bytes(range(256)) * 40_000
    source = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    done = strict.run(source, stdin=data, limits=WIDE)
    assert done.stdout.decode().strip() == hashlib.sha256(data).hexdigest()
    assert strict.run("print('done')", stdin=data, limits=WIDE).stdout == b"done\n"


def test_input_and_output_that_are_not_utf_8(strict: Sandbox) -> None:
    done = strict.run("line = input(); print(line, len(line))", stdin=b"a\xff\xfeb\n")
    assert done.stdout == b"a\xff\xfeb 4\n"
    assert strict.run("print('é', end='')").stdout == "é".encode()


def test_input_the_ways_that_contests_read_it(strict: Sandbox) -> None:
    source = """
import sys, io, os
first = input()
second = sys.stdin.readline().strip()
third = next(sys.stdin).strip()
print(first, second, third, input(), sys.stdin.buffer.read(), open(0, closefd=False).read(), os.read(0, 9))
try: input()
except EOFError: print("end")
"""
    done = strict.run(source, stdin=b"1\n2\n3\n4\n")
    assert done.stdout == b"1 2 3 4 b''  b''\nend\n", done
    assert strict.run("import sys; print(sys.stdin.buffer.read())", stdin=b"1\n").stdout == b"b'1\\n'\n"
    assert printed(strict, "import os, sys; os.write(1, b'raw '); sys.stdout.buffer.write(b'bytes')") == "raw bytes"


def test_deep_recursion_is_honest(strict: Sandbox) -> None:
    source = "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(100_000))"
    assert printed(strict, source) == "100000"
    threaded = """
import sys, threading
sys.setrecursionlimit(10**6); threading.stack_size(64 << 20)
def f(n): return n and 1 + f(n - 1)
t = threading.Thread(target=lambda: print(f(20_000))); t.start(); t.join()
"""
    assert printed(strict, threaded) == "20000"


def test_threads_up_to_the_limit(strict: Sandbox) -> None:
    source = """
import threading
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(60)]
for t in threads: t.start()
stop.set()
for t in threads: t.join()
print("joined")
"""
    assert printed(strict, source) == "joined"


@pytest.mark.parametrize(
    "module",
    [
        "asyncio",
        "sqlite3",
        "ssl",
        "unittest",
        "xml.etree.ElementTree",
        "lzma",
        "zoneinfo",
        "uuid",
        "multiprocessing",
        "ctypes",
    ],
)
def test_the_standard_library_is_there(strict: Sandbox, module: str) -> None:
    assert printed(strict, f"import {module}; print({module}.__name__)") == module


def test_modules_written_into_the_work_folder(strict: Sandbox) -> None:
    assert printed(strict, "open('mine.py', 'w').write('x = 5')\nimport mine; print(mine.x)") == "5"


def test_runs_know_nothing_of_each_other(strict: Sandbox) -> None:
    strict.run("import math, builtins, json; math.pi = 3; builtins.print = None; json.x = 1; open('left', 'w')")
    assert (
        printed(strict, "import math, os, json; print(math.pi > 3, os.listdir(), hasattr(json, 'x'))")
        == "True [] False"
    )


def test_every_run_is_seeded_anew(strict: Sandbox) -> None:
    source = "import random; print(random.random())"
    assert printed(strict, source) != printed(strict, source)


def test_a_session_whose_source_fails(strict: Sandbox) -> None:
    with strict.session("def f(): return 1\n1 / 0") as session:
        assert session.loaded.exception == "ZeroDivisionError"
        assert session.call("f").value == 1
    with strict.session("def f(:") as session:
        assert (session.loaded.exception, session.call("f").missing) == ("SyntaxError", "f")
    with strict.session("import sys\ndef f(): return 1\nsys.exit(0)") as session:
        assert session.loaded.original == "SystemExit"
    with strict.session("if __name__ == '__main__': 1 / 0") as session:
        assert session.loaded.ok


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("while True: pass", "timeout"),
        ("import os; os._exit(0)", "exited"),
        ("import os; os.close(4)", "exited"),
        ("while True: print('x' * 999)", "output"),
        ("import ctypes; ctypes.string_at(0)", "signal"),
    ],
)
def test_a_session_that_ends_before_it_answers(strict: Sandbox, body: str, status: str) -> None:
    with strict.session(f"def f():\n    {body}", limits=SHORT) as session:
        with pytest.raises(SandboxDied) as caught:
            session.call("f")
        assert (caught.value.finished.status, caught.value.who) == (status, session)
        with pytest.raises(SandboxDied):
            session.call("f")
        assert session.finish() == caught.value.finished


def test_a_judge_whose_program_ends_says_who(strict: Sandbox) -> None:
    source = "import os\ndef f(): os._exit(0)"
    test = "def check(f):\n    try: f()\n    except BaseException: pass\n    return True"
    with strict.session(source) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        for _ in range(2):
            with pytest.raises(SandboxDied) as caught:
                judge.call("check", [Remote("f")])
            assert caught.value.who is session
        with strict.judge("f()", remote=session, names=["f"]) as second, pytest.raises(SandboxDied) as caught:
            _ = second.loaded
        assert caught.value.who is session


def test_printing_in_calls_is_kept_and_harmless(strict: Sandbox) -> None:
    source = "def f(n):\n    print('x' * 999)\n    return n"
    with strict.session(source, limits=WIDE) as session:
        assert [session.call("f", [n]).value for n in range(200)] == list(range(200))
        assert session.finish().stdout == b"x" * 999 + b"\n" + (b"x" * 999 + b"\n") * 199


def test_waiting_between_calls_costs_no_wall_time(strict: Sandbox) -> None:
    import time

    with strict.session("def f(): return 1", limits=Limits(cpu_seconds=5, wall_seconds=1)) as session:
        for _ in range(3):
            assert session.call("f").value == 1
            time.sleep(0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"cpu_seconds": 0}, {"cpu_seconds": -1}, {"cpu_seconds": float("nan")}, {"wall_seconds": 0}, {"memory": 1},
        {"output": 0}, {"processes": 0}, {"files": 1}, {"disk": 0}, {"memory": 1 << 60},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Limits(**options)  # type: ignore[arg-type]


def test_a_level_that_there_is_not() -> None:
    with pytest.raises(OptionError, match="strict, landlock, unsafe"):
        Sandbox("docker")  # type: ignore[arg-type]


def test_landlock_holds_what_it_says(landlock: Sandbox) -> None:
    source = """
import os, socket
attempts = [lambda: open("/etc/passwd"), lambda: open("/proc/self/maps"), lambda: open("/tmp/x", "w"), socket.socket]
attempts += [lambda: os.mkdir("/tmp/x"), lambda: os.chmod("/tmp", 0o700), os.fork, lambda: os.kill(os.getppid(), 0)]
for attempt in attempts:
    try: attempt(); print("done")
    except PermissionError: pass
print("end")
"""
    assert printed(landlock, source) == "end"
