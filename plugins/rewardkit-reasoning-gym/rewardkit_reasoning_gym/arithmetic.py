"""What text is arithmetic and nothing else, and what it is worth, without evaluating it as Python."""

from __future__ import annotations

import ast
import re
from fractions import Fraction

_FUNCTIONS = "Abs|acos|acosh|asin|asinh|atan|atanh|cos|cosh|cot|csc|exp|ln|log|pi|sec|sin|sinh|sqrt|tan|tanh"
_NUMBER = r"\d{1,400}(?:\.\d{0,400})?|\.\d{1,400}"
_NAME = rf"(?<![A-Za-z])(?:{_FUNCTIONS}|[A-Za-z])(?![A-Za-z_\d])"
_EXPRESSION = re.compile(rf"(?:\s|{_NUMBER}|{_NAME}|[-+*/(),^])*+")
_BITS = re.compile(r"(?:\s|0[xX][\da-fA-F]{1,400}(?![\w.])|\d{1,400}(?![\w.])|<<|>>|[-+*()&|^~])*+")
_PLAIN = re.compile(r"[\d.\s()+\-*/]*+")


def is_expression(text: str, *, bits: bool = False) -> bool:
    """Tell whether a text is numbers, single letters, known functions and operators, and so safe for sympy's parser.

    sympy's `parse_expr` evaluates its input as Python. Without strings, attributes and long names nothing but
    arithmetic can be written; that may still take for ever (`9**9**9`), which is what the deadline is for.
    """
    return (_BITS if bits else _EXPRESSION).fullmatch(text) is not None


def is_plain(text: str) -> bool:
    """Tell whether a text holds only digits, points, parentheses and + - * /, and no power or floor division."""
    return _PLAIN.fullmatch(text) is not None and re.search(r"\*\s*\*|/\s*/", text) is None


def exact_value(text: str) -> Fraction | None:
    """Return the exact value of a plain expression; None where it has none (a syntax error, a division by zero)."""
    if not is_plain(text) or len(text) > 1_000:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        inner = _value(node.operand)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("not plain arithmetic")
