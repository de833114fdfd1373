"""Write questions that one sentence can answer: train.jsonl (48) and held_out.jsonl (16).

python examples/one_sentence/make_data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

THINGS = (
    "rain", "snow", "bread", "glass", "paper", "salt", "a river", "a map", "a clock", "a bridge", "a kite", "a candle",
    "a library", "a garden", "a mirror", "a bicycle",
)  # fmt: skip
QUESTIONS = ("What is {}?", "What is {} good for?", "How would you describe {} to a child?", "Why do people like {}?")
HELD_OUT = 16


def write(path: Path, prompts: list[str]) -> None:
    """Write prompts as JSON lines."""
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


if __name__ == "__main__":
    here, prompts = Path(__file__).parent, [form.format(thing) for thing in THINGS for form in QUESTIONS]
    random.Random(7).shuffle(prompts)
    write(here / "held_out.jsonl", prompts[:HELD_OUT])
    write(here / "train.jsonl", prompts[HELD_OUT:])
