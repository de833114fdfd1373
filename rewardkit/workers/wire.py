"""What travels between a pool and its workers: frames of msgpack, and a page of memory that both can see.

msgpack itself would turn tuples into lists and dates into text, and refuses large integers and lone surrogates.
A reward must see in a worker what it sees inline, so those travel as extensions that name their type.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rewardkit.errors import UsageError, WorkerError
from rewardkit.types import Completion, Sample, Score

if TYPE_CHECKING:
    from rewardkit.leaf import Leaf

HEADER = struct.Struct(">Q")
LARGEST_FRAME = 1 << 31
_STEP_BITS = 24


_EXTENSION = 1
_AS_IS = frozenset({str, int, float, bool, type(None), bytes, msgspec.msgpack.Ext})


class Stuck(Exception):
    """A value has no form that can be sent. Its text is the name of the type."""


def plain(value: Any) -> Any:
    """Return `value` made of what msgpack can hold; `_revive` undoes it.

    Subclasses of str, int, float, list and mappings arrive as the plain type, arrays as lists.

    Raises:
        Stuck: It holds an object of a type that cannot be sent.
    """
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is list:
        return [plain(item) for item in value]
    if kind is tuple:
        return _tagged("tuple", [plain(item) for item in value])
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: item if type(item) in _AS_IS else plain(item) for key, item in value.items()}
        return _tagged("dict", [[plain(key), plain(item)] for key, item in value.items()])
    return _odd(value)


def _odd(value: Any) -> Any:
    """Return the plain form of a value that is seldom met in data."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from fractions import Fraction
    from uuid import UUID

    if isinstance(value, str):
        return str.__str__(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    match value:
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
        case Mapping():
            return plain(dict(value))
        case tuple():
            return plain(tuple(value))
        case list():
            return plain(list(value))
        case bytearray():
            return _tagged("bytearray", bytes(value))
        case set() | frozenset():
            return _tagged("set" if isinstance(value, set) else "frozenset", [plain(item) for item in value])
        case complex():
            return _tagged("complex", [value.real, value.imag])
        case Decimal():
            return _tagged("Decimal", str(value))
        case Fraction():
            return _tagged("Fraction", [value.numerator, value.denominator])
        case UUID():
            return _tagged("UUID", value.bytes)
        case timedelta():
            return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
        case datetime():
            day = [value.year, value.month, value.day]
            return _tagged("datetime", [day, *_clock(value, value)])
        case date():
            return _tagged("date", [value.year, value.month, value.day])
        case time():
            return _tagged("time", list(_clock(value, None)))
    raise Stuck(kind.__qualname__ if (kind := type(value)) else "")


def _clock(value: Any, moment: Any) -> tuple[list[Any], int, Any]:
    """Return the time of day, its fold and its zone: None, a zone's name, or an offset in seconds."""
    clock = [value.hour, value.minute, value.second, value.microsecond]
    if not all(type(part) is int for part in clock):
        raise Stuck(type(value).__qualname__)
    zone = value.tzinfo
    if zone is not None:
        name = getattr(zone, "key", None)
        offset = zone.utcoffset(moment)
        if name is None and offset is None:
            raise Stuck(type(zone).__qualname__)
        zone = name if name is not None else offset.total_seconds()
    return clock, value.fold, zone


def _tagged(tag: str, body: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_EXTENSION, _encoded([tag, body]))


def _encoded(plain: Any) -> bytes:
    try:
        return encoder.encode(plain)
    except (UnicodeEncodeError, OverflowError):  # rare, so texts and integers are looked at only then
        return encoder.encode(_rare(plain))


def _rare(plain: Any) -> Any:
    """Tag the texts and integers that msgpack refuses: lone surrogates, more than 64 bits."""
    match plain:
        case str() if not plain.isascii():
            raw = plain.encode("utf-8", "surrogatepass")
            return plain if raw.decode("utf-8", "replace") == plain else _tagged("str", raw)
        case int() if not -(1 << 63) <= plain < 1 << 64:
            return _tagged("int", plain.to_bytes(plain.bit_length() // 8 + 1, "big", signed=True))
        case list():
            return [_rare(item) for item in plain]
        case dict():
            if all(_is_text(key) for key in plain):
                return {key: _rare(item) for key, item in plain.items()}
            return _tagged("dict", [[_rare(key), _rare(item)] for key, item in plain.items()])
    return plain


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _revive(code: int, data: memoryview) -> Any:
    tag, body = decoder.decode(data)
    match tag:
        case "tuple":
            return tuple(body)
        case "dict":
            return dict(body)
        case "str":
            return body.decode("utf-8", "surrogatepass")
        case "int":
            return int.from_bytes(body, "big", signed=True)
        case "set":
            return set(body)
        case "frozenset":
            return frozenset(body)
        case "bytearray":
            return bytearray(body)
        case "complex":
            return complex(*body)
    return _revive_object(tag, body)


def _revive_object(tag: str, body: Any) -> Any:
    import datetime as dt
    from decimal import Decimal
    from fractions import Fraction
    from uuid import UUID

    match tag:
        case "Decimal":
            return Decimal(body)
        case "Fraction":
            return Fraction(*body)
        case "UUID":
            return UUID(bytes=body)
        case "timedelta":
            return dt.timedelta(*body)
        case "date":
            return dt.date(*body)
        case "datetime":
            day, clock, fold, zone = body
            return dt.datetime.combine(dt.date(*day), dt.time(*clock).replace(tzinfo=_zone(zone), fold=fold))
        case "time":
            clock, fold, zone = body
            return dt.time(*clock).replace(tzinfo=_zone(zone), fold=fold)
    raise ValueError(f"unknown type {tag!r}")


def _zone(zone: str | float | None) -> Any:
    from datetime import timedelta, timezone
    from zoneinfo import ZoneInfo

    if zone is None:
        return None
    return ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))


encoder = msgspec.msgpack.Encoder()
decoder = msgspec.msgpack.Decoder(ext_hook=_revive)


def frame(plain: Any) -> bytes:
    body = _encoded(plain)
    return HEADER.pack(len(body)) + body


def record_data(record: Sample | Completion) -> list[Any]:
    """Return a sample's or completion's fields in their order. Raises Stuck with a whole sentence."""
    data = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if type(value) in _AS_IS:
            data.append(value)
        elif name == "metadata":
            data.append({column: _field(column, item) for column, item in value.items()} if value else {})
        else:
            data.append(_field(name, value))
    return data


def _field(name: str, value: Any) -> Any:
    try:
        return plain(value)
    except Stuck as stuck:
        raise Stuck(f"column {name!r} holds a {stuck}, which cannot be sent to a worker") from None
    except RecursionError:
        raise Stuck(f"column {name!r} is nested too deeply to be sent to a worker") from None


def score_data(score: Score) -> list[Any]:
    data = [value if type(value) in _AS_IS else plain(value) for value in msgspec.structs.astuple(_bare(score))]
    data[_PARTS] = [score_data(part) for part in score.parts]
    return data


def _bare(score: Score) -> Score:
    return msgspec.structs.replace(score, parts=()) if score.parts else score


def score_from(data: list[Any]) -> Score:
    data[_PARTS] = tuple(map(score_from, data[_PARTS]))
    return Score(*data)


_PARTS = Score.__struct_fields__.index("parts")
SECONDS = Score.__struct_fields__.index("seconds")


def leaf_to_data(leaf: Leaf) -> dict[str, Any]:
    """Return a reward as data from which a worker makes it again.

    Recipes name registered rewards; here it is always the import string, so that a worker looks up no plugins.

    Raises:
        WorkerError: No other process can load it: it lives in `__main__`, a notebook or inside a function.
    """
    from rewardkit.reward import FunctionReward
    from rewardkit.targets import travels

    target = leaf.target
    if target is None or not travels(target):
        raise WorkerError(
            f"reward {leaf.label!r} lives in a script, a notebook or inside a function, where a worker process cannot"
            " find it; move it to the top of a file of its own"
        )
    data: dict[str, Any] = {"target": target, "options": leaf.options}
    if isinstance(leaf, FunctionReward):
        data |= {"kind": type(leaf).__name__, "name": leaf.registered, "timeout": leaf.timeout, "memory": leaf.memory}
    return data


def leaf_from_data(data: Mapping[str, Any]) -> Leaf:
    """Make the reward of `leaf_to_data` again. May raise whatever importing it raises."""
    from rewardkit.leaf import Leaf
    from rewardkit.reward import FunctionReward, GroupReward, TrlReward, as_reward
    from rewardkit.targets import load_target

    found: Any = load_target(data["target"])
    if "kind" in data:
        kinds = {kind.__name__: kind for kind in (FunctionReward, GroupReward, TrlReward)}
        function = found.function if isinstance(found, FunctionReward) else found
        given = {key: data[key] for key in ("name", "timeout", "memory", "options", "target")}
        return kinds[data["kind"]](function, **given)
    if isinstance(found, type) and hasattr(found, "from_options"):
        found = found.from_options(data["options"])
    made = as_reward(found, data["target"])
    if not isinstance(made, Leaf):
        raise UsageError(f"{data['target']} is a composition, not a single reward")
    return made


@contextlib.contextmanager
def shared_page() -> Iterator[int]:
    """Give the descriptor of a little shared memory that has no name."""
    if hasattr(os, "memfd_create"):
        page = os.memfd_create("rewardkit")
    else:
        import tempfile

        page, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        os.truncate(page, 8)
        yield page
    finally:
        os.close(page)


class Page:
    """Eight bytes shared by a parent and its child: the step the child is at, and since when.

    The parent reads them when it has waited long enough, so that the child need not report each step. One
    aligned word is written at once, so a reader never sees half of it. The monotonic clock is the machine's.
    """

    def __init__(self, descriptor: int) -> None:
        import mmap

        self._map = mmap.mmap(descriptor, 8)
        self._words = memoryview(self._map).cast("Q")

    def mark(self, step: int) -> None:
        self._words[0] = int(time.monotonic() * 1000 + 1) << _STEP_BITS | step

    def read(self) -> tuple[int, float]:
        """Return the step and when it began, in seconds, at most 1 ms late."""
        word = self._words[0]
        return word & (1 << _STEP_BITS) - 1, (word >> _STEP_BITS) / 1000

    def close(self) -> None:
        self._words.release()
        self._map.close()
