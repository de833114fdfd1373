"""`answer_integer`: 0.5 when an integer stands between the answer tags."""

from __future__ import annotations

import re
from typing import Any

from rewardkit.reward import reward
from rewardkit.rewards.tags import tag_names, tagged_answer
from rewardkit.types import Score

_INTEGER = re.compile(r"[-+−]?(?:[1-9]\d{0,2}(?:,\d{3})++|\d++)")


@reward(name="answer_integer")
def answer_integer(completion: str, prompt: Any, *, answer: str = "answer") -> Score:
    """0.5 when the text between the last `<answer>` tags is an integer, right or not; else 0.

    A sign and thousands marks are part of it: -5, +18, 1,000; and so are the digits of any script.

    Traps: 18.0, 1.5, $18, "18 eggs", 1,00 and the superscript ² are no integers here.

    Options:
        answer: name of the tag.

    Example:
        rewardkit try answer_integer '<answer>-5</answer>'
    """
    (name,) = tag_names("answer_integer", answer=answer)
    found = tagged_answer(completion, prompt, name)
    if isinstance(found, Score):
        return found
    shown = found.text if len(found.text) <= 60 else found.text[:57] + "..."
    if _INTEGER.fullmatch(found.text) is None:
        return Score(0.0, f"{shown!r} is no integer", shown, reason="unreadable")
    return Score(0.5, f"{shown} is an integer", shown)
