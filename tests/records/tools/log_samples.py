"""The committed samples of tools' JSONL logs, and small ways to write and read such files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewardkit.records import read_generations
from rewardkit.types import Generation

SAMPLES = Path(__file__).resolve().parents[2] / "samples"

# Sample: its reader, and what `gsm8k` and the file's own label say on average (None: nothing to say).
LOGS: dict[str, tuple[str, float | None, float | None]] = {
    "eval_protocol/rows.jsonl": ("eval_protocol", 0.5, 0.5),
    "lm_eval/samples_sums.jsonl": ("lm_eval", 2 / 3, 1 / 3),
    "lm_eval/samples_sums_repeats.jsonl": ("lm_eval", 2 / 3, None),
    "nemo_gym/rollouts.jsonl": ("nemo_gym", 2 / 3, 2 / 3),
    "openai/answers.jsonl": ("openai_chat", None, None),
    "openai/calls.jsonl": ("openai_chat", 1.0, None),
    "openai/chat_output.jsonl": ("openai_batch", 1 / 3, None),
    "openai/completions_output.jsonl": ("openai_batch", None, None),
    "openai/responses_output.jsonl": ("openai_batch", 2 / 3, None),
    "skyrl/openai_gsm8k.jsonl": ("skyrl", 1 / 3, 1 / 3),
    "verifiers/traces.jsonl": ("verifiers_traces", 2 / 3, 2 / 3),
    "verifiers/v0.1.9/results.jsonl": ("verifiers_results", 1 / 2, 1 / 2),
    "verifiers/v0.3.1/results.jsonl": ("verifiers_results", 1 / 2, 1 / 2),
    "verl/20.jsonl": ("verl", 2 / 3, 2 / 3),
    "verl/old/20.jsonl": ("verl", 1 / 2, 1 / 2),
}
# Files of the same tools that hold no generations, with their reader.
OTHERS = {
    "lm_eval/samples_choices.jsonl": "lm_eval",
    "nemo_gym/rollouts_materialized_inputs.jsonl": "nemo_gym",
    "openai/chat_requests.jsonl": "openai_batch",
    "openai/responses_requests.jsonl": "openai_batch",
    "skyrl/aggregated_results.jsonl": "skyrl",
}


def sample_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a sample."""
    return [json.loads(line) for line in (SAMPLES / name).read_text("utf-8").split("\n") if line]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSONL, with U+2028 and the like as they are."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path, rows: list[Any]) -> list[Generation]:
    """Write rows and return the generations that are read from them; bad rows fail."""
    records = read_generations(write_rows(path, rows))
    generations = list(records)
    assert records.bad == []
    return generations


def texts(generations: list[Generation]) -> list[str]:
    """Return the texts of all completions, in order."""
    return [completion.text for generation in generations for completion in generation.completions]
