"""Outputs of batches: three kinds of answers, the join with the request file, errors that are no zeros."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows, write_rows

from rewardkit.records import FieldMap, read_generations
from rewardkit.records.rows import NotGenerations
from rewardkit.records.source import Source
from rewardkit.records.tools.openai_batch import READER, find_requests

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def answer(id, *texts, status=200, **more):
    choices = [{"index": at, "message": {"role": "assistant", "content": each}} for at, each in enumerate(texts)]
    body = {"object": "chat.completion", "choices": choices, "model": "m"}
    return {"id": "b", "custom_id": id, "response": {"status_code": status, "body": body}, "error": None, **more}


def request(id, asked="?", **more):
    body = {"model": "m", "messages": [{"role": "user", "content": asked}], **more}
    return {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_chat_answers_are_joined_with_their_requests():
    records = read_generations(SAMPLES / "openai/chat_output.jsonl")
    late, eggs, pens, long = records
    assert [g.sample.id for g in (late, eggs, pens, long)] == ["late", "eggs", "pens", "long"]
    assert pens.sample.prompt[1]["content"] == "Ann has 3 pens and buys 4. How many has she?"
    assert (pens.sample.reference, eggs.sample.reference) == ("7", "36")
    assert [c.text for c in pens.completions] == ["3 + 4 = 7\n#### 7", "3 * 4 = 12\n#### 12"]
    assert [c.finish_reason for c in pens.completions] == ["stop", "stop"]
    assert eggs.completions[0].text == "I cannot help with eggs."  # a refusal
    assert late.completions[0].error == (
        "batch_expired: This request could not be executed before the completion window expired."
    )
    assert long.completions[0].error == "status 400: invalid_request_error: maximum context length"
    assert records.notes == ["prompts are from chat_requests.jsonl beside it, joined on custom_id"]
    assert pens.sample.metadata["request_file"] == "chat_requests.jsonl"


def test_responses_and_their_requests():
    second, first, third = read_generations(SAMPLES / "openai/responses_output.jsonl")
    assert first.sample.prompt == [
        {"role": "system", "content": "Answer after ####."},
        {"role": "user", "content": "Ann has 3 pens and buys 4. How many has she?"},
    ]
    assert first.completions[0].text == "3 + 4 = 7\n#### 7"
    assert second.sample.prompt == [{"role": "user", "content": "A box holds 12 eggs. How many do 3 hold?"}]
    assert (third.completions[0].text, third.completions[0].finish_reason) == ("", "length")
    assert third.completions[0].messages[0]["tool_calls"][0]["function"] == {"name": "times", "arguments": "[12, 3]"}


def test_legacy_completions_without_requests():
    records = read_generations(SAMPLES / "openai/completions_output.jsonl")
    assert [(g.sample.id, g.sample.prompt, g.sample.reference, g.completions[0].text) for g in records] == [
        ("c1", "", None, " 7"),
        ("c2", "", None, " 36"),
    ]
    assert ["no request file" in note for note in records.notes] == [True]


def test_no_file_but_the_matching_one_is_joined(tmp_path):
    """Traps: requests of another batch, other JSONL, broken files, folders and itself in the same folder."""
    out = write_rows(tmp_path / "out.jsonl", [answer("a", "x"), answer("b", "y")])
    write_rows(tmp_path / "0.jsonl", [request("c", "wrong"), request("d", "wrong")])
    write_rows(tmp_path / "1.jsonl", [request("a", "part")])
    write_rows(tmp_path / "2.jsonl", [{"custom_id": "a", "completion": "z"}])
    (tmp_path / "3.jsonl").write_bytes(b"\xff\xfe\x00{")
    (tmp_path / "4.jsonl").mkdir()
    (tmp_path / "5.jsonl").write_bytes(b"")
    (tmp_path / "6.jsonl").symlink_to(tmp_path / "nowhere")
    write_rows(tmp_path / "9.jsonl", [request("b", "B"), request("z", "Z"), request("a", "A")])
    assert [g.sample.prompt[0]["content"] for g in read_generations(out)] == ["A", "B"]
    shutil.move(tmp_path / "9.jsonl", tmp_path / "9.txt")
    assert [g.sample.prompt for g in read_generations(out)] == [[{"role": "user", "content": "part"}], ""]


def test_ids_keep_their_type_in_the_join(tmp_path):
    out = write_rows(tmp_path / "out.jsonl", [answer("a", "w"), answer("1", "x"), answer(1, "y")])
    write_rows(tmp_path / "requests.jsonl", [request("1", "text"), request("a", "a"), request(1, "number")])
    done = list(read_generations(out))
    assert [(g.sample.id, g.sample.prompt[0]["content"]) for g in done] == [("a", "a"), ("1", "text"), (1, "number")]


def test_standard_input_looks_at_no_folder(tmp_path):
    """Trap: its spool file may lie anywhere."""
    out = write_rows(tmp_path / "out.jsonl", [answer("a", "x")])
    write_rows(tmp_path / "requests.jsonl", [request("a", "A")])
    source = Source(out)
    assert find_requests(source) is not None
    source.given = "-"
    assert find_requests(source) is None


@pytest.mark.parametrize(
    "row, error",
    [
        ({"response": None, "error": {"code": "batch_expired", "message": "late"}}, "batch_expired: late"),
        ({"response": None, "error": None}, "no response"),
        ({"response": {"status_code": 500, "body": None}, "error": None}, "status 500"),
        ({"response": {"status_code": 429, "body": {"message": "slow down"}}, "error": None}, "status 429: slow down"),
        ({"response": {"status_code": 200, "body": {}}, "error": "broken"}, "broken"),
        ({"response": {"status_code": "400", "body": {"error": {"message": "bad"}}}, "error": None}, "status 400: bad"),
    ],
)
def test_failed_requests_are_errors(row, error, tmp_path):
    done = read_rows(tmp_path / "a.jsonl", [answer("ok", "x"), {"id": "b", "custom_id": "a", **row}])
    assert [c.error for g in done for c in g.completions] == [None, error]


def test_answers_without_text_are_bad_rows(tmp_path):
    embedding = answer("e")
    embedding["response"]["body"] = {"object": "list", "data": [{"embedding": [0.1]}]}
    records = read_generations(write_rows(tmp_path / "a.jsonl", [answer("a", "x"), embedding, answer("f")]))
    assert len(list(records)) == 1
    assert [bad.why.partition(";")[0] for bad in records.bad] == ["the answer has no choices and no output"] * 2


def test_a_null_content_is_an_empty_answer(tmp_path):
    (done,) = read_rows(tmp_path / "a.jsonl", [answer("a", None)])
    assert (done.completions[0].text, done.completions[0].error) == ("", None)


def test_repeats_by_custom_id_are_one_group_by_prompt(tmp_path):
    """custom_id must be unique in a batch, so four samples of one prompt have four: --group prompt."""
    write_rows(tmp_path / "requests.jsonl", [request(f"a-{at}", "A") for at in range(4)])
    out = write_rows(tmp_path / "out.jsonl", [answer(f"a-{at}", str(at)) for at in range(4)])
    assert len({g.key for g in read_generations(out)}) == 4
    assert len({g.key for g in read_generations(out, group="prompt")}) == 1


def test_a_map_turns_the_join_off(tmp_path):
    out = write_rows(tmp_path / "out.jsonl", [answer("a", "x")])
    given_map = FieldMap.parse(["completion=response.body.choices[].message.content"])
    (done,) = read_generations(out, field_map=given_map)
    assert done.completions[0].text == "x"


def test_requests_given_as_generations_say_what_to_give(tmp_path):
    path = write_rows(tmp_path / "requests.jsonl", [request("a")])
    with pytest.raises(NotGenerations, match="requests of a batch; give its output file"):
        list(READER.generations(Source(path)))


@given(st.lists(st.tuples(text, st.lists(text, min_size=1, max_size=3), text), min_size=1, max_size=5), st.randoms())
def test_what_a_batch_writes_is_read_back(tmp_path_factory, tasks, rng: random.Random):
    """In any order of the answers, whatever the prompts and answers hold."""
    folder = tmp_path_factory.mktemp("batch")
    write_rows(
        folder / "in.jsonl", [request(f"r{at}", q, metadata={"answer": gold}) for at, (q, _, gold) in enumerate(tasks)]
    )
    rows = [answer(f"r{at}", *texts) for at, (_, texts, _) in enumerate(tasks)]
    rng.shuffle(rows)
    done = {g.sample.id: g for g in read_rows(folder / "out.jsonl", rows)}
    for at, (asked, texts, gold) in enumerate(tasks):
        found = done.pop(f"r{at}")
        assert found.sample.prompt == [{"role": "user", "content": asked}]
        assert (found.sample.reference, [c.text for c in found.completions]) == (gold, texts)
    assert not done


def test_the_samples_join_only_through_fields():
    """The requests' order differs from the answers'."""
    asked = [row["custom_id"] for row in sample_rows("openai/chat_requests.jsonl")]
    assert asked != [row["custom_id"] for row in sample_rows("openai/chat_output.jsonl")]
    assert json.dumps(asked)
