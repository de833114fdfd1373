"""Paths into a row: `a.b`, `a[0]`, `a[]` (each element), `["x.y"]` (any name), `*.a` (each model's column).

path  = first { "." name | "[" index "]" | "[]" | "[" "\\"" text "\\"" "]" }
first = name | "*" | one of the bracketed forms
name  = characters other than  . [ ] " , = *  without blanks at either end
text  = the inside of a JSON string
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from rewardkit.errors import MapError
from rewardkit.records.text import visible


class Mark(enum.Enum):
    """The two steps that stand for several values."""

    EACH = "[]"
    STAR = "*"


EACH: Final = Mark.EACH
STAR: Final = Mark.STAR

Step: TypeAlias = str | int | Mark

_NAME = re.compile(r'[^.\[\]",=*]+')
_INDEX = re.compile(r"\[(-?[0-9]{1,9})\]", re.ASCII)
_QUOTED = re.compile(r'\[("(?:[^"\\]|\\.)*")\]')


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()  # "there is no such field", which differs from a null


class Path:
    """A parsed path; immutable, equal by its steps, printed as it is written."""

    __slots__ = ("steps",)
    steps: tuple[Step, ...]

    def __init__(self, steps: Sequence[Step]) -> None:
        object.__setattr__(self, "steps", tuple(steps))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Path does not change")

    def __reduce__(self) -> tuple[type[Path], tuple[tuple[Step, ...]]]:
        return Path, (self.steps,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if step is EACH:
                text += "[]"
            elif isinstance(step, int):
                text += f"[{step}]"
            else:
                name = _written(step.value if isinstance(step, Mark) else step, step is STAR)
                text += ("." if text and not name.startswith("[") else "") + name
        return text

    @property
    def eaches(self) -> int:
        """How many `[]` it has."""
        return self.steps.count(EACH)

    @classmethod
    def parse(cls, text: str) -> Path:
        """Return the path that `text` writes.

        Raises:
            MapError: With the position.
        """
        steps: list[Step] = []
        at = 0
        while at < len(text):
            at = _step(text, at, steps)
        if not steps:
            raise MapError("a path is empty; write a field's name, such as completion or results[].text")
        if STAR in steps and (steps[0] is not STAR or not isinstance(steps[1] if len(steps) > 1 else None, str)):
            raise MapError(f"path {visible(text)}: * stands for each model's column, so it comes first: *.solution")
        return cls(steps)


def _written(name: str, star: bool) -> str:
    if star:
        return "*"
    plain = _NAME.fullmatch(name) and name == name.strip() and name.isprintable()
    return name if plain else f"[{json.dumps(name, ensure_ascii=True)}]"


def _step(text: str, at: int, steps: list[Step]) -> int:
    """Read one step at `at` into `steps`; return where the next one begins."""
    if text.startswith("[]", at):
        steps.append(EACH)
        return at + 2
    if found := _INDEX.match(text, at):
        steps.append(int(found[1]))
        return found.end()
    if found := _QUOTED.match(text, at):
        try:
            steps.append(str(json.loads(found[1])))
        except json.JSONDecodeError:
            raise _wrong(text, at, 'a name in quotes is a JSON string, such as ["x.y"]') from None
        return found.end()
    if text[at] == "[":
        raise _wrong(text, at, '[ is followed by ], by a number and ], or by "a name"]')
    if text[at] == "." and steps:
        at += 1
    elif steps:
        raise _wrong(text, at, "a name after another one needs a . before it")
    if text.startswith("*", at):
        if STAR in steps:
            raise _wrong(text, at, "* can stand only once")
        steps.append(STAR)
        return at + 1
    found = _NAME.match(text, at)
    if not found or not found[0].strip():
        raise _wrong(text, at, 'a field\'s name is missing here (names with . [ ] " , = * are written ["like.this"])')
    steps.append(found[0].strip())
    return found.end()


def _wrong(text: str, at: int, why: str) -> MapError:
    return MapError(f"path {visible(text)}, position {at + 1}: {why}")


def walk(value: Any, steps: Sequence[Step]) -> Any:
    """Return what lies at `steps` (names and indices only) under a JSON value, or MISSING."""
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return MISSING
            value = value[step]
        elif isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return MISSING
            value = value[step]
        else:
            return MISSING
    return value


def walk_all(value: Any, steps: Sequence[Step]) -> list[Any]:
    """Return every value at `steps`, where `[]` fans out over a list and `*` over objects in columns."""
    values = [value]
    for step in steps:
        if step is EACH:
            values = [item for value in values if isinstance(value, list) for item in value]
        elif step is STAR:
            cells = [cell for value in values if isinstance(value, dict) for cell in value.values()]
            values = [cell for cell in cells if isinstance(cell, dict)]
        else:
            values = [found for value in values if (found := walk(value, (step,))) is not MISSING]
    return values
