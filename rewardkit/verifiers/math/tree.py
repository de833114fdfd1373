"""The syntax tree of an answer: small immutable nodes, equal and hashed by value."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import msgspec


class Num(msgspec.Struct, frozen=True):
    """An exact number; `digits` counts the significant digits of one written with a decimal point, else 0."""

    value: Fraction
    digits: int = 0


class Sym(msgspec.Struct, frozen=True):
    """A variable. Case, subscripts and primes belong to its name."""

    name: str


class Const(msgspec.Struct, frozen=True):
    """pi, e, i (the imaginary unit) or inf."""

    name: str


class Add(msgspec.Struct, frozen=True):
    terms: tuple[Expr, ...]


class Mul(msgspec.Struct, frozen=True):
    factors: tuple[Expr, ...]


class Pow(msgspec.Struct, frozen=True):
    """A power; division is one with exponent -1."""

    base: Expr
    exponent: Expr


class Fn(msgspec.Struct, frozen=True):
    """A named function of the table in functions.py, or an unknown one such as f."""

    name: str
    args: tuple[Expr, ...]


class PlusMinus(msgspec.Struct, frozen=True):
    """Both signs of something; `sign` is 1 for plus-minus, -1 for minus-plus."""

    arg: Expr
    sign: int


class Big(msgspec.Struct, frozen=True):
    """A sum, product, integral, limit or derivative over a variable."""

    kind: str
    var: str
    low: Expr | None
    high: Expr | None
    body: Expr


class Seq(msgspec.Struct, frozen=True):
    """Several things: a "tuple" (1,2), "bracket" [1,2], "set" {1,2}, "list" 1,2, "and", "or"."""

    kind: str
    items: tuple[Node, ...]


class Interval(msgspec.Struct, frozen=True):
    low: Node
    high: Node
    low_closed: bool
    high_closed: bool


class SetOp(msgspec.Struct, frozen=True):
    """A "union", "intersection" or "difference" of sets."""

    op: str
    parts: tuple[Node, ...]


class NamedSet(msgspec.Struct, frozen=True):
    """R, Z, N, Q, C, or the empty set as ""."""

    name: str


class Builder(msgspec.Struct, frozen=True):
    """{shape | condition}."""

    shape: Node
    condition: Node


class Rel(msgspec.Struct, frozen=True):
    """A chain of relations: n+1 items around n of = < > <= >= != in ~."""

    items: tuple[Node, ...]
    ops: tuple[str, ...]


class Matrix(msgspec.Struct, frozen=True):
    rows: tuple[tuple[Expr, ...], ...]


class Cases(msgspec.Struct, frozen=True):
    """A piecewise value: pairs of value and condition."""

    rows: tuple[tuple[Node, Node], ...]


class Text(msgspec.Struct, frozen=True):
    """Words, folded for comparison."""

    text: str


class Measure(msgspec.Struct, frozen=True):
    """A value with a unit in the normal form of units.py; "%" for percent."""

    value: Node
    unit: str


class Residue(msgspec.Struct, frozen=True):
    """A value modulo something."""

    value: Node
    modulus: Expr


class Ratio(msgspec.Struct, frozen=True):
    """a : b : c; `open` when it goes on with dots."""

    items: tuple[Expr, ...]
    open: bool = False


Expr: TypeAlias = Num | Sym | Const | Add | Mul | Pow | Fn | PlusMinus | Big | Matrix | Cases
Node: TypeAlias = Expr | Seq | Interval | SetOp | NamedSet | Builder | Rel | Text | Measure | Residue | Ratio

SCALAR = (Num, Sym, Const, Add, Mul, Pow, Fn, Big)

ZERO, ONE, MINUS_ONE, TWO = Num(Fraction(0)), Num(Fraction(1)), Num(Fraction(-1)), Num(Fraction(2))
PI, E, I, INF = Const("pi"), Const("e"), Const("i"), Const("inf")  # noqa: E741


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below one."""
    match node:
        case Add(terms):
            return terms
        case Mul(factors):
            return factors
        case Pow(base, exponent):
            return (base, exponent)
        case Fn(_, args):
            return args
        case PlusMinus(arg, _):
            return (arg,)
        case Big(_, _, low, high, body):
            return tuple(part for part in (low, high, body) if part is not None)
        case Seq(_, items) | Ratio(items, _) | Rel(items, _):
            return items
        case SetOp(_, parts):
            return parts
        case Interval(low, high):
            return (low, high)
        case Builder(shape, condition):
            return (shape, condition)
        case Matrix(rows):
            return tuple(item for row in rows for item in row)
        case Cases(pairs):
            return tuple(item for pair in pairs for item in pair)
        case Measure(value, _):
            return (value,)
        case Residue(value, modulus):
            return (value, modulus)
    return ()


def symbols(node: Node) -> frozenset[str]:
    """Return the names of a node's free variables."""
    if isinstance(node, Sym):
        return frozenset((node.name,))
    found: frozenset[str] = frozenset()
    for child in children(node):
        found |= symbols(child)
    if isinstance(node, Big):
        bound = node.var
        if node.kind not in ("diff", "antiderivative"):
            found -= {bound}
    return found


def contains(node: Node, *kinds: type) -> bool:
    """Whether a node of some kind stands anywhere in a tree."""
    return isinstance(node, kinds) or any(contains(child, *kinds) for child in children(node))


def negated(expr: Expr) -> Expr:
    if isinstance(expr, Num):
        return Num(-expr.value, expr.digits)
    if isinstance(expr, Mul):
        first, *rest = expr.factors
        if isinstance(first, Num):
            return Mul((Num(-first.value, first.digits), *rest))
        return Mul((MINUS_ONE, *expr.factors))
    return Mul((MINUS_ONE, expr))


def difference(left: Expr, right: Expr) -> Expr:
    return left if right == ZERO else Add((left, negated(right)))
