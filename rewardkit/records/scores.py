"""`scores.jsonl`: one line a completion and reward, schema `rewardkit.score/1`.

Fields: schema, id, index (the completion's place in its group), model, reward, state, value (null unless scored),
reason, extracted, parts [{name, weight, state, value, reason, parts}], seconds; and group (the key, 16 hexadecimal
digits), which tells apart samples of one id. `reason` is a code from the closed list with or without `: text`, or
free text, with `note: ` before it where it would read as a code. `reason` and `extracted` are cut to 300 characters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec

from rewardkit.errors import InputError
from rewardkit.records.generations import encode_json, escape_active
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
    group = f"{generation.key:016x}" if generation.key else None
    return encode_json(_record(generation, generation.start + at, score, reward, group)) + b"\n"


def _record(generation: Generation, index: int, score: Score, reward: str, group: str | None) -> ScoreRecord:
    value, why, extracted = score.value, score.why, score.extracted
    return ScoreRecord(
        SCHEMA,
        generation.sample.id,
        index,
        generation.model,
        reward,
        score.state if value is None else "scored",
        value,
        why if len(why) <= LIMIT else shorten(why, LIMIT),
        extracted if extracted is None or len(extracted) <= LIMIT else shorten(extracted, LIMIT),
        tuple(map(_part, score.parts)) if score.parts else (),
        score.seconds,
        group,
    )


_MAYBE_CODE = frozenset(code[0] for codes in _REASONS.values() for code in codes)  # see `Score.why`


class ScoreLines:
    """Lines of scores, encoded one generation after another into one buffer."""

    def __init__(self) -> None:
        self._records: list[ScoreRecord] = []
        self._counts: list[int] = []  # records of each generation

    def add(self, generation: Generation, scores: Mapping[str, Sequence[Score]]) -> bool:
        """Add one line for each completion and reward; return whether one of them is without a value."""
        unscored = False
        records, id, model = self._records, generation.sample.id, generation.model
        group = f"{generation.key:016x}" if generation.key else None
        before, index = len(records), generation.start
        for at in range(len(generation.completions)):
            for reward, column in scores.items():
                score = column[at]
                value, why, extracted = score.value, score.detail, score.extracted
                if value is None:
                    unscored = True
                if score.reason is not None or why[:1] in _MAYBE_CODE:
                    why = score.why
                if len(why) > LIMIT:
                    why = shorten(why, LIMIT)
                if extracted is not None and len(extracted) > LIMIT:
                    extracted = shorten(extracted, LIMIT)
                state: State = "scored" if value is not None else score.state
                parts = tuple(map(_part, score.parts)) if score.parts else ()
                seconds = score.seconds
                records.append(
                    ScoreRecord(
                        SCHEMA, id, index + at, model, reward, state, value, why, extracted, parts, seconds, group
                    )
                )
        self._counts.append(len(records) - before)
        return unscored

    def take(self) -> bytes:
        """Return all lines, as `score_line` writes them, and forget them."""
        records, self._records, self._counts = self._records, [], []
        return escape_active(_encode_all(records))

    def take_measured(self) -> tuple[bytes, list[int]]:
        """Return all lines and the bytes of each generation, and forget them."""
        counts, data = self._counts, self.take()
        lengths = [len(line) + 1 for line in data.split(b"\n")]
        if counts.count(1) == len(counts):
            return data, lengths[: len(counts)]
        ends = accumulate(counts, initial=0)
        return data, [sum(lengths[start:end]) for start, end in pairwise(ends)]


_encode_lines = msgspec.json.Encoder().encode_lines


def _encode_all(records: list[ScoreRecord]) -> bytes:
    try:
        return _encode_lines(records)
    except UnicodeEncodeError:
        return b"".join([encode_json(record) + b"\n" for record in records])


_INDEX = b',"index":'  # which cannot stand inside a JSON string, where quotes are escaped


def moved(lines: bytes, moves: Iterable[tuple[int, int, int]]) -> bytes:
    """Return lines of scores with another index in some of them.

    Args:
        lines: Whole lines.
        moves: Start and end of a part of them, and what to add to each index there; in order.
    """
    pieces = []
    kept, find = 0, lines.find
    for start, end, by in moves:
        at = find(_INDEX, start, end)
        while at >= 0:
            first = at + len(_INDEX)
            last = find(b",", first)
            pieces.append(lines[kept:first])
            pieces.append(b"%d" % (int(lines[first:last]) + by))
            kept = last
            at = find(_INDEX, last, end)
    pieces.append(lines[kept:])
    return b"".join(pieces)


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
