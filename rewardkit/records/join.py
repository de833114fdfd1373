"""Columns of another file, joined to rows by an id: gold answers for outputs, requests for a batch's responses.

The other file is held in memory, as a dict from id to columns. A row's own columns win over joined ones of the same
name. Ids 1 and "1" differ, unless all ids of one side are whole numbers written as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from rewardkit.errors import InputError, MapError, nearest
from rewardkit.records import names
from rewardkit.records.chat import is_chat
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.groups import group_key
from rewardkit.records.jsonl import describe
from rewardkit.records.paths import MISSING, Path, walk
from rewardkit.records.rows import BadRow, GenerationReader, Locator, Reader, Row, open_records
from rewardkit.records.source import Source
from rewardkit.records.text import path_text, shorten, visible
from rewardkit.types import Generation, Sample

Key: TypeAlias = str | int

KEYS = (*names.flat(names.ID), "index", "qid", "key", "name")
"""Columns by which files are joined when none is named, best first."""

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
# Where the requests of an OpenAI batch have their prompt.
_PROMPTS = (
    *((name,) for name in names.flat(names.PROMPT)),
    ("body", "messages"),
    ("body", "input"),
    ("body", "prompt"),
)
_REFERENCES = (*names.NESTED_REFERENCE, *((name,) for name in names.flat(names.REFERENCE)))


class Table:
    """A file whose columns are joined to rows.

    Attributes:
        name: For messages.
        rows: Its rows, with their lines.
        theirs, ours: The columns that were named: of this file, and of the rows; None when they are to be found.

    Args:
        given: A path, `FILE:column`, or `FILE:column=column of the rows`.

    Raises:
        InputError: The file cannot be read, has no rows, or bad ones.
        MapError: It lacks the column.
    """

    def __init__(self, given: str | FilePath, readers: Mapping[str, Reader] | None = None) -> None:
        path, self.theirs, self.ours = _parse(str(given))
        self.source = Source(path)
        self.name = self.source.name
        name, reader = open_records(self.source, readers)
        self.unit: str = getattr(reader, "unit", "line")
        self.rows: list[Row] = []
        found = reader.locate(self.source, FieldMap())[2] if isinstance(reader, Locator) else reader.rows(self.source)
        for row in found:
            if isinstance(row, BadRow):
                raise InputError(f"{self.name}: {self.unit} {row.line}: {row.why}; a file that is joined must be whole")
            self.rows.append(row)
        self.rows = _by_id(self.rows)
        if not self.rows:
            raise InputError(f"{self.name} has 0 rows, so there is nothing to join ({name})")
        self.columns = list(dict.fromkeys(column for row in self.rows for column in row.fields))

    def bind(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> Join:
        """Return the join with rows that begin like these.

        Raises:
            MapError: No column to join by, or one id for two unlike rows.
        """
        best: Join | None = None
        for theirs, ours in self._pairs(columns, where):
            keys = [key for row in self.rows if (key := _key(walk(row.fields, theirs.steps))) is not None]
            mine = [key for fields in rows if (key := _key(walk(fields, ours.steps))) is not None]
            turn = _turn(mine, keys)
            known = set(keys)
            matches = sum(_turned(key, turn) in known for key in mine)
            if best is None or matches > best.matches:
                best = Join(self, theirs, ours, turn, matches, mine[:3], keys[:3])
        if best is None:
            raise MapError(
                f"{self.name} and {where} have no id column of one name; say which to join by, for example "
                f"--join {self.name}:COLUMN=COLUMN_OF_THE_ROWS\n  {self.name}: {_listing(self.columns)}\n"
                f"  {where}: {_listing(columns)}"
            )
        best.index()
        return best

    def _pairs(self, columns: Sequence[str], where: str) -> Iterator[tuple[Path, Path]]:
        if self.theirs is None:
            yield from ((Path((key,)), Path((key,))) for key in KEYS if key in self.columns and key in columns)
            return
        theirs, ours = self.theirs, self.ours or self.theirs
        if not _has(self.columns, theirs) and _has(self.columns, ours) and _has(columns, theirs):
            theirs, ours = ours, theirs  # written the other way round
        for have, path, place in ((self.columns, theirs, self.name), (columns, ours, where)):
            if not _has(have, path):
                hint = nearest(str(path), have)
                raise MapError(f"--join: {place} has no column {visible(str(path))}; columns: {_listing(have)}{hint}")
        yield theirs, ours


class Join:
    """A table bound to rows by a column of each.

    Attributes:
        matches: How many of the first rows found their partner.
        found, missing: How many rows had one, and had none, since the records were begun.
    """

    def __init__(
        self, table: Table, theirs: Path, ours: Path, turn: str, matches: int, mine: list[Key], keys: list[Key]
    ) -> None:
        self.table, self.theirs, self.ours, self.turn, self.matches = table, theirs, ours, turn, matches
        self.examples = (mine, keys)
        self.found = self.missing = 0
        self._rows: dict[Key, dict[str, Any]] = {}

    def index(self) -> None:
        """Build the dict from id to columns.

        Raises:
            MapError: One id for two unlike rows.
        """
        lines: dict[Key, int] = {}
        for row in self.table.rows:
            key = _key(walk(row.fields, self.theirs.steps))
            if key is None:
                continue
            known = self._rows.setdefault(key, row.fields)
            if known is not row.fields and known != row.fields:
                raise MapError(
                    f"{self.table.name}: {self.table.unit}s {lines[key]} and {row.line} both have "
                    f"{visible(str(self.theirs))} {_example(key)}, and differ; which one to join is not clear"
                )
            lines.setdefault(key, row.line)

    def describe(self) -> str:
        """Return what is joined, in one sentence."""
        by = str(self.theirs) if self.theirs == self.ours else f"{self.theirs}={self.ours}"
        how = {"": "", "whole": " (whole numbers as text in the rows, numbers there)"}
        how["text"] = " (numbers in the rows, whole numbers as text there)"
        return f"joined {self.table.name} by {visible(by)}{how[self.turn]}"

    def no_match(self, where: str) -> str:
        """Return the message for rows of which none found a partner."""
        mine, keys = self.examples
        kinds = ""
        if {type(key) for key in mine} != {type(key) for key in keys} and mine and keys:
            kinds = " (a number and a text differ)"
        return (
            f"--join {self.table.name}: no row finds its partner there{kinds}\n"
            f"  {where}: {self.ours} is {', '.join(map(_example, mine)) or 'never given'}\n"
            f"  {self.table.name}: {self.theirs} is {', '.join(map(_example, keys)) or 'never given'}\n"
            f"  other columns can be named: --join {self.table.name}:COLUMN=COLUMN_OF_THE_ROWS"
        )

    def find(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the columns for a row, or None."""
        key = _key(walk(fields, self.ours.steps))
        return None if key is None else self._rows.get(_turned(key, self.turn))

    def add(self, fields: dict[str, Any]) -> None:
        """Add the columns that a row lacks."""
        found = self.find(fields)
        if found is None:
            self.missing += 1
            return
        self.found += 1
        for name, value in found.items():
            fields.setdefault(name, value)

    def add_to(self, generation: Generation) -> Generation:
        """Return a generation with the columns that it lacks, and prompt and reference where it has none."""
        sample = generation.sample
        own = {"id": sample.id, "step": sample.step, **sample.metadata}
        found = self.find(own)
        if found is None:
            self.missing += 1
            return generation
        self.found += 1
        metadata = {name: value for name, value in found.items() if name not in own} | sample.metadata
        prompt, reference = sample.prompt, sample.reference
        if not prompt:
            prompt = _first(found, _PROMPTS, lambda value: isinstance(value, str) or is_chat(value)) or prompt
        if reference is None:
            reference = _first(found, _REFERENCES, lambda value: True)
        model, key = generation.model, generation.key
        if key == group_key(model, sample.id, sample.step, sample.prompt, sample.reference):
            key = group_key(model, sample.id, sample.step, prompt, reference)
        joined = Sample(sample.id, prompt, reference, metadata, sample.step)
        return Generation(joined, generation.completions, model, generation.start, generation.where, key)


class JoinedReader:
    """A reader whose rows have the columns of the joined tables too. `inner` is the one that reads the file."""

    def __init__(self, inner: Reader, joins: Sequence[Join]) -> None:
        self.inner = inner
        self.joins = list(joins)
        self.unit: str = getattr(inner, "unit", "line")
        self.map: FieldMap | None = getattr(inner, "map", None)

    def detect(self, name: str, head: bytes) -> int:
        """Say what the reader inside says."""
        return self.inner.detect(name, head)

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the rows with the joined columns."""
        return self.joined(self.inner.rows(source))

    def locate(self, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
        """Return what the reader inside finds, the rows with the joined columns."""
        if isinstance(self.inner, Locator):
            relative, prefix, rows = self.inner.locate(source, given)
            return relative, prefix, self.joined(rows)
        return given, "", self.rows(source)

    def joined(self, rows: Iterable[Row | BadRow]) -> Iterator[Row | BadRow]:
        """Yield rows with the joined columns."""
        for row in rows:
            if isinstance(row, Row):
                for join in self.joins:
                    join.add(row.fields)
            yield row


class JoinedGenerations(JoinedReader):
    """The same for a reader that makes whole generations."""

    inner: Any

    def generations(self, source: Source) -> Iterator[Generation | BadRow]:
        """Yield the generations with the joined columns."""
        for result in self.inner.generations(source):
            if isinstance(result, Generation):
                for join in self.joins:
                    result = join.add_to(result)
            yield result


def joined_reader(reader: Reader, joins: Sequence[Join]) -> Reader:
    """Return a reader with joined columns; the same one when there are none."""
    if not joins:
        return reader
    return JoinedGenerations(reader, joins) if isinstance(reader, GenerationReader) else JoinedReader(reader, joins)


def _parse(given: str) -> tuple[str, Path | None, Path | None]:
    if FilePath(given).exists():
        return given, None, None
    file, colon, columns = given.rpartition(":")
    if not colon or not file or not FilePath(file).exists():
        return given, None, None  # what is wrong with the path is said when it is opened
    theirs, equals, ours = columns.partition("=")
    if not theirs.strip() or (equals and not ours.strip()):
        raise MapError(f"--join {path_text(given)}: write FILE, FILE:column or FILE:column=column of the rows")
    return file, Path.parse(theirs.strip()), Path.parse(ours.strip()) if equals else None


def _by_id(rows: list[Row]) -> list[Row]:
    """Return the rows of a document `{"q1": {...}, "q2": {...}}`, which reads as one row; other rows as they are."""
    if len(rows) == 1 and len(rows[0].fields) > 1 and all(isinstance(value, dict) for value in rows[0].fields.values()):
        return [Row(at, {"id": name, **value}) for at, (name, value) in enumerate(rows[0].fields.items(), 1)]
    return rows


def _has(columns: Sequence[str], path: Path) -> bool:
    return path.steps[0] in columns


def _key(value: Any) -> Key | None:
    """Return a value as a key; None for what is none. True and 1, and 1.0 and 1, are one key of a dict in Python."""
    if type(value) is str or type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    return None


def _turn(mine: Sequence[Key], keys: Sequence[Key]) -> str:
    """Return how the rows' keys are to be turned: "whole", into numbers; "text", into text; or ""."""
    if not mine or not keys:
        return ""
    if all(type(key) is int for key in keys) and all(map(_is_whole, mine)):
        return "whole"
    return "text" if all(type(key) is int for key in mine) and all(map(_is_whole, keys)) else ""


def _is_whole(key: Key) -> bool:
    return isinstance(key, str) and _WHOLE.fullmatch(key) is not None


def _turned(key: Key, turn: str) -> Key:
    if turn == "whole" and _is_whole(key):
        return int(key)
    return str(key) if turn == "text" and type(key) is int else key


def _first(found: Mapping[str, Any], paths: Iterable[tuple[str, ...]], fits: Any) -> Any:
    for steps in paths:
        value = walk(found, steps)
        if value is not MISSING and value is not None and fits(value):
            return value
    return None


def _example(key: Key) -> str:
    return describe(key) if isinstance(key, str) else str(key)


def _listing(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - 30} more" if len(columns) > 30 else ""
    return ", ".join(visible(shorten(column, 40)) for column in columns[:30]) + more
