"""The tests of a program as data: what is called or fed, and what must come back.

Everything here comes from the reference, which is trusted. The expected values stay in this process: the sandbox is
told the arguments only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

Relation = Literal["equal", "is", "true", "false", "close", "raises", "wrapped", "made"]


class Call(msgspec.Struct, frozen=True):
    """One call and what must come of it.

    Attributes:
        function: The function's name, or that of a method when there is a receiver.
        args: Positional arguments.
        kwargs: Keyword arguments.
        relation: "equal": the result equals `expected`; "is": it is this None, True or False; "true", "false": its
            truth value; "close": a number within `absolute` or `relative` of `expected`; "raises": an exception of this
            name; "wrapped": equal to `expected`, a list of one item, or to that item; "made": an object is made, no
            more.
        expected: What is expected.
        absolute: Largest difference of numbers, wherever they stand in the result.
        relative: The same as a share of the larger magnitude.
        writeback: Compare this argument after the call, and not the result.
        weight: What the test counts for with `credit="weighted"`.
        receiver: Names a class: the method of a new object of it is called.
        keep: Keep the object of `receiver` for the next call that keeps it, too.
        awaited: A coroutine that the call returns is run, and its result compared.
        stdin: What `input()` reads during the call.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    relation: Relation = "equal"
    expected: Any = None
    absolute: float = 0.0
    relative: float = 0.0
    writeback: int | None = None
    weight: float = 1.0
    receiver: str | None = None
    keep: bool = False
    awaited: bool = False
    stdin: str | None = None


class Stream(msgspec.Struct, frozen=True):
    """One run of the program: standard input, and what standard output must be."""

    stdin: str
    stdout: str
    weight: float = 1.0


class Calls(msgspec.Struct, frozen=True):
    """Tests by calls, in one process of the solution.

    Attributes:
        cases: The calls, in order.
        loose: The values come from JSON: a tuple equals a list, and the key "1" equals 1.
    """

    cases: tuple[Call, ...]
    loose: bool = False


class Streams(msgspec.Struct, frozen=True):
    """Tests by standard input and output, each in a process of its own."""

    cases: tuple[Stream, ...]


class Script(msgspec.Struct, frozen=True):
    """One piece of test code, run beside the solution in a judge process.

    Attributes:
        source: The code; it fails by raising.
        remote: The names in it that are the solution's.
        writeback: What the solution does to a list, dict or set that it was given is done to the test's own.
        weight: What it counts for.
    """

    source: str
    remote: tuple[str, ...]
    writeback: bool = False
    weight: float = 1.0


class Scripts(msgspec.Struct, frozen=True):
    """Tests by test code.

    Attributes:
        whole: All of it at once: what runs when every test must pass.
        cases: Each test by itself: what runs when tests count one by one.
    """

    whole: Script
    cases: tuple[Script, ...]


class Prediction(msgspec.Struct, frozen=True):
    """The completion is no program but a value: what a function returns for an input (CRUXEval), or the input itself.

    Attributes:
        code: The function's source.
        given: The known side: the arguments' source when the output is asked for, else the output's.
        wanted: "output" or "input".
        case: For an output: what the predicted value must be.
        script: For an input, or an output that is no literal: the judge's test of `predicted()`.
    """

    code: str
    given: str
    wanted: Literal["output", "input"]
    case: Call | None = None
    script: Script | None = None


Tests: TypeAlias = Calls | Streams | Scripts | Prediction


def called_names(tests: Tests) -> frozenset[str]:
    """Return the names that a solution must define."""
    match tests:
        case Calls(cases):
            return frozenset(case.receiver or case.function for case in cases)
        case Scripts(whole):
            return frozenset(whole.remote)
    return frozenset()


def case_count(tests: Tests) -> int:
    """Return how many tests there are."""
    return 1 if isinstance(tests, Prediction) else len(tests.cases)


def weights(cases: Sequence[Call | Stream | Script]) -> list[float]:
    return [case.weight for case in cases]
