"""The sizes of a model that memory and time depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STREAMED = ("llama", "mistral", "qwen2", "qwen3")
"""The `model_type` of families whose layers are streamed where they attend to all that comes before."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that memory depends on.

    Attributes:
        layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary: As in config.json.
        linears: Name, inputs and outputs of the linear layers below the head.
        others: Numbers in all other weights: embedding, norms, an untied head, experts.
        routed: Those of them that are the experts which a token goes through.
        eager: Whether its attention holds all scores: transformers has no fused kernel for it (Gemma 2's soft cap).
        softcapped: Whether these scores have a soft cap.
        streams: Whether its layers are of a kind that `model.streamed` takes, by what the configuration says; the
            loaded model is tried.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    linears: tuple[tuple[str, int, int], ...]
    others: int
    routed: int = 0
    eager: bool = False
    softcapped: bool = False
    streams: bool = False

    @property
    def parameters(self) -> int:
        """All numbers in the weights; tied ones once."""
        return sum(inputs * outputs for _, inputs, outputs in self.linears) + self.others


def shape_of(model_config: Any) -> Shape:
    """Return the sizes of a model from its configuration; no weight is read or allocated.

    Args:
        model_config: A configuration of transformers.
    """
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    text = model_config.get_text_config(decoder=True)
    with torch.device("meta"):
        model = build(text)
    head = model.get_output_embeddings()
    linears = tuple(
        (name, module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    total = sum(parameter.numel() for parameter in {id(found): found for found in model.parameters()}.values())
    heads = int(text.num_attention_heads)
    return Shape(
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        intermediate=_intermediate(text),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=int(text.vocab_size),
        linears=linears,
        others=total - sum(inputs * outputs for _, inputs, outputs in linears),
        routed=sum(
            weights.numel() // weights.shape[0] * int(getattr(text, "num_experts_per_tok", None) or 0)
            for name, weights in model.named_parameters()
            if weights.ndim == 3 and "expert" in name
        ),
        eager=getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None) == "eager",
        softcapped=getattr(text, "attn_logit_softcapping", None) is not None,
        streams=text.model_type in STREAMED and not _windowed(text),
    )


def _windowed(text: Any) -> bool:
    """Return whether layers attend to a window of what comes before."""
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return bool(getattr(text, "sliding_window", None))
    return any(kind != "full_attention" for kind in kinds)


def _intermediate(text: Any) -> int:
    """Return the width of the MLP that a token goes through; of experts, all that are chosen."""
    chosen = getattr(text, "num_experts_per_tok", None)
    expert = getattr(text, "moe_intermediate_size", None)
    if chosen and expert:
        return int(chosen) * int(expert)
    found = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return int(max(found) if isinstance(found, (list, tuple)) else found) * int(chosen or 1)
