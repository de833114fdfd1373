"""What a training run shows while it goes on: a panel on a real terminal, one plain line a step anywhere else.

It leads with the reward and the gradient's norm, not with the loss: the loss of a group-relative method is near 0 while
it learns, and often below it. What a model wrote is shown with every character escaped that a terminal might act on.

Metrics that are read, all optional (a number, or absent):

| name | is |
| --- | --- |
| reward, reward_std, frac_reward_zero_std | mean, spread, share of groups without spread |
| rewards/NAME/mean, rewards/NAME/std | of one component or metric |
| rewards/error_share | share of completions whose reward failed |
| rewards/NAME/error_share | the same of a metric |
| groups/expected_dead/G | expected share of groups without spread if groups had G completions |
| loss, policy_loss, kl_loss, kl, grad_norm, entropy, clip_ratio/region_mean | of the update |
| sampling/importance_sampling_ratio/mean, min, max | sampler against trainer; else ratio/mean, min, max |
| completions/mean_length, completions/clipped_ratio | tokens; share cut off |
| time/step, time/sample, time/reward, time/update | seconds |
| speed/tokens_per_second, memory/used_gb, memory/peak_gb, memory/total_gb | of the device |
| skipped | 1 where the step was left out because its gradient was not finite |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from rewardkit.display import visible
from rewardkit.report.curves import sparkline
from rewardkit.report.progress import is_terminal
from rewardkit.report.text import counted, percent, shorten, three
from trainer_backend.screen import Screen

if TYPE_CHECKING:
    from rich.live import Live as RichLive
    from rich.text import Text

NEAR_ZERO = "near 0 is normal: advantages sum to 0"
NEGATIVE = "below 0 is normal: it says where to go, not how wrong the model is; watch the reward"

_NEAR = 0.01  # a loss that looks like none
_WINDOW = 50  # steps that a trend is taken over
_RECENT = 10  # steps that a share is averaged over
_KEPT = 400  # values of each metric that are kept
_SPARK = 12  # cells of a sparkline
_EACH_TIME = ("skipped",)  # warnings that are said again with each step that they are about
_WIDTH = 100  # of the panel where the terminal does not say


@dataclass(frozen=True)
class Example:
    """A completion to show.

    Attributes:
        name: Which one: "118.3".
        text: What the model wrote.
        reward: Its reward; None where it was not scored.
        reference: The gold answer as text; None where there is none.
    """

    name: str
    text: str
    reward: float | None = None
    reference: str | None = None


class History:
    """The metrics of the steps so far, as far as the view needs them."""

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.last: dict[str, Any] = {}
        self._values: dict[str, list[float]] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Take in one step; what is no finite number is passed over."""
        self.steps += 1
        self.skipped += bool(metrics.get("skipped"))
        self.last = dict(metrics)
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                values = self._values.setdefault(name, [])
                values.append(float(value))
                del values[:-_KEPT]

    def values(self, name: str, last: int = _KEPT) -> list[float]:
        """Return the last values of a metric, the oldest first."""
        return self._values.get(name, [])[-last:]

    def now(self, name: str) -> float | None:
        """Return a metric of the last step; None where it has none."""
        value = self.last.get(name)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def recent(self, name: str, last: int = _RECENT) -> float | None:
        """Return the mean over the last steps."""
        values = self.values(name, last)
        return math.fsum(values) / len(values) if values else None

    @property
    def components(self) -> list[str]:
        """The names NAME of rewards/NAME/mean."""
        return [name[8:-5] for name in self._values if name.startswith("rewards/") and name.endswith("/mean")]

    @property
    def failing(self) -> dict[str, float]:
        """The metrics NAME of rewards/NAME/error_share that failed in the last step, and their shares."""
        found = {}
        for name in self.last:
            metric = name.removeprefix("rewards/").removesuffix("/error_share")
            share = self.now(name) if name == f"rewards/{metric}/error_share" else None
            if share:
                found[metric] = share
        return found


# ------------------------------------------------------------------------------------------------------------- warnings


def warnings(history: History, *, max_error_share: float = 0.05) -> dict[str, str]:
    """Return what somebody should look at now: a key that stays the same while it lasts, and a sentence."""
    found: dict[str, str] = {}
    errors = history.recent("rewards/error_share")
    if errors:
        bar = f"; the run stops at {percent(max_error_share)} of the last 100" if max_error_share < 1 else ""
        found["errors"] = f"the reward failed on {percent(errors)} of the last completions{bar}; see scores.jsonl"
    for name, share in history.failing.items():
        told = f"the metric {visible(name, 40)} failed on {percent(share)} of this step's completions"
        found[f"errors/{name}"] = f"{told}; see scores.jsonl"
    if history.last.get("skipped"):
        so_far = f" ({history.skipped:,} of {counted(history.steps, 'step')} so far)"
        found["skipped"] = f"this step was left out: its gradient was not finite{so_far}"
    entropy = history.values("entropy", _WINDOW + 5)
    if len(entropy) >= 15:
        before, now = math.fsum(entropy[:5]) / 5, math.fsum(entropy[-5:]) / 5
        if before > 0 and now < 0.6 * before:
            fall = f"{100 * (1 - now / before):.0f} % in {len(entropy) - 5} steps"
            found["entropy"] = f"entropy fell {fall}: the samples become alike; a lower learning rate holds it up"
    found |= _flat_components(history)
    dead = history.recent("frac_reward_zero_std")
    if dead is not None and dead > 0.7 and history.steps >= 5:
        found["dead"] = _dead_text(history, dead)
    cut = history.recent("completions/clipped_ratio")
    if cut is not None and cut > 0.3:
        found["cut"] = f"{percent(cut)} of completions are cut off before they end; raise max_completion_length"
    return found


def _flat_components(history: History) -> dict[str, str]:
    """A component that differed between completions once, and has not for so many steps."""
    found = {}
    for name in history.components:
        spread = history.values(f"rewards/{name}/std")
        if len(spread) > 20 and not any(spread[-20:]) and any(spread[:-20]):
            found[f"flat/{name}"] = f"one component no longer varies and teaches nothing ({visible(name, 40)})"
    return found


def _dead_text(history: History, dead: float) -> str:
    mean = history.recent("reward") or 0.0
    text = f"{percent(dead)} of groups teach nothing, since all their rewards are alike (mean {three(mean)})"
    sizes = {}
    for name in history.last:
        size = name.removeprefix("groups/expected_dead/")
        if size != name and size.isdigit() and history.recent(name) is not None:
            sizes[int(size)] = history.recent(name)
    if sizes:
        told = ", ".join(f"{percent(share)} at G = {size}" for size, share in sorted(sizes.items()))
        return f"{text}; expected: {told}"
    return f"{text}; more generations for each prompt, or other prompts, help"


# ---------------------------------------------------------------------------------------------------------------- words


def loss_text(history: History) -> str:
    """Return the loss with its parts and a word on why it is near or below 0; "" where there is none."""
    loss, policy, kl = (history.now(name) for name in ("loss", "policy_loss", "kl_loss"))
    if loss is None:
        return ""
    parts = f" = policy {_signed(policy)} + KL {_signed(kl)}" if policy is not None and kl is not None else ""
    shown = policy if policy is not None and kl is not None else loss
    why = NEAR_ZERO if abs(shown) < _NEAR else NEGATIVE if shown < 0 else ""
    return f"{_signed(loss)}{parts}{f' ({why})' if why else ''}"


def _signed(value: float) -> str:
    if abs(value) < 5e-7:
        return "0"
    if abs(value) >= 1e6:
        return f"{value:.2e}"
    return f"{value:.4f}" if abs(value) >= 5e-5 else f"{value:.0e}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _ratio_text(history: History) -> str:
    for what, name in (("sampler/trainer", "sampling/importance_sampling_ratio"), ("new/old", "ratio")):
        mean, low, high = (history.now(f"{name}/{part}") for part in ("mean", "min", "max"))
        if mean is not None:
            span = f" ({low:.2f}-{high:.2f})" if low is not None and high is not None else ""
            return f"ratio {what} {mean:.3f}{span}"
    return ""


def _live_groups(history: History) -> str:
    dead = history.now("frac_reward_zero_std")
    return "" if dead is None else f"live groups {percent(1 - dead)}"


def _share(history: History, name: str) -> str | None:
    value = history.now(name)
    return None if value is None else percent(value)


def _parts(history: History, *wanted: tuple[str, str]) -> list[str]:
    """Return `LABEL value` for the metrics that are there."""
    found = []
    for label, name in wanted:
        value = history.now(name)
        if value is not None:
            found.append(f"{label} {three(value)}")
    return found


def plain_line(step: int, steps: int, history: History, *, loss: bool = True) -> str:
    """Return one step as a line: what the panel leads with first."""
    components = [f"{visible(name, 30)} {three(history.now(f'rewards/{name}/mean'))}" for name in _shown(history)]
    cut = _share(history, "completions/clipped_ratio")
    seconds = history.now("time/step")
    components += [f"! {visible(name, 30)} failed {percent(share)}" for name, share in history.failing.items()]
    whole = loss_text(history)
    parts = [
        f"step {step}/{steps}",
        *_parts(history, ("reward", "reward")),
        *components,
        *_parts(history, ("grad", "grad_norm")),
        _live_groups(history),
        f"loss {whole if loss else whole.partition(' (')[0]}" if whole else "",
        *_parts(history, ("KL", "kl"), ("entropy", "entropy"), ("length", "completions/mean_length")),
        f"cut off {cut}" if cut else "",
        f"{seconds:.1f} s" if seconds is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def _shown(history: History) -> list[str]:
    """Return components worth a column: with one component it is the reward itself."""
    names = history.components
    return names[:4] if len(names) > 1 else []


def panel(
    title: str,
    step: int,
    steps: int,
    history: History,
    *,
    left: float | None = None,
    example: Example | None = None,
    warned: Sequence[str] = (),
    width: int = _WIDTH,
) -> list[str]:
    """Return the lines of the panel, none wider than `width` cells."""
    seconds = history.recent("time/step")
    head = [f"step {step}/{steps}", f"{_clock(left)} left" if left is not None else ""]
    head.append(f"{seconds:.1f} s/step" if seconds is not None else "")
    lines = [_row(title, *head)]
    reward = [*_parts(history, ("", "reward")), _spark(history, "reward")]
    reward += [f"{visible(name, 30)} {three(history.now(f'rewards/{name}/mean'))}" for name in _shown(history)]
    dead = history.now("frac_reward_zero_std")
    live = _live_groups(history)
    lines.append(_row("reward ", *reward, f"{live} ({percent(dead)} no spread)" if dead else live))
    update = [*_parts(history, ("", "grad_norm")), _spark(history, "grad_norm")]
    update += [*_parts(history, ("KL", "kl"), ("entropy", "entropy")), _spark(history, "entropy")]
    lines.append(_row("grad   ", *update))
    lines.append(_row("loss   ", loss_text(history)))
    clip, cut = _share(history, "clip_ratio/region_mean"), _share(history, "completions/clipped_ratio")
    length = _parts(history, ("length", "completions/mean_length"))
    lines.append(
        _row(
            "tokens ", f"clipped {clip}" if clip else "", _ratio_text(history), *length,
            _spark(history, "completions/mean_length"), f"cut off {cut}" if cut else "",
        )
    )  # fmt: skip
    lines.append(_row("speed  ", *_speed(history)))
    if example is not None:
        lines.append(_row("sample ", _example_text(example)))
    lines += [f"  !  {visible(text, None)}" for text in warned]
    return [shorten(line, width) for line in lines if line]


def _row(name: str, *parts: str) -> str:
    told = [part.strip() for part in parts if part.strip()]
    return "  " + "  ".join([name, *told]) if told else ""


def _spark(history: History, name: str) -> str:
    values = history.values(name)
    return sparkline(values, _SPARK) if len(values) > 1 else ""


def _speed(history: History) -> list[str]:
    rate, whole = history.now("speed/tokens_per_second"), history.now("time/step")
    found = [f"{rate:,.0f} tok/s"] if rate is not None else []
    for what in ("sample", "reward", "update"):
        seconds = history.now(f"time/{what}")
        if seconds is not None and whole:
            found.append(f"{what} {100 * seconds / whole:.0f} %")
    used, total, peak = (history.now(f"memory/{what}_gb") for what in ("used", "total", "peak"))
    if used is not None:
        of = f"/{total:.0f}" if total is not None else ""
        found.append(f"memory {used:.1f}{of} GB" + (f" peak {peak:.1f}" if peak is not None else ""))
    return found


def _example_text(example: Example) -> str:
    reward = "not scored" if example.reward is None else f"reward {three(example.reward)}"
    gold = "" if example.reference is None else f"  gold {visible(example.reference, 30)}"
    text = visible(example.text.strip()[-300:], None)
    return f"#{visible(example.name, 20)}  {reward}{gold}  {'…' + text[-59:] if len(text) > 60 else text}"


# ----------------------------------------------------------------------------------------------------------------- view


class Live:
    """The view of a run. Use it as a context manager and tell it every step.

    Args:
        stream: Where to show it; standard error, usually. Once nobody reads it, nothing is said any more.
        title: The model and how it is trained, on one line.
        steps: Steps of the run.
        done: Steps that were taken before, for a resumed run.
        quiet: One line, at the end.
        max_error_share: For the warning about rewards that fail.
        clock: Seconds that never run backwards; for tests.
    """

    def __init__(
        self,
        stream: TextIO | None,
        title: str,
        steps: int,
        *,
        done: int = 0,
        quiet: bool = False,
        max_error_share: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = History()
        self._stream = cast(TextIO, Screen(stream))
        self._title = visible(title, 200)
        self._steps = steps
        self._at = self._first = done
        self._quiet = quiet
        self._max_error_share = max_error_share
        self._clock = clock
        self._started = clock()
        self._warned: dict[str, str] = {}
        self._explained: set[str] = set()
        self._example: Example | None = None
        self._panel: RichLive | None = None

    def __enter__(self) -> Live:
        self._started = self._clock()
        if self._quiet:
            return self
        if is_terminal(self._stream):
            self._panel = _rich_live(self._stream)
            self._panel.start()
        else:
            self._say(self._title)
        return self

    def step(self, step: int, metrics: Mapping[str, Any], example: Example | None = None) -> None:
        """Show a step that was taken.

        Args:
            step: Which one, from 1.
            metrics: By the names above.
            example: A completion of this step.
        """
        self._at = step
        self.history.add(metrics)
        self._example = example or self._example
        known, self._warned = self._warned, warnings(self.history, max_error_share=self._max_error_share)
        if self._panel is not None:
            self._redraw()
        elif not self._quiet:
            self._say(plain_line(step, self._steps, self.history, loss=self._explain_loss()))
            for key, text in self._warned.items():
                if key not in known or key in _EACH_TIME:
                    self._say(f"  ! {visible(text, None)}")

    def note(self, text: str) -> None:
        """Say something besides: a checkpoint, a place that gets no more metrics."""
        if self._quiet:
            return
        if self._panel is not None:
            self._panel.console.print(_text(f"  {visible(text, None)}"))
        else:
            self._say(visible(text, None))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the panel away while something else is printed."""
        if self._panel is None:
            yield
            return
        self._panel.stop()
        try:
            yield
        finally:
            self._panel.start(refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._panel is not None:
            self._redraw()
            self._panel.stop()
            self._panel = None
        elif self._quiet:
            self._say(self.last_line())
        return False

    def last_line(self) -> str:
        """Return the run in one line: what -q leaves."""
        taken = self._at - self._first
        of = f" of {self._steps:,}" if self._at < self._steps else ""
        reward = self.history.values("reward")
        moved = ""
        if reward:
            n = min(5, max(1, len(reward) // 2))
            moved = f", reward {three(math.fsum(reward[:n]) / n)} -> {three(math.fsum(reward[-n:]) / n)}"
        return f"train: {counted(taken, 'step')}{of} in {_clock(self._clock() - self._started)}{moved}"

    def _explain_loss(self) -> bool:
        """Whether this line says why the loss is as it is: each reason is given once."""
        text = loss_text(self.history)
        new = {why for why in (NEAR_ZERO, NEGATIVE) if why in text} - self._explained
        self._explained |= new
        return bool(new)

    def _left(self) -> float | None:
        seconds = self.history.recent("time/step", 20)
        return None if seconds is None else seconds * (self._steps - self._at)

    def _redraw(self) -> None:
        assert self._panel is not None
        lines = panel(
            self._title,
            self._at,
            self._steps,
            self.history,
            left=self._left(),
            example=self._example,
            warned=list(self._warned.values()),
            width=max(40, self._panel.console.width - 1),
        )
        self._panel.update(_text("\n".join(lines)), refresh=True)

    def _say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _text(lines: str) -> Text:
    """Return text with its warnings and the reward's name in colour; nothing in it is read as markup."""
    from rich.text import Text

    found = Text(lines, no_wrap=True, overflow="crop")
    found.highlight_regex(r"(?m)^  !  .*$", "yellow")
    found.highlight_regex(r"(?m)^  reward .*$", "bold")
    return found


def _rich_live(stream: TextIO) -> RichLive:
    from rich.console import Console
    from rich.live import Live as RichLive

    console = Console(file=stream, force_jupyter=False, highlight=False, markup=False, emoji=False)
    return RichLive(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
