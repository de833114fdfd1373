"""Arrow columns as rows of plain Python values, for the readers of parquet and Arrow files.

Structs and maps become dicts, lists of any kind lists, dictionary columns their values. Dates, times and timestamps
become ISO 8601 text (those with a time zone in UTC), durations seconds, decimals their digits as text. NaN and
infinities become null, as in JSON. Binary data is taken for UTF-8 text; where it is something else (a picture), its
field is left out of the row.
"""

from __future__ import annotations

import copy
import itertools
import math
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from rewardkit.errors import InputError
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.text import shorten, visible

SLICE = 512  # rows turned into Python values at a time
SLICE_BYTES = 4 * 1024 * 1024  # fewer, when they are larger than this together

# What pyarrow raises where a file is damaged, beside its own exceptions, most of which are one of these too. Lengths
# that are wrong end in a MemoryError.
DAMAGE = (ValueError, OSError, EOFError, LookupError, NotImplementedError, MemoryError, OverflowError)

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def need_arrow(name: str, what: str) -> ModuleType:
    """Return pyarrow, which is imported only where a file needs it.

    Raises:
        InputError: It is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{name} is {what}, and pyarrow, which reads it, is not installed; pip install 'rewardkit[parquet]'"
        ) from None
    return cast("ModuleType", pyarrow)


def check_names(schema: Any, name: str) -> None:
    """Raise InputError when two columns have one name, or a name at any depth is no text."""
    try:
        names = schema.names
        for field in schema:
            _check_inside(field.type)
    except UnicodeDecodeError:
        raise InputError(f"{name}: names of its columns are not UTF-8; the file is damaged") from None
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise InputError(f"{name}: two columns are called {visible(shorten(twice, 40))!r}; give each a name of its own")


def _check_inside(kind: Any) -> None:
    """Raise UnicodeDecodeError where a field inside a type has a name that is no text."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        inside = [field.type for field in kind if field.name is not None]
    elif pyarrow.types.is_map(kind):
        inside = [kind.key_type, kind.item_type]
    else:
        inside = [kind.value_type] if hasattr(kind, "value_type") else []
    for one in inside:
        _check_inside(one)


def rows_of(batch: Any, first: int) -> Iterator[Row | BadRow]:
    """Yield the rows of a record batch, numbered from `first`."""
    size = slice_rows(batch.nbytes, batch.num_rows)
    for start in range(0, batch.num_rows, size):
        yield from _slice(batch.slice(start, size), first + start)


def slice_rows(size: int, rows: int) -> int:
    """Return how many of `rows` rows of `size` bytes are to be turned into Python values at a time."""
    return max(1, min(SLICE, SLICE_BYTES * rows // max(1, size)))


def _slice(batch: Any, first: int) -> Iterator[Row | BadRow]:
    names = batch.schema.names
    columns = _Columns()
    cells = [columns.values(column) for column in batch.columns]
    rows = zip(*cells, strict=True) if cells else iter([()] * batch.num_rows)
    for number, row in enumerate(rows, first):
        fields = dict(zip(names, row, strict=True))
        if columns.torn:
            why = _mend(fields)
            if why:
                yield BadRow(number, why)
                continue
        yield Row(number, fields)


class _Torn:
    """Stands for bytes that are no UTF-8: of a column of text (an error), or of binary data (which may be anything)."""

    def __init__(self, text: bool) -> None:
        self.text = text


def _mend(value: Any, name: str = "") -> str:
    """Take binary data out of a row; return why the row cannot be used, or ""."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        inside = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}" if name else key
        if isinstance(item, _Torn):
            if item.text or isinstance(value, list):
                return f"{visible(shorten(inside, 60))} is not UTF-8"
            del value[key]
        elif why := _mend(item, inside):
            return why
    return ""


class _Columns:
    """Turns Arrow arrays into lists of plain values; `torn` tells whether one holds a `_Torn`."""

    def __init__(self) -> None:
        import pyarrow

        self.arrow = pyarrow
        self.types = pyarrow.types
        self.torn = False

    def values(self, array: Any) -> list[Any]:
        """Return the values of an array, column by column inside, which is many times faster than row by row."""
        kind, types = array.type, self.types
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return self._texts(array)
        if types.is_boolean(kind) or types.is_integer(kind):
            return list(array.to_pylist())
        if types.is_floating(kind):
            return [None if x is None or not math.isfinite(x) else float(x) for x in array.to_pylist()]
        if types.is_struct(kind):
            return self._structs(array)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_fixed_size_list(kind):
            return self._lists(array)
        if types.is_list_view(kind) or types.is_large_list_view(kind):
            return self._list_views(array)
        if types.is_dictionary(kind):
            return self.values(array.dictionary_decode())
        return self._rarer(array)

    def _rarer(self, array: Any) -> list[Any]:
        kind, types = array.type, self.types
        if types.is_null(kind):
            return [None] * len(array)
        if isinstance(kind, self.arrow.BaseExtensionType):
            if kind.extension_name == "arrow.uuid":
                return [None if b is None else str(uuid.UUID(bytes=b)) for b in array.storage.to_pylist()]
            return self.values(array.storage)
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
            return self._bytes(array, text=False)
        if types.is_fixed_size_binary(kind):
            return self._bytes(array, text=False)
        if types.is_timestamp(kind):
            return self._timestamps(array)
        if types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
            return list(array.cast(self.arrow.string()).to_pylist())
        if types.is_duration(kind):
            unit = _UNITS[kind.unit]
            return [None if n is None else n / unit for n in array.cast(self.arrow.int64()).to_pylist()]
        if types.is_run_end_encoded(kind):
            import pyarrow.compute

            return self.values(pyarrow.compute.run_end_decode(array))
        return [None if value is None else str(value) for value in array.to_pylist()]

    def _texts(self, array: Any) -> list[Any]:
        try:
            return list(array.to_pylist())
        except UnicodeDecodeError:
            binary = self.arrow.large_binary() if self.types.is_large_string(array.type) else self.arrow.binary()
            return self._bytes(array.cast(binary), text=True)

    def _bytes(self, array: Any, *, text: bool) -> list[Any]:
        return [None if data is None else self._text(data, text) for data in array.to_pylist()]

    def _text(self, data: bytes, text: bool) -> str | _Torn:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.torn = True
            return _Torn(text)

    def _timestamps(self, array: Any) -> list[Any]:
        kind = array.type
        if kind.tz is not None:
            array = array.cast(self.arrow.timestamp(kind.unit, "UTC"))
        return [None if t is None else t.replace(" ", "T", 1) for t in array.cast(self.arrow.string()).to_pylist()]

    def _structs(self, array: Any) -> list[Any]:
        names = [field.name for field in array.type]
        if not names:
            return [{} if valid else None for valid in array.is_valid().to_pylist()]
        cells = [self.values(child) for child in array.flatten()]
        found: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
        if array.null_count:
            return [item if valid else None for item, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
        return found

    def _lists(self, array: Any) -> list[Any]:
        if self.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            bounds = range(array.offset * size, (array.offset + len(array)) * size + 1, size) if size else []
            offsets = list(bounds) or [0] * (len(array) + 1)
        else:
            offsets = array.offsets.to_pylist()
        start, length = offsets[0], offsets[-1] - offsets[0]
        is_map = self.types.is_map(array.type)
        if is_map:
            keys = self.values(array.keys.slice(start, length))
            items: list[Any] = list(zip(keys, self.values(array.items.slice(start, length)), strict=True))
        else:
            items = self.values(array.values.slice(start, length))
        found: list[Any] = [items[begin - start : end - start] for begin, end in itertools.pairwise(offsets)]
        if is_map:
            found = [_mapping(pairs) for pairs in found]
        if array.null_count:
            return [item if valid else None for item, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
        return found

    def _list_views(self, array: Any) -> list[Any]:
        starts, sizes = array.offsets.to_pylist(), array.sizes.to_pylist()
        valid = array.is_valid().to_pylist()
        ends = [start + size for start, size, there in zip(starts, sizes, valid, strict=True) if there]
        first = min((start for start, there in zip(starts, valid, strict=True) if there), default=0)
        items = self.values(array.values.slice(first, max(ends, default=first) - first))
        return [
            copy.deepcopy(items[start - first : start - first + size]) if there else None  # views may overlap
            for start, size, there in zip(starts, sizes, valid, strict=True)
        ]


def _mapping(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Return a map as an object of JSON, whose keys are text."""
    return {key if isinstance(key, str) else str(key): value for key, value in pairs}
