"""The committed list of tasks is the installed package's."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap

import reasoning_gym.factory as factory
from reasoning_gym.dataset import ProceduralDataset

from rewardkit import parse
from rewardkit.plugins import load_plugins
from rewardkit_reasoning_gym import guards
from rewardkit_reasoning_gym.names import NEEDS, NO_ANSWER, TASKS

ALL = set(factory.DATASETS) - {"composite"}


def test_the_list_is_the_packages() -> None:
    assert set(TASKS) == ALL
    assert len(TASKS) >= 100


def test_every_task_is_registered_and_loads() -> None:
    registered = {entry.name for entry in load_plugins().registry.entries("verifier")}
    for task in TASKS:
        assert f"reasoning_gym/{task}" in registered
        assert parse(f"'reasoning_gym/{task}'").formula == f"'reasoning_gym/{task}'"


def test_registering_imports_neither_the_package_nor_numpy() -> None:
    code = (
        "import sys; from rewardkit.plugins import load_plugins; load_plugins();"
        " print(sorted({'reasoning_gym', 'numpy', 'sympy'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def _source(task: str) -> str:
    return textwrap.dedent(inspect.getsource(factory.DATASETS[task][0].score_answer))


def test_the_base_scorer_is_guarded_wherever_it_is_used() -> None:
    base = {task for task in ALL if factory.DATASETS[task][0].score_answer is ProceduralDataset.score_answer}
    assert len(base) == 33
    assert base <= guards.CONTAINS


def test_every_scorer_that_evaluates_text_is_guarded() -> None:
    """A new release with a new `eval` must not pass unseen."""
    found = set()
    for task in ALL:
        calls = (node.func for node in ast.walk(ast.parse(_source(task))) if isinstance(node, ast.Call))
        called = {getattr(call, "id", "") or getattr(call, "attr", "") for call in calls}
        if called & {"eval", "exec", "parse_expr", "sympify", "parse_latex", "compile", "literal_eval"}:
            found.add(task)
    # number_sorting evaluates the gold alone, which `entries` reads first.
    assert found == guards.PARSED | guards.EVALUATED | {"number_sorting"}


def test_scorers_read_no_metadata_that_is_not_listed() -> None:
    for task in ALL:
        if "metadata" not in _source(task):
            assert task not in NEEDS or task == "puzzle24", task  # whose guard reads the given numbers
    assert set(NEEDS) <= ALL
    assert set(NEEDS) >= NO_ANSWER
