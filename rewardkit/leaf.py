"""`Leaf`: a reward that judges completions itself, and the one boundary where its exceptions become scores.

Functions (reward.py) and verifiers (verifier.py) are leaves; the engine and the workers call nothing else.
"""

from __future__ import annotations

import os
import traceback
import types
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rewardkit.compose import Reward
from rewardkit.errors import ContractError, SandboxUnavailable, ServiceError, UsageError
from rewardkit.types import Completion, Generation, Sample, Score

Placement = Literal["inline", "thread", "process"]

_LONGEST = 500  # characters of an exception's message that a score keeps
# Code between a reward and whoever calls it: an error did not happen there.
_CALLERS = (
    os.path.dirname(__file__),
    os.path.join(os.path.dirname(__file__), "workers"),
    os.path.join(os.path.dirname(os.__file__), "asyncio"),
)


class Leaf(Reward):
    """A reward that judges completions itself: a function or a verifier.

    Attributes:
        placement: "inline": pure and bounded; "thread": waits for something; "process": may hang or blow up,
            so it runs in a killable worker.
        timeout: Deadline in seconds for one completion; None: no deadline.
        memory: Bytes that a worker may use for it; None: the workers' default.
        needs: The columns it cannot do without; "reference" among them where it needs one.
        is_async: `judge` and `judge_group` return awaitables.
        takes_group: `judge_group` is called with whole groups, `judge` never.
    """

    placement: Placement
    timeout: float | None
    memory: int | None

    @property
    def is_async(self) -> bool:
        return False

    @property
    def takes_group(self) -> bool:
        return False

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """Required columns."""

    @property
    @abstractmethod
    def target(self) -> str | None:
        """The text that loads this leaf's function or class again; None where nothing can."""

    @property
    @abstractmethod
    def registered(self) -> str | None:
        """The name under which it is registered, if it says one."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain data."""

    @property
    def deadline(self) -> float | None:
        """Seconds after which one completion is given up: `timeout`, unless that means something else here."""
        return self.timeout

    @property
    def worker_memory(self) -> int | None:
        """Bytes that a worker may use: `memory`, unless that means something else here."""
        return self.memory

    def identity(self, sample: Sample, completion: Completion) -> object:
        """Return a key that two completions share when judging one of them is enough; None: judge each.

        Only for what is expensive and judges equal inputs alike. Keys are hashed and kept, so they are short.
        """
        return None

    @property
    def formula(self) -> str:
        options = ", ".join(f"{name}={literal(value)}" for name, value in self.options.items())
        name = self.registered or self.target or f"<local>:{self.label}"
        bare = name if name.isidentifier() else "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return f"{bare}({options})" if options else bare

    @abstractmethod
    def prepare(self, sample: Sample) -> object:
        """Read the reference, once a sample. A `Score` (abstained) says that it cannot be read."""

    @abstractmethod
    def judge(self, prepared: object, sample: Sample, completion: Completion) -> Score | Awaitable[Score]:
        """Score one completion. May raise; `attempt` turns that into an error score."""

    @property
    def glances(self) -> bool:
        """Whether `glance` decides most completions in the caller's process, so that few need a worker."""
        return False

    def glance(self, prepared: object, sample: Sample, completion: Completion) -> Score | None:
        """Score one completion by bounded work alone; None leaves it to `judge` in a worker. For process leaves."""
        return None

    def warm(self) -> None:
        """Import what judging needs, in a worker, before the first deadline begins."""

    def judge_group(self, prepared: object, generation: Generation) -> list[Score] | Awaitable[list[Score]]:
        """Score all completions of one group at once."""
        raise ContractError(f"{self.label} judges single completions")


def attempt(leaf: Leaf, prepared: object, sample: Sample, completion: Completion) -> Score:
    """Judge one completion; whatever the leaf raises becomes a score."""
    try:
        return leaf.judge(prepared, sample, completion)  # type: ignore[return-value]
    except BaseException as problem:
        return broke(leaf, problem)


def broke(leaf: Leaf, problem: BaseException) -> Score:
    """Return the score for what `judge` raised; an interrupt is raised again."""
    if isinstance(problem, KeyboardInterrupt):
        raise problem
    if isinstance(problem, MemoryError):  # what a worker says of it, too
        return Score(0.0, "judging needed more memory than there is", reason="memory", name=leaf.label)
    return failure(leaf.label, problem)


def attempt_glance(leaf: Leaf, prepared: object, sample: Sample, completion: Completion) -> Score | None:
    """Judge one completion by bounded work; None leaves it to a worker. Whatever the leaf raises becomes a score."""
    try:
        return leaf.glance(prepared, sample, completion)
    except KeyboardInterrupt:
        raise
    except MemoryError:
        return Score(0.0, "judging needed more memory than there is", reason="memory", name=leaf.label)
    except BaseException as problem:
        return failure(leaf.label, problem)


def attempt_prepare(leaf: Leaf, sample: Sample) -> object:
    """Read the reference; whatever the leaf raises becomes a score."""
    try:
        return leaf.prepare(sample)
    except KeyboardInterrupt:
        raise
    except MemoryError:
        detail = "reading the reference needs more memory than there is"
        return Score(None, detail, reason="bad_reference", name=leaf.label)
    except BaseException as problem:
        return failure(leaf.label, problem)


def attempt_group(leaf: Leaf, prepared: object, generation: Generation) -> list[Score]:
    """Judge one group; whatever the leaf raises becomes a score for each completion."""
    try:
        return leaf.judge_group(prepared, generation)  # type: ignore[return-value]
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return [failure(leaf.label, problem) for _ in generation.completions]


def failure(name: str, problem: BaseException) -> Score:
    """Return the error score for an exception. A broken contract or a wrong option stops the run instead."""
    if isinstance(problem, (ContractError, UsageError)):
        raise problem
    text = _said(problem)
    detail = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    reason = problem.reason if isinstance(problem, (ServiceError, SandboxUnavailable)) else "raised"
    trace = "".join(traceback.format_exception(type(problem), problem, _from_theirs(problem.__traceback__)))
    return Score(None, detail + _place(problem), reason=reason, name=name, trace=trace)


def _from_theirs(tb: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback from the reward's own first frame on; all of it where there is none."""
    inner = tb
    while inner is not None and os.path.dirname(inner.tb_frame.f_code.co_filename) in _CALLERS:
        inner = inner.tb_next
    return inner or tb


def _said(problem: BaseException) -> str:
    """Return an exception's message as one short line."""
    try:
        text = " ".join(str(problem).split())
    except Exception:  # its own __str__ is broken
        return ""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _place(problem: BaseException) -> str:
    """Return ` (file:line)`: where in the reward's own file it happened, and not where in a library below it."""
    frames = traceback.extract_tb(problem.__traceback__)
    theirs = [frame for frame in frames if os.path.dirname(frame.filename) not in _CALLERS]
    if not theirs:
        return ""
    last = [frame for frame in theirs if frame.filename == theirs[0].filename][-1]
    return f" ({Path(last.filename).name}:{last.lineno})"


def literal(value: Any) -> str:
    """Return a value as a literal of the formula grammar."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return repr(value)
