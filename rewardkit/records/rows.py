"""What a reader makes of a file: rows, and lines that are none; and how a file finds its reader.

A new format is one module with one object that has `detect` and `rows` (class `Reader`). A format whose fields
are always called the same also has `map`; one that makes whole generations itself has `generations`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from rewardkit.errors import InputError
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.source import Source
from rewardkit.types import Generation


class Row(msgspec.Struct):
    """One row: the line (or row number) it starts on, counted from 1, and its fields.

    `outer` holds the objects around it in a nested document, innermost first. Whoever takes a row owns `fields`.
    """

    line: int
    fields: dict[str, Any]
    outer: tuple[dict[str, Any], ...] = ()


class BadRow(msgspec.Struct, frozen=True):
    """A line that is no row, and why, in a few words."""

    line: int
    why: str


class Reader(Protocol):
    """Reads one format.

    Optional attributes: `unit` ("line", or "row" where line numbers mean nothing), `map` (a FieldMap that always
    holds for the format, so that nothing is guessed), `generations` (see GenerationReader), and
    `locate(source, given)` (see Locator).
    """

    def detect(self, name: str, head: bytes) -> int:
        """Say how sure the file is this format's: 0 not at all, 100 certainly.

        Args:
            name: File name in lower case without .gz or .zst; "stdin" for standard input.
            head: The first 64 KiB, decompressed, without a byte-order mark.
        """
        ...

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the file's rows in order. Memory must not grow with the file where the format allows it."""
        ...


@runtime_checkable
class GenerationReader(Protocol):
    """A reader that makes whole generations, for formats whose meaning is fixed."""

    def generations(self, source: Source) -> Iterator[Generation | BadRow]:
        """Yield generations; their `key` is set, their `where` is too."""
        ...


@runtime_checkable
class Locator(Protocol):
    """A reader of nested documents, which finds the rows inside, with the help of the paths that were given."""

    def locate(self, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
        """Return the map relative to the rows, the path of the rows ("" at the top), and the rows."""
        ...


# Name, import string, summary: what the built-in plugin hook registers.
BUILT_IN: tuple[tuple[str, str, str], ...] = (
    ("generations", "rewardkit.records.generations:READER", "rewardkit's own generations.jsonl, one group a line"),
    ("jsonl", "rewardkit.records.jsonl:READER", "one JSON object a line"),
    ("json", "rewardkit.records.json_document:READER", "one JSON document: a list of rows, columns, or nested"),
    ("csv", "rewardkit.records.csv_table:READER", "CSV or TSV with a header row"),
)


def built_in_readers() -> dict[str, Reader]:
    """Return rewardkit's own readers by name."""
    readers: dict[str, Reader] = {}
    for name, target, _ in BUILT_IN:
        module, attribute = target.split(":")
        readers[name] = cast("Reader", getattr(importlib.import_module(module), attribute))
    return readers


def open_records(source: Source, readers: Mapping[str, Reader] | None = None) -> tuple[str, Reader]:
    """Return the name and the reader of the format that the file is in; the first of the surest wins.

    Raises:
        InputError: No reader knows the format.
    """
    head = source.head()
    best: tuple[int, str, Reader] | None = None
    for name, reader in (built_in_readers() if readers is None else readers).items():
        sure = reader.detect(source.plain_name, head)
        if sure > 0 and (best is None or sure > best[0]):
            best = (sure, name, reader)
    if best is None:
        raise InputError(_unknown(source.name, head))
    return best[1], best[2]


_MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x80\x04": "pickle",
    b"\x80\x05": "pickle",
    b"SQLite": "SQLite",
}


def _unknown(name: str, head: bytes) -> str:
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    what = f"{name} is {kind}, which this version does not read" if kind else f"{name}: format not recognised"
    return f"{what}; it reads JSONL, JSON, CSV and TSV, each plain or as .gz or .zst"
