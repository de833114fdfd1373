"""Sets of real numbers: intervals, unions, isolated inequalities, and their one normal form."""

from __future__ import annotations

from typing import Any, NamedTuple

from rewardkit.verifiers.math.gate import Refused
from rewardkit.verifiers.math.leaves import NeedsAlgebra, equal_values, infinite_sign, numeric
from rewardkit.verifiers.math.points import NotReal, Unknown
from rewardkit.verifiers.math.tree import (
    INF,
    SCALAR,
    Builder,
    Expr,
    Interval,
    NamedSet,
    Node,
    Rel,
    Seq,
    SetOp,
    Sym,
    negated,
    symbols,
)

MINUS_INF = negated(INF)


class Piece(NamedTuple):
    """One interval; a point is a closed one of no length."""

    low: Expr
    low_closed: bool
    high: Expr
    high_closed: bool


class RealSet(NamedTuple):
    """Disjoint pieces in order, and the variable it is said of ("" where none is named)."""

    pieces: tuple[Piece, ...]
    var: str = ""


ALL = Piece(MINUS_INF, False, INF, False)
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class _NoRealSet(Exception):
    pass


def real_set(node: Node, pairs: bool = False) -> RealSet | None:
    """Return the set of real numbers that a tree describes, or None when it describes none.

    Args:
        pairs: (1,2) and [1,2] are intervals.
    """
    try:
        found = _read(node, pairs)
        return RealSet(_normal(found.pieces), found.var)
    except (_NoRealSet, Unknown, NotReal, Refused, NeedsAlgebra):
        return None


def _read(node: Node, pairs: bool) -> RealSet:
    match node:
        case Interval(low, high, low_closed, high_closed):
            return RealSet((_piece(low, low_closed, high, high_closed),))
        case Seq("tuple", (low, high)) if pairs:
            return RealSet((_piece(low, False, high, False),))
        case Seq("bracket", (low, high)):
            return RealSet((_piece(low, True, high, True),))
        case Seq("set", items):
            return RealSet(tuple(_piece(item, True, item, True) for item in items))
        case NamedSet("R"):
            return RealSet((ALL,))
        case NamedSet(""):
            return RealSet(())
        case SetOp(op, parts):
            return _operation(op, [_read(part, True) for part in parts])
        case Rel(items, ops):
            return _relation(items, ops)
        case Seq("and" | "or" | "list" as kind, items):
            return _several(kind, [_read(item, pairs) for item in items])
        case Builder(shape, condition):
            return _builder(shape, condition)
    raise _NoRealSet


def _piece(low: Node, low_closed: bool, high: Node, high_closed: bool) -> Piece:
    if not isinstance(low, SCALAR) or not isinstance(high, SCALAR):
        raise _NoRealSet
    return Piece(low, low_closed and not infinite_sign(low), high, high_closed and not infinite_sign(high))


def _builder(shape: Node, condition: Node) -> RealSet:
    if isinstance(shape, Rel) and shape.ops == ("in",) and isinstance(shape.items[0], Sym):
        base = _read(shape.items[1], True)
        name = shape.items[0].name
    elif isinstance(shape, Sym):
        base, name = RealSet((ALL,)), shape.name
    else:
        raise _NoRealSet
    found = _read(condition, False)
    if found.var and found.var != name:
        raise _NoRealSet
    return RealSet(_intersection(_normal(base.pieces), _normal(found.pieces)))


def _several(kind: str, sets: list[RealSet]) -> RealSet:
    names = {one.var for one in sets if one.var}
    if len(names) > 1 or (kind == "list" and not names):
        raise _NoRealSet
    name = names.pop() if names else ""
    if kind == "or":
        return RealSet(tuple(piece for one in sets for piece in one.pieces), name)
    common = _normal(sets[0].pieces)
    for one in sets[1:]:
        common = _intersection(common, _normal(one.pieces))
    if kind == "list" and not common:
        return RealSet(tuple(piece for one in sets for piece in one.pieces), name)
    return RealSet(common, name)


def _operation(op: str, sets: list[RealSet]) -> RealSet:
    if op == "union":
        return RealSet(tuple(piece for one in sets for piece in one.pieces))
    first, second = _normal(sets[0].pieces), _normal(sets[1].pieces)
    if op == "intersection":
        return RealSet(_intersection(first, second))
    return RealSet(_intersection(first, _complement(second)))


def _relation(items: tuple[Node, ...], ops: tuple[str, ...]) -> RealSet:
    if len(ops) == 1:
        left, right = items
        op = ops[0]
        if op in ("in", "notin") and isinstance(left, Sym):
            inner = _read(right, True)
            pieces = inner.pieces if op == "in" else _complement(_normal(inner.pieces))
            return RealSet(pieces, left.name)
        if not isinstance(left, SCALAR) or not isinstance(right, (*SCALAR, Seq)):
            raise _NoRealSet
        if isinstance(right, Sym) and not isinstance(left, Sym):
            left, right, op = right, left, _FLIP.get(op, "")
        if not isinstance(left, Sym) or left.name in symbols(right) or op not in _FLIP:
            raise _NoRealSet
        if not isinstance(right, SCALAR):
            raise _NoRealSet
        return RealSet(_bounded(op, right), left.name)
    if len(ops) == 2 and isinstance(items[1], Sym):
        low, var, high = items
        if {*ops} <= {"<", "<="}:
            pass
        elif {*ops} <= {">", ">="}:
            low, high, ops = high, low, (ops[1], ops[0])
        else:
            raise _NoRealSet
        assert isinstance(var, Sym)
        if var.name in symbols(low) | symbols(high):
            raise _NoRealSet
        return RealSet((_piece(low, ops[0].endswith("="), high, ops[1].endswith("=")),), var.name)
    raise _NoRealSet


def _bounded(op: str, bound: Expr) -> tuple[Piece, ...]:
    if op == "<" or op == "<=":
        return (Piece(MINUS_INF, False, bound, op == "<="),)
    if op == ">" or op == ">=":
        return (Piece(bound, op == ">=", INF, False),)
    if op == "=":
        return (Piece(bound, True, bound, True),)
    return (Piece(MINUS_INF, False, bound, False), Piece(bound, False, INF, False))


# ----------------------------------------------------------------------------------------- arithmetic


def _place(expr: Expr) -> Any:
    """Return where an end lies, for ordering."""
    sign = infinite_sign(expr)
    if sign:
        return sign * float("inf")
    if symbols(expr):
        raise Unknown("an end that depends on a variable")
    value = numeric(expr)
    if hasattr(value, "imag") and value.imag:
        raise Unknown("an end that is not real")
    return value.real


def _compare(left: Expr, right: Expr) -> int:
    if left == right:
        return 0
    mine, theirs = _place(left), _place(right)
    if not infinite_sign(left) and not infinite_sign(right) and equal_values(left, right).equal:
        return 0
    return -1 if mine < theirs else 1


def _normal(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Sort, drop what is empty, and join what touches. A single piece may depend on variables."""
    if len(pieces) == 1 and (symbols(pieces[0].low) or symbols(pieces[0].high)):
        return pieces
    kept = []
    for piece in pieces:
        order = _compare(piece.low, piece.high)
        if order > 0 or (order == 0 and not (piece.low_closed and piece.high_closed)):
            continue
        kept.append(piece)
    kept.sort(key=lambda piece: (_place(piece.low), not piece.low_closed))
    joined: list[Piece] = []
    for piece in kept:
        if joined:
            last = joined[-1]
            order = _compare(piece.low, last.high)
            if order < 0 or (order == 0 and (piece.low_closed or last.high_closed)):
                end = _compare(piece.high, last.high)
                high, closed = (piece.high, piece.high_closed) if end > 0 else (last.high, last.high_closed)
                if end == 0:
                    closed = piece.high_closed or last.high_closed
                joined[-1] = Piece(last.low, last.low_closed, high, closed)
                continue
        joined.append(piece)
    return tuple(joined)


def _intersection(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    found = []
    for one in first:
        for other in second:
            order = _compare(one.low, other.low)
            low, low_closed = (one.low, one.low_closed) if order > 0 else (other.low, other.low_closed)
            if order == 0:
                low_closed = one.low_closed and other.low_closed
            order = _compare(one.high, other.high)
            high, high_closed = (one.high, one.high_closed) if order < 0 else (other.high, other.high_closed)
            if order == 0:
                high_closed = one.high_closed and other.high_closed
            found.append(Piece(low, low_closed, high, high_closed))
    return _normal(tuple(found))


def _complement(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    gaps = []
    low: Expr = MINUS_INF
    closed = False
    for piece in pieces:
        gaps.append(Piece(low, closed, piece.low, not piece.low_closed and not infinite_sign(piece.low)))
        low, closed = piece.high, not piece.high_closed
    if infinite_sign(low) <= 0:
        gaps.append(Piece(low, closed and not infinite_sign(low), INF, False))
    return tuple(gap for gap in gaps if not (infinite_sign(gap.low) and gap.low == gap.high))
