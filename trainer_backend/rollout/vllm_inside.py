"""What is done inside vLLM, in parts that have no public way: only with the versions that were tested.

| what | where in vLLM |
| --- | --- |
| the adapter from memory | `WorkerLoRAManager._load_adapter`, which reads files |
| weights that stay when the engine sleeps | `Worker._maybe_get_memory_pool_context`, whose "weights" move to the host |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
