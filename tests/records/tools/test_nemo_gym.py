"""NeMo-Gym's rollouts: interleaved groups, the answer after the tools, failures, inputs."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows, write_rows

from rewardkit.records import read_generations

ROW = sample_rows("nemo_gym/rollouts.jsonl")[0]


def with_output(*output, **more):
    row = copy.deepcopy(ROW)
    row["response"]["output"] = list(output)
    return row | more


def said(text, role="assistant"):
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def test_the_sample():
    done = list(read_generations(SAMPLES / "nemo_gym/rollouts.jsonl"))
    assert [(g.sample.id, g.start) for g in done] == [(0, 0), (1, 0), (0, 1)]
    assert done[0].key == done[2].key
    assert [g.sample.reference for g in done] == ["7", "36", "7"]
    assert done[0].sample.prompt == [{"role": "user", "content": "Ann has 3 pens and buys 4. How many has she?"}]
    (first,) = done[0].completions
    assert (first.text, first.tokens, first.metadata) == (
        "3 * 4 = 12 #### 12", 9, {"rollout": 1, "reward": 0.0, "label": 0.0},
    )  # fmt: skip
    assert done[0].sample.metadata["extracted_answer"] == "12"


def test_failures_are_errors():
    (done,) = read_generations(SAMPLES / "nemo_gym/rollouts_failures.jsonl")
    assert (done.sample.id, done.completions[0].error) == (1, "timeout_exceeded")


def test_a_folder_leaves_inputs_and_failed_attempts_out():
    records = read_generations(SAMPLES / "nemo_gym")
    assert sum(len(g.completions) for g in records) == 3
    for name in ("materialized_inputs", "failures"):  # failed attempts were tried again
        assert any(name in note for note in records.notes)


def test_a_row_without_an_answer_is_bad(tmp_path):
    records = read_generations(write_rows(tmp_path / "a.jsonl", [ROW, {**ROW, "response": None}]))
    assert len(list(records)) == 1 and "no response" in records.bad[0].why


def test_the_text_is_what_follows_the_last_tool(tmp_path):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    back = {"type": "function_call_output", "call_id": "c", "output": "36"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    rows = [
        with_output(said("Let me look."), call, back, said("It is "), said("36.")),
        with_output(said("Let me look."), call),
        with_output(call, back),
        with_output(thought, said("36")),
        with_output(),
        with_output(said("one "), said("two")),
    ]
    done = [g.completions[0] for g in read_rows(tmp_path / "a.jsonl", rows)]
    assert [c.text for c in done] == ["It is 36.", "", "", "36", "", "one two"]
    assert [m["role"] for m in done[0].messages] == ["assistant", "assistant", "tool", "assistant", "assistant"]
    assert done[3].messages[0]["reasoning_content"] == "Hm."


def test_rows_without_indices_are_grouped_by_what_was_asked(tmp_path):
    """Older versions wrote none."""
    rows = [{k: v for k, v in ROW.items() if not k.startswith("_ng")}] * 2
    first, second = read_rows(tmp_path / "a.jsonl", rows)
    assert (first.key, second.start) == (second.key, 1)


def test_gold_in_verifier_metadata(tmp_path):
    row = {k: v for k, v in ROW.items() if k != "expected_answer"} | {"verifier_metadata": {"ground_truth": "9"}}
    assert read_rows(tmp_path / "a.jsonl", [row])[0].sample.reference == "9"


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(st.integers(0, 2), text, st.sampled_from([0.0, 1.0])), min_size=1, max_size=6))
def test_what_is_written_is_read_back(tmp_path_factory, rollouts):
    rows = [with_output(said(answer), _ng_task_index=task, reward=mark) for task, answer, mark in rollouts]
    done = read_rows(tmp_path_factory.mktemp("ng") / "a.jsonl", rows)
    assert [(g.sample.id, g.completions[0].text, g.completions[0].metadata["label"]) for g in done] == rollouts
    assert len({g.key for g in done}) == len({task for task, _, _ in rollouts})
