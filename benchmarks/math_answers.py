"""The math verifier on labelled pairs and on speed, beside other graders where they are installed.

    python benchmarks/math_answers.py PAIRS.jsonl [PAIRS.jsonl ...]

A row has `gold`, `prediction`, `expected` (or `equal`) and `kind` (or `why`). Prints right verdicts, a 95 % interval
(Wilson), wrong answers accepted, right ones refused, by kind; then pairs per second and latency in one process. With
math-verify installed its column stands beside ours: it judges `$prediction$` against `$gold$` without its alarm.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rewardkit.math import verify


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    z = 1.96
    share, spread = (
        right / count,
        z * (right / count * (1 - right / count) / count + z * z / (4 * count * count)) ** 0.5,
    )
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    return (middle - spread) / scale, (middle + spread) / scale


def ours(prediction: str, gold: str) -> bool:
    return verify(prediction, gold).value == 1.0


def math_verify(prediction: str, gold: str) -> bool:
    import math_verify as package

    wanted = package.parse(f"${gold}$", parsing_timeout=5)
    return bool(package.verify(wanted, package.parse(f"${prediction}$", parsing_timeout=5), timeout_seconds=5))


def table(name: str, grader: Callable[[str, str], bool], rows: list[dict]) -> None:
    missed: Counter[str] = Counter()
    accepted = refused = right = slow = 0
    times = []
    for row in rows:
        started = time.perf_counter()
        try:
            verdict = grader(row["prediction"], row["gold"])
        except Exception:
            verdict = False
        times.append(time.perf_counter() - started)
        slow += times[-1] > 1.0
        expected = row.get("expected", row.get("equal"))
        right += verdict == expected
        if verdict != expected:
            missed[row.get("kind") or row["why"].partition(":")[0]] += 1
            accepted += verdict
            refused += not verdict
    low, high = wilson(right, len(rows))
    times.sort()
    print(f"{name:12} right {right} of {len(rows)} = {right / len(rows):.1%} ({low:.1%} to {high:.1%})", end="")
    print(f"   wrong accepted {accepted}   right refused {refused}   over 1 s {slow}")
    print(f"{'':12} {len(rows) / sum(times):,.0f} pairs/s   median {times[len(times) // 2] * 1e3:.2f} ms", end="")
    print(f"   p99 {times[int(0.99 * len(times))] * 1e3:.1f} ms   by kind {dict(missed)}")


def numbers(count: int = 20_000) -> None:
    pairs = [(f"{i}/{i % 97 + 1}", f"\\frac{{{2 * i}}}{{{2 * (i % 97 + 1)}}}") for i in range(count // 2)]
    pairs += [(str(i), f"{i}.0") for i in range(count // 2)]
    for label in ("numbers, first time", "numbers, seen before"):
        started = time.perf_counter()
        for mine, gold in pairs[-4000:]:
            verify(mine, gold)
        print(f"{label:24} {4000 / (time.perf_counter() - started):,.0f} pairs/s")


def main() -> None:
    rows = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text("utf-8").splitlines()]
    code = "import time, pydantic, msgspec, rewardkit.verifier as v; s = time.perf_counter()\n"
    code += "import rewardkit.verifiers.math.verifier; print(f'{(time.perf_counter() - s) * 1e3:.0f} ms')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    print("import of the verifier  ", done.stdout.strip())
    numbers()
    table("rewardkit", ours, rows)
    if importlib.util.find_spec("math_verify") is not None:
        table("math-verify", math_verify, rows)


if __name__ == "__main__":
    main()
