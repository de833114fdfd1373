"""`format_strict`, `format_soft` and `tag_count`: tags, whatever stands inside them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check, judge

from rewardkit.errors import OptionError
from rewardkit.rewards.format_soft import format_soft
from rewardkit.rewards.format_strict import format_strict
from rewardkit.rewards.tag_count import tag_count
from rewardkit.rewards.think_format import think_format

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
ALL = (format_strict, format_soft, tag_count)


@cases("format_strict")
def test_strict(case):
    check(format_strict, case | {"reason": None})


@cases("format_soft")
def test_soft(case):
    check(format_soft, case | {"reason": None})


@cases("tag_count")
def test_count(case):
    check(tag_count, case | {"reason": None})


# The notebooks' own patterns, with line breaks allowed. `soft` looks for the blocks anywhere.
STRICT = re.compile(r"\s*<reasoning>(.*)</reasoning>\s*<answer>(.*)</answer>\s*", re.DOTALL)
SOFT = re.compile(r".*<reasoning>(.*)</reasoning>.*<answer>(.*)</answer>.*", re.DOTALL)
PIECES = st.lists(st.sampled_from([*TAGS, "x", "\n", " ", "<Answer>", "< answer>"]), max_size=9).map("".join)


def by_pattern(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.fullmatch(text)
    once = all(text.count(tag) == 1 for tag in TAGS)
    return 0.5 * bool(match and once and match[1].strip() and match[2].strip())


@given(PIECES)
def test_formats_equal_the_notebooks_patterns(text):
    assert judge(format_strict, text).value == by_pattern(STRICT, text)
    assert judge(format_soft, text).value == by_pattern(SOFT, text)


@given(PIECES, st.text(max_size=20))
def test_strict_is_soft_and_soft_has_all_tags(text, tail):
    strict, soft = judge(format_strict, text + tail).value, judge(format_soft, text + tail).value
    assert strict <= soft
    if soft:
        assert judge(tag_count, text + tail, options={"trailing": 0}).value == 0.5


SEEN = st.text(min_size=1, max_size=40).filter(lambda text: "<" not in text and any(map(str.isalnum, text)))


@given(SEEN, SEEN, SEEN, st.sampled_from(["", "Hi. ", "\n"]), st.sampled_from(["", "Bye.", "\n"]))
def test_formats_do_not_depend_on_the_contents(reasoning, answer, other, before, after):
    """Nor on the reference: they are not given it."""
    text = "{}<reasoning>{}</reasoning>\n<answer>{}</answer>{}"
    one = text.format(before, reasoning, answer, after)
    two = text.format(before, other, "18", after)
    for reward in ALL:
        assert judge(reward, one, reference=18).value == judge(reward, two, reference="7").value
    thinking = "{}<think>{}</think>\n<answer>{}</answer>{}"
    for strict in (False, True):
        one_thought = thinking.format(before, reasoning, answer, after)
        two_thought = thinking.format(before, other, "18", after)
        options = {"answer": True, "strict": strict}
        assert (
            judge(think_format, one_thought, options=options).value
            == judge(think_format, two_thought, options=options).value
        )


@given(PIECES, st.text(max_size=50), st.text(max_size=50).filter(lambda text: "<" not in text))
def test_a_longer_tail_never_earns_more(text, tail, more):
    body = text + "<answer>18</answer>"
    assert judge(tag_count, body + tail + more).value <= judge(tag_count, body + tail).value + 1e-12 or "<" in tail


@given(PIECES)
def test_the_template_may_open_the_first_tag(text):
    for reward in ALL:
        if "<reasoning>" not in text:
            whole = judge(reward, "<reasoning>" + text)
            assert judge(reward, text, options={"opened": True}).value == whole.value
            assert judge(reward, text, prompt=[{"role": "assistant", "content": "<reasoning>\n"}]).value == whole.value


@given(st.text(max_size=100))
def test_text_without_tags_earns_nothing(text):
    for reward in ALL:
        assert judge(reward, text).value == 0.0


def test_a_megabyte_ends():
    for tag in (*TAGS, "<", "</", "<reasoning", "\u200b"):
        text = tag * (10**6 // len(tag))
        for reward in ALL:
            assert judge(reward, text).value == 0.0
            assert judge(reward, f"<reasoning>{text}").value <= 0.125


@pytest.mark.parametrize("reward", ALL, ids=lambda reward: reward.label)
@pytest.mark.parametrize(
    "options", [{"reasoning": "<think>"}, {"answer": ""}, {"answer": "a b"}, {"reasoning": "answer"}, {"answer": 1}]
)
def test_tag_names_are_names(reward, options):
    with pytest.raises(OptionError, match=r"tag|valid string"):
        judge(reward, "x", options=options)


@pytest.mark.parametrize("options", [{"each": -1}, {"trailing": -0.001}])
def test_points_are_not_negative(options):
    with pytest.raises(OptionError, match="0 or more"):
        judge(tag_count, "x", options=options)


def test_a_name_is_no_pattern():
    assert judge(format_soft, "<rXs>a</rXs><answer>b</answer>", options={"reasoning": "r.s"}).value == 0.0
    assert judge(format_soft, "<r.s>a</r.s><answer>b</answer>", options={"reasoning": "r.s"}).value == 0.5
