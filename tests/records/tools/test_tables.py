"""TRL's completion logs and lighteval's details, written by the tools themselves (tests/samples)."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Here, cli  # noqa: F401

from rewardkit.errors import InputError
from rewardkit.records import FieldMap, Source, open_records, read_generations
from rewardkit.records.tools.tables import verdict_among

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def write(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_trl_logs_a_folder_of_steps(cli: Here, kind: str) -> None:  # noqa: F811
    """Rows of one step and prompt are a group; a NaN of one reward is null; the verdict is the label."""
    records = read_generations(SAMPLES / "trl" / kind)
    groups = list(records)
    assert (len(groups), records.bad_rows) == (16, 0)
    assert len({g.key for g in groups}) == 4 and {g.sample.step for g in groups} == {1, 2}
    first = groups[0]
    assert (first.sample.prompt_text, first.sample.reference) == ("2 + 2?", "4")
    assert first.completions[0].text == "It is #### 4"
    own = first.completions[0].metadata
    assert (own["label"], own["right"], own["short"], round(own["advantage"], 3)) == (1.0, 1.0, None, 0.693)
    assert sorted(g.start for g in groups if g.key == first.key) == [0, 1, 2, 3]
    result = cli("eval", SAMPLES / "trl" / kind / "completions_00001.parquet", "-r", "gsm8k", "-r", "label", "--json")
    assert result.code == 0, result.err
    figures = result.summary["models"]["default"]
    assert (figures["label"]["gsm8k"]["agree"], figures["label"]["gsm8k"]["n"]) == (8, 8)
    assert figures["groups"]["sizes"] == {"4": 2}


def test_lighteval_one_completion_a_sample(cli: Here) -> None:  # noqa: F811
    groups = list(read_generations(SAMPLES / "lighteval" / "one.parquet"))
    assert [(g.sample.id, g.sample.reference, g.completions[0].text) for g in groups] == [
        ("0", "4", "It is 4"),
        ("1", "6", "seven"),
        ("2", "8", ""),
    ]
    assert [g.completions[0].metadata["label"] for g in groups] == [1.0, 0.0, 0.0]
    assert [g.completions[0].metadata["f1_score"] for g in groups] == [0.75, 0.25, 0.25]
    assert groups[0].sample.metadata["task"] == "sums|0" and groups[0].completions[0].tokens == 3
    result = cli("eval", SAMPLES / "lighteval" / "one.parquet", "-r", "numeric", "-r", "label", "--json")
    assert result.code == 0, result.err
    agreement = result.summary["models"]["default"]["label"]["numeric"]
    assert (agreement["agree"], agreement["n"]) == (3, 3)


def test_lighteval_several_completions_have_no_label_of_their_own() -> None:
    """Trap: a metric of a sample with four completions is about all four. An index may be a list of several."""
    groups = list(read_generations(SAMPLES / "lighteval" / "several.parquet"))
    assert [[c.text for c in g.completions] for g in groups] == [["5", "4", "5", "6"], ["2", "3", "1", "1"]]
    assert [g.sample.reference for g in groups] == ["5", ["2", "3"]]
    assert not any("label" in c.metadata for g in groups for c in g.completions)
    assert groups[0].sample.metadata["pass@k:k=1&n=4"] == 0.5


def test_lighteval_without_texts_says_why() -> None:
    with pytest.raises(InputError, match="log-likelihood"):
        read_generations(SAMPLES / "lighteval" / "letters.parquet")


@pytest.mark.parametrize("index", [None, -1, 7, [], [0, 9]])
def test_lighteval_an_index_that_leads_nowhere_is_no_reference(tmp_path, index):
    row = {"doc": {"query": "q", "choices": ["a"], "gold_index": index}, "model_response": {"text": ["x"]}}
    (group,) = read_generations(write(tmp_path / "a.parquet", [row | {"metrics": {"em": 1}}]))
    assert group.sample.reference == ("a" if index == [0, 9] else None)


def test_other_parquet_is_left_to_the_plain_reader_and_a_map_still_works(tmp_path):
    path = write(tmp_path / "a.parquet", [{"prompt": "a", "completion": "b"}])
    assert open_records(Source(path))[0] == "parquet"
    (tmp_path / "cut.parquet").write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="damaged or cut off"):
        read_generations(tmp_path / "cut.parquet")
    trl = SAMPLES / "trl" / "text" / "completions_00001.parquet"
    records = read_generations(trl, field_map=FieldMap.parse(["completion=prompt"]))
    assert [g.completions[0].text for g in records][:1] == ["2 + 2?"]


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"accuracy_reward": [0, 1], "format_reward": [1, 1]}, "accuracy_reward"),
        ({"mine": [0, 1], "format_reward": [1, 0], "length": [0, 1]}, "mine"),
        ({"one": [0, 1], "two": [1, 0]}, None),
        ({"correct": [0.5, 1], "other": [3, 4]}, None),
        ({"correct": [None, None]}, None),
        ({"format": [1, 0]}, None),
    ],
)
def test_which_reward_is_the_verdict(columns, name):
    """In doubt none is: a reward of the form must not pass for the label."""
    assert verdict_among(columns) == name
