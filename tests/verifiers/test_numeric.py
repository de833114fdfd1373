"""`numeric` accepts the right number, by whatever rule it is found, and nothing else."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import numbers as oracle

from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers import final_number, numeric
from rewardkit.verifiers.numeric import NumberReference, Numeric

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "numeric.jsonl").read_text("utf-8").splitlines()
]


def judge(text: str, reference: object, prompt: object = "", **options: object) -> Score:
    verifier = Numeric.from_options(options)
    sample = Sample(0, prompt, reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"], **case.get("options", {}))
    assert (score.value, score.reason) == (case["value"], case.get("reason"))


@given(
    st.builds(Fraction, st.integers(-(10**6), 10**6), st.integers(1, 99)),
    st.builds(Fraction, st.integers(1, 50), st.integers(1, 100)),
)
def test_tolerance_by_arithmetic(value, tolerance):
    """Written out: |answer - reference| <= tolerance, at the edge, just inside and just outside."""
    for off, right in ((tolerance, 1.0), (tolerance * Fraction(99, 100), 1.0), (tolerance * Fraction(101, 100), 0.0)):
        answer = value + off
        assert (
            judge(f"The answer is {answer.numerator}/{answer.denominator}.", str(value), tolerance=str(tolerance)).value
            == right
        )


@given(
    st.integers(1, 10**6),
    st.sampled_from(
        ["{}", "so {}", "#### {}", "\\boxed{{{}}}", "The answer is {}.", "<answer>{}</answer>", "**Answer:** {}"]
    ),
)
def test_every_rule_finds_every_notation(number, place):
    for text in oracle.integer_notations(number):
        if " " in text and place == "so {}":  # in prose a space does not group digits
            continue
        score = judge(place.format(text), number)
        assert score.value == 1.0, (place.format(text), score.why)
        assert judge(place.format(text), number + 1).value == 0.0


@pytest.mark.parametrize(
    "reference", ["see figure", "", "12 or 14", "x = 5", [18], {"number": "none"}, True, "1e400000000", "9" * 5000]
)
def test_a_reference_that_is_no_number_is_never_matched(reference):
    score = judge("#### 18", reference)
    assert (score.value, score.state) == (None, "abstained")
    assert score.reason == "bad_reference"


def test_a_missing_reference_abstains():
    assert judge("#### 18", None).reason == "missing"


@pytest.mark.parametrize(
    "reference", [18, 18.0, "18", " 18 ", "$18", "18 dollars", {"number": 18}, Fraction(18), "36/2"]
)
def test_references_come_in_many_forms(reference):
    assert judge("#### 18", reference).value == 1.0


def test_a_float_reference_is_its_decimal_text():
    assert judge("#### 0.1", 0.1).value == 1.0
    assert judge("#### 1e22", 1e22).value == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": -1},
        {"relative": "-0.1"},
        {"tolerance": True},
        {"tolerance": "a bit"},
        {"extract": "all"},
        {"tolerence": 1},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Numeric.from_options(options)


def test_options_are_exact_and_travel():
    verifier = Numeric(tolerance=Fraction(1, 10))
    assert Numeric.from_options({"tolerance": 0.1}) == verifier == pickle.loads(pickle.dumps(verifier))
    assert Numeric(tolerance="0.1").options == {"tolerance": 0.1}


def test_the_verdict_says_what_was_found_and_where():
    score = judge("It is 17.5.\n#### 17.5 miles", 18)
    assert (score.extracted, score.detail) == ("17.5 miles", "17.5 miles after ####, not 18")
    assert judge("\\boxed{\\frac{36}{2}}", 18).detail == "\\frac{36}{2} in \\boxed"
    assert judge("12 or 14 it is: Answer: 12 or 14", 12).detail == "'12 or 14' after \"answer:\" is not one number"


def test_a_denied_number_is_shown_with_its_sentence():
    assert judge("It is not 18.", 18).detail == "'It is not 18' as the last number is not one number"
    assert judge("3 or 4", 4).detail == "'3 or 4' as the last number is not one number"


def test_the_reference_is_described():
    assert NumberReference.model_fields["number"].description == "a number"


def test_shared_functions_are_importable_here_too():
    for name in ("UNFINISHED", "answer_region", "guessed_answer", "judge_number", "marked_answer"):
        assert getattr(numeric, name) is getattr(final_number, name)


def test_unfinished_thinking_is_no_answer():
    assert judge("<think>The answer is 18.", 18).reason == "no_answer"
    assert judge("The answer is 18.", 18, prompt="Solve.\n<think>\n").reason == "no_answer"
    assert judge("5</think>The answer is 18.", 18, prompt="Solve.\n<think>\n").value == 1.0


def test_huge_numbers_cost_nothing():
    for text in ("1e400000000", "9" * 10000, "10^{10^{10}}", "1/" + "3" * 5000):
        score = judge(f"\\boxed{{{text}}}", 18)
        assert (score.value, score.reason) == (0.0, "unreadable")
        assert len(score.detail) < 200 and len(score.extracted) <= 200
