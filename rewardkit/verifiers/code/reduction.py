"""Test code -> calls with expected values, where it is nothing more than that.

`assert f(3) == 9` says a call and its expected value. Such tests need no judge process: the host makes the call and
compares the answer. What is anything else (loops, helpers, objects) stays test code, all of it, so that nothing is half
reduced.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Mapping, Sequence

from rewardkit.verifiers.code.cases import Call
from rewardkit.verifiers.code.literals import literal_value

_BUILTINS = frozenset(dir(builtins))
_NO_LITERAL = (ValueError, TypeError, RecursionError, OverflowError, MemoryError)


def reduce_check(tree: ast.Module, entry_point: str) -> tuple[Call, ...] | None:
    """Reduce HumanEval test code, whose `check(candidate)` holds the asserts; None where it cannot be."""
    body: Sequence[ast.stmt] | None = None
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            names = statement.args.args
            if body is not None or len(names) != 1 or statement.decorator_list:
                return None
            candidate, body = names[0].arg, statement.body
        elif not _is_idle(statement) and not _calls_check(statement):
            return None
    return None if body is None else reduce_asserts(body, {candidate: entry_point, entry_point: entry_point})


def _calls_check(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name("check"))):
            return True
    return False


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement does nothing for asserts whose values are literals."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign([ast.Name(name)], value):
            if name.startswith("METADATA"):
                return _is_literal(value)
    return False


def _is_literal(node: ast.expr) -> bool:
    try:
        literal_value(node)
    except _NO_LITERAL:
        return False
    return True


def reduce_asserts(body: Sequence[ast.stmt], names: Mapping[str, str | None] | None = None) -> tuple[Call, ...] | None:
    """Reduce asserts to calls; None where one of them is more than a call.

    Args:
        body: The statements.
        names: The names that are the solution's, as the tests call them -> as it does; None: whatever is no builtin.
    """
    calls: list[Call] = []
    for statement in body:
        if isinstance(statement, ast.Assert):
            try:
                call = _assertion(statement.test, names)
            except _NO_LITERAL:
                return None
            if call is not None:
                calls.append(call)
        elif not _is_idle(statement):
            return None
    return tuple(calls) or None


class _Elsewhere(ValueError):
    """An assert is not of a form that is reduced."""


def _assertion(test: ast.expr, names: Mapping[str, str | None] | None) -> Call | None:
    """Return the call that an assert makes; None for one that always holds. Raises ValueError."""
    match test:
        case ast.Constant(value) if value:
            return None
        case ast.UnaryOp(ast.Not(), ast.Call() as call):
            return _call(call, names, test, "false")
        case ast.Compare(left, [operator], [right]):
            return _comparison(left, operator, right, names, test)
        case ast.Call(ast.Attribute(ast.Name("math"), "isclose"), [ast.Call() as call, expected], keywords):
            return _isclose(call, expected, keywords, names, test)
        case ast.Call():
            return _call(test, names, test, "true")
    raise _Elsewhere("an assert of another form")


def _comparison(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, names: Mapping[str, str | None] | None, test: ast.expr
) -> Call:
    match left, operator:
        case ast.Call(ast.Name("abs"), [ast.BinOp(ast.Call() as call, ast.Sub(), expected)], []), ast.Lt() | ast.LtE():
            wanted, limit = literal_value(expected), literal_value(right)
            if not _is_real(wanted) or not _is_real(limit) or limit <= 0 or isinstance(operator, ast.LtE):
                raise _Elsewhere("a tolerance of another form")
            return _call(call, names, test, "close", wanted, absolute=float(limit))
    if isinstance(operator, ast.Eq):
        if isinstance(left, ast.Call) and _is_theirs(left, names):
            return _call(left, names, test, "equal", literal_value(right))
        if isinstance(right, ast.Call) and _is_theirs(right, names):
            return _call(right, names, test, "equal", literal_value(left))
    if isinstance(operator, ast.Is) and isinstance(left, ast.Call):
        match right:
            case ast.Constant(None | True | False as value):
                return _call(left, names, test, "is", value)
    raise _Elsewhere("a comparison of another form")


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _isclose(
    call: ast.Call,
    expected: ast.expr,
    keywords: list[ast.keyword],
    names: Mapping[str, str | None] | None,
    test: ast.expr,
) -> Call:
    wanted = literal_value(expected)
    limits = {keyword.arg: literal_value(keyword.value) for keyword in keywords}
    if not _is_real(wanted) or not limits.keys() <= {"rel_tol", "abs_tol"} or not all(map(_is_real, limits.values())):
        raise _Elsewhere("a tolerance of another form")
    relative, absolute = float(limits.get("rel_tol", 1e-9)), float(limits.get("abs_tol", 0.0))
    return _call(call, names, test, "close", wanted, absolute=absolute, relative=relative)


def _is_theirs(call: ast.Call, names: Mapping[str, str | None] | None) -> bool:
    match call.func:
        case ast.Name(name):
            return name in names if names is not None else name not in _BUILTINS
    return False


def _call(
    call: ast.Call,
    names: Mapping[str, str | None] | None,
    test: ast.expr,
    relation: str,
    expected: object = None,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
) -> Call:
    if not _is_theirs(call, names) or not isinstance(call.func, ast.Name):
        raise _Elsewhere("a call of something else")
    if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(arg, ast.Starred) for arg in call.args):
        raise _Elsewhere("a call with stars")
    name = call.func.id
    return Call(
        (names[name] or name) if names is not None else name,
        tuple(literal_value(arg) for arg in call.args),
        {str(keyword.arg): literal_value(keyword.value) for keyword in call.keywords},
        relation,  # type: ignore[arg-type]
        expected,
        absolute,
        relative,
    )


def outer_calls(*trees: ast.Module) -> list[str]:
    """Return what asserts call first of all: in `assert sum(10, 15) == 6` that is `sum`."""
    found: dict[str, None] = {}
    for tree in trees:
        for statement in tree.body:
            test = statement.test if isinstance(statement, ast.Assert) else None
            left = test.left if isinstance(test, ast.Compare) else test
            if isinstance(left, ast.Call) and isinstance(left.func, ast.Name):
                found.setdefault(left.func.id)
    return list(found)


def free_names(*trees: ast.Module) -> list[str]:
    """Return the names that test code uses and that neither it nor the builtins define: the solution's."""
    used: dict[str, None] = {}
    made: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Name(name, ast.Load()):
                    used.setdefault(name)
                case ast.Name(name) | ast.arg(name):
                    made.add(name)
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                    made.add(name)
                case ast.alias(name, other):
                    made.add(other or name.partition(".")[0])
                case ast.ExceptHandler(name=str(name)):
                    made.add(name)
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    made.add(name)
    return [name for name in used if name not in made and name not in _BUILTINS and not name.startswith("__")]


def is_in_place(tree: ast.Module, remote: Collection[str]) -> bool:
    """Whether test code calls the solution for what it does to an argument: a call whose result nobody takes.

    That is `sort(xs)` as a statement, with a variable in it, before an assert about `xs`.
    """
    candidates = {*remote}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            candidates |= {arg.arg for arg in node.args.args}
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Call(function, args)) if any(isinstance(arg, ast.Name) for arg in args):
                root: ast.expr = function
                while isinstance(root, (ast.Attribute, ast.Call)):
                    root = root.value if isinstance(root, ast.Attribute) else root.func
                if isinstance(root, ast.Name) and root.id in candidates:
                    return True
    return False


_PATCHING = frozenset({"redirect_stdout", "redirect_stderr", "patch", "monkeypatch", "capsys"})


def refuse_unsupported(tree: ast.Module, remote: Collection[str]) -> None:
    """Refuse test code that no two processes can share, so that no solution is blamed for it.

    Raises:
        ValueError: It catches, or asks with isinstance for, a class of the solution's, or it patches or captures what
            the solution does.
    """
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=ast.expr() as kind):
                _refuse_theirs(kind, remote, "catches")
            case ast.Call(ast.Name("isinstance" | "issubclass"), [_, kind]):
                _refuse_theirs(kind, remote, "asks with isinstance for")
            case ast.Call(ast.Attribute(_, "assertRaises" | "assertIsInstance" | "raises"), [*_, kind]):
                _refuse_theirs(kind, remote, "asks for")
            case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) if name in _PATCHING:
                raise ValueError(f"not supported: test code that patches or captures what the solution does ({name})")
            case ast.Attribute(ast.Name("sys"), "stdout" | "stdin" as name, ast.Store()):
                raise ValueError(f"not supported: test code that replaces sys.{name}")
            case ast.Attribute(ast.Name("builtins" | "__builtins__"), name, ast.Store()):
                raise ValueError(f"not supported: test code that replaces builtins.{name}")


def _refuse_theirs(kind: ast.expr, remote: Collection[str], what: str) -> None:
    for item in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
        if isinstance(item, ast.Name) and item.id in remote:
            raise ValueError(f"not supported: test code that {what} a class of the solution's ({item.id})")
