"""Parquet files, streamed: one row group's pages at a time, whatever its size. Needs pyarrow (extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.arrow_values import DAMAGE, check_names, need_arrow, rows_of, slice_rows
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.text import shorten, visible

# Bytes read ahead of each column. Without this, or with `pre_buffer`, a column's whole chunk is read at once.
_BUFFER = 256 * 1024


class ParquetTable:
    """Reader of parquet."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the first four bytes; tools' own tables come first."""
        return 90 if head.startswith((b"PAR1", b"PARE")) else 0

    def count(self, source: Source) -> int:
        """Return how many rows the file says it has."""
        with source.open_seekable() as stream:
            return int(_open(source, stream).metadata.num_rows)

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the rows; where a row group is damaged, one bad row says how many are lost, and the next one follows.

        Raises:
            InputError: pyarrow is not installed, or the file has no readable footer.
        """
        for item in self.batches(source):
            if isinstance(item, BadRow):
                yield item
            else:
                yield from rows_of(item[1], item[0])

    def batches(self, source: Source) -> Iterator[tuple[int, Any] | BadRow]:
        """Yield record batches with the number of their first row; see `rows`."""
        with source.open_seekable() as stream:
            file = _open(source, stream)
            check_names(file.schema_arrow, source.name)
            first = 1
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                yield from _row_group(file, group, first)
                first += count


def _open(source: Source, stream: Any) -> Any:
    arrow = need_arrow(source.name, "parquet")
    import pyarrow.parquet

    if source.head(4) == b"PARE":
        raise InputError(f"{source.name} is encrypted parquet; decrypt it first")
    try:
        return pyarrow.parquet.ParquetFile(
            stream, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
        )
    except (arrow.ArrowException, *DAMAGE) as problem:
        raise InputError(f"{source.name}: damaged or cut off parquet: {_words(problem)}") from None


def column_names(source: Source) -> list[str]:
    """Return the names of a file's columns.

    Raises:
        InputError: pyarrow is not installed, or the file has no readable footer.
    """
    with source.open_seekable() as stream:
        return list(_open(source, stream).schema_arrow.names)


def _row_group(file: Any, group: int, first: int) -> Iterator[tuple[int, Any] | BadRow]:
    import pyarrow

    about = file.metadata.row_group(group)
    end = first + about.num_rows
    size = slice_rows(about.total_byte_size, about.num_rows)
    batches = file.iter_batches(batch_size=size, row_groups=[group], use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except (pyarrow.ArrowException, *DAMAGE) as problem:
            yield BadRow(first, f"damaged from here to row {end - 1:,}: {_words(problem)}")
            return
        if batch is None:
            break
        yield first, batch
        first += batch.num_rows
    if first < end:
        yield BadRow(first, f"rows {first:,} to {end - 1:,} are not in the file")


def _words(problem: BaseException) -> str:
    return visible(shorten(" ".join(str(problem).split()) or type(problem).__name__, 200))


READER = ParquetTable()
