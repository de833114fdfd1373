"""`scores.jsonl`: one line a completion and reward, schema `rewardkit.score/1`.

Fields: schema, id, index (the completion's place in its group), model, reward, state, value (null unless scored),
reason, extracted, parts [{name, weight, state, value, reason, parts}], seconds; and group (the key, 16 hexadecimal
digits), which tells apart samples of one id. `reason` is a code from the closed list with or without `: text`, or
free text, with `note: ` before it where it would read as a code. `reason` and `extracted` are cut to 300 characters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rewardkit.errors import InputError
from rewardkit.records.generations import encode_json
from rewardkit.records.source import Source
from rewardkit.records.text import shorten, visible
from rewardkit.types import COMPLETION_REASONS, MACHINE_REASONS, REFERENCE_REASONS, Generation, Score, State

SCHEMA = "rewardkit.score/1"
LIMIT = 300  # characters of `reason` and `extracted`

_REASONS: dict[State, frozenset[str]] = {
    "scored": COMPLETION_REASONS,
    "abstained": REFERENCE_REASONS,
    "error": MACHINE_REASONS,
}


class PartRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A component of a composed reward, as written."""

    name: str
    weight: float | None
    state: State
    value: float | None
    reason: str
    parts: tuple[PartRecord, ...] = ()


class ScoreRecord(msgspec.Struct, frozen=True):
    """One line of `scores.jsonl`."""

    schema: str
    id: str | int
    index: int
    model: str | None
    reward: str
    state: State
    value: float | None
    reason: str
    extracted: str | None
    parts: tuple[PartRecord, ...]
    seconds: float | None
    group: str | None = None

    @property
    def code(self) -> str | None:
        """The reason from the closed list that `reason` begins with, one that its state can have; None for free text.

        `wrong: 12 is not 13` has the code `wrong`, `note: timeout: x` has none.
        """
        code = self.reason.partition(":")[0]
        return code if code in _REASONS[self.state] else None


_decode = msgspec.json.Decoder(ScoreRecord).decode


def score_line(generation: Generation, at: int, score: Score, reward: str) -> bytes:
    """Return the score of completion `at` (counted from 0 within `generation`) as one line of JSON, with its end."""
    record = ScoreRecord(
        SCHEMA,
        generation.sample.id,
        generation.start + at,
        generation.model,
        reward,
        score.state,
        score.value,
        shorten(score.why, LIMIT),
        None if score.extracted is None else shorten(score.extracted, LIMIT),
        tuple(map(_part, score.parts)) if score.parts else (),
        score.seconds,
        f"{generation.key:016x}" if generation.key else None,
    )
    return encode_json(record) + b"\n"


def _part(score: Score) -> PartRecord:
    parts = tuple(map(_part, score.parts)) if score.parts else ()
    return PartRecord(score.name, score.weight, score.state, score.value, shorten(score.why, LIMIT), parts)


def read_scores(path: str | os.PathLike[str]) -> Iterator[ScoreRecord]:
    """Yield the records of a file of scores; a half-written last line is left out.

    Raises:
        InputError: Any other line is not a score, or is of another version.
    """
    source = Source(path)
    broken: tuple[int, str] | None = None
    for number, line in enumerate(source.lines(), 1):
        if broken is not None:
            raise InputError(f"{source.name}:{broken[0]}: not a line of scores: {broken[1]}")
        try:
            record = _decode(line)
        except msgspec.MsgspecError as problem:
            if line.strip() and line.endswith(b"\n"):
                raise InputError(f"{source.name}:{number}: not a line of scores: {visible(str(problem))}") from None
            broken = (number, visible(str(problem))) if line.strip() else None
            continue
        if record.schema != SCHEMA:
            other = visible(shorten(record.schema, 60))
            raise InputError(f"{source.name}:{number}: schema {other}; this version reads {SCHEMA}")
        if line.endswith(b"\n"):
            yield record


def cut_partial_line(path: str | os.PathLike[str]) -> int:
    """Cut what follows the last line end of a file, which a killed writer left; return how many bytes that was."""
    with Path(path).open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - 64 * 1024)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
        return size - end
