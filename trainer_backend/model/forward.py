"""The forward pass without the head, and the head as `ops.Head`: what training needs instead of a model's logits.

Any causal language model of transformers is a decoder that ends in a normed hidden state and a head above it. Families
differ in what the head does (a factor: Cohere, Granite; a soft cap: Gemma 2). What the configuration says is tried on
a few tokens against the model's own logits. Where they disagree, as with a wrapper nobody foresaw, training goes
through the model's logits instead: right by definition, but with memory for tokens x vocabulary.

The same trial tells whether sequences that begin alike may share their beginning in one row (`prefix_mask`). With a
prompt of P tokens and G completions of R, a row then holds P + G R tokens at most in place of G (P + R).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from trainer_backend.model.errors import ModelError
from trainer_backend.model.modes import evaluating
from trainer_backend.ops import Head, LinearLogps, linear_logps

PROBE = (2, 9)
"""Rows and tokens of the trial."""

AGREES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 8e-3, torch.float16: 2e-3}
"""How far two ways to the same logits may differ, relative to their norm; bfloat16 rounds each by up to 4e-3."""

SAME_STATES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""The same for hidden states by two layouts: rounding adds up over the layers (bfloat16, 30 layers: 1e-2)."""


@dataclass(frozen=True)
class Dense:
    """In place of a `Head`: log-probs go through the model's own logits, because of `reason`."""

    reason: str


def base_of(model: nn.Module) -> Any:
    """Return the transformers model inside a PeftModel, its LoRA layers in place; other models as they are."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def decoder_of(model: nn.Module) -> nn.Module:
    """Return the part of a causal language model below its head.

    Raises:
        ModelError: There is none.
    """
    base = base_of(model)
    for find in ("get_decoder", "base_model"):
        found = getattr(base, find, None)
        decoder = found() if find == "get_decoder" and callable(found) else found
        if isinstance(decoder, nn.Module) and decoder is not base:
            return decoder
    raise ModelError(
        f"{type(base).__name__}: wanted a causal language model (a decoder and a head), found no decoder in it"
    )


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the language model, also where a wrapper for images or sound is around it."""
    return base_of(model).config.get_text_config(decoder=True)


def precision(device: torch.device | str, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Return the context of every forward pass: autocast for bfloat16 and float16, whose LoRA weights are float32."""
    if dtype in (torch.bfloat16, torch.float16):
        return torch.autocast(torch.device(device).type, dtype)
    return contextlib.nullcontext()


def hidden_states(
    model: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what the head is applied to, [rows, width, hidden] (the final norm is in it).

    Args:
        model: The causal language model, or a PeftModel around it.
        input_ids: int64 [rows, width].
        attention_mask: [rows, width], 1 for tokens and 0 for padding; or bool [rows, 1, width, width], true where a
            query (third axis) sees a key. None: causal. Padding on the right needs no mask: no token comes after it.
        position_ids: int64 [rows, width]; None: 0, 1, 2, ... in every row.
    """
    attention_mask = _added(model, attention_mask)
    out = decoder_of(model)(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False, return_dict=True
    )
    hidden: torch.Tensor = out.last_hidden_state
    return hidden


def _added(model: nn.Module, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a bool mask of four axes as what is added to attention scores.

    torch's attention would do so in each layer, and keep each layer's for the backward pass.
    """
    if mask is None or mask.dim() != 4 or mask.dtype != torch.bool:
        return mask
    dtype = base_of(model).get_input_embeddings().weight.dtype
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def logits_of(
    model: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the model's own logits, [rows, width, vocabulary]: the slow way. Arguments as for `hidden_states`."""
    attention_mask = _added(model, attention_mask)
    out = base_of(model)(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False, return_dict=True
    )
    logits: torch.Tensor = out.logits
    return logits


def score(
    model: nn.Module,
    head: Head | Dense,
    *,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    where: torch.Tensor,
    targets: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    anchors: torch.Tensor | None = None,
    entropy: Literal["none", "value", "gradient"] = "none",
) -> LinearLogps:
    """Return the log-probs of `targets`, by the head or, with `Dense`, through the model's logits.

    Args:
        model, input_ids, attention_mask, position_ids: As for `hidden_states`.
        head: What `head_of` returned.
        where: int64 [tokens]; row * width + column of the hidden state that predicts each target (the token before it).
            A place may occur more than once: the last token of a shared prompt predicts the first of each completion.
        targets: int64 [tokens].
        temperature, anchors, entropy: As for `ops.linear_logps`.
    """
    if isinstance(head, Head):
        states = hidden_states(model, input_ids, attention_mask, position_ids).flatten(0, 1).index_select(0, where)
        return score_states(states, head, targets, temperature=temperature, anchors=anchors, entropy=entropy)
    logits = logits_of(model, input_ids, attention_mask, position_ids).flatten(0, 1).index_select(0, where)
    return _from_logits(logits, targets, temperature, entropy)


def score_states(
    states: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    anchors: torch.Tensor | None = None,
    entropy: Literal["none", "value", "gradient"] = "none",
) -> LinearLogps:
    """Return the log-probs of `targets` by the head, as `score` does, from hidden states that are there.

    Args:
        states: [tokens, hidden], of the token before each target, gathered into one piece of memory (torch's CPU
            kernels are 100 times slower on strided rows). Nobody else's: their gradient may be written over them.
        head, targets, temperature, anchors, entropy: As for `score`.
    """
    rows = states.to(head.weight.dtype)
    return linear_logps(
        rows,
        head,
        targets,
        temperature=temperature,
        anchors=anchors,
        entropy=entropy,
        inplace=torch.is_grad_enabled() and rows.requires_grad and not head.trained and entropy != "gradient",
    )


def _from_logits(
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: float | torch.Tensor,
    entropy: Literal["none", "value", "gradient"],
) -> LinearLogps:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    scaled = wide / (temperature.to(wide.dtype).unsqueeze(1) if isinstance(temperature, torch.Tensor) else temperature)
    at = targets.unsqueeze(1)
    target = scaled.gather(1, at).squeeze(1)
    others = scaled.scatter(1, at, float("-inf")).logsumexp(1)
    logps = -torch.nn.functional.softplus(others - target)
    entropies = None
    if entropy != "none":
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "gradient"):
            full = torch.log_softmax(scaled, 1)
            entropies = -torch.where(full > float("-inf"), full.exp() * full, torch.zeros_like(full)).sum(1)
    return LinearLogps(logps, entropies)


def head_of(model: nn.Module, dtype: torch.dtype | None = None) -> Head | Dense:
    """Return the model's head, tried against its logits; `Dense` with the reason where it cannot be had.

    Args:
        model: The causal language model, or a PeftModel around it. Its mode is left as it was.
        dtype: What forward passes compute in (`precision`); None: the dtype of the head's weight.
    """
    base = base_of(model)
    layer = base.get_output_embeddings()
    if type(layer) is not nn.Linear:
        return Dense(f"the head of {type(base).__name__} is a {type(layer).__name__}, not a plain linear layer")
    scale, softcap = _scale_and_softcap(text_config(model))
    try:
        head = Head(weight=layer.weight, bias=layer.bias, scale=scale, softcap=softcap)
    except Exception as error:  # whatever it cannot hold, the model's own logits can
        return Dense(str(error))
    try:
        apart = _disagreement(model, head, dtype or layer.weight.dtype)
    except ModelError as error:
        return Dense(str(error))
    limit = AGREES[dtype or layer.weight.dtype]
    if not apart <= limit:
        return Dense(
            f"hidden states times head are {apart:.1e} from the logits of {type(base).__name__} (at most {limit:.0e})"
        )
    return head


def _scale_and_softcap(config: Any) -> tuple[float, float | None]:
    """Return the factor on the logits and their soft cap as the families name them."""
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere; Falcon H1
        scale *= getattr(config, name, None) or 1.0
    for name in ("logits_scaling",):  # Granite divides
        scale /= getattr(config, name, None) or 1.0
    return scale, getattr(config, "final_logit_softcapping", None) or None


@contextlib.contextmanager
def trial(model: nn.Module, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield a few token ids, with the model in evaluation mode, no gradients and training's precision."""
    device = next(base_of(model).get_input_embeddings().parameters()).device
    vocabulary = int(text_config(model).vocab_size)
    # Fixed ids, spread over the vocabulary: no random state is touched.
    ids = (torch.arange(1, 1 + PROBE[0] * PROBE[1], device=device) * 7919 % vocabulary).view(PROBE)
    with evaluating(model), torch.no_grad(), precision(device, dtype):
        yield ids


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two tensors are apart, relative to the norm of the second."""
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-30))


def _disagreement(model: nn.Module, head: Head, dtype: torch.dtype) -> float:
    from trainer_backend.ops.reference import dense_logits

    with trial(model, dtype) as ids:
        theirs = logits_of(model, ids)
        states = hidden_states(model, ids)
        if states.shape[-1] != head.hidden or theirs.shape[-1] != head.vocabulary:
            return float("inf")
        ours = dense_logits(states.flatten(0, 1), head, torch.float64 if dtype == torch.float64 else torch.float32)
    return apart(ours, theirs.flatten(0, 1))


@dataclass(frozen=True)
class Branch:
    """Tokens that stand side by side in a row and go on from others of it, which need not stand beside them.

    Attributes:
        start, stop: Their columns.
        before: The columns of all tokens that come before them, all below `start`.
    """

    start: int
    stop: int
    before: Sequence[int]


def prefix_mask(rows: Sequence[Sequence[Branch]], width: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return who sees whom, bool [rows, 1, width, width], where sequences that begin alike stand in one row.

    A token sees what comes before it, and itself. Positions of a branch go on from what comes before it. Columns of no
    branch are padding: each sees itself (a query that sees nothing would be NaN), and no other sees it.
    """
    sees = torch.eye(width, dtype=torch.bool, device=device).repeat(len(rows), 1, 1)
    for mask, branches in zip(sees, rows, strict=True):
        for branch in branches:
            own = mask[branch.start : branch.stop]
            own[:, branch.start : branch.stop].logical_or_(torch.ones_like(own[:, : len(own)]).tril())
            own[:, torch.tensor(branch.before, dtype=torch.long, device=device)] = True
    return sees.unsqueeze(1)


def shares_prefixes(model: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether the model gives the same hidden states with sequences that share their beginning in one row.

    It does with torch's own attention and full layers; not with sliding windows, recurrent layers, or an attention that
    ignores such masks.
    """
    if getattr(text_config(model), "sliding_window", None) or not _plain_attention(model):
        return False
    prompt, rest = 4, PROBE[1] - 4
    try:
        with trial(model, dtype) as ids:
            ids = torch.cat([ids[:1, :prompt].expand(PROBE[0], -1), ids[:, prompt:]], 1)
            alone = hidden_states(model, ids)
            row = torch.cat([ids[:1], ids[1:, prompt:]], 1)
            width = PROBE[1] + rest
            branches = [Branch(0, PROBE[1], ()), Branch(PROBE[1], width, range(prompt))]
            mask = prefix_mask([branches], width, ids.device)
            places = torch.tensor([[*range(PROBE[1]), *range(prompt, PROBE[1])]], device=ids.device)
            together = hidden_states(model, row, mask, places)
            wrong = hidden_states(model, row, mask, None)  # positions that do not start again
    except Exception:  # a model that cannot take such a mask says so in its own way; rows of their own always work
        return False
    expected = torch.cat([alone[0], alone[1, prompt:]])
    found, control = apart(together[0], expected), apart(wrong[0], expected)
    return found <= SAME_STATES[dtype] and found <= 0.2 * control


def _plain_attention(model: nn.Module) -> bool:
    """Return whether every layer attends to everything before it, by what the configuration says."""
    kinds = getattr(text_config(model), "layer_types", None) or ()
    return all(kind == "full_attention" for kind in kinds)
