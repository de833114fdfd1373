"""Write small programming tasks with tests: train.jsonl (32) and held_out.jsonl (8).

    python examples/code_tasks/make_data.py

Each task is described once below, with a right solution that the expected values are computed with; the solution is
not written. A row's `reference` is in the form of calls (docs/code.md).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Task = tuple[str, str, Callable[..., Any], list[tuple[Any, ...]]]

TEXTS: list[tuple[Any, ...]] = [("",), ("level",), ("Hello world",), ("a b  c",), ("ABBA abba",)]
LISTS: list[tuple[Any, ...]] = [([],), ([3],), ([1, 2, 3, 4],), ([5, -1, 5, 0],), ([2, 2, 2],)]
FULL = LISTS[1:]
COUNTS: list[tuple[Any, ...]] = [(0,), (1,), (7,), (12,), (30,)]
PAIRS: list[tuple[Any, ...]] = [(1, 2), (9, 3), (12, 18), (7, 7), (100, 35)]

TASKS: list[Task] = [
    ("add(a, b)", "the sum of a and b", lambda a, b: a + b, PAIRS),
    ("larger(a, b)", "the larger of a and b", max, PAIRS),
    ("difference(a, b)", "the absolute difference of a and b", lambda a, b: abs(a - b), PAIRS),
    ("remainder(a, b)", "the remainder of a divided by b", lambda a, b: a % b, PAIRS),
    ("divides(a, b)", "True if b divides a, else False", lambda a, b: a % b == 0, PAIRS),
    ("square(n)", "n squared", lambda n: n * n, COUNTS),
    ("double(n)", "twice n", lambda n: 2 * n, COUNTS),
    ("is_even(n)", "True if n is even, else False", lambda n: n % 2 == 0, COUNTS),
    ("triangle(n)", "the sum of the numbers from 1 to n", lambda n: n * (n + 1) // 2, COUNTS),
    ("digits(n)", "the sum of the decimal digits of n", lambda n: sum(map(int, str(n))), COUNTS),
    ("countdown(n)", "the list of the numbers from n down to 1", lambda n: list(range(n, 0, -1)), COUNTS),
    ("odd_numbers(n)", "the list of the odd numbers below n", lambda n: list(range(1, n, 2)), COUNTS),
    ("squares(n)", "the list of the squares of 0 to n - 1", lambda n: [k * k for k in range(n)], COUNTS),
    ("binary(n)", "n in binary, as text without a prefix", lambda n: format(n, "b"), COUNTS),
    ("in_minutes(n)", "the number of minutes in n hours", lambda n: 60 * n, COUNTS),
    ("total(xs)", "the sum of the list xs", sum, LISTS),
    ("length(xs)", "the number of items of the list xs", len, LISTS),
    ("backwards(xs)", "the list xs in reverse order", lambda xs: xs[::-1], LISTS),
    ("ordered(xs)", "the list xs sorted", sorted, LISTS),
    ("positive(xs)", "the numbers of the list xs above 0", lambda xs: [x for x in xs if x > 0], LISTS),
    ("doubled(xs)", "a list with twice each number of the list xs", lambda xs: [2 * x for x in xs], LISTS),
    ("distinct(xs)", "how many different numbers the list xs has", lambda xs: len(set(xs)), LISTS),
    ("without_first(xs)", "the list xs without its first item", lambda xs: xs[1:], LISTS),
    ("twice_over(xs)", "the list xs followed by itself", lambda xs: xs + xs, LISTS),
    ("largest(xs)", "the largest number of the list xs", max, FULL),
    ("smallest(xs)", "the smallest number of the list xs", min, FULL),
    ("first(xs)", "the first item of the list xs", lambda xs: xs[0], FULL),
    ("last(xs)", "the last item of the list xs", lambda xs: xs[-1], FULL),
    ("spread(xs)", "the largest minus the smallest number of the list xs", lambda xs: max(xs) - min(xs), FULL),
    ("ends(xs)", "a list of the first and the last item of the list xs", lambda xs: [xs[0], xs[-1]], FULL),
    ("upper(s)", "the text s in upper case", str.upper, TEXTS),
    ("mirrored(s)", "the text s backwards", lambda s: s[::-1], TEXTS),
    ("words(s)", "the list of the words of the text s", str.split, TEXTS),
    ("word_count(s)", "the number of words in the text s", lambda s: len(s.split()), TEXTS),
    ("palindrome(s)", "True if the text s reads the same backwards, else False", lambda s: s == s[::-1], TEXTS),
    ("without_spaces(s)", "the text s without its spaces", lambda s: s.replace(" ", ""), TEXTS),
    ("count_a(s)", "how often the letter a, in lower case, is in the text s", lambda s: s.count("a"), TEXTS),
    ("initials(s)", "the first letters of the words of the text s, joined", lambda s: "".join(w[0] for w in s.split()),
     TEXTS),
    ("longest(s)", "the length of the longest word of the text s, 0 without words",
     lambda s: max(map(len, s.split()), default=0), TEXTS),
    ("vowels(s)", "how many of the letters aeiou, in lower case, are in the text s",
     lambda s: sum(c in "aeiou" for c in s), TEXTS),
]  # fmt: skip
HELD_OUT = 8


def row(task: Task) -> dict[str, object]:
    """Return a task with its tests: the first two calls are shown, all are tested."""
    head, what, solution, calls = task
    name = head.partition("(")[0]
    tests = [{"args": repr(call), "expected": repr(solution(*call))} for call in calls]
    shown = " and ".join(f"{name}{one['args'].replace(',)', ')')} is {one['expected']}" for one in tests[:2])
    prompt = f"Write a Python function {head} that returns {what}. For example, {shown}. Reply with the code only."
    return {"id": name, "prompt": prompt, "reference": {"entry_point": name, "tests": tests}}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


if __name__ == "__main__":
    here, rows = Path(__file__).parent, [row(task) for task in TASKS]
    random.Random(7).shuffle(rows)
    write(here / "held_out.jsonl", rows[:HELD_OUT])
    write(here / "train.jsonl", rows[HELD_OUT:])
