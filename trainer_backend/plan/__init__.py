"""How much memory a run will take, before anything is loaded: every byte by name, from config.json alone.

    shape.py      the sizes of a model
    terms.py      what takes memory, as formulas with their table
    paths.py      the ways to train within less of it
    estimate.py   all terms of one path: a plan
    search.py     the fastest plan that fits
    advice.py     settings that would fit where none does
    memory.py     how much memory there is

Nothing here imports torch or transformers before something is asked for that needs them.
"""

from trainer_backend.plan.advice import Change, advice, does_not_fit, out_of_memory
from trainer_backend.plan.estimate import Plan, estimate, most_tokens
from trainer_backend.plan.memory import available_host, free_memory
from trainer_backend.plan.search import make_plan
from trainer_backend.plan.shape import Shape, shape_of
from trainer_backend.plan.terms import (
    GB,
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
    nf4_bytes,
)

__all__ = [
    "GB",
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
    "free_memory",
    "make_plan",
    "most_tokens",
    "nf4_bytes",
    "out_of_memory",
    "shape_of",
]
