"""How long a completion is, in the unit that a reward is asked to count in."""

from __future__ import annotations

from typing import Any, Literal

from rewardkit.types import Score

Unit = Literal["words", "characters", "tokens"]


def size(text: str, tokens: Any, unit: Unit) -> int | Score:
    """Return a length in words (what white space separates), characters or tokens.

    Tokens are what the row says: a text is never tokenised here. A row that does not say them abstains.
    """
    if unit == "words":
        return len(text.split())
    if unit == "characters":
        return len(text)
    if isinstance(tokens, float) and tokens.is_integer():  # tables with gaps hold counts as floats
        tokens = int(tokens)
    if tokens is None:
        return Score(
            None, "the row does not say its number of tokens; unit='words' or 'characters' counts", reason="missing"
        )
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        return Score(None, f"tokens is {str(tokens)[:60]!r}, not a whole number", reason="bad_reference")
    return tokens


def shown(count: int, unit: Unit) -> str:
    """Return a length for people: `1 word`, `1,200 tokens`."""
    return f"{count:,} {unit if count != 1 else unit[:-1]}"
