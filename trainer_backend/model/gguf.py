"""Models from GGUF files (llama.cpp's format): transformers turns their blocks into plain weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from trainer_backend.model.errors import MissingExtra


def check_gguf(file: str | Path) -> None:
    """Refuse to go on when the package that reads GGUF files is absent.

    Raises:
        MissingExtra: With the line that installs it.
    """
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra(
            f"{Path(file).name}: reading a GGUF file needs the package gguf, not installed here; pip install gguf"
        )


def plain(model: Any, dtype: torch.dtype) -> Any:
    """Return the model, in `dtype`, without what says that its weights are still in GGUF blocks: they are not.

    Left in, it makes the model impossible to read again once it is saved, and libraries take it for quantised.
    """
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.dtype = dtype
    return model.to(dtype)
