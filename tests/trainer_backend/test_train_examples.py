"""The training files in examples/: each is read, its data is what its script makes, and two steps of it are taken.

The steps are reduced: a tiny random model that writes bytes, few and short completions. The files' own models are
hundreds of megabytes. vLLM and 4 bits are left out where the file asks for them, since they need a GPU; that they
are passed on is shown in test_vllm_sampler.py and test_model_load.py.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import Sandbox
from rewardkit.training import TrainOptions
from rewardkit.types import Completion, Generation
from trainer_backend.backend import run_file
from trainer_backend.config import GRPOConfig, read_training_file
from trainer_backend.setup import job_from_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("train_*.toml"))
MADE = {
    "spoken_sums/make_data.py": (64, 60),
    "emails/make_data.py": (24, 48),
    "code_tasks/make_data.py": (8, 32),
    "one_sentence/make_data.py": (16, 48),
    "gsm8k/make_prompts.py": (50, 150),
}
TEMPLATE = (
    "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokens are bytes, with a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: at for at, letter in enumerate(["<end>", *letters])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_there_is_an_example_of_each_kind() -> None:
    assert FILES == [
        "train_code.toml", "train_custom.toml", "train_email.toml", "train_gsm8k_qlora_vllm.toml", "train_smollm2.toml",
    ]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_rewards_columns_and_prompts_of_an_example_go_together(name: str) -> None:
    job = job_from_file(EXAMPLES / name)
    assert not job.config.notes
    assert len(job.train) >= 32 and len(job.held_out) >= 8
    assert not {str(one.prompt) for one in job.train} & {str(one.prompt) for one in job.held_out}
    for column in {name for reward in job.rewards.values() for leaf in reward.leaves() for name in leaf.needs}:
        for one in (*job.train, *job.held_out):
            assert (one.reference if column == "reference" else one.metadata.get(column)) is not None, (one.id, column)


@pytest.mark.parametrize("script", MADE)
def test_data_is_what_its_script_makes(script: str, tmp_path: Path) -> None:
    """The script is run in a copy of its folder."""
    held_out, train = MADE[script]
    here = EXAMPLES / Path(script).parent
    for file in here.iterdir():
        if file.is_file() and file.name not in ("train.jsonl", "held_out.jsonl"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    runpy.run_path(str(tmp_path / Path(script).name), run_name="__main__")
    for name, count in (("train.jsonl", train), ("held_out.jsonl", held_out)):
        assert (tmp_path / name).read_bytes() == (here / name).read_bytes()
        assert len(rows(here / name)) == count
    assert not {str(row) for row in rows(here / "train.jsonl")} & {str(row) for row in rows(here / "held_out.jsonl")}


def test_spoken_sums_are_right_and_every_number_word_is_its_number() -> None:
    names = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    words = dict(zip(names, range(1, 10), strict=True))
    for row in (*rows(EXAMPLES / "spoken_sums/train.jsonl"), *rows(EXAMPLES / "spoken_sums/held_out.jsonl")):
        x, sign, y = row["equation"].split()
        left, how, right = row["prompt"].splitlines()[2].removeprefix("What is ").removesuffix("?").split()
        assert (words[left], {"plus": "+", "minus": "-"}[how], words[right]) == (int(x), sign, int(y))
        assert row["answer"] == (int(x) + int(y) if sign == "+" else int(x) - int(y)) and row["answer"] >= 0


@pytest.mark.parametrize(
    ("text", "total", "why"),
    [
        ("4 + 9 = <answer>13</answer>", 1.2, "right in the right form"),
        (" 4 + 9 = <answer>13</answer>\n", 1.2, "white space around it"),
        ("4 + 9 = <answer>12</answer>", 0.2, "the form alone"),
        ("13 <answer>13</answer>", 1.0, "right, in another form"),
        ("4 + 9 = <answer>13</answer>\nWhat is", 1.0, "goes on with a question of its own"),
        ("9 + 4 = <answer>13</answer>", 1.0, "another equation"),
        ("5 + 8 = <answer>12</answer>", 0.0, "another equation, wrong"),
        ("<answer>12</answer> <answer>13</answer>", 0.0, "only the first answer counts"),
        ("4 + 9 = 13", 0.0, "no tags"),
        ("4 + 9 = <answer>-13</answer>", 0.2, "the sign counts"),
        ("", 0.0, "nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) and value[:1].isalpha() else "",
)
def test_reward_of_the_spoken_sums(text: str, total: float, why: str) -> None:
    from rewardkit import Sample, score

    config = read_training_file(EXAMPLES / "train_smollm2.toml", [])
    task = Generation(Sample(0, "?", 13, {"equation": "4 + 9"}), (Completion(text),))
    (found,) = score(config.rewards(), [task])
    assert found.scores["total"][0].value == pytest.approx(total, abs=1e-12), why


def test_the_example_for_a_cpu_keeps_the_settings_of_its_measured_curve() -> None:
    config = read_training_file(EXAMPLES / "train_smollm2.toml", [])
    assert isinstance(config, GRPOConfig)
    assert (config.r, config.lora_alpha, config.target_modules) == (16, 32, "all-linear")
    assert (config.learning_rate, config.lr_scheduler_type, config.beta) == (3e-4, "constant", 0)
    assert (config.loss_type, config.advantage_method, config.temperature) == ("dapo", "group", 1)
    assert (config.prompts_per_step, config.num_generations, config.max_completion_length) == (4, 8, 20)
    assert config.dtype == "auto"


@pytest.mark.parametrize("name", FILES)
def test_two_steps_of_an_example_in_a_reduced_form(name: str, tiny: Path, tmp_path: Path) -> None:
    if name == "train_code.toml":
        try:
            with Sandbox("strict"):
                pass
        except SandboxUnavailable as problem:
            pytest.skip(str(problem))
    changes = [
        f"model.name={tiny}", "model.dtype=float32", "model.load_in_4bit=false", "rollout.engine=transformers",
        "grpo.max_steps=2", "grpo.num_generations=2", "grpo.per_device_train_batch_size=4",
        "grpo.max_completion_length=6", "grpo.warmup_steps=0", "grpo.lr_scheduler_type=constant",
        "data.max_prompt_length=2000", "data.limit=4", "data.eval_limit=2", "data.eval_samples=1", "lora.r=2",
        "run.threads=1",
    ]  # fmt: skip
    options = TrainOptions(set=tuple(changes), output=tmp_path / "run", quiet=True)
    before = torch.get_num_threads()
    try:
        assert run_file(EXAMPLES / name, options) == 0
    finally:
        torch.set_num_threads(before)
    metrics = rows(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    assert all(line["rewards/error_share"] == 0 for line in metrics)
    scores = rows(tmp_path / "run" / "scores.jsonl")
    assert {line["state"] for line in scores} == {"scored"}
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
