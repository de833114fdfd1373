"""Rollouts and validations that verl dumps: `{step}.jsonl` with input, output, gts, score and step.

Newer ones have `uid`, `{prompt}_{rollout}_{part}`: the parts of a rollout are the outputs of its agent loop, of which
the last is the completion. Ones without it are grouped by what was asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rewardkit.records.paths import MISSING
from rewardkit.records.rows import BadRow
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import Found, LineFormat, count, labelled, name_of, number, rest, text_of
from rewardkit.types import Completion

_FIELDS = ("input", "output", "score", "step")
_UID = re.compile(r"(.+)_([0-9]{1,9})_([0-9]{1,9})", re.ASCII | re.DOTALL)


class Verl(LineFormat):
    """Reader of rollout_data_dir and validation_data_dir."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by the four names that every version writes, with `gts` or another of verl's own."""
        if not all(name in fields for name in _FIELDS) or not isinstance(fields["input"], str):
            return False
        return "gts" in fields or "request_id" in fields or _UID.fullmatch(str(fields.get("uid"))) is not None

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the rows say, with the parts of a rollout, which follow each other, made one."""
        held: tuple[int, Found] | None = None
        for result in super().found(source):
            if isinstance(result, BadRow):
                yield result
            elif held is None:
                held = result
            elif (joined := _join(held[1], result[1])) is not None:
                held = held[0], joined
            else:
                yield held
                held = result
        if held is not None:
            yield held

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the one completion of a row. `acc`, where there is one, is the verdict; else the score is."""
        own = rest(fields, "input", "output", "gts", "step", "uid")
        verdict = own["acc"] if number(own.get("acc")) is not None else own.get("score")
        match = _UID.fullmatch(fields["uid"]) if isinstance(fields.get("uid"), str) else None
        if "uid" in fields:
            own["uid"] = fields["uid"]
        completion = Completion(text_of(fields.get("output"), "output"), metadata=labelled(own, verdict))
        id = match[1] if match else name_of(fields.get("uid"))
        group = MISSING if id is None else id
        prompt = "" if fields.get("input") is None else fields["input"]
        yield Found((completion,), id, prompt, fields.get("gts"), {}, count(fields.get("step")), group)


def _join(first: Found, second: Found) -> Found | None:
    """Return two parts of one rollout as one, or None when they are of two."""
    before, after = first.completions[0], second.completions[0]
    ours, theirs = (_UID.fullmatch(str(part.metadata.get("uid"))) for part in (before, after))
    if ours is None or theirs is None or first.step != second.step or ours.group(1, 2) != theirs.group(1, 2):
        return None
    if int(theirs[3]) <= int(ours[3]):
        return None
    parts = [*before.metadata.get("parts", []), {"input": first.prompt, "output": before.text}]
    metadata = {**after.metadata, "parts": parts}
    return second._replace(completions=(msgspec.structs.replace(after, metadata=metadata),), prompt=first.prompt)


READER = Verl()
