"""A frozen linear layer with LoRA adapters on it, y = W x + c + sum s B (A x), and its gradients without autograd.

    dx = W^T dy + sum s A^T (B^T dy),    dA = s (B^T dy) x^T,    dB = s dy (A x)^T

Hu and others, 2021 (arXiv 2106.09685); Dettmers and others, 2023 (arXiv 2305.14314) for 4-bit weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from trainer_backend.model.adapter import beyond_lora, in_use
from trainer_backend.ops.elementwise import wide
from trainer_backend.ops.kernels import tiles_for


class Unfit(Exception):
    """A model's layers are not of the kind that is streamed; the text says what was found."""


class Projection:
    """A linear layer as a model has it: plain or 4-bit, with or without LoRA."""

    def __init__(self, module: nn.Module) -> None:
        """Take a layer.

        Raises:
            Unfit: It computes something else, or its weights are trained.
        """
        self.lora: Any = module if isinstance(module, LoraLayer) else None
        self.base: Any = self.lora.get_base_layer() if self.lora is not None else module
        if type(self.base) is not nn.Linear and type(self.base).__name__ != "Linear4bit":
            raise Unfit(f"a {type(self.base).__name__} in place of a linear layer")
        if self.base.weight.requires_grad or (self.base.bias is not None and self.base.bias.requires_grad):
            raise Unfit("linear layers that are trained themselves")
        if self.lora is not None:
            _check_lora(self.lora)

    def parameters(self) -> list[nn.Parameter]:
        """Return A and B of each adapter in use, in order."""
        return [weight for a, b, _ in self._adapters() for weight in (a, b)]

    def open(self, dtype: torch.dtype, *, sums: bool = False) -> Opened:
        """Return the layer ready to compute with, its weights in `dtype`; `sums`: also for gradients."""
        adapters = [(a.detach(), b.detach(), scale) for a, b, scale in self._adapters()]
        return Opened(
            weight=self._weight(dtype),
            bias=None if self.base.bias is None else self.base.bias.detach().to(dtype),
            adapters=[(a.to(dtype), b.to(dtype), scale) for a, b, scale in adapters],
            sums=[torch.zeros_like(wide(one)) for a, b, _ in adapters for one in (a, b)] if sums else [],
        )

    def _adapters(self) -> list[tuple[nn.Parameter, nn.Parameter, float]]:
        # Asked for each time: the reference policy is the model with the adapter off, or with another one.
        lora = self.lora
        names = in_use(lora) if lora is not None else []
        return [(lora.lora_A[name].weight, lora.lora_B[name].weight, float(lora.scaling[name])) for name in names]

    def _weight(self, dtype: torch.dtype) -> torch.Tensor:
        weight = self.base.weight
        if type(self.base) is nn.Linear:
            plain: torch.Tensor = weight.detach().to(dtype)
            return plain
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(weight.data, weight.quant_state).to(dtype)


def _check_lora(layer: Any) -> None:
    """Refuse what is more than s B (A x).

    Raises:
        Unfit: It is.
    """
    more = beyond_lora(layer)
    if more:
        raise Unfit(more)
    if any(type(one) is not nn.Identity and getattr(one, "p", 1.0) for one in layer.lora_dropout.values()):
        raise Unfit("an adapter with dropout")
    if layer.lora_embedding_A or not layer.lora_A:
        raise Unfit("an adapter without the two factors of LoRA")


@dataclass(eq=False)
class Opened:
    """A layer ready to compute with.

    Attributes:
        weight: [outputs, inputs].
        bias: [outputs], or None.
        adapters: A [rank, inputs], B [outputs, rank] and s of each.
        sums: Gradients of each A and B so far, in float32 (float64 for such).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    adapters: list[tuple[torch.Tensor, torch.Tensor, float]]
    sums: list[torch.Tensor]

    def forward(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return y [rows, outputs] of x [rows, inputs]; written to `out` where given."""
        if self.bias is None:
            y = torch.mm(x, self.weight.T, out=out)
        else:
            y = torch.addmm(self.bias, x, self.weight.T, out=out)
        for a, b, scale in self.adapters:
            y.addmm_(x @ a.T, b.T, alpha=scale)
        return y

    def backward(
        self,
        slope: torch.Tensor,
        x: torch.Tensor,
        *,
        onto: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        inputs: bool = True,
    ) -> torch.Tensor | None:
        """Add the adapters' gradients to `sums`, and return that for x, [rows, inputs].

        Args:
            slope: dy [rows, outputs].
            x: As in the forward pass.
            onto: Where the gradient for x is added to, in place.
            out: Where it is written to; may be x itself.
            inputs: Whether it is wanted at all.
        """
        low_slopes, tiles = [], tiles_for(x)
        for at, (a, b, scale) in enumerate(self.adapters):
            low_slope = (slope @ b).mul_(scale)
            low = (x @ a.T).mul_(scale)
            tiles.add_product(self.sums[2 * at], low_slope.T, x)
            tiles.add_product(self.sums[2 * at + 1], slope.T, low)
            low_slopes.append(low_slope)
        if not inputs:
            return None
        found = torch.mm(slope, self.weight, out=out) if onto is None else onto.addmm_(slope, self.weight)
        for (a, _, _), low_slope in zip(self.adapters, low_slopes, strict=True):
            found.addmm_(low_slope, a)
        return found
