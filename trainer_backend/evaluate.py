"""Held-out prompts before and after training, whether anything was learned, and the words that close a run.

Before and after draw from the same prompts with the same seed and are paired prompt by prompt. The test is
`rewardkit.stats.paired_difference`: an exact sign test over the prompts whose reward rose or fell.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rewardkit.display import visible
from rewardkit.engine import Engine, Scored
from rewardkit.errors import UsageError
from rewardkit.records import group_key, write_generations
from rewardkit.records.text import path_text
from rewardkit.report.text import counted, percent, three
from rewardkit.stats import PairedDifference, mean_pass_at_k, moments, paired_difference
from rewardkit.types import Generation
from trainer_backend.data import Prompt
from trainer_backend.groups import Missing
from trainer_backend.parallel import World
from trainer_backend.rollout.types import Rollout, Sampler
from trainer_backend.runlog import as_generation, wants_ids

FOLDER = "held_out"

_SEED = 0x5EED  # of the sampled completions: the same before and after, and no step's
_SURE = 0.05  # the p below which a difference is called one
_LARGE = 1e6  # from here on a number is told by its power of ten
_FEW = 50  # prompts below which an exact test can hardly find a difference


# ------------------------------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Measured:
    """One way of sampling the held-out prompts.

    Attributes:
        rewards: For each prompt, in the order given, the mean reward of its scored completions; None: none was scored.
        right: For a reward of 0s and 1s, (scored, right) of each prompt; else empty.
        length: Mean length in tokens.
        cut: Share of completions that were cut off.
        groups: What was sampled and scored, in the order of the prompts.
    """

    rewards: tuple[float | None, ...]
    right: tuple[tuple[int, int], ...]
    length: float
    cut: float
    groups: tuple[Scored, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without its groups."""
        right = [list(pair) for pair in self.right]
        return {"rewards": list(self.rewards), "right": right, "length": self.length, "cut": self.cut}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured:
        """Return what `to_dict` was made of, without its groups."""
        right = tuple((int(scored), int(good)) for scored, good in data["right"])
        return cls(tuple(data["rewards"]), right, data["length"], data["cut"], ())

    @property
    def mean(self) -> float | None:
        """The mean over prompts that have a reward."""
        found = moments(value for value in self.rewards if value is not None)
        return found.mean if found else None

    def missing(self, reward: str) -> Missing:
        """Return how often a reward gave no value, and why."""
        found = Missing()
        for group in self.groups:
            found.add(group.scores[reward])
        return found

    @property
    def unscored(self) -> int:
        """Prompts without a reward."""
        return sum(value is None for value in self.rewards)

    def pass_at(self, k: int) -> float | None:
        """Return pass@k for a reward of 0s and 1s; None for another."""
        return mean_pass_at_k(self.right, k).value if self.right else None


@dataclass(frozen=True)
class HeldOut:
    """The held-out prompts at one time: greedy, and sampled where samples were asked for."""

    ids: tuple[str | int, ...]
    greedy: Measured
    sampled: Measured | None
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without its texts, which lie in held_out/."""
        return {
            "ids": list(self.ids),
            "greedy": self.greedy.to_dict(),
            "sampled": None if self.sampled is None else self.sampled.to_dict(),
            "samples": self.samples,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HeldOut:
        """Return what `to_dict` was made of, without its texts."""
        sampled = data["sampled"]
        return cls(
            tuple(data["ids"]),
            Measured.from_dict(data["greedy"]),
            None if sampled is None else Measured.from_dict(sampled),
            data["samples"],
        )


def held_out(
    sampler: Sampler,
    engine: Engine,
    prompts: Sequence[Prompt],
    samples: int,
    *,
    reward: str = "total",
    seed: int = 0,
    step: int | None = None,
    world: World | None = None,
) -> HeldOut:
    """Sample and score the held-out prompts: one greedy completion each, and `samples` drawn ones.

    Args:
        sampler: As it samples now.
        engine: The rewards of the run; the same code that scores in training.
        prompts: In the same order each time.
        samples: Sampled completions for each prompt; 0: greedy only.
        reward: Which of the engine's rewards is measured.
        seed: Of the run; the same before and after.
        step: For rewards that change with the step: what the generations say they are of.
        world: The processes, each of which takes its share and returns the whole; None: only this one.

    Raises:
        UsageError: The engine has no such reward, or there are no prompts.
    """
    if reward not in engine.rewards:
        raise UsageError(f"there is no reward {reward!r} to measure; there are {', '.join(engine.rewards)}")
    if not prompts:
        raise UsageError("there are no held-out prompts to measure; give data.eval a file with rows")
    world = world or World()
    greedy = _measure(sampler, engine, prompts, 1, reward, seed, step, world, greedy=True)
    sampled = _measure(sampler, engine, prompts, samples, reward, seed, step, world, greedy=False) if samples else None
    return HeldOut(tuple(prompt.sample.id for prompt in prompts), greedy, sampled, samples)


def _measure(
    sampler: Sampler,
    engine: Engine,
    prompts: Sequence[Prompt],
    n: int,
    reward: str,
    seed: int,
    step: int | None,
    world: World,
    *,
    greedy: bool,
) -> Measured:
    places: list[int] = []
    mine, own_seed = world.share(prompts), seed ^ _SEED ^ (world.rank << 32)
    ids = wants_ids(engine)

    def arriving() -> Iterator[Generation]:
        """Groups as soon as they are sampled, so that they are scored while others are drawn."""
        for place, rollout in sampler.sample(mine, n, seed=own_seed, greedy=greedy):
            places.append(place)
            yield _generation(rollout, step, "greedy" if greedy else "sampled", ids)

    scored = list(engine.score(arriving()))
    own = [group for _, group in sorted(zip(places, scored, strict=True), key=lambda pair: pair[0])]
    groups = tuple(world.collect(own))
    values = [[score.value for score in group.scores[reward] if score.value is not None] for group in groups]
    every = [completion for group in groups for completion in group.generation.completions]
    known = all(value in (0.0, 1.0) for column in values for value in column)
    return Measured(
        tuple(math.fsum(column) / len(column) if column else None for column in values),
        tuple((len(column), int(sum(column))) for column in values) if known else (),
        math.fsum(one.tokens or 0 for one in every) / len(every),
        sum(one.finish_reason == "length" for one in every) / len(every),
        groups,
    )


def _generation(rollout: Rollout, step: int | None, how: str, ids: bool) -> Generation:
    """Return a group that is told apart from the other way of sampling as another model's column."""
    made = as_generation(rollout.prompt.sample, rollout.completions, step, ids=ids)
    here = made.sample
    return msgspec.structs.replace(made, model=how, key=group_key(how, here.id, here.step, here.prompt, here.reference))


def write_held_out(run: Path, name: str, found: HeldOut) -> Path:
    """Write what was sampled to RUN/held_out/NAME.jsonl, which `rewardkit eval` reads; its models: greedy, sampled.

    Returns:
        The file.
    """
    path = run / FOLDER / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = [*found.greedy.groups, *(found.sampled.groups if found.sampled else ())]
    write_generations(path, (group.generation for group in groups))
    return path


# ------------------------------------------------------------------------------------------------------------ comparing


@dataclass(frozen=True)
class Compared:
    """One way of sampling, before against after.

    Attributes:
        before, after: Means over the prompts that have a reward both times.
        difference: What changed, prompt by prompt.
        problems: How many have a reward both times.
        left_out: How many have not.
    """

    before: float
    after: float
    difference: PairedDifference
    problems: int
    left_out: int

    @property
    def sure(self) -> bool:
        """Whether the difference is more than chance (p < 0.05)."""
        return self.difference.p < _SURE

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = self.difference
        interval = found.interval
        return {
            "before": self.before, "after": self.after, "difference": found.mean, "p": found.p,
            "interval": None if interval is None else [interval.low, interval.high],
            "won": found.wins, "lost": found.losses, "same": found.ties,
            "problems": self.problems, "left_out": self.left_out,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """The held-out prompts before against after; None where nothing could be compared."""

    greedy: Compared | None
    sampled: Compared | None
    before: HeldOut
    after: HeldOut

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        found: dict[str, Any] = {}
        for name in ("greedy", "sampled"):
            compared: Compared | None = getattr(self, name)
            found[name] = compared.to_dict() if compared else None
        for name, held in (("before", self.before), ("after", self.after)):
            for how in ("greedy", "sampled"):
                seen: Measured | None = getattr(held, how)
                if seen is not None and found[how] is not None:
                    found[how][f"length_{name}"], found[how][f"cut_off_{name}"] = seen.length, seen.cut
        return found


def paired(before: HeldOut, after: HeldOut) -> Change:
    """Compare two measurements of the same prompts.

    Raises:
        UsageError: The prompts are not the same, in the same order.
    """
    if before.ids != after.ids:
        raise UsageError("before and after are of different held-out prompts, so they cannot be paired")
    return Change(
        _compare(before.greedy, after.greedy),
        _compare(before.sampled, after.sampled) if before.sampled and after.sampled else None,
        before,
        after,
    )


def _compare(before: Measured, after: Measured) -> Compared | None:
    both = [(a, b) for a, b in zip(before.rewards, after.rewards, strict=True) if a is not None and b is not None]
    first, second = [a for a, _ in both], [b for _, b in both]
    difference = paired_difference(first, second)
    means = moments(first), moments(second)
    if difference is None or means[0] is None or means[1] is None:
        return None
    return Compared(means[0].mean, means[1].mean, difference, len(both), len(before.rewards) - len(both))


# ------------------------------------------------------------------------------------------------------------- learning


@dataclass(frozen=True)
class Learning:
    """What the training did to the adapter.

    Attributes:
        steps: Steps taken, over all resumes.
        groups: Groups that were drawn.
        live: Of them, those whose rewards differed: the only ones that teach.
        norm_of_change: Norm of the adapter's weights now, less those at the start.
        skipped: Steps that were left out because of a gradient that was not finite.
        errors: Share of completions whose reward failed.
        completions: Completions of these groups.
        unscored: Of them, those that the reward did not score, without having failed.
        why_unscored: The first reason for that.
    """

    steps: int
    groups: int
    live: int
    norm_of_change: float
    skipped: int = 0
    errors: float = 0.0
    completions: int = 0
    unscored: int = 0
    why_unscored: str = ""

    @property
    def live_share(self) -> float:
        """The share of groups that taught something."""
        return self.live / self.groups if self.groups else 0.0

    @property
    def left_out(self) -> str:
        """How many steps were left out, and why; "" where none was."""
        if not self.skipped:
            return ""
        of = f"{self.skipped:,} of {counted(self.steps, 'step')}"
        were = "was" if self.skipped == 1 else "were"
        return f"{of} {were} left out: their gradient was not finite; a lower grpo.learning_rate may help"

    @property
    def not_scored(self) -> str:
        """How many completions were not scored, and why; "" where all were."""
        if not self.unscored:
            return ""
        why = f" ({visible(self.why_unscored, 300)})" if self.why_unscored else ""
        if self.unscored >= self.completions:
            return f"none of {counted(self.completions, 'completion')} was scored{why}"
        return f"{self.unscored:,} of {counted(self.completions, 'completion')} were not scored{why}"

    @property
    def learned(self) -> bool:
        """Whether the weights moved, and because of a group whose rewards differed."""
        return self.live > 0 and 0.0 < self.norm_of_change < math.inf

    @property
    def why_not(self) -> str:
        """Why nothing was learned; "" where something was."""
        if self.learned:
            return ""
        if not self.steps:
            return "no step was taken"
        if not self.live:
            if self.errors >= 1.0:
                return "the reward failed on every completion"
            if self.unscored and self.unscored >= self.completions:
                return self.not_scored
            alike = f"in none of {counted(self.groups, 'group')} did the rewards differ"
            return f"{alike}; {self.not_scored}" if self.not_scored else alike
        if not math.isfinite(self.norm_of_change):
            return "the adapter's weights are no longer finite"
        if self.skipped >= self.steps:
            return "every step was left out, since its gradient was not finite"
        return "the adapter's weights are what they were at the start"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        return {
            "learned": self.learned, "steps": self.steps, "groups": self.groups, "live_groups": self.live,
            "live_share": self.live_share, "norm_of_change": self.norm_of_change, "skipped_steps": self.skipped,
            "error_share": self.errors, "completions": self.completions, "unscored": self.unscored,
        }  # fmt: skip


def closing_text(
    *,
    change: Change | None,
    learning: Learning,
    adapter: Path | None,
    run: Path,
    seconds: float | None = None,
    metrics: Mapping[str, float] | None = None,
    file: Path | None = None,
    not_compared: str = "",
    missing: Mapping[str, Missing] | None = None,
) -> str:
    """Return what a run says at its end: what changed, whether anything was learned, the adapter, the next command.

    Args:
        change: The held-out prompts, before against after; None: there were none.
        learning: What training did.
        adapter: The folder of the saved adapter; None: none was saved.
        run: The run's folder.
        seconds: How long it took.
        metrics: Means of the last steps, of which kl, entropy and completions/mean_length are told.
        file: The training file, for the next command.
        not_compared: Why there is no change although prompts were held out.
        missing: Of each metric, how often it gave no value.
    """
    lines = [*_changed(change, not_compared), *_trained(learning, seconds, metrics or {})]
    for name, one in (missing or {}).items():
        if one.failed:
            told = f"failed on {one.failed:,} of {counted(one.completions, 'completion')}"
            lines.append(f"metric    {visible(name, 60)} {told}; the first: {visible(one.why_failed, 300)}")
    if adapter is not None:
        lines.append(f"adapter   {path_text(adapter)}   (peft's format: PeftModel.from_pretrained)")
    lines.append(f"next      {_next_command(change, learning, run, adapter, file)}")
    return "\n".join(lines)


def _changed(change: Change | None, not_compared: str) -> list[str]:
    if change is None and not_compared:
        return [f"held out  {not_compared}"]
    if change is None:
        return ["held out  no prompts were held out, so whether the model got better is not known (data.eval)"]
    lines = []
    ways = [("greedy", change.greedy, change.before.greedy, change.after.greedy)]
    if change.before.sampled and change.after.sampled:
        ways.append(("sampled", change.sampled, change.before.sampled, change.after.sampled))
    for name, compared, before, after in ways:
        if compared is None:
            lines.append(f"held out  {name:<8} no prompt has a reward both times, so nothing can be compared")
            continue
        lines.append(f"held out  {name:<8} {_compared_text(compared)}")
        k = change.before.samples
        pass_k = (before.pass_at(k), after.pass_at(k)) if name == "sampled" and k > 1 else (None, None)
        told = [f"length {three(before.length)} -> {three(after.length)}"]
        if before.cut or after.cut:
            told.append(f"cut off {percent(before.cut)} -> {percent(after.cut)}")
        if pass_k[0] is not None and pass_k[1] is not None:
            told.insert(0, f"pass@{k} {three(pass_k[0])} -> {three(pass_k[1])}")
        lines.append(f"{'':<19}{', '.join(told)}")
    compared = change.greedy or change.sampled
    if compared is not None:
        lines.append(f"{'':<10}{_verdict(compared)}")
    return lines


def _compared_text(compared: Compared) -> str:
    found = compared.difference
    interval = found.interval
    span = f" [{_signed(interval.low)}, {_signed(interval.high)}]" if interval else ""
    left_out = f", {compared.left_out} left out" if compared.left_out else ""
    prompts = counted(compared.problems, "prompt")
    return (
        f"{three(compared.before)} -> {three(compared.after)}  {_signed(found.mean)}{span}  p {_p(found.p)}"
        f"  won {found.wins}, lost {found.losses}, same {found.ties} of {prompts}{left_out}"
    )


def _signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) < _LARGE else f"{value:+.2e}"


def _verdict(compared: Compared) -> str:
    if not compared.sure:
        prompts = counted(compared.problems, "held-out prompt")
        few = f"; with {prompts} only a large one shows" if compared.problems < _FEW else ""
        return f"no more than chance would give (p {_p(compared.difference.p)}){few}"
    better = compared.difference.wins > compared.difference.losses
    return "better on prompts that it was not trained on" if better else "WORSE on prompts that it was not trained on"


def _p(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.2f}"


def _trained(learning: Learning, seconds: float | None, metrics: Mapping[str, float]) -> list[str]:
    took = f" in {_time(seconds)}" if seconds is not None else ""
    steps = counted(learning.steps, "step")
    if not learning.learned:
        return [
            f"training  NOTHING WAS LEARNED in {steps}{took}: {learning.why_not}",
            f"{'':<10}live groups {percent(learning.live_share)}, norm of the adapter's change"
            f" {three(learning.norm_of_change)}",
            *([f"{'':<10}{learning.left_out}"] if learning.left_out and learning.skipped < learning.steps else []),
        ]
    lines = [
        f"training  {steps}{took}; live groups {percent(learning.live_share)} of {learning.groups:,} (the others had"
        f" no spread and teach nothing); norm of the adapter's change {three(learning.norm_of_change)}"
    ]
    names = (("KL to the start", "kl"), ("entropy", "entropy"), ("length", "completions/mean_length"))
    told = [f"{label} {three(metrics[name])}" for label, name in names if math.isfinite(metrics.get(name, math.nan))]
    if learning.errors:
        told.append(f"the reward failed on {percent(learning.errors)} of completions")
    if learning.not_scored:
        told.append(learning.not_scored)
    return [*lines, *(f"{'':<10}{text}" for text in (", ".join(told), learning.left_out) if text)]


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60} min"


def _next_command(change: Change | None, learning: Learning, run: Path, adapter: Path | None, file: Path | None) -> str:
    here = _quoted(run)
    if not learning.learned and math.isfinite(learning.norm_of_change):
        what = _quoted(file) if file is not None else f"{here}/config.toml"
        return f"rewardkit train {what} --check   (shows whether the start model's rewards differ within groups)"
    compared = None if change is None else change.greedy or change.sampled
    if compared and compared.sure and compared.difference.losses > compared.difference.wins:
        return f"rewardkit plot {here}   (where it turned)"
    if adapter is None or compared is None or compared.sure:
        return f"rewardkit plot {here}   (reward, entropy, length by step)"
    return f"rewardkit train ... --set lora.start_from={_quoted(adapter)}   (goes on from this adapter)"


def _quoted(path: Path) -> str:
    return visible(shlex.quote(str(path)), None)
