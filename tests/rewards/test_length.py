"""`length`: 1 inside its bounds, and exact straight lines outside."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import OptionError
from rewardkit.rewards.length import length
from rewardkit.types import Completion, Sample


def judge(text: str, tokens: int | None = None, **options: object):
    reward = length.with_options(**options)
    return reward.judge(reward.prepare(Sample(0)), Sample(0), Completion(text, tokens=tokens))


@pytest.mark.parametrize(
    ("size", "options", "value"),
    [
        (0, {}, 1.0),
        (512, {}, 1.0),
        (513, {}, 511 / 512),
        (768, {}, 0.5),
        (1024, {}, 0.0),
        (5000, {}, 0.0),
        (0, {"at_least": 10}, 0.0),
        (5, {"at_least": 10}, 0.5),
        (10, {"at_least": 10}, 1.0),
        (10, {"at_least": 10, "at_most": 10}, 1.0),
        (15, {"at_least": 10, "at_most": 10}, 0.5),
        (0, {"at_most": 0}, 1.0),
        (1, {"at_most": 0}, 0.0),
    ],
)
def test_in_every_unit(size, options, value):
    assert judge("w " * size, unit="words", **options).value == value
    assert judge("é" * size, unit="characters", **options).value == value
    assert judge("", tokens=size, unit="tokens", **options).value == value


@given(st.integers(0, 300), st.integers(0, 100), st.integers(0, 100))
def test_it_is_a_trapezium(size, one, other):
    """Written out with fractions: min(1, size / low, (2 high - size) / high), not below 0."""
    low, high = sorted((one, other))
    rising = Fraction(size, low) if low else Fraction(1)
    falling = Fraction(2 * high - size, high) if high else Fraction(size == 0)
    wanted = max(Fraction(0), min(Fraction(1), rising, falling))
    assert judge("x" * size, unit="characters", at_least=low, at_most=high).value == pytest.approx(
        float(wanted), abs=1e-12
    )


def test_unknown_tokens_abstain():
    score = judge("a b", unit="tokens")
    assert (score.value, score.state, score.reason) == (None, "abstained", "missing")


@pytest.mark.parametrize(
    "options",
    [
        {"at_most": -1},
        {"at_least": -5},
        {"at_least": 600},
        {"at_least": 11, "at_most": 10},
        {"unit": "bytes"},
        {"at_most": "many"},
        {"at_most": 1.5},
        {"at_most": True},
    ],
)
def test_impossible_options_are_an_error_not_a_score(options):
    with pytest.raises(OptionError, match=r"at_most|at_least|unit"):
        judge("a b", **options)


def test_the_detail_says_the_length():
    assert judge("a b c").detail == "3 words"
    assert judge("a").detail == "1 word"
    assert judge("a b c", at_most=2).detail == "3 words, above 2"
    assert judge("a b c", at_least=4).detail == "3 words, below 4"
