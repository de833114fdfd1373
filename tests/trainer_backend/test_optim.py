"""Optimizers and schedules by name."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("transformers", reason="schedules are transformers'")

from rewardkit.errors import OptionError, UnknownName, UsageError  # noqa: E402
from trainer_backend.optim import OPTIMIZERS, build_optimizer, build_scheduler  # noqa: E402


def weights(seed: int = 0, size: int = 80) -> list[Any]:
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, size)), torch.nn.Parameter(torch.randn(size))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_goes_downhill(name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes", reason="adamw_8bit is bitsandbytes'")
    given = weights()
    optimizer = build_optimizer(name, given, learning_rate=0.02)
    losses = []
    for _ in range(30):
        loss = sum((value**2).sum() for value in given)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]


def test_adamw_is_adamw() -> None:
    """One step of AdamW from its formula: decay, then -lr * sign-like m / (sqrt(v) + eps)."""
    given = weights()
    start = [value.detach().clone() for value in given]
    optimizer = build_optimizer(
        "adamw_torch", given, learning_rate=0.1, weight_decay=0.5, betas=(0.8, 0.9), epsilon=1e-3
    )
    for value in given:
        value.grad = torch.full_like(value, 0.25)
    optimizer.step()
    expected = 0.1 * 0.25 / (0.25 + 1e-3)
    torch.testing.assert_close(given[0].detach(), start[0] * (1 - 0.1 * 0.5) - expected)
    torch.testing.assert_close(given[1].detach(), start[1] - expected)  # biases do not decay


def test_8bit_state_is_8bit() -> None:
    pytest.importorskip("bitsandbytes", reason="adamw_8bit is bitsandbytes'")
    (given,) = weights()[:1]
    optimizer = build_optimizer("adamw_8bit", [given], learning_rate=0.1)
    given.grad = torch.ones_like(given)
    optimizer.step()
    kept = [value for value in optimizer.state[given].values() if isinstance(value, torch.Tensor)]
    assert sum(value.dtype == torch.uint8 and value.numel() == given.numel() for value in kept) == 2


def test_frozen_parameters_are_passed_over_and_nothing_to_train_is_an_error() -> None:
    given = weights()
    given[0].requires_grad_(False)
    optimizer = build_optimizer("sgd", given, learning_rate=0.1)
    assert [value for group in optimizer.param_groups for value in group["params"]] == [given[1]]
    given[1].requires_grad_(False)
    with pytest.raises(UsageError, match="no parameter to train"):
        build_optimizer("sgd", given, learning_rate=0.1)


def test_wrong_names_and_numbers() -> None:
    with pytest.raises(UnknownName, match="adamw_torch"):
        build_optimizer("adamw_torhc", weights(), learning_rate=0.1)
    with pytest.raises(OptionError):
        build_optimizer("sgd", weights(), learning_rate=-0.1)
    optimizer = build_optimizer("sgd", weights(), learning_rate=0.1)
    with pytest.raises(UnknownName, match="cosine"):
        build_scheduler("cosin", optimizer, steps=5)
    with pytest.raises(OptionError):
        build_scheduler("linear", optimizer, steps=5, warmup_steps=6)
    with pytest.raises(OptionError):
        build_scheduler("linear", optimizer, steps=0)
    with pytest.raises(OptionError, match="cosine_with_min_lr"):
        build_scheduler("cosine_with_min_lr", optimizer, steps=5)


def test_without_bitsandbytes_the_install_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "bitsandbytes":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match=r'pip install "rewardkit\[train\]"'):
        build_optimizer("adamw_8bit", weights(), learning_rate=0.1)


def rates(name: str, steps: int, warmup: int = 0, **options: Any) -> list[float]:
    optimizer = build_optimizer("sgd", weights(size=2), learning_rate=1.0)
    scheduler = build_scheduler(name, optimizer, steps=steps, warmup_steps=warmup, options=options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_schedules() -> None:
    assert rates("constant", 3) == [1.0, 1.0, 1.0]
    assert rates("constant", 4, 2) == [0.0, 0.5, 1.0, 1.0]
    assert rates("linear", 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates("linear", 4, 2) == [0.0, 0.5, 1.0, 0.5]
    assert rates("cosine", 4)[2] == pytest.approx(0.5)
    assert min(rates("cosine_with_min_lr", 50, min_lr=0.3)) >= 0.3
