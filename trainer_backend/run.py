"""One run, from where it stands to its end: measure held-out prompts, step by step, measure again, say what came of it.

    step = sample groups, score them meanwhile -> advantages -> rows -> update -> log -> now and then a checkpoint

`train` opens what a run needs; `Run.run` is its whole life.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import resource
import sys
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from rewardkit.display import visible
from rewardkit.engine import Engine, Scored
from rewardkit.errors import RewardkitError, RunFolderError
from rewardkit.records.text import path_text
from rewardkit.report.text import percent, three
from rewardkit.reward import TrlLog
from rewardkit.training import TrainOptions
from trainer_backend import checkpoint, evaluate, groups, setup
from trainer_backend import plan as planning
from trainer_backend.batch import Row, with_old_logps
from trainer_backend.checkpoint import Checkpoint, Progress, RandomState, random_state
from trainer_backend.config import GRPOConfig
from trainer_backend.data import PromptOrder
from trainer_backend.errors import NotFinite
from trainer_backend.evaluate import Change, HeldOut, Learning
from trainer_backend.groups import TOTAL, Groups, Judged, Missing
from trainer_backend.interrupts import Interrupts
from trainer_backend.live import Example, Live
from trainer_backend.model import adapter
from trainer_backend.model.forward import Dense
from trainer_backend.optim import build_optimizer, build_scheduler
from trainer_backend.parallel import World
from trainer_backend.rollout.agreement import FEWEST, compare
from trainer_backend.runlog import RunLog
from trainer_backend.setup import Job, Ready
from trainer_backend.step import StepResult, score, update

Callback: TypeAlias = Callable[[int, Mapping[str, float]], object]
"""Called after each step with its number and its metrics; when it returns True, the run ends after this step."""

Ended: TypeAlias = Literal["done", "interrupted", "reward failed", "not finite"]

_CODES: Mapping[Ended, int] = {"done": 0, "interrupted": 130, "reward failed": 3, "not finite": 3}
_ADAPTER = "adapter"  # in the run's folder
_ENOUGH = 100  # completions over which the share of failed rewards is taken
_EARLY = "the run ended early, so the held-out prompts were not measured again"
_OTHERS = "these are not the ones that were measured before the first step, so before and after cannot be compared"


class OutOfMemory(RewardkitError):
    """The device ran out of memory; the message has settings that would fit."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a run.

    Attributes:
        ended: How: "done", "interrupted" (resume goes on), "reward failed", "not finite".
        exit_code: What `rewardkit train` returns for it.
        run: The run's folder.
        adapter: The folder of the saved adapter; None for an interrupted run, and where it could not be written.
        steps: Steps taken, over all resumes.
        learning: Whether anything was learned.
        change: The held-out prompts, before against after; None where there were none, or the run ended early.
        metrics: Of the last step.
        text: All of it in words.
    """

    ended: Ended
    exit_code: int
    run: Path
    adapter: Path | None
    steps: int
    learning: Learning
    change: Change | None
    metrics: Mapping[str, float]
    text: str


def made_with(saved: Checkpoint | None) -> Mapping[str, Any]:
    """Return settings and data that a checkpoint was written with; empty where it does not say."""
    return {} if saved is None else saved.progress.extra.get("made_with") or {}


@dataclass
class _Counted:
    """What is counted over the whole run, resumes included; saved with each checkpoint."""

    groups: float = 0
    live: float = 0
    completions: float = 0
    unscored: float = 0
    errors: float = 0
    skipped: float = 0
    skipped_in_a_row: float = 0
    tokens: float = 0
    seconds: float = 0.0


@dataclass
class Run:
    """One run. `run` is its whole life."""

    job: Job
    options: TrainOptions
    engine: Engine
    world: World
    folder: Path
    log: RunLog | None
    encoded: setup.Encoded
    ready: Ready
    steps: int
    live: Live
    callbacks: Sequence[Callback]
    saved: Checkpoint | None
    notes: Sequence[str]
    step: int = 0
    counted: _Counted = field(default_factory=_Counted)
    before: HeldOut | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)  # by reward
    not_compared: str = ""  # why held-out prompts say nothing of what changed
    why: str = ""
    stopped: bool = False
    diverged: bool = False  # the model gives NaN or infinity, so its present state is not saved
    moved: bool = False  # the adapter, since the sampler was told
    compared: bool = False  # the plan's memory, with what a step took
    usual: float | None = None  # what a sampler with other base weights differed by before the first update
    saved_step: int | None = None
    position: int | None = None  # in the data, before the groups in hand were drawn; None: they were trained on
    in_hand: Judged | None = None  # groups that are not written yet
    whole: bool = True  # weights, number of steps and log belong together
    recent: deque[tuple[int, int]] = field(default_factory=deque)  # rewards that failed, completions; of the last steps

    def __post_init__(self) -> None:
        config = self.config
        self.optimizer = build_optimizer(
            config.optim,
            self.ready.loaded.model.parameters(),
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.adam_beta1, config.adam_beta2),
            epsilon=config.adam_epsilon,
            on_host=self.ready.store is not None and self.ready.loaded.device.type == "cuda",  # as it was planned
        )
        self.optimizer.register_step_pre_hook(self._torn)
        self.scheduler = build_scheduler(
            config.lr_scheduler_type,
            self.optimizer,
            steps=self.steps,
            warmup_steps=min(config.warmup_steps, self.steps),
        )
        self.order = PromptOrder(len(self.encoded.prompts), config.seed, config.shuffle_dataset)
        self.started = time.monotonic()

    def _torn(self, *step: Any) -> None:
        """Called when the optimizer begins to change weights; `_tell` makes the state whole again."""
        self.whole = False

    @property
    def config(self) -> GRPOConfig:
        """The settings."""
        return self.job.config

    def run(self) -> Outcome:
        """Train from where the run stands to its end."""
        self._restore()
        interrupts = Interrupts(self.live.note)
        with interrupts.watched(), self.live:
            self._begin()
            for note in self.notes:
                self._note(note)
            if self.saved is None:
                self.before = self._measure("before")
            if self._nothing_works():
                return self._end("reward failed", None, None)
            try:
                with interrupts.patient():
                    ended = self._loop(interrupts)
            except Exception:
                self._rescue()
                raise
            if not self.diverged and self._unsound():
                ended = self._diverge()
            self._save()
            place = self._save_adapter() if ended != "interrupted" and not self.diverged else None
            change = None
            try:
                change = self._compared() if ended == "done" else None
            except NotFinite:  # some prompts show it, and not the one that was tried
                ended = self._diverge()
        return self._end(ended, change, place)

    # ------------------------------------------------------------------------------------------------------ the start

    def _restore(self) -> None:
        """Go on where the checkpoint was written; the adapter is in the model already."""
        if self.saved is None:
            _seed_all(self.config.seed + self.world.rank)
            return
        progress = self.saved.progress
        kept = self._optimizer_of_before() in ("", self.config.optim)
        self.saved.restore(self.optimizer if kept else None, self.scheduler, rank=self.world.rank)
        if not kept:
            self.notes = (*self.notes, f"grpo.optim is now {self.config.optim}, which starts without moments")
        self.step = self.saved.step
        self.order = PromptOrder(
            self.order.count, self.order.seed, self.order.shuffle, position=int(progress.data["position"])
        )
        self.counted = _Counted(**progress.counters)
        self.before = self._measured_before(progress.extra.get("before"))
        self.metrics = dict(progress.extra.get("metrics") or {})
        self.missing = {name: Missing(**values) for name, values in (progress.extra.get("missing") or {}).items()}
        self.usual = progress.extra.get("usual")
        self.saved_step = self.step
        self.ready.sampler.update(self.step)

    def _optimizer_of_before(self) -> str:
        """Return the name of the optimizer whose state the checkpoint holds; "" where it does not say."""
        then = tomllib.loads(made_with(self.saved).get("settings", ""))
        return str(then.get("grpo", {}).get("optim", ""))

    def _measured_before(self, data: Mapping[str, Any] | None) -> HeldOut | None:
        """Return what the held-out prompts gave before the first step; None where that were other prompts, or none.

        It cannot be measured any more: the model was trained since.
        """
        found = HeldOut.from_dict(data) if data is not None else None
        asked = tuple(prompt.sample.id for prompt in self.encoded.held_out)
        rows = made_with(self.saved).get("rows", {}).get("data.eval")
        same = found is not None and found.ids == asked and rows in (None, self.job.rows.get("data.eval"))
        if asked and not same:
            self.notes, self.not_compared = (*self.notes, f"held-out prompts: {_OTHERS}"), _OTHERS
            return None
        return found

    def _begin(self) -> None:
        if self.log is None:
            return
        offsets = None
        if self.saved is not None:
            checkpoint.discard_after(self.folder, self.step)
            offsets = {name: int(value) for name, value in self.saved.progress.extra["offsets"].items()}
        loaded, room = self.ready.loaded, self.ready.room
        self.log.begin(
            offsets=offsets,
            environment={
                "model": loaded.name,
                "parameters": loaded.parameters,
                "trainable": loaded.trainable,
                "dtype": str(loaded.dtype).removeprefix("torch."),
                "device": str(loaded.device),
                "sampler": self.ready.sampler.name,
                "processes": self.world.size,
                "plan": room.plan.sentence() if room is not None else None,
                "head": loaded.head.reason if isinstance(loaded.head, Dense) else "linear",
                "streamed": self.ready.streamed,
            },
            step=self.step,
            steps=self.steps,
        )
        self.log.open_sinks(self.config.report_to, self.live.note)
        if room is not None:
            self._note(f"memory: {room.plan.sentence()}")
        if self.saved is not None:
            self._note(f"resumed after step {self.step}")

    def _note(self, text: str) -> None:
        self.live.note(text)
        if self.log is not None:
            self.log.log("note", text=text)

    # ------------------------------------------------------------------------------------------------------- the loop

    def _loop(self, interrupts: Interrupts) -> Ended:
        """Take steps until there are none left, or something ends the run."""
        while self.step < self.steps and not self.stopped:
            if self._anywhere(interrupts.asked):
                return "interrupted"
            began = time.perf_counter()
            done = self.step
            found = self._draw()
            if found is None:
                return self._diverge()
            drawn, judged = found
            self.in_hand = judged
            why = self._too_many_errors(judged)
            if why:
                self.why = why
                self._rescue(all_processes=True)
                self._count_groups(judged)
                self.metrics = {**self.metrics, **groups.reward_metrics(judged, self.job.rewards)}
                return "reward failed"
            rows = groups.rows_of(drawn, judged, self.config)
            for iteration in range(min(self.config.num_iterations, self.steps - self.step)):
                first = iteration == 0
                own = None
                if first and self._checks():
                    self._look_at_adapter()
                    own = self._own_logps(rows)
                result = self._update(rows)
                self._count(result, judged if first else None)
                metrics = self._metrics(result, drawn, judged, began, fresh=first)
                if own is not None and not result.skipped:
                    metrics |= self._agreement(drawn, rows, own)
                self._tell(metrics, judged if first else None)
                self._compare_with_plan(metrics)
                if self.counted.skipped_in_a_row >= self.config.max_nan_steps:
                    self.why = (
                        f"the gradient was not finite in {int(self.counted.skipped_in_a_row)} steps in a row"
                        " (grpo.max_nan_steps); each was left out. A lower learning_rate, or dtype float32, may help"
                    )
                    return "not finite"
                if result.skipped:  # there may be no old log-probs, and the next update would fail as this one did
                    break
                if first and self.config.num_iterations > 1:
                    rows = with_old_logps(rows, result.logps)
                began = time.perf_counter()
            if self.step // self.config.save_steps > done // self.config.save_steps and self.step < self.steps:
                if self._unsound():
                    return self._diverge()
                self._save()
        return "done"

    def _unsound(self, *, forward: bool = True) -> bool:
        """Whether nothing can be sampled from the model any more: a checkpoint of it would be of no use.

        Args:
            forward: Look at the log-probs of one token, too; else only at the weights.
        """
        policy, prompt = self.ready.policy, self.encoded.prompts[0]
        bad = not all(bool(torch.isfinite(weight).all()) for weight in policy.trained)
        if forward and not bad:
            row = Row(prompt_ids=prompt.ids, completion_ids=prompt.ids[-1:], advantage=1.0)
            logps = score(policy, [row], self.ready.settings)[0]
            bad = logps is not None and not bool(torch.isfinite(logps).all())
        return self._anywhere(bad)

    def _diverge(self) -> Ended:
        """End the run because the model gives no finite numbers any more; the checkpoints before it stay."""
        self.diverged = True
        rate = f"{self.config.learning_rate:g}"
        kept = "there is no checkpoint from before, so start again with a lower one"
        if self.saved_step is not None:
            kept = (
                f"checkpoint {self.saved_step} is kept; go on from it with {self._resume} --set"
                " grpo.learning_rate=RATE --allow-change"
            )
        first = self.saved.step if self.saved is not None else 0
        self.why = (
            f"the model's logits are not finite since step {self.step}; lower grpo.learning_rate ({rate}): {kept}"
            if self.step > first
            else "the model's logits are not finite before a step was taken: its weights are broken, or too large for"
            f" {str(self.ready.loaded.dtype).removeprefix('torch.')} (model.dtype)"
        )
        return "not finite"

    def _compare_with_plan(self, metrics: Mapping[str, float]) -> None:
        """Write down what the first step took beside what was planned; say it where a GPU's plan was too small."""
        room = self.ready.room
        if self.compared or room is None:
            return
        self.compared = True
        took = metrics["memory/peak_gb"]
        if room.plan.device == "cuda":
            # What is not torch's: the context, which was there when the plan was made, and what vLLM has beside it. A
            # key-value cache that is given up counts as torch's, and is not in use.
            free, device = torch.cuda.mem_get_info(self.world.device)[0], self.world.device
            beside = room.free - free - torch.cuda.memory_reserved(device) + planning.RUNTIME["cuda"]
            took += beside / planning.GB
        planned = room.plan.device_peak / planning.GB
        if self.log is not None:
            self.log.log("memory", step=self.step, peak_gb=took, planned_gb=planned)
        if room.plan.device == "cuda" and took > planned:
            self._note(
                f"memory: step {self.step} took {took:.1f} GB, more than the {planned:.1f} that were planned; if a"
                " later one runs out, lower memory.fit_in by the difference"
            )

    def _anywhere(self, asked: bool) -> bool:
        """Whether any process was asked to end: all end together."""
        return self.world.highest([float(asked)])[0] > 0

    def _draw(self) -> tuple[Groups, Judged] | None:
        """Sample and score the groups of the next step; None where the model gives nothing to sample from."""
        config, world = self.config, self.world
        self.position = self.order.position
        taken = [self.encoded.prompts[at] for at in self.order.take(config.prompts_per_step * world.size)]
        prompts, repeats = world.share(taken), world.share(groups.repeats_of(taken))
        seed = _seed(config.seed, self.step + 1, world.rank)
        self._refresh()
        drawn = None
        with contextlib.suppress(NotFinite):
            drawn = groups.draw(
                self.ready.sampler,
                self.engine,
                prompts,
                config.num_generations,
                seed=seed,
                step=self.step + 1,
                state=self._state(self._epoch),
                repeats=repeats,
            )
        if self._anywhere(drawn is None) or drawn is None:
            return None
        return drawn, groups.judge(drawn, config, world)

    @property
    def _epoch(self) -> float:
        """How often each prompt was drawn, the groups in hand counted."""
        return self.order.position / self.order.count

    def _state(self, epoch: float) -> dict[str, float]:
        return groups.trl_state(self.config, self.order.count, self.world.size, epoch)

    def _update(self, rows: Sequence[Row]) -> StepResult:
        """Take one optimizer step."""
        ready = self.ready
        result = update(ready.policy, rows, self.optimizer, self.scheduler, ready.settings, self.world)
        self.whole, self.position = False, None
        self.step += 1
        self.moved = self.moved or result.moved
        return result

    def _refresh(self) -> None:
        """Have the newest adapter sample; once before sampling, since handing it over takes time."""
        if self.moved:
            self.ready.sampler.update(self.step)
            self.moved = False

    def _checks(self) -> bool:
        """Whether the sampler is checked with the groups in hand: one of their updates has a number that is due."""
        every = self.config.check_logps_every
        if not every or self.config.reshaping:
            return False
        if self.ready.sampler.differs and self.usual is None:
            return True
        return self.step == 0 or (self.step + self.config.num_iterations) // every > self.step // every

    def _look_at_adapter(self) -> None:
        """Say so where the sampler does not hold the adapter as it is now, also where log-probs would not show it."""
        sampler = self.ready.sampler
        if not sampler.current():
            self._note(
                f"{sampler.name} does not sample from adapter {self.step}: it holds another than the trainer has now"
            )

    def _own_logps(self, rows: Sequence[Row]) -> list[torch.Tensor | None]:
        """Return the trainer's log-probs of what was sampled, by the policy that samples: an update has dropout."""
        return score(self.ready.policy, rows, self.ready.settings)

    def _agreement(self, drawn: Groups, rows: Sequence[Row], own: Sequence[torch.Tensor | None]) -> dict[str, float]:
        """Compare the sampler's log-probs with the trainer's from before this step: the same weights made both."""
        known = [(row, mine) for row, mine in zip(rows, own, strict=True) if mine is not None]
        if not known:
            return {}
        width = max(row.length for row, _ in known)
        mask = torch.zeros(len(known), width, dtype=torch.bool)
        theirs, mine = torch.zeros(len(known), width, dtype=torch.float64), torch.zeros_like(mask, dtype=torch.float64)
        for at, (row, logps) in enumerate(known):
            mask[at, : row.length] = True
            theirs[at, : row.length] = torch.as_tensor(row.rollout_logps, dtype=torch.float64)
            mine[at, : row.length] = logps.double()
        found = compare(theirs, mine, mask)
        dtype, sampler = self.ready.loaded.dtype, self.ready.sampler.name
        first = bool(self.ready.sampler.differs) and self.usual is None and found.tokens >= FEWEST
        if first:
            self.usual = found.mean_abs
        usual = self.usual or 0.0
        text = found.sentence(sampler, drawn.rollouts[0].version, dtype, usual)
        if first or found.stale(dtype, usual):
            self._note(text)
        elif self.log is not None:
            self.log.log("agreement", step=self.step, text=text)
        return {"sampling/agreement/mean": found.mean_abs, "sampling/agreement/max": found.max_abs}

    # ------------------------------------------------------------------------------------------------- what was seen

    def _count(self, result: StepResult, judged: Judged | None) -> None:
        counted = self.counted
        counted.skipped += result.skipped
        counted.skipped_in_a_row = counted.skipped_in_a_row + 1 if result.skipped else 0
        if judged is None:  # a further update on the same groups
            return
        self._count_groups(judged)

    def _count_groups(self, judged: Judged) -> None:
        counted = self.counted
        counted.groups += judged.advantages.groups
        counted.live += judged.live
        counted.completions += judged.completions
        counted.errors += judged.errors
        for group in judged.scored:
            for name, scores in group.scores.items():
                self.missing.setdefault(name, Missing()).add(scores)
        counted.unscored = self.missing[TOTAL].abstained if TOTAL in self.missing else 0
        counted.tokens += judged.prompt_tokens + _sampled_tokens(judged)

    def _metrics(
        self, result: StepResult, drawn: Groups, judged: Judged, began: float, *, fresh: bool
    ) -> dict[str, float]:
        whole = time.perf_counter() - began
        sampling, scoring = (drawn.sampling, drawn.scoring) if fresh else (0.0, 0.0)
        tokens = _sampled_tokens(judged)
        return {
            **judged.logged,  # first: a name of the user's hides none of ours
            **groups.reward_metrics(judged, self.job.rewards),
            **result.metrics,
            "skipped": float(result.skipped),
            "epoch": self._epoch,
            "num_tokens": self.counted.tokens,
            "time/step": whole,
            "time/sample": sampling,
            "time/reward": scoring,
            "time/update": whole - sampling - scoring,
            "speed/tokens_per_second": tokens / whole if fresh else 0.0,
            **_memory(self.world.device),
        }

    def _tell(self, metrics: dict[str, float], judged: Judged | None) -> None:
        """Write the step down, show it, and let callbacks see it."""
        self.metrics = metrics
        scored = judged.scored if judged is not None else ()
        if self.log is not None:
            line = metrics if self.step % self.config.logging_steps == 0 or self.step == self.steps else {}
            self.log.step(self.step, line, scored, judged.by_group() if judged is not None else ())
        self.whole, self.in_hand = True, None
        self.live.step(self.step, metrics, _example(self.step, judged))
        for callback in self.callbacks:
            self.stopped = callback(self.step, metrics) is True or self.stopped
        self.stopped = self._anywhere(self.stopped) if self.callbacks else self.stopped

    def _too_many_errors(self, judged: Judged) -> str:
        """Say that rewards fail too often; "" where they do not.

        The share is over the newest steps that have 100 completions together, and over 100 where there are fewer: one
        failure among eight completions is no reason to end a long run.
        """
        recent, bar = self.recent, self.config.max_error_share
        recent.append((judged.errors, judged.completions))
        while sum(count for _, count in recent) - recent[0][1] >= _ENOUGH:
            recent.popleft()
        errors, count = (sum(numbers) for numbers in zip(*recent, strict=True))
        if not judged.errors or errors <= bar * max(count, _ENOUGH):
            return ""
        first = next(score for group in judged.totals for score in group if score.state == "error")
        return (
            f"the reward failed on {errors:,} of the last {count:,} completions, at step {self.step + 1}: more than"
            f" grpo.max_error_share, {percent(bar)} of {max(count, _ENOUGH):,}; the first of this step:"
            f" {visible(first.why, 500)}"
        )

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        """Write a checkpoint of the present step, unless there is one. A full disk is said, and the run goes on."""
        if self.saved_step == self.step or self.diverged:
            return
        states: list[RandomState] = self.world.gather(random_state())
        if self.world.from_first(self.log is not None and self._write_checkpoint(states)):
            self.saved_step = self.step

    def _rescue(self, *, all_processes: bool = False) -> None:
        """Keep what is good when something ends the run: the steps that were taken, and the groups in hand.

        A resumed run draws these again, and its log is cut back to where the checkpoint was written.

        Args:
            all_processes: All of them are here; else another one may be waiting elsewhere, and nothing can be saved
                unless there is only one.
        """
        if not self.whole or not (all_processes or self.world.size == 1):
            return
        with contextlib.suppress(Exception):  # what has ended the run is told, and not what follows from it
            self.diverged = self.diverged or self._unsound(forward=False)
            self._save()
            if self.in_hand is not None and self.log is not None:
                self.log.step(self.step + 1, {}, self.in_hand.scored, self.in_hand.by_group())
            if self.saved_step == self.step and not all_processes:
                self._note(f"step {self.step} is saved; go on with {self._resume}")

    def _save_adapter(self) -> Path | None:
        """Write the adapter into the run's folder and return where; a full disk is said, and the run goes on."""
        place = self.folder / _ADAPTER
        problem = ""
        if self.log is not None:
            try:
                checkpoint.save_folder(place, lambda new: adapter.save_adapter(self.ready.loaded.model, new))
            except checkpoint.CheckpointError as error:
                problem = f"{error}. Make room, and {self._resume} writes it"
        problem = self.world.from_first(problem)
        if problem:
            self.why = f"{self.why}; {problem}" if self.why else problem
            return None
        return place

    @property
    def _resume(self) -> str:
        return f"rewardkit train --resume {path_text(self.folder)}"

    def _write_checkpoint(self, states: list[RandomState]) -> bool:
        """Write the checkpoint; return whether that was possible."""
        assert self.log is not None
        counted = dataclasses.replace(self.counted, seconds=self.counted.seconds + time.monotonic() - self.started)
        try:
            progress = Progress(
                data={"position": self.order.position if self.position is None else self.position},
                counters=dataclasses.asdict(counted),
                extra={
                    "offsets": self.log.offsets(),
                    "before": None if self.before is None else self.before.to_dict(),
                    "metrics": self.metrics,
                    "usual": self.usual,
                    "missing": {name: dataclasses.asdict(one) for name, one in self.missing.items()},
                    "made_with": self.log.made_with,
                },
            )
            place = checkpoint.save(
                self.folder,
                self.step,
                save_adapter=lambda folder: adapter.save_adapter(self.ready.loaded.model, folder),
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                progress=progress,
                random_states=states,
                keep=self.config.save_total_limit,
            )
        except RunFolderError as problem:
            self._note(str(problem))
            return False
        self.log.log("checkpoint", step=self.step, path=path_text(place))
        return True

    # ---------------------------------------------------------------------------------------------- held-out prompts

    def _measure(self, name: str) -> HeldOut | None:
        """Sample the held-out prompts, each process its share; the first one writes them."""
        if not self.encoded.held_out:
            return None
        self._refresh()
        self._note(
            f"held-out prompts, {name}: {len(self.encoded.held_out):,}, one greedy completion and"
            f" {self.config.eval_samples} sampled of each"
        )
        with TrlLog(self._state(0.0)):  # before and after alike, as the step, which is 0
            found = evaluate.held_out(
                self.ready.sampler, self.engine, self.encoded.held_out, self.config.eval_samples,
                reward=TOTAL, seed=self.config.seed, world=self.world,
            )  # fmt: skip
        if self.world.first:
            try:
                evaluate.write_held_out(self.folder, name, found)
            except OSError as problem:
                self._note(f"the completions of held-out prompts, {name}, cannot be written: {problem.strerror}")
        self._note(_held_out_text(found, name))
        self.world.wait()
        return found

    def _nothing_works(self) -> bool:
        """Whether the reward failed on every held-out completion before the first step, and that may end a run."""
        if self.saved is not None or self.before is None or self.config.max_error_share >= 1:
            return False
        found = [one.missing(TOTAL) for one in (self.before.greedy, self.before.sampled) if one is not None]
        count = sum(one.completions for one in found)
        if sum(one.failed for one in found) < count:
            return False
        first = visible(found[0].why_failed, 500)
        self.why = f"the reward failed on all {count:,} completions of the held-out prompts; the first: {first}"
        self.not_compared = "no held-out prompt was scored"
        return True

    def _compared(self) -> Change | None:
        after = self._measure("after")
        return evaluate.paired(self.before, after) if self.before is not None and after is not None else None

    # -------------------------------------------------------------------------------------------------------- the end

    def _end(self, ended: Ended, change: Change | None, place: Path | None) -> Outcome:
        """Write the summary, and put everything into words."""
        model = self.ready.loaded.model
        seconds = self.counted.seconds + time.monotonic() - self.started
        learning = Learning(
            steps=self.step,
            groups=int(self.counted.groups),
            live=int(self.counted.live),
            norm_of_change=adapter.norm_of_change(model, self.ready.start),
            skipped=int(self.counted.skipped),
            completions=int(self.counted.completions),
            unscored=int(self.counted.unscored),
            why_unscored=self.missing[TOTAL].why_abstained if TOTAL in self.missing else "",
            errors=self.counted.errors / self.counted.completions if self.counted.completions else 0.0,
        )
        code = _CODES[ended]
        if ended == "done" and self.options.require_learning and not learning.learned:
            code = 1
        if ended != "interrupted" and place is None and not self.diverged:
            code = code or checkpoint.CheckpointError.exit_code
        text = self._text(ended, change, learning, place, seconds)
        if self.log is not None:
            if ended != "interrupted":
                self._summary(
                    {
                        "ended": ended, "why": self.why or None, "exit_code": code, "steps": self.step,
                        "seconds": seconds, "learning": learning.to_dict(),
                        "held_out": None if change is None else change.to_dict(),
                        "adapter": None if place is None else _ADAPTER, "adapter_checksum": adapter.checksum(model),
                        "metrics": self.metrics,
                    }
                )  # fmt: skip
            self.log.log("end", ended=ended, step=self.step, why=self.why)
        self.world.wait()
        return Outcome(ended, code, self.folder, place, self.step, learning, change, self.metrics, text)

    def _summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json; where that cannot be done, what it holds is still said on the screen."""
        assert self.log is not None
        try:
            self.log.summary(values)
        except RunFolderError as problem:
            self._note(str(problem))

    def _text(self, ended: Ended, change: Change | None, learning: Learning, place: Path | None, seconds: float) -> str:
        if not self.world.first:
            return ""
        if ended == "interrupted":
            kept = "everything is saved"
            if self.saved_step != self.step:
                kept = "its checkpoint could not be written, and " + (
                    f"the newest is that of step {self.saved_step}" if self.saved_step is not None else "there is none"
                )
            return f"interrupted after step {self.step} of {self.steps}; {kept}. Go on with\n{self._resume}"
        closing = evaluate.closing_text(
            change=change,
            learning=learning,
            adapter=place,
            run=self.folder,
            seconds=seconds,
            metrics=self.metrics,
            file=self.job.file,
            not_compared=self.not_compared or (_EARLY if self.encoded.held_out and change is None else ""),
            missing={name: one for name, one in self.missing.items() if name != TOTAL},
        )
        return f"stopped   {self.why}\n{closing}" if self.why else closing

    # --------------------------------------------------------------------------------------------------------- faults

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a lack of memory into one sentence with settings that would fit; say how to go on after Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            if self.saved_step is not None and self.world.first:
                self._note(f"step {self.saved_step} is saved; go on with {self._resume}")
            raise
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as problem:
            room = self.ready.room
            if room is None or not _out_of_memory(problem):
                raise
            text = planning.out_of_memory(room.task, room.config, room.plan)
            saved = self.saved_step
            hint = (
                f". The checkpoint of step {saved} is kept: {self._resume} --allow-change" if saved is not None else ""
            )
            raise OutOfMemory(f"{text}{hint}") from problem


def _sampled_tokens(judged: Judged) -> int:
    return sum(one.tokens or 0 for group in judged.scored for one in group.generation.completions)


def _out_of_memory(problem: BaseException) -> bool:
    """Whether memory ran out; a CPU's allocator and vLLM's say so in a RuntimeError's words."""
    said = ("can't allocate memory", "out of memory")
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or any(words in str(problem) for words in said)


def _seed_all(seed: int) -> None:
    """Seed what a run may draw from beside its samples: dropout, and rewards that run in this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step's samples: the same after a resume, another for each step and process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:6], "big")


def _example(step: int, judged: Judged | None) -> Example | None:
    """Return a completion to show: the first one of a group that teaches something, or else of any."""
    if judged is None or not judged.scored:
        return None
    at = next((number for number in range(len(judged.scored)) if number not in judged.advantages.dead), 0)
    group: Scored = judged.scored[at]
    reference = group.generation.sample.reference
    return Example(
        f"{step}.{at}",
        group.generation.completions[0].text,
        group.scores[TOTAL][0].value,
        None if reference is None else str(reference),
    )


def _memory(device: torch.device) -> dict[str, float]:
    """Return the memory of the device in GB: of this process on a CPU. A GPU's peak is that since the last call."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return {"memory/used_gb": (total - free) / 1e9, "memory/peak_gb": peak / 1e9, "memory/total_gb": total / 1e9}
    factor = 1 if sys.platform == "darwin" else 1024
    return {"memory/peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 1e9}


def _figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e6 else three(value)


def _held_out_text(found: HeldOut, name: str) -> str:
    parts = [
        f"{how} {_figure(seen.mean)}"
        for how, seen in (("greedy", found.greedy), ("sampled", found.sampled))
        if seen and seen.mean is not None
    ]
    missing = found.greedy.missing(TOTAL)
    why = missing.why_failed or missing.why_abstained
    none = f"no prompt was scored{f'; the first: {visible(why, 300)}' if why else ''}"
    return f"held-out reward {name}: {', '.join(parts) or none}"
