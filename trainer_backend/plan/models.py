"""Where a model's config.json is: a folder, the file itself, the hub's cache, or a table of well-known models.

Nothing here imports torch, transformers or huggingface_hub, but to fetch what is nowhere on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardkit.errors import InputError, nearest

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    "mistral-7b": {
        "model_type": "mistral",
        "vocab_size": 32_768,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
        "sliding_window": None,
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "qwen2.5-14b": {
        "model_type": "qwen2",
        "vocab_size": 152_064,
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}
"""The keys of config.json that sizes come from, for those who have no files; of the instruction-tuned models, and of
Mistral 7B v0.3. Tests hold each against the number of parameters that is published."""

_ALIASES = {"smollm2": "smollm2-135m", "mistral-7b-v0.3": "mistral-7b"}
_TUNED = ("-instruct", "-base", "-chat")


@dataclass(frozen=True)
class Found:
    """A model's configuration.

    Attributes:
        config: What config.json says.
        where: Where it was found, in words.
    """

    config: Mapping[str, Any]
    where: str


def find_config(name: str) -> Found:
    """Return the configuration of a model.

    Args:
        name: A folder with config.json, the file itself, the name of a model on the hub, or one of `KNOWN`.

    Raises:
        InputError: It is nowhere, or no JSON; the message says what was looked for and where.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            inside = sorted(one.parent.name for one in path.glob("*/config.json"))[:3]
            hint = f"; there are models in {', '.join(inside)}" if inside else ""
            raise InputError(f"{name}: the folder has no config.json{hint}")
        return Found(_read(file), str(file))
    if path.is_file():
        return Found(_read(path), str(path))
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or name.endswith((".json", ".gguf")):
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{name}: no such folder or file{nearest(path.name, beside)}")
    cached = _cached(name)
    if cached is not None:
        return Found(_read(cached), f"{name} in the hub's cache")
    known = _known(name)
    if known is not None:
        return Found(KNOWN[known], f"{known} of the built-in table")
    return _fetched(name)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"{file} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not JSON, where the config.json of a model is wanted") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} holds a JSON {type(found).__name__}, where the config.json of a model is an object")
    return found


def _known(name: str) -> str | None:
    """Return the entry of the table that a name means, with or without its owner and what it was tuned for."""
    short = name.rpartition("/")[2].lower().removeprefix("meta-")
    for word in _TUNED:
        short = short.replace(word, "")
    short = _ALIASES.get(short, short)
    return short if short in KNOWN else None


def hub_cache() -> Path:
    """Return the folder of the hub's cache, by the variables that huggingface_hub goes by."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _cached(name: str) -> Path | None:
    """Return config.json of the newest snapshot of a model's main branch, where it was loaded before."""
    folder = hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
        file = folder / "snapshots" / commit / "config.json"
        return file if commit and file.is_file() else None
    except (OSError, ValueError):
        return None


def _fetched(name: str) -> Found:
    """Fetch config.json as transformers would, for a name with an owner."""
    near = nearest(name.rpartition("/")[2].lower(), [*KNOWN, *_ALIASES])
    looked = f"{name}: no such folder, no such model in the hub's cache ({hub_cache()}), none of the built-in table"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    what = near or f"; the table has {', '.join(KNOWN)}"
    if offline or "/" not in name:
        raise InputError(f"{looked}{', and HF_HUB_OFFLINE is set' if offline and '/' in name else ''}{what}")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InputError(f'{looked}, and to fetch it takes pip install "rewardkit[train]"{what}') from None
    try:
        file = Path(hf_hub_download(name, "config.json"))
    except Exception as problem:  # whatever a network, a proxy or a server may do
        reason = (str(problem).strip().splitlines() or [""])[0][:200].rstrip(".")
        raise InputError(f"{looked}, and the hub gave none ({type(problem).__name__}: {reason}){what}") from None
    return Found(_read(file), f"{name} of the hub")
