"""Standard output is compared line by line, all of it, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.verifiers.code.output import output_difference


@pytest.mark.parametrize(
    "expected, got",
    [
        ("a\n", "a"),
        ("a\nb\n", "a  \nb\t\n\n\n"),
        ("a\r\nb", "a\nb\r\n"),
        ("", "\n \n"),
        ("1 2", "1 2\n"),
        ("\na", "\na\n"),
    ],
)
def test_equal(expected, got):
    assert output_difference(expected, got) is None


@pytest.mark.parametrize(
    "expected, got, line",
    [
        ("a\nb", "a", 2), ("a", "a\nb", 2), ("a\nb", "b\na", 1), ("1\n2", "1 2", 1), ("a", "A", 1), ("a b", "a  b", 1),
        ("a", " a", 1),
        ("a\nb", "a\n\nb", 2), ("a", "", 1), ("6", "6.0", 1), ("a\fb", "a\nb", 1), ("a\x85b", "a\nb", 1), ("", "x", 1),
    ],
)  # fmt: skip
def test_different(expected, got, line):
    difference = output_difference(expected, got)
    assert difference is not None and difference.line == line


def test_a_tolerance():
    assert output_difference("x 0.5 3", "x 0.5004 3.0", 1e-3) is None
    assert output_difference("1e9", "1000000001", 1e-6) is None
    for expected, got in [
        ("0.5", "0.6"),
        ("0.5", "nan"),
        ("0.5", "inf"),
        ("a", "b"),
        ("1 2", "1"),
        ("5", "0x5"),
        ("10", "1_0"),
        ("1", "1" + "0" * 200),
        ("1", "1e999999999"),
        ("0", "1e-999999999"),
    ]:
        assert output_difference(expected, got, 1e-3) is not None, (expected, got)


@given(st.lists(st.text("ab 1.\n\r", max_size=6), max_size=6), st.integers(0, 5))
def test_a_changed_line_is_seen(lines, at):
    text = "\n".join(line.replace("\n", "").replace("\r", "") + "." for line in lines)
    assert output_difference(text, text + " \n\n") is None
    changed = text.split("\n")
    if lines and at < len(changed):
        changed[at] = "#" + changed[at]
        difference = output_difference(text, "\n".join(changed))
        assert difference is not None and difference.line == at + 1
