"""What lies between the products of a decoder layer: norm, rotary positions, the gate; each with its gradient.

Without autograd, on rows of any number, so that a layer can go through them chunk by chunk. Numbers narrower than
float32 are computed in float32 and rounded once. On a GPU by kernels (`elementwise_kernels`); torch is their reference,
and does what they do not take: float64, rows of which not all numbers lie side by side, types that differ.

With u = x / sqrt(mean(x^2) + e), w the weight and g = w dy:

    norm          y = w u                      dx = (g - u mean(g u)) / sqrt(mean(x^2) + e)
    rotary        (a, b) -> (a cos - b sin, b cos + a sin) on the two halves of a head; the way back is its transpose
    gate          m = act(gate) up             dgate = dm up act'(gate),  dup = dm act(gate)

Zhang and Sennrich, 2019 (arXiv 1910.07467); Su and others, 2021 (arXiv 2104.09864); Shazeer, 2020 (arXiv 2002.05202).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trainer_backend.ops import elementwise_kernels

Activation: TypeAlias = Literal["silu", "gelu_tanh", "gelu"]
"""x sigmoid(x); 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); x Phi(x)."""


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return the numbers in what sums are kept in: float64 as it is, all others as float32."""
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm by the root of the mean square over the last axis.

    Attributes:
        weight: [width].
        epsilon: Added to the mean square.
        offset: What the weight is added to: 0 (Llama), or 1 (Gemma, which also rounds after the weight, not before).
    """

    weight: torch.Tensor
    epsilon: float
    offset: float = 0.0

    def forward(self, x: torch.Tensor, *, add: torch.Tensor | None = None) -> torch.Tensor:
        """Return the norm of x [..., width], in its type.

        Args:
            x: What is normed.
            add: Of x's shape and type: added to x, in place, before.
        """
        found = elementwise_kernels.norm(x, self.weight, self.epsilon, self.offset, add)
        return self.forward_torch(x, add=add) if found is None else found

    def forward_torch(self, x: torch.Tensor, *, add: torch.Tensor | None = None) -> torch.Tensor:
        """Return what `forward` does, by torch: the kernel's reference."""
        if add is not None:
            x.add_(add)
        unit = wide(x)
        unit = unit * self._scale(unit)
        if self.offset:
            return (unit * self._weight(unit)).to(x.dtype)
        return unit.to(x.dtype) * self.weight

    def backward(self, slope: torch.Tensor, x: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
        """Return the gradient for x, [..., width], from that of the norm; added to `onto`, in place, where given."""
        found = elementwise_kernels.norm_backward(slope, x, self.weight, self.epsilon, self.offset, onto)
        return self.backward_torch(slope, x, onto) if found is None else found

    def backward_torch(self, slope: torch.Tensor, x: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
        """Return what `backward` does, by torch: the kernel's reference."""
        unit = wide(x)
        scale = self._scale(unit)
        unit = unit * scale
        inner = wide(slope) * self._weight(unit)
        inner = (inner - unit * (inner * unit).mean(-1, keepdim=True)) * scale
        if onto is None:
            return inner.to(x.dtype)
        # Added before it is rounded: one rounding, not two.
        return onto.copy_(inner.add_(onto))

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)

    def _weight(self, like: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(like.dtype)
        return weight + self.offset if self.offset else weight


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    """Turn the heads of x by their positions, in place, and return it.

    Args:
        x: [tokens, heads, head width].
        cos, sin: [tokens, turned]; the first `turned` numbers of a head are turned, in two halves.
        back: Whether by the transpose: the gradient of what was turned becomes that of what it was before.
    """
    return x if elementwise_kernels.rotate_(x, cos, sin, back) else rotate_torch_(x, cos, sin, back=back)


def rotate_torch_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    """Do what `rotate_` does, by torch: the kernel's reference."""
    half = cos.shape[-1] // 2
    c, s = wide(cos).unsqueeze(1), wide(sin).unsqueeze(1)
    a, b = x[..., :half], x[..., half : 2 * half]
    wide_a, wide_b = wide(a), wide(b)
    if back:
        first = wide_a * c[..., :half] + wide_b * s[..., half:]
        second = wide_b * c[..., half:] - wide_a * s[..., :half]
    else:
        first = wide_a * c[..., :half] - wide_b * s[..., :half]
        second = wide_b * c[..., half:] + wide_a * s[..., half:]
    a.copy_(first)
    b.copy_(second)
    return x


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return act(gate) up, in the type of the gate; both are [..., width]."""
    found = elementwise_kernels.gated(gate, up, activation)
    return gated_torch(gate, up, activation) if found is None else found


def gated_torch(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return what `gated` does, by torch: the kernel's reference."""
    value, _ = _act(wide(gate), activation, slope=False)
    return (value * wide(up)).to(gate.dtype)


def gated_backward_(
    slope: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: Activation, *, product: bool = False
) -> None:
    """Write the gradients for gate and up over them, given that of `gated`.

    Args:
        slope: The gradient of `gated`, [..., width].
        gate, up, activation: As given to `gated`.
        product: Whether to write what `gated` gave over the slope.
    """
    if not elementwise_kernels.gated_backward_(slope, gate, up, activation, product):
        gated_backward_torch_(slope, gate, up, activation, product=product)


def gated_backward_torch_(
    slope: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: Activation, *, product: bool = False
) -> None:
    """Do what `gated_backward_` does, by torch: the kernel's reference."""
    value, inner = _act(wide(gate), activation, slope=True)
    assert inner is not None
    above = wide(slope)
    kept = value * wide(up) if product else None
    gate.copy_(above * wide(up) * inner)
    up.copy_(above * value)
    if kept is not None:
        slope.copy_(kept)


def _act(x: torch.Tensor, activation: Activation, *, slope: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return act(x), and act'(x) where asked for."""
    if activation == "silu":
        gate = torch.sigmoid(x)
        return x * gate, gate * (1.0 + x * (1.0 - gate)) if slope else None
    if activation == "gelu":
        below = 0.5 * (1.0 + torch.erf(x * math.sqrt(0.5)))
        density = torch.exp(-0.5 * x.square()) / math.sqrt(2.0 * math.pi)
        return x * below, below + x * density if slope else None
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z, which loses no digits where it is near 0.
    twice, cube = 2.0 * math.sqrt(2.0 / math.pi), 0.044715
    share = torch.sigmoid(twice * (x + cube * x**3))
    inner = share + x * share * (1.0 - share) * twice * (1.0 + 3.0 * cube * x.square())
    return x * share, inner if slope else None
