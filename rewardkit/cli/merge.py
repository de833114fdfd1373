"""`rewardkit merge SHARD_DIR…`: the run folder that one run over all of the input would have written."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rewardkit.display import visible
from rewardkit.engine import Scored
from rewardkit.errors import InputError, RunFolderError, UsageError
from rewardkit.plugins import readers
from rewardkit.records import Records
from rewardkit.records.text import path_text
from rewardkit.report.summary import Summary
from rewardkit.run import Observer, Outcome, Plan, Run
from rewardkit.runfolder import RunFolder, score_of
from rewardkit.saved import SavedRun, ScoredRow, identity_without_shard, open_run, open_texts
from rewardkit.types import Generation, Score

_EPILOG = """\b
Example:
  for i in 1 2 3; do rewardkit eval big.jsonl -r gsm8k --shard $i/3 -o part-$i; done
  rewardkit merge part-1 part-2 part-3 -o whole
"""


@click.command("merge", epilog=_EPILOG)
@click.argument("shards", nargs=-1, required=True, metavar="SHARD_DIR…")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder for the merged run.")
@click.option("--overwrite", is_flag=True, help="Start again in a folder that has results.")
def command(shards: tuple[str, ...], output: Path, overwrite: bool) -> None:
    """Put the shards of one run together (eval --shard i/n).

    The input is read once more. scores.jsonl and summary.json are those of a run without shards, apart from times.
    """
    runs = checked_shards([open_run(shard) for shard in shards])
    count = merge(runs, output, overwrite=overwrite)
    click.echo(f"{count:,} completions of {len(runs):,} shards")
    click.echo(f"{visible(path_text(output), limit=300)}/   summary.json   scores.jsonl   config.toml")


def checked_shards(runs: Sequence[SavedRun]) -> list[SavedRun]:
    """Return the shards in order, 1 to n.

    Raises:
        UsageError: One is missing or given twice, is no shard, is unfinished, or they are of different runs.
    """
    found: dict[int, SavedRun] = {}
    first = runs[0]
    for run in runs:
        shard = run.shard
        if shard is None:
            raise UsageError(f"{run.name} is no shard: it is of a run without --shard i/n")
        if run.summary is None or run.summary.get("stopped"):
            raise UsageError(f"{run.name} (shard {shard[0]}/{shard[1]}) is unfinished; finish it with eval --resume")
        if shard[1] != (first.shard or shard)[1]:
            raise UsageError(f"{run.name} is one of {shard[1]} shards, {first.name} one of {(first.shard or shard)[1]}")
        if identity_without_shard(run.config) != identity_without_shard(first.config):
            raise UsageError(f"{run.name} and {first.name} are of different runs: {_difference(first, run)}")
        if shard[0] in found:
            raise UsageError(f"{run.name} and {found[shard[0]].name} are both shard {shard[0]}/{shard[1]}")
        found[shard[0]] = run
    n = (first.shard or (1, 1))[1]
    missing = [f"{i}/{n}" for i in range(1, n + 1) if i not in found]
    if missing:
        listed = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise UsageError(f"shard{'s' * (len(missing) > 1)} {listed} {'are' if len(missing) > 1 else 'is'} missing")
    return [found[i] for i in range(1, n + 1)]


def _difference(a: SavedRun, b: SavedRun) -> str:
    for part in ("input", "map", "options", "hash", "reward"):
        one, other = ({k: v for k, v in run.config[part].items() if k not in ("path", "shard")} for run in (a, b))
        if one != other or list(one) != list(other):
            return {"hash": "a reward's code, version or options differ"}.get(part, f"their {part} differs")
    return "their identities differ"


def merge(runs: Sequence[SavedRun], output: Path, *, overwrite: bool = False) -> int:
    """Write the merged run folder; return how many completions it has. Memory does not grow with the input's texts.

    Args:
        runs: All shards, in order.
        output: The folder to write.
        overwrite: Whether it may have results already.

    Raises:
        InputError: The input has changed, or a shard's scores do not follow it.
        RunFolderError: The folder has results, or cannot be written to.
    """
    records = open_texts(runs[0], readers())
    config = _whole(runs[0].config)
    names = list(config["reward"])
    labels = [name for name, formula in config["reward"].items() if formula == "label"]
    run = Run(Plan(config["input"]["path"], {}), Observer())
    run.summary = Summary(names, labels=labels)
    run.outcome = Outcome({}, output)
    count = 0
    assert records.inputs is not None  # open_texts reads whole inputs
    with RunFolder(output, config, records.inputs, resume=False, overwrite=overwrite) as folder:
        if any(output.resolve() == one.path.resolve() for one in runs):
            raise RunFolderError(f"{path_text(output)} is one of the shards; choose another folder with -o")
        folder.begin({"merged": [one.name for one in runs]})
        with folder.writer("scores.jsonl") as writer, contextlib.closing(_scored(runs, records)) as stream:
            for scored in stream:
                run.summary.add(scored.generation, scored.scores)
                writer.write(scored)
                count += len(scored.generation.completions)
        run.finish(records, folder)
    return count


def _whole(config: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in config["options"].items() if name != "shard"}
    return {**config, "options": options, "identity": identity_without_shard(config)}


def _scored(runs: Sequence[SavedRun], records: Records) -> Generator[Scored]:
    """Yield the input's generations with their scores, each from the shard that its group belongs to."""
    streams = [run.rows() for run in runs]
    for generation in records:
        at = generation.key % len(runs)
        yield Scored(generation, _scores_of(generation, streams[at], runs[at]))
    for run, stream in zip(runs, streams, strict=True):
        if next(stream, None) is not None:
            raise InputError(f"{run.name} has more scores than the input has completions for it")


def _scores_of(generation: Generation, rows: Iterator[ScoredRow], run: SavedRun) -> dict[str, list[Score]]:
    found = list(itertools.islice(rows, len(generation.completions)))
    scores: dict[str, list[Score]] = {name: [] for name in run.rewards}
    expected = [(generation.sample.id, generation.start + at, generation.model) for at in range(len(found))]
    held = [(row.records[0].id, row.records[0].index, row.records[0].model) for row in found]
    if len(found) < len(generation.completions) or expected != held:
        raise InputError(f"{run.name}: its scores do not follow the input at {generation.where}")
    for row in found:
        for record in row.records:
            scores[record.reward].append(score_of(record))
    return scores
