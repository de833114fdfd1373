"""Layer inputs on the host: the same gradients to the bit, nothing left behind, and copies that are waited for.

The CPU moves nothing, so a stand-in for a device with delayed copies runs the same code (`delayed_mover`). Mutants of
it forget to wait; the tests of exactness must fail with them.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from delayed_mover import Delayed
from transformers import AutoModelForCausalLM, Cohere2Config, Gemma3TextConfig, GPTNeoXConfig, LlamaConfig, Qwen3Config

from trainer_backend.model import offload
from trainer_backend.model.errors import ModelError
from trainer_backend.model.offload import (
    Arriving,
    CudaMover,
    HostMemory,
    HostMemoryError,
    InPlace,
    LayerInputs,
    Parked,
    checkpoint_layers,
    mover_for,
)

LAYERS = 4
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": lambda: Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8),
    "cohere2": lambda: Cohere2Config(**SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES),
}


def model_of(family: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family]()).to(dtype).train()


def gradients(model: Any, store: LayerInputs | None = None) -> dict[str, torch.Tensor]:
    ids = torch.arange(24).view(2, 12) * 7 % 61
    model.zero_grad()
    if store is None:
        model(input_ids=ids, use_cache=False).logits.square().mean().backward()
    else:
        with store.micro_step():
            model(input_ids=ids, use_cache=False).logits.square().mean().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mover", ["in_place", "delayed"])
def test_gradients_are_bit_equal_to_those_without(family: str, mover: str) -> None:
    model = model_of(family)
    expected = gradients(model)
    store = LayerInputs(InPlace() if mover == "in_place" else Delayed(), least=1)
    undo = checkpoint_layers(model, store)
    for _ in range(2):  # a second micro-step uses the same store
        assert same(gradients(model, store), expected)
    assert store.moved == 2 * LAYERS * 2 * 12 * 32 * 4  # micro-steps x layers x rows x width x hidden x bytes
    undo()
    assert same(gradients(model), expected)
    assert store.moved == 2 * LAYERS * 2 * 12 * 32 * 4


@pytest.mark.parametrize("forgets", ["take", "settle"])
def test_a_mover_that_forgets_to_wait_is_noticed(forgets: Literal["take", "settle"]) -> None:
    """The negative control of the test above: the stand-in does show what a missing event does."""
    model = model_of("llama")
    expected = gradients(model)
    store = LayerInputs(Delayed(forgets=forgets), least=1)
    checkpoint_layers(model, store)
    assert not same(gradients(model, store), expected)


def test_the_next_input_is_on_its_way_while_a_layer_is_computed_again() -> None:
    """The one below is asked for before a layer starts; the newest never makes the round trip."""
    events: list[str] = []

    class Watched(Delayed):
        def back(self, parked: Parked) -> Arriving:
            events.append("back")
            return super().back(parked)

        def take(self, arriving: Arriving) -> torch.Tensor:
            events.append("take")
            return super().take(arriving)

    model = model_of("llama")
    store = LayerInputs(Watched(), least=1)
    checkpoint_layers(model, store)
    for layer in model.model.layers:  # a hook on the layer itself may stand outside what is computed again
        layer.self_attn.register_forward_pre_hook(lambda *_: events.append("layer"))
    gradients(model, store)
    assert events[:LAYERS] == ["layer"] * LAYERS  # forward
    assert events[LAYERS:] == ["back", "layer", "take", "back", "layer", "take", "back", "layer", "take", "layer"]


def test_dropout_is_drawn_again_as_it_was() -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, num_key_value_heads=2, attention_dropout=0.5)).train()
    torch.manual_seed(1)
    expected = gradients(model)
    checkpoint_layers(model, LayerInputs(Delayed(), least=1))
    torch.manual_seed(1)
    assert same(gradients(model), expected)


def test_undoing_leaves_layers_as_they_were() -> None:
    model = model_of("llama")
    model.gradient_checkpointing_enable()  # the user's own
    before = [dict(vars(layer)) for layer in model.model.layers]
    undo = checkpoint_layers(model, LayerInputs(InPlace()))
    assert [dict(vars(layer)) for layer in model.model.layers] != before
    undo()
    assert [dict(vars(layer)) for layer in model.model.layers] == before


def test_layers_see_no_checkpoint_in_evaluation_or_without_gradients() -> None:
    model = model_of("llama")
    store = LayerInputs(InPlace(), least=1)
    checkpoint_layers(model, store)
    with torch.no_grad(), store.micro_step():
        model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=False)
    assert store.held == 0
    model.eval()
    model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=False)
    assert store.moved == 0


def test_a_forward_pass_without_its_backward_pass_is_an_error_and_leaves_nothing() -> None:
    model = model_of("llama")
    store = LayerInputs(Delayed(), least=1)
    checkpoint_layers(model, store)
    ids = torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(RuntimeError, match="4 layer inputs were stored and never used"), store.micro_step():
        out = model(input_ids=ids, use_cache=False)
    assert store.held == 0
    with pytest.raises(RuntimeError, match="after its micro-step"):
        out.logits.sum().backward()


def test_an_error_in_between_leaves_nothing_and_the_next_micro_step_is_right() -> None:
    model = model_of("llama")
    expected = gradients(model)
    store = LayerInputs(Delayed(), least=1)
    checkpoint_layers(model, store)
    with pytest.raises(ValueError, match="in between"), store.micro_step():
        model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=False)
        raise ValueError("in between")
    assert store.held == 0
    assert same(gradients(model, store), expected)


def test_going_backward_twice_is_refused() -> None:
    model = model_of("llama")
    store = LayerInputs(InPlace(), least=1)
    checkpoint_layers(model, store)
    with store.micro_step():
        loss = model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=False).logits.sum()
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="twice"):
            loss.backward()


def test_a_layer_that_changes_its_input_in_place_is_refused() -> None:
    """The copy on the host may have been taken before or after: neither autograd nor we could tell later."""
    store = LayerInputs(Delayed(), least=1)

    def layer(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 2

    first = torch.ones(2, 4, 8, requires_grad=True) * 1.0
    with pytest.raises(RuntimeError, match="in place"), store.micro_step():
        second = store.run(layer, first)
        first.add_(1)
        store.run(layer, second)


def test_small_and_shared_tensors_stay_where_they_are() -> None:
    store = LayerInputs(InPlace())  # 64 KiB and more
    mask, small = torch.ones(2, 1, 128, 128), torch.ones(1, 4, 8)
    ids = torch.ones(512, 512, dtype=torch.long)
    big = torch.ones(2, 128, 128, requires_grad=True)
    with store.micro_step():
        out = store.run(lambda h, m, s, i: h * m.mean() * s.mean() * i.double().mean(), big, mask, small, ids)
        assert store.held == 1
        out.sum().backward()
    assert store.moved == 2 * 128 * 128 * 4


def test_memory_does_not_grow_over_200_micro_steps() -> None:
    """The slope of live tensors over the steps is 0, as is what the store holds."""
    model = model_of("llama")
    mover = Delayed()
    store = LayerInputs(mover, least=1)
    checkpoint_layers(model, store)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    gradients(model, store)
    gradients(model, store)
    before = alive()
    for _ in range(200):
        gradients(model, store)
        assert store.held == 0 and not store._groups and not mover.waiting
    assert alive() <= before


class TestHostMemory:
    def test_slabs_are_filled_from_the_start_and_used_again(self) -> None:
        memory = HostMemory(pin=False, slab=1024)
        like = torch.zeros(100, dtype=torch.float32)  # 400 bytes, 512 with alignment: two a slab
        first = [memory.take(like) for _ in range(4)]
        for number, part in enumerate(first):
            part.fill_(number)
        assert [float(part.sum()) for part in first] == [0.0, 100.0, 200.0, 300.0]  # none overlaps another
        assert memory.bytes == 2048
        memory.reset()
        again = memory.take(like)
        assert again.data_ptr() == first[0].data_ptr()
        assert memory.bytes == 2048

    def test_layers_that_do_not_divide_a_slab_waste_nothing(self) -> None:
        """Input, attention's output and log-sums of 32 layers; all three lie in the proportions of 20,480 tokens."""
        memory, sizes = HostMemory(pin=False, slab=262_144), (163_840, 163_840, 2_560)
        for _ in range(2):
            parts = [memory.take(torch.zeros(size, dtype=torch.uint8)) for _ in range(32) for size in sizes]
            for number, part in enumerate(parts):
                part.fill_(number)
            assert all(bool((part == number).all()) for number, part in enumerate(parts))
            assert memory.bytes < 1.02 * 32 * sum(sizes)
            memory.reset()

    def test_what_is_larger_than_a_slab_gets_its_own(self) -> None:
        memory = HostMemory(pin=False, slab=1024)
        assert memory.take(torch.zeros(3, 1000, dtype=torch.bfloat16)).shape == (3, 1000)
        assert memory.bytes == 6144  # rounded up

    def test_rows_that_grow_from_step_to_step_do_not_pile_up(self) -> None:
        """Slabs that became too small are given back; rows a little longer find room in those there are."""
        waits: list[int] = []
        memory = HostMemory(pin=False, slab=32_768, wait=lambda: waits.append(memory.bytes))
        sizes = range(20_000, 30_000, 100)
        for size in sizes:
            memory.reset()
            for _ in range(8):
                memory.take(torch.zeros(size, dtype=torch.uint8))
            assert memory.bytes <= 8 * (size + 1024)
        assert len(waits) <= 1 + (sizes[-1] - sizes[0]) / 1024

    def test_a_slab_is_given_back_when_its_copies_are_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = with_runtime(monkeypatch, 0)
        pinned: list[int] = []
        memory = HostMemory(pin=True, slab=1024, wait=lambda: pinned.append(len(runtime.pinned)))
        memory.take(torch.zeros(100)), memory.take(torch.zeros(300))
        memory.take(torch.zeros(1000))  # all slabs are in use: nothing is given back
        assert pinned == [] and len(runtime.pinned) == 3
        memory.reset()
        memory.take(torch.zeros(1000)), memory.take(torch.zeros(1000))
        assert pinned == [3] and len(runtime.pinned) == 2

    def test_the_rest_of_the_limit_is_a_slab_too(self) -> None:
        memory = HostMemory(pin=False, slab=1024, limit=1500)
        memory.take(torch.zeros(256))
        memory.take(torch.zeros(100))
        assert memory.bytes == 1500

    def test_the_limit_has_its_own_message(self) -> None:
        memory = HostMemory(pin=False, slab=1024, limit=2048)
        memory.take(torch.zeros(512))
        with pytest.raises(HostMemoryError, match=r"host memory they may take; lower memory\.token_budget"):
            memory.take(torch.zeros(1))


class Runtime:
    """A CUDA runtime that refuses to pin, and keeps the error of it until somebody takes it, as the real one does."""

    def __init__(self, answer: int) -> None:
        self.answer, self.error = answer, 0
        self.pinned: list[int] = []

    def cudaHostRegister(self, place: int, size: int, flags: int) -> int:
        self.error = self.answer
        if not self.answer:
            self.pinned.append(place)
        return self.answer

    def cudaHostUnregister(self, place: int) -> int:
        self.pinned.remove(place)
        return 0

    def start_a_kernel(self) -> None:
        error, self.error = self.error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")


def with_runtime(monkeypatch: pytest.MonkeyPatch, answer: int) -> Runtime:
    runtime = Runtime(answer)
    monkeypatch.setattr(offload, "_cuda", lambda: runtime)
    monkeypatch.setattr(offload, "_throwaway", runtime.start_a_kernel)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in runtime.pinned)
    return runtime


def test_refused_pinning_leaves_no_error_for_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = with_runtime(monkeypatch, 2)
    memory = HostMemory(pin=True, slab=1024)
    memory.take(torch.zeros(10))
    assert memory.refused and memory.bytes == 1024
    runtime.start_a_kernel()
    memory.close()
    assert memory.bytes == 0


def test_pinned_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = with_runtime(monkeypatch, 0)
    memory = HostMemory(pin=True, slab=1024)
    memory.take(torch.zeros(10)), memory.take(torch.zeros(1000))
    assert len(runtime.pinned) == 2
    memory.close()
    assert not runtime.pinned


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(ModelError, match="no layers that transformers can checkpoint"):
        checkpoint_layers(torch.nn.Linear(2, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="side streams need a CUDA device")
class TestOnCuda:
    def test_gradients_are_bit_equal_and_the_inputs_leave_the_device(self) -> None:
        """Wide enough that copies and layers overlap; 20 micro-steps, so that a race would have its chance."""
        device = torch.device("cuda")
        torch.manual_seed(0)
        sizes = SIZES | {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 12}
        # As many heads of keys as of queries: others the memory-efficient attention of torch does not take.
        heads = {"num_key_value_heads": sizes["num_attention_heads"]}
        model = AutoModelForCausalLM.from_config(LlamaConfig(**(sizes | heads))).to(device).train()
        model.get_input_embeddings().requires_grad_(False)  # its gradient is added up in any order
        ids = torch.arange(4096, device=device).view(1, -1) * 7 % 61

        def passes(store: LayerInputs | None, kernel: str = "MATH") -> tuple[dict[str, torch.Tensor], int]:
            model.zero_grad()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            attention = torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, kernel))
            with attention, store.micro_step() if store is not None else contextlib.nullcontext():
                model.model(input_ids=ids, use_cache=False).last_hidden_state.square().mean().backward()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, peak

        # The fused attentions add up their gradients in any order, and the plain one has all scores at once.
        checkpoint_layers(model)
        passes(None)
        expected, _ = passes(None)
        again, _ = passes(None)
        _, resident = passes(None, "EFFICIENT_ATTENTION")
        assert same(again, expected)  # else the device's own kernels differ from run to run
        store = LayerInputs(mover_for(device))
        checkpoint_layers(model, store)
        passes(store)
        for _ in range(20):
            found, _ = passes(store)
            assert same(found, expected)
        _, offloaded = passes(store, "EFFICIENT_ATTENTION")
        one = 4096 * 1024 * 4
        assert resident - offloaded > 6 * one  # of 12 layer inputs, three or four are on the device at once
        mover = store.mover
        assert isinstance(mover, CudaMover)
        assert mover.memory.slabs[0].is_pinned() and mover.memory.bytes < 2 * 12 * one
        mover.memory.close()
