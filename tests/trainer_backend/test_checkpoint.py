"""Checkpoints: whatever kills the writer or damages the files, the newest whole one is what a run goes on from."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_backend.checkpoint import (
    CheckpointError,
    Progress,
    discard_after,
    load,
    newest_valid,
    random_state,
    save,
    save_folder,
    set_random_state,
)

WEIGHTS = (7, 5)


def adapter_writer(value: float) -> Any:
    def write(folder: Path) -> None:
        save_file({"lora": torch.full(WEIGHTS, value)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text("{}")

    return write


def trained(steps: int = 3) -> tuple[torch.nn.Linear, torch.optim.Optimizer, Any]:
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    for _ in range(steps):
        take_step(model, optimizer, scheduler)
    return model, optimizer, scheduler


def take_step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
    scheduler.step()


def write(run: Path, *steps: int, keep: int = 10) -> None:
    for step in steps:
        save(run, step, save_adapter=adapter_writer(float(step)), progress=Progress({"position": step}), keep=keep)


def test_a_restored_optimizer_schedule_and_random_state_go_on_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer, scheduler = trained()
    random.seed(5)
    np.random.seed(5)
    random.gauss(0, 1)  # leaves a half-used pair behind, which is part of the state
    np.random.standard_normal()
    save(tmp_path, 3, save_adapter=adapter_writer(1.0), optimizer=optimizer, scheduler=scheduler)
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    take_step(model, optimizer, scheduler)
    wanted = (model.state_dict(), random.gauss(0, 1), np.random.standard_normal(), scheduler.get_last_lr())

    again, new_optimizer, new_scheduler = trained(0)
    again.load_state_dict(weights)
    found = newest_valid(tmp_path).checkpoint
    assert found is not None and found.step == 3
    found.restore(new_optimizer, new_scheduler)
    take_step(again, new_optimizer, new_scheduler)
    assert all(torch.equal(again.state_dict()[name], wanted[0][name]) for name in weights)
    assert (random.gauss(0, 1), np.random.standard_normal()) == wanted[1:3]
    assert new_scheduler.get_last_lr() == wanted[3]


def test_the_schedules_and_optimizers_of_a_run_can_be_saved(tmp_path: Path) -> None:
    from trainer_backend.optim import build_optimizer, build_scheduler

    model = torch.nn.Linear(5, 3)
    optimizer = build_optimizer("adamw_torch", model.parameters(), learning_rate=0.1)
    scheduler = build_scheduler("cosine", optimizer, steps=10, warmup_steps=2)
    for _ in range(4):
        take_step(model, optimizer, scheduler)
    save(tmp_path, 4, save_adapter=adapter_writer(1.0), optimizer=optimizer, scheduler=scheduler)
    fresh = build_optimizer("adamw_torch", model.parameters(), learning_rate=0.1)
    again = build_scheduler("cosine", fresh, steps=10, warmup_steps=2)
    load(tmp_path / "checkpoints/step-4").restore(fresh, again)
    assert again.get_last_lr() == scheduler.get_last_lr()
    again.step(), scheduler.step()
    assert again.get_last_lr() == scheduler.get_last_lr()


def test_place_counters_and_adapter_come_back(tmp_path: Path) -> None:
    progress = Progress({"position": 12, "epoch": 1}, {"tokens": 345, "nan_steps": 1, "seconds": 0.1}, {"version": 7})
    path = save(tmp_path, 12, save_adapter=adapter_writer(2.5), progress=progress)
    found = load(path)
    assert found.progress == progress
    assert torch.equal(load_file(found.adapter / "adapter_model.safetensors")["lora"], torch.full(WEIGHTS, 2.5))


def test_the_adapter_of_a_checkpoint_is_pefts(tmp_path: Path) -> None:
    from peft import PeftModel
    from tiny_policies import tiny_model

    from trainer_backend.model.adapter import checksum, save_adapter

    model = tiny_model()
    wanted = checksum(model)
    path = save(tmp_path, 1, save_adapter=lambda folder: save_adapter(model, folder))
    base = model.unload()
    assert checksum(PeftModel.from_pretrained(base, load(path).adapter, is_trainable=True)) == wanted


def test_each_process_gets_its_own_random_state(tmp_path: Path) -> None:
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(random_state())
    path = save(tmp_path, 1, save_adapter=adapter_writer(1.0), random_states=states)
    load(path).restore(rank=1)
    drawn = torch.rand(3)
    torch.manual_seed(2)
    assert torch.equal(drawn, torch.rand(3))
    load(path).restore(rank=5)  # one that was not there: nothing to put back


def test_numpy_and_python_states_survive_their_way_through_plain_values() -> None:
    before = random_state()
    drawn = (random.random(), np.random.rand(), torch.rand(1).item())
    set_random_state(before)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn


def test_nan_counters_are_refused_since_the_file_is_strict_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 1, save_adapter=adapter_writer(1.0), progress=Progress({}, {"loss": float("nan")}))
    assert newest_valid(tmp_path).checkpoint is None
    assert not list((tmp_path / "checkpoints").iterdir())


def test_what_could_not_be_read_again_is_refused_when_it_is_written(tmp_path: Path) -> None:
    _, optimizer, scheduler = trained()
    scheduler.strange = Path("a pickled object")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        save(tmp_path, 1, save_adapter=adapter_writer(1.0), optimizer=optimizer, scheduler=scheduler)


# ----------------------------------------------------------------------------------------------------- keeping, linking


def test_only_so_many_are_kept_and_latest_points_at_the_newest(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-20", "step-30"]
    assert (tmp_path / "latest").resolve() == (tmp_path / "checkpoints/step-30").resolve()
    assert not Path(os.readlink(tmp_path / "latest")).is_absolute()  # a folder that is moved keeps its link


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    write(tmp_path, 9, 10, 100, keep=2)
    found = newest_valid(tmp_path).checkpoint
    assert found is not None and found.step == 100
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-10", "step-100"]


def test_saving_a_step_again_leaves_the_whole_one_alone_and_mends_a_damaged_one(tmp_path: Path) -> None:
    write(tmp_path, 5)
    state = tmp_path / "checkpoints/step-5/state.json"
    before = state.stat().st_mtime_ns
    write(tmp_path, 5)
    assert state.stat().st_mtime_ns == before
    state.write_text("{")
    write(tmp_path, 5)
    assert newest_valid(tmp_path).notes == ()


def test_a_resumed_run_removes_later_and_half_written_ones(tmp_path: Path) -> None:
    write(tmp_path, 5, 10, 15)
    (tmp_path / "checkpoints/step-20.new").mkdir()
    discard_after(tmp_path, 10)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-10", "step-5"]


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert newest_valid(tmp_path).checkpoint is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-x").mkdir()
    (tmp_path / "checkpoints/notes.txt").write_text("")
    assert newest_valid(tmp_path).checkpoint is None


# --------------------------------------------------------------------------------------------------------------- damage


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit in the adapter": (lambda at: _flip(at / "adapter/adapter_model.safetensors"), "another content"),
    "a flipped bit in the optimizer": (lambda at: _flip(at / "optimizer.pt"), "another content"),
    "a truncated file": (lambda at: os.truncate(at / "random.pt", 100), "bytes instead of"),
    "a missing file": (lambda at: (at / "adapter/adapter_config.json").unlink(), "missing"),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), "not finished"),
    "half a manifest": (lambda at: os.truncate(at / "manifest.json", 30), "cannot be read"),
    "a manifest of something else": (lambda at: (at / "manifest.json").write_text("[]"), "something else"),
    "a manifest that names a file outside": (
        lambda at: _edit(at, lambda manifest: manifest["files"].update({"../../x": {"bytes": 1, "sha256": ""}})),
        "no file of a checkpoint",
    ),
    "a manifest of another step": (lambda at: _edit(at, lambda manifest: manifest.update(step=3)), "step 3"),
    "a manifest without files": (lambda at: _edit(at, lambda manifest: manifest.update(files={})), "all files"),
    "a file behind a link": (lambda at: _behind_link(at / "optimizer.pt"), "missing"),
}


def _edit(folder: Path, change: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _behind_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("why", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_note(why: str, tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    damage, says = DAMAGE[why]
    damage(tmp_path / "checkpoints/step-20")
    found = newest_valid(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 10
    (note,) = found.notes
    assert "step-20" in note and says in note
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        load(tmp_path / "checkpoints/step-20")


def test_a_checkpoint_of_another_version_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    _edit(tmp_path / "checkpoints/step-20", lambda manifest: manifest.update(schema="rewardkit.checkpoint/9"))
    with pytest.raises(CheckpointError, match=r"rewardkit\.checkpoint/9; this one reads rewardkit\.checkpoint/1"):
        newest_valid(tmp_path)


def test_a_pickle_with_right_hashes_is_not_run(tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    write(tmp_path, 10)
    at = tmp_path / "checkpoints/step-10"
    for data in (pickle.dumps(Evil()), _torch_pickle(Evil(), tmp_path / "evil.pt")):
        (at / "optimizer.pt").write_bytes(data)
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _edit(at, lambda manifest, entry=entry: manifest["files"].update({"optimizer.pt": entry}))
        found = newest_valid(tmp_path)
        assert found.checkpoint is None and "cannot be read" in found.notes[0]
    assert not (tmp_path / "ran").exists()


def _torch_pickle(value: Any, path: Path) -> bytes:
    torch.save(value, path)
    return path.read_bytes()


def test_the_state_of_another_optimizer_is_named(tmp_path: Path) -> None:
    _, optimizer, scheduler = trained()
    path = save(tmp_path, 1, save_adapter=adapter_writer(1.0), optimizer=optimizer, scheduler=scheduler)
    other = torch.optim.AdamW([{"params": [torch.zeros(2)]}, {"params": [torch.zeros(3)]}], lr=0.1)
    with pytest.raises(CheckpointError, match="another optimizer"):
        load(path).restore(other)
    with pytest.raises(CheckpointError, match="no state of the optimizer"):
        load(save(tmp_path, 2, save_adapter=adapter_writer(1.0))).restore(optimizer)


# ---------------------------------------------------------------------------------------------------------------- kills

# A process that has imported all forks the savers and kills them, so that torch is not imported twenty times.
_SAVER = """
import os, pathlib, random, signal, sys, time, torch
from safetensors.torch import load_file, save_file
from trainer_backend.checkpoint import Progress, newest_valid, save
torch.set_num_threads(1)
run, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(300, 400)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model(torch.ones(2, 300)).sum().backward()
optimizer.step()

def save_forever(step, out):
    while True:
        step += 1
        def adapter(folder):
            save_file({"lora": torch.full((300, 400), float(step))}, folder / "adapter_model.safetensors")
        save(run, step, save_adapter=adapter, optimizer=optimizer, progress=Progress({"position": step}), keep=1)
        os.write(out, b"%d\\n" % step)

rng = random.Random(11)
first = 0
for _ in range(rounds):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        save_forever(first, write)
    os.close(write)
    lines = open(read, "rb")
    done = int(lines.readline())
    time.sleep(rng.uniform(0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done = max([done, *map(int, lines.read().split())])
    found = newest_valid(run)
    step = found.checkpoint.step
    weights = load_file(found.checkpoint.adapter / "adapter_model.safetensors")["lora"]
    assert found.notes == () and step >= done, (found.notes, step, done)
    assert found.checkpoint.progress.data == {"position": step}
    assert torch.equal(weights, torch.full((300, 400), float(step)))
    first = step
print("rounds", rounds)
"""


def test_a_kill_at_any_moment_leaves_the_newest_finished_one_usable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SAVER, str(tmp_path), "20"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "rounds 20\n", done.stderr
    assert newest_valid(tmp_path).checkpoint is not None


# The same at every point at all: a child dies just before its k-th change of the file system, for k = 1, 2, ...
_EVERY_POINT = """
import os, pathlib, shutil, signal, sys, torch
from safetensors.torch import load_file, save_file
from trainer_backend.checkpoint import Progress, newest_valid, save
torch.set_num_threads(1)
work = pathlib.Path(sys.argv[1])
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "shutil.rmtree", "shutil.copyfile"}
countdown = None

def hook(event, arguments):
    global countdown
    if countdown is not None and event in CHANGES:
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)

def write(run, step):
    def adapter(folder):
        save_file({"lora": torch.full((3,), float(step))}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text("{}")
    save(run, step, save_adapter=adapter, progress=Progress({"position": step}), keep=1)

def check(run, steps):
    found = newest_valid(run)
    assert found.notes == () and found.checkpoint is not None and found.checkpoint.step in steps, (point, found)
    weights = load_file(found.checkpoint.adapter / "adapter_model.safetensors")["lora"]
    assert torch.equal(weights, torch.full((3,), float(found.checkpoint.step)))
    return found.checkpoint.step

point, outcomes = 0, []
write(work / "first", 1)
while True:
    point += 1
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(work / "first", run, symlinks=True)
    child = os.fork()
    if child == 0:
        countdown = point
        write(run, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    outcomes.append(check(run, (1, 2)))
    write(run, 2)
    check(run, (2,))
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert left == ["step-2"], (point, left)
print(outcomes == sorted(outcomes), outcomes.count(1) > 10, outcomes.count(2) > 2)
"""


def test_a_kill_before_any_change_of_the_file_system_leaves_a_whole_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_POINT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True True True\n", done.stderr


# ------------------------------------------------------------------------------------------------------------ full disk

_FULL = """
import resource, sys, pathlib, torch
from safetensors.torch import save_file
from trainer_backend.checkpoint import CheckpointError, newest_valid, save
run, limit, large = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def adapter(size):
    return lambda folder: save_file({"lora": torch.ones(size)}, folder / "adapter_model.safetensors")
def optimizer(size):
    weight = torch.nn.Parameter(torch.ones(size))
    made = torch.optim.AdamW([weight], lr=0.1)
    weight.sum().backward()
    made.step()
    return made
save(run, 1, save_adapter=adapter(10), optimizer=optimizer(10))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
big = 500_000
try:
    sizes = (big, 10) if large == "adapter" else (10, big)
    save(run, 2, save_adapter=adapter(sizes[0]), optimizer=optimizer(sizes[1]))
except CheckpointError as problem:
    print(problem)
found = newest_valid(run)
print(found.checkpoint.step, found.notes, sorted(path.name for path in (run / "checkpoints").iterdir()))
save(run, 3, save_adapter=adapter(10), optimizer=optimizer(10))
print(newest_valid(run).checkpoint.step)
"""


def check_full(run: Path, limit: int, large: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(run), str(limit), large], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sentence, state, after = done.stdout.splitlines()
    assert "checkpoint of step 2 cannot be written" in sentence and says in sentence
    assert "the one of step 1 stays the newest" in sentence
    assert state == "1 () ['step-1']"
    assert after == "3"


@pytest.mark.parametrize("large", ["adapter", "optimizer"])
def test_a_file_that_cannot_be_written_leaves_the_one_before(large: str, tmp_path: Path) -> None:
    check_full(tmp_path, 300_000, large, "File too large")


@pytest.mark.parametrize("large", ["adapter", "optimizer"])
def test_a_full_disk_leaves_the_one_before(large: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        check_full(disk, 0, large, "No space left on device")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "adapter"
    save_folder(place, adapter_writer(1.0))

    def full(folder: Path) -> None:
        adapter_writer(2.0)(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="adapter cannot be written: No space left on device"):
        save_folder(place, full)
    assert os.listdir(tmp_path) == ["adapter"]
    assert bool((load_file(place / "adapter_model.safetensors")["lora"] == 1.0).all())
    save_folder(place, adapter_writer(3.0))
    assert bool((load_file(place / "adapter_model.safetensors")["lora"] == 3.0).all())


def test_an_error_of_the_adapters_writer_that_is_no_full_disk_is_passed_on(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError("a fault of its own")

    write(tmp_path, 1)
    with pytest.raises(ZeroDivisionError):
        save(tmp_path, 2, save_adapter=broken)
    found = newest_valid(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 1
    assert found.notes == ()
