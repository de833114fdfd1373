"""A tiny random model on disk with its tokenizer, prompts and rewards, for tests of whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainer_backend.config import GRPOConfig

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefgh"]
PROMPTS = ["a b c", "b c d", "c d e", "d e f", "e f g", "f g h", "g h a", "h a b"]
ROOT = Path(__file__).resolve().parents[2]

REWARDS = '''
"""Rewards of the tests."""


def share(completion):
    """The share of words that are a."""
    words = completion.split()
    return words.count("a") / max(1, len(words))


def constant(completion):
    """Nothing to learn from."""
    return 1.0


def broken(completion):
    """Fails until somebody has repaired it."""
    from pathlib import Path

    if Path(__file__).with_name("repaired").exists():
        return share(completion)
    raise RuntimeError("no disk is left")


def sometimes(completion):
    """Fails where the completion begins with b."""
    if completion.startswith("b"):
        raise RuntimeError("cannot read b")
    return share(completion)


def killed(completion):
    """Ends the process that runs it."""
    import os

    os._exit(9)
'''


def tokenizer() -> Any:
    """One token a word, with an end token and a pad token, and without a chat template."""
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny_llama(seed: int = 0, hidden: int = 32) -> Any:
    """A random model of two layers over the words; vLLM needs heads of 32 numbers, so 128 in all."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.1 if hidden == 32 else 0.05,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )


def write_model(folder: Path, hidden: int = 32) -> Path:
    """Write model and tokenizer as transformers does."""
    tiny_llama(hidden=hidden).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def write_job(folder: Path, changes: Mapping[str, Any] | None = None, *, prompts: int = 8) -> Path:
    """Write model, prompts, rewards and a training file; `changes` by table.key. Return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    if "model.name" not in (changes or {}) and not (folder / "model").exists():
        write_model(folder / "model")
    lines = [json.dumps({"id": f"p{at}", "prompt": PROMPTS[at % 8], "answer": "a"}) for at in range(prompts)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    held = [
        json.dumps({"id": f"h{at}", "prompt": text}) for at, text in enumerate(["a c e", "b d f", "c e g", "d f h"])
    ]
    (folder / "held_out.jsonl").write_text("\n".join(held) + "\n")
    (folder / "rewards.py").write_text(REWARDS)
    settings: dict[str, Any] = {
        "model.name": "model",
        "model.dtype": "float32",
        "lora.r": 4,
        "data.train": "train.jsonl",
        "reward.total": "rewards.py:share",
        "grpo.num_generations": 8,
        "grpo.per_device_train_batch_size": 32,
        "grpo.max_steps": 10,
        "grpo.max_completion_length": 8,
        "grpo.learning_rate": 1e-2,
        "run.save_steps": 4,
        "run.threads": 1,
    }
    settings |= changes or {}
    tables: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        table, _, key = name.partition(".")
        tables.setdefault(table, {})[key] = value
    text = "".join(
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for table, keys in tables.items()
        if keys
    )
    (folder / "train.toml").write_text(text)
    return folder / "train.toml"


def tiny_config(**changes: Any) -> GRPOConfig:
    """Settings for a tiny model that is given in Python."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "r": 4,
        "num_generations": 8,
        "per_device_train_batch_size": 32,
        "max_steps": 3,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "threads": 1,
    }
    return GRPOConfig(**{**settings, **changes})


def environment() -> dict[str, str]:
    """Of a process that runs the tree that is tested."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def train(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `rewardkit train` in a process of its own."""
    command = [sys.executable, "-m", "rewardkit", "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, **options)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start `rewardkit train` in a process of its own."""
    command = [sys.executable, "-m", "rewardkit", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())


_TIMES = ("time/", "speed/", "memory/")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and memory."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(_TIMES)} for line in lines]
