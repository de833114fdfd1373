"""rewardkit's own `generations.jsonl`: one group a line, schema `rewardkit.generation/1`.

Training writes it and `rewardkit eval` reads it without a map. Fields: schema, id, step, prompt, reference,
completions [{text, tokens, finish_reason, messages, error, metadata}], columns; and, only where they say
something, model, start, and group (the key, 16 hexadecimal digits, when it is not the one that follows from the rest).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any, BinaryIO

import msgspec

from rewardkit.errors import InputError
from rewardkit.records.groups import Groups, group_key, slot_of
from rewardkit.records.jsonl import READER as JSON_LINES
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.text import clean, shorten, visible
from rewardkit.types import Completion, Generation, Sample

SCHEMA = "rewardkit.generation/1"

_MARK = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rewardkit\.')


class _Line(msgspec.Struct, omit_defaults=True):
    schema: str
    id: str | int
    completions: tuple[Completion, ...]
    step: int | None = None
    prompt: Any = ""
    reference: Any = None
    columns: dict[str, Any] = {}
    model: str | None = None
    start: int = 0
    group: str | None = None


def _plain(value: Any) -> Any:
    """Return what JSON can hold for a value that it cannot: arrays become lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a record holds a {type(value).__name__}, which JSON cannot; turn it into text, numbers or lists")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode

# What a terminal or an editor acts on and JSON lets stand, as UTF-8: DEL, the C1 controls, bidirectional marks and
# overrides, zero-width characters, the line and paragraph separators, the byte-order mark. One pattern for each first
# byte, as a search for a literal beginning is many times faster than one for alternatives.
_ACTIVE = tuple(
    map(
        re.compile,
        (
            rb"\x7f",
            rb"\xc2[\x80-\x9f]",
            rb"\xd8\x9c",
            rb"\xe2(?:\x80[\x8b-\x8f\xa8-\xae]|\x81[\xa0-\xaf])",
            rb"\xef\xbb\xbf",
        ),
    )
)


def encode_json(value: Any) -> bytes:
    """Return strict JSON in UTF-8: NaN and infinities become null, lone surrogates U+FFFD.

    Characters that are not seen but acted on (controls, reading order, zero width) are written as escapes, so that a
    file of a model's texts can be looked at in a terminal; decoding gives the same text.

    Raises:
        TypeError: The value holds something that JSON cannot.
    """
    try:
        data = _encode(value)
    except UnicodeEncodeError:
        data = _encode(clean(msgspec.to_builtins(value, enc_hook=_plain)))
    return escape_active(data)


def escape_active(data: bytes) -> bytes:
    """Return JSON with the characters that are acted on as escapes; the same object where there are none."""
    for pattern in _ACTIVE[:1] if data.isascii() else _ACTIVE:
        if pattern.search(data):
            data = pattern.sub(_escape, data)
    return data


def _escape(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(found[0].decode())


def generation_line(generation: Generation) -> bytes:
    """Return a generation as one line of JSON, with its end.

    Raises:
        TypeError: A column holds something that JSON cannot.
    """
    sample, model, key = generation.sample, generation.model, generation.key
    group = None
    if key and key != group_key(model, sample.id, sample.step, sample.prompt, sample.reference):
        group = f"{key:016x}"
    line = _Line(
        SCHEMA,
        sample.id,
        generation.completions,
        sample.step,
        sample.prompt,
        sample.reference,
        sample.metadata,
        model,
        generation.start,
        group,
    )
    return encode_json(line) + b"\n"


def write_generations(file: FilePath | str | BinaryIO, generations: Iterable[Generation]) -> int:
    """Write generations to a path (replaced) or a binary file; return how many."""
    if isinstance(file, (str, FilePath)):
        with open(file, "wb") as stream:
            return write_generations(stream, generations)
    count = 0
    for generation in generations:
        file.write(generation_line(generation))
        count += 1
    return count


class OwnGenerations:
    """Reader of `rewardkit.generation/1`."""

    unit = "line"

    def detect(self, name: str, head: bytes) -> int:
        """Claim every file whose first line names one of our schemas, so that a wrong one gets a clear answer."""
        return 100 if _MARK.match(head) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the lines as plain rows, for a map that overrides what the fields mean."""
        for row in JSON_LINES.rows(source):
            if isinstance(row, Row):
                _check_schema(row, f"{source.name}:")
            yield row

    def generations(self, source: Source) -> Iterator[Generation | BadRow]:
        """Yield the generations as they were written, with key and start.

        Raises:
            InputError: A line has another schema or another version of it.
        """
        groups = Groups()
        for row in JSON_LINES.rows(source):
            yield own_generation(row, f"{source.name}:", groups)


def own_generation(row: Row | BadRow, prefix: str, groups: Groups) -> Generation | BadRow:
    """Return the generation that a line holds, with key and start; `prefix` stands before the line's number.

    Raises:
        InputError: The line has another schema or another version of it.
    """
    if isinstance(row, BadRow):
        return row
    _check_schema(row, prefix)
    if "schema" not in row.fields:
        return BadRow(row.line, f"no field schema; wanted {SCHEMA}")
    try:
        line = msgspec.convert(row.fields, _Line)
        given = int(line.group, 16) if line.group is not None else 0
    except (msgspec.ValidationError, ValueError, RecursionError) as problem:
        return BadRow(row.line, visible(shorten(str(problem), 200)))
    if not line.completions:
        return BadRow(row.line, "completions is an empty list")
    key = given or group_key(line.model, line.id, line.step, line.prompt, line.reference)
    slot = slot_of(key, line.model, line.id, line.step, line.prompt, line.reference)
    counted = groups.start(slot, key, len(line.completions))
    sample = Sample(line.id, line.prompt, line.reference, line.columns, line.step)
    return Generation(sample, line.completions, line.model, line.start or counted, f"{prefix}{row.line}", key)


def _check_schema(row: Row, prefix: str) -> None:
    schema = row.fields.get("schema", SCHEMA)
    if schema == SCHEMA:
        return
    where = f"{prefix}{row.line}: schema {visible(shorten(str(schema), 60))}"
    if isinstance(schema, str) and schema.startswith("rewardkit.generation/"):
        raise InputError(f"{where}: this version of rewardkit reads {SCHEMA}; install a newer one")
    raise InputError(f"{where}: wanted {SCHEMA}" + _scores_hint(schema))


def _scores_hint(schema: Any) -> str:
    if isinstance(schema, str) and schema.startswith("rewardkit.score/"):
        return "; these are scores, give the file of generations that they belong to"
    return ""


READER = OwnGenerations()
