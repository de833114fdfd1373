"""How often does `code` agree with known verdicts, and how fast is it? Prints a table; needs the shared data.

    python benchmarks/code.py                     # everything, with one worker a core
    python benchmarks/code.py --only battery speed
    python benchmarks/code.py --sample 20         # every 20th row

Every row goes through the engine and its workers, as in `rewardkit eval`. Rows that differ are listed.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rewardkit.code import Code, close_all, run_tests
from rewardkit.engine import Engine
from rewardkit.sandbox import Sandbox
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifiers.code.forms import read_tests
from rewardkit.verifiers.code.judging import run_program

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1] / "shared"
DATA = SHARED / "data"

Row = tuple[Generation, list[bool], list[str]]
"""A group, which of its completions pass, and what is known of how each ended."""

# What the labels call it -> what the verdict's reason may be. What raises in a test's expression when all is one
# process may be a wrong answer in two; a NameError may be a missing entry point; an empty completion fails an assert; a
# program's own assert is an error of it; a last line that is cut off is a syntax error by itself, and something else
# with tests behind it.
MAPPING = {
    "passed": {"passed"},
    "assert": {"wrong", "no_answer", "crash"},
    "error": {"crash", "wrong", "unreadable"},
    "syntax": {"unreadable"},
    "timeout": {"timeout", "memory"},  # they had 2 GiB, here it is 512 MiB
    "failed": {"wrong", "crash", "unreadable", "no_answer"},  # where no more is known
}


def lines(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def group(task: dict[str, Any], prompt: str, texts: Iterable[str], name: object) -> Generation:
    columns = {key: value for key, value in task.items() if key not in ("prompt", "canonical_solution")}
    return Generation(Sample(str(name), prompt, None, columns), tuple(map(Completion, texts)))


def humaneval() -> Iterator[Row]:
    for task in lines("humaneval/HumanEval.jsonl.gz"):
        yield group(task, task["prompt"], [task["canonical_solution"]], task["task_id"]), [True], ["passed"]


def mbpp() -> Iterator[Row]:
    for task in lines("mbpp/mbpp.jsonl"):
        columns = {key: value for key, value in task.items() if key not in ("text", "code")}
        yield group(columns, task["text"], [f"```python\n{task['code']}\n```"], task["task_id"]), [True], ["passed"]


def codegen() -> Iterator[Row]:
    tasks = {task["task_id"]: task for task in lines("humaneval/HumanEval.jsonl.gz")}
    labels = {label["task_id"]: label for label in lines("humaneval_codegen16b/labels.jsonl")}
    for row in lines("humaneval_codegen16b/samples.jsonl"):
        label = labels[row["task_id"]]
        yield (
            group(tasks[row["task_id"]], row["prompt"], row["samples"], row["task_id"]),
            label["passed"],
            label["status"],
        )


def chat() -> Iterator[Row]:
    tasks = {task["task_id"]: task for task in lines("humaneval/HumanEval.jsonl.gz")}
    labels = {label["task_id"]: label for label in lines("humaneval_chat/labels.jsonl")}
    for row in lines("humaneval_chat/samples.jsonl"):
        task, label = tasks[row["task_id"]], labels[row["task_id"]]
        yield group(task, task["prompt"], [row["completion"]], row["task_id"]), [label["passed"]], [label["status"]]


def mbpp_samples() -> Iterator[Row]:
    tasks = {task["task_id"]: task for task in lines("mbpp/mbpp_functions.jsonl")}
    labels = {label["task_id"]: label for label in lines("mbpp_samples/labels.jsonl")}
    for row in lines("mbpp_samples/samples.jsonl"):
        task, label = tasks[row["task_id"]], labels[row["task_id"]]
        yield group(task, task["prompt"], [row["completion"]], row["task_id"]), [label["passed"]], [label["status"]]


def cruxeval() -> Iterator[Row]:
    tasks = {task["id"]: task for task in lines("cruxeval/cruxeval.jsonl")}
    scored = json.loads((DATA / "cruxeval" / "scored_codellama-7b_output.json").read_text("utf-8"))
    for name, texts in scored["raw_generations"].items():
        passed = scored["raw_scored_generations"][name]
        yield group(tasks[name], "", texts, name), passed, ["passed" if one else "failed" for one in passed]


SETS = {
    "humaneval canonical": humaneval,
    "mbpp canonical": mbpp,
    "humaneval_codegen16b": codegen,
    "humaneval_chat": chat,
    "mbpp_samples": mbpp_samples,
    "cruxeval": cruxeval,
}


def status(score: Score) -> str:
    if score.value == 1.0:
        return "passed"
    return score.reason or "?"


def agreement(name: str, sample: int, workers: int | None) -> None:
    """Print how far the verdicts on one set agree with its labels."""
    rows = list(SETS[name]())[::sample]
    started = time.perf_counter()
    # MBPP/123 takes 3 s of an idle core.
    code = Code(timeout=20.0 if "canonical" in name else 3.0)
    agree = passes = known = 0
    table: collections.Counter[tuple[str, str]] = collections.Counter()
    differ: list[str] = []
    with Engine(code, workers=workers) as engine:
        for (generation, passed, said), scored in zip(rows, engine.score(row[0] for row in rows), strict=True):
            for place, score in enumerate(scored.scores["code"]):
                got = status(score)
                passes += score.value == 1.0
                known += passed[place]
                table[said[place].partition(":")[0], got] += 1
                if score.state == "scored" and (score.value == 1.0) == passed[place]:
                    agree += 1
                else:
                    differ.append(f"{generation.sample.id}[{place}]: {said[place]} -> {score.why}")
        repeated = engine.repeated
    seconds = time.perf_counter() - started
    total = sum(table.values())
    print(
        f"{name:26} {agree:6,} of {total:,} agree; {passes:,} pass ({known:,} labelled); {repeated:,} not run again; "
        f"{seconds:.1f} s, {total / seconds:.0f}/s",
        flush=True,
    )
    for (label, got), count in sorted(table.items()):
        mark = "" if got in MAPPING.get(label, ()) else "   <- outside the mapping"
        if len(table) > 1:
            print(f"    {label:10} -> {got:12} {count:6,}{mark}")
    for line in differ[:50]:
        print(f"    differs: {line[:300]}")


def battery() -> None:
    """Print how many attacks pass and how many honest programs fail."""
    for path in (SHARED / "cases" / "code_cases.jsonl", HERE.parent / "tests" / "cases" / "code.jsonl"):
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        wrong = []
        for line in path.read_text("utf-8").splitlines():
            case = json.loads(line)
            verdict = run_tests(
                case["solution"], case["tests"], mode=case["mode"], entry_point=case["entry_point"], timeout=2.0
            )
            got = {1.0: "pass", 0.0: "fail"}.get(verdict.value if verdict.value is not None else -1.0, "abstained")
            counts[case["kind"], got] += 1
            if got != case["expected"]:
                wrong.append(f"{case['id']}: {got}, expected {case['expected']}: {verdict.detail}")
        attacks = sum(count for (kind, _), count in counts.items() if kind != "honest")
        honest = sum(count for (kind, _), count in counts.items() if kind == "honest")
        passed = sum(count for (kind, got), count in counts.items() if kind != "honest" and got != "fail")
        failed = sum(count for (kind, got), count in counts.items() if kind == "honest" and got != "pass")
        print(f"{path.name:26} {passed} of {attacks} attacks pass, {failed} of {honest} honest programs fail")
        for text in wrong:
            print(f"    {text}")


def speed() -> None:
    """Print the time of one run of each kind, alone and without a cache."""
    kinds = {
        "function, 5 calls": (
            "def f(x):\n    return x * x\n",
            [{"args": f"({i},)", "expected": str(i * i)} for i in range(5)],
            "f",
        ),
        "test code in the judge": (
            "def f(x):\n    return x * x\n",
            "def check(candidate):\n    for i in range(5):\n        assert candidate(i) == i * i\n",
            "f",
        ),
        "one run with stdin": ("print(int(input()) ** 2)\n", [{"stdin": "5\n", "stdout": "25\n"}], None),
    }
    with Sandbox("strict") as sandbox:
        for name, (source, tests, entry) in kinds.items():
            cases = read_tests({"tests": tests}, entry_point=entry)
            limits = Code()._limits
            times = []
            for _ in range(300):
                started = time.perf_counter()
                report = run_program(sandbox, source, cases, limits=limits)
                times.append(time.perf_counter() - started)
                assert report.outcomes[0].status == "passed", report
            print(
                f"{name:26} median {1000 * statistics.median(times):.1f} ms, "
                f"{len(times) / sum(times):.0f}/s on one thread"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help=f"of: battery, speed, {', '.join(SETS)}")
    parser.add_argument("--sample", type=int, default=1, help="take every n-th row")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, level strict, timeout 3 s")
    for label, reasons in MAPPING.items():
        print(f"    {label} means {' or '.join(sorted(reasons))}")
    for name in SETS:
        if not options.only or name in options.only:
            agreement(name, options.sample, options.workers)
    if not options.only or "battery" in options.only:
        battery()
    if not options.only or "speed" in options.only:
        speed()
    close_all()


if __name__ == "__main__":
    main()
