"""The last step: computer algebra on trees, in a worker that can be killed.

A tree becomes sympy's objects node by node; no text is ever given to sympy. sympy is imported here alone, and only
when something is left that neither arithmetic nor evaluation at points decides: limits, integrals, infinite sums.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rewardkit.verifiers.math.gate import Refused
from rewardkit.verifiers.math.leaves import Answer
from rewardkit.verifiers.math.tree import Add, Big, Const, Expr, Fn, Matrix, Mul, Num, Pow, Sym, children

MAX_NODES = 120


class Undecided(Exception):
    """sympy cannot tell."""


class TooSlow(BaseException):
    """The time is up. Not an Exception, since sympy catches those."""


SECONDS = 0.7
"""What one comparison may take in a worker before it gives up by itself; the deadline that kills comes after it."""

_own_process = False


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TooSlow here when the time is up. Only in a worker, whose signals are nobody else's.

    A worker that gives up need not be started again, which takes longer than a comparison.
    """
    if not _own_process:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.02)  # again and again: an `except:` on the way may swallow one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def equal(left: Expr, right: Expr) -> Answer:
    """Compare two expressions with sympy.

    Raises:
        Undecided: It finds neither equality nor a difference.
        Refused: They are too large, or hold what sympy has no name for.
        TooSlow: In a worker: it takes longer than SECONDS.
    """
    if _count(left) + _count(right) > MAX_NODES:
        raise Refused("too large for computer algebra", "too_large")
    with _within(SECONDS):
        return _equal(left, right)


def _equal(left: Expr, right: Expr) -> Answer:
    import sympy

    first, second = _evaluated(to_sympy(left)), _evaluated(to_sympy(right))
    for value in (first, second):
        if value.has(sympy.nan, sympy.zoo):
            raise Refused("it has no value", "undefined")
    if first == second:
        return Answer(True, "sympy")
    if first.is_infinite or second.is_infinite:
        return Answer(False, "sympy", f"{first} and {second}"[:80])
    gap = sympy.simplify(first - second)
    if gap == 0:
        return Answer(True, "sympy")
    if isinstance(left, Big) and left.kind == "antiderivative":
        constant = gap.is_number or not gap.has(sympy.Symbol(left.var))
        if constant:
            return Answer(True, "sympy", "up to a constant")
    if gap.has(sympy.Integral, sympy.Limit, sympy.Sum, sympy.Product):
        if gap.is_number or not gap.free_symbols:
            value = sympy.N(gap, 20)
            if value.is_number and abs(value) > sympy.Float("1e-10"):
                return Answer(False, "sympy", f"they differ by {sympy.N(value, 5)}")
        raise Undecided
    return Answer(False, "sympy", f"they differ by {gap}"[:80])


def warm() -> None:
    """In a worker: import sympy and what it imports on first use, before a deadline counts."""
    global _own_process
    _own_process = True
    import sympy

    x, n = sympy.Symbol("x"), sympy.Symbol("n")
    sympy.Integral(2 * x, (x, 0, 1)).doit()
    sympy.Limit(sympy.sin(x) / x, x, 0, "+-").doit()
    sympy.simplify(sympy.Sum(2**-n, (n, 0, sympy.oo)).doit() - 2)


def _count(expr: Any) -> int:
    return 1 + sum(map(_count, children(expr)))


def _evaluated(value: Any) -> Any:
    return value.doit() if hasattr(value, "doit") else value


_SAME_NAME = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "sinh",
        "cosh",
        "tanh",
        "coth",
        "sech",
        "csch",
        "asin",
        "acos",
        "atan",
        "acot",
        "asec",
        "acsc",
        "asinh",
        "acosh",
        "atanh",
        "factorial",
        "factorial2",
        "binomial",
        "re",
        "im",
        "arg",
        "sign",
        "erf",
        "gcd",
        "lcm",
        "floor",
    ]
)


def to_sympy(expr: Expr) -> Any:
    """Build sympy's object for a tree."""
    import sympy

    match expr:
        case Num(value, _):
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2000:
                raise Refused("a number too large for computer algebra", "too_large")
            return sympy.Rational(value.numerator, value.denominator)
        case Sym(name):
            return sympy.Symbol(name)
        case Const(name):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}[name]
        case Add(terms):
            return sympy.Add(*map(to_sympy, terms))
        case Mul(factors):
            return sympy.Mul(*map(to_sympy, factors))
        case Pow(base, exponent):
            if isinstance(exponent, Num) and abs(exponent.value) > 200 and isinstance(base, (Num, Add)):
                raise Refused("a power too large for computer algebra", "too_large")
            return sympy.Pow(to_sympy(base), to_sympy(exponent))
        case Fn(name, args):
            return _function(name, [to_sympy(arg) for arg in args])
        case Big(kind, var, low, high, body):
            return _big(kind, sympy.Symbol(var), low, high, to_sympy(body))
        case Matrix():
            raise Refused("a matrix is not compared by computer algebra")
    raise Refused(f"a {type(expr).__name__.lower()} is not compared by computer algebra")


def _function(name: str, args: list[Any]) -> Any:
    import sympy

    if name == "root":
        return sympy.real_root(args[0], args[1]) if args[0].is_negative and args[1].is_odd else args[0] ** (1 / args[1])
    if name == "degree":
        return sympy.pi / 180
    if name == "ln" or (name == "log" and len(args) == 1):
        return sympy.log(args[0])
    if name == "log":
        return sympy.log(args[0]) / sympy.log(args[1])
    if name in ("abs", "max", "min", "ceil", "conj"):
        return getattr(sympy, {"abs": "Abs", "max": "Max", "min": "Min", "ceil": "ceiling", "conj": "conjugate"}[name])(
            *args
        )
    if name in _SAME_NAME:
        return getattr(sympy, name)(*args)
    raise Refused(f"{name} has no counterpart in computer algebra")


def _big(kind: str, var: Any, low: Expr | None, high: Expr | None, body: Any) -> Any:
    import sympy

    if kind == "diff":
        return sympy.Derivative(body, var)
    if kind == "antiderivative":
        return sympy.Integral(body, var)
    if low is None:
        raise Refused("no bounds")
    if kind == "lim":
        return sympy.Limit(body, var, to_sympy(low), "+-" if low != Const("inf") and not _infinite(low) else "-")
    if high is None:
        raise Refused("no upper bound")
    bounds = (var, to_sympy(low), to_sympy(high))
    made = {"int": sympy.Integral, "sum": sympy.Sum, "prod": sympy.Product}[kind]
    return made(body, bounds)


def _infinite(expr: Expr) -> bool:
    return isinstance(expr, Mul) and Const("inf") in expr.factors
