"""Numbers the slow way: each notation is written from a Fraction by hand, with `fractions` and `decimal` only.

Nothing here shares a line with `rewardkit.number`: the reader under test is compared with the number that a
notation was written from.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

SCRIPTS = {
    "arabic": "٠١٢٣٤٥٦٧٨٩",
    "persian": "۰۱۲۳۴۵۶۷۸۹",
    "devanagari": "०१२३४५६७८९",
    "bengali": "০১২৩৪৫৬৭৮৯",
    "thai": "๐๑๒๓๔๕๖๗๘๙",
    "fullwidth": "０１２３４５６７８９",
}
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
MINUSES = "-−–‒‐﹣－"


def grouped(number: int, mark: str) -> str:
    """1234567 with a mark before each three digits from the right."""
    digits = str(number)
    parts: list[str] = []
    while len(digits) > 3:
        parts.insert(0, digits[-3:])
        digits = digits[:-3]
    return mark.join([digits, *parts])


def indian(number: int) -> str:
    """1234567 as 12,34,567: three digits, then pairs."""
    digits = str(number)
    head, tail = digits[:-3], digits[-3:]
    parts = [tail]
    while head:
        parts.insert(0, head[-2:])
        head = head[:-2]
    return ",".join(parts)


def in_script(text: str, script: str) -> str:
    return "".join(SCRIPTS[script][int(char)] if char.isdecimal() else char for char in text)


def raised(number: int) -> str:
    return ("⁻" if number < 0 else "") + "".join(RAISED[int(digit)] for digit in str(abs(number)))


def decimal_text(value: Fraction) -> str | None:
    """The value as a finite decimal, or None when it has none of up to 30 places."""
    for places in range(31):
        scaled = value * 10**places
        if scaled.denominator == 1:
            return format(Decimal(int(scaled)).scaleb(-places), "f")
    return None


def integer_notations(number: int) -> list[str]:
    """An integer of 0 or more in many notations."""
    marks = [",", " ", "'", "_", "{,}", "\\,", ",\\!", "\u00a0", "\u202f", "\u2009", "’"]
    texts = [str(number), f"+{number}", f"00{number}", f"{number}.", f"{number}.0", f"{number}.00"]
    texts += [grouped(number, mark) for mark in marks]
    texts += [indian(number), f"{number}/1", f"\\frac{{{2 * number}}}{{2}}"]
    texts += [in_script(str(number), script) for script in SCRIPTS]
    return texts


def fraction_notations(value: Fraction) -> list[str]:
    """A fraction of 0 or more as a quotient of two integers."""
    top, bottom = value.numerator, value.denominator
    texts = [f"{top}/{bottom}", f"{top} / {bottom}", f"{3 * top}/{3 * bottom}", f"{top}⁄{bottom}"]
    texts += [f"\\{name}{{{top}}}{{{bottom}}}" for name in ("frac", "dfrac", "tfrac", "cfrac")]
    texts += [f"{{{top} \\over {bottom}}}", f"\\frac {{ {top} }} {{ {bottom} }}"]
    if top < 10 and bottom < 10:
        texts += [f"\\frac{top}{bottom}", f"\\frac{top}{{{bottom}}}"]
    whole, rest = divmod(top, bottom)
    if whole and rest:
        texts += [
            f"{whole} {rest}/{bottom}",
            f"{whole}\\frac{{{rest}}}{{{bottom}}}",
            f"{whole} \\dfrac{{{rest}}}{{{bottom}}}",
        ]
        texts += [f"{whole} and {rest}/{bottom}"]
    return texts


def decimal_notations(value: Fraction) -> list[str]:
    """A finite decimal of 0 or more; empty when it has none."""
    text = decimal_text(value)
    if text is None:
        return []
    whole, _, part = text.partition(".")
    texts = [text]
    if part:
        texts += [f"{text}0", f"{grouped(int(whole), ',')}.{part}", in_script(text, "fullwidth")]
        if whole == "0":
            texts.append("." + part)
        if len(part) != 3:
            texts.append(f"{whole},{part}")
        if int(whole) >= 1000:
            texts.append(f"{grouped(int(whole), '.')},{part}")
    return texts


def scientific_notations(value: Fraction, exponent: int) -> list[str]:
    """A finite decimal times a power of ten chosen to leave the value as it is."""
    text = decimal_text(value / Fraction(10) ** exponent)
    if text is None:
        return []
    return [
        f"{text}e{exponent}",
        f"{text}E{exponent:+d}",
        f"{text} \\times 10^{{{exponent}}}",
        f"{text} \\cdot 10^{{{exponent}}}",
        f"{text}*10^{exponent}",
        f"{text} × 10^{exponent}",
        f"{text} x 10^{exponent}",
        f"{text}*10**{exponent}",
        f"{text}×10{raised(exponent)}",
    ]


WRAPPERS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"  {text}\n",
    lambda text: f"${text}$",
    lambda text: f"$${text}$$",
    lambda text: f"\\({text}\\)",
    lambda text: f"\\[ {text} \\]",
    lambda text: f"**{text}**",
    lambda text: f"`{text}`",
    lambda text: f"{text}.",
    lambda text: f"**{text}.**",
    lambda text: f"\\boxed{{{text}}}",
    lambda text: f"\\displaystyle {text}",
]
