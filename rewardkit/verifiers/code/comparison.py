"""Trusted value against wire tree: what a program answered against what was expected.

Python's own equality, as tests have it: 1 equals 1.0 and True, a list does not equal a tuple. The comparison walks the
expected value and looks up each part of the answer in it. Of what a program sent no set and no dict is built, since
60,000 numbers of one hash would stall that, and nothing of it is ever asked: an opaque object equals nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from rewardkit.sandbox import to_tree, to_value

Tree: TypeAlias = Any
"""None, bool, int, float, str, or a list whose first item is a tag."""

_PAIRS = 4_000_000  # comparisons of composite members of sets, at most
_PLAIN = (bool, int, float, str, type(None))
_NUMBERS = (int, float, complex, Decimal, Fraction)
_SEQUENCES: dict[type, str] = {list: "l", tuple: "t"}


class Tolerance:
    """How far numbers may be apart, and whether values come from JSON.

    Attributes:
        absolute: Largest difference.
        relative: Largest difference as a share of the larger magnitude.
        loose: Tuples equal lists, and the key "1" equals 1.
    """

    __slots__ = ("absolute", "loose", "relative")

    def __init__(self, absolute: float = 0.0, relative: float = 0.0, *, loose: bool = False) -> None:
        self.absolute = absolute
        self.relative = relative
        self.loose = loose

    @property
    def exact(self) -> bool:
        return not self.absolute and not self.relative


EXACT = Tolerance()


def equals(expected: Any, got: Tree, tolerance: Tolerance = EXACT) -> bool:
    """Whether a program's answer equals the expected value. Takes time linear in the two, never raises on any tree."""
    try:
        return _equals(expected, got, tolerance)
    except (RecursionError, ArithmeticError, TypeError, ValueError):  # a signalling NaN cannot even be hashed
        return False


def _equals(expected: Any, got: Tree, tolerance: Tolerance) -> bool:
    kind = type(expected)
    if kind in (list, tuple):
        return _same_sequence(expected, got, tolerance)
    if kind is dict or isinstance(expected, Mapping):
        return _same_dict(expected, got, tolerance)
    if isinstance(expected, Set):
        return _same_set(expected, got, tolerance)
    if expected is None or kind is str:
        return type(got) is kind and bool(got == expected)
    if isinstance(expected, _NUMBERS):
        number = _number(got)
        return number is not None and _same_number(expected, number, tolerance)
    if isinstance(expected, (bytes, bytearray)):
        return _tag(got) in ("b", "B") and bool(got[1] == expected.decode("latin-1"))
    if isinstance(expected, deque):
        return (
            _tag(got) == "q"
            and len(got) - 2 == len(expected)
            and all(map(_equals, expected, got[2:], [tolerance] * len(expected)))
        )
    if isinstance(expected, range):
        return _tag(got) == "R" and bool(to_value(got) == expected)
    return bool(to_tree(expected) == got)


def _tag(got: Tree) -> str | None:
    return got[0] if type(got) is list and got and type(got[0]) is str else None


def _number(got: Tree) -> Any:
    """Return the number that a tree is, else None."""
    if isinstance(got, (bool, int, float)):
        return got
    if _tag(got) in _NUMBER_TAGS:
        value = to_value(got)
        return value if isinstance(value, _NUMBERS) else None
    return None


def _same_number(expected: Any, got: Any, tolerance: Tolerance) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(got, float) and math.isnan(got)
    try:
        if expected == got:
            return True
    except (ArithmeticError, TypeError):
        return False
    if tolerance.exact or isinstance(expected, bool) or isinstance(got, bool):
        return False
    return _near(expected, got, tolerance)


def _near(expected: Any, got: Any, tolerance: Tolerance) -> bool:
    try:
        if isinstance(expected, complex) or isinstance(got, complex):
            one, other = complex(expected), complex(got)
            if not (math.isfinite(abs(one)) and math.isfinite(abs(other))):
                return False
            return abs(one - other) <= max(tolerance.absolute, tolerance.relative * max(abs(one), abs(other)))
        wanted, value = float(expected), float(got)
    except (ArithmeticError, TypeError, ValueError):
        return False
    if not (math.isfinite(wanted) and math.isfinite(value)):
        return False
    return abs(wanted - value) <= max(tolerance.absolute, tolerance.relative * max(abs(wanted), abs(value)))


def _same_sequence(expected: Any, got: Tree, tolerance: Tolerance) -> bool:
    tag = _tag(got)
    if tag != _SEQUENCES[type(expected)] and not (tolerance.loose and tag in ("l", "t")):
        return False
    if len(got) - 1 != len(expected):
        return False
    return all(_equals(one, got[at], tolerance) for at, one in enumerate(expected, 1))


def _same_dict(expected: Mapping[Any, Any], got: Tree, tolerance: Tolerance) -> bool:
    if _tag(got) != "d" or len(got) - 1 != 2 * len(expected):
        return False
    finder = _Finder(expected, tolerance)
    for at in range(1, len(got), 2):
        key = finder.take(got[at])
        if key is _NOWHERE or not _equals(expected[key], got[at + 1], tolerance):
            return False
    return True


def _same_set(expected: Set[Any], got: Tree, tolerance: Tolerance) -> bool:
    if _tag(got) not in ("s", "z") or len(got) - 1 != len(expected):
        return False
    finder = _Finder(expected, tolerance)
    return all(finder.take(got[at]) is not _NOWHERE for at in range(1, len(got)))


_NOWHERE: Any = object()


class _Finder:
    """Finds parts of an answer among trusted members, each of which can be found once."""

    def __init__(self, members: Iterable[Any], tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        # Hash tables of trusted values only: what is looked up in them may collide with few.
        self._plain = {member: member for member in members if isinstance(member, (*_PLAIN, *_NUMBERS))}
        self._others = [member for member in members if not isinstance(member, (*_PLAIN, *_NUMBERS))]
        self._tuples = {_frozen_key(member): at for at, member in enumerate(self._others)}
        self._left = _PAIRS

    def take(self, part: Tree) -> Any:
        """Return the member that equals this part and was not found before, else _NOWHERE."""
        number = _number(part)
        plain = part if number is None else number
        if isinstance(plain, (*_PLAIN, *_NUMBERS)):
            return self._take_plain(plain)
        place = self._tuples.get(_tree_key(part)) if self._tolerance.exact else None
        if place is not None and self._others[place] is not _NOWHERE and self._matches(place, part):
            return self._remove(place)
        for at, member in enumerate(self._others):
            if member is not _NOWHERE and self._matches(at, part):
                return self._remove(at)
        return _NOWHERE

    def _take_plain(self, value: Any) -> Any:
        found = self._plain.pop(value, _NOWHERE)
        if found is _NOWHERE and self._tolerance.loose and isinstance(value, int) and not isinstance(value, bool):
            found = self._plain.pop(str(value), _NOWHERE) if abs(value) < 10**18 else _NOWHERE
        if found is _NOWHERE and not self._tolerance.exact and isinstance(value, _NUMBERS):
            for member in self._plain:
                self._left -= 1
                if self._left < 0:
                    return _NOWHERE
                if isinstance(member, _NUMBERS) and _same_number(member, value, self._tolerance):
                    return self._plain.pop(member)
        return found

    def _matches(self, place: int, part: Tree) -> bool:
        self._left -= 1
        return self._left >= 0 and _equals(self._others[place], part, self._tolerance)

    def _remove(self, place: int) -> Any:
        member = self._others[place]
        self._others[place] = _NOWHERE
        return member


def _frozen_key(member: Any) -> str:
    """Return a cheap first guess at where equal trees lie: only a guess, the comparison decides."""
    return _tree_key(to_tree(member))


def _tree_key(tree: Tree) -> str:
    return repr(tree) if _is_small(tree, [2000]) else ""


def _is_small(tree: Tree, left: list[int]) -> bool:
    """Whether a tree can be written as a short text."""
    if type(tree) is list:
        left[0] -= len(tree)
        return left[0] >= 0 and all(_is_small(item, left) for item in tree)
    if type(tree) is str:
        left[0] -= len(tree)
    elif type(tree) is int:
        left[0] -= tree.bit_length() // 3
        return left[0] >= 0 and tree.bit_length() < 12_000
    return left[0] >= 0


def is_same(expected: object, got: Tree) -> bool:
    """Whether an answer is this None, True or False."""
    return type(got) is type(expected) and bool(got == expected)


def is_true(got: Tree) -> bool | None:
    """Return the truth value of an answer; None for an opaque object, which has none here."""
    if got is None or isinstance(got, _PLAIN):
        return bool(got)
    tag = _tag(got)
    if tag in ("l", "t", "s", "z", "d"):
        return len(got) > 1
    if tag == "q":
        return len(got) > 2
    if tag == "i":
        return True  # an iterator, whatever it gives
    if tag in _NUMBER_TAGS or tag in _VALUE_TAGS:
        return bool(to_value(got))
    return None


# ------------------------------------------------------------------------------------------------ shown

_LONG = 200


def show(value: Any, limit: int = _LONG) -> str:
    """Write a trusted value, shortened."""
    try:
        return show_tree(to_tree(value), limit)
    except ValueError:
        return "<a value that is nested too deeply>"


def show_tree(tree: Tree, limit: int = _LONG) -> str:
    """Write a tree as Python would, shortened; takes time bounded by `limit` whatever the tree."""
    parts: list[str] = []
    _write(tree, parts, [limit])
    text = "".join(parts)
    return text if len(text) <= limit else text[: limit - 1] + "…"


_BRACKETS = {"l": ("[", "]"), "t": ("(", ")"), "s": ("{", "}"), "z": ("frozenset({", "})"), "d": ("{", "}")}


def _write(tree: Tree, parts: list[str], left: list[int]) -> None:
    if left[0] <= 0:
        return
    tag = _tag(tree)
    if tag in _BRACKETS:
        _write_items(tree, str(tag), parts, left)
        return
    if tag == "h":
        text = f"<{str(tree[2])[:60]} object>" if len(tree) > 2 else "<object>"
    elif type(tree) is str:
        text = repr(tree[:_LONG]) + ("…" if len(tree) > _LONG else "")
    elif type(tree) is int and tree.bit_length() > 12_000:
        text = hex(tree)[:_LONG] + "…"
    elif tag is None:
        text = repr(tree)
    elif tag == "b":
        text = repr(str(tree[1])[:_LONG].encode("latin-1", "replace"))
    elif tag == "i":
        text = "<an iterator>"
    else:
        text = _shown_value(tree)
    left[0] -= len(text)
    parts.append(text)


def _shown_value(tree: Tree) -> str:
    if not _is_small(tree, [_LONG]):
        return f"<a large {tree[0]}>"
    try:
        return repr(to_value(tree))
    except Exception:
        return "<a value>"


def _write_items(tree: list[Tree], tag: str, parts: list[str], left: list[int]) -> None:
    opening, closing = ("set()", "") if tag == "s" and len(tree) == 1 else _BRACKETS[tag]
    parts.append(opening)
    for at, item in enumerate(tree[1:_LONG], 1):
        if left[0] <= 0:
            break
        if at > 1:
            separator = ": " if tag == "d" and at % 2 == 0 else ", "
            parts.append(separator)
            left[0] -= 2
        _write(item, parts, left)
    if tag == "t" and len(tree) == 2:
        parts.append(",")
    left[0] -= 1
    parts.append(closing)


_NUMBER_TAGS = frozenset({"c", "D", "Q"})
_VALUE_TAGS = frozenset({"b", "B", "R", "e", "m", "M", "T"})
