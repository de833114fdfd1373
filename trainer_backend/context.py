"""What a loss looks at besides the log-probs: masks, advantages, log-probs of others, and what is divided by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from rewardkit.errors import OptionError
from trainer_backend.errors import TensorError
from trainer_backend.mismatch import LIMIT
from trainer_backend.tensors import DTYPES, check_finite, check_mask, check_tokens, describe, where_counted


@dataclass(frozen=True)
class Totals:
    """What an optimizer batch divides by.

    Attributes:
        rows: Rows with at least one counted token.
        tokens: Counted tokens.
        policy_tokens: Counted tokens that the policy term acts on (fewer with a top-entropy mask).
    """

    rows: int
    tokens: int
    policy_tokens: int

    @classmethod
    def of(cls, mask: torch.Tensor, policy_mask: torch.Tensor | None = None) -> Totals:
        """Return the totals of one (micro-)batch; those of several are added with `+`."""
        check_mask(mask)
        tokens = int(mask.sum())
        return cls(int(mask.any(-1).sum()), tokens, tokens if policy_mask is None else int((mask & policy_mask).sum()))

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.rows + other.rows, self.tokens + other.tokens, self.policy_tokens + other.policy_tokens)


@dataclass(frozen=True, eq=False)
class Context:
    """Everything that a loss may look at besides the log-probs, for one (micro-)batch.

    Attributes:
        mask: bool [rows, tokens]; the tokens that count.
        advantages: float [rows], or [rows, tokens].
        old_logps: float [rows, tokens]; log-probs before the first update on these rows. None: the policy has not
            changed since, and the log-probs themselves are taken.
        rollout_logps: The sampler's log-probs; needed for a correction. NaN where it does not know.
        ref_logps: Log-probs under the reference policy; needed when beta is not 0.
        entropies: float [rows, tokens], in nats; needed for an entropy bonus.
        policy_mask: bool [rows, tokens]; the policy term is only taken there (see `top_entropy_mask`). The normalisers
            stay those of `mask`, as in the paper.
        totals: Of the whole optimizer batch; None: this is all of it.
        max_length: The longest completion that the sampler may give; needed by "constant_length".

    Raises:
        TensorError: A shape, a dtype, or a NaN or infinity that counts.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old_logps: torch.Tensor | None = None
    rollout_logps: torch.Tensor | None = None
    ref_logps: torch.Tensor | None = None
    entropies: torch.Tensor | None = None
    policy_mask: torch.Tensor | None = None
    totals: Totals | None = None
    max_length: int | None = None
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        check_mask(self.mask)
        rows = self.mask.shape[0]
        value = self.advantages
        if not isinstance(value, torch.Tensor) or value.shape not in ((rows,), self.mask.shape):
            wanted = f"[{rows}] or {list(self.mask.shape)}"
            raise TensorError(f"advantages is float32 or float64 {wanted}, got {describe(value)}")
        if value.dtype not in DTYPES:
            raise TensorError(f"advantages is float32 or float64, got {value.dtype}")
        object.__setattr__(self, "dtype", value.dtype)
        advantages = value if value.dim() == 2 else value.unsqueeze(1).expand_as(self.mask)
        check_finite("advantages", advantages, self.mask)
        for name in ("old_logps", "rollout_logps", "ref_logps", "entropies"):
            tensor = getattr(self, name)
            if tensor is not None:
                check_tokens(name, tensor, self.mask)
                if name != "rollout_logps":
                    check_finite(name, tensor, self.mask)
        if self.policy_mask is not None:
            check_mask(self.policy_mask)
            if self.policy_mask.shape != self.mask.shape:
                raise TensorError(f"policy_mask is {list(self.mask.shape)}, got {list(self.policy_mask.shape)}")
        if self.max_length is not None and self.max_length < 1:
            raise OptionError(f"max_length is at least 1, got {self.max_length}")

    @property
    def whole(self) -> Totals:
        """The totals of the optimizer batch."""
        return self.totals if self.totals is not None else Totals.of(self.mask, self.policy_mask)

    def token_advantages(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the advantages as [rows, 1] or [rows, tokens], 0 where nothing counts."""
        value = self.advantages.detach().to(dtype)
        if value.dim() == 1:
            return where_counted(value.unsqueeze(1), self.mask.any(-1, keepdim=True))
        return where_counted(value, self.mask)

    def log_ratio(self, logps: torch.Tensor) -> torch.Tensor:
        """Return logp - old, [rows, tokens], clamped to +-20 and 0 where nothing counts. The detach rule is here."""
        old = logps.detach() if self.old_logps is None else self.old_logps.detach().to(logps.dtype)
        return where_counted(logps - old, self.mask).clamp(-LIMIT, LIMIT)


LossFunction: TypeAlias = Callable[[torch.Tensor, Context], torch.Tensor]
"""A loss: log-probs [rows, tokens] and their context in, a scalar out."""


def token_mask(
    *, lengths: torch.Tensor, width: int, active: torch.Tensor | None = None, truncated: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mask of a batch, bool [rows, width], from lengths and never from token ids (pad may equal end).

    Args:
        lengths: int [rows]; completion tokens of each row, its end token included.
        width: Tokens a row is padded to.
        active: bool [rows]; rows that were scored (`Advantages.active`). Others leave the loss.
        truncated: bool [rows]; rows that were cut off at the length limit and are to leave the loss.

    Raises:
        TensorError: Lengths beyond the width, or tensors of other shapes.
    """
    if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TensorError(f"lengths is an integer tensor [rows], got {describe(lengths)}")
    if bool(((lengths < 0) | (lengths > width)).any()):
        raise TensorError(
            f"lengths lie between 0 and the width {width}, got {int(lengths.min())} .. {int(lengths.max())}"
        )
    mask = torch.arange(width, device=lengths.device).unsqueeze(0) < lengths.unsqueeze(1)
    for name, rows, keep in (("active", active, True), ("truncated", truncated, False)):
        if rows is None:
            continue
        if rows.dtype != torch.bool or rows.shape != lengths.shape:
            raise TensorError(f"{name} is a bool tensor {list(lengths.shape)}, got {describe(rows)}")
        mask = mask & (rows if keep else ~rows).unsqueeze(1)
    return mask


def top_entropy_mask(*, entropies: torch.Tensor, mask: torch.Tensor, share: float) -> torch.Tensor:
    """Return the tokens with the highest entropy, about `share` of those that count (arXiv:2506.01939 section 5).

    The threshold is the (1 - share) quantile over the counted tokens given, so give the whole optimizer batch.
    """
    check_mask(mask)
    check_tokens("entropies", entropies, mask)
    check_finite("entropies", entropies, mask)
    if not 0.0 < share <= 1.0:
        raise OptionError(f"share is above 0 and at most 1, got {share}")
    known = entropies.detach()[mask]
    if not known.numel():
        return mask.clone()
    ordered = known.sort().values
    place = (1.0 - share) * (ordered.numel() - 1)
    below, part = int(place), place - int(place)
    low, high = ordered[below], ordered[min(below + 1, ordered.numel() - 1)]
    return mask & (entropies >= torch.lerp(low, high, part))
