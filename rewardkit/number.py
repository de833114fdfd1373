"""Text -> exact number.

`read_number` reads a text that is a number and nothing else: `1,234`, `-3/4`, `\\frac{3}{4}`, `1½`, `45%`,
`1.2 \\times 10^5`, `$3.50`, `2.5 kg`, `۱۲`. `find_numbers` finds the numbers in prose, `stated_number` the one
number that a short answer states, and `same_number` says whether two of them are equal.

Values are exact fractions. Every size is checked before any arithmetic, so no text makes it slow: texts up to
1,024 characters, 300 digits, powers of ten up to 1,000; what is larger is not read. Algebra (`2\\pi`, `3 + 4`,
`x = 5`) and lists are not numbers, and give None.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rewardkit.units import CURRENCIES, UNIT_NAMES, conversion, read_unit

MAX_TEXT = 1024
MAX_DIGITS = 300
MAX_EXPONENT = 1000

_ZERO = Fraction(0)


class Quantity(NamedTuple):
    """A number as it was written.

    Attributes:
        value: The exact value, of `45%` 45.
        percent: It carries a percent sign or the word.
        unit: Unit or currency in a normal form: "cm", "m/s", "dollar", "apple"; "" where there is none.
        digits: Significant digits of a number with a decimal point or a power of ten; 0 for integers and fractions.
        text: The text that was read.
    """

    value: Fraction
    percent: bool = False
    unit: str = ""
    digits: int = 0
    text: str = ""


def read_number(text: str) -> Quantity | None:
    """Return the number that `text` is, or None when it is anything else, or too large.

    A comma before exactly three digits is a thousands mark, another single comma a decimal comma:
    `1,234` is 1234, `3,14` is 3.14, `0,125` is 0.125, `1.234,56` is 1234.56. What can be read in two ways
    (`2,5,8`, `12345,678`) is not a number. Ordinals (`21st`) equal their number.
    """
    if len(text) <= 24:
        return _read_short(text)
    return _read(text) if len(text) <= MAX_TEXT else None


def same_number(answer: Quantity, reference: Quantity, tolerance: Fraction = _ZERO, relative: Fraction = _ZERO) -> bool:
    """Whether two numbers are equal, exactly unless a tolerance is given.

    `45%` equals 0.45, and 45 too when only one side has the sign; a bare 45 is not a bare 0.45. Units and
    currency may be missing on one side; where both have one they must agree, converted where that is
    possible (50 cents is $0.50, 1 km is 1000 m). Nothing is rounded: 0.33 is not 1/3.

    Args:
        answer: The number to judge.
        reference: What it should be.
        tolerance: Largest absolute difference, in the reference's unit.
        relative: Largest difference as a share of the reference; the larger of both tolerances holds.
    """
    value = answer.value
    if answer.unit and reference.unit and answer.unit != reference.unit:
        factor = conversion(answer.unit, reference.unit)
        if factor is None:
            return False
        value = value * factor
    wanted = reference.value
    if value is wanted or _near(value, wanted, tolerance, relative):
        return True
    if answer.percent == reference.percent:
        return False
    if answer.percent:
        return _near(value / 100, wanted, tolerance, relative)
    return _near(value, wanted / 100, tolerance, relative)


def _near(value: Fraction, wanted: Fraction, tolerance: Fraction, relative: Fraction) -> bool:
    if value.numerator == wanted.numerator and value.denominator == wanted.denominator:
        return True
    if not tolerance and not relative:
        return False
    return abs(value - wanted) <= max(tolerance, relative * abs(wanted))


# ---------------------------------------------------------------------------------------- a whole text


@lru_cache(maxsize=4096)
def _read_short(text: str) -> Quantity | None:
    return _read(text)


def _read(text: str) -> Quantity | None:
    plain = text.strip()
    simple = _SIMPLE.fullmatch(plain)
    if simple is not None:
        whole, part = simple.groups()
        if part is None:
            return Quantity(Fraction(int(whole)), False, "", 0, text)
        digits = len((whole + part).lstrip("+-0")) or 1
        return Quantity(Fraction(int(whole + part), 10 ** len(part)), False, "", digits, text)
    bare = _unwrapped(_folded(plain))
    if bare[:1] in _SAID_SIGN and (said := _SAID_MINUS.match(bare)) is not None:
        bare = "-" + bare[said.end() :]
    match = _WHOLE.fullmatch(bare)
    if match is None:
        return _compound(bare, text)
    value = _value(match)
    if value is None:
        return None
    fraction, digits = value
    tail = _tail(match)
    if tail is None:
        return _compound(bare, text)
    scale, percent, unit = tail
    fraction *= scale
    if "-" in (match["sign"] or "", match["sign2"] or ""):
        fraction = -fraction
    return Quantity(fraction, percent, unit, digits, text)


_SAID_MINUS = re.compile(r"(?:minus|negative)\s+(?=[\d.$€£¥₹])", re.IGNORECASE)
_SAID_SIGN = ("m", "M", "n", "N")
_PARTS = re.compile(
    r"(?P<sign>-?)\s?(?P<many>\d[\d,]{0,20})\s?(?P<unit>[A-Za-z]{1,12}\.?)\s?,?\s?(?:and\s|&\s)?\s?"
    r"(?P<few>\d{1,3}(?:\.\d{1,9})?)\s?(?P<less>[A-Za-z]{1,12}\.?)"
)


def _compound(bare: str, text: str) -> Quantity | None:
    """Read `1 hour 30 minutes`, `5 feet and 6 inches`, `2 dollars 50 cents`: one quantity in two units."""
    match = _PARTS.fullmatch(bare)
    if match is None:
        return None
    many = _decimal(match["many"])
    few = _decimal(match["few"])
    unit, less = read_unit(match["unit"], glued=True), read_unit(match["less"], glued=True)
    if many is None or few is None or not unit or not less:
        return None
    factor = conversion(unit, less)
    if factor is None or factor <= 1 or few[0] >= factor:
        return None
    value = many[0] * factor + few[0]
    return Quantity(-value if match["sign"] else value, False, less, 0, text)


_SIMPLE = re.compile(r"([-+]?\d{1,18})(?:\.(\d{1,18}))?", re.ASCII)
_DIGITS = r"\d[\d.,'_ ]*"
_WHOLE = re.compile(
    rf"""
    (?P<sign>[-+])? \s*
    (?P<currency>US\$|[$€£¥₹₩₽₱₫฿₦]|(?:USD|EUR|GBP|JPY|INR|CNY|RMB|CAD|AUD)\b|Rs\.?)? \s*
    (?P<sign2>(?(sign)(?!)|[-+]))? \s*
    (?:
        (?: (?P<whole>\d[\d,]*) \s+ (?:and\s+|&\s*)? (?=\d+\s*/\s*\d) )?
        (?P<top>[-+]?(?:{_DIGITS}|\.\d+)) / \s* (?P<bottom>[-+]?\s*(?:{_DIGITS}|\.\d+))
      | (?P<before>\d*)\.(?P<fixed>\d*) (?: \\(?:overline|bar|dot)\s*\{{ (?P<cycle>\d+) \}} | \((?P<cycle2>\d+)\) )
      | 10\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<power>[-+]?\s?\d+)\s*\}}|(?P<power2>[-+]?\d+))
      | (?P<number>{_DIGITS}|\.\d+)
        (?: [eE](?P<e>[-+]?\d+)
          | \s*[*xX]\s*10\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<ten>[-+]?\s?\d+)\s*\}}|\((?P<ten3>[-+]?\d+)\)|(?P<ten2>[-+]?\d+))
        )?
    )
    (?P<tail>(?![\d.,]).*)
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)


def _value(match: re.Match[str]) -> tuple[Fraction, int] | None:
    """Return the unsigned value and its significant digits."""
    if match["top"] is not None:
        return _fraction(match["whole"], match["top"], match["bottom"])
    cycle = match["cycle"] or match["cycle2"]
    if cycle is not None:
        return _repeating(match["before"], match["fixed"], cycle)
    power = match["power"] or match["power2"]
    if power is not None:
        size = _exponent(power)
        return None if size is None else (_power(size), 0)
    exponent = _exponent(match["e"] or match["ten"] or match["ten2"] or match["ten3"] or "0")
    read = _decimal(match["number"])
    if read is None or exponent is None:
        return None
    value, digits = read
    if exponent:
        return value * _power(exponent), digits or len(str(value.numerator))
    return value, digits


def _fraction(whole: str | None, top: str, bottom: str) -> tuple[Fraction, int] | None:
    upper, lower = _signed(top), _signed(bottom)
    if upper is None or not lower:
        return None
    value = upper / lower
    if whole is None:
        return value, 0
    units = _decimal(whole)
    if units is None or value < 0 or units[0].denominator != 1:
        return None
    return units[0] + value, 0


def _signed(text: str) -> Fraction | None:
    negative = text[0] == "-"
    read = _decimal(text.lstrip("-+ "))
    return None if read is None else -read[0] if negative else read[0]


def _repeating(before: str, fixed: str, cycle: str) -> tuple[Fraction, int] | None:
    if len(before) + len(fixed) + len(cycle) > MAX_DIGITS:
        return None
    start = int("0" + before + fixed)
    return Fraction(int("0" + before + fixed + cycle) - start, 10 ** len(fixed) * (10 ** len(cycle) - 1)), 0


_SEPARATED = re.compile(
    r"""
      (?P<grouped>[1-9]\d{0,2}(?:(?P<mark>[,'_ ])\d{3})(?:(?P=mark)\d{3})*)(?:\.(?P<g>\d*))?   # 1,234,567.8
    | (?P<indian>[1-9]\d?(?:,\d{2})+,\d{3})(?:\.(?P<i>\d*))?                                   # 12,34,567
    | (?P<dotted>[1-9]\d{0,2}(?:\.\d{3})+),(?P<d>\d+)                                          # 1.234,56
    | (?P<dots>[1-9]\d{0,2}(?:\.\d{3}){2,})                                                    # 1.234.567
    | (?P<spaced>[1-9]\d{0,2}(?:[ ']\d{3})+),(?P<s>\d+)                                        # 1 234,56
    | (?P<comma>\d+),(?P<c>\d+)                                                                # 3,14
    """,
    re.VERBOSE | re.ASCII,
)


def _decimal(text: str) -> tuple[Fraction, int] | None:
    """Read digits with separators: the value, and its significant digits when it is a decimal."""
    text = text.strip()
    if len(text) > 2 * MAX_DIGITS:
        return None
    whole, point, part = text.partition(".")
    if not (whole + part).isdecimal():
        match = _SEPARATED.fullmatch(text)
        if match is None:
            return None
        kind = next(name for name in ("grouped", "indian", "dotted", "dots", "spaced", "comma") if match[name])
        whole = "".join(filter(str.isdecimal, match[kind]))
        found = match[kind[0]] if kind != "dots" else None
        point, part = ("", "") if found is None else (".", found)
        if kind == "comma" and len(part) == 3 and whole != "0":
            return None
    if len(whole) + len(part) > MAX_DIGITS:
        return None
    if not part:
        return Fraction(int(whole)), len(whole.lstrip("0")) if point else 0
    return Fraction(int(whole + part), 10 ** len(part)), len((whole + part).lstrip("0")) or 1


def _exponent(text: str) -> int | None:
    text = text.replace(" ", "")
    if len(text) > 8:
        return None
    size = int(text)
    return size if abs(size) <= MAX_EXPONENT else None


def _power(exponent: int) -> Fraction:
    return Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)


# ------------------------------------------------------------------------- what stands behind the number

_SCALES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "mn": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "bn": 10**9,
    "trillion": 10**12,
}
_LETTERS = {"k": 10**3, "m": 10**6, "b": 10**9}
_SCALE = re.compile(rf"\s*({'|'.join(_SCALES)})s?\b(?!\s*\^)", re.IGNORECASE)
_LETTER = re.compile(r"\s?([kKmMbB])\b(?!\s*\^)")
_PERCENT = re.compile(r"\s*(?:%|per ?cent\b|pct\b\.?|percentage points?\b)\s*", re.IGNORECASE)
_ORDINAL = re.compile(r"\s*\^?\s*\{?\s*(?:st|nd|rd|th)\s*\}?", re.IGNORECASE)


def _tail(match: re.Match[str]) -> tuple[int, bool, str] | None:
    """Read what follows the number: a factor (million), percent, a unit. None: something else."""
    tail = match["tail"]
    currency = CURRENCIES[match["currency"]] if match["currency"] else ""
    if not tail or tail.isspace():
        return 1, False, currency
    scale = 1
    if (word := _SCALE.match(tail)) is not None:
        scale, tail = _SCALES[word[1].lower()], tail[word.end() :]
    elif currency and (word := _LETTER.match(tail)) is not None:
        scale, tail = _LETTERS[word[1].lower()], tail[word.end() :]
    if not tail:
        return scale, False, currency
    if (word := _PERCENT.match(tail)) is not None:
        return (scale, True, currency) if word.end() == len(tail) else None
    if _ORDINAL.fullmatch(tail) is not None:
        return (1, False, "") if scale == 1 and not currency and _integral(match) else None
    # A digit right before the letters glues them: `5 apples` counts apples, `5abc` is no number.
    spaced = scale != 1 or " " in (tail[0], match.string[match.start("tail") - 1])
    unit = read_unit(tail, glued=not spaced)
    if unit is None:
        return None
    if not currency or unit == currency:
        return scale, False, unit or currency
    if unit.startswith("/"):
        return scale, False, currency + unit
    return (scale, False, currency) if not unit else None


def _integral(match: re.Match[str]) -> bool:
    return match["number"] is not None and "." not in match["number"]


# --------------------------------------------------------------------------- other scripts, LaTeX, wrappers

_LOOKALIKES = {
    **dict.fromkeys("−‐‑‒–—﹣－➖⁻", "-"),
    **dict.fromkeys("＋➕", "+"),
    **dict.fromkeys("×✕✖⋅·∙", "*"),
    **dict.fromkeys("⁄∕÷", "/"),
    **dict.fromkeys("\u00a0\u202f\u2009\u2007\u2008\u2005\u2006\u2002\u2003\u3000", " "),
    **dict.fromkeys("’‘ʼ′", "'"),
    **dict.fromkeys("٫", "."),
    **dict.fromkeys("٬،、", ","),
    **dict.fromkeys("٪﹪", "%"),
    **dict.fromkeys("。｡", "."),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u2061\u2062", ""),
    "º": "°", "\u2126": "Ω", "￥": "¥", "￡": "£", "℃": "°C", "℉": "°F",
}  # fmt: skip
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"


def _folded(text: str) -> str:
    """Write digits, signs and spaces of any script in ASCII: superscripts as `^{…}`, `½` as ` 1/2 `."""
    if text.isascii():
        return text
    text = _RAISED_RUN.sub(lambda run: "^{" + run[0].translate(_RAISED) + "}", text)
    return "".join(map(_ascii, text)) if not text.isascii() else text


def _ascii(char: str) -> str:
    if char < "\x80":
        return char
    if char in _LOOKALIKES:
        return _LOOKALIKES[char]
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", char)
    if char in _VULGAR:
        return " " + plain.replace("\u2044", "/") + " "
    return plain if plain.isascii() else char


_FONTS = "text|mathrm|textrm|textbf|mathbf|textit|mathit|mathsf|mbox|operatorname|bm|underline"
_LATEX = [
    (re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|!|[bB]igg?[lr]?)(?![A-Za-z])"), ""),
    (re.compile(r"\\color\{[a-zA-Z]{0,20}\}"), ""),
    (re.compile(r"\\(?:[,;: ]|q?quad(?![A-Za-z])|thinspace(?![A-Za-z])|enspace(?![A-Za-z]))|~"), " "),
    (re.compile(r"\\(?:\$|textdollar(?![A-Za-z]))"), "US$"),
    (re.compile(r"\\pounds(?![A-Za-z])"), "£"),
    (re.compile(r"\\(?:euro|texteuro)(?![A-Za-z])"), "€"),
    (re.compile(r"\\([%#&_])"), r"\1"),
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\(?:degree|textdegree)(?![A-Za-z])"), "°"),
    (re.compile(r"\\Omega(?![A-Za-z])"), "Ω"),
    (re.compile(rf"\\(?:{_FONTS})\s*\{{([^{{}}]*)\}}"), r" \1"),
    (re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"), r" \1\2/\3\4 "),
    (re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}"), r" \1/\2 "),
]  # fmt: skip
_PAIRS = [("\\(", "\\)"), ("\\[", "\\]"), ("$", "$"), ("`", "`"), ('"', '"'), ("“", "”"), ("{", "}"), ("(", ")")]
_BOX = re.compile(r"\\(?:boxed|fbox|mathbf|bm|underline)\s*\{(.*)\}", re.DOTALL)


# Punctuation at the end; `5!` is a factorial, `5 dollars!` only enthusiastic.
_END = re.compile(r"[.,;:?]+$|(?<=[^\d!)}\s])!+$")


def _unwrapped(text: str) -> str:
    """Take off LaTeX spacing and fonts, maths and Markdown delimiters, and punctuation at the end."""
    if "{,}" in text:
        text = text.replace("{,}", ",")
    if "\\" in text or "~" in text:
        if (box := _BOX.fullmatch(text.strip(" $*"))) is not None:
            text = box[1]
        for pattern, by in _LATEX:
            text = pattern.sub(by, text)
    for _ in range(8):
        before = text
        text = _END.sub("", text.strip(" \t\r\n*_`"))
        for left, right in _PAIRS:
            if text.startswith(left) and text.endswith(right) and len(text) > len(left + right):
                inner = text[len(left) : -len(right)]
                if left in "{(" and ("," in inner or left in inner):
                    continue
                text = inner
                break
        if text == before:
            break
    return text


# ----------------------------------------------------------------------------------------------- in prose

_MINUS = "-−‐‑‒–﹣－"
# Digits are taken whole: fewer of them never fit better, and a model may write thousands of them.
_JOINED = r"\d++(?:(?:[.,:'’_٫٬\u00a0\u202f\u2009]|\{,\}|\\,|,\\!)\d++)*"
_LONG_NAMES = [
    re.escape(name) if name != "in" else r"in(?!\s[A-Za-z])"  # `$18 in total` counts no inches
    for name in UNIT_NAMES
    if len(name) > 1 or not name.isascii()
]
_KNOWN = "|".join(sorted(_LONG_NAMES, key=len, reverse=True))
_KNOWN_UNIT = rf"(?:(?:sq\.?|square|cubic)\s)?(?:{_KNOWN})s?(?![A-Za-z])(?:\^\{{?-?\d\}}?|[²³])?"
_SCAN = re.compile(
    rf"""
    (?= [{_MINUS}+$€£¥₹\\\d.U{_VULGAR}] )
    (?: [{_MINUS}+]? (?:US)?(?:\\?\$|[€£¥₹])\s?[{_MINUS}+]? | [{_MINUS}+] | (?<![A-Za-z\d_^.]) )
    (?:
        \d++[ ]\d++/\d++(?!/)
      | {_JOINED}(?:\s?[/⁄∕]\s?{_JOINED})+
      | (?:{_JOINED}\s?)?\\[dtc]?frac\s?(?:\{{[^{{}}]{{0,310}}\}}|\d)\s?(?:\{{[^{{}}]{{0,310}}\}}|\d)
      | (?:\d++\s?)?[{_VULGAR}]
      | {_JOINED}
      | \.\d+
    )
    (?: [eE][-+]?\d+
      | \s?(?:[×*x]|\\times|\\cdot)\s?10(?:\s?(?:\^|\*\*)\s?\{{?[{_MINUS}+]?\d+\}}?|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)
    )?
    (?: \^\{{?[^\s{{}}$]{{1,20}}\}}? | [⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+ )?
    (?: [A-Za-z°]{{1,20}} | \s?[π∞‰‱ℼα-λν-ω]{{1,20}} | \s?(?:[百万萬亿億]|千(?![克米瓦])){{1,4}}
      | \s?\\(?:pi|sqrt|theta|infty)(?![A-Za-z])
      | [ ](?:halves|thirds|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths|ppm|ppb)(?![A-Za-z]) )?
    (?: [ ](?:hundred|thousand|lakh|million|crore|billion|trillion)(?![A-Za-z]) )?
    (?: \s?\\?[%％٪] | \s(?:percent|per\scent)(?![A-Za-z])
      | (?:\\[,;\s!])?\s?
        (?:\\(?:text|mathrm)\{{\s?{_KNOWN_UNIT}\s?\}}(?:\^\{{?\d\}}?)?|{_KNOWN_UNIT})
        (?:\s?(?:/|per)\s?{_KNOWN_UNIT})?
    )?
    """,
    re.VERBOSE,
)
_COMMAND = re.compile(r"\\([A-Za-z]+)\{$")
_PLAIN_COMMANDS_TEXT = "boxed fbox text textbf textit textrm mathrm mathbf mathit mathsf bm underline mbox"
_PLAIN_COMMANDS = frozenset(_PLAIN_COMMANDS_TEXT.split())


def find_numbers(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where the numbers in prose stand, from the first to the last, as (start, end).

    A span takes in sign, currency, percent sign, power of ten and a known unit. What only looks like a number is
    left out (`x2`, `cm^2`, the 2 of `H2O`) or comes with what belongs to it, so that `read_number` refuses it
    (`3:30`, `3k`, `2\\pi`, `1,2,3`, `\\sqrt{17}`). Linear in the length of the text.
    """
    # A lookahead first: nearly every character is passed over by that one look.
    for match in _SCAN.finditer(text, start):
        first, last = match.span()
        before = text[first - 1] if first else ""
        if before == "^" or (before == "_" and text[first - 2 : first - 1].isalnum()):
            continue
        if text[first] in _MINUS + "+" and _operator(text, first):
            first += 1
            if text[first - 2 : first - 1] == "^":
                continue
        elif before == "√":
            first -= 1
        elif (
            (before in _OPENING or text[first - 2 : first] == "\\{")
            and "," in text[first:last]
            and text[last : last + 1] in (")", "]", "\\")
        ):
            if _GROUPED.fullmatch(text, first, last) is None:
                first, last = first - 1, last + 1  # a pair or an interval, no decimal comma
        elif before == "{":
            command = _COMMAND.search(text, max(0, first - 16), first)
            if command is not None and command[1] not in _PLAIN_COMMANDS:
                first = command.start()
            elif text[first - 2 : first - 1] in ("^", "_"):
                continue
        elif text[first] == "$" and ("\\" in text[first:last] or text.startswith("$", last)):
            first += 1  # it opens a formula
        yield first, last


_OPENING = ("(", "[")
_GROUPED = re.compile(r"[-+$€£]*\d{1,3}(?:,\d{3})+")


def _operator(text: str, at: int) -> bool:
    """Whether the sign at `at` subtracts: something to subtract from stands before it."""
    for place in range(at - 1, max(-1, at - 4), -1):
        char = text[place]
        if char in " \u00a0":
            continue
        return char.isdigit() or char in ")]}%" or (place == at - 1 and (char.isalpha() or char in "$_^"))
    return False


_SENTENCE = re.compile(r"(?:[.?]|(?<!\d)!)(?=\s|$)|[\n。]")
_HEDGE = re.compile(
    r"\b(?:or|and/or|versus|vs|oder|ou)\b[^\d]{0,40}\d|[或]\W{0,4}\d|\b(?:either|maybe|perhaps|possibly)\b",
    re.IGNORECASE,
)
_SECOND = re.compile(
    r"\s*(?:(?:,|and|to|through|plus|minus|times|but)\s+\W{0,3}\d"
    r"|(?:hundred|thousand)?\s?and (?:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w{2,5}teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b)",
    re.IGNORECASE,
)
_ALGEBRA = re.compile(
    r"\s*(?:[-+*/^×÷=<>±·−–_√]\s*[\w(\\$√]|[-+]\s*$|(?:\.\.+|…)\s*\d|[xyznabc]\b(?!\s+[A-Za-z])|[πℼ∞‰‱α-λν-ω]"
    r"|(?:halves|thirds|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths|ppm|ppb)\b"
    r"|\\(?!text|mathrm|textbf|mathbf|quad|qquad|[)\],;!% $]))|!+\s*$"
)
_VAGUE_TEXT = (
    "a about approx approximately around total of exactly only just roughly the is equal equals to be "
    "therefore thus so now simply indeed actually answer final"
)
_VAGUE = frozenset(_VAGUE_TEXT.split())
# Before a number: it is denied, only bounded, or what a function or a relation applies to.
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|cannot|nicht|kein\w{0,2}|pas)\b|n['’]t\b|[≠≮≯≥≤≧≦∈∉±∓]|[<>]\s*$|!=|不|не\s"
    r"|\\(?:neq?|not|geq?|leq?|geqslant|leqslant|[gl]t|in|notin|pm|mp)(?![A-Za-z])"
    r"|\b(?:(?:less|more|fewer|greater|smaller|larger|higher|lower|bigger) than|at (?:least|most|minimum|maximum)"
    r"|under|over|above|below|exceed\w{0,3}|between|beyond|up to|within|no more|no less|almost|nearly)"
    r"(?: or equal to)?\W*$"
    r"|\b(?:sqrt|log|lg|ln|sin|cos|tan|exp|mod|root of|square root)\W*$",
    re.IGNORECASE,
)
# Behind it: it is taken back, or only a bound.
_RETRACTED = re.compile(
    r"\b(?:wrong|incorrect|mistake\w{0,2}|mistaken|false|invalid|impossible)\b"
    r"|^\W{0,3}(?:(?:which|that|it|this) )?(?:is|was|are)(?: \w{1,12})?(?: not|n['’]t)\b"
    r"|n['’]t (?:the|right|correct|it)\b"
    r"|\bnot (?:the|right|correct|quite|enough|possible)\b"
    r"|\bor (?:more|less|fewer|higher|greater|above|below|over|under)\b|^\s*(?:不|nicht)",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(r"\b(?:wait|no|actually|sorry|oops|correction|rather|instead|should be)\b", re.IGNORECASE)
_ARROW = re.compile(r"=>|->|[→⇒⟹⟶]|\\(?:[Rr]ightarrow|implies|to|longrightarrow)(?![A-Za-z])")
_NOT_RATHER = re.compile(r"\W{0,4}(?:and |but )?(?:not|rather than|instead of)\b")
_LINKING_TEXT = "of from for in at per with after because since as on every each out than when if which that who where"
_LINKING = frozenset(_LINKING_TEXT.split())
_JOINING = frozenset(("or", "and", "oder", "ou", "maybe", "plus", "minus", "to", "through", "then", "but"))
_REMARK = re.compile(r"\([^()]{0,400}\)")
_WORD = re.compile(r"[A-Za-z]+")
_LIST = re.compile(r"[,;&]\s*(?:and|or)?\s*[A-Za-z\\$]|\b(?:and|or|oder)\b|\\q?quad(?![A-Za-z])|\\\\")


def stated_number(text: str) -> Quantity | None:
    """Return the number that a short answer states, or None when it states none, or several.

    `text` is what stands behind a marker or in a box. It may be a number, begin with one (`18 dollars a day`), end
    a calculation (`9 * 2 = 18`) or be a sentence with a single number. `12 or 14`, `10 + x` and `5\\sqrt{2}` are none;
    neither are `not 18`, `at least 18`, `18, which is wrong`, `18 19`, `2x = 5` and `(3,4)`.
    """
    return _stated_short(text) if len(text) <= 24 else _stated_number(text)


@lru_cache(maxsize=4096)
def _stated_short(text: str) -> Quantity | None:
    return _stated_number(text)


def _stated_number(text: str) -> Quantity | None:
    text = text[:MAX_TEXT].strip()
    whole = read_number(text)
    if whole is not None:
        return whole
    end = _SENTENCE.search(text)
    sentence = text[: end.start()] if end is not None and end.start() else text
    value = _equated(sentence) if "=" in sentence else _stated(sentence)
    if value is None or len(sentence) == len(text):
        return value
    return value if _stands(sentence, text[len(sentence) :].lstrip(" \t\r\n.?!。")) else None


def _stands(sentence: str, rest: str) -> bool:
    """Whether what follows the first sentence of an answer leaves its number alone."""
    if not rest:
        return True
    if _RETRACTED.search(rest) is not None or _TAKEN_BACK.match(rest) is not None:
        return False
    rest = _REMARK.sub("", rest)
    span = next(find_numbers(rest), None)
    if span is None:
        return True
    if not any(map(str.isalnum, rest[: span[0]])):  # `5\n6`
        return False
    first = next(find_numbers(sentence), None)
    return first is not None and ("=" in sentence or _leads(sentence[: first[0]]))


def _equated(sentence: str) -> Quantity | None:
    """Return what stands right of the last `=`, if left of it are only names and calculations."""
    if "!=" in sentence or _ARROW.search(sentence) is not None or _DENIED.search(sentence) is not None:
        return None
    *lefts, right = sentence.split("=")
    if any(_LIST.search(part) is not None for part in lefts[1:]) or any(map(_unsolved, lefts)):
        return None
    if _HEDGE.search(sentence) is not None:
        return None
    value = read_number(right)
    if value is None:
        value = _stated(right)
    if value is not None or len(lefts) != 1:
        return value
    return read_number(lefts[0]) if _CALCULATION.fullmatch(right) is not None else None


_CALCULATION = re.compile(r"[\s\d.,$€£%()*/+×÷·−-]+|(?:[^A-Za-z=]|\\(?:times|cdot|div|frac)(?![A-Za-z]))+")
_NAME = re.compile(r"\W{0,4}[A-Za-z]{1,2}['’]{0,2}(?:_?\{?\d{1,3}\}?|\([\w, ]{1,8}\))\W{0,2}")
_VARIABLE = re.compile(r"(?<![A-Za-z\\'’])[B-HJ-Zb-z](?![A-Za-z])")
_OPERATION = re.compile(r"[\d+*/^<>±√!|−-]|\\(?:[dt]?frac|sqrt|times|cdot|div|log|ln|sin|cos|tan)(?![A-Za-z])")
_FUNCTION = re.compile(r"(?<![A-Za-z])(?:sqrt|log|ln|sin|cos|tan)(?![A-Za-z])\W*[A-Za-z]|√\W*[A-Za-z]")


def _unsolved(left: str) -> bool:
    """Whether an unknown is part of an expression, so that the equation states no number: `2x`, `x^2`, `1/x`."""
    if _NAME.fullmatch(left) is not None:
        return False
    unknown = _VARIABLE.search(left) is not None or re.search(r"\ba\b(?=\s*[-+*/^])|\da\b", left) is not None
    return (unknown and _OPERATION.search(left) is not None) or _FUNCTION.search(left) is not None


def _stated(text: str) -> Quantity | None:
    if _HEDGE.search(text) is not None:
        return None
    spans = list(find_numbers(text))
    if not spans:
        return None
    first, last = spans[0]
    leads = _leads(text[:first])
    if not leads and len(spans) > 1:
        return None
    grouped = _SPACED.match(text, first) if leads else None
    if grouped is not None and grouped.end() > last:
        last = grouped.end()
    before, behind = text[:first].rstrip(), text[last:]
    if _ALGEBRA.match(text, last) is not None or _SECOND.match(text, last) is not None:
        return None
    if _DENIED.search(text, 0, first) is not None or _RETRACTED.search(behind) is not None:
        return None
    if before.endswith(("+", "*", "/", "^", "<", ">", "≤", "≥", "±", "√", "(-")) and not before.endswith("**"):
        return None
    if before.endswith(("(", "[", "{")) and behind.lstrip().startswith((",", ";")):
        return None
    if len(spans) > 1 and _another(_REMARK.sub("", behind)):
        return None
    said = _SAID_BEFORE.search(before)
    if said is not None:
        return read_number("-" + text[first:last]) if text[first].isdecimal() else None
    return read_number(text[first:last])


def _another(behind: str) -> bool:
    """Whether a second answer follows a number: `19`, `; 19`, `maybe 19`, but not `of 20`, `, not 17`."""
    span = next(find_numbers(behind), None)
    if span is None or _NOT_RATHER.match(behind) is not None:
        return False
    words = [word.lower() for word in _WORD.findall(behind[: span[0]])]
    return _ARROW.search(behind) is not None or not _LINKING.intersection(words) or not _JOINING.isdisjoint(words)


_SAID_BEFORE = re.compile(r"(?:(?<![A-Za-z])(?:minus|negative)|(?:^|[=:])\s*[-−])$", re.IGNORECASE)
_SPACED = re.compile(r"[$€£]?\s?[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?(?![\d.,]*\d)")


def _leads(before: str) -> bool:
    """Whether what stands before a number says nothing: markup, or words like "about"."""
    if not any(map(str.isalnum, before)):
        return True
    return all(word.lower() in _VAGUE for word in _WORD.findall(before)) and not any(map(str.isdigit, before))


_PROSE_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|nicht|kein\w{0,2})|n['’]t)\b"
    r"(?:[ *_$\\({]{1,4}(?!(?:is|are|was|were|so|has|had|makes?)\b)\w{1,10}){0,3}[ *_$\\({]{0,4}$"
    r"|(?:[≠≮≯≥≤≧≦±∓]|!=|\\(?:neq?|geq?|leq?|geqslant|leqslant|[gl]t|pm|mp)(?![A-Za-z]))[\s$({]*$"
    r"|\b(?:less|more|fewer|greater|smaller|larger) than[ *_$\\({]*$|不是?\s*$"
    r"|\d[^.!?\n]{0,40}?(?:\b(?:or|oder|ou|versus|vs|maybe|perhaps|possibly)\b|或)[^\d.!?\n]{0,16}$"
    r"|\b(?:sqrt|log|lg|ln|sin|cos|tan)[\s({]*$"
    r"|(?:\d[A-Za-z]|(?<![A-Za-z])[A-Za-z]\^\{?\d\}?|/ ?[A-Za-z]\}?)\s?=[\s$({]*$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"[$*_]{0,4}\+(?!\s?[\w(\\$])")
_PROSE_RETRACTED = re.compile(
    r"[*_$\\)}]{0,4}(?: \w{1,12}){0,2},?(?: which| that| this| it)? (?:is|was|isn['’]t|wasn['’]t)(?: \w{1,12})?"
    r" (?:wrong|incorrect|false|right|correct|the right|the correct|not the|the wrong)\b",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(r" (?:is|was)(?: \w{1,12})? (?:the )?(?:right|correct)$", re.IGNORECASE)


def denied_in_prose(text: str, start: int, end: int) -> bool:
    """Whether the number at start:end of a sentence is denied, one of several, or only a bound."""
    before = text[max(0, start - 120) : start]
    cut = max(before.rfind(". "), before.rfind("\n"), -1) + 1
    if _PROSE_DENIED.search(before, cut) is not None or _OPEN_END.match(text, end) is not None:
        return True
    said = _PROSE_RETRACTED.match(text, end)
    return said is not None and (_CONFIRMED.search(said[0]) is None or " not " in said[0])


_GROUP_HEAD = re.compile(r"[-+−$€£]{0,3}[1-9]\d{0,2}")
_LAST_GROUP = re.compile(r"\d{3}(?!\d)")
_SCALED = re.compile(rf"\s(?:{'|'.join(_SCALES)})s?$", re.IGNORECASE)
_SIGN_BEFORE = re.compile(
    r"(?:(?:=|\b(?:is|was|be))[\s*_$\\(]{0,4}[-−–]\s|\bnegative\s|(?:=|\b(?:is|was|be)) minus\s)$", re.IGNORECASE
)
_SIGN = re.compile(r"(?:[-−–]|negative|minus)\s$", re.IGNORECASE)
_HALF_BEHIND = re.compile(
    r"\s?and (?:a (?:half|third|quarter)\b|(?:an?|one|two|three|four|five|six|seven|eight|nine|ten)\b(?! of))",
    re.IGNORECASE,
)


def whole_span(text: str, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Widen the last of some neighbouring spans to all of what it is a part of.

    That is digits grouped by spaces (`$10 000`), a sign apart from it (`x = - 18`, `negative 18`), or one quantity in
    two units (`1 hour 30 minutes`, `2 thousand 5 hundred`), where a part would be another number.
    """
    start, end = spans[-1]
    if _LAST_GROUP.match(text, start) is not None:
        for place in range(len(spans) - 2, -1, -1):
            left, right = spans[place]
            if text[right : spans[place + 1][0]] != " ":
                break
            if _GROUP_HEAD.fullmatch(text, left, right) is not None:
                start = left
                if right - left != 3:
                    break
            elif _LAST_GROUP.fullmatch(text, left, right) is None:
                break
    if len(spans) > 1 and start == spans[-1][0]:
        left, right = spans[-2]
        if text[right:start].strip(" ,").lower() in ("", "and", "&") and right < start:
            start = left if _parts(text[left:right], text[start:end]) else start
    if end < len(text) and _SCALED.search(text, start, end) is not None:
        behind = _HALF_BEHIND.match(text, end)
        end = behind.end() if behind is not None else end
    sign = _SIGN_BEFORE.search(text, max(0, start - 24), start)
    if sign is not None and text[start].isdecimal():
        word = _SIGN.search(text, sign.start(), start)
        start = word.start() if word is not None else start
    return start, end


def _parts(more: str, less: str) -> bool:
    """Whether two neighbouring numbers are parts of one quantity."""
    if _SCALED.search(more) is not None:
        return True
    many, few = read_number(more), read_number(less)
    if many is None or few is None or not many.unit or not few.unit:
        return False
    factor = conversion(many.unit, few.unit)
    return factor is not None and factor > 1
