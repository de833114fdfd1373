"""The adapter folded into copies of the weights that it changes, in use only inside a `with` block.

Decoding has few rows, so a LoRA layer's two small products and the Python around them cost more than their arithmetic.
The model's own weights are never written to: its layers are replaced by plain ones for the time of the block.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import nn

from rewardkit.errors import UsageError


class Folded:
    """Plain layers W + s B A in place of a model's LoRA layers."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the weights; folds the adapter as it is.

        Raises:
            UsageError: There is no LoRA layer, or one is not a plain linear layer (4-bit weights, DoRA).
        """
        self._places: list[tuple[nn.Module, str, LoraLinear, nn.Linear]] = []
        for name, parent in model.named_modules():
            for child, layer in parent.named_children():
                if isinstance(layer, LoraLayer):
                    self._places.append((parent, child, _checked(f"{name}.{child}", layer), _plain(layer)))
        if not self._places:
            raise UsageError(f"{type(model).__name__} has no LoRA layer that could be folded; sample without fold")
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the adapter as it is now."""
        for _, _, lora, plain in self._places:
            _fold(lora, plain.weight)

    @torch.no_grad()
    def current(self) -> bool:
        """Return whether the weights are those of the adapter as it is now, bit by bit."""
        for _, _, lora, plain in self._places:
            newest = torch.empty_like(plain.weight)
            _fold(lora, newest)
            if not torch.equal(newest, plain.weight):
                return False
        return True

    def __enter__(self) -> None:
        for parent, child, _, plain in self._places:
            parent._modules[child] = plain

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parent, child, lora, _ in self._places:
            parent._modules[child] = lora


def _checked(name: str, layer: LoraLayer) -> LoraLinear:
    base = layer.get_base_layer()
    if type(layer) is not LoraLinear or type(base) is not nn.Linear or not base.weight.is_floating_point():
        raise UsageError(f"{name}: a plain linear layer can be folded, not {type(base).__name__}; sample without fold")
    if any(layer.use_dora.values()) or layer.merged:
        raise UsageError(f"{name}: an adapter with DoRA, or one that is merged, cannot be folded; sample without fold")
    return layer


def _fold(lora: Any, weight: torch.Tensor) -> None:
    """Write W + s B A into `weight`; the layer's tables are by name, which types do not see."""
    base = lora.get_base_layer().weight
    weight.copy_(base)
    if lora.disable_adapters:
        return
    for adapter in lora.active_adapters:
        if adapter not in lora.lora_A:
            continue
        a, b, scale = lora.lora_A[adapter].weight, lora.lora_B[adapter].weight, lora.scaling[adapter]
        if base.dtype == a.dtype:
            weight.addmm_(b, a, alpha=scale)
        else:  # the sum in float32, rounded once
            weight.copy_(torch.addmm(base.to(a.dtype), b, a, alpha=scale))


def _plain(layer: LoraLayer) -> nn.Linear:
    base: Any = layer.get_base_layer()
    with torch.device("meta"):
        plain = nn.Linear(base.in_features, base.out_features, bias=False)
    plain.weight = nn.Parameter(torch.empty_like(base.weight), requires_grad=False)
    plain.bias = base.bias  # not trained, so it is shared
    return plain
