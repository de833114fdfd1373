"""The live view: what it leads with, what it explains, what it warns of, and that a file gets plain lines only."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from rewardkit.report.text import cells
from trainer_backend.live import NEAR_ZERO, NEGATIVE, Example, History, Live, loss_text, panel, plain_line, warnings

STEP = {
    "reward": 0.412, "reward_std": 0.3, "rewards/format/mean": 0.98, "rewards/math/mean": 0.37,
    "frac_reward_zero_std": 0.46, "grad_norm": 0.21, "loss": 0.0003, "entropy": 0.61,
    "completions/mean_length": 312.0, "completions/clipped_ratio": 0.03, "clip_ratio/region_mean": 0.008,
    "sampling/importance_sampling_ratio/mean": 1.0, "sampling/importance_sampling_ratio/min": 0.97,
    "sampling/importance_sampling_ratio/max": 1.04, "time/step": 7.9, "time/sample": 4.8, "time/reward": 0.7,
    "time/update": 2.4, "speed/tokens_per_second": 2140.0, "memory/used_gb": 17.8, "memory/total_gb": 24.0,
    "memory/peak_gb": 21.3,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def history(*steps: dict[str, Any]) -> History:
    found = History()
    for metrics in steps:
        found.add(metrics)
    return found


def show(stream: io.StringIO, *steps: dict[str, Any], quiet: bool = False, example: Example | None = None) -> str:
    with Live(stream, "SmolLM2  LoRA r16  G=8", len(steps), quiet=quiet, clock=lambda: 0.0) as live:
        for at, metrics in enumerate(steps, 1):
            live.step(at, metrics, example)
    return stream.getvalue()


# ------------------------------------------------------------------------------------------------------------ the loss


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"loss": 0.0}, f"0 ({NEAR_ZERO})"),
        ({"loss": 3e-9}, f"0 ({NEAR_ZERO})"),
        ({"loss": -0.0003}, f"-0.0003 ({NEAR_ZERO})"),
        ({"loss": -0.25}, f"-0.2500 ({NEGATIVE})"),
        ({"loss": 0.25}, "0.2500"),
        # With a KL the sum is no longer near 0, and its parts say why.
        ({"loss": 0.04, "policy_loss": 1e-4, "kl_loss": 0.0399}, f"0.0400 = policy 0.0001 + KL 0.0399 ({NEAR_ZERO})"),
        ({"loss": math.nan}, ""),
        ({}, ""),
    ],
    ids=["zero", "rounding", "below", "negative", "positive", "parts", "nan", "none"],
)
def test_the_loss_is_explained(metrics: dict[str, float], says: str) -> None:
    assert loss_text(history(metrics)) == says


# --------------------------------------------------------------------------------------------------------- plain lines


def test_a_file_gets_one_plain_line_a_step_that_leads_with_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = show(io.StringIO(), STEP, STEP)
    assert "\x1b" not in text and "\r" not in text
    title, first, second = text.splitlines()
    assert title == "SmolLM2  LoRA r16  G=8"
    assert first == (
        "step 1/2  reward 0.412  format 0.980  math 0.370  grad 0.210  live groups 54.0 %  loss 0.0003"
        f" ({NEAR_ZERO})  entropy 0.610  length 312  cut off 3.00 %  7.9 s"
    )
    assert NEAR_ZERO not in second and "loss 0.0003" in second  # a reason is given once


def test_a_metric_that_is_not_there_or_not_finite_is_left_out() -> None:
    assert plain_line(1, 9, history({"reward": 0.5, "grad_norm": math.nan})) == "step 1/9  reward 0.500"


def test_quiet_is_one_line_at_the_end() -> None:
    steps = [{"reward": at / 10} for at in range(10)]
    assert show(io.StringIO(), *steps, quiet=True) == "train: 10 steps in 0:00:00, reward 0.200 -> 0.700\n"


def test_a_run_that_was_broken_off_says_how_far_it_came() -> None:
    stream = io.StringIO()
    with Live(stream, "", 20, done=5, quiet=True, clock=lambda: 0.0) as live:
        live.step(6, {"reward": 0.5})
    assert stream.getvalue() == "train: 1 step of 20 in 0:00:00, reward 0.500 -> 0.500\n"


def test_a_warning_is_a_line_when_it_begins() -> None:
    cut = {"reward": 0.0, "completions/clipped_ratio": 0.9}
    text = show(io.StringIO(), cut, cut, cut)
    assert text.count("!") == 1 and "raise max_completion_length" in text


# ------------------------------------------------------------------------------------------------------------ the panel


def test_the_panel_shows_what_matters_in_this_order() -> None:
    seen = history({**STEP, "reward": 0.1, "entropy": 0.9}, STEP)
    lines = panel("SmolLM2", 2, 400, seen, left=2530, example=Example("118.3", "so 70", 0.1, "72"), width=200)
    names = [line.split()[0] for line in lines]
    assert names == ["SmolLM2", "reward", "grad", "loss", "tokens", "speed", "sample"]
    text = "\n".join(lines)
    for piece in (
        "step 2/400  0:42:10 left  7.9 s/step", "format 0.980", "live groups 54.0 % (46.0 % no spread)",
        NEAR_ZERO, "ratio sampler/trainer 1.000 (0.97-1.04)", "2,140 tok/s  sample 61 %  reward 9 %  update 30 %",
        "memory 17.8/24 GB peak 21.3", "#118.3  reward 0.100  gold 72  so 70", "▁",
    ):  # fmt: skip
        assert piece in text


@pytest.mark.parametrize("width", [40, 79, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    seen = history(STEP, STEP)
    example = Example("1.1", "数学" * 50, 0.5, "七十二" * 30)
    lines = panel("模型" * 40, 1, 9, seen, left=5, example=example, warned=["w" * 300], width=width)
    assert max(map(cells, lines)) <= width


def test_what_a_model_wrote_cannot_act_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    evil = Example("1\x1b[2J", "a\x1b]0;title\x07\x9b31m[bold]b\u202ec", 1.0, "\x1b[31m[red]")
    text = show(Terminal(), STEP, example=evil)
    assert "\x1b]0" not in text and "\x1b[2J" not in text and "\x07" not in text and "\x9b" not in text
    assert "\u202e" not in text
    assert "[bold]b" in text and "[red]" in text  # nothing is read as markup


def test_the_panel_is_drawn_on_a_terminal_and_notes_go_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Live(stream, "SmolLM2", 2, clock=lambda: 0.0) as live:
        live.step(1, STEP)
        live.note("checkpoint\x1b[2J of step 1")
        with live.paused():
            stream.write("between\n")
        live.step(2, STEP)
    text = stream.getvalue()
    assert "\x1b[" in text and "\x1b[2J" not in text
    assert text.index("checkpoint") < text.index("between") < text.rindex("step 2/2")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in show(Terminal(), STEP)


# ------------------------------------------------------------------------------------------------------------- warnings


def test_a_fall_of_entropy_is_seen() -> None:
    steady = [{"entropy": 1.0}] * 30
    assert "entropy" not in warnings(history(*steady))
    assert "entropy" not in warnings(history(*steady, *[{"entropy": 0.7}] * 5))
    found = warnings(history(*steady, *[{"entropy": 0.5}] * 5))
    assert found["entropy"].startswith("entropy fell 50 % in 30 steps")


def test_a_component_that_no_longer_varies_is_named() -> None:
    varied = [{"rewards/format/mean": 0.9, "rewards/format/std": 0.1}]
    flat = [{"rewards/format/mean": 1.0, "rewards/format/std": 0.0}]
    assert "flat/format" in warnings(history(*varied, *flat * 20))
    assert "flat/format" not in warnings(history(*varied, *flat * 19))
    assert "flat/format" not in warnings(history(*varied * 2, *flat * 19))
    assert "flat/format" not in warnings(history(*flat * 40))  # it never did


def test_failing_rewards_are_shown_with_their_bar() -> None:
    found = warnings(history({"rewards/error_share": 0.02}), max_error_share=0.05)
    assert "2.00 %" in found["errors"] and "stops at 5.00 %" in found["errors"]
    assert "errors" not in warnings(history({"rewards/error_share": 0.0}))


def test_dead_groups_are_told_with_what_other_sizes_would_give() -> None:
    dead = {
        "reward": 0.18,
        "frac_reward_zero_std": 0.75,
        "groups/expected_dead/4": 0.614,
        "groups/expected_dead/16": 0.336,
    }
    assert "dead" not in warnings(history(*[dead] * 4))
    text = warnings(history(*[dead] * 5))["dead"]
    assert "75.0 % of groups teach nothing" in text and "61.4 % at G = 4, 33.6 % at G = 16" in text
    bare = {"reward": 0.18, "frac_reward_zero_std": 0.75}
    assert "more generations" in warnings(history(*[bare] * 5))["dead"]


def test_a_large_loss_is_told_in_few_digits() -> None:
    assert loss_text(history({"loss": -2e30})).startswith("-2.00e+30")


def test_a_skipped_step_is_said() -> None:
    assert "not finite" in warnings(history({"skipped": 1}))["skipped"]
    assert "skipped" not in warnings(history({"skipped": 1}, {"skipped": 0}))
    stream = io.StringIO()
    with Live(stream, "a model", 4) as live:
        for step, left_out in enumerate([1, 1, 0, 1], 1):
            live.step(step, {"skipped": left_out})
    told = [line.strip() for line in stream.getvalue().splitlines() if "!" in line]
    assert [line.partition("finite ")[2] for line in told] == [
        "(1 of 1 step so far)", "(2 of 2 steps so far)", "(3 of 4 steps so far)",
    ]  # fmt: skip
