"""One JSON object a line.

Only "\\n" ends a line (U+2028 does not). What strict JSON lacks but files hold is read as follows: NaN and
Infinity are null; a number that a float cannot hold, or an integer of more than 4,300 digits, stays as its text;
a lone surrogate becomes U+FFFD. Other integers are exact whatever their size. Of a name that one object has several
times, the last value counts, as in every common reader of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import MAX_LINE, Damaged, Source
from rewardkit.records.text import clean, shorten, visible

_MAX_DIGITS = 4300  # CPython refuses to convert longer integers, as that takes quadratic time


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _float(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else digits


_fast = msgspec.json.Decoder().decode
_lenient = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=lambda _: None)


class NotJson(ValueError):
    """Bytes that are no JSON; the message is a few words with the column, `line` is 1 or where in a document."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def parse_json(data: bytes) -> Any:
    """Return the JSON value in `data`.

    Raises:
        NotJson: With the reason.
    """
    try:
        return _fast(data)
    except msgspec.MsgspecError:
        return _parse_lenient(data)
    except RecursionError:
        raise NotJson("nested too deeply") from None


def _parse_lenient(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        before = data[: problem.start].rsplit(b"\n", 1)[-1].decode("utf-8")
        line = data.count(b"\n", 0, problem.start) + 1
        raise NotJson(f"not UTF-8 at column {len(before) + 1}", line) from None
    try:
        value = _lenient.decode(text)
        return clean(value) if "\\u" in text else value
    except json.JSONDecodeError as problem:
        if not text[problem.pos :].strip() or problem.msg.startswith("Unterminated string"):
            raise NotJson(f"cut off at column {problem.colno}: {_words(problem.msg)}", problem.lineno) from None
        raise NotJson(f"not JSON at column {problem.colno}: {_words(problem.msg)}", problem.lineno) from None
    except RecursionError:
        raise NotJson("nested too deeply") from None


def _words(message: str) -> str:
    return message[:1].lower() + message[1:].removesuffix(" at").removesuffix(" starting")


def parse_line(line: bytes) -> dict[str, Any] | str:
    """Return the object on a line, or why there is none."""
    if len(line) > MAX_LINE:
        return f"longer than {MAX_LINE // 2**20} MiB"
    try:
        value = parse_json(line.rstrip(b"\r\n"))
    except NotJson as problem:
        return str(problem)
    if isinstance(value, dict):
        return value
    return f"not an object: {describe(value)}"


def describe(value: object) -> str:
    """Return a JSON value's kind and beginning, for messages: `a list of 3`, `the text 'abc'`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text '{visible(shorten(value, 30))}'"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, dict):
        return "an object with " + (", ".join(visible(shorten(str(k), 30)) for k in list(value)[:6]) or "no fields")
    return f"the number {shorten(repr(value), 30)}"


class JsonLines:
    """Reader of JSONL (also called NDJSON)."""

    unit = "line"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the name, or by a first line that is a whole object with another line below it."""
        if name.endswith((".jsonl", ".ndjson", ".jsonlines")):
            return 80
        lines = [line for line in head.split(b"\n", 100) if line.strip()]
        if not lines or not lines[0].lstrip().startswith(b"{"):
            return 0
        if isinstance(parse_line(lines[0]), dict):
            return 90 if len(lines) > 1 else 40
        # A first line longer than the head: more likely a row than a document when the name does not say.
        return 30 if len(lines) == 1 else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield a row or a bad row for each line that is not blank."""
        lines = Counted(source.lines())
        try:
            yield from rows_of_lines(lines, 1)
        except Damaged as problem:
            yield BadRow(lines.count + 1, str(problem).partition(": ")[2])


class Counted(Iterator[bytes]):
    """Lines, and how many were given out."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.count = 0
        self._next = lines.__next__

    def __next__(self) -> bytes:
        line = self._next()
        self.count += 1
        return line


def rows_of_lines(lines: Iterable[bytes], first: int) -> Iterator[Row | BadRow]:
    """Yield a row or a bad row for each line that is not blank; `first` is the number of the first line."""
    for number, fields in objects_of_lines(lines, first):
        yield BadRow(number, fields) if isinstance(fields, str) else Row(number, fields)


def objects_of_lines(lines: Iterable[bytes], first: int) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield number and object of each line that is not blank; a text says why there is no object."""
    for number, line in enumerate(lines, first):
        try:
            value = _fast(line)
            if type(value) is dict:
                yield number, value
                continue
        except (msgspec.MsgspecError, RecursionError):
            pass
        if not line.isspace():
            yield number, parse_line(line)


READER = JsonLines()
