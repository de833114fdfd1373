"""What the readers of tools' JSONL logs have in common: from a line's fields to generations, safely.

A format is a class with two methods: `claims`, whether the fields of a file's first row are this tool's, and `read`,
what one row means. Everything else (bad lines, keys, places in groups, which label a file has) is here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import msgspec

from rewardkit.records.chat import NoText
from rewardkit.records.groups import Groups
from rewardkit.records.jsonl import READER as JSON_LINES
from rewardkit.records.jsonl import NotJson, describe, parse_json, parse_line
from rewardkit.records.mapping import as_json
from rewardkit.records.names import REFERENCE, flat
from rewardkit.records.paths import MISSING
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import HEAD, Source
from rewardkit.types import Completion, Generation, Sample

SURE = 97  # above plain JSONL (80 or 90), below rewardkit's own format (100)
_PEEK = 100  # rows looked at before the first is passed on, to see whether the scores are verdicts


class Unread(ValueError):
    """A row that gives no generation; the message says why in a few words."""


class Found(NamedTuple):
    """What a row says: completions of one sample. A completion's `label` is dropped where it is no verdict."""

    completions: tuple[Completion, ...]
    id: str | int | None = None
    prompt: Any = ""
    reference: Any = None
    metadata: Mapping[str, Any] = MappingProxyType({})
    step: int | None = None
    group: Any = MISSING


class LineFormat(ABC):
    """A tool's JSONL format whose fields have fixed meanings."""

    unit: ClassVar[str] = "line"

    @abstractmethod
    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Say whether the first row is this tool's; `cut`: it is longer than the head, and its end is missing."""

    @abstractmethod
    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return what a row says. Whoever calls gives `fields` away.

        Raises:
            Unread: The row gives nothing.
        """

    def detect(self, name: str, head: bytes) -> int:
        """Go by the fields of the first row, whatever the file is called."""
        fields, cut = first_row(head)
        return SURE if fields and self.claims(fields, cut) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the lines as plain rows, for a map that overrides what the fields mean."""
        return JSON_LINES.rows(source)

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the rows of a file say, each with its line."""
        for row in self.rows(source):
            yield from read_row(row, self.read)

    def generations(self, source: Source) -> Iterator[Generation | BadRow]:
        """Yield generations with key and start."""
        groups = Groups()
        results = self.found(source)
        first = list(islice(results, _PEEK))
        verdicts = all(map(_has_verdicts, first))
        for result in chain(first, results):
            if isinstance(result, BadRow):
                yield result
                continue
            line, found = result
            completions = tuple(completion if verdicts and _is_verdict(completion) else without_label(completion)
                                for completion in found.completions)  # fmt: skip
            try:
                id, key, start = groups.place(
                    None, found.id, found.step, found.prompt, found.reference, found.group, len(completions)
                )
            except RecursionError:
                yield BadRow(line, "nested too deeply")
                continue
            sample = Sample(id, found.prompt, found.reference, dict(found.metadata), found.step)
            yield Generation(sample, completions, None, start, f"{source.name}:{line}", key)


def read_row(row: Row | BadRow, read: Any) -> Iterator[tuple[int, Found] | BadRow]:
    """Yield what `read` finds in a row, or the bad row that it is."""
    if isinstance(row, BadRow):
        yield row
        return
    try:
        for found in read(row.fields):
            yield row.line, found
    except (Unread, NoText) as problem:
        yield BadRow(row.line, str(problem))
    except RecursionError:
        yield BadRow(row.line, "nested too deeply")


def _has_verdicts(result: tuple[int, Found] | BadRow) -> bool:
    return isinstance(result, BadRow) or all(map(_is_verdict, result[1].completions))


def _is_verdict(completion: Completion) -> bool:
    """Whether a completion's label, where it has one, is a mark from 0 to 1."""
    label = completion.metadata.get("label", 0)
    return isinstance(label, (bool, int, float)) and 0 <= label <= 1


def without_label(completion: Completion) -> Completion:
    """Return a completion less its label."""
    if "label" not in completion.metadata:
        return completion
    metadata = {name: value for name, value in completion.metadata.items() if name != "label"}
    return msgspec.structs.replace(completion, metadata=metadata)


def folder_of(source: Source) -> FilePath | None:
    """Return the folder in which files beside an input may be read; None where it is no file of its own on disk."""
    return source.path.parent if source.given != "-" and FilePath(source.given) == source.path else None


@lru_cache(maxsize=2)  # each reader is asked about the same head
def first_row(head: bytes) -> tuple[dict[str, Any], bool]:
    """Return the fields of the first line that is an object, and whether only its beginning is known.

    Of a first line that is longer than the head, what is complete is read. Callers do not change the fields.
    """
    *whole, last = head.split(b"\n")[:20]
    if whole:
        lines = [line.strip() for line in whole if line.strip()]
        good = [row for row in map(parse_line, lines) if isinstance(row, dict)]
        # A document over several lines may have objects on lines of their own, but others end with a comma or bracket.
        document = any(line.endswith((b",", b"[", b"{")) for line in lines) and 2 * len(good) <= len(lines)
        return (good[0], False) if good and not document else ({}, False)
    fields = parse_line(last)
    if isinstance(fields, dict):
        return fields, False
    return (_beginning(last), True) if len(head) >= HEAD and last.lstrip().startswith(b"{") else ({}, False)


def _beginning(line: bytes) -> dict[str, Any]:
    """Return what is whole of an object that is cut off: all up to the last comma, with open brackets closed."""
    open_brackets: list[str] = []
    safe, closers = 0, ""
    in_text = escaped = False
    text = line.decode("utf-8", "replace")
    for at, character in enumerate(text):
        if in_text:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_text = False
        elif character == '"':
            in_text = True
        elif character in "{[":
            open_brackets.append("}" if character == "{" else "]")
            safe, closers = at + 1, "".join(reversed(open_brackets))
        elif character in "}]":
            if not open_brackets or open_brackets.pop() != character:
                return {}
        elif character == ",":
            safe, closers = at, "".join(reversed(open_brackets))
    try:
        value = parse_json((text[:safe] + closers).encode())
    except NotJson:
        return {}
    return value if isinstance(value, dict) else {}


# What a value that should have a certain type is, or something harmless.


def mapping(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def at(value: Any, *names: str) -> Any:
    """Return what lies under names inside objects, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(value: Any) -> float | int | bool | None:
    """Return a finite number or a bool, or None for anything else."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def count(value: Any) -> int | None:
    """Return a number of tokens or steps: a whole number from 0 on, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


def text_or_none(value: Any) -> str | None:
    """Return a text, or None for anything else."""
    return value if isinstance(value, str) else None


def name_of(value: Any) -> str | int | None:
    """Return an id: texts and whole numbers as they are, anything else as JSON, null as None."""
    return value if value is None or type(value) is str or type(value) is int else as_json(value)


def failure(value: Any) -> str | None:
    """Return what an error field says; None where it says that nothing failed (null, false, empty)."""
    if not value:
        return None
    if isinstance(value, dict):
        kind, message = (text_or_none(value.get(name)) for name in ("type", "message"))
        code = value.get("code")
        said = [part for part in (kind or text_or_none(code), message) if part]
        return ": ".join(said) if said else as_json(value)
    return "marked as failed" if value is True else as_json(value)


def reference_in(*places: Mapping[str, Any]) -> Any:
    """Return the first value under a usual name of a reference, best name first, or None."""
    for fields in places:
        for name in _REFERENCES:
            if fields.get(name) is not None:
                return fields[name]
    return None


_REFERENCES = flat(REFERENCE[:3])  # not `label`, which is a mark as often


def labelled(metadata: dict[str, Any], label: Any) -> dict[str, Any]:
    """Return a completion's metadata with its label, where that is a number."""
    value = number(label)
    return metadata if value is None else {**metadata, "label": value}


def rest(fields: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """Return the columns that have no role."""
    return {name: value for name, value in fields.items() if name not in used}


def text_of(value: Any, what: str) -> str:
    """Return a text; null is empty.

    Raises:
        Unread: It is anything else.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise Unread(f"{what} is {describe(value)}, not a text")


def parsed(text: Any) -> Any:
    """Return the JSON value in a text, or the text itself."""
    if not isinstance(text, str) or text[:1] not in ("[", "{"):
        return text
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except NotJson:
        return text
