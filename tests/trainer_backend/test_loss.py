"""The loss family against retypings from the papers, exact expectations, and the invariances that trainers break."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer's formulas need torch")

from rewardkit.errors import OptionError, UnknownName  # noqa: E402
from trainer_backend.context import Context, Totals, token_mask, top_entropy_mask  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.loss import PRESETS, Loss, clipped_rows, gradients, kl_terms, metrics, preset  # noqa: E402

TOKENS, MAX_LENGTH = 7, 16


def tensor(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64)


def make(seed: int = 0, lengths: tuple[int, ...] = (7, 3, 1, 5), **changes: Any) -> tuple[Any, Context]:
    """Log-probs and a context in float64, with everything that any loss looks at."""
    dice = torch.Generator().manual_seed(seed)
    rows = len(lengths)

    def normal(scale: float) -> Any:
        return torch.randn(rows, TOKENS, generator=dice, dtype=torch.float64) * scale

    logps = -normal(1.0).abs() - 0.02
    fields: dict[str, Any] = {
        "mask": token_mask(lengths=torch.tensor(lengths), width=TOKENS),
        "advantages": torch.randn(rows, generator=dice, dtype=torch.float64),
        "old_logps": (logps + normal(0.5)).clamp(max=-1e-3),
        "rollout_logps": (logps + normal(0.5)).clamp(max=-1e-3),
        "ref_logps": (logps + normal(0.5)).clamp(max=-1e-3),
        "entropies": normal(1.0).abs(),
        "max_length": MAX_LENGTH,
    }
    return logps, Context(**(fields | changes))


# -------------------------------------------------------------------- a second version, one number at a time, by papers


def retyped(loss: Loss, logps: Any, ctx: Context) -> float:
    """The loss in plain Python floats, for gmpo, dppo, reinforce, dual clip and what TRL has too."""
    mask, adv = ctx.mask.tolist(), ctx.advantages.tolist()
    new, old = logps.tolist(), (ctx.old_logps if ctx.old_logps is not None else logps).tolist()
    total, tokens, per_row = 0.0, 0, []
    for i, counts in enumerate(mask):
        at = [t for t, yes in enumerate(counts) if yes]
        logs = [new[i][t] - old[i][t] for t in at]
        costs = []
        for t, log in zip(at, logs, strict=True):
            a, r = adv[i], math.exp(log)
            if loss.ratio == "sequence":
                r = math.exp(math.fsum(logs) / len(logs))
            if loss.shape == "clip":
                clipped = min(max(r, 1 - loss.epsilon_low), 1 + loss.high)
                cost = -min(r * a, clipped * a)
                if loss.dual_clip and a < 0:
                    cost = min(cost, -loss.dual_clip * a)
            elif loss.shape == "gmpo":
                bounded = []
                for other in logs:
                    clipped = min(max(other, -loss.epsilon_low), loss.high)
                    bounded.append(min(other, clipped) if a >= 0 else max(other, clipped))
                cost = -a * math.exp(math.fsum(bounded) / len(bounded))
            elif loss.shape in ("dppo_tv", "dppo_kl"):
                p, q = math.exp(old[i][t]), math.exp(new[i][t])
                if loss.shape == "dppo_tv":
                    keep = q - p <= loss.high if a > 0 else q - p >= -loss.epsilon_low
                else:
                    kl = p * (old[i][t] - new[i][t]) + (1 - p) * math.log((1 - p + 1e-8) / (1 - q + 1e-8))
                    keep = (kl <= loss.high or q <= p) if a > 0 else (kl <= loss.epsilon_low or q >= p)
                cost = -a * min(r, loss.ratio_cap) * new[i][t] * keep
            elif loss.shape == "reinforce":
                cost = -a * new[i][t]
            elif loss.shape == "cispo":
                cost = -min(r, loss.ratio_cap) * a * new[i][t]
            elif loss.shape == "sapo":
                tau = loss.tau_positive if a > 0 else loss.tau_negative
                cost = -4 / tau / (1 + math.exp(-tau * (r - 1))) * a
            else:
                k, lam = (loss.vespo_k[a < 0], loss.vespo_lambda[a < 0])
                w = math.exp(math.fsum(logs))
                cost = -math.exp(lam + k * math.log(w) - lam * w) * a * new[i][t]
            costs.append(cost)
        if at:
            per_row.append(costs)
            total += math.fsum(costs)
            tokens += len(costs)
    if loss.aggregate == "row_mean":
        return math.fsum(math.fsum(costs) / len(costs) for costs in per_row) / len(per_row)
    if loss.aggregate == "row_sum":
        return total / len(per_row)
    if loss.aggregate == "constant_length":
        return total / (len(per_row) * MAX_LENGTH)
    return total / tokens


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("seed", range(5))
def test_every_preset_equals_its_retyping(name: str, seed: int) -> None:
    for lengths in ((7, 3, 1, 5), (7, 0, 2, 7)):  # a row of no token is in no denominator
        logps, ctx = make(seed, lengths)
        found = PRESETS[name].loss(logps, ctx)
        assert float(found) == pytest.approx(retyped(PRESETS[name].loss, logps, ctx), rel=1e-12, abs=1e-12)


def test_dual_clip_equals_its_retyping() -> None:
    loss, changed = Loss(dual_clip=1.3), 0
    for seed in range(8):
        logps, ctx = make(seed)
        assert float(loss(logps, ctx)) == pytest.approx(retyped(loss, logps, ctx), rel=1e-12)
        changed += float(loss(logps, ctx)) != float(Loss()(logps, ctx))
    assert changed > 4


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_equal_finite_differences_of_what_is_not_detached(name: str) -> None:
    """For shapes that detach their weight, that weight is held fixed while the log-probs are moved."""
    loss = PRESETS[name].loss
    logps, ctx = make(3)
    found = gradients(loss, logps, ctx).logps
    step = 1e-6
    detached = loss.shape in ("cispo", "vespo", "dppo_tv", "dppo_kl")
    for row, token in ((0, 0), (0, 4), (1, 2), (2, 0), (3, 1)):
        ends = []
        for sign in (1, -1):
            moved = logps.clone()
            moved[row, token] += sign * step
            if detached:  # the cost is weight * logp with a weight of the place where we are
                ends.append(_with_weights_of(loss, logps, moved, ctx))
            else:
                ends.append(float(loss(moved, ctx)))
        assert float(found[row, token]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


def _with_weights_of(loss: Loss, here: Any, moved: Any, ctx: Context) -> float:
    """Return the loss at `moved` with the detached weights of `here`; its terms are weight * logp."""
    ones = loss.policy_terms(torch.where(ctx.mask, here, 0.0), ctx.log_ratio(here), ctx) / here
    value = 0.0
    count = int(ctx.mask.sum())
    for row, token in ctx.mask.nonzero().tolist():
        value += float(ones[row, token] * moved[row, token]) / count
    return value


# ------------------------------------------------------------------------------------------------------ the detach rule


@pytest.mark.parametrize("name", PRESETS)
def test_on_policy_the_gradient_is_minus_a_over_the_denominator(name: str) -> None:
    """trl#2769: without old log-probs the ratio is 1 and yet carries the gradient of the log-prob."""
    logps, ctx = make(1, old_logps=None)
    loss = PRESETS[name].loss
    found = gradients(loss, logps, ctx).logps
    counts = ctx.mask.sum(-1, keepdim=True).double()
    rows, tokens = ctx.mask.shape[0], int(ctx.mask.sum())
    share = {
        "row_mean": 1.0 / (counts * rows),
        "row_sum": torch.full_like(counts, 1.0 / rows, dtype=torch.float64),
        "constant_length": torch.full_like(counts, 1.0 / (rows * MAX_LENGTH), dtype=torch.float64),
    }.get(loss.aggregate, torch.full_like(counts, 1.0 / tokens, dtype=torch.float64))
    expected = torch.where(ctx.mask, -ctx.advantages.unsqueeze(1) * share, 0.0)
    # A row's ratio has 1/T of each token in it, and a sum over the row has T equal terms of it.
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_old_log_probs_equal_to_the_policys_are_the_same_as_none() -> None:
    logps, ctx = make(2)
    for name in PRESETS:
        same = gradients(PRESETS[name].loss, logps, replace(ctx, old_logps=logps))
        none = gradients(PRESETS[name].loss, logps, replace(ctx, old_logps=None))
        torch.testing.assert_close(same.logps, none.logps, rtol=0, atol=0)
        assert float(same.loss) == float(none.loss)


def test_a_loss_without_gradient_is_refused() -> None:
    logps, ctx = make(0)

    def detached(logps: Any, ctx: Context) -> Any:
        return -(ctx.advantages.unsqueeze(1) * logps.detach()).mean()

    with pytest.raises(TensorError, match="does not depend on the log-probs"):
        gradients(detached, logps, ctx)


# --------------------------------------------------------------------------------------------------------- invariances

FULL = {
    "plain": {},
    "kl": {"beta": 0.1},
    "kl_plain": {"beta": 0.1, "kl_gradient": "plain"},
    "tis": {"correction": "token_truncate"},
    "sequence": {"correction": "sequence_mask", "correction_high": 8.0},
    "entropy": {"entropy_coef": 0.05},
    "off_policy": {"off_policy_threshold": 0.05},
}


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("extra", FULL)
@pytest.mark.parametrize("name", PRESETS)
def test_rows_may_stand_in_any_order(name: str, extra: str) -> None:
    loss = replace(PRESETS[name].loss, **FULL[extra])
    logps, ctx = make(4)
    order = torch.tensor([2, 0, 3, 1])
    there = gradients(loss, logps[order], _picked(ctx, order))
    here = gradients(loss, logps, ctx)
    close(there.loss, here.loss)
    close(there.logps, here.logps[order])


def _picked(ctx: Context, rows: Any, **changes: Any) -> Context:
    names = ("mask", "advantages", "old_logps", "rollout_logps", "ref_logps", "entropies", "policy_mask")
    parts = {name: getattr(ctx, name) for name in names}
    return Context(
        **{name: value if value is None else value[rows] for name, value in parts.items()},
        **({"max_length": ctx.max_length, "totals": ctx.totals} | changes),
    )


@pytest.mark.parametrize("extra", FULL)
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "bnpo"])
def test_micro_batches_add_up_to_the_batch(name: str, extra: str) -> None:
    """trl#5619, ms-swift#10117: the normaliser is that of the optimizer batch; accumulation 1 equals 4."""
    loss = replace(PRESETS[name].loss, **FULL[extra])
    logps, ctx = make(5)
    whole = gradients(loss, logps, ctx)
    for parts in ([[0, 1], [2, 3]], [[0], [1], [2], [3]], [[3, 1, 0], [2]]):
        total, found = 0.0, torch.zeros_like(logps)
        totals = Totals(0, 0, 0)
        for rows in parts:
            totals = totals + Totals.of(ctx.mask[rows])
        for rows in parts:
            piece = gradients(loss, logps[rows], _picked(ctx, torch.tensor(rows), totals=totals))
            total += float(piece.loss)
            found[rows] = piece.logps
        assert total == pytest.approx(float(whole.loss), rel=1e-10, abs=1e-12)
        close(found, whole.logps)


def test_bnpo_depends_on_the_micro_batch_by_definition() -> None:
    logps, ctx = make(5)
    loss = PRESETS["bnpo"].loss
    whole = float(loss(logps, ctx))
    totals = Totals.of(ctx.mask)
    parts = [float(loss(logps[[at]], _picked(ctx, torch.tensor([at]), totals=totals))) for at in range(4)]
    assert sum(parts) != pytest.approx(whole)
    assert sum(parts) == pytest.approx(float(PRESETS["grpo"].loss(logps, ctx)))  # rows of one are row means


@pytest.mark.parametrize("extra", FULL)
@pytest.mark.parametrize("name", PRESETS)
def test_padding_of_any_amount_and_content_changes_nothing(name: str, extra: str) -> None:
    loss = replace(PRESETS[name].loss, **FULL[extra])
    logps, ctx = make(6)
    here = gradients(loss, logps, ctx)

    def padded(value: Any, fill: Any) -> Any:
        if value is None or value.dim() == 1:
            return value
        filled = torch.where(ctx.mask, value, torch.full_like(value, fill)) if value.dtype != torch.bool else value
        return torch.cat([filled, torch.full((value.shape[0], 3), fill, dtype=value.dtype)], 1)

    for junk in (0.0, -1e30, math.nan, math.inf):
        names = ("old_logps", "rollout_logps", "ref_logps", "entropies")
        wide = Context(
            mask=padded(ctx.mask, False),
            advantages=ctx.advantages,
            **{name: padded(getattr(ctx, name), junk) for name in names},
            max_length=ctx.max_length,
        )
        there = gradients(loss, padded(logps, junk), wide)
        close(there.loss, here.loss)
        close(there.logps[:, :TOKENS], here.logps)
        assert not there.logps[:, TOKENS:].any()


@pytest.mark.parametrize("name", PRESETS)
def test_rows_without_advantage_have_no_policy_gradient(name: str) -> None:
    """Dropping such a row changes nothing when the normaliser stays that of the whole batch."""
    logps, ctx = make(7)
    advantages = ctx.advantages.clone()
    advantages[1] = 0.0
    ctx = replace(ctx, advantages=advantages)
    loss = PRESETS[name].loss
    whole = gradients(loss, logps, ctx)
    assert not whole.logps[1].any()
    kept = torch.tensor([0, 2, 3])
    rest = gradients(loss, logps[kept], _picked(ctx, kept, totals=Totals.of(ctx.mask)))
    if name != "bnpo":
        close(rest.loss, whole.loss)
        close(rest.logps, whole.logps[kept])


def test_unscored_rows_leave_numerator_and_denominator() -> None:
    """trl#6369: a masked row stayed in the denominator, so the others counted for less."""
    logps, ctx = make(8)
    for name in PRESETS:
        masked = replace(ctx, mask=ctx.mask & torch.tensor([True, False, True, True]).unsqueeze(1))
        kept = torch.tensor([0, 2, 3])
        alone = gradients(PRESETS[name].loss, logps[kept], _picked(ctx, kept))
        there = gradients(PRESETS[name].loss, logps, masked)
        close(there.loss, alone.loss)
        close(there.logps[kept], alone.logps)


def test_everything_masked_is_a_loss_of_zero() -> None:
    logps, ctx = make(9, lengths=(0, 0))
    for name in PRESETS:
        found = gradients(replace(PRESETS[name].loss, beta=0.1), logps, ctx)
        assert float(found.loss) == 0.0
        assert not found.logps.any()
        assert metrics(PRESETS[name].loss, logps, ctx) == {}


# ------------------------------------------------------------------------------------------------------------------ KL


def expected_gradient(estimator: str, gradient: str, *, seed: int) -> tuple[Any, Any, Any]:
    """The exact expectation over all actions of an old policy of the estimator's gradient; and both KLs' own."""
    dice = torch.Generator().manual_seed(seed)
    logits, old, ref = (torch.randn(5, generator=dice, dtype=torch.float64) for _ in range(3))
    logits = logits.requires_grad_()
    log_p, log_old, log_ref = (value.log_softmax(-1) for value in (logits, old, ref))
    terms = kl_terms(logps=log_p, ref_logps=log_ref, log_ratio=log_p - log_old, estimator=estimator, gradient=gradient)
    found = torch.autograd.grad((log_old.exp() * terms).sum(), logits, retain_graph=True)[0]
    reverse = torch.autograd.grad((log_p.exp() * (log_p - log_ref)).sum(), logits, retain_graph=True)[0]
    forward = torch.autograd.grad((log_ref.exp() * (log_ref - log_p)).sum(), logits)[0]
    return found, reverse, forward


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("seed", range(4))
def test_the_default_gradient_is_that_of_the_reverse_kl_also_off_policy(estimator: str, seed: int) -> None:
    found, reverse, _ = expected_gradient(estimator, "unbiased", seed=seed)
    close(found, reverse)


def on_policy(estimator: str, gradient: str) -> tuple[Any, Any, Any]:
    """The same with the policy itself as the old one."""
    dice = torch.Generator().manual_seed(3)
    logits = torch.randn(5, generator=dice, dtype=torch.float64).requires_grad_()
    ref = torch.randn(5, generator=dice, dtype=torch.float64).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    old = log_p.detach()
    terms = kl_terms(logps=log_p, ref_logps=ref, log_ratio=log_p - old, estimator=estimator, gradient=gradient)
    found = torch.autograd.grad((old.exp() * terms).sum(), logits, retain_graph=True)[0]
    reverse = torch.autograd.grad((log_p.exp() * (log_p - ref)).sum(), logits, retain_graph=True)[0]
    forward = torch.autograd.grad((ref.exp() * (ref - log_p)).sum(), logits)[0]
    return found, reverse, forward


def test_the_plain_gradients_are_what_the_docs_say() -> None:
    """OpenRLHF#1309: plain k3 descends the forward KL, plain k1 nothing at all, plain k2 the reverse KL."""
    found, _, forward = on_policy("k3", "plain")
    close(found, forward)
    found, _, _ = on_policy("k1", "plain")
    close(found, torch.zeros_like(found))
    found, reverse, _ = on_policy("k2", "plain")
    close(found, reverse)


def test_kl_values_by_hand() -> None:
    logps, ref = tensor([[-1.0]]), tensor([[-1.5]])
    zero = tensor([[0.0]])
    values = {
        name: float(kl_terms(logps=logps, ref_logps=ref, log_ratio=zero, estimator=name, gradient="plain"))
        for name in ("k1", "k2", "k3")
    }
    assert values == pytest.approx({"k1": 0.5, "k2": 0.125, "k3": math.exp(-0.5) + 0.5 - 1.0})


# --------------------------------------------------------------------------------------------------- masks and contexts


def test_masks_come_from_lengths_and_leave_out_whole_rows() -> None:
    """trl#4970: a mask by the pad id eats the end token where both are one."""
    found = token_mask(
        lengths=torch.tensor([2, 3, 1]),
        width=3,
        active=torch.tensor([True, False, True]),
        truncated=torch.tensor([False, False, True]),
    )
    assert found.tolist() == [[True, True, False], [False] * 3, [False] * 3]
    assert Totals.of(found) == Totals(rows=1, tokens=2, policy_tokens=2)


def test_top_entropy_tokens_are_those_above_the_quantile() -> None:
    entropies = tensor([[0.1, 0.9, 0.5, 99.0], [0.7, 0.3, 99.0, 99.0]])
    mask = token_mask(lengths=torch.tensor([3, 2]), width=4)
    found = top_entropy_mask(entropies=entropies, mask=mask, share=0.4)
    assert found.tolist() == [[False, True, False, False], [True, False, False, False]]
    assert top_entropy_mask(entropies=entropies, mask=mask, share=1.0).tolist() == mask.tolist()


def test_the_policy_mask_leaves_the_kl_and_the_normaliser_alone() -> None:
    logps, ctx = make(10)
    none = torch.zeros_like(ctx.mask)
    loss = preset("dapo", beta=0.1)
    only_kl = gradients(loss, logps, replace(ctx, policy_mask=none))
    expected = gradients(loss, logps, replace(ctx, advantages=torch.zeros_like(ctx.advantages)))
    close(only_kl.loss, expected.loss)
    close(only_kl.logps, expected.logps)


def test_a_loss_of_ones_own_works_wherever_ours_do() -> None:
    logps, ctx = make(11)

    def mine(logps: Any, ctx: Context) -> Any:
        cost = -ctx.token_advantages(logps.dtype) * logps
        return torch.where(ctx.mask, cost, 0.0).sum() / ctx.whole.tokens

    ours, theirs = gradients(preset("reinforce"), logps, ctx), gradients(mine, logps, ctx)
    close(ours.logps, theirs.logps)
    close(ours.loss, theirs.loss)


def test_advantages_may_differ_by_token() -> None:
    logps, ctx = make(12)
    by_token = ctx.advantages.unsqueeze(1).expand_as(ctx.mask).contiguous()
    for name in PRESETS:
        if name == "gmpo":
            with pytest.raises(TensorError, match="one advantage a row"):
                gradients(PRESETS[name].loss, logps, replace(ctx, advantages=by_token))
            continue
        a, b = (gradients(PRESETS[name].loss, logps, c) for c in (ctx, replace(ctx, advantages=by_token)))
        close(a.logps, b.logps)


def test_extreme_ratios_stay_finite_in_float32() -> None:
    logps = torch.tensor([[-0.1, -0.1], [-400.0, -0.1]])
    old = torch.tensor([[-900.0, -0.1], [-0.1, -0.1]])
    ctx = Context(
        mask=torch.ones(2, 2, dtype=torch.bool),
        advantages=torch.tensor([-1.0, 1.0]),
        old_logps=old,
        ref_logps=old,
        rollout_logps=old,
        max_length=4,
    )
    for name in PRESETS:
        found = gradients(replace(PRESETS[name].loss, beta=0.01, correction="token_truncate"), logps, ctx)
        assert torch.isfinite(found.logps).all(), name


def test_metrics_count_what_the_clip_takes_away() -> None:
    logps = tensor([[0.0, 0.5, -0.5], [0.0, 0.5, -0.5]]) - 1.0
    ctx = Context(
        mask=torch.ones(2, 3, dtype=torch.bool), advantages=tensor([1.0, -1.0]), old_logps=torch.full_like(logps, -1.0)
    )
    found = metrics(preset("grpo"), logps, ctx)
    assert found["clip_high"] == pytest.approx(1 / 6)
    assert found["clip_low"] == pytest.approx(1 / 6)
    assert found["ratio_max"] == pytest.approx(math.exp(0.5))
    taken = gradients(preset("grpo"), logps, ctx).logps
    assert int((taken == 0).sum()) == 2


def test_metrics_count_what_cispo_caps() -> None:
    """As TRL 1.16 counts: above the cap itself (its epsilon_high, not 1 + epsilon_high), and only where A > 0."""
    ratios = [[7.0, 5.5, 4.9, 9.0], [8.0, 1.0, 6.0, 6.0], [5.1, 0.2, 5.0 - 1e-9, 1.0]]
    counted = [[True, True, True, False], [True, True, True, True], [True, True, True, True]]
    advantages = [0.5, -2.0, 1.0]
    high = [
        ratio > 5.0 and advantage > 0
        for line, flags, advantage in zip(ratios, counted, advantages, strict=True)
        for ratio, flag in zip(line, flags, strict=True)
        if flag
    ]
    assert (sum(high), len(high)) == (3, 11)
    logps = tensor([[math.log(ratio) - 3.0 for ratio in line] for line in ratios])
    ctx = Context(mask=torch.tensor(counted), advantages=tensor(advantages), old_logps=torch.full_like(logps, -3.0))
    assert metrics(preset("cispo"), logps, ctx)["capped"] == pytest.approx(3 / 11)
    assert metrics(preset("cispo", ratio_cap=7.5), logps, ctx)["capped"] == 0.0
    assert "capped" not in metrics(preset("dapo"), logps, ctx) | metrics(preset("dppo_tv"), logps, ctx)
    assert bool((gradients(preset("cispo"), logps, ctx).logps[ctx.mask] != 0).all()), "capped, not taken away"


# --------------------------------------------------------------------------------------------------------------- errors


def bad_context(**changes: Any) -> None:
    fields = {"mask": torch.ones(2, 3, dtype=torch.bool), "advantages": torch.zeros(2)}
    Context(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mask": torch.ones(2, 3)}, r"mask is a bool tensor \[rows, tokens\], got torch.float32"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "mask is a bool tensor"),
        ({"advantages": torch.zeros(3)}, r"\[2\] or \[2, 3\], got torch.float32 \[3\]"),
        ({"advantages": torch.zeros(2, dtype=torch.int64)}, "float32 or float64, got torch.int64"),
        ({"advantages": torch.tensor([0.0, math.nan])}, r"advantages\[1, 0\] is nan"),
        ({"old_logps": torch.zeros(2, 4)}, r"old_logps is float32 or float64 \[2, 3\]"),
        ({"ref_logps": torch.full((2, 3), -math.inf)}, r"ref_logps\[0, 0\] is -inf \(and 5 more\)"),
        ({"entropies": torch.zeros(2, 3, dtype=torch.float16)}, "entropies is float32 or float64"),
        ({"policy_mask": torch.ones(2, 4, dtype=torch.bool)}, r"policy_mask is \[2, 3\]"),
    ],
)
def test_a_wrong_context_names_the_tensor(changes: dict, text: str) -> None:
    with pytest.raises(TensorError, match=text):
        bad_context(**changes)


def test_wrong_log_probs_are_named() -> None:
    _, ctx = make(0)
    with pytest.raises(TensorError, match="logps is float32 or float64"):
        preset("grpo")(torch.zeros(4, 2), ctx)
    with pytest.raises(TensorError, match=r"logps\[0, 0\] is nan"):
        preset("grpo")(torch.full((4, TOKENS), math.nan, dtype=torch.float64), ctx)
    with pytest.raises(TensorError, match="old_logps has the dtype of the log-probs"):
        preset("grpo")(torch.zeros(4, TOKENS), ctx)


@pytest.mark.parametrize(
    ("make_it", "error", "text"),
    [
        (lambda: preset("grop"), UnknownName, "did you mean grpo"),
        (lambda: preset("grpo", epsilon=0.1), UnknownName, "field of a loss 'epsilon'; did you mean epsilon_low"),
        (lambda: preset("grpo", shape="clp"), UnknownName, "did you mean clip"),
        (lambda: preset("grpo", aggregate="mean"), UnknownName, "no aggregate 'mean'"),
        (lambda: preset("grpo", kl_estimator="k4"), UnknownName, "k1, k2, k3"),
        (lambda: preset("grpo", correction="is"), UnknownName, "no correction 'is'"),
        (lambda: preset("grpo", epsilon_low=-0.1), OptionError, "epsilons"),
        (lambda: preset("grpo", delta=0.9), OptionError, "delta is a number above 1"),
        (lambda: preset("cispo", dual_clip=3.0), OptionError, "no option of the shape 'cispo', which has ratio_cap"),
        (lambda: preset("cispo", epsilon_high=0.28), OptionError, "epsilon_high is no option of the shape 'cispo'"),
        (lambda: preset("reinforce", ratio_cap=2.0), OptionError, "which has none"),
    ],
)
def test_wrong_choices_name_the_nearest(make_it: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make_it()


@pytest.mark.parametrize(
    ("changes", "missing", "text"),
    [
        ({"beta": 0.1}, "ref_logps", "needs the context's ref_logps"),
        ({"correction": "token_mask"}, "rollout_logps", "needs the context's rollout_logps"),
        ({"entropy_coef": 0.1}, "entropies", "needs the context's entropies"),
    ],
)
def test_what_a_loss_needs_is_asked_for(changes: dict, missing: str, text: str) -> None:
    logps, ctx = make(0)
    with pytest.raises(TensorError, match=text):
        preset("grpo", **changes)(logps, replace(ctx, **{missing: None}))


def test_dr_grpo_asks_for_the_longest_length() -> None:
    logps, ctx = make(0, max_length=None)
    with pytest.raises(OptionError, match="max_length"):
        preset("dr_grpo")(logps, ctx)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    logps, ctx = make(0)
    with pytest.raises(TensorError, match="scalar"):
        gradients(lambda logps, ctx: logps, logps, ctx)
    with pytest.raises(TensorError, match="the loss is nan"):
        gradients(lambda logps, ctx: logps.sum() * math.nan, logps, ctx)


def test_random_presets_with_random_extras_agree_with_the_retyping() -> None:
    dice = random.Random(0)
    for seed in range(40):
        name = dice.choice(list(PRESETS))
        lengths = tuple(dice.randrange(TOKENS + 1) for _ in range(4)) if seed % 2 else (7, 3, 1, 5)
        if not any(lengths):
            continue
        logps, ctx = make(seed, lengths)
        loss = PRESETS[name].loss
        assert float(loss(logps, ctx)) == pytest.approx(retyped(loss, logps, ctx), rel=1e-11, abs=1e-12), name


def test_the_rows_that_are_clipped_least_and_most() -> None:
    ratios = torch.tensor([[0.5, 0.5, 1.0, 9.0], [0.5, 1.0, 1.0, 1.0], [2.0, 2.0, 1.0, 1.0], [2.0, 1.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    ctx = Context(mask=mask, advantages=torch.tensor([-1.0, -1.0, 1.0, 1.0]), old_logps=torch.full((4, 4), -1.0))
    logps = ratios.log() - 1.0
    low, high = clipped_rows(preset("grpo"), logps, ctx)
    assert (low, high) == (0.0, 0.5)  # below: 2/3, 1/4, and 0 where A > 0; above: 1/2 and 1/2
    both = Context(mask=mask[:2], advantages=ctx.advantages[:2], old_logps=torch.full((2, 4), -1.0))
    assert clipped_rows(preset("grpo"), logps[:2], both) == (0.25, 0.0)
