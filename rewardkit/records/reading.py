"""From a file to generations: find the format, find the map, stream.

Nothing is lost silently: a line that gives no generation is counted and kept (the first hundred) with its reason.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rewardkit.errors import InputError, MapError, nearest
from rewardkit.records.fieldmap import ROLES, FieldMap
from rewardkit.records.groups import Groups, named_group_key
from rewardkit.records.guess import Guess, guess, models_of, show_rows
from rewardkit.records.mapping import FlatMapper, flat_mapper, mapper
from rewardkit.records.paths import EACH, MISSING, STAR, Path, walk, walk_all
from rewardkit.records.rows import BadRow, GenerationReader, Locator, Reader, Row, open_records
from rewardkit.records.source import Source
from rewardkit.records.text import shorten, visible
from rewardkit.types import Generation

_PEEK = 100  # rows looked at for guessing
_PEEK_CHARACTERS = 32_000_000  # looked at no further than this, so that huge rows do not fill the memory
_PEEK_BAD = 1000  # bad rows without a good one after which the file is taken for something else
_KEPT = 100  # bad rows kept with their reason


class Records:
    """The generations of one file, streamed by iterating; iterating again starts again.

    The counts grow while iterating and are complete at its end.

    Attributes:
        source: The input.
        format: The reader's name, such as "jsonl"; "" for an empty file.
        map: What each field means; empty where the format itself says it.
        guessed: The roles of the map that were guessed; empty (false) when none was.
        columns: The names found in the first rows.
        models: The models met so far.
        rows: Rows that gave generations.
        bad_rows: Lines, or parts of them, that gave none.
        bad: The first hundred of these, with line and reason.
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
        self._limit = limit
        self._clear()

    def _clear(self) -> None:
        self.rows = self.bad_rows = self.duplicate_ids = 0
        self.bad: list[BadRow] = []
        self.models: list[str] = []

    def __iter__(self) -> Iterator[Generation]:
        self._clear()
        yield from ()

    def describe(self) -> str:
        """Return the map for one line of a terminal, without "guessed"."""
        return self.map.describe()

    def _where(self) -> str:
        return f"{self.source.name}: row " if self.unit == "row" else f"{self.source.name}:"

    def _note_bad(self, line: int, why: str) -> None:
        self.bad_rows += 1
        if len(self.bad) < _KEPT:
            self.bad.append(BadRow(line, why))

    def _note_model(self, model: str | None) -> None:
        if model is not None and model not in self.models:
            self.models.append(model)


class _RowRecords(Records):
    """Rows that a map turns into generations."""

    _reader: Reader
    _first: Iterator[Row | BadRow] | None
    _relative: FieldMap
    _given: FieldMap
    _stars: list[str]

    def __iter__(self) -> Iterator[Generation]:
        self._clear()
        groups = Groups(by_task="group" in self.guessed)
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
                self._note_bad(row.line, row.why)

    def _nested(self, groups: Groups) -> Iterator[Generation]:
        convert = mapper(self._relative, self._stars, groups)
        prefix = self._where()
        for row in self._all_rows():
            if isinstance(row, BadRow):
                self._note_bad(row.line, row.why)
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
        return rows if self._limit is None else itertools.islice(rows, self._limit)


class _OwnRecords(Records):
    """Generations that the reader makes itself."""

    _reader: GenerationReader
    _group: Path | None

    def __iter__(self) -> Iterator[Generation]:
        self._clear()
        groups = Groups()
        for result in itertools.islice(self._reader.generations(self.source), self._limit):
            if isinstance(result, BadRow):
                self._note_bad(result.line, result.why)
                continue
            self.rows += 1
            self._note_model(result.model)
            count = len(result.completions)
            if self._group is not None:
                value = walk(_as_fields(result), self._group.steps)
                key = (
                    result.key
                    if value is MISSING or value is None
                    else named_group_key(result.model, result.sample.step, value)
                )
                start = groups.start(result.model, f"{key:x}", None, key, count)
                yield Generation(result.sample, result.completions, result.model, start, result.where, key)
                continue
            groups.start(result.model, result.sample.id, result.sample.step, result.key, count)
            self.duplicate_ids = groups.duplicate_ids
            yield result


def _as_fields(generation: Generation) -> dict[str, Any]:
    sample = generation.sample
    own = {"id": sample.id, "step": sample.step, "prompt": sample.prompt, "reference": sample.reference}
    return {**own, **sample.metadata}


def read_generations(
    path: str | os.PathLike[str] | Source,
    *,
    field_map: FieldMap | None = None,
    readers: Mapping[str, Reader] | None = None,
    limit: int | None = None,
    group: str | None = None,
    spool: str | os.PathLike[str] | None = None,
    allow_empty: bool = False,
) -> Records:
    """Open a file of saved generations; nothing but its first rows is read before iterating.

    Args:
        path: A file, "-" for standard input, or a Source.
        field_map: What is known of the fields; the rest is guessed.
        readers: Formats by name; rewardkit's own when not given.
        limit: Read at most this many rows, bad ones included.
        group: The field that names the group (or a role, such as "prompt").
        spool: Where standard input is copied.
        allow_empty: Return no generations for a file without rows, where otherwise an error is raised.

    Raises:
        InputError: No such file, not a format that is known, or no rows in it.
        MapError: A path that no row has, paths that do not fit, or a guess that is not sure.
    """
    source = path if isinstance(path, Source) else Source(path, spool=spool)
    given = field_map or FieldMap()
    if group is not None:
        given = FieldMap({"group": Path.parse(group)}).over(given)
    if not source.head(4096).strip() and not any(line.strip() for line in source.lines()):
        if allow_empty:
            return Records(source)
        raise InputError(f"{source.name} is empty: 0 rows; --allow-empty accepts that")
    name, reader = open_records(source, readers)
    if isinstance(reader, GenerationReader) and not set(given) - {"group"}:
        own = _OwnRecords(source, name, unit=getattr(reader, "unit", "line"), limit=limit)
        own._reader, own._group = reader, given.get("group")
        first = next((g for g in reader.generations(source) if isinstance(g, Generation)), None)
        if first is not None:
            own.columns = list(_as_fields(first))
            if own._group is not None and walk(_as_fields(first), own._group.steps) is MISSING:
                raise MapError(_absent(source, "group", own._group, 1, own.columns))
        elif not allow_empty:
            raise InputError(_no_rows(source, list(itertools.islice(_bad_of(reader.generations(source)), 3)), "line"))
        return own
    return _open_mapped(source, name, reader, given, limit, allow_empty)


def _bad_of(results: Iterable[Any]) -> Iterator[BadRow]:
    return (result for result in results if isinstance(result, BadRow))


def _open_rows(reader: Reader, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
    if isinstance(reader, Locator):
        return reader.locate(source, given)
    return given, "", reader.rows(source)


def _open_mapped(
    source: Source, name: str, reader: Reader, given: FieldMap, limit: int | None, allow_empty: bool
) -> Records:
    unit = getattr(reader, "unit", "line")
    relative, prefix, rows = _open_rows(reader, source, given)
    seen, peek, bad = _peek(rows)
    if not peek:
        if bad or not allow_empty:
            raise InputError(_no_rows(source, bad, unit))
        return Records(source, name, unit=unit, limit=limit)
    columns = list(dict.fromkeys(column for row in peek for column in row.fields))
    relative = FieldMap({role: _literal(path, columns) for role, path in relative.items()})
    fixed = getattr(reader, "map", None)
    filled = Guess(relative.over(fixed), ()) if fixed is not None else guess(peek, relative, unit)
    if not filled.sure:
        raise MapError(_unsure(source, filled, peek, columns, unit))
    fields = _checked(source, filled.map, given, peek, columns)
    records = _RowRecords(
        source,
        name,
        unit=unit,
        fields=_shown(fields, prefix),
        guessed=filled.guessed,
        columns=columns,
        limit=limit,
    )
    records._reader, records._relative, records._given = reader, fields, given
    records._stars = models_of(peek, fields["completion"])
    _try(source, records, peek)
    records._first = itertools.chain(seen, rows)
    return records


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


def _try(source: Source, records: _RowRecords, peek: list[Row]) -> None:
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


def _unsure(source: Source, filled: Guess, peek: list[Row], columns: list[str], unit: str) -> str:
    why = "; ".join(filled.why)
    example = []
    for role, paths in filled.candidates.items():
        example.append(f"{role}={paths[0]}" if paths else f"{role}=FIELD")
    return "\n".join(
        [
            f"{source.name}: which field means what is not clear: {why}",
            f"  fields: {_listing(columns)}",
            *(f"  {role}: {' or '.join(map(visible, paths))}" for role, paths in filled.candidates.items() if paths),
            show_rows(peek, unit),
            f"  say which, for example: --map {','.join(example)}",
        ]
    )
