"""Layer inputs on the GPU against layer inputs in host memory: the same optimizer step, in turn.

    python benchmarks/offload.py --layers 32 --tokens 20480 --repeats 4      # Llama-3.1-8B's shape; needs a CUDA device

Weights are random, so times and memory are real and losses are not. The step is that of `rewardkit train`: LoRA r=32
on all linear layers, bfloat16, layers computed again, one row of 512 + the rest tokens. Gradients of both ways are
compared bit by bit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from typing import Any

import torch
from long_context import with_adapter
from transformers import AutoModelForCausalLM, LlamaConfig

from trainer_backend.batch import Row
from trainer_backend.loss import preset
from trainer_backend.model.forward import head_of
from trainer_backend.model.offload import LayerInputs, checkpoint_layers, mover_for
from trainer_backend.step import Policy, StepSettings, update

GB = 1e9


def make_model(layers: int, hidden: int, vocabulary: int) -> Any:
    """Return a random Llama in bfloat16 with a random adapter; 4,096 hidden numbers are Llama-3.1-8B's shape."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 512),
        max_position_embeddings=131_072,
        tie_word_embeddings=False,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        base = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16, attn_implementation="sdpa")
    return with_adapter(base)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--repeats", type=int, default=4)
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    model = make_model(given.layers, given.hidden, given.vocabulary)
    device = next(model.parameters()).device
    resident = Policy(model, head_of(model, torch.bfloat16), torch.bfloat16)
    store = LayerInputs(mover_for(device))
    ways = {"resident": resident, "offload": dataclasses.replace(resident, store=store)}
    dice = torch.Generator().manual_seed(1)
    ids = torch.randint(given.vocabulary, (given.tokens,), generator=dice).tolist()
    prompt = min(512, given.tokens // 2)
    rows = [Row(tuple(ids[:prompt]), tuple(ids[prompt:]), 1.0)]
    settings = StepSettings(preset("dapo"), token_budget=None, max_grad_norm=None)
    gradients: dict[str, list[torch.Tensor]] = {}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    peak: dict[str, float] = {}
    for turn in range(given.repeats + 1):
        for way, policy in ways.items():
            undo = checkpoint_layers(model, policy.store)
            kept = _Keep(policy.trained)
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            update(policy, rows, kept, None, settings)
            if cuda:
                torch.cuda.synchronize()
                peak[way] = torch.cuda.max_memory_allocated() / GB
            if turn:  # the first warms up
                seconds[way].append(time.perf_counter() - start)
            gradients[way] = kept.found
            undo()
    same = all(torch.equal(one, other) for one, other in zip(*gradients.values(), strict=True))
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    line = {
        "layers": given.layers,
        "tokens": given.tokens,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "seconds": {way: [round(value, 4) for value in values] for way, values in seconds.items()},
        "offload_costs": round(medians["offload"] / medians["resident"] - 1, 4),
        "peak_gb": {way: round(value, 3) for way, value in peak.items()},
        "gradients_bit_equal": same,
    }
    print(json.dumps(line))
    store.close()


class _Keep(torch.optim.SGD):
    """Changes nothing and keeps the gradients."""

    def __init__(self, trained: list[torch.nn.Parameter]) -> None:
        super().__init__(trained, lr=0.0)
        self.found: list[torch.Tensor] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.found = [weight.grad.clone() for group in self.param_groups for weight in group["params"]]


if __name__ == "__main__":
    main()
