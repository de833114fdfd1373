"""`rewardkit plot RUN`: the curves of a training run, as a picture and as lines on the terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from rewardkit.display import visible
from rewardkit.errors import InputError
from rewardkit.records.text import path_text
from rewardkit.report import curves

_EPILOG = """\b
Examples:
  rewardkit plot runs/first
  rewardkit plot runs/first -o curves.svg
"""


@click.command("plot", epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The picture. Default: RUN/curves.svg."
)
@click.option("-q", "--quiet", is_flag=True, help="Write the picture, print nothing.")
def command(run: Path, output: Path | None, quiet: bool) -> int:
    """Draw the curves of a training run.

    RUN is the folder of a run, finished or not, or its metrics.jsonl. The picture is one SVG file without scripts or
    links: reward (with what was held out), share of groups with spread, lengths, entropy, KL, gradient and loss, and
    the seconds of a step. The terminal shows each curve as blocks, with the means of the first and the last steps.
    """
    metrics = curves.read_metrics(run)
    if not curves.panels(metrics):
        raise InputError(f"{path_text(metrics.path)}: none of its metrics is drawn; it has {', '.join(metrics.names)}")
    folder = metrics.path.absolute().parent
    target = output if output is not None else metrics.path.parent / "curves.svg"
    try:
        target.write_text(curves.svg(metrics, path_text(folder.name)), encoding="utf-8")
    except OSError as problem:
        raise InputError(f"{path_text(target)} cannot be written: {problem.strerror}; choose another with -o") from None
    if quiet:
        return 0
    click.echo(curves.summary(metrics, shutil.get_terminal_size((80, 24)).columns))
    if metrics.skipped:
        click.echo(f"{metrics.skipped:,} line{'s' if metrics.skipped > 1 else ''} could not be read", err=True)
    click.echo(f"{visible(path_text(target), limit=300)}")
    return 0
