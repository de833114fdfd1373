"""The logits of the few hidden states that tokens are drawn from, in float32 (float64 for a float64 model)."""

from __future__ import annotations

import torch

from trainer_backend.ops import Head

TILE = 8192
"""Tokens of the vocabulary whose weights are widened at a time."""


def head_logits(hidden: torch.Tensor, head: Head) -> torch.Tensor:
    """Return the logits [rows, vocabulary], summed and kept in float32 as the trainer has them.

    Args:
        hidden: [rows, hidden], in one piece: torch's CPU kernels are far slower on strided rows.
        head: The head.
    """
    weight = head.weight
    hidden = hidden.to(weight.dtype)
    if weight.dtype in (torch.float32, torch.float64):
        logits = hidden @ weight.T
    elif weight.device.type == "cuda":
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        logits = _widened(hidden, weight)
    if head.scale != 1.0:
        logits *= head.scale
    if head.bias is not None:
        logits += head.bias
    if head.softcap is not None:
        logits = logits.div_(head.softcap).tanh_().mul_(head.softcap)
    return logits


def _widened(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = torch.empty(len(hidden), len(weight), dtype=torch.float32, device=hidden.device)
    wide = hidden.float()
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(weight), TILE):
            part = slice(start, start + TILE)
            torch.mm(wide, weight[part].float().T, out=logits[:, part])
    return logits
