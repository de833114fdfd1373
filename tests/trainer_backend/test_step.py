"""One optimizer step against plain autograd in float64, and what must not change it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import math
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("transformers", reason="the models of these tests are transformers'")
pytest.importorskip("peft", reason="the adapters of these tests are peft's")

from one_thread import one_thread  # noqa: E402, F401
from tiny_policies import KeepGradients, dense_loss, laid_out, make_rows, near, tiny_policy  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from rewardkit.errors import OptionError  # noqa: E402
from trainer_backend.advantage import advantages  # noqa: E402
from trainer_backend.batch import Row, with_old_logps  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.loss import PRESETS, SHAPES, Loss, preset  # noqa: E402
from trainer_backend.model.offload import InPlace, LayerInputs, checkpoint_layers  # noqa: E402
from trainer_backend.optim import build_optimizer, build_scheduler  # noqa: E402
from trainer_backend.step import Policy, StepSettings, may_drop, score, update  # noqa: E402

LONGEST = 8


def settings(loss: Any = None, **changes: Any) -> StepSettings:
    numbers: dict[str, Any] = {"max_grad_norm": None, "max_completion_length": LONGEST, "token_budget": 40}
    return StepSettings(loss=loss or preset("dapo"), **(numbers | changes))


def gradient(policy: Policy, rows: Any, how: StepSettings, **more: Any) -> tuple[list[Any], Any]:
    """The gradients of one step, and its result; the weights do not move."""
    optimizer = KeepGradients(policy.trained)
    found = update(policy, rows, optimizer, None, how, **more)
    assert not found.skipped
    return optimizer.kept, found


def assert_equal(found: list[Any], expected: list[Any], within: float = 1e-10) -> None:
    scale = max(float(value.abs().max()) for value in expected)
    assert scale > 0, "an expected gradient of zero proves nothing"
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= within * scale


def apart(policy: Policy) -> Policy:
    return dataclasses.replace(policy, layout="apart")


# ---------------------------------------------------------------------------------- against autograd on the whole batch


@pytest.mark.parametrize("layout", ["apart", "shared", "line"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_gradient_of_every_preset_is_that_of_plain_autograd(name: str, kind: str, layout: Any) -> None:
    policy = laid_out(tiny_policy(kind), layout)
    rows = near(policy, make_rows(1))
    for given in (rows, [dataclasses.replace(row, old_logps=None) for row in rows]):
        how = settings(preset(name))
        expected_loss, expected = dense_loss(policy, given, how)
        found, result = gradient(policy, given, how)
        assert_equal(found, expected)
        assert result.loss == pytest.approx(float(expected_loss), rel=1e-10, abs=1e-12)


def test_models_of_these_tests_share_prompts() -> None:
    assert tiny_policy("llama").layout == tiny_policy("qwen2").layout == "shared"


VARIANTS: dict[str, dict[str, Any]] = {
    "beta": {"loss": preset("dapo", beta=0.07)},
    "beta-k2-plain": {"loss": preset("grpo", beta=0.07, kl_estimator="k2", kl_gradient="plain")},
    "entropy-bonus": {"loss": preset("dapo", entropy_coef=0.3)},
    "everything": {
        "loss": preset("grpo", beta=0.1, entropy_coef=0.2, correction="token_truncate"),
        "top_entropy_quantile": 0.4,
        "temperature": 0.7,
    },
    "temperature": {"temperature": 0.6},
    "top-entropy": {"top_entropy_quantile": 0.3},
    "off-policy-rows": {"loss": preset("dapo", off_policy_threshold=0.05)},
    "two-sided-clip": {"loss": preset("grpo", delta=1.3)},
    "token-truncate": {"loss": preset("dapo", correction="token_truncate", correction_high=1.2)},
    "token-mask": {"loss": preset("dapo", correction="token_mask", correction_high=1.5)},
    "sequence-mask": {"loss": preset("gspo", correction="sequence_mask")},
    "geometric-mask": {"loss": preset("cispo", correction="geometric_mask", correction_low=0.8, correction_high=1.2)},
}


@pytest.mark.parametrize("layout", ["apart", "shared", "line"])
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_gradient_of_every_option_is_that_of_plain_autograd(name: str, layout: Any) -> None:
    policy = laid_out(tiny_policy("llama"), layout)
    rows = near(policy, make_rows(2))
    how = settings(**VARIANTS[name])
    expected_loss, expected = dense_loss(policy, rows, how)
    found, result = gradient(policy, rows, how)
    assert_equal(found, expected)
    assert result.loss == pytest.approx(float(expected_loss), rel=1e-10, abs=1e-12)


def test_reference_is_the_model_without_its_adapter() -> None:
    policy = tiny_policy("llama")
    rows = make_rows(3, rollout=False)
    how = settings(preset("grpo", beta=0.5))
    _, expected = dense_loss(policy, rows, how)
    found, result = gradient(policy, rows, how)
    assert_equal(found, expected)
    assert result.metrics["kl"] > 0
    assert result.loss == pytest.approx(result.policy_loss + result.kl_loss, rel=1e-12)
    assert result.metrics["kl_loss"] == result.kl_loss


def test_a_function_of_the_users_is_a_loss() -> None:
    def squares(logps: Any, ctx: Any) -> Any:
        return torch.where(ctx.mask, logps**2, 0.0).sum() / ctx.whole.tokens

    policy = tiny_policy("llama")
    rows = make_rows(4)
    how = settings(squares)
    _, expected = dense_loss(policy, rows, how)
    found, result = gradient(policy, rows, how)
    assert_equal(found, expected)
    assert result.metrics["rows/learning"] == len(rows), "rows without advantage may matter to it"


def test_two_updates_on_the_same_rows() -> None:
    """num_iterations 2: the second update's ratios are to the log-probs before the first."""
    policy, mirror = tiny_policy("llama"), tiny_policy("llama")
    rows = make_rows(5, rollout=False)
    how = settings(preset("grpo", epsilon_low=0.01, epsilon_high=0.01))
    optimizer = KeepGradients(policy.trained, lr=0.05)
    slow = torch.optim.SGD(mirror.trained, lr=0.05)
    given = expected_rows = rows
    for iteration in range(2):
        _, expected = dense_loss(mirror, expected_rows, how)
        result = update(policy, given, optimizer, None, how)
        assert_equal(optimizer.kept, expected)
        if iteration == 0:
            given = with_old_logps(given, result.logps)
            own = score(mirror, rows, how)
            expected_rows = with_old_logps(rows, own)
            assert result.metrics["ratio/min"] == result.metrics["ratio/max"] == 1.0
        else:
            assert result.metrics["ratio/min"] < 1.0 < result.metrics["ratio/max"]
            assert result.metrics["clip_ratio/region_mean"] > 0
        for weight, value in zip(mirror.trained, expected, strict=True):
            weight.grad = value
        slow.step()


# ------------------------------------------------------------------------------------------------------- invariances


def test_order_budget_and_layout_change_nothing() -> None:
    policy = tiny_policy("qwen2")
    rows = near(policy, make_rows(6, groups=4, size=5))
    how = settings(preset("grpo", beta=0.05, entropy_coef=0.1), top_entropy_quantile=0.5)
    expected, result = gradient(apart(policy), rows, dataclasses.replace(how, token_budget=None))
    shuffled = random.Random(0).sample(range(len(rows)), len(rows))
    for given in (range(len(rows)), shuffled):
        for budget in (None, 1, 17, 60, 1000):
            for one in (policy, apart(policy)):
                again = dataclasses.replace(how, token_budget=budget)
                found, other = gradient(one, [rows[at] for at in given], again)
                assert_equal(found, expected)
                assert other.loss == pytest.approx(result.loss, rel=1e-10)
                assert other.metrics["entropy"] == pytest.approx(result.metrics["entropy"], rel=1e-10)
                assert other.metrics["kl"] == pytest.approx(result.metrics["kl"], rel=1e-10)
                for at, place in enumerate(given):
                    torch.testing.assert_close(other.logps[at], result.logps[place], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_dropped_rows_had_no_gradient_and_still_count(name: str) -> None:
    policy = tiny_policy("llama")
    rows = near(policy, make_rows(7))
    how = settings(preset(name))
    assert may_drop(how.loss)
    found, result = gradient(policy, rows, how)
    dead = sum(row.advantage == 0 for row in rows)
    assert dead and result.metrics["rows/learning"] == len(rows) - dead
    assert result.metrics["rows/in_loss"] == len(rows)
    assert 0 < result.metrics["measured/share"] < 1
    # The same loss as a function of the user's drops nothing.
    everything = dataclasses.replace(how, loss=lambda logps, ctx: how.whole_batch_loss(logps, ctx))
    expected, _ = gradient(policy, rows, everything)
    assert_equal(found, expected)
    without = [row for row in rows if row.advantage]
    if name not in ("dr_grpo",):
        other, _ = gradient(policy, without, how)
        assert any(not torch.allclose(one, two) for one, two in zip(found, other, strict=True)), "they must be counted"


def test_rows_are_dropped_only_when_nothing_needs_them() -> None:
    for shape in SHAPES:
        assert may_drop(Loss(shape=shape))
        assert may_drop(Loss(shape=shape, ratio="sequence", correction="sequence_mask"))
        assert not may_drop(Loss(shape=shape, beta=1e-3))
        assert not may_drop(Loss(shape=shape, entropy_coef=1e-3))
    assert not may_drop(lambda logps, ctx: logps.sum())


def test_what_needs_no_forward_pass_is_over_all_rows() -> None:
    policy = tiny_policy("llama")
    rows = make_rows(8)
    _, result = gradient(policy, rows, settings())
    assert [value is None for value in result.logps] == [row.advantage == 0 for row in rows]
    assert result.metrics["measured/share"] < 1.0
    lengths = [row.length for row in rows]
    assert result.metrics["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert result.metrics["completions/max_length"] == max(lengths)
    assert result.metrics["completions/min_length"] == min(lengths)


# --------------------------------------------------------------------------------------------------------- which rows


def test_an_unscored_row_is_in_no_numerator_and_no_denominator() -> None:
    policy = tiny_policy("llama")
    rows = near(policy, make_rows(9))
    for name in ("dapo", "grpo", "dr_grpo", "luspo"):
        how = settings(preset(name, beta=0.1))
        left = [dataclasses.replace(row, counted=at % 3 != 0) for at, row in enumerate(rows)]
        found, result = gradient(policy, left, how)
        expected, other = gradient(policy, [row for row in left if row.counted], how)
        assert_equal(found, expected)
        assert result.loss == pytest.approx(other.loss, rel=1e-12)
        assert result.logps[0] is None and result.metrics["rows/all"] == len(rows)
        assert result.metrics["completions/mean_length"] != other.metrics["completions/mean_length"]


def test_what_cispo_caps_is_counted_over_micro_steps() -> None:
    policy = tiny_policy("llama")
    rows = near(policy, make_rows(23, groups=4))
    result = update(policy, rows, KeepGradients(policy.trained), None, settings(preset("cispo", ratio_cap=1.1)))
    capped = tokens = 0
    for row, logps in zip(rows, result.logps, strict=True):
        if logps is not None:  # a row without advantage is not computed
            ratios = (logps - torch.as_tensor(row.old_logps)).exp().tolist()
            capped += sum(ratio > 1.1 and row.advantage > 0 for ratio in ratios)
            tokens += len(ratios)
    assert 0 < capped < tokens
    assert result.metrics["cispo_clip_ratio"] == pytest.approx(capped / tokens)
    assert not any(name.startswith("clip_ratio") for name in result.metrics)


def test_rewards_alike_in_float32_make_a_dead_group() -> None:
    """Eight float32 1.2s have a standard deviation of 1.3e-7, which TRL's tolerance of 1e-8 takes for spread."""
    rewards = torch.tensor([1.2] * 8, dtype=torch.float32)
    assert float((rewards - rewards.mean()).abs().max()) > 0 or float(rewards.std()) > 0
    nudged = rewards.clone()
    nudged[3] += 1.2e-7  # the next float32
    given = torch.cat([rewards, nudged, torch.tensor([0.0, 1.2] * 4)])
    made = advantages(rewards=given, groups=[0] * 8 + [1] * 8 + [2] * 8)
    assert dict(made.dead) == {0: "no_spread", 1: "no_spread"}
    prompt = (1, 2, 3)
    rows = [Row(prompt, (4, 5), float(value)) for value in made.values]
    policy = tiny_policy("llama")
    _, result = gradient(policy, rows, settings())
    assert result.metrics["rows/learning"] == 8 and result.metrics["rows/in_loss"] == 24


def test_a_batch_of_dead_groups_is_a_step_with_gradient_zero() -> None:
    policy = tiny_policy("llama")
    rows = [dataclasses.replace(row, advantage=0.0) for row in make_rows(10)]
    optimizer = build_optimizer("adamw_torch", policy.trained, learning_rate=0.1)
    before = copy.deepcopy([weight.detach() for weight in policy.trained])
    for given in (rows, []):
        result = update(policy, given, optimizer, None, settings())
        assert not result.skipped and result.grad_norm == 0.0 and result.loss == 0.0 and not result.moved
    assert all(torch.equal(weight, old) for weight, old in zip(policy.trained, before, strict=True))


@pytest.mark.parametrize(("name", "moves"), [("adamw_torch", True), ("sgd", False)])
def test_after_a_live_step_a_dead_one_moves_what_has_moments(name: str, moves: bool) -> None:
    """As in TRL, whose gradient is zeros then: the moments go on. They are part of what the optimizer is."""
    policy = tiny_policy("llama")
    rows = make_rows(10)
    dead = [dataclasses.replace(row, advantage=0.0) for row in rows]
    optimizer = build_optimizer(name, policy.trained, learning_rate=0.1)
    assert update(policy, rows, optimizer, None, settings()).moved
    before = copy.deepcopy([weight.detach() for weight in policy.trained])
    expected = [copy.deepcopy(policy.trained), copy.deepcopy(optimizer.state_dict())]
    assert update(policy, dead, optimizer, None, settings()).moved == moves
    assert moves != all(torch.equal(weight, old) for weight, old in zip(policy.trained, before, strict=True))
    plain = build_optimizer(name, expected[0], learning_rate=0.1)
    plain.load_state_dict(expected[1])
    for weight in expected[0]:
        weight.grad = torch.zeros_like(weight)
    plain.step()
    assert all(torch.equal(weight, other) for weight, other in zip(policy.trained, expected[0], strict=True))


def test_a_step_with_a_rate_of_zero_moves_nothing() -> None:
    """The first one of a schedule that warms up."""
    policy = tiny_policy("llama")
    optimizer = build_optimizer("adamw_torch", policy.trained, learning_rate=0.1)
    scheduler = build_scheduler("constant_with_warmup", optimizer, steps=4, warmup_steps=2)
    moved = [update(policy, make_rows(10), optimizer, scheduler, settings()).moved for _ in range(2)]
    assert moved == [False, True]


# ---------------------------------------------------------------------------------------------------------- on policy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_ratio_is_exactly_one_before_the_first_update(dtype: Any) -> None:
    policy = tiny_policy("llama", dtype)
    rows = make_rows(11, groups=4)
    how = settings(preset("grpo"), temperature=0.6)
    _, folded = gradient(policy, rows, how)
    _, again = gradient(policy, with_old_logps(rows, folded.logps), how)
    for result in (folded, again):
        assert result.metrics["ratio/min"] == result.metrics["ratio/max"] == result.metrics["ratio/mean"] == 1.0
        assert result.metrics["clip_ratio/region_mean"] == 0.0


def test_temperature_divides_logits_and_not_log_probs() -> None:
    policy = tiny_policy("llama")
    rows = make_rows(12)
    hot, cold = (score(policy, rows, settings(temperature=value)) for value in (1.0, 0.6))
    assert not torch.allclose(cold[0], hot[0] / 0.6)


# ------------------------------------------------------------------------------------------------- what can go wrong


def state_of(optimizer: Any, policy: Policy) -> Any:
    return copy.deepcopy((optimizer.state_dict()["state"], [weight.detach() for weight in policy.trained]))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["gradient", "weights"])
def test_a_nan_skips_the_step_and_leaves_all_state(where: str, bad: float) -> None:
    policy = tiny_policy("llama")
    rows = make_rows(13)
    optimizer = build_optimizer("adamw_torch", policy.trained, learning_rate=0.01)
    scheduler = build_scheduler("linear", optimizer, steps=10)
    assert not update(policy, rows, optimizer, scheduler, settings()).skipped
    weight = policy.trained[-1]
    if where == "gradient":
        handle = weight.register_hook(lambda value: value.index_fill(0, torch.tensor([0]), bad))
    else:
        kept = weight.detach().clone()
        weight.data[0, 0] = bad
    before = state_of(optimizer, policy)
    result = update(policy, rows, optimizer, scheduler, settings())
    assert result.skipped and not math.isfinite(result.grad_norm)
    assert all(math.isfinite(value) for value in result.metrics.values())
    if where == "gradient":
        assert same(state_of(optimizer, policy), before)
        handle.remove()
    else:
        assert same(state_of(optimizer, policy)[0], before[0])
        weight.data.copy_(kept)
    assert all(weight.grad is None for weight in policy.trained)
    assert not update(policy, rows, optimizer, scheduler, settings()).skipped


def test_the_schedule_counts_skipped_steps_and_the_rate_is_the_one_that_was_used(recwarn: Any) -> None:
    policy = tiny_policy("llama")
    optimizer = build_optimizer("sgd", policy.trained, learning_rate=1.0)
    scheduler = build_scheduler("linear", optimizer, steps=4)
    seen = [0]

    def twice(value: torch.Tensor) -> torch.Tensor:
        seen[0] += 1
        return value * math.nan if seen[0] <= 2 else value

    policy.trained[0].register_hook(twice)
    found = [update(policy, make_rows(13), optimizer, scheduler, settings(token_budget=None)) for _ in range(4)]
    assert [result.skipped for result in found] == [True, True, False, False]
    assert [result.metrics["learning_rate"] for result in found] == [1.0, 0.75, 0.5, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert not [told for told in recwarn if "lr_scheduler" in str(told.message)]


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_weights_or_a_reference_that_are_not_finite_skip_the_step(share: float, beta: float) -> None:
    policy = tiny_policy("llama")
    optimizer = KeepGradients(policy.trained)
    how = settings(preset("dapo", beta=beta), top_entropy_quantile=share)
    weight = next(value for name, value in policy.model.named_parameters() if "down_proj.base_layer" in name)
    weight.data[0, 0] = math.nan  # of the base model, so of policy and reference
    assert update(policy, make_rows(13), optimizer, None, how).skipped
    assert not optimizer.kept


def test_a_reference_that_is_not_finite_skips_the_step() -> None:
    policy = tiny_policy("llama")

    @contextlib.contextmanager
    def broken(model: Any) -> Iterator[None]:
        weight = policy.trained[-1]
        kept = weight.detach().clone()
        weight.data.fill_(math.nan)
        yield
        weight.data.copy_(kept)

    policy = dataclasses.replace(policy, reference=broken)
    assert update(
        policy, make_rows(13), KeepGradients(policy.trained), None, settings(preset("dapo", beta=0.1))
    ).skipped


def test_a_step_that_is_given_up_leaves_no_layer_inputs() -> None:
    policy = tiny_policy("llama")
    store = LayerInputs(InPlace(), least=1)
    policy = dataclasses.replace(policy, store=store)
    checkpoint_layers(policy.model, store)
    optimizer = KeepGradients(policy.trained)
    kept = policy.trained[-1].detach().clone()
    policy.trained[-1].data.fill_(math.nan)
    assert update(policy, make_rows(13), optimizer, None, settings(token_budget=20)).skipped
    assert store.held == 0 and store.moved > 0
    policy.trained[-1].data.copy_(kept)
    assert not update(policy, make_rows(13), optimizer, None, settings(token_budget=20)).skipped
    expected = dense_loss(policy, make_rows(13), settings(token_budget=20))[1]
    assert_equal(optimizer.kept, expected)


def test_gradients_are_clipped_and_the_norm_is_the_one_before() -> None:
    policy = tiny_policy("llama")
    rows = make_rows(14)
    free, result = gradient(policy, rows, settings())
    clipped, other = gradient(policy, rows, settings(max_grad_norm=0.01))
    norm = math.sqrt(sum(float((value**2).sum()) for value in free))
    assert result.grad_norm == pytest.approx(norm, rel=1e-10) and other.grad_norm == pytest.approx(norm, rel=1e-10)
    assert norm > 0.01
    assert_equal(clipped, [value * 0.01 / norm for value in free], within=1e-4)


def test_what_the_loss_needs_is_asked_for() -> None:
    policy = tiny_policy("llama")
    rows = make_rows(15, rollout=False)
    optimizer = KeepGradients(policy.trained)
    with pytest.raises(TensorError, match="rollout_logps"):
        update(policy, rows, optimizer, None, settings(preset("dapo", correction="token_mask")))
    with pytest.raises(TensorError, match="reference"):
        update(dataclasses.replace(policy, reference=None), rows, optimizer, None, settings(preset("dapo", beta=0.1)))
    assert all(weight.grad is None for weight in policy.trained)
    for wrong in ({"temperature": 0.0}, {"top_entropy_quantile": 0.0}, {"max_grad_norm": -1.0}):
        with pytest.raises(OptionError):
            settings(**wrong)


def test_modes_are_left_as_they_were() -> None:
    policy = tiny_policy("llama")
    for training in (True, False):
        policy.model.train(training)
        gradient(policy, make_rows(16), settings(preset("dapo", beta=0.1)))
        assert all(module.training is training for module in policy.model.modules())


# ------------------------------------------------------------------------------------------------------------ metrics


def test_metrics_are_those_of_the_whole_batch_and_have_trls_names() -> None:
    policy = tiny_policy("llama")
    rows = near(policy, make_rows(17))
    how = settings(preset("grpo", beta=0.1, correction="token_truncate"), token_budget=20)
    _, found = gradient(policy, rows, how)
    _, whole = gradient(policy, rows, dataclasses.replace(how, token_budget=None))
    names = {
        "loss", "policy_loss", "kl_loss", "grad_norm", "learning_rate", "kl", "entropy", "clip_ratio/low_mean",
        "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max",
        "sampling/importance_sampling_ratio/zero", "sampling/sampling_logp_difference/mean",
        "sampling/sampling_logp_difference/max", "sampling/importance_sampling_ratio/min",
        "sampling/importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/max", "completions/mean_length",
    }  # fmt: skip
    assert names <= found.metrics.keys() == whole.metrics.keys()
    for name, value in whole.metrics.items():
        if name != "tokens/fed":
            assert found.metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_shared_prompts_feed_fewer_tokens() -> None:
    policy = tiny_policy("llama")
    rows = [Row(tuple(range(1, 20)), (1, at, 3), 1.0 - 2.0 * (at % 2)) for at in range(8)]
    how = settings(token_budget=None)
    _, shared = gradient(policy, rows, how)
    _, single = gradient(apart(policy), rows, how)
    assert shared.metrics["tokens/fed"] == 19 + 1 + 8
    assert single.metrics["tokens/fed"] == 8 * 21


# ------------------------------------------------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor) and not value._is_view():
                self.numel = max(self.numel, value.numel())
        return out


def test_no_tensor_has_the_size_of_rows_times_vocabulary() -> None:
    policy = tiny_policy("llama", torch.float32, vocab_size=40_011, hidden_size=16)
    dice = random.Random(0)
    rows = [Row((1, 2), tuple(dice.randrange(40_011) for _ in range(30)), dice.gauss(0, 1)) for _ in range(8)]
    with Largest() as seen:
        gradient(policy, rows, settings(token_budget=None))
    assert 0 < seen.numel < 8 * 30 * 40_011 / 2


def resident_kib() -> int:
    """The memory of this process in KiB; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() // 1024 if statm.exists() else 0


def test_200_steps_need_no_more_memory_than_60() -> None:
    policy = tiny_policy("llama", torch.float32)
    optimizer = build_optimizer("adamw_torch", policy.trained, learning_rate=1e-4)
    scheduler = build_scheduler("constant", optimizer, steps=200)
    how = settings(preset("dapo", beta=0.01), token_budget=None)
    tensors, objects, resident = [], [], []
    for at in range(200):
        update(policy, make_rows(at % 7), optimizer, scheduler, how)
        if at % 20 == 19:
            gc.collect()
            resident.append(resident_kib())
            alive = gc.get_objects()
            tensors.append(sum(issubclass(type(thing), torch.Tensor) for thing in alive))
            objects.append(len(alive))
            del alive  # a list of everything that lives is itself large
    assert max(tensors[3:]) <= tensors[2], "tensors are left behind"
    assert objects[-1] - objects[2] < 140, "less than one object a step"
    assert resident[-1] - resident[2] < 20_000, "KiB in 140 steps; 50 in 300 steps were seen without the lists above"


def test_float16_gradients_are_not_lost_to_its_small_range() -> None:
    exact = tiny_policy("llama", torch.float32)
    half = dataclasses.replace(exact, dtype=torch.float16, layout="apart", head=exact.head)
    rows = make_rows(18)
    expected, _ = gradient(apart(exact), rows, settings())
    found, _ = gradient(half, rows, settings())
    assert_equal(found, expected, within=2e-2)
