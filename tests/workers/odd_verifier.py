"""A verifier that misbehaves while it reads the reference, or while it judges."""

from __future__ import annotations

import time

from odd_rewards import misbehave

from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier


class Number(Reference):
    number: str


class Careful(Verifier[Number]):
    """Misbehaves while it reads the reference."""

    placement = "process"
    timeout = 0.4
    memory = 64 << 20
    least: int = 0

    def prepare(self, sample: Sample) -> object:
        misbehave(str(sample.reference))
        return super().prepare(sample)

    def verify(self, completion: Completion, reference: Number, sample: Sample) -> Verdict:
        if completion.text == "sleep":
            time.sleep(1e6)
        return Verdict.accept() if int(completion.text) >= self.least else Verdict.reject("too small")
