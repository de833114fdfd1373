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

    Keeping everything is fastest, then computing layers again (streamed where they can be), then also letting their
    inputs wait on the host. Larger micro-steps are faster up to `TARGET`, and so is sampling with more rows.
    `memory.mode`, `gradient_checkpointing` and `token_budget` hold where given.

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
                found = estimate(task, config, token_budget=tokens, path=path, rows=rows)
                found = replace(found, limit=limit, host_limit=free_host)
                if found.fits:
                    return found
                # Of those that take the same while sampling, the one that takes least in training.
                if smallest is None or _size(found) <= _size(smallest):
                    smallest = found
    assert smallest is not None  # there are always rows, a path and a budget
    return smallest


def _size(plan: Plan) -> tuple[int, int]:
    return plan.device_peak, plan.training


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


def why(task: Task, config: GRPOConfig, plan: Plan) -> str:
    """Return in one sentence which path a plan takes, and what the faster ones would take in their smallest
    micro-steps; of a plan that does not fit, what its smallest path takes."""
    if not plan.fits:
        return (
            f"none fits; the smallest takes {plan.training / GB:.1f} GB in training and {plan.sampling / GB:.1f} GB in"
            " sampling"
        )
    faster = []
    for path, least in open_paths(task, config):
        if path is plan.path:
            break
        tokens = budgets(task, config, least)[-1]
        found = estimate(task, config, token_budget=tokens, path=path, rows=plan.rows)
        takes = f"{path.doing} takes {found.device_peak / GB:.1f} GB"
        takes += "" if tokens == plan.token_budget else f" in micro-steps of {tokens:,}"
        if plan.host_limit is not None and found.host_peak > plan.host_limit:
            takes += f" and {found.host_peak / GB:.1f} GB of the host"
        faster.append(takes)
    chosen = f"{plan.path.words}, in micro-steps of {plan.token_budget:,} tokens"
    if not faster:
        return f"{chosen}: the fastest of the paths that are open"
    return f"{chosen}, since {' and '.join(faster)}"


STEP = 256
"""Tokens that the longest context is found to."""

_MOST = 2**24


def longest_context(task: Task, config: GRPOConfig, *, free: int, free_host: int | None = None) -> int | None:
    """Return the tokens of the longest row with which a run fits, the prompt as it is, rounded down to `STEP`; None
    where no row fits.

    Args:
        task, config, free, free_host: As for `make_plan`.
    """

    def fits(steps: int) -> bool:
        changed = config.model_copy(update={"max_completion_length": steps * STEP - task.longest_prompt})
        return make_plan(task, changed, free=free, free_host=free_host).fits

    good = task.longest_prompt // STEP + 1
    if not fits(good):
        return None
    bad = 2 * good
    while bad * STEP < _MOST and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good * STEP
