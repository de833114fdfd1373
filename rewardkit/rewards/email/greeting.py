"""Whom a greeting addresses, and whether that is a given person. Names are whole words, never parts of words."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from rewardkit.rewards.email.words import (
    DEGREES,
    JOINERS,
    NAMES_TOO,
    NOBODY,
    PARTICLES,
    SALUTATIONS,
    SURNAMES_TOO,
    TITLES,
)

_MARKS = "*_#> \t"
_PUNCTUATION = ' \t,.;:!?"“”„«»()[]{}<>*_`~，。：；！？、،؛|—–-'
_END = re.compile(r"[:;!?，：；！？،。]|[—–]| - |,|$")
_LONGEST = 120


class Greeting(NamedTuple):
    """A greeting.

    Attributes:
        line: As written.
        people: The words of each addressee, as written: (("Mr.", "Smith"), ("Bob",)).
        formal: It starts with a salutation; else it is only a name and a comma.
    """

    line: str
    people: tuple[tuple[str, ...], ...]
    formal: bool


def _pattern() -> re.Pattern[str]:
    longest_first = sorted(SALUTATIONS, key=len, reverse=True)
    spaced = "|".join(re.escape(word) for word in longest_first if not spaceless(word[0]))
    joined = "|".join(re.escape(word) for word in longest_first if spaceless(word[0]))
    return re.compile(rf"(?:(?:{spaced})(?![\w'’.-])|(?:{joined}))", re.IGNORECASE)


def spaceless(char: str) -> bool:
    """Whether the script of a character is written without spaces (or, Korean, with endings that stick to words)."""
    code = ord(char)
    return (
        0x0E00 <= code < 0x0F00
        or 0x1000 <= code < 0x10A0
        or 0x1780 <= code < 0x1800
        or 0x3040 <= code < 0xA000
        or 0xAC00 <= code < 0xD7B0
        or 0xF900 <= code < 0xFB00
        or 0x20000 <= code < 0x40000
    )


_SALUTATION = _pattern()
_SUFFIXED = re.compile(
    r"(?P<name>[^\s,，、:：!！]{1,20}?(?:様|さん|殿|님께|님|先生|女士|小姐)?)[，,、]?\s?(?:您好|你好|안녕하세요|こんにちは)?[，,、：:！!]?$"
)
_PLACEHOLDER = re.compile(r"\[[^\[\]]{1,60}\]|\{{1,2}[^{}]{1,60}\}{1,2}|<[^<>]{1,60}>")
_CJK_TITLE = re.compile(r"(?:様|さん|殿|님께|님|先生|女士|小姐|经理|老师|教授|博士)$")


def read_greeting(line: str) -> Greeting | None:
    """Read a line as a greeting; None when it is none. A sentence may go on behind it: "Hi Anna, thanks for …"."""
    text = line[:_LONGEST].strip(_MARKS)
    if not text:
        return None
    match = _SALUTATION.match(text)
    if match is not None:
        rest = text[match.end() :].lstrip(" \t")
        again = _SALUTATION.match(rest)  # "Hello dear Anna", "Buenos días, estimada Anna"
        if again is not None and rest[again.end() :].strip(_PUNCTUATION):
            rest = rest[again.end() :]
        if match[0].casefold() == "to" and not rest.casefold().startswith(("whom", "all", "the")):
            return None
        return Greeting(text, _people(rest.lstrip(" \t,，、"), comma=rest.startswith((",", "，", "、"))), True)
    if spaceless(text[0]):
        return _suffixed(text)
    return _bare(text)


def _suffixed(text: str) -> Greeting | None:
    match = _SUFFIXED.match(text) if len(text) <= 30 else None
    if match is None or (match["name"] == text.rstrip(_PUNCTUATION) and not _CJK_TITLE.search(match["name"])):
        return None
    return Greeting(text, ((match["name"],),), True)


def _bare(text: str) -> Greeting | None:
    """A name and a comma, alone on its line."""
    if not text.endswith((",", ":", "，", "：", "—", "–")):
        return None
    words = text.strip(_PUNCTUATION).split()
    if not 1 <= len(words) <= 5 or not all(map(_name_like, words)) or any(map(_is_digit_word, words)):
        return None
    people = _people(text, comma=False)
    return Greeting(text, people, False) if people else None


def _is_digit_word(word: str) -> bool:
    return any(map(str.isdigit, word))


def _people(rest: str, *, comma: bool) -> tuple[tuple[str, ...], ...]:
    """Return the words of each addressee at the start of what follows a salutation."""
    parts: list[str] = []
    for end in _END.finditer(rest):
        start = sum(len(part) + 1 for part in parts)
        part = rest[start : end.start()]
        run = _name_run(part)
        parts.append(part)
        whole = bool(run) and len(run) == len(part.split())
        if end[0] == "?" or (comma and not whole):
            # "Hello, will you come?" and "Hello, Will is here." address nobody.
            return () if len(parts) == 1 else _split(parts[:-1])
        if end[0] != "," or not whole:
            break
        after = rest[end.end() :].lstrip()
        following = after.split(",")[0].split()
        names = _name_run(" ".join(following[:6]))
        if not following or len(names) != len(following) or "," not in after[:_LONGEST]:
            break  # what follows is a sentence, or the end
    return _split(parts)


def _split(parts: list[str]) -> tuple[tuple[str, ...], ...]:
    people: list[list[str]] = []
    for part in parts:
        people.append([])
        for word in _name_run(part):
            if word in JOINERS:
                people.append([])
            else:
                people[-1].append(word)
    return tuple(tuple(words) for words in people if words)


def _name_run(text: str) -> list[str]:
    """Return the words at the start that can be a name: capitalised, without case, or particles."""
    text = _PLACEHOLDER.sub(" ", text)
    words = [word for word in text.split()[:12] if word.strip(_PUNCTUATION) or word in JOINERS]
    if not words:
        return []
    if words[0][:1].islower() and words[0].casefold().strip(".") not in PARTICLES | TITLES:
        # All lower case, as in chats: only a short line that ends there is a name.
        return words if len(words) <= 2 and len(words) == len(text.split()) else []
    run: list[str] = []
    for word in words:
        small = word[:1].islower() and word not in JOINERS and word.strip(_PUNCTUATION) in NOBODY - PARTICLES
        named = any(other.casefold() not in PARTICLES and not names_nobody((other.casefold(),)) for other in run)
        if not _name_like(word) or (small and named) or (run and _ends_sentence(run[-1])):
            break
        run.append(word)
    while run and run[-1] in JOINERS:
        run.pop()
    return run


def _ends_sentence(word: str) -> bool:
    bare = word.rstrip(".")
    return bare != word and bare.casefold() not in TITLES and len(bare) > 1 and "." not in bare


def _name_like(word: str) -> bool:
    folded = word.casefold().strip(_PUNCTUATION)
    if word in JOINERS or folded in PARTICLES or folded in TITLES or folded in NOBODY:
        return True
    first = next((char for char in word if char not in _PUNCTUATION and char not in "'’"), "")
    return bool(first) and first.isalpha() and not first.islower()


# ------------------------------------------------------------------------------------------------------------- names


def name_words(
    name: str | tuple[str, ...], *, fold_accents: bool = False, own: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Return the words of a name without titles, case-folded and composed: "Dr. Anna MÜLLER" is ("anna", "müller").

    Some titles are names as well. They stay when nothing else is left ("Ms. Ma"), and when they are among `own`, the
    words of the name that is looked for; without `own` the name is that one, and they stay: "Don Smith", "Jack Lord".
    """
    pieces = []
    for word in name.split() if isinstance(name, str) else name:
        for piece in word.replace("/", " ").replace(",", " ").split():
            bare = piece.strip(_PUNCTUATION).replace("’", "'")
            if bare:
                pieces.append((bare, fold(bare, accents=not fold_accents)))
    words: list[str] = []
    for at, (bare, folded) in enumerate(pieces):
        last = at == len(pieces) - 1
        if not _is_title(folded) or (own is not None and folded in own):
            words.append(folded)
        elif folded in DEGREES and bare.isupper() and len(words) > 1:
            continue  # "Anna Smith, MA"
        elif (folded in NAMES_TOO and (own is None or (last and not words))) or (
            folded in SURNAMES_TOO and last and (own is None or not words)
        ):
            words.append(folded)
    return tuple(words)


def _is_title(folded: str) -> bool:
    return folded in TITLES or folded.rstrip(".") in TITLES


def fold(text: str, *, accents: bool = True) -> str:
    """Return text as it is compared: case-folded, composed; without accents if so wanted."""
    folded = unicodedata.normalize("NFC", text.casefold())
    if accents or folded.isascii():
        return folded
    plain = unicodedata.normalize("NFD", folded)
    return unicodedata.normalize("NFC", "".join(char for char in plain if unicodedata.category(char) != "Mn"))


def is_person(wanted: tuple[str, ...], given: tuple[str, ...]) -> bool:
    """Whether a name that is used names the one that is wanted: one says nothing that the other does not.

    "Anna" and "Smith" name Anna Smith, and "Anna B. Smith" does; "Anna Jones" and "Ann" do not. An initial stands for
    any name that starts with it, but is no name by itself. "Jean Luc" is Jean-Luc. A particle alone names nobody in
    whose name it is one: "von" is not Erika von Stein, but "Al" is Al Gore, and "Le" is Minh Le.
    """
    if not wanted or not given:
        return False
    wanted, given = _hyphened(wanted, given), _hyphened(given, wanted)
    small, large = (given, wanted) if len(given) <= len(wanted) else (wanted, given)
    if not any(word in large and (len(small) == len(large) or _stands_alone(word, large)) for word in small):
        return False
    left = list(large)
    for word in small:
        match = word if word in left else next((other for other in left if _initial(word, other)), None)
        if match is None:
            # "Anna B. Smith" for Anna Smith: a middle initial more is no other name.
            if len(word.rstrip(".")) == 1 and len(given) > 1:
                continue
            return False
        left.remove(match)
    return True


def _hyphened(words: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words with those joined that are one word with a hyphen in the other name."""
    for whole in {word for word in other if "-" in word.strip("-")}:
        parts = tuple(whole.split("-"))
        for at in range(len(words) - len(parts) + 1):
            if words[at : at + len(parts)] == parts:
                words = (*words[:at], whole, *words[at + len(parts) :])
                break
    return words


def _stands_alone(word: str, name: tuple[str, ...]) -> bool:
    """Whether a word is a name in this name, not its particle: the first ("Al Gore") or the last ("Minh Le")."""
    if word not in PARTICLES or word == name[-1]:
        return True
    return word == name[0] and word in NAMES_TOO and name[1] not in PARTICLES


def _initial(one: str, other: str) -> bool:
    one, other = one.rstrip("."), other.rstrip(".")
    return min(len(one), len(other)) == 1 and one[:1] == other[:1]


def names_nobody(words: tuple[str, ...]) -> bool:
    """Whether these words address nobody in particular: "team", "Sir or Madam", or a placeholder such as [Name]."""
    if len(words) == 1 and words[0] in NAMES_TOO:
        return False
    return all(word in NOBODY or word in PARTICLES or word in SURNAMES_TOO for word in words)


def without_cjk_title(word: str) -> str:
    """Return 王 for 王先生; the word itself when it has no such ending."""
    return _CJK_TITLE.sub("", word) or word
