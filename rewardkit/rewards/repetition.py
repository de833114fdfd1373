"""`repetition`: a penalty for saying the same again."""

from __future__ import annotations

from typing import Literal

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.types import Score


@reward(name="repetition")
def repetition(
    completion: str, *, n: int = 3, max_penalty: float = -1.0, unit: Literal["words", "characters"] = "words"
) -> Score:
    """`max_penalty` times the share of n-grams that stood there before: 0 without repetition.

    With `total` n-grams, `distinct` of them different, the share is 1 - distinct / total. Case makes no difference. A
    text with fewer than `n` words has no n-grams and no penalty.

    Traps: words are what white space separates. For languages without spaces (Chinese, Japanese, Thai) count
    characters, with a larger `n`, such as 10. Long texts of ordinary prose repeat some 3-grams, too.

    Options:
        n: length of an n-gram, in `unit`; 1 to 100.
        max_penalty: the value when all is repetition; 0 or less.
        unit: "words" or "characters" (white space is left out).

    Example:
        rewardkit try repetition 'and so on and so on and so on'
    """
    if not 1 <= n <= 100:
        raise OptionError(f"repetition: option n={n}: a length from 1 to 100 is wanted")
    if max_penalty > 0:
        raise OptionError(f"repetition: option max_penalty={max_penalty}: a penalty is wanted, 0 or less")
    words = completion.lower().split()
    if unit == "characters":
        text = "".join(words)
        total = len(text) - n + 1
        distinct = len({text[at : at + n] for at in range(total)})
    else:
        total = len(words) - n + 1
        distinct = len(set(zip(*(words[at:] for at in range(n)), strict=False)))
    if total <= 0:
        return Score(0.0, f"fewer than {n} {unit}")
    again = total - distinct
    return Score(
        max_penalty * (again / total) if again else 0.0, f"{again:,} of {total:,} {n}-grams stood there before"
    )
