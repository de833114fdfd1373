"""Which modules are in training mode while a gradient is taken.

A model samples in evaluation mode, and is trained in it: the policy that is trained is the one that sampled, so dropout
of the base model (GPT-2 has some) stays off. Two kinds of modules are switched on all the same:

* what an adapter has added, where it has dropout: that was asked for, by `lora.lora_dropout`, a `peft_config`, or the
  settings that an adapter in `lora.start_from` was saved with;
* layers that are checkpointed, since transformers looks at their own flag. Inside, `offload.checkpoint_layers` takes
  it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers.modeling_layers import GradientCheckpointingLayer


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into the mode that it had."""
    was = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in was:
            module.training = training


@contextlib.contextmanager
def learning(model: nn.Module) -> Iterator[None]:
    """Put a model into the mode that gradients are taken in, and each of its modules back into the one that it had."""
    with evaluating(model):
        for module in adapter_dropout(model):
            module.training = True
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = True
        yield


def adapter_dropout(model: nn.Module) -> list[nn.Module]:
    """Return what adapters with dropout have added to a model; nothing: no forward pass draws random numbers."""
    found: list[nn.Module] = []
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            own = [layer, *(part for name, child in layer.named_children() if name != "base_layer"
                            for part in child.modules())]  # fmt: skip
            if any(_draws(module) for module in own):
                found += own
    return found


def _draws(module: nn.Module) -> bool:
    """Return whether a module draws random numbers in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    # Adapters other than LoRA have these as numbers, by adapter.
    tables = (getattr(module, name, None) for name in ("rank_dropout", "module_dropout"))
    return any(any(table.values()) for table in tables if isinstance(table, dict))
