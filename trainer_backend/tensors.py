"""Checks that several formulas share: shapes, dtypes, and values where a mask says that they count."""

from __future__ import annotations

import torch

from trainer_backend.errors import TensorError

DTYPES = (torch.float32, torch.float64)


def check_mask(mask: torch.Tensor) -> None:
    """Refuse a mask that is not bool [rows, tokens].

    Raises:
        TensorError: It is something else.
    """
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.dim() != 2:
        raise TensorError(f"mask is a bool tensor [rows, tokens], got {describe(mask)}")


def check_tokens(name: str, value: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """Refuse a tensor that is not float [rows, tokens] like `mask`, of `dtype` where it is given.

    Raises:
        TensorError: Says which tensor, what was wanted and what came.
    """
    if not isinstance(value, torch.Tensor) or value.shape != mask.shape or value.dtype not in DTYPES:
        raise TensorError(f"{name} is float32 or float64 {list(mask.shape)} like the mask, got {describe(value)}")
    if dtype is not None and value.dtype != dtype:
        raise TensorError(f"{name} has the dtype of the log-probs, {dtype}, got {value.dtype}")


def check_finite(name: str, value: torch.Tensor, mask: torch.Tensor) -> None:
    """Refuse NaN and infinities where the mask is true; what stands elsewhere is never looked at.

    Raises:
        TensorError: With the place of the first.
    """
    bad = ~torch.isfinite(value.detach()) & mask
    if bool(bad.any()):
        row, token = (int(at) for at in bad.nonzero()[0])
        count = int(bad.sum())
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        raise TensorError(f"{name}[{row}, {token}] is {value[row, token].item()}{more}, and the mask counts it")


def describe(value: object) -> str:
    """Return what a value is, for a message: `torch.float16 [2, 3]`."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def where_counted(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return `value` with 0 where the mask is false: padding, whatever it holds, gives neither value nor gradient."""
    return torch.where(mask, value, torch.zeros_like(value))


def row_mean(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row over its counted tokens, [rows, 1]; 0 for a row without any."""
    return where_counted(value, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
