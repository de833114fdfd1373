"""Answers in words: folding, number words, phrases that stand for a set or a value."""

from __future__ import annotations

import re
from functools import lru_cache

from rewardkit.verifiers.math.patterns import lazily

COMMAND = lazily(  # a command that only sets how its argument looks
    r"\\(?:text|mathrm|textrm|textbf|mathbf|textit|mathit|mbox|operatorname|textsf|emph|rm|bf|it)\s*(?=\{)"
)
_ENVIRONMENT = lazily(r"\\(?:begin|end)\s*\{[A-Za-z*]{1,12}\}")
_ANY_COMMAND = lazily(r"\\[A-Za-z]+")
_DROPPED = lazily(r"(?:[\s{}.,;:!?\"'`*_~]|-(?![\d\\]))+")
_ARTICLE = lazily(r"^(?:the answer is|a|an|the)\s+", re.IGNORECASE)

_NO_SOLUTION = frozenset(
    [
        "nosolution",
        "nosolutions",
        "norealsolution",
        "norealsolutions",
        "norealroots",
        "norealroot",
        "noroots",
        "emptyset",
        "theemptyset",
        "无解",
        "空集",
        "無解",
        "無實數解",
        "无实数解",
        "方程无解",
        "hasnosolution",
        "therearenosolutions",
        "therearenorealsolutions",
        "thereisnosolution",
        "nullset",
        "solutiondoesnotexist",
        "不存在实数解",
        "nosolutionexists",
        "nosolutionsexist",
    ]
)
_ALL_REALS = frozenset(
    [
        "allrealnumbers",
        "allreals",
        "realnumbers",
        "allreal",
        "全体实数",
        "任意实数",
        "allrealx",
        "allrealvalues",
        "setofrealnumbers",
        "setofallrealnumbers",
    ]
)
_SAME = {
    "dne": "doesnotexist", "不存在": "doesnotexist", "limitdoesnotexist": "doesnotexist", "undef": "undefined",
    "正确": "true", "错误": "false", "對": "true", "錯": "false", "correct": "true", "incorrect": "false",
    "right": "right",
    "对": "true", "错": "false", "是": "yes", "否": "no", "mon": "monday", "tue": "tuesday", "tues": "tuesday",
    "wed": "wednesday", "thu": "thursday", "thur": "thursday", "thurs": "thursday",
    "fri": "friday", "sat": "saturday",
    "sun": "sunday", "星期一": "monday", "星期二": "tuesday", "星期三": "wednesday", "星期四": "thursday",
    "星期五": "friday", "星期六": "saturday", "星期日": "sunday", "星期天": "sunday", "neitherevennorodd": "neither",
}  # fmt: skip


@lru_cache(maxsize=4096)
def folded(text: str) -> str:
    """Return words for comparison: no case, space, punctuation or article."""
    text = COMMAND.sub(" ", text)
    text = _ARTICLE.sub("", text.strip(" {}$"))
    plain = _DROPPED.sub("", text.casefold())
    return _SAME.get(plain, plain)


_RUN = lazily(r"[A-Za-z]+")
_SHORT_WORDS = {
    "no", "yes", "odd", "even", "true", "all", "one", "two", "six", "ten", "red", "blue", "day", "mon", "tue", "wed",
    "thu", "fri", "sat", "sun", "up", "son", "dad", "mom", "dog", "cat", "car", "bus", "none", "he", "she", "it", "man",
    "men", "boy", "girl", "god", "on",
}  # fmt: skip


def letters(text: str) -> list[str]:
    """Return the runs of letters, without the names of fonts."""
    return _RUN.findall(COMMAND.sub(" ", text))


def without_fonts(text: str) -> str:
    return COMMAND.sub(" ", text)


def is_short_word(text: str) -> bool:
    return text in _SHORT_WORDS


_COMMON = frozenset(("the", "of", "is", "are", "not", "with", "for", "by", "at", "has"))


def is_common(text: str) -> bool:
    """Whether a word makes what it stands in a sentence."""
    return text.casefold() in _COMMON


def is_word(*forms: str) -> bool:
    """Whether these writings are one word of a language, whose case says nothing; `mgh`, `nRT`, `AB` are products."""
    plain = forms[0].casefold()
    if not all(form in (plain, plain.capitalize(), plain.upper()) for form in forms):
        return False
    if plain in _SHORT_WORDS:
        return True
    return len(plain) >= 4 and not _VOWELS.isdisjoint(plain) and list(plain) != sorted(plain)


_VOWELS = frozenset("aeiou")


def is_no_solution(plain: str) -> bool:
    return plain in _NO_SOLUTION


def is_all_reals(plain: str) -> bool:
    return plain in _ALL_REALS


_WORD = lazily(r"[^\W\d_]{3,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


_ONLY_LETTERS = lazily(r"[^\W\d_]{2,60}")


def is_wordy(text: str) -> bool:
    """Whether what is no formula is an answer in words (or a label such as 1.2.3), not a damaged formula."""
    if re.fullmatch(r"\d+(?:\.\d+){2,8}", text):
        return True
    if _ONLY_LETTERS.fullmatch(COMMAND.sub(" ", text).strip(" {}")) is not None:
        return True
    bare = _ANY_COMMAND.sub(" ", COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text)))
    return (
        _WORD.search(bare) is not None
        and re.search(r"\\(?:frac|sqrt|overrightarrow|vec)\s*(?:\{[^{}]*\})?\{\s*\}", text) is None
    )


# ------------------------------------------------------------------------------------------- number words

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
)
_SMALL = {word: value for value, word in enumerate(_ONES.split())}
_TENS = {
    word: 10 * value
    for value, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_HAN = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}
_FRACTIONS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "hundredth": 100,
}  # fmt: skip


def number_in_words(text: str) -> str | None:
    """Return the digits that number words stand for ("twenty-one", 五, "two thirds"), with what follows them."""
    text = text.strip()
    if not text or text[0].isdigit() or len(text) > 100:
        return None
    if text[0] in _HAN or text[0] in _HAN_UNITS:
        return _han(text)
    words = re.findall(r"[a-z]+", text.lower())
    if not words or re.fullmatch(r"[A-Za-z][A-Za-z\s-]*", text) is None:
        return None
    negative = words[0] in ("minus", "negative")
    words = words[1:] if negative else words
    total = group = 0
    used = 0
    for place, word in enumerate(words):
        if word in _SMALL:
            if place and words[place - 1] in _SMALL:
                return None
            group += _SMALL[word]
        elif word in _TENS:
            if group % 100:
                return None
            group += _TENS[word]
        elif word == "hundred" and group:
            group *= 100
        elif word in _SCALES and group:
            total, group = total + group * _SCALES[word], 0
        elif (
            word == "and"
            and used
            and place + 1 < len(words)
            and (words[place + 1] in _SMALL or words[place + 1] in _TENS)
        ):
            if words[place - 1] not in ("hundred", *_SCALES):
                return None
        else:
            break
        used = place + 1
    sign = "-" if negative else ""
    rest = words[used:]
    if not used:
        return None
    value = total + group
    if len(rest) == 1:
        part = _FRACTIONS.get("half" if rest[0] == "halves" else rest[0].removesuffix("s"))
        if part:
            return f"{sign}{value}/{part}"
    return f"{sign}{value} {' '.join(rest)}".strip()


def _han(text: str) -> str | None:
    lower, parts, upper = text.partition("分之")
    if parts:  # 四分之三, 百分之三十五
        below, above = _han(lower) if lower != "百" else "100", _han(upper) if upper else None
        if below is None or above is None or not (below.isdigit() and above.isdigit()):
            return None
        return f"{above}%" if below == "100" else f"{above}/{below}"
    total = group = 0
    used = 0
    for place, char in enumerate(text):
        if char in _HAN:
            if group:
                return None
            group = _HAN[char]
        elif char in _HAN_UNITS:
            total, group = total + (group or 1) * _HAN_UNITS[char], 0
        elif char == "万" and (total or group):
            total, group = (total + group) * 10_000, 0
        else:
            break
        used = place + 1
    return f"{total + group}{text[used:]}"
