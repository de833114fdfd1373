"""The curves of a training run: read from its metrics.jsonl, drawn as one SVG file or as lines of blocks.

The SVG holds everything that it needs: no script, no font, no link. Its colours follow the viewer's light or dark
scheme.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rewardkit.display import visible
from rewardkit.errors import InputError, RunFolderError
from rewardkit.report.text import cells, shorten, three

Point = tuple[float, float]


@dataclass(frozen=True)
class Metrics:
    """What a run has logged.

    Attributes:
        path: The file.
        rows: One mapping a line, each with its `step`; of several lines of one step the last.
        skipped: Lines that could not be read (the last one of a run that is being written may be cut).
    """

    path: Path
    rows: tuple[Mapping[str, Any], ...]
    skipped: int = 0

    def series(self, name: str, change: Callable[[float], float] | None = None) -> list[Point]:
        """Return (step, value) of a metric, where it is a finite number."""
        found = []
        for row in self.rows:
            value = row.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                found.append((float(row["step"]), change(value) if change else float(value)))
        return found

    @property
    def names(self) -> list[str]:
        """All names, in the order in which they appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def read_metrics(run: Path) -> Metrics:
    """Read the metrics of a run: its folder, or the file itself.

    Raises:
        RunFolderError: The folder holds no metrics.jsonl.
        InputError: There is no such file or folder, or no line of it has a step.
    """
    path = run / "metrics.jsonl" if run.is_dir() else run
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        if run.is_dir():
            what = "; it holds scores: rewardkit show shows them" if (run / "scores.jsonl").exists() else ""
            raise RunFolderError(f"{run} holds no metrics.jsonl, which rewardkit train writes{what}") from None
        raise InputError(f"{run}: no such run; give the folder of a training run, or its metrics.jsonl") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}") from None
    rows: dict[float, dict[str, Any]] = {}
    skipped = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            step = row["step"]
            if isinstance(step, bool) or not math.isfinite(step):
                raise ValueError(step)
        except (ValueError, KeyError, TypeError, RecursionError):
            skipped += 1
            continue
        rows[step] = {**rows.get(step, {}), **row}
    if not rows:
        what = "no line of it is an object with a step" if skipped else "it is empty: no step has ended yet"
        raise InputError(f"{path}: {what}")
    return Metrics(path, tuple(rows[step] for step in sorted(rows)), skipped)


# -------------------------------------------------------------------------------------------------------------- panels


@dataclass(frozen=True)
class Line:
    """One curve of a panel."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """One small chart.

    Attributes:
        title: What is drawn.
        unit: Of the vertical axis.
        lines: The curves.
        smooth: Draw the trailing mean above the values.
        stacked: Draw areas upon each other.
        dots: Single points, such as held-out rewards.
        least, most: Where the axis begins and ends, unless values lie outside.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    smooth: bool = False
    stacked: bool = False
    dots: Line | None = None
    least: float | None = None
    most: float | None = None


def panels(metrics: Metrics) -> list[Panel]:
    """Return the charts of a run; those without a value are left out."""
    held_out = metrics.series("eval_reward")
    parts = [name for name in metrics.names if name.startswith("rewards/") and name.endswith("/mean")]
    parts.sort(key=lambda name: name == "rewards/total/mean")  # the total has a panel of its own
    times = [name for name in metrics.names if name.startswith("time/") and name != "time/step"]  # which is their sum
    found = [
        Panel(
            "reward",
            "mean of the step",
            [Line("reward", metrics.series("reward"))],
            smooth=True,
            dots=Line("held out", held_out) if held_out else None,
        ),
        Panel("rewards by name", "mean", [Line(name[8:-5], metrics.series(name)) for name in parts[:6]]),
        Panel(
            "live groups",
            "share with spread",
            [Line("live groups", metrics.series("frac_reward_zero_std", lambda dead: 1.0 - dead))],
            smooth=True,
            least=0.0,
            most=1.0,
        ),
        Panel(
            "length of completions",
            "tokens",
            [
                Line(label, metrics.series(f"completions/{name}_length"))
                for label, name in (("mean", "mean"), ("longest", "max"))
            ],
            least=0.0,
        ),
        Panel(
            "cut off",
            "share of completions",
            [Line("cut off", metrics.series("completions/clipped_ratio"))],
            least=0.0,
            most=1.0,
        ),
        Panel("entropy", "nats a token", [Line("entropy", metrics.series("entropy"))], least=0.0),
        Panel("KL to the start", "nats a token", [Line("KL", metrics.series("kl"))], least=0.0),
        Panel("gradient norm", "before clipping", [Line("gradient norm", metrics.series("grad_norm"))], least=0.0),
        Panel("loss", "near 0 is normal", [Line("loss", metrics.series("loss"))]),
        Panel("time of a step", "seconds", [Line(name[5:], metrics.series(name)) for name in times[:6]], stacked=True)
        if times
        else Panel(
            "time of a step",
            "seconds",
            [Line("seconds", metrics.series("step_time") or metrics.series("time/step"))],
            least=0.0,
        ),
    ]
    if len(parts) < 2:  # it would repeat the first panel
        found = [panel for panel in found if panel.title != "rewards by name"]
    kept = []
    for panel in found:
        lines = [line for line in panel.lines if line.points]
        if lines or panel.dots:
            kept.append(Panel(panel.title, panel.unit, lines, panel.smooth, panel.stacked, panel.dots,
                              panel.least, panel.most))  # fmt: skip
    return kept


def window(count: int) -> int:
    """Return over how many values the smoothed line goes: 5, or a twentieth of all."""
    return max(5, count // 20)


def trailing_mean(points: Sequence[Point]) -> list[Point]:
    """Return the mean of each value and those before it, `window` in all; where there are fewer, of those."""
    size = window(len(points))
    total, found = 0.0, []
    for at, (step, value) in enumerate(points):
        total += value - (points[at - size][1] if at >= size else 0.0)
        found.append((step, total / min(at + 1, size)))
    return found


# ----------------------------------------------------------------------------------------------------------------- SVG

_WIDE, _HIGH, _LEFT, _TOP, _RIGHT, _BOTTOM = 460, 220, 58, 38, 16, 30
_LETTER = 6.4  # pixels of a letter of the legend, about: viewers differ in their fonts
_MOST_POINTS = 800  # of one line: more than a panel has pixels

_LIGHT = "#0b62c4 #c4510b #0a7d4b #8a3ab9 #946b00 #b3174f #ffffff #1f2328 #636c76 #e4e7eb"
_DARK = "#6cb0ff #ff9e62 #4fd18f #cf9bf0 #e2bd4d #ff85ac #16191d #e6e9ed #9aa4af #2c323a"
_NAMES = "--c0 --c1 --c2 --c3 --c4 --c5 --bg --ink --soft --grid"  # six curves, ground, text, pale text, grid


def _colors(values: str) -> str:
    return ";".join(f"{name}:{value}" for name, value in zip(_NAMES.split(), values.split(), strict=True))


_STYLE = f"""
svg{{{_colors(_LIGHT)}}}
@media (prefers-color-scheme:dark){{svg{{{_colors(_DARK)}}}}}
text{{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--soft)}}
.bg{{fill:var(--bg)}}.t{{font-weight:600;font-size:13px;fill:var(--ink)}}
.h{{font-weight:600;font-size:16px;fill:var(--ink)}}.u{{font-weight:400;font-size:11px;fill:var(--soft)}}
.n{{font-variant-numeric:tabular-nums}}.g{{stroke:var(--grid);stroke-width:1}}.e{{text-anchor:end}}.m{{text-anchor:middle}}
.s{{font-size:11px}}.l{{fill:none;stroke-width:1.8;stroke-linejoin:round}}.f{{fill:none;stroke-width:1;opacity:.4}}
.a{{opacity:.75;stroke:none}}
"""


def svg(metrics: Metrics, title: str) -> str:
    """Return the curves of a run as an SVG document.

    Args:
        metrics: What was logged.
        title: Its headline; any text.
    """
    charts = panels(metrics)
    rows = -(-len(charts) // 2)
    width, height = 2 * _WIDE, 44 + rows * _HIGH + 10
    last = metrics.rows[-1]["step"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img"><title>{_text(title)}</title><style>{_STYLE}</style>'
        f'<rect class="bg" width="{width}" height="{height}"/>'
        f'<text class="h" x="16" y="28">{_text(shorten(title, 80))}</text>'
        f'<text class="e n" x="{width - 16}" y="28">step {last:g}</text>'
    ]
    for at, panel in enumerate(charts):
        x, y = (at % 2) * _WIDE, 44 + (at // 2) * _HIGH
        parts.append(f'<g transform="translate({x},{y})">{_panel(panel, metrics)}</g>')
    return "\n".join(parts) + "\n</svg>\n"


def _text(text: str) -> str:
    return escape(visible(text, limit=200), {'"': "&quot;"})


@dataclass(frozen=True)
class _Scale:
    """From values to pixels of a panel."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, step: float) -> float:
        span = _WIDE - _LEFT - _RIGHT
        return _LEFT + span * ((step - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5)

    def y(self, value: float) -> float:
        return _HIGH - _BOTTOM - (_HIGH - _TOP - _BOTTOM) * (value - self.y0) / (self.y1 - self.y0)

    def path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)


def _panel(panel: Panel, metrics: Metrics) -> str:
    lines = _stacked(panel.lines) if panel.stacked else list(panel.lines)
    values = [value for line in lines for _, value in line.points]
    values += [value for _, value in panel.dots.points] if panel.dots else []
    values += [0.0] if panel.stacked else [bound for bound in (panel.least, panel.most) if bound is not None]
    ticks = _ticks(min(values), max(values))
    scale = _Scale(float(metrics.rows[0]["step"]), float(metrics.rows[-1]["step"]), ticks[0], ticks[-1])
    parts = [
        f'<text class="t" x="16" y="16">{_text(panel.title)}<tspan dx="7" class="u">{_text(panel.unit)}</tspan></text>'
    ]
    parts += [_tick(scale.y(tick), tick, ticks) for tick in ticks]
    parts += _steps(scale)
    parts += _areas(lines, scale) if panel.stacked else _curves(panel, lines, scale)
    return "".join([*parts, *_legend(panel)])


def _curves(panel: Panel, lines: Sequence[Line], scale: _Scale) -> list[str]:
    parts = []
    for at, line in enumerate(lines):
        points = _thinned(line.points)
        smooth = panel.smooth and len(line.points) > 5
        if len(points) == 1:
            parts.append(_dot(points[0], scale, at))
            continue
        style = "f" if smooth else "l"
        parts.append(f'<path class="{style}" stroke="var(--c{at})" d="{scale.path(points)}"/>')
        if smooth:
            mean = _thinned(trailing_mean(line.points))
            parts.append(f'<path class="l" stroke="var(--c{at})" d="{scale.path(mean)}"/>')
    return parts + ([_dot(point, scale, 1) for point in panel.dots.points] if panel.dots else [])


def _dot(point: Point, scale: _Scale, color: int) -> str:
    x, y = scale.x(point[0]), scale.y(point[1])
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--c{color})"><title>{three(point[1])}</title></circle>'


def _areas(lines: Sequence[Line], scale: _Scale) -> list[str]:
    parts = []
    below: Sequence[Point] = [(step, 0.0) for step, _ in lines[0].points]
    for at, line in enumerate(lines):
        edge = _thinned(line.points)
        shape = scale.path(edge) + "L" + scale.path(list(reversed(_thinned(below))))[1:] + "Z"
        parts.append(f'<path class="a" fill="var(--c{at})" d="{shape}"/>')
        below = line.points
    return parts


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Return each line upon those before it; a step that a line lacks counts 0 there."""
    steps = sorted({step for line in lines for step, _ in line.points})
    sums = dict.fromkeys(steps, 0.0)
    found = []
    for line in lines:
        for step, value in line.points:
            sums[step] += value
        found.append(Line(line.name, [(step, sums[step]) for step in steps]))
    return found


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most so many points as can be seen: means of neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    if size <= 1:
        return list(points)
    pieces = [points[at : at + size] for at in range(0, len(points), size)]
    return [(piece[-1][0], math.fsum(value for _, value in piece) / len(piece)) for piece in pieces]


def _ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers around what is drawn."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.5 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [at * step for at in range(first, last + 1)]


def _tick(y: float, value: float, ticks: Sequence[float]) -> str:
    """Return a grid line with its number; all numbers of an axis have the same digits."""
    step = ticks[1] - ticks[0]
    if max(map(abs, ticks)) >= 1e6 or step < 1e-4:
        text = f"{value:.1e}"
    else:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        digits += 0 if abs(round(step, digits) - step) < 1e-9 * step else 1
        text = f"{value:,.{digits}f}"
    return (
        f'<line class="g" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="e n" x="{_LEFT - 7}" y="{y + 4:.1f}">{text}</text>'
    )


def _steps(scale: _Scale) -> list[str]:
    inside = [tick for tick in _ticks(scale.x0, scale.x1) if scale.x0 <= tick <= scale.x1 and tick == round(tick)]
    y = _HIGH - _BOTTOM + 16
    ends = inside or [scale.x0]
    numbers = [f'<text class="m n" x="{scale.x(tick):.1f}" y="{y}">{tick:,.0f}</text>' for tick in ends[:-1]]
    last = f'<text class="e n" x="{min(scale.x(ends[-1]) + 14, _WIDE - 4):.1f}" y="{y}">{ends[-1]:,.0f}</text>'
    return [*numbers, last, f'<text x="{_LEFT - 42}" y="{y}">step</text>']


def _legend(panel: Panel) -> list[str]:
    """Name the curves at the upper right, where there are several kinds of them."""
    named = [(line.name, at) for at, line in enumerate(panel.lines)] if len(panel.lines) > 1 else []
    if panel.smooth and panel.lines and len(panel.lines[0].points) > 5:
        named.append((f"mean of the last {window(len(panel.lines[0].points))}", 0))
    if panel.dots:
        named.append((panel.dots.name, 1))
    texts = [(shorten(name, 22), color) for name, color in named]
    x = _WIDE - _RIGHT - sum(_LETTER * cells(text) + 26 for text, _ in texts) + 12
    parts = []
    for text, color in texts:
        parts.append(f'<rect x="{x:.0f}" y="9" width="10" height="4" rx="2" fill="var(--c{color})"/>')
        parts.append(f'<text class="s" x="{x + 14:.0f}" y="16">{_text(text)}</text>')
        x += _LETTER * cells(text) + 26
    return parts


# ------------------------------------------------------------------------------------------------------------ terminal

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a line of at most `width` blocks, each the mean of its share of the values."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [at * len(values) // count for at in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (mean - low) / (high - low))] if high > low else _BLOCKS[3] for mean in means)


def summary(metrics: Metrics, width: int = 80) -> str:
    """Return one line a curve: its name, where it began and is now (means of up to 5 steps), and its course."""
    rows = []
    for panel in panels(metrics):
        for line in panel.lines:
            name = line.name if len(panel.lines) == 1 else f"{panel.title}: {line.name}"
            values = [value for _, value in line.points]
            some = min(5, max(1, len(values) // 2))
            ends = [math.fsum(part) / some for part in (values[:some], values[-some:])]
            rows.append((shorten(visible(name), 30), three(ends[0]), three(ends[1]), values))
    label = max(cells(row[0]) for row in rows)
    first, last = (max(len(row[at]) for row in rows) for at in (1, 2))
    room = max(8, min(60, width - label - first - last - 9))
    return "\n".join(
        f"{name}{' ' * (label - cells(name))}  {begun:>{first}} → {now:>{last}}  {sparkline(values, room)}"
        for name, begun, now, values in rows
    )
