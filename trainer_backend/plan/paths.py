"""The ways to train within less memory. Each says what training takes, in the letters of `terms`.

| path | term | bytes |
| --- | --- | --- |
| keep | layers, kept | L T ((4b + n/2) H + 4b F + 2b D (h + k) + 4h + 7b r) |
| | one layer: alive in its backward pass | T (5b H + 2b F) |
| streamed | layer inputs | L T b H |
| | attention's output, and its log-sum-exp | L T (b h D + 4h) |
| | positions | T (2b D + 16) |
| | one layer: a gradient, keys and values, and their gradients | T (b H + 2b k D + 8 k D) |
| | one chunk of it | C |
| | one layer's weights: of 4-bit ones as numbers of the compute type | b N |
| | ... and its adapter's gradients, and copies where b < 4 | 4 N, b N |
| streamed-all | ... in place of attention's output, all that is computed | L T (b (H + 2 D (h + k) + 2F) + 4h) |
| | one layer, without keys and values, which are kept | T (b H + 8 k D) |
| streamed-again | as streamed, without what attention gave: it is computed again | |
| streamed-offload, streamed-least | as streamed and streamed-again, with layer inputs and the rest on the host | |
| | on the way: of two layers | 2 T (b H + b h D + 4h), 2 T b H |
| recompute | layer inputs | L T b H |
| | one layer: computed again, and its backward pass | T ((5b + n) H + 6b F + 2b D (h + k) + 4h + 6b r) |
| offload | layer inputs, on the host | L T b H |
| | on the way: newest, arriving, in use | 3 T b H |
| | one layer | as with recompute |

C is what a chunk of c tokens has, W the longest row, q = 2 h D the queries with what their norm needs, h D more where
attention is computed again, and nothing where all is kept; H and 2 F are less then, too. It is the larger of

* c (b (4H + q + 3F) + e F), in the gate's backward pass; e is what torch puts between where there are no kernels: 16,
  or 20 where b < 4;
* c (b (H + q + 2 h D) + 4 h D) + 2 b W k D, in that of attention, with the gradients of the keys and values that a
  chunk sees in one block; on a GPU 4 c h D more, and 2 b W h D more where heads share keys.

Where inputs wait on the host, AdamW's moments do so, too (`terms.always`). A path that is added stands here alone: its
terms, its words, and its place in `open_paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer_backend.plan.terms import (
    Place,
    Task,
    Term,
    adapter_cast,
    adapter_numbers,
    attention,
    attention_kept,
    head,
    norms_kept,
    quantised,
)
from trainer_backend.sizes import STREAMED_CHUNK

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

Mode = Literal["resident", "offload"]
"""Where layer inputs wait for the backward pass."""

ON_THE_WAY = 3
"""Layer inputs on the device at once with offload: the newest, one arriving, one in use."""

STREAMED_ON_THE_WAY = 2
"""The same of what is kept of streamed layers: one in use, and one that arrives or leaves."""

LONG = 4_096
"""Tokens of a row from which on streamed layers that keep everything are faster than a model's own on a GPU: 60.6 ms a
layer against 73 at 20,480 tokens of Llama-3.1-8B on an H200. Shorter rows have not been measured."""

TARGET = {"cuda": 16_384, "cpu": 4_096}
"""Tokens of a micro-step from which on larger ones are no faster."""

WORTHWHILE = {"cuda": 4_096, "cpu": 512}
"""Tokens of a micro-step down to which it is faster to keep everything than to compute layers again."""


@dataclass(frozen=True)
class Path:
    """A way to train.

    Attributes:
        name: In one word.
        words: What becomes of the layers.
        doing: The same as what is done, to say what it would take.
        formula: Of this path, a task, the settings and the tokens of a micro-step, what training takes.
        checkpointing: Whether layers are computed again in the backward pass.
        mode: Where their inputs wait.
        keep: What `model.streamed` keeps of a layer, where layers go through it on rows in a line (`batch`); "": they
            do not.
        chunk: Tokens that go through a streamed layer at a time.
    """

    name: str
    words: str
    doing: str
    formula: Callable[[Path, Task, GRPOConfig, int], Iterator[Term]]
    checkpointing: bool = True
    mode: Mode = "resident"
    keep: Literal["", "inputs", "attention", "all"] = ""
    chunk: int = STREAMED_CHUNK

    def terms(self, task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
        """Yield what training takes in micro-steps of so many tokens."""
        return self.formula(self, task, config, tokens)

    @property
    def streamed(self) -> bool:
        """Whether layers go through `model.streamed`."""
        return bool(self.keep)

    @property
    def attends_again(self) -> bool:
        """Whether attention is computed again in the backward pass."""
        return self.checkpointing and self.keep != "attention"


def _keep(path: Path, task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    s, b, n, t = task.shape, task.number, norms_kept(task), f"{tokens:,}"
    yield from adapter_cast(task, config)
    each = (4 * b + n // 2) * s.hidden + 4 * b * s.intermediate + attention_kept(task, config) + 7 * b * config.r + 8
    yield Term("layers, kept", s.layers * tokens * each, f"{s.layers} x {t} x {each:,}", "training")
    passing = 5 * b * s.hidden + 2 * b * s.intermediate
    yield Term("one layer", tokens * passing, f"{t} x {passing:,}", "layer")
    yield from attention(task, config, tokens, recomputed=False)
    yield head(task, tokens)


def _streamed(path: Path, task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    s, b, t = task.shape, task.number, f"{tokens:,}"
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    kept = {
        "inputs": 0,
        "attention": b * queries + 4 * s.heads,
        "all": b * (s.hidden + 2 * queries + 2 * keys + 2 * s.intermediate) + 4 * s.heads,
    }[path.keep]
    waits: Place = "host" if path.mode == "offload" else "device"
    yield Term("layer inputs", *_inputs(task, tokens), "training", waits)
    what = "attention's output" if path.keep == "attention" else "layers, kept"
    yield Term(what, s.layers * tokens * kept, f"{s.layers} x {t} x {kept:,}", "training", waits)
    if waits == "host":
        group = b * s.hidden + kept
        count = min(STREAMED_ON_THE_WAY, s.layers)
        yield Term("... on the way", count * tokens * group, f"{count} x {t} x {group:,}", "training")
    positions = 2 * b * s.head_dim + 16
    yield Term("positions", tokens * positions, f"{t} x {positions:,}", "training")
    each = b * s.hidden + (0 if path.keep == "all" else 2 * b * keys) + 8 * keys
    yield Term("one layer", tokens * each, f"{t} x {each:,}", "layer")
    yield _chunk(task, config, tokens, path)
    plain = sum(inputs * outputs for _, inputs, outputs in quantised(task, config)) // s.layers
    adapter, each = adapter_numbers(s, config) // s.layers, 4 + (b if b < 4 else 0)
    how = f"{each} x {adapter:,}" + (f" + {b} x {plain:,}" if plain else "")
    yield Term("one layer's weights", each * adapter + b * plain, how, "layer")
    yield head(task, tokens, streamed=True)


def _chunk(task: Task, config: GRPOConfig, tokens: int, path: Path) -> Term:
    s, b, cuda = task.shape, task.number, task.device == "cuda"
    again = {"inputs": 1, "attention": 0, "all": -2}[path.keep]
    queries, size = s.heads * s.head_dim, min(path.chunk, tokens)
    between = 0 if cuda else 16 if b == 4 else 20
    made = 4 * s.hidden + 3 * s.intermediate if path.keep != "all" else 3 * s.hidden + s.intermediate
    gate = b * (made + (2 + again) * queries) + between * s.intermediate
    attended = b * (s.hidden + (4 + again) * queries) + 4 * queries * (1 + cuda)
    longest = min(tokens, task.longest(config))
    keys = 2 * b * (s.kv_heads * s.head_dim + (queries if cuda and s.heads != s.kv_heads else 0))
    if size * gate >= size * attended + longest * keys:
        return Term("one chunk", size * gate, f"{size:,} x {gate:,}", "layer")
    how = f"{size:,} x {attended:,} + {longest:,} x {keys:,}"
    return Term("one chunk", size * attended + longest * keys, how, "layer")


def _recompute(path: Path, task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    yield from adapter_cast(task, config)
    yield Term("layer inputs", *_inputs(task, tokens), "training")
    yield from _computed_again(task, config, tokens)


def _offload(path: Path, task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    if task.device != "cuda":  # the device is the host
        yield from _recompute(path, task, config, tokens)
        return
    s = task.shape
    yield from adapter_cast(task, config)
    yield Term("layer inputs", *_inputs(task, tokens), "training", "host")
    moving = min(ON_THE_WAY, s.layers) * tokens * task.number * s.hidden
    yield Term("layer inputs, on the way", moving, f"{ON_THE_WAY} of them", "training")
    yield from _computed_again(task, config, tokens)


def _inputs(task: Task, tokens: int) -> tuple[int, str]:
    s, b = task.shape, task.number
    return s.layers * tokens * b * s.hidden, f"{s.layers} x {tokens:,} x {b} x {s.hidden:,}"


def _computed_again(task: Task, config: GRPOConfig, tokens: int) -> Iterator[Term]:
    s, b, n = task.shape, task.number, norms_kept(task)
    each = (5 * b + n) * s.hidden + 6 * b * s.intermediate + attention_kept(task, config) + 6 * b * config.r + 8
    yield Term("one layer", tokens * each, f"{tokens:,} x {each:,}", "layer")
    yield from attention(task, config, tokens, recomputed=True)
    yield head(task, tokens)


KEEP = Path("keep", "everything kept for backward", "keeping everything", _keep, checkpointing=False)
STREAMED_ALL = Path(
    "streamed-all",
    "layers streamed in chunks, what their backward pass needs kept on the device",
    "streaming layers and keeping what their backward pass needs",
    _streamed,
    checkpointing=False,
    keep="all",
)
STREAMED = Path(
    "streamed",
    "layers streamed in chunks, their inputs and what attention gave on the device",
    "streaming layers and keeping what attention gave on the device",
    _streamed,
    keep="attention",
)
STREAMED_OFFLOAD = Path(
    "streamed-offload",
    "layers streamed in chunks, their inputs, what attention gave and the optimizer's moments waiting on the host",
    "streaming layers and moving what attention gave to the host",
    _streamed,
    mode="offload",
    keep="attention",
)
STREAMED_AGAIN = Path(
    "streamed-again",
    "layers streamed in chunks, their inputs on the device, attention computed again",
    "streaming layers with their inputs on the device",
    _streamed,
    keep="inputs",
    chunk=STREAMED_CHUNK // 2,
)
STREAMED_LEAST = Path(
    "streamed-least",
    "layers streamed in chunks, their inputs and the optimizer's moments waiting on the host, attention computed again",
    "streaming layers with their inputs on the host",
    _streamed,
    mode="offload",
    keep="inputs",
    chunk=STREAMED_CHUNK // 2,
)
RECOMPUTE = Path(
    "recompute",
    "layers computed again, their inputs on the device",
    "keeping layer inputs on the device",
    _recompute,
)
OFFLOAD = Path(
    "offload",
    "layers computed again, their inputs waiting on the host",
    "moving layer inputs to the host",
    _offload,
    mode="offload",
)
PATHS = (
    KEEP,
    STREAMED_ALL,
    STREAMED,
    STREAMED_OFFLOAD,
    STREAMED_AGAIN,
    STREAMED_LEAST,
    RECOMPUTE,
    OFFLOAD,
)


def streams(task: Task, config: GRPOConfig) -> bool:
    """Return whether the layers of a model can be streamed: as it was found, or as its configuration says."""
    if task.dense:
        return False
    if task.streams is not None:
        return task.streams
    # No kernel of a GPU's takes attention in float32 apart (`ops.attention`).
    return task.shape.streams and not config.lora_dropout and (task.device != "cuda" or task.number == 2)


def open_paths(task: Task, config: GRPOConfig) -> Iterator[tuple[Path, int]]:
    """Yield the paths that the settings leave open, the fastest first, each with the tokens of a micro-step down to
    which it is tried before the next one."""
    cuda, again = task.device == "cuda", config.gradient_checkpointing
    on_device = config.mode != "offload"
    on_host = not on_device or (config.mode == "auto" and again is not False)
    found = streams(task, config)
    if on_device and again is not True:
        least = 0 if again is False else WORTHWHILE[task.device]
        # Long rows go faster through the kernels of streamed layers, and leave less behind.
        if not (found and cuda and task.longest(config) >= LONG):
            yield KEEP, least
        if found and cuda:
            yield STREAMED_ALL, least
    if found and on_device and again is not False:
        yield STREAMED, WORTHWHILE[task.device]
    if found and on_host and cuda:
        yield STREAMED_OFFLOAD, WORTHWHILE[task.device]
    if found and on_device and again is not False:
        yield STREAMED_AGAIN, 0
    if found and on_host and cuda:
        yield STREAMED_LEAST, 0
    if found:
        if on_host and not cuda and not on_device:
            yield OFFLOAD, 0
        return
    if on_device and again is not False:
        # With larger micro-steps, inputs that wait on the host cost less than small micro-steps do.
        yield RECOMPUTE, TARGET[task.device] // 2 if cuda and config.mode == "auto" else 0
    if on_host and (cuda or config.mode == "offload"):
        yield OFFLOAD, 0
        if config.mode == "auto":
            yield RECOMPUTE, 0  # the host may have no room
