"""What a reader makes of a file: rows, and lines that are none; and how a file finds its reader.

A new format is one module with one object that has `detect` and `rows` (class `Reader`). A format whose fields
are always called the same also has `map`; one that makes whole generations itself has `generations`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
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
    """A line that is no row, and why, in a few words; `file` is said where several are read."""

    line: int
    why: str
    file: str = ""


class NotGenerations(InputError):
    """A reader raises it for a file of its tool that holds no generations, such as requests or settings.

    Such a file is passed over in a folder, and an error where it is named.
    """


class Reader(Protocol):
    """Reads one format.

    Optional attributes: `unit` ("line", or "row" where line numbers mean nothing), `map` (a FieldMap that always
    holds for the format, so that nothing is guessed), `generations` (see GenerationReader), and
    `locate(source, given)` (see Locator), `count(source)`, which returns the number of rows where that is cheap to
    know, and `confirm(source)`, asked after `detect` where a file's beginning cannot tell (parquet keeps its columns'
    names at the end): whether it is this format's.
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
    ("parquet", "rewardkit.records.parquet:READER", "parquet"),
    ("arrow", "rewardkit.records.arrow_file:READER", "Arrow IPC files and streams, and what datasets saves to disk"),
    ("eval_protocol", "rewardkit.records.tools.eval_protocol:READER", "rows of eval-protocol with their results"),
    ("lm_eval", "rewardkit.records.tools.lm_eval:READER", "samples of lm-evaluation-harness (--log_samples)"),
    ("nemo_gym", "rewardkit.records.tools.nemo_gym:READER", "rollouts of NeMo-Gym"),
    ("openai_batch", "rewardkit.records.tools.openai_batch:READER", "output of an OpenAI-style batch, with requests"),
    ("openai_chat", "rewardkit.records.tools.openai_chat:READER", "answers of an OpenAI-style API, one a line"),
    ("skyrl", "rewardkit.records.tools.skyrl:READER", "evaluation dumps of SkyRL"),
    ("verifiers_results", "rewardkit.records.tools.verifiers_results:READER", "results.jsonl of verifiers up to 0.3"),
    ("verifiers_traces", "rewardkit.records.tools.verifiers_traces:READER", "traces.jsonl of verifiers from 0.4 on"),
    ("verl", "rewardkit.records.tools.verl:READER", "rollouts and validations of verl"),
    ("trl", "rewardkit.records.tools.trl:READER", "completions that TRL logs (log_completions), parquet"),
    ("lighteval", "rewardkit.records.tools.lighteval:READER", "details of lighteval, parquet"),
    ("inspect_ai", "rewardkit.records.tools.inspect_ai:READER", "a log of inspect_ai, .eval or .json"),
    ("reasoning_gym", "rewardkit.records.tools.reasoning_gym:READER", "results of reasoning-gym's evaluation scripts"),
    ("cruxeval", "rewardkit.records.tools.cruxeval:READER", "generations by id with their marks, as CRUXEval writes"),
    ("opencompass", "rewardkit.records.tools.opencompass:READER", "predictions of OpenCompass"),
    ("harbor", "rewardkit.records.tools.harbor:READER", "rewards of a Harbor trial, which hold no text: refused"),
)


def built_in_readers() -> dict[str, Reader]:
    """Return rewardkit's own readers by name."""
    readers: dict[str, Reader] = {}
    for name, target, _ in BUILT_IN:
        module, attribute = target.split(":")
        readers[name] = cast("Reader", getattr(importlib.import_module(module), attribute))
    return readers


_find_readers: Callable[[], Mapping[str, Reader]] = built_in_readers


def registered_readers() -> Mapping[str, Reader]:
    """Return the readers that are used where none are named: our own, and those of plugins once these are known."""
    return _find_readers()


def use_readers(find: Callable[[], Mapping[str, Reader]]) -> None:
    """Say where readers come from. Plugins lie on a higher floor, so they say so here when they are imported."""
    global _find_readers
    _find_readers = find


def open_records(source: Source, readers: Mapping[str, Reader] | None = None) -> tuple[str, Reader]:
    """Return the name and the reader of the format that the file is in; the first of the surest wins.

    Raises:
        InputError: No reader knows the format.
    """
    head = source.head()
    best: tuple[int, str, Reader] | None = None
    for name, reader in (registered_readers() if readers is None else readers).items():
        sure = reader.detect(source.plain_name, head)
        if sure > 0 and (best is None or sure > best[0]) and _confirmed(reader, source):
            best = (sure, name, reader)
    if best is None:
        raise InputError(_unknown(source.name, head))
    return best[1], best[2]


def _confirmed(reader: Reader, source: Source) -> bool:
    confirm = getattr(reader, "confirm", None)
    return confirm is None or bool(confirm(source))


_MAGIC = {
    b"PK\x03\x04": "a zip archive",
    b"version https://git-lfs": "what Git LFS keeps in a file's place (git lfs pull fetches it)",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x80\x04": "pickle",
    b"\x80\x05": "pickle",
    b"SQLite": "SQLite",
}


def _unknown(name: str, head: bytes) -> str:
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    what = f"{name} is {kind}, which this version does not read" if kind else f"{name}: format not recognised"
    return f"{what}; it reads JSONL, JSON, CSV, TSV, parquet and Arrow, each plain, as .gz or .zst, or in a .zip"
