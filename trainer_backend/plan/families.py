"""The sizes of a model straight from its config.json, for families whose layer is Llama's block or close to it.

Building a model to count its weights takes seconds, most of them to import torch and transformers. These families are
counted without either; a test holds each against the model that is built. All others are built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rewardkit.errors import InputError, UsageError
from trainer_backend.plan.shape import STREAMED, Shape, shape_of


@dataclass(frozen=True)
class _Family:
    """How a family differs from Llama. Values are what its configuration class takes where config.json says nothing.

    Attributes:
        kv_heads, head_dim: None: as many as heads; hidden over heads.
        tied: Whether the head is the embedding.
        biased: Layers that always have a bias.
        attention_bias, mlp_bias: Whether the setting of that name gives layers a bias.
        norms: Of a layer, of the hidden width.
        head_norms: Whether queries and keys have a norm each.
        fused: Whether q, k and v are one layer, and gate and up another.
        softcap: Of attention; None: there is none, or config.json says so.
        eager: Whether transformers has no fused attention for it.
        experts: The key of their number; "": there are none.
        experts_apart: Whether experts have a width of their own, and some layers may have none.
        window: Tokens that a layer attends to; None: all, or config.json says so.
        given: What published files of this family leave out.
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    biased: tuple[str, ...] = ()
    attention_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    head_norms: bool = False
    fused: bool = False
    softcap: float | None = None
    eager: bool = False
    experts: str = ""
    experts_apart: bool = False
    window: int | None = None
    given: Mapping[str, int] | None = None


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(attention_bias=True, mlp_bias=True),
    "mistral": _Family(kv_heads=8, window=4096),
    "mixtral": _Family(kv_heads=8, experts="num_local_experts"),
    "qwen2": _Family(kv_heads=32, biased=("q_proj", "k_proj", "v_proj")),
    "qwen3": _Family(kv_heads=32, head_dim=128, attention_bias=True, head_norms=True),
    "qwen3_moe": _Family(kv_heads=4, attention_bias=True, head_norms=True, experts="num_experts", experts_apart=True),
    "gemma": _Family(kv_heads=16, head_dim=256, tied=True, attention_bias=True),
    "gemma2": _Family(kv_heads=4, head_dim=256, tied=True, attention_bias=True, norms=4, softcap=50.0, eager=True),
    "gemma3_text": _Family(
        kv_heads=4,
        head_dim=256,
        tied=True,
        attention_bias=True,
        norms=4,
        head_norms=True,
        given={"vocab_size": 262_208, "num_attention_heads": 8},
    ),
    "phi3": _Family(fused=True),
    "smollm3": _Family(kv_heads=4, tied=True, attention_bias=True, mlp_bias=True),
    "granite": _Family(attention_bias=True, mlp_bias=True),
}
"""By `model_type`, of transformers 5.17."""


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def shape_from_json(config: Mapping[str, Any]) -> Shape:
    """Return the sizes of a model from its config.json: what `shape_of` returns, for the families here without torch.

    Raises:
        InputError: A key that is needed is missing or no positive whole number, or nobody knows the `model_type`.
        UsageError: The family is none of these, and the packages that would build it are not installed.
    """
    text = text_part(config)
    kind = text.get("model_type")
    if not isinstance(kind, str):
        raise InputError(f"config.json has no model_type, which says how its layers are made; it has {_keys(text)}")
    family = FAMILIES.get(kind)
    return _built(kind, text) if family is None else _counted(family, text)


def _counted(family: _Family, text: Mapping[str, Any]) -> Shape:
    layers, hidden, heads, vocabulary = (
        _number(text, key, (family.given or {}).get(key))
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    )
    # null is not the same as nothing: it means that the number follows from the others.
    kv_heads = _number(text, "num_key_value_heads", None if "num_key_value_heads" in text else family.kv_heads, heads)
    head_dim = _number(text, "head_dim", None if "head_dim" in text else family.head_dim, hidden // heads)
    width = _number(text, "intermediate_size")
    inside = _Inside(family, text, hidden, heads * head_dim, kv_heads * head_dim, width)
    found = [one for layer in range(layers) for one in inside.linears(layer)]
    embedding = vocabulary * hidden
    others = embedding if _flag(text, "tie_word_embeddings", family.tied) else 2 * embedding
    others += hidden + layers * (family.norms * hidden + (2 * head_dim if family.head_norms else 0))
    others += sum(outputs for name, _, outputs in found if inside.biased(name.rpartition(".")[2]))
    chosen = _number(text, "num_experts_per_tok", 8 if family.experts_apart else 2) if family.experts else 0
    routed = 0
    for layer in range(layers):
        if inside.routes(layer):
            others += inside.experts * (3 * hidden * inside.expert_width + hidden)  # with the row of the router
            routed += chosen * 3 * hidden * inside.expert_width
    softcap = text.get("attn_logit_softcapping", family.softcap)
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=chosen * inside.expert_width if family.experts else width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        linears=tuple(found),
        others=others,
        routed=routed,
        eager=family.eager,
        softcapped=softcap is not None,
        streams=text.get("model_type") in STREAMED and not _windowed(family, text, layers),
    )


def _windowed(family: _Family, text: Mapping[str, Any], layers: int) -> bool:
    """Return whether layers attend to a window of what comes before."""
    kinds = text.get("layer_types")
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    if str(text.get("model_type")).startswith("qwen"):  # theirs is off where nothing is said, and begins at a layer
        return _flag(text, "use_sliding_window", False) and _number(text, "max_window_layers", 28) < layers
    return bool(text.get("sliding_window", family.window))


class _Inside:
    """What is inside the layers of a model."""

    def __init__(
        self, family: _Family, text: Mapping[str, Any], hidden: int, queries: int, keys: int, width: int
    ) -> None:
        self.family, self.text = family, text
        self.hidden, self.queries, self.keys, self.width = hidden, queries, keys, width
        self.experts, self.expert_width, self._every, self._plain = 0, width, 1, ()
        if family.experts:
            name = family.experts if family.experts in text else "num_local_experts"
            self.experts = _number(text, name, 128 if family.experts_apart else 8)
        if family.experts_apart:
            self.expert_width = _number(text, "moe_intermediate_size", 768)
            self._every = _number(text, "decoder_sparse_step", 1)
            self._plain = tuple(text.get("mlp_only_layers") or ())

    def routes(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return bool(self.experts) and layer not in self._plain and (layer + 1) % self._every == 0

    def linears(self, layer: int) -> Iterator[tuple[str, int, int]]:
        """Yield name, inputs and outputs of a layer's linear layers, in the order in which they are made."""
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        if self.family.fused:
            yield f"{attention}.o_proj", self.queries, self.hidden
            yield f"{attention}.qkv_proj", self.hidden, self.queries + 2 * self.keys
            yield f"{mlp}.gate_up_proj", self.hidden, 2 * self.width
        else:
            yield f"{attention}.q_proj", self.hidden, self.queries
            yield f"{attention}.k_proj", self.hidden, self.keys
            yield f"{attention}.v_proj", self.hidden, self.keys
            yield f"{attention}.o_proj", self.queries, self.hidden
            if self.routes(layer):
                return
            yield f"{mlp}.gate_proj", self.hidden, self.width
            yield f"{mlp}.up_proj", self.hidden, self.width
        yield f"{mlp}.down_proj", self.width, self.hidden

    def biased(self, name: str) -> bool:
        """Return whether a linear layer of this name has a bias."""
        if name in self.family.biased:
            return True
        setting = "attention_bias" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp_bias"
        read: bool = getattr(self.family, setting)
        return read and _flag(self.text, setting, False)


def _built(kind: str, text: Mapping[str, Any]) -> Shape:
    try:
        from transformers import AutoConfig
    except ImportError:
        raise UsageError(
            f"the model_type {kind!r} is none of {', '.join(FAMILIES)}, which are read without torch and transformers;"
            ' pip install "rewardkit[train]" to read it'
        ) from None
    try:
        return shape_of(AutoConfig.for_model(**text))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise InputError(f"config.json of model_type {kind!r} makes no language model: {reason}") from None


def _number(text: Mapping[str, Any], key: str, *instead: int | None) -> int:
    """Return the number behind a key; where it is absent or null, the first of `instead` that is one."""
    value = text.get(key)
    if value is None:
        value = next((one for one in instead if one is not None), None)
    if value is None:
        raise InputError(f"config.json has no {key}, which sizes are counted from; it has {_keys(text)}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"config.json: {key} is a whole number from 1 on, got {value!r}")
    return value


def _flag(text: Mapping[str, Any], key: str, instead: bool) -> bool:
    value = text.get(key)
    return instead if value is None else bool(value)


def _keys(text: Mapping[str, Any]) -> str:
    shown = ", ".join(sorted(map(str, text))[:8])
    return f"{shown} and {len(text) - 8} others" if len(text) > 8 else shown or "nothing"
