"""Size limits that hold before any work is done, so that no answer can make the verifier slow."""

from __future__ import annotations

import re
from itertools import accumulate

MAX_ANSWER = 4096  # characters of an answer
MAX_DIGITS = 300  # digits in a row
MAX_NESTING = 64  # brackets inside brackets
MAX_TOKENS = 1500
MAX_BITS = 1 << 17  # bits of an exact integer
MAX_DEPTH = 90  # operators inside operators, with or without brackets
MAX_ITEMS = 256  # items of a list, a set or a matrix


class Refused(Exception):
    """Why an answer is not looked at, read, or compared.

    Attributes:
        kind: "unreadable" (no such notation), "too_large" (over a limit), or "undefined" (such as 1/0).
    """

    def __init__(self, text: str, kind: str = "unreadable") -> None:
        super().__init__(text)
        self.kind = kind


class TooLarge(Refused):
    """Something is over a size limit."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "too_large")


_LONG_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_STEP = {**dict.fromkeys("{([", 1), **dict.fromkeys("})]", -1)}
_BRACKET = re.compile(r"[{}()\[\]]")


def check_size(text: str) -> None:
    """Raise TooLarge for a text that is over a limit."""
    if len(text) > MAX_ANSWER:
        raise TooLarge(f"{len(text)} characters, more than {MAX_ANSWER}")
    if len(text) > MAX_DIGITS and _LONG_DIGITS.search(text) is not None:
        raise TooLarge(f"more than {MAX_DIGITS} digits in a row")
    if len(text) > MAX_NESTING:
        depth = max(accumulate(map(_STEP.__getitem__, _BRACKET.findall(text))), default=0)
        if depth > MAX_NESTING:
            raise TooLarge(f"brackets nested {depth} deep, more than {MAX_NESTING}")
