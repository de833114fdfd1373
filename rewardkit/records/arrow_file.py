"""Arrow IPC files and streams (also called Feather version 2), as `datasets` keeps them. Needs pyarrow.

One record batch is held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.arrow_values import DAMAGE, check_names, need_arrow, rows_of
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.text import shorten, visible

_FILE = b"ARROW1\x00\x00"
_STREAM = b"\xff\xff\xff\xff"


class ArrowTable:
    """Reader of Arrow's own formats."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the first bytes: the file's mark, or the mark and the length of a stream's first message."""
        if head.startswith((_FILE, b"FEA1")):
            return 100
        return 95 if head.startswith(_STREAM) and 0 < int.from_bytes(head[4:8], "little") < 1 << 28 else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the rows up to where the file is damaged, if it is.

        Raises:
            InputError: pyarrow is not installed, or the file has no readable schema.
        """
        for item in self.batches(source):
            if isinstance(item, BadRow):
                yield item
            else:
                yield from rows_of(item[1], item[0])

    def batches(self, source: Source) -> Iterator[tuple[int, Any] | BadRow]:
        """Yield record batches with the number of their first row; see `rows`."""
        with source.open_seekable() as stream:
            schema, batches = _open(source, stream)
            check_names(schema, source.name)
            first = 1
            while True:
                try:
                    batch = next(batches, None)
                    if batch is not None:
                        _validate(batch)
                except DAMAGE as problem:
                    yield BadRow(first, f"damaged or cut off from here on: {_words(problem)}")
                    return
                if batch is None:
                    return
                yield first, batch
                first += batch.num_rows


def _open(source: Source, stream: Any) -> tuple[Any, Iterator[Any]]:
    arrow = need_arrow(source.name, "Arrow data")
    import pyarrow.ipc

    head = source.head(8)
    if head.startswith(b"FEA1"):
        raise InputError(f"{source.name} is Feather version 1; write it again as Feather version 2 or parquet")
    try:
        if head.startswith(_FILE):
            file = pyarrow.ipc.open_file(stream)
            return file.schema, (file.get_batch(at) for at in range(file.num_record_batches))
        reader = pyarrow.ipc.open_stream(stream)
        return reader.schema, iter(reader)
    except (arrow.ArrowException, *DAMAGE) as problem:
        raise InputError(f"{source.name}: damaged or cut off Arrow data: {_words(problem)}") from None


def _validate(batch: Any) -> None:
    """Raise ValueError when offsets lead out of a batch's buffers: reading there could end the process."""
    batch.validate()
    try:
        batch.validate(full=True)
    except ValueError as problem:
        if "UTF8" not in str(problem):  # a text that is none costs its row, not the batch
            raise


def _words(problem: BaseException) -> str:
    return visible(shorten(" ".join(str(problem).split()) or type(problem).__name__, 200))


READER = ArrowTable()
