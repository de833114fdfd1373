"""verl's dumps: ids from uid, parts of a rollout joined, groups without uid, which score is the verdict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows

from rewardkit.records import read_generations

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def test_the_sample_of_the_new_trainer():
    first, second, third = read_generations(SAMPLES / "verl/20.jsonl")
    assert (first.sample.id, first.sample.step, first.sample.reference) == ("p1", 20, "7")
    assert (first.key, second.start) == (second.key, 1)
    assert (third.sample.id, third.start) == ("p2", 0)
    (done,) = third.completions
    assert (done.text, done.metadata["label"]) == ("3 * 12 = 36\n#### 36", 1.0)  # the last part's
    assert done.metadata["parts"] == [{"input": third.sample.prompt, "output": "I will multiply."}]
    assert third.sample.prompt == sample_rows("verl/20.jsonl")[2]["input"]  # the first part's


def test_the_sample_of_the_old_trainer():
    """Trap: scores of -1 and 1 beside `acc`, which is the verdict."""
    first, second = read_generations(SAMPLES / "verl/old/20.jsonl")
    assert (first.key, second.start) == (second.key, 1)  # by input
    assert [c.metadata for g in (first, second) for c in g.completions] == [
        {"score": 1.0, "acc": True, "pred": "7", "request_id": "r1", "label": True},
        {"score": -1.0, "acc": False, "pred": "12", "request_id": "r2", "label": False},
    ]


def test_parts_that_do_not_follow_each_other_stay_apart(tmp_path):
    """Nothing is joined across rollouts, steps, or in falling order; nothing is lost."""
    row = {"input": "a", "output": "b", "gts": "1", "score": 0.0, "step": 1}
    uids = ["p_0_0", "p_1_1", "p_0_1", "p_0_1", "p_0_0", "q", "q", "p_x_1"]
    rows = [{**row, "uid": uid} for uid in uids] + [{**row, "uid": "p_3_0"}, {**row, "uid": "p_3_1", "step": 2}]
    done = read_rows(tmp_path / "1.jsonl", rows)
    assert [g.completions[0].metadata["uid"] for g in done] == [row["uid"] for row in rows]
    assert [g.sample.id for g in done] == ["p"] * 5 + ["q", "q", "p_x_1", "p", "p"]
    assert [g.start for g in done] == [0, 1, 2, 3, 4, 0, 1, 0, 5, 0]


def test_a_uid_with_underscores_of_its_own(tmp_path):
    rows = [{"input": "a", "output": "b", "gts": "1", "score": 0.0, "step": 1, "uid": f"a_1_b_{n}_0"} for n in range(2)]
    assert [g.sample.id for g in read_rows(tmp_path / "1.jsonl", rows)] == ["a_1_b"] * 2


@given(
    st.lists(
        st.tuples(st.sampled_from("pq"), text, text, st.sampled_from([0.0, 1.0, 0.25]), text | st.none()),
        min_size=1,
        max_size=6,
    )
)
def test_what_verl_writes_is_read_back(tmp_path_factory, rollouts):
    """One row a rollout: text, prompt, gold, score and place in the group, whatever the texts hold."""
    rows, seen, wanted = [], {}, []
    for prompt, asked, said, score, gold in rollouts:
        place = seen[prompt] = seen.get(prompt, -1) + 1
        rows.append(
            {"input": asked, "output": said, "gts": gold, "score": score, "step": 3, "uid": f"{prompt}_{place}_0"}
        )
        wanted.append((prompt, asked, gold, 3, place, said, score))
    done = read_rows(tmp_path_factory.mktemp("verl") / "3.jsonl", rows)
    found = [
        (g.sample.id, g.sample.prompt, g.sample.reference, g.sample.step, g.start, c.text, c.metadata["label"])
        for g in done
        for c in g.completions
    ]
    assert found == wanted
