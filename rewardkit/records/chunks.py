"""A file in pieces that can be read apart from each other, in any process.

`plan_chunks` says whether files can be cut; `ReadPlan` is all that another process needs to read a piece of one;
`cut_files` cuts the decompressed text at line ends, and tables between rows; `ChunkReader` turns pieces into
generations just as `Records` does with a whole file. Only the place of a completion within its group depends on what
came before: a piece counts from 0, and `moves` says by how much each of its groups is to be moved.
"""

from __future__ import annotations

import io
import itertools
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rewardkit.records.archive import ZipMember
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.generations import OwnGenerations, own_generation
from rewardkit.records.groups import Groups
from rewardkit.records.jsonl import JsonLines, objects_of_lines, rows_of_lines
from rewardkit.records.mapping import flat_mapper, mapper
from rewardkit.records.reading import BAD_KEPT, OwnRecords, Records, RowRecords
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import MAX_LINE, Source
from rewardkit.records.table_chunks import BatchReader, cut_table, rows_of_piece
from rewardkit.types import Generation

_CUT = (Source, ZipMember)  # and not a file that is followed while it grows

CHUNK = 512 * 1024
"""Bytes of a piece: some 600 completions, so that what is sent around a piece costs little beside it."""


class Chunk(msgspec.Struct, array_like=True):
    """Whole lines of a file, or rows of a table.

    Attributes:
        part: Which of several files it is of, counted from 0.
        first: Number of the first line, counted from 1.
        end: Number of the line behind the last.
        data: The lines, with their ends; the rows of a table as an Arrow stream.
        rows: Take at most so many rows, bad ones included; None: all.
        damage: Why what is behind these lines cannot be read; "" where that is not so.
        lost: How many rows that are.
    """

    part: int
    first: int
    end: int
    data: bytes
    rows: int | None = None
    damage: str = ""
    lost: int = 1


class ReadPlan(msgspec.Struct):
    """How to read a piece of a file.

    Attributes:
        own: The lines are rewardkit's own generations.
        table: The rows are those of a table.
        prefix: What stands before the line's number where a generation says where it came from.
        fields: Role to path.
        models: The columns that `*` stands for.
        by_task: See `Groups`.
    """

    own: bool
    table: bool
    prefix: str
    fields: dict[str, str | None] = {}
    models: list[str] = []
    by_task: bool = False


def plan_chunks(records: Records) -> list[ReadPlan] | None:
    """Return how pieces of each file are read; None where one of them can only be read as a whole."""
    plans = [_plan(part, records.by_task) for part in records.parts]
    return None if None in plans else [plan for plan in plans if plan is not None]


def _plan(records: Records, by_task: bool) -> ReadPlan | None:
    if type(records.source) not in _CUT:
        return None
    table = isinstance(getattr(records, "_reader", None), BatchReader)
    if type(records) is RowRecords and (table or type(records._reader) is JsonLines):
        fields = {role: None if path is None else str(path) for role, path in records._relative.items()}
        return ReadPlan(False, table, records._where(), fields, list(records._stars), by_task)
    if type(records) is OwnRecords and type(records._reader) is OwnGenerations and records._group is None:
        return ReadPlan(True, False, records._where())
    return None


def cut_files(records: Records) -> Iterator[Chunk]:
    """Yield files in pieces of whole lines, or rows, of about `CHUNK` bytes; a longer line is a piece by itself."""
    limit = records._limit
    for part, one in enumerate(records.parts):
        reader = getattr(one, "_reader", None)
        table = isinstance(reader, BatchReader)
        pieces = _cut_table(one.source, reader) if isinstance(reader, BatchReader) else _cut_lines(one.source)
        for first, end, data, damage, lost in pieces:
            if limit is None:
                yield Chunk(part, first, end, data, None, damage, lost)
            else:
                rows = end - first if table else _count_rows(data)
                most, last = (limit, "") if rows > limit else (None, damage if rows < limit else "")
                yield Chunk(part, first, end, data, most, last, lost)
                limit -= rows + bool(damage)
                if limit <= 0:
                    return


def _cut_table(source: Source, reader: BatchReader) -> Iterator[tuple[int, int, bytes, str, int]]:
    for piece in cut_table(reader.batches(source), CHUNK):
        yield piece.first, piece.first + piece.rows, piece.data, piece.damage, piece.lost


def _cut_lines(source: Source) -> Iterator[tuple[int, int, bytes, str, int]]:
    number = 1
    for data, damage in _whole_lines(source, CHUNK):
        first, number = number, number + data.count(b"\n")
        yield first, number, data, damage, 1


def _count_rows(data: bytes) -> int:
    return sum(not (not line or line.isspace()) for line in data.split(b"\n"))


def _whole_lines(source: Source, size: int) -> Iterator[tuple[bytes, str]]:
    """Yield whole lines, joined, and why nothing more can be read behind them."""
    held: list[bytes] = []  # the beginning of a line whose end was not read yet
    length = 0
    with source.open() as stream:
        # What is buffered, and not so many bytes: of damaged data just as much is given out as when read by lines.
        peek: Callable[[], bytes] = stream.peek  # type: ignore[attr-defined]
        while True:
            try:
                piece = stream.read(min(size, len(peek())))
            except (EOFError, OSError, zlib.error) as problem:
                rest = b"".join(held)  # a line that is cut off is none
                yield _cut_long(rest[: rest.rfind(b"\n") + 1]), f"data is damaged or cut off here: {problem}"
                return
            if not piece:
                break
            end = piece.rfind(b"\n") + 1
            if end and length + end >= size // 2:
                held.append(piece[:end])
                yield _cut_long(b"".join(held)), ""
                held, length = [piece[end:]], len(piece) - end
            elif length <= MAX_LINE or end:
                held.append(piece)
                length += len(piece)
            # What is longer than the longest line is a bad row, whose rest need not be kept.
    if held and (rest := b"".join(held)):
        yield _cut_long(rest), ""


def _cut_long(data: bytes) -> bytes:
    """Cut lines longer than the longest, as `Source.lines` does, so that they are bad rows."""
    if len(data) <= MAX_LINE:
        return data
    return b"\n".join(line[: MAX_LINE + 1] for line in data.split(b"\n"))


class Counts:
    """What was met while reading a piece; the same figures as those of `Records`."""

    def __init__(self) -> None:
        self.rows = self.bad_rows = 0
        self.bad: list[BadRow] = []
        self.models: list[str] = []

    def note_bad(self, line: int, why: str, rows: int = 1) -> None:
        self.bad_rows += rows
        if len(self.bad) < BAD_KEPT:
            self.bad.append(BadRow(line, why))

    def note_model(self, model: str | None) -> None:
        if model is not None and model not in self.models:
            self.models.append(model)


class Onto(Counts):
    """Counts for a whole file while its pieces are read in order."""

    def __init__(self, records: Records) -> None:
        self._records = records

    @property
    def rows(self) -> int:
        return self._records.rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self._records.rows = rows

    def note_bad(self, line: int, why: str, rows: int = 1) -> None:
        self._records._note_bad(line, why, rows)

    def note_model(self, model: str | None) -> None:
        self._records._note_model(model)


class Odd(Exception):
    """A piece that cannot be read apart from those before it."""


class PieceGroups(Groups):
    """Counts within one piece, and remembers which groups there were.

    Attributes:
        keys, slots: Of each group, in order of first appearance.
        completions, rows: How many of each there are of a group.
        of: Which group each generation is of.
    """

    def __init__(self, *, by_task: bool = False) -> None:
        super().__init__(by_task=by_task)
        self.begin()

    def begin(self) -> None:
        """Forget everything, for the next piece."""
        self.keys, self.slots = array("Q"), array("Q")
        self.completions, self.rows = array("Q"), array("Q")
        self.of = array("I")
        self._places: dict[tuple[int, int], int] = {}
        self._last: tuple[str | int, int, int] | None = None
        self._last_place = 0

    def place(
        self,
        model: str | None,
        id: str | int | None,
        step: int | None,
        prompt: Any,
        reference: Any,
        group: Any,
        count: int,
    ) -> tuple[str | int, int, int]:
        """Return id, key and start of `count` completions, as `Groups` does."""
        found = self.identify(model, id, step, prompt, reference, group)
        if found is self._last:  # the same object: nothing has to be looked up
            place = self._last_place
            before = self.completions[place]
            self.completions[place] = before + count
            self.rows[place] += 1
            self.of.append(place)
            return found[0], found[1], before
        before = self.start(found[2], found[1], count)
        self._last, self._last_place = found, self.of[-1]
        return found[0], found[1], before

    def start(self, slot: int, key: int, count: int) -> int:
        """Return how many completions of the group came before in this piece."""
        place = self._places.get((slot, key))
        if place is None:
            place = self._places[slot, key] = len(self.keys)
            self.keys.append(key)
            self.slots.append(slot)
            self.completions.append(count)
            self.rows.append(1)
            self.of.append(place)
            return 0
        before = self.completions[place]
        self.completions[place] = before + count
        self.rows[place] += 1
        self.of.append(place)
        return before


def moves(groups: Groups, slots: array[int], keys: array[int], completions: array[int], rows: array[int]) -> list[int]:
    """Count a piece's groups among those of the whole file; return how many completions of each came before it."""
    found = []
    start = groups.start
    for slot, key, count, times in zip(slots, keys, completions, rows, strict=True):
        twice = groups.duplicate_ids
        found.append(start(slot, key, count))
        if groups.duplicate_ids != twice:
            groups.duplicate_ids += times - 1
    return found


class ChunkReader:
    """Turns pieces of a file into generations.

    Args:
        plan: How.
        groups: Counts; of one piece (`PieceGroups`), or of the whole file where pieces are read in order.
    """

    def __init__(self, plan: ReadPlan, groups: Groups) -> None:
        self._plan = plan
        self._groups = groups
        if not plan.own:
            fields = FieldMap(plan.fields)
            self._flat = flat_mapper(fields, groups)
            self._nested = mapper(fields, plan.models, groups)

    def read(self, chunk: Chunk, counts: Counts) -> Iterator[Generation]:
        """Yield the generations of a piece, in order.

        Raises:
            InputError: A line of rewardkit's own format is of another version.
            Odd: See there; only where pieces are read apart.
        """
        plan = self._plan
        if not plan.own and self._flat is not None:
            objects = _objects_of(chunk) if plan.table else objects_of_lines(io.BytesIO(chunk.data), chunk.first)
            yield from self._read_flat(itertools.islice(objects, chunk.rows), counts)
        else:
            read = rows_of_piece(chunk.data, chunk.first) if plan.table else _rows_of(chunk)
            rows = itertools.islice(read, chunk.rows)
            yield from self._read_own(rows, counts) if plan.own else self._read_nested(rows, counts)
        if chunk.damage:
            counts.note_bad(chunk.end, chunk.damage, chunk.lost)

    def _read_flat(self, rows: Iterator[tuple[int, dict[str, Any] | str]], counts: Counts) -> Iterator[Generation]:
        convert, prefix = self._flat, self._plan.prefix
        assert convert is not None
        for number, fields in rows:
            if type(fields) is dict:
                try:
                    result = convert(fields, f"{prefix}{number}")
                except RecursionError:
                    result = self._too_deep()
                if type(result) is Generation:
                    counts.rows += 1
                    if result.model is not None:
                        counts.note_model(result.model)
                    yield result
                else:
                    counts.note_bad(number, str(result))
            else:
                counts.note_bad(number, str(fields))

    def _read_nested(self, rows: Iterator[Row | BadRow], counts: Counts) -> Iterator[Generation]:
        for row in rows:
            if isinstance(row, BadRow):
                counts.note_bad(row.line, row.why, row.rows)
                continue
            try:
                results = self._nested(row, f"{self._plan.prefix}{row.line}")
            except RecursionError:
                results = (self._too_deep(),)
            good = [result for result in results if isinstance(result, Generation)]
            for result in results:
                if isinstance(result, str):
                    counts.note_bad(row.line, result)
            counts.rows += bool(good)
            for generation in good:
                counts.note_model(generation.model)
                yield generation

    def _read_own(self, rows: Iterator[Row | BadRow], counts: Counts) -> Iterator[Generation]:
        apart = isinstance(self._groups, PieceGroups)
        for row in rows:
            result = own_generation(row, self._plan.prefix, self._groups)
            if isinstance(result, BadRow):
                counts.note_bad(result.line, result.why, result.rows)
                continue
            if apart and (_fields(row).get("start") or _fields(row).get("group") is not None):
                raise Odd("a group that a line names itself")
            counts.rows += 1
            counts.note_model(result.model)
            yield result

    def _too_deep(self) -> str:
        if isinstance(self._groups, PieceGroups):
            raise Odd("nested too deeply")  # what it had counted before is not known
        return "nested too deeply"


def _rows_of(chunk: Chunk) -> Iterator[Row | BadRow]:
    return rows_of_lines(io.BytesIO(chunk.data), chunk.first)


def _objects_of(chunk: Chunk) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for row in rows_of_piece(chunk.data, chunk.first):
        yield row.line, row.fields if isinstance(row, Row) else row.why


def _fields(row: Row | BadRow) -> Mapping[str, Any]:
    return row.fields if isinstance(row, Row) else {}
