"""Rewards that tests load from a file, as a user's would be."""

from __future__ import annotations

import asyncio
import os
import time
from typing import ClassVar

from rewardkit import Completion, Reference, Sample, Verdict, Verifier, group_reward, reward


class Anything(Reference):
    text: str = ""


@reward(timeout=30)
def in_process(completion: str) -> float:
    return float(len(completion))


class InThread(Verifier[Anything]):
    """The length over 10, from a thread."""

    placement: ClassVar[str] = "thread"

    def verify(self, completion: Completion, reference: Anything, sample: Sample) -> Verdict:
        return Verdict.partial(len(completion.text) / 10)


in_thread = 10 * InThread()


@reward
def inline(completion: str) -> float:
    return float(len(completion))


@reward
async def later(completion: str) -> float:
    await asyncio.sleep(0.001 * (len(completion) % 3))
    return float(len(completion))


@reward
def counting(completion: str) -> float:
    return 1.0


@reward(timeout=0.5)
def may_hang(completion: str) -> float:
    if completion == "hang":
        time.sleep(1000)
    while completion == "spin":
        pass
    return 1.0


@reward(timeout=0.1)
async def never_answers(completion: str) -> float:
    await asyncio.sleep(1000)
    return 1.0


class NeverAnswers(Verifier[Anything]):
    placement: ClassVar[str] = "thread"
    timeout: ClassVar[float | None] = 0.1

    def verify(self, completion: Completion, reference: Anything, sample: Sample) -> Verdict:
        time.sleep(5)
        return Verdict.accept()


@reward(timeout=30)
def worker_pid(completion: str) -> float:
    return float(os.getpid())


@reward(timeout=30)
def is_long(completion: str) -> float:
    return float(len(completion) > 3)


@reward
def abstains(completion: str) -> None:
    return None


@group_reward(timeout=30)
def lazy_process(completions: list[str]) -> list[float]:
    return [1.0]
