"""`script_share`: is the text written in the script that is wanted."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache

from rewardkit.errors import OptionError, nearest
from rewardkit.reward import reward
from rewardkit.types import Score

SCRIPTS = frozenset(
    {
        "Arabic",
        "Armenian",
        "Bengali",
        "Cyrillic",
        "Devanagari",
        "Ethiopic",
        "Georgian",
        "Greek",
        "Gujarati",
        "Gurmukhi",
        "Han",
        "Hangul",
        "Hebrew",
        "Hiragana",
        "Kannada",
        "Katakana",
        "Khmer",
        "Lao",
        "Latin",
        "Malayalam",
        "Mongolian",
        "Myanmar",
        "Sinhala",
        "Tamil",
        "Telugu",
        "Thai",
        "Tibetan",
    }
)


@reward(name="script_share")
def script_share(completion: str, *, script: str = "Latin", at_least: float = 1.0) -> Score:
    """The share of the letters that belong to a Unicode script; with `at_least`, 1 from that share on.

    It is min(1, share / at_least). Digits, punctuation, marks, emoji and white space are no letters. A text without any
    letter is no answer and earns 0.

    Traps: a script is no language: English and French are both Latin. Code and formulas count: the letters of `\\frac`
    are Latin. The styled letters of mathematics (𝑥) count as the plain ones. Shares add up: Japanese is
    `script_share(script='Han') + script_share(script='Hiragana') + script_share(script='Katakana')`.

    Options:
        script: name of the script: "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian",
            "Greek", "Gujarati", "Gurmukhi", "Han" (Chinese characters), "Hangul", "Hebrew", "Hiragana", "Kannada",
            "Katakana", "Khmer", "Lao", "Latin", "Malayalam", "Mongolian", "Myanmar", "Sinhala", "Tamil", "Telugu",
            "Thai" or "Tibetan".
        at_least: the share from which on the value is 1; above 0, at most 1.

    Example:
        rewardkit try "script_share(script='Cyrillic')" 'Ответ: 18 km'
    """
    if script not in SCRIPTS:
        near = nearest(script.capitalize(), SCRIPTS) or f"; known are {', '.join(sorted(SCRIPTS))}"
        raise OptionError(f"script_share: option script={script[:40]!r}: the name of a script is wanted{near}")
    if not 0 < at_least <= 1:
        raise OptionError(f"script_share: option at_least={at_least}: a share above 0 and up to 1 is wanted")
    letters = mine = 0
    for char, count in Counter(completion).items():
        found = _script(char)
        if found is not None:
            letters += count
            mine += count * (found == script)
    if not letters:
        return Score(0.0, "no letters", reason="no_answer")
    return Score(min(1.0, mine / letters / at_least), f"{mine:,} of {letters:,} letters are {script}")


@lru_cache(maxsize=4096)
def _script(char: str) -> str | None:
    """Return the script of a letter, by the first word of its Unicode name; None for what is no letter of one script.

    The standard library has no script property. Compatibility forms (full width, styled) count as what they stand for.
    """
    if not unicodedata.category(char).startswith("L"):
        return None
    word = unicodedata.name(unicodedata.normalize("NFKC", char)[0], "").partition(" ")[0]
    if word in ("", "MODIFIER", "KATAKANA-HIRAGANA"):
        return None
    return "Han" if word in ("CJK", "IDEOGRAPHIC") else word.capitalize()
