"""Long contexts: seconds and memory of one optimizer step, and the plan beside what was taken. Needs one CUDA device.

    python benchmarks/long_context.py --list                                # rows, in order, with their seconds
    python benchmarks/long_context.py 8b 8b-nf4 --out long_context.jsonl    # some of them; what FILE has is left out

Weights are random, so times and memory are real and losses are not. A row is a process of its own: a model of that
shape in bfloat16 or NF4, LoRA r=32 on all linear layers, GENERATIONS rows of CONTEXT tokens (512 of them the prompt),
one after the other, then AdamW: the step of `rewardkit train`, its completions being there already. The first
micro-step warms up and is not counted. "grid" is one micro-step for each of three contexts and three paths, planned
and measured; "short" compares streamed layers with a model's own on many short rows.

GB are 10^9 bytes. `allocated` and `reserved` are peaks of torch, `device` what is in use at the end, `host`
what is pinned. `planned` leaves out what is not torch's (the context). Parts are the device's milliseconds of one
micro-step, by kernel; `idle` is what no kernel ran in, copies that are waited for among it.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GB = 1e9
PROMPT = 512
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
    "1.5b": {
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "tiny": {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What is run: a shape, a path of the plan, and how much of it.

    Attributes:
        name: Of the row.
        shape: A key of SHAPES.
        path: A path's name; "": the planner's choice within `fit_in`.
        four_bit: Whether the weights are NF4.
        context, generations: Tokens of a row, and rows.
        kind: "step", "grid" or "short".
        seconds: What it is expected to take, with loading.
    """

    name: str
    shape: str = "8b"
    path: str = "streamed"
    four_bit: bool = False
    context: int = 20_480
    generations: int = 8
    kind: str = "step"
    seconds: int = 60


ROWS = (
    Row("8b", path="streamed-offload"),
    Row("8b-nf4", path="streamed-offload", four_bit=True, seconds=70),
    Row("8b-free", path="streamed-all"),
    Row("grid", kind="grid", seconds=60),
    Row("short", kind="short", seconds=60),
    Row("8b-least", path="streamed-least"),
    Row("8b-nf4-least", path="streamed-least", four_bit=True, seconds=70),
    Row("1.5b-nf4", shape="1.5b", path="streamed-least", four_bit=True, seconds=40),
    Row("8b-device", path="streamed"),
    Row("8b-whole", path="recompute", seconds=70),
    Row("tiny", shape="tiny", path="streamed", context=700, generations=2, seconds=5),
)


# ------------------------------------------------------------------------------------------------------- what is run


def make_model(row: Row) -> Any:
    """Return a random model of the row's shape with an adapter, on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    given = SHAPES[row.shape]
    settings = AutoConfig.for_model(**{**given, "max_position_embeddings": 131_072})
    with device():
        base = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation="sdpa")
    if row.four_bit:
        quantise(base)
    return with_adapter(base)


def with_adapter(base: Any) -> Any:
    """Return a model with LoRA r=32 on its linear layers, random on both sides, so that both get gradients."""
    import torch
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=32, lora_alpha=32, target_modules="all-linear", exclude_modules=["lm_head"])
    model = get_peft_model(base, lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.01)
    return model


def device() -> Any:
    """Return the device: CUDA, or a CPU to try the script out."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def quantise(base: Any) -> None:
    """Put NF4 layers in place of the linear ones, the head left as it is."""
    import bitsandbytes as bnb
    import torch

    for name, module in list(base.named_modules()):
        if type(module) is torch.nn.Linear and "lm_head" not in name:
            new = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=module.bias is not None, quant_type="nf4",
                compress_statistics=True, compute_dtype=torch.bfloat16, device="meta",
            )  # fmt: skip
            how = {"quant_type": "nf4", "compress_statistics": True, "requires_grad": False}
            new.weight = bnb.nn.Params4bit(module.weight.data.cpu(), **how).to(device())
            new.bias = module.bias
            parent, _, child = name.rpartition(".")
            setattr(base.get_submodule(parent), child, new)
    gc.collect()


def planned(row: Row) -> tuple[Any, Any]:
    """Return the planner's task and settings for a row."""
    from trainer_backend import GRPOConfig
    from trainer_backend.plan import Task, shape_from_json

    shape = shape_from_json({"max_position_embeddings": 131_072, **SHAPES[row.shape]})
    settings = GRPOConfig(
        model=row.shape, load_in_4bit=row.four_bit, r=32, optim="adamw_torch", num_generations=max(2, row.generations),
        per_device_train_batch_size=max(2, row.generations), max_completion_length=row.context - PROMPT,
    )  # fmt: skip
    return Task(shape, longest_prompt=PROMPT, device=device().type, number=2, streams=True), settings


def path_of(name: str) -> Any:
    """Return a path of the plan by its name."""
    from trainer_backend.plan.paths import PATHS

    return next(path for path in PATHS if path.name == name)


def make_policy(model: Any, path: Any) -> tuple[Any, Callable[[], None]]:
    """Return the policy of a path, as `rewardkit train` makes it, and what takes it down again."""
    import torch

    from trainer_backend.model.forward import head_of
    from trainer_backend.model.offload import LayerInputs, checkpoint_layers, mover_for
    from trainer_backend.model.streamed import streamed_of
    from trainer_backend.step import Policy

    head = head_of(model, torch.bfloat16)
    store = LayerInputs(mover_for(device())) if path.mode == "offload" else None
    undo: Callable[[], None] = lambda: None  # noqa: E731
    if path.keep:
        found = streamed_of(model, torch.bfloat16)
        if isinstance(found, str):
            raise SystemExit(f"the layers do not stream: {found}")
        streamed = replace(found, keep=path.keep, chunk=path.chunk, store=store)
        policy = Policy(model, head, torch.bfloat16, "line", store=store, streamed=streamed)
    else:
        if path.checkpointing:
            undo = checkpoint_layers(model, store)
        policy = Policy(model, head, torch.bfloat16, "apart", store=store)

    def close() -> None:
        undo()
        if store is not None:
            store.close()

    return policy, close


def make_rows(count: int, context: int, vocabulary: int, seed: int = 1) -> list[Any]:
    """Return rows of random tokens with different prompts, so that nothing is shared."""
    import torch

    from trainer_backend.batch import Row as Line

    dice = torch.Generator().manual_seed(seed)
    prompt, found = min(PROMPT, context // 2), []
    for at in range(count):
        ids = torch.randint(vocabulary, (context,), generator=dice).tolist()
        found.append(Line(tuple(ids[:prompt]), tuple(ids[prompt:]), 1.0 if at % 2 else -1.0))
    return found


class Measured:
    """Times and peaks of steps of one policy."""

    def __init__(self, policy: Any, path: Any, tokens: int) -> None:
        from trainer_backend.loss import preset
        from trainer_backend.optim import build_optimizer
        from trainer_backend.step import StepSettings

        self.policy = policy
        self.settings = StepSettings(preset("dapo"), token_budget=tokens)
        on_host = path.mode == "offload" and device().type == "cuda"
        self.optimizer = build_optimizer("adamw_torch", policy.model.parameters(), learning_rate=1e-6, on_host=on_host)

    def step(self, rows: Sequence[Any]) -> float:
        """Take an optimizer step and return its seconds."""
        import torch

        from trainer_backend.step import update

        start = time.perf_counter()
        update(self.policy, rows, self.optimizer, None, self.settings)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def peaks(self) -> dict[str, float]:
        """Return the peaks since `reset`, in GB."""
        import torch

        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        store = self.policy.store
        moments = [
            value for state in self.optimizer.state.values() for value in state.values()
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim()
        ]  # fmt: skip
        host = sum(one.numel() * one.element_size() for one in moments)
        host += store.mover.memory.bytes if store is not None else 0
        return {
            "allocated": torch.cuda.max_memory_allocated() / GB,
            "reserved": torch.cuda.max_memory_reserved() / GB,
            "device": (total - free) / GB,
            "host": host / GB,
        }

    def reset(self) -> None:
        """Forget earlier peaks, and give back what torch holds for later."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def predicted(row: Row, path: Any, tokens: int) -> float:
    """Return the planned peak of training without what is not torch's, in GB."""
    from trainer_backend.plan import estimate

    task, settings = planned(row)
    made = estimate(task, settings, token_budget=tokens, path=path)
    return (made.training - sum(term.bytes for term in made.terms if term.name == "runtime")) / GB


# ------------------------------------------------------------------------------------------------------- kinds of row


def run_step(row: Row) -> Iterator[dict[str, Any]]:
    """One whole optimizer step, after a micro-step that warms up and one that is taken apart."""
    model, path = make_model(row), path_of(row.path)
    policy, _ = make_policy(model, path)
    measured = Measured(policy, path, row.context)
    rows = make_rows(row.generations, row.context, SHAPES[row.shape]["vocab_size"])
    warm = measured.step(rows[:1])
    measured.reset()
    seconds = measured.step(rows)
    found = measured.peaks()
    yield {
        "row": row.name, "path": row.path, "four_bit": row.four_bit, "context": row.context,
        "generations": row.generations, "seconds": round(seconds, 3), "first": round(warm, 2),
        "planned": round(predicted(row, path, row.context), 3),
        **{name: round(value, 3) for name, value in found.items()}, "parts": parts(lambda: measured.step(rows[:1])),
    }  # fmt: skip


def run_grid(row: Row) -> Iterator[dict[str, Any]]:
    """One micro-step of each context on each path: planned and measured peaks."""
    model = make_model(row)
    for name in ("streamed-offload", "streamed-least", "streamed"):
        path = path_of(name)
        policy, close = make_policy(model, path)
        for context in (4_096, 20_480, 49_152):
            measured = Measured(policy, path, context)
            rows = make_rows(1, context, SHAPES[row.shape]["vocab_size"])
            measured.step(rows)
            measured.reset()
            seconds = measured.step(rows)
            taken, wanted = (
                measured.peaks().get("allocated", 0.0),
                predicted(replace(row, context=context), path, context),
            )
            yield {
                "row": row.name, "path": name, "context": context, "seconds": round(seconds, 3),
                "planned": round(wanted, 3), "allocated": round(taken, 3),
                "apart": round(wanted / taken - 1.0, 4) if taken else None,
            }  # fmt: skip
            del measured
            gc.collect()
        close()


def run_short(row: Row) -> Iterator[dict[str, Any]]:
    """Micro-steps of 16,384 tokens in rows of 1,024 and 4,096: streamed layers against a model's own."""
    model = make_model(row)
    for name in ("keep", "streamed-all", "recompute", "streamed"):
        path = path_of(name)
        policy, close = make_policy(model, path)
        for context in (1_024, 4_096):
            measured = Measured(policy, path, 16_384)
            rows = make_rows(16_384 // context, context, SHAPES[row.shape]["vocab_size"])
            measured.step(rows)
            measured.reset()
            seconds = [measured.step(rows) for _ in range(3)]
            yield {
                "row": row.name, "path": name, "context": context, "seconds": round(statistics.median(seconds), 4),
                "allocated": round(measured.peaks().get("allocated", 0.0), 3),
            }  # fmt: skip
            del measured
            gc.collect()
        close()


KINDS = {"step": run_step, "grid": run_grid, "short": run_short}

NAMES = (  # the first that a kernel's name has
    ("attention", ("fmha", "flash", "attention", "cudnn")),
    ("head", ("_exponentials", "_fused", "_collect", "_target", "_refine", "_direction", "_scale", "_raise")),
    ("norm, rotary, gate", ("_norm", "_rotate", "_gated")),
    ("4-bit", ("dequant",)),
    ("copies", ("memcpy", "memset")),
    ("products", ("gemm", "nvjet", "cutlass", "splitk")),
)


def parts(run: Callable[[], object]) -> dict[str, float]:
    """Return the milliseconds of the device that a run spends on kinds of kernels, and those in which none ran."""
    import torch

    if not torch.cuda.is_available():
        return {}
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        whole = time.perf_counter() - start
    found: dict[str, float] = {}
    busy: list[tuple[float, float]] = []
    for event in seen.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name = event.name.lower()
        kind = next((kind for kind, words in NAMES if any(word in name for word in words)), "elementwise and the rest")
        span = event.time_range
        found[kind] = found.get(kind, 0.0) + (span.end - span.start) / 1e3
        if kind != "copies":
            busy.append((span.start, span.end))
    last = running = 0.0
    for start_, end in sorted(busy):
        running += max(0.0, end - max(start_, last))
        last = max(last, end)
    found["idle"] = whole * 1e3 - running / 1e3
    return {kind: round(value, 1) for kind, value in sorted(found.items(), key=lambda one: -one[1])}


# --------------------------------------------------------------------------------------------------------------- all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows; none: all but tiny, in order")
    parser.add_argument("--out", type=Path, default=Path("long_context.jsonl"))
    parser.add_argument("--list", action="store_true", help="print the rows and what they are expected to take")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    known = {row.name: row for row in ROWS}
    for name in given.rows:
        if name not in known:
            parser.error(f"no row {name!r}; there are {', '.join(known)}")
    rows = [known[name] for name in given.rows] or [row for row in ROWS if row.name != "tiny"]
    if given.list:
        print("\n".join(f"{row.name:14} {row.seconds:4} s  {row}" for row in rows))
        print(f"{'all':14} {sum(row.seconds for row in rows):4} s")
    elif given.here:
        for row in rows:
            for found in KINDS[row.kind](row):
                print(json.dumps(found), flush=True)
    else:
        run_all(rows, given.out)


def run_all(rows: Sequence[Row], out: Path) -> None:
    """Run each row that the file does not have yet in a process of its own."""
    there = {json.loads(line)["row"] for line in out.read_text().splitlines()} if out.exists() else set()
    for row in rows:
        if row.name in there:
            continue
        start = time.perf_counter()
        command = [sys.executable, __file__, row.name, "--here"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0:  # else it is to be run again
            with out.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in found)
        print("\n".join(found))
        print(f"{row.name}: exit code {done.returncode}, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
