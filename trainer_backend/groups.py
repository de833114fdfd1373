"""The groups of one step: sampled, scored while others are still drawn, compared within their group, made into rows.

A completion that was not scored leaves its group's baseline and the loss. One that was cut off stays in the baseline,
and leaves the loss where that is asked for.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rewardkit.compose import Reward
from rewardkit.engine import Engine, Scored
from rewardkit.errors import ContractError
from rewardkit.records import group_key
from rewardkit.reward import TrlLog
from rewardkit.stats import expected_dead_share, group_diagnostics, moments, multiplicities
from rewardkit.types import Generation, Score
from trainer_backend.advantage import Advantages, advantages
from trainer_backend.batch import Row
from trainer_backend.config import GRPOConfig
from trainer_backend.data import Prompt
from trainer_backend.parallel import World
from trainer_backend.rollout.types import Rollout, Sampler
from trainer_backend.runlog import as_generation, wants_ids

TOTAL = "total"
"""The name of the reward that trains."""

_SIZES = (4, 8, 16)  # group sizes that the share of dead groups is foretold for


@dataclass(frozen=True, eq=False)
class Groups:
    """What one process has drawn for one step.

    Attributes:
        rollouts, scored: The groups and their scores, in the order of the prompts.
        sampling: Seconds in the sampler.
        scoring: Seconds beyond these until the last score was there.
        logged: What reward functions gave to TRL's `log_metric`, by name.
    """

    rollouts: tuple[Rollout, ...]
    scored: tuple[Scored, ...]
    sampling: float
    scoring: float
    logged: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that were sampled."""
        return sum(len(one.ids) for rollout in self.rollouts for one in rollout.completions)


def draw(
    sampler: Sampler,
    engine: Engine,
    prompts: Sequence[Prompt],
    n: int,
    *,
    seed: int,
    step: int | None,
    state: Mapping[str, float] | None = None,
    repeats: Sequence[int] | None = None,
) -> Groups:
    """Sample a group for each prompt, and score each as soon as it is there.

    Args:
        sampler: As it samples now.
        engine: The rewards.
        prompts: May hold the same one several times.
        n: Completions of each.
        seed: Of this step.
        step: What the rewards are told.
        state: What those with TRL's contract are told besides (`TrlLog`).
        repeats: For each prompt, how often it was drawn before in this step, in any process (`repeats_of`); None: these
            are all prompts of the step.

    Raises:
        ContractError: A reward gave another number of values than there are completions.
    """
    places: list[int] = []
    rollouts: list[Rollout] = []
    repeats = repeats_of(prompts) if repeats is None else repeats
    sampling, started = 0.0, time.perf_counter()
    stream, ids = sampler.sample(prompts, n, seed=seed), wants_ids(engine)

    def arriving() -> Iterator[Generation]:
        nonlocal sampling
        while True:
            before = time.perf_counter()
            found = next(stream, None)
            sampling += time.perf_counter() - before
            if found is None:
                return
            places.append(found[0])
            rollouts.append(found[1])
            yield as_generation(found[1].prompt.sample, found[1].completions, step, ids=ids, repeat=repeats[found[0]])

    with TrlLog(state) as log:
        try:
            # Not `score`: it would look at the first 32 groups before it scores one. Columns were checked at the start.
            scored = list(engine.score_unchecked(arriving()))
        finally:
            with contextlib.suppress(AttributeError):  # an iterator that is no generator
                stream.close()  # type: ignore[attr-defined]
    scored = _with_columns(scored, log.columns)
    order = sorted(range(len(places)), key=places.__getitem__)
    whole = time.perf_counter() - started
    return Groups(
        tuple(rollouts[at] for at in order),
        tuple(scored[at] for at in order),
        sampling,
        max(0.0, whole - sampling),
        log.metrics,
    )


def repeats_of(prompts: Sequence[Prompt]) -> list[int]:
    """Return for each prompt how often its task stands before it, by id, prompt and reference."""
    seen: dict[int, int] = {}
    found = []
    for prompt in prompts:
        task = group_key(None, prompt.sample.id, None, prompt.sample.prompt, prompt.sample.reference)
        found.append(seen.get(task, 0))
        seen[task] = found[-1] + 1
    return found


def trl_state(config: GRPOConfig, prompts: int, processes: int, epoch: float) -> dict[str, float]:
    """Return what rewards with TRL's contract are told of the run besides the step, as transformers counts it.

    Args:
        config: The settings.
        prompts: How many there are to draw from.
        processes: How many train.
        epoch: How often each prompt was drawn, the groups in hand counted.
    """
    steps, epochs = config.steps(prompts, processes), config.num_train_epochs
    if config.max_steps is not None:
        batches = math.ceil(steps / config.num_iterations)
        epochs = batches * config.prompts_per_step * processes / prompts
    return {"max_steps": steps, "epoch": epoch, "num_train_epochs": math.ceil(epochs)}


def _with_columns(scored: list[Scored], columns: Mapping[int, Mapping[str, Sequence[Any]]]) -> list[Scored]:
    """Return groups whose completions have what a reward gave to TRL's `log_extra`.

    Raises:
        ContractError: It gave another number of values than there are completions.
    """
    return [_with_values(one, columns.get(one.generation.key, {})) for one in scored]


def _with_values(scored: Scored, columns: Mapping[str, Sequence[Any]]) -> Scored:
    generation = scored.generation
    count = len(generation.completions)
    for name, values in columns.items():
        if len(values) != count:
            raise ContractError(
                f"log_extra({name!r}, ...) was given {len(values)} values for a group of {count};"
                " give one for each completion"
            )
    if not columns:
        return scored
    completions = tuple(
        msgspec.structs.replace(
            one, metadata={**one.metadata, **{name: values[at] for name, values in columns.items()}}
        )
        for at, one in enumerate(generation.completions)
    )
    return Scored(msgspec.structs.replace(generation, completions=completions), scored.scores)


@dataclass
class Missing:
    """How often a reward gave no value, and the first reasons.

    Attributes:
        completions: All that it saw.
        failed: Of them, those on which it failed.
        abstained: Those that it did not score (it returned None, or a column is missing).
        why_failed, why_abstained: The first reason of each.
    """

    completions: int = 0
    failed: int = 0
    abstained: int = 0
    why_failed: str = ""
    why_abstained: str = ""

    def add(self, scores: Sequence[Score]) -> None:
        """Take in the scores of more completions."""
        self.completions += len(scores)
        for score in scores:
            if score.state == "error":
                self.failed += 1
                self.why_failed = self.why_failed or score.why
            elif score.state == "abstained":
                self.abstained += 1
                self.why_abstained = self.why_abstained or score.why


@dataclass(frozen=True, eq=False)
class Judged:
    """The groups of all processes, compared.

    Attributes:
        scored: All groups, those of the first process first.
        advantages: One number a completion, in the same order; groups are numbered in it.
        first: The place of this process's first completion.
        prompt_tokens: Tokens of the prompts, once for each completion; over all processes.
        logged: Means of what reward functions gave to TRL's `log_metric`, over all processes.
    """

    scored: tuple[Scored, ...]
    advantages: Advantages
    first: int
    prompt_tokens: int
    logged: Mapping[str, float] = field(default_factory=dict)

    @property
    def totals(self) -> list[list[Score]]:
        """The scores that train, by group."""
        return [group.scores[TOTAL] for group in self.scored]

    @property
    def completions(self) -> int:
        """How many there are."""
        return sum(map(len, self.totals))

    @property
    def errors(self) -> int:
        """Completions whose reward failed."""
        return sum(score.state == "error" for group in self.totals for score in group)

    @property
    def live(self) -> int:
        """Groups that teach something."""
        return self.advantages.groups - len(self.advantages.dead)

    def by_group(self) -> list[list[float]]:
        """Return the advantages of each group."""
        values: list[float] = self.advantages.values.tolist()
        found, at = [], 0
        for group in self.totals:
            found.append(values[at : at + len(group)])
            at += len(group)
        return found


def judge(groups: Groups, config: GRPOConfig, world: World) -> Judged:
    """Compare the completions of each group; methods that look at the whole batch see that of all processes."""
    parts = world.gather(groups.scored)
    scored = tuple(group for part in parts for group in part)
    scores = [score for group in scored for score in group.scores[TOTAL]]
    ids = [number for number, group in enumerate(scored) for _ in group.scores[TOTAL]]
    rewards, weights = _rewards(scores, config.advantage_method)
    found = advantages(
        rewards=rewards, groups=ids, method=config.advantage_method, weights=weights, k=config.advantage_k
    )
    first = sum(len(group.scores[TOTAL]) for part in parts[: world.rank] for group in part)
    prompts = sum(len(rollout.prompt.ids) * len(rollout.completions) for rollout in groups.rollouts)
    logged: dict[str, list[float]] = {}
    for part in world.gather(groups.logged):
        for name, values in part.items():
            logged.setdefault(name, []).extend(values)
    means = {name: math.fsum(values) / len(values) for name, values in logged.items()}
    return Judged(scored, found, first, int(world.sums([prompts])[0]), means)


def _rewards(scores: Sequence[Score], method: str) -> tuple[list[float | None], list[float] | None]:
    """Return the rewards; for "gdpo", which normalises each component, those of a sum with their weights."""
    weights: list[float] = []
    if method == "gdpo":
        known = next((score for score in scores if score.value is not None and score.parts), None)
        weights = [part.weight or 0.0 for part in known.parts] if known is not None else []
    if not weights or any(score.value is not None and len(score.parts) != len(weights) for score in scores):
        return [score.value for score in scores], None
    kept = [at for at, weight in enumerate(weights) if weight]
    rows = [[score.parts[at].value if score.value is not None else None for at in kept] for score in scores]
    return rows, [weights[at] for at in kept]  # type: ignore[return-value]  # `advantages` takes rows, too


def rows_of(groups: Groups, judged: Judged, config: GRPOConfig) -> list[Row]:
    """Return the rows of this process, in the order of its completions."""
    rows = []
    values, active = judged.advantages.values.tolist(), judged.advantages.active.tolist()
    at = judged.first
    for rollout in groups.rollouts:
        for one in rollout.completions:
            cut = config.mask_truncated_completions and one.finish_reason == "length"
            rows.append(
                Row(
                    prompt_ids=rollout.prompt.ids,
                    completion_ids=one.ids,
                    advantage=values[at],
                    rollout_logps=one.logps,
                    counted=bool(active[at]) and not cut,
                )
            )
            at += 1
    return rows


def reward_metrics(judged: Judged, rewards: Mapping[str, Reward] | None = None) -> dict[str, float]:
    """Return what the rewards of a step say, by TRL's names.

    Args:
        judged: The groups.
        rewards: For the name of a total that has no components.
    """
    values = [[score.value for score in group] for group in judged.totals]
    seen = group_diagnostics(values)
    every = moments(value for group in values for value in group if value is not None)
    count = max(1, judged.completions)
    found = {
        "reward": math.nan if every is None else every.mean,
        "reward_std": math.nan if every is None or every.std is None else every.std,
        "groups/reward_std": math.nan if seen.std_within_groups is None else seen.std_within_groups,
        "frac_reward_zero_std": judged.advantages.dead_share,
        "groups/all": float(judged.advantages.groups),
        "groups/live": float(judged.live),
        "rewards/error_share": judged.errors / count,
        "rewards/unscored_share": seen.unscored / count,
    }
    for why, number in judged.advantages.why_dead().items():
        found[f"groups/dead/{why}"] = float(number)
    columns = _components(judged, rewards or {})
    for name, missing in missing_of(judged.scored).items():
        if name != TOTAL:
            label = f"{name} (metric)" if f"{name} (metric)" in columns else name
            found[f"rewards/{label}/error_share"] = missing.failed / count
    for name, column in columns.items():
        known = moments(column)
        if known is not None:
            found[f"rewards/{name}/mean"] = known.mean
            found[f"rewards/{name}/std"] = known.std or 0.0
    tally = [multiplicities(value for value in group if value is not None) for group in values]
    for size in _SIZES:
        share = expected_dead_share(tally, size)
        if share is not None:
            found[f"groups/expected_dead/{size}"] = share
    found |= _lengths(judged)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def missing_of(groups: Sequence[Scored]) -> dict[str, Missing]:
    """Return, for each reward, how often it gave no value in these groups."""
    found: dict[str, Missing] = {}
    for group in groups:
        for name, scores in group.scores.items():
            found.setdefault(name, Missing()).add(scores)
    return found


def _components(judged: Judged, rewards: Mapping[str, Reward]) -> dict[str, list[float]]:
    """Return the values of each component of the total, and of each metric.

    A metric that is called like a component is told apart from it: "NAME (metric)".
    """
    whole = rewards[TOTAL].label if TOTAL in rewards else TOTAL
    parts: dict[str, list[float]] = {}
    metrics: dict[str, list[float]] = {}
    for group in judged.scored:
        for score in group.scores[TOTAL]:
            for name, part in [(part.name, part) for part in score.parts] or [(whole, score)]:
                if part.value is not None:
                    parts.setdefault(name, []).append(part.value)
        for name, scores in group.scores.items():
            if name != TOTAL:
                metrics.setdefault(name, []).extend(score.value for score in scores if score.value is not None)
    return {**{f"{name} (metric)" if name in parts else name: found for name, found in metrics.items()}, **parts}


def _lengths(judged: Judged) -> dict[str, float]:
    every = [one for group in judged.scored for one in group.generation.completions]
    if not every:
        return {}
    ended = [one.tokens or 0 for one in every if one.finish_reason != "length"]
    found = {"completions/clipped_ratio": 1.0 - len(ended) / len(every)}
    if ended:
        found["completions/mean_terminated_length"] = sum(ended) / len(ended)
        found["completions/min_terminated_length"] = min(ended)
        found["completions/max_terminated_length"] = max(ended)
    return found
