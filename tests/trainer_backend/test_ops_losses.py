"""A loss on fused log-probs is the loss on dense ones: every preset, value and gradient in the hidden states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")

from trainer_backend.context import Context, token_mask  # noqa: E402
from trainer_backend.loss import PRESETS, gradients, preset  # noqa: E402
from trainer_backend.ops import Head, dense_logps, linear_logps, logprob  # noqa: E402

WIDTH, TOKENS, LENGTHS = 8, 23, (6, 2, 1, 5)


def normal(dice: Any, *shape: int) -> Any:
    return torch.randn(*shape, generator=dice, dtype=torch.float64)


def make() -> tuple[Any, Head, Any, Context]:
    """Hidden states [rows, tokens, width], a head, targets, and a context with all that any loss looks at."""
    dice = torch.Generator().manual_seed(5)
    mask = token_mask(lengths=torch.tensor(LENGTHS), width=max(LENGTHS))
    hidden = normal(dice, *mask.shape, WIDTH)
    head = Head(normal(dice, TOKENS, WIDTH), normal(dice, TOKENS), 0.7, 6.0)
    targets = torch.randint(0, TOKENS, mask.shape, generator=dice)
    logps = dense_logps(hidden.flatten(0, 1), head, targets.flatten())[0].view(mask.shape)
    context = Context(
        mask=mask, advantages=normal(dice, len(LENGTHS)),
        old_logps=(logps + 0.3 * normal(dice, *mask.shape)).clamp(max=-1e-3),
        rollout_logps=(logps + 0.3 * normal(dice, *mask.shape)).clamp(max=-1e-3),
        ref_logps=(logps + 0.3 * normal(dice, *mask.shape)).clamp(max=-1e-3), max_length=9,
    )  # fmt: skip
    return hidden, head, targets, context


@pytest.mark.parametrize("extra", [{}, {"beta": 0.1, "entropy_coef": 0.02, "correction": "token_truncate"}], ids=str)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_on_fused_log_probs_is_that_on_dense_ones(
    name: str, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprob, "TILE", 8)
    monkeypatch.setattr(logprob, "MOST_ROWS", 5)
    loss = preset(name, **extra)
    hidden, head, targets, context = make()
    for old in (context.old_logps, None):  # None: the first update, ratios of 1
        found = []
        for fused in (True, False):
            states = hidden.clone().requires_grad_()
            flat, at = states.flatten(0, 1), targets.flatten()
            if fused:
                result = linear_logps(
                    flat, head, at, active=context.mask.flatten(), anchors=context.rollout_logps.flatten(),
                    entropy="gradient" if extra else "none", temperature=0.8,
                )  # fmt: skip
                logps, entropies = result.logps, result.entropies
            else:
                logps, entropies = dense_logps(flat, head, at, temperature=0.8)
            shaped = context.mask.shape
            full = replace(context, old_logps=old, entropies=entropies.view(shaped) if extra else None)
            value = loss(logps.view(shaped), full)
            (gradient,) = torch.autograd.grad(value, states)
            # The way the trainer goes: the loss's gradient on log-probs alone, then through the head.
            alone = gradients(loss, logps.detach().view(shaped), full)
            torch.testing.assert_close(alone.loss, value.detach(), rtol=1e-12, atol=1e-13)
            found.append((value.detach(), gradient))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-10, atol=1e-13)
        assert not found[0][1][~context.mask].any()
        assert found[0][1].norm() > 1e-6


def test_a_loss_of_your_own() -> None:
    hidden, head, targets, context = make()
    flat, at, mask = hidden.flatten(0, 1).requires_grad_(), targets.flatten(), context.mask.flatten()

    def loss(logps: Any) -> Any:
        return (logps[mask].exp() * torch.linspace(-1, 1, int(mask.sum()))).square().sum().sqrt()

    (fused,) = torch.autograd.grad(loss(linear_logps(flat, head, at, active=mask).logps), flat)
    (dense,) = torch.autograd.grad(loss(dense_logps(flat, head, at)[0]), flat)
    torch.testing.assert_close(fused, dense, rtol=1e-10, atol=1e-14)
