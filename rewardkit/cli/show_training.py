"""`rewardkit show RUN` of a training run: what was asked for, how far it is, what came of it, and what to type next."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from rewardkit.display import visible
from rewardkit.errors import InputError, RunFolderError
from rewardkit.records import encode_json
from rewardkit.records.text import path_text
from rewardkit.report import curves
from rewardkit.report.text import percent, three
from rewardkit.saved import SavedRun

SCHEMA = "rewardkit.show/1"

_SHOWN = (
    ("reward", "reward"),
    ("spread", "reward_std"),
    ("grad", "grad_norm"),
    ("loss", "loss"),
    ("KL", "kl"),
    ("entropy", "entropy"),
    ("length", "completions/mean_length"),
)
_SHARES = (("cut off", "completions/clipped_ratio"), ("rewards failed", "rewards/error_share"))


def show_training(run: SavedRun, *, as_json: bool = False) -> None:
    """Print what there is to say about a training run, finished or not.

    Raises:
        RunFolderError: A file in it is damaged.
    """
    folder = run.path
    config = _read(folder / "config.toml", tomllib.loads)
    summary = _read(folder / "summary.json", json.loads)
    started, notes = _log(folder)
    row = _last_step(folder)
    steps = int(summary.get("steps") or row.get("step") or 0)
    if as_json:
        document = {
            "schema": SCHEMA, "run": run.name, "training": True, "finished": bool(summary),
            "ended": summary.get("ended"), "steps": steps, "of": started.get("steps"), "config": config, "metrics": row,
            "held_out": summary.get("held_out"), "learning": summary.get("learning"),
        }  # fmt: skip
        click.echo(msgspec.json.format(encode_json(document), indent=1).decode())
        return
    for label, text in _lines(folder, config, summary, row, _how_far(summary, steps, started), notes):
        click.echo(f"{label:<10}{visible(text, 1000)}")


def _lines(
    folder: Path,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    row: Mapping[str, Any],
    how_far: str,
    notes: list[str],
) -> Iterator[tuple[str, str]]:
    yield "training", f"{path_text(folder)}   {how_far}"
    yield from _settings(config)
    if row:
        yield f"step {row['step']:g}", _figures(row)
    yield from _held_out(summary, notes)
    learning = summary.get("learning")
    if learning:
        moved = f"live groups {percent(learning['live_share'])}, norm of the adapter's change"
        said = "something was learned" if learning["learned"] else "NOTHING WAS LEARNED"
        yield "learning", f"{said}: {moved} {three(learning['norm_of_change'])}"
    if (folder / "adapter").is_dir():
        yield "adapter", path_text(folder / "adapter")
    label = "next"
    for command in _next(folder, summary, row):
        yield label, command
        label = ""


def _read(path: Path, load: Any) -> dict[str, Any]:
    """Return what a file holds; {} where there is none yet."""
    try:
        found: dict[str, Any] = load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise RunFolderError(f"{path_text(path)} is damaged: {problem}") from None
    return found


def _log(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what the log says of the newest start, and its notes. A cut line at its end is passed over."""
    started: dict[str, Any] = {}
    notes: list[str] = []
    try:
        lines = (folder / "log.jsonl").read_bytes().splitlines()
    except OSError:
        return started, notes
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") in ("start", "resume"):
            started = event
        elif event.get("event") == "note":
            notes.append(str(event.get("text")))
    return started, notes


def _last_step(folder: Path) -> Mapping[str, Any]:
    try:
        return curves.read_metrics(folder).rows[-1]
    except (InputError, RunFolderError):  # no step has ended yet
        return {}


def _how_far(summary: Mapping[str, Any], steps: int, started: Mapping[str, Any]) -> str:
    of = f" of {started['steps']}" if "steps" in started else ""
    if not summary:
        return f"unfinished, after step {steps}{of}"
    why = f": {summary['why']}" if summary.get("why") else ""
    return f"{summary['ended']} after {steps}{of} steps{why}"


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def get(table: str, key: str, otherwise: Any = "") -> Any:
        return config.get(table, {}).get(key, otherwise)

    weights = "4 bits" if get("model", "load_in_4bit") else get("model", "dtype")
    adapter = f"LoRA r{get('lora', 'r')}"
    begun = f" from {path_text(get('lora', 'start_from'))}" if get("lora", "start_from") else ""
    yield "model", f"{get('model', 'name')}  {weights}  {adapter}{begun}  sampled by {get('rollout', 'engine')}"
    yield (
        "settings",
        f"{get('grpo', 'loss_type')}  learning_rate {get('grpo', 'learning_rate'):g}"
        f"  G={get('grpo', 'num_generations')}  temperature {get('grpo', 'temperature'):g}"
        f"  beta {get('grpo', 'beta'):g}  max_completion_length {get('grpo', 'max_completion_length')}"
        f"  seed {get('run', 'seed')}",
    )
    held = get("data", "eval")
    train = get("data", "train") or "given in Python"
    yield "data", f"{path_text(train)}   held out: {path_text(held) if held else 'given in Python, or none'}"
    for name, formula in config.get("reward", {}).items():
        yield "reward", f"{name} = {formula if isinstance(formula, str) else json.dumps(formula, default=str)}"


def _figures(row: Mapping[str, Any]) -> str:
    def known(name: str) -> bool:
        return isinstance(row.get(name), (int, float))

    told = [f"{label} {three(row[name])}" for label, name in _SHOWN if known(name)]
    if known("frac_reward_zero_std"):
        told.insert(2, f"live groups {percent(1 - row['frac_reward_zero_std'])}")
    told += [f"{label} {percent(row[name])}" for label, name in _SHARES if known(name)]
    return "  ".join(told)


def _held_out(summary: Mapping[str, Any], notes: list[str]) -> Iterator[tuple[str, str]]:
    found = summary.get("held_out") or {}
    for how in ("greedy", "sampled"):
        one = found.get(how)
        if one:
            span = f" [{one['interval'][0]:+.3f}, {one['interval'][1]:+.3f}]" if one.get("interval") else ""
            yield (
                "held out",
                f"{how:<8} {three(one['before'])} -> {three(one['after'])}  {one['difference']:+.3f}{span}"
                f"  p {one['p']:.2g}  won {one['won']}, lost {one['lost']}, same {one['same']}",
            )
    if not found:  # an unfinished run has only what it said
        said = [note for note in notes if note.startswith("held-out reward ")]
        for note in said[-1:]:
            yield "held out", note.removeprefix("held-out reward ")


def _next(folder: Path, summary: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    here = shlex.quote(path_text(folder))
    if not summary:
        yield f"rewardkit train --resume {here}"
    if row:
        yield f"rewardkit plot {here}   (reward, entropy, length by step)"
        yield f"rewardkit show {here} --best 3   (also --worst, --group ID, --errors: texts with their scores)"
    if (folder / "generations.jsonl").exists():
        yield f"rewardkit eval {here}/generations.jsonl -r REWARD   (another reward on the same texts)"
