"""`numeric`: is the answer the right number, exactly or within a tolerance."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, field_validator

from rewardkit.extract import Found
from rewardkit.number import Quantity, read_number
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Number, Reference, Verifier
from rewardkit.verifiers.final_number import (
    UNFINISHED,
    answer_region,
    final_answer,
    guessed_answer,
    judge_number,
    marked_answer,
    plain_answer,
)


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

    number: ReadNumber = Field(description="a number")


class Numeric(Verifier[NumberReference]):
    r"""Accept when the answer is the reference number.

    The answer is looked for inside the last `<answer>` tags, or behind a marker that comes after them; else behind the
    last `####`, in the last `\boxed{}`, behind the last "the answer is" or "Answer:"; without any of these it is the
    last number of the text. What follows a new question that the model asks itself is cut off, and only what comes
    after the thinking counts.

    Numbers are read exactly, as fractions: 1,234, 3/4, \frac{3}{4}, 1½, 45%, 1.2e5, 1.2 \times 10^5, $3.50, 2.5 kg, ۱۲.
    45% equals 0.45, and equals 45 where only one side has the sign. A unit or currency may be missing on one side;
    where both have one they must agree, converted if need be: 50 cents is $0.50, 5 cm is not 5 m.

    Traps: nothing is rounded, so 0.33 is not 1/3 unless `tolerance` or `relative` allows it. A marker without a number
    behind it is no answer; nothing is guessed from elsewhere then. "12 or 14", "not 18", "at least 18", "18 19",
    "2x = 5" and "(3,4)" are no number.

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
        found: Found | None
        if self.extract == "whole":
            found = Found(text.strip(), "whole", 0) if text.strip() else None
        elif (found := plain_answer(text, sample)) is None:
            region = answer_region(text, sample)
            if region is None:
                return UNFINISHED
            found = final_answer(region, guess=self.extract == "auto")
        return judge_number(found, reference.number, self.tolerance, self.relative)


__all__ = [
    "UNFINISHED",
    "NumberReference",
    "Numeric",
    "answer_region",
    "guessed_answer",
    "judge_number",
    "marked_answer",
]
