"""The task scorers of reasoning-gym as rewardkit verifiers: one a task, and `reasoning_gym/score` for mixed data."""

from __future__ import annotations

from rewardkit import hookimpl
from rewardkit.hookspecs import Register
from rewardkit_reasoning_gym.names import TASKS, class_name


@hookimpl
def rewardkit_verifiers(register: Register) -> None:
    register("score", "rewardkit_reasoning_gym.tasks:AnyTask", "The scorer of the task that the entry names")
    for task, category in TASKS.items():
        register(task, f"rewardkit_reasoning_gym.tasks:{class_name(task)}", f"reasoning-gym's {task} ({category})")
