"""Optimizers and learning-rate schedules by their names in transformers, from the libraries that keep them.

| name | optimizer | state a trained parameter |
| --- | --- | --- |
| adamw_torch | torch.optim.AdamW, fused | 8 bytes |
| adamw_8bit | bitsandbytes AdamW8bit | 2 bytes, for tensors of at least 4,096 numbers |
| sgd | torch.optim.SGD, plain | none |

Schedules are those of `transformers.get_scheduler`. Weight decay is applied to matrices and not to biases and norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rewardkit.errors import OptionError, UsageError
from trainer_backend.errors import unknown

OPTIMIZERS = ("adamw_torch", "adamw_8bit", "sgd")
"""The optimizers by name."""


def build_optimizer(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> torch.optim.Optimizer:
    """Return an optimizer over the parameters that ask for a gradient.

    Args:
        name: A name in `OPTIMIZERS`.
        parameters: All parameters of the model; frozen ones are passed over.
        learning_rate: At the top of the schedule.
        weight_decay: Decoupled for AdamW.
        betas, epsilon: Of AdamW.

    Raises:
        UnknownName: No such optimizer.
        OptionError: A number that makes no sense.
        UsageError: Nothing to train, or bitsandbytes is not installed.
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    if not learning_rate >= 0.0 or not weight_decay >= 0.0:
        raise OptionError(f"learning_rate and weight_decay are at least 0, got {learning_rate} and {weight_decay}")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise UsageError(
            "the model has no parameter to train: was its adapter loaded frozen? Load it with is_trainable=True"
        )
    groups = _groups(trained, weight_decay)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=learning_rate)
    if name == "adamw_8bit":
        adamw = _bitsandbytes().optim.AdamW8bit
        made: torch.optim.Optimizer = adamw(groups, lr=learning_rate, betas=betas, eps=epsilon)
        return made
    # One kernel for all tensors: an adapter has hundreds of small ones.
    fused = all(parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda") for parameter in trained)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=fused)


def _groups(trained: list[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError:
        raise UsageError(
            'optim = "adamw_8bit" needs bitsandbytes, which is not installed: pip install "rewardkit[train]"'
        ) from None
    return bitsandbytes


def build_scheduler(
    name: str,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    warmup_steps: int = 0,
    options: Mapping[str, Any] | None = None,
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule of the learning rate; call its `step` once after each optimizer step.

    Args:
        name: As in transformers: "constant", "constant_with_warmup", "linear", "cosine", ...
        optimizer: Its optimizer.
        steps: Optimizer steps of the whole run.
        warmup_steps: Steps in which it rises from 0. "constant" has none: with warm-up it becomes
            "constant_with_warmup".
        options: What the schedule takes besides, such as min_lr.

    Raises:
        UnknownName: No such schedule.
        OptionError: Numbers of steps that make no sense, or an option that the schedule does not take.
    """
    from transformers import SchedulerType, get_scheduler

    names = [kind.value for kind in SchedulerType]
    if name not in names:
        raise unknown("schedule of the learning rate", name, names)
    if steps < 1 or not 0 <= warmup_steps <= steps:
        raise OptionError(f"a run has 1 step or more, of which warmup_steps are a part; got {steps} and {warmup_steps}")
    if name == "constant" and warmup_steps:
        name = "constant_with_warmup"
    try:
        made: torch.optim.lr_scheduler.LRScheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup_steps,
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(options or {}),
        )
    except (TypeError, ValueError) as error:
        raise OptionError(f"the schedule {name!r} cannot be made with {dict(options or {})}: {error}") from None
    return made
