"""`regex`: does a pattern match the completion, or does one of its groups hold the reference."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator, model_validator

from rewardkit.leaf import Placement
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.contains import Within, number_text, searched, short

MAX_PATTERN = 10_000  # characters


def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern; raise ValueError that says where it is wrong."""
    if not pattern:
        raise ValueError("a pattern is wanted, got an empty text, which matches everything")
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of at most {MAX_PATTERN:,} characters is wanted, got {len(pattern):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": it is the user's pattern, and it compiles
            return re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"{short(pattern)} is no regular expression: {problem}") from None


def _bare(text: str) -> str:
    """Return an answer without Markdown emphasis and without the full stop of its sentence."""
    return text.strip(_EMPHASIS).removesuffix(".").strip(_EMPHASIS)


_EMPHASIS = " \t*_`"


class RegexReference(Reference):
    """The pattern; or, where the option `pattern` is given, the text that `group` must hold."""

    pattern: str | None = None
    value: str | None = None

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            _compiled(value)
        return value

    @field_validator("value", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = number_text(value)
        if isinstance(value, str) and not value.strip():
            raise ValueError("a text is wanted, got an empty one")
        return value


class Regex(Verifier[RegexReference]):
    """Accept when a regular expression matches the completion; with `group`, when that group holds the right text.

    The pattern is the option `pattern`, else the reference. With `group` the last match counts, and what the group
    holds must equal the reference's `value` without white space at both ends: with the option `pattern` the reference
    itself is that value, else the row gives both (`{"pattern": "Total: (?P<sum>[0-9]+)", "value": "18"}`).

    Patterns are those of Python's `re` and may take exponential time, so they run in a worker that is killed at the
    deadline: that is `deadline`, scored 0, unless the pattern hangs already on an empty text or on itself, which
    is `deadline_reference`, an error. A pattern that does not compile is `bad_reference`, as an option a wrong option.

    Traps: without `group` the reference is not compared with anything when `pattern` is an option. A pattern that can
    match nothing (`a*`) matches every text that is not empty. The text is searched without white space
    at its ends.

    Options:
        pattern: the regular expression, for all rows; none: each row's reference is one.
        match: "search" anywhere, or "fullmatch": all of the text.
        group: name or number of the group that is compared; none: a match is enough.
        ignore_case: as the flag (?i); the group is compared case-folded, too.
        multiline: ^ and $ also match at line breaks, as the flag (?m).
        dot_all: a dot matches line breaks, as the flag (?s).
        within: where to look: the "reply" (what comes after the thinking), the "answer", the "last_line", or the
            "whole" completion; as in `contains`. A full match of the answer may leave out Markdown emphasis
            around it and a final full stop.
        timeout: deadline in seconds for one completion.

    Example:
        rewardkit try regex --reference '[0-9]{4}-[0-9]{2}-[0-9]{2}' 'It was on 2024-02-29.'
    """

    name: ClassVar[str | None] = "regex"
    placement: ClassVar[Placement] = "process"  # type: ignore[misc]

    pattern: str | None = None
    match: Literal["search", "fullmatch"] = "search"
    group: str | int | None = None
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    within: Within = "reply"
    timeout: float = Field(default=2.0, gt=0)  # type: ignore[misc]

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            _compiled(value)
        return value

    @model_validator(mode="after")
    def _has_group(self) -> Regex:
        if self.pattern is not None:
            self._checked_group(_compiled(self.pattern, self._flags))
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        return ("reference",) if self.pattern is None or self.group is not None else ()

    @property
    def _flags(self) -> int:
        return self.ignore_case * re.IGNORECASE | self.multiline * re.MULTILINE | self.dot_all * re.DOTALL

    def _checked_group(self, pattern: re.Pattern[str]) -> None:
        group = self.group
        if isinstance(group, int) and not 0 <= group <= pattern.groups:
            raise ValueError(f"group={group}: {short(pattern.pattern)} has {pattern.groups} groups")
        if isinstance(group, str) and group not in pattern.groupindex:
            known = ", ".join(pattern.groupindex) or "none"
            raise ValueError(f"group={group!r}: {short(pattern.pattern)} has no group of that name; named are {known}")

    def prepare(self, sample: Sample) -> object:
        raw = sample.reference
        if not self.needs:
            sample = msgspec.structs.replace(sample, reference={"pattern": self.pattern})
        elif self.pattern is not None:
            value = raw.get("value") if isinstance(raw, Mapping) else raw
            sample = msgspec.structs.replace(sample, reference={"pattern": self.pattern, "value": value})
        prepared = super().prepare(sample)
        if not isinstance(prepared, RegexReference):
            return prepared
        if prepared.pattern is None:
            return self._unread("the row has no pattern", "missing")
        if self.group is not None and prepared.value is None:
            return self._unread(f"the row has no value for group {self.group!r}", "missing")
        try:
            pattern = _compiled(prepared.pattern, self._flags)
            self._checked_group(pattern)
        except ValueError as problem:
            return self._unread(str(problem), "bad_reference")
        # What hangs here is the pattern's fault and no completion's.
        for text in ("", prepared.pattern):
            self._matched(pattern, text)
        return prepared

    def _unread(self, detail: str, reason: Literal["missing", "bad_reference"]) -> Score:
        return Score(None, detail, reason=reason, name=self.label)

    def verify(self, completion: Completion, reference: RegexReference, sample: Sample) -> Verdict:
        text = searched(completion.text, sample, self.within)
        if isinstance(text, Verdict):
            return text
        pattern = _compiled(reference.pattern or "", self._flags)
        found = self._matched(pattern, text)
        if found is None and self.match == "fullmatch" and self.within == "answer" and (bare := _bare(text)):
            found = self._matched(pattern, bare)
        if found is None:
            return Verdict.reject("no match", reason="wrong" if self.group is None else "no_answer")
        if self.group is None:
            return Verdict.accept(f"matches at character {found.start() + 1}", extracted=found[0][:200])
        held, wanted = found[self.group], (reference.value or "").strip()
        if held is None or not held.strip():
            return Verdict.reject(f"group {self.group!r} is empty", reason="no_answer")
        held = held.strip()
        same = held.casefold() == wanted.casefold() if self.ignore_case else held == wanted
        if same:
            return Verdict.accept(f"group {self.group!r} is {short(held)}", extracted=held[:200])
        return Verdict.reject(f"group {self.group!r} is {short(held)}, not {short(wanted)}", extracted=held[:200])

    def _matched(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        if self.match == "fullmatch":
            return pattern.fullmatch(text)
        if self.group is None:
            return pattern.search(text)
        last = deque(pattern.finditer(text), maxlen=1)
        return last[0] if last else None
