"""Tables (parquet, Arrow) in pieces that other processes can read: record batches, written as an Arrow stream.

Every type that these files have can be written that way, and unlike rows it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rewardkit.records.arrow_values import rows_of
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source


@runtime_checkable
class BatchReader(Protocol):
    """A reader whose rows lie in Arrow record batches."""

    def batches(self, source: Source) -> Iterator[tuple[int, Any] | BadRow]:
        """Yield batches with the number of their first row, and where rows are lost, a bad row that says so."""


class TablePiece(NamedTuple):
    """Some rows of a table.

    Attributes:
        first: Number of the first row.
        rows: How many there are.
        data: The rows, as an Arrow stream; none of them if empty.
        damage: Why the rows behind them are lost; "" where they are not.
    """

    first: int
    rows: int
    data: bytes
    damage: str = ""


def cut_table(batches: Iterable[tuple[int, Any] | BadRow], size: int) -> Iterator[TablePiece]:
    """Yield pieces of about `size` bytes, in order."""
    held: list[Any] = []
    start = rows = length = 0
    for item in batches:
        if isinstance(item, BadRow):
            # Where nothing comes before the damage, its piece has no rows.
            yield TablePiece(start if held else item.line, rows, _stream(held), item.why)
            held, rows, length = [], 0, 0
            continue
        first, batch = item
        many = max(1, size * batch.num_rows // max(1, batch.nbytes))
        for at in range(0, batch.num_rows, many):
            part = batch.slice(at, many)
            if not held:
                start = first + at
            held.append(part)
            rows += part.num_rows
            length += part.nbytes
            if length >= size // 2:
                yield TablePiece(start, rows, _stream(held))
                held, rows, length = [], 0, 0
    if held:
        yield TablePiece(start, rows, _stream(held))


def _stream(batches: list[Any]) -> bytes:
    if not batches:
        return b""
    import pyarrow
    import pyarrow.ipc

    sink = pyarrow.BufferOutputStream()
    plain = [batch.replace_schema_metadata(None) for batch in batches]  # what tools keep there may be larger than rows
    with pyarrow.ipc.new_stream(sink, plain[0].schema) as writer:
        for batch in plain:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def rows_of_piece(data: bytes, first: int) -> Iterator[Row | BadRow]:
    """Yield the rows of a `TablePiece`."""
    if not data:
        return
    import pyarrow.ipc

    with pyarrow.ipc.open_stream(data) as stream:
        for batch in stream:
            yield from rows_of(batch, first)
            first += batch.num_rows
