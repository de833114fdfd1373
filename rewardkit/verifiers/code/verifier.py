"""`code`: does a program pass its tests, in a sandbox, with a verdict that it cannot reach."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from rewardkit.errors import OptionError, SandboxUnavailable
from rewardkit.extract import opens_thinking
from rewardkit.leaf import Placement
from rewardkit.reward import memory_bytes
from rewardkit.sandbox import Level, Limits
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.code.cases import Call, Calls, Prediction, Scripts, Streams, Tests, called_names
from rewardkit.verifiers.code.extraction import (
    USUAL_STOPS,
    NoProgram,
    Program,
    Where,
    code_parts,
    extract_prediction,
    extract_program,
    is_code_prompt,
)
from rewardkit.verifiers.code.forms import read_tests
from rewardkit.verifiers.code.judging import REASONS, Outcome, Report, run_program
from rewardkit.verifiers.code.servers import sandbox

_TESTS = "tests: calls, streams, test code, or a task in the form of HumanEval, MBPP, APPS, LiveCodeBench or CRUXEval"


class CodeReference(Reference):
    """Tests in one of the forms that are recognised; each field may be a column of the row. See docs/code.md."""

    model_config = ConfigDict(extra="ignore")

    tests: Any = Field(None, description=_TESTS)
    test: Any = Field(None, description="HumanEval's test code with check(candidate), or other test code")
    entry_point: str | None = Field(None, description="the function or class that is to be written")
    prompt: Any = Field(None, description="the beginning of the program, where the prompt is code")
    test_list: Any = Field(None, description="MBPP's asserts")
    test_setup_code: Any = None
    test_imports: Any = None
    challenge_test_list: Any = None
    input_output: Any = Field(None, description="APPS: inputs, outputs, fn_name")
    test_cases: Any = None
    inputs: Any = None
    outputs: Any = None
    fn_name: Any = None
    public_test_cases: Any = Field(None, description="LiveCodeBench")
    private_test_cases: Any = None
    metadata: Any = None
    starter_code: Any = None
    assert_case: Any = None
    code: Any = Field(None, description="CRUXEval: the function, beside input and output")
    input: Any = None
    output: Any = None
    predict: Any = None
    mode: Literal["function", "asserts", "stdio"] | None = None

    _tests: Tests = PrivateAttr()
    _prompt: str = PrivateAttr("")

    @model_validator(mode="after")
    def _read(self) -> CodeReference:
        prompt = self.prompt if isinstance(self.prompt, str) and is_code_prompt(self.prompt) else ""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        try:
            self._tests = read_tests(fields, mode=self.mode, entry_point=self.entry_point, prompt=prompt)
        except LookupError:
            raise ValueError(NO_TESTS) from None
        self._prompt = prompt
        return self

    @property
    def cases(self) -> Tests:
        """The tests."""
        return self._tests


NO_TESTS = "no tests in it"


class Code(Verifier[CodeReference]):
    """Accept when the program in the completion passes the tests.

    The program runs in a sandbox and only answers calls with plain data; tests and expected values stay outside, or,
    for test code that cannot be reduced to calls, in a second sandboxed process. So nothing that the program prints,
    patches, raises or returns can be taken for a verdict. Wrong answers, errors, syntax errors, timeouts, too much
    memory or output, and a completion without code are scored 0 with what happened; tests that cannot be read are an
    abstention; a sandbox that cannot start is an error.

    Tests are recognised by their shape: calls with expected values, standard input and output, HumanEval, MBPP, APPS,
    LiveCodeBench, CRUXEval, asserts and unittest. docs/code.md has all of them.

    Options:
        timeout: seconds for a program (for each run with standard input), on a core or asleep. Waiting for a core on a
            busy machine does not count, up to about four times that, and twelve times in a second run.
        memory: "512MB", "2GiB" or bytes.
        output: bytes that the program may write, the same way.
        credit: "all": 1 when every test passes; "fraction": the share that passes; "weighted": by the tests' `weight`.
        tolerance: largest difference of numbers, absolute or as a share, where a test does not say its own.
        extract: "auto", or what to take: the "last", "first" or "all" fenced blocks, the "whole" text, or "continue"
            the prompt.
        stop: cut a continuation of the prompt at the first of these; true: at the usual ones of base models.
        level: of the sandbox: "strict", or, weaker and only by name, "landlock" or "unsafe".

    Example:
        rewardkit try code --reference '{"tests": ["assert double(4) == 8"]}' 'def double(x): return 2 * x'
    """

    name: ClassVar[str | None] = "code"
    placement: ClassVar[Placement] = "process"  # type: ignore[misc]

    timeout: float = Field(3.0, gt=0, le=3600)  # type: ignore[misc]
    memory: int | str = "512MiB"  # type: ignore[misc, assignment]
    output: int | str = "1MiB"
    credit: Literal["all", "fraction", "weighted"] = "all"
    tolerance: float = Field(0.0, ge=0)
    extract: Where = "auto"
    stop: bool | tuple[str, ...] = False
    level: Level = "strict"

    _limits: Limits = PrivateAttr()

    @field_validator("memory", "output")
    @classmethod
    def _size(cls, value: int | str) -> int | str:
        try:
            memory_bytes(value, "size")
        except OptionError:
            raise ValueError(f"a size such as '512MB' or '2GiB' is wanted, got {value!r}") from None
        return value

    def model_post_init(self, context: Any) -> None:
        memory, output = memory_bytes(self.memory, "memory"), memory_bytes(self.output, "output")
        assert memory is not None and output is not None
        self._limits = Limits(cpu_seconds=self.timeout, memory=memory, output=output)

    # `timeout` and `memory` are those of the program. The worker's are no options: the sandbox keeps to its limits.

    @property
    def deadline(self) -> float | None:
        return None

    @property
    def worker_memory(self) -> int | None:
        return 4 << 30

    @property
    def needs(self) -> tuple[str, ...]:
        return ("reference",)

    def prepare(self, sample: Sample) -> object:
        if isinstance(sample.reference, Mapping) or not _has_tests(sample.metadata):
            prepared = super().prepare(sample)
        else:  # what the file calls the answer is then a worked solution
            prepared = super().prepare(msgspec.structs.replace(sample, reference=None))
        if isinstance(prepared, Score) and prepared.reason == "bad_reference" and prepared.detail == NO_TESTS:
            return Score(None, f"the row has no {_TESTS}", reason="missing", name=self.label)
        return prepared

    def verify(self, completion: Completion, reference: CodeReference, sample: Sample) -> Verdict:
        found = self.program(completion, reference, sample)
        if isinstance(found, NoProgram):
            return Verdict.reject(found.detail, reason=found.reason)
        verdict = self._run(found, reference)
        return msgspec.structs.replace(verdict, detail=f"{verdict.detail} [{found.rule}; {self.level}]")

    def identity(self, sample: Sample, completion: Completion) -> object:
        """Return what completions share that need to be run only once: their code, and all that the tests come from."""
        code = code_parts(completion.text)
        return hashlib.sha256(repr((_task_key(sample), code)).encode("utf-8", "surrogatepass")).digest()

    def program(self, completion: Completion, reference: CodeReference, sample: Sample) -> Program | NoProgram:
        """Find the program in a completion."""
        opened = opens_thinking(sample.prompt)
        tests = reference.cases
        if isinstance(tests, Prediction):
            return extract_prediction(completion.text, tests.given, opened=opened)
        prompt = reference._prompt
        if isinstance(sample.prompt, str) and is_code_prompt(sample.prompt):
            prompt = sample.prompt
        if isinstance(tests, Streams):
            prompt = ""
        return extract_program(
            completion.text,
            prompt=prompt,
            names=called_names(tests),
            where=self.extract,
            stop=USUAL_STOPS if self.stop is True else self.stop or (),
            opened=opened,
        )

    def _run(self, found: Program, reference: CodeReference) -> Verdict:
        tests = reference.cases
        try:
            report = self._report(found.source, tests)
        except SandboxUnavailable:  # its server may have been killed from outside: then a new one works
            report = self._report(found.source, tests)
        return verdict_of(report, tests, self.credit, extracted=shown_program(found.source))

    def _report(self, source: str, tests: Tests) -> Report:
        return run_program(
            sandbox(self.level),
            source,
            tests,
            limits=self._limits,
            tolerance=self.tolerance,
            stop=self.credit == "all",
        )


def _has_tests(columns: Mapping[str, Any]) -> bool:
    """Whether some column of a row holds tests."""
    names = ("tests", "test", "test_list", "input_output", "test_cases", "public_test_cases", "private_test_cases")
    return any(columns.get(name) is not None for name in names) or all(
        columns.get(name) is not None for name in ("code", "input", "output")
    )


def shown_program(source: str) -> str:
    """Return the beginning of a program, for people."""
    return source if len(source) <= 200 else source[:199] + "…"


def verdict_of(report: Report, tests: Tests, credit: str = "all", *, extracted: str | None = None) -> Verdict:
    """Say what a report comes to."""
    outcomes = report.outcomes
    counted = _weights(tests, credit, len(outcomes))
    failed = [(number, outcome) for number, outcome in enumerate(outcomes, 1) if outcome.status != "passed"]
    again = ", run again near its limit" if report.again else ""
    if not failed and outcomes:
        total = sum(1 for weight in counted if weight)
        return Verdict.accept(f"{total} of {total} tests passed{again}", extracted=extracted)
    if not failed:
        return Verdict.abstain("no tests were run", reason="bad_reference")
    number, first = failed[0]
    if first.status == "bad_tests":
        return Verdict.abstain(f"the tests do not run: {first.detail}", extracted=extracted, reason="bad_reference")
    many = len(counted) > 1 or number > 1
    where = f" in test {number} of {len(counted)}" if many and first.status != "syntax" else ""
    detail = f"{_SAID.get(first.status, first.status)}{where}: {first.detail}{again}"
    value = 0.0
    if credit != "all":
        good = [weight for weight, one in zip(counted, outcomes, strict=True) if one.status == "passed" and weight]
        value = sum(good) / sum(counted) if sum(counted) else 0.0
        detail = f"{len(good)} of {sum(weight > 0 for weight in counted)} tests passed; {detail}"
    return Verdict.partial(min(value, 1.0), detail, extracted=extracted, reason=REASONS[first.status])


_SAID = {
    "wrong": "wrong answer",
    "missing": "missing entry point",
    "error": "error",
    "syntax": "syntax error",
    "timeout": "timeout",
    "memory": "out of memory",
    "output": "too much output",
    "exit": "ended",
}


def _weights(tests: Tests, credit: str, count: int) -> list[float]:
    """Return what each test counts for. Making an object is no test."""
    if isinstance(tests, Prediction):
        return [1.0] * count
    if isinstance(tests, Scripts) and credit == "all":
        return [1.0]
    cases = tests.cases
    return [
        0.0 if isinstance(case, Call) and case.relation == "made" else case.weight if credit == "weighted" else 1.0
        for case in cases
    ]


_last: tuple[Sample, bytes] | None = None


def _task_key(sample: Sample) -> bytes:
    """Return a digest of all that a sample's tests come from. The last sample's is kept, since tests may be large."""
    global _last
    last = _last
    if last is not None and last[0] is sample:
        return last[1]
    columns = [sample.metadata.get(name) for name in CodeReference.model_fields]
    text = repr((sample.prompt, sample.reference, columns))
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    _last = (sample, key)
    return key


__all__ = ["Calls", "Code", "CodeReference", "Outcome", "verdict_of"]
