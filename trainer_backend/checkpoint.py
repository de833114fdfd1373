"""Checkpoints: what a run needs to go on after it was killed, written so that no kill at any moment costs the newest.

    RUN/checkpoints/step-40/adapter/        the adapter, in peft's format
                            optimizer.pt    state of the optimizer and of the schedule
                            random.pt       random states: torch (CPU, CUDA), Python, numpy; one a process
                            state.json      the place in the data, and counters
                            manifest.json   schema, step, size and SHA-256 of every file
    RUN/latest                              a link to the newest

A checkpoint is written into a folder beside its place, its manifest last, everything is put on the disk, and then the
folder is renamed: under its own name there is a whole checkpoint or none. Older ones are removed only after that.
Nothing is unpickled that could run code: tensors are read by `torch.load(weights_only=True)` or safetensors, all else
is JSON.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from rewardkit.errors import RunFolderError
from rewardkit.records.text import path_text

SCHEMA = "rewardkit.checkpoint/1"
FOLDER = "checkpoints"
LATEST = "latest"

_FAMILY = "rewardkit.checkpoint/"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_HASHED = 1 << 20  # bytes read at once

RandomState: TypeAlias = dict[str, Any]
"""The random states of one process; see `random_state`."""


class CheckpointError(RunFolderError):
    """A checkpoint cannot be written, or none can be read; the message says which and what stays valid."""


# --------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside its tensors. All of it is written as JSON.

    Attributes:
        data: The place in the data, such as {"position": 320}; what it means is its owner's affair.
        counters: Numbers that go on over a resume: tokens, skipped steps, seconds.
        extra: Anything else that is plain data.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole.

    Attributes:
        path: Its folder.
        step: How many steps had been taken.
        optimizer: State of the optimizer, as its `state_dict` gave it; None where none was saved.
        scheduler: The same for the schedule.
        random: Random states, one a process.
        progress: The place in the data, and counters.
    """

    path: Path
    step: int
    optimizer: dict[str, Any] | None
    scheduler: dict[str, Any] | None
    random: tuple[RandomState, ...]
    progress: Progress

    @property
    def adapter(self) -> Path:
        """The folder of the adapter."""
        return self.path / "adapter"

    def restore(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        *,
        rank: int = 0,
    ) -> None:
        """Put back optimizer, schedule and the random states of this process. The adapter is loaded by its owner.

        What is put back is what training has made: moments, and the place in the schedule. Learning rate, weight decay,
        betas and epsilon are those that optimizer and schedule were made with, which may be others than before.

        Args:
            optimizer: Made anew, with the settings of the run; None: left as it is.
            scheduler: The same.
            rank: Which process this is. One that was not there when the checkpoint was written keeps its states.

        Raises:
            CheckpointError: The state is of another optimizer or schedule.
        """
        settings = [] if optimizer is None else [_settings(group) for group in optimizer.param_groups]
        rates = [float(rate) for rate in getattr(scheduler, "base_lrs", ())]
        for what, target, state in (
            ("optimizer", optimizer, self.optimizer),
            ("schedule", scheduler, self.scheduler),
        ):
            if target is None:
                continue
            if state is None:
                raise CheckpointError(f"{path_text(self.path)} holds no state of the {what}")
            try:
                target.load_state_dict(state)
            except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as problem:
                why = " ".join(str(problem).split())
                raise CheckpointError(
                    f"{path_text(self.path)} holds the state of another {what} ({why}); resume with the settings that"
                    " the run was started with"
                ) from None
        if optimizer is not None:
            for group, own in zip(optimizer.param_groups, settings, strict=True):
                group.update(own)
        if isinstance(scheduler, LambdaLR):
            _at_its_place(scheduler, rates)
        if rank < len(self.random):
            set_random_state(self.random[rank])


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _at_its_place(scheduler: LambdaLR, rates: list[float]) -> None:
    """Set the learning rates of a schedule's place, from the rates that it was made with."""
    scheduler.base_lrs = list(rates)
    found = [rate * shape(scheduler.last_epoch) for rate, shape in zip(rates, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, found, strict=True):
        group["lr"] = rate
    scheduler._last_lr = list(found)


@dataclass(frozen=True)
class Found:
    """What `newest_valid` found.

    Attributes:
        checkpoint: The newest whole one; None where there is none.
        notes: One sentence for each newer one that is damaged or half written.
    """

    checkpoint: Checkpoint | None
    notes: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------------------- random


def random_state() -> RandomState:
    """Return the random states of this process as plain values and tensors: torch, cuda (a list), python, numpy."""
    version, numbers, gauss = random.getstate()
    kind, keys, at, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(numbers), gauss],
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(at),
            int(has_gauss),
            float(cached),
        ],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put back what `random_state` returned; devices that are not here are passed over."""
    torch.set_rng_state(state["torch"].cpu())
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, one in enumerate(state["cuda"][:devices]):
        torch.cuda.set_rng_state(one.cpu(), device)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, at, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), at, has_gauss, cached))


# -------------------------------------------------------------------------------------------------------------- writing


def save(
    run: Path,
    step: int,
    *,
    save_adapter: Callable[[Path], object],
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    progress: Progress | None = None,
    random_states: Sequence[RandomState] | None = None,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step, point `latest` at it, and remove those that are too many.

    One process writes; the others wait for it. A whole checkpoint of this step that is there already is left alone.

    Args:
        run: The run's folder.
        step: Steps taken.
        save_adapter: Writes the adapter into the folder it is given, which exists and is empty.
        optimizer, scheduler: As they are between two steps.
        progress: The place in the data, and counters.
        random_states: One a process, from `random_state`; None: this process alone.
        keep: How many checkpoints stay, this one included.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: It cannot be written, because the disk is full for example. The one before stays as it was.
    """
    place = run / FOLDER / f"step-{step}"
    if _damage(place) is not None:
        _write(run, step, place, save_adapter, optimizer, scheduler, progress or Progress(), random_states)
    _link(run, place)
    _prune(place.parent, step, keep)
    return place


def _write(
    run: Path,
    step: int,
    place: Path,
    save_adapter: Callable[[Path], object],
    optimizer: torch.optim.Optimizer | None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    progress: Progress,
    random_states: Sequence[RandomState] | None,
) -> None:
    """Write a checkpoint beside its place, then put it there."""
    temporary = place.with_name(place.name + ".new")
    with _explained(run, step):
        _clear(temporary)
        (temporary / "adapter").mkdir(parents=True)
        save_adapter(temporary / "adapter")
        parts = {"optimizer": optimizer, "scheduler": scheduler}
        _write_tensors(
            temporary / "optimizer.pt",
            {name: None if part is None else part.state_dict() for name, part in parts.items()},
        )
        _write_tensors(temporary / "random.pt", list(random_states or [random_state()]))
        _write_json(temporary / "state.json", _as_dict(progress))
        files = {_relative(path, temporary): _sealed(path) for path in _files(temporary)}
        manifest = {"schema": SCHEMA, "step": step, "versions": {"torch": torch.__version__}, "files": files}
        _write_json(temporary / _MANIFEST, manifest)
        for folder in (*(path for path in temporary.rglob("*") if path.is_dir()), temporary):
            _sync(folder)
        _clear(place)  # a damaged one of this step
        os.replace(temporary, place)
        _sync(place.parent)


def save_folder(place: Path, write: Callable[[Path], object]) -> None:
    """Write a folder whole or not at all, in place of one of that name.

    Args:
        place: The folder.
        write: Writes into the folder it is given, which exists and is empty.

    Raises:
        CheckpointError: It cannot be written, because the disk is full for example. What was there stays as it was.
    """
    temporary = place.with_name(place.name + ".new")
    try:
        _clear(temporary)
        temporary.mkdir(parents=True)
        write(temporary)
        for path in _files(temporary):
            _sync(path)
        _clear(place)
        os.replace(temporary, place)
    except Exception as problem:
        with contextlib.suppress(OSError):
            _clear(temporary)
        why = _why(problem)
        if why is None:
            raise
        raise CheckpointError(f"{path_text(place)} cannot be written: {why}") from problem


def discard_after(run: Path, step: int) -> None:
    """Remove checkpoints of later steps, and half-written ones: what a resumed run does first."""
    for path in _folders(run / FOLDER):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) > step:
            _remove(path)


def _as_dict(progress: Progress) -> dict[str, Any]:
    return {"data": dict(progress.data), "counters": dict(progress.counters), "extra": dict(progress.extra)}


@contextlib.contextmanager
def _explained(run: Path, step: int) -> Iterator[None]:
    """Turn what a full disk causes, in whichever library, into one sentence, and take away what was half written."""
    try:
        yield
    except Exception as problem:
        temporary = run / FOLDER / f"step-{step}.new"
        with contextlib.suppress(OSError):
            _clear(temporary)
        why = _why(problem)
        if why is None:
            raise
        before = [number for number in _steps(run / FOLDER) if number != step]
        kept = f"the one of step {before[-1]} stays the newest" if before else "there is none before it"
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be written to {path_text(run / FOLDER)}: {why}; {kept}. Make room,"
            f" or set a smaller run.save_total_limit, and go on with --resume {path_text(run)}"
        ) from problem


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def _why(problem: BaseException | None) -> str | None:
    """Return what the system said; None where the problem is not one of writing."""
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno is not None:
            return os.strerror(problem.errno)
        text = str(problem)
        found = _OS_ERROR.search(text)  # libraries in Rust
        if found:
            return os.strerror(int(found[1]))
        if os.strerror(errno.ENOSPC) in text or "file write failed" in text:  # libraries in C++
            return os.strerror(errno.ENOSPC)
        problem = problem.__cause__ or problem.__context__
    return None


class _Written:
    """A binary file whose write error is kept: `torch.save` loses it on the way."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return int(self.file.write(data))
        except OSError as problem:
            self.problem = problem
            raise

    def flush(self) -> None:
        self.file.flush()


def _write_tensors(path: Path, values: Any) -> None:
    with open(path, "wb") as file:
        written = _Written(file)
        try:
            torch.save(values, written)  # type: ignore[arg-type]  # it has all that torch.save uses
        except Exception as problem:
            raise (written.problem or problem) from None
    _read_tensors(path)  # what cannot be read back must be known now, not when the run is to go on


def _read_tensors(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1) + "\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sealed(path: Path) -> dict[str, Any]:
    """Put a file on the disk, and return its size and hash."""
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _hash(path)}


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASHED):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(run: Path, place: Path) -> None:
    """Point `latest` at a checkpoint; where links cannot be made there is none, and nothing reads it."""
    temporary = run / (LATEST + ".new")
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place.relative_to(run), target_is_directory=True)
        os.replace(temporary, run / LATEST)


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove what is too many, the oldest first, and what a killed process left half written."""
    for path in _folders(folder):
        if _NAME.fullmatch(path.name) is None:
            _remove(path)
    older = [number for number in _steps(folder) if number < step]
    for number in older[: max(0, len(older) - max(0, keep - 1))]:
        _remove(folder / f"step-{number}")


def _remove(path: Path) -> None:
    """Remove a checkpoint, its manifest first: half removed it must not look whole. One that cannot go stays."""
    with contextlib.suppress(OSError):
        (path / _MANIFEST).unlink(missing_ok=True)
        _clear(path)


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


# -------------------------------------------------------------------------------------------------------------- reading


def newest_valid(run: Path) -> Found:
    """Return the newest whole checkpoint of a run, and a note for each newer one that is damaged.

    Raises:
        CheckpointError: A checkpoint was written by another version of rewardkit.
    """
    folder = run / FOLDER
    notes: list[str] = []
    for number in reversed(_steps(folder)):
        path = folder / f"step-{number}"
        problem = _damage(path)
        if problem is None:
            try:
                return Found(_load(path), tuple(notes))
            except _Damaged as damaged:
                problem = str(damaged)
        notes.append(f"{path_text(path)} is damaged and passed over: {problem}")
    return Found(None, tuple(notes))


def load(path: Path) -> Checkpoint:
    """Return one checkpoint.

    Raises:
        CheckpointError: It is damaged, or of another version.
    """
    problem = _damage(path)
    if problem is None:
        try:
            return _load(path)
        except _Damaged as damaged:
            problem = str(damaged)
    raise CheckpointError(f"{path_text(path)} is no whole checkpoint: {problem}")


class _Damaged(Exception):
    pass


def _load(path: Path) -> Checkpoint:
    """Return a checkpoint whose hashes are right."""
    try:
        state = _read_json(path / "state.json")
        tensors, states = _read_tensors(path / "optimizer.pt"), _read_tensors(path / "random.pt")
        return Checkpoint(
            path,
            int(_read_json(path / _MANIFEST)["step"]),
            tensors["optimizer"],
            tensors["scheduler"],
            tuple(states),
            Progress(state["data"], state["counters"], state["extra"]),
        )
    except Exception as problem:  # whatever strange content makes a reader raise
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise _Damaged(f"it cannot be read ({why})") from None


def _damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint; None when every file is as its manifest says.

    Raises:
        CheckpointError: It is of another version.
    """
    try:
        manifest = _read_json(path / _MANIFEST)
    except OSError:
        return f"it has no {_MANIFEST}, so it was not finished"
    except ValueError:
        return f"its {_MANIFEST} cannot be read"
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith(_FAMILY):
            raise CheckpointError(
                f"{path_text(path)} was written by another version of rewardkit (schema {path_text(schema[:60])};"
                f" this one reads {SCHEMA}): resume with that version, or start again with --overwrite"
            )
        return f"its {_MANIFEST} is of something else"
    if path.name != f"step-{manifest.get('step')}":
        return f"its {_MANIFEST} is of step {path_text(str(manifest.get('step'))[:20])}"
    files = manifest.get("files")
    if not isinstance(files, dict) or not {"optimizer.pt", "random.pt", "state.json"} <= files.keys():
        return f"its {_MANIFEST} does not name all files"
    for name, wanted in files.items():
        problem = _file_damage(path, name, wanted)
        if problem is not None:
            return f"{path_text(name)} {problem}"
    return None


def _file_damage(folder: Path, name: str, wanted: Any) -> str | None:
    parts = PurePosixPath(name).parts
    if not isinstance(wanted, dict) or name.startswith("/") or ".." in parts or "\\" in name:
        return "is no file of a checkpoint"
    path = folder.joinpath(*parts)
    try:
        if path.is_symlink() or not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != wanted.get("bytes"):
            return f"has {size:,} bytes instead of {wanted.get('bytes')}"
        return None if _hash(path) == wanted.get("sha256") else "has another content than was written"
    except OSError as problem:
        return f"cannot be read ({problem.strerror})"


def _read_json(path: Path) -> Any:
    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.startswith("step-")]
    except OSError:
        return []


def _steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, whole or not, in ascending order."""
    return sorted(int(match[1]) for path in _folders(folder) if (match := _NAME.fullmatch(path.name)))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
