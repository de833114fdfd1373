"""Are two values equal: the ladder from structure over exact arithmetic to evaluation at points.

A clear difference at one point is final. Agreement at all points, in many more digits than any answer has, counts as
equality. What cannot be evaluated (integrals, limits, infinite sums) is left to computer algebra: NeedsAlgebra.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from rewardkit.verifiers.math.gate import Refused, TooLarge
from rewardkit.verifiers.math.points import Evaluator, NotReal, Unknown, context
from rewardkit.verifiers.math.rational import Irrational, Undefined, exact, modular_points, residue
from rewardkit.verifiers.math.tree import (
    INF,
    MINUS_ONE,
    ZERO,
    Add,
    Big,
    Cases,
    Const,
    Expr,
    Fn,
    Matrix,
    Mul,
    Num,
    PlusMinus,
    Pow,
    Sym,
    children,
    contains,
    symbols,
)


class NeedsAlgebra(Exception):
    """Only computer algebra can tell whether these two are equal."""

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__("needs computer algebra")
        self.left = left
        self.right = right


class Answer(NamedTuple):
    """Whether two things are equal, how that was decided, and why not."""

    equal: bool
    method: str
    why: str = ""


_FEW_DIGITS, _DIGITS, _MANY_DIGITS = 30, 50, 150


def equal_values(left: Expr, right: Expr) -> Answer:
    """Compare two values exactly; symmetric.

    Raises:
        NeedsAlgebra: Neither arithmetic nor evaluation decides.
        Refused: One of them is undefined or too large.
    """
    left, right = expanded(left), expanded(right)
    if isinstance(left, Num) and isinstance(right, Num):
        return Answer(left.value == right.value, "number")
    if left == right:
        return Answer(True, "structure")
    if contains(left, Const) or contains(right, Const):
        infinite = _infinities(left, right)
        if infinite is not None:
            return infinite
    names = symbols(left) | symbols(right)
    if complex_symbols(left) | complex_symbols(right):
        return _same_at_complex_points(left, right, names)
    whole = whole_symbols(left) | whole_symbols(right)
    if not whole and not contains(left, Big) and not contains(right, Big):
        if not names:
            found = _constants(left, right)
            if found is not None:
                return found
        else:
            found = _identity(left, right, names)
            if found is not None:
                return found
    try:
        if not names:
            return _same_constant(left, right)
        return _same_at_points(left, right, names, whole)
    except (Unknown, NotReal):
        if alike(left, right):
            return Answer(True, "structure")
        if isinstance(left, (Matrix, Cases)) or isinstance(right, (Matrix, Cases)):
            return Answer(False, "structure", "a value and something else")
        if _opaque(left) or _opaque(right):
            return Answer(False, "structure", "different expressions of an unknown function")
        raise NeedsAlgebra(left, right) from None


def defined(expr: Expr) -> bool:
    """Whether a constant has a value at all: 12/0 has none."""
    if symbols(expr) or contains(expr, Big, PlusMinus, Matrix, Cases):
        return True
    try:
        exact(expr)
    except Undefined:
        return False
    except (Irrational, Refused):
        try:
            numeric(expr)
        except Undefined:
            return False
        except (Refused, Unknown, NotReal):
            return True
    return True


@lru_cache(maxsize=2048)
def numeric(expr: Expr, digits: int = _DIGITS) -> Any:
    """Return a constant's value as an mpmath number.

    Raises:
        Unknown: It cannot be evaluated.
        Refused: It is undefined or too large.
    """
    return Evaluator({}, digits).value(expr)


def _infinities(left: Expr, right: Expr) -> Answer | None:
    mine, theirs = infinite_sign(left), infinite_sign(right)
    if mine or theirs:
        same = mine == theirs
        return Answer(same, "structure", "" if same else "one is infinite")
    if _has_infinity(left) or _has_infinity(right):
        if alike(left, right):
            return Answer(True, "structure")
        if contains(left, Big) or contains(right, Big):
            return None
        return Answer(False, "structure", "arithmetic with infinity")
    return None


def infinite_sign(expr: object) -> int:
    """Return 1 for infinity, -1 for minus infinity, else 0."""
    if expr == INF:
        return 1
    if isinstance(expr, Mul) and len(expr.factors) == 2 and expr.factors[1] == INF and isinstance(expr.factors[0], Num):
        value = expr.factors[0].value
        return (value > 0) - (value < 0)
    return 0


def _has_infinity(expr: Any) -> bool:
    return expr == INF or any(_has_infinity(child) for child in children(expr))


def _opaque(expr: Any) -> bool:
    return (isinstance(expr, Fn) and expr.name.startswith("call ")) or any(map(_opaque, children(expr)))


# ---------------------------------------------------------------------------------------------- exact


def _constants(left: Expr, right: Expr) -> Answer | None:
    """Compare two constants as fractions; None when one is not known to be rational."""
    mine = _exact(left)
    theirs = _exact(right)
    if mine is None or theirs is None:
        return None
    return Answer(mine == theirs, "number")


def _exact(expr: Expr) -> Fraction | None:
    try:
        return exact(expr)
    except Irrational:
        return None


def _identity(left: Expr, right: Expr, names: frozenset[str]) -> Answer | None:
    """Compare two rational functions; None when one is none."""
    agreed = 0
    for point in modular_points(names, 6):
        values = []
        for side in (left, right):
            try:
                values.append(residue(side, point))
            except Undefined:
                values.append(-1)
            except (Irrational, TooLarge):
                return None
        if -1 in values:
            continue
        if values[0] != values[1]:
            return Answer(False, "polynomial identity", "they differ at a random point")
        agreed += 1
        if agreed == 2:
            return Answer(True, "polynomial identity")
    raise Undefined("division by zero")


# -------------------------------------------------------------------------------------------- at points


def _near(left: Any, right: Any, scale: Any, digits: int) -> bool:
    mp = context(digits)
    size = max(scale, abs(left), abs(right))
    return bool(abs(left - right) <= size * mp.mpf(10) ** (12 - digits))


def _same_constant(left: Expr, right: Expr) -> Answer:
    for digits in (_DIGITS, _MANY_DIGITS):
        mine, theirs = Evaluator({}, digits), Evaluator({}, digits)
        first, second = mine.value(left), theirs.value(right)
        if not _near(first, second, max(mine.scale, theirs.scale), digits):
            return Answer(False, "numeric points", f"{_short(first)} and {_short(second)}")
    return Answer(True, "numeric points")


def _short(value: Any) -> str:
    text: str = context(_FEW_DIGITS).nstr(value, 8)
    return text if len(text) <= 40 else text[:37] + "..."


_RANGES = (
    (0.3, 1.9),
    (-1.9, -0.3),
    (2.0, 5.0),
    (-5.0, -2.0),
    (0.05, 0.95),
    (6.0, 40.0),
    (-0.95, -0.05),
    (100.0, 900.0),
)


def _points(names: frozenset[str], whole: frozenset[str]) -> list[dict[str, Any]]:
    """Return points of both signs and several sizes; the same ones every time."""
    import random

    mp = context(_DIGITS)
    source = random.Random("".join(sorted(names)))
    count = len(names)
    points: list[dict[str, Any]] = []
    patterns: list[tuple[int, ...]] = [(kind,) * count for kind in range(len(_RANGES))]
    if 1 < count <= 3:
        patterns += [signs for signs in product((0, 1, 2), repeat=count) if len(set(signs)) > 1][:12]
    for pattern in patterns:
        point: dict[str, Any] = {}
        for kind, name in zip(pattern, sorted(names), strict=True):
            low, high = _RANGES[kind]
            if name in whole:
                point[name] = mp.mpf(source.randint(2, 9) + (len(points) % 3))
            else:
                point[name] = mp.mpf(repr(source.uniform(low, high)))
        points.append(point)
    return points


def _same_at_points(left: Expr, right: Expr, names: frozenset[str], whole: frozenset[str]) -> Answer:
    complex_agreed = real_agreed = failures = 0
    refused: Refused | None = None
    complex_differ = ""
    for point in _points(names, whole):
        mine, theirs = Evaluator(point, _DIGITS), Evaluator(point, _DIGITS)
        try:
            first, second = mine.value(left), theirs.value(right)
        except TooLarge as problem:
            refused = problem
            failures += 1
            if failures >= 6:
                break
            continue
        except (Undefined, ZeroDivisionError):
            continue
        same = _near(first, second, max(mine.scale, theirs.scale), _DIGITS)
        if mine.left_reals or theirs.left_reals:
            complex_agreed += same
            if not same:
                complex_differ = f"they differ at {_shown(point)}"
            continue
        if not same:
            return Answer(False, "numeric points", f"they differ at {_shown(point)}")
        real_agreed += 1
        if real_agreed >= 6:
            break
    if real_agreed >= 2:
        return _same_at_steps(left, right, names) or Answer(True, "numeric points")
    if complex_differ:
        return Answer(False, "numeric points", complex_differ)
    if complex_agreed + real_agreed >= 2:
        return Answer(True, "numeric points")
    if refused is not None:
        raise refused
    raise Unknown("no point at which both have a value")


def _has_steps(expr: Any) -> bool:
    return (isinstance(expr, Fn) and expr.name in ("floor", "ceil")) or any(map(_has_steps, children(expr)))


def _same_at_steps(left: Expr, right: Expr, names: frozenset[str]) -> Answer | None:
    """Compare rounding functions where they jump, too: at whole numbers and halves."""
    if not _has_steps(left) and not _has_steps(right):
        return None
    mp = context(_DIGITS)
    for start in (2, -3, mp.mpf(5) / 2, mp.mpf(-3) / 2, 0):
        point = {name: mp.mpf(start) + place for place, name in enumerate(sorted(names))}
        mine, theirs = Evaluator(point, _DIGITS), Evaluator(point, _DIGITS)
        try:
            first, second = mine.value(left), theirs.value(right)
        except (Refused, ZeroDivisionError, NotReal):
            continue
        if not _near(first, second, max(mine.scale, theirs.scale), _DIGITS):
            return Answer(False, "numeric points", f"they differ at {_shown(point)}")
    return None


def complex_symbols(expr: Any) -> frozenset[str]:
    """Return the variables that can be any complex number: in Re, Im, a conjugate, or |z - i|."""
    found: frozenset[str] = frozenset()
    if isinstance(expr, Fn) and (expr.name in ("re", "im", "conj", "arg") or (expr.name == "abs" and _has_i(expr))):
        found = symbols(expr)
    for child in children(expr):
        found |= complex_symbols(child)
    return found


def _has_i(expr: Any) -> bool:
    return expr == Const("i") or any(map(_has_i, children(expr)))


def _same_at_complex_points(left: Expr, right: Expr, names: frozenset[str]) -> Answer:
    import random

    mp = context(_DIGITS)
    source = random.Random("".join(sorted(names)))
    agreed = 0
    for _ in range(6):
        point = {name: mp.mpc(source.uniform(-3, 3), source.uniform(-3, 3)) for name in sorted(names)}
        mine, theirs = Evaluator(point, _DIGITS), Evaluator(point, _DIGITS)
        try:
            first, second = mine.value(left), theirs.value(right)
        except (Undefined, ZeroDivisionError):
            continue
        except (Unknown, NotReal):
            break
        if not _near(first, second, max(mine.scale, theirs.scale), _DIGITS):
            return Answer(False, "numeric points", f"they differ at {_shown(point)}")
        agreed += 1
    if agreed >= 2:
        return Answer(True, "numeric points")
    return Answer(alike(left, right), "structure")


def _shown(point: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in list(point.items())[:3])


def whole_symbols(expr: Any) -> frozenset[str]:
    """Return the variables that can only be whole numbers: in factorials, bounds of sums, (-1)^n."""
    found: frozenset[str] = frozenset()
    if isinstance(expr, Fn) and expr.name in ("factorial", "factorial2", "binomial", "gcd", "lcm"):
        found |= symbols(expr)
    elif isinstance(expr, Pow) and symbols(expr.exponent) and _negative(expr.base):
        found |= symbols(expr.exponent)
    elif isinstance(expr, Big) and expr.kind in ("sum", "prod"):
        for bound in (expr.low, expr.high):
            if bound is not None:
                found |= symbols(bound)
    for child in children(expr):
        found |= whole_symbols(child)
    return found


def _negative(expr: Expr) -> bool:
    if isinstance(expr, Num):
        return expr.value < 0
    return isinstance(expr, Mul) and isinstance(expr.factors[0], Num) and expr.factors[0].value < 0


# ------------------------------------------------------------------------------------------- structure


def alike(left: Any, right: Any) -> bool:
    """Whether two trees are the same up to the order of sums and products."""
    return bool(left == right or _ordered(left) == _ordered(right))


def _ordered(node: Any) -> Any:
    match node:
        case Num(value, _):
            return Num(value)
        case Add(terms):
            return Add(tuple(sorted(map(_ordered, terms), key=repr)))
        case Mul(factors):
            return Mul(tuple(sorted(map(_ordered, factors), key=repr)))
        case Pow(base, exponent):
            return Pow(_ordered(base), _ordered(exponent))
        case Fn(name, args):
            return Fn(name, tuple(map(_ordered, args)))
        case Big(kind, var, low, high, body):
            mark = Sym("\x00" + str(len(symbols(body))))
            return Big(kind, "", _ordered(low), _ordered(high), _ordered(substituted(body, var, mark)))
        case Matrix(rows):
            return Matrix(tuple(tuple(map(_ordered, row)) for row in rows))
    return node


def substituted(expr: Any, name: str, by: Expr) -> Any:
    """Return an expression with a variable replaced."""
    match expr:
        case Sym(own):
            return by if own == name else expr
        case Add(terms):
            return Add(tuple([substituted(term, name, by) for term in terms]))
        case Mul(factors):
            return Mul(tuple([substituted(factor, name, by) for factor in factors]))
        case Pow(base, exponent):
            return Pow(substituted(base, name, by), substituted(exponent, name, by))
        case Fn(own, args):
            return Fn(own, tuple([substituted(arg, name, by) for arg in args]))
        case Big(kind, var, low, high, body):
            if var == name:
                return expr
            return Big(
                kind,
                var,
                None if low is None else substituted(low, name, by),
                None if high is None else substituted(high, name, by),
                substituted(body, name, by),
            )
        case Matrix(rows):
            return Matrix(tuple(tuple(substituted(cell, name, by) for cell in row) for row in rows))
    return expr


# -------------------------------------------------------------------------------------------- matrices

_MAX_SYMBOLIC = 5


@lru_cache(maxsize=2048)
def expanded(expr: Expr) -> Expr:
    """Return an expression with the arithmetic of matrices carried out, and determinants written out."""
    if not contains(expr, Matrix):
        return expr
    return _expanded(expr)


def _expanded(expr: Expr) -> Expr:
    match expr:
        case Fn("det", (inner,)):
            value = _expanded(inner)
            if not isinstance(value, Matrix) or len(value.rows) != len(value.rows[0]):
                raise Refused("the determinant of no square matrix")
            return _determinant(value.rows)
        case Matrix(rows):
            return Matrix(tuple(tuple(map(_expanded, row)) for row in rows))
        case Add(terms):
            parts = tuple(map(_expanded, terms))
            matrices = [part for part in parts if isinstance(part, Matrix)]
            if matrices and len(matrices) == len(parts):
                return _matrix_sum(matrices)
            return Add(parts)
        case Mul(factors):
            return _matrix_product([_expanded(factor) for factor in factors])
        case Pow(base, exponent):
            return Pow(_expanded(base), _expanded(exponent))
        case Fn(name, args):
            return Fn(name, tuple(map(_expanded, args)))
    return expr


def _determinant(rows: tuple[tuple[Expr, ...], ...]) -> Expr:
    if len(rows) > _MAX_SYMBOLIC:
        raise TooLarge(f"a determinant of {len(rows)} rows")
    if len(rows) == 1:
        return rows[0][0]
    terms: list[Expr] = []
    for place, cell in enumerate(rows[0]):
        if cell == ZERO:
            continue
        minor = _determinant(tuple((*row[:place], *row[place + 1 :]) for row in rows[1:]))
        terms.append(Mul((MINUS_ONE, cell, minor)) if place % 2 else Mul((cell, minor)))
    return Add(tuple(terms)) if terms else ZERO


def _matrix_sum(matrices: list[Matrix]) -> Matrix:
    first = matrices[0]
    if any(len(m.rows) != len(first.rows) or len(m.rows[0]) != len(first.rows[0]) for m in matrices):
        raise Refused("a sum of matrices of different sizes")
    return Matrix(
        tuple(
            tuple(Add(cells) for cells in zip(*rows, strict=True))
            for rows in zip(*[m.rows for m in matrices], strict=True)
        )
    )


def _matrix_product(factors: list[Expr]) -> Expr:
    scalars = [factor for factor in factors if not isinstance(factor, Matrix)]
    matrices = [factor for factor in factors if isinstance(factor, Matrix)]
    if not matrices:
        return Mul(tuple(factors))
    result = matrices[0]
    for other in matrices[1:]:
        if len(result.rows[0]) != len(other.rows) or len(result.rows) * len(other.rows[0]) * len(other.rows) > 512:
            raise Refused("a product of matrices that do not fit")
        columns = list(zip(*other.rows, strict=True))
        result = Matrix(
            tuple(
                tuple(Add(tuple(Mul(pair) for pair in zip(row, column, strict=True))) for column in columns)
                for row in result.rows
            )
        )
    if scalars:
        result = Matrix(tuple(tuple(Mul((*scalars, cell)) for cell in row) for row in result.rows))
    return result
