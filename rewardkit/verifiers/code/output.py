"""What a program wrote to standard output against what it should have written."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import NamedTuple

_MAX_NUMBER = 100  # characters of one that a tolerance is applied to


class Difference(NamedTuple):
    """Where an output differs first: the line's number, what was wanted there and what came; None: no such line."""

    line: int
    expected: str | None
    got: str | None


def output_difference(expected: str, got: str, tolerance: float = 0.0) -> Difference | None:
    """Compare line by line; None when equal.

    All lines count, in order. Blanks at the end of a line and empty lines at the end of the output do not, nor does the
    kind of line break. With a tolerance two lines are also equal whose words are, where numbers may differ by so much,
    or by that share of the expected one.
    """
    wanted, lines = _lines(expected), _lines(got)
    for number, (one, other) in enumerate(zip(wanted, lines, strict=False), 1):
        if one != other and not (tolerance > 0 and _near(one, other, tolerance)):
            return Difference(number, one, other)
    if len(wanted) == len(lines):
        return None
    at = min(len(wanted), len(lines))
    return Difference(at + 1, wanted[at] if at < len(wanted) else None, lines[at] if at < len(lines) else None)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _near(expected: str, got: str, tolerance: float) -> bool:
    words, others = expected.split(), got.split()
    return len(words) == len(others) and all(
        word == other or _near_number(word, other, tolerance) for word, other in zip(words, others, strict=True)
    )


def _near_number(expected: str, got: str, tolerance: float) -> bool:
    if len(expected) > _MAX_NUMBER or len(got) > _MAX_NUMBER or "_" in got or not got.isascii():
        return False
    try:
        wanted, value = Decimal(expected), Decimal(got)
    except InvalidOperation:
        return False
    if not wanted.is_finite() or not value.is_finite() or max(abs(wanted.adjusted()), abs(value.adjusted())) > 400:
        return wanted.is_infinite() and wanted == value
    limit = Decimal(tolerance)
    return abs(wanted - value) <= max(limit, limit * abs(wanted))
