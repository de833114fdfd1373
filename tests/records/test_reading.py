"""From file to generations: every shape gives the same, every awkward file is counted right."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardkit.errors import InputError
from rewardkit.records import FieldMap, read_generations

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1, max_size=12)
filled = words.filter(str.strip)


@st.composite
def problems(draw):
    """Problems of unlike prompts: (prompt, gold, [(completion, right)]), as many completions each."""
    prompts = draw(st.lists(filled, min_size=1, max_size=5, unique=True))
    size = draw(st.integers(1, 3))
    outputs = st.lists(st.tuples(filled, st.booleans()), min_size=size, max_size=size)
    return [(prompt, draw(filled), draw(outputs)) for prompt in prompts]


def flat(data):
    return [
        {"question": p, "gold": g, "response": text, "correct": right} for p, g, outs in data for text, right in outs
    ]


def lists(data):
    return [
        {"question": p, "gold": g, "response": [t for t, _ in outs], "correct": [r for _, r in outs]}
        for p, g, outs in data
    ]


def nested(data):
    return [
        {"question": p, "gold": g, "completions": [{"text": t, "correct": r} for t, r in outs]} for p, g, outs in data
    ]


def jsonl(rows):
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def table(rows):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["question", "gold", "response", "correct"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


SHAPES = {
    "flat.jsonl": lambda data: jsonl(flat(data)),
    "flat.json": lambda data: json.dumps(flat(data)).encode(),
    "columns.json": lambda data: json.dumps({k: [row[k] for row in flat(data)] for k in flat(data)[0]}).encode(),
    "deep.json": lambda data: json.dumps({"run": {"sets": [{"name": "s", "results": nested(data)}]}}).encode(),
    "lists.jsonl": lambda data: jsonl(lists(data)),
    "nested.jsonl": lambda data: jsonl(nested(data)),
    "table.csv": lambda data: table(flat(data)),
    "flat.jsonl.gz": lambda data: gzip.compress(jsonl(flat(data))),
}


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=problems())
def test_every_shape_gives_the_same_completions(tmp_path, name, data):
    (tmp_path / name).write_bytes(SHAPES[name](data))
    given = FieldMap.parse(["completion=response", "reference=gold"]) if name == "table.csv" else None
    records = read_generations(tmp_path / name, field_map=given)
    found = [
        (g.sample.prompt, g.sample.reference, g.start + at, c.text, c.metadata["label"])
        for g in records
        for at, c in enumerate(g.completions)
    ]
    assert found == [(p, g, at, text, right) for p, g, outs in data for at, (text, right) in enumerate(outs)]
    assert records.bad_rows == records.duplicate_ids == 0
    assert len({g.key for g in records}) == len(data)  # the second pass gives the same


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=problems())
def test_models_side_by_side_give_each_models_completions(tmp_path, data):
    rows = [
        {"question": p, "gold": g}
        | {f"m{n}": {"solution": t, "correct": r} for n, (t, r) in enumerate([*outs, ("z", True)])}
        for p, g, outs in data
    ]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    found = [
        (g.sample.prompt, g.model, g.completions[0].text, g.completions[0].metadata["label"])
        for g in read_generations(tmp_path / "a.jsonl")
    ]
    assert found == [(p, f"m{n}", t, r) for p, _, outs in data for n, (t, r) in enumerate([*outs, ("z", True)])]


def test_rows_beyond_the_first_hundred_are_streamed_once(tmp_path):
    rows = [{"id": n, "completion": str(n)} for n in range(1000)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    records = read_generations(tmp_path / "a.jsonl")
    seen = []
    for generation in records:
        seen.append(generation.sample.id)
        assert records.rows == len(seen)
    assert seen == list(range(1000))
    assert [g.sample.id for g in records] == seen
    assert [g.sample.id for g in read_generations(tmp_path / "a.jsonl", limit=7)] == seen[:7]


def test_bad_rows_are_counted_and_the_first_hundred_kept(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"completion": "x"}\n' + b"nothing\n" * 250)
    records = read_generations(tmp_path / "a.jsonl")
    assert len(list(records)) == 1
    assert (records.bad_rows, len(records.bad), records.bad[-1].line) == (250, 100, 101)


def test_a_file_without_rows(tmp_path):
    for number, data in enumerate((b"", b"\n \n", b"\xef\xbb\xbf", gzip.compress(b""))):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"0 rows; --allow-empty"):
            read_generations(path)
        records = read_generations(path, allow_empty=True)
        assert (list(records), records.rows, records.bad_rows) == ([], 0, 0)
    for name, data in (("a.csv", b"completion,answer\n"), ("a.json", b"[]")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="0 rows"):
            read_generations(tmp_path / name)
        assert list(read_generations(tmp_path / name, allow_empty=True)) == []


def test_a_file_of_bad_rows_only_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"x\ny\n")
    with pytest.raises(InputError, match=r"a\.jsonl: no row can be read \(line 1: not JSON .*; line 2: "):
        read_generations(tmp_path / "a.jsonl", allow_empty=True)


def test_awkward_rows_written_out(tmp_path):
    """The torture files in small, so that this means something without them."""
    good = '{"id": %d, "prompt": "p", "completion": "c", "answer": "1"}'
    text = "\ufeff\n" + good % 1 + "\r\n" + good[:30] + "\n\n" + good % 2 + "\n[1,2,3]\n"
    text += '{"id": 3, "completion": null, "answer": "1", "logprob": NaN}\n{"id": 4, "completion": "c"}\n'
    (tmp_path / "résultats 1.jsonl").write_text(text, encoding="utf-8", newline="")
    records = read_generations(tmp_path / "résultats 1.jsonl")
    found = [(g.where, g.completions[0].text, g.sample.reference) for g in records]
    assert found == [
        ("résultats 1.jsonl:2", "c", "1"),
        ("résultats 1.jsonl:5", "c", "1"),
        ("résultats 1.jsonl:7", "", "1"),
        ("résultats 1.jsonl:8", "c", None),
    ]
    assert [b.line for b in records.bad] == [3, 6]


# Real files


TORTURE = {
    "bom.jsonl": (40, []),
    "crlf.jsonl": (40, []),
    "blank_lines.jsonl": (40, []),
    "bad_lines.jsonl": (36, [8, 21, 34, 39]),
    "nan_values.jsonl": (40, []),
    "gz.jsonl.gz": (40, []),
    "duplicate_ids.jsonl": (40, []),
    "missing_gold.jsonl": (40, []),
    "null_completion.jsonl": (40, []),
    "chat_completion.jsonl": (40, []),
    "rich_markup.jsonl": (40, []),
    "ragged_groups.jsonl": (140, []),
    "huge_line.jsonl.gz": (41, []),
    "resultats été 1.jsonl": (40, []),
}


@pytest.mark.parametrize("name", TORTURE)
def test_awkward_files_are_counted_as_their_manifest_says(shared, name):
    records = read_generations(shared(f"data/torture/{name}"))
    generations = list(records)
    rows, bad = TORTURE[name]
    assert (records.rows, [b.line for b in records.bad]) == (rows, bad)
    assert all("\r" not in g.completions[0].text for g in generations)
    assert records.duplicate_ids == (20 if name == "duplicate_ids.jsonl" else 0)
    gold = [n for n, g in enumerate(generations) if g.sample.reference is None]
    assert gold == ([3, 13, 23, 33] if name == "missing_gold.jsonl" else [])
    assert len({g.key for g in generations}) == (41 if name == "huge_line.jsonl.gz" else 40 - len(bad))


def test_chat_and_text_forms_of_the_same_rows_give_the_same_texts(shared):
    text = list(read_generations(shared("data/torture/bom.jsonl")))
    chat = list(read_generations(shared("data/torture/chat_completion.jsonl")))
    assert [g.completions[0].text for g in chat] == [g.completions[0].text for g in text]


AMC = "categories[].datasets[].results[].completions[].full_model_response"

REAL = {
    "gsm8k/example_model_solutions.jsonl": (5276, 286 + 515 + 458 + 742, "*.solution", "ground_truth"),
    "gsm8k_tora/tora-code-34b-v1.0.jsonl": (1319, 0, "code[]", "gt"),
    "math_runs/qwen2.5-3b-instruct/gsm8k.jsonl": (1319, 1142, "code[]", "gt"),
    "math_runs/qwen2.5-3b-rlft/aqua.jsonl": (254, 180, "code[]", "gt"),
    "math_groups8/qwen_math_cot_8x.jsonl": (400, 351, "code[]", "gt"),
    "grpo_groups/amc23_step_400.json": (1000, 197, AMC, "expected_answer"),
    "grpo_groups/amc23_step_800.json": (1000, 179, AMC, "expected_answer"),
    "reasoning_gym/deepseek-r1/countdown.json": (
        150,
        111,
        "results[].completions[].full_model_response",
        "expected_answer",
    ),
    "humaneval_codegen16b/samples.jsonl": (8200, 0, "samples[]", None),
    "humaneval_chat/samples.jsonl": (164, 0, "completion", None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_need_no_flag(shared, name):
    """Counts of completions and true labels are those that the sources publish."""
    records = read_generations(shared(f"data/{name}"))
    count, right, completion, reference = REAL[name]
    done = [c for g in records for c in g.completions]
    assert (len(done), sum(c.metadata.get("label") in (True, 1) for c in done)) == (count, right)
    assert str(records.map["completion"]) == completion
    assert str(records.map.get("reference")) == str(reference)
    assert records.bad_rows == 0


def test_the_nested_path_of_a_real_document_may_be_written_either_way(shared):
    path = shared("data/grpo_groups/amc23_step_400.json")
    tail = "completions[].full_model_response"
    given = ["reference=expected_answer,label=score,prompt=question"]
    root = read_generations(
        path, field_map=FieldMap.parse([*given, f"completion=categories[0].datasets[0].results[].{tail}"])
    )
    relative = read_generations(path, field_map=FieldMap.parse([*given, f"completion={tail}"]))
    assert list(root) == list(relative) == list(read_generations(path))


@pytest.mark.parametrize(
    "name", ["gsm8k/test.jsonl", "cruxeval/cruxeval.jsonl", "mbpp/mbpp.jsonl", "math/math500_test.jsonl"]
)
def test_files_of_problems_are_a_question(shared, name):
    with pytest.raises(InputError, match="which field means what is not clear"):
        read_generations(shared(f"data/{name}"))
