import re
from datetime import date
from typing import ClassVar

from rewardkit import Completion, Reference, Sample, Verdict, Verifier, reward

ISO = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")


class Day(Reference):
    day: date


class IsoDay(Verifier[Day]):
    """Accept when the last ISO date of the text is the reference day."""

    name: ClassVar = "dates/iso_day"

    within_days: int = 0

    def verify(self, completion: Completion, reference: Day, sample: Sample) -> Verdict:
        found = ISO.findall(completion.text)
        if not found:
            return Verdict.reject("no date", reason="no_answer")
        try:
            off = abs((date.fromisoformat(found[-1]) - reference.day).days)
        except ValueError:
            return Verdict.reject("no day of the calendar", extracted=found[-1], reason="unreadable")
        verdict = Verdict.accept if off <= self.within_days else Verdict.reject
        return verdict(f"days off: {off}", extracted=found[-1])


@reward(name="dates/dated")
def dated(completion) -> float:
    """1 when the text holds an ISO date."""
    return float(bool(ISO.search(completion)))


day_set = IsoDay() + 0.1 * dated
