"""One evaluation with its folder: input -> records -> engine -> scores.jsonl, summary.json.

The folder holds `config.toml` (what was run), `scores.jsonl` (one line a completion and reward), `summary.json`
(the figures) and `log.jsonl` (what happened, with times). Nothing here prints.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rewardkit import __version__, recipe
from rewardkit.compose import Reward
from rewardkit.engine import Engine, Scored
from rewardkit.errors import InputError, RunFolderError, UsageError
from rewardkit.plugins import load_plugins
from rewardkit.records import FieldMap, Reader, Records, Source, gather, read_generations, read_scores, score_line
from rewardkit.records.scores import PartRecord, ScoreRecord
from rewardkit.records.text import clean, path_text
from rewardkit.report.summary import Summary, notices
from rewardkit.targets import load_target
from rewardkit.types import COMPLETION_REASONS, MACHINE_REASONS, REFERENCE_REASONS, Generation, Score

SCHEMA = "rewardkit.summary/1"
RAISED_SHARE = 0.05
"""A reward that raises on more than this share of its rows stops the run, unless a bar of its own was asked for."""

_FILES = ("config.toml", "scores.jsonl", "scores.jsonl.part", "summary.json", "log.jsonl", "input")
_MARK = "# Written by rewardkit eval"
_CHUNK = 256
_FLUSH = 1.0  # seconds that scores may wait in memory: what a kill can lose


@dataclass(frozen=True)
class Plan:
    """What to evaluate, and how.

    Attributes:
        input: Path of the saved generations, or "-".
        rewards: Rewards by column name.
        map: What `--map` said.
        group: Field that says which rows are one group.
        output: Folder for the results; None: `runs/STEM-HASH8`.
        resume, overwrite: What to do with a folder that has results.
        limit: At most so many rows.
        step: Training step for rows that do not say theirs.
        workers: Worker processes; None: one a core.
        strict: A bad row stops the run.
        allow_empty: No rows at all is no error.
        max_error_rate: The bar that was asked for; it replaces the 5 % rule.
    """

    input: str
    rewards: Mapping[str, Reward]
    map: FieldMap = field(default_factory=FieldMap)
    group: str | None = None
    output: Path | None = None
    resume: bool = False
    overwrite: bool = False
    limit: int | None = None
    step: int | None = None
    workers: int | None = None
    strict: bool = False
    allow_empty: bool = False
    max_error_rate: float | None = None


@dataclass
class Outcome:
    """What came out: the summary, where it lies, and whether a failing reward stopped the run."""

    summary: dict[str, Any]
    folder: Path
    stopped: str = ""
    reused: int = 0
    notices: list[str] = field(default_factory=list)
    traces: dict[str, str] = field(default_factory=dict)


class Observer:
    """What a run tells while it goes on. The command line shows it; by default nobody does."""

    def opened(self, records: Records, folder: Path) -> None:
        """The input is open and its columns are known."""

    def note(self, text: str) -> None:
        """Something that the user may not expect, before the first row."""

    def scored(self, completions: int, failed: int) -> None:
        """So many completions more are done, of which so many are in an error state."""

    def raised(self, name: str, score: Score) -> None:
        """A reward ended in an error for the first time; the score's `trace` is there where it raised."""


def evaluate(plan: Plan, observer: Observer | None = None) -> Outcome:
    """Run one evaluation and write its folder.

    Raises:
        InputError: The input cannot be read, has no rows, or (strict) has a bad row.
        RunFolderError: The folder has results and neither resume nor overwrite was asked for, they are of another
            run, or it cannot be written to.
        RewardkitError: Whatever the engine raises; results so far are kept.
    """
    return _Run(plan, observer or Observer()).go()


class _Run:
    def __init__(self, plan: Plan, observer: Observer) -> None:
        self.plan = plan
        self.observer = observer
        labels = [name for name, reward in plan.rewards.items() if reward.formula == "label"]
        self.summary = Summary(list(plan.rewards), labels=labels)
        self.failures = _Failures(plan.max_error_rate)
        self.outcome: Outcome

    def go(self) -> Outcome:
        plan = self.plan
        source = Source(plan.input)
        identity = source.identity()
        hashes = {name: recipe.content_hash(reward) for name, reward in plan.rewards.items()}
        records = read_generations(
            source,
            field_map=plan.map,
            readers=readers(self.observer.note),
            limit=plan.limit,
            group=plan.group,
            allow_empty=plan.allow_empty,
        )
        config = _config(plan, records, identity, hashes)
        self.outcome = Outcome({}, _folder_path(plan, config["identity"]))
        with _Folder(self.outcome.folder, plan, config, source) as folder:
            self.observer.opened(records, folder.path)
            if plan.resume and not folder.has_scores:
                self.observer.note(f"nothing to resume in {folder.name}; a new run starts there")
            self._score_all(records, folder)
            self._finish(records, folder)
        return self.outcome

    def _score_all(self, records: Records, folder: _Folder) -> None:
        try:
            self._score(records, folder)
        except BaseException as problem:
            folder.log("interrupted" if isinstance(problem, KeyboardInterrupt) else "failed", why=str(problem)[:500])
            raise

    def _finish(self, records: Records, folder: _Folder) -> None:
        """Write the summary; only a run that came to its end has one."""
        outcome = self.outcome
        outcome.summary = self._summary(folder.config, records)
        outcome.notices = outcome.summary["notices"] = notices(outcome.summary, outcome.summary["input"])
        for bad in records.bad:
            folder.log("bad row", line=bad.line, why=bad.why)
        folder.write("summary.json", json.dumps(outcome.summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
        folder.log("stopped" if outcome.stopped else "done", why=outcome.stopped)

    def _score(self, records: Records, folder: _Folder) -> None:
        with Engine(self.plan.rewards, workers=self.plan.workers, step=self.plan.step) as engine:
            generations: Iterable[Generation] = gather(records) if engine.takes_group else records
            judge = self._resumed if folder.has_scores else self._fresh
            # Closed here, not whenever the garbage collector comes: what is scored must be on disk by then.
            with contextlib.closing(judge(engine, generations, folder)) as stream:
                for scored in stream:
                    self._account(scored, folder)
                    self._refuse_bad(records)
                    self.outcome.stopped = self.failures.verdict(final=False)
                    if self.outcome.stopped:
                        return
        self._refuse_bad(records)
        self.outcome.stopped = self.failures.verdict(final=True)

    def _refuse_bad(self, records: Records) -> None:
        if self.plan.strict and records.bad:
            first = records.bad[0]
            raise InputError(f"{path_text(self.plan.input)}:{first.line}: {first.why} (--strict)")

    def _fresh(self, engine: Engine, generations: Iterable[Generation], folder: _Folder) -> Generator[Scored]:
        """Score all. What an earlier run left is gone only once the first score is there."""
        stream = engine.score(generations)
        first = list(itertools.islice(stream, 1))
        folder.begin(self._start_event(folder))
        with folder.writer("scores.jsonl") as writer:
            for scored in itertools.chain(first, stream):
                writer.write(scored)
                yield scored

    def _resumed(self, engine: Engine, generations: Iterable[Generation], folder: _Folder) -> Generator[Scored]:
        """Take over what an earlier run scored, and score what is missing or was an error, in the input's order."""
        folder.begin(self._start_event(folder))
        earlier = _Earlier(folder.path / "scores.jsonl", list(self.plan.rewards))
        stream = iter(generations)
        with folder.writer("scores.jsonl.part") as writer:
            while chunk := list(itertools.islice(stream, _CHUNK)):
                kept = [earlier.take(generation) for generation in chunk]
                missing = [g for g, scores in zip(chunk, kept, strict=True) if scores is None]
                fresh = engine.score_unchecked(missing)
                last_kept = max((at for at, scores in enumerate(kept) if scores is not None), default=-1)
                for at, (generation, scores) in enumerate(zip(chunk, kept, strict=True)):
                    if earlier.ended and at > last_kept:  # from here on the new file holds more than the old one
                        writer.rename("scores.jsonl")
                    if scores is None:
                        scored = next(fresh)
                    else:
                        scored = Scored(generation, scores)
                        self.outcome.reused += len(generation.completions)
                    writer.write(scored)
                    yield scored
            writer.rename("scores.jsonl")

    @staticmethod
    def _start_event(folder: _Folder) -> dict[str, Any]:
        config = folder.config
        return {"input": config["input"]["path"], "rewards": config["reward"], "map": config["map"]}

    def _account(self, scored: Scored, folder: _Folder) -> None:
        self.summary.add(scored.generation, scored.scores)
        failed = 0
        for name, scores in scored.scores.items():
            for score in scores:
                if score.state == "error":
                    failed += 1
                    if score.reason != "source_failed" and name not in self.outcome.traces:
                        self.outcome.traces[name] = score.trace or ""
                        folder.log("raised", reward=name, why=score.why, trace=score.trace)
                        self.observer.raised(name, score)
            self.failures.add(name, scores)
        self.observer.scored(len(scored.generation.completions), failed)

    def _summary(self, config: dict[str, Any], records: Records) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "input": config["input"]
            | {
                "format": records.format,
                "map": records.map.as_dict(),
                "rows": records.rows,
                "bad_rows": records.bad_rows,
                "bad_lines": [{"line": bad.line, "why": bad.why} for bad in records.bad],
                "duplicate_ids": records.duplicate_ids,
            },
            "recipe": {
                name: {"formula": formula, "hash": config["hash"][name]} for name, formula in config["reward"].items()
            },
            "versions": config["versions"],
            "stopped": self.outcome.stopped or None,
            "models": self.summary.to_dict(),
        }


class _Failures:
    """Counts how often each reward failed (raised, died, had no service), and says when that is too often."""

    def __init__(self, bar: float | None) -> None:
        self.bar = bar
        self.rows: dict[str, int] = {}
        self.raised: dict[str, int] = {}

    def add(self, name: str, scores: Sequence[Score]) -> None:
        self.rows[name] = self.rows.get(name, 0) + len(scores)
        # A row that its source marks as failed says nothing about the reward.
        raised = sum(score.state == "error" and score.reason != "source_failed" for score in scores)
        if raised:
            self.raised[name] = self.raised.get(name, 0) + raised

    def verdict(self, *, final: bool) -> str:
        """Return why to stop, or "". In mid-run a share is only trusted over many rows."""
        if self.bar is not None:
            return ""
        for name, raised in self.raised.items():
            rows = self.rows[name]
            share = raised / rows
            if share > RAISED_SHARE and (final or rows >= 1000 or (rows >= 100 and share > 0.5)):
                rule = f"more than {RAISED_SHARE:.0%} stops a run"
                return f"{name} failed on {raised:,} of {rows:,} rows ({share:.1%}); {rule}"
        return ""


def _folder_path(plan: Plan, identity: str) -> Path:
    stem = "stdin" if plan.input == "-" else Path(plan.input).name.split(".")[0] or "input"
    return plan.output or Path("runs") / f"{stem}-{identity[:8]}"


class _Folder:
    """The folder of one run. Entering checks and locks it; `begin` is the first to change anything in it."""

    def __init__(self, path: Path, plan: Plan, config: dict[str, Any], source: Source) -> None:
        self.path = path
        self.name = path_text(path)
        self.plan = plan
        self.config = config
        self.source = source
        self.has_scores = False
        self._begun = False
        self._lock: int | None = None
        self._made: list[Path] = []

    def __enter__(self) -> _Folder:
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
        self._lock = _locked(self.path)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise RunFolderError(f"{self.name} is not writable; choose another with -o")
        if self.source.path.resolve() in {(self.path / name).resolve() for name in _FILES}:
            raise RunFolderError(
                f"the input {path_text(self.source.path)} lies in {self.name}; choose another folder with -o"
            )
        ours = _is_ours(self.path / "config.toml")
        if not ours and any(self.path.iterdir()):
            raise RunFolderError(f"{self.name} is not empty and no run folder; choose another with -o")
        has_scores = ours and _size(self.path / "scores.jsonl") > 0
        if self.plan.resume:
            if has_scores:
                self._check_same()
            self.has_scores = has_scores
        elif not self.plan.overwrite and (has_scores or (ours and (self.path / "summary.json").exists())):
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
        for name in _FILES:
            if not (self.has_scores and name in ("scores.jsonl", "log.jsonl")):
                (self.path / name).unlink(missing_ok=True)
        self.write("config.toml", _toml(self.config))
        if self.source.path != Path(self.plan.input):  # standard input or a pipe, which cannot be read again
            self._copy_input()
        self.log("start", **start)

    def _copy_input(self) -> None:
        with self._explained("input"):
            shutil.copyfile(self.source.path, self.path / "input")

    def writer(self, name: str) -> _ScoreFile:
        return _ScoreFile(self.path / name)

    def write(self, name: str, text: str) -> None:
        """Write a file so that it is there whole or not at all. Lone surrogates, which UTF-8 lacks, become escapes."""
        temporary = self.path / (name + ".new")
        with self._explained(name):
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(temporary, self.path / name)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as problem:
            raise _unwritten(self.path / name, problem) from None

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


def _locked(folder: Path) -> int | None:
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


def _unwritten(path: Path, problem: OSError) -> RunFolderError:
    why = problem.strerror or problem
    return RunFolderError(f"{path_text(path)} cannot be written: {why}; what is there is kept for --resume")


class _ScoreFile:
    """`scores.jsonl` while it is written: a generation's lines go out together, at least once a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = open(path, "wb", buffering=1 << 16)  # noqa: SIM115 (closed by __exit__)
        except OSError as problem:
            raise _unwritten(path, problem) from None
        self.flushed = time.monotonic()

    def write(self, scored: Scored) -> None:
        """Write one line for each completion and reward."""
        lines = [
            score_line(scored.generation, at, scores[at], name)
            for at in range(len(scored.generation.completions))
            for name, scores in scored.scores.items()
        ]
        try:
            self.file.write(b"".join(lines))
            now = time.monotonic()
            if now - self.flushed > _FLUSH:
                self.file.flush()
                self.flushed = now
        except OSError as problem:
            raise _unwritten(self.path, problem) from None

    def rename(self, name: str) -> None:
        """Put the file in another's place; writing goes on in it."""
        if self.path.name != name:
            self.file.flush()
            os.replace(self.path, self.path.with_name(name))
            self.path = self.path.with_name(name)

    def __enter__(self) -> _ScoreFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self.file.close()
        except OSError as problem:
            if kind is None:
                raise _unwritten(self.path, problem) from None


class _Earlier:
    """The scores of an earlier, perhaps unfinished run, given out generation by generation."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self.names = names
        self.records = read_scores(path)
        self.ended = False

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
            scores[record.reward].append(_score(record))
        return None if _has_error(scores) else scores


def _score(record: ScoreRecord | PartRecord) -> Score:
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
        tuple(_score(part) for part in record.parts),
        record.seconds if isinstance(record, ScoreRecord) else None,
    )


def readers(note: Callable[[str], None] = lambda text: None) -> dict[str, Reader]:
    """Return all registered readers by name, ours and those of plugins; `note` hears of those that do not load."""
    found: dict[str, Reader] = {}
    for entry in load_plugins().registry.entries("reader"):
        try:
            found[entry.name] = cast("Reader", load_target(entry.target))
        except UsageError as problem:
            note(f"the reader {entry.name!r} of {entry.owner} does not load and is left out: {problem}")
    return found


def _config(plan: Plan, records: Records, identity: Any, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what config.toml says. `identity` is a hash over input and recipe, without any time in it."""
    options = {"group": plan.group, "limit": plan.limit, "step": plan.step}
    what = {
        "input": {"path": path_text(plan.input), "bytes": identity.bytes, "sha256": identity.sha256},
        "map": records.map.as_dict(),
        "options": {name: value for name, value in options.items() if value is not None},
        "reward": {name: path_text(reward.formula) for name, reward in plan.rewards.items()},
        "hash": dict(hashes),
    }
    identified = what | {"input": {"bytes": identity.bytes, "sha256": identity.sha256}, "reward": list(plan.rewards)}
    digest = hashlib.sha256(json.dumps(identified, sort_keys=True).encode()).hexdigest()
    versions = {"rewardkit": __version__, "python": platform.python_version()}
    plugins = [plugin for plugin in load_plugins().plugins if plugin.owner.namespace and not plugin.problem]
    versions |= {plugin.owner.distribution: plugin.owner.version for plugin in plugins}
    return {"identity": digest, **what, "versions": versions}


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


def _has_error(scores: Mapping[str, Sequence[Score]]) -> bool:
    return any(score.state == "error" for column in scores.values() for score in column)
