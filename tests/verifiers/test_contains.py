"""`contains` finds the reference in the completion, as words, and never the completion in the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.contains import Contains

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "contains.jsonl").read_text("utf-8").splitlines()
]


def judge(text: str, reference: object, prompt: object = "", **options: object) -> Score:
    verifier = Contains.from_options(options)
    sample = Sample(0, prompt, reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"], case.get("prompt", ""), **case.get("options", {}))
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    for key in ("detail", "extracted"):
        assert key not in case or getattr(score, key) == case[key]


WORDS = st.lists(st.text("abcdefg", min_size=1, max_size=4), min_size=1, max_size=8)


@given(WORDS, WORDS)
def test_whole_words_by_a_slow_second_way(text, wanted):
    """Word lists: the reference occurs exactly when its words are a slice of the completion's words."""
    size = len(wanted)
    occurs = any(text[at : at + size] == wanted for at in range(len(text)))
    assert judge(" ".join(text), " ".join(wanted)).value == float(occurs)
    glued = " ".join(wanted) in " ".join(text)
    assert judge(" ".join(text), " ".join(wanted), whole_word=False).value == float(glued)


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["reply", "answer", "last_line", "whole"]))
def test_a_blank_completion_never_earns(reference, blanks, within):
    blank = "".join(char for char in blanks if char.isspace())
    assert not judge(blank, reference, within=within).value


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), st.text("abcdef ", max_size=12))
def test_all_is_never_easier_than_any(references, text):
    every, some = (judge(text, references, mode=mode) for mode in ("all", "any"))
    assert every.value <= some.value


@pytest.mark.parametrize("options", [{"mode": "most"}, {"within": "body"}, {"ignore_case": 1}, {"whole_words": True}])
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Contains.from_options(options)


def test_a_long_completion_is_searched_to_its_end():
    assert judge("25 " * 10 + "125 " * 250_000 + "needle", "needle").value == 1.0
    assert judge("125 " * 250_000, "25").value == 0.0
    # A run in which the reference begins everywhere is passed over at once.
    assert judge("a" * 400_000, "a" * 2000).value == 0.0
    assert judge("b" + "a" * 400_000 + " " + "a" * 2000, "a" * 2000).value == 1.0
    long = judge("x" * 1_000_000 + " Paris", "x" * 1_000_000)
    assert long.value == 1.0 and len(long.extracted) <= 200 and len(long.detail) < 100
