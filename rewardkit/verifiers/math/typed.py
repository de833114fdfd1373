"""Answers with a type of their own, read without a grammar: numbers with units, times, dates, bases, choices.

Numbers are read by `rewardkit.number`, the same code that `numeric` and `gsm8k` use.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from rewardkit.verifiers.math.patterns import lazily


class Clock(NamedTuple):
    """A time of day in minutes (or seconds as a fraction); `half` is "am", "pm" or ""."""

    minutes: Fraction
    half: str
    padded: bool  # written like a clock: minutes of two digits below 60


_CLOCK = lazily(
    r"(\d{1,2})(?:\s?:\s?(\d{1,2})(?:\s?:\s?(\d{2}))?)?\s*(?:\\?(?:text|mathrm)?\s*\{?\s*([ap])\.?\s?m\b\.?\s*\}?|(noon|midnight|o'?clock))?",
    re.IGNORECASE,
)


def read_clock(text: str) -> Clock | None:
    """Read 3:30, 3:30 PM, 15:30, 5am."""
    if text in ("noon", "midnight"):
        return Clock(Fraction(720 if text == "noon" else 0), "pm" if text == "noon" else "am", True)
    if len(text) > 40 or not text[:1].isdigit():
        return None
    match = _CLOCK.fullmatch(text.strip())
    if match is None or (match[2] is None and match[4] is None and match[5] is None):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    half = (match[4] or "").lower()
    if match[2] is None and re.search(r"[AP]m", text) is not None:
        return None  # 5 Pm are petametres
    if hour > 24 or minute > 59 or second > 59 or (half and not 1 <= hour <= 12):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    elif match[5]:
        word = match[5].lower()
        if word == "noon":
            hour, half = 12, "p"
        elif word == "midnight":
            hour, half = 0, "a"
    padded = match[2] is None or len(match[2]) == 2
    return Clock(Fraction(60 * hour + minute) + Fraction(second, 60), f"{half}m" if half else "", padded)


def same_clock(mine: Clock, theirs: Clock) -> bool:
    """Compare two times of day; "am" and "pm" may be missing on one side."""
    if mine.minutes == theirs.minutes:
        return True
    if mine.half and theirs.half:
        return False
    if not mine.half and not theirs.half:
        return False
    said, bare = (mine, theirs) if mine.half else (theirs, mine)
    # 0:30 and 13:30 say their half themselves
    return 60 <= bare.minutes < 13 * 60 and bare.minutes % 720 == said.minutes % 720


class Date(NamedTuple):
    """A day; 0 where the year or the day is not said."""

    year: int
    month: int
    day: int


_MONTHS = {
    name: place
    for place, names in enumerate(
        [
            "january jan",
            "february feb",
            "march mar",
            "april apr",
            "may",
            "june jun",
            "july jul",
            "august aug",
            "september sep sept",
            "october oct",
            "november nov",
            "december dec",
        ],
        1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATES = [
    lazily(rf"(?P<m>{_MONTH})\.?\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:\s*,?\s*(?P<y>\d{{4}}))?", re.IGNORECASE),
    lazily(
        rf"(?:the\s+)?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<m>{_MONTH})\.?(?:\s*,?\s*(?P<y>\d{{4}}))?",
        re.IGNORECASE,
    ),
    lazily(r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})"),
    lazily(r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})"),
    lazily(r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})"),
    lazily(r"(?:(?P<y>\d{4})\s*年\s*)?(?P<m>\d{1,2})\s*月\s*(?P<d>\d{1,2})\s*[日号]"),
    lazily(rf"(?P<m>{_MONTH})\.?,?\s+(?P<y>\d{{4}})", re.IGNORECASE),
]
_WEEKDAY = lazily(r"^(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+(?=\S)", re.IGNORECASE)


def read_date(text: str) -> Date | None:
    """Read July 4, 4 July 2020, 2020-07-04, 7/4/2020, 7月4日."""
    if not 5 <= len(text) <= 50 and "月" not in text:
        return None
    if not any(char.isdigit() for char in text):
        return None
    text = _WEEKDAY.sub("", text.strip())
    for pattern in _DATES:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        found = match.groupdict()
        month = _MONTHS.get(str(found["m"]).lower().rstrip("."), 0) or int(found["m"])
        day = int(found.get("d") or 0)
        if month > 12 >= day > 0 and "/" in text[:5]:
            month, found["d"] = day, str(month)  # 25/12/1999
        date = Date(int(found.get("y") or 0), month, int(found.get("d") or 0))
        return date if 1 <= month <= 12 and date.day <= 31 else None
    return None


def same_date(mine: Date, theirs: Date) -> bool:
    return mine == theirs


class Based(NamedTuple):
    """Digits in a base; base 0 where none is said."""

    digits: str
    base: int


_BASED = lazily(
    r"(-?[0-9A-Za-z]{1,200})\s*_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{\s*)?(\w{1,12})\s*\}?\s*\}|\\(?:text|mathrm)\s*\{\s*(\w{1,12})\s*\}|(\d{1,2}))"
    r"|\(?(-?[0-9A-Fa-f]{1,200})\)?\s*(?:\\text\s*\{)?\s*(?:\(?base|in base)[\s-]*(\w{1,12})\)?\s*\}?"
    r"|\((-?[0-9A-F]{1,200})\)_(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))"
    r"|0(x[0-9A-Fa-f]{1,100}|b[01]{1,200}|o[0-7]{1,100})"
)
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16, "hex": 16, "bin": 2, "oct": 8, "dec": 10,
}  # fmt: skip


def read_based(text: str) -> Based | None:
    """Read 1101_2, 2A_{16}, 1101_{two}, 0x2a."""
    if "_" not in text and "base" not in text and text[:1] != "0":
        return None
    match = _BASED.fullmatch(text)
    if match is None:
        return None
    groups = match.groups()
    if groups[9]:
        return Based(groups[9][1:].upper().lstrip("0") or "0", {"x": 16, "b": 2, "o": 8}[groups[9][0]])
    digits = (groups[0] or groups[4] or groups[6] or "").upper()
    name = next((group for group in (*groups[1:4], groups[5], *groups[7:9]) if group), "")
    base = int(name) if name.isdigit() else _BASES.get(name.lower(), 0)
    plain = digits.lstrip("-")
    if not 2 <= base <= 36 or not plain or any(int(digit, 36) >= base for digit in plain):
        return None
    if base <= 10 and not plain.isdigit():
        return None
    if not plain[0].isdigit() and not any(char.isdigit() for char in plain) and base < 11:
        return None
    sign = "-" if digits.startswith("-") else ""
    return Based(sign + (plain.lstrip("0") or "0"), base)


_DMS = lazily(r"(-?\d{1,4})\s*°\s*(\d{1,2}(?:\.\d{1,6})?)\s*'(?:\s*(\d{1,2}(?:\.\d{1,6})?)\s*(?:\"|''))?")


def read_degrees(text: str) -> Fraction | None:
    """Read 37° 30' (and seconds) as degrees."""
    if "'" not in text:
        return None
    match = _DMS.fullmatch(text.strip())
    if match is None:
        return None
    minutes = Fraction(match[2]) / 60 + Fraction(match[3] or 0) / 3600
    whole = Fraction(match[1])
    return whole - minutes if match[1].startswith("-") else whole + minutes


# ---------------------------------------------------------------------------------------------- choices

_LETTERS = lazily(r"\(?([A-Z])\)?")
_SEVERAL = lazily(r"\(?[A-Z]\)?(?:(?:\s*[,;/&]\s*|\s*,?\s*\band\b\s*|\s+)\(?[A-Z]\)?){1,9}")
_RUN_OF_LETTERS = lazily(r"[A-K]{2,8}")
_LABELLED = lazily(
    r"(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?\s*|选(?:项|择)?\s*|答案(?:是|为)?\s*[::]?\s*)?"
    r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{\s*)?"
    r"\(?\s*(?P<letter>[A-Za-z])\s*(?:\)|\.|:|\)\.|\)\:)?\s*\}?\s*(?:(?<=[).:}\s])\s*(?P<rest>\S.*))?",
    re.IGNORECASE | re.DOTALL,
)
_STRIP_TEXT = lazily(r"\\(?:text|mathrm|textbf|mathbf|mathsf|textrm|operatorname)\s*\{([^{}]*)\}")


def read_choices(text: str) -> frozenset[str] | None:
    """Return the letters that a gold such as C, (C) or A,C consists of."""
    plain = _STRIP_TEXT.sub(r"\1", text).strip(" .{}$")
    single = _LETTERS.fullmatch(plain)
    if single is not None:
        return frozenset(single[1])
    if _RUN_OF_LETTERS.fullmatch(plain) is not None and len(set(plain)) == len(plain) and list(plain) == sorted(plain):
        return frozenset(plain)
    if _SEVERAL.fullmatch(plain) is not None:
        return frozenset(re.findall(r"[A-Z]", plain))
    return None


def chosen(text: str) -> frozenset[str] | None:
    """Return the letters that a prediction chooses: C, (c), "Option C", "C) 12", "C: a text"; None for none."""
    plain = _STRIP_TEXT.sub(r" \1", text).strip(" .{}$*")
    plain = re.sub(r"\\boxed\s*\{?", "", plain).strip(" .{}$*")
    several = read_choices(plain)
    if several is not None:
        return several
    match = _LABELLED.fullmatch(plain)
    if match is None:
        return None
    rest = match["rest"] or ""
    letter = match["letter"]
    before = plain[: match.start("letter")]
    if rest:
        if re.fullmatch(r"\(?[A-K]\)?", rest.rstrip(" .")) is not None:
            return frozenset((letter.upper(), rest.strip(" .()")))
        marked = plain[match.end("letter") :].lstrip()[:1] in (")", ".", ":", "}")
        if not marked or re.search(r"\bor\b|(?<![A-Za-z])(?:not|or)(?![A-Za-z])|\b[A-K]\)", rest):
            return None
        if before.strip() == "" and not letter.isupper():
            return None
    return frozenset(letter.upper())
