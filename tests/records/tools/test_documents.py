"""Documents of reasoning-gym, CRUXEval, OpenCompass and Harbor; the last two written by hand from their formats."""

from __future__ import annotations

import json

import pytest
from command_line import Here, cli  # noqa: F401

from rewardkit.errors import InputError
from rewardkit.records import read_generations
from rewardkit.records.rows import NotGenerations


def write(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_every_completion_of_reasoning_gym_counts_and_the_data_set_is_a_column(tmp_path):
    """Trap: best_full_model_response is one of them, and no more."""
    done = [{"model_answer": None, "full_model_response": text, "score": n} for text, n in (("a", 0.0), ("", 0.01))]
    result = {"question": "q", "expected_answer": "a", "best_full_model_response": "a", "completions": done}
    data_set = {
        "name": "sums",
        "category": "math",
        "average_mean_score": 0.005,
        "total_examples": 1,
        "results": [result],
    }
    for document in (data_set, {"categories": [{"name": "math", "datasets": [data_set]}]}):
        records = read_generations(write(tmp_path / "a.json", document))
        (group,) = records
        assert records.format == "reasoning_gym"
        assert [(c.text, c.metadata["label"]) for c in group.completions] == [("a", 0.0), ("", 0.01)]
        assert (group.sample.metadata["dataset"], group.sample.metadata["category"]) == ("sums", "math")


def test_generations_by_id_with_their_marks(tmp_path, cli: Here) -> None:  # noqa: F811
    document = {
        "raw_generations": {"a": ["1", "2"], "b": ["3"], "c": "no list", "d": ["5"]},
        "raw_scored_generations": {"b": [False], "a": [True, False], "d": [True, True]},
        "pass_at_1": 50.0,
    }
    path = write(tmp_path / "a.json", document)
    records = read_generations(path)
    assert {g.sample.id: [c.metadata["label"] for c in g.completions] for g in records} == {
        "a": [True, False],
        "b": [False],
    }
    assert [row.line for row in records.bad] == [3, 4] and "2 values for 1" in records.bad[1].why
    assert cli("eval", path, "-r", "label").code == 0


def test_generations_by_id_need_no_marks(tmp_path):
    (group,) = read_generations(write(tmp_path / "a.json", {"raw_generations": {"a": ["1"]}}))
    assert "label" not in group.completions[0].metadata
    with pytest.raises(InputError, match="cut off"):
        (tmp_path / "b.json").write_text('{"raw_generations": {"a": ["1"')
        read_generations(tmp_path / "b.json")


def test_predictions_of_opencompass(tmp_path, cli: Here) -> None:  # noqa: F811
    chat = [{"role": "SYSTEM", "prompt": "Be brief."}, {"role": "HUMAN", "prompt": "2 + 2?"}]
    document = {
        "0": {"origin_prompt": chat, "prediction": "4", "gold": "4"},
        "1": {"origin_prompt": "3 + 3?", "prediction": "5", "gold": "6"},
        "2": 7,
    }
    path = write(tmp_path / "a.json", document)
    records = read_generations(path)
    first, second = records
    assert (first.sample.id, first.sample.prompt[1]) == ("0", {"role": "user", "content": "2 + 2?"})
    assert (second.completions[0].text, second.sample.reference, records.bad_rows) == ("5", "6", 1)
    result = cli("eval", path, "-r", "numeric", "--json")
    assert result.summary["models"]["default"]["rewards"]["numeric"]["right"] == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward.json", {"reward": 1.0, "style": 0.5}),
        ("reward-details.json", {"a": {"score": 1}}),
        ("result.json", {"trial_name": "t", "verifier_result": {"rewards": {"reward": 1}}}),
    ],
)
def test_a_harbor_trial_has_no_text_and_the_message_says_so(tmp_path, cli: Here, name, value) -> None:  # noqa: F811
    path = write(tmp_path / name, value)
    with pytest.raises(NotGenerations):
        read_generations(path)
    result = cli("eval", path, "-r", "label")
    assert (result.code, "no text of the model" in result.err, "Traceback" in result.err) == (2, True, False)
