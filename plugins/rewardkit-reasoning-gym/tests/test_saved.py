"""The saved evaluations: means equal the files', row by row, or the difference has a reason."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import rewardkit_reasoning_gym.tasks as tasks
from rewardkit import Generation, Score, parse, read_generations, score
from rewardkit_reasoning_gym.names import class_name

RUNS = ("deepseek-r1", "mistral-small-3.1-24b")
NAMES = [
    "base_conversion",
    "chain_sum",
    "countdown",
    "fraction_simplification",
    "gsm_symbolic",
    "knights_knaves",
    "letter_counting",
    "polynomial_equations",
    "word_sorting",
]

# Rows where the installed release gives another number than the one that made the files (0.1.16 or before).
NEWER_RELEASE = {
    ("deepseek-r1", "countdown"): 7,  # numbers used twice, or left out, were right
    ("deepseek-r1", "word_sorting"): 4,  # single right positions earned nothing, and downward order never 0.2
    ("mistral-small-3.1-24b", "word_sorting"): 67,
}
# Rows where a guard withholds what that release still gives, by what the guard says.
GUARDED: dict[tuple[str, str], dict[str, int]] = {
    ("deepseek-r1", "countdown"): {"no_answer: no <answer> block": 20},  # the package gives 0.01 for nothing
    ("mistral-small-3.1-24b", "countdown"): {"no_answer: no <answer> block": 135},
}


def rows(path: Path, **options: object) -> list[tuple[Generation, int, Score]]:
    verifier = getattr(tasks, class_name(path.stem))(**options)
    judged = []
    for generation in read_generations(path):
        prepared = verifier.prepare(generation.sample)
        for i, completion in enumerate(generation.completions):
            answer = (
                prepared if isinstance(prepared, Score) else verifier.judge(prepared, generation.sample, completion)
            )
            judged.append((generation, i, answer))
    return judged


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("task", NAMES)
def test_the_old_release_reproduces_every_saved_score_and_the_mean(
    run: str, task: str, shared: Callable[[str], Path]
) -> None:
    path = shared(f"data/reasoning_gym/{run}/{task}.json")
    judged = rows(path, faithful=True, release="0.1.16")
    assert len(judged) == 150
    for generation, i, answer in judged:
        assert answer.value == generation.completions[i].metadata["score"], (generation.where, i, answer.why)
    mean = sum(answer.value or 0.0 for *_, answer in judged) / len(judged)
    assert mean == pytest.approx(json.loads(path.read_text())["average_mean_score"], abs=1e-12)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("task", NAMES)
def test_the_installed_release_differs_only_where_its_rules_did(
    run: str, task: str, shared: Callable[[str], Path]
) -> None:
    judged = rows(shared(f"data/reasoning_gym/{run}/{task}.json"), faithful=True)
    off = [1 for generation, i, answer in judged if answer.value != generation.completions[i].metadata["score"]]
    assert len(off) == NEWER_RELEASE.get((run, task), 0)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("task", NAMES)
def test_each_guard_that_changes_a_score_says_why(run: str, task: str, shared: Callable[[str], Path]) -> None:
    path = shared(f"data/reasoning_gym/{run}/{task}.json")
    reasons: collections.Counter[str] = collections.Counter()
    for (_, _, plain), (_, _, guarded) in zip(rows(path, faithful=True), rows(path), strict=True):
        assert guarded.state == "scored"
        if plain.value != guarded.value:
            assert guarded.value == 0, "a guard only takes away"
            reasons[f"{guarded.reason}: {guarded.detail.partition(' (')[0].partition(': ')[0]}"] += 1
    assert dict(reasons) == GUARDED.get((run, task), {})


def test_the_same_numbers_through_worker_processes(shared: Callable[[str], Path]) -> None:
    path = shared("data/reasoning_gym/deepseek-r1/fraction_simplification.json")
    reward = parse("'reasoning_gym/score'(task='fraction_simplification', faithful=True)")
    values = [one.value for scored in score(reward, read_generations(path)) for one in scored.scores["score"]]
    assert values == [answer.value for *_, answer in rows(path, faithful=True)]
