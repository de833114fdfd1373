"""Programs that try to be scored as right without being it, and honest ones that look unusual. Every attack is bounded.

Each kind: equality (results that lie when compared), exit (ends that look like success), patching (of what tests use),
reading (of expected values), forging (of verdicts and messages), weak_compare (answers that lenient checkers take),
resources.
"""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from rewardkit.code import run_tests
from rewardkit.sandbox import Sandbox

OWN = [
    json.loads(line) for line in (Path(__file__).parents[2] / "cases" / "code.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("strict") as made:
        yield made


def judged(case, sandbox):
    verdict = run_tests(
        case["solution"], case["tests"], mode=case["mode"], entry_point=case["entry_point"], timeout=1.0, within=sandbox
    )
    return {1.0: "pass", 0.0: "fail", None: "abstained"}[verdict.value], verdict


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["id"])
def test_own_cases(case, sandbox):
    got, verdict = judged(case, sandbox)
    assert got == case["expected"], verdict
    assert verdict.detail and (verdict.reason is None) == (got == "pass")


def test_the_cases_given(shared, sandbox):
    wrong = []
    for line in shared("cases/code_cases.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        got, verdict = judged(case, sandbox)
        if got != case["expected"]:
            wrong.append((case["id"], got, verdict.detail))
    assert not wrong


def test_there_are_enough_of_every_kind():
    counts = collections.Counter(case["kind"] for case in OWN)
    assert len({case["id"] for case in OWN}) == len(OWN) and all(case["why"] for case in OWN)
    assert set(counts) == {"equality", "exit", "patching", "reading", "forging", "weak_compare", "resources", "honest"}
    assert sum(counts.values()) - counts["honest"] >= 60 and min(counts.values()) >= 10


def test_a_program_that_equals_everything_passes_no_assert(sandbox, shared):
    """The attack that the common executors score as right: here on every HumanEval task."""
    import gzip

    liar = (
        "class Any:\n"
        + "".join(
            f"    def __{name}__(self, *a): return True\n"
            for name in ("eq", "ne", "lt", "le", "gt", "ge", "contains", "bool")
        )
        + "".join(
            f"    def __{name}__(self, *a): return self\n"
            for name in ("sub", "rsub", "abs", "add", "radd", "call", "getitem", "round")
        )
        + "    def __len__(self): return 1\n    def __iter__(self): return iter(())\n    __hash__ = None\n"
    )
    passed = []
    with gzip.open(shared("data/humaneval/HumanEval.jsonl.gz"), "rt") as lines:
        for line in list(lines)[::4]:
            task = json.loads(line)
            source = f"{task['prompt']}    pass\n{liar}\ndef {task['entry_point']}(*a, **k): return Any()\n"
            verdict = run_tests(
                source,
                {"test": task["test"], "entry_point": task["entry_point"]},
                prompt=task["prompt"],
                within=sandbox,
            )
            if verdict.value != 0.0:
                passed.append((task["task_id"], verdict))
    assert not passed
