"""`overlong`: the soft penalty for overlong completions, as in DAPO."""

from __future__ import annotations

from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.rewards.sizes import Unit, shown, size
from rewardkit.types import Score


@reward(name="overlong")
def overlong(
    completion: str, tokens: Any = None, *, at_most: int = 20_480, cache: int = 4_096, unit: Unit = "tokens"
) -> Score:
    """0 up to `at_most - cache`, falling linearly to -1 at `at_most`, and -1 beyond.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), with that paper's limits as defaults. It is
    a penalty to add to another reward, and never above 0.

    Traps: tokens are taken from the row; where it does not say them, the row abstains (missing). Set another
    `unit`, with limits for it, there. Words are what white space separates, so Chinese text without spaces is one word.

    Options:
        at_most: length from which on the whole penalty is due, in `unit`.
        cache: length of the falling part before it, in `unit`; with 0 there is none.
        unit: "tokens", "words" or "characters".

    Example:
        rewardkit try "overlong(at_most=4, cache=2, unit='words')" 'three words here'
    """
    if at_most < 0 or not 0 <= cache <= at_most:
        raise OptionError(f"overlong: at_most={at_most}, cache={cache}: 0 <= cache <= at_most is wanted")
    count = size(completion, tokens, unit)
    if isinstance(count, Score):
        return count
    over = count - (at_most - cache)
    if over <= 0:
        return Score(0.0, shown(count, unit))
    if count > at_most:
        return Score(-1.0, f"{shown(count, unit)}, above {at_most:,}")
    return Score(-over / cache, f"{shown(count, unit)}, {over:,} of {cache:,} into the cache")
