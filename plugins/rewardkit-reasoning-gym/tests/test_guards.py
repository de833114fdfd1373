"""Each trap of the package's scorers: what the guard makes of it, and what the package says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import judge, tagged

import rewardkit_reasoning_gym.tasks as tasks
from rewardkit import Completion, Sample, parse, score_text
from rewardkit_reasoning_gym.arithmetic import exact_value, is_expression
from rewardkit_reasoning_gym.guards import CRASHES, EVALUATED, PARSED
from rewardkit_reasoning_gym.names import class_name

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases/guards.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['task']}-{case['answer'][:20]}")
def test_case(case: dict[str, Any]) -> None:
    score = judge(getattr(tasks, class_name(case["task"]))(), tagged(case["answer"]), case["entry"])
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    assert case["why"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['task']}-{case['answer'][:20]}")
def test_faithful_is_the_package(case: dict[str, Any]) -> None:
    if case["package"] == "hang":
        pytest.skip("the package never answers; see the deadline's test")
    faithful = getattr(tasks, class_name(case["task"]))(faithful=True)
    if isinstance(case["package"], str):
        with pytest.raises(CRASHES[case["task"]]) as raised:
            judge(faithful, tagged(case["answer"]), case["entry"])
        assert raised.typename == case["package"]
    else:
        assert judge(faithful, tagged(case["answer"]), case["entry"]).value == pytest.approx(case["package"])


COUNTDOWN = {"answer": "6*4", "metadata": {"numbers": [6, 4], "target": 24}}


def test_text_is_never_run_as_code_not_even_faithfully(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    entries = {
        "countdown": COUNTDOWN,
        "puzzle24": {"answer": "1", "metadata": {"numbers": [1, 1, 1, 1]}},
        "polynomial_multiplication": {"answer": "x"},
        "simple_integration": {"answer": "x", "metadata": {"integrand": "1", "variable": "x"}},
        "intermediate_integration": {"answer": "x", "metadata": {"integrand": "1", "variable": "x"}},
        "binary_matrix": {"answer": "0"},
        "n_queens": {"answer": "Q", "metadata": {"valid_answers": ["Q"]}},
        "spiral_matrix": {"answer": "1"},
        "string_insertion": {"answer": "A"},
    }
    assert set(entries) == PARSED | EVALUATED
    for task, entry in entries.items():
        for options in ({}, {"faithful": True}, {"faithful": True, "release": "0.1.16"}, {"whole": True}):
            judge(getattr(tasks, class_name(task))(**options), tagged(code), entry)
            judge(getattr(tasks, class_name(task))(**options), code, entry)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("3*x**2 + sin(x)/2 - C", True),
        ("1.5 * (x + 2)", True),
        ("log(x)*exp(-x)", True),
        ("x.real", False),
        ("x.__class__", False),
        ("'x'", False),
        ("getattr(x, y)", False),
        ("lambda: 1", False),
        ("x if y else z", False),
        ("[x for x in y]", False),
        ("1_000", False),
        ("eval(x)", False),
        ("sinx", False),
        ("x; y", False),
    ],
)
def test_what_an_expression_is(text: str, safe: bool) -> None:
    assert is_expression(text) is safe


@given(st.text(max_size=60))
def test_an_expression_has_no_quotes_attributes_or_long_names(text: str) -> None:
    if is_expression(text):
        assert not set(text) & set("'\"_[]{}:;=\\@#!%&|<>")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1/3 + 1/6", "1/2"), ("0.1 + 0.2", "3/10"), ("-(2 - 5)", "3"), ("1/0", None), ("2**3", None), ("7//2", None)],
)
def test_exact_value(text: str, value: str | None) -> None:
    found = exact_value(text)
    assert (None if found is None else str(found)) == value


def test_a_million_characters_are_too_large_and_fast() -> None:
    for task in ("countdown", "gcd", "spiral_matrix", "gsm_symbolic", "polynomial_multiplication"):
        entry = {"answer": "1", "metadata": {"numbers": [1], "target": 1}}
        assert judge(getattr(tasks, class_name(task))(), tagged("1" * 1_000_000), entry).reason == "too_large"


def test_a_scorer_that_writes_into_the_entry_does_not_reach_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """knight_swap's scorer writes board states into its entry; this one does it where a second look shows it."""

    def writes(answer: str | None, entry: dict[str, Any]) -> float:
        entry["metadata"]["seen"] = entry["metadata"].get("seen", 0) + 1
        return 1.0 if entry["metadata"]["seen"] == 1 else 0.0

    monkeypatch.setattr(tasks, "_installed", lambda task: writes)
    verifier = parse("'reasoning_gym/chain_sum'")
    sample = Sample(0, reference={"question": "1 + 1?", "answer": "2", "metadata": {"source_dataset": "chain_sum"}})
    prepared: Any = verifier.prepare(sample)  # type: ignore[attr-defined]
    judged = [verifier.judge(prepared, sample, Completion(tagged("2"))) for _ in range(2)]  # type: ignore[attr-defined]
    assert [score.value for score in judged] == [1.0, 1.0] and "seen" not in prepared.entry["metadata"]


def test_a_scorer_that_hangs_is_killed() -> None:
    """sympy computes this power for longer than anybody waits."""
    reward = parse("'reasoning_gym/countdown'(faithful=True, timeout=1.5)")
    score = score_text(reward, tagged("9**9**9**9"), reference=COUNTDOWN)
    assert score.value == 0
    assert score.reason in ("deadline", "memory")


def test_an_unknown_crash_is_an_error_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(answer: str, entry: dict[str, Any]) -> float:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tasks, "_installed", lambda task: breaks)
    with pytest.raises(RuntimeError):
        judge(tasks.AnyTask(task="gcd"), tagged("1"), "1")


def test_a_value_outside_0_to_1_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1.5, -0.1, float("nan")):
        monkeypatch.setattr(tasks, "_installed", lambda task, value=value: lambda answer, entry: value)
        with pytest.raises(ValueError):
            judge(tasks.AnyTask(task="gcd"), tagged("2"), "1")


def test_no_pid_of_this_process_in_any_score() -> None:
    """The answer asks for it; a scorer that evaluates would say it."""
    score = judge(tasks.AnyTask(task="string_insertion"), tagged("str(__import__('os').getpid())"), str(os.getpid()))
    assert score.value == 0
