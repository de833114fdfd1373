"""Answers are found where the last marker points to, and what is no part of the answer is taken away first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import extract
from rewardkit.extract import (
    SPECIAL_TOKENS,
    Found,
    after_thinking,
    answer_phrase,
    boxed,
    cut_run_on,
    fenced_code,
    final_line,
    hash_marker,
    last_number,
    opens_thinking,
    strip_special_tokens,
    tagged,
)

CASES = Path(__file__).parent / "cases"
RULES = [json.loads(line) for line in (CASES / "extract.jsonl").read_text("utf-8").splitlines()]
RUN_ONS = [json.loads(line) for line in (CASES / "run_on.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", RULES, ids=lambda case: f"{case['rule']} {case['text'][:30]!r}: {case['why']}")
def test_a_rule_finds(case):
    found = getattr(extract, case["rule"])(case["text"])
    if case["found"] is None:
        assert found is None
        return
    assert found is not None and found.text == case["found"]
    assert case["text"][found.start :].startswith(found.text)


@pytest.mark.parametrize("case", RUN_ONS, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_run_on_is_cut(case):
    kept = cut_run_on(case["text"])
    assert kept.rstrip() == case["kept"].rstrip()
    assert case["text"].startswith(kept)


# ---------------------------------------------------------------------------------------- special tokens


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_each_special_token_is_dropped_once_twice_and_with_space(token):
    for tail in (token, token * 3, token + "\n", token + " " + token, "<|im_end|>\n" + token + "  \n"):
        assert strip_special_tokens("#### 18" + tail) == "#### 18"
    assert strip_special_tokens(token) == ""


@pytest.mark.parametrize(
    "text", ["", "18", "18 \n", "a > b", "x[3]", "<b>18</b>", "</s> 18", "18 </ss>", "|>", "[18]", " \n "]
)
def test_ordinary_ends_stay(text):
    assert strip_special_tokens(text) is text


def test_space_before_the_first_token_stays():
    assert strip_special_tokens("18\n<|im_end|> <pad>") == "18\n"


@given(st.text(max_size=20), st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "\n"]), max_size=6))
def test_stripping_twice_is_stripping_once(text, tail):
    once = strip_special_tokens(text + "".join(tail))
    assert strip_special_tokens(once) == once
    assert (text + "".join(tail)).startswith(once)


# ---------------------------------------------------------------------------------------------- run-ons

answers = st.sampled_from(
    ["#### 18", "The answer is 18.", "\\boxed{18}", "A: 18", "<answer>18</answer>", "Final answer: 18"]
)
starts = st.sampled_from(
    [
        "\n\nQuestion: ",
        "\nQ: ",
        "\n\nProblem: ",
        "\n\n**Question 2:** ",
        "\nHuman: ",
        "\n\nUser: ",
        "\n### Instruction:\n",
        "<|im_end|>\n<|im_start|>user\n",
        "\n## Question\n",
        "<|eot_id|>",
        "</s>",
    ]
)
questions = st.sampled_from(
    ["Tom has 5 apples. How many?\nAnswer: 7", "Is 7 prime?\n#### 7", "x\nA: The answer is 7.", "\\boxed{7}", ""]
)


@given(
    st.sampled_from(["", "She has 9 eggs.\n", "9 * 2 = 18\n\n"]),
    answers,
    st.lists(st.tuples(starts, questions), min_size=1, max_size=3),
)
def test_a_run_on_never_changes_a_marked_answer(head, answer, run_on):
    text = head + answer
    assert cut_run_on(text + "".join(start + question for start, question in run_on)) == text


@given(st.text(alphabet="Q: \nAnswer18#<|>/seoim_dthnk5", max_size=60))
def test_never_all_of_a_text_is_cut(text):
    kept = cut_run_on(text)
    assert text.startswith(kept)
    assert bool(kept.strip()) == bool(text.strip())


# --------------------------------------------------------------------------------------------- thinking


def test_what_follows_the_thinking():
    assert after_thinking("18") == "18"
    assert after_thinking("<think>5</think> 18") == " 18"
    assert after_thinking("5</think> 18") == " 18"
    assert after_thinking("<think>a</think>b<think>c</think>18") == "18"
    assert after_thinking("<think>18") is None
    assert after_thinking("<think>5</think>7<think>18") is None
    assert after_thinking("18", opened=True) is None
    assert after_thinking("a < b") == "a < b"


def test_a_prompt_may_open_the_thinking():
    assert opens_thinking("Solve.\n<think>\n")
    assert opens_thinking([{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>"}])
    assert not opens_thinking("Write <think> and </think> around it.")
    assert (
        not opens_thinking([]) and not opens_thinking(None) and not opens_thinking([{"role": "user", "content": None}])
    )


# ------------------------------------------------------------------------------------------- rule names


def test_rules_have_names():
    assert hash_marker("#### 18") == Found("18", "####", 5)
    assert boxed("\\boxed{18}").rule == boxed("\\fbox{18}").rule == "\\boxed"
    assert answer_phrase("The answer is 18").rule == "the answer is"
    assert answer_phrase("Final Answer: 18").rule == "answer:"
    assert answer_phrase("A: 18").rule == "A:"
    assert last_number("18").rule == "last number"
    assert tagged("<answer>18</answer>").rule == "<answer>"
    assert fenced_code("```\n18\n```").rule == "fenced code"
    assert final_line("a\n18").rule == "final line"


def test_a_stop_string_may_have_eaten_the_closing_tag():
    assert tagged("<answer>5</answer><answer>18").text == "5"
    assert tagged("<answer>5</answer><answer>18", unclosed=True).text == "18"
    assert tagged("<a>5</a>", "a").text == "5" and tagged("<a+>5</a+>", "a+").text == "5"


def test_fenced_code_of_one_language():
    text = "```python\nx = 1\n```\n```output\n2\n```"
    assert fenced_code(text).text == "2\n"
    assert fenced_code(text, "python").text == "x = 1\n"
    assert fenced_code(text, "rust") is None


def test_the_last_number_of_a_long_line_is_whole():
    """The search goes backwards in windows; none may cut a number in two."""
    for fill in (*range(230, 270), *range(480, 530), *range(1000, 1040)):
        text = "x" * 2000 + " 1,234,567.89 " + "y" * fill
        assert last_number(text).text == "1,234,567.89"
    assert last_number("12 " + "z" * 5000).text == "12"


def test_the_last_number_is_looked_for_at_the_end_only():
    assert last_number("12 " + "z" * extract.MAX_TAIL * 4) is None
    assert last_number("12 " + "z" * (extract.MAX_TAIL // 2)).text == "12"


def test_so_many_labels_of_questions_are_looked_at():
    """Each costs a look at the line before it; without a bound 1 MB of them took seconds."""
    text = "so 5\nWe see:" + "\nQ: which:" * (extract.MAX_TURNS * 2) + "\n#### 7\nQ: 9"
    assert cut_run_on(text) == text


# ------------------------------------------------------------------------------------------------ sizes

PIECES = [
    "\\boxed{",
    "{",
    "}",
    "####",
    "#### x\n",
    "\nQ: x",
    "\nQuestion: 5 is\n",
    "A: ",
    "answer ",
    "the answer is x ",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "</s>",
    " ",
    "\n",
    "```\n",
    "`",
    "<|im_end|>",
    "\n\nTom has 5 apples and wants many more?\n\n#### 5",
    "</s> ",
    "<eos></s> ",
    "\nQ: ²",
    "-\nQ: 1\n",
    ") \nQ: 1\n",
    "\nQ: 1\n\nUser",
    "-",
    "−",
    "- ",
    "$",
    "US$",
    "\\",
    "1^{",
    "1 000 ",
    "½",
    "3 hours 4 minutes ",
    "not ",
    "A: 3\nB: 4\n",
    "#### 3 ####",
    '{"answer": ',
]


@pytest.mark.parametrize("piece", PIECES)
def test_200_kb_of_one_thing_end(piece):
    """A quadratic rule would need hours for these."""
    for text in (piece * (200_000 // len(piece)), "so 5 " + piece * (200_000 // len(piece)) + " 18"):
        for rule in (
            cut_run_on,
            after_thinking,
            strip_special_tokens,
            hash_marker,
            boxed,
            answer_phrase,
            last_number,
            tagged,
            fenced_code,
            final_line,
        ):
            rule(text)


@given(st.lists(st.sampled_from([*PIECES, "18", "x", "A", ":", "**"]), max_size=12).map("".join) | st.text(max_size=60))
def test_no_text_raises(text):
    for rule in (hash_marker, boxed, answer_phrase, last_number, tagged, fenced_code, final_line):
        found = rule(text)
        assert found is None or text[found.start :].startswith(found.text)


@pytest.mark.parametrize(
    "prompt",
    [
        "question\n<think>\n",
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "<think>\n"}]}],
        [{"from": "gpt", "value": "<think>"}],
    ],
)
def test_a_prompt_opens_thinking_as_text_as_chat_and_as_a_list_of_parts(prompt):
    assert opens_thinking(prompt)


def test_a_user_who_talks_about_the_tag_has_not_opened_it():
    assert not opens_thinking([{"role": "user", "content": "Start your reply with <think>"}])
    assert not opens_thinking([])
