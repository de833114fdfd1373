"""`rewardkit eval FILE`: score saved generations and say what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rewardkit import recipe
from rewardkit.cli.columns import aligned
from rewardkit.display import visible
from rewardkit.errors import UsageError, nearest
from rewardkit.plugins import readers
from rewardkit.records import FieldMap, Records, find_inputs
from rewardkit.records.text import path_text
from rewardkit.report.terminal import Progress, is_terminal, render_summary, wants_color
from rewardkit.run import Observer, Outcome, Plan, evaluate, open_records, summary_text
from rewardkit.saved import parse_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rewardkit.compose import Reward
    from rewardkit.records.unsure import Question
    from rewardkit.types import Score

_EPILOG = """\b
Examples:
  rewardkit eval generations.jsonl -r gsm8k
  rewardkit eval runs.jsonl.gz -r gsm8k -r "total=gsm8k + 0.1*think_format"
  rewardkit eval outputs.json -r my_rewards.py:brief --map completion=code[] --map reference=gt
  rewardkit eval answers.jsonl --join problems.jsonl -r numeric
  rewardkit eval rollouts/ -r label              (a folder, a glob, a zip archive, several files)
  rewardkit eval live.jsonl -r gsm8k --watch     (until Ctrl-C)
  zcat big.jsonl.gz | rewardkit eval - -r rewards.toml --json
"""


@click.command("eval", epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "-r", "--reward", "rewards", multiple=True, metavar="FORMULA",
    help="A reward: a name, NAME=FORMULA, file.py:name, or a TOML file. Each -r is one column.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder for the results. Default: runs/STEM-HASH8."
)
@click.option(
    "--map", "maps", multiple=True, metavar="ROLE=PATH",
    help="Which field is what: completion=code[], reference=a.b, prompt, id, label, step, model, … May be repeated.",
)  # fmt: skip
@click.option(
    "--join", "joins", multiple=True, metavar="FILE[:COLUMN]",
    help="A file whose columns are added to the rows of the same id, such as the problems of a set of answers.",
)  # fmt: skip
@click.option(
    "--group", metavar="FIELD", help="The field that says which rows are one group. Default: equal id and prompt."
)
@click.option("--strict", is_flag=True, help="Stop with exit code 2 at a row that cannot be read.")
@click.option("--allow-empty", is_flag=True, help="A file without rows is no error.")
@click.option("--resume", is_flag=True, help="Go on in a folder that has results of the same run.")
@click.option("--overwrite", is_flag=True, help="Start again in a folder that has results.")
@click.option(
    "--workers", type=click.IntRange(1), help="Worker processes for rewards that need one. Default: one a core."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N rows.")
@click.option("--shard", metavar="I/N", help="Only part I of N, by group; `rewardkit merge` puts the parts together.")
@click.option("--watch", is_flag=True, help="Go on with the lines that are appended to FILE, until Ctrl-C.")
@click.option(
    "--step", type=click.IntRange(0), metavar="N", help="Training step for rows that do not say theirs (schedule)."
)
@click.option("--dry-run", is_flag=True, help="Show the map, the rewards and the first 32 rows; write nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output, all else on stderr."
)
@click.option("-q", "--quiet", is_flag=True, help="Print one line.")
@click.option(
    "--fail-under", "bars", multiple=True, metavar="NAME=X", help="Exit code 1 when the mean of NAME is below X."
)
@click.option(
    "--max-error-rate", type=click.FloatRange(0, 1), metavar="X",
    help="Exit code 1 when more than this share of a reward's rows are errors. Replaces the rule that a reward which"
    " raises on more than 5 % of rows stops the run with exit code 3.",
)  # fmt: skip
def command(
    files: tuple[str, ...],
    rewards: tuple[str, ...],
    output: Path | None,
    maps: tuple[str, ...],
    joins: tuple[str, ...],
    group: str | None,
    strict: bool,
    allow_empty: bool,
    resume: bool,
    overwrite: bool,
    workers: int | None,
    limit: int | None,
    shard: str | None,
    watch: bool,
    step: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    bars: tuple[str, ...],
    max_error_rate: float | None,
) -> int:
    """Score saved generations with one or more rewards.

    FILE is a file, a quoted glob, a folder, a zip archive, or - for standard input; several are read as one. Reads
    JSONL, JSON, CSV, parquet, plain or compressed (gzip, zstd), and the logs of other tools (docs/formats.md); which
    field holds what is guessed, printed, and changed with --map. Results go to a run folder: scores.jsonl,
    summary.json, config.toml, log.jsonl.
    """
    if resume and overwrite:
        raise UsageError("--resume goes on and --overwrite starts again; give one of them")
    if as_json and (quiet or dry_run):
        raise UsageError(f"--json and {'--quiet' if quiet else '--dry-run'} print different things; give one of them")
    stdout = sys.stdout
    # A reward that prints, also while its file is loaded, must not get between the lines that a script reads.
    prints = sys.stderr if as_json or quiet else stdout
    with contextlib.redirect_stdout(prints):
        columns = recipe.parse_columns(rewards)
    limits = _bars(bars, columns)
    if max_error_rate is not None and math.isnan(max_error_rate):
        raise UsageError("--max-error-rate wants a share between 0 and 1, got nan")
    plan = Plan(
        files[0] if len(files) == 1 else files,
        columns,
        map=FieldMap.parse(map(path_text, maps)),
        join=joins,
        group=None if group is None else path_text(group),
        output=output,
        resume=resume,
        overwrite=overwrite,
        limit=limit,
        shard=_shard(shard),
        watch=watch,
        step=step,
        workers=workers,
        strict=strict,
        allow_empty=allow_empty,
        max_error_rate=max_error_rate,
    )
    if watch and (limit or strict or dry_run):
        raise UsageError("--watch goes on until it is interrupted; it does not go with --limit, --strict or --dry-run")
    if dry_run:
        return _dry_run(plan)
    stream = sys.stderr if as_json else stdout
    show = _Show(stream, quiet=quiet)
    try:
        with show.progress, contextlib.redirect_stdout(prints), _nothing_to(stdout, when=as_json or quiet):
            outcome = _evaluate(plan, show)
    except KeyboardInterrupt:
        return show.interrupted()
    _print(outcome, stream, as_json=as_json, quiet=quiet)
    return _verdict(outcome, limits, max_error_rate)


def _shard(text: str | None) -> tuple[int, int] | None:
    try:
        return parse_shard(text)
    except ValueError as problem:
        raise UsageError(f"--shard: {problem}") from None


def _evaluate(plan: Plan, show: _Show) -> Outcome:
    """Run the plan; on a terminal, ask which field means what where the guess is not sure."""
    from rewardkit.records.unsure import Unsure, answered

    while True:
        try:
            return evaluate(plan, show)
        except Unsure as problem:
            if problem.question is None or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
                raise
            with show.progress.paused():
                number = _ask(str(problem), problem.question)
            plan = dataclasses.replace(plan, map=answered(plan.map, problem.question, number))


def _ask(text: str, question: Question) -> int:
    """Ask for one role's field; return the number of the choice, 0 for none."""
    for line in text.split("\n"):
        click.echo(visible(line, limit=2000), err=True)
    for number, choice in enumerate(question.choices, 1):
        click.echo(f"  {number}  {choice.path}   {choice.sample}", err=True)
    if question.optional:
        click.echo("  0  none of these", err=True)
    least = 0 if question.optional else 1
    answer: int = click.prompt(
        f"{question.role}", type=click.IntRange(least, len(question.choices)), default=1, err=True
    )
    return answer


@contextlib.contextmanager
def _nothing_to(stdout: Any, *, when: bool) -> Iterator[None]:
    """While it lasts, what a reward's own processes and libraries write to standard output goes to standard error."""
    try:
        descriptor, other = stdout.fileno(), sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # no real files, as in a test
        when = False
    if not when:
        yield
        return
    stdout.flush()
    kept = os.dup(descriptor)
    os.dup2(other, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


class _Show(Observer):
    """Tells on the terminal what the run does."""

    def __init__(self, stream: Any, *, quiet: bool) -> None:
        self.stream = stream
        self.quiet = quiet
        # Python has no standard error where the shell closed it (2>&-).
        self.progress = Progress(sys.stderr, quiet=quiet or sys.stderr is None, what="completions")
        self.folder: Path | None = None

    def opened(self, records: Records, folder: Path) -> None:
        self.folder = folder
        self.progress.total = _completions_to_come(records)
        if not self.quiet:
            _echo(_map_line(records), self.stream)

    def note(self, text: str) -> None:
        click.echo(f"rewardkit: {visible(text, limit=400)}", err=True)

    def interrupted(self) -> int:
        """Say what is left of an interrupted run; return its exit code."""
        kept = "nothing was scored yet"
        if self.folder is not None and self.progress.done:
            folder = visible(path_text(self.folder), limit=300)
            kept = f"what was scored so far is kept in {folder}; the same command with --resume goes on"
        click.echo(f"rewardkit: interrupted; {kept}", err=True)
        return 130

    def redraw(self, summary: Mapping[str, Any]) -> None:
        if self.quiet:
            return
        if not is_terminal(self.stream):
            _echo(_one_line(summary), self.stream)
            return
        size = shutil.get_terminal_size((120, 24))
        run = path_text(self.folder) if self.folder is not None else ""
        color = wants_color(self.stream)
        text = render_summary(summary, width=size.columns, color=color, run=run)
        with self.progress.paused():
            click.clear()
            _echo("\n".join(text.split("\n")[: max(4, size.lines - 3)]), self.stream, color)

    def scored(self, completions: int, failed: int) -> None:
        self.progress.advance(completions, failed)

    def raised(self, name: str, score: Score) -> None:
        trace = "\n".join(visible(line, limit=400) for line in (score.trace or score.why).rstrip().split("\n"))
        click.echo(
            f"{visible(name)} failed; this is the first of its errors, the others are only counted:\n{trace}", err=True
        )


def _completions_to_come(records: Records) -> int | None:
    """Return how many completions a file has, where each row has one and the number of rows is known."""
    completion = records.map.get("completion")
    if completion is None or any(not isinstance(step, str) for step in completion.steps):
        return None
    return records.total


def _map_line(records: Records) -> str:
    known = [role for role, path in records.map.items() if path is not None]
    which = "" if set(known) <= set(records.guessed) else f"{', '.join(records.guessed)} "
    how = f"   ({which}guessed; change with --map)" if records.guessed else ""
    return f"read   {records.format or 'an empty file'}   {visible(records.describe(), limit=300)}{how}"


def _echo(text: str, stream: Any, color: bool | None = None) -> None:
    """Print a line. That its reader has gone (`| head`) changes neither the run nor its exit code."""
    try:
        click.echo(text, file=stream, color=color)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(outcome: Outcome, stream: Any, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        _echo(summary_text(outcome.summary).rstrip(), sys.stdout)
    elif quiet:
        _echo(_one_line(outcome.summary), stream)
    if quiet:
        return
    found = outcome.summary["input"]
    for line in bad_lines(found["path"], found["bad_rows"], found["bad_lines"]):
        _echo(line, stream)
    width = shutil.get_terminal_size((120, 24)).columns if is_terminal(stream) else 100
    if not as_json:
        color = wants_color(stream)
        _echo(render_summary(outcome.summary, width=width, color=color, run=path_text(outcome.folder)), stream, color)
    if outcome.reused:
        _echo(f"resumed: {outcome.reused:,} completions were taken over from the earlier run", stream)
    if outcome.repeated:
        verb = "completion was" if outcome.repeated == 1 else "completions were"
        _echo(f"{outcome.repeated:,} {verb} the same as another and judged once with it", stream)
    folder = visible(path_text(outcome.folder), limit=300)
    _echo(f"{folder}/   summary.json   scores.jsonl   config.toml", stream)


def bad_lines(path: str, count: int, bad: Sequence[Mapping[str, Any]], most: int = 5) -> list[str]:
    """Say which rows could not be read: the first few with their reason, the next ones by number.

    Args:
        path: The input.
        count: How many there are.
        bad: The first of them: line, why, and file where there are several.
    """
    name = "stdin" if path == "-" else Path(path).name

    def place(one: Mapping[str, Any]) -> str:
        return f"{visible(one.get('file') or name, limit=100)}:{one['line']}"

    lines = [f"bad    {place(one)}: {visible(one['why'], limit=200)}" for one in bad[:most]]
    if count > len(lines):
        more = bad[most : most + 10]
        unnamed = ", …" if count > len(lines) + len(more) else ""
        numbers = ", ".join(place(one) if one.get("file") else str(one["line"]) for one in more) + unnamed
        lines.append(f"bad    {visible(name, limit=100)}: {count - len(lines):,} more: {numbers}")
    return lines


def _one_line(summary: Mapping[str, Any]) -> str:
    parts = []
    for model, figures in summary["models"].items():
        for name, reward in figures["rewards"].items():
            mean = "n/a" if reward["mean"] is None else f"{reward['mean']:.4g}"
            shown = name if len(summary["models"]) == 1 else f"{model}/{name}"
            unscored = reward["abstained"] + reward["errors"]
            parts.append(f"{visible(shown)} {mean} ({reward['scored']} scored, {unscored} unscored)")
    return "   ".join(parts) or "no rows"


def _bars(bars: tuple[str, ...], columns: Mapping[str, Reward]) -> dict[str, float]:
    limits = {}
    for bar in bars:
        name, equals, text = bar.rpartition("=")
        if not equals:
            raise UsageError(f"--fail-under wants NAME=X, got {bar!r}")
        if name not in columns:
            raise UsageError(
                f"--fail-under: no reward is named {name!r}{nearest(name, columns)} Named are {', '.join(columns)}"
            )
        try:
            limits[name] = float(text)
        except ValueError:
            limits[name] = math.nan
        if math.isnan(limits[name]):
            raise UsageError(f"--fail-under wants a number after {name}=, got {text!r}")
    return limits


def _verdict(outcome: Outcome, limits: Mapping[str, float], max_error_rate: float | None) -> int:
    """Return the exit code: 3 stopped, 1 a bar was missed, else 0; and say why."""
    if outcome.stopped:
        next_step = "results are kept; mend the reward and run again, or accept errors with --max-error-rate X"
        click.echo(f"rewardkit: stopped: {visible(outcome.stopped, limit=400)}; {next_step}", err=True)
        return 3
    code = 0
    if limits and not outcome.summary["models"]:
        click.echo("rewardkit: there are no rows, so no mean reaches its --fail-under", err=True)
        code = 1
    models = outcome.summary["models"]
    for model, figures in models.items():
        of = f"{visible(model)}: " if len(models) > 1 else ""
        for name, reward in figures["rewards"].items():
            mean = reward["mean"]
            if name in limits and (mean is None or mean < limits[name]):
                shown = "n/a" if mean is None else f"{mean:.6g}"
                click.echo(
                    f"rewardkit: {of}the mean of {visible(name)} is {shown}, below {limits[name]:g}",
                    err=True,
                )
                code = 1
            share = reward["errors"] / reward["n"] if reward["n"] else 0.0
            if max_error_rate is not None and share > max_error_rate:
                text = f"{reward['errors']} of {reward['n']} rows of {visible(name)} are errors ({share:.1%})"
                click.echo(f"rewardkit: {of}{text}, more than {max_error_rate:.1%}", err=True)
                code = 1
    return code


def _dry_run(plan: Plan) -> int:
    """Show what would be run, and the first 32 rows of it; write nothing."""
    import time

    from rewardkit.cli.try_ import explain
    from rewardkit.engine import PEEK, score

    known = readers()
    inputs = find_inputs(plan.input, readers=known)
    records = open_records(plan, inputs, known, min(plan.limit or PEEK, PEEK))
    first = list(records)
    click.echo(_map_line(records))
    for note in records.notes:
        click.echo(visible(note, limit=400))
    bad = [{"line": one.line, "why": one.why, "file": one.file} for one in records.bad]
    for line in bad_lines(inputs.text, records.bad_rows, bad):
        click.echo(line)
    rows = [(name, reward.formula, _needs(reward)) for name, reward in plan.rewards.items()]
    click.echo(aligned([("reward", "formula", "needs"), *rows]))
    started = time.perf_counter()
    scored = list(score(plan.rewards, first, workers=plan.workers, step=plan.step))
    seconds = time.perf_counter() - started
    count = sum(len(generation.completions) for generation in first)
    for one in scored[:3]:
        click.echo(f"{visible(one.generation.where)}  id {visible(repr(one.generation.sample.id))}")
        for scores in one.scores.values():
            for line in explain(scores[0], 1):
                click.echo(line)
    each = f"{1e3 * seconds / max(1, count):.2f} ms each"
    click.echo(f"{count} completions in {seconds:.2f} s, start-up included: {each}. Nothing was written.")
    return 0


def _needs(reward: Reward) -> str:
    needs = sorted({column for leaf in reward.leaves() for column in getattr(leaf, "needs", ())})
    return ", ".join(needs) or "-"
