"""Logs of inspect_ai, written by the tool itself (tests/samples/inspect_ai), and what damage does to them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
from command_line import Here, cli  # noqa: F401

from rewardkit.records import FieldMap, Source, open_records, read_generations
from rewardkit.records.rows import NotGenerations
from rewardkit.records.tools.inspect_ai import READER

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "inspect_ai"
LOGS = ["sums.eval", "sums_deflate.eval", "sums.json"]
POPULARITY = "data/inspect_eval/2025-02-11T15-17-00-05-00_popularity_dPiJifoWeEQBrfWsAopzWr.eval"


def write_eval(path: Path, samples: list[dict], *, header: dict | None = None, method: int = 8) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("_journal/start.json", json.dumps({"version": 2, "eval": {"task": "t", "model": "m"}}))
        for sample in samples:
            made.writestr(f"samples/{sample['id']}_epoch_{sample.get('epoch', 1)}.json", json.dumps(sample))
        if header is not None:
            made.writestr("header.json", json.dumps(header))
    return path


def sample(id, text="4", epoch=1, **fields) -> dict:
    message = {"role": "assistant", "content": text, "source": "generate"}
    asked = {"role": "user", "content": "2 + 2?", "source": "input"}
    return {
        "id": id, "epoch": epoch, "input": "2 + 2?", "target": "4", "messages": [asked, message],
        "output": {"choices": [{"message": message, "stop_reason": "stop"}], "usage": {"output_tokens": 3}},
        "scores": {"match": {"value": "C", "answer": text}}, "metadata": {},
    } | fields  # fmt: skip


def read(path: Path):
    records = read_generations(path)
    return records, list(records)


# What the tool writes


@pytest.mark.parametrize("name", LOGS)
def test_all_three_forms_hold_the_same_groups(name):
    """Numbers come first and by size, whatever order the samples ended in; two epochs are two completions."""
    records, groups = read(SAMPLES / name)
    assert (records.format, records.rows, records.bad_rows, records.models) == ("inspect_ai", 4, 0, ["mockllm/model"])
    by_id = {group.sample.id: group for group in groups}
    assert by_id.keys() == {1, "prime", "three plus three", "broken"}
    assert {group.model for group in groups} == {"mockllm/model"}
    first = by_id[1]
    assert (first.sample.prompt, first.sample.reference) == ("2 + 2?", "4")
    assert first.sample.metadata == {"level": 1, "task": "sums"}
    assert [c.text for c in first.completions] == ["4", "It is 4"]
    assert [(c.tokens, c.finish_reason) for c in first.completions] == [(1, "stop"), (3, "stop")]
    assert [c.metadata["epoch"] for c in first.completions] == [1, 2]
    assert by_id["prime"].sample.reference == ["2", "3"], "any of several targets is right"
    assert [c.messages[-1]["role"] for c in first.completions] == ["assistant", "assistant"]
    assert len({group.key for group in groups}) == 4


@pytest.mark.parametrize("name", LOGS)
def test_of_two_scorers_the_one_with_letters_is_the_label_and_both_are_columns(name):
    """Trap: `brevity` stands first and has numbers up to 1, one of them NaN."""
    by_id = {group.sample.id: group.completions for group in read(SAMPLES / name)[1]}
    labels = {id: [c.metadata.get("label") for c in done] for id, done in by_id.items() if id != "broken"}
    assert labels == {1: [1.0, 1.0], "prime": [1.0, 0.0], "three plus three": [1.0, 0.0]}
    assert [c.metadata["brevity"] for c in by_id[1]] == [0.5, None]
    assert [c.metadata["match"] for c in by_id["prime"]] == ["C", "I"]


@pytest.mark.parametrize("name", LOGS)
def test_a_sample_that_failed_is_an_error_and_its_neighbours_are_not(name):
    by_id = {group.sample.id: group.completions for group in read(SAMPLES / name)[1]}
    assert [c.error for c in by_id["broken"]] == ["RuntimeError('the tool server went away')"] * 2
    assert not any(c.error for id, done in by_id.items() if id != "broken" for c in done)


@pytest.mark.parametrize("name", LOGS)
def test_the_command_line_scores_it(cli: Here, name: str) -> None:  # noqa: F811
    result = cli("eval", SAMPLES / name, "-r", "label", "-r", "final=numeric", "--json")
    assert result.code == 0, result.err
    figures = result.summary["models"]["mockllm/model"]["rewards"]
    assert (figures["label"]["right"], figures["label"]["scored"], figures["label"]["errors"]) == (4, 6, 2)
    assert (figures["final"]["right"], figures["final"]["scored"], figures["final"]["abstained"]) == (3, 4, 2)
    assert figures["final"]["reasons"]["source_failed"] == 2
    assert {score["id"] for score in cli.scores()} == {1, "prime", "three plus three", "broken"}


def test_a_published_log_of_an_older_version(shared, cli: Here) -> None:  # noqa: F811
    """Deflated, without scores: ten samples in order of their ids, whose targets begin with a blank."""
    path = shared(POPULARITY)
    groups = read(path)[1]
    assert [group.sample.id for group in groups] == list(range(1, 11))
    assert {group.completions[0].text for group in groups} <= {"Yes", "No"}
    assert {group.sample.reference for group in groups} <= {" Yes", " No"}
    assert "label_confidence" in groups[0].sample.metadata and "label" not in groups[0].completions[0].metadata
    result = cli("eval", path, "-r", "exact", "--json")
    assert result.code == 0, result.err
    assert result.summary["models"]["openai/gpt-4o-mini"]["rewards"]["exact"]["scored"] == 10


def test_a_map_may_say_what_the_fields_mean():
    records = read_generations(SAMPLES / "sums.eval", field_map=FieldMap.parse(["completion=messages"]))
    assert [g.completions[0].text for g in records][:2] == ["4", "It is 4"]


# How it is recognised


@pytest.mark.parametrize(("name", "as_name"), [("sums.eval", "log.zip"), ("sums.json", "x"), ("sums.eval", "stdin")])
def test_fields_and_members_give_it_away_and_not_the_name(tmp_path, name, as_name):
    path = tmp_path / as_name
    path.write_bytes((SAMPLES / name).read_bytes())
    assert open_records(Source(path))[0] == "inspect_ai"
    (tmp_path / "a.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert len(read(tmp_path / "a.gz")[1]) == 4


def test_other_archives_and_documents_are_not_claimed():
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as made:
        made.writestr("a.jsonl", "{}")
    assert READER.detect("a.zip", other.getvalue()) == 0
    assert READER.detect("a.json", b'{"status": "x", "eval": "y", "samples": []}') == 0


# One sample


def test_what_each_kind_of_score_is_as_a_label(tmp_path):
    values = ["C", "I", "P", "N"]
    rows = [sample(at, scores={"s": {"value": value}}) for at, value in enumerate(values)]
    groups = read(write_eval(tmp_path / "a.eval", rows))[1]
    assert [g.completions[0].metadata["label"] for g in groups] == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("scores", "label"),
    [
        ([{"a": 0.3, "b": 1}, {"a": 1.0, "b": 0}], "b"),  # a is 1 once, yet no verdict
        ([{"a": 1, "b": True}, {"a": 0, "b": False}], "b"),
        ([{"a": "yes", "b": 0.5}, {"a": "no", "b": 1}], "a"),
        ([{"a": 7.0, "b": {"x": 1}}, {"a": 8.0, "b": [1]}], None),
        ([{"a": None, "b": "I"}, {"a": None, "b": None}], "b"),
    ],
)
def test_the_label_is_chosen_once_for_the_whole_log(tmp_path, scores, label):
    rows = [sample(at, scores={k: {"value": v} for k, v in each.items()}) for at, each in enumerate(scores)]
    groups = read(write_eval(tmp_path / "a.eval", rows))[1]
    for group, each in zip(groups, scores, strict=True):
        found = group.completions[0].metadata
        assert {name: found[name] for name in each} == each
        if label is None:
            assert "label" not in found
        else:
            says = {"yes": 1.0, "no": 0.0, "I": 0.0}
            value = each[label]
            assert found["label"] == (says.get(value, value) if isinstance(value, str) else value)


def test_long_texts_kept_as_attachments_are_put_back(tmp_path):
    long = sample(1, "attachment://ab", attachments={"ab": "the long text 4"}, input="attachment://cd")
    long["attachments"]["cd"] = "a long question"
    (group,) = read(write_eval(tmp_path / "a.eval", [long]))[1]
    assert (group.completions[0].text, group.sample.prompt) == ("the long text 4", "a long question")


def test_several_choices_are_completions_and_only_the_judged_one_has_a_label(tmp_path):
    row = sample(1)
    row["output"]["choices"].append({"message": {"role": "assistant", "content": "5"}, "stop_reason": "max_tokens"})
    (group,) = read(write_eval(tmp_path / "a.eval", [row]))[1]
    assert [(c.text, c.finish_reason, c.tokens) for c in group.completions] == [
        ("4", "stop", None),
        ("5", "max_tokens", None),
    ]
    assert ["label" in c.metadata for c in group.completions] == [True, False]


def test_a_conversation_keeps_its_turns_and_leaves_reasoning_out_of_the_text(tmp_path):
    said = [{"type": "reasoning", "reasoning": "hm 5"}, {"type": "text", "text": "4"}]
    final = {"role": "assistant", "content": said, "source": "generate"}
    turns = [
        {"role": "user", "content": "2 + 2?", "source": "input"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}], "source": "generate"},
        {"role": "tool", "content": "4"},
        final,
    ]
    (group,) = read(
        write_eval(tmp_path / "a.eval", [sample(1, messages=turns, output={"choices": [{"message": final}]})])
    )[1]
    assert group.completions[0].text == "4"
    assert [m["role"] for m in group.completions[0].messages] == ["assistant", "tool", "assistant"]


def test_epochs_with_another_target_are_two_groups_and_are_counted(tmp_path):
    rows = [sample("a"), sample("a", epoch=2, target="5"), sample("a", epoch=3, target="5")]
    records, groups = read(write_eval(tmp_path / "a.eval", rows))
    assert [len(g.completions) for g in groups] == [1, 2]
    assert (groups[0].key != groups[1].key, records.duplicate_ids) == (True, 1)


def test_integer_and_text_ids_stay_apart_in_a_document(tmp_path):
    about = {"version": 2, "status": "success", "eval": {"task": "t", "task_id": "x", "model": "m"}}
    document = about | {"samples": [sample(1), sample("1"), sample(1, epoch=2)]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    groups = read(tmp_path / "a.json")[1]
    assert [(g.sample.id, len(g.completions)) for g in groups] == [(1, 2), ("1", 1)]


# Damage


def bad_lines(records) -> list[str]:
    return [row.why for row in records.bad]


@pytest.mark.parametrize("name", ["sums.eval", "sums_deflate.eval"])
def test_a_log_that_is_cut_off_gives_what_is_whole_and_says_so(tmp_path, name):
    """A run that was killed leaves no directory at the end of the archive."""
    data = (SAMPLES / name).read_bytes()
    (tmp_path / "a.eval").write_bytes(data[: data.index(b"PK\x01\x02")])
    records, groups = read(tmp_path / "a.eval")
    assert (len(groups), records.bad_rows, groups[0].model) == (4, 1, "mockllm/model")
    assert "cut off or damaged: it has no directory; 8 samples" in bad_lines(records)[0]
    third = [at for at in range(len(data)) if data.startswith(b"PK\x03\x04", at)][3]
    (tmp_path / "b.eval").write_bytes(data[: third + 200])
    records, groups = read(tmp_path / "b.eval")
    assert (len(groups), records.bad_rows) == (2, 2)
    assert any("is cut off" in why for why in bad_lines(records))


def test_a_log_cut_off_is_scored_and_said_on_the_screen(cli: Here) -> None:  # noqa: F811
    data = (SAMPLES / "sums.eval").read_bytes()
    (cli.folder / "a.eval").write_bytes(data[: data.index(b"PK\x01\x02") + 10])
    result = cli("eval", "a.eval", "-r", "label")
    assert (result.code, "has no directory" in result.out, "Traceback" in result.err) == (0, True, False)
    strict = cli("eval", "a.eval", "-r", "label", "--strict", "-o", "strict")
    assert (strict.code, "has no directory" in strict.err) == (2, True)


def test_a_wrong_checksum_is_one_bad_row(tmp_path):
    path = write_eval(tmp_path / "a.eval", [sample(1), sample(2), sample(3)], method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.index(b'"id": 2')
    data[at + 6] = ord("9")
    path.write_bytes(data)
    records, groups = read(path)
    assert [g.sample.id for g in groups] == [1, 3]
    assert bad_lines(records) == ["samples/2_epoch_1.json: is damaged: its checksum is another one"]
    assert records.bad[0].line == 2


def test_samples_that_are_no_objects_are_bad_rows(tmp_path):
    path = tmp_path / "a.eval"
    with zipfile.ZipFile(path, "w") as made:
        for at, text in enumerate(['{"id": 1', "[1]", json.dumps(sample(3)), "\x00", "[" * 100_000]):
            made.writestr(f"samples/{at}_epoch_1.json", text)
    records, groups = read(path)
    assert ([g.sample.id for g in groups], [row.line for row in records.bad]) == ([3], [1, 2, 4, 5])
    assert "cut off" in bad_lines(records)[0] and "a list of 1" in bad_lines(records)[1]


@pytest.mark.parametrize(
    "wrong", ["messages", "output", "scores", "metadata", "attachments", "error", "limit", "target"]
)
@pytest.mark.parametrize("value", [None, 3, "text", [1, "x"], {"x": 1}, [[]]])
def test_a_field_of_a_wrong_type_is_never_a_traceback(tmp_path, wrong, value):
    path = write_eval(tmp_path / "a.eval", [sample(1, **{wrong: value}), sample(2)])
    records, groups = read(path)
    assert len(groups) + records.bad_rows == 2
    assert groups[-1].completions[0].text == "4"


def test_a_log_without_samples_says_so(tmp_path):
    header = {"version": 2, "status": "started", "eval": {"task": "t", "task_id": "x"}, "plan": {}}
    (tmp_path / "a.json").write_text(json.dumps(header))
    with pytest.raises(NotGenerations, match="without samples"):
        read_generations(tmp_path / "a.json")
    with pytest.raises(NotGenerations, match="without samples"):
        read_generations(write_eval(tmp_path / "a.eval", []))


def test_a_huge_member_is_refused_without_being_unpacked(tmp_path, monkeypatch):
    from rewardkit.records import zip_members

    monkeypatch.setattr(zip_members, "MAX_MEMBER", 100_000)
    path = write_eval(tmp_path / "a.eval", [sample(1), sample(2, store={"x": "y" * 200_000})])
    records, groups = read(path)
    assert [g.sample.id for g in groups] == [1]
    assert "is larger than" in bad_lines(records)[0]
