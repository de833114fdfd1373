"""Completions that TRL's trainers log (`log_completions`): `completions/completions_NNNNN.parquet`, one a step.

Columns `step`, `prompt`, `completion` (texts or message lists), `advantage`, one for each reward function under its
name, and what rewards gave to `log_extra`: there a reference may be. Rows of one step, prompt and reference are a
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rewardkit.records.chat import completion_of
from rewardkit.records.tools.lines import Found, count, labelled, reference_in, rest
from rewardkit.records.tools.tables import TableFormat, verdict_among

_FIXED = ("step", "prompt", "completion", "advantage")
_REFERENCES = ("gold_parsed", "gold_answer", "solution")


class TrlCompletions(TableFormat):
    """Reader of them."""

    columns: ClassVar[Sequence[frozenset[str]]] = (frozenset(_FIXED),)

    def choose(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Go by the columns of numbers that are none of TRL's own."""
        names = [name for name in (rows[0] if rows else ()) if name not in _FIXED]
        return verdict_among({name: [row.get(name) for row in rows] for name in names})

    def read_labelled(self, fields: dict[str, Any], *, label: str | None) -> Iterable[Found]:
        """Return the one completion of a row, with all rewards as its columns."""
        prompt, reference = fields.get("prompt"), reference_in(fields)
        if reference is None:
            reference = next((fields[name] for name in _REFERENCES if fields.get(name) is not None), None)
        own = rest(fields, "step", "prompt", "completion")
        if label is not None:
            own = labelled(own, fields.get(label))
        completion = completion_of(fields.get("completion"), metadata=own)
        yield Found((completion,), None, "" if prompt is None else prompt, reference, {}, count(fields.get("step")))


READER = TrlCompletions()
