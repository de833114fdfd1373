"""The last <answer> block, as the package finds it, in linear time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.utils import extract_answer

from rewardkit_reasoning_gym.extract import last_answer

PIECES = st.sampled_from(["<answer>", "</answer>", "<answer", "answer>", "1", " ", "\n", "x y", "\u202e", "<", "/"])


@given(st.lists(PIECES, max_size=14).map("".join))
def test_equals_the_packages_own(text: str) -> None:
    assert last_answer(text) == extract_answer(text)


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("<answer>1</answer> or <answer>2</answer>", "2", "the last of several"),
        ("<answer>1</answer><answer>2", "1", "one that never closes is none"),
        ("<answer><answer>1</answer>", "<answer>1", "nested: the package takes all after the first tag"),
        ("```\n<answer>1</answer>\n```", "1", "in a code block"),
        ("</answer>1<answer>", None, "the wrong way round"),
        ("<answer> </answer>", "", "empty is not none"),
        ("<ANSWER>1</ANSWER>", None, "tags are lower case"),
    ],
)
def test_cases(text: str, answer: str | None, why: str) -> None:
    assert last_answer(text) == answer, why


def test_a_megabyte_of_open_tags_ends() -> None:
    """The package's pattern takes quadratic time: 10 s for 32 kB of this."""
    assert last_answer("<answer>" * 125_000) is None
    assert last_answer("<answer>1</answer>" + "<answer>" * 125_000) == "1"
