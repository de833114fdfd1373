"""Rewards that misbehave in every way that a worker has to survive. The completion's text says what to do."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from rewardkit.errors import ContractError
from rewardkit.reward import group_reward, reward
from rewardkit.types import Sample, Score

MEGABYTE = 1 << 20


def _hog() -> None:
    kept = []
    while True:
        kept.append(bytearray(16 * MEGABYTE))


def misbehave(text: str) -> None:
    match text:
        case "sleep":
            time.sleep(1e6)
        case "loop":
            while True:
                pass
        case "regex":
            re.match("(a+)+$", "a" * 60 + "!")
        case "power":
            str(10**10**9)
        case "hog":
            _hog()
        case "shift":
            _ = 1 << 10**11
        case "exit":
            os._exit(3)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "noise":
            for stream in (sys.stdout, sys.stderr):
                stream.write("noise \u20ac\n" * MEGABYTE)
                stream.flush()
            os.write(1, b"\0\0\0\0\0\0\0\x01\xc0")
        case "read":
            assert sys.stdin.read() == ""
        case "quit":
            sys.exit("enough")
        case "interrupt":
            raise KeyboardInterrupt
        case "raise":
            raise ValueError("no such luck")
        case "contract":
            raise ContractError("seven values for eight")
        case "fork":
            os.fork()  # and the fork goes on as if it were the worker


@reward(timeout=0.4)
def quick(completion: str) -> float:
    misbehave(completion)
    return float(len(completion))


@reward(timeout=30, memory="64MiB")
def patient(completion: str) -> float:
    misbehave(completion)
    return float(len(completion))


@reward
def unbounded(completion: str) -> float:
    misbehave(completion)
    return float(len(completion))


@reward(timeout=30)
def who(completion: str) -> Score:
    return Score(1.0, str(os.getpid()))


@reward(timeout=30)
def dies_once(completion: str, marker: str) -> float:
    """Die the first time, as under a kill from outside."""
    if completion == "die" and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(len(completion))


@reward(timeout=30)
def slow(completion: str, marker: str) -> float:
    """Say who judges, then wait until the marker is there."""
    Path(marker + ".pid").write_text(str(os.getpid()))
    while not Path(marker).exists():
        time.sleep(0.01)
    return 7.0


@reward(timeout=0.6)
def starts_a_child(completion: str, marker: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
    Path(marker).write_text(str(child.pid))
    time.sleep(1e6)
    return 0.0


@reward(timeout=30)
def seen(completion: str, value: object) -> Score:
    """What the reward sees, spelled out."""
    return Score(1.0, ascii(value), extracted=completion)


@reward(timeout=30)
def echoed(completion: str, sample: Sample, messages: list[object]) -> Score:
    return Score(1.0, ascii((sample, messages)))


@reward(timeout=30)
async def later(completion: str) -> float:
    await asyncio.sleep(0.001)
    return float(len(completion))


@reward(timeout=30)
def many_parts(completion: str) -> Score:
    part = Score(0.25, "d", "e", "wrong", "p", 2.0, (Score(None, "inner", reason="missing"),), 0.5, "t")
    return Score(0.5, "detail \ud800", "extracted", "wrong", "x", 3.0, (part, part), 1.0, "trace")


@reward(timeout=30)
def no_data(completion: str) -> Score:
    return Score(1.0, object())  # type: ignore[arg-type]


@group_reward(timeout=0.5, memory="64MiB")
def ranks(completions: list[str]) -> list[float]:
    for text in completions:
        misbehave(text)
    order = sorted(completions)
    return [float(order.index(text)) for text in completions]


@group_reward(timeout=30)
def too_few(completions: list[str]) -> list[float]:
    return [1.0]
