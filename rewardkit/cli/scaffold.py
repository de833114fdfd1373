"""The files of a new plugin. `@DIST@`, `@SPACE@`, `@MODULE@` and `@VERSION@` are filled in by `new.py`."""

from __future__ import annotations

FILES: dict[str, str] = {}

FILES["pyproject.toml"] = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@DIST@"
version = "0.1"
description = "@SPACE@: verifiers and rewards for rewardkit"
readme = "README.md"
requires-python = ">=3.11"
keywords = ["rewardkit", "reward", "verifier"]
dependencies = ["rewardkit>=@VERSION@"]

[project.optional-dependencies]
test = ["pytest>=8"]

# The key is the namespace of all that the plugin registers; the value is the module that holds the hooks.
[project.entry-points.rewardkit]
@SPACE@ = "@MODULE@"

[tool.setuptools]
packages = ["@MODULE@"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

FILES["README.md"] = """\
# @DIST@

A plugin for rewardkit.

| name | what it says |
| --- | --- |
| `@SPACE@/last_line` | verifier: the last line is the reference |
| `@SPACE@/short` | reward: 1 up to `max_words` words, else 0 |

```console
$ pip install -e '.[test]'
$ pytest
$ rewardkit show @SPACE@/last_line
$ rewardkit try "'@SPACE@/last_line' + 0.1*'@SPACE@/short'" --reference Paris Paris
```

To add a verifier or a reward: write it, register it in `@MODULE@/__init__.py`, and give it a contract test.
There is no license yet: add a LICENSE file and name it in `pyproject.toml` before you share this.
"""

FILES["@MODULE@/__init__.py"] = '''\
"""What this plugin registers. Targets are import strings: nothing else is imported before it is used."""

from rewardkit import hookimpl


@hookimpl
def rewardkit_verifiers(register):
    register("last_line", "@MODULE@.verifiers:LastLine", "The last line is the reference")


@hookimpl
def rewardkit_rewards(register):
    register("short", "@MODULE@.rewards:short", "1 up to a number of words, else 0")
'''

FILES["@MODULE@/verifiers.py"] = '''\
"""Verifiers: they decide whether a completion is correct with respect to a reference."""

from typing import ClassVar

from pydantic import Field, field_validator

from rewardkit import Completion, Reference, Sample, Verdict, Verifier


class Line(Reference):
    """What a row's reference must be. A row whose reference is something else abstains: bad_reference."""

    line: str = Field(description="the right last line")

    @field_validator("line")
    @classmethod
    def _not_blank(cls, line: str) -> str:
        if not line.strip():
            raise ValueError("a line of text is wanted, got a blank one")
        return line.strip()


class LastLine(Verifier[Line]):
    """Accept when the last line that is not blank is the reference.

    Options:
        ignore_case: let upper and lower case be the same.

    Example:
        rewardkit try @SPACE@/last_line --reference Paris 'Paris'
    """

    name: ClassVar[str | None] = "@SPACE@/last_line"

    ignore_case: bool = False

    def verify(self, completion: Completion, reference: Line, sample: Sample) -> Verdict:
        lines = completion.text.strip().splitlines()
        if not lines:
            return Verdict.reject("the completion is empty", reason="no_answer")
        answer, right = lines[-1].strip(), reference.line
        if self.ignore_case:
            equal = answer.casefold() == right.casefold()
        else:
            equal = answer == right
        if equal:
            return Verdict.accept("the last line", extracted=answer)
        return Verdict.reject(f"{answer[:60]!r}, not {right[:60]!r}", extracted=answer)
'''

FILES["@MODULE@/rewards.py"] = '''\
"""Rewards: they turn a completion into any number. The function's parameters say what it needs."""

from rewardkit import Score, reward


@reward(name="@SPACE@/short")
def short(completion: str, *, max_words: int = 100) -> Score:
    """1 up to `max_words` words, else 0; an empty completion earns nothing.

    Options:
        max_words: largest number of words that earns 1.

    Example:
        rewardkit try "@SPACE@/short(max_words=3)" 'Paris'
    """
    words = len(completion.split())
    if not words:
        return Score(0.0, "the completion is empty", reason="no_answer")
    return Score(float(words <= max_words), f"{words} words")
'''

FILES["tests/test_@SPACE@.py"] = '''\
"""The contract that every reward must keep, and what these two are meant to do."""

import pytest

from @MODULE@.rewards import short
from @MODULE@.verifiers import LastLine
from rewardkit import parse, score_text
from rewardkit.testing import assert_contract


def test_last_line_keeps_the_contract():
    assert_contract(
        LastLine(),
        accepts=[("I think it is\\nParis", "Paris"), ("Paris\\n\\n", {"line": "Paris"})],
        rejects=[("Paris\\nor Rome", "Paris"), ("paris", "Paris"), ("", "Paris")],
    )


def test_short_keeps_the_contract():
    assert_contract(short, accepts=[("brief", None)], rejects=[("word " * 101, None), ("", None)])


@pytest.mark.parametrize(
    ("text", "options", "value", "why"),
    [
        ("paris", {"ignore_case": True}, 1, "case does not count when it is told so"),
        ("Paris.", {}, 0, "a full stop is a difference"),
        ("Paris\\n \\n\\t", {}, 1, "blank lines at the end"),
    ],
)
def test_last_line(text, options, value, why):
    assert score_text(LastLine(**options), text, reference="Paris").value == value, why


def test_a_reference_that_is_no_line_abstains():
    assert score_text(LastLine(), "Paris", reference=" ").reason == "bad_reference"


@pytest.mark.parametrize(("words", "value"), [(0, 0), (1, 1), (3, 1), (4, 0)])
def test_short(words, value):
    assert score_text(short.with_options(max_words=3), "word " * words).value == value


def test_both_are_registered():
    """Fails when the plugin is not installed: pip install -e ."""
    assert parse("'@SPACE@/last_line'(ignore_case=True)") == LastLine(ignore_case=True)
    assert parse("'@SPACE@/short'") == short
'''
