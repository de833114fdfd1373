"""Reference forms are recognised by their shape; what cannot be read is the reference's fault, and says where."""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.verifiers.code.archived import unpacked
from rewardkit.verifiers.code.cases import Call, Calls, Prediction, Scripts, Stream, Streams, called_names
from rewardkit.verifiers.code.forms import read_tests
from rewardkit.verifiers.code.literals import read_literal
from rewardkit.verifiers.code.reduction import free_names, reduce_asserts

CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert not candidate(0)\n"


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


def test_calls():
    tests = read_tests(
        {"tests": [{"args": "(3,)", "expected": "9", "tol": 0.5}, {"args": [[1], "a"], "expected": None}]},
        entry_point="f",
    )
    assert tests == Calls(
        (
            Call("f", (3,), expected=9, absolute=0.5, awaited=True),
            Call("f", ([1], "a"), expected=None, awaited=True),
        )
    )


def test_streams_under_all_their_names():
    wanted = Streams((Stream("1\n", "2\n"),))
    for pair in (
        {"stdin": "1\n", "stdout": "2\n"},
        {"input": "1\n", "output": "2\n"},
        {"input": ["1"], "output": ["2"]},
    ):
        assert read_tests({"tests": [pair]}) == wanted
    assert read_tests({"inputs": ["1\n"], "outputs": ["2\n"]}) == wanted
    assert read_tests({"input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})}) == wanted
    assert read_tests({"tests": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})}) == wanted
    lcb = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    assert read_tests({"public_test_cases": lcb}) == wanted


def test_humaneval_is_reduced_to_calls():
    tests = read_tests({"test": CHECK, "entry_point": "square", "prompt": "def square(x):\n"})
    assert tests == Calls((Call("square", (3,), {}, "equal", 9), Call("square", (0,), {}, "false")))


@pytest.mark.parametrize(
    "line",
    ["assert sorted(candidate(3)) == [9]", "for i in range(3): assert candidate(i)", "x = candidate(3); assert x",
     "assert candidate(3) == 9 and candidate(4) == 16", "assert candidate(*[3]) == 9", "assert candidate(n) == 9",
     "assert candidate(3) == other(9)", "assert abs(candidate(3) - 9) <= 0.1", "assert candidate(3).x == 9",
     "assert candidate(3) != 9"],
)  # fmt: skip
def test_what_is_more_than_a_call_stays_test_code(line):
    source = f"def check(candidate):\n    assert candidate(1) == 1\n    {line}\n"
    tests = read_tests({"test": source, "entry_point": "f"})
    assert isinstance(tests, Scripts) and tests.whole.source.endswith("check(f)") and "f" in tests.whole.remote
    assert not tests.whole.writeback


def test_an_in_place_task_is_seen_by_its_shape():
    for source, back in [
        ("xs = [2, 1]\nf(xs)\nassert xs == [1, 2]", True),
        ("xs = [2, 1]\nSolution().sort(xs)\nassert xs == [1, 2]", True),
        ("xs = [2, 1]\nassert f(xs) == [1, 2]", False),
        ("xs = [2, 1]\nprint(xs)\nassert f(xs) == xs", False),
        ("f([1])\nassert g(2)", False),
    ]:
        tests = read_tests({"test": source})
        assert isinstance(tests, Scripts) and tests.whole.writeback is back, source


@pytest.mark.parametrize(
    "line, call",
    [
        ("assert f(1) == 2", Call("f", (1,), expected=2)),
        ("assert 2 == f(1), 'message'", Call("f", (1,), expected=2)),
        ("assert f(1) is None", Call("f", (1,), {}, "is", None)),
        ("assert f(1) is True", Call("f", (1,), {}, "is", True)),
        ("assert f(1)", Call("f", (1,), {}, "true")),
        ("assert (not f(1))", Call("f", (1,), {}, "false")),
        (
            "assert f(a=-1, b=[{'x': (1, {2})}]) == 10**3",
            Call("f", (), {"a": -1, "b": [{"x": (1, {2})}]}, expected=1000),
        ),
        ("assert abs(f(1) - 2.5) < 1e-6", Call("f", (1,), {}, "close", 2.5, absolute=1e-6)),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.1)", Call("f", (1,), {}, "close", 2.5, relative=0.1)),
        ("assert f([0] * 3) == float('inf')", Call("f", ([0, 0, 0],), expected=float("inf"))),
    ],
)
def test_asserts_are_reduced(line, call):
    assert reduce_asserts(ast.parse(line).body) == (call,)


def test_mbpp():
    row = {
        "test_list": ["assert f(1) == 2", "assert g(1)"],
        "test_setup_code": "",
        "challenge_test_list": ["assert f(2) == 3"],
    }
    tests = read_tests(row)
    assert isinstance(tests, Calls) and [call.function for call in tests.cases] == ["f", "g", "f"]
    row = {"test_list": ["assert height(root) == 3"], "test_setup_code": "root = Node(1)\nroot.left = Node(2)"}
    tests = read_tests(row)
    assert isinstance(tests, Scripts) and set(tests.whole.remote) == {"Node", "height"}
    tests = read_tests({"test_list": ["assert sum(10, 15) == 6"]})
    assert tests == Calls((Call("sum", (10, 15), expected=6),))
    tests = read_tests({"test_list": ["assert size((1,)) == sys.getsizeof((1,))"]})
    assert isinstance(tests, Scripts) and tests.whole.remote == ("size",) and "import sys" in tests.whole.source


def test_the_prompts_helpers_are_there_for_the_tests():
    prompt = "import math\n\ndef poly(x):\n    return x\n\ndef f(x):\n    '''Do.'''\n"
    tests = read_tests(
        {"test": "def check(candidate):\n    assert math.fabs(poly(candidate(1))) < 1\n"},
        entry_point="f",
        prompt=prompt,
    )
    assert isinstance(tests, Scripts) and tests.whole.remote == ("f",)
    assert "def poly" in tests.whole.source and "def f(" not in tests.whole.source


def test_apps_calls():
    task = {"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [[3, 4]]}
    assert read_tests({"input_output": task}) == Calls(
        (Call("f", ([1, 2], "a"), {}, "equal", [3, 4], awaited=True),), loose=True
    )
    task = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4]]}
    calls = read_tests({"input_output": json.dumps(task)})
    assert isinstance(calls, Calls) and {call.relation for call in calls.cases} == {"wrapped"}


def test_livecodebench_calls_and_its_archive():
    public = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
    row = {
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed(public),
        "metadata": '{"func_name": "twoSum"}',
    }
    call = Call("twoSum", ([1, 2], 3), {}, "equal", [4, 5], awaited=True)
    assert read_tests(row) == Calls((call, call), loose=True)


class _Bomb:
    def __reduce__(self):
        return (os.system, ("false",))


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps(_Bomb()),
        pickle.dumps([1]),
        pickle.dumps(("a", "b")),
        b"",
        b"\x80",
        pickle.dumps("a") + b"x",
        bytes(range(100, 164)),
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_an_archive_of_anything_but_text_is_refused_and_never_loaded(raw):
    text = base64.b64encode(zlib.compress(raw)).decode()
    with contextlib.suppress(ValueError):
        assert unpacked(text, "x") == "a"  # what follows the end of a pickle does not matter


@pytest.mark.parametrize("value", [["a"], ("a",), {"a": 1}, _Bomb()], ids=lambda value: type(value).__name__)
def test_an_archive_of_a_text_inside_something_else_is_refused(value):
    with pytest.raises(ValueError, match="x: "):
        unpacked(base64.b64encode(zlib.compress(pickle.dumps(value))).decode(), "x")


def test_an_archive_that_is_too_large():
    with pytest.raises(ValueError, match="more than"):
        unpacked(base64.b64encode(zlib.compress(b"[" * (130 << 20))).decode(), "x")


def test_cruxeval():
    row = {"code": "def f(x):\n    return x + 1", "input": "3", "output": "4"}
    tests = read_tests(row)
    assert isinstance(tests, Prediction) and tests.case is not None and tests.case.expected == 4
    tests = read_tests(row | {"predict": "input"})
    assert isinstance(tests, Prediction) and tests.script is not None and tests.case is None


def test_a_method_as_entry_point():
    for entry in ("Solution().f", "Solution.f"):
        tests = read_tests({"test": "def check(candidate):\n    assert candidate(x = 3) == 9\n", "entry_point": entry})
        assert tests == Calls((Call("f", (), {"x": 3}, "equal", 9, receiver="Solution"),))
        tests = read_tests({"test": "def check(candidate):\n    assert [candidate(3)] == [9]\n", "entry_point": entry})
        assert isinstance(tests, Scripts) and tests.whole.remote == ("Solution",)
        assert tests.whole.source.endswith("check(Solution().f)")


def test_called_names():
    assert called_names(read_tests({"tests": [{"args": "()", "expected": "1"}]}, entry_point="Solution.f")) == {
        "Solution"
    }


@pytest.mark.parametrize(
    "fields, options, said",
    [
        ({"test": "def check(candidate:\n    assert", "entry_point": "f"}, {}, "no valid Python"),
        ({"test": CHECK}, {}, "entry_point"),
        ({"test": "x = 1"}, {}, "nothing in it can fail"),
        ({"test": "   "}, {}, "nothing is tested"),
        ({"tests": []}, {}, "empty"),
        ({"tests": "[1"}, {}, "no JSON"),
        ({"tests": 3}, {}, "a list, an object or text"),
        ({"tests": [3]}, {}, "a list of objects"),
        ({"tests": [{"args": "(3,)", "expected": "9"}]}, {}, "entry_point"),
        ({"tests": [{"args": "(3,)"}]}, {"entry_point": "f"}, "neither"),
        ({"tests": [{"args": "3", "expected": "9"}]}, {"entry_point": "f"}, "a tuple"),
        ({"tests": [{"args": "(f(3),)", "expected": "9"}]}, {"entry_point": "f"}, "literal"),
        ({"tests": [{"args": "(3,)", "expected": "nine"}]}, {"entry_point": "f"}, "literal"),
        ({"tests": [{"args": "(3,)", "expected": "9", "tol": "x"}]}, {"entry_point": "f"}, "tol"),
        ({"tests": [{"args": "(3,)", "expected": "9", "weight": 0}]}, {"entry_point": "f"}, "weight"),
        ({"tests": [{"args": "(3,)", "expected": "9", "writeback": 1}]}, {"entry_point": "f"}, "writeback"),
        ({"tests": [{"args": "(3,)", "expectd": "9"}]}, {"entry_point": "f"}, "unknown field"),
        ({"tests": [{"args": "(3,)", "expected": "9"}]}, {"entry_point": "f()"}, "entry_point"),
        ({"test": "try:\n    f()\n    assert False\nexcept Broken:\n    pass"}, {}, "not supported"),
        ({"test": "assert isinstance(f(), P)"}, {}, "not supported"),
        ({"test": "import io, sys\nsys.stdout = io.StringIO()\nf()\nassert 1"}, {}, "not supported"),
        ({"test": "def test_f(capsys):\n    f()\n    assert capsys.readouterr().out"}, {}, "not supported"),
        ({"tests": [{"stdin": 3, "stdout": "9"}]}, {}, "text is wanted"),
        ({"tests": [{"stdin": "3"}]}, {}, "stdout"),
        ({"tests": [{"stdin": "3", "stdout": "9"}, {"args": "()", "expected": "1"}]}, {"entry_point": "f"}, "mixed"),
        ({"tests": [{"stdin": "3", "stdout": "9"}]}, {"mode": "function", "entry_point": "f"}, "mixed"),
        ({"inputs": ["1"], "outputs": []}, {}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, {}, "0 inputs"),
        ({"input_output": "{"}, {}, "no JSON"),
        ({"input_output": {"inputs": "x", "outputs": []}}, {}, "no JSON"),
        ({"test_list": [3]}, {}, "a list of asserts"),
        ({"test_list": []}, {}, "a list of asserts"),
        ({"test_list": ["assert f( =="]}, {}, "test 1"),
        ({"public_test_cases": "[]"}, {}, "empty"),
        ({"private_test_cases": "%%%"}, {}, "neither JSON nor base64"),
        ({"code": "x = 1", "input": "3", "output": "4"}, {}, "defines no"),
        ({"code": "def f(x:", "input": "3", "output": "4"}, {}, "code"),
        ({"tests": "(" * 5000}, {}, "no"),
        ({"tests": [{"args": "(" + "[" * 500 + "]" * 500 + ",)", "expected": "1"}]}, {"entry_point": "f"}, "literal"),
        ({"tests": [{"args": "(10**10**10,)", "expected": "1"}]}, {"entry_point": "f"}, "literal"),
        ({"tests": [{"args": "([0] * 10**9,)", "expected": "1"}]}, {"entry_point": "f"}, "literal"),
    ],
)  # fmt: skip
def test_bad_references(fields, options, said):
    with pytest.raises(ValueError, match=r".") as problem:
        read_tests(fields, **options)
    assert said in str(problem.value)


def test_no_tests():
    for fields in ({}, {"entry_point": "f"}, {"tests": None}, {"code": "x"}):
        with pytest.raises(LookupError):
            read_tests(fields)


FIELDS = ["tests", "args", "expected", "inputs", "outputs", "fn_name", "stdin", "stdout", "calls", "x"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(ANYTHING, st.sampled_from(["tests", "test", "test_list", "input_output", "public_test_cases", "inputs"]))
def test_any_reference_gives_tests_or_a_typed_error(value, name):
    with contextlib.suppress(LookupError, ValueError):
        read_tests({name: value, "outputs": value, "entry_point": "f"})


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_literals_are_read_as_python_reads_them(value):
    assert read_literal(repr(value), "x") == value


def test_free_names():
    source = (
        "import math\nfrom a import b as c\nx = 1\ndef g(y): return y + z\nassert f(x, g(2), c) and [i for i in h]\n"
        "assert len([])\nwith open('x') as k: k\ntry: pass\nexcept E as e: e"
    )
    assert set(free_names(ast.parse(source))) == {"f", "h", "z", "E"}
