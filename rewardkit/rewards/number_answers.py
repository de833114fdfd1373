"""The number that is right, and the number that a completion answers: what several rewards start from."""

from __future__ import annotations

from rewardkit.number import Quantity
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifiers.gsm8k import Gsm8k, Gsm8kReference
from rewardkit.verifiers.numeric import NumberReference, Numeric

_GSM8K = Gsm8k()
_NUMERIC = Numeric()


def right_number(sample: Sample) -> Quantity | Score:
    """Return the reference as `gsm8k` reads it (a number, or a solution that ends in one), or the abstention."""
    read = _GSM8K.prepare(sample)
    return read.answer if isinstance(read, Gsm8kReference) else _abstained(read)


def _abstained(read: object) -> Score:
    assert isinstance(read, Score)
    return read


def judged(completion: str, sample: Sample, right: Quantity) -> Verdict:
    """Return `numeric`'s verdict on a completion."""
    return _NUMERIC.verify(Completion(completion), NumberReference(number=right), sample)
