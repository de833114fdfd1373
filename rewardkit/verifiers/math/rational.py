"""Exact arithmetic with bounds: the value of a constant, and identity of rational functions.

Sizes are estimated before anything is computed. Identity is tested where the test is certain enough to be called
exact: in the field of integers modulo a prime of 127 bits that each process draws for itself, at random points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache

from rewardkit.verifiers.math.gate import MAX_BITS, Refused, TooLarge
from rewardkit.verifiers.math.tree import Add, Big, Const, Expr, Fn, Matrix, Mul, Num, PlusMinus, Pow, Sym

MAX_FACTORIAL = 3000
MAX_TERMS = 2000  # of a sum or product that is written out
_WORK = 20_000  # steps of one evaluation, sums written out


class Irrational(Exception):
    """A value has no exact form here: it is left to evaluation at points."""


class Undefined(Refused):
    """Division by zero and its like."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "undefined")


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def exact(expr: Expr, at: Mapping[str, Fraction] | None = None) -> Fraction:
    """Return the exact value of an expression without variables (or with their values given).

    Raises:
        Irrational: It is not known to be rational.
        Undefined: It divides by zero.
        TooLarge: Its value is over the size limit.
    """
    return _Exact(at or {}).value(expr)


class _Exact:
    def __init__(self, at: Mapping[str, Fraction]) -> None:
        self.at = dict(at)
        self.steps = 0

    def value(self, expr: Expr) -> Fraction:
        self.steps += 1
        if self.steps > _WORK:
            raise TooLarge("too many steps")
        if isinstance(expr, Num):
            return expr.value
        if isinstance(expr, Add):
            total = self.value(expr.terms[0])
            for term in expr.terms[1:]:
                total = _checked(total + self.value(term))
            return total
        if isinstance(expr, Mul):
            total = self.value(expr.factors[0])
            for factor in expr.factors[1:]:
                total = _checked(total * self.value(factor))
            return total
        if isinstance(expr, Pow):
            return self.power(expr)
        if isinstance(expr, Fn):
            return self.call(expr)
        if isinstance(expr, Sym) and expr.name in self.at:
            return self.at[expr.name]
        if isinstance(expr, Big) and expr.kind in ("sum", "prod"):
            return self.series(expr)
        raise Irrational

    def power(self, expr: Pow) -> Fraction:
        exponent = self.value(expr.exponent)
        if exponent.denominator == 1:
            return power(self.value(expr.base), int(exponent))
        base = self.value(expr.base)
        if base < 0 or exponent.denominator > 64:
            raise Irrational
        root = _root(base, exponent.denominator)
        return power(root, exponent.numerator)

    def call(self, expr: Fn) -> Fraction:
        name = expr.name
        if name == "root":
            index = self.value(expr.args[1])
            value = self.value(expr.args[0])
            if index.denominator != 1 or not 0 < index <= 64:
                raise Irrational
            if value < 0:
                if index % 2 == 0:
                    raise Irrational
                return -_root(-value, int(index))
            return _root(value, int(index))
        if name not in _EXACT:
            raise Irrational
        return _EXACT[name]([self.value(arg) for arg in expr.args])

    def series(self, expr: Big) -> Fraction:
        if expr.low is None or expr.high is None:
            raise Irrational
        low, high = self.value(expr.low), self.value(expr.high)
        if low.denominator != 1 or high.denominator != 1:
            raise Irrational
        if high - low > MAX_TERMS:
            raise TooLarge(f"{int(high - low)} terms")
        before = self.at.get(expr.var)
        total = Fraction(0 if expr.kind == "sum" else 1)
        for index in range(int(low), int(high) + 1):
            self.at[expr.var] = Fraction(index)
            value = self.value(expr.body)
            total = _checked(total + value if expr.kind == "sum" else total * value)
        self.at.pop(expr.var, None)
        if before is not None:
            self.at[expr.var] = before
        return total


def _checked(value: Fraction) -> Fraction:
    if bits(value) > MAX_BITS:
        raise TooLarge("a number that is too large")
    return value


def power(base: Fraction, exponent: int) -> Fraction:
    """Return a power, bounded before it is computed."""
    if base == 0:
        if exponent < 0:
            raise Undefined("division by zero")
        if exponent == 0:
            raise Undefined("0 to the power 0")
        return base
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    if abs(exponent) * bits(base) > 2 * MAX_BITS:
        raise TooLarge("a power that is too large")
    return base**exponent


def _root(value: Fraction, index: int) -> Fraction:
    """Return an exact root, or raise Irrational."""
    if bits(value) > 20_000:
        raise Irrational
    top, bottom = _integer_root(value.numerator, index), _integer_root(value.denominator, index)
    if top**index != value.numerator or bottom**index != value.denominator:
        raise Irrational
    return Fraction(top, bottom)


def _integer_root(value: int, index: int) -> int:
    if value < 2 or index == 1:
        return value
    if index == 2:
        return math.isqrt(value)
    guess = 1 << -(-value.bit_length() // index)
    while True:
        better = ((index - 1) * guess + value // guess ** (index - 1)) // index
        if better >= guess:
            return guess
        guess = better


def _whole(value: Fraction, what: str) -> int:
    if value.denominator != 1:
        raise Irrational
    return int(value)


def _factorial(args: list[Fraction]) -> Fraction:
    value = _whole(args[0], "factorial")
    if value < 0:
        raise Undefined("the factorial of a negative number")
    if value > MAX_FACTORIAL:
        raise TooLarge(f"the factorial of {value if value < 10**9 else 'a large number'}")
    return Fraction(math.factorial(value))


def _double_factorial(args: list[Fraction]) -> Fraction:
    value = _whole(args[0], "factorial")
    if not -1 <= value <= MAX_FACTORIAL:
        raise TooLarge("a double factorial")
    return Fraction(math.prod(range(value, 0, -2)))


def _binomial(args: list[Fraction]) -> Fraction:
    n, k = _whole(args[0], "binomial"), _whole(args[1], "binomial")
    if k < 0:
        return Fraction(0)
    if n < 0:
        raise Irrational
    if k > n:
        return Fraction(0)
    k = min(k, n - k)
    if k > MAX_FACTORIAL or k * n.bit_length() > MAX_BITS:
        raise TooLarge("a binomial coefficient that is too large")
    return Fraction(math.comb(n, k))


def _gcd(args: list[Fraction]) -> Fraction:
    return Fraction(math.gcd(*[_whole(arg, "gcd") for arg in args]))


def _lcm(args: list[Fraction]) -> Fraction:
    return Fraction(math.lcm(*[_whole(arg, "lcm") for arg in args]))


_EXACT: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "factorial": _factorial,
    "factorial2": _double_factorial,
    "binomial": _binomial,
    "gcd": _gcd,
    "lcm": _lcm,
    "abs": lambda args: abs(args[0]),
    "floor": lambda args: Fraction(math.floor(args[0])),
    "ceil": lambda args: Fraction(math.ceil(args[0])),
    "max": max,
    "min": min,
    "sign": lambda args: Fraction((args[0] > 0) - (args[0] < 0)),
}


# ------------------------------------------------------------------------------------------ modulo a prime


@lru_cache(maxsize=1)
def prime() -> int:
    """Return this process's prime. It is random, so that no text can be made to fit it."""
    import secrets

    while True:
        candidate = secrets.randbits(127) | (1 << 126) | 1
        if all(candidate % small for small in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)) and _is_prime(
            candidate
        ):
            return candidate


def _is_prime(number: int) -> bool:
    import secrets

    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(24):
        power_ = pow(secrets.randbelow(number - 3) + 2, odd, number)
        if power_ in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power_ = power_ * power_ % number
            if power_ == number - 1:
                break
        else:
            return False
    return True


def residue(expr: Expr, at: Mapping[str, int]) -> int:
    """Return the value of a rational function modulo `prime()` at a point.

    Raises:
        Irrational: It is no rational function.
        Undefined: It divides by zero there.
    """
    return _modular(expr, at, prime())


def _modular(expr: Expr, at: Mapping[str, int], p: int) -> int:
    if isinstance(expr, Num):
        value = expr.value
        if value.denominator == 1:
            return value.numerator % p
        return value.numerator * pow(value.denominator, -1, p) % p
    if isinstance(expr, Sym):
        return at[expr.name]
    if isinstance(expr, Add):
        return sum([_modular(term, at, p) for term in expr.terms]) % p
    if isinstance(expr, Mul):
        product = 1
        for factor in expr.factors:
            product = product * _modular(factor, at, p) % p
        return product
    if isinstance(expr, Pow):
        exponent = exact(expr.exponent)
        if exponent.denominator != 1:
            raise Irrational
        base = _modular(expr.base, at, p)
        if base == 0 and exponent <= 0:
            raise Undefined("division by zero")
        return pow(base, int(exponent), p)
    if isinstance(expr, Fn) and expr.name.startswith("call "):
        # An unknown function: equal arguments give equal values, and nothing else is known of it.
        import random

        values = [_modular(arg, at, p) for arg in expr.args]
        return random.Random(f"{expr.name}:{values}").randrange(p)
    if isinstance(expr, (Fn, Big)):
        value = exact(expr)
        return value.numerator * pow(value.denominator, -1, p) % p
    if isinstance(expr, (Const, Matrix, PlusMinus)):
        raise Irrational
    raise Irrational


def modular_points(names: frozenset[str], count: int) -> list[dict[str, int]]:
    """Return random points for some variables."""
    import secrets

    p = prime()
    return [{name: secrets.randbelow(p - 2) + 1 for name in sorted(names)} for _ in range(count)]
