"""`distance`: the nearer, the more; exact, symmetric and monotone."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reward_cases import cases, check
from reward_cases import judge as judge_with

from rewardkit.errors import OptionError
from rewardkit.rewards.distance import distance

FORMS = [{"form": "linear", "scale": 7.5}, {"form": "ratio"}, {"form": "log"}]
INTEGERS = st.one_of(st.integers(-100, 100), st.integers(-(10**299), 10**299))
DECIMALS = st.decimals(-1000, 1000, places=3)
NUMBERS = st.one_of(INTEGERS.map(str), DECIMALS.map(lambda value: f"{value:f}"))


def judge(answer: str, reference: object, **options: object):
    return judge_with(distance, f"#### {answer}", reference=reference, options=options)


@cases("distance")
def test_a_text_is_judged(case):
    check(distance, case)


@given(NUMBERS, NUMBERS, st.sampled_from(FORMS))
def test_it_is_symmetric_and_in_bounds(one, other, form):
    value = judge(one, other, **form).value
    assert value == judge(other, one, **form).value
    assert 0.0 <= value <= 1.0


@given(NUMBERS, st.sampled_from(FORMS))
def test_the_number_itself_earns_1(number, form):
    assert judge(number, number, **form).value == 1.0


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(FORMS))
def test_nearer_on_one_side_never_earns_less(reference, one, other, form):
    gold, first, second = Fraction(reference), Fraction(one), Fraction(other)
    assume((first - gold) * (second - gold) >= 0)
    if abs(first - gold) > abs(second - gold):
        one, other = other, one
    assert judge(one, reference, **form).value >= judge(other, reference, **form).value


@given(NUMBERS, NUMBERS)
def test_values_by_fractions_and_by_long_decimals(answer, reference):
    """The formulas written out, in exact arithmetic and in 700 digits."""
    mine, gold = Fraction(answer), Fraction(reference)
    apart, larger = abs(mine - gold), max(abs(mine), abs(gold))
    assert judge(answer, reference, form="linear", scale=7.5).value == float(max(0, 1 - apart / Fraction(15, 2)))
    assert judge(answer, reference).value == float(max(0, 1 - apart / larger) if larger else 1)
    with localcontext() as context:
        context.prec = 700
        exact = 1 / (1 + (1 + Decimal(apart.numerator) / Decimal(apart.denominator)).ln())
    assert judge(answer, reference, form="log").value == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize(
    ("answer", "reference", "form", "value"),
    [
        ("1e300", "1", {"form": "ratio"}, 1e-300),
        ("1e300", "1", {"form": "linear", "scale": 1e300}, 1e-300),
        ("1e300", "1", {"form": "linear", "scale": 1.0}, 0.0),
        ("1e900", "-1e900", {"form": "ratio"}, 0.0),
        ("1e900", "9e899", {"form": "ratio"}, 0.9),
        # 1 / (1 + 900 * ln 10), beyond what a float can hold
        ("1e900", "1", {"form": "log"}, 1 / (1 + 900 * 2.302585092994046)),
        ("1" + "0" * 250, "9" + "0" * 249, {"form": "ratio"}, 0.9),
    ],
)
def test_large_numbers_do_not_overflow(answer, reference, form, value):
    assert judge(answer, reference, **form).value == pytest.approx(value, rel=1e-13)


@given(st.text(alphabet=st.characters(exclude_categories=["N"]), max_size=100), st.sampled_from(FORMS))
def test_no_number_is_no_answer(text, form):
    score = judge_with(distance, text, reference=0, options=form)
    assert (score.value, score.reason) == (0.0, "no_answer")


@given(st.text(max_size=200), st.sampled_from(FORMS))
def test_any_text_has_a_value(text, form):
    assert 0.0 <= judge_with(distance, text, reference=18, options=form).value <= 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "linear"}, "needs a scale"),
        ({"form": "linear", "scale": 0}, "above 0"),
        ({"form": "linear", "scale": -1.0}, "above 0"),
        ({"form": "quadratic"}, "form"),
        ({"scale": "10"}, "scale"),
    ],
)
def test_impossible_options_are_an_error_not_a_score(options, message):
    with pytest.raises(OptionError, match=message):
        judge("9", 10, **options)


def test_a_scale_is_read_as_it_is_written():
    """0.1 is 1/10, not the nearest binary fraction, which lies above it: at the scale nothing is earned."""
    score = judge("0.1", 0, form="linear", scale=0.1)
    assert (score.value, score.reason) == (0.0, "wrong")
