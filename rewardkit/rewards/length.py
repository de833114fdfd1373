"""`length`: 1 inside length bounds, falling linearly outside."""

from __future__ import annotations

from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.rewards import sizes
from rewardkit.types import Score


@reward(name="length")
def length(
    completion: str,
    tokens: Any = None,
    *,
    at_most: int = 512,
    at_least: int = 0,
    unit: sizes.Unit = "words",
) -> Score:
    """1 while the completion's length lies between `at_least` and `at_most`, falling linearly outside.

    Above `at_most` it falls to 0 at twice `at_most`; below `at_least` it rises from 0 at an empty completion.

    Traps: words are what white space separates, so Chinese text without spaces is one word. Tokens are taken from
    the file; where it does not say them, the row abstains (missing): nothing is tokenised here.

    Options:
        at_most: upper bound, in `unit`.
        at_least: lower bound, in `unit`; not above `at_most`.
        unit: "words", "characters" or "tokens".

    Example:
        rewardkit try "length(at_most=100)" 'A short answer.'
    """
    if at_least < 0 or at_most < 0:
        name, value = ("at_least", at_least) if at_least < 0 else ("at_most", at_most)
        raise OptionError(f"length: option {name}={value}: a length of 0 or more is wanted")
    if at_least > at_most:
        raise OptionError(f"length: at_least={at_least} is above at_most={at_most}; no length lies between them")
    size = sizes.size(completion, tokens, unit)
    if isinstance(size, Score):
        return size
    shown = sizes.shown(size, unit)
    if size > at_most:
        falling = (2 * at_most - size) / at_most if at_most else 0.0
        return Score(max(0.0, falling), f"{shown}, above {at_most:,}")
    if size < at_least:
        return Score(size / at_least, f"{shown}, below {at_least:,}")
    return Score(1.0, shown)
