"""The head alone: hidden states and a frozen head in, a clipped policy loss on log-probs, and its gradient.

    python benchmarks/head.py [WAY ...] [--rows 20480,163840] [--error] [--json FILE]

Prints, for each way of doing it that imports here: median time of forward + backward, peak memory above the inputs and
above one [rows, hidden] gradient, and (--error) the error of 256 sampled rows against float64. On CUDA with hidden
4096, vocabulary 128,256, bfloat16; on a CPU small. Peers are compared in the same process, Unsloth in one of its own,
since it patches what it finds: `python benchmarks/head.py unsloth`.

Errors are those of d logp / d hidden on rows whose target leads or trails the best other token by 0 to 40 nats,
relative to the norm over the sampled rows. "before" is before rounding to the input's dtype (ours alone gives that).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if any(name.startswith("unsloth") for name in sys.argv[1:]):
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    import unsloth  # noqa: F401  (it asks to be imported first)

import torch

from trainer_backend.ops import Head, dense_logps, linear_logps
from trainer_backend.ops.logprob import CHUNK_BYTES, _Work
from trainer_backend.ops.tiles import Scaled

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HIDDEN, VOCABULARY = (4096, 128_256) if CUDA else (64, 1000)

Logps = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return linear_logps(hidden, Head(weight), targets).logps


def ours_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return linear_logps(hidden, Head(weight), targets, entropy="value").logps


def ours_online(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return linear_logps(hidden, Head(weight), targets, softmax="online").logps


def naive(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ weight.T).float()
    return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]


def checkpointed(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    parts = zip(hidden.split(2048), targets.split(2048), strict=True)
    return torch.cat([checkpoint(naive, part, weight, at, use_reentrant=False) for part, at in parts])


def trl(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from trl.kernels import ChunkedLogProbFunction

    return ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, 32768, None, 1.0, ("log_probs",))[0]


def cce(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, targets, reduction="none")


def cce_exact(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, targets, reduction="none", filter_eps=None)


def unsloth_way(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    import unsloth_zoo.rl_replacements as zoo

    return zoo.grpo_chunked_hidden_states_logprobs(hidden[None], weight, targets[None], 4)[0]


def unsloth_recompute(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    import unsloth_zoo.rl_replacements as zoo

    return zoo.chunked_hidden_states_selective_log_softmax_recompute(hidden[None], weight, targets[None], 4)[0]


WAYS: dict[str, Logps] = {
    "rewardkit": ours,
    "rewardkit_entropy": ours_entropy,
    "rewardkit_online": ours_online,
    "naive": naive,
    "checkpoint": checkpointed,
    "trl": trl,
    "cce": cce,
    "cce_exact": cce_exact,
    "unsloth": unsloth_way,
    "unsloth_recompute": unsloth_recompute,
}
OWN_LOSS = ("liger",)  # gives a loss, not log-probs


def policy_loss(logps: torch.Tensor) -> torch.Tensor:
    """The clipped loss at an advantage of 1.3, mean over rows."""
    ratio = torch.exp(logps - logps.detach())
    return -torch.min(ratio * 1.3, ratio.clamp(0.8, 1.2) * 1.3).mean()


def liger_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    fused = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, compiled=False, chunk_size=1, loss_type="grpo")
    ones = torch.ones_like(targets[None])
    return fused(hidden[None], weight, targets[None], ones, torch.full((1,), 1.3, device=hidden.device))[0]


def loss_of(way: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if way == "liger":
        return liger_loss(hidden, weight, targets)
    return policy_loss(WAYS[way](hidden, weight, targets))


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    hidden = torch.empty(rows, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    for start in range(0, rows, 8192):
        part = hidden[start : start + 8192]
        part.copy_(torch.randn(part.shape, generator=generator, device=DEVICE))
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=generator, device=DEVICE) * 0.02).to(torch.bfloat16)
    targets = torch.randint(0, VOCABULARY, (rows,), generator=generator, device=DEVICE)
    return hidden.requires_grad_(), weight, targets


def timed(way: str, rows: int, repeats: int) -> dict[str, Any]:
    hidden, weight, targets = inputs(rows)
    seconds, peak = [], 0
    for round_ in range(repeats + 1):
        hidden.grad = None
        if CUDA:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
        began = time.perf_counter()
        loss_of(way, hidden, weight, targets).backward()
        if CUDA:
            torch.cuda.synchronize()
            if round_:
                peak = max(peak, torch.cuda.max_memory_allocated() - base)
        if round_:
            seconds.append(time.perf_counter() - began)
    gradient = hidden.numel() * hidden.element_size()
    return {
        "way": way, "rows": rows, "ms": round(1e3 * statistics.median(seconds), 2),
        "least_ms": round(1e3 * min(seconds), 2),
        "extra_gb": round((peak - gradient) / 1e9, 3) if CUDA else None, "gradient_gb": round(gradient / 1e9, 3),
    }  # fmt: skip


def hard_rows(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows whose target leads (or trails) the best other token by up to 40 nats; half have a close second token."""
    hidden, weight, targets = inputs(rows)
    with torch.no_grad():
        generator = torch.Generator(device=DEVICE).manual_seed(1)
        second = torch.randint(0, VOCABULARY, (rows,), generator=generator, device=DEVICE)
        wide = hidden.float()
        ours_, other = weight[targets].float(), weight[second].float()
        margin = torch.linspace(-40, 40, rows, device=DEVICE)
        wide += ours_ * (((margin + 6) - (wide * ours_).sum(1)) / (ours_ * ours_).sum(1))[:, None]
        lift = torch.where(torch.arange(rows, device=DEVICE) % 2 == 0, 5.0, 0.0)
        wide += other * lift[:, None] * (1.2 / (other * other).sum(1))[:, None]
        hidden = wide.to(torch.bfloat16)
    sampled = torch.linspace(0, rows - 1, 256, device=DEVICE).long()
    return hidden.requires_grad_(), weight, targets, sampled


def truth(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs, gradients and the largest |logit| of some rows in float64."""
    wide = hidden.detach().double()
    gradients, logps, largest = [], [], []
    matrix = Head(weight.double())
    for part, at in zip(wide.split(32), targets.split(32), strict=True):
        part = part.clone().requires_grad_()
        logp, _ = dense_logps(part, matrix, at)
        (gradient,) = torch.autograd.grad(logp.sum(), part)
        gradients.append(gradient)
        logps.append(logp.detach())
        largest.append((part.detach() @ matrix.weight.T).abs().amax(1))
    return torch.cat(logps), torch.cat(gradients), torch.cat(largest)


def relative(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())


def row_errors(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The median over rows of the row's relative error (rows of every size count alike)."""
    return float(((value.double() - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-300)).median())


def errors(ways: list[str], rows: int) -> list[dict[str, Any]]:
    hidden, weight, targets, sampled = hard_rows(rows)
    logps, gradients, largest = truth(hidden[sampled], weight, targets[sampled])
    slopes = torch.randn(rows, generator=torch.Generator(device=DEVICE).manual_seed(2), device=DEVICE)
    exact = gradients * slopes[sampled].double()[:, None]
    table = [{"way": "rounding alone", "after": relative(exact.to(torch.bfloat16), exact)}]
    for way in ways:
        if way in OWN_LOSS:
            continue
        hidden.grad = None
        try:
            value = WAYS[way](hidden, weight, targets)
            (value.float() * slopes).sum().backward()
        except Exception as problem:
            table.append({"way": way, "problem": f"{type(problem).__name__}: {str(problem)[:120]}"})
            continue
        got = hidden.grad[sampled]
        off = (value.detach()[sampled].double() - logps).abs()
        row = {
            "way": way, "after": relative(got, exact), "row_after": row_errors(got, exact),
            "logp": float(off.max()), "logp_scaled": float((off / largest.clamp(min=1.0)).max()),
        }  # fmt: skip
        if way == "rewardkit":
            work = _Work(hidden, Head(weight), targets, 1.0, None, "none", None, CHUNK_BYTES, "auto")
            kept = Scaled(torch.empty_like(hidden))
            work.forward(kept)
            before = kept.read(sampled) * slopes[sampled][:, None]
            row |= {"before": relative(before, exact), "row_before": row_errors(before, exact)}
        table.append(row)
    return table


def show(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = [
        [f"{row[n]:.3g}" if isinstance(row.get(n), float) and abs(row[n]) < 0.1 else str(row.get(n, "")) for n in names]
        for row in rows
    ]
    widths = [max(len(line[k]) for line in [names, *text]) for k in range(len(names))]
    for line in [names, *text]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "ways",
        nargs="*",
        default=["rewardkit", "rewardkit_entropy", "rewardkit_online", "naive", "trl", "liger", "cce"],
    )
    parser.add_argument("--rows", default="20480,163840" if CUDA else "96")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--error", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name() if CUDA else 'CPU'}; "
        f"hidden {HIDDEN}, vocabulary {VOCABULARY:,}"
    )
    table = []
    for rows in (int(part) for part in options.rows.split(",")):
        for way in options.ways:
            if way in ("naive", "liger") and rows > 40_000:
                table.append({"way": way, "rows": rows, "problem": "not run: too large or too slow"})
                continue
            try:
                table.append(timed(way, rows, options.repeats if rows < 40_000 else 3))
            except Exception as problem:
                table.append({"way": way, "rows": rows, "problem": f"{type(problem).__name__}: {str(problem)[:120]}"})
            if CUDA:
                torch.cuda.empty_cache()
    show(table)
    found = errors(options.ways, 4096 if CUDA else 256) if options.error else []
    if found:
        show(found)
    if options.json:
        options.json.write_text(json.dumps({"times": table, "errors": found}, indent=1))


if __name__ == "__main__":
    main()
