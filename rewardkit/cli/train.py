"""`rewardkit train FILE`: find the training backend, and hand the file to it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rewardkit.errors import InputError, PluginError, RunFolderError, UsageError, nearest
from rewardkit.plugins import load_plugins
from rewardkit.records.text import path_text
from rewardkit.targets import load_target
from rewardkit.training import TrainOptions

if TYPE_CHECKING:
    from rewardkit.training import Backend

_EPILOG = """\b
Examples:
  rewardkit train train.toml --check
  rewardkit train train.toml -o runs/first
  rewardkit train train.toml --set grpo.max_steps=20 --set grpo.learning_rate=1e-4
  rewardkit train --resume runs/first
"""


@click.command("train", epilog=_EPILOG)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option("--check", is_flag=True, help="Estimate memory and time, try 8 prompts and the rewards; train nothing.")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="RUN",
    help="Go on from the newest checkpoint of this run's folder; FILE is then that run's own, unless given.",
)  # fmt: skip
@click.option(
    "--force",
    is_flag=True,
    help="Start although no plan of the memory fits; with --check, exit code 0 whatever it finds.",
)
@click.option("--allow-change", is_flag=True, help="With --resume: go on although settings have changed.")
@click.option("--require-learning", is_flag=True, help="Exit code 1 when nothing was learned.")
@click.option("--overwrite", is_flag=True, help="Start again in a folder that has a run.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run.")
@click.option(
    "--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE",
    help="A setting in place of the file's; VALUE is TOML, or text. May be repeated.",
)  # fmt: skip
@click.option("--backend", default="grpo", show_default=True, metavar="NAME", help="What trains: see rewardkit list.")
@click.option("-q", "--quiet", is_flag=True, help="Print one line.")
def command(
    file: Path | None,
    check: bool,
    resume: Path | None,
    force: bool,
    allow_change: bool,
    require_learning: bool,
    overwrite: bool,
    output: Path | None,
    changes: tuple[str, ...],
    backend: str,
    quiet: bool,
) -> int:
    """Train a model with the rewards that `rewardkit eval` scores with.

    FILE is a TOML file; docs/train_options.md has all its keys. Paths in it are relative to its own folder. The run's
    folder gets metrics.jsonl (see rewardkit plot), generations.jsonl (see rewardkit eval), checkpoints and the trained
    adapter. Ctrl-C ends the step, saves, and leaves a run that --resume goes on with.
    """
    if resume is not None and overwrite:
        raise UsageError("--resume goes on and --overwrite starts again; give one of them")
    if resume is not None and output is not None:
        raise UsageError("--resume goes on in the folder of the run, so there is no place for -o; leave it out")
    if resume is not None and check:
        raise UsageError("--check looks at a run before it starts, and --resume goes on with one; give one of them")
    if allow_change and resume is None:
        raise UsageError("--allow-change says how to go on with a run; give --resume RUN with it")
    options = TrainOptions(
        check=check,
        resume=resume,
        force=force,
        allow_change=allow_change,
        require_learning=require_learning,
        overwrite=overwrite,
        output=output,
        set=changes,
        quiet=quiet,
    )
    path = _file(file, resume)
    return _backend(backend)(path, options)


def _file(file: Path | None, resume: Path | None) -> Path:
    """Return the training file, which exists."""
    if resume is not None and not resume.is_dir():
        what = "is no folder" if resume.exists() else "does not exist"
        raise RunFolderError(f"--resume {path_text(resume)}: it {what}; give the folder of a run")
    if file is None and resume is None:
        raise UsageError("no training file is given; write rewardkit train FILE, or --resume RUN to go on with a run")
    path = file if file is not None else cast("Path", resume) / "config.toml"
    if path.is_file():
        return path
    if file is None:
        raise RunFolderError(f"--resume {path_text(cast('Path', resume))}: it holds no config.toml, so it is no run")
    if path.is_dir():
        hint = "; to go on with a run, write --resume" if (path / "metrics.jsonl").is_file() else ""
        raise InputError(f"{path_text(path)} is a folder, where a training file is wanted{hint}")
    near = sorted(one.name for one in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    hint = nearest(path.name, near) or (f"; beside it there is {', '.join(near[:5])}" if near else "")
    raise InputError(f"{path_text(path)}: no such file{path_text(hint)}")


def _backend(name: str) -> Backend:
    entry = load_plugins().registry.get("backend", name)
    found = load_target(entry.target)
    if not callable(found):
        raise PluginError(f"{entry.owner}: {entry.target} is no backend, but a {type(found).__name__}")
    try:
        inspect.signature(found).bind(Path(), TrainOptions())
    except TypeError:
        raise PluginError(
            f"{entry.owner}: the backend {name!r} does not take what backends are called with, (path, options);"
            " docs/plugins.md shows one"
        ) from None
    except ValueError:  # something without a signature: calling it will tell
        pass
    return cast("Backend", found)
