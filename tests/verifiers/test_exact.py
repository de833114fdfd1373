"""`exact` compares text with text, and says where they part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import OptionError
from rewardkit.extract import SPECIAL_TOKENS
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.exact import Exact, ExactReference


def judge(text: str, reference: object, **options: object) -> Score:
    verifier = Exact.from_options(options)
    sample = Sample(0, "", reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize(
    ("text", "reference", "options", "value"),
    [
        ("Paris", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {}, 1.0),
        (" Paris", "Paris", {"strip": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("cafe\u0301", "caf\u00e9", {}, 1.0),
        ("CAFE\u0301", "caf\u00e9", {"ignore_case": True}, 1.0),
        ("a  b\nc", "a b c", {}, 0.0),
        ("a  b\nc", "a b c", {"fold_space": True}, 1.0),
        (" a  b", " a b", {"fold_space": True, "strip": False}, 1.0),
        ("a b", " a b", {"fold_space": True, "strip": False}, 0.0),
        ("18", 18, {}, 1.0),
        ("18.0", 18.0, {}, 1.0),
        ("18", 18.0, {}, 0.0),
        ("true", True, {}, 1.0),
        ("True", True, {}, 0.0),
        ("ﬁ", "fi", {}, 0.0),
        ("The answer is Paris", "Paris", {}, 0.0),
    ],
)
def test_texts_are_equal_or_not(text, reference, options, value):
    score = judge(text, reference, **options)
    assert score.value == value
    assert score.reason == (None if value else "wrong")


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_an_empty_completion_is_no_answer(text):
    for options in ({}, {"strip": False}, {"fold_space": True}):
        assert judge(text, "x", **options).reason == "no_answer"


@pytest.mark.parametrize("reference", ["", "  ", [], ["a"], {"text": []}, {"txt": "a", "text": "b"}])
def test_a_reference_that_is_no_text_is_never_matched(reference):
    """An empty gold once accepted an empty answer."""
    for text in ("", "a", str(reference)):
        score = judge(text, reference)
        assert (score.value, score.reason) == (None, "bad_reference")


def test_a_missing_reference_abstains():
    assert judge("None", None).reason == "missing"


@pytest.mark.parametrize(
    ("text", "reference", "detail"),
    [
        ("London", "Paris", "'London', not 'Paris'"),
        ("paris", "Paris", "only the case differs: 'paris', not 'Paris'"),
        ("a  b", "a b", "only white space differs: 'a  b', not 'a b'"),
        ("x" * 100 + "y", "x" * 100 + "z", "differs at character 101: 'y', not 'z'"),
        ("x" * 100 + "yy", "x" * 100, "2 characters more than the reference: 'yy'"),
        ("x" * 100, "x" * 100 + "zz", "ends 2 characters early, before 'zz'"),
    ],
)
def test_the_detail_says_what_differs(text, reference, detail):
    assert judge(text, reference).detail == detail


@given(st.text(max_size=30), st.text(min_size=1, max_size=30).filter(str.strip))
def test_details_are_short_and_only_equals_are_accepted(text, reference):
    score = judge(text * 50, reference)
    assert len(score.detail) < 1300  # 60 characters of each side, even where each is shown as an escape
    assert (score.value == 1.0) <= (bool(text.strip()))
    assert judge(reference, reference).value == 1.0


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_at_the_end_count_on_neither_side(token):
    """The engine drops them from completions, so a reference that kept its own was never equal."""
    for text, reference in ((f"<s>old{token}", f"<s>old{token}"), ("<s>old", f"<s>old{token}"), (f"a{token}", "a")):
        assert judge(text, reference).value == 1.0
    assert judge("old", f"new{token}").value == 0.0
    assert judge(f"{token}old", "old").value == 0.0


def test_a_reference_of_nothing_but_tokens_stays():
    assert judge("</s>", "</s>").value == 1.0 and judge("x", "</s>").value == 0.0


def test_the_reference_is_described():
    assert ExactReference.model_fields["text"].description == "a text"


@pytest.mark.parametrize("options", [{"strip": 1}, {"ignore_case": "yes"}, {"ignorecase": True}])
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Exact.from_options(options)
