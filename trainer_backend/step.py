"""One optimizer step: rows in, new weights and what was seen on the way out.

In the order it runs (`update`):

1. totals of the whole optimizer batch, over all processes: every counted row is in them, whatever is computed later;
2. rows whose gradient is exactly zero are set aside (`may_drop`);
3. where asked for: which tokens have the highest entropy, and the log-probs of the reference;
4. micro-steps, longest first: hidden states, log-probs of the completion tokens, the loss on [rows, tokens], backward;
5. gradients are added over the processes; NaN or infinity anywhere skips the step: weights and optimizer stay;
6. clip, optimizer; then the schedule, which counts skipped steps, so that it ends when the run does.

Old log-probs are folded in: without them the policy is the one that sampled, and the loss takes the log-probs of this
very forward pass (ratio exactly 1). For a second update on the same rows, `StepResult.logps` of the first are the old
ones (`batch.with_old_logps`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from rewardkit.errors import OptionError
from trainer_backend.batch import Layout, MicroStep, Row, micro_steps
from trainer_backend.context import Context, LossFunction, Totals, top_entropy_mask
from trainer_backend.errors import TensorError
from trainer_backend.loss import Loss, clipped_rows, gradients, metrics
from trainer_backend.mismatch import mismatch
from trainer_backend.model.forward import Dense, precision, score_states
from trainer_backend.model.forward import score as score_tokens
from trainer_backend.model.modes import evaluating, learning
from trainer_backend.model.offload import LayerInputs
from trainer_backend.model.streamed import Streamed, segments_of
from trainer_backend.ops import Head, LinearLogps
from trainer_backend.parallel import World

# ------------------------------------------------------------------------------------------------- what a step needs


@dataclass(frozen=True, eq=False)
class Policy:
    """The model that is trained, and how it is computed.

    Attributes:
        model: A causal language model, with or without an adapter around it; what asks for a gradient is trained.
        head: From `model.forward.head_of`.
        dtype: What forward passes compute in.
        layout: "shared" where the model allows rows to share their beginning, "line" where its layers are streamed
            (`batch`).
        reference: Makes the model the reference policy for as long as its context is open; needed for a KL.
        store: Where the inputs of layers wait, where that is on the host (`model.offload`); the same as `streamed` has.
        streamed: The model's decoder with its layers streamed, with the layout "line"; None: its own layers.

    Raises:
        TensorError: Layers are streamed in another layout, or below logits in place of a head.
    """

    model: nn.Module
    head: Head | Dense
    dtype: torch.dtype
    layout: Layout = "apart"
    reference: Callable[[nn.Module], AbstractContextManager[object]] | None = None
    store: LayerInputs | None = None
    streamed: Streamed | None = None

    def __post_init__(self) -> None:
        if (self.streamed is not None) != (self.layout == "line"):
            raise TensorError(f'streamed layers, and no others, take rows in a "line"; the layout is {self.layout!r}')
        if self.streamed is not None and not isinstance(self.head, Head):
            raise TensorError(
                "streamed layers end in hidden states, which need a head: this one takes the model's logits"
            )

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(self.model.parameters()).device

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that ask for a gradient."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class StepSettings:
    """How an optimizer step is taken.

    Attributes:
        loss: A `Loss`, whose `beta` and `entropy_coef` are taken from it, or a function `(logps, context) -> scalar`.
            The aggregate "micro_batch_token_mean" ("bnpo") takes the optimizer batch as its micro-batch, as TRL does
            without accumulation: how many micro-steps memory allows never changes a result.
        temperature: Of the sampler; the logits are divided by it.
        token_budget: Tokens of a micro-step at most, padding included; None: all rows in one.
        max_grad_norm: Gradients are scaled down to this norm; None or 0: never.
        max_completion_length: The longest completion that the sampler may give; needed by "dr_grpo".
        top_entropy_quantile: The policy term is taken on this share of tokens, those with the highest entropy; 1: all.
        measure_entropy: Whether the entropy is measured where the loss does not need it (no product more, but one more
            pass over each tile of logits).

    Raises:
        OptionError: A number that makes no sense.
    """

    loss: LossFunction
    temperature: float = 1.0
    token_budget: int | None = 16_384
    max_grad_norm: float | None = 1.0
    max_completion_length: int | None = None
    top_entropy_quantile: float = 1.0
    measure_entropy: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise OptionError(
                f"temperature is above 0, got {self.temperature}: greedy samples are all alike and teach nothing"
            )
        if self.max_grad_norm is not None and not self.max_grad_norm >= 0.0:
            raise OptionError(f"max_grad_norm is at least 0, got {self.max_grad_norm}")
        if not 0.0 < self.top_entropy_quantile <= 1.0:
            raise OptionError(f"top_entropy_quantile is above 0 and at most 1, got {self.top_entropy_quantile}")

    @property
    def family(self) -> Loss | None:
        """The loss, where it is one of the built-in family."""
        return self.loss if isinstance(self.loss, Loss) else None

    @property
    def whole_batch_loss(self) -> LossFunction:
        """The loss that micro-steps add up to whatever their number."""
        if self.family is not None and self.family.aggregate == "micro_batch_token_mean":
            return dataclasses.replace(self.family, aggregate="token_mean")
        return self.loss

    @property
    def entropy(self) -> Literal["none", "value", "gradient"]:
        """What the head is asked for."""
        if self.family is None:
            return "gradient"  # a function of the user's may do anything with the entropies
        if self.family.entropy_coef:
            return "gradient"
        return "value" if self.measure_entropy else "none"


@dataclass(frozen=True, eq=False)
class StepResult:
    """What an optimizer step did.

    Attributes:
        metrics: By TRL's names where there are such, over all processes; finite ones only. Entropy, KL, ratios, clip
            shares and sampling/ are taken over the tokens that were computed; `measured/share` says what share of the
            counted tokens these are.
        logps: Log-probs of each row given, before the step, [its length] on the CPU; None for rows not computed.
        skipped: Whether the step was left out because of a NaN or an infinity.
        moved: Whether a weight is another than before: not where the step was skipped, and not without a gradient as
            long as the optimizer has no moments, or with a learning rate of 0.
        loss, policy_loss, kl_loss: The loss, and its parts: `loss = policy_loss + kl_loss - entropy_coef * entropy`.
        grad_norm: Before clipping.
    """

    metrics: dict[str, float]
    logps: list[torch.Tensor | None]
    skipped: bool
    moved: bool
    loss: float
    policy_loss: float
    kl_loss: float
    grad_norm: float


# ---------------------------------------------------------------------------------------------------------- the step


def update(
    policy: Policy,
    rows: Sequence[Row],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    settings: StepSettings,
    world: World | None = None,
) -> StepResult:
    """Take one optimizer step on the rows of this process and return what was seen.

    Every process calls it once a step, also one without rows.

    Args:
        policy: The model.
        rows: This process's part of the optimizer batch: whole groups.
        optimizer: Over the policy's trained parameters.
        scheduler: Stepped last, also where the step is skipped; None: none.
        settings: How.
        world: The processes; None: only this one.

    Raises:
        TensorError: Rows lack something that the loss needs, or hold a NaN that counts.
    """
    world = world or World()
    plan = _plan(policy, rows, settings, world)
    optimizer.zero_grad(set_to_none=True)
    seen = _Seen(settings, plan.totals, lost=plan.lost)
    rate = float(optimizer.param_groups[0]["lr"])
    try:
        with learning(policy.model):
            for step in plan.steps:
                with policy.store.micro_step() if policy.store is not None else contextlib.nullcontext():
                    _backward(policy, step, settings, plan, seen)
                if seen.lost:
                    break
        lost = world.sums([seen.lost])[0] > 0
        norm = _norm(policy, plan, world)
        skipped = lost or not math.isfinite(norm)
        moved = False
        if not skipped:
            if settings.max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(policy.trained, settings.max_grad_norm, torch.tensor(norm))
            moved = _stepped(policy, optimizer, still=norm == 0.0 or rate == 0.0)
        if scheduler is not None:
            _advance(scheduler)
    finally:
        optimizer.zero_grad(set_to_none=True)
    return _result(rows, plan, seen, world, rate=rate, norm=math.nan if lost else norm, skipped=skipped, moved=moved)


def _stepped(policy: Policy, optimizer: torch.optim.Optimizer, *, still: bool) -> bool:
    """Let the optimizer step, and return whether that changed a weight.

    A batch of dead groups is a step like any other, as in TRL and verl: the moments of earlier steps go on moving the
    weights, and decay.

    Args:
        policy: Its trained parameters are the optimizer's.
        optimizer: The optimizer.
        still: The gradient or the learning rate is 0, so the weights may stay; only then are they looked at, which
            takes a copy of them.
    """
    before = [weight.detach().clone() for weight in policy.trained] if still else None
    optimizer.step()
    return before is None or not all(map(torch.equal, policy.trained, before))


def _advance(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    with warnings.catch_warnings():
        # That the optimizer took no step yet is no mistake here: the first ones were skipped.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        scheduler.step()


def score(
    policy: Policy, rows: Sequence[Row], settings: StepSettings, *, reference: bool = False
) -> list[torch.Tensor | None]:
    """Return the log-probs of each row that counts, [its length] on the CPU; None for others.

    They are those of the policy that samples: without gradient, and without an adapter's dropout.

    Args:
        policy: The model.
        rows: The rows.
        settings: Temperature and token budget are taken from it.
        reference: Under the reference policy instead.
    """
    return _scored(policy, rows, settings, None, reference=reference, entropies=False)


def may_drop(loss: LossFunction) -> bool:
    """Return whether rows with advantage 0 have neither value nor gradient under a loss, so that they can be left out.

    True for every built-in shape without KL and entropy bonus; it is tried, not looked up. Totals of rows and tokens
    still count such rows. Never for a function of the user's: it may compare rows.
    """
    return isinstance(loss, Loss) and not loss.beta and not loss.entropy_coef and _silent_at_zero(loss)


@functools.lru_cache(maxsize=64)
def _silent_at_zero(loss: Loss) -> bool:
    logps = torch.tensor([[-0.1, -2.0, -7.0], [-1.5, -0.01, -3.0]], dtype=torch.float64)
    ctx = Context(
        mask=torch.ones(2, 3, dtype=torch.bool),
        advantages=torch.zeros(2, dtype=torch.float64),
        old_logps=logps.flip(1),
        rollout_logps=logps.flip(0),
        max_length=3,
    )
    found = gradients(loss, logps, ctx)
    return not bool(found.loss) and not bool(found.logps.any())


# ---------------------------------------------------------------------------------------------------------- planning


@dataclass(frozen=True, eq=False)
class _Plan:
    """What was settled before the first micro-step."""

    steps: list[MicroStep]
    totals: Totals
    learning: list[int]
    policy_masks: dict[int, torch.Tensor] | None  # by row, bool [its length]
    scale: float  # gradients are computed this many times too large
    lost: bool  # something is not finite already, so there are no micro-steps


def _learning(rows: Sequence[Row], settings: StepSettings) -> list[int]:
    drop = may_drop(settings.loss)
    return [at for at, row in enumerate(rows) if row.in_loss and not (drop and row.advantage == 0.0)]


def _plan(policy: Policy, rows: Sequence[Row], settings: StepSettings, world: World) -> _Plan:
    counted = [row for row in rows if row.in_loss]
    numbers = [int(value) for value in world.sums([len(counted), sum(row.length for row in counted)])]
    masks: dict[int, torch.Tensor] | None = None
    policy_tokens, lost = numbers[1], False
    if settings.top_entropy_quantile < 1.0:
        masks = _highest_entropies(policy, rows, settings, world)
        lost = masks is None
        policy_tokens = int(world.sums([sum(int(mask.sum()) for mask in (masks or {}).values())])[0])
    family = settings.family
    if family is not None and family.beta and not lost:
        rows, lost = _with_reference(policy, rows, settings)
    learning = _learning(rows, settings)
    places = [] if lost else learning
    steps = micro_steps(rows, settings.token_budget, layout=policy.layout, places=places, device=policy.device)
    # float16 has no room for 1 / tokens; a power of two changes no bit of what does fit.
    scale = 2.0 ** math.floor(math.log2(max(1, numbers[1]))) if policy.dtype == torch.float16 else 1.0
    return _Plan(steps, Totals(numbers[0], numbers[1], policy_tokens), learning, masks, scale, lost)


def _with_reference(policy: Policy, rows: Sequence[Row], settings: StepSettings) -> tuple[list[Row], bool]:
    """Return the rows with log-probs of the reference where they have none, and whether one of these is not finite."""
    missing = [at for at, row in enumerate(rows) if row.in_loss and row.ref_logps is None]
    found, lost = list(rows), False
    if missing:
        logps = _scored(policy, rows, settings, missing, reference=True, entropies=False)
        for at in missing:
            value = logps[at]
            found[at] = dataclasses.replace(rows[at], ref_logps=value)
            lost = lost or (value is not None and not _finite(value))
    return found, lost


def _highest_entropies(
    policy: Policy, rows: Sequence[Row], settings: StepSettings, world: World
) -> dict[int, torch.Tensor] | None:
    """Return the tokens of each counted row that are among those with the highest entropy in the optimizer batch.

    None, in all processes alike, where an entropy is not finite.
    """
    found = _scored(policy, rows, settings, None, reference=False, entropies=True)
    known = [(at, value) for at, value in enumerate(found) if value is not None]
    own = torch.cat([value.double() for _, value in known]) if known else torch.zeros(0, dtype=torch.float64)
    parts = world.gather(own)
    if not all(map(_finite, parts)):
        return None
    exact = all(value.dtype == torch.float64 for _, value in known)
    line = _ties_alike(torch.cat(parts), 1e-10 if exact else 1e-5).unsqueeze(0)
    chosen = top_entropy_mask(
        entropies=line, mask=torch.ones_like(line, dtype=torch.bool), share=settings.top_entropy_quantile
    )[0]
    mine = torch.split(chosen, [len(part) for part in parts])[world.rank]
    return dict(zip([at for at, _ in known], torch.split(mine, [len(value) for _, value in known]), strict=True))


def _ties_alike(values: torch.Tensor, within: float) -> torch.Tensor:
    """Return values of which neighbours closer than `within` (absolute and relative) are the same number.

    The first tokens of a group have one entropy, but for rounding, which must not tell them apart at a threshold.
    """
    ordered, order = values.sort()
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered.diff() > within * (1.0 + ordered[1:].abs())
    found = torch.empty_like(values)
    found[order] = ordered[starts][starts.cumsum(0) - 1]
    return found


# -------------------------------------------------------------------------------------------------- forward, backward


def _forward(
    policy: Policy, step: MicroStep, settings: StepSettings, entropy: Literal["none", "value", "gradient"]
) -> LinearLogps:
    anchors = None if step.rollout_logps is None else step.gather(step.rollout_logps).index_select(0, step.firsts)
    how: dict[str, Any] = {"temperature": settings.temperature, "anchors": anchors, "entropy": entropy}
    with precision(policy.device, policy.dtype):
        if policy.streamed is not None:
            assert isinstance(policy.head, Head) and step.branches is not None  # as Policy and a line have them
            (ids,), (positions,), (branches,) = step.input_ids, step.position_ids, step.branches
            states = policy.streamed.hidden_states(ids, positions, segments_of(branches)).index_select(0, step.sources)
            found = score_states(states, policy.head, step.targets, **how)
        else:
            found = score_tokens(
                policy.model,
                policy.head,
                input_ids=step.input_ids,
                attention_mask=step.attention_mask,
                position_ids=step.position_ids,
                where=step.sources,
                targets=step.targets,
                **how,
            )
    entropies = None if found.entropies is None else found.entropies.index_select(0, step.repeats)
    return LinearLogps(found.logps.index_select(0, step.repeats), entropies)


def _scored(
    policy: Policy,
    rows: Sequence[Row],
    settings: StepSettings,
    places: Sequence[int] | None,
    *,
    reference: bool,
    entropies: bool,
) -> list[torch.Tensor | None]:
    """Return the log-probs or the entropies of rows, without gradient."""
    found: list[torch.Tensor | None] = [None] * len(rows)
    context: AbstractContextManager[object] = contextlib.nullcontext()
    if reference:
        if policy.reference is None:
            raise TensorError("the KL needs a reference policy: give Policy a reference, or rows their ref_logps")
        context = policy.reference(policy.model)
    steps = micro_steps(rows, settings.token_budget, layout=policy.layout, places=places, device=policy.device)
    with torch.no_grad(), evaluating(policy.model), context:
        for step in steps:
            out = _forward(policy, step, settings, "value" if entropies else "none")
            values = out.entropies if entropies else out.logps
            assert values is not None
            for at, value in zip(step.rows, step.by_row(values.cpu()), strict=True):
                found[at] = value
    return found


def _backward(policy: Policy, step: MicroStep, settings: StepSettings, plan: _Plan, seen: _Seen) -> None:
    """Add the gradient of one micro-step."""
    out = _forward(policy, step, settings, settings.entropy)
    logps = step.spread(out.logps.detach())
    if not (_finite(out.logps) and (out.entropies is None or _finite(out.entropies))):
        seen.lost = True
        if policy.store is not None:
            policy.store.forget()
        return
    ctx = _context(step, out, settings, plan)
    found = gradients(settings.whole_batch_loss, logps, ctx)
    outputs, slopes = [out.logps], [step.gather(found.logps) * plan.scale]
    if found.entropies is not None and out.entropies is not None and out.entropies.requires_grad:
        outputs.append(out.entropies)
        slopes.append(step.gather(found.entropies) * plan.scale)
    torch.autograd.backward(outputs, slopes)
    seen.add(step, logps, ctx, float(found.loss))


def _finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values.detach()).all())


def _context(step: MicroStep, out: LinearLogps, settings: StepSettings, plan: _Plan) -> Context:
    def like(value: torch.Tensor | None) -> torch.Tensor | None:
        return None if value is None else value.to(out.logps.dtype)

    policy_mask = None
    if plan.policy_masks is not None:
        chosen = torch.cat([plan.policy_masks[at] for at in step.rows]).to(step.mask.device)
        policy_mask = step.spread(chosen.to(out.logps.dtype)) > 0
    return Context(
        mask=step.mask,
        advantages=step.advantages,
        old_logps=like(step.old_logps),
        rollout_logps=like(step.rollout_logps),
        ref_logps=like(step.ref_logps),
        entropies=None if out.entropies is None else step.spread(out.entropies.detach()),
        policy_mask=policy_mask,
        totals=plan.totals,
        max_length=settings.max_completion_length,
    )


def _norm(policy: Policy, plan: _Plan, world: World) -> float:
    """Add the gradients over the processes and return their norm; a parameter that got none has zeros."""
    trained = policy.trained
    world.add_gradients(trained)
    found = [parameter.grad for parameter in trained if parameter.grad is not None]
    if plan.scale != 1.0:
        torch._foreach_mul_(found, 1.0 / plan.scale)
    return float(torch.nn.utils.get_total_norm(found)) if found else 0.0


# ----------------------------------------------------------------------------------------------------------- metrics

BY_TRL = {
    "clip_low": "clip_ratio/low_mean",
    "clip_high": "clip_ratio/high_mean",
    "capped": "cispo_clip_ratio",
    "kl_ref": "kl",
    "entropy": "entropy",
    "ratio_mean": "ratio/mean",
    "ratio_min": "ratio/min",
    "ratio_max": "ratio/max",
    "weight_mean": "sampling/importance_sampling_ratio/mean",
    "weight_zero": "sampling/importance_sampling_ratio/zero",
    "dropped_rows": "off_policy/dropped_rows",
}
"""Names of `loss.metrics`, and what they are called in a run log."""


@dataclass(eq=False)
class _Seen:
    """What micro-steps have shown so far."""

    settings: StepSettings
    totals: Totals
    lost: bool = False
    fed: int = 0
    parts: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # loss, policy, KL
    means: dict[str, tuple[float, float]] = field(default_factory=dict)  # sum of value * weight, sum of weights
    lowest: dict[str, float] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    logps: dict[int, torch.Tensor] = field(default_factory=dict)

    def add(self, step: MicroStep, logps: torch.Tensor, ctx: Context, loss: float) -> None:
        """Take in one micro-step."""
        self.fed += step.tokens
        for at, value in zip(step.rows, step.by_row(step.gather(logps).cpu()), strict=True):
            self.logps[at] = value
        self._losses(logps, ctx, loss)
        tokens, rows = float(ctx.mask.sum()), float(len(step.rows))
        family = self.settings.family
        known = metrics(family if family is not None else Loss(), logps, ctx)
        for name, number in known.items():
            if family is None and name.startswith("clip"):
                continue
            if name == "ratio_min":
                self._low(BY_TRL[name], number)
            elif name == "ratio_max":
                self._high(BY_TRL[name], number)
            else:
                self._mean(BY_TRL[name], number, rows if name == "dropped_rows" else tokens)
        if "clip_low" in known and family is not None:
            self._mean("clip_ratio/region_mean", known["clip_low"] + known["clip_high"], tokens)
            low, high = clipped_rows(family, logps, ctx)
            self._low("clip_ratio/low_min", low)
            self._high("clip_ratio/high_max", high)
        self._sampling(logps, ctx)

    def _losses(self, logps: torch.Tensor, ctx: Context, loss: float) -> None:
        family = self.settings.family
        policy, kl = loss, 0.0
        if family is not None and (family.beta or family.entropy_coef):
            whole = self.settings.whole_batch_loss
            assert isinstance(whole, Loss)
            with torch.no_grad():
                policy = float(dataclasses.replace(whole, beta=0.0, entropy_coef=0.0)(logps, ctx))
                if family.beta:
                    kl = float(dataclasses.replace(whole, entropy_coef=0.0)(logps, ctx)) - policy
        for at, value in enumerate((loss, policy, kl)):
            self.parts[at] += value

    def _sampling(self, logps: torch.Tensor, ctx: Context) -> None:
        if ctx.rollout_logps is None:
            return
        old = logps if ctx.old_logps is None else ctx.old_logps
        seen = mismatch(old_logps=old, rollout_logps=ctx.rollout_logps, mask=ctx.mask)
        if not seen.tokens:
            return
        known = ctx.mask & ~torch.isnan(ctx.rollout_logps)
        apart = (old - ctx.rollout_logps)[known].abs()
        self._mean("sampling/sampling_logp_difference/mean", float(apart.double().mean()), seen.tokens)
        self._high("sampling/sampling_logp_difference/max", seen.largest)
        for name in ("k1", "k3", "chi2", "outside"):
            self._mean(f"sampling/{name}", getattr(seen, name), seen.tokens)
        family = self.settings.family
        if family is not None and family.correction != "none":
            weights = family.weights(logps, ctx).expand_as(ctx.mask)[ctx.mask]
            self._low("sampling/importance_sampling_ratio/min", float(weights.min()))
            self._high("sampling/importance_sampling_ratio/max", float(weights.max()))

    def _mean(self, name: str, value: float, weight: float) -> None:
        total, weights = self.means.get(name, (0.0, 0.0))
        self.means[name] = (total + value * weight, weights + weight)

    def _low(self, name: str, value: float) -> None:
        self.lowest[name] = min(value, self.lowest.get(name, math.inf))

    def _high(self, name: str, value: float) -> None:
        self.highest[name] = max(value, self.highest.get(name, -math.inf))


def _result(
    rows: Sequence[Row],
    plan: _Plan,
    seen: _Seen,
    world: World,
    *,
    rate: float,
    norm: float,
    skipped: bool,
    moved: bool,
) -> StepResult:
    lengths = [row.length for row in rows]
    measured = sum(len(value) for value in seen.logps.values())
    own = [*seen.parts, len(rows), sum(lengths), len(plan.learning), measured, seen.fed]
    loss, policy, kl, count, tokens, learning, computed, fed = world.sums(own)
    found = {
        "loss": loss,
        "policy_loss": policy,
        "grad_norm": norm,
        "learning_rate": rate,
        "rows/all": count,
        "rows/in_loss": float(plan.totals.rows),
        "rows/learning": learning,
        "tokens/in_loss": float(plan.totals.tokens),
        "tokens/fed": fed,
        "measured/share": computed / plan.totals.tokens if plan.totals.tokens else 0.0,
        "completions/mean_length": tokens / count if count else 0.0,
        "completions/max_length": world.highest([max(lengths, default=0)])[0],
        "completions/min_length": -world.highest([-min(lengths)] if lengths else [-math.inf])[0],
    }
    if seen.settings.family is not None and seen.settings.family.beta:
        found["kl_loss"] = kl
    found |= _together(world.gather((seen.means, seen.lowest, seen.highest)))
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    logps = [seen.logps.get(at) for at in range(len(rows))]
    return StepResult(found, logps, skipped, moved, loss, policy, kl, norm)


def _together(
    parts: Sequence[tuple[dict[str, tuple[float, float]], dict[str, float], dict[str, float]]],
) -> dict[str, float]:
    """Return the metrics of all processes as one."""
    sums: dict[str, tuple[float, float]] = {}
    found: dict[str, float] = {}
    for means, lowest, highest in parts:
        for name, (total, weight) in means.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + weight)
        for name, value in lowest.items():
            found[name] = min(value, found.get(name, math.inf))
        for name, value in highest.items():
            found[name] = max(value, found.get(name, -math.inf))
    return {name: total / weight for name, (total, weight) in sums.items() if weight} | found
