"""Optimizers and schedules by name."""

from __future__ import annotations

import builtins
import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("transformers", reason="schedules are transformers'")

from rewardkit.errors import OptionError, UnknownName, UsageError  # noqa: E402
from trainer_backend import optim  # noqa: E402
from trainer_backend.optim import OPTIMIZERS, build_optimizer, build_scheduler  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_moments_on_the_host_change_no_bit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In buckets of one weight and of several, with decay and a schedule, with state passed from one to the other."""
    monkeypatch.setattr(optim, "BUCKET", 2 * 4 * 80 * 80 + 100)  # a matrix, or all that are small
    given = [[torch.nn.Parameter(one.detach().to(device)) for one in (*weights(0), *weights(1))] for _ in range(2)]
    how = {"learning_rate": 0.1, "weight_decay": 0.5, "betas": (0.8, 0.9)}
    plain, waiting = (build_optimizer("adamw_torch", one, on_host=at == 1, **how) for at, one in enumerate(given))
    told: list[int] = []
    waiting.register_step_pre_hook(lambda *step: told.append(1))
    schedules = [build_scheduler("linear", one, steps=8) for one in (plain, waiting)]
    dice = torch.Generator().manual_seed(3)
    for step in range(6):
        for pair in zip(*given, strict=True):
            slope = torch.randn(pair[0].shape, generator=dice).to(device)
            for weight in pair:
                weight.grad = slope.clone()
        for one, schedule in zip((plain, waiting), schedules, strict=True):
            one.step()
            schedule.step()
        assert all(torch.equal(*pair) for pair in zip(*given, strict=True))
        moments = [state[name] for state in waiting.state.values() for name in optim.MOMENTS]
        assert len(moments) == 8 and all(one.device.type == "cpu" for one in moments)
        if step == 2:  # as a checkpoint does, in both directions
            states = [copy.deepcopy(one.state_dict()) for one in (plain, waiting)]
            plain.load_state_dict(states[1])
            waiting.load_state_dict(states[0])
    assert told and [group["lr"] for group in plain.param_groups] == [group["lr"] for group in waiting.param_groups]


@CUDA
def test_moments_on_the_host_leave_the_device() -> None:
    weight = torch.nn.Parameter(torch.randn(64, 1 << 18, device="cuda"))
    optimizer = build_optimizer("adamw_torch", [weight], learning_rate=0.1, on_host=True)
    weight.grad = torch.ones_like(weight)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    assert torch.cuda.memory_allocated() - before < 1 << 20 < weight.numel()
    assert optimizer.state[weight]["exp_avg"].is_pinned()
    saved = copy.deepcopy(optimizer.state_dict())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    optimizer.load_state_dict(saved)  # nor do they come there when a run is resumed
    assert torch.cuda.max_memory_allocated() - before < 1 << 20 and optimizer.state[weight]["exp_avg"].is_pinned()


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
