"""One step against a real TRL GRPOTrainer on the same tiny model and batch: log-probs, loss, gradient.

TRL's fused head computes in float32 whatever the model's dtype is, so both are compared in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("trl", reason="TRL is the oracle of these tests")
pytest.importorskip("datasets", reason="TRL's trainer needs datasets")

from datasets import Dataset  # noqa: E402
from tiny_policies import VOCABULARY, KeepGradients, make_rows, near, policy_of, table, tiny_model  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from trainer_backend.loss import preset  # noqa: E402
from trainer_backend.step import StepSettings, score, update  # noqa: E402

LONGEST = 8
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(VOCABULARY)}, unk_token="w0"))
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=LONGEST,
        temperature=TEMPERATURE,
        report_to="none",
    )
    made = GRPOTrainer(
        model=tiny_model("llama", torch.float32),
        args=args,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "w2"}]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1"),
    )
    made.current_gradient_accumulation_steps = 1
    return made


def left_padded(rows: Any) -> dict[str, Any]:
    """The rows as TRL holds them: prompts padded on the left, completions on the right."""
    width = max(len(row.prompt_ids) for row in rows)
    inputs: dict[str, Any] = {
        "prompt_ids": [[0] * (width - len(row.prompt_ids)) + list(row.prompt_ids) for row in rows],
        "prompt_mask": [[0] * (width - len(row.prompt_ids)) + [1] * len(row.prompt_ids) for row in rows],
        "completion_ids": [list(row.completion_ids) + [0] * (LONGEST - row.length) for row in rows],
        "completion_mask": [[1] * row.length + [0] * (LONGEST - row.length) for row in rows],
    }
    inputs = {name: torch.tensor(value) for name, value in inputs.items()}
    inputs["advantages"] = torch.tensor([row.advantage for row in rows])
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    for name, values in (
        ("old_per_token_logps", [row.old_logps for row in rows]),
        ("ref_per_token_logps", [row.ref_logps for row in rows]),
    ):
        made = table(values, LONGEST)
        if made is not None:
            inputs[name] = made.float()
    return inputs


NUMBERS = {
    "cispo": {"epsilon_high": 1.1},
    "dapo": {"epsilon_high": 0.28},
    "luspo": {"epsilon_low": 2e-3, "epsilon_high": 2.5e-3},
}
SEQUENCE = ("gspo", "luspo")


def by_trl(trainer: Any, rows: Any, name: str, beta: float) -> tuple[float, list[Any], Any]:
    trainer.loss_type = "grpo" if name == "gspo" else name
    trainer.importance_sampling_level = "sequence" if name in SEQUENCE else "token"
    trainer.epsilon_low, trainer.epsilon_high = 0.2, 0.2
    trainer.args.sapo_temperature_neg = 1.05
    trainer.args.use_bias_correction_kl = name not in SEQUENCE
    numbers = {"epsilon_low": 3e-4, "epsilon_high": 4e-4} if name == "gspo" else NUMBERS.get(name, {})
    for key, value in numbers.items():
        setattr(trainer, key, value)
    trainer.beta = beta
    trainer.model.train()
    trainer.model.zero_grad()
    inputs = left_padded(rows)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    with torch.no_grad():
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        logps = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, LONGEST)[0]
    found = [weight.grad.clone() for weight in trainer.model.parameters() if weight.requires_grad]
    return float(loss.detach()), found, logps


@pytest.mark.parametrize("on_policy", [True, False], ids=["on-policy", "old"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "vespo", "gspo", "luspo"])
def test_log_probs_loss_and_gradient(trainer: Any, name: str, beta: float, on_policy: bool) -> None:
    # TRL puts a row's ratio on the KL; the plain gradient, which has no ratio, is compared at that level instead.
    changes: dict[str, Any] = {"kl_gradient": "plain"} if name in SEQUENCE else {}
    if name == "cispo":
        changes["ratio_cap"] = 1.1  # some are above it
    policy = policy_of(trainer.model)
    assert policy.layout == "shared"
    rows = near(policy, make_rows(21, groups=3))
    if on_policy:
        rows = [dataclasses.replace(row, old_logps=None, rollout_logps=None) for row in rows]
    else:
        rows = [dataclasses.replace(row, rollout_logps=None) for row in rows]
    how = StepSettings(
        loss=preset(name, beta=beta, **changes),
        temperature=TEMPERATURE,
        token_budget=45,
        max_grad_norm=None,
        max_completion_length=LONGEST,
    )
    loss, expected, logps = by_trl(trainer, rows, name, beta)
    optimizer = KeepGradients(policy.trained)
    result = update(policy, rows, optimizer, None, how)
    assert result.loss == pytest.approx(loss, rel=2e-5, abs=2e-6)
    if name == "cispo":
        capped = trainer._metrics["train"]["cispo_clip_ratio"][-1]
        assert (capped > 0) is not on_policy
        assert result.metrics["cispo_clip_ratio"] * result.metrics["measured/share"] == pytest.approx(capped)
    scale = max(float(value.abs().max()) for value in expected)
    assert scale > 0
    for one, other in zip(optimizer.kept, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * scale)
    for at, own in enumerate(score(policy, rows, how)):
        assert own is not None
        torch.testing.assert_close(own, logps[at, : len(own)], rtol=2e-5, atol=2e-5)


def test_training_step_of_trl_is_the_same_update(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through TRL's own `training_step`, with its inputs in place of those that it would generate."""
    policy = policy_of(trainer.model)
    rows = [dataclasses.replace(row, rollout_logps=None) for row in make_rows(22, groups=2)]
    trainer.loss_type, trainer.beta, trainer.importance_sampling_level = "dapo", 0.0, "token"
    trainer.epsilon_low, trainer.epsilon_high = 0.2, 0.28
    trainer.model.zero_grad()
    monkeypatch.setattr(trainer, "_prepare_inputs", lambda _: left_padded(rows))
    loss = trainer.training_step(trainer.model, {}, None)
    expected = [weight.grad.clone() for weight in policy.trained]
    optimizer = KeepGradients(policy.trained)
    how = StepSettings(loss=preset("dapo"), temperature=TEMPERATURE, max_grad_norm=None)
    result = update(policy, rows, optimizer, None, how)
    assert result.loss == pytest.approx(float(loss.detach()), rel=2e-5, abs=2e-6)
    norm = float(torch.nn.utils.get_total_norm(expected))
    assert result.grad_norm == pytest.approx(norm, rel=1e-5) and norm > 0
    for one, other in zip(optimizer.kept, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * norm)
