"""`arithmetic`: 1 for a number, 3 more for the right one, a penalty for none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check, judge

from rewardkit.errors import OptionError
from rewardkit.rewards.arithmetic import arithmetic


@cases("arithmetic")
def test_a_text_is_judged(case):
    check(arithmetic, case)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_right_and_wrong(answer, reference):
    assert judge(arithmetic, f"It is {answer}.", reference=reference).value == (4.0 if answer == reference else 1.0)


@given(st.text(alphabet=st.characters(exclude_categories=["N"]), max_size=100))
def test_text_without_a_number_is_penalised(text):
    assert judge(arithmetic, text, reference=18).value == -3.0


@given(st.text(max_size=200))
def test_it_has_four_values(text):
    assert judge(arithmetic, text, reference=18).value in (-3.0, 0.0, 1.0, 4.0)


def test_a_penalty_is_no_gain():
    with pytest.raises(OptionError, match="missing=3"):
        judge(arithmetic, "x", reference=1, options={"missing": 3})
    with pytest.raises(OptionError, match="missing"):
        arithmetic.with_options(missing="-3")


def test_a_megabyte_ends():
    for text in ("no idea " * 125_000, "9" * 10**6, "1 " * 500_000, "<think>" * 140_000):
        assert judge(arithmetic, text, reference=18).value <= 1.0
