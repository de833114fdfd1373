"""Whether the sampler draws from the weights that are trained: its log-probs against the trainer's.

Kernels and rounding make them differ a little; another adapter makes them differ a lot. For a sampler that shares its
weights with the trainer the difference is rounding; for vLLM it is what low precision makes of other kernels.

A sampler that is known to have other base weights (`Sampler.differs`: those of the checkpoint, where the trainer has
them in 4 bits) is apart with the right adapter already. What it is apart by before the first update is its usual
difference, and later ones are held against that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer_backend.tensors import check_finite, check_mask, check_tokens

MEAN_LIMIT = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
"""The largest mean difference, in nats a token, that rounding in each dtype explains."""
WIDER = 2.0
"""How many times its usual difference a sampler with other base weights may be apart: it moves with the texts."""
FEWEST = 16
"""With fewer tokens nothing is concluded."""


@dataclass(frozen=True)
class Agreement:
    """How far two sets of log-probs of the same tokens are apart.

    Attributes:
        tokens: How many were compared.
        mean_abs, max_abs: Of the differences, in nats.
        correlation: Pearson's; NaN where one side has no spread.
    """

    tokens: int
    mean_abs: float
    max_abs: float
    correlation: float

    def stale(self, dtype: torch.dtype, usual: float = 0.0) -> bool:
        """Return whether the difference is more than rounding: the sampler's weights are not the trainer's.

        Args:
            dtype: What sampler and trainer compute in; the coarser of the two.
            usual: Of a sampler with other base weights: `mean_abs` before the first update.
        """
        return self.tokens >= FEWEST and not self.mean_abs <= max(MEAN_LIMIT[dtype], WIDER * usual)

    def sentence(self, sampler: str, version: int, dtype: torch.dtype, usual: float = 0.0) -> str:
        """Return what to say about it, for the run's log; see `stale` for the arguments."""
        found = f"{self.mean_abs:.2g} nats a token over {self.tokens:,} tokens (largest {self.max_abs:.2g})"
        if not self.stale(dtype, usual):
            start = f", {usual:.2g} before the first update" if usual else ""
            return (
                f"{sampler} samples from adapter {version}: its log-probs differ from the trainer's by {found}{start}"
            )
        explained = f"{MEAN_LIMIT[dtype]:g} that rounding in {str(dtype).removeprefix('torch.')} explains"
        if WIDER * usual > MEAN_LIMIT[dtype]:
            explained = f"{WIDER:g} times the {usual:.2g} that they differed by before the first update"
        return (
            f"{sampler} does not sample from adapter {version}: its log-probs differ from the trainer's by {found},"
            f" more than {explained}"
        )


@torch.no_grad()
def compare(rollout_logps: torch.Tensor, trainer_logps: torch.Tensor, mask: torch.Tensor) -> Agreement:
    """Return how far the sampler's log-probs are from the trainer's.

    Args:
        rollout_logps: float [rows, tokens]; NaN where the sampler does not know.
        trainer_logps: The same by the trainer, of the distribution that was sampled from and of the same weights.
        mask: bool [rows, tokens]; the tokens that were sampled.

    Raises:
        TensorError: Shapes or dtypes, or a trainer's log-prob that is no number.
    """
    check_mask(mask)
    check_tokens("trainer_logps", trainer_logps, mask)
    check_tokens("rollout_logps", rollout_logps, mask)
    check_finite("trainer_logps", trainer_logps, mask)
    known = mask & ~torch.isnan(rollout_logps)
    mine, theirs = rollout_logps[known].double(), trainer_logps[known].double()
    if not mine.numel():
        return Agreement(0, 0.0, 0.0, math.nan)
    apart = (mine - theirs).abs()
    return Agreement(mine.numel(), float(apart.mean()), float(apart.max()), _correlation(mine, theirs))


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    one, other = one - one.mean(), other - other.mean()
    spread = float(one.norm() * other.norm())
    return float(one @ other) / spread if spread > 0.0 else math.nan
