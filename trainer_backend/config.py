"""The settings of a training run: one frozen, flat, typed model, and the TOML file that it is read from.

Names are TRL's where the meaning is TRL's. In the file they stand in tables; in Python they are the fields of
`GRPOConfig`. Nothing here imports torch, so a wrong file is refused at once.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rewardkit.errors import InputError, nearest
from trainer_backend.errors import ConfigError, meant
from trainer_backend.foreign import BY_NAME

if TYPE_CHECKING:
    from rewardkit.compose import Reward

# ------------------------------------------------------------------------------------------ names that torch code owns
# Loading them needs torch; a test compares each with its owner.

_CLIP = ("epsilon_low", "epsilon_high", "delta", "dual_clip")
_BOTH = ("epsilon_low", "epsilon_high")
_CAP = (*_BOTH, "ratio_cap")
LOSSES: Mapping[str, tuple[str, ...]] = {
    "grpo": _CLIP,
    "dr_grpo": _CLIP,
    "dapo": _CLIP,
    "bnpo": _CLIP,
    "gspo": _CLIP,
    "cispo": ("ratio_cap",),
    "sapo": ("tau_positive", "tau_negative"),
    "vespo": ("vespo_k", "vespo_lambda"),
    "luspo": _CLIP,
    "gmpo": _BOTH,
    "dppo_tv": _CAP,
    "dppo_kl": _CAP,
    "reinforce": (),
}
"""The names of `loss.PRESETS`, and the numbers of a `Loss` that each looks at."""

LOSS_OPTIONS = (
    "shape", "aggregate", "dual_clip", "ratio_cap", "tau_positive", "tau_negative", "vespo_k", "vespo_lambda",
    "off_policy_threshold", "kl_estimator", "kl_gradient",
)  # fmt: skip
"""Fields of `loss.Loss` that have no key of their own here."""

ADVANTAGES = (
    "group", "none", "batch", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline", "gdpo", "pass_at_k", "max",
)  # fmt: skip
"""The names of `advantage.METHODS`."""

CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask")
"""The names of `mismatch.BOUNDS` without "none"."""

OPTIMIZERS = ("adamw_torch", "adamw_8bit", "sgd")
SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt")
SINKS = ("tensorboard", "trackio")

_COMPARES_ACROSS_GROUPS = ("reinforce_pp",)  # a group of one learns from the others

# ------------------------------------------------------------------------------------------------------ reading values


def _known(what: str, names: Iterable[str]) -> BeforeValidator:
    """Refuse a text that is none of these names, with the nearest."""
    known = tuple(names)

    def check(value: Any) -> Any:
        if isinstance(value, str) and value not in known:
            raise ValueError(f"{value!r} is no {what}{meant(value, known, 'the names are ' + ', '.join(known))}")
        return value

    return BeforeValidator(check)


def _to_path(value: Any) -> Any:
    return Path(value) if isinstance(value, str) else value


def _to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _sinks(value: Any) -> Any:
    value = (value,) if isinstance(value, str) else _to_tuple(value)
    if not isinstance(value, tuple):
        return value
    names = tuple(name for name in value if name != "none")
    for name in names:
        if isinstance(name, str) and name not in SINKS:
            raise ValueError(
                f"{name!r} is no place to report to; known are {' and '.join(SINKS)}; metrics.jsonl is always written"
            )
    return names


def _unlimited(value: Any) -> Any:
    """-1, TRL's way to say that there is no limit."""
    return None if type(value) is int and value == -1 else value


def _off(value: Any) -> Any:
    """-1, vLLM's way to switch top_k off, is 0 here."""
    return 0 if type(value) is int and value == -1 else value


def _scaling(value: Any) -> Any:
    """TRL takes True and False, too."""
    return {True: "group", False: "none"}[value] if isinstance(value, bool) else value


_OPTIMIZER_NAMES = {"adamw_bnb_8bit": "adamw_8bit", "adamw_torch_fused": "adamw_torch", "adamw": "adamw_torch"}
_DTYPE_NAMES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "half": "float16", "float": "float32"}


def _renamed(names: Mapping[str, str]) -> BeforeValidator:
    return BeforeValidator(lambda value: names.get(value, value) if isinstance(value, str) else value)


_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(GB|G|GiB|MB|M)?\s*", re.IGNORECASE)
_UNITS = {"": 1.0, "g": 1.0, "gb": 1.0, "gib": 2**30 / 1e9, "m": 1e-3, "mb": 1e-3}


def gigabytes(value: Any) -> Any:
    """Read a size in GB (10^9 bytes): a number, or a text such as "24GB", "24 GiB", "900 MB"."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f'a size is a number of GB or a text such as "24GB", got {value!r}')
    return float(match[1]) * _UNITS[(match[2] or "").lower()]


FilePath = Annotated[Path, BeforeValidator(_to_path)]
Gigabytes = Annotated[float, BeforeValidator(gigabytes), Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def _field(table: str, default: Any, doc: str, key: str = "") -> Any:
    return Field(default=default, description=doc, json_schema_extra={"table": table, "key": key})


# --------------------------------------------------------------------------------------------------------------- model

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
else:
    _ModelMetaclass = type(BaseModel)  # has no public name


class _Made(_ModelMetaclass):
    """The type of GRPOConfig: a wrong setting is our error, not a validation report of pydantic's."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments:
            raise ConfigError(f"GRPOConfig takes its settings by name, got {arguments[0]!r}")
        for name in options:
            if name not in GRPOConfig.model_fields:
                raise ConfigError(_unknown_key(name))
        try:
            return super().__call__(**options)
        except pydantic.ValidationError as problem:
            raise ConfigError(_problems(problem)) from None


class GRPOConfig(BaseModel, metaclass=_Made):
    """All settings of a training run; what each means is its field's description (docs/train_options.md).

    Raises:
        ConfigError: A name that is none, a value of the wrong type or size, or settings that do not go together;
            the message names table and key, and what to write.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    # [model]
    model: str | None = _field(
        "model", None, 'A folder, a hub name, a .gguf file, or "smollm2" (the model of the example).', "name"
    )
    dtype: Annotated[Literal["bfloat16", "float32", "float16", "auto"], _renamed(_DTYPE_NAMES)] = _field(
        "model",
        "auto",
        'Of the frozen weights, and what 4-bit ones compute in; the adapter is float32. "auto": bfloat16 where the'
        " device multiplies in it (a GPU that has it; a CPU with AVX512-BF16 or AMX), else float32, which is several"
        " times faster there.",
    )
    load_in_4bit: bool = _field(
        "model", False, "NF4 with double quantisation (bitsandbytes): a quarter of the memory of the weights."
    )
    gguf_file: str | None = _field("model", None, "The .gguf file to take in a folder or hub repository.")
    revision: str | None = _field("model", None, "Branch, tag or commit of a hub repository.")

    # [lora]
    r: Count = _field("lora", 16, "Rank of the adapter. GRPO carries little information a step: 16 is plenty.")
    lora_alpha: Annotated[float, Field(gt=0)] = _field(
        "lora", 32.0, "Scale: the adapter's product is multiplied by lora_alpha / r."
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = _field(
        "lora", 0.0, "Off: dropout would make the trained policy another than the one that sampled."
    )
    target_modules: Annotated[str | tuple[str, ...], BeforeValidator(_to_tuple)] = _field(
        "lora", "all-linear", 'Names of the layers, or "all-linear" (all but the head).'
    )
    start_from: FilePath | None = _field("lora", None, "Folder of an adapter to go on from.")

    # [data]
    train: FilePath | None = _field(
        "data", None, "File of prompts: JSONL, JSON, CSV, parquet or Arrow, plain or compressed."
    )
    eval: FilePath | None = _field("data", None, "The same, held out: sampled before and after training.")
    prompt: str | None = _field("data", None, "Column of the prompt (text or chat messages); none: found by its name.")
    reference: str | None = _field(
        "data", None, "Column of the gold answer; none: found by its name, or there is none."
    )
    chat: bool = _field(
        "data", False, "A prompt that is text is one user message, put through the chat template; else it is raw text."
    )
    system_prompt: str | None = _field("data", None, "A system message in front of each prompt; implies chat.")
    chat_template_kwargs: dict[str, Any] = _field(
        "data", {}, "Arguments of the chat template, such as {enable_thinking = false}."
    )
    max_prompt_length: Count | None = _field(
        "data", None, "Tokens. A longer prompt is left out and counted, never cut."
    )
    limit: Count | None = _field("data", None, "Only the first so many prompts.")
    eval_limit: Count | None = _field("data", None, "Only the first so many held-out prompts.")
    eval_samples: Annotated[int, Field(ge=0)] = _field(
        "data", 4, "Sampled completions for each held-out prompt, beside one greedy completion."
    )

    # [reward]
    reward: dict[str, str | dict[str, Any]] = _field(
        "reward",
        {},
        "Formulas by name. `total` is what trains; the others are metrics that never touch it.",
        "total",
    )

    # [rollout]
    engine: Annotated[Literal["transformers", "vllm"], _known("sampler", ("transformers", "vllm"))] = _field(
        "rollout", "transformers", 'What samples: "transformers" runs everywhere, "vllm" is faster on a GPU.'
    )
    sampling: dict[str, Any] = _field(
        "rollout", {}, "Further sampling parameters, by the sampler's own names; for vLLM all of SamplingParams."
    )
    check_logps_every: Annotated[int, Field(ge=0)] = _field(
        "rollout", 10, "Steps between two checks that the newest adapter is what samples; 0: never."
    )
    kv_cache_dtype: str = _field("rollout", "auto", 'vLLM: "fp8" halves the key-value cache.')
    kv_cache_memory_gb: Gigabytes | None = _field(
        "rollout", None, "vLLM: GB for the key-value cache; none: what the planner leaves."
    )
    allow_untested: bool = _field("rollout", False, "Run with a vLLM version that was not tested.")

    # [grpo]
    num_generations: Count = _field(
        "grpo", 8, "G, completions for each prompt. More find a right answer to a harder prompt."
    )
    per_device_train_batch_size: Count = _field(
        "grpo",
        32,
        "Completions of a process and step, before accumulation: 4 prompts of 8. It costs time, not memory"
        " (memory.token_budget cuts it into micro-steps); one prompt a step, and a group without spread loses it.",
    )
    gradient_accumulation_steps: Count = _field(
        "grpo", 1, "A factor of the above. Raised by itself to the least that makes whole groups."
    )
    max_steps: Annotated[Count | None, BeforeValidator(_unlimited)] = _field(
        "grpo", None, "Optimizer steps; none (or -1): as num_train_epochs says."
    )
    num_train_epochs: Annotated[float, Field(gt=0)] = _field(
        "grpo", 1.0, "How often each prompt is drawn, unless max_steps says when to end."
    )
    max_completion_length: Count = _field("grpo", 256, "Tokens. Longer completions are cut off.")
    temperature: Annotated[float, Field(gt=0)] = _field("grpo", 1.0, "1 samples from the policy that is trained.")
    top_p: Annotated[float, Field(gt=0, le=1)] = _field("grpo", 1.0, "Least set of tokens with this mass; 1: all.")
    top_k: Annotated[int, BeforeValidator(_off), Field(ge=0)] = _field("grpo", 0, "The k likeliest tokens; 0: all.")
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = _field(
        "grpo", None, "Tokens with this share of the likeliest one's probability; none: all."
    )
    repetition_penalty: Annotated[float, Field(gt=0)] = _field("grpo", 1.0, "1: none.")
    learning_rate: Annotated[float, Field(gt=0)] = _field(
        "grpo",
        5e-5,
        "An adapter takes some ten times the rate of full training (1e-6 to 1e-5 in GRPO). Models below 1B learn at"
        " 1e-4 to 3e-4.",
    )
    lr_scheduler_type: Annotated[str, _known("schedule", SCHEDULERS)] = _field(
        "grpo", "constant", f"One of {', '.join(SCHEDULERS)}. Constant: the run may be ended or prolonged at any step."
    )
    warmup_steps: Annotated[int, Field(ge=0)] = _field("grpo", 0, "Steps in which the rate rises from 0.")
    optim: Annotated[str, _known("optimizer", OPTIMIZERS), _renamed(_OPTIMIZER_NAMES)] = _field(
        "grpo", "adamw_torch", f"One of {', '.join(OPTIMIZERS)}; 8 bits need bitsandbytes."
    )
    weight_decay: Annotated[float, Field(ge=0)] = _field("grpo", 0.0, "Of the adapter, towards the base model.")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = _field("grpo", 0.9, "Of the mean of gradients.")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = _field("grpo", 0.999, "Of the mean of squared gradients.")
    adam_epsilon: Annotated[float, Field(gt=0)] = _field("grpo", 1e-8, "Added to the root of the latter.")
    max_grad_norm: Annotated[float, Field(ge=0)] = _field("grpo", 1.0, "Gradients are scaled down to it; 0: never.")
    beta: Annotated[float, Field(ge=0)] = _field(
        "grpo", 0.0, "Weight of the KL to the start model. 0 saves a scoring pass; 0.001 to 0.04 holds a model back."
    )
    loss_type: Annotated[str, _known("loss", LOSSES)] = _field(
        "grpo", "dapo", "A name of docs/losses.md. dapo: every token of the step weighs the same."
    )
    epsilon: Annotated[float, Field(ge=0)] | None = _field("grpo", None, "Clip range below; none: the loss's own.")
    epsilon_high: Annotated[float, Field(ge=0)] | None = _field("grpo", None, "Clip range above; none: the loss's own.")
    delta: Annotated[float, Field(gt=1)] | None = _field(
        "grpo", None, "Upper bound of the ratio where the advantage is negative."
    )
    importance_sampling_level: Literal["token", "sequence"] | None = _field(
        "grpo", None, "Whether a ratio is a token's or a row's; none: the loss's own."
    )
    loss_options: dict[str, Any] = _field(
        "grpo", {}, f"Further numbers of the loss, by name: {', '.join(LOSS_OPTIONS)}."
    )
    scale_rewards: Annotated[Literal["group", "batch", "none"], BeforeValidator(_scaling)] = _field(
        "grpo", "group", "What advantages are divided by: the spread of the group, of the batch, or nothing."
    )
    advantage: Annotated[str, _known("method of advantages", ADVANTAGES)] | None = _field(
        "grpo", None, "A method of docs/losses.md in place of scale_rewards."
    )
    advantage_k: Count | None = _field("grpo", None, 'For advantage = "pass_at_k".')
    num_iterations: Count = _field(
        "grpo", 1, "Updates on the same completions. 1 is exactly on-policy and needs no second scoring pass."
    )
    mask_truncated_completions: bool = _field(
        "grpo", False, "Leave completions that were cut off out of the loss (they stay in the baseline)."
    )
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = _field(
        "grpo", 1.0, "Share of the tokens, those of highest entropy, that the policy term acts on."
    )
    entropy_coef: Annotated[float, Field(ge=0)] = _field("grpo", 0.0, "Weight of an entropy bonus.")
    vllm_importance_sampling_correction: bool | None = _field(
        "grpo", None, "Weigh tokens against a mismatch of sampler and trainer; none: with vllm only."
    )
    vllm_importance_sampling_mode: Annotated[str, _known("correction", CORRECTIONS)] = _field(
        "grpo",
        "token_truncate",
        "A correction of docs/losses.md. A product over a long row is almost never near 1,"
        " so it is a token's (TRL: sequence_mask).",
    )
    vllm_importance_sampling_clip_max: Annotated[float, Field(gt=0)] | None = _field(
        "grpo", None, "Its upper bound; none: its own."
    )
    vllm_importance_sampling_clip_min: Annotated[float, Field(ge=0)] | None = _field(
        "grpo", None, "Its lower bound; none: its own."
    )
    shuffle_dataset: bool = _field("grpo", True, "Another order in each epoch, by the seed.")
    max_error_share: Annotated[float, Field(ge=0, le=1)] = _field(
        "grpo",
        0.05,
        "The run stops when a reward fails on a larger share of the last completions: at least 100, in whole steps.",
    )
    max_nan_steps: Count = _field(
        "grpo", 5, "The run stops after so many steps in a row whose gradient was not finite (each is skipped)."
    )

    # [memory]
    mode: Literal["auto", "resident", "offload"] = _field(
        "memory", "auto", 'Where layer inputs wait for the backward pass: on the device, or ("offload") on the host.'
    )
    fit_in: Gigabytes | None = _field(
        "memory", None, 'GB (10^9 bytes) of device memory to stay in, or a text such as "16GB"; none: what is free.'
    )
    token_budget: Count | None = _field("memory", None, "Tokens of a micro-step; none: the planner decides.")
    gradient_checkpointing: bool | None = _field(
        "memory", None, "Compute a layer again in the backward pass; none: the planner decides."
    )

    # [run]
    dir: FilePath | None = _field("run", None, "Folder of the run; none: under runs/, named after the file.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = _field(
        "run", 0, "Of the adapter's start, the order and the sampling."
    )
    save_steps: Count = _field("run", 50, "Steps between two checkpoints; one more is written at the end.")
    save_total_limit: Count = _field("run", 2, "Checkpoints that are kept.")
    logging_steps: Count = _field("run", 1, "Steps between two lines of metrics.jsonl.")
    report_to: Annotated[tuple[str, ...], BeforeValidator(_sinks)] = _field(
        "run", (), f"Further places for the metrics: {', '.join(SINKS)}."
    )
    keep_generations: bool = _field("run", True, "Write generations.jsonl, which `rewardkit eval` reads.")
    threads: Count | None = _field("run", None, "Threads of torch on a CPU; none: torch's own choice.")
    base: FilePath | None = _field(
        "run", None, "Folder that file names in [reward] are looked up in; none: that of the training file."
    )

    # ----------------------------------------------------------------------------------------------- what goes together

    @pydantic.model_validator(mode="before")
    @classmethod
    def _take_sampling(cls, given: Any) -> Any:
        """Move what has a key of its own out of `sampling`, so that a setting stands in one place."""
        sampling = given.get("sampling") if isinstance(given, dict) else None
        if not isinstance(sampling, dict):
            return given
        given, rest = dict(given), dict(sampling)
        for theirs, ours in _SAMPLING_KEYS.items():
            if theirs not in rest:
                continue
            value = rest.pop(theirs)
            if ours in given and given[ours] != value:
                raise ValueError(
                    f"rollout.sampling.{theirs} is {value!r} and {_place(ours)} is {given[ours]!r}; give one of them"
                )
            given[ours] = value
        for theirs, instead in _REFUSED_SAMPLING.items():
            if theirs in rest:
                raise ValueError(f"rollout.sampling.{theirs} is set by the trainer; {instead}")
        given["sampling"] = rest
        return given

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> GRPOConfig:
        for check in (_check_groups, _check_loss, _check_sampling, _check_advantages, _check_schedule, _check_reward):
            check(self)
        return self

    # ----------------------------------------------------------------------------------------------------------- values

    @property
    def accumulation(self) -> int:
        """`gradient_accumulation_steps`, raised to the least that makes whole groups."""
        batch, group = self.per_device_train_batch_size, self.num_generations
        unit = group // math.gcd(batch, group)
        return -(-self.gradient_accumulation_steps // unit) * unit

    @property
    def completions_per_step(self) -> int:
        """Completions that a process samples and trains on in one step."""
        return self.per_device_train_batch_size * self.accumulation

    @property
    def prompts_per_step(self) -> int:
        """Prompts that a process draws for one step."""
        return self.completions_per_step // self.num_generations

    def steps(self, prompts: int, processes: int = 1) -> int:
        """Return the optimizer steps of the run, over so many prompts; each batch of completions counts
        `num_iterations` times."""
        if self.max_steps is not None:
            return self.max_steps
        batches = math.ceil(self.num_train_epochs * prompts / (self.prompts_per_step * processes))
        return max(1, batches) * self.num_iterations

    @property
    def advantage_method(self) -> str:
        """The name of the method in `advantage.METHODS`."""
        return self.advantage or self.scale_rewards

    @property
    def correction(self) -> str:
        """The name of the correction in `mismatch.BOUNDS`, "none" where there is none."""
        wanted = self.vllm_importance_sampling_correction
        return self.vllm_importance_sampling_mode if (self.engine == "vllm" if wanted is None else wanted) else "none"

    @property
    def loss_changes(self) -> dict[str, Any]:
        """What to change in the loss of that name: `loss.preset(config.loss_type, **config.loss_changes)`."""
        changes: dict[str, Any] = {
            "epsilon_low": self.epsilon,
            "epsilon_high": self.epsilon_high,
            "delta": self.delta,
            "ratio": self.importance_sampling_level,
        }
        if self.correction != "none":
            changes["correction"] = self.correction
            changes["correction_low"] = self.vllm_importance_sampling_clip_min
            changes["correction_high"] = self.vllm_importance_sampling_clip_max
        changes |= {"beta": self.beta or None, "entropy_coef": self.entropy_coef or None}
        options = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.loss_options.items()
        }
        return {name: value for name, value in changes.items() if value is not None} | options

    @property
    def reshaping(self) -> tuple[str, ...]:
        """The settings by which the sampler draws from another distribution than the policy at this temperature."""
        found = [] if self.top_p == 1.0 else [f"top_p = {self.top_p:g}"]
        found += [f"top_k = {self.top_k}"] if self.top_k else []
        found += [f"min_p = {self.min_p:g}"] if self.min_p else []
        found += [] if self.repetition_penalty == 1.0 else [f"repetition_penalty = {self.repetition_penalty:g}"]
        return (*found, *(f"sampling.{name}" for name in _RESHAPING if self.sampling.get(name)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user may not expect of these settings, one sentence each."""
        found = []
        if self.accumulation != self.gradient_accumulation_steps:
            found.append(
                f"made to fit by accumulation: per_device_train_batch_size {self.per_device_train_batch_size} with"
                f" num_generations {self.num_generations} takes {self.accumulation} accumulation steps, so a step is"
                f" {_prompts(self.prompts_per_step)} of {self.num_generations}"
            )
        if self.reshaping:
            found.append(
                f"{' and '.join(self.reshaping)}: what is sampled is not quite the policy that is trained, whose"
                " log-probs know nothing of it"
            )
        if self.loss_type == "dr_grpo" and self.advantage_method == "group":
            found.append('dr_grpo is meant with scale_rewards = "none": dividing by the spread is what it leaves out')
        if self.beta and self.start_from is not None:
            found.append("the reference of the KL is the adapter in start_from, kept as a frozen copy")
        if self.max_completion_length > 1000 and self.correction.startswith("sequence"):
            found.append(
                f"{self.correction} over up to {self.max_completion_length:,} tokens leaves almost no row its weight;"
                " take a token or geometric form"
            )
        return tuple(found)

    def rewards(self) -> dict[str, Reward]:
        """Return the rewards of [reward] by name; `total` is what trains.

        Raises:
            RewardkitError: A formula is none, or names what does not exist; the message names the key.
        """
        from rewardkit import recipe

        return recipe.from_table(self.reward, base=self.base)

    # ------------------------------------------------------------------------------------------------------------- text

    def to_tables(self) -> dict[str, dict[str, Any]]:
        """Return all settings as the tables of a training file; those that are None are left out."""
        tables: dict[str, dict[str, Any]] = {}
        for name in type(self).model_fields:
            value, table, key = getattr(self, name), *_where(name)
            if name == "reward":
                tables[table] = dict(value)
            elif name == "scale_rewards" and self.advantage is not None:
                continue  # it says nothing then, and giving both is refused
            elif value is not None and value != {}:
                tables.setdefault(table, {})[key] = _plain(value)
        return {name: table for name, table in tables.items() if table}

    def to_toml(self) -> str:
        """Return a training file with all settings; `read_training_file` makes an equal configuration of it."""
        import tomli_w

        return tomli_w.dumps(self.to_tables())

    def differences(self, other: GRPOConfig, *, resuming: bool = False) -> dict[str, tuple[Any, Any]]:
        """Return what differs, `table.key` to (ours, theirs).

        Args:
            other: Another configuration.
            resuming: Leave out what may change when a run is resumed: where and how much is written, threads, limits
                of faults, and, while the rate does not depend on it, the number of steps.
        """
        free = set(_FREE)
        if resuming and {self.lr_scheduler_type, other.lr_scheduler_type} <= set(_ENDLESS):
            free |= {"max_steps", "num_train_epochs"}
        found = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and not (resuming and name in free):
                found[_place(name)] = (mine, theirs)
        return found


_SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_completion_length",
    "max_new_tokens": "max_completion_length",
}
_REFUSED_SAMPLING = {
    "n": "grpo.num_generations is the number of completions of a prompt",
    "seed": "run.seed is the seed of the run, from which each group gets its own",
    "logprobs": "the log-prob of each sampled token is always taken",
    "detokenize": "texts are always made, since rewards read them",
}
_RESHAPING = (
    "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens",
    "structured_outputs", "no_repeat_ngram_size", "typical_p",
)  # fmt: skip
_FREE = (
    "dir", "save_steps", "save_total_limit", "logging_steps", "report_to", "keep_generations", "threads",
    "check_logps_every", "max_error_share", "max_nan_steps",
)  # fmt: skip
_ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")


def _prompts(count: int) -> str:
    return f"{count} prompt{'s' if count != 1 else ''}"


def _check_groups(config: GRPOConfig) -> None:
    if config.num_generations > 1:
        return
    if config.advantage_method not in _COMPARES_ACROSS_GROUPS:
        batch = config.per_device_train_batch_size
        near = 8 if batch % 8 == 0 else 4 if batch % 4 == 0 else 2
        raise ValueError(
            "grpo.num_generations is 1, and a completion alone in its group has nothing to be compared with: set"
            f" num_generations = {near}, or keep 1 and set"
            ' advantage = "reinforce_pp", which compares with all prompts of the step'
        )
    if config.prompts_per_step < 2:
        raise ValueError(
            "grpo.num_generations is 1 with one prompt a step, so nothing is compared with anything: set"
            " per_device_train_batch_size = 8 for eight prompts, or num_generations = 8 and leave out advantage"
        )


def _check_loss(config: GRPOConfig) -> None:
    has = LOSSES[config.loss_type]
    shaped = "shape" in config.loss_options  # then its options are another shape's, and the loss itself checks them
    named = {"epsilon": "epsilon_low", "epsilon_high": "epsilon_high", "delta": "delta"}
    for name, option in named.items():
        if getattr(config, name) is not None and option not in has and not shaped:
            raise ValueError(f"grpo.{name} does nothing in the loss {config.loss_type!r}, which {_options(has)}")
    for name in config.loss_options:
        if name not in LOSS_OPTIONS:
            raise ValueError(
                f"grpo.loss_options.{name}: there is no such option"
                f"{meant(name, LOSS_OPTIONS, 'the options are ' + ', '.join(LOSS_OPTIONS))}"
            )
        own = any(name in options for options in LOSSES.values())
        if own and name not in has and not shaped:
            raise ValueError(
                f"grpo.loss_options.{name} does nothing in the loss {config.loss_type!r}, which {_options(has)}"
            )
    if config.beta == 0 and {"kl_estimator", "kl_gradient"}.intersection(config.loss_options):
        raise ValueError("grpo.loss_options says how the KL is estimated, but grpo.beta is 0; set beta, such as 0.01")
    if config.epsilon is not None and config.epsilon > 1 and not shaped and "delta" in has:
        raise ValueError(f"grpo.epsilon is at most 1 (a ratio is clipped to 1 - epsilon), got {config.epsilon:g}")


def _options(names: Sequence[str]) -> str:
    return f"has {', '.join(names)}" if names else "has no numbers to set"


def _check_sampling(config: GRPOConfig) -> None:
    if config.reshaping and config.correction != "none":
        raise ValueError(
            f"grpo.{config.reshaping[0]} samples from a reshaped distribution, whose log-probs the correction of the"
            " mismatch would take for a fault of the sampler; sample from the policy itself (top_p = 1.0, top_k = 0, no"
            " min_p, no penalty), or set grpo.vllm_importance_sampling_correction = false"
        )
    if config.correction == "none":
        given = [name for name in _CORRECTION_KEYS if getattr(config, name) is not None]
        if given and config.vllm_importance_sampling_correction is None:
            name = given[0]
            raise ValueError(
                f"grpo.{name} does nothing while nothing is corrected (the transformers sampler shares its weights with"
                " the trainer); set vllm_importance_sampling_correction = true, or leave it out"
            )
    low, high = config.vllm_importance_sampling_clip_min, config.vllm_importance_sampling_clip_max
    if low is not None and high is not None and low >= high:
        raise ValueError(f"grpo.vllm_importance_sampling_clip_min is below clip_max, got {low:g} and {high:g}")
    if config.engine != "vllm":
        for name in ("kv_cache_dtype", "kv_cache_memory_gb", "allow_untested"):
            if getattr(config, name) != type(config).model_fields[name].default:
                raise ValueError(f'rollout.{name} is a setting of vLLM; set rollout.engine = "vllm", or leave it out')


_CORRECTION_KEYS = ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")


def _check_advantages(config: GRPOConfig) -> None:
    both = config.advantage is not None and "scale_rewards" in config.model_fields_set
    if both and config.advantage != config.scale_rewards:
        raise ValueError(
            f"grpo.advantage is {config.advantage!r} and grpo.scale_rewards {config.scale_rewards!r}, and both say how"
            " advantages are made; give one of them"
        )
    if (config.advantage_k is not None) != (config.advantage_method == "pass_at_k"):
        raise ValueError('grpo.advantage_k belongs to advantage = "pass_at_k"; give both or neither')
    if config.advantage_k is not None and config.advantage_k > config.num_generations:
        raise ValueError(
            f"grpo.advantage_k is at most num_generations, got {config.advantage_k} of {config.num_generations}"
        )


def _check_schedule(config: GRPOConfig) -> None:
    if config.lr_scheduler_type == "constant" and config.warmup_steps:
        raise ValueError(
            f'grpo.lr_scheduler_type "constant" does not warm up, and warmup_steps is {config.warmup_steps}; set'
            ' lr_scheduler_type = "constant_with_warmup"'
        )
    if config.max_steps is not None and config.warmup_steps > config.max_steps:
        raise ValueError(
            f"grpo.warmup_steps is {config.warmup_steps} of {config.max_steps} max_steps, so the rate would never be"
            " reached"
        )
    if config.load_in_4bit and (config.gguf_file is not None or str(config.model or "").endswith(".gguf")):
        raise ValueError(
            "model.load_in_4bit cannot be used with a .gguf file, which is read into plain weights; name the folder of"
            " the model before it was converted, or leave load_in_4bit out"
        )


def _check_reward(config: GRPOConfig) -> None:
    if config.reward and "total" not in config.reward:
        name = next(iter(config.reward))
        raise ValueError(
            f'reward.total is missing: it is what trains, and {name!r} alone is a metric; write total = "{name}", or'
            " the formula"
        )


def _plain(value: Any) -> Any:
    """Return a value as TOML can hold it."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


# -------------------------------------------------------------------------------------------------------------- places


def _where(name: str) -> tuple[str, str]:
    """Return table and key of a field."""
    extra = GRPOConfig.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["table"]), str(extra["key"] or name)


def _place(name: str) -> str:
    table, key = _where(name)
    return table if name == "reward" else f"{table}.{key}"


@dataclass(frozen=True)
class FieldDoc:
    """What there is to say of one key of the file.

    Attributes:
        table, key: Where it stands.
        field: Its name in Python.
        type: Its type, in words.
        default: As TOML; "" where there is none.
        doc: What it means.
    """

    table: str
    key: str
    field: str
    type: str
    default: str
    doc: str


def field_docs() -> list[FieldDoc]:
    """Return all keys of a training file in order."""
    return [
        FieldDoc(*_where(name), name, _words(found.annotation), _shown(found.default), found.description or "")
        for name, found in GRPOConfig.model_fields.items()
    ]


_TYPE_WORDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Path": "path"}


def _words(annotation: Any) -> str:
    from typing import get_args, get_origin

    if get_origin(annotation) is Annotated:
        return _words(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return ", ".join(f'"{value}"' for value in get_args(annotation))
    parts = [part for part in get_args(annotation) if part not in (type(None), ...)]
    if annotation is dict or get_origin(annotation) is dict:
        return "table"
    if get_origin(annotation) is tuple:
        return "list of texts"
    if parts:
        return " or ".join(dict.fromkeys(_words(part) for part in parts))
    return _TYPE_WORDS.get(getattr(annotation, "__name__", ""), str(annotation))


def _shown(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, tuple):
        return "[]"
    return "{}" if isinstance(default, dict) else f"{default:g}"


# -------------------------------------------------------------------------------------------------------------- errors


def _unknown_key(name: str, table: str = "") -> str:
    """Say that there is no such key (in this table), and which one was meant."""
    known = {key: field for field in GRPOConfig.model_fields for key in (_where(field)[1], field)}
    where = f"{table}.{name}" if table else name
    if name in known and table:
        return f"{where}: {name} stands in [{_where(known[name])[0]}], not in [{table}]"
    foreign = BY_NAME.get(name.lower())
    if foreign is not None:
        return f"there is no key {where}; {foreign.sentence}"
    here = [_where(field)[1] for field in GRPOConfig.model_fields if _where(field)[0] == table]
    close = nearest(name, here) or nearest(name, known)
    if not close:
        return f"there is no key {where}; {f'[{table}] has ' + ', '.join(here) if here else 'docs/train_options.md'}"
    found = close.removeprefix("; did you mean ").removesuffix("?")
    return f"there is no key {where}; did you mean {_place(known[found])}?"


def _problems(problem: pydantic.ValidationError) -> str:
    """Return all problems, one a line; the first is the one to begin with."""
    return "\n".join(dict.fromkeys(_problem(error) for error in problem.errors(include_url=False)[:5]))


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a table",
    "tuple_type": "a list",
    "path_type": "a path",
    "is_instance_of": "a path",
    "finite_number": "a finite number",
}


_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _problem(error: Any) -> str:
    loc = [str(part) for part in error["loc"]]
    message = error["msg"].removeprefix("Value error, ")
    if not loc:
        return str(message)
    where = _place(loc[0])
    if loc[0] == "reward" and len(loc) > 1:
        return f"reward.{loc[1]} is a formula (text) or a table, got {_repr(error['input'])}"
    if error["type"] == "value_error":
        return f"{where}: {message}"
    context = error.get("ctx") or {}
    wanted = _WANTED.get(error["type"])
    for kind, (words, key) in _BOUNDS.items():
        if error["type"] == kind:
            bound = context[key]
            wanted = f"{words} {bound:,}" if isinstance(bound, int) else f"{words} {bound:g}"
    if error["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", str(context.get("expected")))
        hint = nearest(error["input"], known) if isinstance(error["input"], str) else ""
        return f"{where} is one of {', '.join(known)}, got {_repr(error['input'])}{hint}"
    if wanted is None:
        message = message[0].lower() + message[1:]
        return f"{where}: {message}, got {_repr(error['input'])}"
    extra = _EXTRA.get((loc[0], error["type"]), "")
    return f"{where} is {wanted}, got {_repr(error['input'])}{extra}"


_EXTRA = {
    ("temperature", "greater_than"): "; at 0 all completions of a group are the same, and nothing is learned",
    ("lora_dropout", "less_than"): "; 0 is the default",
    ("num_generations", "greater_than_equal"): "; set num_generations = 8, or 4",
}


def _repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---------------------------------------------------------------------------------------------------------------- file


def read_training_file(path: str | Path, overrides: Sequence[str] = ()) -> GRPOConfig:
    """Read a training file. Paths in it are relative to its own folder.

    Args:
        path: A TOML file.
        overrides: `table.key=value`; the value is TOML, or else taken as text. Paths are relative to the working
            folder.

    Raises:
        InputError: There is no such file, or it is no TOML.
        ConfigError: A key or a value is wrong, or something that a run needs is missing.
    """
    path = Path(path)
    tables = _read_tables(path)
    try:
        fields = fields_of_tables(tables)
        base = Path(os.path.normpath(path.absolute().parent))
        _anchor(fields, base)
        fields.setdefault("base", base)
        for text in overrides:
            _override(fields, text)
        config = GRPOConfig(**fields)
        _check_complete(config)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
    return config


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = sorted(file.name for file in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = nearest(path.name, near) or (f"; there is {', '.join(near[:5])}" if near else "")
        raise InputError(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; a training file is wanted (to go on with a run: --resume)") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InputError(f"{path} is not TOML: {problem}") from None


def _tables() -> dict[str, dict[str, str]]:
    """Return table -> key -> field."""
    found: dict[str, dict[str, str]] = {}
    for name in GRPOConfig.model_fields:
        table, key = _where(name)
        found.setdefault(table, {})[key] = name
    return found


def fields_of_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by field of what a training file holds by table and key.

    Raises:
        ConfigError: There is no such table or key; the message names the nearest.
    """
    known = _tables()
    fields: dict[str, Any] = {}
    for table, keys in tables.items():
        if table not in known:
            raise ConfigError(_unknown_table(table, keys, known))
        if not isinstance(keys, dict):
            raise ConfigError(f"[{table}] is a table, got {_repr(keys)}")
        if table == "reward":
            fields["reward"] = dict(keys)
            continue
        for key, value in keys.items():
            if key not in known[table]:
                raise ConfigError(_unknown_key(key, table))
            fields[known[table][key]] = value
    return fields


def _unknown_table(name: str, value: Any, known: Mapping[str, Mapping[str, str]]) -> str:
    if not isinstance(value, dict):
        for table, keys in known.items():
            if name in keys or (name in GRPOConfig.model_fields and table == _where(name)[0]):
                return f"{name} stands outside of any table; put it below [{table}]"
        return _unknown_key(name)
    return f"there is no table [{name}]{meant(name, known, 'the tables are ' + ', '.join(known))}"


_PATHS = ("start_from", "train", "eval", "dir", "base")


def _anchor(fields: dict[str, Any], base: Path) -> None:
    """Make paths absolute that are relative to `base`."""
    for name in _PATHS:
        value = fields.get(name)
        if isinstance(value, str):
            fields[name] = _joined(base, value)
    model = fields.get("model")
    if isinstance(model, str) and model:
        place = _joined(base, model)
        if place.exists() or model.startswith((".", "/", "~")) or model.endswith(".gguf"):
            fields["model"] = str(place)


def _joined(base: Path, text: str) -> Path:
    """Return an absolute path without . and .., whose links are left as they are."""
    return Path(os.path.normpath(base / Path(text).expanduser()))


def _override(fields: dict[str, Any], text: str) -> None:
    """Set one `table.key=value`; a key of a table inside (`rollout.sampling.top_k`) may be given, too."""
    place, equals, raw = text.partition("=")
    parts = [part.strip() for part in place.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: write table.key=value, such as --set grpo.max_steps=20")
    value = _toml_value(raw.strip())
    known = _tables()
    if len(parts) == 1:
        matches = [table for table, keys in known.items() if parts[0] in keys or parts[0] in keys.values()]
        where = f"--set {_place(known_field(parts[0]))}={raw.strip()}" if matches else ""
        raise ConfigError(f"--set {text}: {f'write {where}' if where else _unknown_key(parts[0])}")
    table, key, *inner = parts
    if table not in known:
        raise ConfigError(f"--set {text}: {_unknown_table(table, {}, known)}")
    if table == "reward":
        formula = value if isinstance(value, (str, dict)) else raw.strip()
        fields["reward"] = {**fields.get("reward", {}), ".".join(parts[1:]): formula}
        return
    if key not in known[table]:
        raise ConfigError(f"--set {text}: {_unknown_key(key, table)}")
    change = {known[table][key]: value}
    if inner:
        old = fields.get(known[table][key], {})
        change = {known[table][key]: {**(old if isinstance(old, dict) else {}), ".".join(inner): value}}
    _anchor(change, Path.cwd())
    fields.update(change)


def known_field(name: str) -> str:
    """Return the field that is called so, in Python or in the file.

    Raises:
        KeyError: There is none.
    """
    if name in GRPOConfig.model_fields:
        return name
    return next(field for keys in _tables().values() for key, field in keys.items() if key == name)


def _toml_value(text: str) -> Any:
    """Return a value as TOML has it, or the text itself where it is none (a bare word, a path, a formula)."""
    try:
        return tomllib.loads(f"value = {text}\n")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def _check_complete(config: GRPOConfig) -> None:
    """Refuse a file that lacks what every run needs."""
    needs = {
        "model": ("model.name", 'name = "Qwen/Qwen2.5-1.5B-Instruct"'),
        "train": ("data.train", 'train = "train.jsonl"'),
    }
    for field, (place, example) in needs.items():
        if not getattr(config, field):
            raise ConfigError(f"{place} is missing; write {example} below [{place.partition('.')[0]}]")
    if not config.reward:
        raise ConfigError('reward.total is missing; write total = "gsm8k + 0.1*think_format" below [reward]')
