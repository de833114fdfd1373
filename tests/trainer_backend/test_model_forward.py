"""Hidden states times the head are the model's own logits, for every family, or the model's logits are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from live_memory import LiveMemory
from saved_models import ids, tiny_base
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from trainer_backend.model.forward import (
    Branch,
    Dense,
    decoder_of,
    head_of,
    hidden_states,
    logits_of,
    precision,
    prefix_mask,
    score,
    shares_prefixes,
)
from trainer_backend.ops import Head

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES: dict[str, tuple[Callable[[], Any], float, float | None, bool]] = {
    # name: configuration, scale, soft cap, whether rows may share a prompt
    "llama": (lambda: LlamaConfig(**GROUPED), 1.0, None, True),
    "llama_tied": (lambda: LlamaConfig(**GROUPED, tie_word_embeddings=True), 1.0, None, True),
    "qwen2": (lambda: Qwen2Config(**GROUPED), 1.0, None, True),
    "qwen3": (lambda: Qwen3Config(**GROUPED, head_dim=8), 1.0, None, True),
    "mistral": (lambda: MistralConfig(**GROUPED, sliding_window=None), 1.0, None, True),
    "mistral_windows": (lambda: MistralConfig(**GROUPED, sliding_window=4), 1.0, None, False),
    "gemma2": (lambda: Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=5.0), 1.0, 5.0, False),
    "gemma3": (lambda: Gemma3TextConfig(**GROUPED, head_dim=8), 1.0, None, False),
    "cohere": (lambda: CohereConfig(**GROUPED, logit_scale=0.0625, **ENDS), 0.0625, None, True),
    "cohere2": (lambda: Cohere2Config(**GROUPED, logit_scale=0.25, **ENDS), 0.25, None, False),
    "granite": (lambda: GraniteConfig(**GROUPED, logits_scaling=8.0), 0.125, None, True),
    "gpt_neox": (lambda: GPTNeoXConfig(**SIZES), 1.0, None, True),
    "phi_head_with_bias": (lambda: PhiConfig(**GROUPED), 1.0, None, True),
    "gpt2": (lambda: GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64), 1.0, None, True),
    "mamba": (lambda: MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=8), 1.0, None, False),
}
PLACES = torch.tensor([2, 3, 4, 9, 10, 11])
TARGETS = torch.tensor([5, 90, 17, 44, 3, 61])


def family(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[name][0]()).to(dtype).eval()
    for weight in model.parameters():  # the biases, too, which start at 0
        if weight.dim() == 1:
            torch.nn.init.normal_(weight, 1.0, 0.3)
    return model


def scored(model: Any, head: Head | Dense, **options: Any) -> Any:
    options = {"attention_mask": None, "position_ids": None, "where": PLACES, "targets": TARGETS} | options
    return score(model, head, input_ids=ids(), **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_head_gives_the_log_probs_of_the_models_logits(name: str) -> None:
    model, (_, scale, softcap, _) = family(name), FAMILIES[name]
    head = head_of(model)
    assert isinstance(head, Head), head
    assert (head.scale, head.softcap) == (scale, softcap)
    assert (head.bias is not None) == (name == "phi_head_with_bias")
    logits = model(input_ids=ids()).logits.double().flatten(0, 1)
    expected = torch.log_softmax(logits / 0.7, 1)[PLACES, TARGETS]
    got = scored(model, head, temperature=0.7).logps
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
def test_the_way_through_logits_has_the_same_values_and_gradients(entropy: Any) -> None:
    model = family("gemma2").requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    results = []
    for head in (head_of(model), Dense("a test")):
        out = scored(model, head, entropy=entropy)
        loss = out.logps.square().sum() + (out.entropies.sum() if entropy == "gradient" else 0.0)
        (gradient,) = torch.autograd.grad(loss, [model.model.layers[0].mlp.up_proj.weight])
        results.append((out.logps, out.entropies, gradient))
    (logps, entropies, gradient), (logps_2, entropies_2, gradient_2) = results
    torch.testing.assert_close(logps, logps_2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, gradient_2, rtol=1e-3, atol=1e-4)
    assert (entropies is None) == (entropies_2 is None) == (entropy == "none")
    if entropies is not None:
        torch.testing.assert_close(entropies, entropies_2, rtol=1e-4, atol=1e-5)


class Unforeseen(LlamaForCausalLM):
    """A model whose logits are 1 % larger than its head says, and whose configuration does not tell."""

    def forward(self, *args: Any, **options: Any) -> Any:
        out = super().forward(*args, **options)
        out.logits = out.logits * 1.01
        return out


def test_an_unforeseen_head_is_found_and_its_logits_are_used() -> None:
    torch.manual_seed(0)
    model = Unforeseen(LlamaConfig(**GROUPED)).eval()
    head = head_of(model)
    assert isinstance(head, Dense)
    assert "from the logits of Unforeseen" in head.reason
    expected = torch.log_softmax(model(input_ids=ids()).logits.flatten(0, 1), 1)[PLACES, TARGETS]
    torch.testing.assert_close(scored(model, head).logps, expected)


def test_a_head_that_is_no_plain_layer_goes_through_logits() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_base(), LoraConfig(target_modules=["lm_head"]))
    head = head_of(model)
    assert isinstance(head, Dense) and "not a plain linear layer" in head.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_types_agree_within_their_rounding(dtype: torch.dtype) -> None:
    model = family("llama", dtype)
    assert isinstance(head_of(model, dtype), Head)


def test_the_trial_leaves_mode_and_random_state_as_they_were() -> None:
    model = family("llama").train()
    model.model.layers[1].eval()
    state = torch.get_rng_state()
    head_of(model)
    shares_prefixes(model, torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model.model.layers[0].training and not model.model.layers[1].training


def test_what_reaches_the_head_is_one_piece_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's CPU products on strided rows are 100 times slower."""
    from trainer_backend.model import forward

    seen = []

    def watch(hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
        seen.append(hidden.is_contiguous())
        return forward_linear(hidden, *args, **options)

    forward_linear = forward.linear_logps
    monkeypatch.setattr(forward, "linear_logps", watch)
    model = family("llama")
    scored(model, head_of(model))
    assert seen == [True]


def test_padding_on_the_right_needs_no_mask() -> None:
    model = family("llama", torch.float64)
    row = ids(1, 7)
    padded = torch.cat([row, torch.zeros(1, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(hidden_states(model, padded)[:, :7], hidden_states(model, row), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_which_families_may_share_a_prompt(name: str) -> None:
    assert shares_prefixes(family(name), torch.float32) == FAMILIES[name][3]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_completions_that_share_a_prompt_see_it_and_themselves_only(attention: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**GROUPED), attn_implementation=attention).eval()
    row = ids(1, 12)  # prompt 4, completions of 5 and 3
    mask = prefix_mask([[Branch(0, 9, ()), Branch(9, 12, range(4))]], 12)
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6]])
    first = hidden_states(model, row[:, :9])
    second = hidden_states(model, torch.cat([row[:, :4], row[:, 9:]], 1))
    together = hidden_states(model, row, mask, places)
    torch.testing.assert_close(together, torch.cat([first, second[:, 4:]], 1), rtol=1e-4, atol=1e-5)
    # The negative control: with everything in sight, or with positions that run on, the second one is another.
    for seen, positions in ((None, places), (mask, None)):
        wrong = hidden_states(model, row, seen, positions)[:, 9:]
        assert float((wrong - together[:, 9:]).detach().abs().max()) > 0.01


def test_who_sees_whom_in_a_shared_row() -> None:
    """Columns 0 to 3 are one row; 4 goes on from its first two, 5 from its first two and 4; 6 and 7 are padding."""
    branches = [Branch(0, 4, ()), Branch(4, 5, [0, 1]), Branch(5, 6, [0, 1, 4])]
    (mask,) = prefix_mask([branches], 8)[0].int()
    assert mask.tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1],
    ]
    assert bool(torch.isfinite(hidden_states(family("llama"), ids(1, 8), prefix_mask([branches], 8))).all())


class Products(TorchDispatchMode):
    """The types of all products with weights; the angles of positions are a small product in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::mm", "aten::addmm", "aten::linear"):
            dtype = next(found.dtype for found in args if isinstance(found, torch.Tensor))
            self.seen[dtype] = self.seen.get(dtype, 0) + 1
        return func(*args, **(kwargs or {}))


def test_float32_adapters_over_bfloat16_weights_multiply_in_bfloat16() -> None:
    """peft's default casts each layer's input to float32 and multiplies there."""
    from peft import LoraConfig, get_peft_model

    from trainer_backend.config import GRPOConfig
    from trainer_backend.model.load import add_adapter

    model = add_adapter(tiny_base(dtype=torch.bfloat16), GRPOConfig(model="-", r=4), None, [])
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    with Products() as products, precision("cpu", torch.bfloat16):
        hidden_states(model, ids()).float().square().sum().backward()
    assert set(products.seen) == {torch.bfloat16}
    # Nor is a float32 copy of each input made on the way there.
    kept = []
    for casts in (False, True):
        for module in model.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                assert casts or not module.cast_input_dtype_enabled
                module.cast_input_dtype_enabled = casts
        with LiveMemory(model.parameters()) as live, precision("cpu", torch.bfloat16):
            hidden_states(model, ids())
        kept.append(live.peak)
    assert kept[0] < kept[1]
    # The control: the counter does see float32 products where there are some.
    plain = get_peft_model(tiny_base(dtype=torch.bfloat16), LoraConfig(r=4, target_modules="all-linear"))
    with Products() as products:
        hidden_states(plain, ids()).float().square().sum().backward()
    assert torch.float32 in products.seen


def test_a_model_without_a_decoder_is_refused() -> None:
    from trainer_backend.model.errors import ModelError

    with pytest.raises(ModelError, match="found no decoder"):
        decoder_of(torch.nn.Linear(2, 2))


def test_logits_of_is_the_model() -> None:
    model = family("granite")
    assert torch.equal(logits_of(model, ids()), model(input_ids=ids()).logits)
