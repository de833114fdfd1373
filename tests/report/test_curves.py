"""The curves of a training run: what is read, what is drawn, and that no text of a run acts in the picture."""

from __future__ import annotations

import itertools
import json
import math
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from rewardkit.errors import InputError, RunFolderError
from rewardkit.report.curves import _ticks, panels, read_metrics, sparkline, summary, svg, trailing_mean, window

NS = "{http://www.w3.org/2000/svg}"


def logged(folder: Path, rows: list[Any], more: str = "") -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows) + more
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def full(steps: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "step": step, "reward": step / steps, "reward_std": 0.3, "rewards/total/mean": step / steps,
            "rewards/form/mean": 0.5, "frac_reward_zero_std": 0.25, "kl": 0.01 * step, "entropy": 1.0, "loss": -1e-4,
            "grad_norm": 0.2, "completions/mean_length": 20, "completions/max_length": 30,
            "completions/clipped_ratio": 0.1, "time/sample": 3.0, "time/update": 2.0, "time/step": 5.5,
        }
        for step in range(1, steps + 1)
    ]  # fmt: skip


def drawn(folder: Path, title: str = "a") -> ElementTree.Element:
    return ElementTree.fromstring(svg(read_metrics(folder), title))


def test_every_chart_of_a_run_is_there(tmp_path: Path) -> None:
    metrics = read_metrics(logged(tmp_path, full()))
    assert [panel.title for panel in panels(metrics)] == [
        "reward", "rewards by name", "live groups", "length of completions", "cut off", "entropy", "KL to the start",
        "gradient norm", "loss", "time of a step",
    ]  # fmt: skip
    by_title = {panel.title: panel for panel in panels(metrics)}
    assert by_title["live groups"].lines[0].points[0] == (1.0, 0.75)  # the share that has spread
    assert [line.name for line in by_title["time of a step"].lines] == ["sample", "update"]
    root = drawn(tmp_path)
    titles = [node.text for node in root.iter(f"{NS}text") if node.get("class") == "t"]
    assert len(titles) == 10


def test_charts_without_values_are_left_out(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": 1.0, "kl": None, "loss": "NaN", "entropy": True} for step in (1, 2)]
    metrics = read_metrics(logged(tmp_path, rows))
    assert [panel.title for panel in panels(metrics)] == ["reward"]
    only_time = read_metrics(logged(tmp_path, [{"step": 1, "step_time": 3.0}]))
    assert [(panel.title, panel.lines[0].name) for panel in panels(only_time)] == [("time of a step", "seconds")]


def test_the_picture_holds_all_it_needs_and_nothing_acts(tmp_path: Path) -> None:
    evil = '</text><script>alert(1)</script><a href="x">\u202e&'
    rows = [{"step": step, "reward": 0.5, f"rewards/{evil}/mean": 0.5, "rewards/b/mean": 1.0} for step in (1, 2, 3)]
    logged(tmp_path, rows)
    text = svg(read_metrics(tmp_path), evil)
    root = ElementTree.fromstring(text)
    tags = {node.tag.removeprefix(NS) for node in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "tspan", "g", "line", "path", "circle"}
    assert not any(name.startswith("on") or "href" in name for node in root.iter() for name in node.attrib)
    assert text.count("http") == 1 and "url(" not in text and "@import" not in text and "\u202e" not in text
    assert "prefers-color-scheme:dark" in text
    assert any(node.text and node.text.startswith("</text><script>") for node in root.iter())  # shown as it is


def test_curves_lie_inside_their_charts(tmp_path: Path) -> None:
    random.seed(5)
    rows = [{**row, "reward": random.uniform(-3, 40), "grad_norm": 10 ** random.uniform(-6, 6)} for row in full(300)]
    for node in drawn(logged(tmp_path, rows)).iter(f"{NS}path"):
        numbers = [tuple(map(float, pair.split(","))) for pair in node.get("d", "")[1:].rstrip("Z").split("L")]
        assert all(58 <= x <= 444 and 38 <= y <= 190 for x, y in numbers)


def test_the_smoothed_line_is_the_mean_of_the_last_values() -> None:
    random.seed(1)
    for count in (1, 4, 5, 6, 99, 400):
        points = [(float(at), random.gauss(0, 1)) for at in range(count)]
        size = window(count)
        expected = [
            math.fsum(value for _, value in points[max(0, at - size + 1) : at + 1]) / min(at + 1, size)
            for at in range(count)
        ]
        assert [value for _, value in trailing_mean(points)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 0), (0.2, 1.2), (-1e-3, 2e-3), (5, 5), (0, 1e9), (-40, 3), (1e-9, 2e-9), (0, 0.9999999), (-1, -1)],
)
def test_ticks_are_round_and_enclose_what_is_drawn(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    steps = {round((b - a) / (ticks[1] - ticks[0]), 6) for a, b in itertools.pairwise(ticks)}
    span = ticks[-1] - ticks[0]
    assert 2 <= len(ticks) <= 7 and steps == {1.0}
    assert ticks[0] <= low + 1e-9 * span and ticks[-1] >= high - 1e-9 * span


def test_a_run_of_one_step_or_of_many_is_drawn(tmp_path: Path) -> None:
    one = drawn(logged(tmp_path, full(1)))
    assert len(list(one.iter(f"{NS}circle"))) >= 8  # a single value is a dot
    text = svg(read_metrics(logged(tmp_path, full(20_000))), "a")
    assert len(text) < 400_000
    ElementTree.fromstring(text)


def test_held_out_rewards_are_dots(tmp_path: Path) -> None:
    rows = full(10)
    rows[0]["eval_reward"], rows[-1]["eval_reward"] = 0.2, 0.9
    assert len(list(drawn(logged(tmp_path, rows)).iter(f"{NS}circle"))) == 2


def test_what_is_read_survives_cut_lines_and_repeated_steps(tmp_path: Path) -> None:
    rows = [{"step": 2, "reward": 1.0}, {"step": 1, "reward": 0.0}, {"step": 2, "reward": 3.0, "kl": 0.1}, {"a": 1}, 7]
    metrics = read_metrics(logged(tmp_path, rows, '{"step": 3, "rew'))
    assert [dict(row) for row in metrics.rows] == [{"step": 1, "reward": 0.0}, {"step": 2, "reward": 3.0, "kl": 0.1}]
    assert metrics.skipped == 3
    assert read_metrics(tmp_path / "metrics.jsonl").rows == metrics.rows


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run"):
        read_metrics(tmp_path / "away")
    with pytest.raises(RunFolderError, match=r"holds no metrics\.jsonl"):
        read_metrics(tmp_path)
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="rewardkit show"):
        read_metrics(tmp_path)
    with pytest.raises(InputError, match="no step has ended yet"):
        read_metrics(logged(tmp_path, []))
    with pytest.raises(InputError, match="no line of it is an object with a step"):
        read_metrics(logged(tmp_path, [{"a": 1}, {"step": True}, {"step": "1"}]))


def test_blocks_follow_the_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([3.0] * 50, 10) == "▄" * 10
    assert sparkline([], 10) == ""


def test_the_summary_says_where_each_curve_began_and_is(tmp_path: Path) -> None:
    text = summary(read_metrics(logged(tmp_path, full(60))), width=70)
    line = next(line for line in text.split("\n") if line.startswith("reward "))
    # Means of 1/60 .. 5/60 and of 56/60 .. 60/60.
    assert "0.0500 → 0.967" in " ".join(line.split())
    assert all(len(line) <= 70 for line in text.split("\n"))
    assert "\x1b" not in text
