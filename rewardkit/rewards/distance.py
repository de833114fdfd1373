"""`distance`: the nearer the number, the more it earns."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

from rewardkit.errors import OptionError
from rewardkit.number import Quantity, read_number, stated_number
from rewardkit.reward import reward
from rewardkit.rewards.number_answers import judged, right_number
from rewardkit.types import Sample, Score

_LOG_OF_LARGEST = math.log(1.7976931348623157e308)


@reward(name="distance")
def distance(
    completion: str,
    reference: Any,
    sample: Sample,
    *,
    form: Literal["linear", "ratio", "log"] = "ratio",
    scale: float | None = None,
) -> Score:
    """1 for the right number, less the further away it is. With d = |answer - reference|:

    ratio: max(0, 1 - d / max(|answer|, |reference|)), so that for 10 a 9 earns 0.9 and a 3 earns 0.3; linear:
    max(0, 1 - d / scale); log: 1 / (1 + ln(1 + d)). The answer is found as by `numeric`; no number is no answer and
    earns 0. The reference is a number, or a worked solution that ends in `#### 18`.

    Traps: by ratio the wrong sign earns 0, and so does any answer to 0 but 0 itself. By log even a far-off answer earns
    something. A percent sign or unit may be missing on one side; two different units earn 0 unless the amounts are
    equal.

    Options:
        form: "linear", "ratio" or "log".
        scale: the distance at which linear reaches 0, in the reference's unit; only linear needs it.

    Example:
        rewardkit try distance --reference 10 'The answer is 9.'
    """
    if form == "linear" and scale is None:
        raise OptionError("distance: form='linear' needs a scale: the distance at which nothing is earned")
    if scale is not None and scale <= 0:
        raise OptionError(f"distance: option scale={scale}: a distance above 0 is wanted")
    gold = right_number(sample)
    if isinstance(gold, Score):
        return gold
    verdict = judged(completion, sample, gold)
    if verdict.value or verdict.reason != "wrong":
        return Score(verdict.value, verdict.detail, verdict.extracted, verdict.reason)
    answer = _read(verdict.extracted or "")
    if answer is None or (answer.unit and gold.unit and answer.unit != gold.unit):
        return Score(0.0, verdict.detail, verdict.extracted, "wrong")
    apart, mine, wanted = _apart(answer, gold)
    value = _value(apart, max(abs(mine), abs(wanted)), form, scale)
    return Score(value, f"{verdict.detail}: {_short(apart)} apart", verdict.extracted, None if value else "wrong")


def _read(text: str) -> Quantity | None:
    return read_number(text) or stated_number(text)


def _apart(answer: Quantity, gold: Quantity) -> tuple[Fraction, Fraction, Fraction]:
    """Return how far two numbers are apart, and both; a percent sign on one side is read in the nearer way."""
    mine, wanted = answer.value, gold.value
    readings = [(mine, wanted)]
    if answer.percent != gold.percent:
        readings.append((mine / 100, wanted) if answer.percent else (mine, wanted / 100))
    return min((abs(one - other), one, other) for one, other in readings)


def _value(apart: Fraction, larger: Fraction, form: str, scale: float | None) -> float:
    if form == "log":
        return 1 / (1 + _log_of_one_more(apart))
    whole = Fraction(repr(scale)) if form == "linear" else larger
    return float(max(Fraction(0), 1 - apart / whole))


def _log_of_one_more(apart: Fraction) -> float:
    try:
        return math.log1p(float(apart))
    except OverflowError:  # more than a float can hold, where 1 more makes no difference
        return max(_LOG_OF_LARGEST, math.log(apart.numerator) - math.log(apart.denominator))


def _short(apart: Fraction) -> str:
    try:
        return f"{float(apart):.6g}"
    except OverflowError:
        return "more than 1e308"
