"""Other layers in place of a model's LoRA layers, in use only inside a `with` block.

Decoding has few rows, so the Python around a LoRA layer's two small products, and their number, cost more than the
arithmetic. `Folded` has one product where the adapter can be added to a copy of the weights; `Slim` keeps it apart and
leaves out what only training needs. The model's own weights are never written to.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import nn

from rewardkit.errors import UsageError
from trainer_backend.model.adapter import beyond_lora, in_use


class _Replaced:
    """A model's layers, and what stands in their places inside a `with` block: (parent, name, own, other)."""

    _places: list[tuple[nn.Module, str, Any, Any]]

    def __enter__(self) -> None:
        for parent, child, _, other in self._places:
            parent._modules[child] = other

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parent, child, own, _ in self._places:
            parent._modules[child] = own


class Folded(_Replaced):
    """Plain layers W + s B A in place of a model's LoRA layers."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the weights; folds the adapter as it is.

        Raises:
            UsageError: There is no LoRA layer, or one is not a plain linear layer (4-bit weights, DoRA).
        """
        self._places = []
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


class Slim(_Replaced):
    """W x + s B (A x), with A and B in the type that is computed in, in place of a model's LoRA layers.

    Layers that are more than that (DoRA, a bias in the adapter, several adapters at once) stay as they are.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Find the layers.

        Args:
            model: The model.
            dtype: What forward passes compute in.
        """
        self._dtype = dtype
        self._places = []
        for parent in model.modules():
            for child, layer in parent.named_children():
                if isinstance(layer, LoraLayer) and _is_plain(layer):
                    self._places.append((parent, child, layer, _SlimLayer(layer)))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the adapter as it is now."""
        for _, _, lora, slim in self._places:
            slim.take(lora, self._dtype)

    def forget(self) -> None:
        """Free what `refresh` took; until the next one the layers must not be used."""
        for _, _, _, slim in self._places:
            slim.a = slim.b = None


class _SlimLayer(nn.Module):
    def __init__(self, lora: LoraLayer) -> None:
        super().__init__()
        self.base = lora.get_base_layer()
        self.a: torch.Tensor | None = None
        self.b: torch.Tensor | None = None
        self.scale = 1.0

    def take(self, lora: Any, dtype: torch.dtype) -> None:
        active = in_use(lora)
        self.a = self.b = None
        if active:
            self.a = lora.lora_A[active[0]].weight.detach().to(dtype)
            self.b = lora.lora_B[active[0]].weight.detach().to(dtype).T
            self.scale = lora.scaling[active[0]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x)
        if self.a is None or self.b is None:
            return out
        low = nn.functional.linear(x.to(self.a.dtype), self.a).flatten(0, -2)
        return torch.addmm(out.flatten(0, -2), low, self.b, alpha=self.scale).view(out.shape)


def _is_plain(layer: Any) -> bool:
    """Return whether a LoRA layer computes W x + s B (A x) and nothing else."""
    return (
        type(layer).__name__ in ("Linear", "Linear4bit")
        and sum(name in layer.lora_A for name in layer.active_adapters) <= 1
        and not beyond_lora(layer)
    )


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
    for adapter in in_use(lora):
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
