"""The GRPO family of losses on per-token log-probs: one place for the maths, used by the dense and the fused head.

A loss is four choices:

* `ratio`: how far the policy has moved, for each token, r_t = exp(logp_t - old_t), or for the whole row,
  exp(mean_t(logp_t - old_t));
* `shape`: what a token's ratio and advantage cost (`SHAPES`);
* `aggregate`: how the tokens of the optimizer batch become one number (`AGGREGATES`);
* `correction`: the weight against a mismatch of sampler and trainer (`trainer_backend.mismatch`).

`PRESETS` names the combinations that papers and trainers use. A `Loss` is a function `(logps, context) -> scalar`, and
so may be any function of yours; `gradients` calls either and returns d loss / d logp, which is all that a fused head
needs.

Three rules hold for every built-in loss.

The detach rule: without old log-probs (the policy is the one that sampled) the ratio is exp(logp - sg(logp)), where sg
stops the gradient. Its value is always 1 and its gradient is that of logp. It looks superfluous; left out, or detached
altogether, nothing is trained and nothing complains.

One mask: a token that does not count is in no numerator and in no denominator. A row that was cut off or not scored is
left out by a mask of zeros (`context.token_mask`), and then it is no row of a mean over rows either.

Whole batches: normalisers are those of the optimizer batch (`Totals`), whatever the micro-batches are, so the losses of
micro-batches add up to the loss of the batch ("bnpo" alone is defined over a micro-batch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from rewardkit.errors import OptionError
from trainer_backend.context import Context, LossFunction, Totals
from trainer_backend.errors import TensorError, unknown
from trainer_backend.mismatch import LIMIT, check_correction, importance_weights
from trainer_backend.tensors import check_finite, check_tokens, describe, row_mean, where_counted

# ------------------------------------------------------------------------------------------------------------- shapes

Shape: TypeAlias = "Callable[[Loss, torch.Tensor, torch.Tensor, torch.Tensor, Context], torch.Tensor]"
# (loss, log_ratio at the loss's level, log-probs, advantages, context) -> cost of each token


def _clip(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - loss.epsilon_low, 1.0 + loss.high)
    if loss.delta is not None:
        ratio = ratio.clamp(max=loss.delta)
    cost = -torch.minimum(ratio * adv, clipped * adv)
    if loss.dual_clip is not None:
        cost = torch.where(adv < 0, torch.minimum(cost, -loss.dual_clip * adv), cost)
    return cost


def _cispo(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    return -log_ratio.exp().clamp(max=loss.ratio_cap).detach() * adv * logps


def _sapo(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    tau = _by_sign(adv > 0, loss.tau_positive, loss.tau_negative, logps)
    return -torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * (4.0 / tau) * adv


def _by_sign(condition: torch.Tensor, yes: float, no: float, like: torch.Tensor) -> torch.Tensor:
    """Return one of two numbers for each place, in the dtype of `like` (`torch.where` of two floats gives float32)."""
    return torch.where(condition, like.new_tensor(yes), like.new_tensor(no))


def _vespo(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    # The product of the row's token ratios and mismatch weights, whatever level the loss's own ratio has.
    log_w = ctx.log_ratio(logps.detach()).sum(-1, keepdim=True)
    if loss.correction != "none":
        weights = loss.weights(logps, ctx).log().clamp(_VESPO_LEAST, LIMIT)
        log_w = log_w + (where_counted(weights, ctx.mask) if weights.shape == ctx.mask.shape else weights).sum(
            -1, keepdim=True
        )
    log_w = log_w.clamp(_VESPO_LEAST, LIMIT)
    k = _by_sign(adv >= 0, *loss.vespo_k, logps)
    lam = _by_sign(adv >= 0, *loss.vespo_lambda, logps).clamp(min=1e-4)
    return -torch.exp(lam + k * log_w - lam * log_w.exp()).detach() * adv * logps


_VESPO_LEAST = -18.420680743952367  # log(1e-8), the least log-weight of the published implementation


def _gmpo(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    clipped = log_ratio.clamp(-loss.epsilon_low, loss.high)
    lower = torch.where(adv >= 0, torch.minimum(log_ratio, clipped), torch.maximum(log_ratio, clipped))
    return -adv * row_mean(lower, ctx.mask).exp()


def _trusted(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, inside: Any) -> torch.Tensor:
    """Return -A sg(min(r, cap)) logp, 0 for tokens that have moved too far in the direction that A pushes."""
    up, down = inside
    keep = torch.where(adv > 0, up, down)
    return -log_ratio.exp().clamp(max=loss.ratio_cap).detach() * adv * logps * keep


def _dppo_tv(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    now = where_counted(logps.detach(), ctx.mask)
    moved = now.exp() - (now - log_ratio.detach()).exp()
    return _trusted(loss, log_ratio, logps, adv, (moved <= loss.high, moved >= -loss.epsilon_low))


def _dppo_kl(loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context) -> torch.Tensor:
    now = where_counted(logps.detach(), ctx.mask)
    old = now - log_ratio.detach()
    p, q = old.exp(), now.exp()
    kl = p * (old - now) + (1.0 - p) * torch.log((1.0 - p + 1e-8) / (1.0 - q + 1e-8))
    return _trusted(loss, log_ratio, logps, adv, ((kl <= loss.high) | (q <= p), (kl <= loss.epsilon_low) | (q >= p)))


def _reinforce(
    loss: Loss, log_ratio: torch.Tensor, logps: torch.Tensor, adv: torch.Tensor, ctx: Context
) -> torch.Tensor:
    return -adv * logps


@dataclass(frozen=True)
class ShapeEntry:
    """A shape.

    Attributes:
        function: Returns the cost of each token.
        formula: For one token.
        source: The paper.
        options: The fields of `Loss` that it looks at.
        row_advantages: Whether it takes one advantage a row only.
    """

    function: Shape
    formula: str
    source: str
    options: tuple[str, ...] = ()
    row_advantages: bool = False


SHAPES: Mapping[str, ShapeEntry] = {
    "clip": ShapeEntry(
        _clip,
        "-min(r A, clip(r, 1 - e_low, 1 + e_high) A); delta: r at most delta (arXiv:2505.07291); dual_clip c: at most"
        " -c A where A < 0 (arXiv:1912.09729)",
        "arXiv:1707.06347 equation 7",
        ("epsilon_low", "epsilon_high", "delta", "dual_clip"),
    ),
    "cispo": ShapeEntry(_cispo, "-sg(min(r, cap)) A logp", "arXiv:2506.13585 equation 4", ("ratio_cap",)),
    "sapo": ShapeEntry(
        _sapo,
        "-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A",
        "arXiv:2511.20347",
        ("tau_positive", "tau_negative"),
    ),
    "vespo": ShapeEntry(
        _vespo,
        "-sg(exp(lam + k log w - lam w)) A logp, w = product of the row's ratios",
        "arXiv:2602.10693",
        ("vespo_k", "vespo_lambda"),
    ),
    "gmpo": ShapeEntry(
        _gmpo,
        "-A exp(mean_t of log r, clipped to [-e_low, e_high] on the side of A)",
        "arXiv:2507.20673",
        ("epsilon_low", "epsilon_high"),
        row_advantages=True,
    ),
    "dppo_tv": ShapeEntry(
        _dppo_tv,
        "-sg(min(r, cap)) A logp while p - p_old is at most e_high (A > 0), at least -e_low (else)",
        "arXiv:2602.04879",
        ("epsilon_low", "epsilon_high", "ratio_cap"),
    ),
    "dppo_kl": ShapeEntry(
        _dppo_kl,
        "-sg(min(r, cap)) A logp while the binary KL, in A's direction, is at most e",
        "arXiv:2602.04879",
        ("epsilon_low", "epsilon_high", "ratio_cap"),
    ),
    "reinforce": ShapeEntry(_reinforce, "-A logp", "Williams 1992"),
}
"""The shapes by name."""


# ---------------------------------------------------------------------------------------------------------- aggregates


def _by_row_mean(cost: torch.Tensor, ctx: Context) -> torch.Tensor:
    return row_mean(cost, ctx.mask).sum() / max(1, ctx.whole.rows)


def _by_row_sum(cost: torch.Tensor, ctx: Context) -> torch.Tensor:
    return where_counted(cost, ctx.mask).sum() / max(1, ctx.whole.rows)


def _by_token(cost: torch.Tensor, ctx: Context) -> torch.Tensor:
    return where_counted(cost, ctx.mask).sum() / max(1, ctx.whole.tokens)


def _by_micro_batch_token(cost: torch.Tensor, ctx: Context) -> torch.Tensor:
    here = Totals.of(ctx.mask)
    share = here.rows / max(1, ctx.whole.rows)
    return where_counted(cost, ctx.mask).sum() / max(1, here.tokens) * share


def _by_constant_length(cost: torch.Tensor, ctx: Context) -> torch.Tensor:
    if ctx.max_length is None:
        raise OptionError("the aggregate 'constant_length' (dr_grpo) needs the context's max_length")
    return where_counted(cost, ctx.mask).sum() / (max(1, ctx.whole.rows) * ctx.max_length)


@dataclass(frozen=True)
class AggregateEntry:
    """An aggregate: its function and its formula."""

    function: Callable[[torch.Tensor, Context], torch.Tensor]
    formula: str


AGGREGATES: Mapping[str, AggregateEntry] = {
    "row_mean": AggregateEntry(_by_row_mean, "mean over rows of the mean over tokens"),
    "row_sum": AggregateEntry(_by_row_sum, "mean over rows of the sum over tokens"),
    "token_mean": AggregateEntry(_by_token, "sum / tokens of the optimizer batch"),
    "micro_batch_token_mean": AggregateEntry(
        _by_micro_batch_token, "sum / tokens of the micro-batch, weighted by its share of rows"
    ),
    "constant_length": AggregateEntry(_by_constant_length, "sum / (rows * max_length)"),
}
"""The aggregates by name."""


# ------------------------------------------------------------------------------------------------------------------ KL


def kl_terms(
    *, logps: torch.Tensor, ref_logps: torch.Tensor, log_ratio: torch.Tensor, estimator: str, gradient: str
) -> torch.Tensor:
    """Return a per-token estimate of KL(policy || reference), in nats, to be added to a loss.

    Args:
        logps, ref_logps: float [rows, tokens].
        log_ratio: Of the tokens, never of the row (a row's ratio says nothing about this token's).
        estimator: "k1": logp - ref; "k2": half its square; "k3": exp(ref - logp) - (ref - logp) - 1 (Schulman 2020).
        gradient: "unbiased": the expectation of the gradient is that of the reverse KL: k1 and k3 are multiplied by the
            ratio, which is not detached (arXiv:2512.02556 section 3.1), k2 by the detached ratio.
            "plain": the estimator itself; the expected gradient of k1 is then 0 and that of k3 the forward KL's
            (arXiv:2512.21852).
    """
    apart = (ref_logps.detach() - logps).clamp(-LIMIT, LIMIT)
    if estimator == "k1":
        value = -apart
    elif estimator == "k2":
        value = 0.5 * apart * apart
    elif estimator == "k3":
        value = torch.expm1(apart) - apart
    else:
        raise unknown("estimator of the KL", estimator, KL_ESTIMATORS)
    if gradient == "plain":
        return value
    if gradient != "unbiased":
        raise unknown("gradient of the KL", gradient, KL_GRADIENTS)
    ratio = log_ratio.exp()
    return value * (ratio.detach() if estimator == "k2" else ratio)


KL_ESTIMATORS = ("k1", "k2", "k3")
KL_GRADIENTS = ("unbiased", "plain")


# ---------------------------------------------------------------------------------------------------------------- loss


@dataclass(frozen=True)
class Loss:
    """A loss of the GRPO family; call it with log-probs and their context.

    Attributes:
        ratio, shape, aggregate, correction: The four choices, by name.
        epsilon_low, epsilon_high: Clip range; epsilon_high None: as epsilon_low. For "gmpo" they bound the log-ratio,
            for "dppo_tv" and "dppo_kl" the divergence.
        delta: "clip" only: an upper bound of the ratio for negative advantages (two-sided clip).
        dual_clip: "clip" only: the cost of a negative advantage is at most dual_clip * |A|.
        ratio_cap: "cispo", "dppo_tv", "dppo_kl": the largest ratio.
        tau_positive, tau_negative: "sapo": temperatures for A > 0 and the others.
        vespo_k, vespo_lambda: "vespo": for A >= 0 and A < 0.
        correction_low, correction_high: Bounds of the correction; None: its own (`mismatch.BOUNDS`).
        off_policy_threshold: Rows with A < 0 whose mean of rollout - logp (old - logp without rollout log-probs)
            exceeds it are left out of the policy term (arXiv:2512.02556 section 3.1); None: no such mask.
        beta: Weight of the KL to the reference.
        kl_estimator, kl_gradient: See `kl_terms`.
        entropy_coef: Weight of the mean entropy over the tokens of the policy term, which is subtracted.

    Raises:
        UnknownName: A choice that is none, with the nearest name.
        OptionError: A number that makes no sense.
    """

    ratio: Literal["token", "sequence"] = "token"
    shape: str = "clip"
    aggregate: str = "row_mean"
    correction: str = "none"
    epsilon_low: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    dual_clip: float | None = None
    ratio_cap: float = 5.0
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    vespo_k: tuple[float, float] = (2.0, 3.0)
    vespo_lambda: tuple[float, float] = (3.0, 2.0)
    correction_low: float | None = None
    correction_high: float | None = None
    off_policy_threshold: float | None = None
    beta: float = 0.0
    kl_estimator: str = "k3"
    kl_gradient: str = "unbiased"
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        for what, name, known in (
            ("ratio", self.ratio, ("token", "sequence")),
            ("shape", self.shape, SHAPES),
            ("aggregate", self.aggregate, AGGREGATES),
            ("estimator of the KL", self.kl_estimator, KL_ESTIMATORS),
            ("gradient of the KL", self.kl_gradient, KL_GRADIENTS),
        ):
            if name not in known:
                raise unknown(what, name, known)
        check_correction(self.correction, self.correction_low, self.correction_high)
        most = 1.0 if self.shape == "clip" else float("inf")
        if not 0.0 <= self.epsilon_low <= most or self.high < 0.0:
            raise OptionError(f"epsilons are at least 0, epsilon_low at most 1; got {self.epsilon_low} and {self.high}")
        for option in ("delta", "dual_clip"):
            value = getattr(self, option)
            if value is not None and not value > 1.0:
                raise OptionError(f"{option} is a number above 1, got {value}")
        self._refuse_unused()
        if min(self.ratio_cap, self.tau_positive, self.tau_negative) <= 0:
            raise OptionError("ratio_cap, tau_positive and tau_negative are above 0")

    def _refuse_unused(self) -> None:
        """An option that its shape does not look at would be a setting without effect."""
        own = SHAPES[self.shape].options
        for option in {name for entry in SHAPES.values() for name in entry.options}.difference(own):
            if getattr(self, option) != type(self).__dataclass_fields__[option].default:
                has = f"has {', '.join(own)}" if own else "has none"
                raise OptionError(f"{option} is no option of the shape {self.shape!r}, which {has}")

    @property
    def high(self) -> float:
        """epsilon_high, or epsilon_low where it is None."""
        return self.epsilon_low if self.epsilon_high is None else self.epsilon_high

    def __call__(self, logps: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the loss of one (micro-)batch, a scalar with gradient.

        Args:
            logps: float [rows, tokens]; log-probs of the sampled tokens under the policy.
            ctx: All else.
        """
        logps = _checked(logps, ctx)
        log_ratio = ctx.log_ratio(logps)
        cost = self.policy_terms(logps, log_ratio, ctx)
        if self.beta:
            if ctx.ref_logps is None:
                raise TensorError(f"beta is {self.beta}, which needs the context's ref_logps")
            ref = where_counted(ctx.ref_logps.to(logps.dtype), ctx.mask)
            cost = cost + self.beta * kl_terms(
                logps=logps,
                ref_logps=ref,
                log_ratio=log_ratio,
                estimator=self.kl_estimator,
                gradient=self.kl_gradient,
            )
        loss = AGGREGATES[self.aggregate].function(cost, ctx)
        return loss - self.entropy_coef * _mean_entropy(ctx) if self.entropy_coef else loss

    def policy_terms(self, logps: torch.Tensor, log_ratio: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the policy term of each token (or row), before it is aggregated."""
        entry = SHAPES[self.shape]
        if entry.row_advantages and ctx.advantages.dim() != 1:
            raise TensorError(f"the shape {self.shape!r} takes one advantage a row, got {describe(ctx.advantages)}")
        level = log_ratio if self.ratio == "token" else row_mean(log_ratio, ctx.mask)
        cost = entry.function(self, level, logps, ctx.token_advantages(logps.dtype), ctx)
        if self.off_policy_threshold is not None:
            cost = cost * _on_policy_rows(self.off_policy_threshold, logps, ctx)
        if ctx.policy_mask is not None:
            cost = cost * ctx.policy_mask
        if self.correction != "none" and self.shape != "vespo":  # vespo has the weights inside its own
            cost = cost * self.weights(logps, ctx)
        return cost.expand_as(ctx.mask)

    def weights(self, logps: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the weights against the mismatch of sampler and trainer, [rows, tokens] or [rows, 1]."""
        if ctx.rollout_logps is None:
            raise TensorError(f"the correction {self.correction!r} needs the context's rollout_logps")
        old = logps.detach() if ctx.old_logps is None else ctx.old_logps.to(logps.dtype)
        return importance_weights(
            old_logps=old,
            rollout_logps=ctx.rollout_logps.to(logps.dtype),
            mask=ctx.mask,
            correction=self.correction,
            low=self.correction_low,
            high=self.correction_high,
        )


def _checked(logps: torch.Tensor, ctx: Context) -> torch.Tensor:
    check_tokens("logps", logps, ctx.mask)
    check_finite("logps", logps, ctx.mask)
    for name in ("old_logps", "rollout_logps", "ref_logps"):
        tensor = getattr(ctx, name)
        if tensor is not None:
            check_tokens(name, tensor, ctx.mask, logps.dtype)
    return where_counted(logps, ctx.mask)


def _on_policy_rows(threshold: float, logps: torch.Tensor, ctx: Context) -> torch.Tensor:
    """Return 1 for tokens whose advantage is not negative or whose row is near the policy, else 0."""
    before = ctx.rollout_logps if ctx.rollout_logps is not None else ctx.old_logps
    apart = torch.zeros_like(logps) if before is None else before.to(logps.dtype) - logps
    distance = row_mean(torch.nan_to_num(apart.detach(), nan=0.0), ctx.mask)
    return ((ctx.token_advantages(logps.dtype) >= 0) | (distance <= threshold)).to(logps.dtype)


def _mean_entropy(ctx: Context) -> torch.Tensor:
    if ctx.entropies is None:
        raise TensorError("an entropy bonus needs the context's entropies")
    acted_on = ctx.mask if ctx.policy_mask is None else ctx.mask & ctx.policy_mask
    return where_counted(ctx.entropies, acted_on).sum() / max(1, ctx.whole.policy_tokens)


# ------------------------------------------------------------------------------------------------------------ presets


@dataclass(frozen=True)
class Preset:
    """A named loss.

    Attributes:
        loss: Its four choices and its numbers.
        source: The paper, or the trainer whose meaning the name has.
        use: When to take it.
    """

    loss: Loss
    source: str
    use: str


PRESETS: Mapping[str, Preset] = {
    "grpo": Preset(Loss(), "arXiv:2402.03300 equation 3", "the original; short answers weigh more a token"),
    "dr_grpo": Preset(
        Loss(aggregate="constant_length"), "arXiv:2503.20783 section 3.2", "no bias by length; advantages 'none'"
    ),
    "dapo": Preset(
        Loss(aggregate="token_mean", epsilon_high=0.28), "arXiv:2503.14476 equation 8", "long answers; a good default"
    ),
    "bnpo": Preset(Loss(aggregate="micro_batch_token_mean"), "TRL", "as TRL's; depends on the micro-batch"),
    "gspo": Preset(
        Loss(ratio="sequence", epsilon_low=3e-4, epsilon_high=4e-4),
        "arXiv:2507.18071 equation 5; clip range of its section 5",
        "mixture-of-experts models; several updates a rollout",
    ),
    "cispo": Preset(Loss(shape="cispo", aggregate="token_mean"), "arXiv:2506.13585", "rare tokens keep their gradient"),
    "sapo": Preset(Loss(shape="sapo"), "arXiv:2511.20347", "a soft edge instead of a clip"),
    "vespo": Preset(Loss(shape="vespo", aggregate="token_mean"), "arXiv:2602.10693", "stale rollouts"),
    "luspo": Preset(
        Loss(ratio="sequence", aggregate="row_sum", epsilon_low=2e-3, epsilon_high=2.5e-3),
        "arXiv:2602.05261",
        "as gspo, without its bias towards short answers",
    ),
    "gmpo": Preset(
        Loss(shape="gmpo", epsilon_low=0.4, epsilon_high=0.4), "arXiv:2507.20673", "a few outlying tokens do not matter"
    ),
    "dppo_tv": Preset(
        Loss(shape="dppo_tv", aggregate="token_mean", ratio_cap=20.0),
        "arXiv:2602.04879",
        "trust region in probability: rare tokens may move, frequent ones not far",
    ),
    "dppo_kl": Preset(
        Loss(shape="dppo_kl", aggregate="token_mean", ratio_cap=20.0), "arXiv:2602.04879", "as dppo_tv, by binary KL"
    ),
    "reinforce": Preset(
        Loss(shape="reinforce", aggregate="token_mean"), "Williams 1992", "one update a rollout, nothing to clip"
    ),
}
"""The losses by name."""


def preset(name: str, **changes: Any) -> Loss:
    """Return the loss of that name, with some of its numbers or choices changed: `preset("dapo", beta=0.04)`.

    Raises:
        UnknownName: No such loss, or no such field.
        OptionError: A value that makes no sense.
    """
    if name not in PRESETS:
        raise unknown("loss", name, PRESETS)
    fields = Loss.__dataclass_fields__
    for field_name in changes:
        if field_name not in fields:
            raise unknown("field of a loss", field_name, fields)
    return replace(PRESETS[name].loss, **changes)


# ----------------------------------------------------------------------------------------------------------- gradients


@dataclass(frozen=True, eq=False)
class Gradients:
    """A loss with what a head needs to go back.

    Attributes:
        loss: A scalar, detached.
        logps: d loss / d logp, like the log-probs; 0 where nothing counts.
        entropies: d loss / d entropy, like the entropies; None where the loss does not look at them.
    """

    loss: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor | None


def gradients(loss: LossFunction, logps: torch.Tensor, ctx: Context) -> Gradients:
    """Call any loss and return its value and d loss / d logp.

    Args:
        loss: A `Loss`, or a function `(logps, ctx) -> scalar` of your own.
        logps: float [rows, tokens]; no gradient goes further than this.
        ctx: Its context.

    Raises:
        TensorError: The loss is no finite scalar, or does not depend on the log-probs at all.
    """
    leaf = logps.detach().clone().requires_grad_()
    inputs = [leaf]
    if ctx.entropies is not None:
        ctx = replace(ctx, entropies=ctx.entropies.detach().clone().requires_grad_())
        inputs.append(ctx.entropies)  # type: ignore[arg-type]
    with torch.enable_grad():
        value = loss(leaf, ctx)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TensorError(f"a loss returns a scalar tensor, got {describe(value)}")
    if not bool(torch.isfinite(value.detach())):
        raise TensorError(f"the loss is {value.item()}")
    if not value.requires_grad:
        raise TensorError("the loss does not depend on the log-probs: was one of them detached? See the detach rule")
    found = torch.autograd.grad(value.reshape(()), inputs, allow_unused=True)
    by_logps = torch.zeros_like(leaf) if found[0] is None else where_counted(found[0], ctx.mask)
    return Gradients(value.detach().reshape(()), by_logps, found[1] if len(found) > 1 else None)


# ------------------------------------------------------------------------------------------------------------- metrics


@torch.no_grad()
def metrics(loss: Loss, logps: torch.Tensor, ctx: Context) -> dict[str, float]:
    """Return what is worth a line in a run log, over the counted tokens of this (micro-)batch.

    `ratio_mean`, `ratio_min`, `ratio_max` of the tokens; `clip_low` and `clip_high`: share of tokens whose gradient
    the clip takes away, below for A < 0 and above for A > 0; `capped`: for "cispo", share of tokens with A > 0 whose
    ratio is above the cap (their gradient stays, with the cap as its weight); `kl_ref` (k3) with a reference;
    `entropy`; `dropped_rows` by the off-policy threshold; `weight_mean` and `weight_zero` of the correction. {} when
    nothing counts.
    """
    logps = _checked(logps, ctx)
    mask = ctx.mask
    if not bool(mask.any()):
        return {}
    log_ratio = ctx.log_ratio(logps)
    ratio, adv = log_ratio.exp(), ctx.token_advantages(logps.dtype).expand_as(mask)
    level = (log_ratio if loss.ratio == "token" else row_mean(log_ratio, mask).expand_as(mask)).exp()
    found = {
        "ratio_mean": float(ratio[mask].mean()),
        "ratio_min": float(ratio[mask].min()),
        "ratio_max": float(ratio[mask].max()),
    }
    if loss.shape == "clip":
        low, high = _clipped(loss, level, adv)
        found["clip_low"] = float(low[mask].double().mean())
        found["clip_high"] = float(high[mask].double().mean())
    if loss.shape == "cispo":
        found["capped"] = float(((level > loss.ratio_cap) & (adv > 0))[mask].double().mean())
    if ctx.ref_logps is not None:
        apart = (ctx.ref_logps - logps)[mask].clamp(-LIMIT, LIMIT)
        found["kl_ref"] = float((torch.expm1(apart) - apart).mean())
    if ctx.entropies is not None:
        found["entropy"] = float(ctx.entropies[mask].mean())
    if loss.off_policy_threshold is not None:
        kept = _on_policy_rows(loss.off_policy_threshold, logps, ctx)
        rows = mask.any(-1)
        found["dropped_rows"] = float((kept.expand_as(mask).amin(-1)[rows] == 0).double().mean())
    if loss.correction != "none":
        weights = loss.weights(logps, ctx).expand_as(mask)[mask]
        found["weight_mean"] = float(weights.mean())
        found["weight_zero"] = float((weights == 0).double().mean())
    return found


def clipped_rows(loss: Loss, logps: torch.Tensor, ctx: Context) -> tuple[float, float]:
    """Return the least share of a row's tokens that the clip takes away below, and the largest that it does above.

    A row without counted tokens is none; (nan, nan) where there is no other. For losses that clip.
    """
    logps = _checked(logps, ctx)
    mask = ctx.mask
    rows = mask.any(-1)
    if not bool(rows.any()):
        return math.nan, math.nan
    log_ratio = ctx.log_ratio(logps)
    level = (log_ratio if loss.ratio == "token" else row_mean(log_ratio, mask).expand_as(mask)).exp()
    low, high = _clipped(loss, level, ctx.token_advantages(logps.dtype).expand_as(mask))
    tokens = mask.sum(-1)[rows].double()
    return (
        float(((low & mask).sum(-1)[rows] / tokens).min()),
        float(((high & mask).sum(-1)[rows] / tokens).max()),
    )


def _clipped(loss: Loss, level: torch.Tensor, adv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens the clip takes away below, and above."""
    return (level < 1.0 - loss.epsilon_low) & (adv < 0), (level > 1.0 + loss.high) & (adv > 0)
