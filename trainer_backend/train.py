"""The run, top to bottom: set up, measure held-out prompts, step by step, measure again, say what came of it.

    step = sample groups, score them meanwhile -> advantages -> rows -> update -> log -> now and then a checkpoint

`GRPOTrainer` is the door from Python, `run_file` the one from `rewardkit train`; behind both is `_Run`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

import numpy as np
import torch

from rewardkit.engine import Engine, Scored
from rewardkit.errors import RewardkitError, RunFolderError, UsageError
from rewardkit.records.text import path_text
from rewardkit.report.text import percent
from rewardkit.training import TrainOptions
from trainer_backend import check, checkpoint, evaluate, groups, setup
from trainer_backend import plan as planning
from trainer_backend.batch import Row, with_old_logps
from trainer_backend.checkpoint import Checkpoint, Progress, RandomState, random_state
from trainer_backend.config import GRPOConfig
from trainer_backend.data import PromptOrder, Prompts
from trainer_backend.evaluate import Change, HeldOut, Learning, Measured
from trainer_backend.groups import TOTAL, Groups, Judged
from trainer_backend.interrupts import Interrupts
from trainer_backend.live import Example, Live
from trainer_backend.model import adapter
from trainer_backend.model.forward import Dense
from trainer_backend.model.load import Loaded
from trainer_backend.optim import build_optimizer, build_scheduler
from trainer_backend.parallel import World
from trainer_backend.rollout.agreement import compare
from trainer_backend.runlog import RunLog, run_path
from trainer_backend.setup import Job, Ready, RewardFunctions
from trainer_backend.step import StepResult, update

Callback: TypeAlias = Callable[[int, Mapping[str, float]], object]
"""Called after each step with its number and its metrics; when it returns True, the run ends after this step."""

Ended: TypeAlias = Literal["done", "interrupted", "reward failed", "not finite"]

_CODES: Mapping[Ended, int] = {"done": 0, "interrupted": 130, "reward failed": 3, "not finite": 3}
_ADAPTER = "adapter"  # in the run's folder


class OutOfMemory(RewardkitError):
    """The device ran out of memory; the message has settings that would fit."""


# --------------------------------------------------------------------------------------------------------------- doors


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a run.

    Attributes:
        ended: How: "done", "interrupted" (resume goes on), "reward failed", "not finite".
        exit_code: What `rewardkit train` returns for it.
        run: The run's folder.
        adapter: The folder of the saved adapter; None for an interrupted run.
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


class GRPOTrainer:
    """Train a model with GRPO. The names are TRL's where the meaning is the same.

    Args:
        model: A folder, a hub name, "smollm2", or a model of transformers (or a PeftModel). None: `args.model`.
        reward_funcs: A reward, a function (called as TRL calls it where it has a parameter `completions`), a name or
            formula; a list of them, which are added up; a mapping of which `total` trains and the others are metrics.
            None: `args.reward`.
        args: The settings.
        train_dataset: A path, a list of dicts, or a `datasets.Dataset`. None: `args.train`.
        eval_dataset: The same, held out: sampled before and after. None: `args.eval`.
        processing_class: A tokenizer in place of the model's own.
        peft_config: A configuration of peft in place of the LoRA fields of `args`.
        callbacks: Functions `(step, metrics)`; one that returns True ends the run after that step.

    Raises:
        RewardkitError: Something is missing or wrong, in one sentence.
    """

    def __init__(
        self,
        model: Any = None,
        reward_funcs: RewardFunctions = None,
        args: GRPOConfig | None = None,
        train_dataset: Prompts | None = None,
        eval_dataset: Prompts | None = None,
        processing_class: Any = None,
        peft_config: Any = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.callbacks = tuple(callbacks or ())
        for one in self.callbacks:
            if not callable(one):
                raise UsageError(
                    f"a callback is a function of step and metrics, got a {type(one).__name__}; what TrainerCallback"
                    " does in on_log goes there"
                )
        self.job = setup.job_of(model, reward_funcs, args, train_dataset, eval_dataset, processing_class, peft_config)

    def train(
        self, resume: str | Path | bool | None = None, *, overwrite: bool = False, allow_change: bool = False
    ) -> Outcome:
        """Train, and return what came of it.

        Args:
            resume: The folder of a run to go on with; True: the one that these settings name.
            overwrite: Start again in a folder that has a run.
            allow_change: Resume although settings have changed.

        Raises:
            RewardkitError: Whatever is wrong with the data or the machine, in one sentence.
        """
        folder = None if resume is None or isinstance(resume, bool) else Path(resume)
        if resume is True:
            folder = run_path(self.job.config, self.job.stem, data=self.job.data_hash)
        options = TrainOptions(resume=folder, overwrite=overwrite, allow_change=allow_change)
        return _train(self.job, options, self.callbacks, sys.stderr)


def run_file(path: Path, options: TrainOptions) -> int:
    """Train as a file says; see `rewardkit.training.Backend`."""
    _quiet_libraries()
    job = setup.job_from_file(path, options.set, options.output)
    if options.check:
        report = check.look(job, say=None if options.quiet else _tell)
        print(report.text)
        return report.exit_code(force=options.force)
    outcome = _train(job, options, (), sys.stderr)
    if not options.quiet and outcome.text:
        print(outcome.text)
    return outcome.exit_code


def _quiet_libraries() -> None:
    """Keep progress bars of other libraries out of ours."""
    from transformers.utils import logging

    logs: Any = logging  # its functions have no types
    logs.disable_progress_bar()
    logs.set_verbosity_error()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------------------- the run


def _train(job: Job, options: TrainOptions, callbacks: Sequence[Callback], stream: TextIO) -> Outcome:
    """Train: everything is set up here, in the order of what is cheap to refuse, and used by `_Run`."""
    config = job.config
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as after:
        engine = after.enter_context(setup.open_engine(job))
        world = World.join()
        after.callback(world.leave)
        folder = options.resume or run_path(config, job.stem, data=job.data_hash)
        log = after.enter_context(_log(folder, config, options)) if world.first else None
        found = _newest(folder) if options.resume is not None else None
        encoded = setup.encode_job(job)
        room = setup.make_room(job, encoded, world.device)
        if room is not None and room.does_not_fit and not options.force:
            raise UsageError(f"{room.does_not_fit}. --force tries it all the same")
        saved = found.checkpoint if found is not None else None

        def restore(loaded: Loaded) -> None:
            if saved is not None:
                adapter.load_adapter_into(loaded.model, saved.adapter)

        ready = after.enter_context(
            contextlib.closing(setup.make_ready(job, encoded, room, world.device, restore=restore))
        )
        steps = config.steps(len(encoded.prompts), world.size)
        notes = [
            *config.notes, *encoded.notes, *ready.loaded.notes, *(found.notes if found is not None else ()),
            *(f"warning: {text}" for text in check.warnings(job, encoded, ready.loaded, steps)),
        ]  # fmt: skip
        live = Live(
            stream if world.first else io.StringIO(),
            _title(ready, config),
            steps,
            done=saved.step if saved is not None else 0,
            quiet=options.quiet or not world.first,
            max_error_share=config.max_error_share,
        )
        run = _Run(job, options, engine, world, folder, log, encoded, ready, steps, live, callbacks, saved, notes)
        with run.explained():
            return run.run()


def _log(folder: Path, config: GRPOConfig, options: TrainOptions) -> RunLog:
    return RunLog(
        folder,
        config,
        resume=options.resume is not None,
        overwrite=options.overwrite,
        allow_change=options.allow_change,
    )


def _newest(folder: Path) -> checkpoint.Found:
    """Return the newest checkpoint of a run that is resumed."""
    if not folder.is_dir():
        raise RunFolderError(f"{path_text(folder)} cannot be resumed: there is no such folder")
    return checkpoint.newest_valid(folder)


def _title(ready: Ready, config: GRPOConfig) -> str:
    loaded = ready.loaded
    weights = "NF4" if config.load_in_4bit else str(loaded.dtype).removeprefix("torch.")
    return (
        f"{loaded.name}  {loaded.parameters / 1e6:,.0f}M  {weights}  LoRA r{config.r} ({loaded.trainable / 1e6:.1f}M)"
        f"  G={config.num_generations}  {ready.sampler.name}"
    )


@dataclass
class _Counted:
    """What is counted over the whole run, resumes included; saved with each checkpoint."""

    groups: float = 0
    live: float = 0
    completions: float = 0
    errors: float = 0
    skipped: float = 0
    skipped_in_a_row: float = 0
    tokens: float = 0
    seconds: float = 0.0


@dataclass
class _Run:
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
    why: str = ""
    stopped: bool = False
    saved_step: int = -1
    position: int = 0  # in the data, before the groups of the present step were drawn

    def __post_init__(self) -> None:
        config = self.config
        self.optimizer = build_optimizer(
            config.optim,
            self.ready.loaded.model.parameters(),
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(config.adam_beta1, config.adam_beta2),
            epsilon=config.adam_epsilon,
        )
        self.scheduler = build_scheduler(
            config.lr_scheduler_type,
            self.optimizer,
            steps=self.steps,
            warmup_steps=min(config.warmup_steps, self.steps),
        )
        self.order = PromptOrder(len(self.encoded.prompts), config.seed, config.shuffle_dataset)
        self.started = time.monotonic()

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
            if self.before is None:
                self.before = self._measure("before")
            with interrupts.patient():
                ended = self._loop(interrupts)
            self._save()
            if ended != "interrupted" and self.log is not None:
                adapter.save_adapter(self.ready.loaded.model, self.folder / _ADAPTER)
            change = self._compared() if ended == "done" else None
        return self._end(ended, change)

    # ------------------------------------------------------------------------------------------------------ the start

    def _restore(self) -> None:
        """Go on where the checkpoint was written; the adapter is in the model already."""
        if self.saved is None:
            _seed_all(self.config.seed + self.world.rank)
            return
        progress = self.saved.progress
        self.saved.restore(self.optimizer, self.scheduler, rank=self.world.rank)
        self.step = self.saved.step
        self.order = PromptOrder(
            self.order.count, self.order.seed, self.order.shuffle, position=int(progress.data["position"])
        )
        self.counted = _Counted(**progress.counters)
        self.before = _held_out_from(progress.extra.get("before"))
        self.metrics = dict(progress.extra.get("metrics") or {})
        self.saved_step = self.step
        self.ready.sampler.update(self.step)

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
            drawn, judged = self._draw()
            if judged.errors > self.config.max_error_share * judged.completions:
                return self._failed(judged)
            rows = groups.rows_of(drawn, judged, self.config)
            for iteration in range(min(self.config.num_iterations, self.steps - self.step)):
                first = iteration == 0
                checked = first and self._checks(self.step + 1)
                result = self._update(rows, checked=checked)
                self._count(result, judged if first else None)
                metrics = self._metrics(result, drawn, judged, began, fresh=first)
                if checked and not result.skipped:
                    metrics |= self._agreement(drawn, rows, result)
                self._tell(metrics, judged if first else None)
                if self.counted.skipped_in_a_row >= self.config.max_nan_steps:
                    self.why = (
                        f"the gradient was not finite in {int(self.counted.skipped_in_a_row)} steps in a row"
                        " (grpo.max_nan_steps); each was left out. A lower learning_rate, or dtype float32, may help"
                    )
                    return "not finite"
                if first and self.config.num_iterations > 1:
                    rows = with_old_logps(rows, result.logps)
                began = time.perf_counter()
            if self.step // self.config.save_steps > done // self.config.save_steps and self.step < self.steps:
                self._save()
        return "done"

    def _anywhere(self, asked: bool) -> bool:
        """Whether any process was asked to end: all end together."""
        return self.world.highest([float(asked)])[0] > 0

    def _draw(self) -> tuple[Groups, Judged]:
        """Sample and score the groups of the next step."""
        config, world = self.config, self.world
        self.position = self.order.position
        taken = self.order.take(config.prompts_per_step * world.size)
        prompts = [self.encoded.prompts[at] for at in world.share(taken)]
        seed = _seed(config.seed, self.step + 1, world.rank)
        drawn = groups.draw(
            self.ready.sampler, self.engine, prompts, config.num_generations, seed=seed, step=self.step + 1
        )
        return drawn, groups.judge(drawn, config, world)

    def _update(self, rows: Sequence[Row], *, checked: bool) -> StepResult:
        """Take one optimizer step; from then on the new adapter is what samples."""
        settings = dataclasses.replace(self.ready.settings, measure_all=True) if checked else self.ready.settings
        result = None
        try:
            # A step that is left out may leave layer inputs behind: a forward pass without its backward pass.
            with self.ready.store.micro_step() if self.ready.store is not None else contextlib.nullcontext():
                result = update(self.ready.policy, rows, self.optimizer, self.scheduler, settings, self.world)
        except RuntimeError:
            if result is None or not result.skipped:
                raise
        self.step += 1
        if not result.skipped:
            self.ready.sampler.update(self.step)
        return result

    def _checks(self, step: int) -> bool:
        every = self.config.check_logps_every
        return bool(every) and (step == 1 or step % every == 0) and not self.config.reshaping

    def _agreement(self, drawn: Groups, rows: Sequence[Row], result: StepResult) -> dict[str, float]:
        """Compare the sampler's log-probs with the trainer's from before this step: the same weights made both."""
        known = [(row, mine) for row, mine in zip(rows, result.logps, strict=True) if mine is not None]
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
        text = found.sentence(sampler, drawn.rollouts[0].version, dtype)
        if found.stale(dtype):
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
            "epoch": self.order.position / self.order.count,
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
        self.live.step(self.step, metrics, _example(self.step, judged))
        for callback in self.callbacks:
            self.stopped = callback(self.step, metrics) is True or self.stopped
        self.stopped = self._anywhere(self.stopped) if self.callbacks else self.stopped

    def _failed(self, judged: Judged) -> Ended:
        """End the run because of rewards that failed. The step's texts are kept; a resumed run draws it again."""
        share = judged.errors / judged.completions
        first = next(score for group in judged.totals for score in group if score.state == "error")
        self.why = (
            f"the reward failed on {percent(share)} of the completions of step {self.step + 1}, more than"
            f" grpo.max_error_share {percent(self.config.max_error_share)}; the first: {first.why}"
        )
        position, self.order.position = self.order.position, self.position
        self._save()
        self.order.position = position
        self._count_groups(judged)
        self.metrics = {**self.metrics, **groups.reward_metrics(judged, self.job.rewards)}
        if self.log is not None:
            self.log.step(self.step + 1, {}, judged.scored, judged.by_group())
        return "reward failed"

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        """Write a checkpoint of the present step, unless there is one. A full disk is said, and the run goes on."""
        if self.saved_step == self.step:
            return
        states: list[RandomState] = self.world.gather(random_state())
        if self.log is not None:
            self._write_checkpoint(states)
        self.saved_step = self.step
        self.world.wait()

    def _write_checkpoint(self, states: list[RandomState]) -> None:
        assert self.log is not None
        counted = dataclasses.replace(self.counted, seconds=self.counted.seconds + time.monotonic() - self.started)
        progress = Progress(
            data={"position": self.order.position},
            counters=dataclasses.asdict(counted),
            extra={
                "offsets": self.log.offsets(),
                "before": _held_out_as_data(self.before),
                "metrics": self.metrics,
            },
        )
        try:
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
        except checkpoint.CheckpointError as problem:
            self._note(str(problem))
            return
        self.log.log("checkpoint", step=self.step, path=path_text(place))

    # ---------------------------------------------------------------------------------------------- held-out prompts

    def _measure(self, name: str) -> HeldOut | None:
        """Sample the held-out prompts, in the first process; the others wait."""
        found = None
        if self.encoded.held_out and self.world.first:
            self._note(
                f"held-out prompts, {name}: {len(self.encoded.held_out):,}, one greedy completion and"
                f" {self.config.eval_samples} sampled of each"
            )
            found = evaluate.held_out(
                self.ready.sampler, self.engine, self.encoded.held_out, self.config.eval_samples,
                reward=TOTAL, seed=self.config.seed,
            )  # fmt: skip
            if self.log is not None:
                evaluate.write_held_out(self.folder, name, found)
            self._note(_held_out_text(found, name))
        self.world.wait()
        return found

    def _compared(self) -> Change | None:
        after = self._measure("after")
        return evaluate.paired(self.before, after) if self.before is not None and after is not None else None

    # -------------------------------------------------------------------------------------------------------- the end

    def _end(self, ended: Ended, change: Change | None) -> Outcome:
        """Write the summary, and put everything into words."""
        model = self.ready.loaded.model
        seconds = self.counted.seconds + time.monotonic() - self.started
        learning = Learning(
            steps=self.step,
            groups=int(self.counted.groups),
            live=int(self.counted.live),
            norm_of_change=adapter.norm_of_change(model, self.ready.start),
            skipped=int(self.counted.skipped),
            errors=self.counted.errors / self.counted.completions if self.counted.completions else 0.0,
        )
        code = _CODES[ended]
        if ended == "done" and self.options.require_learning and not learning.learned:
            code = 1
        place = None if ended == "interrupted" else self.folder / _ADAPTER
        text = self._text(ended, change, learning, place, seconds)
        if self.log is not None:
            if ended != "interrupted":
                self.log.summary(
                    {
                        "ended": ended, "why": self.why or None, "exit_code": code, "steps": self.step,
                        "seconds": seconds, "learning": learning.to_dict(),
                        "held_out": None if change is None else change.to_dict(),
                        "adapter": _ADAPTER, "adapter_checksum": adapter.checksum(model), "metrics": self.metrics,
                    }
                )  # fmt: skip
            self.log.log("end", ended=ended, step=self.step, why=self.why)
        self.world.wait()
        return Outcome(ended, code, self.folder, place, self.step, learning, change, self.metrics, text)

    def _text(self, ended: Ended, change: Change | None, learning: Learning, place: Path | None, seconds: float) -> str:
        if not self.world.first:
            return ""
        if ended == "interrupted":
            return (
                f"interrupted after step {self.step} of {self.steps}; everything is saved. Go on with\n"
                f"rewardkit train --resume {path_text(self.folder)}"
            )
        closing = evaluate.closing_text(
            change=change,
            learning=learning,
            adapter=place,
            run=self.folder,
            seconds=seconds,
            metrics=self.metrics,
            file=self.job.file,
        )
        return f"stopped   {self.why}\n{closing}" if self.why else closing

    # --------------------------------------------------------------------------------------------------------- faults

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a lack of memory into one sentence with settings that would fit; say how to go on after Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            if self.saved_step >= 0 and self.world.first:
                self._note(
                    f"step {self.saved_step} is saved; go on with rewardkit train --resume {path_text(self.folder)}"
                )
            raise
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as problem:
            room = self.ready.room
            if room is None or not _out_of_memory(problem):
                raise
            text = planning.out_of_memory(room.task, room.config, room.plan)
            saved = self.saved_step
            hint = (
                f". The checkpoint of step {saved} is kept: --resume {path_text(self.folder)} --allow-change"
                if saved
                else ""
            )
            raise OutOfMemory(f"{text}{hint}") from problem


def _sampled_tokens(judged: Judged) -> int:
    return sum(one.tokens or 0 for group in judged.scored for one in group.generation.completions)


def _out_of_memory(problem: BaseException) -> bool:
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(problem)


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
    """Return the memory of the device in GB: of this process on a CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        return {"memory/used_gb": (total - free) / 1e9, "memory/peak_gb": peak / 1e9, "memory/total_gb": total / 1e9}
    factor = 1 if sys.platform == "darwin" else 1024
    return {"memory/peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 1e9}


def _held_out_text(found: HeldOut, name: str) -> str:
    parts = [
        f"{how} {seen.mean:.3f}"
        for how, seen in (("greedy", found.greedy), ("sampled", found.sampled))
        if seen and seen.mean is not None
    ]
    return f"held-out reward {name}: {', '.join(parts) or 'no prompt was scored'}"


def _held_out_as_data(found: HeldOut | None) -> dict[str, Any] | None:
    """Return a measurement as plain data, without its texts, which lie in held_out/."""
    if found is None:
        return None

    def one(seen: Measured | None) -> dict[str, Any] | None:
        if seen is None:
            return None
        right = [list(pair) for pair in seen.right]
        return {"rewards": list(seen.rewards), "right": right, "length": seen.length, "cut": seen.cut}

    return {
        "ids": list(found.ids),
        "greedy": one(found.greedy),
        "sampled": one(found.sampled),
        "samples": found.samples,
    }


def _held_out_from(data: Mapping[str, Any] | None) -> HeldOut | None:
    if data is None:
        return None

    def one(seen: Mapping[str, Any]) -> Measured:
        right = tuple((int(scored), int(good)) for scored, good in seen["right"])
        return Measured(tuple(seen["rewards"]), right, seen["length"], seen["cut"], ())

    sampled = data["sampled"]
    return HeldOut(
        tuple(data["ids"]), one(data["greedy"]), one(sampled) if sampled is not None else None, data["samples"]
    )
