"""From files to generations: find the format, find the map, stream.

Nothing is lost silently: a line that gives no generation is counted and kept (the first hundred) with its reason.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rewardkit.errors import InputError, MapError, nearest
from rewardkit.records.encoding import check_encoding
from rewardkit.records.fieldmap import ROLES, FieldMap
from rewardkit.records.groups import Groups, digest, group_key, named_group_key, slot_of
from rewardkit.records.guess import Guess, guess, models_of
from rewardkit.records.inputs import Given, Inputs, find_inputs
from rewardkit.records.join import Join, JoinedReader, Table, joined_reader
from rewardkit.records.mapping import FlatMapper, flat_mapper, mapper
from rewardkit.records.paths import EACH, MISSING, STAR, Path, walk, walk_all
from rewardkit.records.rows import (
    BadRow,
    GenerationReader,
    Locator,
    NotGenerations,
    Reader,
    Row,
    open_records,
    registered_readers,
)
from rewardkit.records.source import HEAD, Source
from rewardkit.records.text import shorten, visible
from rewardkit.records.unsure import unsure
from rewardkit.types import Generation

_PEEK = 100  # rows looked at for guessing
_PEEK_CHARACTERS = 32_000_000  # looked at no further than this, so that huge rows do not fill the memory
_PEEK_BAD = 1000  # bad rows without a good one after which the file is taken for something else
BAD_KEPT = 100  # bad rows kept with their reason


class Records:
    """The generations of one file or several, streamed by iterating; iterating again starts again.

    The counts grow while iterating and are complete at its end.

    Attributes:
        source: The input; the first of several.
        inputs: All files, what was given, and what was passed over; None where only a part is read.
        parts: One Records for each file; of a single one, itself.
        total: The number of rows, where the files say it.
        notes: What the user may not expect of the input, each in a sentence.
        format: The reader's name, such as "jsonl"; "" for an empty file. Of several files, the names.
        map: What each field means; empty where the format itself says it.
        guessed: The roles of the map that were guessed; empty (false) when none was.
        columns: The names found in the first rows.
        models: The models met so far.
        rows: Rows that gave generations.
        bad_rows: Lines, or parts of them, that gave none.
        bad: The first hundred of these, with line and reason, and the file where there are several.
        duplicate_ids: Rows whose id was seen before with another prompt or reference: they are kept apart, and
            probably want `--group`.
    """

    def __init__(
        self,
        source: Source,
        format: str = "",
        *,
        unit: str = "line",
        fields: FieldMap | None = None,
        guessed: tuple[str, ...] = (),
        columns: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:
        self.source = source
        self.format = format
        self.unit = unit
        self.map = fields if fields is not None else FieldMap()
        self.guessed = guessed
        self.columns = list(columns)
        self.inputs: Inputs | None = None
        self.total: int | None = None
        self.notes: list[str] = []
        self.joins: list[Join] = []
        self._limit = limit
        self._clear()

    @property
    def parts(self) -> list[Records]:
        """The records of each file."""
        return [self]

    @property
    def by_task(self) -> bool:
        """Whether rows of one prompt with other references stay apart: what `Groups` wants to know.

        So it is where the group was guessed, and where the prompt was named as the group.
        """
        group = self.map.get("group")
        return "group" in self.guessed or (group is not None and group == self.map.get("prompt"))

    @property
    def unjoined(self) -> int:
        """How many rows have found no partner in the joined files so far."""
        return sum(join.missing for join in self.joins)

    def _clear(self) -> None:
        self.rows = self.bad_rows = self.duplicate_ids = 0
        self.bad: list[BadRow] = []
        self.models: list[str] = []
        self._taken = 0  # rows that a limit has let through

    def __iter__(self) -> Iterator[Generation]:
        self._clear()
        for join in self.joins:
            join.found = join.missing = 0
        return self._generate(Groups(by_task=self.by_task))

    def _generate(self, groups: Groups) -> Iterator[Generation]:
        yield from ()

    def _limited(self, rows: Iterator[Any]) -> Iterator[Any]:
        for row in itertools.islice(rows, self._limit):
            self._taken += 1
            yield row

    def describe(self) -> str:
        """Return the map for one line of a terminal, without "guessed"."""
        return self.map.describe()

    def _where(self) -> str:
        return f"{self.source.name}: row " if self.unit == "row" else f"{self.source.name}:"

    def _note_bad(self, line: int, why: str, rows: int = 1) -> None:
        self.bad_rows += rows
        if len(self.bad) < BAD_KEPT:
            self.bad.append(BadRow(line, why))

    def _note_model(self, model: str | None) -> None:
        if model is not None and model not in self.models:
            self.models.append(model)


class RowRecords(Records):
    """Rows that a map turns into generations."""

    _reader: Reader
    _first: Iterator[Row | BadRow] | None
    _relative: FieldMap
    _given: FieldMap
    _stars: list[str]
    _prefix: str = ""

    def release(self) -> None:
        """Let go of the rows that were looked at first, and of the open file; iterating opens it again."""
        self._first = None

    def _generate(self, groups: Groups) -> Iterator[Generation]:
        flat = flat_mapper(self._relative, groups)
        return self._flat(flat, groups) if flat is not None else self._nested(groups)

    def _flat(self, convert: FlatMapper, groups: Groups) -> Iterator[Generation]:
        prefix = self._where()
        for row in self._all_rows():
            if type(row) is Row:
                try:
                    result = convert(row.fields, f"{prefix}{row.line}")
                except RecursionError:
                    result = "nested too deeply"
                if type(result) is Generation:
                    self.rows += 1
                    self.duplicate_ids = groups.duplicate_ids
                    if result.model is not None:
                        self._note_model(result.model)
                    yield result
                else:
                    self._note_bad(row.line, str(result))
            elif isinstance(row, BadRow):
                self._note_bad(row.line, row.why, row.rows)

    def _nested(self, groups: Groups) -> Iterator[Generation]:
        convert = mapper(self._relative, self._stars, groups)
        prefix = self._where()
        for row in self._all_rows():
            if isinstance(row, BadRow):
                self._note_bad(row.line, row.why, row.rows)
                continue
            try:
                results = convert(row, f"{prefix}{row.line}")
            except RecursionError:
                results = ("nested too deeply",)
            good = [result for result in results if isinstance(result, Generation)]
            for result in results:
                if isinstance(result, str):
                    self._note_bad(row.line, result)
            self.rows += bool(good)
            self.duplicate_ids = groups.duplicate_ids
            for generation in good:
                self._note_model(generation.model)
                yield generation

    def _all_rows(self) -> Iterator[Row | BadRow]:
        rows, self._first = self._first, None
        if rows is None:
            rows = _open_rows(self._reader, self.source, self._given)[2]
        return rows if self._limit is None else self._limited(rows)


class OwnRecords(Records):
    """Generations that the reader makes itself."""

    _reader: GenerationReader
    _group: Path | None

    def _generate(self, groups: Groups) -> Iterator[Generation]:
        results = self._reader.generations(self.source)
        for result in results if self._limit is None else self._limited(results):
            if isinstance(result, BadRow):
                self._note_bad(result.line, result.why, result.rows)
                continue
            self.rows += 1
            self._note_model(result.model)
            count = len(result.completions)
            if self._group is not None:
                if self._group.steps == ("prompt",):
                    sample = result.sample
                    key = group_key(result.model, "", sample.step, sample.prompt, sample.reference)
                    start = groups.start(key, key, count)
                    yield Generation(sample, result.completions, result.model, start, result.where, key)
                    continue
                value = walk(_as_fields(result), self._group.steps)
                key = (
                    result.key
                    if value is MISSING or value is None
                    else named_group_key(result.model, result.sample.step, value)
                )
                start = groups.start(key, key, count)
                yield Generation(result.sample, result.completions, result.model, start, result.where, key)
                continue
            sample = result.sample
            slot = slot_of(result.key, result.model, sample.id, sample.step, sample.prompt, sample.reference)
            groups.start(slot, result.key, count)
            self.duplicate_ids = groups.duplicate_ids
            yield result


class ManyRecords(Records):
    """The generations of several files, one after the other; groups may be spread over them."""

    def __init__(self, parts: Sequence[Records], limit: int | None) -> None:
        self._parts = list(parts)
        first = parts[0]
        columns = dict.fromkeys(column for part in parts for column in part.columns)
        formats = dict.fromkeys(part.format for part in parts)
        super().__init__(
            first.source,
            ", ".join(formats),
            unit=first.unit,
            fields=first.map,
            guessed=first.guessed,
            columns=list(columns),
            limit=limit,
        )
        self.joins = list(dict.fromkeys(join for part in parts for join in part.joins))

    @property
    def parts(self) -> list[Records]:
        """The records of each file."""
        return self._parts

    @property
    def by_task(self) -> bool:
        """Whether the group was guessed for some file."""
        return any(part.by_task for part in self._parts)

    def _generate(self, groups: Groups) -> Iterator[Generation]:
        for part in self._parts:
            part._clear()
            part._limit = None if self._limit is None else self._limit - self._taken
            if part._limit is not None and part._limit <= 0:
                return
            before = (self.rows, self.bad_rows)
            for generation in part._generate(groups):
                self.absorb(part, before)
                yield generation
            self.absorb(part, before)
            self._taken += part._taken

    def absorb(self, part: Records, before: tuple[int, int]) -> None:
        """Take over the counts of a part, before which the counts were `before`."""
        new = before[1] + part.bad_rows - self.bad_rows
        self.rows, self.bad_rows = before[0] + part.rows, before[1] + part.bad_rows
        # A part that is no `RowRecords` or `OwnRecords` counts nothing twice: the groups are shared.
        self.duplicate_ids = max(self.duplicate_ids, part.duplicate_ids)
        if new:
            at = len(part.bad) - min(new, len(part.bad))
            named = [BadRow(bad.line, bad.why, part.source.name) for bad in part.bad[at:]]
            self.bad += named[: BAD_KEPT - len(self.bad)]
        if len(part.models) and not set(part.models).issubset(self.models):
            for model in part.models:
                self._note_model(model)


def _as_fields(generation: Generation) -> dict[str, Any]:
    sample = generation.sample
    own = {"id": sample.id, "step": sample.step, "prompt": sample.prompt, "reference": sample.reference}
    return {**own, **sample.metadata}


def read_generations(
    path: Given | Sequence[Given] | Inputs,
    *,
    field_map: FieldMap | None = None,
    readers: Mapping[str, Reader] | None = None,
    limit: int | None = None,
    group: str | None = None,
    spool: str | os.PathLike[str] | None = None,
    allow_empty: bool = False,
    join: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
) -> Records:
    """Open files of saved generations; nothing but their first rows is read before iterating.

    Args:
        path: A file, a glob, a folder, a zip archive, "-" for standard input, a Source, several of these, or what
            `find_inputs` made of them.
        field_map: What is known of the fields; the rest is guessed.
        readers: Formats by name; when not given, rewardkit's own and those of installed plugins.
        limit: Read at most this many rows, bad ones included.
        group: The field that names the group (or a role, such as "prompt").
        spool: Where standard input is copied.
        allow_empty: Return no generations for a file without rows, where otherwise an error is raised.
        join: Files whose columns are added to the rows of the same id: paths, `FILE:column`, or
            `FILE:column=column of the rows`. They are held in memory.

    Raises:
        InputError: No such file, not a format that is known, or no rows in it.
        MapError: A path that no row has, paths that do not fit, or a guess that is not sure; or nothing to join by.
    """
    if readers is None:
        readers = registered_readers()
    inputs = path if isinstance(path, Inputs) else find_inputs(path, readers=readers, spool=spool)
    given = field_map or FieldMap()
    if group is not None:
        given = FieldMap({"group": Path.parse(group)}).over(given)
    wanted = [join] if isinstance(join, (str, os.PathLike)) else list(join)
    opener = _Opener(given, readers, limit, allow_empty, [Table(os.fspath(one), readers) for one in wanted])
    sources = inputs.sources
    records = opener.open(sources[0]) if len(sources) == 1 else _open_several(opener, inputs)
    _check_joins(records)
    records.inputs = inputs
    records.notes = [*inputs.notes(), *opener.notes, *(one.describe() for one in records.joins)]
    if limit is not None and records.total is not None:
        records.total = min(limit, records.total)
    return records


def _check_joins(records: Records) -> None:
    """Raise MapError when no row at all finds a partner; that none of the first does may be chance."""
    for join in records.joins:
        if not join.matches:
            with contextlib.closing(_iterated(records)) as stream:
                while not join.found and next(stream, None) is not None:
                    pass
            if not join.found:
                raise MapError(join.no_match(records.source.name))


def _iterated(records: Records) -> Generator[Generation]:
    yield from records


def _open_several(opener: _Opener, inputs: Inputs) -> Records:
    parts: list[Records] = []
    for source in inputs.sources:
        try:
            part = opener.open(source, parts[0] if parts else None)
        except _Empty:
            inputs.passed.append((source.name, "0 rows"))
            continue
        except (_NoCompletion, NotGenerations) as problem:
            if not inputs.found:
                raise
            bare = isinstance(problem, _NoCompletion)
            inputs.passed.append((source.name, "no text that could be a completion" if bare else "no generations"))
            continue
        except InputError as problem:
            if not inputs.found:
                raise
            hint = f"it was found in {inputs.text}; to leave it out, name the other files or give a glob"
            problem.args = (f"{problem}\n  {hint}", *problem.args[1:])
            raise
        if isinstance(part, RowRecords):
            part.release()  # not a hundred rows and an open file for each of many
        parts.append(part)
    if not parts:
        if opener.allow_empty:
            return Records(inputs.sources[0])
        names = ", ".join(name for name, _ in inputs.passed[-5:])
        raise InputError(f"{inputs.text}: no generations in {names}; --allow-empty accepts that")
    opener.note_maps(parts)
    many = ManyRecords(parts, opener.limit)
    counts = [part.total for part in parts]
    many.total = None if None in counts else sum(count for count in counts if count is not None)
    return many


class _Empty(InputError):
    """A file without rows."""


class _NoCompletion(MapError):
    """One JSON object in which nothing looks like a completion, or rows without any text: figures or settings."""


def _texts(value: Any) -> bool:
    """Whether a value is a text, or holds one."""
    if isinstance(value, dict):
        return any(map(_texts, value.values()))
    return any(map(_texts, value)) if isinstance(value, list) else isinstance(value, str)


class _Opener:
    """Opens one file after the other, all with the same options."""

    def __init__(
        self,
        given: FieldMap,
        readers: Mapping[str, Reader],
        limit: int | None,
        allow_empty: bool,
        tables: Sequence[Table],
    ) -> None:
        self.given = given
        self.readers = readers
        self.limit = limit
        self.allow_empty = allow_empty
        self.tables = tables
        self.joins: list[Join] = []
        self.notes: list[str] = []

    def open(self, source: Source, like: Records | None = None) -> Records:
        """Return a file's records; `like` are those of the first of several, whose map is taken where it fits."""
        if not source.head(4096).strip() and not any(line.strip() for line in source.lines()):
            if self.allow_empty and like is None:
                return Records(source)
            raise _Empty(f"{source.name} is empty: 0 rows; --allow-empty accepts that")
        name, reader = open_records(source, self.readers)
        if b"\x00" not in source.head(4096) or name in _TEXT:
            check_encoding(source, HEAD)
        if isinstance(reader, GenerationReader) and not set(self.given) - {"group"}:
            records = self._open_own(source, name, reader)
        else:
            records = self._open_mapped(source, name, reader, like)
        records.total = _count(reader, source)
        notes = getattr(reader, "notes", None)
        self.notes += [] if notes is None else [note for note in notes(source) if note not in self.notes]
        return records

    def note_maps(self, parts: Sequence[Records]) -> None:
        """Say which files are understood otherwise than the first."""
        usual = parts[0].describe()
        for part in parts[1:]:
            if part.describe() != usual:
                self.notes.append(f"{part.source.name} is read as {part.describe() or part.format}")

    def _open_own(self, source: Source, name: str, reader: Any) -> Records:
        own = OwnRecords(source, name, unit=getattr(reader, "unit", "line"), limit=self.limit)
        own._group = self.given.get("group")
        some = list(itertools.islice(_good_of(reader.generations(source)), _PEEK if self.tables else 1))
        if some:
            own.columns = list(dict.fromkeys(column for one in some for column in _as_fields(one)))
            own.joins = self._bound(source, [_as_fields(one) for one in some], own.columns)
            own.columns += [c for one in own.joins for c in one.table.columns if c not in own.columns]
        own._reader = joined_reader(reader, own.joins)  # type: ignore[assignment]
        if some:
            if own._group is not None and walk(_as_fields(some[0]), own._group.steps) is MISSING:
                raise MapError(_absent(source, "group", own._group, 1, own.columns))
        elif not self.allow_empty:
            bad = list(itertools.islice(_bad_of(reader.generations(source)), 3))
            raise (InputError if bad else _Empty)(_no_rows(source, bad, own.unit))
        return own

    def _bound(self, source: Source, rows: list[dict[str, Any]], columns: list[str]) -> list[Join]:
        """Return the joins for rows that begin like these. The first file decides by which columns."""
        if self.joins and all(join.ours.steps[0] in columns for join in self.joins):
            return self.joins
        joins = [table.bind(rows, columns, source.name) for table in self.tables]
        self.joins = self.joins or joins
        return joins

    def _open_mapped(self, source: Source, name: str, reader: Reader, like: Records | None) -> Records:
        unit = getattr(reader, "unit", "line")
        relative, prefix, rows = _open_rows(reader, source, self.given)
        seen, peek, bad = _peek(rows)
        if any(one.why.startswith("not UTF-8") for one in bad):
            check_encoding(source, 64 * HEAD)
        if not peek:
            if bad or not self.allow_empty or like is not None:
                raise (InputError if bad else _Empty)(_no_rows(source, bad, unit))
            return Records(source, name, unit=unit, limit=self.limit)
        columns = list(dict.fromkeys(column for row in peek for column in row.fields))
        relative = FieldMap({role: _literal(path, columns) for role, path in relative.items()})
        joins: list[Join] = []
        if self.tables:
            own = self._own_completion(peek, relative, unit)
            joins = self._bound(source, [row.fields for row in peek], columns)
            for row in peek:
                for join in joins:
                    join.add(row.fields)
            columns = list(dict.fromkeys(column for row in peek for column in row.fields))
            relative = FieldMap({role: _literal(path, columns) for role, path in relative.items()}).over(own)
        looked = [*peek, *_partners(joins, peek)]
        filled = self._filled(reader, looked, relative, unit, like, (name, prefix, columns))
        if not filled.sure:
            problem = unsure(source.name, filled, peek, unit)
            figures = not any(_texts(row.fields) for row in peek)
            if figures or (name == "json" and len(peek) == 1 and not filled.candidates.get("completion")):
                raise _NoCompletion(str(problem))
            raise problem
        filled = _grouped(reader, source, filled, relative)
        self.notes += [note for note in filled.notes if note not in self.notes]
        fields = _checked(source, filled.map, self.given, looked, columns)
        records = RowRecords(
            source,
            name,
            unit=unit,
            fields=_shown(fields, prefix),
            guessed=filled.guessed,
            columns=columns,
            limit=self.limit,
        )
        records.joins = joins
        records._reader, records._relative, records._given = joined_reader(reader, joins), fields, self.given
        records._prefix = prefix
        records._stars = models_of(peek, fields["completion"])
        _try(source, records, peek)
        every = itertools.chain(seen, rows)
        # The first rows have their columns by now; what is counted is counted while iterating.
        records._first = JoinedReader(reader, joins).joined(every) if joins else every
        return records

    @staticmethod
    def _own_completion(peek: list[Row], relative: FieldMap, unit: str) -> FieldMap:
        """Return the completion as the rows alone have it: a joined file holds none, however it names its columns."""
        if "completion" in relative:
            return FieldMap()
        found = guess(peek, relative, unit)
        path = found.map.get("completion")
        return (
            FieldMap({"completion": path}) if path is not None and "completion" not in found.candidates else FieldMap()
        )

    @staticmethod
    def _filled(
        reader: Reader,
        peek: list[Row],
        relative: FieldMap,
        unit: str,
        like: Records | None,
        looks: tuple[str, str, list[str]],
    ) -> Guess:
        fixed = getattr(reader, "map", None)
        if fixed is not None:
            return Guess(relative.over(fixed), ())
        name, prefix, columns = looks
        alike = isinstance(like, RowRecords) and like.format == name and like._prefix == prefix
        if alike and isinstance(like, RowRecords) and set(like.columns) == set(columns):
            return Guess(like._relative, like.guessed)
        filled = guess(peek, relative, unit)
        if not filled.sure and alike and isinstance(like, RowRecords):
            completion = like._relative["completion"]
            if completion is not None and all(
                path is None or _somewhere(peek, path, completion) for path in like._relative.values()
            ):
                return Guess(like._relative, like.guessed)
        return filled


_FURTHER = 20_000  # rows looked at for prompts that repeat later in the file


def _grouped(reader: Reader, source: Source, filled: Guess, given: FieldMap) -> Guess:
    """Return the guess with the prompt as the group, where ids name rows and prompts repeat only after the first rows.

    So lie the samples of a run that goes through all problems again and again.
    """
    id, prompt = filled.map.get("id"), filled.map.get("prompt")
    plain = all(path is None or all(isinstance(step, str) for step in path.steps) for path in filled.map.values())
    if id is None or prompt is None or "id" not in filled.guessed or "group" in filled.map or not plain:
        return filled
    if isinstance(reader, Locator):  # a document is held whole, and all of its rows were looked at
        return filled
    about = [path for role in ("model", "step", "prompt", "reference") if (path := filled.map.get(role)) is not None]
    ids: set[bytes] = set()
    tasks: set[bytes] = set()
    characters = 0
    for row in itertools.islice(_open_rows(reader, source, given)[2], _FURTHER):
        if isinstance(row, BadRow):
            continue
        name = digest([walk(row.fields, id.steps)])
        if name in ids:
            return filled
        ids.add(name)
        tasks.add(digest([walk(row.fields, path.steps) for path in about]))
        characters += _size(row.fields)
        if characters > _PEEK_CHARACTERS:
            break
    if len(ids) < 4 or 2 * len(tasks) > len(ids):
        return filled
    fields = FieldMap({**filled.map, "group": prompt})
    return msgspec.structs.replace(filled, map=fields, guessed=(*filled.guessed, "group"))


_TEXT = frozenset({"jsonl", "json", "csv"})


def _partners(joins: Sequence[Join], peek: Sequence[Row]) -> list[Row]:
    """Return a row as it will be once it finds its partner, for tables that none of the first rows is in."""
    return [
        Row(peek[0].line, {**join.table.rows[0].fields, **peek[0].fields}, peek[0].outer)
        for join in joins
        if not join.matches
    ]


def _count(reader: Reader, source: Source) -> int | None:
    count = getattr(reader, "count", None)
    return None if count is None else int(count(source))


def _good_of(results: Iterable[Any]) -> Iterator[Generation]:
    return (result for result in results if isinstance(result, Generation))


def _bad_of(results: Iterable[Any]) -> Iterator[BadRow]:
    return (result for result in results if isinstance(result, BadRow))


def _open_rows(reader: Reader, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
    if isinstance(reader, Locator):
        return reader.locate(source, given)
    return given, "", reader.rows(source)


def _peek(rows: Iterator[Row | BadRow]) -> tuple[list[Row | BadRow], list[Row], list[BadRow]]:
    seen: list[Row | BadRow] = []
    good: list[Row] = []
    bad: list[BadRow] = []
    characters = 0
    for row in rows:
        seen.append(row)
        if isinstance(row, BadRow):
            bad.append(row)
            if len(bad) >= _PEEK_BAD and not good:
                break
            continue
        good.append(row)
        characters += _size(row.fields)
        if len(good) >= _PEEK or characters > _PEEK_CHARACTERS:
            break
    return seen, good, bad


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return 8


def _literal(path: Path | None, columns: list[str]) -> Path | None:
    """Return a path `a.b` as the column of that whole name, where there is one (tables flattened by others have it)."""
    if path is None or len(path.steps) < 2 or not all(isinstance(step, str) for step in path.steps):
        return path
    name = ".".join(map(str, path.steps))
    return Path((name,)) if name in columns and path.steps[0] not in columns else path


def _checked(source: Source, fields: FieldMap, given: FieldMap, peek: list[Row], columns: list[str]) -> FieldMap:
    """Return the map after a look at whether each given path is in some row.

    Raises:
        MapError: One is in none.
    """
    completion = fields.get("completion")
    if completion is None:
        raise MapError(f"{source.name}: the map names no completion; fields: {_listing(columns)}")
    changed = dict(fields)
    for role, path in fields.items():
        if path is None or role not in given or _somewhere(peek, path, completion):
            continue
        as_role = str(path)
        if role == "group" and as_role in ROLES and fields.get(as_role) is not None:
            changed[role] = fields[as_role]
        elif role != "error":  # the field of failed rows may be absent from the first hundred
            raise MapError(_absent(source, role, path, len(peek), columns))
    return FieldMap(changed)


def _somewhere(peek: list[Row], path: Path, completion: Path) -> bool:
    steps = path.steps[: path.steps.index(EACH)] if EACH in path.steps else path.steps
    ends = [at + 1 for at, step in enumerate(completion.steps) if step is EACH or step is STAR]
    for row in peek:
        if walk_all(row.fields, steps) or any(walk_all(outer, steps) for outer in row.outer):
            return True
        if any(walk_all(element, steps) for end in ends for element in walk_all(row.fields, completion.steps[:end])):
            return True
    return False


def _absent(source: Source, role: str, path: Path, count: int, columns: list[str]) -> str:
    hint = nearest(str(path), columns)
    rows = "the first row" if count == 1 else f"any of the first {count:,} rows"
    return f"{source.name}: {role}={visible(str(path))} is not in {rows}; fields: {_listing(columns)}{hint}"


def _listing(columns: list[str]) -> str:
    shown = ", ".join(visible(shorten(column, 40)) for column in columns[:30])
    return shown + (f" and {len(columns) - 30} more" if len(columns) > 30 else "")


def _shown(fields: FieldMap, prefix: str) -> FieldMap:
    """Return the map with the completion written from the document's root, the way `--map` accepts it back."""
    completion = fields["completion"]
    if not prefix or completion is None:
        return fields
    return FieldMap({**fields, "completion": Path((*Path.parse(prefix).steps, *completion.steps))})


def _try(source: Source, records: RowRecords, peek: list[Row]) -> None:
    """Map the first rows once for nothing.

    Raises:
        MapError: Not one of them gives a generation, so the map is wrong and not the rows.
    """
    convert = mapper(records._relative, records._stars, Groups())
    marked = records._relative.get("error") is not None
    why = ""
    for row in peek:
        for result in convert(Row(row.line, dict(row.fields), row.outer), ""):
            problem = _unread(result, marked)
            if problem is None:
                return
            why = why or f"{records._where()}{row.line}: {problem}"
    columns = _listing(records.columns)
    raise MapError(f"{why}\n  no row fits the map  {records.describe()}\n  fields: {columns}")


def _unread(result: Generation | str, marked: bool) -> str | None:
    """Return why nothing of a result could be read. Without a field for errors (`marked`) no error is the source's."""
    if isinstance(result, str):
        return result
    errors = [completion.error for completion in result.completions]
    return errors[0] if all(errors) and not marked else None


def _no_rows(source: Source, bad: list[BadRow], unit: str) -> str:
    if not bad:
        return f"{source.name} has 0 rows; --allow-empty accepts that"
    first = "; ".join(f"{unit} {row.line}: {row.why}" for row in bad[:3])
    return f"{source.name}: no row can be read ({first})"
