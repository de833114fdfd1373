"""Plain data between processes: length-prefixed JSON arrays, and the trees that they hold.

A tree is None, bool, int, float or str, or a list whose first item is one of these tags:

    ["l", x, …] list       ["t", x, …] tuple      ["s", x, …] set         ["z", x, …] frozenset    ["d", k, v, …] dict
    ["b", text] bytes      ["B", text] bytearray (text holds one character up to U+00FF a byte)   ["c", re, im] complex
    ["R", start, stop, step] range                ["q", maxlen, x, …] deque                       ["e"] Ellipsis
    ["D", text] Decimal    ["Q", num, den] Fraction                       ["T", name] builtin type
    ["m", kind, text] datetime, date or time in ISO format               ["M", days, seconds, microseconds] timedelta
    ["i", end, x, …] drained iterator: end is "end", "more" (cut off at the cap) or ["x", exception, text]
    ["h", id, type name] an opaque object of the sender   ["o", id] an opaque object of the receiver
    ["k", id, name] a function of the sender, to be called by message     ["n", name] a global name of the receiver

On the wire alone an int that JSON readers may not take is ["I", hex], and a float that JSON has not is ["F", text];
trees hold real numbers. Messages and trees are limited in bytes, depth and parts. This file is also read by the
interpreter that runs solutions, so it imports the standard library only.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Tree: TypeAlias = Any
"""None, bool, int, float, str, or a list with a tag, as above."""

HEADER = struct.Struct(">I")
LARGEST_MESSAGE = 8 << 20
LARGEST_JOB = 256 << 20
DEEPEST = 200
MOST_PARTS = 1_000_000
DRAIN = 10_000
"""Most items that are taken from an iterator."""

_EXACT = 1 << 53  # ints beyond are sent in hex: some JSON readers make floats of them, and Python limits their digits

TYPES: dict[str, type] = {name: item for name, item in vars(builtins).items() if isinstance(item, type)}
_WITH_MORE_THAN_TEXT = {"ExceptionGroup", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError"}
EXCEPTIONS: dict[str, type[Exception]] = {
    name: item
    for name, item in TYPES.items()
    if issubclass(item, Exception) and item.__name__ == name and name not in _WITH_MORE_THAN_TEXT
}
"""The builtin exceptions that may cross; never SystemExit or KeyboardInterrupt."""

_ITERATOR_HOMES = frozenset({"builtins", "itertools"})
_MOMENTS: dict[str, Any] = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time}


class WireError(ValueError):
    """Something cannot cross, or what came is not what may cross."""


class Encoder:
    """Makes trees of values. `opaque` says what to send for anything that is no plain data."""

    def __init__(self, opaque: Callable[[Any], Tree] | None = None, *, wire: bool) -> None:
        self._opaque = opaque
        self._wire = wire
        self._parts = 0

    def tree(self, value: Any) -> Tree:
        """Return the tree of a value. Raises WireError when it is too deep, too large, or nothing that can cross."""
        self._parts = 0
        return self._tree(value, 0)

    def _tree(self, value: Any, depth: int) -> Tree:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if not self._wire or -_EXACT < value < _EXACT else ["I", format(value, "x")]
        if kind is float:
            return value if not self._wire or value - value == 0.0 else ["F", float.__repr__(value)]
        if depth >= DEEPEST:
            raise WireError(f"nested more than {DEEPEST} deep")
        encode = _ENCODERS.get(kind)
        if encode is None:
            encode = next((found for base in kind.__mro__ if (found := _ENCODERS.get(base))), None)
            if encode is None:
                return self._other(value, kind, depth)
        return encode(self, value, depth + 1)

    def _other(self, value: Any, kind: type, depth: int) -> Tree:
        if isinstance(value, type) and TYPES.get(value.__name__) is value:
            return ["T", value.__name__]
        if kind.__module__ in _ITERATOR_HOMES and hasattr(kind, "__next__"):
            return self._drain(value, depth + 1)
        if self._opaque is None:
            raise WireError(f"a {kind.__name__} cannot cross")
        return self._opaque(value)

    def _items(self, tag: list[Tree], items: Iterator[Any], depth: int) -> Tree:
        tree = self._tree
        for item in items:
            self._parts += 1
            if self._parts > MOST_PARTS:
                raise WireError(f"more than {MOST_PARTS} parts")
            tag.append(tree(item, depth))
        return tag

    def _drain(self, iterator: Any, depth: int) -> Tree:
        tree: list[Tree] = ["i", "more"]
        for _ in range(DRAIN):
            try:
                item = next(iterator)
            except StopIteration:
                tree[1] = "end"
                break
            except Exception as problem:
                tree[1] = ["x", nearest_builtin(type(problem)), text_of(problem)]
                break
            self._items(tree, iter((item,)), depth)
        return tree


def _integer(encoder: Encoder, value: int, depth: int) -> Tree:
    return encoder._tree(int.__int__(value), depth)


def _plain_sequence(tag: str, walk: Callable[[Any], Iterator[Any]]) -> Callable[[Encoder, Any, int], Tree]:
    return lambda encoder, value, depth: encoder._items([tag], walk(value), depth)


def _dict(encoder: Encoder, value: dict[Any, Any], depth: int) -> Tree:
    return encoder._items(["d"], (part for pair in list(dict.items(value)) for part in pair), depth)


def _deque(encoder: Encoder, value: collections.deque[Any], depth: int) -> Tree:
    return encoder._items(["q", value.maxlen], collections.deque.__iter__(value), depth)


def _numbers(tag: str, *names: str) -> Callable[[Encoder, Any, int], Tree]:
    return lambda encoder, value, depth: [tag, *(encoder._tree(getattr(value, name), depth) for name in names)]


def _bytes(tag: str) -> Callable[[Encoder, Any, int], Tree]:
    return lambda encoder, value, depth: [tag, bytes(memoryview(value)).decode("latin-1")]


def _moment(encoder: Encoder, value: Any, depth: int) -> Tree:
    kind = next(name for name, base in _MOMENTS.items() if isinstance(value, base))
    return ["m", kind, _MOMENTS[kind].isoformat(value)]


_ENCODERS: dict[type, Callable[[Encoder, Any, int], Tree]] = {
    int: _integer,
    float: lambda encoder, value, depth: encoder._tree(float.__float__(value), depth),
    str: lambda encoder, value, depth: str.__getitem__(value, slice(None)),
    list: _plain_sequence("l", list.__iter__),
    tuple: _plain_sequence("t", tuple.__iter__),
    set: _plain_sequence("s", set.__iter__),
    frozenset: _plain_sequence("z", frozenset.__iter__),
    dict: _dict,
    type({}.keys()): _plain_sequence("s", iter),
    type({}.values()): _plain_sequence("i", lambda view: iter(("end", *view))),
    type({}.items()): _plain_sequence("i", lambda view: iter(("end", *view))),
    bytes: _bytes("b"),
    bytearray: _bytes("B"),
    memoryview: _bytes("b"),
    complex: _numbers("c", "real", "imag"),
    range: _numbers("R", "start", "stop", "step"),
    collections.deque: _deque,
    decimal.Decimal: lambda encoder, value, depth: ["D", decimal.Decimal.__str__(value)],
    fractions.Fraction: _numbers("Q", "numerator", "denominator"),
    type(...): lambda encoder, value, depth: ["e"],
    datetime.datetime: _moment,
    datetime.date: _moment,
    datetime.time: _moment,
    datetime.timedelta: _numbers("M", "days", "seconds", "microseconds"),
}


def nearest_builtin(kind: type[BaseException]) -> str:
    """Return the name of the nearest builtin Exception above a class; RuntimeError for SystemExit and its like."""
    for base in kind.__mro__:
        if EXCEPTIONS.get(base.__name__) is base:
            return base.__name__
    return "RuntimeError"


def text_of(problem: BaseException, limit: int = 4000) -> str:
    """Return an exception's text; "" when it cannot be asked."""
    try:
        text = str.__str__(str(problem))
    except BaseException:
        return ""
    return str(text[:limit])


def to_tree(value: Any) -> Tree:
    """Return the tree of a trusted value. Raises WireError (a ValueError) when it is no plain data."""
    return Encoder(wire=False).tree(value)


def pack(message: list[Tree], largest: int = LARGEST_MESSAGE) -> bytes:
    """Return a message (its trees made with `wire=True`) as a frame. Raises WireError when it is too large."""
    body = _dumps(message).encode("ascii")
    if len(body) > largest:
        raise WireError(f"{len(body)} bytes, more than {largest}")
    return HEADER.pack(len(body)) + body


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)
_make_chunks: Any = getattr(json.encoder, "c_make_encoder", None)
_ascii = json.encoder.encode_basestring_ascii
# What JSONEncoder makes anew for every message.
_chunks = _make_chunks and _make_chunks(None, _encoder.default, _ascii, None, ":", ",", False, False, False)


def _dumps(message: list[Tree]) -> str:
    return "".join(_chunks(message, 0)) if _chunks else _encoder.encode(message)


def _refuse(*_: Any) -> Any:
    raise WireError("JSON objects and constants may not cross")


def _small(digits: str) -> int:
    if len(digits) > 20:  # larger ones come in hex; to read decimal digits takes time that grows with their square
        raise WireError("a number of too many digits")
    return int(digits)


_decoder: Any = json.JSONDecoder(object_pairs_hook=_refuse, parse_constant=_refuse, parse_int=_small)
_scan = _decoder.scan_once


def unpack(body: bytes) -> list[Tree]:
    """Return the message in a frame's body, every tree in it checked. Raises WireError for anything else."""
    if body.count(b"[") + body.count(b",") > 4 * MOST_PARTS:
        raise WireError(f"more than {4 * MOST_PARTS} parts")
    try:
        text = body.decode("ascii")
        message, end = _scan(text, 0)
        if end != len(text):
            raise WireError("something behind it")
    except (ValueError, RecursionError, StopIteration) as problem:
        raise WireError(f"no JSON: {problem}"[:200]) from None
    if type(message) is not list or not message or type(message[0]) is not str:
        raise WireError("no message")
    return message


TRUSTED = frozenset({"n", "k"})
"""Tags that only the host and a judge may send: who could name a judge's globals would have the answers."""


def check(tree: Tree, refused: frozenset[str] = frozenset()) -> Tree:
    """Return a tree from the wire with real numbers in it. Raises WireError for anything that is no tree.

    Tags in `refused` are no trees either.
    Lists are changed in place. Takes no more stack for a deep tree than for a flat one.
    """
    holder = [tree]
    pending: list[tuple[list[Any], int, int]] = [(holder, 0, 0)]
    while pending:
        parts, first, depth = pending.pop()
        for place in range(first, len(parts)):
            part = parts[place]
            if type(part) is not list:
                continue
            if not part or type(part[0]) is not str:
                raise WireError("a list without a tag")
            tag = part[0]
            if tag in refused:
                raise WireError(f"the tag {tag!r} may not come from there")
            if tag in _NUMBERS:
                parts[place] = _number(part)
                continue
            if depth >= DEEPEST + 1:
                raise WireError(f"nested more than {DEEPEST} deep")
            start = _CHECKS[tag](part) if tag in _CHECKS else -1
            if start < 0:
                raise WireError(f"no tree of tag {tag[:20]!r}")
            if start < len(part):
                pending.append((part, start, depth + 1))
    return holder[0]


_NUMBERS = frozenset({"I", "F"})
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def _number(part: list[Any]) -> int | float:
    if len(part) == 2 and type(part[1]) is str:
        if part[0] == "F" and part[1] in _FLOATS:
            return _FLOATS[part[1]]
        digits = part[1].removeprefix("-")
        if part[0] == "I" and digits and not digits.strip("0123456789abcdef"):
            return int(part[1], 16)
    raise WireError("no number")


def _shape(*kinds: type) -> Callable[[list[Any]], int]:
    """A tree of exactly these parts. Parts that are numbers may be in their form for the wire."""

    def fits(part: list[Any]) -> int:
        if len(part) != 1 + len(kinds):
            return -1
        for place, kind in enumerate(kinds, 1):
            if type(part[place]) is list and kind is not str:
                part[place] = check(part[place]) if part[place][:1] in (["I"], ["F"]) else None
            if type(part[place]) is not kind:
                return -1
        return len(part)

    return fits


def _text_of_bytes(part: list[Any]) -> int:
    if len(part) != 2 or type(part[1]) is not str:
        return -1
    try:
        part[1].encode("latin-1")
    except UnicodeEncodeError:
        return -1
    return 2


def _deque_parts(part: list[Any]) -> int:
    if len(part) < 2 or not (part[1] is None or (type(part[1]) is int and part[1] >= len(part) - 2)):
        return -1
    return 2


def _drained(part: list[Any]) -> int:
    if len(part) < 2:
        return -1
    end = part[1]
    if type(end) is list:
        fits = len(end) == 3 and end[0] == "x" and type(end[1]) is str and end[1] in EXCEPTIONS and type(end[2]) is str
        return 2 if fits else -1
    return 2 if end in ("end", "more") else -1


def _decimal(part: list[Any]) -> int:
    if len(part) != 2 or type(part[1]) is not str:
        return -1
    try:
        decimal.Decimal(part[1])
    except (decimal.DecimalException, ValueError):
        return -1
    return 2


def _fraction(part: list[Any]) -> int:
    return -1 if _shape(int, int)(part) < 0 or part[2] < 1 else 3


def _range(part: list[Any]) -> int:
    return -1 if _shape(int, int, int)(part) < 0 or part[3] == 0 else 4


def _moment_parts(part: list[Any]) -> int:
    if _shape(str, str)(part) < 0 or part[1] not in _MOMENTS:
        return -1
    try:
        _MOMENTS[part[1]].fromisoformat(part[2])
    except ValueError:
        return -1
    return 3


def _delta(part: list[Any]) -> int:
    if _shape(int, int, int)(part) < 0:
        return -1
    try:
        datetime.timedelta(*part[1:])
    except OverflowError:
        return -1
    return 4


def _any(part: list[Any]) -> int:
    return 1


_CHECKS: dict[str, Callable[[list[Any]], int]] = {
    "l": _any,
    "t": _any,
    "s": _any,
    "z": _any,
    "d": lambda part: 1 if len(part) % 2 else -1,
    "b": _text_of_bytes,
    "B": _text_of_bytes,
    "c": _shape(float, float),
    "R": _range,
    "q": _deque_parts,
    "e": _shape(),
    "D": _decimal,
    "Q": _fraction,
    "T": lambda part: 2 if _shape(str)(part) > 0 and part[1] in TYPES else -1,
    "m": _moment_parts,
    "M": _delta,
    "i": _drained,
    "h": _shape(int, str),
    "o": _shape(int),
    "k": _shape(int, str),
    "n": _shape(str),
}


def to_value(tree: Tree, special: Callable[[list[Tree]], Any] | None = None) -> Any:
    """Return the value that a checked tree stands for. `special` makes something of the tags h, o, k and n.

    Raises WireError for what has no value: those tags without `special`, or a set of lists.
    """
    if type(tree) is not list:
        return tree
    tag = tree[0]
    if tag == "l":
        return [to_value(part, special) for part in tree[1:]]
    make = _DECODERS.get(tag)
    try:
        if make is not None:
            return make(tree, special)
        if special is not None:
            return special(tree)
    except (TypeError, ArithmeticError) as problem:
        raise WireError(f"no value: {problem}") from None
    raise WireError(f"an opaque object ({tree[-1]}) has no value here")


def _parts(tree: list[Tree], special: Any, first: int = 1) -> list[Any]:
    return [to_value(part, special) for part in tree[first:]]


def _iterator(tree: list[Tree], special: Any) -> Iterator[Any]:
    items, end = _parts(tree, special, 2), tree[1]

    def replay() -> Iterator[Any]:
        yield from items
        if type(end) is list:
            raise EXCEPTIONS[end[1]](end[2])
        if end == "more":
            raise RuntimeError(f"an iterator was cut off after {DRAIN} items")

    return replay()


def _mapping(tree: list[Tree], special: Any) -> dict[Any, Any]:
    parts = _parts(tree, special)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _like_a_literal(parts: list[Any]) -> set[Any]:
    """Return a set whose items come in the order that `{…}` in a source gives them, for programs that rely on it."""
    made: set[Any] = set()
    made.update(frozenset(parts))
    return made


_DECODERS: dict[str, Callable[[list[Tree], Any], Any]] = {
    "t": lambda tree, special: tuple(_parts(tree, special)),
    "s": lambda tree, special: _like_a_literal(_parts(tree, special)),
    "z": lambda tree, special: frozenset(_parts(tree, special)),
    "d": _mapping,
    "b": lambda tree, special: tree[1].encode("latin-1"),
    "B": lambda tree, special: bytearray(tree[1].encode("latin-1")),
    "c": lambda tree, special: complex(tree[1], tree[2]),
    "R": lambda tree, special: range(*tree[1:]),
    "q": lambda tree, special: collections.deque(_parts(tree, special, 2), tree[1]),
    "e": lambda tree, special: ...,
    "D": lambda tree, special: decimal.Decimal(tree[1]),
    "Q": lambda tree, special: fractions.Fraction(tree[1], tree[2]),
    "T": lambda tree, special: TYPES[tree[1]],
    "m": lambda tree, special: _MOMENTS[tree[1]].fromisoformat(tree[2]),
    "M": lambda tree, special: datetime.timedelta(*tree[1:]),
    "i": _iterator,
}
