"""Reference -> tests: the forms in which people have tests, recognised by their shape.

| form | fields |
| --- | --- |
| calls | `tests`: [{args, expected, …}]; `entry_point` |
| streams | `tests`: [{stdin, stdout}] or [{input, output}] |
| HumanEval | `test` with `check(candidate)`; `entry_point`; `prompt` |
| MBPP | `test_list`, `test_setup_code` or `test_imports`, `challenge_test_list` |
| asserts, unittest, test functions | `tests` or `test` as text |
| APPS, prime_code | `input_output` or `tests`: {inputs, outputs, fn_name} |
| LiveCodeBench | `public_test_cases`, `private_test_cases`, `metadata` |
| CRUXEval | `code`, `input`, `output` |

The reference is trusted, but not to be well-formed: what cannot be read raises ValueError, which is a bad reference.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rewardkit.verifiers.code.archived import unpacked
from rewardkit.verifiers.code.cases import Call, Calls, Prediction, Script, Scripts, Stream, Streams, Tests
from rewardkit.verifiers.code.explaining import explained
from rewardkit.verifiers.code.extraction import is_code_prompt
from rewardkit.verifiers.code.literals import parse_code, read_literal
from rewardkit.verifiers.code.reduction import (
    free_names,
    is_in_place,
    outer_calls,
    reduce_asserts,
    reduce_check,
    refuse_unsupported,
)

MAX_TESTS = 10_000
MAX_TEXT = 128 << 20  # characters of all tests together

_SINGLE = (
    "args",
    "kwargs",
    "expected",
    "tol",
    "raises",
    "writeback",
    "weight",
    "entry_point",
    "method",
    "calls",
    "init",
    "stdin",
)


def read_tests(
    fields: Mapping[str, Any], *, mode: str | None = None, entry_point: str | None = None, prompt: str = ""
) -> Tests:
    """Read tests from the columns that a reference has.

    Args:
        fields: What there is, by name; see the table above. None counts as absent.
        mode: "function", "asserts" or "stdio", where the shape alone is not to decide.
        entry_point: The function or class that is to be written.
        prompt: The prompt, if it is code: its helpers are there for the tests, too.

    Raises:
        LookupError: There are no tests.
        ValueError: There are, but they cannot be read.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    entry = _name(entry_point) or _name(given.get("entry_point"))
    if isinstance(given.get("test_list"), (list, str)) and mode in (None, "asserts"):
        return _mbpp(given, entry)
    for name in ("tests", "test", "input_output", "test_cases"):
        if name in given:
            return _any(given[name], given, mode, entry, prompt)
    if "public_test_cases" in given or "private_test_cases" in given:
        return _livecodebench(given, entry)
    if "inputs" in given and "outputs" in given:
        return _inputs_outputs(given, entry)
    if {"code", "input", "output"} <= given.keys():
        return _cruxeval(given, entry or "f")
    if "assert_case" in given:
        return _any(given["assert_case"], given, "asserts", entry, prompt)
    raise LookupError("no tests")


def _name(value: Any) -> str | None:
    if value is None or value == "":
        return None
    name = value.replace("().", ".") if isinstance(value, str) else ""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"entry_point: a name is wanted, got {_cut(value)!r}")
    return name


def _any(value: Any, given: Mapping[str, Any], mode: str | None, entry: str | None, prompt: str) -> Tests:
    """Read tests whose form is not known from the name of their column."""
    if isinstance(value, str):
        text = value.strip()
        if text[:1] in ("[", "{") and mode != "asserts":
            return _any(_json(text, "tests"), given, mode, entry, prompt)
        if mode in (None, "asserts"):
            return _code(value, entry, prompt, _text(given.get("test_setup_code")))
        raise ValueError(f"tests: a list is wanted for mode {mode!r}, got text")
    if isinstance(value, Mapping):
        if "inputs" in value or "outputs" in value:
            return _inputs_outputs({"fn_name": given.get("fn_name"), **value}, entry)
        if "assert_case" in value:
            return _any(value["assert_case"], given, "asserts", entry, prompt)
        known = {name: inner for name, inner in value.items() if isinstance(name, str)}
        return read_tests(known, mode=mode, entry_point=entry, prompt=prompt)
    if not isinstance(value, Sequence):
        raise ValueError(f"tests: a list, an object or text is wanted, got {type(value).__name__}")
    if not value:
        raise ValueError("tests: the list is empty")
    _few(value)
    if all(isinstance(item, str) for item in value):
        if mode not in (None, "asserts"):
            raise ValueError(f"tests: objects are wanted for mode {mode!r}, got text")
        return _asserts(list(value), entry, _setup(given), prompt)
    if not all(isinstance(item, Mapping) for item in value):
        raise ValueError("tests: a list of objects, or one of asserts, is wanted")
    return _listed(value, mode, entry)


def _few(value: Sequence[Any]) -> None:
    if len(value) > MAX_TESTS:
        raise ValueError(f"tests: more than {MAX_TESTS:,}")


def _json(text: str, what: str) -> Any:
    if len(text) > MAX_TEXT:
        raise ValueError(f"{what}: more than {MAX_TEXT:,} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{what}: no JSON that can be read: {problem}") from None


def _text(value: Any, what: str = "test_setup_code") -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ValueError(f"{what}: text is wanted, got {type(value).__name__}")


def _setup(given: Mapping[str, Any]) -> str:
    parts = [_text(given.get(name), name) for name in ("test_imports", "test_setup_code")]
    return "\n".join(part for part in parts if part.strip())


# ------------------------------------------------------------------------------------- calls and streams


def _listed(tests: Sequence[Mapping[str, Any]], mode: str | None, entry: str | None) -> Tests:
    """Read a list of objects: calls or streams, all of one kind."""
    streams = [_is_stream(test) for test in tests]
    if mode == "stdio" or (mode is None and all(streams)):
        return Streams(tuple(_stream(test, number) for number, test in enumerate(tests, 1)))
    if mode not in (None, "function") or any(streams):
        raise ValueError(f"tests: calls and streams are mixed, or are not for mode {mode!r}")
    return Calls(tuple(call for number, test in enumerate(tests, 1) for call in _calls(test, number, entry)))


def _is_stream(test: Mapping[str, Any]) -> bool:
    called = "expected" in test or "raises" in test
    return "stdout" in test or ("stdin" in test and not called) or ("input" in test and "output" in test)


def _stream(test: Mapping[str, Any], number: int) -> Stream:
    stdin = test.get("stdin", test.get("input"))
    stdout = test.get("stdout", test.get("output"))
    return Stream(
        _lines(stdin, f"test {number}: stdin"), _lines(stdout, f"test {number}: stdout"), _weight(test, number)
    )


def _lines(value: Any, what: str) -> str:
    """Return text to feed or to expect; a list is one of lines."""
    if value is None and what.endswith("stdin"):
        return ""
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return "\n".join(value) + ("\n" if value else "")
    if not isinstance(value, str):
        raise ValueError(f"{what}: text is wanted, got {_kind(value)}")
    return value


def _weight(test: Mapping[str, Any], number: int) -> float:
    weight = test.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise ValueError(f"test {number}: weight: a number above 0 is wanted, got {_cut(weight)!r}")
    return float(weight)


def _calls(test: Mapping[str, Any], number: int, entry: str | None) -> Iterator[Call]:
    where = f"test {number}"
    unknown = [name for name in test if name not in _SINGLE and name not in ("id", "name", "note", "function")]
    if unknown:
        raise ValueError(f"{where}: unknown field {_cut(unknown[0])!r}; known are {', '.join(_SINGLE)}")
    name = _name(test.get("entry_point", test.get("function"))) or entry
    if name is None:
        raise ValueError(f"{where}: no entry_point says what is called")
    if "calls" in test:
        yield from _sequence(test, where, number, name)
    else:
        receiver, function = _split(name, test.get("method"), where)
        yield _one_call(test, where, number, function, receiver)


def _split(name: str, method: Any, where: str) -> tuple[str | None, str]:
    """Return class and method of `Solution.two_sum`, or no class."""
    if method is not None:
        if not isinstance(method, str) or not method.isidentifier():
            raise ValueError(f"{where}: method: a name is wanted, got {_cut(method)!r}")
        return name, method
    receiver, dot, function = name.rpartition(".")
    return (receiver, function) if dot else (None, name)


def _one_call(test: Mapping[str, Any], where: str, number: int, function: str, receiver: str | None) -> Call:
    args, kwargs = _arguments(test, where)
    tolerance = test.get("tol") or 0.0
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise ValueError(f"{where}: tol: a number of 0 or more is wanted, got {_cut(tolerance)!r}")
    raises = test.get("raises")
    if raises is not None:
        if not isinstance(raises, str) or not raises.isidentifier() or "expected" in test:
            raise ValueError(f"{where}: raises: the name of an exception is wanted, and no `expected` beside it")
        return Call(
            function,
            args,
            kwargs,
            "raises",
            raises,
            weight=_weight(test, number),
            receiver=receiver,
            awaited=True,
            stdin=_stdin(test, where),
        )
    if "expected" not in test:
        raise ValueError(f"{where}: neither `expected` nor `raises`")
    return Call(
        function,
        args,
        kwargs,
        "equal",
        _value(test["expected"], f"{where}: expected"),
        absolute=float(tolerance),
        writeback=_writeback(test.get("writeback"), len(args), where),
        weight=_weight(test, number),
        receiver=receiver,
        awaited=True,
        stdin=_stdin(test, where),
    )


def _stdin(test: Mapping[str, Any], where: str) -> str | None:
    return None if test.get("stdin") is None else _lines(test["stdin"], f"{where}: stdin")


def _writeback(value: Any, count: int, where: str) -> int | None:
    if value is None or value is False:
        return None
    place = 0 if value is True else value
    if not isinstance(place, int) or not 0 <= place < count:
        raise ValueError(f"{where}: writeback: true or the place of an argument is wanted, got {_cut(value)!r}")
    return place


def _arguments(test: Mapping[str, Any], where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = _value(test.get("args", ()), f"{where}: args")
    kwargs = _value(test.get("kwargs") or {}, f"{where}: kwargs")
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"{where}: args: a tuple such as '(3,)' is wanted, got {_cut(args)!r}")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise ValueError(f"{where}: kwargs: an object is wanted, got {_cut(kwargs)!r}")
    return tuple(args), kwargs


def _value(value: Any, what: str) -> Any:
    """Return a value: text is a Python literal, anything else is meant as it is."""
    if isinstance(value, str):
        return read_literal(value, what)
    return value


def _sequence(test: Mapping[str, Any], where: str, number: int, name: str) -> Iterator[Call]:
    """Read calls of methods of one object: {"entry_point": "Stack", "init": "()", "calls": [{method, args, …}]}."""
    calls = test["calls"]
    if not isinstance(calls, list) or not calls or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"{where}: calls: a list of objects is wanted")
    made, _ = _arguments({"args": test.get("init", ())}, f"{where}: init")
    yield Call(name, made, {}, "made", receiver=name, keep=True, weight=0.0)
    for place, call in enumerate(calls, 1):
        inner = f"{where}, call {place}"
        _, method = _split(name, call.get("method"), inner) if call.get("method") else (None, "")
        if not method:
            raise ValueError(f"{inner}: no method")
        base = {key: value for key, value in call.items() if key != "method"}
        made_call = _one_call(
            {"expected": "None", **base} if "raises" not in base else base, inner, number, method, name
        )
        weight = _weight(test, number) / len(calls)
        yield _replaced(made_call, keep=True, weight=weight)


def _replaced(call: Call, **changes: Any) -> Call:
    import msgspec

    return msgspec.structs.replace(call, **changes)


# -------------------------------------------------------------------------------- inputs and outputs


def _inputs_outputs(given: Mapping[str, Any], entry: str | None) -> Tests:
    """Read {inputs, outputs, fn_name} of APPS, TACO, CodeContests and prime_code."""
    inputs, outputs = given.get("inputs"), given.get("outputs")
    inputs = _json(inputs, "inputs") if isinstance(inputs, str) else inputs
    outputs = _json(outputs, "outputs") if isinstance(outputs, str) else outputs
    if not isinstance(inputs, (list, tuple)) or not isinstance(outputs, (list, tuple)):
        raise ValueError("inputs, outputs: two lists are wanted")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"inputs, outputs: {len(inputs)} inputs and {len(outputs)} outputs")
    _few(inputs)
    function = _name(given.get("fn_name"))
    if function is None:
        pairs = enumerate(zip(inputs, outputs, strict=True), 1)
        return Streams(
            tuple(Stream(_lines(a, f"test {n}: stdin"), _lines(b, f"test {n}: stdout")) for n, (a, b) in pairs)
        )
    parsed = [_json_arguments(value, f"test {n}: input") for n, value in enumerate(inputs, 1)]
    wanted = [_json_output(value) for value in outputs]
    # APPS puts each result into a list of its own; a task where that is so throughout is read that way.
    wrapped = all(isinstance(value, list) and len(value) == 1 for value in wanted)
    relation = "wrapped" if wrapped and not given.get("unwrapped") else "equal"
    return Calls(
        tuple(
            Call(function, args, {}, relation, value, awaited=True)  # type: ignore[arg-type]
            for args, value in zip(parsed, wanted, strict=True)
        ),
        loose=True,
    )


def _json_arguments(value: Any, what: str) -> tuple[Any, ...]:
    """Return arguments: a list of them, or text with one JSON value a line, as in LiveCodeBench."""
    if isinstance(value, str):
        lines = [line for line in value.split("\n") if line.strip()]
        return tuple(_json(line, what) for line in lines)
    if isinstance(value, (list, tuple)):
        return tuple(map(_json_keys, value))
    raise ValueError(f"{what}: a list of arguments is wanted, got {_kind(value)}")


def _json_keys(value: Any) -> Any:
    """Undo what JSON does to a dict with integer keys."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", str(key)) for key in value):
        return {int(key): inner for key, inner in value.items()}
    return value


def _json_output(value: Any) -> Any:
    return value


def _livecodebench(given: Mapping[str, Any], entry: str | None) -> Tests:
    cases: list[Mapping[str, Any]] = []
    for name in ("public_test_cases", "private_test_cases"):
        value = given.get(name)
        if isinstance(value, str):
            value = _json(value if value.lstrip()[:1] in ("[", "{") else unpacked(value, name), name)
        if value is None:
            continue
        if not isinstance(value, (list, tuple)) or not all(isinstance(case, Mapping) for case in value):
            raise ValueError(f"{name}: a list of objects with input and output is wanted")
        cases += value
    _few(cases)
    if not cases:
        raise ValueError("public_test_cases, private_test_cases: both are empty")
    metadata = given.get("metadata")
    metadata = _json(metadata, "metadata") if isinstance(metadata, str) and metadata.strip() else metadata
    inner = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    function = _name(given.get("fn_name") or inner) or entry
    functional = [case.get("testtype") == "functional" for case in cases]
    if not any(functional) and (function is None or all(case.get("testtype") == "stdin" for case in cases)):
        return Streams(tuple(_stream(case, number) for number, case in enumerate(cases, 1)))
    if function is None:
        raise ValueError("metadata: func_name says no function, but the tests are calls")
    return Calls(
        tuple(
            Call(
                function,
                _json_arguments(case.get("input"), f"test {number}: input"),
                {},
                "equal",
                _json(case["output"], f"test {number}: output")
                if isinstance(case.get("output"), str)
                else case["output"],
                awaited=True,
            )
            for number, case in enumerate(cases, 1)
        ),
        loose=True,
    )


# ---------------------------------------------------------------------------------------- test code


def _mbpp(given: Mapping[str, Any], entry: str | None) -> Tests:
    tests = given["test_list"]
    if isinstance(tests, str):
        tests = _json(tests, "test_list") if tests.lstrip()[:1] == "[" else [tests]
    more = given.get("challenge_test_list")
    tests = [*tests, *(more if isinstance(more, (list, tuple)) else ())]
    if not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError("test_list: a list of asserts is wanted")
    _few(tests)
    return _asserts(tests, entry, _setup(given), "")


def _asserts(tests: list[str], entry: str | None, setup: str, prompt: str) -> Tests:
    """Read a list of pieces of test code, mostly one assert each."""
    trees = [parse_code(test, f"test {number}") for number, test in enumerate(tests, 1)]
    body = [statement for tree in trees for statement in tree.body]
    if not body:
        raise ValueError("tests: nothing is tested")
    prepared = parse_code(setup, "test_setup_code")
    theirs = _theirs([prepared, *trees], entry)
    idle = all(isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in prepared.body)
    calls = reduce_asserts(body, dict.fromkeys(theirs)) if idle and not _defines(body) else None
    if calls is not None and all(len(tree.body) == 1 for tree in trees):
        return Calls(calls)
    head = _imports(theirs, [prepared, *trees]) + setup + "\n"
    remote = tuple(name for name in theirs if name not in sys.stdlib_module_names or name == entry)
    for tree in trees:
        refuse_unsupported(tree, remote)
    back = any(is_in_place(tree, remote) for tree in trees)
    cases = tuple(Script(explained(head + test), remote, back) for test in tests)
    return Scripts(Script(explained(head + "\n".join(tests)), remote, back), cases)


def _defines(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) for statement in body)


def _theirs(trees: Sequence[ast.Module], entry: str | None) -> list[str]:
    """Return the names in test code that are the solution's."""
    free = free_names(*trees)
    own = [name for name in free if name not in sys.stdlib_module_names]
    if entry is not None and entry not in free:
        own.append(entry.partition(".")[0])
    if not own:  # a task that asks for `sum`
        own = outer_calls(*trees)
    return own + [name for name in free if name in sys.stdlib_module_names and name not in own]


def _imports(theirs: Sequence[str], trees: Sequence[ast.Module]) -> str:
    """Import what test code uses without importing it, because solutions usually do."""
    return "".join(f"import {name}\n" for name in theirs if name in sys.stdlib_module_names)


def _code(source: str, entry: str | None, prompt: str, setup: str) -> Tests:
    """Read test code: HumanEval's check, asserts, test functions, unittest."""
    tree = parse_code(source, "test")
    if not tree.body:
        raise ValueError("test: nothing is tested")
    checks = any(isinstance(statement, ast.FunctionDef) and statement.name == "check" for statement in tree.body)
    if checks and entry is None:
        raise ValueError("entry_point: a test with check(candidate) needs the name of the function")
    if not setup.strip():
        calls = reduce_check(tree, entry) if checks and entry is not None else None
        if not checks and not _defines(tree.body):
            calls = reduce_asserts(tree.body, dict.fromkeys(_theirs([tree], entry)))
        if calls is not None:
            return Calls(tuple(map(_of_object, calls)))
    return _script(source, tree, entry, prompt, setup, checks)


def _of_object(call: Call) -> Call:
    """Turn a call of `Solution.two_sum` into one of a new object's method."""
    receiver, dot, function = call.function.rpartition(".")
    return _replaced(call, receiver=receiver, function=function) if dot else call


def _script(source: str, tree: ast.Module, entry: str | None, prompt: str, setup: str, checks: bool) -> Scripts:
    """Make the judge's program: prompt (for its helpers), set-up, test code, and the call that starts it."""
    prompt = prompt if prompt and is_code_prompt(prompt) and _parses(prompt) else ""
    head = parse_code(f"{prompt}\n{setup}", "prompt, test_setup_code")
    theirs = _theirs([_without(head, entry), tree], entry)
    remote = tuple(name for name in theirs if name not in sys.stdlib_module_names or name == entry)
    refuse_unsupported(tree, remote)
    lines = [
        _imports(theirs, [head, tree]),
        _source_without(prompt, head, entry),
        setup,
        source,
        _start(tree, entry, checks),
    ]
    whole = Script(explained("\n".join(line for line in lines if line)), remote, is_in_place(tree, remote))
    return Scripts(whole, (whole,))


def _parses(prompt: str) -> bool:
    try:
        parse_code(prompt, "prompt")
    except ValueError:
        return False
    return True


def _without(tree: ast.Module, entry: str | None) -> ast.Module:
    """Return a module without the function that is to be written: that is the solution's, not the prompt's."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    kept = [statement for statement in tree.body if not (isinstance(statement, kinds) and statement.name == entry)]
    return ast.Module(kept, [])


def _source_without(prompt: str, tree: ast.Module, entry: str | None) -> str:
    return ast.unparse(_without(parse_code(prompt, "prompt"), entry)) if prompt else ""


_UNITTEST = """
def _run_unittest():
    import sys, unittest
    result = unittest.TestResult()
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    suite.run(result)
    for test, text in result.failures + result.errors:
        raise AssertionError(str(test) + ": " + text.strip().splitlines()[-1])
    if not result.testsRun:
        raise RuntimeError("no test was found")
_run_unittest()
"""


def _start(tree: ast.Module, entry: str | None, checks: bool) -> str:
    """Return the line that runs tests which only define something."""
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if checks:
        top = any(isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) for s in tree.body)
        receiver, dot, method = (entry or "").rpartition(".")
        return "" if top and "check" in called else f"check({receiver}().{method})" if dot else f"check({entry})"
    if any(isinstance(statement, ast.ClassDef) and _is_test_case(statement) for statement in tree.body):
        return "" if "_run_unittest" in called else _UNITTEST
    functions = [s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name.startswith("test")]
    ready = [f.name for f in functions if f.name not in called and not f.args.args and not f.args.kwonlyargs]
    if ready:
        return "\n".join(f"{name}()" for name in ready)
    if not any(isinstance(node, (ast.Assert, ast.Raise)) for node in ast.walk(tree)):
        raise ValueError("test: nothing in it can fail: no assert, no test function, no unittest.TestCase")
    return ""


def _is_test_case(statement: ast.ClassDef) -> bool:
    return any("TestCase" in ast.unparse(base) for base in statement.bases)


# ---------------------------------------------------------------------------------------- predictions


def _cruxeval(given: Mapping[str, Any], function: str) -> Prediction:
    code, source, output = (_text(given.get(name), name) for name in ("code", "input", "output"))
    tree = parse_code(code, "code")
    if not any(isinstance(s, (ast.FunctionDef, ast.ClassDef)) and s.name == function for s in tree.body):
        raise ValueError(f"code: it defines no {function!r}")
    parse_code(f"{function}({source})", "input")
    wanted: Literal["output", "input"] = "input" if given.get("predict") == "input" else "output"
    if given.get("predict") not in (None, "input", "output"):
        raise ValueError(f"predict: 'input' or 'output' is wanted, got {_cut(given['predict'])!r}")
    if wanted == "output":
        try:
            case = Call("predicted", expected=read_literal(output, "output"))
        except ValueError:
            script = Script(f"{code}\nassert ({output}) == predicted()", ("predicted",))
            return Prediction(code, source, wanted, None, script)
        return Prediction(code, source, wanted, case)
    test = f"{code}\n_args, _kwargs = predicted()\nassert ({output}) == {function}(*_args, **_kwargs)"
    parse_code(test, "output")
    return Prediction(code, output, wanted, None, Script(test, ("predicted",)))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
