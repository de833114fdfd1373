"""`number_close` accepts what is near, and lets credit fall by written-out arithmetic."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse
from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.number_close import NumberClose
from rewardkit.verifiers.numeric import Numeric

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "number_close.jsonl").read_text("utf-8").splitlines()
]


def judge(text: str, reference: object, prompt: object = "", kind: type = NumberClose, **options: object) -> Score:
    verifier = kind.from_options(options)
    sample = Sample(0, prompt, reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"], case.get("prompt", ""), **case.get("options", {}))
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    for key in ("detail", "extracted"):
        assert key not in case or getattr(score, key) == case[key]


@given(st.integers(-500, 500), st.integers(-500, 500), st.integers(0, 50), st.integers(1, 100), st.booleans())
def test_credit_by_arithmetic(answer, reference, within, span, relative):
    """Written out: 1 up to `within`, 0 from `zero_at` on, (zero_at - d) / (zero_at - within) between."""
    measure, unit = ("relative", abs(reference)) if relative else ("absolute", 1)
    low, high = (Fraction(within, 100), Fraction(within + span, 100)) if relative else (within, within + span)
    difference = abs(answer - reference)
    if difference <= low * unit:
        wanted = 1.0
    elif difference >= high * unit:
        wanted = 0.0
    else:
        wanted = float((high - Fraction(difference, unit)) / (high - low))
    score = judge(f"#### {answer}", reference, within=str(low), zero_at=str(high), measure=measure)
    assert score.value == pytest.approx(wanted, abs=1e-9)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_nearer_never_earns_less(reference, one, other):
    near, far = sorted((one, other))
    scores = [judge(f"#### {reference + off}", reference, zero_at=2).value for off in (near, far)]
    assert scores[0] >= scores[1]


@pytest.mark.parametrize(
    "text", ["#### 18", "no idea", "", "12 or 14", "\\boxed{}", "<think>18", "The answer is 18.", "a 17 b 18"]
)
def test_finds_what_numeric_finds(text):
    """With nothing allowed it is `numeric`, whatever the text."""
    mine, theirs = judge(text, 18, within=0), judge(text, 18, kind=Numeric)
    assert (mine.value, mine.reason, mine.extracted, mine.detail) == (
        theirs.value,
        theirs.reason,
        theirs.extracted,
        theirs.detail,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"within": -1}, "within"),
        ({"within": True}, "within"),
        ({"within": 0.1, "zero_at": 0.1}, "zero_at"),
        ({"within": 0.1, "zero_at": 0.05}, "zero_at"),
        ({"measure": "share"}, "measure"),
        ({"zero": 1}, "zero_at"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        NumberClose.from_options(options)


def test_options_are_exact_and_travel():
    verifier = NumberClose(within="1/3", zero_at=0.5)
    assert parse(repr(verifier)) == verifier == pickle.loads(pickle.dumps(verifier))
    assert NumberClose(within=0.05).within == Fraction(1, 20)
