"""`code`: a completion's program against its tests, through the verifier, the engine and the command line."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse, score_text
from rewardkit.code import Code, close_all, run_tests
from rewardkit.engine import Engine
from rewardkit.errors import OptionError, SandboxUnavailable
from rewardkit.sandbox import Finished, Limits
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifiers.code import servers
from rewardkit.verifiers.code.extraction import code_parts, extract_program
from rewardkit.verifiers.code.judging import _Run

SQUARE = [{"args": "(3,)", "expected": "9"}, {"args": "(-7,)", "expected": "49"}, {"args": "(0,)", "expected": "0"}]
TASK = {"tests": SQUARE, "entry_point": "square"}
RIGHT = "def square(x):\n    return x * x\n"
WRONG = "def square(x):\n    return x + 6\n"
HALF = "def square(x):\n    return abs(x) * x\n"
CHECK = (
    "def check(candidate):\n    assert candidate(3) == 9\n"
    "    for i in range(5):\n        assert candidate(i) == i * i, f'square({i})'\n"
)


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    close_all()


def judge(
    text: str, reference: object = TASK, prompt: object = "", columns: dict | None = None, **options: object
) -> Score:
    verifier = Code.from_options(options)
    sample = Sample(0, prompt, reference, columns or {})
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


def fenced(code: str) -> str:
    return f"Here:\n```python\n{code}```\nIt works."


@pytest.mark.parametrize(
    "text, value, reason, said",
    [
        (fenced(RIGHT), 1.0, None, "3 of 3 tests passed [fenced block; strict]"),
        (
            fenced(WRONG),
            0.0,
            "wrong",
            "wrong answer in test 2 of 3: square(-7) returned -1, expected 49 [fenced block; strict]",
        ),
        (
            fenced("def square(x):\n    return 1 / 0\n"),
            0.0,
            "crash",
            "square(3) raised ZeroDivisionError: division by zero, expected 9",
        ),
        (fenced("def square(x)\n    return x\n"), 0.0, "unreadable", "syntax error: SyntaxError: expected ':'"),
        (
            fenced("def square(x):\n    while True: pass\n"),
            0.0,
            "timeout",
            "timeout in test 1 of 3: more than 1 s of CPU time in square(3)",
        ),
        (fenced("def square(x):\n    return len('x' * (1 << 40))\n"), 0.0, "memory", "out of memory in test 1 of 3"),
        (
            fenced("def square(x):\n    print('x' * (1 << 22))\n"),
            0.0,
            "output",
            "too much output in test 1 of 3: more than 1 MiB",
        ),
        (
            fenced("import os\ndef square(x):\n    os._exit(0)\n"),
            0.0,
            "crash",
            "ended in test 1 of 3: exited with code 0",
        ),
        (
            fenced("def cube(x):\n    return x\n"),
            0.0,
            "wrong",
            "missing entry point in test 1 of 3: no 'square' is defined",
        ),
        (fenced("raise ValueError('no')\n"), 0.0, "crash", "ValueError: no before any test"),
        (
            fenced("class square:\n    def __init__(self, x): pass\n"),
            0.0,
            "wrong",
            "returned <square object>, expected 9",
        ),
        (fenced("square = 5\n"), 0.0, "crash", "TypeError"),
        ("", 0.0, "no_answer", "no code found: the answer is empty"),
        ("I cannot do that.", 0.0, "unreadable", "syntax error"),
        ("<think>hm", 0.0, "no_answer", "never closed"),
        ("```cpp\nint x;\n```", 0.0, "no_answer", "only fenced blocks are cpp"),
        (fenced("x = '\0'\n"), 0.0, "unreadable", "NUL"),
        (fenced("x = 1\n" * 2_000_000), 0.0, "too_large", "longer than"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_happened_is_said(text, value, reason, said):
    score = judge(text, timeout=1.0)
    assert (score.value, score.reason) == (value, reason), score.detail
    assert said in score.detail


@pytest.mark.parametrize(
    "reference, columns, reason",
    [
        (None, {}, "missing"),
        (None, {"entry_point": "square"}, "missing"),
        ({"entry_point": "square"}, {}, "missing"),
        ({"test": "def check(candidate:", "entry_point": "square"}, {}, "bad_reference"),
        ({"test": CHECK}, {}, "bad_reference"),
        ({"test": CHECK, "entry_point": 3}, {}, "bad_reference"),
        ({"tests": 3}, {}, "bad_reference"),
        ("assert square(", {}, "bad_reference"),
        ({"test": "import no_such_module\n" + CHECK, "entry_point": "square"}, {}, "bad_reference"),
        ({"test": "def check(candidate):\n    raise ImportError\n", "entry_point": "square"}, {}, "bad_reference"),
        ({"tests": SQUARE, "entry_point": "square", "mode": "magic"}, {}, "bad_reference"),
        (None, {"input_output": "{", "x": 1}, "bad_reference"),
    ],
    ids=str,
)
def test_the_references_fault_is_an_abstention(reference, columns, reason):
    score = judge(fenced(RIGHT), reference, columns=columns)
    assert (score.value, score.reason) == (None, reason), score.detail


def test_columns_of_a_row_are_the_reference():
    columns = {"test": CHECK, "entry_point": "square", "task_id": "x/1", "canonical_solution": "    return x * x\n"}
    prompt = 'def square(x):\n    """Square."""\n'
    for reference in (None, "    return x * x\n"):  # the worked solution may be what a file calls its answer
        assert judge("    return x ** 2\n", reference, prompt, columns).value == 1.0
        assert judge("    return x\n", reference, prompt, columns).reason == "wrong"


def test_the_whole_tests_as_text():
    assert judge(fenced(RIGHT), "assert square(2) == 4\nassert square(3) == 9").value == 1.0
    assert judge(fenced(WRONG), ["assert square(2) == 4", "assert square(3) == 9"]).value == 0.0
    stream = json.dumps({"inputs": ["3\n"], "outputs": ["9\n"]})
    assert judge(fenced("print(int(input()) ** 2)\n"), stream).value == 1.0
    assert judge(fenced("print(int(input()))\n"), stream).detail.startswith("wrong answer: line 1 is '3', expected '9'")


@pytest.mark.parametrize("item", ["0", "[0]", "'x' * 1000", "bytearray(1 << 20)"])
def test_memory_that_fills_in_small_steps(item):
    """When nothing is left, not even the answer that says so can be made."""
    source = f"def square(x):\n    keep = []\n    while True:\n        keep.append({item})\n"
    score = judge(fenced(source), timeout=20.0, memory="64MiB")
    assert (score.value, score.reason) == (0.0, "memory"), score.detail


def test_test_code_says_what_it_compared():
    task = {"test": CHECK, "entry_point": "square"}
    assert "square(2)" in judge(fenced("def square(x):\n    return x * x if x != 2 else 5\n"), task).detail
    score = judge(fenced(WRONG), "xs = [square(4)]\nassert sorted(xs) == [16]")
    assert score.detail.startswith("wrong answer: sorted(xs) == [16]: [10], not [16]"), score.detail
    score = judge(fenced("class A: pass\ndef square(x):\n    return A()\n"), "xs = [square(4)]\nassert xs[0] == 16")
    assert score.reason == "wrong" and "no plain data" in score.detail


def test_an_in_place_task():
    test = "xs = [3, 1, 2]\norder(xs)\nassert xs == [1, 2, 3]\n"
    assert judge(fenced("def order(xs):\n    xs.sort()\n"), test).value == 1.0
    assert judge(fenced("def order(xs):\n    xs.sort(reverse=True)\n"), test).reason == "wrong"
    assert judge(fenced("def order(xs):\n    return sorted(xs)\n"), test).reason == "wrong"
    empty = fenced("def order(xs):\n    xs.clear()\n    return []\n")
    assert judge(empty, "xs = [3, 1, 2]\nassert order(xs) == sorted(xs)").reason == "wrong"  # its copy, not the test's


def test_credit():
    assert judge(fenced(HALF)).value == 0.0
    score = judge(fenced(HALF), credit="fraction")
    assert (
        score.value == pytest.approx(2 / 3)
        and score.reason == "wrong"
        and score.detail.startswith("2 of 3 tests passed; wrong answer in test 2")
    )
    weighted = {
        "tests": [{**SQUARE[0], "weight": 1}, {**SQUARE[1], "weight": 6}, {**SQUARE[2], "weight": 1}],
        "entry_point": "square",
    }
    assert judge(fenced(HALF), weighted, credit="weighted").value == 0.25
    assert judge(fenced(RIGHT), weighted, credit="weighted").value == 1.0
    dies = "import os\ndef square(x):\n    if x == 3: os._exit(0)\n    return x * x\n"
    assert judge(fenced(dies), credit="fraction").value == pytest.approx(2 / 3)
    loops = "def square(x):\n    while True: pass\n"
    assert judge(fenced(loops), credit="fraction", timeout=0.5).value == 0.0
    asserts = ["assert square(2) == 4", "assert [square(3)] == [9]", "assert square(-2) == 4"]
    assert judge(fenced(HALF), asserts, credit="fraction").value == pytest.approx(2 / 3)
    assert judge(fenced(")"), asserts, credit="fraction").value == 0.0


def test_options_are_strict_and_travel():
    code = parse("code(timeout=3, memory='512MB', credit='fraction')")
    assert code == Code(timeout=3.0, memory="512MB", credit="fraction") and parse(str(code)) == code
    assert pickle.loads(pickle.dumps(code)) == code and str(parse("code()")) == "code"
    for bad in (
        {"timeout": 0},
        {"timeout": "3"},
        {"memory": "much"},
        {"level": "none"},
        {"credit": "some"},
        {"tolerance": -1.0},
        {"memory": 1},
    ):
        with pytest.raises(OptionError):
            Code.from_options(bad)
    assert code.deadline is None and code.timeout == 3.0


def test_a_tolerance_for_all():
    tests = {"tests": [{"args": "(2,)", "expected": "0.6667"}], "entry_point": "f"}
    third = fenced("def f(x):\n    return x / 3\n")
    assert judge(third, tests).value == 0.0
    assert judge(third, tests, tolerance=1e-3).value == 1.0


def test_extraction_is_an_option():
    text = fenced(RIGHT) + fenced(WRONG)
    assert judge(text).value == 0.0 and judge(text, extract="first").value == 1.0
    prompt = "def square(x):\n"
    body = "    return x * x\nprint(square(\n"
    assert judge(body, prompt=prompt).reason == "unreadable"
    assert (
        judge(body, prompt=prompt, stop=["\nprint"]).value == 1.0 and judge(body, prompt=prompt, stop=True).value == 1.0
    )


def test_identical_programs_are_run_once_over_all_workers():
    texts = [fenced(RIGHT), fenced(WRONG), "Other prose.\n" + fenced(RIGHT)]
    rows = [Generation(Sample(i % 2, "", TASK), (Completion(texts[i % 3]),)) for i in range(21)]
    rows += [Generation(Sample(9, "", {**TASK, "tests": SQUARE[:1]}), (Completion(fenced(RIGHT)),))]
    with Engine(Code(), workers=2) as engine:
        scores = [scored.scores["code"][0] for scored in engine.score(rows)]
        repeated = engine.repeated
    assert [score.value for score in scores] == [1.0, 0.0, 1.0] * 7 + [1.0], scores[0].why
    assert repeated == 19 and sum(score.seconds == 0.0 for score in scores) == 19
    assert len({score.detail for score in scores}) == 3


def test_what_makes_programs_identical():
    code, sample = Code(), Sample(0, "", TASK)

    def key(text, sample=sample):
        return code.identity(sample, Completion(text))

    assert key(fenced(RIGHT)) == key("Or:\n" + fenced(RIGHT) + "\nSo.")
    others = [fenced(RIGHT), fenced(WRONG), RIGHT, "  " + fenced(RIGHT), "<answer>" + fenced(RIGHT) + "</answer>"]
    others += [
        fenced(RIGHT) + fenced(WRONG),
        "```python\n" + RIGHT,
        fenced(RIGHT).replace("python", "py"),
        "[PYTHON]" + fenced(RIGHT),
    ]
    assert len(set(map(key, others))) == len(others)
    assert key(fenced(RIGHT), Sample(0, "", {**TASK, "entry_point": "f"})) != key(fenced(RIGHT))
    assert key(fenced(RIGHT), Sample(0, "def f(", TASK)) != key(fenced(RIGHT))
    one, other = {"test": CHECK, "entry_point": "square"}, {"test": CHECK + "\n", "entry_point": "square"}
    assert key(fenced(RIGHT), Sample(1, "", None, one)) != key(fenced(RIGHT), Sample(1, "", None, other))
    assert key(fenced(RIGHT), Sample(1, "", None, {"task_id": 1, **TASK})) == key(
        fenced(RIGHT), Sample(2, "", None, TASK)
    )


@given(st.text("ab`~\n pythodef(x):<>/[]", max_size=60), st.text("ab`~\n pythodef(x):<>/[]", max_size=60))
def test_equal_parts_mean_the_same_program(one, other):
    if code_parts(one) == code_parts(other):
        for options in ({}, {"prompt": "def f(x):\n", "names": ["f"]}, {"where": "all"}, {"prompt": "def f("}):
            assert extract_program(one, **options) == extract_program(other, **options)


@given(st.text("ab.\n ", max_size=20), st.text("ab.\n ", max_size=20), st.text("abdef(x):= \n", max_size=30))
def test_prose_around_a_block_changes_no_program(before, after, code):
    one, other = f"{before}\n```python\n{code}\n```\n{after}", f"x\n```python\n{code}\n```\n"
    if code_parts(one) == code_parts(other):
        for options in ({}, {"prompt": "def f(x):\n", "names": ["f"]}):
            assert extract_program(one, **options) == extract_program(other, **options)


def test_a_group_in_a_worker():
    generation = Generation(
        Sample(1, "", TASK), tuple(map(Completion, [fenced(RIGHT), fenced(WRONG), "", fenced(RIGHT)]))
    )
    with Engine(Code(), workers=1) as engine:
        scores = next(iter(engine.score([generation]))).scores["code"]
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0]


def test_no_sandbox_is_an_error_and_never_0(monkeypatch):
    def refused(level):
        raise SandboxUnavailable("step: unshare: EPERM")

    monkeypatch.setattr("rewardkit.verifiers.code.verifier.sandbox", refused)
    verifier = Code(timeout=2.5)
    sample = Sample(0, "", TASK)
    with pytest.raises(SandboxUnavailable):
        verifier.judge(verifier.prepare(sample), sample, Completion(fenced(RIGHT)))


def test_a_server_that_is_killed_from_outside_changes_no_verdict():
    judge(fenced(RIGHT + "# start\n"))
    os.kill(servers.sandbox("strict").pid, signal.SIGKILL)
    assert judge(fenced(RIGHT + "# after\n")).value == 1.0


def test_score_text_and_formula():
    score = score_text(parse("0.5 * code(timeout=2) + 0.5 * length(at_most=1000)"), fenced(RIGHT), reference=TASK)
    assert score.value == 1.0


def test_run_tests_says_what_is_wrong_with_its_arguments():
    assert run_tests("", SQUARE, entry_point="square").reason == "no_answer"
    assert run_tests(b"\xff", SQUARE, entry_point="square").reason == "unreadable"
    assert run_tests(RIGHT, [], mode="function").reason == "bad_reference"
    assert run_tests(RIGHT, SQUARE).reason == "bad_reference"
    assert run_tests(RIGHT, {}).reason == "missing"
    for wrong in ({"mode": "magic"}, {"credit": "some"}, {"timeout": 0}, {"memory": "x"}, {"level": "none"}):
        with pytest.raises(OptionError):
            run_tests(RIGHT, SQUARE, entry_point="square", **wrong)


def test_an_odd_solution():
    deep = "def square(x):\n    return " + "(" * 300 + "x" + ")" * 300 + "\n"
    assert run_tests(deep, SQUARE, entry_point="square").reason in ("unreadable", "memory", "crash")
    assert run_tests("square = lambda x: x * x", SQUARE, entry_point="square").value == 1.0
    assert run_tests("from operator import *\nsquare = lambda x: mul(x, x)", SQUARE, entry_point="square").value == 1.0


def test_predictions():
    row = {"code": "def f(x):\n    return [x, x + 1]", "input": "3", "output": "[3, 4]", "id": "sample_1"}
    for text, value in [
        ("[3, 4]", 1.0),
        ("[3,4] # so", 1.0),
        ("[ANSWER][3, 2 + 2][/ANSWER]", 1.0),
        ("assert f(3) == [3, 4]", 1.0),
        ("[3, 5]", 0.0),
        ("(3, 4)", 0.0),
        ("f(3)", 0.0),
        ("[3, 4", 0.0),
        ("", 0.0),
        ("unittest.mock.ANY", 0.0),
        ("__import__('unittest.mock').mock.ANY", 0.0),
        ("[3, 4] if True else exit()", 1.0),
    ]:
        score = judge(text, None, columns=row)
        assert score.value == value, (text, score.detail)
    for text, value in [("3", 1.0), ("f(3)", 1.0), ("x=3", 1.0), ("4", 0.0), ("[", 0.0), ("f(*[3])", 1.0)]:
        score = judge(text, None, columns={**row, "predict": "input"})
        assert score.value == value, (text, score.detail)


def test_a_timeout_near_the_limit_is_run_once_more():
    """It takes a little more than its CPU limit, both times."""
    slow = (
        "import time\ndef f(x):\n    end = time.process_time() + 0.58\n"
        "    while time.process_time() < end: pass\n    return x\n"
    )
    tests = [{"args": "(1,)", "expected": "1"}]
    verdict = run_tests(slow, tests, entry_point="f", timeout=0.5)
    assert verdict.reason == "timeout" and "twice" in verdict.detail and "run again" in verdict.detail
    assert run_tests(slow, tests, entry_point="f", timeout=2.0).value == 1.0


F = [{"args": "(1,)", "expected": "1"}]


@pytest.mark.parametrize(
    "waits",
    [
        "import time\ndef f(x):\n    time.sleep(10)\n    return x\n",
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(10)\n    return x\n",
        "import os\ndef f(x):\n    os.read(os.pipe()[0], 1)\n    return x\n",
    ],
)
def test_a_program_that_sleeps_takes_its_own_time(waits):
    """It is stopped soon, and not run again: nothing about it is near the limit."""
    began = time.monotonic()
    verdict = run_tests(waits, F, entry_point="f", timeout=0.5)
    assert verdict.reason == "timeout" and "again" not in verdict.detail
    assert re.search(r"more than 0.5 s passed, 0\.\d\d s of them on a core \(it slept or waited\)", verdict.detail)
    assert time.monotonic() - began < 8, "a sleep of ten seconds was waited for"


def test_a_sleep_in_programs_with_standard_input():
    source = "import time\nn = input()\ntime.sleep(%s)\nprint(n)\n"
    tests = [{"stdin": "4\n", "stdout": "4\n"}]
    assert run_tests(source % 10, tests, timeout=0.5).reason == "timeout"
    assert run_tests(source % 0.2, tests, timeout=2).value == 1.0


def test_a_sleep_near_the_limit_is_run_once_more():
    verdict = run_tests("import time\ndef f(x):\n    time.sleep(1.15)\n    return x\n", F, entry_point="f", timeout=1)
    assert verdict.reason == "timeout" and "twice" in verdict.detail and "run again" in verdict.detail
    verdict = run_tests("import time\ndef f(x):\n    time.sleep(0.4)\n    return x\n", F, entry_point="f", timeout=1)
    assert (verdict.value, "again" in verdict.detail) == (1.0, False)


def test_test_code_that_sleeps_is_not_the_programs_time():
    test = "import time\ndef check(candidate):\n    time.sleep(1)\n    assert candidate(3) == 9\n"
    score = judge(fenced(RIGHT), {"test": test, "entry_point": "square"}, timeout=0.5)
    assert score.value == 1.0, score.detail


def test_a_busy_machine_changes_no_verdict():
    """It needs more than half of its limit, on a core that it shares with four who never rest."""
    computes = (
        "import time\ndef f(x):\n    end = time.process_time() + 0.35\n"
        "    while time.process_time() < end: pass\n    return x\n"
    )
    close_all()
    cores, busy = os.sched_getaffinity(0), []
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(4):  # in sessions of their own, since the kernel may share cores among sessions
            busy.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True))
        began = time.monotonic()
        verdict = run_tests(computes, F, entry_point="f", timeout=0.6)
        took = time.monotonic() - began
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()
        close_all()
    assert verdict.value == 1.0, verdict.detail
    assert took > 0.75, "the core was not busy"


@pytest.mark.parametrize(
    ("cpu", "slept", "detail", "near"),
    [
        (0.01, 0.0, "wall", True),  # it got no core
        (0.01, None, "wall", False),  # it may have slept: that could not be seen
        (0.5, None, "wall", True),
        (0.5, 0.8, "sleep", False),
        (1.25, 0.0, "cpu", False),
    ],
)
def test_which_timeouts_are_run_once_more(cpu, slept, detail, near):
    run = _Run(None, "", Limits(cpu_seconds=1), 0.0, True)
    run._count(
        Finished(
            status="timeout",
            code=9,
            stdout=b"",
            stderr=b"",
            cpu_seconds=cpu,
            slept_seconds=slept,
            wall_seconds=5,
            level="strict",
            detail=detail,
        )
    )
    assert run.near is near


def test_the_servers_of_a_process_are_its_own():
    one = servers.sandbox("strict")
    assert servers.sandbox("strict") is one
    close_all()
    assert servers.sandbox("strict") is not one
