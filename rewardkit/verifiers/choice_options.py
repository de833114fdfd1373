"""The options of a multiple-choice question: from a column, or out of the prompt."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_OPTIONS = 26
MAX_END = 20_000  # characters at the end of a completion that are looked at, and of a prompt five times as many
MAX_TEXT = 4000  # characters of an option in a prompt
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
USUAL = LETTERS[:10]
DIGITS = tuple(map(str, range(1, 11)))
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


class Options(NamedTuple):
    """The options of one question: their labels as they are shown, and their texts where they are known."""

    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()

    def show(self, places: Sequence[int] | frozenset[int]) -> str:
        return " and ".join(self.labels[place] for place in sorted(places))


def read_options(value: Any) -> Options:
    """Read options from a column: a list of texts, a mapping of label to text, `{"text": […], "label": […]}`, a list of
    `{"label": …, "text": …}`, or the text of one of these, as JSON or as Python writes it.

    Raises:
        ValueError: It is none of these, or has fewer than two options.
    """
    if isinstance(value, str):
        try:
            value = _literal(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise ValueError(f"options are a list of texts or a mapping of label to text, got {value[:60]!r}") from None
    labels: list[str] | None = None
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, (list, tuple))]
        if len(lists) == len(value) == 2 or (len(lists) == 1 == len(value)):
            texts = value.get("text", value.get("texts", value.get("choices")))
            given = value.get("label", value.get("labels"))
            labels = [_word(item) for item in given] if isinstance(given, (list, tuple)) else None
        else:
            labels, texts = [_word(key) for key in value], list(value.values())
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
        labels = [_word(item.get("label", item.get("key"))) for item in value]
        texts = [item.get("text", item.get("value", item.get("content"))) for item in value]
    else:
        texts = value
    if not isinstance(texts, (list, tuple)) or not 2 <= len(texts) <= MAX_OPTIONS:
        raise ValueError(f"options are 2 to {MAX_OPTIONS} texts in a list, or a mapping of label to text")
    words = [_word(text) for text in texts]
    if labels is None:
        labels, words = _own_labels(words)
    different = len(set(map(str.casefold, labels))) == len(words) == len(labels)
    if not different or not all(re.fullmatch(r"\w{1,4}", label) for label in labels):
        raise ValueError("the labels of the options are short, and differ from each other")
    return Options(tuple(labels), tuple(words))


def _literal(text: str) -> Any:
    """Read a literal as JSON, else as Python writes lists and mappings; nothing is evaluated."""
    try:
        return json.loads(text)
    except ValueError:
        if not text.lstrip().startswith(("[", "{")) or len(text) > MAX_END:
            raise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a backslash that escapes nothing
        return ast.literal_eval(text.strip())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"an option is a text, got {type(value).__name__}")
    return str(value).strip()


_LABELLED = re.compile(r"\s*[(\[]?([A-Za-z]|\d{1,2})[)\].:：、]\s*(.+)", re.DOTALL)


def _own_labels(texts: list[str]) -> tuple[list[str], list[str]]:
    """Take labels that stand in the texts themselves (`A)21`), where all of them have one, in order."""
    split = [_LABELLED.match(text) for text in texts]
    if all(split):
        found = [match[1] for match in split if match]
        for kind in (LETTERS, tuple(map(str.lower, LETTERS)), DIGITS):
            if tuple(found) == kind[: len(found)]:
                return found, [match[2].strip() for match in split if match]
    return list(LETTERS[: len(texts)]), texts


_SHOWN = re.compile(
    r"(?:(?<=[\n])|(?<=\s)|^)[ \t]*(?:[-*•][ \t]+)?(?:\*\*)?(?:(?:Option|Choice)[ \t]+)?"
    r"(?P<open>[(\[]?)(?P<label>[A-Z]|[a-z]|\d{1,2}|[IVX]{1,4}|[ivx]{1,4})(?P<close>[)\].:：、])(?:\*\*)?(?P<gap>\s*)(?=\S)"
)


def options_in(prompt: str) -> Options | None:
    """The last options that a prompt lists: `A) …`, `(A) …`, `A. …`, `[A] …`, one a line or in a row; also with digits
    or roman numerals."""
    runs: dict[tuple[str, str, str], list[re.Match[str]]] = {}
    done: list[tuple[tuple[str, ...], list[re.Match[str]]]] = []
    for match in _SHOWN.finditer(prompt):
        first = match.start("open")
        before = prompt[max(0, first - 20) : first].rpartition("\n")
        at_line = (bool(before[1]) or first < 20) and not _BULLET.sub("", before[2])
        if match["close"] not in ")]、" and not match["gap"]:
            continue
        for name, kind in _KINDS.items():
            if match["label"] not in kind:
                continue
            key = (name, match["open"], match["close"])
            run = runs.get(key, [])
            if run and len(run) < len(kind) and match["label"] == kind[len(run)]:
                run.append(match)
            elif match["label"] == kind[0]:
                runs[key] = run = [match]
            # Digits, and letters in a row with nothing but a full stop, are often something else.
            bracketed = bool(match["open"])
            enough = 2 if at_line or bracketed or (name in _ALPHABETS and match["close"] == ")") else 3
            if len(run) == enough and (name in _ALPHABETS or at_line or bracketed):
                done.append((kind, run))
    best: Options | None = None
    start = len(prompt)
    # Letters before digits, which may be numbered instructions; then the last list, but the outer one of two.
    done.sort(key=lambda item: (item[0] in (LETTERS, _SMALL), item[1][0].start()), reverse=True)
    for kind, run in done[:50]:
        outer = best is not None and run[0].start() < start <= run[-1].start() and len(run) >= len(best.labels)
        if best is not None and not outer:
            continue
        options = _with_texts(prompt, kind, run)
        if options is not None:
            best, start = options, run[0].start()
    return best


def _with_texts(prompt: str, kind: tuple[str, ...], run: list[re.Match[str]]) -> Options | None:
    last = prompt.find("\n", run[-1].end())
    ends = [match.start() for match in run[1:]] + [last if last >= 0 else len(prompt)]
    texts = [prompt[match.end() : end].strip(" \t\r\n;,*") for match, end in zip(run, ends, strict=True)]
    if not all(texts) or max(map(len, texts)) > MAX_TEXT:
        return None
    return Options(kind[: len(run)], tuple(map(_without_label, texts, kind)))


_SMALL = tuple(map(str.lower, LETTERS))
_BULLET = re.compile(r"[-*•\s]|Option|Choice")
_ALPHABETS = ("upper", "lower")
_KINDS: dict[str, tuple[str, ...]] = {
    "upper": LETTERS,
    "lower": _SMALL,
    "digits": DIGITS,
    "roman": ROMAN,
    "small roman": tuple(map(str.lower, ROMAN)),
}


def _without_label(text: str, label: str) -> str:
    match = _LABELLED.match(text)
    return match[2].strip() if match is not None and match[1] == label else text
