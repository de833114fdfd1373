"""A model ready to be trained: weights, tokenizer, LoRA, and what was found out about its head.

Weights come from a folder, a hub name, a GGUF file, or "smollm2" (`smollm2.py`), as bfloat16, float16, float32 or NF4.
Everything but the adapter is frozen. The adapter is float32 whatever the weights are: an update of 1e-5 is lost in
bfloat16. Forward passes run under autocast (`forward.precision`), so its products run in the weights' type.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from rewardkit.errors import nearest
from trainer_backend.model import adapter, smollm2
from trainer_backend.model.errors import MissingExtra, ModelError
from trainer_backend.model.forward import Dense, base_of, decoder_of, head_of, shares_prefixes, text_config
from trainer_backend.model.gguf import check_gguf, plain
from trainer_backend.ops import Head

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

INSTALL = 'pip install "rewardkit[train]"'


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to be trained.

    Attributes:
        model: With its adapter, in evaluation mode.
        tokenizer: With a pad token (the end token where it had none; padding is told by lengths, never by this id).
        name: As it was asked for.
        head: For `ops.linear_logps`; `Dense` where log-probs must go through the model's logits.
        eos_ids: Every token that ends a completion.
        device, dtype: Where it lies; what forward passes compute in.
        parameters: Of the base model, counted as before quantisation.
        trainable: Of the adapter.
        shares_prefixes: Whether rows that begin alike may stand in one sequence (`forward.prefix_mask`).
        notes: What the user may not expect, one sentence each, to be said once.
    """

    model: PeftModel
    tokenizer: Any
    name: str
    head: Head | Dense
    eos_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    parameters: int
    trainable: int
    shares_prefixes: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where weights come from: a folder or a hub name, and a GGUF file in it."""

    place: str
    gguf: str | None = None
    revision: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of transformers' `from_pretrained`."""
        found = {"revision": self.revision, "gguf_file": self.gguf}
        return {name: value for name, value in found.items() if value is not None}


def load(
    config: GRPOConfig,
    *,
    model: Any = None,
    processing_class: Any = None,
    peft_config: Any = None,
    device: torch.device | str,
) -> Loaded:
    """Return the model of a configuration, with a new adapter or the one in `start_from`.

    Args:
        config: Its tables [model] and [lora], `beta` and `seed`.
        model: A model of transformers, or a PeftModel, in place of `config.model`. Its weights stay as they are.
        processing_class: A tokenizer in place of the model's own.
        peft_config: A configuration of peft in place of the LoRA fields.
        device: Where to (`parallel.World.device`); a model that is given stays where it is.

    Raises:
        ModelError: Model, tokenizer or adapter cannot be found or read, or nothing would be trained.
        MissingExtra: A package that these settings need is not installed.
    """
    place = torch.device(device)
    notes: list[str] = []
    if model is None:
        source = find(config)
        name = config.model or source.place
        dtype = pick_dtype(config.dtype, place, notes)
        tokenizer = processing_class if processing_class is not None else load_tokenizer(source, name)
        base = load_base(source, name, dtype, place, load_in_4bit=config.load_in_4bit, notes=notes)
    else:
        base, name = model, str(getattr(base_of(model).config, "_name_or_path", "") or type(base_of(model)).__name__)
        weights = next(weight for weight in model.parameters() if weight.is_floating_point())
        place, dtype = weights.device, weights.dtype
        tokenizer = processing_class if processing_class is not None else load_tokenizer(Source(name), name)
    _check_tokenizer(tokenizer, base, notes)
    _keep_layout(base, name)
    peft = add_adapter(base, config, peft_config, notes)
    peft.eval()
    changed = adapter.trained(peft)
    if not changed:
        raise ModelError(f"{name}: nothing would be trained: no parameter of the adapter asks for a gradient")
    if config.beta and not adapter.starts_at_base(peft):
        adapter.keep_reference(peft)
    ends = end_tokens(peft, tokenizer)
    if not ends:
        notes.append(
            "neither model nor tokenizer names a token that ends a text (eos_token_id), so every completion is cut off"
            " at grpo.max_completion_length; set eos_token_id in the model's generation_config.json"
        )
    head = head_of(peft, dtype)
    if isinstance(head, Dense):
        notes.append(
            f"log-probs go through the model's logits, which takes memory for tokens x vocabulary: {head.reason}"
        )
    return Loaded(
        model=peft,
        tokenizer=tokenizer,
        name=name,
        head=head,
        eos_ids=ends,
        device=place,
        dtype=dtype,
        parameters=count_parameters(peft),
        trainable=sum(parameter.numel() for parameter in changed.values()),
        shares_prefixes=shares_prefixes(peft, dtype),
        notes=tuple(notes),
    )


# --------------------------------------------------------------------------------------------- where, in what type


def find(config: GRPOConfig) -> Source:
    """Return where the weights of `config.model` are; SmolLM2 is converted if it has not been.

    Raises:
        ModelError: A path that is not there.
        MissingExtra: What SmolLM2 or a GGUF file needs is not installed.
    """
    name = config.model
    if not name:
        raise ModelError(
            'no model is named; write name = "FOLDER or hub name" under [model], or "smollm2" for a small one'
        )
    if name in smollm2.NAMES and not Path(name).exists():
        return Source(str(smollm2.find_or_convert()))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        _check_path(path)
        check_gguf(path)
        return Source(str(path.parent), gguf=path.name)
    if config.gguf_file is not None:
        check_gguf(config.gguf_file)
    if path.is_dir():
        if config.gguf_file is not None:
            _check_path(path / config.gguf_file)
        elif not (path / "config.json").is_file():
            raise ModelError(f"{path}: wanted the folder of a model, found no config.json in it{_inside(path)}")
        return Source(str(path), gguf=config.gguf_file)
    if _looks_like_a_path(name):
        _check_path(path)
        raise ModelError(f"{path}: wanted the folder of a model or a .gguf file, found a file")
    if name == smollm2.HUB_NAME and not _cached(name) and os.environ.get("HF_HUB_OFFLINE") and smollm2.installed():
        return Source(str(smollm2.find_or_convert()))
    return Source(name, gguf=config.gguf_file, revision=config.revision)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~", ".\\")) or name.count("/") > 1 or Path(name).exists()


def _check_path(path: Path) -> None:
    if not path.exists():
        beside = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ModelError(
            f"{path}: there is no such model{nearest(path.name, beside) or '; give a folder or a hub name'}"
        )


def _inside(folder: Path) -> str:
    models = sorted(found.parent.name for found in folder.glob("*/config.json"))
    files = sorted(found.name for found in folder.glob("*.gguf"))
    if files:
        return f"; for the GGUF file there, write gguf_file = {files[0]!r}"
    return f"; there are models in {', '.join(models[:3])}" if models else ""


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def native_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 faster than float32, not slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return _cpu_says("_is_avx512_bf16_supported") or _cpu_says("_is_amx_tile_supported")
    return False


def _cpu_says(name: str) -> bool:
    ask = getattr(torch.cpu, name, None)  # private, so it may go
    return bool(ask()) if callable(ask) else False


def pick_dtype(name: str, device: torch.device, notes: list[str]) -> torch.dtype:
    """Return the type to compute in; "auto" is bfloat16 where the device is made for it, else float32."""
    if name == "auto":
        return torch.bfloat16 if native_bfloat16(device) else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    if dtype == torch.bfloat16 and not native_bfloat16(device):
        notes.append(
            f"dtype bfloat16 was asked for, but this {device.type.upper()} has no instructions for it:"
            ' it is several times slower than float32; dtype = "auto" picks what is faster'
        )
    if dtype == torch.float16:
        notes.append(
            "dtype float16 has no scaling of the loss here; small gradients can be lost, bfloat16 or float32 keep them"
        )
    return dtype


# ----------------------------------------------------------------------------------------------- weights, tokenizer


def load_tokenizer(source: Source, name: str) -> Any:
    """Return the tokenizer of a model.

    Raises:
        ModelError: There is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.place, **source.options)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        if not Path(source.place).is_dir():
            _explain_hub(source, name, error)
        raise ModelError(
            f"{name}: the model has no tokenizer that can be read ({adapter.first_line(error)})"
        ) from error


def load_base(
    source: Source, name: str, dtype: torch.dtype, device: torch.device, *, load_in_4bit: bool, notes: list[str]
) -> Any:
    """Return the frozen weights, as `dtype` or NF4, on `device`.

    A checkpoint that is quantised already is taken as it is, with the layers that it left out.

    Raises:
        ModelError: They cannot be read.
        MissingExtra: bitsandbytes is needed and absent.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": dtype, **source.options}
    try:
        found = AutoConfig.from_pretrained(source.place, **source.options)
    except (OSError, ValueError, KeyError) as error:
        _explain_hub(source, name, error)
    quantised = quantization_of(found)
    if load_in_4bit or quantised.get("quant_method") == "bitsandbytes":
        _check_bitsandbytes()
    if load_in_4bit and not quantised:
        options["quantization_config"] = nf4(dtype)
    if device.type != "cpu" or "quantization_config" in options or quantised:
        options["device_map"] = {"": device}
    if quantised and not load_in_4bit and source.gguf is None:
        notes.append(f"{name} is stored quantised ({_scheme(quantised)}) and trained as it is")
    if quantised and load_in_4bit and not quantised.get("load_in_4bit"):
        raise ModelError(
            f"{name}: load_in_4bit was asked for, but the model is stored as {_scheme(quantised)}; leave it out"
        )
    kind: Any = AutoModelForCausalLM
    if (
        type(found) not in AutoModelForCausalLM._model_mapping
        and type(found) in AutoModelForImageTextToText._model_mapping
    ):
        kind = AutoModelForImageTextToText
    try:
        model = kind.from_pretrained(source.place, **options)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise ModelError(f"{name}: the weights cannot be read ({adapter.first_line(error)})") from error
    if source.gguf is not None:
        return plain(model, dtype).to(device)
    module: Any
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.compute_dtype = dtype  # what the checkpoint says was for another machine
    return model


def _keep_layout(model: nn.Module, name: str) -> None:
    """Have 4-bit weights on a CPU stay as they are.

    On a CPU with AVX512-BF16, bitsandbytes rewrites them in the first forward pass without gradient: scales are rounded
    to bfloat16, so it is another model, and nothing can be differentiated through it any more.

    Raises:
        ModelError: That has happened to a model that was given.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
            if getattr(module.weight.quant_state, "packing_format_for_cpu", False):
                raise ModelError(
                    f"{name}: it has computed without gradients on this CPU, for which bitsandbytes has rewritten its"
                    " 4-bit weights, and they cannot be trained on any more; give the model as it was loaded"
                )


def nf4(dtype: torch.dtype) -> Any:
    """Return bitsandbytes' NF4 with double quantisation. transformers itself leaves out head and embeddings."""
    from transformers import BitsAndBytesConfig

    settings: Any = BitsAndBytesConfig
    return settings(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def quantization_of(config: Any) -> dict[str, Any]:
    """Return what a model's configuration says about how its weights are quantised; empty when they are not."""
    found = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if found is None:
        return {}
    settings = dict(found if isinstance(found, dict) else found.to_dict())
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        settings["quant_method"] = "bitsandbytes"  # older checkpoints leave it out
    return settings


def _scheme(quantised: dict[str, Any]) -> str:
    method = str(getattr(quantised.get("quant_method"), "value", quantised.get("quant_method")))
    return f"{method}, {quantised['bnb_4bit_quant_type']}" if quantised.get("load_in_4bit") else method


def _check_bitsandbytes() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra(f"4-bit weights need bitsandbytes, not installed here; {INSTALL}")


def _explain_hub(source: Source, name: str, error: BaseException) -> None:
    """Raise what a user can do when neither a folder nor the hub has the model."""
    if Path(source.place).is_dir():
        raise ModelError(f"{name}: its configuration cannot be read ({adapter.first_line(error)})") from error
    offline = "; HF_HUB_OFFLINE is set, so only downloaded models are found" if os.environ.get("HF_HUB_OFFLINE") else ""
    own = f'; without a hub, {smollm2.INSTALL} and name = "smollm2"' if "smollm2" in name.lower() else ""
    raise ModelError(
        f"{name}: no folder of that name here, and the hub did not give it ({adapter.first_line(error)}){offline}{own}"
    ) from error


def _check_tokenizer(tokenizer: Any, model: Any, notes: list[str]) -> None:
    """Give the tokenizer a pad token if it has none, and note one that knows more tokens than the model."""
    if getattr(tokenizer, "pad_token_id", None) is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    rows = getattr(base_of(model).get_input_embeddings(), "num_embeddings", None)
    if rows is not None and len(tokenizer) > rows:
        notes.append(
            f"the tokenizer knows {len(tokenizer):,} tokens and the model {rows:,}; is it the tokenizer of this model?"
        )


def end_tokens(model: nn.Module, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a completion: of the generation settings, the configuration and the tokenizer."""
    base = base_of(model)
    found: set[int] = set()
    for owner in (getattr(base, "generation_config", None), base.config, text_config(base), tokenizer):
        value = getattr(owner, "eos_token_id", None)
        found.update(() if value is None else (value,) if isinstance(value, int) else value)
    vocabulary = int(text_config(base).vocab_size)
    return tuple(sorted(token for token in found if 0 <= token < vocabulary))


def count_parameters(model: nn.Module) -> int:
    """Return the weights of the base model as before quantisation, tied ones once, without any adapter."""
    total, seen = 0, set()
    for name, parameter in model.named_parameters():
        if ".lora_" in name or "modules_to_save" in name or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        state = getattr(parameter, "quant_state", None)
        total += state.shape.numel() if state is not None and hasattr(state, "shape") else parameter.numel()
    return total


# ----------------------------------------------------------------------------------------------------------- adapter


def add_adapter(base: Any, config: GRPOConfig, peft_config: Any, notes: list[str]) -> PeftModel:
    """Return the model with the adapter to train: its own, the one in `start_from`, or a new one made from the seed.

    Raises:
        ModelError: It does not fit.
    """
    if isinstance(base, PeftModel):
        if config.start_from is not None or peft_config is not None:
            raise ModelError(
                "the model has an adapter already; leave start_from and peft_config out, or give the base model"
            )
        if base.active_adapters != [adapter.ADAPTER]:
            raise ModelError(
                f"the active adapter of the model is {', '.join(map(repr, base.active_adapters)) or 'none'}, and the"
                f" one that is trained and saved is called {adapter.ADAPTER!r}: load it under that name"
                " (PeftModel.from_pretrained(base, folder, is_trainable=True)), or give the base model and start_from"
            )
        model = base
    elif config.start_from is not None:
        model = adapter.continue_adapter(base, config.start_from)
        rank = getattr(model.peft_config[adapter.ADAPTER], "r", None)
        if rank is not None and rank != config.r and "r" in config.model_fields_set:
            notes.append(f"the adapter in {config.start_from} has r = {rank}, which stays; r = {config.r} is not used")
    else:
        settings = peft_config if peft_config is not None else lora(base, config)
        # Its own random state: the adapter's start depends on the seed alone, not on what ran before.
        with torch.random.fork_rng(devices=_devices(base)):
            torch.manual_seed(config.seed)
            try:
                model = get_peft_model(base, settings, adapter_name=adapter.ADAPTER)
            except ValueError as error:
                raise ModelError(f"the adapter cannot be made: {adapter.first_line(error)}") from error
    module: Any
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            # peft would make a float32 copy of every layer's input for its float32 weights; autocast does it the other
            # way round. Without autocast, weights and inputs have one type and there is nothing to cast.
            module.cast_input_dtype_enabled = False
    for parameter in adapter.trained(model).values():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()
    return model


def _devices(model: nn.Module) -> list[torch.device]:
    return [device for device in {parameter.device for parameter in model.parameters()} if device.type == "cuda"]


def lora(base: Any, config: GRPOConfig) -> LoraConfig:
    """Return peft's settings for the LoRA fields. "all-linear": every linear layer of the decoder, not the head."""
    targets = config.target_modules
    outside: list[str] = []
    if targets == "all-linear":
        inner = set(decoder_of(base).modules()) | {base.get_output_embeddings()}
        outside = [
            name for name, module in base.named_modules() if isinstance(module, nn.Linear) and module not in inner
        ]
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.r,
        lora_alpha=_alpha(config.lora_alpha),
        lora_dropout=config.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=outside or None,
    )


def _alpha(value: float) -> Any:
    """Return a whole number as one: peft's type, and what other readers of a saved adapter expect."""
    return int(value) if value == int(value) else value
