"""`overlong`, `cosine_length`, `repetition`, `stop_reason`: penalties for too much."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check, judge

from rewardkit import parse
from rewardkit.errors import OptionError
from rewardkit.rewards.cosine_length import cosine_length, cosine_set
from rewardkit.rewards.overlong import overlong
from rewardkit.rewards.repetition import repetition
from rewardkit.rewards.stop_reason import stop_reason


@cases("overlong")
def test_overlong(case):
    check(overlong, case)


@cases("cosine_length")
def test_cosine_length(case):
    check(cosine_length, case)


@cases("repetition")
def test_repetition(case):
    check(repetition, case)


@cases("stop_reason")
def test_stop_reason(case):
    check(stop_reason, case)


UNITS = st.sampled_from(["words", "characters"])


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 40), st.integers(0, 40), UNITS)
def test_a_longer_text_never_earns_more(text, more, one, other, unit):
    cache, at_most = sorted((one, other))
    options = {"at_most": at_most, "cache": cache, "unit": unit}
    assert judge(overlong, text + more, options=options).value <= judge(overlong, text, options=options).value <= 0.0
    options = {"at_most": at_most + 1, "unit": unit}
    assert judge(cosine_length, text + more, options=options).value <= judge(cosine_length, text, options=options).value


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 250))
def test_overlong_is_three_pieces(one, other, size):
    """Equation 13 of DAPO, written out with fractions."""
    cache, at_most = sorted((one, other))
    if size <= at_most - cache:
        wanted = Fraction(0)
    elif size <= at_most:
        wanted = Fraction((at_most - cache) - size, cache)
    else:
        wanted = Fraction(-1)
    score = judge(overlong, "", tokens=size, options={"at_most": at_most, "cache": cache})
    assert score.value == pytest.approx(float(wanted), abs=1e-12)


@given(st.integers(1, 100), st.integers(0, 250), st.floats(-10, 10), st.floats(-10, 10))
def test_cosine_length_is_half_a_cosine(at_most, size, short, long):
    options = {"at_most": at_most, "unit": "tokens", "short": short, "long": long}
    value = judge(cosine_length, "", tokens=size, options=options).value
    assert value == pytest.approx(
        long + 0.5 * (short - long) * (1 + math.cos(math.pi * min(size, at_most) / at_most)), abs=1e-12
    )
    assert min(short, long) - 1e-12 <= value <= max(short, long) + 1e-12


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#### 18", 0.5 + 0.25 * (1 + math.cos(math.pi * 2 / 1000))),
        ("w " * 498 + "#### 18", 0.75),
        ("w " * 5000 + "#### 18", 0.5),
        ("#### 17", -(0.5 + 0.25 * (1 + math.cos(math.pi * 2 / 1000)))),
        ("w " * 498 + "#### 17", -0.75),
        ("w " * 5000 + "#### 17", -0.5),
        ("", -1.0),
    ],
)
def test_right_answers_1_to_a_half_and_wrong_ones_minus_1_to_minus_a_half(text, value):
    assert judge(cosine_set, text, reference=18).value == pytest.approx(value, abs=1e-12)
    assert parse(cosine_set.formula) == cosine_set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("w " * 2 + "#### 18", 1.5),  # right, half way from 2 to 1
        ("w " * 2 + "#### 17", -5.0),  # wrong, half way from -10 to 0
        ("", -10.0),
        ("w " * 8 + "#### 18", 1.0),
        ("w " * 8 + "#### 17", 0.0),
    ],
)
def test_other_ends_are_a_sum_of_two(text, value):
    total = parse(
        "gsm8k*cosine_length(short=2, long=1, at_most=8) + (1 - gsm8k)*cosine_length(short=-10, long=0, at_most=8)"
    )
    assert judge(total, text, reference=18).value == pytest.approx(value, abs=1e-12)


def test_an_unreadable_reference_leaves_the_whole_unscored():
    assert judge(cosine_set, "#### 18", reference="see figure").reason == "bad_reference"


# A second, obvious version: count every n-gram; all but the first of a kind are repetition.
@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5), st.floats(-2, 0))
def test_repetition_counts_all_but_the_first(words, n, penalty):
    grams = Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))
    total = sum(grams.values())
    wanted = penalty * float(Fraction(sum(count - 1 for count in grams.values()), total)) if total else 0.0
    options = {"n": n, "max_penalty": penalty}
    assert judge(repetition, " ".join(words), options=options).value == pytest.approx(wanted, abs=1e-12)
    assert judge(repetition, "".join(words), options=options | {"unit": "characters"}).value == pytest.approx(
        wanted, abs=1e-12
    )


@given(st.text(max_size=100), st.sampled_from(["words", "characters"]), st.integers(1, 100))
def test_repetition_lies_between_its_bounds(text, unit, n):
    assert -0.5 <= judge(repetition, text, options={"n": n, "unit": unit, "max_penalty": -0.5}).value <= 0.0


@given(st.text(alphabet="ab ", min_size=9, max_size=40))
def test_saying_it_again_never_costs_less(text):
    if len(text.split()) >= 3:
        once, twice = judge(repetition, text), judge(repetition, f"{text} {text}")
        assert twice.value <= once.value


@given(st.text(max_size=40))
def test_a_stop_reason_of_any_text_is_a_penalty_or_nothing(text):
    score = judge(stop_reason, "x", columns={"finish_reason": text})
    assert score.value in (None, 0.0, -1.0)
    assert score.value is not None or score.state == "abstained"


@pytest.mark.parametrize("said", [1, True, ["length"], 2.5, {"type": 3}])
def test_a_stop_reason_that_is_no_text_abstains(said):
    assert judge(stop_reason, "x", columns={"finish_reason": said}).reason == "unsupported"


def test_a_completions_own_finish_reason_is_read():
    from rewardkit import Completion, Sample

    sample = Sample(0)
    assert stop_reason.judge(None, sample, Completion("x", finish_reason="length")).value == -1.0
    assert stop_reason.needs == ("finish_reason",)


@pytest.mark.parametrize(
    ("reward", "options"),
    [
        (overlong, {"at_most": -1}),
        (overlong, {"cache": -1}),
        (overlong, {"at_most": 10, "cache": 11}),
        (overlong, {"unit": "bytes"}),
        (overlong, {"at_most": 10.5}),
        (cosine_length, {"at_most": 0}),
        (cosine_length, {"short": "1"}),
        (repetition, {"n": 0}),
        (repetition, {"n": 101}),
        (repetition, {"max_penalty": 0.5}),
        (repetition, {"unit": "tokens"}),
        (stop_reason, {"penalty": 1.0}),
    ],
)
def test_impossible_options_are_an_error_not_a_score(reward, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        judge(reward, "a b c", columns={"finish_reason": "stop"}, tokens=3, options=options)


def test_a_megabyte_ends():
    for text in ("a b " * 250_000, "x" * 10**6, " " * 10**6, "你好" * 500_000):
        assert judge(overlong, text, options={"unit": "characters"}).value == -1.0
        assert judge(cosine_length, text, options={"unit": "characters"}).value == 0.5
        for unit in ("words", "characters"):
            assert -1.0 <= judge(repetition, text, options={"unit": unit, "n": 20}).value <= 0.0
