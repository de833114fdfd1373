"""Entries: whole ones, after JSON, and what is left of them in saved files."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import reasoning_gym
from judging import judge, tagged

import rewardkit_reasoning_gym.tasks as tasks
from rewardkit_reasoning_gym.entries import DERIVABLE
from rewardkit_reasoning_gym.names import NEEDS, NO_ANSWER, TASKS, class_name


@functools.cache
def entries(task: str) -> list[dict[str, Any]]:
    dataset = reasoning_gym.create_dataset(task, seed=7, size=2)
    return [dataset[i] for i in range(2)]


def verifier(task: str, **options: object) -> Any:
    return getattr(tasks, class_name(task))(**options)


@pytest.mark.parametrize("task", sorted(set(TASKS) - NO_ANSWER))
def test_the_gold_of_every_task_scores_1_also_after_json(task: str) -> None:
    """arc_agi and rearc compare with tuples: read back from JSON, their right answers would earn 0.05."""
    for entry in entries(task):
        plain = json.loads(json.dumps(entry))
        for faithful in (False, True):
            score = judge(verifier(task, faithful=faithful), tagged(plain["answer"]), plain)
            if plain["answer"].strip():
                assert score.value == 1, (task, faithful, score.why)
        whole = judge(tasks.AnyTask(whole=True), plain["answer"], plain)
        assert whole.value == 1 or not plain["answer"].strip(), (task, whole.why)


@pytest.mark.parametrize("task", sorted(NO_ANSWER))
def test_tasks_without_a_gold_judge_by_their_metadata(task: str) -> None:
    entry = json.loads(json.dumps(entries(task)[0]))
    assert entry["answer"] is None
    assert judge(verifier(task), tagged("nonsense"), entry).state == "scored"
    assert judge(verifier(task), tagged("nonsense"), {"question": "x"}).reason == "missing"


@pytest.mark.parametrize("task", sorted(TASKS))
def test_question_and_answer_are_enough_or_it_says_what_is_missing(task: str) -> None:
    entry = entries(task)[0]
    score = judge(verifier(task), tagged(entry["answer"] or "x"), entry["answer"], prompt=entry["question"])
    if task in DERIVABLE or task not in NEEDS:
        assert score.value == 1, score.why
    else:
        assert score.reason == "missing"
        assert f"metadata.{NEEDS[task][0]}" in score.detail or task in NO_ANSWER


@pytest.mark.parametrize("task", sorted(DERIVABLE))
def test_what_is_worked_out_scores_like_the_whole_entry(task: str) -> None:
    first, second = entries(task)
    for text in (first["answer"], second["answer"], first["answer"][:-1], first["answer"] + " 1", "0"):
        whole = judge(verifier(task, faithful=True), tagged(text), first)
        short = judge(verifier(task, faithful=True), tagged(text), first["answer"], prompt=first["question"])
        assert short.value == whole.value, (text, short.why, whole.why)


def test_columns_of_an_entry_a_line() -> None:
    entry = entries("word_sorting")[0]
    columns = {"metadata": json.dumps(entry["metadata"])}
    assert judge(tasks.AnyTask(), tagged(entry["answer"]), entry["answer"], entry["question"], **columns).value == 1


@pytest.mark.parametrize(
    ("options", "reference", "columns", "reason", "says"),
    [
        ({}, "4", {}, "missing", "names no task"),
        ({}, "4", {"task": "gdc"}, "unsupported", "did you mean gcd?"),
        ({"task": "gcd"}, None, {}, "missing", "no answer"),
        ({"task": "gcd"}, {"answer": "4", "metadata": "{"}, {}, "bad_reference", "JSON object"),
        ({"task": "gcd"}, {"answer": ["4"]}, {}, "bad_reference", "answer"),
        ({"task": "countdown"}, "1+1", {}, "missing", "metadata.numbers, metadata.target"),
        ({"task": "number_sorting"}, "__import__('os')", {}, "missing", "metadata.direction"),
    ],
)
def test_entries_that_cannot_be_judged_abstain(
    options: dict[str, Any], reference: Any, columns: dict[str, Any], reason: str, says: str
) -> None:
    score = judge(tasks.AnyTask(**options), tagged("4"), reference, **columns)
    assert (score.state, score.reason) == ("abstained", reason)
    assert says in score.detail


@pytest.mark.parametrize(
    ("task", "answer", "metadata"),
    [
        ("bitwise_arithmetic", "0x1", {"problem": "__import__('os').getpid()"}),
        ("number_sorting", "__import__('os').listdir()", {"direction": "ascending"}),
        ("polynomial_multiplication", "__import__('os').getpid()", {}),
        ("simple_integration", "x", {"integrand": "().__class__", "variable": "x"}),
        ("simple_integration", "x", {"integrand": "x", "variable": "x;y"}),
    ],
)
def test_code_in_an_entry_is_never_run(task: str, answer: str, metadata: dict[str, Any]) -> None:
    score = judge(verifier(task), tagged("1"), {"answer": answer, "metadata": metadata})
    assert score.reason == "bad_reference", score.why


def test_an_entry_of_another_task_is_refused() -> None:
    assert judge(verifier("lcm"), tagged("4"), {"answer": "4", "metadata": {"source_dataset": "gcd"}}).reason == (
        "bad_reference"
    )
