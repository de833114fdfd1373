"""lm-eval's samples: each completion once, whatever the order of the filters' rows; no likelihoods."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows, texts, write_rows

from rewardkit.records import read_generations
from rewardkit.records.rows import NotGenerations

FILTERS = ("strict-match", "flexible-extract", "none")


def row(doc, filter="none", said=("a",), score: object = 1.0, **more):
    return {
        "doc_id": doc, "doc": {"question": f"q{doc}", "n": doc}, "target": f"#### {doc}",
        "arguments": {"gen_args_0": {"arg_0": f"Q: q{doc}", "arg_1": {"until": ["Q"]}}},
        "resps": [list(said)], "filtered_resps": [f"{filter} {doc}"], "filter": filter, "metrics": ["exact_match"],
        "doc_hash": f"d{doc}", "prompt_hash": f"p{doc}", "target_hash": "t", "exact_match": score, **more,
    }  # fmt: skip


def test_the_sample():
    first, second, third = read_generations(SAMPLES / "lm_eval/samples_sums.jsonl")
    assert [g.sample.id for g in (first, second, third)] == [0, 1, 2]
    assert first.sample.prompt == "Question: Ann has 3 pens and buys 4. How many has she?\nAnswer:"
    assert first.sample.reference == "She has 3 + 4 = 7 pens.\n#### 7"  # the worked solution
    assert first.sample.metadata["question"] == "Ann has 3 pens and buys 4. How many has she?"
    (said,) = second.completions
    assert (said.text, said.metadata["label"]) == ("Three boxes hold 36 eggs", 0.0)  # the first filter's verdict
    assert said.metadata["filters"] == {
        "strict-match": {"filtered_resps": ["[invalid]"], "exact_match": 0.0},
        "flexible-extract": {"filtered_resps": ["36"], "exact_match": 1.0},
    }


def test_repeats_are_one_group_without_a_verdict_of_each():
    """Trap: the harness judges what its filter took of the answers, so its mark belongs to none of them."""
    done = list(read_generations(SAMPLES / "lm_eval/samples_sums_repeats.jsonl"))
    assert [len(g.completions) for g in done] == [2, 2, 2]
    assert all("label" not in c.metadata and "exact_match" in c.metadata for g in done for c in g.completions)


def test_a_mark_for_each_answer_is_its_label(tmp_path):
    (done,) = read_rows(tmp_path / "a.jsonl", [row(1, said=("a", "b"), score=[1.0, 0.0])])
    assert [c.metadata["label"] for c in done.completions] == [1.0, 0.0]
    assert [c.metadata["exact_match"] for c in done.completions] == [1.0, 0.0]


def read_once(path, rows):
    done = read_rows(path, rows)
    return sorted(texts(done)), done


@pytest.mark.parametrize("order", ["blocks", "by document", "ranks", "shuffled"])
def test_each_completion_is_read_once_in_any_order(order, tmp_path):
    """Ranks: each process's filters follow each other, so the first filter's rows come in several stretches."""
    blocks = [
        [row(doc, name, said=(f"said {doc}",), score=float(at)) for doc in range(30)] for at, name in enumerate(FILTERS)
    ]
    rows = [each for block in blocks for each in block]
    if order == "by document":
        rows = [block[doc] for doc in range(30) for block in blocks]
    elif order == "ranks":
        rows = [each for rank in range(3) for block in blocks for each in block[rank::3]]
    elif order == "shuffled":
        random.Random(7).shuffle(rows)
    found, done = read_once(tmp_path / "a.jsonl", rows)
    assert found == sorted(f"said {doc}" for doc in range(30))
    for generation in done:
        assert set(generation.completions[0].metadata["filters"]) == set(FILTERS)
        (doc,) = {
            each["filtered_resps"][0].split()[-1] for each in generation.completions[0].metadata["filters"].values()
        }
        assert doc == str(generation.sample.id)


def test_two_runs_in_one_file_are_two_completions(tmp_path):
    rows = [row(1, name, said=(said,)) for said in ("first", "second") for name in FILTERS]
    done = read_rows(tmp_path / "a.jsonl", rows)
    assert texts(done) == ["first", "second"]
    assert [g.start for g in done] == [0, 1]


def test_a_lost_row_of_one_filter_loses_nothing(tmp_path):
    """Trap: the document whose first row is broken stands in the other filters' rows."""
    rows = [row(doc, name, said=(f"said {doc}",)) for name in FILTERS for doc in range(5)]
    lines = write_rows(tmp_path / "a.jsonl", rows).read_text().splitlines(keepends=True)
    lines[2] = lines[2][:50] + "\n"
    (tmp_path / "a.jsonl").write_text("".join(lines))
    records = read_generations(tmp_path / "a.jsonl")
    assert sorted(texts(list(records))) == [f"said {doc}" for doc in range(5)]
    assert [bad.line for bad in records.bad] == [3]


def test_documents_of_two_tasks_with_the_same_number_stay_apart(tmp_path):
    other = row(1, said=("b",), doc_hash="other") | {"doc": {"question": "z"}, "target": "#### 9", "prompt_hash": "z"}
    other["arguments"] = {"gen_args_0": {"arg_0": "Q: z", "arg_1": {}}}
    done = read_rows(tmp_path / "a.jsonl", [row(1), other, row(1, "strict"), {**other, "filter": "strict"}])
    assert texts(done) == ["a", "b"] and len({g.key for g in done}) == 2


def test_likelihoods_hold_no_text(tmp_path):
    with pytest.raises(NotGenerations, match="log-likelihoods of given options, no text"):
        read_generations(SAMPLES / "lm_eval/samples_choices.jsonl")
    rolling = row(1) | {"arguments": {"gen_args_0": {"arg_0": "some text"}}, "resps": [["-12.5"]]}
    with pytest.raises(NotGenerations, match="no text"):
        read_generations(write_rows(tmp_path / "a.jsonl", [rolling]))
    records = read_generations(
        write_rows(tmp_path / "b.jsonl", [row(1), *sample_rows("lm_eval/samples_choices.jsonl")])
    )
    assert texts(list(records)) == ["a"] and records.bad_rows == 3


def test_older_rows_and_chat_prompts(tmp_path):
    """Arguments as lists; no filter, no hashes, no list of metrics; chat messages as JSON in a list of one."""
    old = {k: v for k, v in row(1).items() if k not in ("filter", "metrics", "doc_hash", "prompt_hash", "target_hash")}
    old["arguments"] = [["Q: q1", {"until": ["Q"]}]]
    chat = row(2) | {"arguments": {"gen_args_0": {"arg_0": ['[{"role": "user", "content": "Q"}]'], "arg_1": {}}}}
    first, second = read_rows(tmp_path / "a.jsonl", [old, chat])
    assert (first.sample.prompt, first.completions[0].metadata) == ("Q: q1", {"exact_match": 1.0, "label": 1.0})
    assert second.sample.prompt == [{"role": "user", "content": "Q"}]


def test_several_requests_of_one_document_are_samples_of_their_own(tmp_path):
    both = row(1) | {"resps": [["a"], ["b"]]}
    both["arguments"] = {"gen_args_0": {"arg_0": "x", "arg_1": {}}, "gen_args_1": {"arg_0": "y", "arg_1": {}}}
    done = read_rows(tmp_path / "a.jsonl", [both])
    assert [(g.sample.id, g.sample.prompt, g.completions[0].text) for g in done] == [(1, "x", "a"), ("1/1", "y", "b")]


said = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.lists(said, min_size=1, max_size=3), min_size=1, max_size=5), st.integers(1, 3), st.randoms())
def test_what_is_written_is_read_back(tmp_path_factory, answers, filters, rng):
    rows = [row(doc, FILTERS[at], each) for at in range(filters) for doc, each in enumerate(answers)]
    rng.shuffle(rows)
    done = read_rows(tmp_path_factory.mktemp("lm") / "samples_x.jsonl", rows)
    found = {g.sample.id: [c.text for c in g.completions] for g in done}
    assert len(done) == len(answers) and found == dict(enumerate(answers))
    assert {g.sample.reference for g in done} == {f"#### {doc}" for doc in range(len(answers))}
