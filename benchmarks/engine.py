"""What the engine costs for each completion, beside a bare loop over the same verifier.

    python benchmarks/engine.py [COPIES]

Takes the GSM8K example (200 rows, four models), repeated in memory, and prints microseconds per completion: the
verifier alone, the engine around it, the whole command's pipeline (read, score, write), and a worker process.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rewardkit import Engine, read_generations, reward
from rewardkit.cli import run
from rewardkit.leaf import attempt
from rewardkit.verifiers.gsm8k import Gsm8k

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/gsm8k/solutions.jsonl"


@reward
def constant_inline(completion) -> float:
    return 1.0


def timed(function: Callable[[], object], count: int, rounds: int = 3) -> float:
    """Return the least time of some rounds, in microseconds per completion."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


def main() -> None:
    copies = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    generations = list(read_generations(EXAMPLE)) * copies
    count = sum(len(generation.completions) for generation in generations)
    verifier = Gsm8k()

    def bare() -> None:
        for generation in generations:
            prepared = verifier.prepare(generation.sample)
            for completion in generation.completions:
                attempt(verifier, prepared, generation.sample, completion)

    def engine(leaf: object) -> Callable[[], None]:
        def go() -> None:
            with Engine(leaf) as running:  # type: ignore[arg-type]
                for _ in running.score(generations):
                    pass

        return go

    rows = {
        "gsm8k, bare loop": timed(bare, count),
        "gsm8k, engine": timed(engine(verifier), count),
        "constant reward, engine": timed(engine(constant_inline), count),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "many.jsonl"
        file.write_bytes(EXAMPLE.read_bytes() * copies)

        def command() -> None:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = run(["eval", str(file), "-r", "gsm8k", "-o", f"{folder}/run", "--overwrite", "-q"])
            assert code == 0, code

        rows["rewardkit eval -r gsm8k"] = timed(command, count)
        shutil.rmtree(f"{folder}/run")
    print(f"{count:,} completions, one process\n{'what':28} {'us each':>9} {'per second':>12}")
    for name, microseconds in rows.items():
        print(f"{name:28} {microseconds:9.1f} {1e6 / microseconds:12,.0f}")
    print(f"engine over the bare loop: {rows['gsm8k, engine'] - rows['gsm8k, bare loop']:.1f} us a completion")


if __name__ == "__main__":
    main()
