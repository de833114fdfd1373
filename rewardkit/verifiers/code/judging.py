"""Program and tests -> what happened, in the sandbox.

The program never learns what is expected. Calls: it is told arguments and answers with data, which is compared here.
Streams: it is fed, and what it wrote is compared here. Test code runs in a judge process beside it and reaches it by
message only.

A program's own time decides about a timeout: on a core, or asleep; waiting for a core is the machine's. A program gets
a quarter more than its limit; one that needs this more, or that the wall clock stopped since it was given no core, was
near the limit, and is run once more before that counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

from rewardkit.sandbox import Finished, Handle, Judge, Limits, Reply, Sandbox, SandboxDied, Session
from rewardkit.types import BlameCompletion
from rewardkit.verifiers.code.cases import Call, Calls, Prediction, Script, Scripts, Stream, Streams, Tests
from rewardkit.verifiers.code.comparison import Tolerance, equals, is_same, is_true, show, show_tree
from rewardkit.verifiers.code.extraction import defined_names
from rewardkit.verifiers.code.output import output_difference

Status: TypeAlias = Literal[
    "passed", "wrong", "missing", "error", "syntax", "timeout", "memory", "output", "exit", "bad_tests", "not_run"
]

REASONS: dict[Status, BlameCompletion] = {
    "wrong": "wrong",
    "missing": "wrong",
    "error": "crash",
    "syntax": "unreadable",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
    "exit": "crash",
}

_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_MORE = 1.25  # share of the limit after which a program is stopped
_BUSY = 0.2  # share of it in CPU time above which a stop by the wall clock may be the machine's fault, else unknown
_THREADS = 4  # a program that is done within this share of its limit is not asked for its CPU time
_RESTARTS = 3  # new processes for calls that follow one which ended the process


class Outcome(msgspec.Struct, frozen=True):
    """What came of one test.

    Attributes:
        status: "passed", or what happened; "bad_tests": the tests are to blame.
        detail: What differs: `f(3) returned 6, expected 9`.
    """

    status: Status
    detail: str = ""


class Report(msgspec.Struct, frozen=True):
    """What came of all tests of one program.

    Attributes:
        outcomes: One a test, in order; with `stop` none after the first that failed.
        own_seconds: CPU time and time asleep of the program that used most.
        again: It was run once more, since it came near its limit.
    """

    outcomes: tuple[Outcome, ...]
    own_seconds: float = 0.0
    again: bool = False


def run_program(
    sandbox: Sandbox, source: str, tests: Tests, *, limits: Limits, tolerance: float = 0.0, stop: bool = True
) -> Report:
    """Run a program against tests.

    Args:
        sandbox: Where.
        source: The program; for a Prediction, the predicted expression.
        tests: What it is tested with.
        limits: `cpu_seconds`, of CPU time and sleep, for all calls together, and for each stream.
        tolerance: Largest difference of numbers where a test says none, absolute or as a share.
        stop: End with the first test that fails.

    Raises:
        SandboxUnavailable: The sandbox cannot run anything.
    """
    once = _Run(sandbox, source, limits, tolerance, stop)
    report = once.report(tests)
    if not once.near:
        return report
    again = _Run(sandbox, source, limits, tolerance, stop, patient=True)
    second = again.report(tests)
    if again.near and not _timed_out(second):
        detail = f"{second.own_seconds:.2f} s computing or asleep, more than {limits.cpu_seconds:g} s, twice"
        second = Report((*second.outcomes[:-1], Outcome("timeout", detail)), second.own_seconds)
    return msgspec.structs.replace(second, again=True)


def _timed_out(report: Report) -> bool:
    return any(outcome.status == "timeout" for outcome in report.outcomes)


class _Run:
    """One run of one program against all of its tests."""

    def __init__(
        self, sandbox: Sandbox, source: str, limits: Limits, tolerance: float, stop: bool, patient: bool = False
    ) -> None:
        self.sandbox = sandbox
        self.source = source
        self.limit = limits.cpu_seconds
        wall = (10 if patient else 3) * self.limit * _MORE + 1
        if limits.wall_seconds is not None:
            wall = limits.wall_seconds
        self.limits = msgspec.structs.replace(limits, cpu_seconds=self.limit * _MORE, wall_seconds=wall)
        self.tolerance = tolerance
        self.stop = stop
        self.near = False
        self.most = 0.0

    def report(self, tests: Tests) -> Report:
        match tests:
            case Calls():
                outcomes = self._calls(tests)
            case Streams(cases):
                outcomes = self._until_failed(cases, self._stream)
            case Scripts(whole, cases):
                outcomes = self._until_failed([whole] if self.stop else cases, self._script)
            case Prediction():
                outcomes = [self._predicted(tests)]
        return Report(tuple(outcomes), self.most)

    def _until_failed(self, cases: object, judge: Callable[[object], Outcome]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for case in cases:  # type: ignore[attr-defined]
            outcomes.append(judge(case))
            if self.stop and outcomes[-1].status != "passed":
                break
        return outcomes

    # -- how a process ended

    def _count(self, finished: Finished) -> None:
        own = finished.cpu_seconds + (finished.slept_seconds or 0.0)
        self.most = max(self.most, own)
        if finished.status == "timeout":
            starved = finished.slept_seconds is not None or finished.cpu_seconds > self.limit * _BUSY
            self.near |= finished.detail == "wall" and starved
        else:
            self.near |= own > self.limit or finished.detail == "by the machine"

    def _ended(self, finished: Finished, doing: str) -> Outcome:
        """Say how a process ended that should not have."""
        if finished.status == "killed" and finished.cpu_seconds >= self.limit:  # by the kernel, over its CPU time
            finished = msgspec.structs.replace(finished, status="timeout", detail="cpu")
        self._count(finished)
        match finished.status:
            case "timeout":
                if finished.detail == "sleep":
                    on_core = f"{finished.cpu_seconds:.2f} s of them on a core"
                    return Outcome(
                        "timeout", f"more than {self.limit:g} s passed, {on_core} (it slept or waited){doing}"
                    )
                if finished.detail == "wall" and finished.cpu_seconds < self.limit:
                    return Outcome(
                        "timeout",
                        f"{finished.wall_seconds:.1f} s, of which {finished.cpu_seconds:.2f} s computing{doing}",
                    )
                return Outcome("timeout", f"more than {self.limit:g} s of CPU time{doing}")
            case "memory":
                return Outcome("memory", f"more than {self.limits.memory >> 20} MiB{doing}")
            case "output":
                return Outcome("output", f"more than {_size(self.limits.output)} of output{doing}")
            case "signal":
                return Outcome("error", f"ended by signal {finished.code}{doing}")
            case "killed":
                return Outcome("error", f"stopped: {finished.detail or 'it broke the protocol'}{doing}")
        return Outcome("exit", f"exited with code {finished.code}{doing}")

    # -- calls

    def _calls(self, tests: Calls) -> list[Outcome]:
        outcomes: list[Outcome] = []
        left = list(tests.cases)
        for _ in range(1 + _RESTARTS):
            outcomes += self._session(left[len(outcomes) :] if outcomes else left, tests.loose)
            failed = any(outcome.status != "passed" for outcome in outcomes)
            if len(outcomes) == len(left) or (self.stop and failed) or outcomes[-1].status in ("syntax", "bad_tests"):
                break
        if not self.stop:
            outcomes += [Outcome("not_run", "not run")] * (len(left) - len(outcomes))
        return outcomes

    def _session(self, cases: list[Call], loose: bool) -> list[Outcome]:
        """Make calls in one process, until it ends."""
        outcomes: list[Outcome] = []
        started = time.monotonic()
        try:
            with self.sandbox.session(self.source, limits=self.limits) as session:
                problem = self._load_problem(session)
                if problem is not None:
                    return [problem]
                caller = _Caller(session, self.source, loose, self.tolerance)
                for case in cases:
                    outcomes.append(caller.outcome(case))
                    if self.stop and outcomes[-1].status != "passed":
                        break
                self._end(session, started)
        except SandboxDied as died:
            where = "" if len(outcomes) >= len(cases) else f" in {show_call(cases[len(outcomes)])}"
            outcomes.append(self._ended(died.finished, where if outcomes or where else " before any test"))
        return outcomes[: len(cases)]

    def _load_problem(self, session: Session) -> Outcome | None:
        loaded = session.loaded
        if loaded.ok:
            return None
        if loaded.exception in _SYNTAX:
            return Outcome("syntax", f"{loaded.exception}: {_line(loaded.text)}")
        if loaded.exception == "MemoryError":
            return Outcome("memory", f"more than {self.limits.memory >> 20} MiB before any test")
        return Outcome("error", f"{_raised(loaded)} before any test")

    # -- streams

    def _stream(self, case: object) -> Outcome:
        assert isinstance(case, Stream)
        output = max(self.limits.output, 2 * len(case.stdout) + 65_536)
        limits = msgspec.structs.replace(self.limits, output=output)
        finished = self.sandbox.run(self.source, stdin=case.stdin.encode("utf-8", "surrogateescape"), limits=limits)
        if finished.status != "exited":
            return self._ended(finished, "")
        self._count(finished)
        if finished.code != 0:
            return self._failed(finished)
        got = finished.stdout.decode("utf-8", "surrogateescape")  # what is no UTF-8 equals nothing that is
        difference = output_difference(case.stdout, got, self.tolerance)
        if difference is None:
            return Outcome("passed")
        line, wanted, came = difference
        shown = "no such line" if came is None else show(came, 80)
        return Outcome(
            "wrong", f"line {line} is {shown}, expected {'no such line' if wanted is None else show(wanted, 80)}"
        )

    def _failed(self, finished: Finished) -> Outcome:
        last = finished.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        name = last.partition(":")[0]
        if name in _SYNTAX:
            return Outcome("syntax", _line(last))
        if name == "MemoryError":
            return Outcome("memory", f"more than {self.limits.memory >> 20} MiB")
        if name.isidentifier() and name[:1].isupper():
            return Outcome("error", _line(last))
        return Outcome("exit", f"exited with code {finished.code}")

    # -- test code

    def _script(self, case: object) -> Outcome:
        assert isinstance(case, Script)
        return self._beside(self.source, case)

    def _beside(self, source: str, case: Script) -> Outcome:
        """Run test code in a judge process beside the solution's. Both start at once; the judge waits when it asks."""
        started = time.monotonic()
        asked = True
        try:
            with (
                self.sandbox.session(source, limits=self.limits) as session,
                contextlib.closing(self._judge(session, case)) as judge,
            ):
                try:
                    verdict = judge.loaded
                finally:
                    asked = judge.calls > 0
                problem = self._load_problem(session)
                if problem is None and not verdict.ok:
                    missing = next((name for name in case.remote if not session.get(name).ok), None)
                    problem = None if missing is None else Outcome("missing", f"no {missing!r} is defined")
                self._end(session, started)
                return problem or self._judged(verdict, asked)
        except SandboxDied as died:
            ended = self._ended(died.finished, "")
            if isinstance(died.who, Judge) and not asked:
                return Outcome("bad_tests", f"{ended.detail} before the program was asked anything")
            return ended

    def _judge(self, session: Session, case: Script) -> Judge:
        return self.sandbox.judge(
            case.source, remote=session, names=case.remote, writeback=case.writeback, limits=self.limits
        )

    def _end(self, session: Session, started: float) -> None:
        """End a session that answered all; wait for its CPU time only where that could be near the limit."""
        if time.monotonic() - started > self.limit / _THREADS:
            self._count(session.finish())
        else:
            session.close()

    def _judged(self, loaded: Reply, asked: bool) -> Outcome:
        if loaded.ok:
            return Outcome("passed")
        if not asked:
            return Outcome("bad_tests", f"{_raised(loaded)} before the program was asked anything")
        if loaded.exception == "AssertionError":
            return Outcome("wrong", _line(loaded.text) or "an assert failed")
        if loaded.original == "OpaqueError":  # a test compared, or calculated with, what is no plain data
            return Outcome("wrong", _line(loaded.text))
        return Outcome("error", _raised(loaded))

    # -- predictions

    def _predicted(self, tests: Prediction) -> Outcome:
        source = _PREDICTED.format(text=self.source, code=tests.code)
        if tests.script is not None:
            return self._beside(_OUTPUT.format(text=self.source) if tests.wanted == "output" else source, tests.script)
        assert tests.case is not None
        self.source = _OUTPUT.format(text=self.source)
        return self._session([tests.case], False)[0]


_OUTPUT = """
def predicted():
    return eval(compile("(" + {text!r} + "\\n)", "<prediction>", "eval"))
"""
_PREDICTED = """
def predicted():
    text = {text!r}.strip()
    def f(*args, **kwargs):
        return args, kwargs
    if not text.startswith("f("):
        text = "f(" + text + "\\n)"
    return eval(compile(text, "<prediction>", "eval"))
"""


class _Caller:
    """Makes the calls of one session and compares what comes back."""

    def __init__(self, session: Session, source: str, loose: bool, tolerance: float) -> None:
        self.session = session
        self.defined = defined_names(source)
        self.loose = loose
        self.tolerance = tolerance
        self.kept: dict[str, Handle] = {}

    def outcome(self, case: Call) -> Outcome:
        """Make one call. Raises SandboxDied."""
        receiver = self._receiver(case)
        if case.relation == "made":
            reply = self._object(case.function, case.args, keep=True)
            return Outcome("passed") if isinstance(reply, Handle) else self._raised(case, reply)
        handle: Handle | None = None
        if receiver is not None:
            found = self._object(receiver, (), keep=case.keep)
            if not isinstance(found, Handle):
                return self._raised(case, found)
            handle = found
        try:
            if case.stdin is not None:
                self.session.feed(case.stdin)
            reply = self.session.call(
                case.function,
                case.args,
                case.kwargs,
                handle=handle,
                writeback=case.writeback is not None,
                awaited=case.awaited,
            )
        except ValueError as problem:  # the arguments are too large or too deep to cross
            return Outcome("bad_tests", f"arguments that cannot be sent: {problem}")
        return self._compared(case, reply)

    def _receiver(self, case: Call) -> str | None:
        if case.receiver is None and case.function not in self.defined and "Solution" in self.defined:
            return "Solution"
        return case.receiver

    def _object(self, name: str, args: tuple[object, ...], *, keep: bool) -> Handle | Reply:
        if keep and name in self.kept:
            return self.kept[name]
        reply = self.session.call(name, args)
        if not reply.ok or type(reply.value) is not list or reply.value[0] != "h":
            return reply
        handle = Handle(reply.value[1], reply.value[2])
        if keep:
            self.kept[name] = handle
        return handle

    def _raised(self, case: Call, reply: Reply) -> Outcome:
        if not reply.ok:
            if reply.missing:
                return Outcome("missing", f"no {_line(reply.missing)!r} is defined")
            if reply.refused:
                return Outcome("wrong", f"{show_call(case)} returned what is no plain data: {_line(reply.refused)}")
            if reply.exception == "AttributeError" and case.receiver is not None and case.function in reply.text:
                return Outcome("missing", f"{case.receiver} has no method {case.function!r}")
            if reply.exception in _SYNTAX:
                return Outcome("syntax", f"{reply.exception}: {_line(reply.text)}")
            if reply.exception == "MemoryError":
                return Outcome("memory", f"out of memory in {show_call(case)}")
            return Outcome("error", f"{show_call(case)} raised {_raised(reply)}, expected {_wanted(case)}")
        return Outcome("wrong", f"{show_call(case)} returned {show_tree(reply.value)}, expected {_wanted(case)}")

    def _compared(self, case: Call, reply: Reply) -> Outcome:
        if case.relation == "raises":
            if not reply.ok and is_exception(str(case.expected), reply):
                return Outcome("passed")
            return self._raised(case, reply)
        if not reply.ok:
            return self._raised(case, reply)
        got = reply.value
        if case.writeback is not None:
            got = (reply.arguments or [])[case.writeback : case.writeback + 1]
            if not got:
                return Outcome("wrong", f"{show_call(case)} left an argument that is no plain data")
            got = got[0]
        if self._holds(case, got):
            return Outcome("passed")
        if case.writeback is not None:
            return Outcome(
                "wrong",
                f"{show_call(case)} left argument {case.writeback + 1} as {show_tree(got)}, expected {_wanted(case)}",
            )
        return self._raised(case, reply)

    def _holds(self, case: Call, got: object) -> bool:
        match case.relation:
            case "is":
                return is_same(case.expected, got)
            case "true":
                return is_true(got) is True
            case "false":
                return is_true(got) is False
            case "close":
                number = not isinstance(got, (bool, str)) and got is not None
                return number and equals(case.expected, got, Tolerance(case.absolute, case.relative))
        tolerance = Tolerance(max(case.absolute, self.tolerance), max(case.relative, self.tolerance), loose=self.loose)
        if equals(case.expected, got, tolerance):
            return True
        return case.relation == "wrapped" and equals(case.expected[0], got, tolerance)


def is_exception(wanted: str, reply: Reply) -> bool:
    """Whether an exception that came back is of a kind: by the name of its class, or by the builtins' family tree."""
    import builtins

    kind, got = getattr(builtins, wanted, None), getattr(builtins, reply.exception or "", None)
    if isinstance(kind, type) and isinstance(got, type):
        return issubclass(got, kind)
    return kind is None and reply.original == wanted


def show_call(case: Call) -> str:
    """Write a call as in source, shortened."""
    parts = [show(arg, 80) for arg in case.args[:8]]
    parts += [f"{name}={show(value, 40)}" for name, value in list(case.kwargs.items())[:4]]
    if len(case.args) > 8 or len(case.kwargs) > 4:
        parts.append("…")
    name = case.function if case.receiver in (None, case.function) else f"{case.receiver}().{case.function}"
    text = ", ".join(parts)
    return f"{name}({text if len(text) <= 200 else text[:199] + '…'})"


def _wanted(case: Call) -> str:
    match case.relation:
        case "true" | "false":
            return f"something {case.relation}"
        case "raises":
            return f"{case.expected} to be raised"
        case "close":
            return f"about {show(case.expected)}"
        case "made":
            return "an object"
    return show(case.expected)


def _raised(reply: Reply) -> str:
    name = reply.original or reply.exception or "an exception"
    text = _line(reply.text)
    return f"{name}: {text}" if text else name


def _line(text: str) -> str:
    line = " ".join(text[:400].split())
    return line if len(line) <= 200 else line[:199] + "…"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 and not count % (1 << 20) else f"{count:,} bytes"


def failures(report: Report) -> Iterator[tuple[int, Outcome]]:
    """Give the tests that failed, with their numbers from 1."""
    for number, outcome in enumerate(report.outcomes, 1):
        if outcome.status != "passed":
            yield number, outcome
