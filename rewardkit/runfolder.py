"""The folder of one run: made or taken over, locked, and written so that a kill at any point loses little.

`config.toml` says what was run, `scores.jsonl` holds one line a completion and reward, `summary.json` the figures,
`log.jsonl` what happened, with times. `Earlier` gives out what an unfinished run has scored already.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rewardkit.engine import Scored
from rewardkit.errors import InputError, RunFolderError
from rewardkit.records import Inputs, Source, read_scores
from rewardkit.records.scores import PartRecord, ScoreLines, ScoreRecord
from rewardkit.records.text import clean, path_text
from rewardkit.types import COMPLETION_REASONS, MACHINE_REASONS, REFERENCE_REASONS, Generation, Score

_FILES = (
    "config.toml",
    "scores.jsonl",
    "scores.jsonl.part",  # what a resumed run writes until it holds more than scores.jsonl
    "scores.jsonl.earlier",  # such a file of a resumed run that was killed in turn
    "summary.json",
    "log.jsonl",
    "input",
)
_MARK = "# Written by rewardkit eval"
_FLUSH = 1.0  # seconds that scores may wait in memory: what a kill can lose


class RunFolder:
    """The folder of one run. Entering checks and locks it; `begin` is the first to change anything in it."""

    def __init__(self, path: Path, config: dict[str, Any], inputs: Inputs, *, resume: bool, overwrite: bool) -> None:
        self.path = path
        self.name = path_text(path)
        self.resume = resume
        self.overwrite = overwrite
        self.config = config
        self.inputs = inputs
        self.has_scores = False
        self._begun = False
        self._lock: int | None = None
        self._made: list[Path] = []

    def __enter__(self) -> RunFolder:
        """Make the folder, or take it over as asked; refuse one that is of another run, or of something else."""
        try:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._made = missing
        except FileExistsError:
            raise RunFolderError(f"{self.name} is a file; choose a folder with -o") from None
        except OSError as problem:
            why = problem.strerror
            raise RunFolderError(f"the folder {self.name} cannot be made: {why}; choose another with -o") from None
        try:
            self._check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if not self._begun:
            with contextlib.suppress(OSError):  # only empty ones go
                for folder in self._made:
                    folder.rmdir()

    def _check(self) -> None:
        self._lock = lock_folder(self.path)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise RunFolderError(f"{self.name} is not writable; choose another with -o")
        ours_to_write = {(self.path / name).resolve() for name in _FILES}
        for source in self.inputs.stored:
            if source.path.resolve() in ours_to_write:
                raise RunFolderError(
                    f"the input {path_text(source.path)} lies in {self.name}; choose another folder with -o"
                )
        ours = _is_ours(self.path / "config.toml")
        if not ours and any(self.path.iterdir()):
            raise RunFolderError(f"{self.name} is not empty and no run folder; choose another with -o")
        has_scores = ours and _size(self.path / "scores.jsonl") > 0
        if self.resume:
            if has_scores:
                self._check_same()
            self.has_scores = has_scores
        elif not self.overwrite and (has_scores or (ours and (self.path / "summary.json").exists())):
            choice = "add --resume to go on there, or --overwrite to start again"
            raise RunFolderError(f"{self.name} has results already; {choice}")

    def _check_same(self) -> None:
        import tomllib

        try:
            old = tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            why = f"its config.toml cannot be read ({problem})"
        else:
            if old.get("identity") == self.config["identity"]:
                return
            why = _difference(old, self.config)
        choice = "add --overwrite to start again, or choose another folder with -o"
        raise RunFolderError(f"{self.name} cannot be resumed: {why}; {choice}")

    def begin(self, start: Mapping[str, Any]) -> None:
        """Remove what is not taken over, and write what this run is."""
        self._begun = True
        kept = {"scores.jsonl", "scores.jsonl.earlier", "log.jsonl"} if self.has_scores else set()
        part, earlier = self.path / "scores.jsonl.part", self.path / "scores.jsonl.earlier"
        if self.has_scores and _size(part) > _size(earlier):
            os.replace(part, earlier)
        for name in _FILES:
            if name not in kept:
                (self.path / name).unlink(missing_ok=True)
        self.write_config()
        for source in self.inputs.stored:
            if source.path != Path(source.given):  # standard input or a pipe, which cannot be read again
                self._copy_input(source)
        self.log("start", **start)

    @property
    def begun(self) -> bool:
        """Whether anything was written."""
        return self._begun

    def write_config(self) -> None:
        """Write `config.toml`."""
        self.write("config.toml", _toml(self.config))

    def _copy_input(self, source: Source) -> None:
        with self._explained("input"):
            shutil.copyfile(source.path, self.path / "input")

    def writer(self, name: str) -> ScoreFile:
        return ScoreFile(self.path / name)

    def write(self, name: str, text: str) -> None:
        """Write a file so that it is there whole or not at all. Lone surrogates, which UTF-8 lacks, become escapes."""
        temporary = self.path / (name + ".new")
        with self._explained(name):
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(temporary, self.path / name)

    def discard(self, name: str) -> None:
        """Remove a file that is needed no more."""
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as problem:
            raise unwritten(self.path / name, problem) from None

    def log(self, event: str, **fields: Any) -> None:
        """Add a line to the log. A log that cannot be written stops nothing."""
        if not self._begun:
            return
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event}
        line |= {key: value for key, value in fields.items() if value not in (None, "")}
        with (
            contextlib.suppress(OSError),
            open(self.path / "log.jsonl", "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def lock_folder(folder: Path) -> int | None:
    """Lock a folder until its descriptor is closed, or this process ends however it does; None where that is not known.

    Raises:
        RunFolderError: Another run holds it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(cast("int", descriptor))
        choice = "wait for it, or choose another folder with -o"
        raise RunFolderError(f"another run is writing to {path_text(folder)}; {choice}") from None
    except OSError:
        pass  # not every file system has locks
    return descriptor


def _is_ours(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.read(len(_MARK)) == _MARK.encode()
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def unwritten(path: Path, problem: OSError) -> RunFolderError:
    """Return the error that says that a file of a run cannot be written, and what becomes of the run."""
    why = problem.strerror or problem
    return RunFolderError(f"{path_text(path)} cannot be written: {why}; what is there is kept for --resume")


class ScoreFile:
    """`scores.jsonl` while it is written: a generation's lines go out together, at least once a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = ScoreLines()
        try:
            self.file = open(path, "wb", buffering=1 << 16)  # noqa: SIM115 (closed by __exit__)
        except OSError as problem:
            raise unwritten(path, problem) from None
        self.flushed = time.monotonic()

    def write(self, scored: Scored) -> None:
        """Write one line for each completion and reward."""
        self._lines.add(scored.generation, scored.scores)
        self.write_lines(self._lines.take())

    def write_lines(self, lines: bytes) -> None:
        """Write whole lines."""
        try:
            self.file.write(lines)
            now = time.monotonic()
            if now - self.flushed > _FLUSH:
                self.file.flush()
                self.flushed = now
        except OSError as problem:
            raise unwritten(self.path, problem) from None

    def flush(self) -> None:
        """Put out what waits in memory."""
        try:
            self.file.flush()
        except OSError as problem:
            raise unwritten(self.path, problem) from None

    def rename(self, name: str) -> None:
        """Put the file in another's place; writing goes on in it."""
        if self.path.name != name:
            self.file.flush()
            os.replace(self.path, self.path.with_name(name))
            self.path = self.path.with_name(name)

    def __enter__(self) -> ScoreFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.file.close()
        except OSError as problem:
            if kind is None:
                raise unwritten(self.path, problem) from None


class Earlier:
    """The scores of an earlier, perhaps unfinished run, given out generation by generation."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.path = folder / "scores.jsonl"
        self.names = names
        self.records = self._read()
        self.ended = False

    def _read(self) -> Generator[ScoreRecord]:
        """Yield what a killed resumed run had redone already, then the rest of the run before it."""
        redone = 0
        again = self.path.with_name("scores.jsonl.earlier")
        if again.exists():
            for record in read_scores(again):
                redone += 1
                yield record
        yield from itertools.islice(read_scores(self.path), redone, None)

    def take(self, generation: Generation) -> dict[str, list[Score]] | None:
        """Return the earlier scores of a generation; None where they are missing or hold an error.

        Raises:
            RunFolderError: The file is damaged, or its next lines are of another generation.
        """
        if self.ended:
            return None
        count = len(generation.completions) * len(self.names)
        try:
            found = list(itertools.islice(self.records, count))
        except InputError as problem:
            raise RunFolderError(f"{path_text(self.path)} is damaged: {problem}; --overwrite starts again") from None
        if len(found) < count:
            self.ended = True
            return None
        scores: dict[str, list[Score]] = {name: [] for name in self.names}
        for place, record in enumerate(found):
            at, column = divmod(place, len(self.names))
            expected = (generation.sample.id, generation.start + at, generation.model, self.names[column])
            if (record.id, record.index, record.model, record.reward) != expected:
                wanted = f"line for {expected} wanted"
                raise RunFolderError(
                    f"{path_text(self.path)} does not follow the input: {wanted}; --overwrite starts again"
                )
            scores[record.reward].append(score_of(record))
        return None if has_error(scores) else scores


def score_of(record: ScoreRecord | PartRecord) -> Score:
    """Return a written score as a score again."""
    known = {"scored": COMPLETION_REASONS, "abstained": REFERENCE_REASONS, "error": MACHINE_REASONS}[record.state]
    code, _, detail = record.reason.partition(": ")
    reason: Any = code if code in known else None
    return Score(
        record.value,
        detail if reason else record.reason,
        record.extracted if isinstance(record, ScoreRecord) else None,
        reason,
        record.reward if isinstance(record, ScoreRecord) else record.name,
        None if isinstance(record, ScoreRecord) else record.weight,
        tuple(score_of(part) for part in record.parts),
        record.seconds if isinstance(record, ScoreRecord) else None,
    )


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Name the first thing in which two configurations differ."""
    for part, what in (("input", "the input file"), ("map", "the map"), ("options", "an option"), ("hash", "reward")):
        a, b = old.get(part, {}), new.get(part, {})
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key) and key != "path":
                if part == "input":
                    return "the input file has changed"
                if part == "hash":
                    changed = "has changed (its code, version or options)"
                    return f"reward {key!r} {'is new' if key not in a else 'is gone' if key not in b else changed}"
                return f"{what} {key!r} was {a.get(key)!r}, now {b.get(key)!r}"
    a, b = list(old.get("reward", {})), list(new.get("reward", {}))
    if a != b:
        return f"its rewards were {', '.join(a)} in this order, now {', '.join(b)}"
    return "it is of another run"


def _toml(config: Mapping[str, Any]) -> str:
    import tomli_w

    return f"{_MARK}; `-r config.toml` runs the same rewards again.\n" + tomli_w.dumps(clean(config))


def has_error(scores: Mapping[str, Sequence[Score]]) -> bool:
    return any(score.state == "error" for column in scores.values() for score in column)
