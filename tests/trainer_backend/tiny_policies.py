"""Tiny random models with LoRA, rows to train them on, and the slow way to their loss, for the tests of a step."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from trainer_backend.batch import Layout, Row
from trainer_backend.context import Context, top_entropy_mask
from trainer_backend.loss import Loss
from trainer_backend.model.forward import head_of, shares_prefixes
from trainer_backend.model.streamed import Streamed, streamed_of
from trainer_backend.step import Policy, StepSettings

VOCABULARY = 97
KINDS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def tiny_model(kind: str = "llama", dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> Any:
    """A random two-layer model with LoRA on every linear layer, both of its factors random."""
    torch.manual_seed(seed)
    numbers: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "tie_word_embeddings": kind == "qwen2",
    }
    base = AutoModelForCausalLM.from_config(KINDS[kind](**(numbers | changes)), attn_implementation="sdpa").to(dtype)
    if dtype == torch.float64:
        _norms_in_float64(base)
    lora = LoraConfig(r=3, lora_alpha=6, lora_dropout=0.0, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(base, lora, autocast_adapter_dtype=False)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


class Norm(nn.Module):
    """The RMS norm of Llama and Qwen2 in float64; transformers computes it in float32 whatever the model's dtype is."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.epsilon)


def _norms_in_float64(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, Norm(child))


def adapter_off(model: Any) -> AbstractContextManager[Any]:
    """The reference policy."""
    return model.disable_adapter()  # type: ignore[no-any-return]


def tiny_policy(kind: str = "llama", dtype: torch.dtype = torch.float64, **changes: Any) -> Policy:
    """A policy around a tiny model; its layout is what the model allows, "shared"."""
    return policy_of(tiny_model(kind, dtype, **changes))


def policy_of(model: Any, dtype: torch.dtype | None = None) -> Policy:
    """A policy around a model with an adapter; what the model allows is found by trying it."""
    found = dtype or next(weight.dtype for weight in model.parameters() if weight.is_floating_point())
    layout: Layout = "shared" if shares_prefixes(model, found) else "apart"
    return Policy(model, head_of(model, found), found, layout, adapter_off)


def laid_out(policy: Policy, layout: Layout, chunk: int = 7) -> Policy:
    """The policy with its rows in another layout; in a line its layers are streamed."""
    streamed = None
    if layout == "line":
        streamed = streamed_of(policy.model, policy.dtype, chunk=chunk)
        assert isinstance(streamed, Streamed), streamed
    return dataclasses.replace(policy, layout=layout, streamed=streamed)


def make_rows(seed: int = 0, *, groups: int = 3, size: int = 4, old: bool = False, rollout: bool = True) -> list[Row]:
    """Groups of ragged rows with advantages of both signs, one of them 0, and the log-probs that are asked for."""
    dice = random.Random(seed)
    rows = []
    for _ in range(groups):
        prompt = tuple(dice.randrange(1, VOCABULARY) for _ in range(dice.randint(3, 9)))
        for at in range(size):
            length = dice.choice([1, 2, 5, 8])
            completion = tuple(dice.randrange(1, VOCABULARY) for _ in range(length))
            logps = [-dice.uniform(0.5, 6.0) for _ in range(length)]
            rows.append(
                Row(
                    prompt_ids=prompt,
                    completion_ids=completion,
                    advantage=0.0 if at == 1 else dice.gauss(0.0, 1.0),
                    rollout_logps=logps if rollout else None,
                    old_logps=[value + dice.gauss(0.0, 0.2) for value in logps] if old else None,
                )
            )
    return rows


def near(policy: Policy, rows: Sequence[Row], spread: float = 0.3, seed: int = 5) -> list[Row]:
    """The rows with rollout, old and reference log-probs near the policy's own, so that clips bite here and there."""
    dice = random.Random(seed)
    own = dense_logps(policy.model, rows, 1.0)[0].detach()
    found = []
    for row, values in zip(rows, own, strict=True):
        known = values[: row.length].tolist()
        moved = [[value + dice.gauss(0.0, spread) for value in known] for _ in range(3)]
        found.append(dataclasses.replace(row, rollout_logps=moved[0], old_logps=moved[1], ref_logps=moved[2]))
    return found


def dense_logps(model: Any, rows: Sequence[Row], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [rows, tokens] under autograd: each row alone through the model's own logits."""
    width = max(row.length for row in rows)
    logps, entropies = [], []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1] / temperature
        full = torch.log_softmax(logits, -1)
        own = full.gather(1, torch.tensor(row.completion_ids).unsqueeze(1)).squeeze(1)
        missing = (0, width - row.length)
        logps.append(torch.nn.functional.pad(own, missing))
        entropies.append(torch.nn.functional.pad(-(full.exp() * full).sum(-1), missing))
    return torch.stack(logps), torch.stack(entropies)


def table(values: Sequence[Any], width: int) -> torch.Tensor | None:
    """One number a token as [rows, tokens]."""
    if any(value is None for value in values):
        return None
    return torch.stack(
        [
            torch.nn.functional.pad(torch.as_tensor(value, dtype=torch.float64), (0, width - len(value)))
            for value in values
        ]
    )


def dense_loss(policy: Policy, rows: Sequence[Row], settings: StepSettings) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss of a whole optimizer batch and its gradient, by plain autograd in one piece."""
    rows = [row for row in rows if row.in_loss]
    logps, entropies = dense_logps(policy.model, rows, settings.temperature)
    lengths = torch.tensor([row.length for row in rows])
    mask = torch.arange(logps.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
    width = logps.shape[1]
    ref = table([row.ref_logps for row in rows], width)
    if ref is None:
        with policy.model.disable_adapter(), torch.no_grad():
            ref = dense_logps(policy.model, rows, settings.temperature)[0]
    share = settings.top_entropy_quantile
    ctx = Context(
        mask=mask,
        advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float64),
        old_logps=table([row.old_logps for row in rows], width),
        rollout_logps=table([row.rollout_logps for row in rows], width),
        ref_logps=ref,
        entropies=entropies if isinstance(settings.loss, Loss) else None,
        policy_mask=top_entropy_mask(entropies=entropies.detach(), mask=mask, share=share) if share < 1 else None,
        max_length=settings.max_completion_length,
    )
    loss = settings.loss(logps, ctx)
    return loss.detach(), list(torch.autograd.grad(loss, policy.trained))


class KeepGradients(torch.optim.SGD):
    """Plain gradient descent that keeps the gradients of its last step, as they were after clipping."""

    def __init__(self, parameters: Any, lr: float = 0.0) -> None:
        super().__init__(parameters, lr=lr)
        self.kept: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        self.kept = [weight.grad.clone() for group in self.param_groups for weight in group["params"]]
        return super().step(closure)
