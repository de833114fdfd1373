"""verifiers 0.4: the path from the root to the last leaf, rewards with weights or null, groups, failed episodes."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows, write_rows

from rewardkit.records import read_generations

EPISODE = sample_rows("verifiers/traces.jsonl")[0]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def node(said, parent=None, role="assistant", sampled=True, **more):
    return {"message": {"role": role, "content": said, **more}, "parent": parent, "sampled": sampled}


USER = node("2 + 2?", None, "user", False)


def episode(nodes=None, **trace):
    made = copy.deepcopy(EPISODE)
    made["traces"][0].update(trace)
    if nodes is not None:
        made["traces"][0]["nodes"] = nodes
    return made


def completions(tmp_path, *rows):
    return [c for g in read_rows(tmp_path / "traces.jsonl", list(rows)) for c in g.completions]


def test_the_sample():
    done = list(read_generations(SAMPLES / "verifiers/traces.jsonl"))
    assert [(g.sample.id, g.start, g.sample.reference) for g in done] == [
        (0, 0, "7"),
        (0, 1, "7"),
        (1, 0, "36"),
        (1, 1, "36"),
    ]
    assert done[0].key == done[1].key != done[2].key == done[3].key
    first, thought, tool, failed = (g.completions[0] for g in done)
    assert [m["role"] for m in done[0].sample.prompt] == ["system", "user"]
    assert (first.text, first.tokens, first.finish_reason, first.messages) == ("3 + 4 = 7\n#### 7", 9, "stop", None)
    assert {name: first.metadata[name] for name in ("correct", "short", "words", "reward", "label")} == {
        "correct": 1.0, "short": 0.5, "words": 7.0, "reward": 1.0, "label": 1.0,
    }  # fmt: skip
    assert thought.messages[0]["reasoning_content"] == "Pens times pens?"
    assert (tool.text, [m["role"] for m in tool.messages]) == (
        "Three boxes hold 36.\n#### 36", ["assistant", "tool", "assistant"],
    )  # fmt: skip
    assert tool.metadata["branches"] == 2
    assert [m["content"] for m in done[2].sample.prompt][-1] == "A box holds 12 eggs. How many do 3 hold?"
    assert (failed.error, failed.text) == ("ProviderError: the endpoint closed the connection", "")
    assert "label" not in failed.metadata


def test_the_last_leaf_wins_and_messages_that_were_given_are_no_samples(tmp_path):
    nodes = [
        USER,
        node("an example", 0, sampled=False),
        node("first try", 1),
        node("second try", 1),
        node("go on", 3, "user", False),
        node("#### 4", 4),
        node("given after", 5, "assistant", False),
    ]
    (done,) = read_rows(tmp_path / "a.jsonl", [episode(nodes)])
    assert [m["content"] for m in done.sample.prompt] == ["2 + 2?", "an example"]
    assert done.completions[0].text == "#### 4"
    assert [m["content"] for m in done.completions[0].messages] == ["second try", "go on", "#### 4", "given after"]


def test_the_root_agents_reply_counts_where_it_is_named(tmp_path):
    assert completions(tmp_path, episode([USER, node("a sub-agent", 0)], root_reply="#### 4"))[0].text == "#### 4"


def test_content_of_parts_and_nothing_sampled(tmp_path):
    parts = [{"type": "text", "text": "#### "}, {"type": "text", "text": "4"}]
    assert [c.text for c in completions(tmp_path, episode([USER, node(parts, 0)]), episode([USER]), episode([]))] == [
        "#### 4", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a", 0)],  # its own parent
        [node("a", 1), node("b", 0)],
        [node("a", 1), node("b", 0), node("c", 0)],
        [node("a", 7)],
        [node("a", -1)],
        [node("a", "0")],
    ],
)
def test_links_that_are_no_tree_are_a_bad_row(nodes, tmp_path):
    records = read_generations(write_rows(tmp_path / "a.jsonl", [EPISODE, episode(nodes)]))
    assert len(list(records)) == 1
    assert [bad.line for bad in records.bad] == [2] and "parent" in records.bad[0].why


@pytest.mark.parametrize(
    "rewards, label",
    [
        ({"a": {"score": 1.0, "weight": 0.75}, "b": {"score": 0.0, "weight": 0.25}}, 0.75),
        ({"a": {"score": 1.0}}, 1.0),
        ({"a": {"score": 1.0, "weight": 1.0}, "b": None}, None),  # b was not judged
        ({"a": {"score": 2.0, "weight": 1.0}}, None),  # no verdict
        ({}, None),
    ],
)
def test_the_label_is_the_whole_reward(rewards, label, tmp_path):
    (done,) = completions(tmp_path, episode(rewards=rewards))
    assert done.metadata.get("label") == label
    for name, reward in rewards.items():
        assert done.metadata[name] == (reward and reward["score"])


def test_errors_of_earlier_attempts_do_not_count(tmp_path):
    error = {"type": "ProviderError", "message": "busy"}
    rows = [episode(errors=[error]), episode(ok=False, errors=[error, {"type": "T", "message": "late"}]),
            episode(ok=False, stop_condition="agent_timeout")]  # fmt: skip
    assert [c.error for c in completions(tmp_path, *rows)] == [None, "T: late", "not ok: agent_timeout"]


def test_an_episode_without_traces_is_an_error_or_bad(tmp_path):
    failed = {**EPISODE, "traces": [], "ok": False, "errors": [{"type": "EnvError", "message": "no box"}]}
    records = read_generations(write_rows(tmp_path / "a.jsonl", [EPISODE, failed, {**EPISODE, "traces": []}]))
    assert [c.error for g in records for c in g.completions] == [None, "EnvError: no box"]
    assert [bad.why for bad in records.bad] == ["an episode without traces"]


def test_agents_of_one_episode_are_groups_of_their_own(tmp_path):
    """Trap: a solver's and a judge's texts answer other questions, in one group of rollouts."""
    made = episode()
    made["traces"].append(copy.deepcopy(made["traces"][0]))
    made["traces"][1]["agent"]["name"] = "judge"
    done = read_rows(tmp_path / "a.jsonl", [made, made])
    assert [g.start for g in done] == [0, 0, 1, 1] and done[0].key == done[2].key != done[1].key
    assert [g.sample.metadata["agent"] for g in done] == ["solver", "judge"] * 2


def test_training_steps_and_missing_groups(tmp_path):
    work = {"type": "train", "work": {"type": "train", "step": 12}}
    no_group = {k: v for k, v in EPISODE.items() if k != "group"}
    first, second, third = read_rows(tmp_path / "a.jsonl", [{**EPISODE, "run": work}, no_group, no_group])
    assert (first.sample.step, second.key, third.start) == (12, third.key, 1)


@given(st.lists(st.tuples(st.integers(0, 2), text, st.sampled_from([0.0, 1.0])), min_size=1, max_size=6))
def test_what_is_written_is_read_back(tmp_path_factory, rollouts):
    rows = []
    for index, said, score in rollouts:
        made = episode([USER, node(said, 0)], rewards={"r": {"score": score, "weight": 1.0}})
        made["traces"][0]["task"]["data"]["idx"] = index
        made["group"] = {"id": f"g{index}"}
        rows.append(made)
    done = read_rows(tmp_path_factory.mktemp("vt") / "traces.jsonl", rows)
    assert [(g.sample.id, g.completions[0].text, g.completions[0].metadata["label"]) for g in done] == rollouts
    assert len({g.key for g in done}) == len({index for index, _, _ in rollouts})
