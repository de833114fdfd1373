"""Speed of the sandbox, and what many runs leave behind.

    python benchmarks/sandbox.py [--runs 10000] [--level LEVEL]

A function run is what grading a function costs: a new process behind its walls, the source executed, five calls
answered. A script run feeds standard input and reads the output. Counted before and after: children and
descriptors of this process, processes and descriptors of the server, mounts, temporary folders, resident memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rewardkit.sandbox import LEVELS, Remote, Sandbox

FUNCTION = "def square(x):\n    return x * x\n"
SCRIPT = "n = int(input())\nprint(sum(range(n)))\n"
CHECK = "def check(candidate):\n" + "".join(f"    assert candidate({n}) == {n * n}\n" for n in range(5))


def function_run(sandbox: Sandbox) -> None:
    with sandbox.session(FUNCTION) as session:
        for number in range(5):
            assert session.call("square", [number]).value == number * number


def judged_run(sandbox: Sandbox) -> None:
    with (
        sandbox.session(FUNCTION) as session,
        sandbox.judge(CHECK, remote=session, names=["square"]) as judge,
    ):
        assert judge.call("check", [Remote("square")]).ok


def script_run(sandbox: Sandbox) -> None:
    assert sandbox.run(SCRIPT, stdin=b"100\n").stdout == b"4950\n"


def median_ms(run: Callable[[Sandbox], None], sandbox: Sandbox, count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        run(sandbox)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def per_second(run: Callable[[Sandbox], None], sandboxes: list[Sandbox], count: int) -> float:
    def work(sandbox: Sandbox) -> None:
        for _ in range(count):
            run(sandbox)

    threads = [threading.Thread(target=work, args=(sandbox,)) for sandbox in sandboxes]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(sandboxes) * count / (time.perf_counter() - began)


def left_behind(sandbox: Sandbox) -> dict[str, int]:
    """Count what runs could leave behind, on this machine and in the server."""
    servers = [sandbox.pid, *_children(sandbox.pid or 0)]
    return {
        "own children": len(_children(os.getpid())),
        "server processes": len(servers) + len(_children(servers[-1] or 0)),
        "own descriptors": len(os.listdir("/proc/self/fd")),
        "server descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in servers),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "server mounts": len(Path(f"/proc/{servers[-1]}/mounts").read_text().splitlines()),
        "temporary folders": sum(name.startswith("rewardkit-") for name in os.listdir(tempfile.gettempdir())),
        "server memory MB": _resident(servers[-1] or 0),
        "own memory MB": _resident(os.getpid()),
    }


def _children(pid: int) -> list[int]:
    return [
        int(word) for task in os.listdir(f"/proc/{pid}/task") for word in _words(f"/proc/{pid}/task/{task}/children")
    ]


def _words(path: str) -> list[str]:
    return Path(path).read_text().split()


def _resident(pid: int) -> int:
    return int(_words(f"/proc/{pid}/statm")[1]) * os.sysconf("SC_PAGESIZE") >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=LEVELS, default="strict")
    parser.add_argument("--runs", type=int, default=0, help="also count what this many runs leave behind")
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    began = time.perf_counter()
    with Sandbox(options.level) as sandbox, Sandbox(options.level) as second:
        start = 1000 * (time.perf_counter() - began) / 2
        print(f"level {options.level}; start {start:.0f} ms; load {os.getloadavg()[0]:.1f}")
        print(f"{'run':28}{'median ms':>10}{'runs/s':>10}{'2 servers':>11}")
        for name, run in (
            ("function, 5 calls", function_run),
            ("test code in a judge", judged_run),
            ("script", script_run),
        ):
            median_ms(run, sandbox, 20)
            middle = median_ms(run, sandbox, options.count)
            one = per_second(run, [sandbox, sandbox], options.count)
            two = per_second(run, [sandbox, second], options.count)
            print(f"{name:28}{middle:>10.2f}{one:>10.0f}{two:>11.0f}")
        if options.runs:
            before = left_behind(sandbox)
            for _ in range(options.runs):
                function_run(sandbox)
            time.sleep(0.5)
            after = left_behind(sandbox)
            print(f"\nafter {options.runs} runs{'before':>18}{'after':>8}")
            for name, count in before.items():
                print(f"{name:28}{count:>8}{after[name]:>8}")


if __name__ == "__main__":
    main()
