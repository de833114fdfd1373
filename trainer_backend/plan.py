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
| adapter, cast | b for each of its numbers, where b < 4 | training |
| layer inputs | L T b H; with offload on the host, and 3 T b H on the device (newest, arriving, in use) | training |
| layers, kept | without checkpointing, in place of the above: | training |
| | L T ((4b + n/2) H + 4b F + 2b D (h + k) + 4h + 7b r) | |
| one layer | what the backward pass of a layer has alive; with checkpointing: | training |
| | T ((5b + n) H + 6b F + 2b D (h + k) + 4h + 6b r), without: T (5b H + 2b F) | |
| attention mask | (b + 1) T W, where rows share their beginning; a layer then has T 2b D (h - k) more | training |
| attention scores | T h W s, where no kernel avoids them; W is the longest row: s = 8 + s0 in one layer, | training |
| | s0 in each that is kept; s0 is 4, b more with a soft cap, b more where b < 4 | |
| head | T (4b + n) H and a chunk of `ops.linear_logps`; through logits 12 T V; not while a layer is | training |
| gaps in the heap | on a CPU: as much again as is alive in a pass (see `HEAP`) | training |
| key-value cache | rows (P + R) L 2 b k D; as many rows as fit, `SAMPLED_ROWS` and one step at most | sampling |
| logits | 12 rows V: float32 logits, probabilities, and what sorts them | sampling |
| prefill | tokens b (6 H + 3 F) | sampling |

The peak is what is always there and the larger of training and sampling. With the vLLM engine, its own copy of the
weights (as NF4 where it can) and what `VLLM` says are there always; its key-value cache on a GPU only while it samples.
That cache is given in bytes: `rollout.kv_cache_memory_gb`, or room for the completions of a step; on a CPU, where it
stays, at most half of what the weights leave.

The formulas for one layer are those of Llama's block with LoRA on all linear layers and attention that keeps no scores.
Tests hold them against what a CPU really allocates. Other families keep somewhat more (Gemma's four norms) or less.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from trainer_backend.ops.logprob import CHUNK_BYTES

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

ON_THE_WAY = 3
"""Layer inputs on the device at once with offload: the newest, one arriving, one in use."""

TARGET = {"cuda": 16_384, "cpu": 4_096}
"""Tokens of a micro-step from which on larger ones are no faster."""

WORTHWHILE = {"cuda": 4_096, "cpu": 512}
"""Tokens of a micro-step down to which it is faster to keep everything than to compute layers again."""

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

PADDED = 1.5
"""What sequences of different widths in one micro-step are padded to at most, as a factor of their tokens."""

_CGROUP = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""A container's limit, what it uses, and what of that are files read before, which give way."""

CACHE = "key-value cache"
VLLM_CACHE = "vLLM's key-value cache"

HEADROOM = 0.95
"""Share of the free memory that a plan uses: allocators lose some to fragments."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that memory depends on.

    Attributes:
        layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary: As in config.json.
        linears: Name, inputs and outputs of the linear layers below the head.
        others: Numbers in all other weights: embedding, norms, an untied head, experts.
        eager: Whether its attention holds all scores: transformers has no fused kernel for it (Gemma 2's soft cap).
        softcapped: Whether these scores have a soft cap.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    linears: tuple[tuple[str, int, int], ...]
    others: int
    eager: bool = False
    softcapped: bool = False

    @property
    def parameters(self) -> int:
        """All numbers in the weights; tied ones once."""
        return sum(inputs * outputs for _, inputs, outputs in self.linears) + self.others


def shape_of(model_config: Any) -> Shape:
    """Return the sizes of a model from its configuration; no weight is read or allocated.

    Args:
        model_config: A configuration of transformers.
    """
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    text = model_config.get_text_config(decoder=True)
    with torch.device("meta"):
        model = build(text)
    head = model.get_output_embeddings()
    linears = tuple(
        (name, module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    total = sum(parameter.numel() for parameter in {id(found): found for found in model.parameters()}.values())
    heads = int(text.num_attention_heads)
    return Shape(
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        intermediate=_intermediate(text),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=int(text.vocab_size),
        linears=linears,
        others=total - sum(inputs * outputs for _, inputs, outputs in linears),
        eager=getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None) == "eager",
        softcapped=getattr(text, "attn_logit_softcapping", None) is not None,
    )


def _intermediate(text: Any) -> int:
    """Return the width of the MLP that a token goes through; of experts, all that are chosen."""
    chosen = getattr(text, "num_experts_per_tok", None)
    expert = getattr(text, "moe_intermediate_size", None)
    if chosen and expert:
        return int(chosen) * int(expert)
    found = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return int(max(found) if isinstance(found, (list, tuple)) else found) * int(chosen or 1)


@dataclass(frozen=True)
class Term:
    """Some bytes: what for, where, when, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str
    phase: Phase = "always"
    place: Place = "device"


@dataclass(frozen=True)
class Plan:
    """What a run takes.

    Attributes:
        terms: All of it by name.
        mode: "resident", or "offload": layer inputs wait on the host.
        checkpointing: Whether layers are computed again in the backward pass.
        token_budget: Tokens of a micro-step.
        rows: Completions that are decoded together, or that vLLM's key-value cache is made for.
        device: "cuda" or "cpu".
        limit, host_limit: Bytes that it may take; None: not known.
    """

    terms: tuple[Term, ...]
    mode: Literal["resident", "offload"]
    checkpointing: bool
    token_budget: int
    rows: int
    device: str
    limit: int | None = None
    host_limit: int | None = None

    def total(self, *phases: Phase, place: Place = "device") -> int:
        """Return the bytes of these phases."""
        return sum(term.bytes for term in self.terms if term.phase in phases and term.place == place)

    @property
    def training(self) -> int:
        """The device's peak while training."""
        return self.total("always", "training") + max(self.total("layer"), self.total("head"))

    @property
    def sampling(self) -> int:
        """The device's peak while sampling."""
        return self.total("always", "sampling")

    @property
    def device_peak(self) -> int:
        """The device's peak in bytes."""
        return max(self.training, self.sampling)

    @property
    def host_peak(self) -> int:
        """Host memory beside what the process itself needs, in bytes."""
        return self.total("always", "training", "layer", "head", "sampling", place="host")

    @property
    def vllm_cache(self) -> int:
        """Bytes of vLLM's key-value cache; 0 with the transformers sampler."""
        return sum(term.bytes for term in self.terms if term.name == VLLM_CACHE)

    @property
    def fits(self) -> bool:
        """Whether both limits are kept."""
        return (self.limit is None or self.device_peak <= self.limit) and (
            self.host_limit is None or self.host_peak <= self.host_limit
        )

    def table(self) -> str:
        """Return every term, the peaks and the limits as lines of text."""
        width = max(len(term.name) for term in self.terms) + 2
        when = {"always": "always", "training": "training", "layer": "training", "head": "training"}
        lines = [f"{'':{width}}{'GB':>8}  {'when':9} {'where':7} how"]
        for term in self.terms:
            if term.bytes:
                lines.append(
                    f"{term.name:{width}}{term.bytes / GB:8.3f}  {when.get(term.phase, term.phase):9} {term.place:7}"
                    f" {term.formula}"
                )
        limit = "" if self.limit is None else f" of {self.limit / GB:.2f} that it may take"
        lines.append(f"{'peak, training':{width}}{self.training / GB:8.3f}")
        lines.append(f"{'peak, sampling':{width}}{self.sampling / GB:8.3f}")
        lines.append(f"{'peak':{width}}{self.device_peak / GB:8.3f}  {self.device}{limit}")
        if self.host_peak:
            lines.append(f"{'host':{width}}{self.host_peak / GB:8.3f}")
        return "\n".join(lines)

    def sentence(self) -> str:
        """Return the plan in one sentence."""
        inputs = "waiting on the host" if self.mode == "offload" else "on the device"
        layers = (
            f"layers computed again, their inputs {inputs}" if self.checkpointing else "everything kept for backward"
        )
        cache = f"; vLLM's key-value cache has {self.vllm_cache / GB:.1f} GB" if self.vllm_cache else ""
        verdict = "" if self.limit is None else f", {'of' if self.fits else 'more than'} {self.limit / GB:.1f} GB"
        return (
            f"{self.token_budget:,} tokens a micro-step, {layers}: peak about {self.device_peak / GB:.1f} GB"
            f"{verdict}{cache}"
        )


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

    def longest(self, config: GRPOConfig) -> int:
        """Return the tokens of the longest row."""
        return self.longest_prompt + config.max_completion_length


def estimate(
    task: Task,
    config: GRPOConfig,
    *,
    token_budget: int,
    checkpointing: bool,
    mode: Literal["resident", "offload"],
    rows: int | None = None,
) -> Plan:
    """Return what a run takes on one of the paths; see the module's text for each term.

    Args:
        task: Model, prompts and device.
        config: The settings.
        token_budget: Tokens of a micro-step. A step that has fewer counts with what it has.
        checkpointing: Whether layers are computed again.
        mode: Where their inputs wait.
        rows: Completions that are decoded together; None: as many as are of use.
    """
    tokens = min(token_budget, _most_tokens(task, config, token_budget))
    rows = rows or _most_rows(task, config)
    terms = [
        *_always(task, config, rows),
        *_training(task, config, tokens, checkpointing, mode),
        *_sampling(task, config, rows),
    ]
    if task.device == "cpu":
        alive = Plan(tuple(terms), "resident", checkpointing, token_budget, rows, "cpu")
        passing = alive.training - alive.total("always")
        terms.append(Term("gaps in the heap", int(HEAP * passing), f"{HEAP:g} x {passing:,}", "training"))
    return Plan(tuple(terms), mode if checkpointing else "resident", checkpointing, token_budget, rows, task.device)


def _most_tokens(task: Task, config: GRPOConfig, token_budget: int) -> int:
    """Return the tokens of a step, padding included, where every completion is as long as it may be."""
    prompt, count = task.longest_prompt, config.num_generations
    group = apart = count * task.longest(config)
    if task.shared is False:
        return config.completions_per_step // count * apart  # all are as wide as the widest at most
    most = min(SHARED_WIDTH, token_budget)
    room = most - task.longest(config)  # a sequence that is full has less than a row left
    if task.shared and room > 0:
        together = prompt + count * config.max_completion_length
        sequences = 1 if together <= most else -(-count * config.max_completion_length // room)
        # Rows of which the prompt is too small a part stay apart.
        group = min(apart, int(WORTH * (together + (sequences - 1) * prompt)))
    return int(PADDED * config.completions_per_step / count * group)


def _always(task: Task, config: GRPOConfig, rows: int) -> Iterator[Term]:
    shape, b = task.shape, task.number
    quantised = [
        inputs * outputs
        for name, inputs, outputs in shape.linears
        if config.load_in_4bit and not any(part in name for part in task.skipped)
    ]
    plain = shape.parameters - sum(quantised)
    weights = plain * b + sum(nf4_bytes(numbers) for numbers in quantised)
    how = f"{b} x {plain:,}" + (f" + NF4 of {sum(quantised):,}" if quantised else "")
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
    yield Term("optimizer", state * numbers, f"{state} x {numbers:,} ({config.optim})")
    yield Term("runtime", RUNTIME[task.device], "libraries and context")


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
        import re

        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _training(
    task: Task, config: GRPOConfig, tokens: int, checkpointing: bool, mode: Literal["resident", "offload"]
) -> Iterator[Term]:
    s, b, r = task.shape, task.number, config.r
    norms = 8 if b < 4 else 0
    t = f"{tokens:,}"
    if b < 4:
        numbers = adapter_numbers(s, config)
        yield Term("adapter, cast", b * numbers, f"{b} x {numbers:,}", "training")
    inputs = tokens * b * s.hidden
    heads = 2 * b * s.head_dim * (s.heads + s.kv_heads) + 4 * s.heads
    width = 0
    if task.shared is not False:
        group = task.longest_prompt + config.num_generations * config.max_completion_length
        width = min(tokens, SHARED_WIDTH, max(group, MERGED_WIDTH))
    repeated = 2 * b * s.head_dim * (s.heads - s.kv_heads) if task.shared is not False else 0
    if checkpointing:
        every = f"{s.layers} x {t} x {b} x {s.hidden:,}"
        if mode == "offload" and task.device == "cuda":
            yield Term("layer inputs", s.layers * inputs, every, "training", "host")
            yield Term(
                "layer inputs, on the way", min(ON_THE_WAY, s.layers) * inputs, f"{ON_THE_WAY} of them", "training"
            )
        else:
            yield Term("layer inputs", s.layers * inputs, every, "training")
        each = (5 * b + norms) * s.hidden + 6 * b * s.intermediate + heads + repeated + 6 * b * r + 8
        yield Term("one layer", tokens * each, f"{t} x {each:,}", "layer")
    else:
        each = (4 * b + norms // 2) * s.hidden + 4 * b * s.intermediate + heads + repeated + 7 * b * r + 8
        yield Term("layers, kept", s.layers * tokens * each, f"{s.layers} x {t} x {each:,}", "training")
        passing = 5 * b * s.hidden + 2 * b * s.intermediate
        yield Term("one layer", tokens * passing, f"{t} x {passing:,}", "layer")
    if s.eager:
        longest = width or min(tokens, task.longest_prompt + config.max_completion_length)
        kept = 4 + b * (s.softcapped + (b < 4))
        each = kept + 8 if checkpointing else s.layers * kept + 8
        how = f"{t} x {s.heads} x {longest:,} x {each} (no fused kernel)"
        yield Term("attention scores", tokens * s.heads * longest * each, how, "layer" if checkpointing else "training")
    if width:
        # Of each sequence width x width; all sequences of a micro-step together have its tokens.
        yield Term("attention mask", (b + 1) * tokens * width, f"{b + 1} x {t} x {width:,}", "training")
    if task.dense:
        yield Term("head", 12 * tokens * s.vocabulary, f"12 x {t} x {s.vocabulary:,} (logits)", "head")
    else:
        each = (4 * b + norms) * s.hidden
        yield Term("head", tokens * each + CHUNK_BYTES, f"{t} x {each:,} + a chunk", "head")


def _most_rows(task: Task, config: GRPOConfig) -> int:
    """Return how many completions are decoded together where memory is no matter; on a CPU vLLM's cache is there for
    training, too, so it is made for the completions of a step."""
    held = config.engine == "vllm" and task.device == "cpu"
    most = SAMPLED_ROWS if task.held_out and not held else min(SAMPLED_ROWS, config.completions_per_step)
    return max(most, _least_rows(task, config))


def _least_rows(task: Task, config: GRPOConfig) -> int:
    """Return the completions of a group, which the transformers sampler decodes together; vLLM lets them wait."""
    if config.engine == "vllm":
        return 1
    return max(config.num_generations, config.eval_samples if task.held_out else 1)


def _rows(task: Task, config: GRPOConfig, limit: int) -> list[int]:
    """Return the numbers of rows to try, the largest first."""
    most, least = _most_rows(task, config), _least_rows(task, config)
    if config.engine != "vllm":
        return _halved(most, least)
    if config.kv_cache_memory_gb is not None:
        return [most]
    if task.device == "cuda":
        return _halved(most, least)
    # The cache is held while training, so it must not take what training needs: half of what the rest leaves.
    terms = list(_always(task, config, most))
    rest = sum(term.bytes for term in terms if term.name != VLLM_CACHE)
    cache = next(term.bytes for term in terms if term.name == VLLM_CACHE)
    most = min(most, (limit - rest) // 2 * most // cache)
    return _halved(max(most, least), least)


def _halved(most: int, least: int) -> list[int]:
    """Return `most` and its halves, `least` at the end."""
    found = [most]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found if found[-1] == least else [*found, least]


def _sampling(task: Task, config: GRPOConfig, rows: int) -> Iterator[Term]:
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


# --------------------------------------------------------------------------------------------------- picking a path


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
    for rows in _rows(task, config, limit):
        for path in _paths(task, config):
            for tokens in _budgets(task, config, path.least):
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


@dataclass(frozen=True)
class _Path:
    """A way to train, and down to how many tokens of a micro-step it is tried before the next one."""

    checkpointing: bool
    mode: Literal["resident", "offload"]
    least: int = 0


def _paths(task: Task, config: GRPOConfig) -> Iterator[_Path]:
    """Yield the ways that the settings leave open, the fastest first."""
    cuda, again = task.device == "cuda", config.gradient_checkpointing
    if config.mode != "offload" and again is not True:
        yield _Path(False, "resident", 0 if again is False else WORTHWHILE[task.device])
    if config.mode != "offload" and again is not False:
        # With larger micro-steps, inputs that wait on the host cost less than small micro-steps do.
        yield _Path(True, "resident", TARGET[task.device] // 2 if cuda and config.mode == "auto" else 0)
    if config.mode == "offload" or (config.mode == "auto" and cuda and again is not False):
        yield _Path(True, "offload")
        if config.mode == "auto":
            yield _Path(True, "resident")  # the host may have no room


def _budgets(task: Task, config: GRPOConfig, least: int) -> Sequence[int]:
    """Return the token budgets to try, the largest first; each holds the longest row."""
    longest = task.longest(config)
    if config.token_budget is not None:
        return [max(longest, config.token_budget)]
    most = max(longest, TARGET[task.device])
    return _halved(most, max(longest, min(least, most)))


def free_memory(device: torch.device | str) -> tuple[int, int | None]:
    """Return the free bytes of a device, and of the host where it is another memory."""
    place = torch.device(device)
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0]), available_host()
    return available_host(), None


def available_host(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of host memory that can be had without swapping; a container's limit counts.

    Args:
        meminfo: Where Linux says what the machine has.
        cgroup: Where it says what the container has.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(1024 * _number_of(meminfo, "MemAvailable:"))
    for limit, used, stat, files in _CGROUP:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        with contextlib.suppress(OSError, ValueError):
            left += _number_of(cgroup / stat, files)
        found.append(max(0, left))
    return min(found) if found else 2**33


def _number_of(file: Path, name: str) -> int:
    """Return the number behind a name in a file of such lines.

    Raises:
        OSError, ValueError: There is none.
    """
    for line in file.read_text(encoding="ascii").splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0] == name:
            return int(parts[1])
    raise ValueError(f"{file} has no {name}")


# ------------------------------------------------------------------------------------------------------- what would fit


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
            peak = _least(task, config.model_copy(update={_field(name): value for name, value in settings}))
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


def _least(task: Task, config: GRPOConfig) -> int:
    """Return the smallest peak of the paths that the settings leave open."""
    rows = _least_rows(task, config)
    return min(
        estimate(
            task, config, token_budget=tokens, checkpointing=path.checkpointing, mode=path.mode, rows=rows
        ).device_peak
        for path in _paths(task, config)
        for tokens in _budgets(task, config, 0)
    )


def _options(task: Task, config: GRPOConfig) -> Iterable[tuple[tuple[str, Any], ...]]:
    """Yield changes by what they cost: time first, then precision, then what is trained on."""
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


def _field(name: str) -> str:
    return name.rpartition(".")[2]


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
