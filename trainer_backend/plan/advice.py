"""What to say, and which settings would do, where a run does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_backend.plan.estimate import Plan, estimate, least_rows
from trainer_backend.plan.paths import open_paths
from trainer_backend.plan.search import budgets
from trainer_backend.plan.terms import GB, Task

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig


@dataclass(frozen=True)
class Change:
    """Settings that would fit: what to write, and the peak then."""

    settings: tuple[tuple[str, Any], ...]
    peak: int

    def __str__(self) -> str:
        written = " and ".join(f"{name} = {_toml(value)}" for name, value in self.settings)
        return f"{written} ({self.peak / GB:.1f} GB)"


def advice(task: Task, config: GRPOConfig, *, limit: int, count: int = 3) -> list[Change]:
    """Return up to `count` changes of the settings with which a run stays under `limit` bytes of the device.

    Changes that cost least come first; combinations of two and three where one alone does not do.
    """
    found: list[Change] = []
    options = list(_options(task, config))
    for size in (1, 2, 3):
        for chosen in itertools.combinations(options, size):
            names = [name for change in chosen for name, _ in change]
            settings = tuple(setting for change in chosen for setting in change)
            if len(set(names)) != len(names) or any(set(one.settings) <= set(settings) for one in found):
                continue
            peak = smallest_peak(task, config.model_copy(update={_field(name): value for name, value in settings}))
            if peak <= limit:
                found.append(Change(settings, peak))
            if len(found) == count:
                return found
    return found


def out_of_memory(task: Task, config: GRPOConfig, plan: Plan) -> str:
    """Return what to say when the device ran out of memory in spite of a plan: settings that need clearly less."""
    limit = min(plan.device_peak if plan.limit is None else plan.limit, plan.device_peak)
    changes = advice(task, config, limit=int(0.85 * limit))
    where = "GPU" if task.device == "cuda" else "machine"
    start = f"The {where} ran out of memory; the plan was {plan.device_peak / GB:.1f} GB"
    if not changes:
        return f"{start}. No settings of this model that need clearly less were found: take a smaller model"
    return f"{start}. Settings that would fit: {'; '.join(str(change) for change in changes)}"


def does_not_fit(task: Task, config: GRPOConfig, plan: Plan) -> str:
    """Return what to say when no plan fits: what is needed, what there is, and settings that would do."""
    limit = plan.limit if plan.limit is not None else plan.device_peak
    start = f"The run needs about {plan.device_peak / GB:.1f} GB and may take {limit / GB:.1f} GB"
    changes = advice(task, config, limit=limit)
    if not changes:
        return f"{start}. No settings of this model that fit were found: take a smaller model"
    return f"{start}. Settings that would fit: {'; '.join(str(change) for change in changes)}"


def smallest_peak(task: Task, config: GRPOConfig) -> int:
    """Return the smallest peak of the paths that the settings leave open."""
    rows = least_rows(task, config)
    return min(
        estimate(task, config, token_budget=tokens, path=path, rows=rows).device_peak
        for path, _ in open_paths(task, config)
        for tokens in budgets(task, config, 0)
    )


def _options(task: Task, config: GRPOConfig) -> Iterable[tuple[tuple[str, Any], ...]]:
    """Yield changes by what they cost: time first, then precision, then what is trained on, then what with."""
    longest = task.longest(config)
    if config.gradient_checkpointing is False:
        yield (("memory.gradient_checkpointing", True),)
    if config.token_budget is not None and config.token_budget > longest:
        yield (("memory.token_budget", longest),)
    if task.device == "cuda" and config.mode == "resident":
        yield (("memory.mode", "offload"),)
    if not config.load_in_4bit:
        yield (("model.load_in_4bit", True),)
    if config.engine == "vllm" and config.kv_cache_memory_gb is not None:
        yield (("rollout.kv_cache_memory_gb", round(config.kv_cache_memory_gb / 2, 2)),)
    if config.optim == "adamw_torch":
        yield (("grpo.optim", "adamw_8bit"),)
    if config.r > 8:
        yield (("lora.r", 8),)
    if config.per_device_train_batch_size > config.num_generations:
        batch = config.per_device_train_batch_size
        yield (("grpo.per_device_train_batch_size", max(config.num_generations, batch // 2)),)
        yield (("grpo.per_device_train_batch_size", config.num_generations),)
    for share in (2, 4, 8):
        if config.max_completion_length // share >= 16:
            yield (("grpo.max_completion_length", config.max_completion_length // share),)
    if config.num_generations % 2 == 0 and config.num_generations >= 8:
        yield (("grpo.num_generations", config.num_generations // 2),)  # with fewer than 4 most groups have no spread


def _field(name: str) -> str:
    return name.rpartition(".")[2]


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
