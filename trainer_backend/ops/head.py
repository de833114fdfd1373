"""A language model's head: what turns a hidden state into logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rewardkit.errors import OptionError
from trainer_backend.errors import TensorError
from trainer_backend.tensors import describe

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Head:
    """The logits of a hidden state h: a = scale * (W h) + bias, then softcap * tanh(a / softcap) where there is one.

    Attributes:
        weight: [vocabulary, hidden]; bfloat16, float16, float32 or float64. It is trained when it requires a gradient.
        bias: [vocabulary] in the weight's dtype, or None. -inf takes a token out.
        scale: A factor on the product (Cohere's `logit_scale`; the inverse of Granite's `logits_scaling`).
        softcap: Gemma 2's `final_logit_softcapping`, or None.

    Raises:
        TensorError: A shape or a dtype.
        OptionError: A scale or a softcap that is not positive and finite.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        weight, bias = self.weight, self.bias
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.dtype not in DTYPES:
            raise TensorError(f"weight is a float tensor [vocabulary, hidden], got {describe(weight)}")
        if weight.stride(1) != 1:
            raise TensorError(f"weight has its rows in one piece (stride 1), got strides {weight.stride()}")
        if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
            raise TensorError(f"bias is {weight.dtype} [{weight.shape[0]}] like the weight, got {describe(bias)}")
        for name, value in (("scale", self.scale), ("softcap", self.softcap)):
            if value is not None and not (0.0 < value < math.inf):
                raise OptionError(f"{name} is positive and finite, got {value}")

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.weight.shape[0]

    @property
    def hidden(self) -> int:
        """The width of a hidden state."""
        return self.weight.shape[1]

    @property
    def trained(self) -> bool:
        """Whether the weight or the bias asks for a gradient."""
        return self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
