"""The math verifier on labelled pairs and on speed, beside other graders where they are installed.

    python benchmarks/math_answers.py PAIRS.jsonl [PAIRS.jsonl ...] [--only=rewardkit,math-verify,inspect_ai]

A row has `gold`, `prediction`, `expected` (or `equal`), `kind` (or `why`). Prints, with 95 % intervals (Wilson):
right verdicts, wrong answers accepted, right answers refused; of MATH-like kinds, of the kinds whose labels rest on a
policy, and of hostile rows apart, whose verdict must be right within a second; then every kind. After that pairs per
second, latency in one process, and what the first answer costs that needs computer algebra.

math-verify judges `$prediction$` against `$gold$` with its own alarm of 5 s; inspect_ai's `math()` gets the gold as
target and `$prediction$` as the model's output.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewardkit.math import verify

POLICY = frozenset(["tolerance", "percent", "unit", "echo", "base", "variable", "time_date"])
"""Kinds whose labels rest on a policy more than on mathematics."""

Grader = Callable[[str, str], bool]


def wilson(hits: int, count: int) -> str:
    """Return a share with its 95 % interval as text."""
    if not count:
        return "-"
    z, share = 1.96, hits / count
    spread = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    low, high = max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
    return f"{hits}/{count} = {share:.1%} ({low:.1%} to {high:.1%})"


def ours(prediction: str, gold: str) -> bool:
    return verify(prediction, gold).value == 1.0


def math_verify(prediction: str, gold: str) -> bool:
    import math_verify as package

    wanted = package.parse(f"${gold}$", parsing_timeout=5)
    return bool(package.verify(wanted, package.parse(f"${prediction}$", parsing_timeout=5), timeout_seconds=5))


def inspect_grader() -> Grader:
    """Return inspect_ai's scorer, called in one event loop."""
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Target, math
    from inspect_ai.solver import TaskState

    scorer, loop = math(), asyncio.new_event_loop()

    def judge(prediction: str, gold: str) -> bool:
        output = ModelOutput.from_content("model", f"${prediction}$")
        state = TaskState(model="mockllm/model", sample_id=1, epoch=1, input="", messages=[], output=output)  # type: ignore[arg-type]
        return bool(loop.run_until_complete(scorer(state, Target(gold))).value == "C")

    return judge


class Row:
    """One labelled pair with its verdict."""

    def __init__(self, data: dict[str, Any], grader: Grader) -> None:
        self.kind = data.get("kind") or data["why"].partition(":")[0]
        self.expected = bool(data.get("expected", data.get("equal")))
        started = time.perf_counter()
        try:
            self.verdict = grader(data["prediction"], data["gold"])
        except Exception:
            self.verdict = False
        self.seconds = time.perf_counter() - started
        self.right = self.verdict == self.expected


def part(name: str, rows: list[Row]) -> None:
    wrong, right = [row for row in rows if not row.expected], [row for row in rows if row.expected]
    print(f"  {name:18} right {wilson(sum(row.right for row in rows), len(rows))}")
    print(f"  {'':18} wrong accepted {wilson(sum(row.verdict for row in wrong), len(wrong))}", end="")
    print(f"   right refused {wilson(sum(not row.verdict for row in right), len(right))}")


def table(name: str, grader: Grader, data: list[dict[str, Any]]) -> None:
    rows = [Row(one, grader) for one in data]
    print(name)
    judged = [row for row in rows if row.kind != "hostile"]
    hostile = [row for row in rows if row.kind == "hostile"]
    part("all but hostile", judged)
    part("mathematics", [row for row in judged if row.kind not in POLICY])
    part("policy kinds", [row for row in judged if row.kind in POLICY])
    good = sum(row.right and row.seconds < 1.0 for row in hostile)
    slow = sum(row.seconds >= 1.0 for row in hostile)
    print(f"  {'hostile':18} right within 1 s {wilson(good, len(hostile))}   over 1 s {slow}")
    for kind in sorted({row.kind for row in judged}):
        own = [row for row in judged if row.kind == kind]
        accepted = sum(row.verdict and not row.expected for row in own)
        print(f"    {kind:18} {wilson(sum(row.right for row in own), len(own))}", end="")
        print(f"   {accepted} wrong accepted" if accepted else "")
    times = sorted(row.seconds for row in judged)
    print(f"  {len(times) / sum(times):,.0f} pairs/s   median {times[len(times) // 2] * 1e3:.2f} ms", end="")
    print(f"   p99 {times[int(0.99 * len(times))] * 1e3:.1f} ms (hostile rows apart)")


def hostile_elsewhere(data: list[dict[str, Any]]) -> None:
    """Hostile rows in a thread and in an event loop."""
    data = [one for one in data if one.get("kind") == "hostile"]
    found: list[Row] = []
    thread = threading.Thread(target=lambda: found.extend(Row(one, ours) for one in data))
    thread.start()
    thread.join()

    async def wait() -> list[Row]:
        return [Row(one, ours) for one in data]

    for name, rows in (("in a thread", found), ("in asyncio", asyncio.run(wait()))):
        good = sum(row.right and row.seconds < 1.0 for row in rows)
        print(f"hostile, {name:12} right within 1 s {wilson(good, len(rows))}")


def numbers(count: int = 20_000) -> None:
    pairs = [(f"{i}/{i % 97 + 1}", f"\\frac{{{2 * i}}}{{{2 * (i % 97 + 1)}}}") for i in range(count // 2)]
    pairs += [(str(i), f"{i}.0") for i in range(count // 2)]
    for label in ("numbers, first time", "numbers, seen before"):
        started = time.perf_counter()
        for mine, gold in pairs[-4000:]:
            verify(mine, gold)
        print(f"{label:24} {4000 / (time.perf_counter() - started):,.0f} pairs/s")


IMPORT = """
import time, pydantic, msgspec, rewardkit.verifier
s = time.process_time()
import rewardkit.verifiers.math.verifier
print(f'{(time.process_time() - s) * 1e3:.0f} ms CPU')
"""
ALGEBRA = """
import time, rewardkit.math as m
def timed(text):
    s = time.perf_counter(); m.verify(text, '1'); return f'{time.perf_counter() - s:.2f} s'
print('first', timed('\\\\int_0^1 x\\\\,dx'), '  then', timed('\\\\int_0^1 3x\\\\,dx'), '  never ends',
      timed('\\\\int_0^1\\\\sin(\\\\sin(\\\\sin(\\\\sin(\\\\sin(x)))))dx'), '  next', timed('\\\\int_0^1 5x\\\\,dx'))
"""


def new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--only")]
    only = next(
        (argument.partition("=")[2].split(",") for argument in sys.argv if argument.startswith("--only=")), None
    )
    data = [json.loads(line) for path in paths for line in Path(path).read_text("utf-8").splitlines()]
    if only is None or "rewardkit" in only:
        new_process(IMPORT)
        print("import of the verifier  ", new_process(IMPORT))
        print("computer algebra        ", new_process(ALGEBRA))
        numbers()
        table("rewardkit", ours, data)
        hostile_elsewhere(data)
    if (only is None or "math-verify" in only) and importlib.util.find_spec("math_verify") is not None:
        table("math-verify", math_verify, data)
    if (only is None or "inspect_ai" in only) and importlib.util.find_spec("inspect_ai") is not None:
        table("inspect_ai", inspect_grader(), data)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
