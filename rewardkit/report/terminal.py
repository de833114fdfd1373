"""The summary as plain text for a terminal.

Every name and text that comes from a file goes through `visible`, so that no output of a model can move the cursor,
change a colour or turn the reading order. Nothing here writes an escape byte unless asked to (`color=True`);
`FORCE_COLOR` does not make a pipe a terminal. Equal summaries give equal bytes.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rewardkit.display import visible
from rewardkit.report.notices import how_many, warnings, worst
from rewardkit.report.progress import Progress, is_terminal, wants_color
from rewardkit.report.text import cells, counted, duration, percent, shorten, three
from rewardkit.stats import MIN_PROBLEMS

__all__ = ["Progress", "cells", "duration", "is_terminal", "render_summary", "shorten", "three", "wants_color"]

BOLD, DIM, RED, YELLOW = "1", "2", "31", "33"
DASH = "\N{EN DASH}"
FAIR_NAME, LEAST_NAME = 16, 8  # columns are left out before names get shorter than the first; never below the second
INFORMS = ("no_spread", "slow", "cut_off", "rows_left")  # what is no fault; all else gets an exclamation mark

_Models = Mapping[str, Any]
_Row = dict[str, str]


def render_summary(summary: Mapping[str, Any], *, width: int, color: bool, run: str = "") -> str:
    """Return what `eval` prints about a run: counts, the table of rewards, pass@k, groups, labels, what to look at.

    Args:
        summary: With `models` (`Summary.to_dict`); `warnings` (or sentences in `notices`), else they are made here
            with `input`.
        width: Cells in a line. Names are shortened and columns left out to keep to it.
        color: Whether to use ANSI colours.
        run: The run folder, for the commands that show rows; without it they say RUN.
    """
    paint = _Paint(color)
    models: _Models = summary.get("models") or {}
    if not models:
        return "  no completions, so there is nothing to sum up\n"
    blocks = [
        _read_lines(models, summary.get("input") or {}, width),
        [*_table(models, width, paint), *_interval_lines(models, width, paint)],
        [
            line
            for lines in (_pass_lines, _group_lines, _label_lines)
            for model, figures in models.items()
            for line in lines(models, model, figures, width)
        ],
        _look_at(summary, width, paint, run),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


class _Paint:
    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, style: str | None) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.color and style else text


# -------------------------------------------------------------------------------------------------------------- counts


def _read_lines(models: _Models, info: Mapping[str, Any], width: int) -> list[str]:
    """Say how many completions and groups the figures rest on, and what of the input they leave out."""
    said = [(shorten(visible(model), 30), [_counts(of)]) for model, of in models.items()]
    if len(said) == 1:
        said = [("", said[0][1])]
    elif all(items == said[0][1] for _, items in said):
        said = [("", [f"{len(said):,} models, each {said[0][1][0]}"])]
    left_out = [
        f"{counted(number, 'row')} {what}"
        for key, what in (("bad_rows", "unreadable"), ("rows_left", "not read"))
        if (number := how_many(info.get(key)))
    ]
    lines = []
    for at, (title, items) in enumerate(said):
        more = left_out if at == len(said) - 1 else []
        lines += _flow("read", title, [*items, *more], width)
    return lines


def _counts(figures: Mapping[str, Any]) -> str:
    groups = figures["groups"]
    sizes = [int(size) for size in groups["sizes"]] or [0]
    low, high = min(sizes), max(sizes)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{counted(figures['completions'], 'completion')}, {counted(groups['n'], 'group')} of {each}"


# --------------------------------------------------------------------------------------------------------------- table

_NAMES = ("model", "reward")
_SPREAD, _SLOWEST = "95 % over problems", "slowest 5 %"


def _table(models: _Models, width: int, paint: _Paint) -> list[str]:
    level = next((held["interval"]["level"] for _, _, held in _rewards(models) if held["interval"]), 0.95)
    titles = {_SPREAD: f"{level * 100:g} % over problems"}
    rows = [row for model, reward, held in _rewards(models) for row in _rows(model, reward, held)]
    head = ["model", "reward", "weight", "mean", _SPREAD, "right", "abstained", "errors", _SLOWEST]
    columns = [name for name in head if any(row.get(name) for row in rows) and (name != "model" or len(models) > 1)]
    for droppable in (_SLOWEST, "", "right", "weight", _SPREAD):
        if _needed(columns, rows, titles) <= width:
            break
        if not droppable:  # before figures go, the title gets shorter
            titles[_SPREAD] = f"{level * 100:g} %"
        columns = [name for name in columns if name != droppable]
    widths = _widths(columns, rows, titles, width)
    lines = [_line({name: titles.get(name, name) for name in columns}, widths, paint, BOLD)]
    return lines + [_line(row, widths, paint) for row in rows]


def _rewards(models: _Models) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for model, figures in models.items():
        for reward, held in figures["rewards"].items():
            yield model, reward, held


def _rows(model: str, reward: str, held: Mapping[str, Any]) -> Iterator[_Row]:
    seconds = held["seconds"]
    yield {
        "model": visible(model),
        "reward": visible(reward),
        "mean": three(held["mean"]),
        _SPREAD: _interval_cell(held),
        "right": _right_cell(held.get("right"), held["scored"]),
        **_unscored_cells(held),
        _SLOWEST: duration(seconds["p95"]) if seconds else "",
    }
    for part, of in held["parts"].items():
        yield {
            "reward": f"· {visible(part)}",
            "weight": f"{of['weight']:g}" if of["weight"] is not None else "",
            "mean": three(of["mean"]),
            "right": _right_cell(None, of["scored"]),
            **_unscored_cells(of),
        }


def _right_cell(right: int | None, scored: int) -> str:
    """Return how many are right of those scored; of a reward that is not right or wrong, how many are scored."""
    return f"({scored:,} scored)" if right is None else f"{right:,} of {scored:,}"


def _unscored_cells(held: Mapping[str, Any]) -> _Row:
    return {name: f"{held[name]:,}" for name in ("abstained", "errors")}


def _interval_cell(held: Mapping[str, Any]) -> str:
    interval = held["interval"]
    if interval:
        return f"{three(interval['low'])} {DASH} {three(interval['high'])}"
    if held["problems"] < MIN_PROBLEMS:
        return f"n/a: {counted(held['problems'], 'problem')}"
    return "n/a: all alike"


def _interval_lines(models: _Models, width: int, paint: _Paint) -> list[str]:
    """Say how intervals were made where it is not by resampling, and why there are none where problems are few."""
    notes = []
    normal = [
        held["interval"]["problems"]
        for _, _, held in _rewards(models)
        if held["interval"] and held["interval"]["method"].startswith("normal")
    ]
    if normal:
        notes.append(f"intervals are normal ones over {max(normal):,} problems: above 20,000 none are resampled")
    if any(held["problems"] < MIN_PROBLEMS for _, _, held in _rewards(models)):
        notes.append(f"no interval: fewer than {MIN_PROBLEMS} problems say too little about others")
    return [paint(f"  {line}", DIM) for note in notes for line in textwrap.wrap(note, max(width - 2, 40))]


def _natural(column: str, rows: Iterable[_Row], titles: Mapping[str, str]) -> int:
    return max([cells(titles.get(column, column)), *(cells(row.get(column, "")) for row in rows)])


def _needed(columns: Sequence[str], rows: Sequence[_Row], titles: Mapping[str, str]) -> int:
    """The width of a table whose names are short, but can still be told apart."""
    natural = ((name, _natural(name, rows, titles)) for name in columns)
    return 2 + sum(min(n, FAIR_NAME) if name in _NAMES else n for name, n in natural) + 2 * (len(columns) - 1)


def _widths(columns: Sequence[str], rows: Sequence[_Row], titles: Mapping[str, str], width: int) -> dict[str, int]:
    widths = {name: _natural(name, rows, titles) for name in columns}
    excess = 2 + sum(widths.values()) + 2 * (len(columns) - 1) - width
    while excess > 0:
        longest = max((name for name in _NAMES if name in widths), key=widths.__getitem__)
        if widths[longest] <= LEAST_NAME:
            break
        widths[longest] -= 1
        excess -= 1
    return widths


def _line(row: _Row, widths: Mapping[str, int], paint: _Paint, style: str | None = None) -> str:
    shown = []
    for name, width in widths.items():
        text = row.get(name, "")
        if name in _NAMES:
            text = shorten(text, width)
            text += " " * (width - cells(text))
        else:
            text = " " * (width - cells(text)) + text
        alarming = name == "errors" and row[name] not in ("0", "errors")
        shown.append(paint(text, RED if alarming else style))
    return ("  " + "  ".join(shown)).rstrip()


# ----------------------------------------------------------------------------------------------- pass@k, groups, labels


def _title(models: _Models, model: str, reward: str) -> str:
    if len(models) == 1:
        return shorten(visible(reward), 40)
    return f"{shorten(visible(model), 30)} {shorten(visible(reward), 30)}"


def _flow(label: str, title: str, items: Sequence[str], width: int) -> list[str]:
    """Lay out items in lines of at most `width`, behind a label; an item is never broken."""
    start = f"  {label:<7} "
    lines, line = [], start + title
    for item in items:
        if line == start:
            line += item
        elif cells(line) + 2 + cells(item) > width:
            lines.append(line)
            line = " " * len(start) + item
        else:
            line += f"  {item}"
    return [*lines, line]


def _pass_lines(models: _Models, model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    for reward, at_k in figures["pass_at_k"].items():
        if len(at_k) < 2:
            continue
        items = []
        for k, held in at_k.items():
            interval = held["interval"]
            ends = f" ({three(100 * interval['low'])}{DASH}{three(100 * interval['high'])})" if interval else ""
            short = f", {held['left_out']:,} with fewer left out" if held["left_out"] else ""
            of = f" of {counted(held['problems'], 'problem')}{short}" if short or k == list(at_k)[-1] else ""
            items.append(f"pass@{k} {percent(held['value'])}{ends}{of}")
        yield from _flow("pass@k", _title(models, model, reward), items, width)


def _group_lines(models: _Models, model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    groups = figures["groups"]
    for reward, zero in groups["zero_signal"].items():
        if not zero["of"]:
            continue
        ends = "" if zero["all_fail"] is None else f" ({zero['all_fail']:,} all at 0, {zero['all_pass']:,} all at 1)"
        items = [f"no spread in {zero['n']:,} of {counted(zero['of'], 'group')}{ends}"]
        expected = groups["expected_dead_share"][reward]
        shares = [f"{percent(share)} at G={size}" for size, share in expected.items() if share is not None]
        if shares:
            items.append(f"expect {', '.join(shares)}")
        yield from _flow("GRPO", _title(models, model, reward), items, width)


def _label_lines(models: _Models, model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    for reward, held in (figures["label"] or {}).items():
        if figures["rewards"][reward]["min"] == figures["rewards"][reward]["max"]:
            continue  # that it is constant is said below; what it agrees on is then what the label says
        compared = {name: of["label"][reward] for name, of in models.items() if reward in (of["label"] or {})}
        title, text = _title(models, model, reward), f"{held['agree']:,} of {held['n']:,}"
        if len(compared) > 1 and all(of["agree"] == of["n"] for of in compared.values()):
            if model != next(iter(compared)):
                continue  # one line for all models, as they would all say the same
            title, text = shorten(visible(reward), 40), f"all {sum(of['n'] for of in compared.values()):,}"
            text += f" of {len(compared):,} models"
        yield from _flow("label", title, [f"agrees with the file's label on {text}"], width)


# ------------------------------------------------------------------------------------------------------------- look at


def _look_at(summary: Mapping[str, Any], width: int, paint: _Paint, run: str) -> list[str]:
    found: Sequence[Mapping[str, Any]]
    if "warnings" in summary:
        found = worst(summary["warnings"])
    elif "notices" in summary:
        found = [{"text": text} for text in summary["notices"]]
    else:
        found = worst(warnings(summary, summary.get("input")))
    if not found:
        return []
    room = max(width - 7, 40)
    lines = ["  look at"]
    for warned in found:
        words = textwrap.wrap(visible(str(warned["text"]), 400), room, break_on_hyphens=False)
        words = [piece for line in words for piece in _pieces(line, room)]
        command = _command(warned.get("command") or "", run)
        if command and words and cells(words[-1]) + 3 + cells(command) <= room:
            words[-1] += f"   {command}"
        elif command:
            words.append(command)
        mark = "i" if warned.get("code") in INFORMS else paint("!", YELLOW)
        lines += [f"    {' ' if at else mark}  {line}" for at, line in enumerate(words)]
    return lines


def _pieces(line: str, room: int) -> Iterator[str]:
    """Cut a line of wide characters, which `textwrap` takes for narrow ones."""
    while cells(line) > room:
        used, at = 0, 0
        while used + cells(line[at]) <= room:
            used += cells(line[at])
            at += 1
        yield line[:at]
        line = line[at:]
    yield line


def _command(command: str, run: str) -> str:
    if run:
        return visible(command.replace(" RUN ", f" {shlex.quote(run)} ", 1), 300)
    return visible(command, 300)
