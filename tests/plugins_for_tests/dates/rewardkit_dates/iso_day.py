"""`dates/iso_day`: the last ISO date of a text."""

import re
from datetime import date
from typing import ClassVar

from rewardkit import Completion, Reference, Sample, Verdict, Verifier


class Day(Reference):
    """The right day, as in 2024-02-29."""

    day: date


class IsoDay(Verifier[Day]):
    """Accept when the last ISO date in the text is the reference day.

    Options:
        within_days: days that it may be off.
    """

    name: ClassVar[str | None] = "dates/iso_day"

    within_days: int = 0

    def verify(self, completion: Completion, reference: Day, sample: Sample) -> Verdict:
        found = re.findall(r"\b\d{4}-\d{2}-\d{2}\b", completion.text)
        if not found:
            return Verdict.reject("no ISO date", reason="no_answer")
        try:
            day = date.fromisoformat(found[-1])
        except ValueError:
            return Verdict.reject("no such day", extracted=found[-1], reason="unreadable")
        off = abs((day - reference.day).days)
        if off <= self.within_days:
            return Verdict.accept(f"{off} days off", extracted=found[-1])
        return Verdict.reject(f"{off} days off", extracted=found[-1])
