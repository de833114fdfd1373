"""The folder of a training run: what it holds, who may write to it, and that a resumed run's files are those of an
unbroken one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewardkit import Generation, Sample, Score
from rewardkit.engine import Engine, Scored
from rewardkit.errors import RunFolderError, UsageError
from rewardkit.records import read_generations, read_scores
from trainer_backend import runlog
from trainer_backend.config import GRPOConfig, read_training_file
from trainer_backend.runlog import LINES, RunLog, as_generation, run_path

CONFIG = GRPOConfig(model="smollm2", train=Path("/data/train.jsonl"), reward={"total": "gsm8k"}, max_steps=20)


def group(step: int, at: int) -> Generation:
    sample = Sample(f"q{at}", f"{at} + 1?", reference=str(at + 1), metadata={"level": at})
    texts = [f"#### {at + 1}", f"#### {at + step}", ""]
    found = [SimpleNamespace(text=text, ids=(1,) * len(text), finish_reason="stop") for text in texts]
    return as_generation(sample, found, step)


def scored(step: int, groups: int = 2) -> list[Scored]:
    with Engine("gsm8k", workers=1) as engine:
        return list(engine.score([group(step, at) for at in range(groups)]))


def write_steps(log: RunLog, first: int, last: int) -> None:
    for step in range(first, last + 1):
        log.step(step, {"reward": step / 10, "loss": 0.0}, scored(step), [[1.0, -0.5, -0.5]] * 2)


def without_times(path: Path) -> bytes:
    return re.sub(rb'"seconds":[0-9.e-]+', b"", path.read_bytes())


def rewardkit(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rewardkit", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


# ------------------------------------------------------------------------------------------------------ what it writes


def test_a_run_writes_what_eval_show_and_compare_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunLog(run, CONFIG) as log:
        log.begin()
        write_steps(log, 1, 2)
    done = rewardkit("eval", run / "generations.jsonl", "-r", "gsm8k", "-o", "scores", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(12 scored, 0 unscored)" in done.stdout
    again = list(read_scores(tmp_path / "scores/scores.jsonl"))
    ours = list(read_scores(run / "scores.jsonl"))

    def told(record: Any) -> tuple[Any, ...]:
        return record.id, record.index, record.group, record.reward, record.state, record.value, record.reason

    assert list(map(told, again)) == list(map(told, ours))
    shown = rewardkit("show", "scores", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    other = rewardkit("eval", run / "generations.jsonl", "-r", "gsm8k", "-o", "again", "-q", cwd=tmp_path)
    compared = rewardkit("compare", "scores", "again", cwd=tmp_path)
    assert (other.returncode, compared.returncode) == (0, 0), compared.stderr


def test_generations_come_back_with_step_length_and_advantage(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        write_steps(log, 7, 7)
    first, second = read_generations(tmp_path / "run/generations.jsonl")
    assert (first.sample.step, first.sample.id, second.sample.id) == (7, "q0", "q1")
    assert first.sample.metadata == {"level": 0}
    assert [one.metadata["advantage"] for one in first.completions] == [1.0, -0.5, -0.5]
    assert [(one.tokens, one.finish_reason) for one in first.completions] == [(6, "stop"), (6, "stop"), (0, "stop")]


def test_a_prompt_drawn_twice_in_a_step_is_one_group_with_places_of_their_own(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        (one,) = scored(3, 1)
        log.step(3, {}, [one, one])
    assert [record.index for record in read_scores(tmp_path / "run/scores.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert [one.start for one in read_generations(tmp_path / "run/generations.jsonl")] == [0, 3]


def test_metrics_are_strict_json_and_say_what_was_not_finite(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        log.step(1, {"loss": float("nan"), "grad_norm": float("inf"), "reward": 0.5})
        log.step(2, {"loss": 0.25})
        lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()  # flushed, though nothing is closed
    assert json.loads(lines[0], parse_constant=pytest.fail) == {
        "step": 1, "loss": None, "grad_norm": None, "reward": 0.5, "not_finite": ["loss", "grad_norm"],
    }  # fmt: skip
    assert json.loads(lines[1]) == {"step": 2, "loss": 0.25}


def test_the_written_settings_are_a_training_file_that_gives_the_same(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
    assert read_training_file(tmp_path / "run/config.toml").differences(CONFIG, resuming=True).keys() <= {"run.base"}


def test_summary_environment_and_log_are_there(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin(environment={"device": "cpu"}, prompts=30)
        log.log("checkpoint", step=5)
        log.summary({"reward": 0.5, "kl": float("nan")})
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text()) == {"schema": runlog.SCHEMA, "reward": 0.5, "kl": None}
    environment = json.loads((run / "env.json").read_text())
    assert environment["device"] == "cpu" and environment["versions"]["torch"]
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [(one["event"], one.get("prompts"), one.get("step")) for one in events] == [
        ("start", 30, None), ("checkpoint", None, 5),
    ]  # fmt: skip


def test_without_generations_the_scores_stay(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG.model_copy(update={"keep_generations": False})) as log:
        log.begin()
        write_steps(log, 1, 1)
    assert not (tmp_path / "run/generations.jsonl").exists()
    assert len(list(read_scores(tmp_path / "run/scores.jsonl"))) == 6


def test_a_column_that_json_cannot_hold_is_left_out_and_said_once(tmp_path: Path) -> None:
    sample = Sample("q", "?", metadata={"image": object(), "level": 1})
    found = [SimpleNamespace(text="1", ids=(1,), finish_reason="stop")]
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        for step in (1, 2):
            one = as_generation(sample, found, step)
            log.step(step, {}, [Scored(one, {"total": [Score(1.0)]})])
    assert [one.sample.metadata for one in read_generations(tmp_path / "run/generations.jsonl")] == [{"level": 1}] * 2
    assert (tmp_path / "run/log.jsonl").read_text().count("left out") == 1


# ------------------------------------------------------------------------------------------------------------- resuming


def test_a_resumed_runs_files_are_those_of_an_unbroken_one(tmp_path: Path) -> None:
    with RunLog(tmp_path / "whole", CONFIG) as log:
        log.begin()
        write_steps(log, 1, 6)
    broken = tmp_path / "broken"
    with RunLog(broken, CONFIG) as log:
        log.begin()
        write_steps(log, 1, 3)
        offsets = log.offsets()
        write_steps(log, 4, 5)  # steps that the checkpoint does not know
        log.summary({})
    with (broken / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "rew')  # what a kill leaves
    for _ in range(2):  # a resumed run that is killed at once is resumed in turn
        with RunLog(broken, CONFIG, resume=True) as log:
            log.begin(offsets=json.loads(json.dumps(offsets)))
            assert not (broken / "summary.json").exists()
    with RunLog(broken, CONFIG, resume=True) as log:
        log.begin(offsets=offsets)
        write_steps(log, 4, 6)
    for name in LINES:
        assert without_times(broken / name) == without_times(tmp_path / "whole" / name) != b""
    assert '"event":"resume"' in (broken / "log.jsonl").read_text()


@pytest.mark.parametrize("damage", ["shorter", "moved"])
def test_a_file_that_is_not_what_the_checkpoint_left_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        write_steps(log, 1, 2)
        offsets = log.offsets()
    path = tmp_path / "run/generations.jsonl"
    path.write_bytes(path.read_bytes()[:-9] if damage == "shorter" else b"  " + path.read_bytes())
    with (
        RunLog(tmp_path / "run", CONFIG, resume=True) as log,
        pytest.raises(RunFolderError, match=r"generations\.jsonl is not what the checkpoint has left"),
    ):
        log.begin(offsets=offsets)


def test_changed_settings_are_listed_and_refused_unless_allowed(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
    other = CONFIG.model_copy(update={"learning_rate": 1e-3, "save_steps": 7})
    with pytest.raises(RunFolderError, match=r"grpo\.learning_rate was 5e-05, now 0\.001; .*--allow-change"):
        RunLog(tmp_path / "run", other, resume=True).__enter__()
    with RunLog(tmp_path / "run", other, resume=True, allow_change=True) as log:
        assert set(log.changes) == {"grpo.learning_rate"}
        log.begin(offsets={})
    assert "learning_rate = 0.001" in (tmp_path / "run/config.toml").read_text()
    assert '"changes":{"grpo.learning_rate":["5e-05","0.001"]}' in (tmp_path / "run/log.jsonl").read_text()


def test_without_resume_or_overwrite_a_run_is_not_touched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunLog(run, CONFIG) as log:
        log.begin()
        write_steps(log, 1, 1)
    (run / "checkpoints/step-1").mkdir(parents=True)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=r"has a training run already; .*--resume .*--overwrite"):
        RunLog(run, CONFIG).__enter__()
    assert (run / "metrics.jsonl").read_bytes() == before
    with RunLog(run, CONFIG, overwrite=True) as log:
        assert (run / "metrics.jsonl").read_bytes() == before  # entering changes nothing
        log.begin()
    assert (run / "metrics.jsonl").read_bytes() == b""
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize("name", ["checkpoints/step-1/manifest.json", "generations.jsonl", "latest"])
def test_what_a_run_without_a_line_of_metrics_has_left_is_not_touched(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    with RunLog(run, CONFIG) as log:
        log.begin()
    with RunLog(run, CONFIG) as log:  # nothing has come of it
        log.begin()
    if name == "latest":
        (run / name).symlink_to("checkpoints/step-1")
    else:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("{}\n")
    with pytest.raises(RunFolderError, match="has a training run already"):
        RunLog(run, CONFIG).__enter__()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("# Written by rewardkit eval\n")
    for how in ({}, {"overwrite": True}):
        with pytest.raises(RunFolderError, match="no folder of a training run"):
            RunLog(tmp_path, CONFIG, **how).__enter__()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        RunLog(tmp_path / "file", CONFIG).__enter__()
    with pytest.raises(RunFolderError, match="there is no run in it"):
        RunLog(tmp_path / "new", CONFIG, resume=True).__enter__()
    assert not (tmp_path / "new").exists()


def test_two_processes_never_write_into_one_folder(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        script = (
            "import sys; from pathlib import Path; from trainer_backend.config import GRPOConfig\n"
            "from trainer_backend.runlog import RunLog\n"
            "RunLog(Path(sys.argv[1]), GRPOConfig(model='smollm2'), overwrite=True).__enter__()"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, check=False
        )
        assert "another run is writing to" in done.stderr
    with RunLog(tmp_path / "run", CONFIG):
        pass  # free again


@pytest.mark.skipif(os.name == "nt", reason="file size limits are POSIX")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from trainer_backend.config import GRPOConfig\n"
        "from trainer_backend.runlog import RunLog\n"
        "from rewardkit.errors import RunFolderError\n"
        "with RunLog(Path(sys.argv[1]), GRPOConfig(model='smollm2')) as log:\n"
        "    log.begin()\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "    try:\n"
        "        for step in range(100): log.step(step, {'reward': 0.5})\n"
        "    except RunFolderError as problem: print(problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "metrics.jsonl cannot be written: File too large" in done.stdout


# ----------------------------------------------------------------------------------------------------------- the path


def test_the_folder_is_named_by_what_makes_the_result(tmp_path: Path) -> None:
    path = run_path(CONFIG, "sums", data="abc")
    assert path.parent == Path("runs") and path.name.startswith("sums-") and len(path.name) == 13
    assert run_path(CONFIG.model_copy(update={"save_steps": 3}), "sums", data="abc") == path
    for other in ({"seed": 1}, {"learning_rate": 1e-3}):
        assert run_path(CONFIG.model_copy(update=other), "sums", data="abc") != path
    assert run_path(CONFIG, "sums", data="abd") != path
    assert run_path(CONFIG.model_copy(update={"dir": tmp_path}), "sums") == tmp_path


# ---------------------------------------------------------------------------------------------------------------- sinks


class Failing:
    def __init__(self, path: Path, config: GRPOConfig) -> None:
        self.calls = 0

    def log(self, step: int, metrics: Any) -> None:
        self.calls += 1
        raise ConnectionError("the service is away")

    def close(self) -> None:
        raise AssertionError("a sink that has failed is left alone")


def test_a_failing_sink_is_said_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runlog._SINKS, "trackio", Failing)
    said: list[str] = []
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        log.open_sinks(["trackio"], said.append)
        for step in (1, 2, 3):
            log.step(step, {"reward": 0.5})
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    (sentence,) = said
    assert "trackio has failed" in sentence and "the service is away" in sentence


def test_an_absent_package_is_an_error_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        for name in ("trackio", "tensorboard"):
            with pytest.raises(UsageError, match=f"pip install {name}"):
                log.open_sinks([name], print)


def test_tensorboard_gets_the_numbers_of_each_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(tmp_path / "run", CONFIG) as log:
        log.begin()
        log.open_sinks(["tensorboard"], pytest.fail)
        for step in (1, 2):
            log.step(step, {"reward": step / 2, "loss": float("nan"), "note": "text"})
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("reward")] == [(1, 0.5), (2, 1.0)]
    assert events.Tags()["scalars"] == ["reward"]
