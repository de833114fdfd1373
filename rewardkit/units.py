"""Units and currencies behind a number: their names, and how one is converted into another."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

CURRENCIES = {
    "US$": "dollar", "$": "dollar", "USD": "dollar", "€": "euro", "EUR": "euro", "£": "gbp", "GBP": "gbp",
    "¥": "yen", "JPY": "yen", "₹": "rupee", "INR": "rupee", "Rs": "rupee", "Rs.": "rupee", "CNY": "yuan",
    "RMB": "yuan", "CAD": "cad", "AUD": "aud", "₩": "won", "₽": "ruble", "₱": "peso", "₫": "dong", "฿": "baht",
    "₦": "naira",
}  # fmt: skip


# Symbol: its size in the base unit, the base unit, other names (singular; a plural -s is understood).
_UNITS: dict[str, tuple[str, str, str]] = {
    "mm": ("1/1000", "m", "millimeter millimetre 毫米"),
    "cm": ("1/100", "m", "centimeter centimetre 厘米 公分"),
    "m": ("1", "m", "meter metre 米"),
    "km": ("1000", "m", "kilometer kilometre 千米 公里"),
    "in": ("0.0254", "m", "inch inches"),
    "ft": ("0.3048", "m", "foot feet"),
    "yd": ("0.9144", "m", "yard"),
    "mi": ("1609.344", "m", "mile"),
    "mg": ("1/1000", "g", "milligram"),
    "g": ("1", "g", "gram gm 克"),
    "kg": ("1000", "g", "kilogram kilo 千克 公斤"),
    "tonne": ("1000000", "g", ""),
    "lb": ("16", "oz", "pound"),
    "oz": ("1", "oz", "ounce"),
    "ms": ("1/1000", "s", "millisecond"),
    "s": ("1", "s", "second sec 秒"),
    "min": ("60", "s", "minute 分钟"),
    "h": ("3600", "s", "hour hr 小时"),
    "day": ("86400", "s", ""),
    "week": ("604800", "s", "wk"),
    "month": ("1", "month", ""),
    "year": ("12", "month", "yr"),
    "ml": ("1/1000", "l", "mL milliliter millilitre 毫升"),
    "l": ("1", "l", "L liter litre 升"),
    "cup": ("1/16", "gal", ""),
    "pt": ("1/8", "gal", "pint"),
    "qt": ("1/4", "gal", "quart"),
    "gal": ("1", "gal", "gallon"),
    "dollar": ("1", "dollar", "USD buck $ US$"),
    "cent": ("1/100", "dollar", "¢"),
    "euro": ("1", "euro", "EUR €"),
    "gbp": ("1", "gbp", "GBP £"),
    "yen": ("1", "yen", "JPY ¥ 円"),
    "rupee": ("1", "rupee", "INR ₹"),
    "yuan": ("1", "yuan", "CNY RMB 元"),
    "degree": ("1", "degree", "° deg"),
    "radian": ("1", "radian", "rad"),
    "°C": ("1", "°C", "celsius"),
    "°F": ("1", "°F", "fahrenheit"),
    "ohm": ("1", "ohm", "Ω"),
    "V": ("1", "V", "volt"),
    "W": ("1", "W", "watt"),
    "kW": ("1000", "W", "kilowatt"),
    "N": ("1", "N", "newton"),
    "J": ("1", "J", "joule"),
    "kJ": ("1000", "J", "kilojoule"),
    "Pa": ("1", "Pa", "pascal"),
    "kPa": ("1000", "Pa", "kilopascal"),
    "mol": ("1", "mol", "mole"),
    "Hz": ("1", "Hz", "hertz"),
}
UNIT_NAMES = {name: symbol for symbol, (_, _, names) in _UNITS.items() for name in [symbol, *names.split()]}
_ALIASES = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s", "sqft": "ft^2"}
# Words behind a number that name no unit.
_FILLERS_TEXT = "unit total altogether each left overall only exactly apiece remaining time number 个 個 倍 只 つ"
_FILLERS = frozenset(_FILLERS_TEXT.split())
# Words that turn a number into something else, or into two: no unit contains one.
_NO_UNITS_TEXT = (
    "a an and another are as at be because but by choose cubed divided e equal equals exceeding factorial "
    "fewer for from half if in infinity infinite is it less like log ln maybe mod modulo minus more most "
    "not of on or over perhaps pi plus possibly remainder root so sqrt squared than that the then this "
    "times to under unknown until unless up when where which with without x y z zero one two three four "
    "five six seven eight nine ten eleven twelve hundred thousand million billion trillion sin cos tan "
    "bit no nor never either neither wrong incorrect false negative above below greater about around wait oder ou "
    "o ppm ppb permille half halves third fourth fifth sixth seventh eighth ninth tenth twelfth sixteenth hundredth "
    "thousandth millionth approx approximately roughly fold nope score max maximum minimum"
)
_NO_UNITS = frozenset(_NO_UNITS_TEXT.split())
# Words of unknown things: Latin letters (micro units too) behind a space, or Chinese, Japanese, Korean ones.
_LATIN = re.compile(r"[µμ]?[A-Za-z\u00c0-\u024f-]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
# Of these some count on, negate, join or divide: 3万 is 30000, 3分之一 a third.
_NO_CJK = re.compile(
    "^(?:[和与與跟及到至减減乘除十百万萬亿億半不非无無约多以]|加(?![仑侖])|千(?![克米瓦])|大约)"
    "|或|分之|不是|以上|以下|[错錯]|또는|아니|^[만천백]"
    "|左右|上下|以[内內外]|之一|次方|^[的折成几幾]|^[点點](?!钟?$|鐘$)|[多余餘吗嗎呢吧]$|倍[数數]|平方$(?<!^平方)|约$|ぐらい|くらい|ほど|정도"
)
_TERM = re.compile(
    r"(?:(sq\.?|square|cu\.?|cubic)\s+)?"
    r"([^\s^/]+(?:\s[^\s^/]+){0,2}?)"
    r"(?:\s*\^\s*\{?\s*(-?\d)\s*\}?|\s+(squared|cubed))?"
)
_POWERS = {"sq": "2", "square": "2", "squared": "2", "cu": "3", "cubic": "3", "cubed": "3"}
_OVER = re.compile(r"\s*/\s*|\s+per\s+|^per\s+|\s+(?:an?|each|every)\s+(?=(?:second|minute|hour|day|week|month|year)$)")
_LINKS = frozenset(("of", "per"))
_SCALED = re.compile(r"[MP][a-z]{1,2}$|[mp][A-Z][a-z]?$")


@lru_cache(maxsize=1024)
def read_unit(text: str, *, glued: bool = False) -> str | None:
    """Return the unit that `text` names in its normal form, "" when it names none, None when it is no unit.

    Known units are looked up (`centimetres`, `sq ft`, `m/s^2`, `km per hour`). Other names of things (`apples`)
    are units of their own: one to three words of which none can change what the number means. Single letters
    are units only where the table has them. `glued`: it stands right behind the digits, where only known units
    and Chinese, Japanese and Korean words count.
    """
    text = " ".join(text.split()).rstrip(".")
    if not text:
        return ""
    if text in _ALIASES:
        return _ALIASES[text]
    parts = _OVER.split(text)
    if len(parts) > 3:
        return None
    names: list[str] = []
    for part in parts:
        name = _term(part, glued and not names) if part or names else ""
        if name is None or (names and not name):
            return None
        names.append(name)
    return "/".join(names)


def _term(text: str, glued: bool) -> str | None:
    match = _TERM.fullmatch(text)
    if match is None:
        return None
    name = _name(match[2], glued)
    power = match[3] or _POWERS.get((match[1] or match[4] or "").rstrip("."), "")
    if not name or not power or power == "1":
        return name
    return f"{name}^{power}" if name in _UNITS else None


def _name(text: str, glued: bool) -> str | None:
    text = text.lstrip("-").rstrip(".,;:!?").strip()
    lower = text.lower()
    if not text:
        return None
    forms = [text, text[:-1] if text.endswith("s") else text]
    if not (len(text) <= 3 and text != lower and _SCALED.match(text)):  # M is not m: 5 Mg is not 5 mg
        forms += [lower, lower[:-1] if lower.endswith("s") else lower]
    for form in forms:
        if form in UNIT_NAMES and (len(form) > 1 or form == text):
            return UNIT_NAMES[form]
    if lower in ("degrees celsius", "degree celsius", "° c", "°c"):
        return "°C"
    if lower in ("degrees fahrenheit", "degree fahrenheit", "° f", "°f"):
        return "°F"
    if lower in _FILLERS or _singular(lower) in _FILLERS or lower in ("in total", "in all"):
        return ""
    words = (text if len(text) <= 3 else lower).split()
    for place, word in enumerate(words):
        if _CJK.fullmatch(word) is not None:
            if _NO_CJK.search(word) is not None:
                return None
            continue
        if glued or _LATIN.fullmatch(word) is None:
            return None
        if not _NO_UNITS.isdisjoint((word, _singular(word))) and not (place and word in _LINKS):
            return None
    if (text.isascii() and (len(words[0]) < 3 or any(len(word) == 1 for word in words))) or words[-1] in _LINKS:
        return None
    return " ".join(map(_singular, words))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word


@lru_cache(maxsize=1024)
def conversion(unit: str, to: str) -> Fraction | None:
    """Return the factor from one unit to another, 1 for the same thing said otherwise, or None."""
    if {unit, to} == {"lb", "gbp"}:  # the word "pounds" says either
        return Fraction(1)
    mine, theirs = _dimension(unit), _dimension(to)
    if mine[1] == theirs[1]:
        return mine[0] / theirs[0]
    if ("/" in unit) != ("/" in to):  # "$18 a day" may be said as "$18"
        money, other = _dimension(unit.partition("/")[0]), _dimension(to.partition("/")[0])
        if money[1] == other[1] and money[1].keys() <= _MONEY:
            return money[0] / other[0]
    words, others = set(unit.split()), set(to.split())
    unknown = unit not in _UNITS and to not in _UNITS and "/" not in unit + to
    return Fraction(1) if unknown and (words <= others or others <= words) else None


_MONEY = frozenset(CURRENCIES.values())


def _dimension(unit: str) -> tuple[Fraction, dict[str, int]]:
    factor = Fraction(1)
    dimension: dict[str, int] = {}
    for place, term in enumerate(unit.split("/")):
        name, _, power = term.partition("^")
        size, base, _ = _UNITS.get(name, ("1", name, ""))
        times = int(power or 1) * (1 if place == 0 else -1)
        if base:
            factor *= Fraction(size) ** times
            dimension[base] = dimension.get(base, 0) + times
    return factor, {base: power for base, power in dimension.items() if power}
