"""`label`: a label that the file already has, as a reward."""

from __future__ import annotations

import math
from typing import Any

from rewardkit.reward import reward
from rewardkit.types import Score

_WORDS = {"true": 1.0, "correct": 1.0, "c": 1.0, "false": 0.0, "incorrect": 0.0, "i": 0.0}


@reward(name="label")
def label(label: Any) -> Score:
    """The label that the file already has, one a completion: a published verdict, a human's mark, another score.

    Accepts true and false, any finite number, and their texts: "1", "0", "0.5", "true", "false", "correct",
    "incorrect", "C", "I", in any case. A row without a label abstains (missing), and so does anything else
    (bad_reference): it is never counted as 0.

    Traps: the column must be named `label`, or mapped to it: `--map label=is_correct`. Yes and no, or pass and
    fail, are not guessed.

    Example:
        rewardkit eval runs.jsonl -r label -r gsm8k --map label=score[]
    """
    if label is None or (isinstance(label, str) and not label.strip()):
        return Score(None, "the row has no label", reason="missing")
    value = _value(label)
    if value is None:
        shown = str(label)[:60] if isinstance(label, (str, int, float)) else type(label).__name__
        return Score(
            None, f"a label is true, false, a number, correct or incorrect, got {shown!r}", reason="bad_reference"
        )
    return Score(value)


def _value(label: object) -> float | None:
    if isinstance(label, str):
        word = label.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        # float() also reads "nan", "1_0" and other scripts' digits, which no label means.
        if len(word) > 40 or not word.isascii() or "_" in word:
            return None
        try:
            return _finite(float(word))
        except ValueError:
            return None
    if isinstance(label, (bool, int, float)):
        try:
            return _finite(float(label))
        except OverflowError:
            return None
    return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
