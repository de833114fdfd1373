"""The doors: `GRPOTrainer` from Python, `run_file` from `rewardkit train`.

What a run needs is opened here, in the order of what is cheap to refuse, and used by `run.Run`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from rewardkit.errors import RunFolderError, UsageError
from rewardkit.records.text import path_text
from rewardkit.training import TrainOptions
from trainer_backend import check, checkpoint, setup
from trainer_backend.checkpoint import Checkpoint
from trainer_backend.config import GRPOConfig
from trainer_backend.data import Prompts
from trainer_backend.live import Live
from trainer_backend.model import adapter
from trainer_backend.model.load import Loaded
from trainer_backend.parallel import World
from trainer_backend.run import Callback, Outcome, Run, made_with
from trainer_backend.runlog import RunLog, run_path
from trainer_backend.screen import open_streams, say, tell
from trainer_backend.setup import Job, Ready, RewardFunctions


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
        callbacks: A function `(step, metrics)`, or several; one that returns True ends the run after that step.

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
        callbacks: Callback | Sequence[Callback] | None = None,
    ) -> None:
        given = (callbacks,) if callable(callbacks) or not isinstance(callbacks, Iterable) else tuple(callbacks)
        self.callbacks = tuple(_callback(one) for one in given if callbacks is not None)
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
            folder = run_path(self.job.config, self.job.stem, data=self.job.rows["data.train"])
        options = TrainOptions(resume=folder, overwrite=overwrite, allow_change=allow_change)
        return _train(self.job, options, self.callbacks, sys.stderr)


def _callback(given: Any) -> Callback:
    """Return a callback that can be called as one is.

    Raises:
        UsageError: It is no function, or takes something else.
    """
    if not callable(given) or isinstance(given, type):
        raise UsageError(
            f"a callback is a function of step and metrics, got {_what(given)}; what TrainerCallback does in on_log"
            " goes there"
        )
    try:
        inspect.signature(given).bind(1, {})
    except TypeError as problem:
        raise UsageError(
            f"a callback is called with step and metrics, which {_what(given)} does not take ({problem}); write"
            " def callback(step, metrics)"
        ) from None
    except ValueError:  # something without a signature: calling it will tell
        pass
    found: Callback = given
    return found


def _what(given: Any) -> str:
    name = getattr(given, "__qualname__", None)
    return f"{name}" if name else f"a {type(given).__name__}"


def run_file(path: Path, options: TrainOptions) -> int:
    """Train as a file says; see `rewardkit.training.Backend`."""
    open_streams()
    with _quiet_libraries():
        return _run_file(path, options)


def _run_file(path: Path, options: TrainOptions) -> int:
    job = setup.job_from_file(path, options.set, options.output)
    if options.check:
        report = check.look(job, say=None if options.quiet else tell)
        if report.text:
            say(report.text)
        return report.exit_code(force=options.force)
    outcome = _train(job, options, (), sys.stderr)
    if not options.quiet and outcome.text:
        say(outcome.text)
    return outcome.exit_code


_LIBRARIES = r"(torch|transformers|peft|accelerate|bitsandbytes|huggingface_hub|tokenizers|vllm)(\.|$)"


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep progress bars of other libraries out of ours, and what they tell each other about their next versions."""
    from transformers.utils import logging

    logs: Any = logging  # its functions have no types
    logs.disable_progress_bar()
    logs.set_verbosity_error()
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
            warnings.filterwarnings("ignore", category=kind, module=_LIBRARIES)
        yield


def _train(job: Job, options: TrainOptions, callbacks: Sequence[Callback], stream: TextIO | None) -> Outcome:
    """Train: everything is set up here, in the order of what is cheap to refuse, and used by `Run`."""
    config = job.config
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as after:
        engine = after.enter_context(setup.open_engine(job))
        world = World.join()
        after.callback(world.leave)
        setup.check_processes(config, world.size)
        folder = options.resume or run_path(config, job.stem, data=job.rows["data.train"])
        found = _newest(folder) if options.resume is not None else None
        saved = found.checkpoint if found is not None else None
        log = after.enter_context(_log(folder, job, options, saved)) if world.first else None
        encoded = setup.encode_job(job)
        room = setup.make_room(job, encoded, world.device)
        if room is not None and room.does_not_fit and not options.force:
            raise UsageError(f"{room.does_not_fit}. --force tries it all the same")

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
        run = Run(job, options, engine, world, folder, log, encoded, ready, steps, live, callbacks, saved, notes)
        with run.explained():
            return run.run()


def _log(folder: Path, job: Job, options: TrainOptions, saved: Checkpoint | None) -> RunLog:
    return RunLog(
        folder,
        job.config,
        resume=options.resume is not None,
        overwrite=options.overwrite,
        allow_change=options.allow_change,
        rows=job.rows,
        made_with=made_with(saved),
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
