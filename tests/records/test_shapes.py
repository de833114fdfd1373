"""Random generations, written in each shape that people have on disk, are read back equal without a map."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardkit.records import read_generations


class Task(NamedTuple):
    id: str | int
    question: str
    gold: str
    outputs: list[tuple[str, bool]]


texts = st.text(max_size=30)
cells = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(str.strip)


def tasks(text: st.SearchStrategy[str], least: int = 1, most: int = 4) -> st.SearchStrategy[list[Task]]:
    ids = st.integers(-(2**70), 2**70) | st.text(min_size=1, max_size=8).map(lambda name: f"q{name}")
    output = st.tuples(text, st.booleans())
    task = st.builds(Task, ids, text, text, st.lists(output, min_size=least, max_size=most))
    return st.lists(task, min_size=2, max_size=6, unique_by=lambda task: task.id)


def one_row_a_sample(found: list[Task]) -> list[dict[str, Any]]:
    return [
        {"id": task.id, "question": task.question, "gold": task.gold, "response": text, "correct": mark}
        for task in found
        for text, mark in task.outputs
    ]


def lists(found: list[Task]) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "question": task.question,
            "gold": task.gold,
            "responses": [text for text, _ in task.outputs],
            "scores": [mark for _, mark in task.outputs],
        }
        for task in found
    ]


def side_by_side(found: list[Task]) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "question": task.question,
            "gold": task.gold,
            **{f"m{n}": {"solution": text, "is_correct": mark} for n, (text, mark) in enumerate(task.outputs)},
        }
        for task in found
    ]


def objects(found: list[Task]) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "problem": task.question,
            "expected_answer": task.gold,
            "completions": [{"text": text, "score": int(mark)} for text, mark in task.outputs],
        }
        for task in found
    ]


def nested(found: list[Task]) -> dict[str, Any]:
    return {"run": 7, "sets": [{"name": f"s{n}", "results": objects([task])} for n, task in enumerate(found)]}


def chats(found: list[Task]) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "messages": [{"role": "user", "content": task.question}, {"role": "assistant", "content": text}],
            "gold": task.gold,
            "passed": mark,
        }
        for task in found
        for text, mark in task.outputs
    ]


def columns(found: list[Task]) -> dict[str, list[Any]]:
    rows = one_row_a_sample(found)
    return {name: [row[name] for row in rows] for name in rows[0]}


def written(value: Any, kind: str) -> bytes:
    if kind == "json":
        return json.dumps(value, indent=1).encode()
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in value).encode()
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t" if kind == "tsv" else ",")
    table.writerow(value[0])
    table.writerows(row.values() for row in value)
    return text.getvalue().encode()


def flat(found: list[Task], prompt: Any = lambda question: question) -> list[tuple[Any, ...]]:
    return [(task.id, prompt(task.question), task.gold, *output) for task in found for output in task.outputs]


def read(path: Any) -> list[tuple[Any, ...]]:
    records = read_generations(path)
    read = [
        (generation.sample.id, generation.sample.prompt, generation.sample.reference, completion.text, label)
        for generation in records
        for completion in generation.completions
        for label in [completion.metadata.get("label")]
    ]
    assert not records.bad
    return read


quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        (one_row_a_sample, ("json", "jsonl")),
        (lists, ("json", "jsonl")),
        (objects, ("json", "jsonl")),
        (columns, ("json",)),
        (nested, ("json",)),
    ],
)
@quick
@given(found=tasks(texts), data=st.data())
def test_a_shape_reads_back_equal(tmp_path, shape, kinds, found, data):
    kind = data.draw(st.sampled_from(kinds))
    path = tmp_path / f"a.{kind}"
    path.write_bytes(written(shape(found), kind))
    assert read(path) == flat(found)


@quick
@given(found=tasks(texts, 2, 2), kind=st.sampled_from(("json", "jsonl")))
def test_models_side_by_side_read_back_equal(tmp_path, found, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(written(side_by_side(found), kind))
    assert read(path) == flat(found)
    assert [generation.model for generation in read_generations(path)] == ["m0", "m1"] * len(found)


@quick
@given(found=tasks(texts), kind=st.sampled_from(("json", "jsonl")))
def test_chats_read_back_equal(tmp_path, found, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(written(chats(found), kind))
    assert read(path) == flat(found, lambda question: [{"role": "user", "content": question}])


@quick
@given(found=tasks(cells), kind=st.sampled_from(("csv", "tsv")))
def test_tables_read_back_equal(tmp_path, found, kind):
    """Traps: quotes, delimiters and line separators inside cells; marks and ids, which are text in a table."""
    path = tmp_path / f"a.{kind}"
    path.write_bytes(written(one_row_a_sample(found), kind))
    assert read(path) == [(str(id), *rest) for id, *rest in flat(found)]


@quick
@given(st.dictionaries(st.integers(0, 99).map(lambda n: f"q{n}"), st.lists(texts, min_size=1), min_size=2))
def test_lists_by_id_read_back_equal(tmp_path, found):
    path = tmp_path / "a.json"
    path.write_bytes(written(found, "json"))
    got = read(path)
    assert [(id, text) for id, _, _, text, _ in got] == [(id, text) for id, texts in found.items() for text in texts]
