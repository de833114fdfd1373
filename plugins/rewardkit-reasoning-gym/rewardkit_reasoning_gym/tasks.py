"""The verifiers: one class a task, and `AnyTask` for data that mixes tasks."""

from __future__ import annotations

import copy
import difflib
import functools
import json
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import reasoning_gym.factory as factory  # type: ignore[import-untyped]
from pydantic import field_validator

from rewardkit import Completion, Reference, Sample, Score, Verdict, Verifier
from rewardkit_reasoning_gym import guards, older
from rewardkit_reasoning_gym.entries import Incomplete, Unreadable, complete
from rewardkit_reasoning_gym.extract import last_answer
from rewardkit_reasoning_gym.names import TASKS, class_name

MAX_ANSWER = 20_000
"""Characters of an answer that a scorer is shown; a longer one is too_large."""

_UNPARSABLE = "("  # what a scorer is shown in place of text that it would run: nothing can be made of it


class Entry(Reference):
    """An entry of the package, or what a saved file still has of it."""

    answer: str | int | float | None = None
    question: str | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("metadata", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Read metadata that a table stores as JSON text."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"a JSON object is wanted, got {value[:60]!r}") from None


class _Ready(Entry):
    """An entry that its scorer can judge by, and whose it is."""

    task: str
    entry: dict[str, Any]


class _Scorer(Verifier[Entry]):
    """What all tasks share: extraction, the entry, the guards, and the package's scorer."""

    placement: ClassVar[Literal["process"]] = "process"  # type: ignore[misc]

    faithful: bool = False
    whole: bool = False
    release: Literal["installed", "0.1.16"] = "installed"
    timeout: float = 10.0  # type: ignore[misc]

    @abstractmethod
    def _task(self, entry: Entry, sample: Sample) -> str | Score:
        """Return the name of the task that the entry belongs to, or the score that says why it has none."""

    def prepare(self, sample: Sample) -> object:
        """Read the entry, and work out what a saved file no longer has."""
        found = super().prepare(sample)
        if not isinstance(found, Entry):
            return found
        task = self._task(found, sample)
        if isinstance(task, Score):
            return task
        answer = None if found.answer is None else str(found.answer)
        question = found.question if found.question is not None else sample.prompt_text
        try:
            entry = complete(task, question, answer, found.metadata)
        except Incomplete as problem:
            return Score(None, str(problem), reason="missing", name=self.label)
        except (Unreadable, TypeError, ValueError, KeyError, AttributeError) as problem:
            return Score(None, f"no entry of {task}: {problem}", reason="bad_reference", name=self.label)
        return _Ready(task=task, entry=entry)

    def verify(self, completion: Completion, reference: Entry, sample: Sample) -> Verdict:
        assert isinstance(reference, _Ready)
        task, entry = reference.task, reference.entry
        score = functools.partial(_score, self._scorer(task), entry)
        answer = completion.text if self.whole else last_answer(completion.text)
        if answer is not None and len(answer) > MAX_ANSWER:
            return Verdict.reject(f"the answer has {len(answer):,} characters", reason="too_large")
        if self.faithful:
            return _faithful(task, answer, entry, score)
        if answer is None:
            return Verdict.reject("no <answer> block", reason="no_answer")
        answer = answer.strip()
        shown = answer[:200]
        if not answer and not (task == "polynomial_equations" and completion.text.strip()):
            return Verdict.reject("the answer is empty", extracted=shown, reason="no_answer")
        refusal = guards.unsafe(task, answer, entry) or guards.refused(task, answer, entry)
        if refusal is not None:
            return Verdict.reject(refusal.detail, extracted=shown, reason="unreadable")
        try:
            value = score(answer)
            withheld = guards.withheld(task, answer, entry, value)
        except guards.CRASHES.get(task, ()) as problem:
            detail = f"the scorer cannot read it: {type(problem).__name__}"
            return Verdict.reject(detail, extracted=shown, reason="unreadable")
        if withheld:
            return Verdict.reject(withheld, extracted=shown)
        return _verdict(value, shown)

    def _scorer(self, task: str) -> Callable[[str | None, dict[str, Any]], float]:
        if self.release != "installed" and task in older.SCORERS:
            return older.SCORERS[task]
        return _installed(task)


@functools.cache
def _installed(task: str) -> Callable[[str | None, dict[str, Any]], float]:
    # With the default configuration, as the package's own evaluation does.
    scorer: Callable[[str | None, dict[str, Any]], float] = factory.get_score_answer_fn(task)
    return scorer


def _score(scorer: Callable[..., float], entry: dict[str, Any], answer: str | None) -> float:
    # knight_swap's scorer writes into the entry, so each answer gets a fresh one.
    value = float(scorer(answer, copy.deepcopy(entry)))
    if not math.isfinite(value):
        raise ValueError(f"the scorer returned {value}")
    return value


def _faithful(task: str, answer: str | None, entry: dict[str, Any], score: Callable[[str | None], float]) -> Verdict:
    """Return the package's own number. What it would run as code it is not shown, but an unparsable text instead."""
    if answer is not None and guards.unsafe(task, answer, entry) is not None:
        return _verdict(score(_UNPARSABLE), answer[:200], "not shown to the scorer, which would run it")
    return _verdict(score(answer), None if answer is None else answer[:200])


def _verdict(value: float, shown: str | None, detail: str = "") -> Verdict:
    if value == 1.0:
        return Verdict.accept(detail, extracted=shown)
    reason: Literal["wrong", "no_answer"] = "no_answer" if shown is None else "wrong"
    return Verdict.partial(value, detail, extracted=shown, reason=reason)


class AnyTask(_Scorer):
    """Judge by the scorer of the task that the row names: for data that mixes tasks, and for files of one task.

    The task is the option, else `metadata.source_dataset` of the entry, else the row's column `task`,
    `source_dataset` or `dataset`. The entry is the reference {question, answer, metadata}, or the answer alone with
    `question` and `metadata` from the row; metadata that is not there is worked out where question and answer
    tell it, else the row abstains (missing).

    Traps: see the package's README, which lists what each guard stops. Scorers have their default configuration.

    Options:
        task: the task's name; "": take it from the row.
        faithful: the package's own number without our guards (text that it would run as code excepted).
        whole: judge the whole text instead of the last <answer> block.
        release: "0.1.16" scores countdown and word_sorting by the rules of that release.
        timeout: seconds for one completion.

    Example:
        rewardkit try "reasoning_gym/score(task='gcd')" --reference 4 '<answer>4</answer>'
    """

    name: ClassVar[str | None] = "reasoning_gym/score"

    task: str = ""

    def _task(self, entry: Entry, sample: Sample) -> str | Score:
        columns = sample.metadata
        named = (entry.metadata or {}).get("source_dataset")
        task = self.task or named or columns.get("task") or columns.get("source_dataset") or columns.get("dataset")
        if not task:
            detail = "the row names no task: metadata.source_dataset or a column 'task' is wanted, or the option task"
            return Score(None, detail, reason="missing", name=self.label)
        if task not in TASKS:
            close = difflib.get_close_matches(str(task), TASKS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            return Score(None, f"reasoning-gym has no task {task!r}{hint}", reason="unsupported", name=self.label)
        return str(task)


class _OneTask(_Scorer):
    """The verifier of one task."""

    fixed_task: ClassVar[str] = ""

    def _task(self, entry: Entry, sample: Sample) -> str | Score:
        named = (entry.metadata or {}).get("source_dataset")
        if named not in (None, self.fixed_task):
            detail = f"the entry is one of {named}, not of {self.fixed_task}"
            return Score(None, detail, reason="bad_reference", name=self.label)
        return self.fixed_task


_DOC = """Judge by reasoning-gym's scorer of `{task}`, in a process of its own with a deadline.

    The answer is the last <answer> block; the reference is an entry {{question, answer, metadata}} or its answer.

    Traps: see `reasoning_gym/score` and the README for what is guarded.

    Options:
        faithful: the package's own number without our guards (text that it would run as code excepted).
        whole: judge the whole text instead of the last <answer> block.
        release: "0.1.16" scores countdown and word_sorting by the rules of that release.
        timeout: seconds for one completion.
    """


def _class_of(task: str) -> type[_OneTask]:
    body = {
        "__module__": __name__,
        "__qualname__": class_name(task),
        "__doc__": _DOC.format(task=task),
        "name": f"reasoning_gym/{task}",
        "fixed_task": task,
    }
    return type(class_name(task), (_OneTask,), body)


globals().update({class_name(task): _class_of(task) for task in TASKS})
