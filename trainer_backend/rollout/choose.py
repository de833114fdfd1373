"""The sampler that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer_backend.rollout.options import SamplingOptions
from trainer_backend.rollout.types import Sampler

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig
    from trainer_backend.model.load import Loaded


def folds(config: GRPOConfig, dtype: torch.dtype) -> bool:
    """Return whether the transformers sampler keeps a copy of the weights with the adapter folded into it.

    In float32 that is a tenth faster on a CPU and the same to rounding. In shorter dtypes the rounding of the folded
    weights would set sampler and trainer apart; 4-bit weights cannot be folded.
    """
    return config.engine == "transformers" and dtype in (torch.float32, torch.float64) and not config.load_in_4bit


def choose(config: GRPOConfig, loaded: Loaded, *, longest_prompt: int, fold: bool = False, version: int = 0) -> Sampler:
    """Return the sampler of a run; close it at the end.

    Args:
        config: The run's configuration.
        loaded: Its model.
        longest_prompt: Tokens of the longest prompt, training and held-out.
        fold: See `folds`; the plan counts it.
        version: What the groups carry until the first `update`.

    Raises:
        UsageError: The engine cannot sample from this model; MissingExtra: it is not installed.
        UnknownName, OptionError: `config.sampling` has what the engine does not know.
    """
    options = SamplingOptions.from_config(config)
    if config.engine == "transformers":
        from trainer_backend.rollout.transformers_sampler import TransformersSampler

        return TransformersSampler(
            loaded.model,
            loaded.tokenizer,
            options,
            head=loaded.head,
            eos_ids=loaded.eos_ids,
            version=version,
            fold=fold,
        )
    from trainer_backend.model.load import find
    from trainer_backend.rollout.vllm_sampler import VllmSampler

    source = find(config)
    return VllmSampler(
        loaded.model,
        loaded.tokenizer,
        options,
        weights=source.place,
        revision=source.revision,
        eos_ids=loaded.eos_ids,
        max_length=longest_prompt + config.max_completion_length,
        dtype=loaded.dtype,
        device=loaded.device,
        version=version,
        kv_cache_dtype=config.kv_cache_dtype,
        kv_cache_gigabytes=config.kv_cache_memory_gb,
        allow_untested=config.allow_untested,
    )
