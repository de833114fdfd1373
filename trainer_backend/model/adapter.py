"""The adapter: saved and loaded in peft's format, compared, and switched off or for the reference policy.

The reference policy is the one that training starts from. Where a fresh LoRA is trained (its B is 0), that is the model
with the adapter off. Where an adapter is trained on, adapter off is another policy: the start is then kept as a second,
frozen adapter of the name `REFERENCE`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import load_peft_weights

from trainer_backend.model.errors import ModelError

ADAPTER = "default"
"""The name of the adapter that is trained."""

REFERENCE = "reference"
"""The name of the frozen copy of the adapter that training started from."""

_SHAPE_OF_AN_ADAPTER = ("peft_type", "r", "lora_alpha", "target_modules", "use_rslora", "use_dora", "rank_pattern")


def trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that training changes, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of what training changes, on the CPU, for `norm_of_change`."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in trained(model).items()}


def norm_of_change(model: torch.nn.Module, start: Mapping[str, torch.Tensor]) -> float:
    """Return the Euclidean distance of what is trained from where it was at `start` (a `snapshot`)."""
    total = 0.0
    for name, parameter in trained(model).items():
        total += float((parameter.detach().double().cpu() - start[name].double()).square().sum())
    return math.sqrt(total)


def checksum(model: torch.nn.Module) -> str:
    """Return a hash of what is trained, names, types and bits: equal exactly when the adapters are bit-equal."""
    digest = hashlib.sha256()
    for name, parameter in sorted(trained(model).items()):
        value = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def starts_at_base(model: PeftModel) -> bool:
    """Return whether the model computes the same with the adapter as without it: every LoRA's B is 0."""
    found = False
    for name, parameter in trained(model).items():
        if ".lora_B." in name or ".lora_embedding_B." in name:
            found = True
            if bool(parameter.detach().any()):
                return False
        elif ".lora_" not in name:  # a whole layer that is trained too, or another kind of adapter
            return False
    return found


def save_adapter(model: PeftModel, folder: str | Path) -> None:
    """Write the adapter in peft's format: `PeftModel.from_pretrained(base_model, folder)` reads it.

    Raises:
        OSError: The folder cannot be written.
    """
    # save_embedding_layers: "auto" would ask a hub about the base model. LoRA on an embedding is saved without it.
    model.save_pretrained(str(folder), selected_adapters=[ADAPTER], save_embedding_layers=False)


def adapter_tensors(model: PeftModel) -> dict[str, torch.Tensor]:
    """Return the adapter's weights by the names that they have in `save_adapter`'s file; no copies."""
    found: dict[str, torch.Tensor] = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    return found


def check_adapter(folder: str | Path) -> Path:
    """Return the folder of a saved adapter.

    Raises:
        ModelError: It is not there, or holds no adapter; the message says what was found.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ModelError(f"{place}: wanted the folder of a saved adapter, and there is no such folder")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (place / name).is_file():
            inner = sorted(str(found.parent.relative_to(place)) for found in place.glob("**/adapter_config.json"))
            hint = f"; there are adapters in {', '.join(inner[:3])}" if inner and inner != ["."] else ""
            raise ModelError(f"{place}: wanted the folder of a saved adapter, found no {name} in it{hint}")
    return place


def load_adapter_into(model: PeftModel, folder: str | Path) -> None:
    """Put saved adapter weights in place of the present ones, bit by bit; shapes and layers must be the same.

    Raises:
        ModelError: The folder holds no adapter, or one of another shape.
    """
    place = check_adapter(folder)
    try:
        saved, now = PeftConfig.from_pretrained(str(place)), model.peft_config[ADAPTER]
    except (OSError, ValueError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise ModelError(f"{place}: adapter_config.json cannot be read ({first_line(error)})") from error
    for name in _SHAPE_OF_AN_ADAPTER:
        theirs, ours = getattr(saved, name, None), getattr(now, name, None)
        if name == "target_modules" and isinstance(theirs, (list, set)) and isinstance(ours, (list, set)):
            theirs, ours = sorted(theirs), sorted(ours)
        if theirs != ours:
            raise ModelError(f"{place}: the adapter has {name} {theirs}, the one that is trained has {ours}")
    weights = read_weights(place)
    _compare(place, weights, adapter_tensors(model))
    set_peft_model_state_dict(model, weights, adapter_name=ADAPTER)


def read_weights(place: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a saved adapter, on the CPU.

    Raises:
        ModelError: The file is damaged.
    """
    try:
        weights: dict[str, torch.Tensor] = load_peft_weights(str(place), device="cpu")
    except Exception as error:  # safetensors has its own type, a cut file gives others
        raise ModelError(f"{place}: adapter_model.safetensors cannot be read ({first_line(error)})") from error
    return weights


def _compare(place: Path, weights: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        what = f"lacks {missing[0]}" if missing else f"has {unknown[0]}, which the model does not"
        raise ModelError(f"{place}: the adapter is for another model or other layers; it {what}")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            raise ModelError(f"{place}: {name} is {list(weights[name].shape)}, the model's is {list(tensor.shape)}")


def continue_adapter(base: Any, folder: str | Path) -> PeftModel:
    """Return the model with a saved adapter on it, trainable.

    Raises:
        ModelError: The folder holds no adapter, or one for another model.
    """
    place = check_adapter(folder)
    weights = read_weights(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that keys are missing is an error below
        try:
            model = PeftModel.from_pretrained(base, str(place), adapter_name=ADAPTER, is_trainable=True)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            raise ModelError(f"{place}: the adapter does not fit this model ({first_line(error)})") from error
    _compare(place, weights, get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False))
    return model


def keep_reference(model: PeftModel) -> None:
    """Keep a frozen copy of the present adapter as the reference policy."""
    with _flags_kept(model):
        model.add_adapter(REFERENCE, model.peft_config[ADAPTER])
        weights = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
        set_peft_model_state_dict(model, {name: value.clone() for name, value in weights.items()}, REFERENCE)
        model.set_adapter(ADAPTER)
    for name, parameter in model.named_parameters():
        if f".{REFERENCE}." in name or name.endswith(f".{REFERENCE}"):
            parameter.requires_grad_(False)


@contextlib.contextmanager
def adapter_off(model: PeftModel) -> Iterator[None]:
    """Compute with the base model alone."""
    with _flags_kept(model), model.disable_adapter():
        yield


@contextlib.contextmanager
def reference(model: PeftModel) -> Iterator[None]:
    """Compute with the policy that training started from: the frozen copy where one is kept, else the base model."""
    if REFERENCE not in model.peft_config:
        with adapter_off(model):
            yield
        return
    with _flags_kept(model):
        model.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield
        finally:
            model.set_adapter(ADAPTER)


@contextlib.contextmanager
def _flags_kept(model: torch.nn.Module) -> Iterator[None]:
    """Restore which parameters are trained: peft turns all of an adapter on when it becomes the active one."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def in_use(layer: Any) -> list[str]:
    """Return the names of the adapters that a LoRA layer of peft adds now, in order."""
    if layer.disable_adapters:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]


def beyond_lora(layer: Any) -> str:
    """Return what a LoRA layer of peft computes other than W x + c + sum s B (A x), in a few words; "" for nothing."""
    if layer.merged:
        return "an adapter that is merged into the weights"
    if any(layer.use_dora.values()):
        return "an adapter with DoRA"
    if any(layer.lora_bias.values()) or layer.lora_variant:
        return "an adapter that is more than LoRA"
    return ""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message; all of it where that line only opens a list."""
    lines = str(error).split("\n")
    first = next((line.strip() for line in lines if line.strip()), type(error).__name__)
    if first.endswith(":"):
        first = " ".join(str(error).split())
    return first if len(first) <= 300 else first[:299] + "…"
