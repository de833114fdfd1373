"""Run a program against tests, with a verdict that the program cannot reach.

    from rewardkit.code import run_tests

    run_tests("def square(x): return x * x", [{"args": "(3,)", "expected": "9"}], mode="function", entry_point="square")

The verifier `code` does the same for completions, and finds the program in them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rewardkit.errors import OptionError
from rewardkit.reward import memory_bytes
from rewardkit.sandbox import Level, Limits, Sandbox
from rewardkit.types import Verdict
from rewardkit.verifiers.code.cases import Tests
from rewardkit.verifiers.code.extraction import NoProgram, check_program
from rewardkit.verifiers.code.forms import read_tests
from rewardkit.verifiers.code.judging import run_program
from rewardkit.verifiers.code.servers import close_all, sandbox
from rewardkit.verifiers.code.verifier import Code, CodeReference, shown_program, verdict_of

Mode = Literal["function", "asserts", "stdio"]


def run_tests(
    solution: str | bytes,
    tests: Any,
    *,
    mode: Mode | None = None,
    entry_point: str | None = None,
    timeout: float = 3.0,
    memory: int | str = "512MiB",
    output: int | str = "1MiB",
    tolerance: float = 0.0,
    credit: Literal["all", "fraction", "weighted"] = "all",
    prompt: str = "",
    level: Level = "strict",
    within: Sandbox | None = None,
) -> Verdict:
    """Run a program against tests.

    Args:
        solution: Python source; nothing is looked for in it.
        tests: Trusted, in one of the forms of docs/code.md. For mode "function" a list of {args, expected, tol}, where
            args and expected are the texts of Python literals; for "asserts" test code; for "stdio" a list of
            {stdin, stdout}.
        mode: The form, where the shape of the tests alone is not to decide.
        entry_point: The function or class that the tests call.
        timeout: CPU seconds: for all calls together, for each run with standard input.
        memory: What the program may use: "512MB", "2GiB" or bytes.
        output: What it may write.
        tolerance: Largest difference of numbers, absolute or as a share, where a test says none.
        credit: "all", "fraction" or "weighted".
        prompt: Source that stands before the tests for its helpers, as in HumanEval.
        level: The sandbox's.
        within: A sandbox to run in; None: this process's own one of that level.

    Returns:
        Accepted; rejected with what happened; or an abstention, when the tests cannot be read.

    Raises:
        SandboxUnavailable: No sandbox of that level can start here.
        OptionError: An option is wrong.
    """
    if mode not in (None, "function", "asserts", "stdio"):
        raise OptionError(f"mode is one of function, asserts, stdio; got {mode!r}")
    if credit not in ("all", "fraction", "weighted"):
        raise OptionError(f"credit is one of all, fraction, weighted; got {credit!r}")
    limits = Limits(
        cpu_seconds=timeout, memory=memory_bytes(memory, "memory") or 0, output=memory_bytes(output, "output") or 0
    )
    try:
        cases = _cases(tests, mode, entry_point, prompt)
    except LookupError:
        return Verdict.abstain("there are no tests", reason="missing")
    except ValueError as problem:
        return Verdict.abstain(str(problem), reason="bad_reference")
    program = check_program(solution)
    if isinstance(program, NoProgram):
        return Verdict.reject(program.detail, reason=program.reason)
    report = run_program(
        within or sandbox(level), program.source, cases, limits=limits, tolerance=tolerance, stop=credit == "all"
    )
    return verdict_of(report, cases, credit, extracted=shown_program(program.source))


def _cases(tests: Any, mode: Mode | None, entry_point: str | None, prompt: str) -> Tests:
    given = tests if isinstance(tests, Mapping) and "inputs" not in tests else {"tests": tests}
    return read_tests(given, mode=mode, entry_point=entry_point or None, prompt=prompt)


__all__ = ["Code", "CodeReference", "close_all", "run_tests"]
