"""The transformers sampler against plain forward passes, `generate`, and the distribution it says it draws from."""

from __future__ import annotations

import collections
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from peft import LoraConfig, get_peft_model  # noqa: E402
from saved_models import save_model  # noqa: E402
from transformers import (  # noqa: E402
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rewardkit.errors import OptionError, UnknownName, UsageError  # noqa: E402
from rewardkit.types import Sample  # noqa: E402
from trainer_backend.config import GRPOConfig  # noqa: E402
from trainer_backend.data import Prompt  # noqa: E402
from trainer_backend.model.forward import Dense, head_of  # noqa: E402
from trainer_backend.model.load import load  # noqa: E402
from trainer_backend.rollout.draw import draw, processors  # noqa: E402
from trainer_backend.rollout.folding import Slim  # noqa: E402
from trainer_backend.rollout.graphs import DecodingGraph  # noqa: E402
from trainer_backend.rollout.options import SamplingOptions  # noqa: E402
from trainer_backend.rollout.slots import SlotCache  # noqa: E402
from trainer_backend.rollout.transformers_sampler import SHARED, TransformersSampler  # noqa: E402
from trainer_backend.rollout.types import Rollout, Sampler  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "mistral sliding": (MistralConfig, MistralForCausalLM, {"sliding_window": 5}),
    "gemma2 mixed": (Gemma2Config, Gemma2ForCausalLM, {"sliding_window": 5, "head_dim": 8}),
}
PROMPTS = ((5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15), (3,), (20, 21, 22, 23, 24), (5, 6, 7))
SHOTS = tuple(range(30, 30 + SHARED + 3))


class Letters:
    """A tokenizer as far as the sampler needs one: ids as words, 0 to 2 special."""

    def decode(self, ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = True) -> str:
        assert skip_special_tokens and not clean_up_tokenization_spaces
        return " ".join(f"t{id}" for id in ids if id > 2)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(family: str = "llama", dtype: Any = None, lora: bool = False, **changes: Any) -> Any:
    config, model, more = FAMILIES[family]
    torch.manual_seed(7)
    made = model(config(**SIZES | more | changes)).to(dtype or torch.float64)
    if lora:
        made = get_peft_model(made, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def sampler(model: Any, *, eos_ids: tuple[int, ...] = (2,), dense: bool = False, **given: Any) -> TransformersSampler:
    own = {name: given.pop(name) for name in ("max_rows", "fold", "version") if name in given}
    head = Dense("for the test") if dense else head_of(model)
    options = SamplingOptions(**{"max_tokens": 6} | given)
    return TransformersSampler(model, Letters(), options, head=head, eos_ids=eos_ids, **own)


def prompts(*ids: tuple[int, ...], opener: str = "") -> list[Prompt]:
    return [Prompt(Sample(at), one, opener) for at, one in enumerate(ids)]


def drawn(made: TransformersSampler, asked: list[Prompt], n: int = 4, **how: Any) -> dict[int, Rollout]:
    found = list(made.sample(asked, n, **{"seed": 3} | how))
    assert sorted(at for at, _ in found) == list(range(len(asked)))
    return dict(found)


def oracle(model: Any, prompt: tuple[int, ...], ids: tuple[int, ...], options: SamplingOptions | None) -> list[float]:
    """Log-probs by one plain forward pass of the whole row and transformers' processors, a position at a time."""
    row = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        logits = model(input_ids=row, use_cache=False).logits.double()
    found = []
    for at in range(len(prompt), row.shape[1]):
        scores = logits[:, at - 1].clone()
        if options is not None:
            scores = processors(options)(row[:, :at], scores)
        found.append(torch.log_softmax(scores, 1)[0, row[0, at]].item())
    return found


def test_is_a_sampler() -> None:
    assert isinstance(sampler(tiny()), Sampler)


# -------------------------------------------------------------------------------------------------------- log-probs


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.7},
    "all": {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_log_probs_are_those_of_a_full_forward_pass(options: dict[str, Any]) -> None:
    model = tiny()
    made = sampler(model, **options)
    for at, rollout in drawn(made, prompts(*PROMPTS)).items():
        for part in rollout.completions:
            assert part.logps == pytest.approx(oracle(model, PROMPTS[at], part.ids, made.options), abs=1e-9)


IN_FLOAT32 = 1e-5
"""How far log-probs may be apart where attention is "eager": its softmax is float32 in a model of float64, too, and
some processors add it up in another order for another number of keys."""


@pytest.mark.parametrize("dense", [False, True], ids=["head", "logits"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_for_each_kind_of_model(family: str, attention: str, dense: bool) -> None:
    model = tiny(family)
    if attention == "sdpa" and not model._supports_sdpa:
        pytest.skip("this transformers refuses sdpa for a soft cap")
    model.set_attn_implementation(attention)
    apart = IN_FLOAT32 if attention == "eager" else 1e-9
    asked = (*PROMPTS, (*SHOTS, 4), (*SHOTS, 5, 6, 7))
    for at, rollout in drawn(sampler(model, dense=dense, max_tokens=9), prompts(*asked)).items():
        for part in rollout.completions:
            assert part.logps == pytest.approx(oracle(model, asked[at], part.ids, None), abs=apart)


class Recorder:
    """Stands in for CUDA graphs: what is recorded runs again on the same tensors, and nothing else of it is new."""

    def __init__(self) -> None:
        self.recorded = self.replayed = self.rows = 0

    def __call__(self, step: Any) -> Any:
        self.recorded += 1
        self.rows = max(self.rows, len(step()))
        out = torch.full_like(step(), float("nan"))

        def replay() -> None:
            self.replayed += 1
            out.copy_(step())

        return replay, out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_rows", [1, 9, 32])
def test_recorded_steps_draw_the_same(family: str, max_rows: int) -> None:
    """Rows that branch, end and are joined by others; columns that run out."""
    model = tiny(family)
    asked = prompts(*PROMPTS, (*SHOTS, 4), (*SHOTS, 5, 6, 7), SHOTS * 4)
    plain = drawn(sampler(model, max_tokens=90, max_rows=max_rows), asked)
    made, record = sampler(model, max_tokens=90, max_rows=max_rows), Recorder()
    made.record = record
    found = drawn(made, asked)
    assert ids(found) == ids(plain)
    assert record.rows <= max(4, max_rows), "no more slots than the plan counts"
    for at, rollout in found.items():
        for part, other in zip(rollout.completions, plain[at].completions, strict=True):
            # Gemma has its softmax in float32, and adds it up in another order for another number of columns.
            assert part.logps == pytest.approx(other.logps, abs=1e-5 if "gemma" in family else 1e-9)
    assert record.replayed > 5 * record.recorded > 0


def test_a_model_that_cannot_be_recorded_is_not_tried_again() -> None:
    model, tried = tiny(), []

    def record(step: Any) -> Any:
        tried.append(step)
        raise RuntimeError("operation not permitted when stream is capturing")

    made = sampler(model, max_tokens=20)
    made.record = record
    assert ids(drawn(made, prompts(*PROMPTS))) == ids(drawn(sampler(model, max_tokens=20), prompts(*PROMPTS)))
    assert len(tried) == 1


def test_storage_that_has_moved_is_recorded_anew() -> None:
    cache, record = SlotCache(1, (8, 64)), Recorder()
    graph = DecodingGraph(record, cache, torch.device("cpu"))

    def next_token(token: int, rows: int = 1) -> list[int]:
        found = graph.states(lambda ids, _: ids * 2.0, [token] * rows, [3] * rows, 1, 9)
        assert found is not None
        return found.flatten().tolist()

    assert (next_token(5), next_token(6), record.recorded) == ([10], [12], 1)
    cache.reserve(2, 64)
    assert (next_token(7), next_token(8), record.recorded) == ([14], [16], 2)
    assert (next_token(9, rows=3), record.recorded) == ([18, 18, 18], 3)


def test_nothing_is_recorded_for_a_few_tokens() -> None:
    made, record = sampler(tiny(), max_tokens=4), Recorder()
    made.record = record
    drawn(made, prompts(*PROMPTS))
    assert not record.recorded


def test_a_common_beginning_changes_nothing() -> None:
    model = tiny()
    asked = [(*SHOTS, *rest) for rest in ((4,), (5, 6, 7), (8, 9), (4,))]
    together = drawn(sampler(model), prompts(*asked))
    for at, rollout in together.items():
        for part in rollout.completions:
            assert part.logps == pytest.approx(oracle(model, asked[at], part.ids, None), abs=1e-9)
    # Also where prompts come later, when rows are there already, and when all of these have ended.
    for rows in (1, 4, 8):
        assert ids(drawn(sampler(model, max_rows=rows), prompts(*asked))) == ids(together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_probs_in_other_precisions(dtype: Any) -> None:
    model = tiny(dtype=dtype)
    for at, rollout in drawn(sampler(model), prompts(*PROMPTS)).items():
        for part in rollout.completions:
            expected = oracle(model, PROMPTS[at], part.ids, None)
            assert part.logps == pytest.approx(expected, abs=1e-4 if dtype == torch.float32 else 0.3)


# ----------------------------------------------------------------------------------------------------- distribution


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 4}, {"top_p": 0.8}], ids=str)
def test_frequencies_match_the_distribution(options: dict[str, Any]) -> None:
    """Chi-square over pairs of the first two tokens; more than 5 sigma away fails."""
    model = tiny(vocab_size=7, initializer_range=0.2)
    made = sampler(model, eos_ids=(), max_tokens=2, max_rows=5000, **options)
    n = 4000
    rollout = drawn(made, prompts((3, 4)), n)[0]
    counts = collections.Counter(part.ids for part in rollout.completions)
    chi2, cells = 0.0, 0
    for first in range(7):
        for second in range(7):
            probability = math.exp(sum(oracle(model, (3, 4), (first, second), made.options)))
            if probability == 0.0:
                assert not counts[first, second]
                continue
            expected = n * probability
            chi2 += (counts[first, second] - expected) ** 2 / expected
            cells += 1
    assert chi2 < (cells - 1) + 5 * math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("size", [1, 7, 256, 257, 1000])
def test_a_number_takes_the_token_where_the_cumulative_sum_passes_it(size: int) -> None:
    torch.manual_seed(size)
    logits = torch.randn(3, size, dtype=torch.float64)
    logits[:, 1::3] = -torch.inf
    numbers = torch.rand(600, dtype=torch.float64)
    numbers[:2] = torch.tensor([0.0, 1.0 - 2.0**-53])
    rows = [at % 3 for at in range(600)]
    probabilities = torch.softmax(logits, 1)
    found = draw(logits.clone(), rows, numbers)
    for row, number, token, logp in zip(rows, numbers.tolist(), found.tokens, found.logps, strict=True):
        ends = probabilities[row].cumsum(0)
        assert probabilities[row, token] > 0
        assert ends[token] - probabilities[row, token] - 1e-12 <= number <= ends[token] + 1e-12
        assert logp == pytest.approx(probabilities[row, token].log().item(), abs=1e-12)


def test_a_number_at_the_very_end_never_takes_a_token_without_mass() -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, 3:5] = 0.0
    last = torch.tensor([1.0 - 2.0**-53, 0.0], dtype=torch.float64)
    assert draw(logits, [0, 0], last).tokens == [4, 3]


# -------------------------------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("family", ["llama", "gemma2 mixed"])
def test_greedy_equals_generate(family: str) -> None:
    model = tiny(family)
    found = drawn(sampler(model, max_tokens=12, temperature=0.3, top_k=2), prompts(*PROMPTS), 2, greedy=True)
    for at, ids in enumerate(PROMPTS):
        row = torch.tensor([ids])
        expected = model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=0
        )[0, len(ids) :]
        for part in found[at].completions:
            assert part.ids == tuple(expected.tolist())
            apart = IN_FLOAT32 if "gemma2" in family else 1e-9  # its soft cap needs "eager"
            assert part.logps == pytest.approx(oracle(model, ids, part.ids, None), abs=apart)


# ----------------------------------------------------------------------------------------------------- independence


def ids(found: dict[int, Rollout]) -> dict[int, list[tuple[int, ...]]]:
    return {at: [part.ids for part in rollout.completions] for at, rollout in found.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_group_is_the_same_whatever_is_drawn_beside_it(dtype: Any) -> None:
    model = tiny(dtype=dtype)
    asked = prompts(*PROMPTS)
    together = ids(drawn(sampler(model, max_tokens=10), asked))
    for rows in (1, 8, 13):
        assert ids(drawn(sampler(model, max_tokens=10, max_rows=rows), asked)) == together
    first = ids(drawn(sampler(model, max_tokens=10), asked[:2]))
    assert first == {at: together[at] for at in (0, 1)}


def test_places_and_seeds_give_other_completions() -> None:
    model = tiny()
    asked = prompts(*PROMPTS)
    found = ids(drawn(sampler(model), asked))
    assert found[0] != found[4]  # the same prompt at another place
    assert ids(drawn(sampler(model), asked, seed=4)) != found
    assert ids(drawn(sampler(model), asked)) == found


def counted(model: Any, rows: list[int]) -> Any:
    """Let every pass through the decoder add its rows to a list."""
    note = lambda _, __, given: rows.append(len(given["input_ids"]))  # noqa: E731
    return model.model.register_forward_pre_hook(note, with_kwargs=True)


def test_completions_of_one_group_differ_and_share_their_beginnings() -> None:
    """What is the same so far is computed once: a pass has a row for each beginning that differs."""
    model = tiny(initializer_range=0.15)
    made = sampler(model, max_tokens=5, top_k=2, eos_ids=())
    rows: list[int] = []
    hook = counted(model, rows)
    found = drawn(made, prompts((5, 6)), 16)[0].completions
    hook.remove()
    assert rows == [1, *(len({part.ids[:k] for part in found}) for k in range(1, 5))]
    assert max(rows) < 16 < sum(rows)


def test_greedy_groups_are_one_row() -> None:
    model = tiny()
    made = sampler(model, eos_ids=())
    rows: list[int] = []
    counted(model, rows)
    found = drawn(made, prompts((5, 6)), 8, greedy=True)
    assert rows == [1] * 6 and len(found[0].completions) == 8


# ------------------------------------------------------------------------------------------------------------- endings


def test_any_of_several_end_tokens_ends() -> None:
    model = tiny()
    plain = drawn(sampler(model, eos_ids=(), max_tokens=12), prompts(*PROMPTS), 8)
    ends = {2, plain[0].completions[0].ids[3], plain[1].completions[0].ids[5]}
    ended = drawn(sampler(model, eos_ids=tuple(ends), max_tokens=12), prompts(*PROMPTS), 8)
    for at, rollout in ended.items():
        for part, whole in zip(rollout.completions, plain[at].completions, strict=True):
            cut = next((k for k, id in enumerate(whole.ids) if id in ends), None)
            assert part.ids == (whole.ids if cut is None else whole.ids[: cut + 1])
            assert part.finish_reason == ("length" if cut is None else "stop")
            assert part.logps == pytest.approx(whole.logps[: len(part.ids)], abs=1e-9)


def test_stop_token_ids_end_too_and_stay_in_the_text() -> None:
    model = tiny()
    plain = drawn(sampler(model, eos_ids=()), prompts((5, 6)), 1)[0].completions[0]
    stop = plain.ids[2]
    made = sampler(model, extra={"stop_token_ids": [stop], "ignore_eos": True})
    part = drawn(made, prompts((5, 6)), 1)[0].completions[0]
    assert part.ids == plain.ids[: plain.ids.index(stop) + 1] and part.text.endswith(f"t{stop}")


def test_min_tokens_keeps_the_end_away() -> None:
    model = tiny()
    made = sampler(model, eos_ids=tuple(range(90)), extra={"min_tokens": 3})
    lengths = [len(part.ids) for rollout in drawn(made, prompts(*PROMPTS)).values() for part in rollout.completions]
    assert min(lengths) == 4
    assert all(id >= 90 for id in drawn(made, prompts((5, 6)), greedy=True)[0].completions[0].ids[:3])


def test_a_limit_of_one_token() -> None:
    for rollout in drawn(sampler(tiny(), max_tokens=1, eos_ids=(2, 50)), prompts(*PROMPTS)).values():
        for part in rollout.completions:
            assert len(part.ids) == len(part.logps) == 1
            assert part.finish_reason == ("stop" if part.ids[0] in (2, 50) else "length")


def test_groups_come_as_soon_as_they_are_finished() -> None:
    model = tiny()
    made = sampler(model, eos_ids=tuple(range(1, 97, 2)), max_tokens=40)
    steps: list[int] = []
    model.model.register_forward_pre_hook(lambda *_: steps.append(1))
    seen = {}
    for at, rollout in made.sample(prompts(*PROMPTS), 2, seed=1):
        seen[at] = len(steps)
        assert seen[at] == max(len(part.ids) for part in rollout.completions)
        assert model.training is False and torch.is_grad_enabled()
    assert len(set(seen.values())) > 1


# ---------------------------------------------------------------------------------------------------------------- text


def test_the_text_begins_with_the_opener_and_has_no_special_tokens() -> None:
    found = drawn(sampler(tiny(), eos_ids=tuple(range(2, 40))), prompts(*PROMPTS, opener="<think>\n"))
    for rollout in found.values():
        for part in rollout.completions:
            kept = part.ids[:-1] if part.finish_reason == "stop" else part.ids
            assert part.text == "<think>\n" + " ".join(f"t{id}" for id in kept if id > 2)


def test_half_a_character_decodes() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    model = tiny(vocab_size=len(alphabet))
    made = TransformersSampler(
        model, tokenizer, SamplingOptions(max_tokens=30, temperature=3.0), head=head_of(model), eos_ids=()
    )
    texts = [part.text for part in drawn(made, prompts((5, 6)), 8)[0].completions]
    assert any("�" in text for text in texts)


# ----------------------------------------------------------------------------------------------------------- adapters


def test_the_adapter_samples_and_updates_carry_their_version() -> None:
    model = tiny(lora=True)
    made = sampler(model, version=4)
    before = drawn(made, prompts(*PROMPTS))
    assert before[0].version == 4
    for at, rollout in before.items():
        for part in rollout.completions:
            assert part.logps == pytest.approx(oracle(model, PROMPTS[at], part.ids, None), abs=1e-9)
    with model.disable_adapter():
        plain = oracle(model, PROMPTS[0], before[0].completions[0].ids, None)
    assert plain != pytest.approx(before[0].completions[0].logps, abs=1e-3)
    made.update(5)
    assert drawn(made, prompts(*PROMPTS))[0].version == 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_folded_adapter_samples_the_same_and_leaves_the_model_alone(dtype: Any) -> None:
    model = tiny(dtype=dtype, lora=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    made = sampler(model, fold=True)
    for step in (0, 1):
        for at, rollout in drawn(made, prompts(*PROMPTS)).items():
            for part in rollout.completions:
                expected = oracle(model, PROMPTS[at], part.ids, None)
                assert part.logps == pytest.approx(expected, abs=0.3 if dtype == torch.bfloat16 else 1e-4)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.mul_(-0.5 if step == 0 else 1.0)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        made.update(step)


@pytest.mark.parametrize("four_bit", [False, True], ids=["dense", "NF4"])
def test_slim_layers_compute_what_peft_computes(tmp_path: Path, four_bit: bool) -> None:
    if four_bit:
        pytest.importorskip("bitsandbytes")
    changes = {"dtype": "float32", "load_in_4bit": four_bit, "r": 3, "lora_alpha": 5}
    model = load(GRPOConfig(model=str(save_model(tmp_path)), **changes), device="cpu").model.eval()
    slim = Slim(model, torch.float32)
    ids, seen = torch.tensor([[5, 6, 7, 8]]), []
    for _ in range(2):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
            expected = model(input_ids=ids).logits
            slim.refresh()
            with slim:
                assert not any("lora" in name for name, _ in model.named_modules())
                seen.append(model(input_ids=ids).logits)
        assert torch.allclose(seen[-1], expected, atol=1e-6)
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)
    with torch.no_grad(), model.disable_adapter():
        plain = model(input_ids=ids).logits
        slim.refresh()
        with slim:
            assert torch.equal(model(input_ids=ids).logits, plain)


def test_a_stale_fold_shows_in_the_log_probs() -> None:
    """The negative control of the test above: without `update` the log-probs are those of the weights before."""
    model = tiny(lora=True)
    made = sampler(model, fold=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-0.5)
    part = drawn(made, prompts((5, 6)))[0].completions[0]
    assert part.logps != pytest.approx(oracle(model, (5, 6), part.ids, None), abs=1e-3)


def test_training_goes_on_as_if_nothing_had_been_sampled() -> None:
    """Modes, gradients, the global random state and the layers are as before, also when a sampling is broken off."""
    model = tiny(lora=True)
    model.train()
    model.base_model.model.model.layers[0].mlp.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    layers = {name: id(module) for name, module in model.named_modules()}
    state = torch.get_rng_state()
    for fold in (False, True):
        made = sampler(model, fold=fold)
        drawn(made, prompts(*PROMPTS))
        broken = made.sample(prompts(*PROMPTS), 4, seed=1)
        next(broken)
        assert {name: module.training for name, module in model.named_modules()} == modes
        broken.close()
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: id(module) for name, module in model.named_modules()} == layers
    assert torch.equal(torch.get_rng_state(), state)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_an_error_inside_leaves_the_model_as_it_was() -> None:
    model = tiny(lora=True)
    model.train()
    made = sampler(model, fold=True)
    layers = {name: id(module) for name, module in model.named_modules()}

    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = model.base_model.model.model.layers[1].register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        drawn(made, prompts((5, 6)))
    hook.remove()
    assert {name: id(module) for name, module in model.named_modules()} == layers
    assert all(module.training for module in model.modules())


# ------------------------------------------------------------------------------------------------------------ refusals


def test_what_is_refused() -> None:
    model = tiny()
    with pytest.raises(UnknownName, match=r"no 'stop_token_id'; did you mean stop_token_ids\?"):
        sampler(model, extra={"stop_token_id": [3]})
    with pytest.raises(UnknownName, match=r"needs rollout\.engine"):
        sampler(model, extra={"presence_penalty": 0.1})
    with pytest.raises(OptionError, match="stop_token_ids is a list of token ids"):
        sampler(model, extra={"stop_token_ids": "3"})
    with pytest.raises(OptionError, match="min_tokens is 0 to max_completion_length"):
        sampler(model, extra={"min_tokens": 7})
    made = sampler(model)
    with pytest.raises(UsageError, match="no token to go on from"):
        made.sample(prompts(()), 2, seed=0)
    with pytest.raises(UsageError, match="at least one completion"):
        made.sample(prompts((3,)), 0, seed=0)
    assert list(made.sample([], 2, seed=0)) == []
    made.close()
    made.close()
    with pytest.raises(UsageError, match="closed"):
        made.sample(prompts((3,)), 1, seed=0)
    with pytest.raises(UsageError, match="no LoRA layer"):
        sampler(model, fold=True)


def test_recurrent_layers_are_refused() -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UsageError, match=r'set rollout\.engine = "vllm"'):
        TransformersSampler(model, Letters(), SamplingOptions(max_tokens=3), head=Dense("test"), eos_ids=(2,))
