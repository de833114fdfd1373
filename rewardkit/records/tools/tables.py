"""What the readers of tools' parquet files have in common: known by their columns, read as `records/parquet.py` does.

A format is a class with the names of its columns and `choose` and `read_row`: which column is the verdict, decided
from the first rows, and what one row means.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar

from rewardkit.errors import InputError
from rewardkit.records.parquet import READER as PARQUET
from rewardkit.records.parquet import column_names
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import SURE, Found, LineFormat, read_row

_PEEK = 100  # rows looked at to choose the verdict
_MAGIC = b"PAR1"

# Words in names of verdicts, and in names of what has the values of one but judges the form.
_VERDICTS = ("accura", "correct", "exact", "right", "solved", "passed", "verif", "_em", "em_", "match", "outcome")
_FORMS = ("format", "tag", "length", "style", "think", "xml", "repetit", "language", "json")


class TableFormat(LineFormat):
    """A tool's parquet format."""

    unit: ClassVar[str] = "row"
    columns: ClassVar[Sequence[frozenset[str]]]  # each: columns that together give the format away

    def detect(self, name: str, head: bytes) -> int:
        """Claim every parquet file; `confirm` looks at the columns, whose names stand at the end."""
        return SURE if head.startswith(_MAGIC) else 0

    def confirm(self, source: Source) -> bool:
        """Whether the file has the columns; a file that cannot be opened is left to the reader of plain parquet."""
        try:
            names = set(column_names(source))
        except InputError:
            return False
        return any(needed <= names for needed in self.columns)

    def count(self, source: Source) -> int:
        """Return how many rows the file says it has."""
        return PARQUET.count(source)

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the rows as they are, for a map that overrides what the fields mean."""
        return PARQUET.rows(source)

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the rows of a file say, each with its number."""
        rows = self.rows(source)
        first = list(islice(rows, _PEEK))
        label = self.choose([row.fields for row in first if isinstance(row, Row)])
        for row in chain(first, rows):
            yield from read_row(row, partial(self.read_labelled, label=label))

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Not asked: see `confirm`."""
        return False

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return what a row says, without a label."""
        return self.read_labelled(fields, label=None)

    @abstractmethod
    def choose(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the name of the number that is the verdict, or None where none is or several could be."""

    @abstractmethod
    def read_labelled(self, fields: dict[str, Any], *, label: str | None) -> Iterable[Found]:
        """Return what a row says.

        Raises:
            Unread: The row gives nothing.
        """


def verdict_among(values: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the one name whose values are all 0 or 1 and speak of a verdict.

    Where several do, or none by its name, what judges the form is left out; what then is not one is None.
    """
    binary = [name for name, column in values.items() if _is_binary(column)]
    spoken = [name for name in binary if any(word in name.lower() for word in _VERDICTS)]
    other = [name for name in binary if not any(word in name.lower() for word in _FORMS)]
    for names in (spoken, [name for name in spoken if name in other], other):
        if len(names) == 1:
            return names[0]
    return None


def _is_binary(column: Sequence[Any]) -> bool:
    known = [value for value in column if value is not None]
    return bool(known) and all(isinstance(value, (bool, int, float)) and value in (0, 1) for value in known)
