"""What the sampler's log-probs and the trainer's differ by: weights that correct for it, and how large it is.

The trainer recomputes the log-probs of the tokens that the sampler drew. Kernels, dtypes and batching differ, so
`q = exp(old - rollout)` is not exactly 1. Each correction gives a weight for the policy term, detached, in log space
and clamped to exp(+-20). A token whose log-prob the sampler does not know (NaN) has q = 1.

| name | weight | source |
| --- | --- | --- |
| none | 1 | |
| token_truncate | min(q_t, high), at least low | TIS, arXiv:2510.18927; Espeholt et al. 2018 |
| token_mask | q_t inside [low, high], else 0 | IcePop, arXiv:2510.18855 |
| sequence_truncate | min(prod q, high), at least low | |
| sequence_mask | prod q inside [low, high], else 0 | MIS; TRL's default with high = 3 |
| geometric_mask | 1 where exp(mean log q) is inside [low, high], else 0 | |

A product over a long row is almost never near 1: above a thousand tokens take a token or geometric form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rewardkit.errors import OptionError
from trainer_backend.errors import unknown
from trainer_backend.tensors import check_finite, check_mask, check_tokens, row_mean, where_counted

LIMIT = 20.0
"""Log-ratios are clamped to +-20 before they are exponentiated: exp(20) is 485,165,195."""

BOUNDS: Mapping[str, tuple[float, float]] = {
    "none": (0.0, math.inf),
    "token_truncate": (0.0, 3.0),
    "token_mask": (0.5, 5.0),
    "sequence_truncate": (0.0, 3.0),
    "sequence_mask": (0.0, 3.0),
    "geometric_mask": (0.99, 1.01),
}
"""The corrections by name, and the low and high that each has when none are given."""


def check_correction(name: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the bounds of a correction.

    Raises:
        UnknownName: No such correction.
        OptionError: Bounds that are none.
    """
    if name not in BOUNDS:
        raise unknown("correction", name, BOUNDS)
    given = BOUNDS[name]
    bounds = (given[0] if low is None else float(low), given[1] if high is None else float(high))
    if not 0.0 <= bounds[0] < bounds[1]:
        raise OptionError(f"correction bounds are 0 <= low < high, got {bounds[0]} and {bounds[1]}")
    return bounds


@torch.no_grad()
def importance_weights(
    *,
    old_logps: torch.Tensor,
    rollout_logps: torch.Tensor,
    mask: torch.Tensor,
    correction: str,
    low: float | None = None,
    high: float | None = None,
) -> torch.Tensor:
    """Return the weight of each token, [rows, tokens], or of each row, [rows, 1]; detached.

    Args:
        old_logps: float [rows, tokens]; the trainer's log-probs before the update.
        rollout_logps: The same by the sampler, of the distribution that it sampled from; NaN where it does not know.
        mask: bool [rows, tokens].
        correction: A name in `BOUNDS`.
        low, high: Its bounds.

    Raises:
        TensorError, UnknownName, OptionError.
    """
    bounds = check_correction(correction, low, high)
    log_q = _log_q(old_logps, rollout_logps, mask)
    if correction.startswith("sequence"):
        log_q = log_q.sum(-1, keepdim=True)
    elif correction == "geometric_mask":
        log_q = row_mean(log_q, mask)
    q = torch.exp(log_q.clamp(-LIMIT, LIMIT))
    if correction == "none":
        return torch.ones_like(q)
    if correction.endswith("truncate"):
        return q.clamp(*bounds)
    inside = (q >= bounds[0]) & (q <= bounds[1])
    return inside.to(q.dtype) if correction == "geometric_mask" else q * inside


def _log_q(old_logps: torch.Tensor, rollout_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    check_mask(mask)
    check_tokens("old_logps", old_logps, mask)
    check_tokens("rollout_logps", rollout_logps, mask, old_logps.dtype)
    check_finite("old_logps", old_logps, mask)
    known = mask & ~torch.isnan(rollout_logps)
    return where_counted(old_logps.detach() - rollout_logps.detach(), known)


@dataclass(frozen=True)
class Mismatch:
    """How far sampler and trainer differ, over the counted tokens whose log-prob the sampler knows.

    Attributes:
        tokens: How many there are.
        k1: Mean of rollout - old: a plain estimate of KL(rollout || old), in nats a token; may be negative.
        k3: Mean of q - log q - 1, q = exp(old - rollout): the same with less noise; never negative.
        ess: (sum q)^2 / (tokens * sum q^2): the share of tokens that count in effect; 1 without mismatch.
        chi2: Mean of (q - 1)^2.
        outside: Share of tokens with q outside [0.5, 2].
        largest: The largest |old - rollout|, in nats.
    """

    tokens: int
    k1: float
    k3: float
    ess: float
    chi2: float
    outside: float
    largest: float


@torch.no_grad()
def mismatch(*, old_logps: torch.Tensor, rollout_logps: torch.Tensor, mask: torch.Tensor) -> Mismatch:
    """Return how far the sampler's log-probs are from the trainer's; see `importance_weights` for the arguments."""
    log_q = _log_q(old_logps, rollout_logps, mask)[mask & ~torch.isnan(rollout_logps)].double()
    if not log_q.numel():
        return Mismatch(0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    q = torch.exp(log_q.clamp(-LIMIT, LIMIT))
    return Mismatch(
        tokens=log_q.numel(),
        k1=float(-log_q.mean()),
        k3=float((torch.expm1(log_q.clamp(-LIMIT, LIMIT)) - log_q).mean()),
        ess=float(q.sum() ** 2 / (q.numel() * (q * q).sum())),
        chi2=float(((q - 1) ** 2).mean()),
        outside=float(((q < 0.5) | (q > 2.0)).double().mean()),
        largest=float(log_q.abs().max()),
    )
