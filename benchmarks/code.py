"""How often does `code` agree with known verdicts, and how fast is it? Prints a table; needs the shared data.

    python benchmarks/code.py                     # everything, with one worker a core
    python benchmarks/code.py --only battery speed
    python benchmarks/code.py --sample 20         # every 20th row
    python benchmarks/code.py --only battery --peers peers/bin/python     # beside other executors; see code_peers.py

Every row goes through the engine and its workers, as in `rewardkit eval`. Rows that differ are listed.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import platform
import statistics
import subprocess
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


KINDS = ("equality", "exit", "patching", "reading", "forging", "weak_compare", "resources", "honest")
CASES = (SHARED / "cases" / "code_cases.jsonl", HERE.parent / "tests" / "cases" / "code.jsonl")


def battery(peers: str | None) -> None:
    """Print how many attacks pass and honest programs fail: here, and with executors of another environment."""
    cases = {case["id"]: case for path in CASES for case in map(json.loads, path.read_text("utf-8").splitlines())}
    ours = "rewardkit"
    found: dict[str, dict[str, tuple[str, float]]] = {ours: {}}
    for case in cases.values():
        began = time.perf_counter()
        verdict = run_tests(
            case["solution"], case["tests"], mode=case["mode"], entry_point=case["entry_point"], timeout=2.0
        )
        seconds = time.perf_counter() - began
        got = {1.0: "passed", 0.0: "failed"}.get(verdict.value if verdict.value is not None else -1.0, "abstained")
        found[ours][case["id"]] = got, seconds
        if (got == "passed") != (case["kind"] == "honest"):
            print(f"    {case['id']}: {got}, expected {case['expected']}: {verdict.detail}")
    for path in CASES:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        attacks = [found[ours][row["id"]][0] for row in rows if row["kind"] != "honest"]
        honest = [found[ours][row["id"]][0] for row in rows if row["kind"] == "honest"]
        passed, failed = sum(got != "failed" for got in attacks), sum(got != "passed" for got in honest)
        print(f"{path.name:26} {passed} of {len(attacks)} attacks pass, {failed} of {len(honest)} honest programs fail")
    if peers is not None:
        for row in _of_peers(peers):
            if "absent" in row:
                print(f"    {row['executor']} is not there: {row['absent']}")
            else:
                found.setdefault(row["executor"], {})[row["id"]] = row["verdict"], row["seconds"]
    _print_battery(cases, found)


def _of_peers(python: str) -> Iterator[dict[str, Any]]:
    command = [python, "-P", str(HERE / "code_peers.py"), *map(str, CASES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise SystemExit(f"the other executors could not be run: {' '.join(command)}")


def _print_battery(cases: dict[str, dict[str, Any]], found: dict[str, dict[str, tuple[str, float]]]) -> None:
    """Print attacks that pass, of those that an executor has a form for, and honest programs that do not pass."""
    print(f"\n{'attacks scored pass':24}" + "".join(f"{kind:>14}" for kind in (*KINDS[:-1], "all")), end="")
    print(f"{'honest failed':>16}{'raised, died':>14}{'stalled':>9}{'> 5 s':>7}{'ms':>7}")
    for name, verdicts in found.items():
        cells = []
        for kind in (*KINDS[:-1], "all", "honest"):
            rows = [
                got
                for case, (got, _) in verdicts.items()
                if cases[case]["kind"] == kind or (kind == "all" and cases[case]["kind"] != "honest")
            ]
            bad = sum((got == "passed") != (kind == "honest") for got in rows)
            cells.append(f"{bad}/{len(rows)}" if rows else "-")
        of_all = [got for got, _ in verdicts.values()]
        slow = sum(seconds > 5 for _, seconds in verdicts.values())
        times = [
            seconds
            for case, (got, seconds) in verdicts.items()
            if got == "passed" and cases[case]["kind"] == "honest" and cases[case]["mode"] == "function"
        ]
        print(f"{name:24}" + "".join(f"{cell:>14}" for cell in cells[:-1]) + f"{cells[-1]:>16}", end="")
        broken = of_all.count("raised") + of_all.count("died")
        print(f"{broken:>14}{of_all.count('stalled'):>9}{slow:>7}{1000 * statistics.median(times):>7.1f}", flush=True)


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
    parser.add_argument("--peers", metavar="PYTHON", help="the interpreter of an environment as in code_peers.py")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, level strict, timeout 3 s")
    for label, reasons in MAPPING.items():
        print(f"    {label} means {' or '.join(sorted(reasons))}")
    for name in SETS:
        if not options.only or name in options.only:
            agreement(name, options.sample, options.workers)
    if not options.only or "battery" in options.only:
        battery(options.peers)
    if not options.only or "speed" in options.only:
        speed()
    close_all()


if __name__ == "__main__":
    main()
