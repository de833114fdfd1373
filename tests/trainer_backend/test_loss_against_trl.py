"""Values and gradients against TRL's own `GRPOTrainer._compute_loss`, called on a stand-in for the trainer."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer's formulas need torch")
trl = pytest.importorskip("trl", reason="TRL is the oracle of these tests")

from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402

from trainer_backend.context import Context, top_entropy_mask  # noqa: E402
from trainer_backend.loss import PRESETS, Loss, gradients, preset  # noqa: E402
from trainer_backend.mismatch import importance_weights  # noqa: E402

ROWS, TOKENS, MAX_LENGTH = 6, 9, 40
BY_TRL = {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "vespo", "luspo"}


class OneProcess:
    """The parts of accelerate that the loss calls, for a single process."""

    num_processes = 1
    sync_gradients = True

    @staticmethod
    def gather(value: Any) -> Any:
        return value

    gather_for_metrics = gather

    @staticmethod
    def reduce(value: Any, reduction: str = "sum") -> Any:
        return value

    @staticmethod
    def pad_across_processes(value: Any, dim: int = 0, pad_index: float = 0) -> Any:
        return value


def stand_in(logps: Any, entropies: Any, **changes: Any) -> Any:
    """An object with what `_compute_loss` reads from `self`."""
    args = SimpleNamespace(
        use_bias_correction_kl=True,
        delta=None,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.0625,  # TRL computes them in float32; this one is exact there
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
        steps_per_generation=1,
    )
    trainer = SimpleNamespace(
        args=args,
        accelerator=OneProcess(),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="grpo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_LENGTH,
        _entropy_bonus_enabled=False,
        use_adaptive_entropy=False,
        entropy_coef=0.0,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (logps, entropies, None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    trainer.get_high_entropy_mask = lambda *a: GRPOTrainer.get_high_entropy_mask(trainer, *a)
    for name, value in changes.items():
        target = args if hasattr(args, name) else trainer
        assert hasattr(target, name), f"TRL's loss has no {name}"
        setattr(target, name, value)
    return trainer


def by_trl(batch: dict[str, Any], **changes: Any) -> tuple[Any, Any, Any]:
    """TRL's loss, d loss / d logp and d loss / d entropy."""
    logps = batch["logps"].clone().requires_grad_()
    entropies = batch["entropies"].clone().requires_grad_()
    trainer = stand_in(logps, entropies, **changes)
    mask = batch["mask"]
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 2, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 2, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long),
        "completion_mask": mask.to(logps.dtype),
        "advantages": batch["advantages"],
        "ref_per_token_logps": batch["ref"],
        "num_items_in_batch": mask.sum(),
    }
    if batch.get("old") is not None:
        inputs["old_per_token_logps"] = batch["old"]
    if "rollout" in batch:
        inputs["sampling_per_token_logps"] = batch["rollout"]
    if "ratio" in batch:
        inputs["importance_sampling_ratio"] = batch["ratio"]
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    found = torch.autograd.grad(loss, [logps, entropies], allow_unused=True)
    return loss.detach(), found[0], found[1]


def batch(seed: int = 0, *, spread: float = 0.4, old: bool = True) -> dict[str, Any]:
    """A batch in float64 with ragged rows, advantages of both signs and ratios on both sides of every clip."""
    dice = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Any:
        return torch.randn(ROWS, TOKENS, generator=dice, dtype=torch.float64) * scale

    lengths = torch.tensor([9, 1, 4, 7, 9, 2])
    logps = -normal(1.0).abs() - 0.05
    return {
        "mask": torch.arange(TOKENS).unsqueeze(0) < lengths.unsqueeze(1),
        "logps": logps,
        "old": (logps + normal(spread)).clamp(max=-1e-3) if old else None,
        "ref": (logps + normal(spread)).clamp(max=-1e-3),
        "entropies": normal(1.0).abs(),
        "advantages": torch.tensor([1.5, -0.7, 0.3, -1.1, 0.0, 2.0], dtype=torch.float64),
    }


def named(name: str, **changes: Any) -> Loss:
    """The preset with the numbers that the tests give TRL."""
    numbers = {} if name == "cispo" else NUMBERS.get(name, {})
    temperature = {"tau_negative": 1.0625} if name == "sapo" else {}
    return preset(name, **(numbers | temperature | changes))


def ours(loss: Loss, data: dict[str, Any], **context: Any) -> Any:
    made = Context(
        mask=data["mask"],
        advantages=data["advantages"],
        old_logps=data["old"],
        ref_logps=data["ref"],
        entropies=data["entropies"],
        max_length=MAX_LENGTH,
        **context,
    )
    return gradients(loss, data["logps"], made)


def assert_same(found: Any, expected: tuple[Any, Any, Any], mask: Any) -> None:
    loss, by_logps, _ = expected
    torch.testing.assert_close(found.loss, loss, rtol=1e-10, atol=1e-12)
    by_logps = torch.zeros_like(found.logps) if by_logps is None else torch.where(mask, by_logps, 0.0)
    torch.testing.assert_close(found.logps, by_logps, rtol=1e-10, atol=1e-12)


NUMBERS = {
    "cispo": {"epsilon_high": 5.0},
    "dapo": {"epsilon_high": 0.28},
    "luspo": {"epsilon_low": 2e-3, "epsilon_high": 2.5e-3},
}


def test_every_loss_of_trl_is_compared() -> None:
    assert set(PRESETS) >= BY_TRL


@pytest.mark.parametrize("old", [True, False], ids=["old", "on-policy"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("name", sorted(BY_TRL))
def test_losses_levels_and_beta(name: str, ratio: str, beta: float, old: bool) -> None:
    # TRL puts a row's ratio on the KL; the plain gradient, which has no ratio, is compared at that level instead.
    plain = ratio == "sequence" or name == "luspo"
    changes = {"kl_gradient": "plain"} if plain else {}
    for seed in range(4):
        data = batch(seed, old=old)
        numbers = NUMBERS.get(name, {})
        expected = by_trl(
            data,
            loss_type=name,
            importance_sampling_level=ratio,
            beta=beta,
            use_bias_correction_kl=not plain,
            **numbers,
        )
        loss = named(name, ratio=ratio, beta=beta, **changes)
        assert_same(ours(loss, data), expected, data["mask"])


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("delta", [1.2, 1.5, 4.0])
@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_two_sided_clip(name: str, delta: float, ratio: str) -> None:
    data = batch(1, spread=0.8)
    numbers = NUMBERS.get(name, {})
    expected = by_trl(data, loss_type=name, importance_sampling_level=ratio, delta=delta, **numbers)
    assert_same(ours(preset(name, ratio=ratio, delta=delta), data), expected, data["mask"])


MODES = {
    "token_truncate": (0.0, 3.0),
    "token_mask": (0.5, 2.0),
    "sequence_truncate": (0.0, 3.0),
    "sequence_mask": (0.2, 3.0),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(BY_TRL))
def test_corrections(name: str, mode: str) -> None:
    low, high = MODES[mode]
    data = batch(2)
    dice = torch.Generator().manual_seed(7)
    rollout = data["old"] + 0.6 * torch.randn(ROWS, TOKENS, generator=dice, dtype=torch.float64)
    rollout[0, 3] = math.nan  # the sampler does not know this one
    data["rollout"] = rollout
    data["ratio"] = trl_ratio(data, mode, low, high)
    expected = by_trl(
        data,
        loss_type=name,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        **NUMBERS.get(name, {}),
    )
    loss = named(name, ratio="token", correction=mode, correction_low=low, correction_high=high)
    assert_same(ours(loss, data, rollout_logps=rollout), expected, data["mask"])


def trl_ratio(data: dict[str, Any], mode: str, low: float, high: float) -> Any:
    """The weights as TRL makes them before its loss: log-ratios masked, NaN as 0, truncated or zeroed outside."""
    difference = torch.nan_to_num((data["old"] - data["rollout"]) * data["mask"], nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_weights_alone(mode: str) -> None:
    low, high = MODES[mode]
    data = batch(3)
    data["rollout"] = data["old"] + 0.5
    found = importance_weights(
        old_logps=data["old"], rollout_logps=data["rollout"], mask=data["mask"], correction=mode, low=low, high=high
    )
    torch.testing.assert_close(found, trl_ratio(data, mode, low, high), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["grpo", "dapo", "cispo", "vespo"])
def test_top_entropy_mask(name: str) -> None:
    data = batch(4)
    expected = by_trl(data, loss_type=name, top_entropy_quantile=0.3, **NUMBERS.get(name, {}))
    chosen = top_entropy_mask(entropies=data["entropies"], mask=data["mask"], share=0.3)
    assert_same(ours(named(name), data, policy_mask=chosen), expected, data["mask"])


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_entropy_bonus(share: float) -> None:
    data = batch(5)
    expected = by_trl(
        data, loss_type="grpo", top_entropy_quantile=share, _entropy_bonus_enabled=True, entropy_coef=0.05
    )
    chosen = top_entropy_mask(entropies=data["entropies"], mask=data["mask"], share=share) if share < 1 else None
    found = ours(preset("grpo", entropy_coef=0.05), data, policy_mask=chosen)
    assert_same(found, expected, data["mask"])
    torch.testing.assert_close(found.entropies, expected[2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 1.0])
def test_off_policy_rows(threshold: float) -> None:
    data = batch(6)
    data["rollout"] = data["old"] + 0.2
    expected = by_trl(data, loss_type="dapo", epsilon_high=0.28, off_policy_mask_threshold=threshold)
    found = ours(preset("dapo", off_policy_threshold=threshold), data, rollout_logps=data["rollout"])
    assert_same(found, expected, data["mask"])


def test_the_oracle_notices_a_difference() -> None:
    data = batch(0)
    expected = by_trl(data, loss_type="grpo")
    for other in (preset("grpo", epsilon_low=0.21), preset("dapo"), preset("grpo", beta=0.01)):
        with pytest.raises(AssertionError):
            assert_same(ours(other, data), expected, data["mask"])


def test_a_rows_ratio_is_not_put_on_the_kl() -> None:
    """TRL multiplies a token's KL by the ratio of the row; here the token's own ratio is taken."""
    data = batch(0)
    loss = preset("gspo", beta=0.5)
    without = ours(preset("gspo"), data)
    with_kl = ours(loss, data)
    token = (data["logps"] - data["old"]).exp()
    k3 = torch.exp(data["ref"] - data["logps"]) - (data["ref"] - data["logps"]) - 1
    rows = torch.where(data["mask"], token * k3, 0.0).sum(-1) / data["mask"].sum(-1)
    torch.testing.assert_close(with_kl.loss - without.loss, 0.5 * rows.mean(), rtol=1e-10, atol=1e-12)


def test_all_combinations_were_tried() -> None:
    tried = list(itertools.product(sorted(BY_TRL), ["token", "sequence"], [0.0, 0.04], [True, False]))
    assert len(tried) == 64
