"""Sizes counted from config.json are those of the model that transformers builds, to the last number and name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from rewardkit.errors import InputError
from trainer_backend.plan import Shape, shape_from_json, shape_of
from trainer_backend.plan.families import FAMILIES

ODD: dict[str, list[dict[str, Any]]] = {
    "llama": [{"mlp_bias": True}, {"num_key_value_heads": None}],
    "qwen2": [
        {"num_key_value_heads": None},
        {"use_sliding_window": True, "max_window_layers": 1},
        {"use_sliding_window": True},
        {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    ],
    "qwen3": [{"num_key_value_heads": None}],
    "smollm3": [{"mlp_bias": True}, {"num_key_value_heads": None}],
    "granite": [{"mlp_bias": True}],
    "gemma2": [{"attn_logit_softcapping": None}],
    "gemma3_text": [{"attn_logit_softcapping": 30.0}],
    "qwen3_moe": [
        {"mlp_only_layers": [1], "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
        {"decoder_sparse_step": 2, "num_experts": 4, "moe_intermediate_size": 24},
    ],
    "mistral": [{"sliding_window": None}, {"sliding_window": 8}],
    "mixtral": [{"num_local_experts": 3, "num_experts_per_tok": 1}],
}
"""Beside what every family is tried with."""


def tiny(kind: str, dice: random.Random, **changes: Any) -> dict[str, Any]:
    """A random small config.json of a family."""
    heads = dice.choice([2, 4])
    sizes = {
        "model_type": kind,
        "vocab_size": dice.randrange(50, 90),
        "hidden_size": 8 * heads,
        "intermediate_size": dice.randrange(20, 60),
        "num_hidden_layers": dice.choice([2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": dice.choice([1, heads]),
        "pad_token_id": 0,
    }
    if kind in ("mixtral", "qwen3_moe"):
        sizes |= {"num_local_experts" if kind == "mixtral" else "num_experts": 4, "num_experts_per_tok": 2}
    return sizes | changes


def built(config: dict[str, Any]) -> Shape:
    return shape_of(AutoConfig.for_model(**config))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_counted_as_it_is_built(kind: str) -> None:
    dice = random.Random(kind)
    seen = set()
    for tied in (False, True):
        for bias in (False, True):
            for head_dim in ({}, {"head_dim": 6}):
                config = tiny(kind, dice, tie_word_embeddings=tied, attention_bias=bias, **head_dim)
                assert shape_from_json(config) == built(config), config
                seen.add(built(config).others)
    assert len(seen) > 4
    for changes in ODD.get(kind, []):
        config = tiny(kind, dice, **changes)
        assert shape_from_json(config) == built(config), config


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_config_json_leaves_out_is_the_default_of_its_family(kind: str) -> None:
    config = tiny(kind, random.Random(1), num_attention_heads=32, hidden_size=64)
    del config["num_key_value_heads"]
    assert shape_from_json(config) == built(config)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_file_that_transformers_wrote_is_read(kind: str, tmp_path: Path) -> None:
    """Saved files name numbers as the class does, and hold null where nothing was said."""
    config = AutoConfig.for_model(**tiny(kind, random.Random(2)))
    config.save_pretrained(tmp_path)
    assert shape_from_json(json.loads((tmp_path / "config.json").read_text())) == shape_of(config)


def test_the_language_model_inside_of_another_is_followed() -> None:
    inner = tiny("gemma3_text", random.Random(3))
    assert shape_from_json({"model_type": "gemma3", "text_config": inner, "vision_config": {}}) == built(inner)


def test_a_published_gemma_3_leaves_its_vocabulary_out() -> None:
    """text_config of gemma-3-4b-it: neither vocabulary nor heads nor head_dim."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    assert shape_from_json({"model_type": "gemma3", "text_config": text}).parameters == 3_880_263_168


def test_another_family_is_built() -> None:
    config = tiny("gpt_neox", random.Random(4))
    assert "gpt_neox" not in FAMILIES and shape_from_json(config) == built(config)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"hidden_size": None}, "config.json has no hidden_size, which sizes are counted from; it has"),
        ({"intermediate_size": "big"}, "config.json: intermediate_size is a whole number from 1 on, got 'big'"),
        ({"vocab_size": True}, "vocab_size is a whole number from 1 on, got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is a whole number from 1 on, got 0"),
        ({"model_type": None}, "config.json has no model_type"),
        ({"model_type": "no_such"}, "config.json of model_type 'no_such' makes no language model"),
    ],
)
def test_a_file_without_what_is_needed_is_refused_in_one_sentence(change: dict[str, Any], wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        shape_from_json(tiny("llama", random.Random(5)) | change)
    assert wanted in str(caught.value) and "\n" not in str(caught.value)
