"""Tiny random models, with a tokenizer where one is wanted, saved as a user has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(93))]  # 96


def tiny_config(**changes: Any) -> LlamaConfig:
    numbers: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaConfig(**(numbers | changes))


def tiny_base(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(**changes)).to(dtype).eval()


def tokenizer(**special: str) -> Any:
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **({"eos_token": "</s>", "unk_token": "<unk>"} | special))


def save_model(folder: Path, *, base: Any = None, with_tokenizer: bool = True, **changes: Any) -> Path:
    (tiny_base(**changes) if base is None else base).save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return folder


def ids(rows: int = 2, width: int = 7) -> torch.Tensor:
    return (torch.arange(rows * width) * 13 % 93 + 3).view(rows, width)
