"""SkyRL's evaluation dumps: gold in env_extras, scores a token, why it stopped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows

from rewardkit.records import read_generations

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def test_the_sample():
    done = list(read_generations(SAMPLES / "skyrl/openai_gsm8k.jsonl"))
    assert len({g.key for g in done}) == 1 and [g.start for g in done] == [0, 1, 2]  # one prompt and gold
    assert [g.sample.reference for g in done] == ["7"] * 3
    assert [g.completions[0].finish_reason for g in done] == ["stop", "stop", "length"]
    assert [g.completions[0].metadata for g in done] == [
        {"score": 1.0, "label": 1.0},
        {"score": 0.0, "label": 0.0},
        {"score": [0.0, 0.0], "label": 0},  # the sum
    ]
    assert set(done[0].sample.metadata) == {"env_class", "env_extras", "data_source"}


def test_no_gold_and_no_text(tmp_path):
    row = {**sample_rows("skyrl/openai_gsm8k.jsonl")[0], "env_extras": {"reward_spec": None}, "output_response": None}
    (done,) = read_rows(tmp_path / "a.jsonl", [row])
    assert (done.sample.reference, done.completions[0].text) == (None, "")


def test_a_folder_of_dumps_leaves_the_averages_out():
    records = read_generations(SAMPLES / "skyrl")
    assert sum(len(g.completions) for g in records) == 3
    assert any("aggregated_results.jsonl" in note for note in records.notes)


@given(st.lists(st.tuples(text, text, text, st.sampled_from([0.0, 1.0]) | st.none()), min_size=1, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    written = [
        {"input_prompt": p, "output_response": o, "score": s, "stop_reason": None, "env_class": "e",
         "env_extras": {"reward_spec": {"ground_truth": gold}}, "data_source": "d"}
        for p, o, gold, s in rows
    ]  # fmt: skip
    done = read_rows(tmp_path_factory.mktemp("skyrl") / "a.jsonl", written)
    found = [
        (g.sample.prompt, g.completions[0].text, g.sample.reference, g.completions[0].metadata.get("label"))
        for g in done
    ]
    assert found == rows
