"""Make files of saved GSM8K generations of any size, for `throughput.py`.

    python benchmarks/throughput_data.py FILE [--rows N] [--shape one|eight|interleaved]

The texts are GSM8K problems with four models' answers (the repository's example, or a folder with more of them in
$GSM8K_SOLUTIONS), each answer ended in one of the ways that models end theirs. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/gsm8k/solutions.jsonl"
GROUP = 8
ENDINGS = ("\nA: {}", "\nA: {}", "\n#### {}", "\n#### {}", "\nThe answer is {}.", "\nSo the total is $\\boxed{{{}}}$.")


def problems(path: Path) -> list[tuple[str, str, list[str]]]:
    """Return question, worked reference, and the models' texts without their last line, of each problem."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        texts = [value["solution"] for value in row.values() if isinstance(value, dict)]
        gold = re.sub(r"\nA: ", "\n#### ", row["ground_truth"])
        found.append((row["question"], gold, texts))
    return found


def groups(path: Path, count: int, seed: int = 1) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield id, question, reference and eight completions of as many groups."""
    source = problems(path)
    chance = random.Random(seed)
    for number in range(count):
        question, gold, texts = source[number % len(source)]
        completions = []
        for _ in range(GROUP):
            body, mark, answer = chance.choice(texts).rpartition("\nA: ")
            completions.append(body + chance.choice(ENDINGS).format(answer) if mark else answer)
        yield f"gsm8k-{number:07}", question, gold, completions


def rows(path: Path, completions: int, shape: str) -> Iterator[dict[str, Any]]:
    """Yield rows: `one` completion a row, `eight` a row, or 64 groups at a time mixed up (`interleaved`)."""
    waiting: list[list[dict[str, Any]]] = []
    for id, question, answer, texts in groups(path, -(-completions // GROUP)):
        if shape == "eight":
            yield {"id": id, "question": question, "answer": answer, "completions": texts}
            continue
        single = [{"id": id, "question": question, "answer": answer, "completion": text} for text in texts]
        if shape == "one":
            yield from single
            continue
        waiting.append(single)
        if len(waiting) == 64:
            yield from (row for turn in zip(*waiting, strict=True) for row in turn)
            waiting = []
    yield from (row for turn in zip(*waiting, strict=True) for row in turn)


def write_jsonl(stream: BinaryIO, path: Path, completions: int, shape: str) -> None:
    """Write JSON lines."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for row in rows(path, completions, shape):
        stream.write(encode(row).encode() + b"\n")


def write_parquet(target: Path, path: Path, completions: int, shape: str) -> None:
    """Write a Parquet file with row groups of 20,000 rows."""
    import itertools

    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = rows(path, completions, shape)
    with contextlib.ExitStack() as stack:
        writer = None
        while batch := list(itertools.islice(stream, 20_000)):
            table = pa.Table.from_pylist(batch)
            writer = writer or stack.enter_context(pq.ParquetWriter(target, table.schema))
            writer.write_table(table)


def make(target: Path, completions: int, shape: str) -> None:
    """Write a file; its name says how: .jsonl, .jsonl.gz or .parquet."""
    path = Path(os.environ.get("GSM8K_SOLUTIONS", EXAMPLE))
    if target.suffix == ".parquet":
        write_parquet(target, path, completions, shape)
    elif target.suffix == ".gz":
        with gzip.open(target, "wb", compresslevel=3) as stream:
            write_jsonl(stream, path, completions, shape)  # type: ignore[arg-type]
    else:
        with open(target, "wb") as stream:
            write_jsonl(stream, path, completions, shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000, help="completions")
    parser.add_argument("--shape", choices=("one", "eight", "interleaved"), default="one")
    given = parser.parse_args()
    make(given.file, given.rows, given.shape)


if __name__ == "__main__":
    main()
