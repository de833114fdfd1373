"""`label` takes what a file says, and abstains where it says nothing that is a label."""

from __future__ import annotations

import pytest

from rewardkit.rewards.label import label
from rewardkit.types import Completion, Sample


def judge(sample: Sample, completion: Completion):
    return label.judge(label.prepare(sample), sample, completion)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (True, 1.0),
        (False, 0.0),
        (1, 1.0),
        (0, 0.0),
        (0.25, 0.25),
        (-2, -2.0),
        ("1", 1.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("-1", -1.0),
        ("1e-3", 0.001),
        (" true\n", 1.0),
        ("FALSE", 0.0),
        ("Correct", 1.0),
        ("incorrect", 0.0),
        ("C", 1.0),
        ("I", 0.0),
    ],
)
def test_a_label_is_read(given, value):
    score = judge(Sample(0), Completion("x", metadata={"label": given}))
    assert (score.value, score.reason) == (value, None)


@pytest.mark.parametrize(
    "given",
    [
        "yes",
        "pass",
        "nan",
        "inf",
        "1_0",
        "١",
        "0x1",
        "1,5",
        "correct!",
        "9" * 400,
        float("nan"),
        float("inf"),
        10**400,
        [1],
        {"a": 1},
    ],
)
def test_anything_else_abstains_and_is_never_0(given):
    score = judge(Sample(0), Completion("x", metadata={"label": given}))
    assert (score.value, score.state, score.reason) == (None, "abstained", "bad_reference")
    assert len(score.detail) < 150


@pytest.mark.parametrize("given", [None, "", "  "])
def test_an_empty_label_is_missing(given):
    assert judge(Sample(0), Completion("x", metadata={"label": given})).reason == "missing"


def test_no_label_column_is_missing_and_asked_for_beforehand():
    assert judge(Sample(0), Completion("x")).reason == "missing"
    assert label.needs == ("label",)


def test_a_completions_own_label_comes_first():
    sample = Sample(0, metadata={"label": 0})
    assert judge(sample, Completion("x", metadata={"label": 1})).value == 1.0
    assert judge(sample, Completion("x")).value == 0.0
