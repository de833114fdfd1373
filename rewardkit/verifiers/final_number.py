"""What `gsm8k` and `numeric` share: which text of a completion states its final number, and whether that is right."""

from __future__ import annotations

import re
from fractions import Fraction

from rewardkit.extract import (
    PLAIN_ENDS,
    Found,
    after_thinking,
    answer_phrase,
    boxed,
    cut_run_on,
    hash_marker,
    last_number,
    opens_thinking,
    runs_on,
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
    tag = tagged(text, "answer", unclosed=True) if "<" in text and _may_be_tagged(text) else None
    if tag is None:
        found = marked_answer(text)
        return guessed_answer(text) if found is None and guess else found
    behind = tag.start + len(tag.text)
    later = marked_answer(text[behind:])
    if later is not None:
        return later._replace(start=later.start + behind)
    inner = marked_answer(tag.text)
    return tag if inner is None else inner._replace(start=inner.start + tag.start)


def _may_be_tagged(text: str) -> bool:
    if "nswer" not in text and "NSWER" not in text:
        return False
    return "<a" in text or "</a" in text or "<A" in text or "</A" in text


def plain_answer(text: str, sample: Sample) -> Found | None:
    """Return what `answer_region` and `final_answer` do, at once, for most texts that end as most do; None for others.

    Nothing may be cut off such a text: no thinking, no turn or question after it, no second `####`; and it has no tags.
    """
    prompt = sample.prompt
    if (type(prompt) is not str or prompt[-1:] not in PLAIN_ENDS) and opens_thinking(prompt):
        return None
    found = _plain_box(text) if "\\" in text else _plain_line(text)
    return None if found is None or runs_on(text) else found


_NUMBER = r"(-?\$?[0-9][0-9,.]{0,30})"
_LAST_LINE = re.compile(rf"(?:(####)|(A:)|The answer is) {_NUMBER}\Z")
_LAST_BOX = re.compile(rf"\\boxed\{{{_NUMBER}\}}")


def _plain_line(text: str) -> Found | None:
    """Return the number behind a marker on the last line of a text without a backslash."""
    match = _LAST_LINE.match(text, text.rfind("\n") + 1)
    if match is None:
        return None
    hashed, letter, number = match.groups()
    if hashed is not None:
        return None if text.find("####", 0, match.start()) >= 0 else Found(number, hashed, match.start(3))
    if "#" in text or (letter is not None and not match.start()):  # "A:" on the first line of all: the general rule
        return None
    return Found(number, letter or "the answer is", match.start(3))


def _plain_box(text: str) -> Found | None:
    """Return the number in the last box of a text without any `#`."""
    at = text.rfind("\\boxed")
    match = _LAST_BOX.match(text, at) if at >= 0 else None
    if match is None or "#" in text or text.find("\\fbox", at) >= 0:
        return None
    return Found(match[1], "\\boxed", at + 7)


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
    text, rule, _ = found
    place = _PLACES[rule]
    if rule == "####" or rule == "A:" or rule == "\\boxed":
        # "The answer is 18!" is no factorial, \boxed{18!} is
        quantity = stated_number(text if rule == "\\boxed" or text[-1:] != "!" else text.rstrip("!"))
    elif rule == "denied":
        quantity = None
    elif rule == "last number" or rule == "whole":
        quantity = read_number(text)
    else:
        quantity = stated_number(text.rstrip("!"))
    if quantity is None:
        return _unread(text, place)
    shown = quantity.text
    if not shown.isdecimal():
        shown = shown.strip(" \t\r\n*_`").rstrip(".,;:!?")
    if quantity is reference or same_number(quantity, reference, tolerance, relative):
        return Verdict(1.0, f"{shown if len(shown) <= 60 else _short(shown)} {place}", shown)
    return Verdict(0.0, f"{_short(shown)} {place}, not {_short(reference.text.strip())}", shown, "wrong")


_KEPT = 8192
_KEPT_LENGTH = 80
_known: dict[tuple[str, int], tuple[Quantity, str, Verdict]] = {}  # last line, reference -> its rule and verdict


def plain_verdict(text: str, sample: Sample, reference: Quantity) -> Verdict | None:
    """Return the exact verdict on a text for which `plain_answer` returns something; None for others.

    The completions of a group often end in the same line, so what it said is kept: only what stands before it differs.
    """
    start = text.rfind("\n") + 1
    if not start or len(text) - start > _KEPT_LENGTH:
        found = plain_answer(text, sample)
        return None if found is None else judge_number(found, reference)
    about = (text[start:], id(reference))
    known = _known.get(about)
    if known is not None and known[0] is reference:  # it is held here, so that nothing else has its id
        rule, prompt = known[1], sample.prompt
        if rule == "####":
            alike = text.find("####", 0, start) < 0 and "\\" not in text
        else:
            alike = "#" not in text and (rule == "\\boxed" or "\\" not in text)
        if alike and type(prompt) is str and prompt[-1:] in PLAIN_ENDS and not runs_on(text):
            return known[2]
    found = plain_answer(text, sample)
    if found is None:
        return None
    verdict = judge_number(found, reference)
    if found.start >= start and len(reference.text) <= _KEPT_LENGTH:
        if len(_known) >= _KEPT:
            _known.clear()
        _known[about] = reference, found.rule, verdict
    return verdict


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
