"""What each process runs in `test_parallel.py`: steps on its own groups, results into the file that is named."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from tiny_policies import make_rows, near, tiny_policy

from trainer_backend.loss import preset
from trainer_backend.optim import build_optimizer, build_scheduler
from trainer_backend.parallel import World
from trainer_backend.step import StepSettings, update

SIZE = 4


def grouped(rows: list[Any]) -> list[list[Any]]:
    return [rows[at : at + SIZE] for at in range(0, len(rows), SIZE)]


CASES = ("shared", "one-has-all", "one-has-nan")


def steps(world: World, case: str) -> dict[str, Any]:
    """Take four steps and return what was seen."""
    policy = tiny_policy("llama")
    how = StepSettings(
        loss=preset("grpo", beta=0.05, entropy_coef=0.1, correction="token_truncate"),
        token_budget=30,
        max_completion_length=8,
        top_entropy_quantile=0.5,
    )
    optimizer = build_optimizer("adamw_torch", policy.trained, learning_rate=0.01)
    scheduler = build_scheduler("linear", optimizer, steps=5)
    seen = []
    for at in range(3):
        groups = grouped(near(policy, make_rows(at, groups=3, size=SIZE)))
        if case != "one-has-all":
            groups = world.share(groups)
        elif not world.first:
            groups = []
        if case == "one-has-nan" and at == 1 and not world.first:
            policy.trained[0].register_hook(lambda value: value * float("nan"))
        result = update(policy, [row for group in groups for row in group], optimizer, scheduler, how, world)
        seen.append({"metrics": result.metrics, "skipped": result.skipped, "norm": result.grad_norm})
    drop = dataclasses.replace(how, loss=preset("dapo"), top_entropy_quantile=1.0)
    result = update(policy, [], optimizer, scheduler, drop, world)  # nobody has rows
    seen.append({"metrics": result.metrics, "skipped": result.skipped, "norm": result.grad_norm})
    return {"seen": seen, "weights": [weight.detach() for weight in policy.trained]}


def main(output: str) -> None:
    torch.set_num_threads(1)
    world = World.join("cpu")
    found: dict[str, Any] = {case: steps(world, case) for case in CASES if world.size > 1 or case == "shared"}
    found |= {"gather": world.gather(world.rank), "word": world.from_first(f"from {world.rank}")}
    world.wait()
    torch.save(found, f"{output}.{world.rank}")
    world.leave()


if __name__ == "__main__":
    main(sys.argv[1])
