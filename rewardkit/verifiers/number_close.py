"""`number_close`: is the answer near the right number, with credit that may fall off."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from rewardkit.number import read_number, same_number
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Number, Verifier
from rewardkit.verifiers.numeric import NumberReference, Numeric

_STEPS = 40  # halvings of the interval in which the difference lies, so that nine digits of the credit are exact


class NumberClose(Verifier[NumberReference]):
    r"""Accept when the answer is near the reference number, by default within 1 % of it.

    The answer is found and read as by `numeric`: in `<answer>`, after `####`, in `\boxed`, after "the answer is", else
    the last number. Percent signs, units and currency are treated alike: 0.45 is near 45%, 5 cm is not near 5 m.

    The difference is measured as a share of the reference, or with `measure="absolute"` in the reference's unit. Up
    to `within` it earns 1, above it 0; with `zero_at` it falls linearly from 1 at `within` to 0 at `zero_at`. The
    bounds belong to it: with 100 and 1 %, both 99 and 101 earn 1.

    Traps: of the reference 0 nothing but 0 is within a share; use `measure="absolute"` there. For a tolerance
    without falling credit that is a share and an amount at once, use `numeric`.

    Options:
        within: largest difference that earns 1: a share (0.01 is 1 %), or an amount.
        zero_at: smallest difference that earns 0, above `within`; none: nothing falls, beyond `within` is 0.
        measure: "relative" or "absolute".
        extract: "auto" as above; "marked": never the last number; "whole": the completion must be the number.

    Example:
        rewardkit try "number_close(within=0.05, zero_at=0.25)" --reference 200 'About 220.'
    """

    name: ClassVar[str | None] = "number_close"

    within: Number = Fraction(1, 100)
    zero_at: Number | None = None
    measure: Literal["relative", "absolute"] = "relative"
    extract: Literal["auto", "marked", "whole"] = "auto"

    @field_validator("within")
    @classmethod
    def _not_negative(cls, value: Fraction) -> Fraction:
        if value < 0:
            raise ValueError("a difference of 0 or more is wanted")
        return value

    @model_validator(mode="after")
    def _falls(self) -> NumberClose:
        if self.zero_at is not None and self.zero_at <= self.within:
            raise ValueError(f"zero_at={self.zero_at}: wanted above within={self.within}, where it starts to fall")
        return self

    def verify(self, completion: Completion, reference: NumberReference, sample: Sample) -> Verdict:
        wanted = reference.number
        relative = self.measure == "relative"
        nothing = Fraction(0)
        share, amount = (self.within, nothing) if relative else (nothing, self.within)
        exact = Numeric.model_construct(extract=self.extract, relative=share, tolerance=amount)
        found = exact.verify(completion, reference, sample)
        if found.value or found.reason != "wrong" or self.zero_at is None or found.extracted is None:
            return found
        answer = read_number(found.extracted)
        if answer is None:
            return found

        def is_within(difference: Fraction) -> bool:
            if relative:
                return same_number(answer, wanted, relative=difference)
            return same_number(answer, wanted, tolerance=difference)

        if not is_within(self.zero_at):
            return found
        # Units, percent signs and their readings make several differences; the smallest one is what fits.
        low, high = self.within, self.zero_at
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if is_within(middle) else (middle, high)
        credit = round(float((self.zero_at - high) / (self.zero_at - self.within)), 9)
        size = f"{float(high):.1%} off" if relative else f"{float(high):.6g} off"
        return Verdict.partial(
            credit, f"{found.detail}, {size}", extracted=found.extracted, reason=None if credit else "wrong"
        )
