"""How much memory a run will take, before anything is loaded: every byte by name, from config.json alone.

b is the size of a number of the compute type (bfloat16 2, float32 4), n is 8 where b < 4 (norms keep float32), else 0.
T are the tokens of a micro-step, P and R the longest prompt and completion, W the width of a sequence that rows
share, L the layers, H the hidden width, F the MLP's, h and k the heads of queries and of keys, D their width, V the
vocabulary, r the adapter's rank, N(x) the numbers in x. GB are 10^9 bytes.

| term | bytes | when |
| --- | --- | --- |
| weights | b N(weights) | always |
| ... as NF4 | N/2 + N/64 + N/4096: 4 bits, a scale of 8 bits for 64, one of 32 for 256 of those | always |
| adapter, and gradients | 4 r (inputs + outputs) over the layers that it is on; each | always |
| optimizer | adamw_torch 8, adamw_8bit 2, sgd 0 for each number of the adapter | always |
| folded weights | b N(layers with an adapter), if the sampler folds | always |
| runtime | the CUDA context, or Python with its libraries | always |
| the layers | as the path of training says, in `paths` | training |
| adapter, cast | b for each of its numbers, where b < 4 | training |
| attention mask | (b + 1) T W, where rows share their beginning; a layer then has T 2b D (h - k) more | training |
| attention scores | T h W s, where no kernel avoids them; W is the longest row: s = 8 + s0 in one layer, | training |
| | s0 in each that is kept; s0 is 4, b more with a soft cap, b more where b < 4 | |
| head | T (4b + n) H, where layers are streamed 3 T b H, and a chunk of `ops.linear_logps`; through logits | training |
| | 12 T V; not while a layer is | |
| gaps in the heap | on a CPU: as much again as is alive in a pass (see `HEAP`) | training |
| key-value cache | rows (P + R) L 2 b k D; as many rows as fit, `SAMPLED_ROWS` and one step at most | sampling |
| logits | 12 rows V: float32 logits, probabilities, and what sorts them | sampling |
| prefill | tokens b (6 H + 3 F) | sampling |

Streamed layers have neither mask nor scores, and the adapter cast for one layer at a time.

The path's terms are those of Llama's block with LoRA on all linear layers and attention that keeps no scores.
Tests hold them against what a CPU really allocates. Other families keep somewhat more (Gemma's four norms) or less.

The peak is what is always there and the larger of training and sampling. With the vLLM engine, its own copy of the
weights (as NF4 where it can) and what `VLLM` says are there always; its key-value cache on a GPU only while it samples.
That cache is given in bytes: `rollout.kv_cache_memory_gb`, or room for the completions of a step; on a CPU, where it
stays, at most half of what the weights leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer_backend.plan.shape import Shape
from trainer_backend.sizes import CHUNK_BYTES

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

Phase = Literal["always", "training", "layer", "head", "sampling"]
Place = Literal["device", "host"]

GB = 1e9
RUNTIME = {"cuda": 600_000_000, "cpu": 700_000_000}
"""The CUDA context with its libraries' workspaces; Python with torch, transformers and peft imported."""

VLLM = {"cuda": 450_000_000, "cpu": 500_000_000}
"""What vLLM has beside weights, cache and the room for an adapter, for a model of any size."""

VLLM_LAYER = 7_000
"""On a GPU also this many bytes for each hidden number of each layer: workspaces and CUDA graphs. Both are
fitted to what vLLM 0.25.1 took on an H200: 0.54 GB for SmolLM2-135M, 1.3 GB for an 8B model of Llama's shape."""

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The LoRA ranks that vLLM reserves room for."""

CACHE_BLOCK = 128
"""Tokens that vLLM's cache is dealt out in at a time: 16 on a GPU, 128 on a CPU."""

HEAP = 1.0
"""What a CPU's allocator holds beside the tensors that are alive, as a share of them.

glibc leaves gaps between tensors of different lives and gives nothing back. SmolLM2 in float32, 2,112 tokens, all
kept: 2.6 GB alive, 4.4 to 5.0 GB more resident. MALLOC_MMAP_THRESHOLD_=65536 in the environment brings that to 2.6 GB,
for 15 % more time.
"""

SAMPLED_ROWS = 256
"""Completions that a sampler decodes together at most."""

PREFILL = 8_192
"""Prompt tokens that a sampler takes in one forward pass."""

SHARED_WIDTH = 8_192
"""Tokens of a sequence that rows share at most: its mask has width x width places."""

MERGED_WIDTH = 2_048
"""The same with more than one prompt: attention over what they do not share is computed for nothing."""

WORTH = 1.15
"""A row joins the one before it in a sequence when that saves at least this factor of its tokens."""

LINE_WORTH = 1.02
"""The same in a line, where there is no mask: what is shared costs one more block of attention for a chunk."""

PADDED = 1.5
"""What sequences of different widths in one micro-step are padded to at most, as a factor of their tokens."""

CACHE = "key-value cache"
VLLM_CACHE = "vLLM's key-value cache"


@dataclass(frozen=True)
class Term:
    """Some bytes: what for, where, when, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str
    phase: Phase = "always"
    place: Place = "device"


@dataclass(frozen=True)
class Task:
    """What a plan is made for, beside the settings.

    Attributes:
        shape: Of the model.
        longest_prompt: Tokens.
        device: "cuda" or "cpu".
        number: Bytes of a number of the compute type.
        shared: Whether rows that begin alike share a sequence (`Loaded.shares_prefixes`); None: not known yet, so
            that the plan has room for both.
        folded: Whether the sampler folds the adapter into a copy of the weights.
        dense: Whether log-probs go through the model's logits (`forward.Dense`).
        skipped: Parts of names of the layers that a 4-bit checkpoint leaves as they are.
        held_out: Whether held-out prompts are sampled: all at once, so more rows than a step has.
        sampler_in_4bit: Whether vLLM holds its copy of 4-bit weights as NF4, too.
        streams: Whether its layers can be streamed (`model.streamed`); None: not known yet, so `Shape.streams` counts.
    """

    shape: Shape
    longest_prompt: int
    device: str
    number: int
    shared: bool | None = False
    folded: bool = False
    dense: bool = False
    skipped: tuple[str, ...] = ()
    held_out: bool = False
    sampler_in_4bit: bool = False
    streams: bool | None = None

    def longest(self, config: GRPOConfig) -> int:
        """Return the tokens of the longest row."""
        return self.longest_prompt + config.max_completion_length


def folds(config: GRPOConfig, number: int, device: str) -> bool:
    """Return whether the sampler folds the adapter into a copy of the weights.

    In float32 the sum loses nothing, and decoding a few rows on a CPU is bound by the calls, of which LoRA makes three
    times as many. In bfloat16 the sum would lose small updates, and NF4 weights cannot take one.
    """
    return number == 4 and device == "cpu" and not config.load_in_4bit


def always(task: Task, config: GRPOConfig, rows: int, *, moments: Place = "device") -> Iterator[Term]:
    """Yield what is there from the first step to the last; `moments`: where AdamW keeps its state."""
    shape, b = task.shape, task.number
    small = [inputs * outputs for _, inputs, outputs in quantised(task, config)]
    plain = shape.parameters - sum(small)
    weights = plain * b + sum(nf4_bytes(numbers) for numbers in small)
    how = f"{b} x {plain:,}" + (f" + NF4 of {sum(small):,}" if small else "")
    numbers = adapter_numbers(shape, config)
    yield Term("weights", weights, how)
    if config.engine == "vllm":
        own = weights if task.sampler_in_4bit else shape.parameters * b
        yield Term("weights of the sampler", own, "vLLM's own copy")
        yield _vllm(task, config)
        yield _vllm_cache(task, config, rows)
    elif task.folded:
        under = sum(inputs * outputs for name, inputs, outputs in shape.linears if _adapted(name, config))
        yield Term("folded weights", under * b, f"{b} x {under:,}")
    yield Term("adapter", 4 * numbers, f"4 x {numbers:,}")
    yield Term("gradients", 4 * numbers, f"4 x {numbers:,}")
    state = {"adamw_torch": 8, "adamw_8bit": 2, "sgd": 0}[config.optim]
    place = moments if config.optim == "adamw_torch" else "device"
    yield Term("optimizer", state * numbers, f"{state} x {numbers:,} ({config.optim})", place=place)
    yield Term("runtime", RUNTIME[task.device], "libraries and context")


def quantised(task: Task, config: GRPOConfig) -> list[tuple[str, int, int]]:
    """Return the linear layers that are held in 4 bits, as in `Shape.linears`."""
    if not config.load_in_4bit:
        return []
    return [one for one in task.shape.linears if not any(part in one[0] for part in task.skipped)]


def _vllm(task: Task, config: GRPOConfig) -> Term:
    # The adapter that was handed over, and the place that layers read it from, at the rank that vLLM has room for.
    rank = next((rank for rank in VLLM_RANKS if rank >= config.r), config.r)
    room = int(task.number * adapter_numbers(task.shape, config) * (1 + rank / config.r))
    graphs = VLLM_LAYER * task.shape.layers * task.shape.hidden if task.device == "cuda" else 0
    return Term("vLLM", VLLM[task.device] + room + graphs, "an adapter's room, workspaces, graphs")


def _vllm_cache(task: Task, config: GRPOConfig, rows: int) -> Term:
    phase: Phase = "sampling" if task.device == "cuda" else "always"
    if config.kv_cache_memory_gb is not None:
        return Term(VLLM_CACHE, int(config.kv_cache_memory_gb * GB), "rollout.kv_cache_memory_gb", phase)
    blocks = rows * -(-task.longest(config) // CACHE_BLOCK) + 1  # it keeps one for itself
    each = CACHE_BLOCK * _cached_token(task, 1 if config.kv_cache_dtype.startswith("fp8") else task.number)
    how = f"{rows} x {task.longest(config):,} tokens, {blocks:,} blocks of {each:,}"
    return Term(VLLM_CACHE, blocks * each, how, phase)


def _cached_token(task: Task, number: int) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    return task.shape.layers * 2 * number * task.shape.kv_heads * task.shape.head_dim


def nf4_bytes(numbers: int) -> int:
    """Return the bytes of a layer's weights as NF4 with double quantisation: bitsandbytes' blocks of 64 and 256."""
    scales = -(-numbers // 64)
    return -(-numbers // 2) + scales + 4 * -(-scales // 256) + 4 * (16 + 256 + 1)


def adapter_numbers(shape: Shape, config: GRPOConfig) -> int:
    """Return how many numbers LoRA trains: r (inputs + outputs) of each layer that it is on."""
    return sum(config.r * (inputs + outputs) for name, inputs, outputs in shape.linears if _adapted(name, config))


def _adapted(name: str, config: GRPOConfig) -> bool:
    targets = config.target_modules
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def shares(task: Task, config: GRPOConfig) -> bool:
    """Return whether rows of the longest completions share their prompt: it is enough of them (`WORTH`)."""
    enough = task.longest_prompt * WORTH >= (WORTH - 1.0) * task.longest(config)
    return task.shared is not False and enough


def shared_width(task: Task, config: GRPOConfig, tokens: int) -> int:
    """Return the width of a sequence that rows share; 0 where none do."""
    if not shares(task, config):
        return 0
    group = task.longest_prompt + config.num_generations * config.max_completion_length
    return min(tokens, SHARED_WIDTH, max(group, MERGED_WIDTH))


def attention_kept(task: Task, config: GRPOConfig) -> int:
    """Return what a layer's attention keeps of a token: queries, keys, values and its output, and a sum a head."""
    s, b = task.shape, task.number
    repeated = 2 * b * s.head_dim * (s.heads - s.kv_heads) if shares(task, config) else 0
    return 2 * b * s.head_dim * (s.heads + s.kv_heads) + 4 * s.heads + repeated


def norms_kept(task: Task) -> int:
    """Return n: the bytes of the float32 copies that a layer's two norms make of a number."""
    return 8 if task.number < 4 else 0


def adapter_cast(task: Task, config: GRPOConfig) -> Iterator[Term]:
    """Yield the adapter's copy in the compute type."""
    b = task.number
    if b < 4:
        numbers = adapter_numbers(task.shape, config)
        yield Term("adapter, cast", b * numbers, f"{b} x {numbers:,}", "training")


def attention(task: Task, config: GRPOConfig, tokens: int, *, recomputed: bool) -> Iterator[Term]:
    """Yield what attention has beside what its layer keeps: scores, where no kernel avoids them, and a mask."""
    s, b, t = task.shape, task.number, f"{tokens:,}"
    width = shared_width(task, config, tokens)
    if s.eager:
        longest = width or min(tokens, task.longest(config))
        kept = 4 + b * (s.softcapped + (b < 4))
        each = kept + 8 if recomputed else s.layers * kept + 8
        how = f"{t} x {s.heads} x {longest:,} x {each} (no fused kernel)"
        yield Term("attention scores", tokens * s.heads * longest * each, how, "layer" if recomputed else "training")
    if width:
        # Of each sequence width x width; all sequences of a micro-step together have its tokens.
        yield Term("attention mask", (b + 1) * tokens * width, f"{b + 1} x {t} x {width:,}", "training")


def head(task: Task, tokens: int, *, streamed: bool = False) -> Term:
    """Return what log-probs take, and the last norm; `streamed`: it goes chunk by chunk."""
    s, t = task.shape, f"{tokens:,}"
    if task.dense:
        return Term("head", 12 * tokens * s.vocabulary, f"12 x {t} x {s.vocabulary:,} (logits)", "head")
    each = (3 * task.number if streamed else 4 * task.number + norms_kept(task)) * s.hidden
    return Term("head", tokens * each + CHUNK_BYTES, f"{t} x {each:,} + a chunk", "head")


def sampling(task: Task, config: GRPOConfig, rows: int) -> Iterator[Term]:
    """Yield what is there while completions are sampled."""
    s, b = task.shape, task.number
    length = task.longest(config)
    if config.engine == "vllm":
        rows, prefill = SAMPLED_ROWS, PREFILL  # it tries out what it can hold at once
    else:
        how = f"{rows} x {length:,} x {s.layers} x 2 x {b} x {s.kv_heads * s.head_dim:,}"
        yield Term(CACHE, rows * length * _cached_token(task, b), how, "sampling")
        prefill = min(PREFILL, rows * task.longest_prompt)
    yield Term("logits", 12 * rows * s.vocabulary, f"12 x {rows} x {s.vocabulary:,}", "sampling")
    each = b * (6 * s.hidden + 3 * s.intermediate)
    yield Term("prefill", prefill * each, f"{prefill:,} x {each:,}", "sampling")
