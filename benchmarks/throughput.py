"""How fast `rewardkit eval -r gsm8k` gets through large files, and how much memory all its processes hold meanwhile.

    python benchmarks/throughput.py [--rows 1000000] [--workers 2] [--shapes one,eight,interleaved,gz,parquet]

Makes each file first (see `throughput_data.py`), runs the whole command, and prints one line for each: wall and CPU
time, completions a second, and the resident memory of all processes together: at a quarter of the run, at its end,
and at most (pages that processes share count once for each).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from throughput_data import make

FILES = {
    "one": ("one.jsonl", "one"),
    "eight": ("eight.jsonl", "eight"),
    "interleaved": ("interleaved.jsonl", "interleaved"),
    "gz": ("one.jsonl.gz", "one"),
    "parquet": ("one.parquet", "one"),
}


def resident(pid: int) -> int:
    """Return the resident bytes of a process and all its descendants."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return total


def measure(command: list[str]) -> tuple[float, float, list[int]]:
    """Run a command; return wall and CPU seconds, and resident bytes ten times a second."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        samples.append(resident(process.pid))
        time.sleep(0.1)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="completions")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shapes", default=",".join(FILES))
    parser.add_argument("--folder", type=Path, help="where files are made and kept; a temporary folder when not given")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{given.rows:,} completions, --workers {given.workers}, {os.cpu_count()} cores")
    print(
        f"{'file':12} {'MB':>6} {'wall s':>7} {'CPU s':>7} {'us CPU each':>12} {'per second':>11}  MB at 1/4, end, most"
    )
    try:
        for shape in given.shapes.split(","):
            name, kind = FILES[shape]
            path = folder / f"{given.rows}-{name}"
            if not path.exists():
                make(path, given.rows, kind)
            program = [sys.executable, "-m", "rewardkit", "eval", str(path), "-r", "gsm8k", "-q", "--overwrite"]
            wall, cpu, memory = measure([*program, "-o", str(folder / "run"), "--workers", str(given.workers)])
            quarter, end, most = (value / 1e6 for value in (memory[len(memory) // 4], memory[-5:][0], max(memory)))
            print(
                f"{shape:12} {path.stat().st_size / 1e6:6.0f} {wall:7.1f} {cpu:7.1f} {cpu / given.rows * 1e6:12.1f}"
                f" {given.rows / wall:11,.0f}  {quarter:.0f}, {end:.0f}, {most:.0f}",
                flush=True,
            )
    finally:
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
