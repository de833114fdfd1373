"""Write train.jsonl and held_out.jsonl for train_gsm8k_qlora_vllm.toml: problems with their gold solutions.

    python examples/gsm8k/make_prompts.py          # 150 and 50, from solutions.jsonl; no network
    python examples/gsm8k/make_prompts.py --all    # 7,473 and 1,319: the whole set from its hub; needs `datasets`

The short form is there to try the file. Its problems are the first of GSM8K's *test* split, so nothing that is
trained on them can be measured on GSM8K afterwards. With --all training is on the train split alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
TRAIN = 150


def write(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Write problems and their gold solutions as JSON lines."""
    lines = [json.dumps({"question": question, "answer": answer}, ensure_ascii=False) for question, answer in pairs]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def short() -> None:
    """Take the problems of solutions.jsonl."""
    rows = [json.loads(line) for line in (HERE / "solutions.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [(row["question"], row["ground_truth"]) for row in rows]
    write(HERE / "train.jsonl", pairs[:TRAIN])
    write(HERE / "held_out.jsonl", pairs[TRAIN:])


def whole() -> None:
    """Fetch GSM8K."""
    from datasets import load_dataset

    splits: Mapping[str, Iterable[Mapping[str, str]]] = load_dataset("openai/gsm8k", "main")
    for split, name in (("train", "train.jsonl"), ("test", "held_out.jsonl")):
        write(HERE / name, ((row["question"], row["answer"]) for row in splits[split]))


if __name__ == "__main__":
    whole() if "--all" in sys.argv[1:] else short()
