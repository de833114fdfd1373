"""The names that are known: what the documentation lists is what the code has, and no name means two things by rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardkit.records import names
from rewardkit.records.names import normal, spelled, spellings

TABLE = {
    "completion": names.COMPLETION,
    "inside an object that stands for one completion": names.ELEMENT,
    "prompt": names.PROMPT,
    "reference": names.REFERENCE,
    "label": names.LABEL,
    "id": names.ID,
    "step": names.STEP,
    "model": names.MODEL,
    "tokens": names.TOKENS,
    "finish_reason": names.FINISH,
    "error": names.ERROR,
}


@pytest.mark.parametrize("role", TABLE)
def test_the_documentation_lists_the_names_of_the_code(role):
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    assert f"\n| {role} | {'; '.join(', '.join(rank) for rank in TABLE[role])} |\n" in text


def test_every_name_is_in_the_form_that_names_are_compared_in():
    """Trap: a name that is no normal form is found by nobody who spells it otherwise."""
    known = {name for ranks in TABLE.values() for name in names.flat(ranks)} | names.ABOUT | {*names.EXTRACTED}
    assert {name for name in known if normal(name) != name} == set()


def test_a_name_stands_once_in_a_role():
    for ranks in TABLE.values():
        assert len(set(names.flat(ranks))) == len(names.flat(ranks))


def test_a_completion_has_no_name_of_another_role():
    """`messages` is both: a conversation that ends in the reply, or the prompt beside one."""
    assert {*names.flat(names.COMPLETION)} & names.OTHER == {"messages"}


def test_the_exact_spelling_is_taken_before_others():
    assert spellings(["Response", "response"], "response") == ["response"]
    assert spellings(["Model Output", "model-output", "x"], "model_output") == ["Model Output", "model-output"]
    assert spelled({"Is Correct": 1, "x": 2}, "is_correct") == "Is Correct"
    assert spelled({}, "x") is None
