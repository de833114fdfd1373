"""The scores of one reward as they stream by: one byte a completion, and figures that do not depend on their order.

A byte says value and reason together. While a reward has at most 255 different pairs of these, nothing else is kept;
after that its values are doubles (NaN where there is none) and its reasons a count each. A column can be written down
as plain data and taken up by another column, which is then what it would be had it seen the scores itself.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rewardkit.stats import Reservoir
from rewardkit.types import MACHINE_REASONS, REFERENCE_REASONS, Score

UNSCORED = 255
"""The rank of a completion without a value."""

MAX_KINDS = 255
MAX_DETAIL = 300

_Kind = tuple[float | None, str | None]


@dataclass(frozen=True)
class Tally:
    """What a column holds, counted once.

    Attributes:
        n: Completions, scored or not.
        scored, abstained, errors: How many are in each state.
        reasons: How many carry each reason, most frequent first.
        values: The scored values: counted while few differ, as a list after that.
        low, high: The least and the greatest of them; None when there is none.
    """

    n: int
    scored: int
    abstained: int
    errors: int
    reasons: dict[str, int]
    values: dict[float, int] | list[float]
    low: float | None
    high: float | None

    def binary(self) -> bool:
        """Whether there are scored values, and all are 0 or 1."""
        values = self.values
        return isinstance(values, dict) and bool(values) and all(value in (0.0, 1.0) for value in values)

    def graded(self) -> bool:
        """Whether all scored values lie in [0, 1], so that 0 is a fail and 1 a pass."""
        return self.low is None or self.high is None or (self.low >= 0.0 and self.high <= 1.0)

    def judges(self) -> bool:
        """Whether 0 and 1 are the ends of its values, so that these can be compared with a label."""
        return self.low in (0.0, 1.0) and self.high in (0.0, 1.0)


class Column:
    """The scores of one reward, or of one part of it, in order of arrival.

    Attributes:
        waiting: Scores that are added by `settle`.
        seconds: How long they took.
        details: The shortest text (of equally short ones the first in the alphabet) that came with each reason for
            having no value.
        parts: Columns of the parts, by name.
        weight: The factor of this part; None outside a sum.
        weights_differ: Whether it changed on the way.
    """

    __slots__ = ("_codes", "_kinds", "_places", "_reasons", "_unscored", "_values", "details", "parts", "seconds",
                 "waiting", "weight", "weights_differ")  # fmt: skip

    def __init__(self, weight: float | None = None) -> None:
        self._kinds: list[_Kind] = []
        self._places: dict[str | None, dict[float | None, int]] = {}
        self._unscored: dict[str | None, int] = {}
        self._codes = bytearray()
        self._values: array[float] | None = None
        self._reasons: Counter[str] = Counter()  # in use only once values are doubles
        self.waiting: list[Score] = []
        self.details: dict[str, str] = {}
        self.seconds = Reservoir()
        self.parts: dict[str, Column] = {}
        self.weight = weight
        self.weights_differ = False

    def add(self, scores: Iterable[Score]) -> None:
        """Take in the scores of some completions."""
        places, append, took = self._places, self._codes.append, self.seconds.pending
        for score in scores:
            try:
                append(places[score.reason][score.value])
            except KeyError:  # what has no value yet is never found, so that its detail is looked at
                self._add_seldom(score)
            if score.seconds is not None:
                took.append(score.seconds)
            if score.parts:
                self._add_parts(score.parts)
        if len(took) > Reservoir.BATCH:
            self.seconds.settle()

    def settle(self) -> None:
        """Take in the scores that wait."""
        self.add(self.waiting)
        self.waiting.clear()

    def _add_seldom(self, score: Score) -> None:
        value, reason = score.value, score.reason
        if value is None:
            self._note(reason, score.detail)
        values = self._values
        if values is None:
            code = self._unscored.get(reason) if value is None else None
            if code is not None or len(self._kinds) < MAX_KINDS:
                self._codes.append(self._place(value, reason) if code is None else code)
                return
            values = self._widen()
        values.append(math.nan if value is None else value + 0.0)
        if reason is not None:
            self._reasons[reason] += 1

    def _place(self, value: float | None, reason: str | None) -> int:
        """Give a new pair of value and reason its code."""
        code = len(self._kinds)
        if value is None:
            self._unscored[reason] = code
        else:
            self._places.setdefault(reason, {})[value] = code
        self._kinds.append((value if value is None else value + 0.0, reason))  # + 0.0 turns -0.0 into 0.0
        return code

    def _code(self, value: float | None, reason: str | None) -> int | None:
        return self._unscored.get(reason) if value is None else self._places.get(reason, {}).get(value)

    def _widen(self) -> array[float]:
        """Go over to doubles and return them. Nothing has a place from then on."""
        values = self._values = self.doubles()
        self._reasons = self._counted_reasons(self._counts())
        # Emptied in place: a loop over scores holds them.
        self._codes.clear()
        self._places.clear()
        self._kinds, self._unscored = [], {}
        return values

    def _counts(self) -> list[int]:
        """Return how many completions are of each kind."""
        if len(self._kinds) <= 24:  # looking for one byte is so fast that it may be done for each
            return [self._codes.count(code) for code in range(len(self._kinds))]
        counts = Counter(self._codes)
        return [counts[code] for code in range(len(self._kinds))]

    def _counted_reasons(self, counts: Iterable[int]) -> Counter[str]:
        reasons: Counter[str] = Counter()
        for (_, reason), count in zip(self._kinds, counts, strict=True):
            if reason is not None:
                reasons[reason] += count
        return reasons

    def _note(self, reason: str | None, detail: str) -> None:
        if reason is None or not detail:
            return
        detail = detail[:MAX_DETAIL]
        known = self.details.get(reason)
        if known is None or (len(detail), detail) < (len(known), known):
            self.details[reason] = detail

    def _add_parts(self, parts: Iterable[Score]) -> None:
        for part in parts:
            column = self.parts.get(part.name)
            if column is None:
                column = self.parts[part.name] = Column(part.weight)
            elif column.weight != part.weight:
                column.weights_differ = True
            column.add((part,))

    # --------------------------------------------------------------------------------------------------------- figures

    def __len__(self) -> int:
        return len(self._codes) if self._values is None else len(self._values)

    def tally(self) -> Tally:
        """Return what was added, counted."""
        values: dict[float, int] | list[float]
        if self._values is None:
            counts = self._counts()
            by_value: Counter[float] = Counter()
            for (value, _), count in zip(self._kinds, counts, strict=True):
                if value is not None:
                    by_value[value] += count
            values, reasons = dict(sorted(by_value.items())), dict(self._counted_reasons(counts))
        else:
            values, reasons = [value for value in self._values if value == value], dict(self._reasons)
        abstained = sum(count for reason, count in reasons.items() if reason in REFERENCE_REASONS)
        errors = sum(count for reason, count in reasons.items() if reason in MACHINE_REASONS)
        ordered = dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
        n = len(self)
        low, high = min(values, default=None), max(values, default=None)
        return Tally(n, n - abstained - errors, abstained, errors, ordered, values, low, high)

    def ranked(self) -> tuple[list[float], bytes] | None:
        """Return the different values in ascending order, and for each completion the rank of its value.

        `UNSCORED` is the rank of one without a value. None when values are doubles: see `doubles`.
        """
        if self._values is not None:
            return None
        levels = sorted({value for value, _ in self._kinds if value is not None})
        ranks = {value: rank for rank, value in enumerate(levels)}
        table = bytes(UNSCORED if value is None else ranks[value] for value, _ in self._kinds)
        return levels, bytes(self._codes.translate(table.ljust(256, b"\xff")))

    def doubles(self) -> array[float]:
        """Return one double for each completion, NaN for one without a value."""
        if self._values is not None:
            return self._values
        decoded = [math.nan if value is None else value for value, _ in self._kinds]
        return array("d", map(decoded.__getitem__, self._codes))

    # ----------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return all of it as numbers, texts, bytes, lists and dicts."""
        wide = self._values is not None
        return {
            "kinds": [list(kind) for kind in self._kinds],
            "codes": bytes(self._codes),
            "values": self._values.tobytes() if self._values is not None else None,
            "reasons": dict(self._reasons) if wide else {},
            "details": self.details,
            "seconds": self.seconds.state(),
            "weight": self.weight,
            "weights_differ": self.weights_differ,
            "parts": [[name, part.state()] for name, part in self.parts.items()],
        }

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Take in another column's state: as if its scores had been added after the own ones."""
        if state["values"] is not None:
            values = self._widen() if self._values is None else self._values
            values.frombytes(state["values"])
            self._reasons.update(state["reasons"])
        elif state["codes"]:
            self._absorb_codes(state["kinds"], state["codes"])
        for reason, detail in state["details"].items():
            self._note(reason, detail)
        self.seconds.absorb(state["seconds"])
        for name, part in state["parts"]:
            column = self.parts.get(name)
            if column is None:
                column = self.parts[name] = Column(part["weight"])
            column.weights_differ |= part["weights_differ"] or column.weight != part["weight"]
            column.absorb(part)

    def _absorb_codes(self, kinds: Iterable[tuple[float | None, str | None]], codes: bytes) -> None:
        kinds = [(value, reason) for value, reason in kinds]
        new = sum(self._code(*kind) is None for kind in kinds)
        if self._values is None and len(self._kinds) + new > MAX_KINDS:
            self._widen()
        if self._values is None:
            known = [(kind, self._code(*kind)) for kind in kinds]
            table = bytes(self._place(*kind) if code is None else code for kind, code in known)
            self._codes += codes.translate(table.ljust(256, b"\xff"))
        else:
            other = Column()
            other._kinds, other._codes = kinds, bytearray(codes)
            self._values.extend(other.doubles())
            self._reasons.update(other._counted_reasons(other._counts()))
