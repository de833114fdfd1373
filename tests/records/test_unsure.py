"""What is asked where the guess is not sure: a message for scripts, a question for a terminal."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from rewardkit.errors import MapError
from rewardkit.records import FieldMap, Path, Row, guess
from rewardkit.records.unsure import Choice, Question, answered, question, unsure


def rows_of(*fields):
    return [Row(n, row) for n, row in enumerate(fields, 1)]


ROW = {"response": "x", "generation": "\x1b[31my", "gold": "1", "gt": 2, "id": 7}


def test_answers_settle_one_role_after_another():
    rows, given, asked = rows_of(ROW), FieldMap.parse(["id=id"]), []
    while not (found := guess(rows, given)).sure:
        problem = question(found, rows)
        asked.append((problem.role, problem.choices, problem.optional))
        given = answered(given, problem, 2)
    assert asked == [
        ("completion", (Choice("response", "x"), Choice("generation", "\\x1b[31my")), False),
        ("reference", (Choice("gold", "1"), Choice("gt", "the number 2")), True),
    ]
    assert given == FieldMap.parse(["id=id,completion=generation,gold=gt"])


def test_none_of_these_is_an_answer_for_every_role_but_the_completion():
    asked = Question("reference", "", (Choice("a", ""), Choice("b", "")), True)
    assert answered(FieldMap(), asked, 0) == FieldMap({"reference": None})
    for number in (-1, 3):
        with pytest.raises(MapError, match="no choice"):
            answered(FieldMap(), asked, number)
    with pytest.raises(MapError, match="no choice 0 for completion; there are 1 to 2"):
        answered(FieldMap(), asked._replace(role="completion", optional=False), 0)


def test_nothing_to_offer_is_no_question():
    rows = rows_of({"question": "q", "answer": "4"})
    assert question(guess(rows, FieldMap()), rows) is None
    problem = unsure("a.jsonl", guess(rows, FieldMap()), rows)
    assert (problem.question, problem.suggestion) == (None, "")
    assert str(problem).endswith("--map completion=FIELD")


@pytest.mark.parametrize(
    "name", ["my reply", "Bob's reply", 'a "reply"', "$(touch x) reply", "reply\n2", "回复 é;", "--my reply"]
)
def test_the_suggestion_works_when_it_is_pasted_into_a_shell(name, tmp_path):
    rows = rows_of({name: "x", "question": "q"})
    problem = unsure("a.jsonl", guess(rows, FieldMap()), rows)
    line = str(problem).splitlines()[-1]
    pasted = line.partition("--map ")[2]
    assert shlex.split(pasted) == [problem.suggestion]
    shell = subprocess.run(["sh", "-c", f"printf %s {pasted}"], capture_output=True, cwd=tmp_path, check=True)
    assert shell.stdout.decode() == problem.suggestion
    assert FieldMap.parse([problem.suggestion]) == FieldMap({"completion": Path((name,))})
    assert not list(tmp_path.iterdir())


def test_the_message_shows_three_rows_and_no_escape():
    problem = unsure("a.jsonl", guess(rows_of(*[ROW] * 9), FieldMap()), rows_of(*[ROW] * 9))
    text = str(problem)
    assert text.count("\n  line ") == 3
    assert "\x1b" not in text
    assert text.splitlines()[-1] == "  say which, for example: --map completion=response,reference=gold"
