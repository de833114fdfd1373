"""What is said and asked when a guess is not sure.

A script gets one message: why, the fields, three rows, and one `--map` that works when it is pasted into a shell. A
terminal may be asked instead, one role at a time:

    while True:
        try:
            records = read_generations(path, field_map=given)
            break
        except Unsure as problem:
            if problem.question is None:
                raise
            given = answered(given, problem.question, ask(problem.question))
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from rewardkit.errors import MapError
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.guess import Guess, show_rows
from rewardkit.records.jsonl import describe
from rewardkit.records.paths import Path, walk_all
from rewardkit.records.rows import Row
from rewardkit.records.text import shorten, visible


class Choice(NamedTuple):
    """A path that a role could have, and what is there in the first row that has it, safe to show."""

    path: str
    sample: str


class Question(NamedTuple):
    """One role in doubt.

    Attributes:
        role: The role, such as "completion".
        why: What is not clear, safe to show.
        choices: What it could be, the likeliest first.
        optional: Whether "none of these" is an answer too: rows may lack every role but the completion.
    """

    role: str
    why: str
    choices: tuple[Choice, ...]
    optional: bool


class Unsure(MapError):
    """Which field means what cannot be guessed.

    Attributes:
        question: What to ask, one role; None when no field could be the answer.
        suggestion: The map to paste, as an argument of `--map`; "" when there is none.
    """

    question: Question | None = None
    suggestion: str = ""


def unsure(name: str, found: Guess, rows: Sequence[Row], unit: str = "line") -> Unsure:
    """Return the error for a guess that is not sure.

    Args:
        name: The file's name, safe to show.
        found: The guess.
        rows: The first rows.
        unit: What rows are counted in.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row.fields))
    shown = ", ".join(visible(shorten(column, 40)) for column in columns[:30])
    more = f" and {len(columns) - 30} more" if len(columns) > 30 else ""
    suggestion = found.suggestion.arguments() if found.suggestion is not None else ""
    problem = Unsure(
        "\n".join(
            [
                f"{name}: which field means what is not clear: {visible('; '.join(found.why))}",
                f"  fields: {shown}{more}",
                *(f"  {role}: {' or '.join(map(visible, paths))}" for role, paths in found.candidates.items() if paths),
                show_rows(rows, unit),
                f"  say which, for example: --map {shlex.quote(suggestion) if suggestion else 'completion=FIELD'}",
            ]
        )
    )
    problem.question = question(found, rows)
    problem.suggestion = suggestion
    return problem


def question(found: Guess, rows: Sequence[Row]) -> Question | None:
    """Return what to ask about a guess that is not sure: its first role in doubt; None when nothing can be offered."""
    for role, paths in found.candidates.items():
        if paths:
            choices = tuple(Choice(path, _sample(Path.parse(path), rows)) for path in paths)
            return Question(role, visible("; ".join(found.why)), choices, role != "completion")
    return None


def answered(given: FieldMap, asked: Question, number: int) -> FieldMap:
    """Return the map with an answer in it.

    Args:
        given: The map that was given so far.
        asked: The question.
        number: The choice, counted from 1; 0 is "none of these".

    Raises:
        MapError: There is no such choice.
    """
    if not (0 if asked.optional else 1) <= number <= len(asked.choices):
        raise MapError(f"no choice {number} for {asked.role}; there are 1 to {len(asked.choices)}")
    path = Path.parse(asked.choices[number - 1].path) if number else None
    return FieldMap({**given, asked.role: path})


def _sample(path: Path, rows: Sequence[Row]) -> str:
    for row in rows:
        for value in walk_all(row.fields, path.steps):
            if value not in (None, "", [], {}):
                return _value(value)
    return ""


def _value(value: Any) -> str:
    return visible(shorten(value, 60)) if isinstance(value, str) else visible(shorten(describe(value), 60))
