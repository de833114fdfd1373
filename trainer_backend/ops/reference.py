"""The slow, obvious twin of `linear_logps`: all logits at once, in float64, under plain autograd.

With z = logits / temperature and y the target,

    logp = -softplus(logsumexp over j != y of z_j  -  z_y),        entropy = -sum_j p_j log p_j.

The softplus form is the same number as z_y - logsumexp(z). It keeps the gradient of a token whose margin is above 36
nats, which the difference rounds to 0 even in float64 (17 nats in float32).
"""

from __future__ import annotations

import torch

from trainer_backend.ops.head import Head


def dense_logits(hidden: torch.Tensor, head: Head, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the logits [rows, vocabulary] in `dtype`, before any temperature."""
    logits = head.scale * (hidden.to(dtype) @ head.weight.to(dtype).T)
    if head.bias is not None:
        logits = logits + head.bias.to(dtype)
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return logits


def dense_logps(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probs and entropies of every row, each [rows] in `dtype`, under autograd.

    Args:
        hidden: [rows, hidden].
        head: The head.
        targets: int64 [rows].
        temperature: One, or one a row.
        dtype: What it is computed in.
    """
    divisor = temperature.to(dtype).unsqueeze(1) if isinstance(temperature, torch.Tensor) else temperature
    logits = dense_logits(hidden, head, dtype) / divisor
    at = targets.unsqueeze(1)
    target = logits.gather(1, at).squeeze(1)
    others = logits.scatter(1, at, float("-inf")).logsumexp(1)
    logps = -torch.logaddexp(others - target, torch.zeros_like(target))  # softplus
    full = torch.log_softmax(logits, 1)
    # 0 * -inf is 0 here: a token that is out has no share in the entropy.
    entropies = -(full.exp() * full.masked_fill(full == float("-inf"), 0.0)).sum(1)
    return logps, entropies
