"""`--check`: what a run would be like, before it starts; and the warnings that every run begins with.

A few prompts go through the start model and the real rewards. Where no group of completions has rewards that differ,
nothing can be learned, and the check says so by its exit code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rewardkit.display import visible
from rewardkit.engine import Engine
from rewardkit.report.text import counted, percent, shorten, three
from rewardkit.stats import moments
from rewardkit.types import Score
from trainer_backend import groups, setup
from trainer_backend.batch import Row
from trainer_backend.data import PromptOrder
from trainer_backend.groups import TOTAL, Groups, Judged
from trainer_backend.model.load import Loaded
from trainer_backend.parallel import World
from trainer_backend.setup import Encoded, Job, Ready
from trainer_backend.step import update

PROMPTS = 8
"""Prompts that are tried."""

STEPS, ROWS, PARAMETERS = 300, 500, 1_500_000_000
"""Below these, a run warns."""

_SHOWN = 4  # completions in the report
_SEED = 0xC4EC


# ------------------------------------------------------------------------------------------------------------ warnings


def warnings(job: Job, encoded: Encoded, loaded: Loaded, steps: int) -> list[str]:
    """Return what makes it unlikely that much is learned, each with its reason. Nothing is sampled for it."""
    found = []
    if steps < STEPS:
        found.append(
            f"{counted(steps, 'step')}: a step moves a model little, and most tasks show nothing before about {STEPS}"
        )
    if len(encoded.prompts) < ROWS:
        found.append(
            f"{len(encoded.prompts):,} prompts: with fewer than about {ROWS} each comes back often, and what looks like"
            " learning may be these prompts by heart" + ("" if encoded.held_out else "; hold some out (data.eval)")
        )
    if loaded.parameters < PARAMETERS:
        found.append(
            f"{loaded.parameters / 1e9:.2g} billion parameters: below about 1.5 a model seldom finds a right answer to"
            " a hard task by itself, and GRPO can only strengthen what is found"
        )
    if not getattr(encoded.tokenizer, "chat_template", None):
        found.append(
            "the tokenizer has no chat template, so this is probably a base model without instruction tuning: it may"
            " not keep to a format that it was only told about; show it examples in the prompt"
        )
    return found


# --------------------------------------------------------------------------------------------------------------- trial


@dataclass(frozen=True, eq=False)
class Trial:
    """What a few prompts gave.

    Attributes:
        drawn, judged: The groups, and what they are worth.
        updating: Seconds of an update on one step's completions as if all of them taught something; None where it
            was not measured.
    """

    drawn: Groups
    judged: Judged
    updating: float | None

    @property
    def values(self) -> list[float]:
        """The rewards of completions that were scored."""
        return [score.value for group in self.judged.totals for score in group if score.value is not None]

    @property
    def cut(self) -> float:
        """The share of completions that were cut off."""
        every = [one for rollout in self.drawn.rollouts for one in rollout.completions]
        return sum(one.finish_reason == "length" for one in every) / len(every)


def attempt(job: Job, encoded: Encoded, ready: Ready, engine: Engine, say: Callable[[str], object]) -> Trial:
    """Sample a few prompts with the start model, score them, and take one update that changes nothing."""
    config = job.config
    order = PromptOrder(len(encoded.prompts), config.seed, config.shuffle_dataset)
    prompts = [encoded.prompts[at] for at in order.take(min(PROMPTS, len(encoded.prompts)))]
    say(f"sampling {counted(len(prompts), 'prompt')} x {config.num_generations}")
    world = World(device=ready.loaded.device)
    state = groups.trl_state(config, order.count, world.size, order.position / order.count)
    drawn = groups.draw(
        ready.sampler, engine, prompts, config.num_generations, seed=config.seed ^ _SEED, step=1, state=state
    )
    judged = groups.judge(drawn, config, world)
    say("one update, which changes nothing")
    return Trial(
        drawn, judged, _time_of_update(ready, groups.rows_of(drawn, judged, config), config.completions_per_step)
    )


def _time_of_update(ready: Ready, rows: Sequence[Row], count: int) -> float:
    """Return the seconds of a whole step's update, at a learning rate of 0, if every completion taught something."""
    taken = [rows[at % len(rows)] for at in range(count)]
    taught = [
        Row(row.prompt_ids, row.completion_ids, 1.0 if at % 2 else -1.0, row.rollout_logps)
        for at, row in enumerate(taken)
    ]
    optimizer = torch.optim.SGD(ready.policy.trained, lr=0.0)
    started = time.perf_counter()
    update(ready.policy, taught, optimizer, None, ready.settings)
    return time.perf_counter() - started


# -------------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class Report:
    """What a check has found.

    Attributes:
        text: All of it; "" in all processes but the first.
        refusals: Why the run cannot learn, or cannot start.
        warnings: What makes learning unlikely.
    """

    text: str
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]

    def exit_code(self, *, force: bool = False) -> int:
        """Return 2 where the run would be refused, else 0."""
        return 2 if self.refusals and not force else 0


def look(job: Job, *, say: Callable[[str], object] | None = None) -> Report:
    """Check a job: sizes, memory, a few prompts through model and rewards, time.

    Args:
        job: What is to be trained.
        say: Is told what is being done; None: nobody.

    Raises:
        RewardkitError: The job cannot run at all.
    """
    tell = say or _quiet
    config = job.config
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as after:
        engine = after.enter_context(setup.open_engine(job))
        world = World.join()
        after.callback(world.leave)
        setup.check_processes(config, world.size)
        if not world.first:
            tell = _quiet
        encoded = setup.encode_job(job)
        room = setup.make_room(job, encoded, world.device)
        memory = room.does_not_fit if room is not None else ""
        if memory:
            text = f"{room.plan.table()}\n\nREFUSED  {memory}" if room is not None else memory
            return Report(text if world.first else "", (memory,), ())
        tell(f"loading {config.model}")
        ready = after.enter_context(contextlib.closing(setup.make_ready(job, encoded, room, world.device)))
        trial = attempt(job, encoded, ready, engine, tell)
    steps = config.steps(len(encoded.prompts), world.size)
    warned = (*warnings(job, encoded, ready.loaded, steps), *_trial_warnings(trial, job))
    refused = tuple(refusals(trial))
    lines = [
        *_sizes(job, encoded, ready, steps, world),
        "",
        *(["memory", *(f"  {line}" for line in ready.room.plan.table().splitlines()), ""] if ready.room else []),
        *_rewards(trial, job),
        "",
        *_time(trial, job, encoded, steps),
        "",
        *(f"note     {text}" for text in (*config.notes, *encoded.notes, *ready.loaded.notes)),
        *(f"warning  {text}" for text in warned),
        *(f"REFUSED  {text}" for text in refused),
    ]
    if not refused:
        lines.append("this run can learn: rewards differ within groups" if trial.judged.live else "")
    return Report("\n".join(lines).rstrip() if world.first else "", refused, warned)


def _quiet(text: str) -> None:
    """Say nothing."""


def refusals(trial: Trial) -> list[str]:
    """Return why nothing can be learned: no group has rewards that differ."""
    judged = trial.judged
    if judged.live:
        return []
    n, why = judged.advantages.groups, judged.advantages.why_dead()
    if why.get("unscored", 0) == n:
        first: Score = judged.totals[0][0]
        return [f"none of {judged.completions} completions was scored: {first.why}; see the reward and the reference"]
    values = trial.values
    same = (
        f"all rewards are {three(values[0])}" if len(set(values)) == 1 else f"mean {three(sum(values) / len(values))}"
    )
    return [
        f"in none of {counted(n, 'group')} do the rewards differ ({same}), so there is nothing to learn from; take"
        " easier prompts, a reward that also pays for parts of an answer, or more generations"
    ]


def _trial_warnings(trial: Trial, job: Job) -> list[str]:
    found = []
    judged = trial.judged
    dead, n = len(judged.advantages.dead), judged.advantages.groups
    if judged.live and dead > 0.7 * n:
        found.append(
            f"{dead} of {n} groups teach nothing, since their rewards are alike; more generations, or other prompts"
        )
    if trial.cut > 0.3:
        found.append(f"{percent(trial.cut)} of completions are cut off; raise grpo.max_completion_length")
    if judged.errors:
        first = next(score for group in judged.totals for score in group if score.state == "error")
        found.append(f"the reward failed on {judged.errors} of {judged.completions} completions: {first.why}")
    return found


def _sizes(job: Job, encoded: Encoded, ready: Ready, steps: int, world: World) -> list[str]:
    config, loaded = job.config, ready.loaded
    batch = config.prompts_per_step * world.size
    held = f", {len(encoded.held_out):,} held out" if encoded.held_out else ", none held out"
    weights = "NF4" if config.load_in_4bit else str(loaded.dtype).removeprefix("torch.")
    return [
        f"model    {visible(loaded.name, 100)}: {loaded.parameters / 1e6:,.1f}M parameters as {weights} on"
        f" {loaded.device.type}, {loaded.trainable / 1e6:.2f}M trained (LoRA r {config.r})",
        f"data     {len(encoded.prompts):,} prompts{held}; the longest has {encoded.longest:,} tokens",
        f"reward   {visible(str(job.rewards[TOTAL].formula), 200)}",
        f"batch    {counted(batch, 'prompt')} x {config.num_generations} completions of up to"
        f" {config.max_completion_length:,} tokens; {config.loss_type}, advantages by {config.advantage_method}",
        f"steps    {steps:,}: {batch * steps / config.num_iterations / len(encoded.prompts):.2g} epochs",
        f"sampler  {ready.sampler.name}",
    ]


def _rewards(trial: Trial, job: Job) -> list[str]:
    judged = trial.judged
    told = {
        name: value for name, value in groups.reward_metrics(judged, job.rewards).items() if name.startswith("rewards/")
    }
    width = max([len(TOTAL), *(len(name) - 13 for name in told if name.endswith("/mean"))])
    lines = [
        f"rewards of {judged.completions} completions of the start model",
        f"  {'':{width}}    mean     std     min     max",
    ]
    seen = moments(trial.values)
    if seen is not None:
        low, high = min(trial.values), max(trial.values)
        lines.append(f"  {TOTAL:{width}} {seen.mean:7.3f} {seen.std or 0.0:7.3f} {low:7.3f} {high:7.3f}")
    for name in told:
        if name.endswith("/mean"):
            label = name[8:-5]
            lines.append(f"  {visible(label, width):{width}} {told[name]:7.3f} {told[f'rewards/{label}/std']:7.3f}")
    dead = judged.advantages.dead_share
    unscored = told["rewards/unscored_share"]
    lines.append(
        f"  groups without spread {percent(dead)} of {judged.advantages.groups}; cut off {percent(trial.cut)}; not"
        f" scored {percent(unscored)}"
    )
    for group in judged.scored[:_SHOWN]:
        score, text = group.scores[TOTAL][0], group.generation.completions[0].text
        value = three(score.value) if score.value is not None else score.why
        lines.append(shorten(f"  {value:>7}  {visible(text.strip(), None)}", 110))
    return lines


def _time(trial: Trial, job: Job, encoded: Encoded, steps: int) -> list[str]:
    """Return the seconds of a step: sampling by what the trial took, the update as if all groups were live."""
    config = job.config
    share = config.prompts_per_step / max(1, len(trial.drawn.rollouts))
    sampling, scoring = trial.drawn.sampling * share, trial.drawn.scoring * share
    each = (sampling + scoring) / config.num_iterations + (trial.updating or 0.0)
    held = len(encoded.held_out) * (1 + config.eval_samples)
    rate = trial.drawn.sampling / max(1, len(trial.drawn.rollouts) * config.num_generations)
    whole = each * steps + 2 * held * rate
    return [
        f"time     about {each:.1f} s a step at most: sampling {sampling:.1f}, rewards {scoring:.1f}, update"
        f" {trial.updating or 0.0:.1f} (less where groups have no spread)",
        f"         about {_clock(whole)} in all"
        + (f", held-out prompts {_clock(2 * held * rate)} of it" if held else ""),
    ]


def _clock(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1.5:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
