"""Adapters in peft's format, to the bit; the reference policy is where training started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from saved_models import ids, tiny_base

from trainer_backend.config import GRPOConfig
from trainer_backend.model.adapter import (
    REFERENCE,
    adapter_off,
    checksum,
    continue_adapter,
    keep_reference,
    load_adapter_into,
    norm_of_change,
    reference,
    save_adapter,
    snapshot,
    starts_at_base,
    trained,
)
from trainer_backend.model.errors import ModelError
from trainer_backend.model.forward import logits_of
from trainer_backend.model.load import add_adapter


def adapted(seed: int = 0, **settings: Any) -> PeftModel:
    return add_adapter(tiny_base(), GRPOConfig(model="-", seed=seed, r=4, **settings), None, []).eval()


def train(model: PeftModel, size: float = 0.05) -> None:
    """Change every trained number, as some optimizer steps would."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in trained(model).values():
            weight += size * torch.randn(weight.shape, generator=generator)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return logits_of(model, ids())


def test_a_saved_adapter_loads_with_peft_and_computes_the_same(tmp_path: Path) -> None:
    model = adapted()
    train(model)
    save_adapter(model, tmp_path / "a")
    loaded = PeftModel.from_pretrained(tiny_base(), str(tmp_path / "a")).eval()
    assert torch.equal(logits(loaded), logits(model))
    assert not torch.equal(logits(model), logits(tiny_base()))
    settings = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 32)
    assert isinstance(settings["lora_alpha"], int)


def test_loading_into_a_model_is_bit_equal(tmp_path: Path) -> None:
    model, other = adapted(), adapted(seed=1)
    train(model)
    save_adapter(model, tmp_path)
    assert checksum(other) != checksum(model)
    load_adapter_into(other, tmp_path)
    assert checksum(other) == checksum(model)
    assert trained(other).keys() == trained(model).keys()


def test_the_checksum_sees_one_bit() -> None:
    model = adapted()
    before = checksum(model)
    assert checksum(adapted()) == before
    weight = next(iter(trained(model).values()))
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    assert checksum(model) != before


def test_the_norm_of_the_change_is_that_of_all_numbers() -> None:
    """3 in one weight and 4 in another are 5."""
    model = adapted()
    start = snapshot(model)
    assert norm_of_change(model, start) == 0.0
    weights = list(trained(model).values())
    with torch.no_grad():
        weights[0][0, 0] += 3.0
        weights[-1][0, 0] -= 4.0
    assert norm_of_change(model, start) == pytest.approx(5.0, rel=1e-6)


def test_the_reference_of_a_new_adapter_is_the_base_model() -> None:
    model = adapted()
    base = logits(tiny_base())
    assert starts_at_base(model)
    assert torch.equal(logits(model), base)
    train(model)
    assert not starts_at_base(model)
    with reference(model):
        assert torch.equal(logits(model), base)
    assert not torch.equal(logits(model), base)


def test_the_reference_of_a_continued_adapter_is_its_start_and_not_the_base(tmp_path: Path) -> None:
    """Adapter off is another policy then (trl#1340): a KL to it would pull back what was learned before."""
    first = adapted()
    train(first)
    save_adapter(first, tmp_path)
    model = continue_adapter(tiny_base(), tmp_path).eval()
    start = logits(model)
    keep_reference(model)
    before = checksum(model)
    train(model, 0.2)
    now = logits(model)
    with reference(model), torch.no_grad():
        assert torch.equal(logits(model), start)
    with adapter_off(model):
        assert torch.equal(logits(model), logits(tiny_base()))
        assert not torch.equal(logits(model), start)
    assert torch.equal(logits(model), now)
    assert checksum(model) != before
    assert not any(REFERENCE in name for name in trained(model))


@pytest.mark.parametrize("context", [adapter_off, reference])
@pytest.mark.parametrize("kept", [False, True])
def test_what_is_trained_is_the_same_after_a_look_at_the_reference(context: Any, kept: bool) -> None:
    """peft makes all of an adapter trainable when it becomes the active one, also what the user froze."""
    model = adapted()
    train(model)
    frozen, *_ = trained(model)
    model.get_parameter(frozen).requires_grad_(False)
    if kept:
        keep_reference(model)
    before = list(trained(model))
    with context(model):
        pass
    assert list(trained(model)) == before
    assert frozen not in before
    assert list(model.active_adapters) == ["default"]


def test_a_saved_adapter_has_no_reference_in_it(tmp_path: Path) -> None:
    model = adapted()
    train(model)
    keep_reference(model)
    save_adapter(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".safetensors")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    assert torch.equal(logits(PeftModel.from_pretrained(tiny_base(), str(tmp_path)).eval()), logits(model))


class TestWhatDoesNotFit:
    def test_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"nowhere: wanted the folder of a saved adapter, and there is no such"):
            load_adapter_into(adapted(), tmp_path / "nowhere")

    def test_the_run_folder_in_place_of_the_adapter(self, tmp_path: Path) -> None:
        save_adapter(adapted(), tmp_path / "checkpoints" / "step-3")
        with pytest.raises(ModelError, match=r"found no adapter_config\.json in it; there are adapters in checkpoints"):
            continue_adapter(tiny_base(), tmp_path)

    def test_another_rank(self, tmp_path: Path) -> None:
        save_adapter(add_adapter(tiny_base(), GRPOConfig(model="-", r=2), None, []), tmp_path)
        with pytest.raises(ModelError, match="has r 2, the one that is trained has 4"):
            load_adapter_into(adapted(), tmp_path)

    def test_another_scale(self, tmp_path: Path) -> None:
        save_adapter(adapted(lora_alpha=8), tmp_path)
        with pytest.raises(ModelError, match="has lora_alpha 8, the one that is trained has 32"):
            load_adapter_into(adapted(), tmp_path)

    def test_a_wider_model(self, tmp_path: Path) -> None:
        save_adapter(adapted(), tmp_path)
        with pytest.raises(ModelError, match="does not fit this model"):
            continue_adapter(tiny_base(hidden_size=128), tmp_path)

    def test_a_deeper_model(self, tmp_path: Path) -> None:
        """peft only warns of the layers that the adapter lacks, and trains on from random numbers."""
        save_adapter(adapted(target_modules=("q_proj", "v_proj")), tmp_path)
        with pytest.raises(ModelError, match=r"for another model or other layers; it lacks .*layers\.2"):
            continue_adapter(tiny_base(num_hidden_layers=3), tmp_path)

    def test_a_cut_file(self, tmp_path: Path) -> None:
        save_adapter(adapted(), tmp_path)
        file = tmp_path / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:500])
        with pytest.raises(ModelError, match=r"adapter_model\.safetensors cannot be read"):
            load_adapter_into(adapted(), tmp_path)
