"""Streamed layers against plain autograd through the model of transformers, in float64; and what makes them wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from delayed_mover import Delayed
from live_memory import LiveMemory
from peft import LoraConfig, get_peft_model
from tiny_policies import KINDS, Norm, tiny_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from trainer_backend.model.adapter import adapter_off
from trainer_backend.model.forward import Branch, hidden_states, precision, prefix_mask
from trainer_backend.model.offload import LayerInputs
from trainer_backend.model.streamed import Keep, Segment, Streamed, layer, segments_of, streamed_of
from trainer_backend.ops import attention, elementwise

KINDS.setdefault("qwen3", Qwen3Config)
KINDS.setdefault("mistral", MistralConfig)
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "mistral": {"sliding_window": None, "num_key_value_heads": 4},
}

KEEPS: tuple[Keep, ...] = ("inputs", "attention", "all")

Order = tuple[torch.Tensor, torch.Tensor, list[Branch]]


def packed() -> Order:
    """Three rows of their own, of 5, 1 and 7 tokens."""
    lengths, start, branches, positions = (5, 1, 7), 0, [], []
    for length in lengths:
        branches.append(Branch(start, start + length, ()))
        positions += range(length)
        start += length
    return torch.arange(3, 3 + start) * 31 % 97, torch.tensor(positions), branches


def shared() -> Order:
    """A prompt of 4 with completions of 3, 5 and 2, the last of which goes on from the second token of the first."""
    branches = [Branch(0, 7, ()), Branch(7, 12, range(4)), Branch(12, 14, (0, 1, 2, 3, 4, 5))]
    positions = [*range(7), *range(4, 9), *range(6, 8)]
    return torch.arange(5, 19) * 17 % 97, torch.tensor(positions), branches


ORDERS: dict[str, Callable[[], Order]] = {"packed": packed, "shared": shared}


def gradients(model: Any, states: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return list(torch.autograd.grad((states.double() * weights).sum(), trained))


def weights_for(count: int, hidden: int = 32) -> torch.Tensor:
    return torch.randn(count, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def exact(model: Any, order: Order) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hidden states and LoRA gradients by the model's own layers, with a mask, under autograd."""
    ids, positions, branches = order
    mask = prefix_mask([branches], len(ids))
    states = hidden_states(model, ids.unsqueeze(0), mask, positions.unsqueeze(0))[0]
    return states.detach(), gradients(model, states, weights_for(len(ids)))


def streamed(model: Any, chunk: int, *, keep: Keep = "attention") -> Streamed:
    found = streamed_of(model, next(model.parameters()).dtype, chunk=chunk)
    assert isinstance(found, Streamed), found
    return dataclasses.replace(found, keep=keep)


def run(model: Any, order: Order, chunk: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    ids, positions, branches = order
    states = streamed(model, chunk).hidden_states(ids, positions, segments_of(branches))
    return states.detach(), gradients(model, states, weights_for(len(ids)))


def apart(found: Any, wanted: Any) -> float:
    """The largest relative distance of hidden states and of each gradient."""
    (states, slopes), (exact_states, exact_slopes) = found, wanted
    pairs = [(states, exact_states), *zip(slopes, exact_slopes, strict=True)]
    return max(float((one.double() - other).norm() / other.norm().clamp(min=1e-30)) for one, other in pairs)


class TestAgainstAutograd:
    @pytest.mark.parametrize("chunk", [1, 7, 13, 100])
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("kind", SHAPES)
    def test_hidden_states_and_every_gradient(self, kind: str, order: str, chunk: int) -> None:
        model = tiny_model(kind, **SHAPES[kind])
        wanted = exact(model, ORDERS[order]())
        ids, positions, branches = ORDERS[order]()
        found = streamed(model, chunk)
        for keep in KEEPS:
            states = dataclasses.replace(found, keep=keep).hidden_states(ids, positions, segments_of(branches))
            ours = states.detach(), gradients(model, states, weights_for(len(ids)))
            assert apart(ours, wanted) < 1e-12, keep

    def test_biases_and_layers_without_an_adapter(self) -> None:
        model = tiny_model("llama", attention_bias=True, mlp_bias=True)
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(weight, std=0.3)
        base = model.unload()
        lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False, use_rslora=True)
        model = get_peft_model(base, lora, autocast_adapter_dtype=False)
        assert apart(run(model, shared(), 5), exact(model, shared())) < 1e-12

    def test_gemmas_norm_and_gate(self) -> None:
        """Its weights are added to 1, and its gate is GELU."""
        model = tiny_model("llama", hidden_act="gelu_pytorch_tanh")
        for child in list(model.modules()):
            for name, norm in child.named_children():
                if isinstance(norm, Norm):
                    setattr(child, name, OffsetNorm(norm))
        found = streamed(model, 4)
        assert found.norm.offset == 1.0 and found.blocks[0].norms[1].offset == 1.0
        assert apart(run(model, shared(), 4), exact(model, shared())) < 1e-12

    @pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
    def test_activations(self, activation: str) -> None:
        model = tiny_model("llama", hidden_act=activation)
        assert apart(run(model, packed(), 4), exact(model, packed())) < 1e-12

    def test_gradients_of_two_lines_add_up(self) -> None:
        model = tiny_model()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        wanted = [one + other for one, other in zip(exact(model, packed())[1], exact(model, shared())[1], strict=True)]
        for ids, positions, branches in (packed(), shared()):
            states = streamed(model, 4).hidden_states(ids, positions, segments_of(branches))
            (states * weights_for(len(ids))).sum().backward()
        for weight, slope in zip(trained, wanted, strict=True):
            torch.testing.assert_close(weight.grad, slope, rtol=1e-11, atol=1e-13)

    def test_with_the_adapter_off_it_is_the_base_model(self) -> None:
        model = tiny_model()
        ids, positions, branches = shared()
        found = streamed(model, 4)
        with torch.no_grad(), adapter_off(model):
            states = found.hidden_states(ids, positions, segments_of(branches))
            base = hidden_states(model, ids[None], prefix_mask([branches], len(ids)), positions[None])[0]
        torch.testing.assert_close(states, base, rtol=1e-12, atol=1e-12)
        assert float((states - exact(model, shared())[0]).norm()) > 0.1


class OffsetNorm(nn.Module):
    """Gemma's norm in float64."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn_like(norm.weight), requires_grad=False)
        self.eps = norm.epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class TestNarrowTypes:
    @pytest.mark.parametrize("keep", KEEPS)
    @pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-2)], ids=str)
    def test_as_near_to_float64_as_the_model_itself(self, dtype: torch.dtype, bound: float, keep: Keep) -> None:
        model = tiny_model(dtype=torch.float32)
        for name, weight in model.named_parameters():
            if "lora_" not in name:
                weight.data = weight.data.to(dtype)
        same = tiny_model(dtype=torch.float64)
        same.load_state_dict(model.state_dict())
        wanted = exact(same, shared())
        ids, positions, branches = shared()
        with precision("cpu", dtype):
            own = hidden_states(model, ids[None], prefix_mask([branches], len(ids)), positions[None])[0]
            own_slopes = gradients(model, own, weights_for(len(ids)))
            found = streamed_of(model, dtype, chunk=5)
            assert isinstance(found, Streamed), found
            states = dataclasses.replace(found, keep=keep).hidden_states(ids, positions, segments_of(branches))
        ours = apart((states.detach(), gradients(model, states, weights_for(len(ids)))), wanted)
        assert ours < bound and ours < 2.0 * apart((own.detach(), own_slopes), wanted)

    def test_4_bit_weights(self) -> None:
        bitsandbytes = pytest.importorskip("bitsandbytes")
        torch.manual_seed(0)
        settings = LlamaConfig(
            vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2,
        )  # fmt: skip
        lora = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)
        dense = AutoModelForCausalLM.from_config(settings)
        four = AutoModelForCausalLM.from_config(settings)
        four.load_state_dict(dense.state_dict())
        for name, module in list(dense.named_modules()):
            if isinstance(module, nn.Linear) and name != "lm_head":
                quantised = bitsandbytes.nn.Linear4bit(
                    module.in_features, module.out_features, bias=False, quant_type="nf4", compute_dtype=torch.float32
                )
                quantised.support_avx512bf16_for_cpu = False  # as `load` does
                quantised.weight = bitsandbytes.nn.Params4bit(module.weight.data.clone(), quant_type="nf4").to("cpu")
                parent, _, child = name.rpartition(".")
                setattr(four.get_submodule(parent), child, quantised)
                state = quantised.weight.quant_state
                module.weight.data = bitsandbytes.functional.dequantize_4bit(quantised.weight.data, state)
        models = []
        for base in (dense, four):
            torch.manual_seed(1)
            models.append(get_peft_model(base, lora).eval())
        ids, positions, branches = shared()
        mask = prefix_mask([branches], len(ids))
        states = hidden_states(models[0], ids[None], mask, positions[None])[0]
        wanted = states.detach().double(), gradients(models[0], states, weights_for(len(ids), 64))
        for keep in KEEPS:
            found = streamed(models[1], 5, keep=keep).hidden_states(ids, positions, segments_of(branches))
            assert apart((found.detach(), gradients(models[1], found, weights_for(len(ids), 64))), wanted) < 1e-5


class TestNegativeControls:
    """What the tests above would catch."""

    def far(self, order: Order | None = None, change: Callable[[], None] = lambda: None) -> float:
        model = tiny_model()
        wanted, found = exact(model, shared()), streamed(model, 4)
        change()  # after the layers were tried, which would notice, too
        ids, positions, branches = order or shared()
        states = found.hidden_states(ids, positions, segments_of(branches))
        return apart((states.detach(), gradients(model, states, weights_for(len(ids)))), wanted)

    def test_positions_that_do_not_start_again(self) -> None:
        ids, _, branches = shared()
        assert self.far((ids, torch.arange(len(ids)), branches)) > 1e-3

    def test_a_completion_that_sees_one_token_of_another(self) -> None:
        ids, positions, branches = shared()
        wrong = [branches[0], Branch(7, 12, range(5)), branches[2]]
        assert self.far((ids, positions, wrong)) > 1e-3

    def test_a_mask_that_is_off_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = layer._Work._blocks

        def blocks(self: Any, a: int, b: int) -> Any:
            for own, seen in inner(self, a, b):
                first = [(slice(at.start, at.stop - 1), causal) for at, causal in seen[:-1] if at.stop - at.start > 1]
                yield own, [*first, seen[-1]]

        assert self.far(change=lambda: monkeypatch.setattr(layer._Work, "_blocks", blocks)) > 1e-3

    def test_nothing_wrong(self) -> None:
        assert self.far() < 1e-12

    def test_log_sums_of_a_block_in_place_of_the_whole_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def alone(parts: Any) -> Any:
            return attention.put_together(parts)[0], parts[-1][1]

        monkeypatch.setattr(layer, "put_together", alone)
        assert self.far() > 1e-3

    def test_chunks_first_to_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keys would be sent back before all queries that see them have had their turn."""
        monkeypatch.setattr(layer, "reversed", lambda chunks: chunks, raising=False)
        assert self.far() > 1e-3

    def test_a_norm_without_its_mean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(self: Any, slope: Any, x: Any, onto: Any = None) -> Any:
            inner = slope * self.weight * self._scale(x)
            return inner if onto is None else onto.add_(inner)

        monkeypatch.setattr(elementwise.Norm, "backward", wrong)
        assert self.far() > 1e-3


class TestWhatIsNotStreamed:
    def test_reasons(self) -> None:
        sizes: dict[str, Any] = {
            "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        }  # fmt: skip
        gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2))
        assert isinstance(streamed_of(gpt2, torch.float32), str)
        gemma2 = AutoModelForCausalLM.from_config(Gemma2Config(**sizes))
        assert "sliding attention" in str(streamed_of(gemma2.requires_grad_(False), torch.float32))
        mistral = AutoModelForCausalLM.from_config(MistralConfig(**sizes, sliding_window=8))
        assert streamed_of(mistral.requires_grad_(False), torch.float32) == "layers with sliding attention"
        llama = AutoModelForCausalLM.from_config(LlamaConfig(**sizes))
        assert streamed_of(llama, torch.float32) == "norms that are trained"
        for name, weight in llama.named_parameters():
            weight.requires_grad_("norm" not in name)
        assert streamed_of(llama, torch.float32) == "linear layers that are trained themselves"
        for options, why in (({"lora_dropout": 0.1}, "dropout"), ({"use_dora": True}, "DoRA")):
            base = AutoModelForCausalLM.from_config(LlamaConfig(**sizes))
            model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", **options))
            assert why in str(streamed_of(model, torch.float32))

    def test_gemma_is(self) -> None:
        settings = GemmaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=8,
        )  # fmt: skip
        base = AutoModelForCausalLM.from_config(settings)
        model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)).eval()
        found = streamed_of(model, torch.float32, chunk=4)
        assert isinstance(found, Streamed), found
        ids, positions, branches = shared()
        states = hidden_states(model, ids[None], prefix_mask([branches], len(ids)), positions[None])[0]
        wanted = states.detach().double(), gradients(model, states, weights_for(len(ids)))
        ours = found.hidden_states(ids, positions, segments_of(branches))
        assert apart((ours.detach(), gradients(model, ours, weights_for(len(ids)))), wanted) < 1e-5

    def test_what_the_trial_finds(self) -> None:
        """A model whose layers look alike and compute something else."""
        model = tiny_model()
        attention_layer = model.get_base_model().model.layers[1].self_attn
        inner = attention_layer.forward
        attention_layer.forward = lambda *args, **options: (2.0 * inner(*args, **options)[0], None)
        assert "streamed layers are" in str(streamed_of(model, torch.float64))


def test_segments() -> None:
    branches = [Branch(0, 3, ()), Branch(3, 5, range(2)), Branch(5, 6, (0, 1, 3)), Branch(6, 7, range(0))]
    assert segments_of(branches) == [
        Segment(0, 3), Segment(3, 5, ((0, 2),)), Segment(5, 6, ((0, 2), (3, 4))), Segment(6, 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "keep", "offload"),
    [("qwen3", "all", False), *(("llama", keep, offload) for keep in KEEPS for offload in (False, True))],
)
def test_what_grows_with_the_tokens(kind: str, keep: Keep, offload: bool) -> None:
    """Every byte a token, in the backward pass of a layer: all others have given theirs back or not taken it yet."""
    layers, hidden, inner, heads, key_heads, width = 4, 64, 48, 4, 2, 12

    def peak(tokens: int) -> int:
        model = tiny_model(
            kind, torch.float32, num_hidden_layers=layers, hidden_size=hidden, head_dim=width,
            max_position_embeddings=2048,
        )  # fmt: skip
        found, there = streamed(model, 64, keep=keep), [*model.parameters(), *model.buffers()]
        for weight in model.parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight)
                there.append(weight.grad)
        ids = torch.arange(tokens) % 97
        mover = Delayed()

        def passes() -> None:
            states = found.hidden_states(ids, torch.arange(tokens), [Segment(0, tokens)])
            states.sum().backward()

        if offload:
            found = dataclasses.replace(found, store=LayerInputs(mover, least=1))
            passes()  # takes the host memory that the next one uses again
        with LiveMemory([*there, *mover.memory.slabs]) as live:
            passes()
        return live.peak

    kept = {
        "inputs": 4 * hidden,
        "attention": 4 * (hidden + heads * width) + 4 * heads,
        "all": 4 * (2 * hidden + 2 * heads * width + 2 * key_heads * width + 2 * inner) + 4 * heads,
    }[keep]
    # With a store: of the layer in use, and of the one arriving.
    on_device = 2 if offload and keep != "all" else layers
    # As used; where they are kept so, they are not made again.
    keys, values = (4 * key_heads * width for _ in "kv")
    made = (keys if keep != "all" or kind == "qwen3" else 0) + (values if keep != "all" else 0)
    # In float32, and what one block adds to them.
    slopes = 2 * (keys + values)
    output, slope, positions = 4 * hidden, 4 * hidden, 2 * 4 * width
    each = on_device * kept + made + slopes + output + slope + positions
    assert peak(1024) - peak(512) == pytest.approx(512 * each, rel=0.005)


def test_all_that_is_kept_serves_one_backward_pass() -> None:
    """The gradients of gate and up are written over them."""
    ids, positions, branches = packed()
    states = streamed(tiny_model(), 4, keep="all").hidden_states(ids, positions, segments_of(branches))
    states.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize(
    ("segments", "chunks"),
    [
        pytest.param([(0, 20)], [(0, 8), (8, 16), (16, 20)], id="one long row"),
        pytest.param([(0, 3), (3, 6), (6, 9), (9, 12)], [(0, 6), (6, 12)], id="short rows are not cut"),
        pytest.param([(0, 5), (5, 22)], [(0, 5), (5, 13), (13, 21), (21, 22)], id="a long row begins a chunk"),
        pytest.param([(0, 17), (17, 19)], [(0, 8), (8, 16), (16, 19)], id="the rest of a row has company"),
        pytest.param([(0, 8), (8, 16)], [(0, 8), (8, 16)], id="just full"),
    ],
)
def test_chunks_begin_with_long_rows(segments: list[tuple[int, int]], chunks: list[tuple[int, int]]) -> None:
    there = torch.zeros(segments[-1][1], 2)
    line = layer.Line(there, there, [Segment(*one) for one in segments], 8)
    assert line.chunks() == chunks


def test_blocks_whose_size_recurs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of full chunks, which long rows have; a kernel that needs a plan for each size is for them alone."""
    asked: list[tuple[int, bool]] = []

    def noted(q: torch.Tensor, *, recurs: bool = False) -> str:
        asked.append((q.shape[0], recurs))
        return "cpu"

    found = streamed(tiny_model("llama", torch.float32), 4)
    monkeypatch.setattr(layer, "kernel_for", noted)
    positions = torch.tensor([0, 1, *range(9)])
    found.hidden_states(torch.arange(11), positions, [Segment(0, 2), Segment(2, 11)])
    # Rows of 2 and 9: a chunk of 2, two full ones, of which the second sees the first, and one token that sees both.
    first = [(2, False), (4, True), (4, True), (4, True), (1, False), (1, False)]
    assert asked[: len(first)] == first
    assert attention.kernel_for(torch.zeros(4, 2, 8), recurs=True) == "cpu"
