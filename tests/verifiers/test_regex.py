"""`regex` matches patterns, compares a group, and is killed when a pattern hangs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse, score_text
from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.regex import Regex

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "regex.jsonl").read_text("utf-8").splitlines()
]


def judge(text: str, reference: object, prompt: object = "", **options: object) -> Score:
    verifier = Regex.from_options(options)
    sample = Sample(0, prompt, reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"], case.get("prompt", ""), **case.get("options", {}))
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    for key in ("detail", "extracted"):
        assert key not in case or getattr(score, key) == case[key]


def test_a_pattern_that_hangs_on_a_completion_is_its_deadline():
    """Exponential in the completion, harmless on the empty text and on itself."""
    score = score_text(Regex(timeout=0.5), "a" * 60 + "!", reference="^(a+)+$")
    assert (score.value, score.reason) == (0.0, "deadline")
    assert score_text(Regex(timeout=0.5), "a" * 60, reference="^(a+)+$").value == 1.0


def test_a_pattern_that_hangs_on_itself_is_no_completion_s_fault():
    pattern = "(a+)+b|" + "a" * 60 + "c"  # its own text holds 60 a with no b behind them
    score = score_text(Regex(timeout=0.5), "short", reference=pattern)
    assert (score.state, score.reason) == ("error", "deadline_reference")


@given(st.text(max_size=20), st.sampled_from(["x*", ".*", "^$", "(?s).*", "", "a|", r"\s*"]))
def test_a_blank_completion_never_earns(blanks, pattern):
    blank = "".join(char for char in blanks if char.isspace())
    assert not judge(blank, pattern).value
    assert not judge(blank, pattern, match="fullmatch").value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": ""}, "empty"),
        ({"pattern": "x", "group": 1}, "has 0 groups"),
        ({"pattern": "(?P<sum>x)", "group": "total"}, "named are sum"),
        ({"match": "all"}, "match"),
        ({"timeout": 0}, "timeout"),
        ({"paterns": "x"}, "pattern"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        Regex.from_options(options)


def test_patterns_travel():
    verifier = Regex(pattern=r"it's \d+ \"x\"\n(?P<a>\w)", group="a", timeout=1.5)
    assert parse(repr(verifier)) == verifier == pickle.loads(pickle.dumps(verifier))


def test_needs_a_reference_only_where_it_is_used():
    assert Regex().needs == ("reference",)
    assert Regex(pattern="x").needs == ()
    assert Regex(pattern="(x)", group=1).needs == ("reference",)
