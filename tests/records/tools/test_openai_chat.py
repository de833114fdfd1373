"""Logs of calls to an OpenAI-style API, alone or with their requests, and plain chats beside them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows

from rewardkit.records import read_generations

ANSWER = sample_rows("openai/answers.jsonl")[0]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def body(*texts, **more):
    choices = [{"index": at, "message": {"role": "assistant", "content": each}} for at, each in enumerate(texts)]
    return {**ANSWER, "choices": choices, **more}


def test_answers_alone_are_samples_of_their_own():
    """Trap: without a prompt all would have the same content, and be one group."""
    first, second = read_generations(SAMPLES / "openai/answers.jsonl")
    assert first.key != second.key
    assert (first.completions[0].text, first.completions[0].tokens) == ("#### 7", 9)


def test_logged_calls():
    first, second = read_generations(SAMPLES / "openai/calls.jsonl")
    assert (first.key, second.start, first.sample.reference) == (second.key, 1, "7")
    assert (second.completions[0].text, second.completions[0].error) == ("", "timed out")


def test_choices_in_any_order_and_tools(tmp_path):
    late = body("b", "a")
    late["choices"][0]["index"], late["choices"][1]["index"] = 1, 0
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    tool = body("x")
    tool["choices"][0]["message"] = call
    first, second = read_rows(tmp_path / "a.jsonl", [late, {**tool, "id": "2"}])
    assert [c.text for c in first.completions] == ["a", "b"]
    assert (second.completions[0].text, second.completions[0].messages) == ("", (call,))


def test_a_prompt_beside_an_answer(tmp_path):
    """vLLM logs and home-made ones keep the messages in the same object."""
    asked = [{"role": "user", "content": "2 + 2?"}]
    rows = [body("4", messages=asked, answer="4"), body("5", messages=asked, answer="4")]
    first, second = read_rows(tmp_path / "a.jsonl", rows)
    assert (first.sample.prompt, first.sample.reference) == (asked, "4")
    assert (first.key, second.start) == (second.key, 1)


def test_an_error_body_is_an_error(tmp_path):
    broken = {"error": {"type": "server_error", "message": "busy"}}
    rows = [{"request": {"messages": []}, "response": each} for each in (body("a"), broken)]
    done = read_rows(tmp_path / "a.jsonl", rows)
    assert [c.error for g in done for c in g.completions] == [None, "server_error: busy"]


def test_plain_chats_need_no_reader_of_their_own(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": said}], "answer": "4"}
            for said in ("4", "5")]  # fmt: skip
    done = read_rows(tmp_path / "chat.jsonl", rows)
    assert [g.completions[0].text for g in done] == ["4", "5"]
    assert done[0].sample.prompt == [{"role": "user", "content": "2 + 2?"}] and done[0].key == done[1].key


@given(st.lists(st.tuples(text, st.lists(text, min_size=1, max_size=3)), min_size=1, max_size=5))
def test_what_is_logged_is_read_back(tmp_path_factory, calls):
    rows = [{"request": {"prompt": asked}, "response": body(*said)} for asked, said in calls]
    done = read_rows(tmp_path_factory.mktemp("calls") / "a.jsonl", rows)
    assert [(g.sample.prompt, [c.text for c in g.completions]) for g in done] == [(q, a) for q, a in calls]
