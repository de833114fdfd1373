"""eval-protocol's rows: groups by row_id, statuses that are failures and others, scores that are valid."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows, write_rows

from rewardkit.records import read_generations

ROW = sample_rows("eval_protocol/rows.jsonl")[0]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def row(**changes):
    made = copy.deepcopy(ROW)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] |= value
        else:
            made[name] = value
    return made


def test_the_sample():
    done = list(read_generations(SAMPLES / "eval_protocol/rows.jsonl"))
    assert [(g.sample.id, g.start, g.sample.reference) for g in done] == [("pens", at, "7") for at in range(3)]
    assert [m["role"] for m in done[0].sample.prompt] == ["system", "user"]
    first, _, failed = (g.completions[0] for g in done)
    assert (first.text, first.finish_reason, first.messages) == ("3 + 4 = 7\n#### 7", "stop", None)
    assert first.metadata == {"short": 0.5, "evaluation_reason": "compared as numbers", "score": 1.0, "label": 1.0}
    assert (failed.error, "label" in failed.metadata) == ("status 13: the endpoint closed", False)
    assert (done[0].sample.metadata["level"], done[0].sample.metadata["model"]) == (1, "written")


@pytest.mark.parametrize(
    "code, answered, error",
    [(0, True, None), (100, True, None), (101, True, None), (101, False, "the rollout has not finished"),
     (102, True, None), (103, True, None), (4, True, "status 4: x"), (None, True, None)],
)  # fmt: skip
def test_which_statuses_are_failures(code, answered, error, tmp_path):
    """Trap: a row whose rollout was made elsewhere is still called running."""
    one = row(rollout_status={"code": code, "message": "x"})
    if not answered:
        one["messages"] = one["messages"][:2]
    assert read_rows(tmp_path / "a.jsonl", [one])[0].completions[0].error == error


@pytest.mark.parametrize("change", [{"is_score_valid": False}, {"error": "the judge broke"}, {"score": None}])
def test_a_score_that_is_not_valid_is_no_label(change, tmp_path):
    (done,) = read_rows(tmp_path / "a.jsonl", [row(evaluation_result=change)])
    assert "label" not in done.completions[0].metadata and done.completions[0].error is None


def test_several_turns_are_one_completion_and_stay_in_the_group(tmp_path):
    """Trap: what comes before the last reply differs between rollouts, the task does not."""
    turns = [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}, {"role": "tool", "content": "7"},
             {"role": "assistant", "content": "#### 7"}]  # fmt: skip
    rows = [row(), row(messages=ROW["messages"][:2] + turns)]
    first, second = read_rows(tmp_path / "a.jsonl", rows)
    assert (first.key, second.start) == (second.key, 1)
    assert (second.completions[0].text, len(second.completions[0].messages)) == ("#### 7", 3)


def test_without_row_id_by_content(tmp_path):
    first, second = read_rows(tmp_path / "a.jsonl", [row(input_metadata={"row_id": None})] * 2)
    assert (first.key, second.start) == (second.key, 1)


def test_messages_that_are_none_are_bad(tmp_path):
    records = read_generations(write_rows(tmp_path / "a.jsonl", [ROW, row(messages="x"), row(messages=["x"])]))
    assert len(list(records)) == 1 and records.bad_rows == 2


@given(st.lists(st.tuples(st.sampled_from("ab"), text, text, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6))
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    written = [
        row(
            input_metadata={"row_id": id}, ground_truth=gold, evaluation_result={"score": score},
            messages=[*ROW["messages"][:2], {"role": "assistant", "content": said}],
        )
        for id, said, gold, score in rows
    ]  # fmt: skip
    done = read_rows(tmp_path_factory.mktemp("ep") / "a.jsonl", written)
    found = [(g.sample.id, c.text, g.sample.reference, c.metadata["label"]) for g in done for c in g.completions]
    assert found == rows
    assert len({g.key for g in done}) == len({id for id, *_ in rows})
