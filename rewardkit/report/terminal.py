"""The summary as plain text for a terminal, and progress while a run goes on.

Every name and text that comes from a file goes through `visible`, so that no output of a model can move the cursor,
change a colour or turn the reading order. Nothing here writes an escape byte unless asked to (`color=True`) or unless
the stream is a real terminal (`Progress`); `FORCE_COLOR` does not make a pipe a terminal.
"""

from __future__ import annotations

import os
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rewardkit.display import visible
from rewardkit.report.summary import notices
from rewardkit.stats import MIN_PROBLEMS

if TYPE_CHECKING:
    import rich.progress

BOLD, DIM, RED, YELLOW = "1", "2", "31", "33"
DASH = "\N{EN DASH}"
FAIR_NAME, LEAST_NAME = 16, 8  # columns are left out before names get shorter than the first; never below the second


# ---------------------------------------------------------------------------------------------------------------- text


def cells(text: str) -> int:
    """Return how many terminal cells a text takes: two for wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Return a name in at most `width` cells; what is too much is taken from the middle."""
    if cells(text) <= width:
        return text
    room = max(width - 1, 0)
    head = _fit(text, room - room // 2)
    tail = _fit(text[::-1], room // 2)[::-1]
    return f"{head}…{tail}"[: max(width, 0)]


def _fit(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += _cell(char)
        if used > width:
            return text[:at]
    return text


def three(value: float | None) -> str:
    """Return a number with three significant digits; whole digits are never cut, None is n/a."""
    if value is None:
        return "n/a"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e9 or size < 1e-4:
        return f"{value:.2e}"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    while size < 0.09995:
        size *= 10
        digits += 1
    return f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Return a time with its unit: 0.10 ms, 18.0 ms, 1.20 s, 2.50 min."""
    if seconds is None:
        return "n/a"
    if seconds < 0.9995:
        return f"{three(max(round(seconds * 1000, 6), 0.0))} ms"
    return f"{three(seconds)} s" if seconds < 120 else f"{three(seconds / 60)} min"


# ------------------------------------------------------------------------------------------------------------- summary


def render_summary(summary: Mapping[str, Any], *, width: int, color: bool) -> str:
    """Return what `eval` prints about a run: the table of rewards, pass@k, groups, labels, and what to look at.

    Args:
        summary: With `models` (`Summary.to_dict`); `notices`, else they are made here with `input`.
        width: Cells in a line. Names are shortened and columns left out to keep to it.
        color: Whether to use ANSI colours.
    """
    paint = _Paint(color)
    models: Mapping[str, Any] = summary.get("models") or {}
    if not models:
        return "  no completions, so there is nothing to sum up\n"
    blocks = [
        _table(models, width, paint),
        [line for model, figures in models.items() for line in _pass_lines(models, model, figures, width)],
        [line for model, figures in models.items() for line in _group_lines(models, model, figures, width)],
        [line for model, figures in models.items() for line in _label_lines(models, model, figures, width)],
        _look_at(summary, width, paint),
    ]
    between = [line for block in blocks[1:4] for line in block]
    return "\n\n".join("\n".join(block) for block in (blocks[0], between, blocks[4]) if block) + "\n"


class _Paint:
    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, style: str | None) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.color and style else text


_Row = dict[str, str]


def _table(models: Mapping[str, Any], width: int, paint: _Paint) -> list[str]:
    level = next((held["interval"]["level"] for _, _, held in _rewards(models) if held["interval"]), 0.95)
    spread = f"{level * 100:g} % over problems"
    head = ["model", "reward", "mean", spread, "right", "scored", "abstained", "errors", "slowest"]
    rows = [row for model, reward, held in _rewards(models) for row in _rows(model, reward, held, spread)]
    columns = [name for name in head if any(row.get(name) for row in rows)]
    if len(models) == 1:
        columns.remove("model")
    for droppable in ("slowest", "right", "scored", spread):
        if _needed(columns, rows) <= width:
            break
        columns = [name for name in columns if name != droppable]
    widths = _widths(columns, rows, width)
    lines = [_line({name: name for name in columns}, widths, paint, BOLD)]
    return lines + [_line(row, widths, paint) for row in rows]


def _rewards(models: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for model, figures in models.items():
        for reward, held in figures["rewards"].items():
            yield model, reward, held


def _rows(model: str, reward: str, held: Mapping[str, Any], spread: str) -> Iterator[_Row]:
    yield {
        "model": visible(model),
        "reward": visible(reward),
        "mean": three(held["mean"]),
        spread: _interval_cell(held),
        "right": f"{held['right']:,} of {held['scored']:,}" if held["right"] is not None else "",
        **_count_cells(held),
        "slowest": duration(held["seconds"]["max"]) if held["seconds"] else "",
    }
    for part, of in held["parts"].items():
        weight = f"{of['weight']:g} * " if of["weight"] is not None else ""
        yield {"reward": f"· {weight}{visible(part)}", "mean": three(of["mean"]), **_count_cells(of)}


def _count_cells(held: Mapping[str, Any]) -> _Row:
    return {name: f"{held[name]:,}" for name in ("scored", "abstained", "errors")}


def _interval_cell(held: Mapping[str, Any]) -> str:
    interval = held["interval"]
    if interval:
        return f"{three(interval['low'])} {DASH} {three(interval['high'])}"
    if held["problems"] < MIN_PROBLEMS:
        return f"n/a: {held['problems']} problem{'' if held['problems'] == 1 else 's'}"
    return "n/a: all alike"


_NAMES = ("model", "reward")


def _natural(column: str, rows: Iterable[_Row]) -> int:
    return max([cells(column), *(cells(row.get(column, "")) for row in rows)])


def _needed(columns: Sequence[str], rows: Sequence[_Row]) -> int:
    """The width of a table whose names are short, but can still be told apart."""
    natural = (min(_natural(name, rows), FAIR_NAME) if name in _NAMES else _natural(name, rows) for name in columns)
    return 2 + sum(natural) + 2 * (len(columns) - 1)


def _widths(columns: Sequence[str], rows: Sequence[_Row], width: int) -> dict[str, int]:
    widths = {name: _natural(name, rows) for name in columns}
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


def _title(models: Mapping[str, Any], model: str, reward: str) -> str:
    return f"{shorten(visible(model), 30)} {visible(reward, 30)}" if len(models) > 1 else visible(reward, 40)


def _flow(label: str, title: str, items: Sequence[str], width: int) -> list[str]:
    """Lay out items in lines of at most `width`, behind a label; an item is never broken."""
    lines, line = [], f"  {label:<7} {title}"
    for item in items:
        if cells(line) + 2 + cells(item) > width:
            lines.append(line)
            line = " " * 10 + item
        else:
            line += f"  {item}"
    return [*lines, line]


def _percent(share: float | None) -> str:
    if share is None:
        return "n/a"
    return "<0.001 %" if 0 < share < 1e-5 else f"{three(100 * share)} %"


def _pass_lines(models: Mapping[str, Any], model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    for reward, at_k in figures["pass_at_k"].items():
        if len(at_k) < 2:
            continue
        items = []
        for k, held in at_k.items():
            interval = held["interval"]
            ends = f" ({three(100 * interval['low'])}{DASH}{three(100 * interval['high'])})" if interval else ""
            short = f", {held['left_out']:,} with fewer left out" if held["left_out"] else ""
            of = f" of {held['problems']:,} problems{short}" if short or k == list(at_k)[-1] else ""
            items.append(f"pass@{k} {_percent(held['value'])}{ends}{of}")
        yield from _flow("pass@k", _title(models, model, reward), items, width)


def _group_lines(models: Mapping[str, Any], model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    groups = figures["groups"]
    for reward, zero in groups["zero_signal"].items():
        if not zero["of"]:
            continue
        ends = "" if zero["all_fail"] is None else f" ({zero['all_fail']:,} all at 0, {zero['all_pass']:,} all at 1)"
        items = [f"no spread in {zero['n']:,} of {zero['of']:,} groups{ends}"]
        expected = groups["expected_dead_share"][reward]
        items += [f"expect {_percent(share)} at G={size}" for size, share in expected.items() if share is not None]
        yield from _flow("GRPO", _title(models, model, reward), items, width)


def _label_lines(models: Mapping[str, Any], model: str, figures: Mapping[str, Any], width: int) -> Iterator[str]:
    for reward, held in (figures["label"] or {}).items():
        compared = {name: of["label"][reward] for name, of in models.items() if reward in (of["label"] or {})}
        title, text = _title(models, model, reward), f"{held['agree']:,} of {held['n']:,}"
        if len(compared) > 1 and all(of["agree"] == of["n"] for of in compared.values()):
            if model != next(iter(compared)):
                continue  # one line for all models, as they would all say the same
            title, text = visible(reward, 40), f"all {sum(of['n'] for of in compared.values()):,}"
            text += f" of {len(compared):,} models"
        yield from _flow("label", title, [f"agrees with the file's label on {text}"], width)


def _look_at(summary: Mapping[str, Any], width: int, paint: _Paint) -> list[str]:
    found = summary.get("notices")
    if found is None:
        found = notices(summary, summary.get("input"))
    if not found:
        return []
    lines = ["  look at"]
    for text in found:
        words = textwrap.wrap(visible(str(text), 400), max(width - 7, 40), break_on_hyphens=False)
        lines += [f"    {' ' if at else paint('!', YELLOW)}  {line}" for at, line in enumerate(words)]
    return lines


# ------------------------------------------------------------------------------------------------------------ progress


class Progress:
    """Tell how far a run is: a bar on a real terminal, elsewhere a plain line every ten seconds or ten per cent.

    A line at ten per cent comes at most once a second, and there is always a last line. Use it as a context manager.

    Args:
        stream: Where to tell it; standard error, usually.
        total: How many there are, where known.
        quiet: Say nothing at all.
        what: What is counted.
        clock: Seconds that never run backwards; for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int | None = None,
        quiet: bool = False,
        what: str = "completions",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done = 0
        self.failed = 0
        self._stream = stream
        self._total = total
        self._quiet = quiet
        self._what = visible(what)
        self._clock = clock
        self._started = self._said = clock()
        self._tenths = 0
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._started = self._said = self._clock()
        if not self._quiet and is_terminal(self._stream):
            self._bar = _bar(self._stream)
            self._task = self._bar.add_task(self._what, total=self._total, failed="", rate="")
            self._bar.start()
        return self

    def advance(self, n: int, failed: int = 0) -> None:
        """Count `n` more, of which `failed` ended in an error."""
        self.done += n
        self.failed += failed
        if self._quiet:
            return
        now = self._clock()
        waited = now - self._said
        if self._bar is not None:
            if waited >= 0.1:
                self._redraw(now)
        elif waited >= 10.0 or (waited >= 1.0 and self._total and self.done * 10 // self._total > self._tenths):
            self._say(now)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._bar is not None:
            self._redraw(self._clock())
            self._bar.stop()
            self._bar = None
        elif not self._quiet and (self.done or kind is None):
            self._say(self._clock(), last=True)
        return False

    def _redraw(self, now: float) -> None:
        self._said = now
        if self._bar is not None and self._task is not None:
            failed = f"{self.failed:,} failed" if self.failed else ""
            self._bar.update(self._task, completed=self.done, failed=failed, rate=self._rate(now))

    def _say(self, now: float, last: bool = False) -> None:
        self._said = now
        share = ""
        if self._total:
            self._tenths = self.done * 10 // self._total
            share = f" of {self._total:,} ({100 * self.done // self._total} %)"
        took = f" in {duration(now - self._started)}" if last else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        rate = self._rate(now)
        self._stream.write(f"{self._what}: {self.done:,}{share}{took}{failed}{', ' + rate if rate else ''}\n")
        self._stream.flush()

    def _rate(self, now: float) -> str:
        seconds = now - self._started
        return f"{three(self.done / seconds)}/s" if seconds > 0 and self.done else ""


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a real terminal that can move its cursor; no environment variable makes a pipe one."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):
        return False


def wants_color(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: a real terminal, and NO_COLOR is not set (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def _bar(stream: TextIO) -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("  {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[failed]}", markup=False),
        TimeRemainingColumn(),
        console=Console(file=stream, force_jupyter=False),
    )
