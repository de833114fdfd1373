"""The GSM8K set: `answer_correct`, `answer_integer`, and the preset that adds all five up."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check, judge

from rewardkit import from_data, parse, to_data
from rewardkit.errors import OptionError
from rewardkit.rewards.answer_correct import answer_correct
from rewardkit.rewards.answer_integer import answer_integer
from rewardkit.rewards.gsm8k_set import gsm8k_set, gsm8k_think_set


@cases("answer_correct")
def test_correct(case):
    check(answer_correct, case)


@cases("answer_integer")
def test_integer(case):
    check(answer_integer, case)


@cases("gsm8k_set")
def test_set(case):
    check(gsm8k_set, case)


def test_a_perfect_answer_earns_4():
    text = "<reasoning>\nShe sells 16 - 3 - 4 = 9 eggs,\nfor 9 * 2 = $18.\n</reasoning>\n<answer>\n18\n</answer>\n"
    score = judge(gsm8k_set, text, reference="9 * 2 = 18\n#### 18")
    assert score.value == 2.0 + 0.5 + 0.5 + 0.5 + 4 * 0.125 == 4.0
    assert {part.name: part.value for part in score.parts} == {
        "answer_correct": 2.0,
        "answer_integer": 0.5,
        "format_strict": 0.5,
        "format_soft": 0.5,
        "tag_count": 0.5,
    }


@pytest.mark.parametrize(
    ("text", "prompt", "value"),
    [
        ("<think>\n9 * 2\n</think>\n<answer>\n18\n</answer>", "How much?", 4.0),
        ("9 * 2\n</think>\n<answer>\n18\n</answer>", "How much?\n<think>\n", 4.0),
        ("9 * 2\n</think>\n<answer>\n17\n</answer>", "How much?\n<think>\n", 2.0),
        # 2 + 0.5 + 0 + 0 + 3 * 0.125: </think>, <answer>, </answer>
        ("9 * 2\n</think>\n<answer>\n18\n</answer>", "How much?", 2.875),
        # 2 + 0.5 + 0 + 0 + 2 * 0.125
        ("<reasoning>\n9 * 2\n</reasoning>\n<answer>\n18\n</answer>", "How much?", 2.75),
    ],
)
def test_with_think_tags(text, prompt, value):
    assert judge(gsm8k_think_set, text, prompt=prompt, reference=18).value == value


@pytest.mark.parametrize("preset", [gsm8k_set, gsm8k_think_set])
def test_a_preset_is_a_value(preset):
    assert parse(preset.formula) == preset == from_data(to_data(preset)) == pickle.loads(pickle.dumps(preset))


def test_gold_solutions_of_gsm8k_earn_all(shared):
    """Every one of the 1,319 references is read, and its own number is right: 2 + 0.5 + 0.5 + 0.5 + 0.5."""
    lines = shared("data/gsm8k/test.jsonl").read_text("utf-8").splitlines()
    for row in map(json.loads, lines):
        solution, _, number = row["answer"].rpartition("\n#### ")
        text = f"<reasoning>\n{solution}\n</reasoning>\n<answer>\n{number}\n</answer>"
        assert judge(answer_correct, text, reference=row["answer"]).value == 2.0, row
        assert judge(answer_integer, text).value == 0.5, row
    assert len(lines) == 1319


@given(st.integers(), st.booleans())
def test_every_integer_is_one_and_is_right(number, marks):
    text = f"<answer>{number:,}</answer>" if marks else f"<answer>{number}</answer>"
    assert judge(answer_integer, text).value == 0.5
    assert judge(answer_correct, text, reference=number).value == 2.0
    assert judge(answer_correct, text, reference=number + 1).value == 0.0


@given(st.text(max_size=30))
def test_an_integer_is_what_int_reads(text):
    """An oracle of Python's own: int(), without the underscores and the white space that it allows."""
    if "<" in text or not text.isascii():
        return
    plain = text.strip()
    try:
        int(plain)
        wanted = "_" not in plain and plain == "".join(plain.split())
    except ValueError:
        wanted = None if "," in plain else False
    if wanted is not None and "\n" not in plain:
        assert (judge(answer_integer, f"<answer>{text}</answer>").value == 0.5) == wanted


def test_a_megabyte_ends():
    for piece in ("<answer>", "</answer>", "<answer>1</answer>", "1,000", "9", "<answer>" + "9" * 1000):
        text = piece * (10**6 // len(piece))
        judge(answer_integer, text)
        assert judge(answer_correct, text, reference=18).value == 0.0


@pytest.mark.parametrize("reward", [answer_correct, answer_integer])
def test_the_tag_is_a_name(reward):
    with pytest.raises(OptionError, match="the name of a tag is wanted"):
        judge(reward, "x", reference=1, options={"answer": "<answer>"})
