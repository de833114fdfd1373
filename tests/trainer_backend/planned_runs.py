"""Runs whose plan of the memory is held against what they take: a random model of a given size, long completions.

On a GPU for a model of half a billion parameters (test_train_gpu.py), on a CPU for a tiny one, to know that it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_runs import metrics_of, tokenizer, train, write_job
from transformers import Qwen2Config, Qwen2ForCausalLM

HALF_A_BILLION: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
"""The shape of Qwen2.5-0.5B: a large vocabulary on narrow layers, few heads of keys and values."""

TINY: Mapping[str, Any] = {
    **HALF_A_BILLION,
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

# Most ids of so large a vocabulary are no words of the small tokenizer, so rewards look at ids and not at texts.
REWARD = '''
def spread(completions, completion_ids, **kwargs):
    """Seldom the same number for two completions, so that no group is dead."""
    return [float(sum(ids) % 97) for ids in completion_ids]
'''


def write_random_model(folder: Path, sizes: Mapping[str, Any], dtype: torch.dtype, device: str) -> Path:
    """Write a random model of that shape, made on a device, with the words of the tests as its tokenizer."""
    config = Qwen2Config(
        **sizes,
        max_position_embeddings=4096,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        use_sliding_window=False,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.to(dtype).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Planned:
    """What a run took, and what was planned.

    Attributes:
        peak, planned: GB of the device, at the first step.
        plan: The plan in words.
        metrics: Of each step.
    """

    peak: float
    planned: float
    plan: str
    metrics: list[dict[str, Any]]


def planned_run(
    folder: Path, model: Path, *, tokens: int, rows: int, dtype: str, mode: str | None = None, steps: int = 2
) -> Planned:
    """Run `rewardkit train` in a process of its own.

    Args:
        folder: For everything that it reads and writes; empty.
        model: What is trained.
        tokens: Of each completion: none ends before.
        rows: Completions of a step, in groups of four.
        dtype: Of the weights.
        mode: `memory.mode`; None: the planner's choice.
        steps: How many it takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spread.py").write_text(REWARD)
    changes = {
        "model.name": str(model),
        "model.dtype": dtype,
        "lora.r": 16,
        "reward.total": "spread.py:spread",
        "rollout.sampling.ignore_eos": True,
        "grpo.num_generations": 4,
        "grpo.per_device_train_batch_size": rows,
        "grpo.max_steps": steps,
        "grpo.max_completion_length": tokens,
        "grpo.learning_rate": 1e-5,
        "grpo.optim": "adamw_torch",
    }
    file = write_job(folder, changes | ({"memory.mode": mode} if mode is not None else {}))
    done = train(file, "-o", folder / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    (memory,) = (line for line in lines if line["event"] == "memory")
    (plan,) = (
        line["text"] for line in lines if line.get("text", "").startswith("memory: ") and "peak about" in line["text"]
    )
    metrics = metrics_of(folder / "run")
    assert [line["rows/learning"] for line in metrics] == [float(rows)] * steps, "a dead group is not computed"
    assert all(line["completions/min_length"] == tokens for line in metrics)
    return Planned(memory["peak_gb"], memory["planned_gb"], plan, metrics)
