"""The ways to train within less memory. Each says what its layers take, in the letters of `terms`.

| path | term | bytes |
| --- | --- | --- |
| keep | layers, kept | L T ((4b + n/2) H + 4b F + 2b D (h + k) + 4h + 7b r) |
| | one layer: alive in its backward pass | T (5b H + 2b F) |
| recompute | layer inputs | L T b H |
| | one layer: computed again, and its backward pass | T ((5b + n) H + 6b F + 2b D (h + k) + 4h + 6b r) |
| offload | layer inputs, on the host | L T b H |
| | on the way: newest, arriving, in use | 3 T b H |
| | one layer | as with recompute |

A path that is added stands here alone: its terms, its words, and its place in `open_paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer_backend.plan.terms import Task, Term, attention_kept, norms_kept

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

Mode = Literal["resident", "offload"]
"""Where layer inputs wait for the backward pass."""

ON_THE_WAY = 3
"""Layer inputs on the device at once with offload: the newest, one arriving, one in use."""

TARGET = {"cuda": 16_384, "cpu": 4_096}
"""Tokens of a micro-step from which on larger ones are no faster."""

WORTHWHILE = {"cuda": 4_096, "cpu": 512}
"""Tokens of a micro-step down to which it is faster to keep everything than to compute layers again."""


@dataclass(frozen=True)
class Path:
    """A way to train.

    Attributes:
        name: In one word.
        checkpointing: Whether layers are computed again in the backward pass.
        mode: Where their inputs wait.
        words: What becomes of the layers.
        doing: The same as what is done, to say what it would take.
        terms: Of a task, the settings and the tokens of a micro-step, what the layers take.
    """

    name: str
    checkpointing: bool
    mode: Mode
    words: str
    doing: str
    terms: Callable[[Task, GRPOConfig, int], Iterator[Term]]


def _keep(task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    s, b, n, t = task.shape, task.number, norms_kept(task), f"{tokens:,}"
    each = (4 * b + n // 2) * s.hidden + 4 * b * s.intermediate + attention_kept(task) + 7 * b * config.r + 8
    yield Term("layers, kept", s.layers * tokens * each, f"{s.layers} x {t} x {each:,}", "training")
    passing = 5 * b * s.hidden + 2 * b * s.intermediate
    yield Term("one layer", tokens * passing, f"{t} x {passing:,}", "layer")


def _recompute(task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    yield Term("layer inputs", *_inputs(task, tokens), "training")
    yield _computed_again(task, config, tokens)


def _offload(task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    if task.device != "cuda":  # the device is the host
        yield from _recompute(task, config, tokens)
        return
    s = task.shape
    yield Term("layer inputs", *_inputs(task, tokens), "training", "host")
    moving = min(ON_THE_WAY, s.layers) * tokens * task.number * s.hidden
    yield Term("layer inputs, on the way", moving, f"{ON_THE_WAY} of them", "training")
    yield _computed_again(task, config, tokens)


def _inputs(task: Task, tokens: int) -> tuple[int, str]:
    s, b = task.shape, task.number
    return s.layers * tokens * b * s.hidden, f"{s.layers} x {tokens:,} x {b} x {s.hidden:,}"


def _computed_again(task: Task, config: GRPOConfig, tokens: int) -> Term:
    s, b, n = task.shape, task.number, norms_kept(task)
    each = (5 * b + n) * s.hidden + 6 * b * s.intermediate + attention_kept(task) + 6 * b * config.r + 8
    return Term("one layer", tokens * each, f"{tokens:,} x {each:,}", "layer")


KEEP = Path("keep", False, "resident", "everything kept for backward", "keeping everything", _keep)
RECOMPUTE = Path(
    "recompute",
    True,
    "resident",
    "layers computed again, their inputs on the device",
    "keeping layer inputs on the device",
    _recompute,
)
OFFLOAD = Path(
    "offload",
    True,
    "offload",
    "layers computed again, their inputs waiting on the host",
    "moving layer inputs to the host",
    _offload,
)
PATHS = (KEEP, RECOMPUTE, OFFLOAD)


def path_of(checkpointing: bool, mode: Mode) -> Path:
    """Return the path of these settings; without layers that are computed again no inputs wait."""
    return next(
        path for path in PATHS if path.checkpointing == checkpointing and (path.mode == mode or not checkpointing)
    )


def open_paths(task: Task, config: GRPOConfig) -> Iterator[tuple[Path, int]]:
    """Yield the paths that the settings leave open, the fastest first, each with the tokens of a micro-step down to
    which it is tried before the next one."""
    cuda, again = task.device == "cuda", config.gradient_checkpointing
    if config.mode != "offload" and again is not True:
        yield KEEP, 0 if again is False else WORTHWHILE[task.device]
    if config.mode != "offload" and again is not False:
        # With larger micro-steps, inputs that wait on the host cost less than small micro-steps do.
        yield RECOMPUTE, TARGET[task.device] // 2 if cuda and config.mode == "auto" else 0
    if config.mode == "offload" or (config.mode == "auto" and cuda and again is not False):
        yield OFFLOAD, 0
        if config.mode == "auto":
            yield RECOMPUTE, 0  # the host may have no room
