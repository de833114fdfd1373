"""One JSON document: a list of rows, or rows somewhere inside an object.

What an object may be, tried in this order:
- columns: two or more lists of equal length, `{"question": [...], "answer": [...]}`;
- columns by key: `{"response": {"q1": ..., "q2": ...}, "gold": {"q1": ..., "q2": ...}}` (pandas writes this);
- rows by id: `{"q1": {"question": ..., "response": ...}, ...}`, `{"q1": ["first answer", "second answer"], ...}` or
  `{"q1": [{"solution": ...}, {"solution": ...}], ...}`, at the top or in one field of the document;
- nested: a list of objects further inside, `{"categories": [{"datasets": [{"results": [...]}]}]}`: the outermost
  whose objects look like generations, or have the completion path that was given; two such lists are an error that
  asks which;
- else the object is one row.
The whole document is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from rewardkit.errors import InputError, MapError
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.jsonl import NotJson, describe, parse_json
from rewardkit.records.names import ID, flat, has_output, is_known, is_output_list, looks_like_row, spelled
from rewardkit.records.paths import EACH, Path, Step, walk_all
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.text import visible

Outer: TypeAlias = tuple[dict[str, Any], ...]  # the objects around a value, innermost first

_SCALARS = (str, int, float, bool, type(None))
_OWN = flat(ID[:1] + ID[2:])  # task_id is repeated in each of a task's completions


class JsonDocument:
    """Reader of JSON documents."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the name and by a beginning that is not one whole object a line."""
        start = head.lstrip()
        if not start.startswith((b"{", b"[")):
            return 50 if name.endswith(".json") else 0
        first, _, rest = start.partition(b"\n")
        try:
            parse_json(first)
        except NotJson:
            # A first line that goes on below (or beyond the head) is a document, unless the name says lines.
            return 85 if first.strip() in (b"{", b"[", b"[{") else 70
        return 0 if rest.strip() else 60

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the rows found inside the document."""
        return self.locate(source, FieldMap())[2]

    def locate(self, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
        """Return the map relative to the rows, the path of the rows, and the rows.

        A completion path that is written from the document's root decides where the rows are.

        Raises:
            InputError: The document is not JSON, or is a single value.
        """
        try:
            document = parse_json(source.read().strip())
        except NotJson as problem:
            hint = "if it holds one object a line, name it .jsonl"
            raise InputError(f"{source.name}:{problem.line}: {problem}; {hint}") from None
        completion = given.get("completion")
        prefix = _row_prefix(document, completion.steps) if completion else None
        if prefix is not None:
            relative = {role: _relative(path, prefix) for role, path in given.items()}
            return FieldMap(relative), _prefix_text(prefix), _numbered(_at(document, prefix))
        prefix, rows = _find(document, source.name, completion)
        return given, _prefix_text(prefix), _numbered(rows)


def _numbered(rows: Iterator[tuple[Any, Outer]]) -> Iterator[Row | BadRow]:
    for number, (fields, outer) in enumerate(rows, 1):
        if isinstance(fields, dict):
            yield Row(number, fields, outer)
        else:
            yield BadRow(number, f"not an object: {describe(fields)}")


def _prefix_text(prefix: tuple[Step, ...]) -> str:
    return "" if prefix in ((), (EACH,)) else str(Path(prefix))


def _row_prefix(document: Any, steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """Return what of a completion path, written from the root, leads to the rows; None when it is relative to them."""
    ends = [at + 1 for at, step in enumerate(steps) if step is EACH]
    if not ends or next(_at(document, steps), None) is None:
        return None
    if len(ends) > 1:
        return steps[: ends[-2]]
    rows = steps[: ends[0]]
    if all(isinstance(row, dict) and len(steps) > len(rows) for row, _ in _at(document, rows)):
        return rows
    return None if isinstance(document, list) else ()


def _relative(path: Path | None, prefix: tuple[Step, ...]) -> Path | None:
    inside = path is not None and len(path.steps) > len(prefix) and path.steps[: len(prefix)] == prefix
    return Path(path.steps[len(prefix) :]) if path is not None and inside else path


def _at(value: Any, steps: tuple[Step, ...], outer: Outer = ()) -> Iterator[tuple[Any, Outer]]:
    """Yield the values at `steps`, each with the objects around it, innermost first."""
    if not steps:
        yield value, outer
        return
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if isinstance(value, dict) and step in value:
            yield from _at(value[step], rest, (value, *outer))
    elif isinstance(value, list):
        if step is EACH:
            for item in value:
                yield from _at(item, rest, outer)
        elif isinstance(step, int) and -len(value) <= step < len(value):
            yield from _at(value[step], rest, outer)


def _find(document: Any, name: str, completion: Path | None) -> tuple[tuple[Step, ...], Iterator[tuple[Any, Outer]]]:
    if isinstance(document, list):
        return (EACH,), _at(document, (EACH,))
    if not isinstance(document, dict):
        raise InputError(f"{name} holds {describe(document)}; wanted a list of rows, or an object with rows inside")
    turned = _columns(document) or _keyed(document) or _inner(document)
    if turned is not None:
        return (), ((row, (document,)) for row in turned)
    fits = looks_like_row if completion is None else partial(_has, completion)
    prefix = _nested(document, name, fits)
    return prefix, _at(document, prefix)


def _columns(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    if len(lists) < 2 or len(lists) < len(document):
        return None
    lengths = {len(values) for values in lists.values()}
    if len(lengths) != 1 or lengths == {0}:
        return None
    if all(isinstance(item, dict) for values in lists.values() for item in values):
        return None  # lists of objects: {"train": [...], "test": [...]}
    if not is_known(lists) and all(map(_texts, lists.values())):
        return None  # names that mean nothing, over texts: ids of samples
    return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]


def _keyed(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    objects = {name: value for name, value in document.items() if isinstance(value, dict) and value}
    others = [value for name, value in document.items() if name not in objects]
    if objects and all(isinstance(value, _SCALARS) for value in others):
        if not others and all(has_output(value) for value in objects.values()):
            return [{"id": name, **value} for name, value in objects.items()]
        keys = next(iter(objects.values())).keys()
        if len(keys) > 1 and has_output(objects) and all(value.keys() == keys for value in objects.values()):
            return [_keyed_row(objects, key, len(keys)) for key in keys]
    lists = [value for value in document.values() if isinstance(value, list)]
    if len(lists) == len(document) > 1 and not has_output(document) and all(_texts(value) for value in lists):
        return [{"id": name, "completions": value} for name, value in document.items()]
    if len(lists) == len(document) > 1 and not is_known(document) and all(map(_alternatives, lists)):
        return [{"id": name, "completions": value} for name, value in document.items()]
    return None


def _alternatives(value: list[Any]) -> bool:
    """Whether a list holds completions of one task, as objects that name no task of their own."""
    return _objects(value) and is_output_list(value) and not any(spelled(item, name) for item in value for name in _OWN)


def _inner(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows by id that one field of a document holds, what else is in it being scalars."""
    objects = {name: value for name, value in document.items() if isinstance(value, dict) and len(value) > 1}
    found = []
    for value in objects.values():
        inside = {name: item for name, item in value.items() if not isinstance(item, _SCALARS)}
        turned = _keyed(inside) if len(inside) > 1 else None
        if turned is not None:
            found.append(turned)
    return found[0] if len(found) == 1 else None


def _keyed_row(columns: dict[str, Any], key: str, count: int) -> dict[str, Any]:
    position = key.isascii() and key.isdigit() and int(key) < count and len(key) < 20  # pandas; a position is no id
    id = {} if position or "id" in columns else {"id": key}
    return id | {name: cells[key] for name, cells in columns.items()}


def _texts(value: list[Any]) -> bool:
    return bool(value) and all(item is None or isinstance(item, str) for item in value)


def _has(path: Path, values: list[Any]) -> bool:
    return any(walk_all(value, path.steps) for value in values)


def _nested(document: dict[str, Any], name: str, fits: Callable[[list[Any]], bool]) -> tuple[Step, ...]:
    """Return the path of the outermost list whose objects fit, else of the first list of objects, else ()."""
    level: list[tuple[Step, ...]] = [()]
    fallback: tuple[Step, ...] = ()
    for _ in range(8):
        below: list[tuple[Step, ...]] = []
        matching: list[tuple[Step, ...]] = []
        for path in level:
            found = [value for value, _ in _at(document, path)]
            if not path and fits(found):
                return path
            if path and path[-1] is EACH and found:
                if fits(found):
                    matching.append(path)
                fallback = fallback or path
            for key in _names(found):
                inside = [value[key] for value in found if isinstance(value, dict) and key in value]
                if any(isinstance(value, dict) for value in inside):
                    below.append((*path, key))
                if any(_objects(value) for value in inside):
                    below.append((*path, key, EACH))
        if len(matching) > 1:
            places = [visible(str(Path(path))) for path in matching[:5]]
            raise MapError(
                f"{name} holds generations in {' and '.join(places)}; say which, for example: "
                f"--map completion={places[0]}.response"
            )
        if matching:
            return matching[0]
        level = below[:1000]
    return fallback


def _names(values: list[Any]) -> list[str]:
    names: dict[str, None] = {}
    for value in values[:100]:
        if isinstance(value, dict):
            names.update(dict.fromkeys(list(value)[:200]))
    return list(names)


def _objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value[:100])


READER = JsonDocument()
