"""Make the folders beside this file with the `datasets` library itself. Run it in an environment that has it."""

from __future__ import annotations

import shutil
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Value

HERE = Path(__file__).parent
MESSAGES = [{"role": Value("string"), "content": Value("string")}]
FEATURES = Features(
    {
        "prompt": MESSAGES,
        "completions": [Value("string")],
        "reward_model": {"style": Value("string"), "ground_truth": Value("string")},
        "step": Value("int32"),
    }
)


def rows(count: int) -> list[dict[str, object]]:
    """Return sums, each with two completions, one of them right."""
    return [
        {
            "prompt": [{"role": "user", "content": f"{at} + {at}?"}],
            "completions": [f"#### {2 * at}", f"#### {2 * at + 1}"],
            "reward_model": {"style": "rule", "ground_truth": str(2 * at)},
            "step": 10,
        }
        for at in range(count)
    ]


def main() -> None:
    """Write `saved` (two shards), `splits` (two splits) and `one_split`."""
    for name in ("saved", "splits", "one_split"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    data = Dataset.from_list(rows(12), features=FEATURES)
    # A selection: saved data must be what was selected, in that order.
    data.select(range(11, -1, -1)).save_to_disk(HERE / "saved", num_shards=2)
    DatasetDict({"train": data.select(range(2)), "test": data.select(range(2, 5))}).save_to_disk(HERE / "splits")
    DatasetDict({"test": data.select(range(3))}).save_to_disk(HERE / "one_split")


main()
