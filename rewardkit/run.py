"""One evaluation with its folder: input -> records -> engine -> scores.jsonl, summary.json.

The folder holds `config.toml` (what was run), `scores.jsonl` (one line a completion and reward), `summary.json`
(the figures) and `log.jsonl` (what happened, with times). Nothing here prints.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import platform
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from rewardkit import __version__, recipe
from rewardkit.compose import Reward
from rewardkit.engine import Engine, Scored
from rewardkit.errors import InputError, UsageError
from rewardkit.plugins import load_plugins
from rewardkit.records import FieldMap, Reader, Records, Source, encode_json, read_generations
from rewardkit.records.text import path_text
from rewardkit.report.summary import Summary, notices
from rewardkit.runfolder import Earlier, RunFolder
from rewardkit.targets import load_target
from rewardkit.types import Generation, Score

SCHEMA = "rewardkit.summary/1"
RAISED_SHARE = 0.05
"""A reward that raises on more than this share of its rows stops the run, unless a bar of its own was asked for."""

_CHUNK = 256


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
        self.repeated = 0

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
        with RunFolder(self.outcome.folder, config, source, resume=plan.resume, overwrite=plan.overwrite) as folder:
            self.observer.opened(records, folder.path)
            if plan.resume and not folder.has_scores:
                self.observer.note(f"nothing to resume in {folder.name}; a new run starts there")
            self._score_all(records, folder)
            self._finish(records, folder)
        return self.outcome

    def _score_all(self, records: Records, folder: RunFolder) -> None:
        try:
            self._score(records, folder)
        except BaseException as problem:
            folder.log("interrupted" if isinstance(problem, KeyboardInterrupt) else "failed", why=str(problem)[:500])
            raise

    def _finish(self, records: Records, folder: RunFolder) -> None:
        """Write the summary; only a run that came to its end has one."""
        outcome = self.outcome
        outcome.summary = self._summary(folder.config, records)
        outcome.notices = outcome.summary["notices"] = notices(outcome.summary, outcome.summary["input"])
        if self.repeated:  # on the screen alone: how many there are depends on where a run was resumed
            verb = "completion was" if self.repeated == 1 else "completions were"
            outcome.notices = [
                *outcome.notices,
                f"{self.repeated:,} {verb} the same as another and judged once with it",
            ]
        for bad in records.bad:
            folder.log("bad row", line=bad.line, why=bad.why)
        folder.discard("scores.jsonl.earlier")
        folder.write("summary.json", summary_text(outcome.summary))
        folder.log("stopped" if outcome.stopped else "done", why=outcome.stopped)

    def _score(self, records: Records, folder: RunFolder) -> None:
        with Engine(self.plan.rewards, workers=self.plan.workers, step=self.plan.step) as engine:
            judge = self._resumed if folder.has_scores else self._fresh
            # Closed here, not whenever the garbage collector comes: what is scored must be on disk by then.
            with contextlib.closing(judge(engine, records, folder)) as stream:
                for scored in stream:
                    self._account(scored, folder)
                    self._refuse_bad(records)
                    self.outcome.stopped = self.failures.verdict(final=False)
                    if self.outcome.stopped:
                        return
            self.repeated = engine.repeated
        self._refuse_bad(records)
        self.outcome.stopped = self.failures.verdict(final=True)

    def _refuse_bad(self, records: Records) -> None:
        if self.plan.strict and records.bad:
            first = records.bad[0]
            raise InputError(f"{path_text(self.plan.input)}:{first.line}: {first.why} (--strict)")

    def _fresh(self, engine: Engine, generations: Iterable[Generation], folder: RunFolder) -> Generator[Scored]:
        """Score all. What an earlier run left is gone only once the first score is there."""
        stream = engine.score(generations)
        first = list(itertools.islice(stream, 1))
        folder.begin(self._start_event(folder))
        with folder.writer("scores.jsonl") as writer:
            for scored in itertools.chain(first, stream):
                writer.write(scored)
                yield scored

    def _resumed(self, engine: Engine, generations: Iterable[Generation], folder: RunFolder) -> Generator[Scored]:
        """Take over what an earlier run scored, and score what is missing or was an error, in the input's order."""
        folder.begin(self._start_event(folder))
        earlier = Earlier(folder.path, list(self.plan.rewards))
        stream = iter(generations)
        # A reward of whole groups cannot be asked about a part of one, and a group may lie anywhere in the file.
        size = None if engine.takes_group else _CHUNK
        with folder.writer("scores.jsonl.part") as writer:
            while chunk := list(itertools.islice(stream, size)):
                kept = [earlier.take(generation) for generation in chunk]
                if engine.takes_group:
                    kept = _whole_groups(chunk, kept)
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
    def _start_event(folder: RunFolder) -> dict[str, Any]:
        config = folder.config
        return {"input": config["input"]["path"], "rewards": config["reward"], "map": config["map"]}

    def _account(self, scored: Scored, folder: RunFolder) -> None:
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


def _whole_groups(
    generations: Sequence[Generation], kept: Sequence[dict[str, list[Score]] | None]
) -> list[dict[str, list[Score]] | None]:
    """Keep the scores of a group only where all of its rows have theirs."""
    broken = {one.key for one, scores in zip(generations, kept, strict=True) if scores is None and one.key}
    return [None if one.key in broken else scores for one, scores in zip(generations, kept, strict=True)]


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


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return a summary as strict, indented JSON in which nothing can act on a terminal."""
    return msgspec.json.format(encode_json(summary), indent=1).decode() + "\n"


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
