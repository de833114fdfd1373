"""What is done inside vLLM, in parts that have no public way: only with the versions that were tested.

| what | where in vLLM |
| --- | --- |
| the adapter from memory | `WorkerLoRAManager._load_adapter`, which reads files |
| what the engine computes with | the slots of `LoRAModelManager.modules`, tensors whose names end in `_stacked` |
| weights that stay when the engine sleeps | `Worker._maybe_get_memory_pool_context`, whose "weights" move to the host |
| sleep beside others on the device | `Worker.sleep`, which ends when its memory grows meanwhile, by whomever |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rewardkit.errors import UsageError
from trainer_backend.model.adapter import adapter_tensors


@contextlib.contextmanager
def weights_stay() -> Iterator[None]:
    """Let an engine that starts inside give up no weights when it sleeps: only the key-value cache.

    Raises:
        UsageError: Another engine of this process still has its cache; vLLM gives up all caches at once.
    """
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.v1.worker.gpu_worker import Worker

    inner = Worker._maybe_get_memory_pool_context

    if CuMemAllocator.get_instance().get_current_usage():
        raise UsageError(
            "another vLLM of this process is not closed yet, and one process has one; close the trainer that has it"
            " (delete it, and what refers to it), or train in a process of its own"
        )

    def kept(self: Any, tag: str) -> Any:
        return contextlib.nullcontext() if tag == "weights" else inner(self, tag)

    Worker._maybe_get_memory_pool_context = kept
    try:
        yield
    finally:
        Worker._maybe_get_memory_pool_context = inner


def sleep_beside_others(engine: Any) -> None:
    """Let an engine of this process give its cache up whatever other processes do on the device at that time."""
    engine.collective_rpc(_sleeps_at_once)


def _sleeps_at_once(worker: Any) -> None:
    def sleep(level: int = 1) -> None:
        torch.accelerator.synchronize()  # the cache goes at once, and kernels that still run would lose it
        worker._get_sleep_mode_backend().suspend(level)

    worker.sleep = sleep


class Handover:
    """From its making on, an engine's adapters come from a model's memory and not from files.

    What an adapter may be is checked by vLLM when it reads one from files, so the first is read so; what 0.25.1 takes
    and computes otherwise is refused before (`vllm_sampler`).
    """

    def __init__(self, engine: Any, model: Any, folder: Path) -> None:
        """Change the loader of an engine in this process.

        Args:
            engine: The `LLMEngine`.
            model: The PeftModel whose adapter is handed over, as it is at each load.
            folder: The same adapter as files.
        """
        self._model = model
        self._settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        (self._manager,) = engine.collective_rpc(lambda worker: worker.model_runner.lora_manager)
        self._manager._load_adapter = self._load

    @torch.no_grad()
    def holds(self, request: Any) -> bool:
        """Return whether what the engine computes with is the model's adapter as it is now, bit by bit.

        The slot is filled once more from the model, compared, and put back as it was: so nothing need be known about
        which parts stand together in it. No request may be running.

        Args:
            request: The adapter that was loaded last.
        """
        manager = self._manager._adapter_manager
        if request.lora_int_id not in manager.lora_index_to_id:
            return False
        slot = manager.lora_index_to_id.index(request.lora_int_id)
        newest = self._load(request)
        manager._create_merged_loras_inplace(newest)
        same = True
        for name, module in manager.modules.items():
            held = [part[slot] for part in _stacked(module)]
            before = [part.clone() for part in held]
            weights = manager._get_lora_layer_weights(newest, name)
            if weights:
                module.set_lora(slot, weights.lora_a, weights.lora_b)
            else:
                module.reset_lora(slot)
            for part, old in zip(held, before, strict=True):
                same = same and torch.equal(part, old)
                part.copy_(old)
        return same

    def undo(self) -> None:
        """Let go of engine and model; the engine reads files again."""
        vars(self._manager).pop("_load_adapter", None)
        del self._manager, self._model

    def _load(self, request: Any) -> Any:
        from vllm.lora.peft_helper import PEFTHelper

        manager = self._manager
        helper = PEFTHelper.from_dict(self._settings)
        helper.validate_legal(manager.lora_config)
        inner = manager._adapter_manager.model
        mapper = getattr(inner, "hf_to_vllm_mapper", None)
        if mapper is not None:  # names change, parts are not put together: 0.25.1 has the first, 0.32.0 the second
            mapper = (getattr(mapper, "get_unstacked_mapper", None) or mapper.get_rename_mapper)()
        tensors = adapter_tensors(self._model)
        found = manager._lora_model_cls.from_lora_tensors(
            request.lora_int_id,
            # Copies: in the trainer's own type they would be its parameters, which go on changing.
            {name: tensor.detach().clone() for name, tensor in tensors.items()},
            helper,
            device=str(next(iter(tensors.values())).device),
            dtype=manager.lora_config.lora_dtype,
            model_vocab_size=manager.vocab_size,
            weights_mapper=mapper,
            skip_prefixes=getattr(inner, "lora_skip_prefixes", None),
        )
        found.is_3d_lora_weight = request.is_3d_lora_weight
        return found


def _stacked(module: Any) -> list[torch.Tensor]:
    """Return the tensors [adapters, ...] that a layer of vLLM reads its adapters from."""
    found: list[torch.Tensor] = []
    for name, value in vars(module).items():
        if name.endswith("_stacked"):
            found += [value] if isinstance(value, torch.Tensor) else [part for part in value if part is not None]
    return found
