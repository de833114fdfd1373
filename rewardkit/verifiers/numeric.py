"""`numeric`: is the answer the right number, exactly or within a tolerance."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema, field_validator

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
from rewardkit.number import Quantity, read_number, same_number, stated_number
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Number, Reference, Verifier


def _read_reference(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, bool):
        raise ValueError("a number is wanted, got a boolean")
    quantity = read_number(value if isinstance(value, str) else str(value))
    if quantity is None:
        raise ValueError(f"a number is wanted, such as 18, '3/4' or '2.5 kg', got {str(value)[:60]!r}")
    return quantity


ReadNumber = Annotated[
    Quantity,
    PlainValidator(_read_reference),
    PlainSerializer(lambda quantity: quantity.text, return_type=str),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""A reference that is a number as it is written, with its percent sign or unit."""


class NumberReference(Reference):
    """The right number, with its unit if it has one: 18, "3/4", "1,234", "45%", "2.5 kg", "$3.50"."""

    number: ReadNumber


class Numeric(Verifier[NumberReference]):
    r"""Accept when the answer is the reference number.

    The answer is looked for inside the last `<answer>` tags, else behind the last `####`, in the last `\boxed{}`,
    behind the last "the answer is" or "Answer:"; without any of these it is the last number of the text. What follows
    a new question that the model asks itself is cut off, and only what comes after the thinking counts.

    Numbers are read exactly, as fractions: 1,234, 3/4, \frac{3}{4}, 1½, 45%, 1.2e5, 1.2 \times 10^5, $3.50, 2.5 kg, ۱۲.
    45% equals 0.45, and equals 45 where only one side has the sign. A unit or currency may be missing on one side;
    where both have one they must agree, converted if need be: 50 cents is $0.50, 5 cm is not 5 m.

    Traps: nothing is rounded, so 0.33 is not 1/3 unless `tolerance` or `relative` allows it. A marker without a number
    behind it is no answer; nothing is guessed from elsewhere then. "12 or 14" is no number.

    Options:
        tolerance: largest absolute difference, in the reference's unit.
        relative: largest difference as a share of the reference (0.01 is 1 %); the larger of both holds.
        extract: "auto" as above; "marked": never the last number; "whole": the completion must be the number.

    Example:
        rewardkit try numeric --reference '3/4' 'The answer is 0.75.'
    """

    name: ClassVar[str | None] = "numeric"

    tolerance: Number = Fraction(0)
    relative: Number = Fraction(0)
    extract: Literal["auto", "marked", "whole"] = "auto"

    @field_validator("tolerance", "relative")
    @classmethod
    def _not_negative(cls, value: Fraction) -> Fraction:
        if value < 0:
            raise ValueError("a difference of 0 or more is wanted")
        return value

    def verify(self, completion: Completion, reference: NumberReference, sample: Sample) -> Verdict:
        text = completion.text
        if self.extract == "whole":
            found: Found | None = Found(text.strip(), "whole", 0) if text.strip() else None
        else:
            region = answer_region(text, sample)
            if region is None:
                return UNFINISHED
            found = _find(region, guess=self.extract == "auto")
        return judge_number(found, reference.number, self.tolerance, self.relative)


UNFINISHED = Verdict.reject("the thinking was never closed", reason="no_answer")


def answer_region(text: str, sample: Sample) -> str | None:
    """Return the part of a completion that can hold its answer; None when it never came out of its thinking."""
    return after_thinking(cut_run_on(text), opened=opens_thinking(sample.prompt))


def _find(text: str, *, guess: bool) -> Found | None:
    tag = tagged(text, "answer", unclosed=True)
    if tag is not None:
        inner = marked_answer(tag.text)
        return inner if inner is not None else tag
    found = marked_answer(text)
    return guessed_answer(text) if found is None and guess else found


def marked_answer(text: str) -> Found | None:
    """The answer behind the strongest marker: `####`, `\\boxed`, then phrases."""
    return hash_marker(text) or boxed(text) or answer_phrase(text)


_REFUSED = re.compile(
    r"\b(?:cannot|can ?not|can't|could not|couldn't|unable to|impossible to|not able to|not possible to"
    r"|do not know|don't know|not enough information|insufficient information)\b",
    re.IGNORECASE,
)


def guessed_answer(text: str) -> Found | None:
    """The last number of the text, unless its sentence refuses to answer."""
    if len(text) < 64 and read_number(text) is not None:
        return Found(text.strip(), "last number", 0)
    found = last_number(text)
    if found is None:
        return None
    start = max(text.rfind(". ", 0, found.start), text.rfind("\n", 0, found.start), found.start - 300, 0)
    return None if _REFUSED.search(text, start, found.start) is not None else found


_PLACES = {
    "####": "after ####",
    "\\boxed": "in \\boxed",
    "<answer>": "in <answer>",
    "A:": "after A:",
    "answer:": 'after "answer:"',
    "the answer is": 'after "the answer is"',
    "last number": "as the last number",
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
    if found.rule in ("last number", "whole"):
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
