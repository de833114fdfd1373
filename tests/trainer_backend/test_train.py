"""Whole runs of tiny models: they learn, end as they should, and go on after any end."""

from __future__ import annotations

import dataclasses
import errno
import functools
import gc
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import numpy as np
import torch
from one_thread import one_thread  # noqa: F401
from peft import LoraConfig, PeftModel, get_peft_model
from planned_runs import TINY, planned_run, write_random_model
from safetensors.torch import load_file
from tiny_runs import (
    PROMPTS,
    WORDS,
    environment,
    metrics_of,
    start,
    tiny_config,
    tiny_llama,
    tokenizer,
    train,
    write_job,
    write_model,
)

import trainer_backend
from rewardkit import Score, group_reward, parse, read_generations, score
from rewardkit.errors import ContractError, RewardkitError, RunFolderError, UsageError
from rewardkit.reward import as_reward
from rewardkit.training import TrainOptions
from trainer_backend import GRPOConfig, GRPOTrainer, checkpoint, setup
from trainer_backend.errors import NotFinite
from trainer_backend.model import adapter
from trainer_backend.model.adapter import snapshot, trained
from trainer_backend.model.load import load
from trainer_backend.model.offload import LayerInputs
from trainer_backend.model.streamed import Streamed
from trainer_backend.plan.paths import PATHS
from trainer_backend.rollout.options import SamplingOptions
from trainer_backend.rollout.transformers_sampler import TransformersSampler
from trainer_backend.run import OutOfMemory
from trainer_backend.train import run_file

ROWS = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(PROMPTS)]


def share(completion: str) -> float:
    """The share of words that are a."""
    words = completion.split()
    return words.count("a") / max(1, len(words))


def trainer(folder: Path, reward_funcs: Any = share, *, model: Any = None, rows: Any = None, **how: Any) -> GRPOTrainer:
    """A trainer of a tiny model that is given as an object."""
    callbacks, peft, held = how.pop("callbacks", None), how.pop("peft_config", None), how.pop("eval_dataset", None)
    return GRPOTrainer(
        model if model is not None else tiny_llama(),
        reward_funcs,
        tiny_config(dir=folder, **how),
        rows if rows is not None else ROWS,
        eval_dataset=held,
        processing_class=tokenizer(),
        peft_config=peft,
        callbacks=callbacks,
    )


def lora_model() -> Any:
    """A tiny model with an adapter of its own, for hooks on its parameters."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    return get_peft_model(tiny_llama(), config)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def rewardkit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rewardkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done


def notes_of(run: Path) -> str:
    return "\n".join(line.get("text", "") for line in log_of(run))


# ------------------------------------------------------------------------------------------------------------- learning


def test_a_file_trains_a_model_that_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 24, "data.eval": "held_out.jsonl", "grpo.learning_rate": 1e-2})
    assert run_file(file, TrainOptions(output=tmp_path / "run")) == 0
    run, out = tmp_path / "run", capsys.readouterr()
    rewards = [line["reward"] for line in metrics_of(run)]
    assert len(rewards) == 24 and sum(rewards[-5:]) / 5 > 0.5 > 0.2 > rewards[0]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["learning"]["learned"] and summary["learning"]["norm_of_change"] > 0.1
    assert summary["held_out"]["sampled"]["difference"] > 0.2
    assert "held out  greedy" in out.out and "adapter   " in out.out and "next      " in out.out
    assert "step 24/24  reward" in out.err and "grad" in out.err and "\x1b" not in out.err
    groups = list(read_generations(run / "generations.jsonl"))
    assert len(groups) == 24 * 4 and {len(group.completions) for group in groups} == {8}
    base = tiny_llama()
    tuned = PeftModel.from_pretrained(base, str(run / "adapter"))
    assert any(bool(value.abs().max() > 0) for name, value in tuned.named_parameters() if "lora_B" in name)
    assert (run / "latest").exists() and (run / "held_out" / "before.jsonl").exists()


def test_eval_show_and_compare_read_a_run(tmp_path: Path) -> None:
    changes = {"data.eval": "held_out.jsonl", "reward.length": "length(at_most=40)", "grpo.max_steps": 2}
    file = write_job(tmp_path, changes)
    for name, seed in (("one", 0), ("two", 1)):
        options = TrainOptions(output=tmp_path / name, quiet=True, set=(f"run.seed={seed}",))
        assert run_file(file, options) == 0
    shown = rewardkit("show", tmp_path / "one").stdout
    for said in (
        "done after 2 of 2 steps", "model  float32  LoRA r4", "learning_rate 0.01  G=8", "total = rewards.py:share",
        "length = length(at_most=40)", "step 2    reward 0.", "live groups", "held out  greedy", "held out  sampled",
        "something was learned", "adapter   ", "rewardkit plot", "generations.jsonl -r REWARD",
    ):  # fmt: skip
        assert said in shown, (said, shown)
    document = json.loads(rewardkit("show", tmp_path / "one", "--json").stdout)
    assert document["finished"] and document["of"] == 2 and document["metrics"]["step"] == 2
    best = json.loads(rewardkit("show", tmp_path / "one", "--best", "2", "-r", "total", "--json").stdout)
    generations = tmp_path / "one" / "generations.jsonl"
    texts = {one.text for group in read_generations(generations) for one in group.completions}
    found = best["shown"][0]["completions"]
    assert len(found) == 2 and {one["text"] for one in found} <= texts
    compared = rewardkit("compare", tmp_path / "one", tmp_path / "two").stdout
    assert "total" in compared and "length" in compared
    scored = rewardkit("eval", generations, "-r", f"total={tmp_path / 'rewards.py'}:share", "-o", tmp_path / "e", "-q")
    assert "(64 scored, 0 unscored)" in scored.stdout
    same = rewardkit("compare", tmp_path / "one", tmp_path / "e", "--reward", "total").stdout
    assert "paired completion by completion" in same and re.search(r"total .* 0 +0 +8 +p 1", same), same


def test_show_of_an_unfinished_run_says_how_to_go_on(tmp_path: Path) -> None:
    stop = [_signals(1, 2)]
    rows = ROWS
    trainer(tmp_path / "run", max_steps=5, callbacks=stop, rows=rows, eval_dataset=rows).train()
    shown = rewardkit("show", tmp_path / "run").stdout
    assert "unfinished, after step 2 of 5" in shown and "before: greedy" in shown
    assert f"rewardkit train --resume {tmp_path / 'run'}" in shown
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert "rewardkit plot" not in rewardkit("show", tmp_path / "run").stdout


def test_config_toml_runs_the_same_again(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 2})
    assert run_file(file, TrainOptions(output=tmp_path / "one", quiet=True)) == 0
    again = tmp_path / "one" / "config.toml"
    assert run_file(again, TrainOptions(output=tmp_path / "two", quiet=True)) == 0
    assert metrics_of(tmp_path / "one") == metrics_of(tmp_path / "two")


def test_a_constant_reward_ends_with_nothing_was_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_job(tmp_path, {"reward.total": "rewards.py:constant", "grpo.max_steps": 10})
    assert run_file(file, TrainOptions(output=tmp_path / "run")) == 0
    told = capsys.readouterr().out
    assert "NOTHING WAS LEARNED in 10 steps" in told and "live groups 0 %" in told and "change 0" in told
    assert run_file(file, TrainOptions(output=tmp_path / "other", require_learning=True)) == 1
    assert metrics_of(tmp_path / "run")[-1]["frac_reward_zero_std"] == 1.0


def test_require_learning_passes_where_something_was(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 2})
    assert run_file(file, TrainOptions(output=tmp_path / "run", require_learning=True, quiet=True)) == 0


# --------------------------------------------------------------------------------------------------------- going on


def _wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    path = run / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= step:
            return
        time.sleep(0.002)
    raise AssertionError(f"the run ended before step {step}: {process.communicate()[0]}")


def test_a_run_killed_at_a_random_step_goes_on_bit_by_bit(tmp_path: Path) -> None:
    settings = {
        "grpo.max_steps": 16,
        "run.save_steps": 3,
        "data.eval": "held_out.jsonl",
        "lora.lora_dropout": 0.1,
        "grpo.lr_scheduler_type": "linear",
    }
    file = write_job(tmp_path, settings)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_file(file, TrainOptions(output=whole, quiet=True)) == 0
    step = random.SystemRandom().randint(4, 13)
    process = start(file, "-o", broken, "-q")
    _wait_for_step(broken, step, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (broken / "summary.json").exists()
    assert run_file(broken / "config.toml", TrainOptions(resume=broken, quiet=True)) == 0
    name = "adapter/adapter_model.safetensors"
    assert (whole / name).read_bytes() == (broken / name).read_bytes(), f"killed after step {step}"
    assert metrics_of(whole) == metrics_of(broken), f"killed after step {step}"
    assert (whole / "generations.jsonl").read_bytes() == (broken / "generations.jsonl").read_bytes()
    ends = [json.loads((run / "summary.json").read_text()) for run in (whole, broken)]
    assert ends[0]["held_out"] == ends[1]["held_out"] and ends[0]["learning"] == ends[1]["learning"]


def test_no_prompt_comes_twice_in_an_epoch_over_a_resume(tmp_path: Path) -> None:
    at_three = [lambda step, metrics: step == 3]
    first = trainer(tmp_path, max_steps=4, per_device_train_batch_size=16, callbacks=at_three).train()
    assert first.steps == 3
    second = trainer(tmp_path, max_steps=4, per_device_train_batch_size=16).train(resume=True)
    assert second.steps == 4
    drawn = [group.sample.id for group in read_generations(tmp_path / "generations.jsonl")]
    assert len(drawn) == 8 and set(drawn) == {row["id"] for row in ROWS}


def test_generations_stay_when_a_resume_keeps_none_and_the_next_keeps_them_again(tmp_path: Path) -> None:
    def until(last: int, *, keep: bool, resume: bool) -> None:
        at_last = [lambda step, metrics: step == last]
        trainer(tmp_path, max_steps=8, keep_generations=keep, callbacks=at_last).train(resume=resume)

    until(2, keep=True, resume=False)
    until(4, keep=False, resume=True)
    until(6, keep=True, resume=True)
    steps = [group.sample.step for group in read_generations(tmp_path / "generations.jsonl")]
    assert sorted(set(steps)) == [1, 2, 5, 6] and len(steps) == 4 * 4
    assert [line["step"] for line in metrics_of(tmp_path)] == [1, 2, 3, 4, 5, 6]


def _signals(count: int, at: int) -> Any:
    def callback(step: int, metrics: Mapping[str, float]) -> None:
        for _ in range(count if step == at else 0):
            os.kill(os.getpid(), signal.SIGINT)

    return callback


def test_ctrl_c_once_saves_and_resume_finishes(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", max_steps=5).train()
    out = trainer(tmp_path / "run", max_steps=5, callbacks=[_signals(1, 2)]).train()
    assert (out.ended, out.exit_code, out.steps, out.adapter) == ("interrupted", 130, 2, None)
    assert f"rewardkit train --resume {tmp_path / 'run'}" in out.text
    rest = trainer(tmp_path / "run", max_steps=5).train(resume=tmp_path / "run")
    assert rest.ended == "done" and rest.steps == 5
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "run")
    assert whole.learning == rest.learning
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, max_steps=5, callbacks=[_signals(2, 2)]).train()
    assert checkpoint.newest_valid(tmp_path).checkpoint is None
    assert trainer(tmp_path, max_steps=5).train(resume=True).steps == 5


def test_a_folder_with_a_run_is_not_taken_without_a_word(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=1).train()
    with pytest.raises(RunFolderError, match="has a training run already"):
        trainer(tmp_path, max_steps=1).train()
    assert trainer(tmp_path, max_steps=1).train(overwrite=True).steps == 1


def test_other_settings_are_named_before_a_resume(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=2).train()
    with pytest.raises(RunFolderError, match=r"grpo\.learning_rate was 0\.01, now 0\.02"):
        trainer(tmp_path, max_steps=3, learning_rate=2e-2).train(resume=True)
    out = trainer(tmp_path, max_steps=3, learning_rate=2e-2).train(resume=True, allow_change=True)
    assert out.steps == 3


def _rates(run: Path) -> list[float]:
    return [line["learning_rate"] for line in metrics_of(run)]


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_resumed_run_trains_with_the_settings_that_it_is_given(tmp_path: Path, schedule: str) -> None:
    def made(rate: float, decay: float, callbacks: Any = None) -> GRPOTrainer:
        return trainer(
            tmp_path, max_steps=4, learning_rate=rate, weight_decay=decay, lr_scheduler_type=schedule,
            callbacks=callbacks,
        )  # fmt: skip

    made(1e-2, 0.0, [lambda step, metrics: step == 2]).train()
    second = made(1e-3, 0.25)
    assert second.train(resume=True, allow_change=True).steps == 4
    shape = [1.0, 1.0, 1.0, 1.0] if schedule == "constant" else [1.0, 0.75, 0.5, 0.25]
    wanted = [rate * part for rate, part in zip([1e-2, 1e-2, 1e-3, 1e-3], shape, strict=True)]
    assert _rates(tmp_path) == pytest.approx(wanted)
    found = checkpoint.newest_valid(tmp_path).checkpoint
    assert found is not None and found.optimizer is not None
    assert [group["weight_decay"] for group in found.optimizer["param_groups"]] == [0.25]


def test_another_optimizer_begins_without_moments_when_a_run_is_resumed(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=4, optim="sgd", callbacks=[lambda step, metrics: step == 2]).train()
    assert trainer(tmp_path, max_steps=4).train(resume=True, allow_change=True).steps == 4
    assert "grpo.optim is now adamw_torch, which starts without moments" in notes_of(tmp_path)


def test_an_edited_config_is_compared_with_what_the_checkpoint_was_made_with(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 3, "grpo.learning_rate": 1e-2})
    run = tmp_path / "run"
    assert run_file(file, TrainOptions(output=run, quiet=True)) == 0
    config = run / "config.toml"
    config.write_text(config.read_text().replace("learning_rate = 0.01", "learning_rate = 0.5"))
    with pytest.raises(RunFolderError, match=r"grpo\.learning_rate was 0\.01, now 0\.5; .*--allow-change"):
        run_file(config, TrainOptions(resume=run, quiet=True))


def test_other_rows_at_the_same_place_are_noticed_before_a_resume(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 3})
    run = tmp_path / "run"
    assert run_file(file, TrainOptions(output=run, quiet=True)) == 0
    data = tmp_path / "train.jsonl"
    data.write_text(data.read_text().replace('"answer": "a"', '"answer": "b"'))
    changes = TrainOptions(resume=run, set=("grpo.max_steps=4",), quiet=True)
    with pytest.raises(RunFolderError, match=r"the rows of data\.train are others than the run began with"):
        run_file(file, changes)
    assert run_file(file, dataclasses.replace(changes, allow_change=True)) == 0
    assert any("rows of data.train" in line.get("changes", {}) for line in log_of(run))


def test_other_columns_of_a_data_set_are_noticed_before_a_resume(tmp_path: Path) -> None:
    def rows(topic: str) -> list[dict[str, Any]]:
        return [{**row, "topic": topic, "picture": np.zeros(3)} for row in ROWS]

    trainer(tmp_path, max_steps=2, rows=rows("birds"), keep_generations=False).train()
    with pytest.raises(RunFolderError, match=r"rows of data\.train are others"):
        trainer(tmp_path, max_steps=3, rows=rows("trees"), keep_generations=False).train(resume=True)
    assert trainer(tmp_path, max_steps=3, rows=rows("birds"), keep_generations=False).train(resume=True).steps == 3


def test_a_resume_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be resumed"):
        trainer(tmp_path, max_steps=1).train(resume=tmp_path / "nowhere")


def test_a_checkpoint_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    def block(step: int, metrics: Mapping[str, float]) -> None:
        if step == 1:
            (tmp_path / "checkpoints").write_text("in the way")

    out = trainer(tmp_path, max_steps=3, save_steps=2, callbacks=[block]).train()
    assert out.ended == "done" and out.adapter is not None and out.adapter.is_dir()
    assert "the checkpoint of step 2 cannot be written" in notes_of(tmp_path)


def test_ctrl_c_without_room_for_a_checkpoint_says_what_there_is(tmp_path: Path) -> None:
    def block(step: int, metrics: Mapping[str, float]) -> None:
        if step == 1:
            (tmp_path / "checkpoints").write_text("in the way")

    out = trainer(tmp_path, max_steps=5, callbacks=[block, _signals(1, 2)]).train()
    assert out.exit_code == 130 and "everything is saved" not in out.text
    assert "its checkpoint could not be written, and there is none" in out.text


def _no_room(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the disk be full where the final adapter goes."""
    write = adapter.save_adapter

    def full(model: Any, place: Path) -> None:
        write(model, place)
        if place.parent == folder:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(adapter, "save_adapter", full)


def test_a_full_disk_at_the_final_adapter_costs_neither_measurement_nor_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_room(monkeypatch, tmp_path)
    out = trainer(tmp_path, max_steps=2, eval_dataset=ROWS[:3]).train()
    assert (out.ended, out.adapter, out.exit_code) == ("done", None, 2) and out.change is not None
    assert "No space left on device" in out.text and f"--resume {tmp_path}" in out.text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["adapter"] is None and "No space left" in summary["why"] and summary["held_out"] is not None
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "adapter.new").exists()
    monkeypatch.undo()
    again = trainer(tmp_path, max_steps=2, eval_dataset=ROWS[:3]).train(resume=True)
    assert again.exit_code == 0 and again.adapter is not None and again.adapter.is_dir()
    assert again.change is not None and again.change.to_dict() == out.change.to_dict()


def test_an_error_between_steps_costs_none_of_them(tmp_path: Path) -> None:
    def mine(step: int, metrics: Mapping[str, float]) -> None:
        if step == 3:
            raise ValueError("mine")

    whole = trainer(tmp_path / "whole", max_steps=5).train()
    with pytest.raises(ValueError, match="mine"):
        trainer(tmp_path / "run", max_steps=5, callbacks=[mine]).train()
    assert f"step 3 is saved; go on with rewardkit train --resume {tmp_path / 'run'}" in notes_of(tmp_path / "run")
    rest = trainer(tmp_path / "run", max_steps=5).train(resume=True)
    assert rest.steps == 5 and rest.learning == whole.learning
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "run")


def test_an_error_in_a_reward_or_an_update_costs_no_step_and_no_text(tmp_path: Path) -> None:
    """A reward that breaks its contract fails while groups are drawn; a layer, while they are trained on."""
    whole = trainer(tmp_path / "whole", max_steps=4).train()
    texts = [group.completions for group in read_generations(tmp_path / "whole" / "generations.jsonl")]

    def contract(completions: list[str], **columns: Any) -> list[float]:
        values = [share(text) for text in completions]
        return values[1:] if done[0] == 2 else values

    done = [0]

    def count(step: int, metrics: Mapping[str, float]) -> None:
        done[0] = step

    with pytest.raises(RewardkitError):
        trainer(tmp_path / "drawn", contract, max_steps=4, callbacks=[count]).train()
    found = checkpoint.newest_valid(tmp_path / "drawn").checkpoint
    assert found is not None and found.step == 2
    rest = trainer(tmp_path / "drawn", max_steps=4).train(resume=True, allow_change=True)
    assert rest.learning == whole.learning

    model = tiny_llama()

    def raises(module: Any, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and done[0] == 2:
            raise ValueError("in the update")

    model.model.layers[0].register_forward_hook(raises)
    done[0] = 0
    with pytest.raises(ValueError, match="in the update"):
        trainer(tmp_path / "trained", model=model, max_steps=4, callbacks=[count]).train()
    kept = [group.completions for group in read_generations(tmp_path / "trained" / "generations.jsonl")]
    assert kept == texts[: 3 * 4]  # those of the third step, too
    rest = trainer(tmp_path / "trained", max_steps=4).train(resume=True)
    assert rest.learning == whole.learning
    again = [group.completions for group in read_generations(tmp_path / "trained" / "generations.jsonl")]
    assert again == texts


def test_held_out_prompts_that_come_later_are_not_compared_with_the_trained_model(tmp_path: Path) -> None:
    until_two = [lambda step, metrics: step == 2]
    trainer(tmp_path, max_steps=4, callbacks=until_two).train()
    out = trainer(tmp_path, max_steps=4, eval_dataset=ROWS[:2]).train(resume=True, allow_change=True)
    assert out.change is None and not (tmp_path / "held_out" / "before.jsonl").exists()
    assert "held out  these are not the ones that were measured before the first step" in out.text
    assert (tmp_path / "held_out" / "after.jsonl").exists()


def test_other_held_out_prompts_than_before_do_not_end_a_run_with_an_error(tmp_path: Path) -> None:
    until_two = [lambda step, metrics: step == 2]
    trainer(tmp_path, max_steps=4, eval_dataset=ROWS[:3], callbacks=until_two).train()
    out = trainer(tmp_path, max_steps=4, eval_dataset=ROWS[3:5]).train(resume=True, allow_change=True)
    assert out.change is None and "these are not the ones" in notes_of(tmp_path)


# ------------------------------------------------------------------------------------------------- refused at the start


def test_one_function_is_a_callback(tmp_path: Path) -> None:
    seen: list[int] = []
    assert trainer(tmp_path, max_steps=2, callbacks=lambda step, metrics: seen.append(step)).train().steps == 2
    assert seen == [1, 2]


@pytest.mark.parametrize("given", [lambda step: 1, 5, [lambda: 1], [dict]], ids=["one", "number", "none", "class"])
def test_what_is_no_callback_is_refused_before_anything_starts(tmp_path: Path, given: Any) -> None:
    with pytest.raises(UsageError, match="a callback is "):
        trainer(tmp_path / "run", callbacks=given)


def test_threads_beyond_reason_are_refused(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"run.threads": 100_000})
    for check in (True, False):
        with pytest.raises(UsageError, match=r"run\.threads is 100,000, and this machine has \d+ core"):
            run_file(file, TrainOptions(check=check, output=tmp_path / "run"))


def test_what_libraries_tell_each_other_is_not_told(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 1, "data.eval": "held_out.jsonl"})
    for done in (train(file, "-o", tmp_path / "run"), train(file, "--check")):
        assert "Warning" not in done.stderr + done.stdout


# -------------------------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize("save_steps", [1, 50])
def test_a_model_that_diverges_ends_the_run_and_leaves_the_checkpoint_before(tmp_path: Path, save_steps: int) -> None:
    trainer(tmp_path, max_steps=8, save_steps=save_steps, callbacks=[lambda step, metrics: step == 2]).train()
    held = ROWS[:2]
    out = trainer(tmp_path, max_steps=8, save_steps=save_steps, learning_rate=1e300, eval_dataset=held).train(
        resume=True, allow_change=True
    )
    assert (out.ended, out.exit_code, out.adapter, out.steps) == ("not finite", 3, None, 3)
    assert "the model's logits are not finite since step 3; lower grpo.learning_rate (1e+300)" in out.text
    assert f"checkpoint 2 is kept; go on from it with rewardkit train --resume {tmp_path}" in out.text
    assert max(path.name for path in (tmp_path / "checkpoints").iterdir()) == "step-2"
    assert trainer(tmp_path, max_steps=4, save_steps=save_steps).train(resume=True).learning.learned


def test_a_model_that_diverges_before_any_checkpoint_says_that_there_is_none(tmp_path: Path) -> None:
    out = trainer(tmp_path, max_steps=1, learning_rate=1e300).train()
    assert out.ended == "not finite" and "there is no checkpoint from before, so start again" in out.text
    assert "the adapter's weights are no longer finite" in out.text


def test_a_model_that_is_broken_from_the_start_is_an_error_of_its_own(tmp_path: Path) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    for held in (None, ROWS[:2]):
        made = trainer(tmp_path / str(bool(held)), model=model, max_steps=2, eval_dataset=held)
        if held:
            with pytest.raises(NotFinite, match=r"logits are not finite"):
                made.train()
        else:
            out = made.train()
            assert out.ended == "not finite" and "before a step was taken" in out.text


# ------------------------------------------------------------------------------------------------- a reader that leaves


@pytest.mark.parametrize("end", ["2>&1 | head -3", "2>&- 1>&-", "2> >(true) > >(true)", "-q 2>&1 | true"])
def test_a_reader_that_leaves_ends_no_training(tmp_path: Path, end: str) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 4, "data.eval": "held_out.jsonl"})
    command = (
        f'"{sys.executable}" -m rewardkit train "{file}" -o "{tmp_path / "run"}" {end}; echo ${{PIPESTATUS[0]}} >&3'
    )
    with open(tmp_path / "code", "w") as code:
        keep = [code.fileno()]
        shell = f"exec 3>&{keep[0]}; {command}"
        subprocess.run(["bash", "-c", shell], env=environment(), pass_fds=keep, capture_output=True, timeout=300)
    assert (tmp_path / "code").read_text() == "0\n"
    assert len(metrics_of(tmp_path / "run")) == 4
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended"] == "done"
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").exists()


# ------------------------------------------------------------------------------------------------------ failing rewards


def test_a_reward_that_raises_stops_the_run_and_keeps_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(tmp_path, {"reward.total": "rewards.py:broken"})
    assert run_file(file, TrainOptions(output=tmp_path / "run")) == 3
    told = capsys.readouterr().out
    assert "the reward failed on 32 of the last 32 completions, at step 1" in told and "no disk is left" in told
    drawn = [group.sample.id for group in read_generations(tmp_path / "run" / "generations.jsonl")]
    assert len(drawn) == 4
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit_code"] == 3 and summary["learning"]["error_share"] == 1.0
    # Repaired, the run goes on with the same prompts.
    (tmp_path / "repaired").touch()
    assert run_file(tmp_path / "run" / "config.toml", TrainOptions(resume=tmp_path / "run", quiet=True)) == 0
    assert len(metrics_of(tmp_path / "run")) == 10
    again = [group.sample.id for group in read_generations(tmp_path / "run" / "generations.jsonl")]
    assert again[:4] == drawn and len(again) == 40


def test_rewards_that_fail_now_and_then_are_counted_and_left_out(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"reward.total": "rewards.py:sometimes", "grpo.max_error_share": 1.0})
    assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 0
    lines = metrics_of(tmp_path / "run")
    assert lines[0]["rewards/error_share"] > 0
    first = next(iter(read_generations(tmp_path / "run" / "generations.jsonl")))
    for group in read_generations(tmp_path / "run" / "generations.jsonl"):
        failed = [one.text.startswith("b") for one in group.completions]
        values = [one.metadata["advantage"] for one in group.completions]
        known = [value for value, bad in zip(values, failed, strict=True) if not bad]
        assert all(value == 0.0 for value, bad in zip(values, failed, strict=True) if bad)
        assert abs(sum(known)) < 1e-6  # the baseline is that of the others
    assert first.sample.step == 1
    assert lines[0]["rows/in_loss"] == round(32 * (1 - lines[0]["rewards/error_share"]))


def test_one_failure_among_few_completions_ends_no_run(tmp_path: Path) -> None:
    """With 8 completions a step, one is 12.5 % of it."""
    count = [0]

    def now_and_then(completion: str) -> float:
        count[0] += 1
        if count[0] % 25 == 0:  # 4 %
            raise RuntimeError("a bad moment")
        return share(completion)

    few = {"per_device_train_batch_size": 8, "max_steps": 30}
    assert trainer(tmp_path / "four", now_and_then, **few).train().ended == "done"
    count[0] = 0

    def more_and_more(completion: str) -> float:
        count[0] += 1
        if count[0] > 80 and count[0] % 8 == 0:
            raise RuntimeError("a bad moment")
        return share(completion)

    out = trainer(tmp_path / "many", more_and_more, **few).train()
    assert out.ended == "reward failed" and out.exit_code == 3
    assert out.steps == 15  # the sixth failure among a hundred comes in step 16
    assert "the reward failed on 6 of the last 104 completions, at step 16" in out.text


def test_a_reward_whose_process_dies_is_an_error(tmp_path: Path) -> None:
    file = write_job(tmp_path)
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        rewards.read_text().replace("def killed", "from rewardkit import reward\n\n\n@reward(timeout=20)\ndef killed")
    )
    file.write_text(file.read_text().replace("rewards.py:share", "rewards.py:killed"))
    assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 3
    assert "worker" in json.loads((tmp_path / "run" / "summary.json").read_text())["why"]


def test_a_reward_process_killed_once_costs_no_more_than_its_completions(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"grpo.max_error_share": 0.5, "grpo.max_steps": 3})
    (tmp_path / "rewards.py").write_text(
        "import os, signal\nfrom pathlib import Path\n\nfrom rewardkit import reward\n\n\n"
        "@reward(timeout=20)\n"
        "def share(completion):\n"
        "    mark = Path(__file__).with_name('killed')\n"
        "    if completion and not mark.exists():\n"  # the empty texts only start the workers
        "        mark.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    words = completion.split()\n"
        "    return words.count('a') / max(1, len(words))\n"
    )
    assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 0
    assert (tmp_path / "killed").exists()
    lines = metrics_of(tmp_path / "run")
    assert len(lines) == 3 and [line["rewards/error_share"] for line in lines[1:]] == [0.0, 0.0]
    assert lines[0]["rewards/error_share"] <= 8 / 32 and lines[0]["rows/in_loss"] >= 24


def test_a_reward_that_abstains_on_all_teaches_nothing(tmp_path: Path) -> None:
    out = trainer(tmp_path, lambda completion: None, max_steps=2).train()
    assert out.ended == "done" and not out.learning.learned and out.learning.live == 0
    assert metrics_of(tmp_path)[0]["rewards/unscored_share"] == 1.0
    assert "NOTHING WAS LEARNED in 2 steps" in out.text and "none of 64 completions was scored (" in out.text


def test_rows_without_a_column_that_the_reward_needs_are_explained(tmp_path: Path) -> None:
    def same_topic(completion: str, topic: str) -> float:
        return 1.0

    rows = [{**row, "topic": "a"} if at % 2 else row for at, row in enumerate(ROWS)]
    out = trainer(tmp_path, same_topic, rows=rows, max_steps=2).train()
    assert "32 of 64 completions were not scored (" in out.text and "topic" in out.text
    assert json.loads((tmp_path / "summary.json").read_text())["learning"]["unscored"] == 32


def test_a_metric_that_always_fails_is_shown_each_step_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(completion: str) -> float:
        raise ValueError("no \x1b[31mtable\nhere")

    how = {"total": share, "known": failing}
    trainer(tmp_path, how, max_steps=2, callbacks=[lambda step, metrics: step == 1]).train()
    out = trainer(tmp_path, how, max_steps=2).train(resume=True)
    assert [line["rewards/known/error_share"] for line in metrics_of(tmp_path)] == [1.0, 1.0]
    told = capsys.readouterr().err
    assert told.count("! known failed 100 %") == 2 and "! the metric known failed on 100 %" in told
    assert "metric    known failed on 64 of 64 completions; the first: " in out.text
    assert "table" in out.text and "\x1b" not in out.text and out.ended == "done"


def test_a_strangers_exception_does_not_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_job(tmp_path, {"reward.total": "rewards.py:broken"})
    rewards = tmp_path / "rewards.py"
    rewards.write_text(rewards.read_text().replace("no disk is left", "no \\x1b[31mdisk\\nis left"))
    assert run_file(file, TrainOptions(output=tmp_path / "run")) == 3
    told = capsys.readouterr()
    assert "\\x1b[31mdisk" in told.out and "\x1b" not in told.out + told.err


def test_a_reward_that_fails_on_all_held_out_prompts_ends_the_run_before_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"reward.total": "rewards.py:broken", "data.eval": "held_out.jsonl", "grpo.max_steps": 2}
    file = write_job(tmp_path, changes)
    run = tmp_path / "run"
    assert run_file(file, TrainOptions(output=run)) == 3
    told = capsys.readouterr()
    assert "no prompt was scored; the first: raised: RuntimeError: no disk is left" in told.err
    assert "stopped   the reward failed on all 20 completions of the held-out prompts; the first:" in told.out
    assert "held out  no held-out prompt was scored" in told.out and "no prompts were held out" not in told.out
    assert "step 1" not in told.err
    (tmp_path / "repaired").touch()
    assert run_file(file, TrainOptions(resume=run, quiet=True)) == 0
    assert json.loads((run / "summary.json").read_text())["held_out"]["greedy"] is not None


def test_a_run_that_ends_early_does_not_say_that_nothing_was_held_out(tmp_path: Path) -> None:
    seen = [0]

    def later(completion: str) -> float:
        seen[0] += 1
        if seen[0] > 40:
            raise RuntimeError("no disk is left")
        return share(completion)

    out = trainer(tmp_path, later, max_steps=3, eval_dataset=ROWS[:2], eval_samples=1).train()
    assert out.ended == "reward failed" and "the run ended early, so the held-out prompts were not" in out.text


# -------------------------------------------------------------------------------------------------------------- faults


def _poisoned(bad_steps: int) -> Any:
    """A model whose gradient is NaN in its first backward passes."""
    model, seen = lora_model(), [0]

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        seen[0] += 1
        return gradient * float("nan") if seen[0] <= bad_steps else gradient

    next(weight for name, weight in model.named_parameters() if "lora_B" in name).register_hook(hook)
    return model


def test_a_nan_gradient_is_left_out_and_counted(tmp_path: Path) -> None:
    model = _poisoned(2)
    start_weights = snapshot(model)
    seen = []

    def look(step: int, metrics: Mapping[str, float]) -> None:
        seen.append(all(torch.equal(value, start_weights[name]) for name, value in snapshot(model).items()))

    out = trainer(tmp_path, model=model, max_steps=4, callbacks=[look]).train()
    assert seen == [True, True, False, False]
    assert [line["skipped"] for line in metrics_of(tmp_path)] == [1.0, 1.0, 0.0, 0.0]
    assert out.ended == "done" and out.learning.skipped == 2 and "2 of 4 steps were left out" in out.text


def test_groups_whose_update_was_left_out_are_not_updated_on_again(tmp_path: Path) -> None:
    """Their log-probs before the first update are not known, so a third would take them for on-policy."""
    trainer(tmp_path, model=_poisoned(1), max_steps=7, num_iterations=3).train()
    lines = metrics_of(tmp_path)
    assert [line["skipped"] for line in lines] == [1.0, *[0.0] * 6]
    moved = [line.get("ratio/max", 1.0) > 1.001 for line in lines]
    assert moved == [False, False, True, True, False, True, True]  # fresh groups at 1, 2 and 5
    assert len(list(read_generations(tmp_path / "generations.jsonl"))) == 3 * 4


def test_too_many_nan_gradients_in_a_row_stop_the_run(tmp_path: Path) -> None:
    out = trainer(tmp_path, model=_poisoned(99), max_steps=9, max_nan_steps=3).train()
    assert (out.ended, out.exit_code, out.steps) == ("not finite", 3, 3)
    assert "not finite in 3 steps in a row" in out.text and not out.learning.learned


def test_out_of_memory_names_settings_that_would_fit(tmp_path: Path) -> None:
    model = lora_model()

    def hungry(module: Any, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            torch.empty(2**60, dtype=torch.uint8)  # what an allocator says when it cannot

    model.base_model.model.model.layers[0].register_forward_hook(hungry)
    rows = [{"prompt": "a b c"}] * 64
    with pytest.raises(OutOfMemory, match=r"out of memory; the plan was .* GB\. ") as caught:
        trainer(tmp_path, model=model, rows=rows, per_device_train_batch_size=256).train()
    assert "\n" not in str(caught.value) and "step -1" not in str(caught.value)


def test_what_does_not_fit_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    file = write_job(tmp_path, {"memory.fit_in": 0.001})
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"may take 0\.0 GB"):
        run_file(file, TrainOptions(output=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"model.name": "./nomodel"}, "there is no such model", id="model-path-missing"),
        pytest.param({"data.train": "held.jsonl"}, "held.jsonl", id="data-missing"),
        pytest.param({"data.prompt": "promt"}, "did you mean prompt", id="no-prompt-column"),
        pytest.param({"data.max_prompt_length": 2}, "all 8 prompts are longer than max_prompt_length 2", id="too-long"),
        pytest.param({"data.chat": True}, "no chat template", id="no-chat-template"),
        pytest.param({"grpo.max_completion_length": 62}, "than the 64 positions of the model", id="positions"),
        pytest.param({"grpo.num_generations": 1}, "num_generations = 8", id="group-of-one"),
        pytest.param({"reward.total": "rewards.py:shar"}, "shar", id="no-such-reward"),
        pytest.param({"reward.total": "gsm8k", "data.reference": "id"}, None, id="bad-references-run"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str | None) -> None:
    file = write_job(tmp_path, {"grpo.max_steps": 1, **changes})
    if said is None:
        assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 0
        return
    with pytest.raises(RewardkitError) as caught:
        run_file(file, TrainOptions(output=tmp_path / "run"))
    assert said in str(caught.value) and "Traceback" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_is_too_long_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "long", "prompt": "a b c d e f"}]
    trainer(tmp_path, rows=rows, max_steps=3, max_prompt_length=4).train()
    assert "1 of 9 prompts are left out: longer than max_prompt_length 4" in notes_of(tmp_path)
    assert "long" not in {group.sample.id for group in read_generations(tmp_path / "generations.jsonl")}


# -------------------------------------------------------------------------------------------------- reported faults


def test_a_batch_smaller_than_a_group_is_made_to_fit(tmp_path: Path) -> None:
    """huggingface/trl#2858: batch 1 with 8 generations was refused with "Valid values: []"."""
    out = trainer(tmp_path, per_device_train_batch_size=1, max_steps=2).train()
    assert out.steps == 2 and "made to fit by accumulation" in notes_of(tmp_path)
    assert {line["rows/all"] for line in metrics_of(tmp_path)} == {8.0}


def test_groups_of_one_learn_from_each_other_where_asked(tmp_path: Path) -> None:
    """axolotl#3353: a group of one gave NaN."""
    out = trainer(tmp_path, num_generations=1, per_device_train_batch_size=8, advantage="reinforce_pp").train()
    assert out.learning.learned and all("not_finite" not in line for line in metrics_of(tmp_path))


def test_lengths_are_those_of_the_texts_also_where_cut_ones_are_masked(tmp_path: Path) -> None:
    """huggingface/trl#3476: with masking on, logged lengths were 0 or wrong."""
    for masked in (False, True):
        trainer(tmp_path / str(masked), mask_truncated_completions=masked, max_steps=1).train()
    plain, masked_ = (metrics_of(tmp_path / name)[0] for name in ("False", "True"))
    groups = list(read_generations(tmp_path / "True" / "generations.jsonl"))
    lengths = [one.tokens or 0 for group in groups for one in group.completions]
    cut = [one.finish_reason == "length" for group in groups for one in group.completions]
    assert masked_["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert masked_["completions/mean_length"] == plain["completions/mean_length"]
    assert masked_["completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut)) and any(cut)
    assert masked_["rows/in_loss"] == 32 - sum(cut) and plain["rows/in_loss"] == 32


def test_the_newest_adapter_samples_and_a_stale_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface/trl#5312: a sampler kept stale weights."""
    trainer(tmp_path / "good", max_steps=3, check_logps_every=1).train()
    texts = [line["text"] for line in log_of(tmp_path / "good") if line["event"] == "agreement"]
    for version, text in enumerate(texts):
        assert re.match(rf"transformers samples from adapter (version )?{version}:", text), text
    assert len(texts) == 3

    def number_only(self: TransformersSampler, version: int) -> None:
        self._version = version  # and the folded weights stay as they were

    monkeypatch.setattr(TransformersSampler, "update", number_only)
    trainer(tmp_path / "stale", max_steps=3, check_logps_every=1).train()
    assert re.search(r"does not sample from adapter (version )?2:", notes_of(tmp_path / "stale"))
    trainer(tmp_path / "slow", max_steps=3, check_logps_every=1, learning_rate=1e-6).train()
    assert "2: it holds another than the trainer has now" in notes_of(tmp_path / "slow")
    assert "explains" not in notes_of(tmp_path / "slow"), "its log-probs do not show it"


def test_the_sampler_gets_an_adapter_when_it_is_to_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each of several updates on the same groups: vLLM reads an adapter from files."""
    told: list[int] = []
    update = TransformersSampler.update

    def noted(self: TransformersSampler, version: int) -> None:
        told.append(version)
        update(self, version)

    monkeypatch.setattr(TransformersSampler, "update", noted)
    trainer(tmp_path, max_steps=6, num_iterations=3, check_logps_every=1, eval_dataset=ROWS).train()
    assert told == [3, 6] and "does not sample" not in notes_of(tmp_path)


def test_an_adapter_that_did_not_move_is_not_handed_over_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would empty its cache of prefixes for nothing. From the first live step on, moments move it."""
    told: list[int] = []
    monkeypatch.setattr(TransformersSampler, "update", lambda self, version: told.append(version))
    scores = iter([1.0] * 64 + [0.0, 1.0] * 16 + [1.0] * 64)  # two dead steps, a live one, two dead ones
    out = trainer(
        tmp_path, lambda completion: next(scores), max_steps=5, per_device_train_batch_size=32, check_logps_every=0
    ).train()
    assert [line["rows/learning"] for line in metrics_of(tmp_path)] == [0.0, 0.0, 32.0, 0.0, 0.0]
    assert told == [3, 4] and out.learning.learned


def test_the_plan_is_held_against_what_the_first_step_took(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=3).train()
    (line,) = [line for line in log_of(tmp_path) if line["event"] == "memory"]
    assert line["step"] == 1 and line["peak_gb"] > 0.1 and line["planned_gb"] > 0.7


def test_the_runs_that_hold_plans_against_a_gpu_s_memory(tmp_path: Path) -> None:
    """The code of test_train_gpu.py with a tiny model; a CPU's figures are those of a process, and are not compared."""
    model = write_random_model(tmp_path / "model", TINY, torch.float32, "cpu")
    run = planned_run(tmp_path / "job", model, tokens=40, rows=8, dtype="float32", mode="offload")
    assert run.peak > 0.1 and run.planned > 0.1 and "their inputs waiting on the host: peak about" in run.plan


class Unquantised(TransformersSampler):
    """Samples from float32 weights with the adapter of a trainer that has them in 4 bits, as vLLM does on a CPU."""

    differs = "another sampler holds the base weights as float32, the trainer as NF4"  # type: ignore[assignment]

    def __init__(self, trained: Any, folder: Path) -> None:
        self.trained, self.stale = trained, False
        own = load(GRPOConfig(model=str(folder), dtype="float32", r=4), device="cpu")
        super().__init__(own.model, own.tokenizer, SamplingOptions(max_tokens=8), head=own.head, eos_ids=own.eos_ids)
        self.update(0)

    def update(self, version: int) -> None:
        super().update(version)
        if not self.stale:
            new = snapshot(self.trained)
            for name, parameter in trained(self._model).items():
                parameter.data.copy_(new[name])


@pytest.mark.parametrize("goes_stale", [False, True])
def test_a_sampler_with_other_base_weights_is_said_and_judged_by_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_stale: bool
) -> None:
    pytest.importorskip("bitsandbytes")
    changes = {"model.load_in_4bit": True, "rollout.check_logps_every": 1, "grpo.max_steps": 8}
    file = write_job(tmp_path, {**changes, "grpo.learning_rate": 3e-2 if goes_stale else 1e-4})

    def made(job: Any, loaded: Any, longest: int, room: Any) -> Any:
        sampler = Unquantised(loaded.model, tmp_path / "model")
        sampler.stale = goes_stale
        return sampler

    monkeypatch.setattr(setup, "make_sampler", made)
    assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 0
    notes = notes_of(tmp_path / "run")
    assert f"{Unquantised.differs}. grpo.vllm_importance_sampling_correction is false, so nothing corrects" in notes
    assert "samples from adapter 0: its log-probs differ from the trainer's by" in notes
    apart = [line["sampling/agreement/mean"] for line in metrics_of(tmp_path / "run")]
    assert apart[0] > 1e-3  # more than rounding in float32 explains
    assert ("does not sample from adapter" in notes) is goes_stale


def test_the_check_comes_back_when_groups_are_used_twice(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=10, num_iterations=2, check_logps_every=4).train()
    checked = [line["step"] for line in metrics_of(tmp_path) if "sampling/agreement/mean" in line]
    assert checked == [1, 3, 7]  # the groups of steps 3 and 4, of 7 and 8


def test_dropout_of_the_adapter_is_no_stale_sampler(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=4, lora_dropout=0.5, check_logps_every=1).train()
    assert "does not sample" not in notes_of(tmp_path)
    assert max(line["sampling/agreement/max"] for line in metrics_of(tmp_path)) < 1e-3


def test_the_loss_near_zero_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """huggingface/trl#3452: a loss of 0 was taken for a fault."""
    trainer(tmp_path, max_steps=1, loss_type="grpo").train()
    shown = capsys.readouterr().err
    assert "near 0 is normal: advantages sum to 0" in shown
    assert shown.index("reward 0.") < shown.index("grad ") < shown.index("loss ")


def test_dead_groups_are_warned_of_with_what_other_sizes_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """jsboige/CoursIA#10603: 70 % of groups were dead, and nothing said so."""

    def mostly_alike(completion: str, prompt: str) -> float:
        return share(completion) if prompt == PROMPTS[0] else 0.0

    trainer(tmp_path, mostly_alike, max_steps=6, per_device_train_batch_size=64).train()
    assert metrics_of(tmp_path)[-1]["frac_reward_zero_std"] >= 7 / 8
    shown = capsys.readouterr().err
    assert re.search(r"! 8\d\.\d+ % of groups teach nothing.* at G = 4, .* at G = 8", shown), shown


def test_the_estimate_of_the_memory_stands_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """huggingface/trl#3678: a small model ran out of memory on its vocabulary, and nothing had said so."""
    trainer(tmp_path, max_steps=1).train()
    shown = capsys.readouterr().err
    assert shown.index("memory: ") < shown.index("peak about") < shown.index("step 1/1")


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say what a process takes")
def test_memory_does_not_grow_over_200_steps_of_a_run(tmp_path: Path) -> None:
    resident, tensors = [], []

    def look(step: int, metrics: Mapping[str, float]) -> None:
        if step % 20 == 0:
            gc.collect()
            resident.append(float(_resident_kib()))
            tensors.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))

    trainer(tmp_path, max_steps=200, save_steps=25, callbacks=[look]).train()
    assert max(tensors[5:]) < max(tensors[:5]) + 5, "one tensor left behind a step would be 100"
    # The median of what each 20 steps added: a leak of every step is in all of them, and an allocator that takes one
    # more arena, as it may, is in one.
    slope = statistics.median(b - a for a, b in itertools.pairwise(resident[2:])) / 20
    assert slope < 40, f"{slope:.1f} KiB a step: {resident}"


# ------------------------------------------------------------------------------------------------- settings that matter


def test_two_updates_on_the_same_groups(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=5, num_iterations=2, save_steps=2, check_logps_every=0).train()
    lines = metrics_of(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    first, second = lines[0], lines[1]
    assert first["ratio/mean"] == first["ratio/min"] == first["ratio/max"] == 1.0
    assert second["ratio/max"] > 1.001 and second["reward"] == first["reward"]
    assert len(list(read_generations(tmp_path / "generations.jsonl"))) == 3 * 4


def test_on_policy_ratios_are_exactly_one_at_another_temperature(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=3, temperature=0.6).train()
    for line in metrics_of(tmp_path):
        assert line["ratio/min"] == line["ratio/max"] == 1.0
        assert line["sampling/sampling_logp_difference/max"] < 1e-3


def test_the_kl_is_shown_apart(tmp_path: Path) -> None:
    """modelscope/ms-swift#3579: a negative loss was taken for a fault."""
    trainer(tmp_path, max_steps=3, beta=0.1).train()
    first, *_, last = metrics_of(tmp_path)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6) and last["kl"] > 1e-3
    assert last["loss"] == pytest.approx(last["policy_loss"] + last["kl_loss"], abs=1e-6)


@pytest.mark.parametrize("method", ["batch", "none", "leave_one_out", "gdpo", "max"])
def test_advantages_by_other_methods(tmp_path: Path, method: str) -> None:
    def short(completion: str) -> float:
        return -0.1 * len(completion.split())

    out = trainer(tmp_path, [share, short], advantage=method, max_steps=2).train()
    line = metrics_of(tmp_path)[0]
    assert out.learning.learned
    assert line["reward"] == pytest.approx(line["rewards/share/mean"] + line["rewards/short/mean"])


def test_schedules_get_the_real_step(tmp_path: Path) -> None:
    from rewardkit.compose import constant, schedule

    rising = as_reward(share) + schedule({0: constant(0.0), 2: constant(5.0)})
    trainer(tmp_path, rising, max_steps=3).train()
    first, second, third = (line["reward"] for line in metrics_of(tmp_path))
    assert first < 1.0 and second > 5.0 and third > 5.0


def test_start_from_goes_on_from_a_saved_adapter(tmp_path: Path) -> None:
    first = trainer(tmp_path / "one", max_steps=6).train()
    out = trainer(tmp_path / "two", max_steps=1, start_from=first.adapter, learning_rate=1e-6).train()
    rewards = [metrics_of(tmp_path / name) for name in ("one", "two")]
    assert rewards[1][0]["reward"] > rewards[0][0]["reward"] + 0.15
    assert 0 < out.learning.norm_of_change < 0.01  # measured from where it started


def test_logging_steps_and_sinks_leave_the_groups_alone(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=5, logging_steps=2).train()
    assert [line["step"] for line in metrics_of(tmp_path)] == [2, 4, 5]
    assert len(list(read_generations(tmp_path / "generations.jsonl"))) == 5 * 4


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        pytest.param({"model.load_in_4bit": True}, "bitsandbytes", id="nf4"),
        pytest.param({"model.load_in_4bit": True, "model.dtype": "bfloat16"}, "bitsandbytes", id="nf4-bfloat16"),
        pytest.param({"model.dtype": "bfloat16"}, None, id="bfloat16"),
        pytest.param({"memory.mode": "offload"}, None, id="offload"),
        pytest.param({"memory.gradient_checkpointing": True}, None, id="streamed"),
        pytest.param(
            {"memory.gradient_checkpointing": True, "model.load_in_4bit": True, "model.dtype": "bfloat16"},
            "bitsandbytes",
            id="streamed-nf4-bfloat16",
        ),
        pytest.param({"memory.token_budget": 40}, None, id="small-micro-steps"),
        pytest.param({"grpo.optim": "adamw_8bit"}, "bitsandbytes", id="adamw-8bit"),
    ],
)
def test_other_precisions_and_memory_paths_learn_too(
    tmp_path: Path, changes: dict[str, Any], needs: str | None
) -> None:
    if needs is not None:
        pytest.importorskip(needs)
    file = write_job(tmp_path, {"grpo.max_steps": 8, "rollout.check_logps_every": 2, **changes})
    assert run_file(file, TrainOptions(output=tmp_path / "run", quiet=True)) == 0
    rewards = [line["reward"] for line in metrics_of(tmp_path / "run")]
    assert sum(rewards[-3:]) / 3 > 0.45 > 0.25 > rewards[0]
    assert "does not sample" not in notes_of(tmp_path / "run")


def tiny_gpt2() -> Any:
    """A model with dropout of its own, 0.1 everywhere, as GPT-2 was published."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=1, bos_token_id=1, initializer_range=0.1))


@pytest.mark.parametrize("dropout", ["none", "config", "peft_config", "start_from", "base"])
def test_memory_paths_change_no_bit_whatever_draws_random_numbers(tmp_path: Path, dropout: str) -> None:
    """What is computed again must draw the dropout mask of the first time, wherever that dropout was set.

    Without dropout layers that are computed again on the device are streamed, which sums in another order.
    """
    lora = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], lora_dropout=0.3, task_type="CAUSAL_LM")
    saved = tmp_path / "saved"
    get_peft_model(tiny_llama(), lora).save_pretrained(str(saved), save_embedding_layers=False)
    own: dict[str, Any] = {
        "none": {},
        "config": {"lora_dropout": 0.3},
        "peft_config": {"peft_config": lora},
        "start_from": {"start_from": saved},
        "base": {},
    }[dropout]
    found = []
    again = {"gradient_checkpointing": True} if dropout != "none" else {"mode": "offload"}
    for name, changes in (("kept", {}), ("again", again), ("moved", {"mode": "offload"})):
        model = tiny_gpt2() if dropout == "base" else None
        trainer(tmp_path / name, model=model, max_steps=3, **own, **changes).train()
        found.append((tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes())
    assert found[0] == found[1] == found[2]


STREAMED: dict[str, Any] = {"gradient_checkpointing": True}
"""What a tiny model, of which everything could be kept, is streamed with."""


def test_a_run_with_streamed_layers_is_the_run_that_keeps_everything(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "max_steps": 4,
        "beta": 0.05,
        "num_iterations": 2,
        "token_budget": 48,
        "eval_dataset": ROWS[:2],
    }
    runs = {"kept": {"gradient_checkpointing": False}, "streamed": STREAMED}
    lines, weights = [], []
    for name, changes in runs.items():
        trainer(tmp_path / name, **how, **changes).train()
        lines.append(metrics_of(tmp_path / name))
        weights.append(load_file(tmp_path / name / "adapter" / "adapter_model.safetensors"))
        told = json.loads((tmp_path / name / "env.json").read_text())
        assert told["streamed"] == ("yes" if name == "streamed" else "no")
        assert ("layers streamed in chunks" in told["plan"]) is (name == "streamed")
    kept, streamed = lines
    for one, other in zip(kept, streamed, strict=True):
        assert one["reward"] == other["reward"] and one["completions/mean_length"] == other["completions/mean_length"]
        for name in ("loss", "grad_norm", "kl", "entropy", "ratio/max"):
            assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), name
        assert other["tokens/fed"] <= one["tokens/fed"]
    start = float(torch.stack([value.norm() for value in weights[0].values()]).norm())
    for name, value in weights[0].items():
        assert float((value - weights[1][name]).norm()) < 1e-3 * start, name


def test_streamed_layers_start_each_ratio_at_one_and_are_resumed_bit_by_bit(tmp_path: Path) -> None:
    how: dict[str, Any] = {"max_steps": 4, "save_steps": 1, **STREAMED}
    whole = trainer(tmp_path / "whole", **how).train()
    first = trainer(tmp_path / "run", callbacks=[lambda step, metrics: step == 2], **how).train()
    assert first.steps == 2
    rest = trainer(tmp_path / "run", **how).train(resume=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "run")
    assert whole.learning == rest.learning
    for line in metrics_of(tmp_path / "run"):
        assert line["ratio/min"] == line["ratio/max"] == 1.0
        assert line["sampling/sampling_logp_difference/max"] < 1e-4
    found = [(tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("whole", "run")]
    assert found[0] == found[1]


@pytest.mark.parametrize("path", [path for path in PATHS if path.streamed], ids=lambda path: path.name)
def test_layers_are_streamed_as_the_plan_says(tmp_path: Path, path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, states = setup.planning.make_plan, Streamed.hidden_states
    found: list[tuple[Any, ...]] = []
    moved: list[int] = []

    def noted(self: Streamed, *args: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            found.append((self.keep, self.chunk, self.store is not None))
            moved.append(0 if self.store is None else self.store.moved)
        return states(self, *args)

    def planned(*args: Any, **options: Any) -> Any:
        return dataclasses.replace(plan(*args, **options), path=path)

    monkeypatch.setattr(setup.planning, "make_plan", planned)
    monkeypatch.setattr(setup, "LayerInputs", functools.partial(LayerInputs, least=1))
    monkeypatch.setattr(Streamed, "hidden_states", noted)
    out = trainer(tmp_path, max_steps=2).train()
    assert found and set(found) == {(path.keep, path.chunk, path.mode == "offload")}
    assert out.learning.learned and (path.mode == "offload") == (moved[-1] > 0)


def test_a_model_is_tried_only_where_its_layers_might_be_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the trial compiles kernels, which takes seconds."""
    tried: list[str] = []
    inner = setup.streamed_of
    monkeypatch.setattr(setup, "streamed_of", lambda *args: tried.append("yes") or inner(*args))
    for folder, how in (("kept", {}), ("again", STREAMED)):
        trainer(tmp_path / folder, max_steps=1, **how).train()
    told = [json.loads((tmp_path / folder / "env.json").read_text())["streamed"] for folder in ("kept", "again")]
    assert (tried, told) == (["yes"], ["no", "yes"])


def test_a_model_that_cannot_be_streamed_says_why_once_and_trains(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=2, lora_dropout=0.1, **STREAMED).train()
    told = json.loads((tmp_path / "env.json").read_text())
    assert told["streamed"] == "an adapter with dropout" and "layers computed again, their inputs" in told["plan"]
    assert notes_of(tmp_path).count("not streamed in chunks") == 1


def test_dropout_of_the_base_model_is_off_since_nothing_samples_with_it(tmp_path: Path) -> None:
    trainer(tmp_path, model=tiny_gpt2(), max_steps=2, gradient_checkpointing=True).train()
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in metrics_of(tmp_path))


def test_dropout_of_the_adapter_is_on_where_it_was_asked_for(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=3, lora_dropout=0.5).train()
    # Not in the first step, in which the adapter gives 0 whatever it drops.
    assert metrics_of(tmp_path)[-1]["sampling/sampling_logp_difference/max"] > 1e-3


def test_a_model_of_the_user_is_given_back_without_our_checkpoints(tmp_path: Path) -> None:
    model = tiny_llama()
    trainer(tmp_path, model=model, max_steps=1, mode="offload").train()
    layer = model.model.layers[0]
    assert not layer.gradient_checkpointing and "_gradient_checkpointing_func" not in vars(layer)


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        pytest.param({"model.dtype": "bfloat16"}, "torch", id="bfloat16"),
        pytest.param({"model.load_in_4bit": True, "model.dtype": "auto"}, "bitsandbytes", id="nf4"),
    ],
)
def test_the_command_line_trains_a_model_that_learns(tmp_path: Path, changes: dict[str, Any], needs: str) -> None:
    pytest.importorskip(needs)
    file = write_job(tmp_path, {"grpo.max_steps": 12, "data.eval": "held_out.jsonl", **changes})
    done = train(file, "-o", tmp_path / "run", "--require-learning", "--set", "rollout.check_logps_every=1")
    assert done.returncode == 0, done.stderr
    rewards = [line["reward"] for line in metrics_of(tmp_path / "run")]
    assert sum(rewards[-3:]) / 3 > 0.45 > 0.25 > rewards[0]
    held = json.loads((tmp_path / "run" / "summary.json").read_text())["held_out"]["sampled"]
    assert held["after"] > held["before"] + 0.2
    assert "does not sample" not in notes_of(tmp_path / "run") and "held out  sampled" in done.stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vllm_samples_from_the_newest_adapter_and_learns(tmp_path: Path, dtype: str) -> None:
    """huggingface/trl#5312, #4973: a sampler in the trainer's process kept stale weights."""
    pytest.importorskip("vllm", reason="the second sampler")
    if dtype == "float32" and torch.cuda.is_available():
        pytest.skip("vLLM has no adapters in float32 on a GPU, and it is refused (test_vllm_inside.py)")
    write_model(tmp_path / "model", hidden=128)
    settings = {"rollout.engine": "vllm", "rollout.check_logps_every": 1, "grpo.learning_rate": 3e-3}
    settings["model.dtype"] = dtype
    file = write_job(tmp_path, {"grpo.max_steps": 6, **settings})
    done = train(file, "-o", tmp_path / "run", "-q")
    assert done.returncode == 0, done.stderr
    rewards = [line["reward"] for line in metrics_of(tmp_path / "run")]
    assert sum(rewards[-2:]) / 2 > 0.5 > 0.25 > rewards[0]
    events = [line for line in log_of(tmp_path / "run") if line["event"] == "agreement"]
    assert len(events) == 6 and "does not sample" not in notes_of(tmp_path / "run")


def test_vllm_beside_4_bit_weights_says_what_it_samples_from(tmp_path: Path) -> None:
    """On a GPU it has them in 4 bits, too, and agrees; elsewhere it has not, and says so."""
    pytest.importorskip("vllm", reason="the second sampler")
    pytest.importorskip("bitsandbytes")
    on_gpu = torch.cuda.is_available()
    write_model(tmp_path / "model", hidden=128)
    settings = {"rollout.engine": "vllm", "rollout.check_logps_every": 1, "grpo.learning_rate": 3e-3}
    settings["model.dtype"] = "bfloat16" if on_gpu else "float32"
    file = write_job(tmp_path, {"grpo.max_steps": 3, "model.load_in_4bit": True, **settings})
    done = train(file, "-o", tmp_path / "run", "-q")
    assert done.returncode == 0, done.stderr
    notes = notes_of(tmp_path / "run")
    assert "does not sample from adapter" not in notes and "vLLM's key-value cache has" in notes
    said = "holds the base weights as float32, the trainer as NF4"
    assert (said in notes) is (said in train(file, "--check").stdout) is not on_gpu
    if not on_gpu:
        assert "correction (token_truncate) weighs each token" in notes and "before the first update" in notes


@pytest.mark.parametrize("in_4bit", [False, True], ids=["plain", "NF4"])
def test_vllm_beside_training_holds_no_memory(tmp_path: Path, in_4bit: bool) -> None:
    """100 steps on a GPU, with checkpoints: neither the device's memory grows nor the host's, and log-probs agree."""
    pytest.importorskip("vllm", reason="the second sampler")
    on_gpu = torch.cuda.is_available()
    if in_4bit and not on_gpu:
        pytest.skip("vLLM has no 4-bit weights on a CPU")
    write_model(tmp_path / "model", hidden=128)
    device, host = [], []

    def look(step: int, metrics: Mapping[str, float]) -> None:
        gc.collect()
        device.append(metrics.get("memory/used_gb", 0.0) * 1e9)
        host.append(_resident_kib() * 1024)

    settings = {"dtype": "bfloat16" if on_gpu else "float32", "load_in_4bit": in_4bit, "learning_rate": 1e-3}
    trainer(
        tmp_path / "run", model=str(tmp_path / "model"), engine="vllm", max_steps=100 if on_gpu else 10,
        save_steps=20, check_logps_every=10, callbacks=[look], **settings,
    ).train()  # fmt: skip
    assert "does not sample" not in notes_of(tmp_path / "run")
    half = len(device) // 2
    assert max(device[half:]) - max(device[:half]) <= 8 << 20, device
    assert max(host[half:]) - max(host[:half]) <= 64 << 20, host


# ------------------------------------------------------------------------------------------------------ the Python door


def test_rewards_are_called_as_trl_calls_them(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def by_trl(prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        seen.append({"prompts": prompts, "completions": completions, "answer": answer})
        return [share(text) for text in completions]

    rows = [{"prompt": text, "answer": "a"} for text in PROMPTS]
    out = trainer(tmp_path, by_trl, rows=rows, max_steps=2).train()
    assert out.learning.learned and len(seen) == 2 * 4
    assert all(len(one["prompts"]) == len(one["completions"]) == len(one["answer"]) == 8 for one in seen)


def test_trl_functions_get_token_ids_and_may_log(tmp_path: Path) -> None:
    words, seen = tokenizer(), []

    def by_trl(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], trainer_state: Any, **kwargs: Any
    ) -> list[float]:
        assert [words.decode(ids, skip_special_tokens=True) for ids in completion_ids] == completions
        assert kwargs["answer"] == ["a"] * len(prompts)
        seen.append((trainer_state.global_step, len(prompts)))
        kwargs["log_extra"]("first", [text[:1] for text in completions])
        kwargs["log_metric"]("words", float(len(" ".join(completions).split())))
        kwargs["log_metric"]("reward", 99.0)  # a name of ours, which stays ours
        return [share(text) for text in completions]

    rows = [{"prompt": text, "answer": "a"} for text in PROMPTS[:3]]  # of a step's four, one is drawn twice
    out = trainer(tmp_path, by_trl, rows=rows, eval_dataset=rows, max_steps=2).train()
    assert out.learning.learned and {step for step, _ in seen} == {0, 1, 2}
    assert [size for step, size in seen if step] == [8] * 8  # each draw is a group
    groups = list(read_generations(tmp_path / "generations.jsonl"))
    made = [one for group in groups for one in group.completions]
    assert len(made) == 64 and all(one.metadata["first"] == one.text[:1] for one in made)
    lines = metrics_of(tmp_path)
    calls = [size for step, size in seen if step == 1]
    assert lines[0]["words"] == pytest.approx(sum(len(one.text.split()) for one in made[:32]) / len(calls))
    assert all(line["reward"] <= 1.0 for line in lines)
    # What it scores on disk is what it scored here, ids and all.
    again = [value for scored in score(as_reward(by_trl), groups) for value in scored.scores["by_trl"]]
    assert [one.value for one in again] == [share(one.text) for one in made]


def test_a_prompt_drawn_twice_in_a_step_is_two_groups_for_group_rewards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is rewarded together is what is compared: one draw, here and from the written file."""
    sizes: list[int] = []

    @group_reward
    def rank(completions: list[str]) -> list[float]:
        sizes.append(len(completions))
        return [float(sum(share(other) < share(text) for other in completions)) for text in completions]

    trainer(tmp_path, rank, rows=ROWS[:3], max_steps=2, eval_samples=0).train()
    assert sizes == [8] * 8
    groups = list(read_generations(tmp_path / "generations.jsonl"))
    assert len({one.key for one in groups}) == len(groups) == 8 and {one.start for one in groups} == {0}
    assert len({(one.sample.id, one.sample.step) for one in groups}) == 6
    again = [[one.value for one in scored.scores["rank"]] for scored in score(rank, groups)]
    written = [json.loads(line)["value"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [value for values in again for value in values] == written and sizes == [8] * 16
    rewardkit("eval", tmp_path / "generations.jsonl", "-r", "length", "-o", tmp_path / "eval")
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert summary["models"]["default"]["groups"]["n"] == 8
    assert "id of another task" not in json.dumps(summary)


@pytest.mark.parametrize(
    ("how", "steps", "epochs"),
    [
        ({"max_steps": 5}, 5, 3),  # 20 prompts of 8
        ({"max_steps": 5, "num_iterations": 2}, 5, 2),  # three batches of four prompts
        ({"max_steps": None, "num_train_epochs": 1.5}, 3, 2),
    ],
)
def test_trl_functions_are_told_where_the_run_stands(
    tmp_path: Path, how: dict[str, Any], steps: int, epochs: int
) -> None:
    told: list[dict[str, Any]] = []

    def by_trl(completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
        told.append(vars(trainer_state))
        return [share(text) * (1.0 - trainer_state.global_step / trainer_state.max_steps) for text in completions]

    trainer(tmp_path, by_trl, eval_dataset=ROWS, eval_samples=0, **how).train()
    held, drawn = [one for one in told if not one["global_step"]], [one for one in told if one["global_step"]]
    assert len(held) == 2 * len(ROWS) and {one["epoch"] for one in held} == {0.0}
    assert {(one["max_steps"], one["num_train_epochs"]) for one in told} == {(steps, epochs)}
    epoch = {line["step"]: line["epoch"] for line in metrics_of(tmp_path)}
    assert drawn and all(one["epoch"] == epoch[one["global_step"]] for one in drawn)


def test_log_extra_wants_one_value_for_each_completion(tmp_path: Path) -> None:
    def by_trl(completions: list[str], log_extra: Any) -> list[float]:
        log_extra("first", ["only one"])
        return [share(text) for text in completions]

    with pytest.raises(ContractError, match=r"log_extra\('first', ...\) was given 1 values for a group of 8"):
        trainer(tmp_path, by_trl, max_steps=1).train()


def test_a_dataset_names_and_metrics(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"prompt": text, "answer": "a"} for text in PROMPTS])
    out = trainer(tmp_path, {"total": share, "length": "length"}, rows=data, max_steps=2, eval_dataset=data).train()
    assert "rewards/length/mean" in out.metrics and "rewards/share/mean" in out.metrics
    assert out.change is not None and out.change.greedy is not None


def test_a_metric_called_like_a_part_of_the_total_leaves_it_alone(tmp_path: Path) -> None:
    def other(completion: str) -> float:
        return 7.0

    other.__name__ = "share"
    both = as_reward(share) + 0.5 * parse("length")
    out = trainer(tmp_path, {"total": both, "share": other, "length": other}, max_steps=1).train()
    texts = [one.text for group in read_generations(tmp_path / "generations.jsonl") for one in group.completions]
    assert out.metrics["rewards/share/mean"] == pytest.approx(sum(map(share, texts)) / len(texts))
    assert out.metrics["rewards/share (metric)/mean"] == out.metrics["rewards/length (metric)/mean"] == 7.0
    assert out.metrics["rewards/length/mean"] != 7.0


def test_lengths_tokens_and_spread_are_counted_as_trl_counts_them(tmp_path: Path) -> None:
    rows = [{"prompt": "a b c"}, {"prompt": "a"}]
    trainer(tmp_path, rows=rows, max_steps=1, per_device_train_batch_size=16).train()
    line = metrics_of(tmp_path)[0]
    groups = list(read_generations(tmp_path / "generations.jsonl"))
    made = [one for group in groups for one in group.completions]
    lengths = [one.tokens or 0 for one in made]
    ended = [one.tokens or 0 for one in made if one.finish_reason == "stop"]
    rewards = [share(one.text) for one in made]
    assert line["num_tokens"] == 8 * 3 + 8 * 1 + sum(lengths)  # the prompt is counted with each completion
    assert (line["completions/min_length"], line["completions/max_length"]) == (min(lengths), max(lengths))
    assert line["completions/min_terminated_length"] == min(ended)
    assert line["completions/max_terminated_length"] == max(ended) < max(lengths)
    assert line["completions/mean_terminated_length"] == pytest.approx(sum(ended) / len(ended))
    assert line["reward_std"] == pytest.approx(statistics.stdev(rewards))
    spreads = [statistics.stdev([share(one.text) for one in group.completions]) for group in groups]
    assert line["groups/reward_std"] == pytest.approx(sum(spreads) / len(spreads))


def test_a_peft_config_and_a_model_with_an_adapter(tmp_path: Path) -> None:
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    out = trainer(tmp_path / "one", peft_config=config, max_steps=1).train()
    saved = json.loads((out.run / "adapter" / "adapter_config.json").read_text())
    assert (saved["r"], saved["target_modules"]) == (2, ["q_proj"])
    assert trainer(tmp_path / "two", model=lora_model(), max_steps=1).train().learning.learned


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param({"reward_funcs": {"length": "length"}}, "'total', which trains", id="no-total"),
        pytest.param({"reward_funcs": []}, "empty list", id="no-rewards"),
        pytest.param({"reward_funcs": None}, "no reward is given", id="none"),
        pytest.param({"callbacks": [object()]}, "a callback is a function", id="callback"),
        pytest.param({"train_dataset": None}, "no train_dataset", id="no-data"),
        pytest.param({"train_dataset": [{"topic": 1}]}, "its columns are topic", id="no-prompt"),
        pytest.param({"train_dataset": [{"q": 1}]}, "row 0 of the data set: q is 1, where text", id="number"),
        pytest.param({"model": None}, "no model is given", id="no-model"),
        pytest.param({"args": object()}, "args is a trainer_backend.GRPOConfig", id="args"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    given = {"model": "somewhere", "reward_funcs": share, "args": tiny_config(), "train_dataset": ROWS, **arguments}
    with pytest.raises(RewardkitError, match=said):
        GRPOTrainer(**given)


def test_a_callback_that_returns_true_ends_the_run(tmp_path: Path) -> None:
    out = trainer(tmp_path, max_steps=9, callbacks=[lambda step, metrics: step == 2]).train()
    assert (out.ended, out.steps, out.exit_code) == ("done", 2, 0)


def test_scores_may_be_returned_with_words(tmp_path: Path) -> None:
    def graded(completion: str) -> Score:
        return Score(share(completion), "so many")

    assert trainer(tmp_path, graded, max_steps=1).train().learning.live > 0


def test_the_names_are_exported_lazily() -> None:
    code = "import sys, trainer_backend; print('torch' in sys.modules); from trainer_backend import GRPOConfig;"
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.split() == ["False", "False"]
    assert set(trainer_backend.__all__) <= set(dir(trainer_backend))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trainer_backend.nothing


# -------------------------------------------------------------------------------------------------- several processes


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def in_two_processes(*arguments: str | Path) -> list[tuple[int, str, str]]:
    """Run `rewardkit train` as torchrun starts two processes; return exit code, output and errors of each."""
    command = [sys.executable, "-m", "rewardkit", "train", *map(str, arguments)]
    port = str(_free_port())
    processes = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                command,
                env={**environment(), **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    settings = {"grpo.max_steps": 3, "grpo.per_device_train_batch_size": 16, "run.save_steps": 2}
    file = write_job(tmp_path, {**settings, "data.eval": "held_out.jsonl"})
    first, second = in_two_processes(file, "-o", tmp_path / "run")
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "adapter" in first[1] and not second[1]
    assert "step 3/3" in first[2] and "step 3/3" not in second[2]
    groups = list(read_generations(tmp_path / "run" / "generations.jsonl"))
    assert len(groups) == 3 * 4 and len({group.sample.id for group in groups[:8]}) == 8
    assert metrics_of(tmp_path / "run")[0]["rows/all"] == 32
    for name in ("before", "after"):  # each process has sampled two of the four
        held = list(read_generations(tmp_path / "run" / "held_out" / f"{name}.jsonl"))
        assert [group.sample.id for group in held] == ["h0", "h1", "h2", "h3"] * 2
        assert [len(group.completions) for group in held] == [1] * 4 + [4] * 4
    found = checkpoint.newest_valid(tmp_path / "run").checkpoint
    assert found is not None and len(found.random) == 2


def test_a_check_in_two_processes_is_told_once(tmp_path: Path) -> None:
    first, second = in_two_processes(write_job(tmp_path), "--check")
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "this run can learn" in first[1] and "sampling" in first[2]
    assert not second[1] and "sampling" not in second[2]
