"""Write the spoken sums: train.jsonl (60 problems) and held_out.jsonl (64 others), beside this file.

    python examples/spoken_sums/make_data.py

A problem is a sum or a difference of two numbers from one to nine, asked in words, behind two worked examples. All
problems there are get shuffled once, by a fixed seed, so that the held-out ones are the same for everybody.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHOTS = "What is five plus three? 5 + 3 = <answer>8</answer>\nWhat is nine minus two? 9 - 2 = <answer>7</answer>\n"
SHOWN = ("5 + 3", "9 - 2")
HELD_OUT = 64


def problems() -> list[dict[str, str | int]]:
    """Return all problems but the two that are shown, in an order that never changes."""
    found: list[dict[str, str | int]] = []
    for x in range(1, 10):
        for y in range(1, 10):
            found.append(problem(x, "plus", "+", y, x + y))
            if x >= y:  # no answer is negative
                found.append(problem(x, "minus", "-", y, x - y))
    found = [one for one in found if one["equation"] not in SHOWN]
    random.Random(1234).shuffle(found)
    return [{"id": at, **one} for at, one in enumerate(found)]


def problem(x: int, word: str, sign: str, y: int, answer: int) -> dict[str, str | int]:
    """Return one row."""
    question = f"What is {WORDS[x]} {word} {WORDS[y]}?"
    return {"prompt": SHOTS + question, "equation": f"{x} {sign} {y}", "answer": answer}


def write(path: Path, rows: list[dict[str, str | int]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    here, rows = Path(__file__).parent, problems()
    write(here / "held_out.jsonl", rows[:HELD_OUT])
    write(here / "train.jsonl", rows[HELD_OUT:])
