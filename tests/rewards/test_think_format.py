"""`think_format`: one block of thinking, then the answer, by rules that the detail names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check
from reward_cases import judge as judge_with

from rewardkit.errors import OptionError
from rewardkit.rewards.think_format import think_format


def judge(text: str, prompt: object = "", **options: object):
    return judge_with(think_format, text, prompt=prompt, options=options)


@cases("think_format")
def test_a_format_is_judged(case):
    check(think_format, case | {"reason": None})


@pytest.mark.parametrize(("step", "right"), [(400, 881), (800, 985)])
def test_grpo_groups(shared, step, right):
    """open-r1#237: a line break inside the tags failed the check. Figures of the data's README."""
    data = json.loads(shared(f"data/grpo_groups/amc23_step_{step}.json").read_text("utf-8"))
    texts = [
        c["full_model_response"] for row in data["categories"][0]["datasets"][0]["results"] for c in row["completions"]
    ]
    assert len(texts) == 1000
    assert sum(judge(text, answer=True).value for text in texts) == right


# A second, obvious version: the tags as a list, and text by splitting at them.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def obvious(text: str) -> bool:
    for tag in TAGS:
        if text.count(tag) != 1:
            return False
    before, rest = text.split("<think>")
    if "</think>" not in rest:
        return False
    thought, rest = rest.split("</think>")
    if "<answer>" not in rest:
        return False
    between, rest = rest.split("<answer>")
    if "</answer>" not in rest:
        return False
    answer, after = rest.split("</answer>")
    return bool(not before.strip() and thought.strip() and not between.strip() and answer.strip() and not after.strip())


PIECES = st.lists(st.sampled_from([*TAGS, "x", "\n", " ", "<Think>", "<think", "</ think>"]), max_size=9).map("".join)


@given(PIECES)
def test_strict_with_answer_equals_the_obvious_version(text):
    assert judge(text, answer=True).value == obvious(text)


@given(PIECES)
def test_an_opened_block_is_the_same_text_without_its_opening_tag(text):
    """trl#6966: where the template opens the block, the completion alone never has it."""
    for answer in (False, True):
        whole = judge("<think>" + text, answer=answer)
        assert judge(text, opened=True, answer=answer).value == whole.value
        assert judge(text, prompt="Solve it.\n<think>\n", answer=answer).value == whole.value


@given(PIECES)
def test_what_is_strict_is_also_soft(text):
    for answer in (False, True):
        assert judge(text, strict=True, answer=answer).value <= judge(text, strict=False, answer=answer).value


SEEN = st.text(min_size=1, max_size=30).filter(lambda text: any(map(str.isalnum, text)))


@given(SEEN, SEEN)
def test_well_formed_is_well_formed_whatever_is_inside(thought, reply):
    if any(tag in thought + reply for tag in TAGS):
        return
    assert judge(f"<think>{thought}</think>{reply}").value == 1.0
    assert judge(f"{thought}</think>{reply}", prompt="Go.\n<think>\n").value == 1.0
    assert judge(f"<think>{thought}</think>\n<answer>{reply}</answer>", answer=True).value == 1.0


def test_a_megabyte_of_tags_ends():
    for tag in TAGS:
        assert judge(tag * (10**6 // len(tag))).value == 0.0


def test_options_are_typed():
    with pytest.raises(OptionError, match="strict"):
        think_format.with_options(strict="yes")
    with pytest.raises(OptionError, match="did you mean strict"):
        think_format.with_options(strickt=True)
    with pytest.raises(OptionError, match="opened"):
        think_format.with_options(opened="auto")


def test_it_is_still_a_plain_function():
    assert think_format("<think>a</think>b", "").value == 1.0
