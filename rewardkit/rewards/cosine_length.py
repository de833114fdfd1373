"""`cosine_length`: a factor that falls with the length, along half a cosine; and a preset that applies it."""

from __future__ import annotations

import math
from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.rewards.sizes import Unit, shown, size
from rewardkit.types import Score
from rewardkit.verifiers.gsm8k import Gsm8k


@reward(name="cosine_length")
def cosine_length(
    completion: str,
    tokens: Any = None,
    *,
    short: float = 1.0,
    long: float = 0.5,
    at_most: int = 1_000,
    unit: Unit = "words",
) -> Score:
    """`short` at length 0, `long` from length `at_most` on, and between them half a cosine.

    long + (short - long) / 2 * (1 + cos(pi * length / at_most)). It is a factor for a verifier, any verifier: right
    answers 1 to 0.5, wrong ones -1 to -0.5, as in open-r1, are `(2*gsm8k - 1)*cosine_length`, which is the preset
    `cosine_set`. Other ends are a sum of two: `gsm8k*cosine_length(short=2, long=1) +
    (1 - gsm8k)*cosine_length(short=-10, long=0)` are those of arXiv 2502.03373.

    Traps: alone it says nothing about the answer, and pays the empty one most. Among wrong answers the factor favours
    long ones, so that a model goes on looking. Where the formula would rise again, beyond `at_most`, it stays at
    `long`. Tokens are taken from the row; where it does not say them, the row abstains (missing).

    Options:
        short: value at length 0.
        long: value from `at_most` on.
        at_most: length from which on the value stays the same, in `unit`; above 0.
        unit: "words", "characters" or "tokens".

    Example:
        rewardkit try "(2*gsm8k - 1)*cosine_length(at_most=8)" --reference 18 'Four words: #### 18'
    """
    if at_most <= 0:
        raise OptionError(f"cosine_length: option at_most={at_most}: a length above 0 is wanted")
    count = size(completion, tokens, unit)
    if isinstance(count, Score):
        return count
    if count >= at_most:
        return Score(long, f"{shown(count, unit)}, {at_most:,} or more")
    share = (1 + math.cos(math.pi * count / at_most)) / 2
    return Score(long * (1 - share) + short * share, shown(count, unit))


cosine_set = (2 * Gsm8k() - 1) * cosine_length
