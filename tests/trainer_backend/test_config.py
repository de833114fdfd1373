"""A training configuration: what goes together, what a wrong one says, and that a file gives back what it was."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardkit.errors import InputError, RewardkitError
from trainer_backend import config as module
from trainer_backend.config import GRPOConfig, field_docs, read_training_file
from trainer_backend.errors import ConfigError
from trainer_backend.foreign import FOREIGN

FILE = """
[model]
name = "some/model"
[data]
train = "data/train.jsonl"
[reward]
total = "gsm8k + 0.1*think_format"
"""


def message(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**settings)
    return str(caught.value)


def written(folder: Path, text: str = FILE, name: str = "train.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_training_file(path, overrides)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ whole groups


@pytest.mark.parametrize(
    ("batch", "accumulation", "group", "steps", "prompts"),
    [
        (1, 1, 8, 8, 1),  # TRL: "Valid values: []"
        (6, 1, 4, 2, 3),
        (8, 1, 8, 1, 1),
        (8, 3, 8, 3, 3),
        (6, 3, 4, 4, 6),  # raised from 3 to the next multiple of 2
        (3, 1, 7, 7, 3),
        (32, 1, 8, 1, 4),
    ],
)
def test_a_batch_that_does_not_divide_is_made_to_fit_by_accumulation(
    batch: int, accumulation: int, group: int, steps: int, prompts: int
) -> None:
    config = GRPOConfig(
        per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, num_generations=group
    )
    assert (config.accumulation, config.prompts_per_step) == (steps, prompts)
    assert config.completions_per_step == batch * steps == prompts * group
    # The least that fits: with any number from the given one up to it, groups are cut.
    assert all(batch * fewer % group for fewer in range(accumulation, steps))
    assert any("made to fit by accumulation" in note for note in config.notes) == (steps != accumulation)


@pytest.mark.parametrize("batch", [1, 2, 6, 8, 32])
def test_a_group_of_one_names_two_settings_that_work(batch: int) -> None:
    text = message(num_generations=1, per_device_train_batch_size=batch)
    assert "grpo.num_generations is 1" in text and "nothing to be compared with" in text
    found = int(text.split("num_generations = ")[1].split(",")[0])
    assert GRPOConfig(num_generations=found, per_device_train_batch_size=batch).prompts_per_step >= 1
    assert 'advantage = "reinforce_pp"' in text
    if batch > 1:
        assert GRPOConfig(num_generations=1, per_device_train_batch_size=batch, advantage="reinforce_pp")


def test_a_group_of_one_with_one_prompt_a_step_compares_with_nothing() -> None:
    text = message(num_generations=1, per_device_train_batch_size=1, advantage="reinforce_pp")
    assert "per_device_train_batch_size = 8" in text and "num_generations = 8" in text
    assert GRPOConfig(num_generations=1, per_device_train_batch_size=8, advantage="reinforce_pp").prompts_per_step == 8


def test_steps_go_by_max_steps_or_by_epochs() -> None:
    config = GRPOConfig(num_train_epochs=2.0)
    assert config.steps(prompts=60) == 30  # 2 * 60 / 4
    assert config.steps(prompts=61) == 31
    assert config.steps(prompts=60, processes=2) == 15
    assert GRPOConfig(num_train_epochs=2.0, num_iterations=3).steps(60) == 90
    assert GRPOConfig(max_steps=7).steps(60) == 7
    assert GRPOConfig(max_steps=-1).max_steps is None  # as TRL writes "no limit"
    assert GRPOConfig(num_train_epochs=0.001).steps(60) == 1


# -------------------------------------------------------------------------------------------- values and names


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"learning_rat": 1.0}, "there is no key learning_rat; did you mean grpo.learning_rate?"),
        ({"fast_inference": True}, 'Unsloth\'s fast_inference is rollout.engine here: engine = "vllm"'),
        ({"use_vllm": True}, "TRL's use_vllm is rollout.engine"),
        ({"float8_kv_cache": True}, 'kv_cache_dtype = "fp8"'),
        ({"trust_remote_code": True}, "code that comes with a model is never run"),
        ({"loss_type": "dapoo"}, "grpo.loss_type: 'dapoo' is no loss; did you mean dapo?"),
        ({"optim": "adamm_torch"}, "did you mean adamw_torch?"),
        ({"engine": "vlm"}, "rollout.engine: 'vlm' is no sampler; did you mean vllm?"),
        ({"dtype": "int8"}, "model.dtype is one of bfloat16, float32, float16, auto, got 'int8'"),
        ({"learning_rate": "1e-5"}, "grpo.learning_rate is a number, got '1e-5'"),
        ({"learning_rate": True}, "grpo.learning_rate is a number, got True"),
        ({"learning_rate": 0.0}, "grpo.learning_rate is above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "grpo.learning_rate is"),
        ({"num_generations": True}, "grpo.num_generations is a whole number, got True"),
        ({"num_generations": 8.5}, "grpo.num_generations is a whole number, got 8.5"),
        ({"num_generations": 0}, "set num_generations = 8"),
        ({"temperature": 0.0}, "at 0 all completions of a group are the same"),
        ({"top_p": 1.5}, "grpo.top_p is at most 1, got 1.5"),
        ({"top_p": 0.0}, "grpo.top_p is above 0, got 0.0"),
        ({"beta": -0.1}, "grpo.beta is at least 0, got -0.1"),
        ({"report_to": "wandb"}, "run.report_to: 'wandb' is no place to report to"),
        ({"train": 3}, "data.train is a path, got 3"),
        ({"fit_in": "much"}, 'memory.fit_in: a size is a number of GB or a text such as "24GB"'),
        ({"reward": {"total": 3}}, "reward.total is a formula (text) or a table, got 3"),
        ({"reward": {"form": "think_format"}}, "reward.total is missing"),
        ({"model": "x", "warmup_steps": 5}, 'lr_scheduler_type = "constant_with_warmup"'),
        ({"lr_scheduler_type": "linear", "warmup_steps": 5, "max_steps": 4}, "the rate would never be reached"),
        ({"advantage": "pass_at_k"}, 'grpo.advantage_k belongs to advantage = "pass_at_k"'),
        ({"advantage": "pass_at_k", "advantage_k": 9}, "grpo.advantage_k is at most num_generations, got 9 of 8"),
        ({"advantage": "gdpo", "scale_rewards": "batch"}, "both say how advantages are made"),
        ({"loss_type": "cispo", "epsilon": 0.3}, "grpo.epsilon does nothing in the loss 'cispo', which has ratio_cap"),
        ({"loss_options": {"ratio_cap": 4.0}}, "grpo.loss_options.ratio_cap does nothing in the loss 'dapo'"),
        ({"loss_options": {"dual_clp": 3.0}}, "did you mean dual_clip?"),
        ({"loss_options": {"kl_gradient": "plain"}}, "grpo.beta is 0"),
        ({"epsilon": 1.5}, "grpo.epsilon is at most 1"),
        ({"kv_cache_dtype": "fp8"}, "rollout.kv_cache_dtype is a setting of vLLM"),
        ({"model": "m.gguf", "load_in_4bit": True}, "load_in_4bit cannot be used with a .gguf file"),
        ({"model": "m", "gguf_file": "m.gguf", "load_in_4bit": True}, "load_in_4bit cannot be used with a .gguf file"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(f"{name}={held}" for name, held in value.items()),
)
def test_what_is_wrong_is_one_sentence_with_table_key_and_what_to_write(settings: dict[str, Any], wanted: str) -> None:
    text = message(**settings)
    assert wanted in text
    assert "\n" not in text and "pydantic" not in text and "validation error" not in text


def test_the_type_is_the_machines_choice_unless_it_is_said() -> None:
    assert GRPOConfig().dtype == "auto" and GRPOConfig(load_in_4bit=True).dtype == "auto"


def test_a_name_that_is_near_to_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'nosuch' is no loss; the names are grpo, "):
        GRPOConfig(loss_type="nosuch")
    with pytest.raises(ConfigError, match=r"'grop' is no loss; did you mean grpo\? The names are grpo, "):
        GRPOConfig(loss_type="grop")
    with pytest.raises(ConfigError, match=r"run\.seed is below 4,294,967,296, got"):
        GRPOConfig(seed=2**32)


def test_several_wrong_values_are_told_together_one_a_line() -> None:
    lines = message(top_p=2.0, beta=-1.0).split("\n")
    assert [line.split(" ")[0] for line in lines] == ["grpo.top_p", "grpo.beta"]


def test_names_that_other_trainers_use_for_the_same_value_are_taken() -> None:
    config = GRPOConfig(dtype="bf16", optim="adamw_bnb_8bit", scale_rewards=True, top_k=-1, report_to="none")
    assert (config.dtype, config.optim, config.scale_rewards, config.top_k, config.report_to) == (
        "bfloat16", "adamw_8bit", "group", 0, (),
    )  # fmt: skip
    assert GRPOConfig(scale_rewards=False).advantage_method == "none"
    assert GRPOConfig(fit_in="16 GB").fit_in == 16.0
    assert GRPOConfig(fit_in="16GiB").fit_in == pytest.approx(17.179869184)
    assert GRPOConfig(fit_in=900).fit_in == 900.0
    assert GRPOConfig(fit_in="900 MB").fit_in == pytest.approx(0.9)


def test_a_configuration_is_frozen_and_travels() -> None:
    config = GRPOConfig(reward={"total": "gsm8k"}, target_modules=["q_proj"])
    with pytest.raises(Exception, match="frozen"):
        config.beta = 1.0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError, match="by name"):
        GRPOConfig("model")  # type: ignore[call-arg,misc]


# ----------------------------------------------------------------------------------------- sampling and corrections


@pytest.mark.parametrize(
    "setting",
    [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"sampling": {"top_p": 0.9}},
        {"sampling": {"presence_penalty": 0.5}},
    ],
    ids=str,
)
def test_a_reshaped_distribution_is_not_corrected_for(setting: dict[str, Any]) -> None:
    """Truncation renormalises the sampler's log-probs only, so the correction would weigh the truncation itself."""
    text = message(engine="vllm", **setting)
    assert "vllm_importance_sampling_correction = false" in text
    off = GRPOConfig(engine="vllm", vllm_importance_sampling_correction=False, **setting)
    assert off.correction == "none" and off.reshaping and any("not quite the policy" in note for note in off.notes)
    assert GRPOConfig(**setting).correction == "none"
    assert "vllm_importance_sampling_correction = false" in message(vllm_importance_sampling_correction=True, **setting)


def test_neutral_values_of_sampling_reshape_nothing() -> None:
    neutral = {"presence_penalty": 0.0, "logit_bias": None, "min_tokens": 0}
    config = GRPOConfig(engine="vllm", top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, sampling=neutral)
    assert config.reshaping == () and config.correction == "token_truncate"


def test_the_correction_is_on_with_vllm_alone_unless_it_is_said() -> None:
    assert GRPOConfig().correction == "none"
    assert GRPOConfig(engine="vllm").correction == "token_truncate"
    assert GRPOConfig(vllm_importance_sampling_correction=True).correction == "token_truncate"
    assert GRPOConfig(engine="vllm", vllm_importance_sampling_mode="sequence_mask").correction == "sequence_mask"
    assert "does nothing while nothing is corrected" in message(vllm_importance_sampling_clip_max=2.0)
    assert "is below clip_max" in message(
        engine="vllm", vllm_importance_sampling_clip_min=2.0, vllm_importance_sampling_clip_max=1.0
    )


def test_what_has_a_key_of_its_own_moves_out_of_the_sampling_table() -> None:
    config = GRPOConfig(sampling={"top_k": 5, "max_tokens": 99, "stop": ["\n"]})
    assert (config.top_k, config.max_completion_length, config.sampling) == (5, 99, {"stop": ["\n"]})
    assert "give one of them" in message(sampling={"top_k": 5}, top_k=6)
    assert GRPOConfig(sampling={"top_k": 5}, top_k=5).top_k == 5
    assert "grpo.num_generations is the number" in message(sampling={"n": 4})
    assert "run.seed" in message(sampling={"seed": 4})


# --------------------------------------------------------------------------------------------- names that torch owns


def test_the_tables_equal_those_of_the_modules_that_own_them() -> None:
    pytest.importorskip("torch")
    from trainer_backend.advantage import METHODS
    from trainer_backend.loss import PRESETS, SHAPES, Loss
    from trainer_backend.mismatch import BOUNDS

    assert {name: SHAPES[preset.loss.shape].options for name, preset in PRESETS.items()} == dict(module.LOSSES)
    assert set(METHODS) == set(module.ADVANTAGES)
    assert set(BOUNDS) - {"none"} == set(module.CORRECTIONS)
    own = {"ratio", "correction", "correction_low", "correction_high", "beta", "entropy_coef", "delta", "epsilon_low",
           "epsilon_high"}  # fmt: skip
    assert {field.name for field in dataclasses.fields(Loss)} - own == set(module.LOSS_OPTIONS)


def test_schedules_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    assert set(module.SCHEDULERS) <= {one.value for one in transformers.SchedulerType}


@pytest.mark.parametrize("name", list(module.LOSSES))
def test_every_loss_is_built_from_its_changes(name: str) -> None:
    pytest.importorskip("torch")
    from trainer_backend.loss import PRESETS, preset

    assert preset(name, **GRPOConfig(loss_type=name).loss_changes) == PRESETS[name].loss
    changed = GRPOConfig(loss_type=name, beta=0.04, engine="vllm", vllm_importance_sampling_clip_max=2.0)
    loss = preset(name, **changed.loss_changes)
    assert (loss.beta, loss.correction, loss.correction_high) == (0.04, "token_truncate", 2.0)


def test_numbers_of_a_loss_reach_it() -> None:
    pytest.importorskip("torch")
    from trainer_backend.loss import preset

    config = GRPOConfig(
        loss_type="grpo", epsilon=0.1, epsilon_high=0.3, delta=4.0, importance_sampling_level="sequence",
        entropy_coef=0.01, loss_options={"dual_clip": 3.0},
    )  # fmt: skip
    loss = preset(config.loss_type, **config.loss_changes)
    assert (loss.epsilon_low, loss.epsilon_high, loss.delta, loss.ratio, loss.entropy_coef, loss.dual_clip) == (
        0.1, 0.3, 4.0, "sequence", 0.01, 3.0,
    )  # fmt: skip
    vespo = GRPOConfig(loss_type="vespo", loss_options={"vespo_k": [1.0, 2.0]})
    assert preset("vespo", **vespo.loss_changes).vespo_k == (1.0, 2.0)


def test_torch_is_not_imported() -> None:
    """A wrong file is to be refused at once; torch takes seconds to import."""
    code = (
        "import sys; import trainer_backend.config, trainer_backend.data, trainer_backend.backend;"
        "print([name for name in ('torch', 'transformers', 'peft', 'numpy', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --------------------------------------------------------------------------------------------------------- the file


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for path in (folder / "model", elsewhere):
        path.mkdir(parents=True)
    text = FILE.replace("some/model", "model").replace("data/train", "../data/train") + '[run]\ndir = "runs/a"\n'
    written(folder, text)
    monkeypatch.chdir(elsewhere)
    config = read_training_file("../here/train.toml")
    assert config.model == str(folder / "model")
    assert config.train == tmp_path / "data" / "train.jsonl"
    assert (config.dir, config.base) == (folder / "runs" / "a", folder)
    changed = read_training_file("../here/train.toml", ["data.train=mine.jsonl", "run.dir=/abs"])
    assert (changed.train, changed.dir) == (elsewhere / "mine.jsonl", Path("/abs"))  # where the user is


def test_a_hub_name_stays_one(tmp_path: Path) -> None:
    assert read_training_file(written(tmp_path)).model == "some/model"
    for text in ("./absent", "absent.gguf"):
        path = written(tmp_path, FILE.replace("some/model", text))
        assert read_training_file(path).model == str(tmp_path / text.removeprefix("./"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[grpo]\nnum_generation = 4\n", "there is no key grpo.num_generation; did you mean grpo.num_generations?"),
        ("[lora]\nlearning_rate = 1e-5\n", "lora.learning_rate: learning_rate stands in [grpo], not in [lora]"),
        ("[grp]\nnum_generations = 4\n", "there is no table [grp]; did you mean grpo? The tables are model, lora"),
        ("[rollout]\ngpu_memory_utilization = 0.6\n", "rollout.kv_cache_memory_gb"),
        ("[lora]\nzzzzzz = 1\n", "there is no key lora.zzzzzz; [lora] has r, lora_alpha"),
        ("[grpo]\nnum_generations = 1\n", "grpo.num_generations is 1"),
        ("[grpo]\nloss_type = 'cipso'\n", "did you mean cispo?"),
    ],
)
def test_a_wrong_key_in_a_file_is_named_with_the_file(tmp_path: Path, text: str, wanted: str) -> None:
    path = written(tmp_path, FILE + text)
    assert wanted in refusal(path) and refusal(path).startswith(f"{path}: ")


def test_keys_outside_of_tables_are_put_into_theirs(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "num_generations = 4\n" + FILE))
    assert "num_generations stands outside of any table; put it below [grpo]" in text
    assert "TRL's use_vllm" in refusal(written(tmp_path, "use_vllm = true\n" + FILE))
    assert "[grpo] is a table, got 3" in refusal(written(tmp_path, "grpo = 3\n" + FILE))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('name = "some/model"', "model.name is missing"),
        ('train = "data/train.jsonl"', "data.train is missing"),
        ('total = "gsm8k + 0.1*think_format"', "reward.total is missing"),
    ],
)
def test_what_every_run_needs_is_asked_for(tmp_path: Path, line: str, wanted: str) -> None:
    assert wanted in refusal(written(tmp_path, FILE.replace(line, "")))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = written(tmp_path)
    for place, wanted in (
        (tmp_path / "trian.toml", "no such file; did you mean train.toml?"),
        (tmp_path, "is a folder"),
        (written(tmp_path, "[model\n", "bad.toml"), "is not TOML"),
    ):
        with pytest.raises(InputError, match=wanted.replace("?", r"\?")):
            read_training_file(place)
    (tmp_path / "latin.toml").write_bytes(FILE.replace("some", "sömé").encode("latin-1"))
    with pytest.raises(InputError, match="is not TOML"):
        read_training_file(tmp_path / "latin.toml")
    path.write_bytes(b"\xef\xbb\xbf" + FILE.encode())  # with a byte-order mark
    assert read_training_file(path).model == "some/model"


def test_overrides_are_toml_or_text(tmp_path: Path) -> None:
    path = written(tmp_path, FILE + "[rollout]\nsampling = {stop = ['x']}\n")
    config = read_training_file(
        path,
        [
            "grpo.max_steps=20",
            "grpo.learning_rate=1e-4",
            "model.dtype=float32",
            "reward.total=2*gsm8k",
            "reward.form=think_format",
            "rollout.sampling.min_tokens=3",
            'lora.target_modules=["q_proj", "v_proj"]',
            "model.load_in_4bit = true",
        ],
    )
    assert (config.max_steps, config.learning_rate, config.dtype, config.load_in_4bit) == (20, 1e-4, "float32", True)
    assert config.reward == {"total": "2*gsm8k", "form": "think_format"}
    assert config.sampling == {"stop": ["x"], "min_tokens": 3}
    assert config.target_modules == ("q_proj", "v_proj")
    for text, wanted in (
        ("grpo.max_step=2", "did you mean grpo.max_steps?"),
        ("max_steps=2", "write --set grpo.max_steps=2"),
        ("grpo.max_steps", "write table.key=value"),
        ("gpro.max_steps=2", "did you mean grpo?"),
        ("grpo.max_steps=many", "grpo.max_steps is a whole number, got 'many'"),
    ):
        assert wanted in refusal(path, text)


def test_a_file_gives_back_the_configuration(tmp_path: Path) -> None:
    path = written(tmp_path, FILE + "[grpo]\nadvantage = 'gdpo'\nepsilon = 0.1\n[memory]\nfit_in = '16GB'\n")
    config = read_training_file(path, ["rollout.sampling.top_k=5", "run.report_to=trackio", "lora.r=4"])
    again = read_training_file(written(tmp_path / "..", config.to_toml(), f"{tmp_path.name}.toml"))
    assert again == config and again.differences(config) == {}
    assert "None" not in config.to_toml()


def test_differences_name_table_and_key_and_a_resume_forgives_some() -> None:
    one = GRPOConfig(learning_rate=1e-5, save_steps=10, max_steps=10)
    two = GRPOConfig(learning_rate=2e-5, save_steps=20, max_steps=20)
    assert one.differences(two) == {
        "grpo.learning_rate": (1e-5, 2e-5),
        "run.save_steps": (10, 20),
        "grpo.max_steps": (10, 20),
    }
    assert set(one.differences(two, resuming=True)) == {"grpo.learning_rate"}
    falling = [GRPOConfig(lr_scheduler_type="linear", max_steps=steps) for steps in (10, 20)]
    assert set(falling[0].differences(falling[1], resuming=True)) == {"grpo.max_steps"}  # the rate depends on it


def test_rewards_are_built_and_files_found_beside_the_training_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from rewardkit import reward\n@reward\ndef brief(completion):\n    return 1.0\n", encoding="utf-8"
    )
    path = written(
        tmp_path, FILE.replace("gsm8k + 0.1*think_format", "gsm8k + 'mine.py:brief'") + 'one = "mine.py:brief"'
    )
    rewards = read_training_file(path).rewards()
    assert list(rewards) == ["total", "one"]
    with pytest.raises(RewardkitError, match=r"^reward\.total: .*did you mean gsm8k"):
        GRPOConfig(reward={"total": "gms8k"}).rewards()


# -------------------------------------------------------------------------------------------------------------- docs


def test_every_key_is_documented_once() -> None:
    docs = field_docs()
    assert len({(one.table, one.key) for one in docs}) == len(docs) == len(GRPOConfig.model_fields)
    assert all(one.doc.endswith(".") and one.type for one in docs)


def test_settings_of_other_trainers_are_no_keys_and_point_to_keys() -> None:
    keys = {f"{one.table}.{one.key}" for one in field_docs()}
    fields = set(GRPOConfig.model_fields)
    assert len({one.name for one in FOREIGN}) == len(FOREIGN)
    for one in FOREIGN:
        assert one.name not in fields, one.name
        assert not one.here or one.here in keys, one.here
        assert one.how and (one.here or one.name in one.sentence or len(one.how) > 20)


def test_trl_has_the_settings_that_are_said_to_be_its() -> None:
    trl = pytest.importorskip("trl")
    names = set(trl.GRPOConfig.__dataclass_fields__) | set(trl.ModelConfig.__dataclass_fields__)
    same = {one.field for one in field_docs() if one.table == "grpo"} & names
    assert len(same) > 30
    ours = {one.field for one in field_docs() if one.table == "grpo"} - names
    assert ours == {"loss_options", "advantage", "advantage_k", "max_error_share", "max_nan_steps"}
