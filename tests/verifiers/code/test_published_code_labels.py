"""Real tasks and real completions: verdicts agree with labels made by running each program alone (a sample of each
set).

All rows: `python benchmarks/code.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewardkit.code import Code
from rewardkit.engine import Engine
from rewardkit.types import Generation
from rewardkit.verifiers.code.cases import Calls
from rewardkit.verifiers.code.forms import read_tests

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("code_benchmark", ROOT / "benchmarks" / "code.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name, rows, completions",
    [
        ("humaneval canonical", 8, 1),
        ("mbpp canonical", 40, 1),
        ("humaneval_codegen16b", 5, 20),
        ("humaneval_chat", 8, 1),
        ("mbpp_samples", 25, 1),
        ("cruxeval", 20, 3),
    ],
)
def test_verdicts_agree(benchmark, shared, name, rows, completions):
    shared("data/humaneval/HumanEval.jsonl.gz")
    differ = []
    chosen = list(benchmark.SETS[name]())[::rows]
    generations = [Generation(row.sample, row.completions[::completions]) for row, *_ in chosen]
    with Engine(Code(timeout=10.0), workers=2) as engine:
        for (_, passed, said), scored in zip(chosen, engine.score(generations), strict=True):
            for score, label, how in zip(
                scored.scores["code"], passed[::completions], said[::completions], strict=True
            ):
                if (
                    score.value != float(label)
                    or benchmark.status(score) not in benchmark.MAPPING[how.partition(":")[0]]
                ):
                    differ.append((scored.generation.sample.id, how, score.why))
    assert not differ


def test_most_tasks_reduce_to_calls(benchmark, shared):
    shared("data/mbpp/mbpp.jsonl")
    tasks = benchmark.lines("humaneval/HumanEval.jsonl.gz")
    assert sum(isinstance(read_tests(task, prompt=task["prompt"]), Calls) for task in tasks) >= 150
    tasks = benchmark.lines("mbpp/mbpp.jsonl")
    assert sum(isinstance(read_tests({k: v for k, v in task.items() if k != "code"}), Calls) for task in tasks) >= 960


def test_eval_on_rows_with_their_tests(benchmark, shared, tmp_path):
    shared("data/humaneval_chat/samples.jsonl")
    tasks = {task["task_id"]: task for task in benchmark.lines("humaneval/HumanEval.jsonl.gz")}
    labels = {label["task_id"]: label["passed"] for label in benchmark.lines("humaneval_chat/labels.jsonl")}
    rows = benchmark.lines("humaneval_chat/samples.jsonl")[::10]
    with (tmp_path / "samples.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps({**tasks[row["task_id"]], **row}) + "\n")
    command = [
        sys.executable,
        "-m",
        "rewardkit",
        "eval",
        "samples.jsonl",
        "-r",
        "code(timeout=5, memory='512MB')",
        "-o",
        "out",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text("utf-8").splitlines()]
    assert {score["id"]: score["value"] == 1.0 for score in scores} == {
        row["task_id"]: labels[row["task_id"]] for row in rows
    }
