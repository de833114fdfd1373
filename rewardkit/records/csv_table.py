"""CSV and TSV with a header row. Cells stay text, whatever they look like; an empty cell is null."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator

from rewardkit.errors import InputError
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import MAX_LINE, Damaged, Source
from rewardkit.records.text import shorten, visible

_DELIMITERS = ",;\t|"
_SAID = re.compile(rb"sep=([,;\t|])\r?\n", re.IGNORECASE)  # what Excel writes and reads as the first line


def delimiter(name: str, head: bytes) -> str:
    """Return the delimiter that a first line `sep=;` names, else the one that splits the first rows best.

    Best is the one of , ; tab | that gives most rows of equal width, and then the most columns.
    """
    said = _SAID.match(head)
    if said is not None:
        return said[1].decode()
    if name.endswith((".tsv", ".tab")):
        return "\t"
    best, best_score = ",", (0, 0)
    for candidate in _DELIMITERS:
        widths = _widths(head, candidate)
        if widths and widths[0] > 1:
            score = (sum(width == widths[0] for width in widths), widths[0])
            if score > best_score:
                best, best_score = candidate, score
    return best


def _widths(head: bytes, candidate: str) -> list[int]:
    lines = head.decode("utf-8", "replace").split("\n")
    if len(lines) > 1:
        lines.pop()  # most likely cut off
    rows = csv.reader((line + "\n" for line in lines), delimiter=candidate)
    widths = []
    try:
        for row in itertools.islice(rows, 20):
            if row:
                widths.append(len(row))
    except csv.Error:
        pass
    return widths


class CsvTable:
    """Reader of tables as text."""

    unit = "line"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the name; without one, by three or more rows of equal width that are no JSON."""
        if name.endswith((".csv", ".tsv", ".tab")):
            return 85
        if "." in name or not head or head.lstrip()[:1] in (b"{", b"[") or b"\x00" in head:
            return 0
        widths = _widths(head, delimiter(name, head))
        return 30 if len(widths) > 2 and widths[0] > 1 and len(set(widths)) == 1 else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield a row for each record as wide as the header, a bad row for any other."""
        csv.field_size_limit(MAX_LINE)
        text: Iterator[str] = (line.decode("utf-8", "surrogateescape") for line in source.lines())
        # `strict`, since otherwise one quote that is never closed swallows the rest of the file unseen.
        head = source.head()
        if _SAID.match(head):
            next(text)
            text = itertools.chain(["\n"], text)  # a blank line, so that numbers stay those of the file
        table = csv.reader(text, delimiter=delimiter(source.plain_name, head), strict=True)
        header: list[str] | None = None
        while True:
            first = table.line_num + 1
            try:
                cells = next(table)
            except StopIteration:
                return
            except csv.Error as problem:
                lines = table.line_num - first + 1
                # How many rows an open quote has swallowed is not known; each line may have been one.
                yield BadRow(first, f"not CSV: {problem}" + (f" ({lines:,} lines)" if lines > 1 else ""), rows=lines)
                continue
            except Damaged as problem:
                yield BadRow(first, str(problem).partition(": ")[2])
                return
            if not cells:
                continue
            if header is None:
                header = _header(cells, source.name)
            elif len(cells) != len(header):
                yield BadRow(first, f"{len(cells)} cells, the header has {len(header)}")
            elif not all(map(_is_text, cells)):
                yield BadRow(first, "not UTF-8")
            else:
                yield Row(first, {name: cell or None for name, cell in zip(header, cells, strict=True)})


def _is_text(cell: str) -> bool:
    if cell.isascii():
        return True
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def _header(cells: list[str], name: str) -> list[str]:
    header = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, 1)]
    twice = next((cell for cell in header if header.count(cell) > 1), None)
    if twice is not None:
        raise InputError(f"{name}: the header names {visible(shorten(twice, 40))!r} twice; give each column a name")
    return header


READER = CsvTable()
