"""`rewardkit plan`: limits are limits, times are sums that can be done by hand, and the page shows what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardkit.training import PlanOptions
from trainer_backend.plan import longest_context, make_plan
from trainer_backend.plan.cards import CARDS
from trainer_backend.plan.command import _make, answer
from trainer_backend.plan.duration import update_seconds
from trainer_backend.plan.families import FAMILIES
from trainer_backend.plan.models import KNOWN
from trainer_backend.plan.paths import KEEP, PATHS, RECOMPUTE, STREAMED, STREAMED_AGAIN

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the hub, and no network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def options(model: str = "llama-3.1-8b", context: int = 20_480, **changes: Any) -> PlanOptions:
    return PlanOptions(**({"model": model, "context": context, "generations": 8, "rank": 32} | changes))


def told(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(options(**changes, json=True))[0])
    return found


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("changes", [{}, {"load_in_4bit": True}, {"engine": "vllm"}, {"model": "smollm2-135m"}])
@pytest.mark.parametrize("size", ["42GB", "80GB"])
def test_the_longest_context_fits_and_256_tokens_more_do_not(changes: dict[str, Any], size: str) -> None:
    longest = told(fit_in=size, **changes)["longest_context"]
    assert longest % 256 == 0
    assert told(**(changes | {"fit_in": size, "context": longest, "prompt": 512}))["fits"]
    assert not told(**(changes | {"fit_in": size, "context": longest + 256, "prompt": 512}))["fits"]


def test_where_nothing_fits_there_is_no_longest_context() -> None:
    found = told(fit_in="3GB")
    assert found["longest_context"] is None and found["seconds_update"] is None and not found["fits"]


@pytest.mark.parametrize("changes", [{"model": "qwen2.5-1.5b"}, {"context": 2048}, {"engine": "vllm", "context": 4096}])
def test_the_least_memory_is_enough_and_a_little_less_is_not(changes: dict[str, Any]) -> None:
    least = told(**changes)["least_gb"]
    assert told(**changes, fit_in=str(least + 1e-6))["fits"]
    assert not told(**changes, fit_in=str(least - 1e-3))["fits"]


def test_a_size_that_is_asked_for_is_kept_to_the_byte_and_a_card_gives_95_percent() -> None:
    assert told(fit_in="12GB")["limit_gb"] == 12.0
    assert told(fit_in="400GB")["limit_gb"] == 400.0  # no card is named, so none bounds it
    assert told(gpu="4090")["limit_gb"] == pytest.approx(0.95 * 24)
    assert told(gpu="4090", fit_in="400GB")["limit_gb"] == pytest.approx(0.95 * 24)
    assert told(gpu="h100", fit_in="20GB")["limit_gb"] == 20.0
    assert told()["limit_gb"] == pytest.approx(0.95 * 141)


def test_settings_that_are_advised_do_fit() -> None:
    found = told(load_in_4bit=True, fit_in="12GB")
    assert 1 <= len(found["advice"]) <= 3
    for one in found["advice"]:
        assert one["peak_gb"] <= 12
        made = _make(options(load_in_4bit=True, fit_in="12GB"))
        changed = made.config.model_copy(
            update={key.rpartition(".")[2]: value for key, value in one["settings"].items()}
        )
        assert make_plan(made.task, changed, free=int(12e9 / 0.95) + 1).fits


def test_fewer_generations_are_advised_but_no_fewer_than_four() -> None:
    settings = [one["settings"] for one in told(context=4096, fit_in="9GB", load_in_4bit=True)["advice"]]
    assert any(one.get("grpo.num_generations") == 4 for one in settings)
    few = told(context=8192, fit_in="9GB", load_in_4bit=True, generations=4)["advice"]
    assert few and not any("grpo.num_generations" in one["settings"] for one in few)


# --------------------------------------------------------------------------------------------------------------- paths


def test_every_path_is_taken_somewhere_and_told_with_what_the_faster_ones_would_take(tmp_path: Path) -> None:
    how = {"context": 512, "load_in_4bit": True}
    found = [told(**how, fit_in=f"{size}GB") for size in (140, 30, 20, 10, 8)]
    # Gemma's layers are as large, and are not known to stream before the model is loaded.
    file = tmp_path / "gemma.json"
    file.write_text(json.dumps(dict(KNOWN["llama-3.1-8b"]) | {"model_type": "gemma", "head_dim": 128}))
    found += [told(**how, model=str(file), fit_in=f"{size}GB") for size in (20, 10)]
    # With room on the host it is better to let more wait there than to compute attention again.
    paths = [path for path in PATHS if path is not STREAMED_AGAIN]
    assert [one["path"] for one in found] == [path.name for path in paths]
    keep, *streamed, recompute, offload = (one["why"] for one in found)
    assert keep.endswith("the fastest of the paths that are open")
    for slower, why in enumerate(streamed, 1):
        assert all(re.search(rf"{path.doing} takes [\d.]+ GB", why) for path in paths[:slower]), why
    assert re.search(r"since keeping everything takes [\d.]+ GB in micro-steps of 4,096$", recompute)
    assert "since keeping everything takes" in offload and " and keeping layer inputs on the device takes" in offload
    assert [one["host_gb"] > 0 for one in found] == [path.mode == "offload" for path in paths]
    for size in re.findall(r"takes ([\d.]+) GB", f"{streamed[2]} {offload}"):
        assert float(size) > 10
    nothing = told(context=4096, load_in_4bit=True, fit_in="7GB")
    assert nothing["why"].startswith("none fits; the smallest takes")


# ---------------------------------------------------------------------------------------------------------------- time


def test_the_time_of_an_update_is_its_operations_over_the_measured_rates() -> None:
    """8 rows of 20,480 tokens through 32 layers, computed again, so three passes; 6.979e9 numbers in linear layers.

    Streamed layers that keep what attention gave have one pass less of attention; those that keep all, one of each.

    Linear: 8 x 3 x 2 x 20,480 x 6.979e9 / 683e12 = 10.05 s. Attention: a pass is 2 x 32 x 20,480^2 x 4,096 = 0.11e15;
    8 x 0.11e15 x (2 / 586e12 + 2.5 / 517e12) = 7.25 s. Head: 8 x 4 x 19,968 x 4,096 x 128,256 / 619e12 = 0.54 s.
    The rest: 8 x 20,480 x 32 x (4,096 + 14,336) x 98e-12 = 9.47 s.
    """
    made = _make(options())
    kept = update_seconds(made.task, made.config, replace(made.plan, path=STREAMED), CARDS["h200"])
    found = update_seconds(made.task, made.config, replace(made.plan, path=RECOMPUTE), CARDS["h200"])
    assert kept.attention == pytest.approx(8 * 0.10995e15 * (1 / 586e12 + 2.5 / 517e12), rel=1e-3)
    assert [round(part, 2) for part in (found.linears, found.attention, found.head, found.rest)] == [
        10.05, 7.26, 0.54, 9.47,
    ]  # fmt: skip
    # What it was fitted to: 3.42 s for one of these rows.
    assert found.total / 8 == pytest.approx(3.42, rel=0.01)
    # 71.8 ms a layer: 32 of them and the head, 8 times.
    assert kept.total / 8 == pytest.approx(32 * 0.0718 + found.head / 8, rel=0.01)
    everything = update_seconds(made.task, made.config, made.plan, CARDS["h200"])
    assert made.plan.path.keep == "all" and told()["seconds_update"] == pytest.approx(everything.total)
    assert everything.total / 8 == pytest.approx(32 * 0.0606 + found.head / 8, rel=0.05)


def test_another_card_is_slower_by_its_peak_and_keeping_everything_saves_a_pass() -> None:
    made = _make(options(context=2048))
    assert made.plan.path is KEEP
    fast, slow = (update_seconds(made.task, made.config, made.plan, CARDS[name]).total for name in ("h200", "a100"))
    assert slow / fast == pytest.approx(989 / 312)
    again = _make(options(context=2048, fit_in="22GB"))
    both = [update_seconds(one.task, one.config, one.plan, CARDS["h200"]) for one in (again, made)]
    assert both[0].linears / both[1].linears == pytest.approx(3 / 2) and both[0].head == both[1].head


def test_experts_cost_the_time_of_those_that_are_chosen(tmp_path: Path) -> None:
    """Two of eight experts: the same operations as an MLP of twice the width."""
    sizes = {
        "vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 4096,
    }  # fmt: skip
    experts = {"model_type": "mixtral", "intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}
    plain = {"model_type": "mistral", "intermediate_size": 2048}
    found = []
    for name, more in (("experts", experts), ("plain", plain)):
        (tmp_path / f"{name}.json").write_text(json.dumps(sizes | more))
        found.append(told(model=str(tmp_path / f"{name}.json"), context=1024))
    assert found[0]["seconds_update"] == found[1]["seconds_update"]
    assert found[0]["parameters"] > 2 * found[1]["parameters"]


def test_no_time_is_made_up_where_no_rate_was_measured() -> None:
    assert told(dtype="float32", model="smollm2")["seconds_update"] is None
    assert told(cpu=True, model="smollm2", context=64, fit_in="40GB")["seconds_update"] is None


# ------------------------------------------------------------------------------------------------------------ the rest


def test_the_json_is_whole_and_its_terms_make_its_peaks() -> None:
    found = told(model="qwen2.5-1.5b", load_in_4bit=True, fit_in="8GB")
    total = {
        (phase, place): sum(
            term["bytes"] for term in found["terms"] if (term["phase"], term["place"]) == (phase, place)
        )
        for phase in ("always", "training", "layer", "head", "sampling")
        for place in ("device", "host")
    }
    steady = total["always", "device"]
    training = steady + total["training", "device"] + max(total["layer", "device"], total["head", "device"])
    assert found["training_gb"] == pytest.approx(training / 1e9)
    assert found["sampling_gb"] == pytest.approx((steady + total["sampling", "device"]) / 1e9)
    assert found["total_gb"] == max(found["training_gb"], found["sampling_gb"])
    assert found["host_gb"] == pytest.approx(total["training", "host"] / 1e9)
    assert found["schema"] == "rewardkit.plan/1" and found["positions"] == 32_768


def test_a_prompt_is_512_tokens_or_a_quarter() -> None:
    assert [told(model="smollm2", context=context)["prompt"] for context in (2, 100, 2048, 8192)] == [1, 25, 512, 512]


def test_a_checkpoint_in_4_bits_is_planned_as_such_and_another_scheme_is_told(tmp_path: Path) -> None:
    config = dict(KNOWN["llama-3.2-1b"])
    file = tmp_path / "config.json"
    found = []
    for stored in (None, {"load_in_4bit": True}, {"load_in_4bit": True, "llm_int8_skip_modules": ["mlp"]},
                   {"quant_method": "gptq"}):  # fmt: skip
        file.write_text(json.dumps(config | ({} if stored is None else {"quantization_config": stored})))
        found.append(told(model=str(tmp_path)))
    plain, four, some, gptq = ([term["bytes"] for term in one["terms"] if term["name"] == "weights"] for one in found)
    assert four < some < plain == gptq and four[0] < 0.5 * plain[0]
    assert [one["load_in_4bit"] for one in found] == [False, True, True, False]
    assert found[0]["notes"] == [] and "gptq" in found[3]["notes"][0]


def test_vllm_holds_a_second_copy_in_4_bits_on_a_gpu_only() -> None:
    for cpu, same in ((False, True), (True, False)):
        found = told(model="smollm2", context=256, engine="vllm", load_in_4bit=True, cpu=cpu, fit_in="60GB")
        sizes = {term["name"]: term["bytes"] for term in found["terms"]}
        assert (sizes["weights of the sampler"] == sizes["weights"]) is same


def test_the_longest_context_says_whether_the_model_has_the_positions() -> None:
    assert "more than the 8,192 positions of the model" in answer(options("smollm2", 512))[0]
    assert "of the 131,072 positions of the model" in answer(options())[0]
    made = _make(options())
    assert made.longest == longest_context(made.task, made.config, free=141 * 10**9)


def test_listed_families_are_planned_without_torch_and_transformers(tmp_path: Path) -> None:
    """In a process of its own; a family that is not listed does import them, so the test can fail."""
    code = """
import sys
from rewardkit.training import PlanOptions
from trainer_backend.plan.command import answer
for name in sys.argv[1:]:
    answer(PlanOptions(name, 2048, 8))
print(sorted({"torch", "transformers", "huggingface_hub", "numpy"} & set(sys.modules)))
"""
    sizes = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
    }  # fmt: skip
    for kind in (*FAMILIES, "gpt_neox"):
        (tmp_path / f"{kind}.json").write_text(json.dumps(sizes | {"model_type": kind}))

    def loaded(*names: str) -> str:
        done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert loaded(*KNOWN, *(str(tmp_path / f"{kind}.json") for kind in FAMILIES)) == "[]"
    assert "torch" in loaded(str(tmp_path / "gpt_neox.json"))


def test_the_pages_table_is_what_the_command_says() -> None:
    rows = re.findall(r"^\| (\S+), (bfloat16|NF4) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for name, weights, cells in rows:
        four = weights == "NF4"
        short, found = (
            told(model=name.lower(), context=context, load_in_4bit=four) for context in (1024, 20_480)
        )  # fmt: skip
        assert cells.split(" | ") == [
            f"{found['terms'][0]['bytes'] / 1e9:.1f}",
            f"{found['parameters'] / 1e9 * (1 if four else 4):.1f}",
            f"{short['least_gb']:.1f}",
            f"{found['training_gb']:.1f} ({found['path']})",
            f"{found['sampling_gb']:.1f}",
            f"{found['least_gb']:.1f}",
            f"{found['seconds_update']:.1f}",
            f"{found['longest_context']:,}",
        ], name
