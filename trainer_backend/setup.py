"""What a run needs before its first step: tasks, rewards, a plan of its memory, the model, and what samples from it.

In the order of what is cheap to refuse: the file, the rewards, the data, the prompts as tokens, the plan, the weights.
`train.py` and `check.py` begin with the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import nn

from rewardkit import recipe
from rewardkit.compose import Reward
from rewardkit.engine import Engine, check_columns
from rewardkit.errors import UsageError
from rewardkit.report.text import counted
from rewardkit.reward import as_reward
from rewardkit.types import Completion, Generation, Sample, Score
from trainer_backend import plan as planning
from trainer_backend.config import GRPOConfig, read_training_file
from trainer_backend.data import Prompt, Prompts, as_chats, encode, load_samples
from trainer_backend.errors import ConfigError
from trainer_backend.groups import TOTAL
from trainer_backend.loss import preset
from trainer_backend.model import adapter
from trainer_backend.model.forward import Dense
from trainer_backend.model.load import Loaded, Source, find, load, load_tokenizer, pick_dtype, quantization_of
from trainer_backend.model.offload import LayerInputs, checkpoint_layers, mover_for
from trainer_backend.model.streamed import Streamed, streamed_of
from trainer_backend.rollout.options import SamplingOptions
from trainer_backend.rollout.transformers_sampler import TransformersSampler
from trainer_backend.rollout.types import Sampler
from trainer_backend.step import Policy, StepSettings

RewardFunctions: TypeAlias = Any
"""A reward, a function, a name or formula; a list of them, which are added up; or a mapping of which `total` trains."""

_THREADS = 16  # times the machine's cores, at most
_WARMED = 8  # workers that are started ahead, at most


# ------------------------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be trained, with which rewards, on which tasks.

    Attributes:
        config: All settings.
        rewards: By name; `total` is what trains.
        train, held_out: The tasks.
        stem: What the run's folder is called where nothing is said.
        file: The training file; None: made in Python.
        model, processing_class, peft_config: Objects in place of what `config` names.
    """

    config: GRPOConfig
    rewards: Mapping[str, Reward]
    train: Sequence[Sample]
    held_out: Sequence[Sample]
    stem: str = "grpo"
    file: Path | None = None
    model: Any = None
    processing_class: Any = None
    peft_config: Any = None

    @functools.cached_property
    def rows(self) -> dict[str, str]:
        """A hash over the tasks of each place that they came from, with all their columns, in order."""
        found = {"data.train": _digest(self.train)}
        return found | ({"data.eval": _digest(self.held_out)} if self.held_out else {})


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        told = _told((sample.id, sample.prompt, sample.reference, sample.metadata))
        digest.update(told.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _told(value: Any) -> str:
    """Return a value of a column as text that is the same in every process: a repr may hold an address."""
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{key!r}:{_told(one)}" for key, one in sorted(value.items(), key=lambda pair: str(pair[0])))
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_told, value)) + "]"
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    content = getattr(value, "tobytes", None)  # arrays and images
    text = repr(value) if content is None else _told(bytes(content()))
    return f"{type(value).__qualname__} {re.sub(r' at 0x[0-9a-fA-F]+', '', text)}"


def job_from_file(path: Path, changes: Sequence[str] = (), output: Path | None = None) -> Job:
    """Return what a training file says.

    Raises:
        RewardkitError: The file, a reward or the data is wrong.
    """
    config = read_training_file(path, changes)
    _check_threads(config)
    if output is not None:
        config = config.model_copy(update={"dir": Path(os.path.normpath(output.absolute()))})
    return Job(
        config,
        config.rewards(),
        _samples(config.train, config, config.limit),
        [] if config.eval is None else _samples(config.eval, config, config.eval_limit),
        stem=path.stem,
        file=path,
    )


def job_of(
    model: Any,
    reward_funcs: RewardFunctions,
    args: GRPOConfig | None,
    train_dataset: Prompts | None,
    eval_dataset: Prompts | None,
    processing_class: Any,
    peft_config: Any,
) -> Job:
    """Return what was given in Python; what was not is taken from `args`.

    Raises:
        RewardkitError: Something is missing or wrong.
    """
    config = args if args is not None else GRPOConfig()
    if not isinstance(config, GRPOConfig):
        raise UsageError(
            f"args is a trainer_backend.GRPOConfig, got a {type(config).__module__}.{type(config).__name__}"
        )
    _check_threads(config)
    named = isinstance(model, (str, os.PathLike))
    rewards = config.rewards() if reward_funcs is None else rewards_of(reward_funcs)
    if not rewards:
        raise UsageError('no reward is given; pass reward_funcs, such as a function, "gsm8k", or a list of them')
    changes: dict[str, Any] = {
        "model": os.fspath(model) if named else _name_of(model) if model is not None else config.model,
        "train": _path(train_dataset) or config.train,
        "eval": _path(eval_dataset) or config.eval,
    }
    if reward_funcs is not None:
        changes["reward"] = {name: one.formula for name, one in rewards.items()}
    config = config.model_copy(update=changes)
    data = train_dataset if train_dataset is not None else config.train
    held = eval_dataset if eval_dataset is not None else config.eval
    if config.model is None:
        raise UsageError('no model is given; pass a folder, a hub name, "smollm2", or a model of transformers')
    if data is None:
        raise UsageError("no train_dataset is given; pass a path, a list of dicts or a datasets.Dataset")
    return Job(
        config,
        rewards,
        _samples(data, config, config.limit),
        [] if held is None else _samples(held, config, config.eval_limit),
        model=None if named else model,
        processing_class=processing_class,
        peft_config=peft_config,
    )


def _check_threads(config: GRPOConfig) -> None:
    """Refuse a number of threads that torch would crash with.

    Raises:
        ConfigError: It is far more than the machine has cores.
    """
    cores = os.cpu_count() or 1
    most = _THREADS * cores
    if config.threads is not None and config.threads > most:
        raise ConfigError(
            f"run.threads is {config.threads:,}, and this machine has {counted(cores, 'core')}: more than {most:,}"
            " threads would only wait for each other; leave it out, or set it to the number of cores"
        )


def rewards_of(given: RewardFunctions) -> dict[str, Reward]:
    """Return rewards by name of what `reward_funcs` may be; those of a list are added up, each a component.

    Raises:
        RewardkitError: It is none of these, or a mapping without `total`.
    """
    if isinstance(given, Mapping):
        if TOTAL not in given:
            raise UsageError(
                f"reward_funcs is a mapping of {', '.join(map(str, given)) or 'nothing'}, and {TOTAL!r}, which trains,"
                " is not among them; the others are metrics"
            )
        return {str(name): _reward(one) for name, one in given.items()}
    if isinstance(given, (list, tuple)):
        if not given:
            raise UsageError("reward_funcs is an empty list; give at least one reward")
        first, *rest = [_reward(one) for one in given]
        for one in rest:
            first = first + one
        return {TOTAL: first}
    return {TOTAL: _reward(given)}


def _reward(given: Any) -> Reward:
    return recipe.parse(given) if isinstance(given, str) else as_reward(given)


def _path(value: Any) -> Path | None:
    return Path(os.path.abspath(value)) if isinstance(value, (str, os.PathLike)) else None


def _name_of(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)


def _samples(source: Any, config: GRPOConfig, limit: int | None) -> list[Sample]:
    samples = load_samples(source, config.prompt, config.reference, limit)
    return as_chats(samples, config.system_prompt) if config.chat or config.system_prompt is not None else samples


# ---------------------------------------------------------------------------------------------------------- the workers


def open_engine(job: Job) -> Engine:
    """Return the engine of the job's rewards; its workers are starting.

    They start before torch holds a device, and while weights are read.

    Raises:
        ColumnError: None of the tasks has a column that a reward needs.
    """
    engine = Engine(job.rewards)
    blank = [Generation(sample, (Completion(""),)) for sample in job.train[:_WARMED]]
    check_columns(engine.leaves, [*blank, *(Generation(sample, (Completion(""),)) for sample in job.train[_WARMED:32])])
    for slot in engine.away[:1]:  # each worker serves all rewards
        for generation in blank[: os.cpu_count() or 1]:
            engine.in_worker(slot, generation, [0]).add_done_callback(_ignored)
    return engine


def _ignored(future: Future[list[Score]]) -> None:
    """A reward that fails on an empty text has failed on nothing that counts."""
    with contextlib.suppress(BaseException):
        future.exception()


# ----------------------------------------------------------------------------------------------------------- the tokens


@dataclass(frozen=True, eq=False)
class Encoded:
    """The tasks as the model sees them.

    Attributes:
        tokenizer: What made them.
        prompts, held_out: The tasks that are kept.
        longest: Tokens of the longest one.
        notes: What was left out, one sentence each.
    """

    tokenizer: Any
    prompts: Sequence[Prompt]
    held_out: Sequence[Prompt]
    longest: int
    notes: tuple[str, ...] = ()


def encode_job(job: Job) -> Encoded:
    """Return the job's tasks as token ids. The tokenizer is loaded, the weights are not.

    Raises:
        RewardkitError: There is no tokenizer, it cannot make these prompts, or all are too long.
    """
    config = job.config
    tokenizer = job.processing_class
    if tokenizer is None:
        source = Source(str(config.model)) if job.model is not None else find(config)
        tokenizer = load_tokenizer(source, str(config.model))
    found: list[list[Prompt]] = []
    notes: list[str] = []
    for samples, what in ((job.train, "prompts"), (job.held_out, "held-out prompts")):
        kept, refused = encode(
            samples,
            tokenizer,
            max_prompt_length=config.max_prompt_length,
            chat_template_kwargs=config.chat_template_kwargs,
        )
        if refused:
            longest = max(one.tokens for one in refused)
            told = f"longer than max_prompt_length {config.max_prompt_length} (the longest has {longest:,} tokens)"
            if not kept:
                raise ConfigError(f"all {len(refused):,} {what} are {told}; raise data.max_prompt_length")
            notes.append(f"{len(refused):,} of {len(samples):,} {what} are left out: {told}")
        found.append(kept)
    longest = max(len(prompt.ids) for prompts in found for prompt in prompts)
    _check_positions(job, longest)
    if len(found[0]) < config.prompts_per_step:
        notes.append(
            f"{len(found[0]):,} prompts are fewer than the {config.prompts_per_step} of a step, so some are drawn"
            " several times in it"
        )
    return Encoded(tokenizer, found[0], found[1], longest, tuple(notes))


def _check_positions(job: Job, longest: int) -> None:
    """Refuse completions that would go on where the model has no positions any more.

    Raises:
        ConfigError: The longest prompt and a completion together are longer than the model was made for.
    """
    settings = model_settings(job)
    if settings is None:
        return
    text = settings.get_text_config(decoder=True)
    if "factor" in (getattr(text, "rope_parameters", None) or {}):  # stretched positions: which number holds is unclear
        return
    most = getattr(text, "max_position_embeddings", None)
    wanted = job.config.max_completion_length
    if isinstance(most, int) and longest + wanted > most:
        room = most - wanted
        less = f", or leave long prompts out with data.max_prompt_length = {room}" if room > 0 else ""
        raise ConfigError(
            f"the longest prompt has {longest:,} tokens, and with grpo.max_completion_length {wanted:,} that is more"
            f" than the {most:,} positions of the model; lower max_completion_length{less}"
        )


# ------------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, eq=False)
class Room:
    """What memory the run is planned with.

    Attributes:
        free, free_host: Bytes before anything was loaded; see `plan.make_plan`.
        task: What the plan is made for.
        config: The settings, as the planner is to read them.
        plan: The plan.
    """

    free: int
    free_host: int | None
    task: planning.Task
    config: GRPOConfig
    plan: planning.Plan

    @property
    def does_not_fit(self) -> str:
        """Say that no plan fits, and what would; "" where one does."""
        return "" if self.plan.fits else planning.does_not_fit(self.task, self.config, self.plan)


def make_room(job: Job, encoded: Encoded, device: torch.device) -> Room | None:
    """Return the plan of a job before its weights are loaded; None where its configuration cannot be read.

    Whether rows can share their beginning is not known yet; the plan has room for both.
    """
    settings = model_settings(job)
    if settings is None:
        return None
    config, quantised = job.config, quantization_of(settings)
    if quantised.get("load_in_4bit"):
        config = config.model_copy(update={"load_in_4bit": True})
    if job.model is None:
        dtype = pick_dtype(config.dtype, device, [])
    else:
        dtype = next(weight.dtype for weight in job.model.parameters() if weight.is_floating_point())
    task = planning.Task(
        shape=planning.shape_of(settings),
        longest_prompt=encoded.longest,
        device=device.type,
        number=dtype.itemsize,
        shared=None,
        folded=planning.folds(config, dtype.itemsize, device.type),
        skipped=tuple(quantised.get("llm_int8_skip_modules") or ()),
        held_out=bool(encoded.held_out),
    )
    if config.engine == "vllm":
        task = replace(task, sampler_in_4bit=_vllm_in_4bit(job, quantised, device))
    free, free_host = planning.free_memory(device)
    plan = planning.make_plan(task, config, free=free, free_host=free_host)
    return Room(free, free_host, task, config, plan)


def _vllm_in_4bit(job: Job, quantised: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether the installed vLLM can hold 4-bit weights.

    Raises:
        UsageError: The checkpoint has only such, and it cannot.
        MissingExtra: There is no vLLM.
    """
    from trainer_backend.rollout.vllm_sampler import TESTED, installed, quantises

    found = quantises(device)
    if not found and job.model is None and quantised.get("quant_method") == "bitsandbytes":
        raise UsageError(
            f"{job.config.model} is stored as weights of bitsandbytes, which {' '.join(installed())} cannot read on a"
            f" {device.type.upper()}; name the unquantised model and set load_in_4bit = true, or set rollout.engine ="
            f' "transformers", or take a GPU with vllm {TESTED["vllm"][0]}'
        )
    return found


def check_processes(config: GRPOConfig, processes: int) -> None:
    """Refuse vLLM in several processes.

    Raises:
        UsageError: It was asked for.
    """
    if processes > 1 and config.engine == "vllm":
        raise UsageError(
            f'rollout.engine is "vllm" and there are {processes} processes: each would start its engine on the first'
            ' GPU; start one process, or set rollout.engine = "transformers"'
        )


def model_settings(job: Job) -> Any:
    """Return the configuration of the job's model, as transformers has it; None where it cannot be read."""
    from transformers import AutoConfig

    if job.model is not None:
        return job.model.config
    source = find(job.config)
    try:
        return AutoConfig.from_pretrained(source.place, **source.options)
    except (OSError, ValueError, KeyError):  # loading the model says what is wrong with it
        return None


def _known(room: Room, **known: Any) -> Room:
    """Return the plan, now that the model was tried out: fields of `plan.Task`."""
    task = replace(room.task, **known)
    plan = planning.make_plan(task, room.config, free=room.free, free_host=room.free_host)
    return replace(room, task=task, plan=plan)


# ------------------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True, eq=False)
class Ready:
    """A model that can be sampled from and trained.

    Attributes:
        loaded: Model, tokenizer, and what is known about them.
        policy: The same for `step.update`.
        settings: How a step is taken.
        sampler: Draws from the model as it is.
        room: The plan; None where there is none.
        start: The adapter as training found it, for `adapter.norm_of_change`.
        streamed: Whether layers are streamed, in words; where they were to be and cannot, the reason.
        store: Where layer inputs wait for the backward pass; None: where they were made.
        undo: Takes the checkpoints off the model's layers; None: there are none.
    """

    loaded: Loaded
    policy: Policy
    settings: StepSettings
    sampler: Sampler
    room: Room | None
    start: Mapping[str, torch.Tensor]
    streamed: str
    store: LayerInputs | None = None
    undo: Callable[[], None] | None = None

    def close(self) -> None:
        """Free what sampler and store hold, and leave a model of the user's without our checkpoints."""
        self.sampler.close()
        if self.store is not None:
            self.store.close()
        if self.undo is not None:
            self.undo()


def make_ready(
    job: Job,
    encoded: Encoded,
    room: Room | None,
    device: torch.device,
    *,
    restore: Callable[[Loaded], object] | None = None,
) -> Ready:
    """Load the weights and make everything that a step needs.

    Args:
        job, encoded, room: As made before.
        device: Where to.
        restore: Puts a checkpoint's adapter into the model, before anything samples from it.

    Raises:
        RewardkitError: Whatever is wrong with the model, the adapter or the sampler.
    """
    config = job.config
    loaded = load(
        config, model=job.model, processing_class=encoded.tokenizer, peft_config=job.peft_config, device=device
    )
    found: Streamed | str = "no"
    if room is not None:
        room = _known(room, shared=loaded.shares_prefixes, dense=isinstance(loaded.head, Dense))
        if room.plan.path.streamed or room.plan.path.checkpointing:  # else trying it would only cost time
            found = _streamed(loaded)
            room = _known(room, streams=isinstance(found, Streamed))
    start = adapter.snapshot(loaded.model)
    if restore is not None:
        restore(loaded)
    path = room.plan.path if room is not None else None
    store = undo = streamed = None
    if room is not None and path is not None and path.mode == "offload":
        moments = room.plan.total("always", place="host")
        limit = None if room.free_host is None else room.free_host - moments
        store = LayerInputs(mover_for(device, limit))
    if path is not None and path.keep:
        assert isinstance(found, Streamed)  # `_known` has planned with it
        streamed = replace(found, keep=path.keep, chunk=path.chunk, store=store)
    elif path is not None and path.checkpointing:
        undo = checkpoint_layers(loaded.model, store)
        if isinstance(found, str):
            note = f"layers are computed again whole and not streamed in chunks, which would take less memory: {found}"
            loaded = replace(loaded, notes=(*loaded.notes, note))
    policy = Policy(
        loaded.model,
        loaded.head,
        loaded.dtype,
        "line" if streamed is not None else "shared" if loaded.shares_prefixes else "apart",
        reference=_reference,
        store=store,
        streamed=streamed,
    )
    settings = StepSettings(
        loss=preset(config.loss_type, **config.loss_changes),
        temperature=config.temperature,
        token_budget=room.plan.token_budget if room is not None else config.token_budget or 4096,
        max_grad_norm=config.max_grad_norm,
        max_completion_length=config.max_completion_length,
        top_entropy_quantile=config.top_entropy_quantile,
    )
    sampler = make_sampler(job, loaded, encoded.longest, room)
    if sampler.differs:
        loaded = replace(loaded, notes=(*loaded.notes, f"{sampler.differs}. {_corrected(config)}"))
    used = found if isinstance(found, str) else "yes" if streamed is not None else "no"
    return Ready(loaded, policy, settings, sampler, room, start, used, store, undo)


def _streamed(loaded: Loaded) -> Streamed | str:
    """Return the model's decoder with its layers streamed, or why it has none."""
    if isinstance(loaded.head, Dense):
        return f"log-probs go through the model's logits: {loaded.head.reason}"
    return streamed_of(loaded.model, loaded.dtype)


def _corrected(config: GRPOConfig) -> str:
    """Say what becomes of tokens that were drawn from other weights than those that are trained."""
    if config.correction == "none":
        return "grpo.vllm_importance_sampling_correction is false, so nothing corrects for it, and gradients are biased"
    return f"The importance-sampling correction ({config.correction}) weighs each token by how far they are apart"


def _reference(model: nn.Module) -> AbstractContextManager[object]:
    """Make the model the policy that training started from."""
    assert isinstance(model, PeftModel)  # `load` makes no other
    return adapter.reference(model)


def make_sampler(job: Job, loaded: Loaded, longest: int, room: Room | None) -> Sampler:
    """Return what samples from the model as it is now.

    Args:
        job, loaded: What is trained.
        longest: Tokens of the longest prompt.
        room: The plan, which says how much is sampled at once; None: as much as is of use.

    Raises:
        RewardkitError: The sampler cannot take these options or this model, or is not installed.
    """
    config = job.config
    options = SamplingOptions.from_config(config)
    if config.engine == "vllm":
        from trainer_backend.rollout.vllm_sampler import CACHE_BYTES, VllmSampler

        source = Source(loaded.name) if job.model is not None else find(config)
        return VllmSampler(
            loaded.model,
            loaded.tokenizer,
            options,
            weights=source.place,
            eos_ids=loaded.eos_ids,
            max_length=longest + config.max_completion_length,
            dtype=loaded.dtype,
            device=loaded.device,
            revision=source.revision,
            kv_cache_dtype=config.kv_cache_dtype,
            kv_cache_bytes=room.plan.vllm_cache if room is not None else CACHE_BYTES,
            four_bit=any(type(module).__name__ == "Linear4bit" for module in loaded.model.modules()),
            allow_untested=config.allow_untested,
        )
    made = [planning.folds(config, loaded.dtype.itemsize, loaded.device.type), False]
    for fold in made if made[0] else made[1:]:
        try:
            return TransformersSampler(
                loaded.model,
                loaded.tokenizer,
                options,
                head=loaded.head,
                eos_ids=loaded.eos_ids,
                max_rows=room.plan.rows if room is not None else planning.SAMPLED_ROWS,
                fold=fold,
            )
        except UsageError:
            if not fold:
                raise
    raise AssertionError("the last one returns or raises")
