"""rewardkit.report.terminal: no text of a file reaches the terminal as a command; tables keep to their width."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardkit.report import Summary
from rewardkit.report.terminal import Progress, cells, duration, render_summary, shorten, three, visible, wants_color
from rewardkit.types import Completion, Generation, Sample, Score

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def figures(
    models: tuple[str | None, ...] = (None,), rewards: tuple[str, ...] = ("math",), size: int = 1
) -> dict[str, Any]:
    summary = Summary(rewards)
    for model in models:
        for key in range(1, 13):
            scores = [Score(float((key + at) % 3 == 0), seconds=0.018) for at in range(size)]
            completions = tuple(Completion("x") for _ in range(size))
            summary.add(Generation(Sample(key), completions, model, key=key), dict.fromkeys(rewards, scores))
    return {"models": summary.to_dict()}


# ----------------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "shown", "why"),
    [
        ("plain été 数 🙂", "plain été 数 🙂", "what can be read stays"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07", "colour, window title, bell"),
        ("a\nb\r\nc\td", "a⏎b\\r⏎c\\td", "lines and tabs"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f", "the one-byte control sequence introducer"),
        ("abc\u202edef\u2066x", "abc\\u202edef\\u2066x", "turned reading order"),
        ("a\u200bb\u2060\ufeff", "a\\u200bb\\u2060\\ufeff", "zero-width characters"),
        ("a\u2028b", "a\\u2028b", "line separator"),
        ("\ud800!", "\\ud800!", "a lone surrogate, which cannot be written as UTF-8"),
        ("\U000e0041", "\\U000e0041", "a tag character"),
        ("[bold]x[/bold] {y} %s", "[bold]x[/bold] {y} %s", "markup is text"),
        ("1\u00a0000", "1\u00a0000", "a space of another kind is a space"),
        ("", "", "nothing"),
    ],
)
def test_visible(text: str, shown: str, why: str) -> None:
    assert visible(text) == shown, why


def test_visible_shortens_without_cutting_an_escape() -> None:
    assert visible("x" * 121) == "x" * 119 + "…"
    assert visible("x" * 120) == "x" * 120
    assert visible("ab\x1bcd", 5) == "ab…"
    assert visible("x" * 10_000_000, 3) == "xx…"


@given(st.text(st.characters(), max_size=300), st.integers(1, 200))
def test_visible_is_safe_short_and_done_once(text: str, limit: int) -> None:
    shown = visible(text, limit)
    assert not CONTROLS.search(shown)
    assert len(shown) <= limit
    shown.encode("utf-8")
    assert visible(shown, limit) == shown


def test_names_are_shortened_in_the_middle() -> None:
    assert shorten("checkpoint-000100-final", 11) == "check…final"
    assert shorten("short", 11) == "short"
    assert cells(shorten("数学奖励函数模型名字", 9)) <= 9


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "n/a"),
        (0.0, "0"),
        (0.19700000000000001, "0.197"),
        (0.9996, "1.00"),
        (1.0, "1.00"),
        (-0.5, "-0.500"),
        (0.0123456, "0.0123"),
        (9.996, "10.0"),
        (54.43, "54.4"),
        (99.96, "100"),
        (1564.4, "1,564"),
        (1e-7, "1.00e-07"),
        (1.7e308, "1.70e+308"),
    ],
)
def test_three_digits(value: float | None, shown: str) -> None:
    assert three(value) == shown


def test_durations_have_a_unit() -> None:
    assert [duration(s) for s in (None, 0.0, 0.0001, 0.018, 0.99999, 1.2, 150.0)] == [
        "n/a",
        "0 ms",
        "0.100 ms",
        "18.0 ms",
        "1.00 s",
        "1.20 s",
        "2.50 min",
    ]


# -------------------------------------------------------------------------------------------------------------- summary


def test_the_table_of_one_model() -> None:
    lines = render_summary(figures(), width=110, color=False).splitlines()
    assert lines[:2] == ["  read    12 completions, 12 groups of 1", ""]
    assert " ".join(lines[2].split()) == "reward mean 95 % over problems right abstained errors slowest 5 %"
    assert lines[3].split()[:2] == ["math", "0.333"]
    assert lines[3].split()[-7:] == ["4", "of", "12", "0", "0", "18.0", "ms"]
    assert len(lines) == 4, "no pass@k and no GRPO line for groups of one, nothing to look at"


def test_models_have_a_column_where_there_are_several() -> None:
    shown = render_summary(figures(("6B", "175B"), size=4), width=120, color=False)
    assert shown.splitlines()[0] == "  read    2 models, each 48 completions, 12 groups of 4"
    assert shown.splitlines()[2].split()[0] == "model"
    assert "pass@k  6B math  pass@1 33.3 %" in shown
    assert "of 12 problems" in shown
    assert "GRPO    175B math  no spread in 0 of 12 groups" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 96, 120, 200])
def test_no_table_is_wider_than_it_may_be(width: int) -> None:
    summary = figures(("m" * 300, "数" * 90), ("r" * 100, "math"), size=8)
    lines = render_summary(summary, width=width, color=False).splitlines()
    table = lines[lines.index("") + 1 :]
    table = table[: table.index("")]
    assert len(table) == 5
    least = 60  # two names of eight, and the counts, which are never left out
    assert max(map(cells, table)) <= max(width, least)
    assert all("…" in line for line in table[1:])
    assert width < 80 or max(map(cells, lines)) <= width


def test_columns_that_matter_stay_on_a_narrow_terminal() -> None:
    head = render_summary(figures(), width=45, color=False).splitlines()[2]
    assert {"reward", "mean", "abstained", "errors"} <= set(head.split())
    assert "slowest" not in head


def test_text_of_a_file_is_shown_and_never_obeyed() -> None:
    hostile = "\x1b[2J[red]evil[/red]\u202e\nnext"
    shown = render_summary(figures((hostile, "b"), (hostile,), size=2), width=200, color=False)
    assert not CONTROLS.search(shown)
    assert "\\x1b[2J[red]evil[/red]\\u202e⏎next" in shown


def test_colour_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in render_summary(figures(), width=100, color=False)
    coloured = render_summary(figures(), width=100, color=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == render_summary(figures(), width=100, color=False)


def test_nothing_scored_is_shown_as_na() -> None:
    summary = Summary(["math"])
    scores = [Score(None, reason="missing"), Score.error("raised", "")]
    summary.add(Generation(Sample(1), (Completion("a"), Completion("b"))), {"math": scores})
    shown = render_summary({"models": summary.to_dict()}, width=100, color=False)
    assert "nan" not in shown.lower()
    assert "n/a: 0 problems" in shown
    assert "could not judge 1 of 2 completions: missing 1" in shown
    assert "pass@k" not in shown


def test_zero_rows_are_said() -> None:
    assert render_summary({"models": {}}, width=80, color=False).strip().startswith("no completions")
    assert render_summary({}, width=80, color=False)


def test_why_there_is_no_interval() -> None:
    summary = Summary(["a", "b"])
    for key in range(1, 13):
        scores = {"a": [Score(1.0)], "b": [Score(1.0 if key == 1 else 0.0) if key < 6 else Score(None)]}
        summary.add(Generation(Sample(key), (Completion("x"),), key=key), scores)
    shown = render_summary({"models": summary.to_dict()}, width=100, color=False)
    assert "n/a: all alike" in shown
    assert "n/a: 5 problems" in shown


def test_left_out_groups_are_said() -> None:
    summary = Summary(["math"])
    for key, size in enumerate((1, 2, 2), 1):
        scores = [Score(float(at == 0)) for at in range(size)]
        summary.add(Generation(Sample(key), tuple(Completion("x") for _ in scores), key=key), {"math": scores})
    shown = render_summary({"models": summary.to_dict()}, width=200, color=False)
    assert "pass@2 100 % of 2 problems, 1 with fewer left out" in shown


def labelled(agree: dict[str, int], n: int = 4) -> list[str]:
    summary = Summary(["math", "label"])
    for model, right in agree.items():
        scores = [Score(float(at == 0)) for at in range(n)]
        completions = tuple(
            Completion("x", metadata={"label": score.value if at < right else 1.0 - (score.value or 0.0)})
            for at, score in enumerate(scores)
        )
        summary.add(Generation(Sample(1), completions, model, key=1), {"math": scores, "label": scores})
    shown = render_summary({"models": summary.to_dict()}, width=100, color=False)
    return [" ".join(line.split()) for line in shown.splitlines() if "label" in line and "agrees" in line]


def test_models_that_all_agree_with_the_label_share_a_line() -> None:
    assert labelled({"a": 4, "b": 4, "c": 4}) == ["label math agrees with the file's label on all 12 of 3 models"]
    assert labelled({"a": 4}) == ["label math agrees with the file's label on 4 of 4"]
    assert labelled({"a": 4, "b": 3}) == [
        "label a math agrees with the file's label on 4 of 4",
        "label b math agrees with the file's label on 3 of 4",
    ]


def test_notices_that_were_given_are_shown_and_wrapped() -> None:
    summary = figures() | {"notices": ["\x1b[31mfirst", "second " * 30]}
    lines = render_summary(summary, width=80, color=False).splitlines()
    at = lines.index("  look at")
    assert lines[at + 1] == "    !  \\x1b[31mfirst"
    assert lines[at + 2].startswith("    !  second second")
    assert lines[at + 3].startswith("       second")
    assert max(map(len, lines)) <= 80


def test_parts_stand_below_their_reward() -> None:
    summary = Summary(["total"])
    score = Score(0.7, parts=(Score(1.0, name="math", weight=0.7), Score(0.0, name="[b]tags", weight=0.3)))
    summary.add(Generation(Sample(1), (Completion("x"),)), {"total": [score]})
    lines = render_summary({"models": summary.to_dict()}, width=100, color=False).splitlines()
    assert [line.split()[:6] for line in lines[3:6]] == [
        ["total", "0.700", "n/a:", "1", "problem", "(1"],
        ["·", "math", "0.7", "1.00", "(1", "scored)"],
        ["·", "[b]tags", "0.3", "0", "(1", "scored)"],
    ]


HOSTILE = ["\x1b[2J[red]evil[/red]\u202e", "数学奖励" * 30, "r" * 200, "a\nb\tc", "[/bold]{x}%s", "e\u0301" * 50, "m"]


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Summaries with names, ids and details as bad as they come."""
    name = st.sampled_from(HOSTILE)
    rewards = draw(st.lists(name, min_size=1, max_size=3, unique=True))
    summary = Summary(rewards)
    pick = st.sampled_from(
        [
            Score(1.0),
            Score(0.0, reason="timeout"),
            Score(0.25),
            Score(None, "\x1b[31mno\u2028gold", reason="missing"),
            Score(1.1, parts=(Score(1.0, name="\x07part", weight=0.7), Score(0.4, name="数" * 60, weight=1e-9))),
        ]
    )
    size = draw(st.integers(1, 5))
    for model in draw(st.lists(st.one_of(st.none(), name), min_size=1, max_size=3, unique=True)):
        for key in range(1, draw(st.integers(2, 14))):
            texts = tuple(Completion("x" * at, finish_reason="length", metadata={"label": 1}) for at in range(size))
            scores = {reward: [draw(pick) for _ in texts] for reward in rewards}
            summary.add(Generation(Sample(draw(name) + str(key)), texts, model, key=key), scores)
    return {"models": summary.to_dict(), "input": {"bad_rows": 3, "rows_left": 1, "duplicate_ids": 2}}


@settings(max_examples=60, deadline=None)
@given(runs(), st.sampled_from([80, 96, 120, 200]))
def test_nothing_is_wider_than_the_terminal_or_acts_on_it(summary: dict[str, Any], width: int) -> None:
    shown = render_summary(summary, width=width, color=False, run="runs/\x1b[2Jevil")
    assert not CONTROLS.search(shown)
    assert "nan" not in shown.lower().replace("n/a", "")
    assert max(map(cells, shown.splitlines())) <= width
    assert shown == render_summary(summary, width=width, color=False, run="runs/\x1b[2Jevil")
    shown.encode("utf-8")


@pytest.mark.parametrize("models", [(None,), ("学" * 90, "m" * 90)])
def test_wide_names_count_in_cells_before_every_line(models: tuple[str | None, ...]) -> None:
    """Thirty wide characters are sixty cells: a title cut by characters pushed its line over the edge."""
    summary = Summary(["数学" * 60])
    for model in models:
        for key in range(1, 13):
            completions = tuple(Completion("x", metadata={"label": at % 2}) for at in range(8))
            scores = {"数学" * 60: [Score(float((key + at) % 3 == 0)) for at in range(8)]}
            summary.add(Generation(Sample(key), completions, model, key=key), scores)
    shown = render_summary({"models": summary.to_dict()}, width=80, color=False)
    assert max(map(cells, shown.splitlines())) <= 80


def test_unread_rows_stand_beside_the_counts() -> None:
    summary = figures(size=4) | {"input": {"bad_rows": 1, "rows_left": 2000}}
    line = render_summary(summary, width=100, color=False).splitlines()[0]
    assert line == "  read    48 completions, 12 groups of 4  1 row unreadable  2,000 rows not read"


def test_one_completion_is_not_many() -> None:
    summary = Summary(["math"])
    summary.add(Generation(Sample(1), (Completion("x"),), key=1), {"math": [Score(1.0)]})
    lines = render_summary({"models": summary.to_dict()}, width=100, color=False).splitlines()
    assert lines[0] == "  read    1 completion, 1 group of 1"
    assert "n/a: 1 problem " in lines[3]
    assert lines[4] == "  no interval: fewer than 10 problems say too little about others"


def test_above_twenty_thousand_problems_the_interval_says_that_it_is_the_normal_one() -> None:
    summary = Summary(["math"])
    completion, scores = (Completion("x"),), {at: {"math": [Score(float(at))]} for at in (0, 1)}
    for key in range(1, 20_003):
        summary.add(Generation(Sample(key), completion, key=key), scores[key % 2])
    shown = render_summary({"models": summary.to_dict()}, width=100, color=False)
    assert "intervals are normal ones over 20,002 problems: above 20,000 none are resampled" in shown
    assert "intervals are normal" not in render_summary(figures(), width=100, color=False)


def test_commands_name_the_run() -> None:
    summary = figures() | {
        "warnings": [
            {"code": "label", "text": "a", "rows": 1, "command": "rewardkit show RUN --disagree"},
            {"code": "never_solved", "text": "b " * 60, "rows": 1, "command": "rewardkit show RUN --group RUN"},
            {"code": "cut_off", "text": "c", "rows": 1, "command": ""},
        ]
    }
    lines = render_summary(summary, width=80, color=False, run="runs/my run").splitlines()
    at = lines.index("  look at")
    assert lines[at + 1] == "    !  a   rewardkit show 'runs/my run' --disagree"
    assert lines[at + 4] == "       rewardkit show 'runs/my run' --group RUN"
    assert lines[at + 5] == "    i  c", "a note is no alarm"
    assert "rewardkit show RUN --disagree" in render_summary(summary, width=80, color=False)


def test_a_constant_reward_is_not_set_beside_the_label() -> None:
    """A format reward that is always 0 agrees with every wrong answer, which says nothing."""
    summary = Summary(["math", "tags"])
    for key in range(1, 13):
        completions = tuple(Completion("x", metadata={"label": at}) for at in (0, 1))
        scores = {"math": [Score(0.0), Score(1.0)], "tags": [Score(0.0), Score(0.0)]}
        summary.add(Generation(Sample(key), completions, key=key), scores)
    lines = render_summary({"models": summary.to_dict()}, width=100, color=False).splitlines()
    labels = [line for line in lines if line.startswith("  label")]
    assert labels == ["  label   math  agrees with the file's label on 24 of 24"]


# ------------------------------------------------------------------------------------------------------------- progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pipe_gets_plain_lines_even_with_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """promptfoo 634, 741: bars filled CI logs. FORCE_COLOR is about colour, and not about a cursor."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, 1000, clock=clock) as progress:
        for _ in range(1000):
            clock.now += 0.02
            progress.advance(1)
    lines = stream.getvalue().splitlines()
    assert not CONTROLS.search(stream.getvalue())
    assert lines[0].startswith("completions: 100 of 1,000 (10 %)")
    assert lines[-1] == "completions: 1,000 of 1,000 (100 %) in 20.0 s, 50.0/s"
    assert len(lines) == 11


def test_without_a_total_there_is_a_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock=clock) as progress:
        for _ in range(35):
            clock.now += 1.0
            progress.advance(8, failed=1)
    assert stream.getvalue().splitlines() == [
        "completions: 80, 10 failed, 8.00/s",
        "completions: 160, 20 failed, 8.00/s",
        "completions: 240, 30 failed, 8.00/s",
        "completions: 280 in 35.0 s, 35 failed, 8.00/s",
    ]


def test_a_fast_run_says_one_line() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, 100, clock=clock) as progress:
        for _ in range(100):
            clock.now += 0.001
            progress.advance(1)
    assert stream.getvalue().splitlines() == ["completions: 100 of 100 (100 %) in 100 ms, 1,000/s"]


def test_quiet_says_nothing_and_counts() -> None:
    stream = io.StringIO()
    with Progress(stream, 10, quiet=True) as progress:
        progress.advance(10, failed=2)
    assert stream.getvalue() == ""
    assert (progress.done, progress.failed) == (10, 2)


def test_nothing_done_divides_by_nothing() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, 0, clock=clock):
        pass
    assert stream.getvalue() == "completions: 0 in 0 ms\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_real_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Progress(stream, 10, what="[red]rows") as progress:
        progress.advance(10, failed=1)
    assert "10/10" in stream.getvalue()
    assert "[red]rows" in stream.getvalue(), "markup is text"
    assert "1 failed" in stream.getvalue()
    assert "\x1b[?25h" in stream.getvalue(), "the cursor is shown again"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(stream, 10) as progress:
        progress.advance(10)
    assert "\x1b" not in stream.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color(Terminal())
    assert not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    stream = Terminal()
    with Progress(stream, 10) as progress:
        progress.advance(10)
    assert not re.search(r"\x1b\[[\d;]*[1-9][\d;]*m", stream.getvalue())


def test_importing_does_not_import_rich() -> None:
    code = "import sys, rewardkit.report.terminal; print([name for name in sys.modules if name.startswith('rich')])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_a_total_that_is_told_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are is known once the file is open, which is after the bar has begun."""
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock=clock) as progress:
        progress.total = 20
        assert progress.total == 20
        clock.now += 2.0
        progress.advance(10)
    assert stream.getvalue().splitlines()[0] == "completions: 10 of 20 (50 %), 5.00/s"
    monkeypatch.setenv("TERM", "xterm-256color")
    bar = Terminal()
    with Progress(bar) as progress:
        progress.total = 20
        progress.advance(10)
    assert "10/20" in bar.getvalue() and "50%" in bar.getvalue()
