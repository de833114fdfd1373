"""Names and numbers as they stand on a terminal: widths in cells, three digits, units, singular and plural."""

from __future__ import annotations

import unicodedata


def cells(text: str) -> int:
    """Return how many terminal cells a text takes: two for wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Return a name in at most `width` cells; what is too much is taken from the middle."""
    if cells(text) <= width:
        return text
    room = max(width - 1, 0)
    head = _fit(text, room - room // 2)
    tail = _fit(text[::-1], room // 2)[::-1]
    return f"{head}…{tail}"[: max(width, 0)]


def _fit(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += _cell(char)
        if used > width:
            return text[:at]
    return text


def three(value: float | None) -> str:
    """Return a number with three significant digits; whole digits are never cut, None is n/a."""
    if value is None:
        return "n/a"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e9 or size < 1e-4:
        return f"{value:.2e}"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    while size < 0.09995:
        size *= 10
        digits += 1
    return f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Return a time with its unit: 0.10 ms, 18.0 ms, 1.20 s, 2.50 min."""
    if seconds is None:
        return "n/a"
    if seconds < 0.9995:
        return f"{three(max(round(seconds * 1000, 6), 0.0))} ms"
    return f"{three(seconds)} s" if seconds < 120 else f"{three(seconds / 60)} min"


def percent(share: float | None) -> str:
    """Return a share as a percentage: 19.7 %."""
    if share is None:
        return "n/a"
    return "<0.001 %" if 0 < share < 1e-5 else f"{three(100 * share)} %"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
