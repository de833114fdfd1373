"""`arithmetic`: points for a number, more for the right one, a penalty for none."""

from __future__ import annotations

from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.rewards.number_answers import judged, right_number
from rewardkit.types import Sample, Score


@reward(name="arithmetic")
def arithmetic(
    completion: str,
    reference: Any,
    sample: Sample,
    *,
    number: float = 1.0,
    right: float = 3.0,
    missing: float = -3.0,
) -> Score:
    """1 for a number, 3 more when it is the right one (so 4), and -3 for no number at all.

    The answer is found and compared as by `numeric`: in `<answer>` tags, behind `####`, in a box, behind "the answer
    is", else the last number; 1,000, $18 and 18.0 are read. The reference is a number, or a worked solution that ends
    in `#### 18`.

    Traps: a marker without a number behind it, a thinking that is never closed and a refusal are no number, whatever
    numbers stand elsewhere. What is not one number (`#### 12 or 14`) earns 0, without the penalty.

    Options:
        number: points for a number.
        right: points more for the right number.
        missing: points for no number; 0 or less.

    Example:
        rewardkit try arithmetic --reference 18 'so 9 * 2 = 18'
    """
    if missing > 0:
        raise OptionError(f"arithmetic: option missing={missing}: a penalty is wanted, 0 or less")
    gold = right_number(sample)
    if isinstance(gold, Score):
        return gold
    verdict = judged(completion, sample, gold)
    if verdict.reason == "no_answer":
        value = missing
    elif verdict.reason == "unreadable":
        value = 0.0
    else:
        value = number + right if verdict.value else number
    return Score(value, verdict.detail, verdict.extracted, verdict.reason)
