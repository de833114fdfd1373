"""Python literals of a trusted reference -> values. Nothing is evaluated but constants, and their size is bounded."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from typing import Any

MAX_LITERAL = 4 << 20  # characters
MAX_CODE = 4 << 20  # characters of test code
MAX_BITS = 1 << 20  # of an integer that an operator makes
MAX_ITEMS = 1 << 20  # of a sequence that an operator makes


def parse_code(source: str, what: str) -> ast.Module:
    """Parse trusted code.

    Raises:
        ValueError: It is no Python, or too long or too deep to be read; says where.
    """
    if len(source) > MAX_CODE:
        raise ValueError(f"{what}: longer than {MAX_CODE:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as problem:
        raise ValueError(f"{what}: no valid Python: {problem.msg} (line {problem.lineno})") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
        raise ValueError(f"{what}: no Python that can be read: {problem}") from None


def read_literal(text: str, what: str) -> Any:
    """Read a literal such as "[1, 2]", "{'a': 0.5}", "0xff", "set()", "float('inf')".

    Raises:
        ValueError: It is none; says what came.
    """
    if len(text) > MAX_LITERAL:
        raise ValueError(f"{what}: a literal of more than {MAX_LITERAL:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        return literal_value(tree.body)
    except SyntaxError as problem:
        raise ValueError(f"{what}: a Python literal is wanted, got {_cut(text)!r} ({problem.msg})") from None
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError):
        raise ValueError(f"{what}: a Python literal is wanted, got {_cut(text)!r}") from None


def literal_value(node: ast.expr) -> Any:
    """Return the value of a literal's syntax tree.

    Raises:
        ValueError, TypeError, RecursionError: It is no literal, or holds something that cannot be hashed.
    """
    match node:
        case ast.Constant(value):
            return value
        case ast.List(items):
            return [literal_value(item) for item in items]
        case ast.Tuple(items):
            return tuple(literal_value(item) for item in items)
        case ast.Set(items):
            return {literal_value(item) for item in items}
        case ast.Dict(keys, values):
            if None in keys:
                raise ValueError("no literal: ** in a dict")
            return {literal_value(key): literal_value(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, operand):
            value = _number(literal_value(operand))
            return -value if isinstance(sign, ast.USub) else +value
        case ast.BinOp(left, operator, right):
            return _operation(type(operator), literal_value(left), literal_value(right))
        case ast.Call(ast.Name(name), args, []):
            return _made(name, [literal_value(arg) for arg in args])
        case ast.Attribute(ast.Name("math"), attribute) if attribute in ("pi", "e", "inf", "nan", "tau"):
            return getattr(math, attribute)
    raise ValueError("no literal")


def _number(value: Any) -> Any:
    if isinstance(value, (int, float, complex)):
        return value
    raise ValueError("no literal: a sign in front of what is no number")


def _operation(operator: type[ast.operator], left: Any, right: Any) -> Any:
    if isinstance(left, (int, float, complex)) and isinstance(right, (int, float, complex)):
        return _arithmetic(operator, left, right)
    repeats = operator is ast.Mult and isinstance(left, (list, str, tuple, bytes)) and isinstance(right, int)
    if repeats and len(left) * max(0, right) <= MAX_ITEMS:
        return left * right
    if operator is ast.Add and type(left) is type(right) and isinstance(left, (list, str, tuple, bytes)):
        return left + right
    raise ValueError("no literal: an operator that is not read here")


def _arithmetic(operator: type[ast.operator], left: Any, right: Any) -> Any:
    if operator is ast.Pow:
        whole = isinstance(left, int) and isinstance(right, int)
        if whole and not 0 <= right * max(1, left.bit_length()) <= MAX_BITS:
            raise ValueError("no literal: a power that is too large")
        return left**right
    simple: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
        ast.FloorDiv: lambda a, b: a // b,
        ast.Mod: lambda a, b: a % b,
    }
    if operator not in simple:
        raise ValueError("no literal: an operator that is not read here")
    try:
        return simple[operator](left, right)
    except ArithmeticError as problem:
        raise ValueError(f"no literal: {problem}") from None


def _made(name: str, args: list[Any]) -> Any:
    """Return what the few calls make that write values which have no literal."""
    if name in ("set", "frozenset", "list", "tuple", "dict") and len(args) <= 1:
        made = {"set": set, "frozenset": frozenset, "list": list, "tuple": tuple, "dict": dict}[name]
        return made(*args)
    if name == "float" and len(args) == 1 and isinstance(args[0], (str, int, float)):
        return float(args[0])
    if name == "complex" and 1 <= len(args) <= 2 and all(isinstance(arg, (int, float)) for arg in args):
        return complex(*args)
    if name == "bytearray" and len(args) == 1 and isinstance(args[0], bytes):
        return bytearray(args[0])
    raise ValueError(f"no literal: a call of {name}")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
