"""One evaluation with its folder: input -> records -> engine -> scores.jsonl, summary.json.

The folder holds `config.toml` (what was run), `scores.jsonl` (one line a completion and reward), `summary.json`
(the figures) and `log.jsonl` (what happened, with times). Nothing here prints.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import threading
import time
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rewardkit import __version__, recipe
from rewardkit.chunked import ChunkedScores, Piece, chunked
from rewardkit.compose import Reward
from rewardkit.engine import PEEK, Engine, Scored, check_columns
from rewardkit.errors import InputError, UsageError
from rewardkit.plugins import load_plugins, readers
from rewardkit.records import BadRow, FieldMap, Inputs, Reader, Records, encode_json, find_inputs, read_generations
from rewardkit.records.follow import FollowedSource, batches
from rewardkit.records.text import path_text
from rewardkit.report.summary import Summary, notices, warnings
from rewardkit.runfolder import Earlier, RunFolder, ScoreFile
from rewardkit.saved import identity_of, in_shard
from rewardkit.types import Generation, Score
from rewardkit.workers.chunk_scorer import PieceResult

SCHEMA = "rewardkit.summary/1"
RAISED_SHARE = 0.05
"""A reward that raises on more than this share of its rows stops the run, unless a bar of its own was asked for."""

_CHUNK = 256
POLLED = 0.5  # seconds that a watched run waits for a line before it looks whether to tell something
_REDRAW = 2.0  # seconds between the summaries of a watched run


@dataclass(frozen=True)
class Plan:
    """What to evaluate, and how.

    Attributes:
        input: Path of the saved generations: a file, glob, folder or archive, "-", or several of these.
        rewards: Rewards by column name.
        map: What `--map` said.
        join: Files whose columns are added to the rows of the same id.
        group: Field that says which rows are one group.
        output: Folder for the results; None: `runs/STEM-HASH8`.
        resume, overwrite: What to do with a folder that has results.
        limit: At most so many rows.
        shard: (i, n): only the groups of part i of n, counted from 1.
        step: Training step for rows that do not say theirs.
        workers: Worker processes; None: one a core.
        watch: Go on with the lines that are appended to the one file, until interrupted.
        strict: A bad row stops the run.
        allow_empty: No rows at all is no error.
        max_error_rate: The bar that was asked for; it replaces the 5 % rule.
    """

    input: str | Sequence[str]
    rewards: Mapping[str, Reward]
    map: FieldMap = field(default_factory=FieldMap)
    join: Sequence[str] = ()
    group: str | None = None
    output: Path | None = None
    resume: bool = False
    overwrite: bool = False
    limit: int | None = None
    shard: tuple[int, int] | None = None
    step: int | None = None
    workers: int | None = None
    watch: bool = False
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
    repeated: int = 0  # not in the summary: how many there are depends on where a run was resumed
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

    def redraw(self, summary: Mapping[str, Any]) -> None:
        """A watched run's figures so far, every two seconds while they change."""

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
    return Run(plan, observer or Observer()).go()


class Run:
    """One evaluation: its summary, its outcome, and how both come about. `merge` makes one without scoring."""

    def __init__(self, plan: Plan, observer: Observer) -> None:
        self.plan = plan
        self.observer = observer
        self._labels = [name for name, reward in plan.rewards.items() if reward.formula == "label"]
        self.summary = Summary(list(plan.rewards), labels=self._labels)
        self.failures = _Failures(plan.max_error_rate)
        self.followed: FollowedSource | None = None
        self.outcome: Outcome

    def go(self) -> Outcome:
        plan = self.plan
        known = readers(self.observer.note)
        inputs = self._followed_input(known) if plan.watch else find_inputs(plan.input, readers=known)
        hashes = {name: recipe.content_hash(reward) for name, reward in plan.rewards.items()}
        records = open_records(plan, inputs, known, plan.limit)
        config = _config(plan, records, inputs, hashes)
        self.outcome = Outcome({}, _folder_path(plan, inputs, config["identity"]))
        config["input"]["from_run"] = [path_text(_from(self.outcome.folder, given)) for given in inputs.given]
        with RunFolder(self.outcome.folder, config, inputs, resume=plan.resume, overwrite=plan.overwrite) as folder:
            self.observer.opened(records, folder.path)
            for note in records.notes:
                self.observer.note(note)
            if plan.resume and not folder.has_scores:
                self.observer.note(f"nothing to resume in {folder.name}; a new run starts there")
            if self.followed is None:
                self._score_all(records, folder)
                self.finish(records, folder)
            else:
                self._watch_all(records, folder)
        return self.outcome

    def _followed_input(self, known: Mapping[str, Reader]) -> Inputs:
        given = [self.plan.input] if isinstance(self.plan.input, str) else list(self.plan.input)
        if len(given) != 1:
            raise UsageError(f"--watch follows one file, got {len(given)}")
        if any(leaf.takes_group for reward in self.plan.rewards.values() for leaf in reward.leaves()):  # type: ignore[attr-defined]
            raise UsageError(
                "a reward of whole groups needs the whole file: --watch cannot know when a group is complete"
            )
        self.followed = FollowedSource(given[0], threading.Event())
        return find_inputs(self.followed, readers=known)

    def _watch_all(self, records: Records, folder: RunFolder) -> None:
        """Score until interrupted; the summary is written then, and every two seconds before."""
        try:
            self._score_all(records, folder)
        finally:
            if folder.begun:
                self.finish(records, folder)

    def _score_all(self, records: Records, folder: RunFolder) -> None:
        try:
            self._score(records, folder)
        except BaseException as problem:
            folder.log("interrupted" if isinstance(problem, KeyboardInterrupt) else "failed", why=str(problem)[:500])
            raise

    def finish(self, records: Records, folder: RunFolder) -> None:
        """Write the summary; only a run that came to its end has one."""
        outcome = self.outcome
        if self.followed is not None:  # what the file holds now is what the texts are looked up in later
            identity = self.followed.identity()
            folder.config["input"] |= {"bytes": identity.bytes, "sha256": identity.sha256}
            folder.write_config()
        outcome.summary = self._summary(folder.config, records)
        outcome.notices = outcome.summary["notices"]
        for bad in records.bad:
            folder.log("bad row", **_bad_line(bad))
        folder.discard("scores.jsonl.earlier")
        folder.write("summary.json", summary_text(outcome.summary))
        folder.log("stopped" if outcome.stopped else "done", why=outcome.stopped)

    def _score(self, records: Records, folder: RunFolder) -> None:
        with Engine(self.plan.rewards, workers=self.plan.workers, step=self.plan.step) as engine:
            judge = self._watched if self.followed else self._resumed if folder.has_scores else self._fresh
            # Closed here, not whenever the garbage collector comes: what is scored must be on disk by then.
            with (
                self._pieces(engine, records) as pieces,
                contextlib.closing(judge(engine, records, pieces, folder)) as stream,
            ):
                for scored in stream:
                    self._account(scored, folder)
                    self._refuse_bad(records)
                    self.outcome.stopped = self.failures.verdict(final=False)
                    if self.outcome.stopped:
                        return
            self.outcome.repeated = engine.repeated
        self._refuse_bad(records)
        self.outcome.stopped = self.failures.verdict(final=True)

    @contextlib.contextmanager
    def _pieces(self, engine: Engine, records: Records) -> Generator[ChunkedScores | None]:
        """Give what scores the file in pieces, in several processes; None where one process does it."""
        # A worker would score the groups of other shards too, and a followed file has no end to cut pieces from.
        whole = self.plan.shard is None and self.followed is None
        pieces = chunked(engine, records, workers=self.plan.workers, labels=self._labels) if whole else None
        if pieces is None:
            yield None
            return
        with contextlib.closing(pieces):
            yield pieces

    def _stops_within(self, piece: PieceResult) -> bool:
        """Whether the run ends in the middle of a piece, which then has to be scored generation by generation."""
        if self.plan.strict and piece.bad_rows:
            return True
        return self.failures.stops_within(list(self.plan.rewards), array("I", piece.sizes), piece.raised)

    def _refuse_bad(self, records: Records) -> None:
        if self.plan.strict and records.bad:
            first = records.bad[0]
            name = first.file or records.source.given
            raise InputError(f"{path_text(name)}:{first.line}: {first.why} (--strict)")

    def _mine(self, records: Iterable[Generation]) -> Iterator[Generation]:
        """Return the generations of this run's shard; all of them without one."""
        shard = self.plan.shard
        return iter(records) if shard is None else (one for one in records if in_shard(one.key, *shard))

    def _fresh(
        self, engine: Engine, records: Records, pieces: ChunkedScores | None, folder: RunFolder
    ) -> Generator[Scored | Piece]:
        """Score all. What an earlier run left is gone only once the first score is there."""
        stream: Iterator[Scored | Piece]
        generations = iter(records)
        peek = list(itertools.islice(generations, PEEK))
        check_columns(engine.leaves, peek)
        if pieces is None:
            stream = engine.score_unchecked(self._mine(itertools.chain(peek, generations)))
        else:
            stream = pieces.stream(self._stops_within)
        first = list(itertools.islice(stream, 1))
        folder.begin(self._start_event(folder))
        with folder.writer("scores.jsonl") as writer:
            yield from _written(itertools.chain(first, stream), writer)

    def _resumed(
        self, engine: Engine, records: Records, pieces: ChunkedScores | None, folder: RunFolder
    ) -> Generator[Scored | Piece]:
        """Take over what an earlier run scored, and score what is missing or was an error, in the input's order."""
        folder.begin(self._start_event(folder))
        earlier = Earlier(folder.path, list(self.plan.rewards))
        with folder.writer("scores.jsonl.part") as writer:
            if pieces is None:
                yield from self._taken_over(engine, self._mine(records), earlier, writer)
            else:
                while not earlier.ended and (generations := pieces.next_here()) is not None:
                    yield from self._taken_over(engine, generations, earlier, writer)
            writer.rename("scores.jsonl")
            if pieces is not None:
                yield from _written(pieces.stream(self._stops_within), writer)

    def _watched(
        self, engine: Engine, records: Records, pieces: ChunkedScores | None, folder: RunFolder
    ) -> Generator[Scored]:
        """Score what is in the file, and then what is appended to it."""
        source = self.followed
        assert source is not None
        check_columns(engine.leaves, list(itertools.islice(records, PEEK)))
        if not source.by_lines:
            raise UsageError(f"--watch follows files of lines; {source.name} ({records.format}) is read as a whole")
        source.following = True
        folder.begin(self._start_event(folder))
        earlier = Earlier(folder.path, list(self.plan.rewards)) if folder.has_scores else None
        drawn, changed = time.monotonic(), True
        with (
            folder.writer("scores.jsonl.part" if earlier else "scores.jsonl") as writer,
            contextlib.closing(batches(records, source, POLLED)) as stream,
        ):
            for batch in stream:
                if earlier is not None:
                    yield from self._taken_over(engine, self._mine(batch), earlier, writer)
                else:
                    for scored in engine.score_unchecked(self._mine(batch)):
                        writer.write(scored)
                        yield scored
                changed = changed or bool(batch)
                if changed and time.monotonic() - drawn >= _REDRAW:
                    writer.flush()
                    self._redraw(records, folder)
                    drawn, changed = time.monotonic(), False
            writer.rename("scores.jsonl")

    def _redraw(self, records: Records, folder: RunFolder) -> None:
        summary = self._summary(folder.config, records)
        folder.write("summary.json", summary_text(summary))
        self.observer.redraw(summary)

    def _taken_over(
        self, engine: Engine, generations: Iterable[Generation], earlier: Earlier, writer: ScoreFile
    ) -> Generator[Scored]:
        stream = iter(generations)
        # A reward of whole groups cannot be asked about a part of one, and a group may lie anywhere in the file.
        size = None if engine.takes_group else _CHUNK
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

    @staticmethod
    def _start_event(folder: RunFolder) -> dict[str, Any]:
        config = folder.config
        return {"input": config["input"]["path"], "rewards": config["reward"], "map": config["map"]}

    def _account(self, scored: Scored | Piece, folder: RunFolder) -> None:
        if isinstance(scored, Piece):
            self._account_piece(scored, folder)
            return
        self.summary.add(scored.generation, scored.scores)
        failed = 0
        for name, scores in scored.scores.items():
            for score in scores:
                if score.value is None and score.state == "error":
                    failed += 1
                    if score.reason != "source_failed":
                        self._tell_raised(name, score, folder)
            self.failures.add(name, scores)
        self.observer.scored(len(scored.generation.completions), failed)

    def _account_piece(self, piece: Piece, folder: RunFolder) -> None:
        self.summary.absorb(piece.summary)
        for name, score in piece.first:
            self._tell_raised(name, score, folder)
        for name, (rows, raised) in piece.rows.items():
            self.failures.count(name, rows, raised)
        self.observer.scored(piece.completions, piece.failed)

    def _tell_raised(self, name: str, score: Score, folder: RunFolder) -> None:
        """Tell of the first error of each reward."""
        if name not in self.outcome.traces:
            self.outcome.traces[name] = score.trace or ""
            folder.log("raised", reward=name, why=score.why, trace=score.trace)
            self.observer.raised(name, score)

    def _summary(self, config: dict[str, Any], records: Records) -> dict[str, Any]:
        summary = {
            "schema": SCHEMA,
            "input": config["input"]
            | {
                "format": records.format,
                "map": records.map.as_dict(),
                "rows": records.rows,
                "bad_rows": records.bad_rows,
                "bad_lines": [_bad_line(bad) for bad in records.bad],
                "duplicate_ids": records.duplicate_ids,
            },
            "recipe": {
                name: {"formula": formula, "hash": config["hash"][name]} for name, formula in config["reward"].items()
            },
            "versions": config["versions"],
            "stopped": self.outcome.stopped or None,
            "models": self.summary.to_dict(),
        }
        summary["notices"] = notices(summary, summary["input"])
        summary["warnings"] = warnings(summary, summary["input"])
        return summary


def _bad_line(bad: BadRow) -> dict[str, Any]:
    return {"line": bad.line, "why": bad.why} | ({"file": bad.file} if bad.file else {})


def _written(stream: Iterable[Scored | Piece], writer: ScoreFile) -> Iterator[Scored | Piece]:
    for scored in stream:
        if isinstance(scored, Piece):
            writer.write_lines(scored.lines)
        else:
            writer.write(scored)
        yield scored


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
        # A row that its source marks as failed says nothing about the reward.
        failed = (score for score in scores if score.value is None and score.reason != "source_failed")
        self.count(name, len(scores), sum(score.state == "error" for score in failed))

    def count(self, name: str, rows: int, raised: int) -> None:
        """Count rows of which so many raised."""
        self.rows[name] = self.rows.get(name, 0) + rows
        if raised:
            self.raised[name] = self.raised.get(name, 0) + raised

    def stops_within(self, names: Sequence[str], sizes: Sequence[int], raised: Iterable[tuple[int, int, int]]) -> bool:
        """Whether the verdict will be to stop at one of these generations.

        Args:
            names: All rewards.
            sizes: Completions of each generation.
            raised: Generation, reward (their places) and how many scores raised, where any did.
        """
        at = {(generation, reward): count for generation, reward, count in raised}
        if self.bar is not None or not (at or self.raised):
            return False
        later = _Failures(None)
        later.rows, later.raised = dict(self.rows), dict(self.raised)
        for generation, size in enumerate(sizes):
            for reward, name in enumerate(names):
                later.count(name, size, at.get((generation, reward), 0))
            if later.verdict(final=False):
                return True
        return False

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


def open_records(plan: Plan, inputs: Inputs, known: Mapping[str, Reader], limit: int | None) -> Records:
    """Open what a plan reads."""
    return read_generations(
        inputs,
        field_map=plan.map,
        readers=known,
        limit=limit,
        group=plan.group,
        allow_empty=plan.allow_empty,
        join=plan.join,
    )


def _from(folder: Path, given: str) -> str:
    """Return where an input is, seen from the run's folder, so that both are found again when they move together."""
    try:
        return given if given == "-" else os.path.relpath(given, folder)
    except ValueError:  # on another drive
        return given


def _folder_path(plan: Plan, inputs: Inputs, identity: str) -> Path:
    shard = f"-shard-{plan.shard[0]}-of-{plan.shard[1]}" if plan.shard else ""
    return plan.output or Path("runs") / f"{inputs.stem}-{identity[:8]}{shard}"


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return a summary as strict, indented JSON in which nothing can act on a terminal."""
    return msgspec.json.format(encode_json(summary), indent=1).decode() + "\n"


def _config(plan: Plan, records: Records, inputs: Inputs, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what config.toml says. Its `identity` is a hash over input and recipe, without any time in it."""
    identity = inputs.identity()
    shard = None if plan.shard is None else f"{plan.shard[0]}/{plan.shard[1]}"
    options = {"group": plan.group, "limit": plan.limit, "step": plan.step, "shard": shard}
    what: dict[str, Any] = {
        "input": {"path": path_text(identity.path), "bytes": identity.bytes, "sha256": identity.sha256},
        "map": records.map.as_dict(),
        "options": {name: value for name, value in options.items() if value is not None},
        "reward": {name: path_text(reward.formula) for name, reward in plan.rewards.items()},
        "hash": dict(hashes),
    }
    if len(inputs.given) > 1:
        what["input"]["given"] = [path_text(given) for given in inputs.given]
    if plan.watch:
        what["input"]["watched"] = path_text(os.path.abspath(identity.path))
    if plan.join:
        what["input"]["join"] = [path_text(given) for given in plan.join]
        what["input"]["join_sha256"] = [join.table.source.identity().sha256 for join in records.joins]
    digest = identity_of(what)
    versions = {"rewardkit": __version__, "python": platform.python_version()}
    plugins = [plugin for plugin in load_plugins().plugins if plugin.owner.namespace and not plugin.problem]
    versions |= {plugin.owner.distribution: plugin.owner.version for plugin in plugins}
    return {"identity": digest, **what, "versions": versions}
