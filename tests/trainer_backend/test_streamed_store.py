"""Streamed layers whose groups wait on the host: the same gradients to the bit, in what order, and nothing left behind.

The stand-in for a device (`delayed_mover`) copies when somebody waits; what it would show is tried with mutants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from delayed_mover import Delayed
from peft import LoraConfig, get_peft_model
from tiny_policies import KINDS, tiny_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from trainer_backend.model.adapter import adapter_off
from trainer_backend.model.offload import Arriving, HostMemoryError, InPlace, LayerInputs, Parked, mover_for
from trainer_backend.model.streamed import Keep, Segment, Streamed, decoder, layer, streamed_of
from trainer_backend.ops import attention

KINDS.setdefault("qwen3", Qwen3Config)
LAYERS, TOKENS, HIDDEN, HEADS, WIDTH = 3, 14, 32, 4, 12
OFFLOADED: tuple[Keep, ...] = ("inputs", "attention")
# A prompt of 4 that the second of two completions shares.
SEGMENTS = [Segment(0, 8), Segment(8, TOKENS, ((0, 4),))]
POSITIONS = torch.tensor([*range(8), *range(4, 10)])

Gradients = list[torch.Tensor]


def decoder_for(kind: str = "llama", *, keep: Keep = "attention") -> Streamed:
    model = tiny_model(kind, torch.float32, num_hidden_layers=LAYERS, head_dim=WIDTH)
    found = streamed_of(model, torch.float32, chunk=5)
    assert isinstance(found, Streamed), found
    return dataclasses.replace(found, keep=keep)


def states_of(streamed: Streamed) -> torch.Tensor:
    return streamed.hidden_states(torch.arange(3, 3 + TOKENS) * 31 % 97, POSITIONS, SEGMENTS)


def gradients(streamed: Streamed, between: Callable[[], object] = lambda: None) -> Gradients:
    """The gradients of one micro-step; `between`: what is done before its backward pass."""
    for weight in streamed.model.parameters():
        weight.grad = None
    with streamed.store.micro_step() if streamed.store is not None else contextlib.nullcontext():
        states = states_of(streamed)
        between()
        states.square().sum().backward()
    return [weight.grad.clone() for weight in streamed.model.parameters() if weight.grad is not None]


def same(one: Gradients, other: Gradients) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def stored(streamed: Streamed, mover: Any = None) -> tuple[Streamed, LayerInputs]:
    store = LayerInputs(mover or Delayed(), least=1)
    return dataclasses.replace(streamed, store=store), store


class TestGradients:
    @pytest.mark.parametrize("mover", [InPlace, Delayed])
    @pytest.mark.parametrize("keep", OFFLOADED)
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_bit_equal_to_those_without(self, kind: str, keep: Keep, mover: Any) -> None:
        found = decoder_for(kind, keep=keep)
        expected = gradients(found)
        found, store = stored(found, mover())
        for _ in range(2):  # a second micro-step uses the same host memory
            assert same(gradients(found), expected)
        attention = 4 * HEADS * WIDTH + 4 * HEADS if keep == "attention" else 0
        assert store.moved == 2 * LAYERS * TOKENS * (4 * HIDDEN + attention)
        assert store.held == 0 and not store._groups

    def test_all_that_is_kept_stays_on_the_device(self) -> None:
        found = decoder_for(keep="all")
        expected = gradients(found)
        found, store = stored(found)
        held: list[int] = []
        assert same(gradients(found, lambda: held.append(store.held)), expected)
        assert store.moved == 0 and held == [0]

    def test_what_is_small_stays_too(self) -> None:
        """Log-sums are a group's smallest; they come with it all the same."""
        found = decoder_for()
        expected = gradients(found)
        store = LayerInputs(Delayed(), least=4 * HEADS * TOKENS + 1)
        assert same(gradients(dataclasses.replace(found, store=store)), expected)
        assert store.moved == LAYERS * TOKENS * 4 * (HIDDEN + HEADS * WIDTH)

    def test_the_reference_in_between(self) -> None:
        """It has no backward pass: nothing of it waits."""
        found = decoder_for()
        expected = gradients(found)
        found, store = stored(found)

        def reference() -> None:
            held, moved = store.held, store.moved
            with torch.no_grad(), adapter_off(found.model):
                states_of(found)
            with adapter_off(found.model):  # nothing is trained
                states_of(found)
            assert (store.held, store.moved) == (held, moved) == (LAYERS, moved)

        assert same(gradients(found, reference), expected)

    def test_layers_below_the_first_adapter_keep_nothing(self) -> None:
        base = tiny_model(num_hidden_layers=LAYERS).unload()
        lora = LoraConfig(r=2, target_modules=["q_proj", "up_proj"], layers_to_transform=[1], init_lora_weights=False)
        found = streamed_of(get_peft_model(base, lora, autocast_adapter_dtype=False), torch.float64, chunk=5)
        assert isinstance(found, Streamed), found
        expected = gradients(found)
        found, store = stored(found)
        held: list[int] = []
        assert same(gradients(found, lambda: held.append(store.held)), expected)
        assert held == [LAYERS - 1]

    def test_two_lines_before_their_backward_passes(self) -> None:
        """The newest first, and the oldest first: then groups come back out of turn."""
        for turn in (1, -1):
            found = decoder_for()
            expected = [2 * one for one in gradients(found)]
            found, store = stored(found)
            for weight in found.model.parameters():
                weight.grad = None
            with store.micro_step():
                lines = [states_of(found), states_of(found)]
                for states in lines[::turn]:
                    states.square().sum().backward()
            ours = [weight.grad for weight in found.model.parameters() if weight.grad is not None]
            assert same(ours, expected)


class Swapped(Delayed):
    """Brings the tensor of its shape that was sent last, whichever is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Parked] = []

    def out(self, tensor: torch.Tensor) -> Parked:
        self.sent.append(super().out(tensor))
        return self.sent[-1]

    def back(self, parked: Parked) -> Arriving:
        return super().back([one for one in self.sent if one.host.shape == parked.host.shape][-1])


class TooEarly(Delayed):
    """Uses host memory again before what lies there was taken."""

    def out(self, tensor: torch.Tensor) -> Parked:
        if tensor.shape == (TOKENS, HIDDEN):  # a layer's input, the first of its group
            self.memory.reset()
        return super().out(tensor)


class TestNegativeControls:
    """What the tests above would catch; with the mover as it should be, they find nothing."""

    @pytest.mark.parametrize(
        "mover",
        [lambda: Delayed(forgets="take"), lambda: Delayed(forgets="settle"), Swapped, TooEarly],
        ids=["take", "settle", "swapped", "too early"],
    )
    def test_a_wrong_mover(self, mover: Callable[[], Any]) -> None:
        found = decoder_for()
        expected = gradients(found)
        assert not same(gradients(stored(found, mover())[0]), expected)


class Noted(Delayed):
    """Notes what is asked for, by names: x, out and lse of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.names: dict[int, str] = {}

    def out(self, tensor: torch.Tensor) -> Parked:
        layer, part = divmod(len(self.names), 3)
        parked = super().out(tensor)
        self.names[id(parked)] = f"{('x', 'out', 'lse')[part]}{layer}"
        self._note("send", parked)
        return parked

    def settle(self, parked: Parked) -> None:
        self._note("settle", parked)
        super().settle(parked)

    def back(self, parked: Parked) -> Arriving:
        self._note("bring", parked)
        arriving = super().back(parked)
        self.names[id(arriving)] = self.names[id(parked)]
        return arriving

    def take(self, arriving: Arriving) -> torch.Tensor:
        self._note("take", arriving)
        return super().take(arriving)

    def _note(self, what: str, which: Parked | Arriving) -> None:
        self.events.append(f"{what} {self.names[id(which)]}")


def test_what_happens_in_which_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies run beside a layer: one is asked for before the layer is, and waited for after it."""
    found, mover = decoder_for(), Noted()  # found first: it is tried with the same functions
    for name in ("forward", "backward"):
        inner = getattr(decoder, name)

        def noted(*args: Any, name: str = name, inner: Any = inner, **options: Any) -> Any:
            mover.events.append(name)
            return inner(*args, **options)

        monkeypatch.setattr(decoder, name, noted)
    gradients(stored(found, mover)[0], lambda: mover.events.append("loss"))
    assert mover.events == [
        "send x0", "forward", "send out0", "send lse0",
        "settle x0", "send x1", "forward", "send out1", "send lse1",
        "settle out0", "settle lse0", "settle x1", "send x2", "forward", "send out2", "send lse2",
        "loss",
        # The newest is there, and so is what was added to the one before it.
        "settle x2", "settle out2", "settle lse2", "bring x1", "backward",
        "take x1", "settle out1", "settle lse1", "bring x0", "bring out0", "bring lse0", "backward",
        "take x0", "take out0", "take lse0", "backward",
    ]  # fmt: skip


class TestMicroStep:
    def test_a_forward_pass_without_its_backward_pass_is_an_error_and_leaves_nothing(self) -> None:
        found, store = stored(decoder_for())
        with pytest.raises(RuntimeError, match="3 layer inputs were stored and never used"), store.micro_step():
            states = states_of(found)
        assert store.held == 0
        with pytest.raises(RuntimeError, match="after its micro-step"):
            states.sum().backward()

    def test_an_error_in_between_leaves_nothing_and_the_next_micro_step_is_right(self) -> None:
        found = decoder_for()
        expected = gradients(found)
        found, store = stored(found)

        def fails() -> None:
            raise ValueError("in between")

        with pytest.raises(ValueError, match="in between"):
            gradients(found, fails)
        assert store.held == 0 and not store.mover.waiting  # type: ignore[attr-defined]
        assert same(gradients(found), expected)

    def test_an_error_within_a_layer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = decoder_for()
        expected = gradients(found)
        found, store = stored(found)
        for name in ("forward", "backward"):
            inner, calls = getattr(decoder, name), iter((False, True))

            def fails(*args: Any, inner: Any = inner, calls: Any = calls, **options: Any) -> Any:
                if next(calls):
                    raise ValueError("in a layer")
                return inner(*args, **options)

            with monkeypatch.context() as patch, pytest.raises(ValueError, match="in a layer"):
                patch.setattr(decoder, name, fails)
                gradients(found)
            assert store.held == 0 and not store._groups
            assert same(gradients(found), expected)

    def test_a_forward_pass_that_is_given_up(self) -> None:
        found = decoder_for()
        expected = gradients(found)
        found, store = stored(found)
        states_of(found)
        assert store.held == LAYERS
        with pytest.raises(RuntimeError, match="still held"), store.micro_step():
            pass
        store.forget()
        assert same(gradients(found), expected)

    def test_going_backward_twice_is_refused(self) -> None:
        found, store = stored(decoder_for())
        with store.micro_step():
            loss = states_of(found).sum()
            loss.backward(retain_graph=True)
            with pytest.raises(RuntimeError, match="twice"):
                loss.backward()

    def test_more_than_the_host_may_give(self) -> None:
        """It is said so, and a shorter line goes on with the same store."""
        found, store = stored(decoder_for(), Delayed(limit=8192))
        with pytest.raises(HostMemoryError, match=r"host memory they may take; lower memory\.token_budget"):
            gradients(found)
        assert store.held == 0
        with store.micro_step():
            found.hidden_states(torch.arange(4), torch.arange(4), [Segment(0, 4)]).sum().backward()

    def test_given_back_it_is_taken_anew(self) -> None:
        found = decoder_for()
        expected = gradients(found)
        found, store = stored(found)
        gradients(found)
        store.close()
        assert store.mover.memory.bytes == 0  # type: ignore[attr-defined]
        assert same(gradients(found), expected)

    def test_memory_does_not_grow_over_200_micro_steps(self) -> None:
        found, store = stored(decoder_for())
        found = dataclasses.replace(found, chunk=TOKENS)
        mover: Any = store.mover

        def alive() -> tuple[int, int]:
            gc.collect()
            return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()), mover.memory.bytes

        gradients(found), gradients(found)
        before = alive()
        for _ in range(200):
            gradients(found)
            assert store.held == 0 and not store._groups and not mover.waiting
        assert alive() == before


def scores(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """[heads, queries, keys] in float32."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    found = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool, device=q.device)
    return found.masked_fill(~(seen.tril() if causal else seen), -math.inf)


def plain_attention(q: Any, k: Any, v: Any, *, causal: bool, scale: float, kernel: str) -> tuple[Any, Any]:
    """A stand-in for `ops.attention.attend` that gives the same bits each time on a GPU, too."""
    found = scores(q, k, causal, scale)
    wide = v.repeat_interleave(q.shape[1] // v.shape[1], 1).float()
    return torch.einsum("hqk,khd->qhd", found.softmax(-1), wide).to(q.dtype), found.logsumexp(-1)


def plain_attention_backward(
    slope: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool, scale: float, kernel: str
) -> tuple[Any, Any, Any]:
    """The same for `attend_backward`."""
    times = q.shape[1] // k.shape[1]
    shares = (scores(q, k, causal, scale) - lse.unsqueeze(-1)).exp()
    taken, given, wide = slope.float(), out.float(), v.repeat_interleave(times, 1).float()
    both = torch.einsum("qhd,khd->hqk", taken, wide) - (taken * given).sum(-1).T.unsqueeze(-1)
    raised = shares * both * scale
    dq = torch.einsum("hqk,khd->qhd", raised, k.repeat_interleave(times, 1).float())
    dk, dv = torch.einsum("hqk,qhd->khd", raised, q.float()), torch.einsum("hqk,qhd->khd", shares, taken)
    dk, dv = (one.unflatten(1, (-1, times)).sum(2) for one in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@pytest.mark.parametrize("causal", [True, False])
def test_the_stand_in_for_attention_is_attention(causal: bool) -> None:
    q, slope = (torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(at)) for at in (0, 1))
    k, v = (torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(at)) for at in (2, 3))
    how: dict[str, Any] = {"causal": causal, "scale": 0.3, "kernel": "cpu"}
    out, lse = attention.attend(q, k, v, **how)
    wanted = (out, lse, *attention.attend_backward(slope, q, k, v, out, lse, **how))
    mine = plain_attention(q, k, v, **how)
    for one, other in zip((*mine, *plain_attention_backward(slope, q, k, v, *mine, **how)), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="side streams need a CUDA device")
class TestOnCuda:
    @pytest.mark.parametrize("keep", OFFLOADED)
    def test_gradients_are_bit_equal_and_the_groups_leave_the_device(
        self, keep: Literal["inputs", "attention"], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Wide enough that copies and layers overlap; 20 micro-steps, so that a race would have its chance."""
        device, layers, tokens, hidden = torch.device("cuda"), 12, 4096, 1024
        torch.manual_seed(0)
        settings = LlamaConfig(
            vocab_size=97, hidden_size=hidden, intermediate_size=2048, num_hidden_layers=layers,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=tokens,
        )  # fmt: skip
        with device:
            base = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
        lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
        found = streamed_of(get_peft_model(base, lora).eval(), torch.bfloat16, chunk=1024)
        assert isinstance(found, Streamed), found
        found = dataclasses.replace(found, keep=keep)
        ids, positions = torch.arange(tokens, device=device) % 97, torch.arange(tokens, device=device)

        def passes(streamed: Streamed) -> tuple[Gradients, int]:
            for weight in streamed.model.parameters():
                weight.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with streamed.store.micro_step() if streamed.store is not None else contextlib.nullcontext():
                streamed.hidden_states(ids, positions, [Segment(0, tokens)]).float().square().mean().backward()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            return [weight.grad.clone() for weight in streamed.model.parameters() if weight.grad is not None], peak

        store = LayerInputs(mover_for(device))
        offloaded = dataclasses.replace(found, store=store)
        # The fused attention adds up its gradients in any order.
        monkeypatch.setattr(layer, "attend", plain_attention)
        monkeypatch.setattr(layer, "attend_backward", plain_attention_backward)
        passes(found)
        expected, resident = passes(found)
        assert same(passes(found)[0], expected)  # else the device's own kernels differ from run to run
        passes(offloaded)
        peaks = set()
        for _ in range(20):
            slopes, peak = passes(offloaded)
            assert same(slopes, expected)
            peaks.add(peak)
        one = 2 * tokens * hidden * (2 if keep == "attention" else 1)
        assert max(peaks) - min(peaks) < one  # however far the CPU was ahead
        assert resident - max(peaks) > 6 * one  # of 12 groups, two or three are on the device at once
        mover: Any = store.mover
        assert mover.memory.slabs[0].is_pinned()
        store.close()
