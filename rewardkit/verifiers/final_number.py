"""What `gsm8k` and `numeric` share: which text of a completion states its final number, and whether that is right."""

from __future__ import annotations

import re
from fractions import Fraction

from rewardkit.extract import (
    Found,
    after_thinking,
    answer_phrase,
    boxed,
    cut_run_on,
    hash_marker,
    last_number,
    opens_thinking,
    tagged,
)
from rewardkit.number import Quantity, denied_in_prose, read_number, same_number, stated_number
from rewardkit.types import Sample, Verdict

UNFINISHED = Verdict.reject("the thinking was never closed", reason="no_answer")


def answer_region(text: str, sample: Sample) -> str | None:
    """Return the part of a completion that can hold its answer; None when it never came out of its thinking."""
    return after_thinking(cut_run_on(text), opened=opens_thinking(sample.prompt))


def final_answer(text: str, *, guess: bool = True) -> Found | None:
    """Return where the answer stands: in the last `<answer>` tags, or behind a marker after them.

    Inside the tags a marker counts, too. Without tags the strongest marker does, and without any marker, if `guess`,
    the last number.
    """
    # Looks for a plain word are much faster than one for a tag in a text full of "<<9*2=18>>".
    named = "<" in text and ("nswer" in text or "NSWER" in text)
    tag = tagged(text, "answer", unclosed=True) if named else None
    if tag is None:
        found = marked_answer(text)
        return guessed_answer(text) if found is None and guess else found
    behind = tag.start + len(tag.text)
    later = marked_answer(text[behind:])
    if later is not None:
        return later._replace(start=later.start + behind)
    inner = marked_answer(tag.text)
    return tag if inner is None else inner._replace(start=inner.start + tag.start)


def marked_answer(text: str) -> Found | None:
    """The answer behind the strongest marker: `####`, `\\boxed`, then phrases."""
    return hash_marker(text) or boxed(text) or answer_phrase(text)


_REFUSED = re.compile(
    r"\b(?:cannot|can ?not|can't|could not|couldn't|unable to|impossible to|not able to|not possible to"
    r"|do not know|don't know|not enough information|insufficient information)\b",
    re.IGNORECASE,
)
_WORDLESS = re.compile(
    r"(?:[^A-Za-z<\n]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|\b(?:or|and|oder|sqrt|log)\b|\\[A-Za-z]+){1,64}"
)


def guessed_answer(text: str) -> Found | None:
    """The last number of the text, unless its sentence refuses to answer; all of it when it is hardly more.

    A number that is denied (`not 18`, `18 is wrong`), one of several (`3 or 4`) or a bound (`\\geq 5`) is given with
    its sentence, which states no number.
    """
    if len(text) < 64 and (read_number(text) is not None or _WORDLESS.fullmatch(text.strip()) is not None):
        shown = text.strip()
        return Found(shown, "whole text", 0) if any(map(str.isnumeric, shown)) else None
    found = last_number(text)
    if found is None:
        return None
    start = max(text.rfind(". ", 0, found.start), text.rfind("\n", 0, found.start), found.start - 300, 0)
    if _REFUSED.search(text, start, found.start) is not None:
        return None
    end = found.start + len(found.text)
    if denied_in_prose(text, found.start, end):
        start = max(start, found.start - 40)
        return Found(text[start : end + 20].strip(" .\n"), "denied", start)
    return found


_PLACES = {
    "####": "after ####",
    "\\boxed": "in \\boxed",
    "<answer>": "in <answer>",
    "A:": "after A:",
    "answer:": 'after "answer:"',
    "the answer is": 'after "the answer is"',
    "last number": "as the last number",
    "denied": "as the last number",
    "whole text": "as the last number",
    "whole": "as the whole text",
}


def judge_number(
    found: Found | None, reference: Quantity, tolerance: Fraction = Fraction(0), relative: Fraction = Fraction(0)
) -> Verdict:
    """Compare what was found with the reference; the verdict's detail names the rule that found it."""
    if found is None:
        return Verdict.reject("no number", reason="no_answer")
    place = _PLACES[found.rule]
    text = found.text
    if found.rule == "denied":
        quantity = None
    elif found.rule in ("last number", "whole"):
        quantity = read_number(text)
    else:  # "The answer is 18!" is no factorial, \boxed{18!} is
        quantity = stated_number(text if found.rule == "\\boxed" else text.rstrip("!"))
    if quantity is None:
        return _unread(text, place)
    shown = quantity.text.strip(" \t\r\n*_`").rstrip(".,;:!?")
    if same_number(quantity, reference, tolerance, relative):
        return Verdict(1.0, f"{_short(shown)} {place}", shown)
    return Verdict(0.0, f"{_short(shown)} {place}, not {_short(reference.text.strip())}", shown, "wrong")


def _unread(text: str, place: str) -> Verdict:
    if not any(map(str.isnumeric, text)):
        detail = f"no number {place}" + (f", but {_short(text)!r}" if text else "")
        return Verdict.reject(detail, extracted=text[:200] or None, reason="no_answer")
    return Verdict.reject(f"{_short(text)!r} {place} is not one number", extracted=text[:200], reason="unreadable")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


__all__ = [
    "UNFINISHED",
    "answer_region",
    "final_answer",
    "guessed_answer",
    "judge_number",
    "marked_answer",
]
