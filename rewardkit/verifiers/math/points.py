"""Evaluation at points: complex numbers of many digits, with the size of what was added up on the way.

Each thread has its own mpmath context, so nothing global is changed. Every function bounds its argument before it
is called, so no expression makes it slow.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rewardkit.verifiers.math.gate import Refused, TooLarge
from rewardkit.verifiers.math.rational import MAX_TERMS, Irrational, Undefined, exact
from rewardkit.verifiers.math.tree import Add, Big, Const, Expr, Fn, Mul, Num, Pow, Sym

MAX_LOG2 = 1 << 20  # bits of the exponent's reach: larger values are not evaluated
_STEPS = 6000

_local = threading.local()


def context(digits: int) -> Any:
    """Return this thread's mpmath context with so many decimal digits."""
    contexts = _local.__dict__.setdefault("contexts", {})
    found = contexts.get(digits)
    if found is None:
        from mpmath.ctx_mp import MPContext

        found = contexts[digits] = MPContext()
        found.dps = digits
    return found


class NotReal(Exception):
    """A root or logarithm left the real numbers on the way."""


class Unknown(Exception):
    """An expression that cannot be evaluated at points."""


class Evaluator:
    """Evaluates expressions at one point.

    Attributes:
        scale: The largest size of anything that was added up: what a difference is measured against.
        left_reals: Something on the way was not real.
    """

    def __init__(self, at: Mapping[str, Any], digits: int) -> None:
        self.mp = context(digits)
        self.at = dict(at)
        self.scale = self.mp.mpf(0)
        self.left_reals = False
        self.steps = 0
        self.digits = digits

    def value(self, expr: Expr) -> Any:
        self.steps += 1
        if self.steps > _STEPS:
            raise TooLarge("too many steps")
        if isinstance(expr, Num):
            return self.fraction(expr.value)
        if isinstance(expr, Sym):
            return self.at[expr.name]
        if isinstance(expr, Add):
            return self.sum(expr)
        if isinstance(expr, Mul):
            product = self.value(expr.factors[0])
            for factor in expr.factors[1:]:
                product = self.finite(product * self.value(factor))
            return product
        if isinstance(expr, Pow):
            return self.power(expr)
        if isinstance(expr, Const):
            return self.constant(expr.name)
        if isinstance(expr, Fn):
            return self.call(expr)
        if isinstance(expr, Big):
            return self.big(expr)
        raise Unknown(type(expr).__name__)

    def fraction(self, value: Fraction) -> Any:
        if value.denominator == 1:
            return self.mp.mpf(value.numerator)
        return self.mp.mpf(value.numerator) / value.denominator

    def constant(self, name: str) -> Any:
        mp = self.mp
        if name == "pi":
            return +mp.pi
        if name == "e":
            return +mp.e
        if name == "i":
            self.left_reals = True
            return mp.mpc(0, 1)
        raise Unknown("infinity")

    def sum(self, expr: Add) -> Any:
        total = self.value(expr.terms[0])
        size = abs(total)
        for term in expr.terms[1:]:
            value = self.value(term)
            total = total + value
            size = max(size, abs(value))
        self.note(size)
        return self.cleaned(total, size)

    def note(self, size: Any) -> None:
        if size > self.scale:
            self.scale = size

    def cleaned(self, value: Any, size: Any) -> Any:
        """Drop what rounding has left, so that it meets no branch cut: tiny sums, tiny imaginary parts."""
        mp = self.mp
        if abs(value) < size * mp.mpf(10) ** (8 - self.digits):
            return mp.mpf(0)
        if isinstance(value, mp.mpc):
            if abs(value.imag) < abs(value) * mp.mpf(10) ** (8 - self.digits):
                return value.real
            if abs(value.real) < abs(value) * mp.mpf(10) ** (8 - self.digits):
                return mp.mpc(0, value.imag)
        return value

    def finite(self, value: Any) -> Any:
        if not self.mp.isfinite(value):
            raise Undefined("no finite value")
        if value and abs(self.log2(value)) > MAX_LOG2:
            raise TooLarge("a value that is too large or too small")
        return self.cleaned(value, abs(value)) if isinstance(value, self.mp.mpc) else value

    def log2(self, value: Any) -> int:
        """Return about the logarithm of a value's size."""
        return int(self.mp.mag(value)) if value else 0

    def power(self, expr: Pow) -> Any:
        mp = self.mp
        base, exponent = self.value(expr.base), self.value(expr.exponent)
        if not base:
            if mp.re(exponent) > 0:
                return mp.mpf(0)
            raise Undefined("division by zero")
        if self.log2(exponent) > 24:
            raise TooLarge("an exponent that is too large")
        if abs(self.log2(base)) * abs(exponent) > MAX_LOG2:
            raise TooLarge("a power that is too large")
        whole = mp.isint(exponent)
        if not whole and not (isinstance(base, mp.mpf) and base > 0):
            self.left_reals = True
        if whole:
            return self.finite(base ** int(mp.re(exponent)))
        if isinstance(base, mp.mpf) and base < 0 and (odd := self.odd_root(expr.exponent)) is not None:
            # (-8)^{1/3} is meant as the real root by some and as the complex one by others
            self.left_reals = True
            del odd
        return self.finite(mp.power(base, exponent))

    def odd_root(self, exponent: Expr) -> Fraction | None:
        try:
            value = exact(exponent)
        except (Irrational, Refused):
            return None
        return value if value.denominator % 2 else None

    # -- functions

    def call(self, expr: Fn) -> Any:
        name = expr.name
        mp = self.mp
        if name == "degree":
            return mp.pi / 180
        if name == "root":
            return self.root(expr)
        if name.startswith("call ") or name == "det":
            raise Unknown(name)
        args = [self.value(arg) for arg in expr.args]
        first = args[0]
        if name in _PLAIN:
            if self.log2(first) > 256:
                raise TooLarge(f"{name} of something too large")
            return self.plain(name, first)
        if name in ("ln", "log"):
            return self.logarithm(name, args)
        if name == "abs":
            return abs(first)
        if name == "conj":
            return mp.conj(first)
        if name == "re":
            return mp.re(first)
        if name == "im":
            return mp.im(first)
        if name == "arg":
            if not first:
                raise Undefined("the argument of 0")
            return mp.arg(first)
        return self.real_call(name, args)

    def plain(self, name: str, value: Any) -> Any:
        mp = self.mp
        if name in _RECIPROCAL:
            below = self.cleaned(getattr(mp, _RECIPROCAL[name])(value), mp.mpf(1))
            if not below:
                raise Undefined(f"{name} has a pole")
            above = {"cot": mp.cos, "coth": mp.cosh}.get(name)
            return self.finite((above(value) if above else 1) / below)
        if name == "tan":
            below = self.cleaned(mp.cos(value), mp.mpf(1))
            if not below:
                raise Undefined("tan has a pole")
            return self.finite(mp.sin(value) / below)
        if name in ("asin", "acos") and (not isinstance(value, mp.mpf) or abs(value) > 1):
            self.left_reals = True
        if name in ("acosh",) and (not isinstance(value, mp.mpf) or value < 1):
            self.left_reals = True
        if name == "acot":  # the branch with values in (0, pi)
            return mp.pi / 2 - mp.atan(value)
        if name in ("asec", "acsc"):
            if not value:
                raise Undefined(f"{name} of 0")
            return (mp.acos if name == "asec" else mp.asin)(1 / value)
        if name in ("sinh", "cosh", "exp") and self.log2(value) > 20:
            raise TooLarge(f"{name} of something too large")
        if name in ("asinh", "acosh", "atanh", "asin", "acos", "atan", "tanh", "erf", "sinh", "cosh", "sin", "cos"):
            if name == "atanh" and abs(value) == 1:
                raise Undefined("atanh has a pole")
            if name == "tanh" and self.log2(value) > 20:
                raise TooLarge("tanh of something too large")
            if name == "erf" and self.log2(value) > 6:
                raise TooLarge("erf of something large")
            found = self.finite(getattr(mp, name)(value))
            return self.cleaned(found, mp.mpf(1)) if name in ("sin", "cos") else found
        raise Unknown(name)

    def root(self, expr: Fn) -> Any:
        mp = self.mp
        value, index = self.value(expr.args[0]), self.value(expr.args[1])
        if not index:
            raise Undefined("the root of degree 0")
        if not value:
            return mp.mpf(0)
        if isinstance(value, mp.mpf) and value < 0:
            if isinstance(index, mp.mpf) and mp.isint(index) and int(index) % 2:
                return -mp.power(-value, 1 / index)
            self.left_reals = True
        if isinstance(value, mp.mpc):
            self.left_reals = True
        if index == 2:
            return self.finite(mp.sqrt(value))
        return self.finite(mp.power(value, 1 / index))

    def logarithm(self, name: str, args: list[Any]) -> Any:
        mp = self.mp
        value = args[0]
        if not value:
            raise Undefined("the logarithm of 0")
        if not (isinstance(value, mp.mpf) and value > 0):
            self.left_reals = True
        natural = mp.log(value)
        if len(args) == 1:
            return natural
        base = args[1]
        if not base or base == 1:
            raise Undefined("a logarithm to base 0 or 1")
        return self.finite(natural / mp.log(base))

    def real_call(self, name: str, args: list[Any]) -> Any:
        mp = self.mp
        if name in ("factorial", "binomial", "factorial2"):
            if any(self.log2(arg) > 12 for arg in args):
                raise TooLarge(f"{name} of something too large")
            if name == "factorial":
                first = args[0]
                if isinstance(first, mp.mpf) and mp.isint(first) and first < 0:
                    raise Undefined("the factorial of a negative number")
                return self.finite(mp.gamma(first + 1))
            if name == "binomial":
                return self.finite(mp.binomial(*args))
            raise Unknown(name)
        if any(isinstance(arg, mp.mpc) for arg in args):
            raise NotReal
        if name in ("floor", "ceil"):
            value = args[0]
            near = mp.nint(value)
            if abs(value - near) < mp.mpf(10) ** (6 - self.digits) * max(1, abs(value)):
                return near
            return mp.floor(value) if name == "floor" else mp.ceil(value)
        if name in ("max", "min"):
            return max(args) if name == "max" else min(args)
        if name == "sign":
            return mp.sign(args[0])
        if name in ("gcd", "lcm"):
            import math

            if not all(mp.isint(arg) for arg in args) or any(self.log2(arg) > 200 for arg in args):
                raise Unknown(name)
            return mp.mpf(getattr(math, name)(*[int(arg) for arg in args]))
        raise Unknown(name)

    # -- sums, products, integrals

    def big(self, expr: Big) -> Any:
        if expr.kind in ("sum", "prod") and expr.high is not None and expr.low is not None:
            return self.series(expr)
        raise Unknown(expr.kind)

    def series(self, expr: Big) -> Any:
        mp = self.mp
        assert expr.low is not None and expr.high is not None
        low, high = self.value(expr.low), self.value(expr.high)
        if not (mp.isint(low) and mp.isint(high)):
            raise Unknown(expr.kind)
        if high - low > MAX_TERMS:
            raise TooLarge("too many terms")
        before = self.at.get(expr.var)
        total = mp.mpf(0 if expr.kind == "sum" else 1)
        size = mp.mpf(0)
        for index in range(int(low), int(high) + 1):
            self.at[expr.var] = mp.mpf(index)
            value = self.value(expr.body)
            total = total + value if expr.kind == "sum" else self.finite(total * value)
            size = max(size, abs(value))
        self.note(size)
        self.at.pop(expr.var, None)
        if before is not None:
            self.at[expr.var] = before
        return total


_RECIPROCAL = {"sec": "cos", "csc": "sin", "cot": "sin", "sech": "cosh", "csch": "sinh", "coth": "sinh"}
_PLAIN = frozenset(
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
        "erf",
        "exp",
    ]
)
