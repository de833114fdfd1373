"""Which plan: the fastest path that fits, in the largest micro-steps, with the most rows sampled together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_backend.plan.estimate import Plan, estimate, least_rows, most_rows
from trainer_backend.plan.paths import TARGET, open_paths
from trainer_backend.plan.terms import GB, VLLM_CACHE, Task, always

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

HEADROOM = 0.95
"""Share of the free memory that a plan uses: allocators lose some to fragments."""


def make_plan(task: Task, config: GRPOConfig, *, free: int, free_host: int | None = None) -> Plan:
    """Return the fastest plan that fits; where none does, the smallest (its `fits` is false).

    Keeping everything is fastest, then computing layers again, then also letting their inputs wait on the host. Larger
    micro-steps are faster up to `TARGET`, and so is sampling with more rows. `memory.mode`,
    `gradient_checkpointing` and `token_budget` hold where given.

    Args:
        task: Model, prompts and device.
        config: The settings; `fit_in` bounds the device's memory.
        free: Bytes of the device that are free before the model is loaded.
        free_host: Bytes of the host that layer inputs may take; None: not known.
    """
    limit = int(free * HEADROOM)
    if config.fit_in is not None:
        limit = min(limit, int(config.fit_in * GB))
    smallest = None
    for rows in rows_to_try(task, config, limit):
        for path, least in open_paths(task, config):
            for tokens in budgets(task, config, least):
                found = estimate(
                    task, config, token_budget=tokens, checkpointing=path.checkpointing, mode=path.mode, rows=rows
                )
                found = replace(found, limit=limit, host_limit=free_host)
                if found.fits:
                    return found
                if smallest is None or found.device_peak <= smallest.device_peak:
                    smallest = found
    assert smallest is not None  # there are always rows, a path and a budget
    return smallest


def rows_to_try(task: Task, config: GRPOConfig, limit: int) -> list[int]:
    """Return the numbers of rows to try, the largest first."""
    most, least = most_rows(task, config), least_rows(task, config)
    if config.engine != "vllm":
        return _halved(most, least)
    if config.kv_cache_memory_gb is not None:
        return [most]
    if task.device == "cuda":
        return _halved(most, least)
    # The cache is held while training, so it must not take what training needs: half of what the rest leaves.
    terms = list(always(task, config, most))
    rest = sum(term.bytes for term in terms if term.name != VLLM_CACHE)
    cache = next(term.bytes for term in terms if term.name == VLLM_CACHE)
    most = min(most, (limit - rest) // 2 * most // cache)
    return _halved(max(most, least), least)


def budgets(task: Task, config: GRPOConfig, least: int) -> Sequence[int]:
    """Return the token budgets to try, the largest first; each holds the longest row."""
    longest = task.longest(config)
    if config.token_budget is not None:
        return [max(longest, config.token_budget)]
    most = max(longest, TARGET[task.device])
    return _halved(most, max(longest, min(least, most)))


def _halved(most: int, least: int) -> list[int]:
    """Return `most` and its halves, `least` at the end."""
    found = [most]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found if found[-1] == least else [*found, least]
