"""How much memory a run will take, before anything is loaded: every byte by name, from config.json alone.

    shape.py      the sizes of a model
    families.py   the same straight from config.json, for the common families
    terms.py      what takes memory, as formulas with their table
    paths.py      the ways to train within less of it
    estimate.py   all terms of one path: a plan
    search.py     the fastest plan that fits
    advice.py     settings that would fit where none does
    memory.py     how much memory there is
    models.py     where a model's config.json is, and a table of well-known ones
    cards.py      common GPUs
    duration.py   the time of an update, from its operations
    command.py    `rewardkit plan`: all of this as text or JSON

Nothing here imports torch or transformers before something is asked for that needs them.
"""

from trainer_backend.plan.advice import Change, advice, does_not_fit, out_of_memory
from trainer_backend.plan.estimate import Plan, estimate, most_tokens
from trainer_backend.plan.families import shape_from_json
from trainer_backend.plan.memory import available_host, free_memory
from trainer_backend.plan.search import longest_context, make_plan, why
from trainer_backend.plan.shape import Shape, shape_of
from trainer_backend.plan.terms import (
    GB,
    LINE_WORTH,
    MERGED_WIDTH,
    PADDED,
    PREFILL,
    RUNTIME,
    SAMPLED_ROWS,
    SHARED_WIDTH,
    VLLM_CACHE,
    VLLM_RANKS,
    WORTH,
    Task,
    Term,
    adapter_numbers,
    folds,
    nf4_bytes,
)

__all__ = [
    "GB",
    "LINE_WORTH",
    "MERGED_WIDTH",
    "PADDED",
    "PREFILL",
    "RUNTIME",
    "SAMPLED_ROWS",
    "SHARED_WIDTH",
    "VLLM_CACHE",
    "VLLM_RANKS",
    "WORTH",
    "Change",
    "Plan",
    "Shape",
    "Task",
    "Term",
    "adapter_numbers",
    "advice",
    "available_host",
    "does_not_fit",
    "estimate",
    "folds",
    "free_memory",
    "longest_context",
    "make_plan",
    "most_tokens",
    "nf4_bytes",
    "out_of_memory",
    "shape_from_json",
    "shape_of",
    "why",
]
