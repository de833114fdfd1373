"""A whole decoder of streamed layers, found in a model of transformers and tried against it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer_backend.model.adapter import first_line
from trainer_backend.model.forward import (
    SAME_STATES,
    apart,
    base_of,
    decoder_of,
    hidden_states,
    text_config,
    trial,
)
from trainer_backend.model.offload import LayerInputs
from trainer_backend.model.streamed.layer import Block, Keep, Kept, Line, Segment, backward, forward
from trainer_backend.model.streamed.projection import Projection, Unfit
from trainer_backend.ops.elementwise import Activation, Norm, wide
from trainer_backend.sizes import STREAMED_CHUNK

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True, eq=False)
class Streamed:
    """A model's decoder, its layers streamed.

    Attributes:
        model: The causal language model, or a PeftModel around it.
        blocks: Its layers.
        norm: After the last of them.
        chunk: Tokens that go through a layer at a time.
        keep: What of a layer is kept for the backward pass, and not computed again (`layer.Kept` counts the bytes).
        store: Where it waits; None: where it was made. With keep "all" it stays there in any case: what would be copied
            takes longer than computing it again.
    """

    model: nn.Module
    blocks: tuple[Block, ...]
    norm: Norm
    chunk: int = STREAMED_CHUNK
    keep: Keep = "attention"
    store: LayerInputs | None = None

    def hidden_states(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, segments: Sequence[Segment]
    ) -> torch.Tensor:
        """Return what the head is applied to, [tokens, hidden]; differentiable in the adapter.

        Args:
            input_ids: int64 [tokens], rows in a line, without padding.
            position_ids: int64 [tokens].
            segments: Who sees whom; together they are all tokens.
        """
        decoder: Any = decoder_of(self.model)
        x = base_of(self.model).get_input_embeddings()(input_ids.unsqueeze(0))
        cos, sin = decoder.rotary_emb(x, position_ids=position_ids.unsqueeze(0))
        line = Line(cos[0], sin[0], segments, self.chunk)
        x = x[0]
        layer: Any = _Layer  # torch's own types are not complete
        for block in self.blocks:
            parameters = block.parameters()
            # What has no backward pass keeps nothing: the store would wait for it.
            learns = torch.is_grad_enabled() and any(one.requires_grad for one in (x, *parameters))
            store = self.store if learns and self.keep != "all" else None
            x = layer.apply(x, block, line, self.keep if learns else "inputs", store, *parameters)
        norm: Any = _Normed
        found: torch.Tensor = norm.apply(x, self.norm, self.chunk)
        return found


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        block: Block,
        line: Line,
        keep: Keep,
        store: LayerInputs | None,
        *parameters: nn.Parameter,
    ) -> torch.Tensor:
        group = None if store is None else store.put(x.detach())
        with torch.autocast(x.device.type, enabled=False):
            y, kept = forward(block, x, line, keep)
        if store is None or group is None:
            ctx.save_for_backward(x, *kept.tensors())
        else:
            store.add(group, *kept.tensors())
        ctx.block, ctx.line, ctx.store, ctx.group = block, line, store, group
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        x, *kept = ctx.saved_tensors if ctx.store is None else ctx.store.take(ctx.group)
        # Nobody else reads the gradient of a layer's output: the next layer, or the norm, has made it.
        slope = slopes[0] if slopes[0].is_contiguous() else slopes[0].contiguous()
        with torch.autocast(x.device.type, enabled=False):
            found = backward(ctx.block, x, slope, ctx.line, Kept(*kept), inputs=ctx.needs_input_grad[0])
        return (slope if ctx.needs_input_grad[0] else None, None, None, None, None, *found)


class _Normed(torch.autograd.Function):
    """The last norm, chunk by chunk: in one piece its copies in float32 are larger than a layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: Norm, chunk: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.norm, ctx.chunk = norm, chunk
        y = torch.empty_like(x)
        for at in range(0, len(x), chunk):
            y[at : at + chunk] = norm.forward(x[at : at + chunk])
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        found = torch.empty_like(x)
        for at in range(0, len(x), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            found[part] = ctx.norm.backward(slopes[0][part], x[part])
        return found, None, None


# ------------------------------------------------------------------------------------------------- found in a model


def streamed_of(model: nn.Module, dtype: torch.dtype, *, chunk: int = STREAMED_CHUNK) -> Streamed | str:
    """Return a model's decoder with its layers streamed; where that cannot be had, the reason in a few words.

    What its layers look like is tried on a few tokens against the model itself.

    Args:
        model: The causal language model, or a PeftModel around it.
        dtype: What forward passes compute in.
        chunk: Tokens that go through a layer at a time.
    """
    try:
        decoder: Any = decoder_of(model)
        _check_config(model)
        activation = _activation(text_config(model))
        blocks = tuple(_block(layer, activation) for layer in decoder.layers)
        found = Streamed(model, blocks, _norm(decoder.norm), chunk)
        distance = _disagreement(found, dtype)
    except Unfit as error:
        return str(error)
    except Exception as error:  # a model that cannot be taken apart this way says so in its own way
        return f"{type(base_of(model)).__name__}: {type(error).__name__}: {first_line(error)}"
    limit = SAME_STATES[dtype]
    if not distance <= limit:
        return f"streamed layers are {distance:.1e} from those of {type(base_of(model)).__name__} (at most {limit:.0e})"
    return found


def _check_config(model: nn.Module) -> None:
    config = text_config(model)
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None):
        kinds = ["sliding_attention"]
    for kind in kinds or ():
        if kind != "full_attention":
            raise Unfit(f"layers with {kind.replace('_', ' ')}")
    if getattr(config, "attention_dropout", 0.0):
        raise Unfit("attention with dropout")


def _activation(config: Any) -> Activation:
    name = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if name not in _ACTIVATIONS:
        raise Unfit(f"an MLP with {name}")
    return _ACTIVATIONS[name]


def _block(layer: Any, activation: Activation) -> Block:
    _children(layer, _LAYER)
    attention, mlp = layer.self_attn, layer.mlp
    normed = {name for name, _ in attention.named_children()} >= _HEAD_NORMS
    _children(attention, _ATTENTION | _HEAD_NORMS if normed else _ATTENTION)
    _children(mlp, _MLP)
    linears = [getattr(attention, f"{name}_proj") for name in "qkvo"]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return Block(
        norms=(_norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)),
        projections=tuple(Projection(module) for module in linears),
        head_norms=(_norm(attention.q_norm), _norm(attention.k_norm)) if normed else None,
        head_width=int(attention.head_dim),
        scale=float(attention.scaling),
        activation=activation,
    )


def _children(module: nn.Module, known: set[str]) -> None:
    found = {name for name, _ in module.named_children()}
    if found != known:
        other = sorted(found ^ known)[0]
        raise Unfit(f"{type(module).__name__} {'with' if other in found else 'without'} {other}")


@torch.no_grad()
def _norm(module: Any) -> Norm:
    """Return a norm of a model as one of ours: which kind it is shows when it is tried."""
    if any(weight.requires_grad for weight in module.parameters()):
        raise Unfit("norms that are trained")
    epsilon = next(
        (float(vars(module)[name]) for name in ("variance_epsilon", "eps", "epsilon") if name in vars(module)), None
    )
    if epsilon is None or {name for name, _ in module.named_parameters()} != {"weight"}:
        raise Unfit(f"a {type(module).__name__} in place of a norm by the root of the mean square")
    weight = module.weight.detach()
    probe = torch.linspace(-1.0, 2.0, weight.numel(), device=weight.device).to(weight.dtype).unsqueeze(0)
    theirs = wide(module(probe))
    for offset in (0.0, 1.0):
        found = Norm(weight, epsilon, offset)
        # Rounded to the type on the way, once or twice.
        near = 4.0 * torch.finfo(weight.dtype).eps * max(1.0, float(theirs.abs().max()))
        if float((wide(found.forward(probe)) - theirs).abs().max()) <= near:
            return found
    raise Unfit(f"a {type(module).__name__} that is no norm by the root of the mean square")


def _disagreement(streamed: Streamed, dtype: torch.dtype) -> float:
    """Return how far streamed hidden states are from the model's own: two rows in a line, in chunks of four tokens."""
    with trial(streamed.model, dtype) as ids:
        rows, width = ids.shape
        positions = torch.arange(width, device=ids.device).repeat(rows)
        segments = [Segment(at, at + width) for at in range(0, rows * width, width)]
        ours = dataclasses.replace(streamed, chunk=4).hidden_states(ids.flatten(), positions, segments)
        return apart(ours, hidden_states(streamed.model, ids).flatten(0, 1))
