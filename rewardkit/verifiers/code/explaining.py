"""Test code whose asserts say what they compared: `candidate(12) == 144: 24, not 144`.

Only the message of an assert that has none is added; what is asserted stays the same.
"""

from __future__ import annotations

import ast

MAX_EXPLAINED = 200_000  # characters of test code; longer code stays as it is

PRELUDE = """
def _said(text, one, other):
    def shown(value):
        try:
            text = repr(value)
        except Exception:
            text = "<" + type(value).__name__ + ">"
        return text if len(text) <= 80 else text[:79] + "\\u2026"
    return text + ": " + shown(one) + ", not " + shown(other)
"""


class _Explain(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        if node.msg is not None:
            return node
        text = ast.Constant(_short(ast.unparse(node.test)))
        match node.test:
            case ast.Compare(left, [operator], [right]) if not _yields(node.test):
                one, other = ast.Name("_one", ast.Store()), ast.Name("_other", ast.Store())
                test = ast.Compare(ast.NamedExpr(one, left), [operator], [ast.NamedExpr(other, right)])
                said = ast.Call(
                    ast.Name("_said", ast.Load()),
                    [text, ast.Name("_one", ast.Load()), ast.Name("_other", ast.Load())],
                    [],
                )
                return ast.copy_location(ast.Assert(test, said), node)
        return ast.copy_location(ast.Assert(node.test, text), node)


def _yields(node: ast.expr) -> bool:
    return any(isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)) for inner in ast.walk(node))


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"


def explained(source: str) -> str:
    """Return test code with a message for each assert that has none."""
    if len(source) > MAX_EXPLAINED or "assert" not in source:
        return source
    try:
        tree = ast.parse(source)
        futures = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        if futures:
            return source
        changed = ast.fix_missing_locations(_Explain().visit(tree))
        return PRELUDE + ast.unparse(changed)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
