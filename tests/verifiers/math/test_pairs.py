"""Pairs and responses from tables; the visible labelled set; hostile answers, also in threads and event loops."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from rewardkit import Completion, Generation, Sample, score, score_text
from rewardkit.math import equal, grade, parse, verify
from rewardkit.verifiers.math.verifier import Math

CASES = Path(__file__).parents[2] / "cases"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


PAIRS = rows(CASES / "math_pairs.jsonl")
RESPONSES = rows(CASES / "math_responses.jsonl")


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: f"{case['gold']} <- {case['prediction']} ({case['why']})")
def test_a_pair_is_judged(case):
    assert (verify(case["prediction"], case["gold"]).value == 1.0) == case["equal"]


@pytest.mark.parametrize("case", RESPONSES, ids=lambda case: f"{case['response'][:40]!r}: {case['why']}")
def test_a_response_is_judged(case):
    assert grade(case["response"], case["gold"]).value == case["value"]


@pytest.mark.parametrize("case", PAIRS[::5], ids=lambda case: case["gold"] + " <- " + case["prediction"])
def test_equal_is_symmetric_and_reflexive(case):
    gold, prediction = case["gold"], case["prediction"]
    assert equal(gold, prediction) == equal(prediction, gold)
    if verify(gold, gold).value is not None:
        assert equal(gold, gold) and verify(gold, gold).value == 1.0


def test_the_visible_labelled_set(shared):
    """At most 13 of 436 may be wrong, one of them accepted; hostile answers are all right within a second."""
    wrong, accepted, hostile = [], [], []
    for row in rows(shared("cases/math_cases.jsonl")):
        started = time.perf_counter()
        right = verify(row["prediction"], row["gold"]).value == 1.0
        seconds = time.perf_counter() - started
        if right != row["expected"]:
            (hostile if row["kind"] == "hostile" else wrong).append(row["id"])
            if right:
                accepted.append(row["id"])
        if row["kind"] == "hostile" and seconds > 1.0:
            hostile.append(row["id"])
    assert hostile == [] and len(wrong) <= 13 and len(accepted) <= 1
    assert not Path("rkcanary").exists()


def test_the_visible_responses(shared):
    wrong = [
        row["id"]
        for row in rows(shared("cases/math_responses.jsonl"))
        if (grade(row["response"], row["gold"]).value == 1.0) != row["expected"]
    ]
    assert len(wrong) <= 2


def test_hostile_answers_in_a_thread_and_in_an_event_loop(shared):
    hostile = [row for row in rows(shared("cases/math_cases.jsonl")) if row["kind"] == "hostile"]
    values: list[bool] = []

    def work() -> None:
        values.extend(verify(row["prediction"], row["gold"]).value == 1.0 for row in hostile)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert values == [row["expected"] for row in hostile]

    async def wait() -> list[bool]:
        return [verify(row["prediction"], row["gold"]).value == 1.0 for row in hostile]

    assert asyncio.run(wait()) == values


@pytest.mark.parametrize("gold", ["", "   ", "1+\\sqrt{\\frac{q}{}}", "^{6}", "+^{2}+b", "\\frac{1}{0}", "((3)"])
def test_a_gold_that_cannot_be_read_abstains_and_is_never_matched(gold):
    """open-r1#293: an unreadable gold paid 1."""
    for prediction in (gold, "3", ""):
        assert verify(prediction, gold).value is None
        assert not equal(prediction, gold)
    assert Math().prepare(Sample(0, "", gold)).reason == "bad_reference"


@pytest.mark.parametrize(
    ("prediction", "gold", "method"),
    [
        ("yes", "\\text{Yes}", "text"),
        ("0.5", "1/2", "number"),
        ("(x-1)(x+1)", "x^2-1", "polynomial identity"),
        ("\\sin 2x", "2\\sin x\\cos x", "numeric points"),
        ("x\\in[1,2]", "[1,2]", "number"),
        ("\\int_0^1 x^2\\,dx", "\\frac13", "sympy"),
        ("\\lim_{x\\to 0}\\frac{\\sin x}{x}", "1", "sympy"),
        ("\\sum_{k=1}^{\\infty}\\frac{1}{k^2}", "\\frac{\\pi^2}{6}", "sympy"),
    ],
)
def test_the_verdict_names_the_method(prediction, gold, method):
    verdict = verify(prediction, gold)
    assert verdict.value == 1.0 and f"({method}" in verdict.detail


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("\\int_0^1 x^2\\,dx", "\\frac12"),
        ("\\lim_{x\\to 0}\\frac{\\sin x}{x}", "2"),
        ("\\sum_{k=1}^{\\infty}\\frac{1}{k^2}", "2"),
    ],
)
def test_computer_algebra_also_says_no(prediction, gold):
    assert verify(prediction, gold).value == 0.0


@pytest.mark.parametrize(
    ("mine", "gold", "forth", "back"),
    [
        ("0.333333", "\\frac13", 1.0, 1.0),
        ("\\sqrt2", "1.414", 1.0, 0.0),
        ("x^2-4x+4=0", "x=2", 0.0, 0.0),
        ("3,4", "(3,4)", 1.0, 1.0),
    ],
)
def test_rules_have_a_direction(mine, gold, forth, back):
    assert (verify(mine, gold).value, verify(gold, mine).value) == (forth, back)


def test_options():
    def judged(verifier: Math, text: str, reference: object) -> float | None:
        return score_text(verifier, text, reference=reference).value

    assert judged(Math(rounding=False), "\\boxed{0.333333}", "\\frac13") == 0.0
    assert judged(Math(units="required"), "\\boxed{5}", "5 cm") == 0.0
    assert judged(Math(units="ignore"), "\\boxed{5\\text{ m}}", "5 cm") == 1.0
    assert judged(Math(percent=False), "\\boxed{45}", "45%") == 0.0
    assert judged(Math(boxes="last"), "$\\boxed{3}$ and $\\boxed{5}$", "5") == 1.0
    assert judged(Math(rules=("boxed",)), "#### 5", "5") == 0.0
    assert judged(Math(rules="whole"), "5", "5") == 1.0
    assert judged(Math(kinds=("interval",)), "\\boxed{5}", "5") is None


def test_the_text_of_the_right_option_counts_where_the_prompt_lists_the_options():
    prompt = "What is 6*7?\n(A) 40 (B) 42 (C) 44"
    assert score_text(Math(), "\\boxed{42}", reference="B", prompt=prompt).value == 1.0
    assert score_text(Math(), "\\boxed{44}", reference="B", prompt=prompt).value == 0.0
    assert score_text(Math(), "\\boxed{B}", reference="42", prompt=prompt).value == 1.0


def test_the_engine_asks_a_worker_only_for_what_needs_one():
    texts = ("\\boxed{\\frac13}", "\\boxed{\\int_0^1 x^2 dx}", "\\boxed{0.3}")
    generation = Generation(Sample(0, "", "\\frac13"), tuple(map(Completion, texts)))
    scored = next(iter(score(Math(), [generation])))
    assert [one.value for one in scored.scores["math"]] == [1.0, 1.0, 0.0]


def test_parse_gives_a_tree_or_says_why_not():
    from rewardkit.math import UnreadableAnswer
    from rewardkit.verifiers.math.tree import Add, Interval, Text

    assert isinstance(parse("x+1"), Add) and isinstance(parse("[1,2)"), Interval) and isinstance(parse("no idea"), Text)
    with pytest.raises(UnreadableAnswer, match="missing"):
        parse("\\frac{1}{")
