"""Two scorers as they were in release 0.1.16, written again from their rules: published scores were made with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_FLOOR, _READABLE = 0.01, 0.05


def word_sorting(answer: str | None, entry: dict[str, Any]) -> float:
    """1 for the right order; 0.2 when the answer, sorted upwards, is the gold; no credit for single positions."""
    gold = entry["metadata"]["sorted_words"]
    words = [word.strip() for word in (answer or "").split(",")]
    if words == gold:
        return 1.0
    return 0.2 if sorted(words) == gold else 0.0


def countdown(answer: str | None, entry: dict[str, Any]) -> float:
    """1 when the value, rounded towards 0, is the target and the numbers are the given ones, however often used."""
    from sympy.parsing.sympy_parser import parse_expr  # type: ignore[import-untyped]

    text = (answer or "").strip()
    if not text:
        return _FLOOR
    try:
        value = int(parse_expr(text))  # `guards.unsafe` lets only arithmetic come here
    except Exception:  # whatever sympy raises on what is no expression
        return _FLOOR
    used = {int(number) for number in re.findall(r"\b\d+\b", text)}
    right = value == entry["metadata"]["target"] and used == set(entry["metadata"]["numbers"])
    return 1.0 if right else _READABLE


SCORERS: dict[str, Callable[[str | None, dict[str, Any]], float]] = {
    "countdown": countdown,
    "word_sorting": word_sorting,
}
