"""Entries: what a scorer wants to know about a task, from whole entries or from what a saved file still has."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from rewardkit_reasoning_gym.arithmetic import is_expression
from rewardkit_reasoning_gym.names import NEEDS, NO_ANSWER

Metadata = dict[str, Any]


class Unreadable(ValueError):
    """The entry is not what its task's entries look like."""


class Incomplete(ValueError):
    """The entry lacks what its scorer reads, and it cannot be worked out from question and answer."""


def complete(task: str, question: str, answer: str | None, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an entry `{question, answer, metadata}` that the task's scorer can judge by.

    Raises:
        Incomplete: Something is missing; names it.
        Unreadable: Something is there, but is not what the scorer can safely read.
    """
    known: Metadata = dict(metadata or {})
    if answer is None and task not in NO_ANSWER:
        raise Incomplete("the entry has no answer")
    absent = [key for key in NEEDS.get(task, ()) if known.get(key) is None]
    if absent:
        known = _derived(task, question, answer or "") | known
        absent = [key for key in absent if known.get(key) is None]
    if absent:
        keys = ", ".join(f"metadata.{key}" for key in absent)
        raise Incomplete(f"{task} needs {keys}, which question and answer do not tell; save whole entries")
    if task in ("arc_agi", "rearc"):
        # Their scorers compare with tuples, which JSON turns into lists: the right board would earn 0.05.
        known["output"] = tuple(tuple(row) for row in known["output"])
    _refuse_code(task, answer, known)
    return {"question": question, "answer": answer, "metadata": known}


def _refuse_code(task: str, answer: str | None, metadata: Metadata) -> None:
    """Refuse entries whose text a scorer would evaluate as Python and that are more than arithmetic."""
    evaluated: list[object] = []
    if task in ("simple_integration", "intermediate_integration"):
        evaluated = [metadata["integrand"], metadata["variable"]]
    elif task == "polynomial_multiplication":
        evaluated = [answer]
    elif task == "bitwise_arithmetic":
        evaluated = [metadata["problem"]]
    elif task == "number_sorting":
        _list(answer or "")
    for text in evaluated:
        if not isinstance(text, str) or not is_expression(text, bits=task == "bitwise_arithmetic"):
            raise Unreadable(f"{task}: an expression is wanted in the entry, got {str(text)[:60]!r}")


def _derived(task: str, question: str, answer: str) -> Metadata:
    derive = _DERIVE.get(task)
    if derive is None:
        return {}
    try:
        return derive(question, answer)
    except (ValueError, TypeError, AttributeError, IndexError, SyntaxError, RecursionError, MemoryError):
        return {}  # not the package's question or answer: the caller names what is missing


def _list(text: str) -> list[Any]:
    """Read a list that is written as JSON or as a Python literal."""
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise Unreadable(f"a list is wanted as answer, got {text[:60]!r}") from None
    if not isinstance(found, list):
        raise Unreadable(f"a list is wanted as answer, got {text[:60]!r}")
    return found


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d{1,18}", text)]


_NUMBERS = re.compile(r"(?:all of these numbers:|all the numbers) (\d[\d, ]{0,400})")
_TARGET = re.compile(r"(?:Calculate|make|expression that equals) (-?\d{1,18})\b")


def _countdown(question: str, answer: str) -> Metadata:
    numbers, target = _NUMBERS.search(question), _TARGET.search(question)
    return {"target": int(target[1]), "numbers": _numbers(numbers[1])} if numbers and target else {}


def _puzzle24(question: str, answer: str) -> Metadata:
    match = re.search(r"Make 24 using ([\d, ]{1,100})", question)
    return {"numbers": _numbers(match[1])} if match else {}


_FRACTION = re.compile(r"(?:\\d?frac\{(\d{1,30})\}\{(\d{1,30})\})|(?:(\d{1,30})/(\d{1,30}))")


def _fraction(question: str, answer: str) -> Metadata:
    asked, simple = _FRACTION.search(question), _FRACTION.search(answer)
    if asked is None or simple is None:
        return {}
    top, bottom = (int(part) for part in asked.groups() if part)
    simple_top, simple_bottom = (int(part) for part in simple.groups() if part)
    return {
        "numerator": top,
        "denominator": bottom,
        "simplified_numerator": simple_top,
        "simplified_denominator": simple_bottom,
    }


def _direction(question: str, answer: str) -> Metadata:
    found = [float(number) for number in _list(answer)]
    if len(set(found)) < 2:
        return {}
    return {"direction": "ascending" if found == sorted(found) else "descending"}


def _grid(question: str, answer: str) -> Metadata:
    rows = [[int(sign) for sign in line if sign in "123456789"] for line in answer.splitlines()]
    rows = [row for row in rows if row]
    return {"solution": rows} if rows and all(len(row) == len(rows) for row in rows) else {}


def _ladder(question: str, answer: str) -> Metadata:
    words = answer.split(",")
    return {"start_word": words[0], "end_word": words[-1]} if len(words) > 1 else {}


_DERIVE: dict[str, Callable[[str, str], Metadata]] = {
    "countdown": _countdown,
    "fraction_simplification": _fraction,
    "group_anagrams": lambda question, answer: {"solution": _list(answer)},
    "mini_sudoku": _grid,
    "number_format": lambda question, answer: {"solution": float(answer)},
    "number_sorting": _direction,
    "palindrome_generation": lambda question, answer: {"letters": list(answer)},
    "palindrome_partitioning": lambda question, answer: {"solution": _list(answer)},
    "puzzle24": _puzzle24,
    "sudoku": _grid,
    "word_ladder": _ladder,
    "word_sorting": lambda question, answer: {"sorted_words": answer.split(", ")},
}

DERIVABLE: frozenset[str] = frozenset(_DERIVE)
"""Tasks whose metadata can be worked out from question and answer."""
