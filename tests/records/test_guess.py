"""Guessing which field means what: right, or a question; never a silent wrong column."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import MapError
from rewardkit.records import FieldMap, Path, Row, guess, read_generations
from rewardkit.records.names import normal


def guessed(*rows, given=()):
    found = guess([Row(n, dict(row)) for n, row in enumerate(rows, 1)], FieldMap.parse(given))
    assert found.sure, found.why
    return found.map.as_dict()


TASK = {"question": "q", "answer": "4"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [
                {
                    "question": "q",
                    "ground_truth": "g",
                    "a": {"is_correct": False, "solution": "s"},
                    "b": {"is_correct": True, "solution": "t"},
                }
            ],
            {"completion": "*.solution", "label": "*.is_correct", "prompt": "question", "reference": "ground_truth"},
        ),
        (
            [
                {
                    "idx": 0,
                    "question": "q",
                    "gt_cot": "c",
                    "gt": "4",
                    "answer": "c #### 4",
                    "code": ["x"],
                    "pred": ["4"],
                    "report": [None],
                    "score": [True],
                }
            ],
            {"completion": "code[]", "reference": "gt", "label": "score[]", "id": "idx", "prompt": "question"},
        ),
        (
            [{"idx": 0, "question": "q", "gt": "4", "code": ["x"], "pred": ["4"], "report": [None]}],
            {"completion": "code[]", "reference": "gt", "id": "idx", "prompt": "question"},
        ),
        (
            [
                {
                    "question": "q",
                    "expected_answer": "4",
                    "best_score": 1,
                    "best_full_model_response": "x",
                    "completions": [{"model_answer": "4", "full_model_response": "x", "score": "1"}],
                }
            ],
            {
                "completion": "completions[].full_model_response",
                "label": "completions[].score",
                "prompt": "question",
                "reference": "expected_answer",
            },
        ),
        (
            [{"prompt": "p", "completion": "c", "solution": "s", "step": 3}],
            {"completion": "completion", "prompt": "prompt", "reference": "solution", "step": "step"},
        ),
        (
            [{**TASK, "responses": ["x", None]}],
            {"completion": "responses[]", "prompt": "question", "reference": "answer"},
        ),
        (
            [{**TASK, "response": ["x"], "passed": [0.5]}],
            {"completion": "response[]", "prompt": "question", "reference": "answer", "label": "passed[]"},
        ),
        (
            [{**TASK, "generation": "x", "label": True}],
            {"completion": "generation", "prompt": "question", "reference": "answer", "label": "label"},
        ),
        (
            [{"prompt": "p", "text": "x", "label": "positive"}],
            {"completion": "text", "reference": "label", "prompt": "prompt"},
        ),
        ([{"text": "x", "label": 1}], {"completion": "text", "label": "label"}),
        ([{"id": 1, "text": "x", "label": 7}], {"completion": "text", "reference": "label", "id": "id"}),
        (
            [{"problem": "p", "solution": "long", "answer": "4", "completion": "c"}],
            {"completion": "completion", "prompt": "problem", "reference": "answer"},
        ),
        (
            [{"input": "p", "output": "c", "gts": "4", "score": 1.0, "step": 2}],
            {"completion": "output", "prompt": "input", "reference": "gts", "label": "score", "step": "step"},
        ),
        (
            [{"prompt": "p", "response": "c", "reward_model": {"style": "rule", "ground_truth": {"a": 1}}}],
            {"completion": "response", "prompt": "prompt", "reference": "reward_model.ground_truth"},
        ),
        (
            [
                {
                    "task_id": "t",
                    "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
                }
            ],
            {"completion": "choices[].message", "id": "task_id", "finish_reason": "choices[].finish_reason"},
        ),
        (
            [{"completion": "c", "model": "m", "completion_tokens": 7, "finish_reason": "length", "error": None}],
            {
                "completion": "completion",
                "model": "model",
                "tokens": "completion_tokens",
                "finish_reason": "finish_reason",
                "error": "error",  # empty so far: rows that failed may come later
            },
        ),
        (
            [{**TASK, "response": "x", "completion": None}, {**TASK, "response": "y", "completion": "z"}],
            {"completion": "completion", "prompt": "question", "reference": "answer"},
        ),
        (
            [{"code": "x", "response": "x", **TASK}],
            {"completion": "response", "prompt": "question", "reference": "answer"},
        ),
    ],
)
def test_what_people_have_on_disk(rows, expected):
    assert guessed(*rows) == expected


@pytest.mark.parametrize(
    ("row", "role", "candidates"),
    [
        ({"question": "q", "answer": "4", "subject": "x"}, "completion", ()),  # a file of problems
        ({"question": "q", "expected_output": "4", "model_name": "m"}, "completion", ()),
        ({"question": "q", "model_reply": "4", "my_output": "long"}, "completion", ("model_reply", "my_output")),
        ({"response": "x", "generation": "y"}, "completion", ("response", "generation")),
        ({"code": "def f", "input": "1", "output": "2", "id": "s"}, "completion", ("output", "code")),
        ({"text": "task", "code": "gold", "task_id": 1}, "completion", ("text", "code")),
        ({"text": "task", "label": "positive"}, "completion", ("text",)),
        ({"completion": "x", "ground_truth": "1", "gold": "2"}, "reference", ("ground_truth", "gold")),
        ({"completion": "x", "answer": "1", "target": "2"}, "reference", ("answer", "target")),
        ({"completion": "x", "question": "1", "problem": "2"}, "prompt", ("question", "problem")),
        ({"completion": "x", "instruction": "1", "input": "2"}, "prompt", ("instruction", "input")),
    ],
)
def test_two_equally_good_fields_are_a_question(row, role, candidates):
    found = guess([Row(1, row)], FieldMap())
    assert not found.sure
    assert set(found.candidates[role]) == set(candidates)


def test_equal_columns_are_no_question():
    assert guessed({"response": "x", "generation": "x", "gold": "1", "gt": "1"})["completion"] == "response"


@pytest.mark.parametrize(
    "name",
    ["model_output", "Model Output", "model-output", "modelOutput", "ModelOutput", "MODEL OUTPUT", " model.output"],
)
def test_names_are_compared_without_case_and_separators(name):
    row = {"question": "q", name: "x"}
    assert guessed(row) == {"completion": str(Path((name,))), "prompt": "question"}
    assert FieldMap.parse([FieldMap(guessed(row)).arguments()])["completion"] == Path((name,))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LLMOutput", "llm_output"),
        ("isCorrect", "is_correct"),
        ("GT", "gt"),
        ("Ｒｅｆ", "ref"),
        ("答案", "答案"),
        ("__x__", "x"),
        ("Unnamed: 0", "unnamed_0"),
        ("", ""),
    ],
)
def test_the_normal_form_of_a_name(name, expected):
    assert normal(name) == expected


@given(st.text())
def test_any_name_has_a_normal_form_that_is_its_own(name):
    normal(normal(name))
    assert normal(name.upper()) == normal(name.upper().strip())


def notes_of(*rows, given=()):
    found = guess([Row(n, dict(row)) for n, row in enumerate(rows, 1)], FieldMap.parse(given))
    return found.notes if found.sure else found.why


PROSE = (
    "First we add the two numbers, then we look at what we were asked for, and so on, until all of it is clear. " * 2
)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (
            [{"prompt": f"q{n}", "response": str(n), "answer": str(n)} for n in range(6)],
            "equals answer in all of the first",
        ),
        (
            [{"prompt": f"q{n}", "response": "no"} for n in range(12)],
            "response is the same text in all of the first 12",
        ),
        ([{"question": "q", "response": f"{n}", "answer": PROSE} for n in range(6)], "three times as long as response"),
        ([{"prompt": "p" * 50, "response": "p" * 50 + str(n)} for n in range(3)], "response begins with prompt"),
        ([{"question": f"q{n}", "output": "x" * n, "gpt_output": "y" * n} for n in range(9)], "too: gpt_output"),
        ([{"response": f"x{n}", "target": f"https://x.org/{n}"} for n in range(3)], "target holds addresses"),
        ([{"goal": "g", "response": f"x{n}", "label": n % 2} for n in range(3)], "label is taken for marks"),
        ([{"completion": f"x{n}", "error": "wrong step"} for n in range(6)], "error marks nearly all rows as failed"),
    ],
)
def test_what_is_odd_is_said_where_the_map_is_sure(rows, note):
    (said,) = notes_of(*rows)
    assert note in said
    assert guess([Row(n, row) for n, row in enumerate(rows)], FieldMap()).sure


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"prompt": f"q{n}", "response": str(n), "answer": str(n)} for n in range(4)
        ],  # four right answers are no wonder
        [{"prompt": "q", "response": "no", "answer": "4"} for _ in range(12)],  # one task, at temperature 0
        [{"prompt": f"q{n}", "response": "no" if n else "yes"} for n in range(12)],
        [{"question": "q", "response": "x" * 100, "answer": PROSE} for _ in range(6)],
        [{"question": "q", "response": PROSE, "answer": "4", "response_tokens": 7, "output_path": "/a"}] * 6,
        [{"completion": "x", "error": ""} for _ in range(6)] + [{"completion": "", "error": "timeout"}],
        [{"completion": "", "error": "timeout"} for _ in range(6)],
    ],
)
def test_what_is_usual_is_not_noted(rows):
    assert notes_of(*rows) == ()


def test_what_is_given_is_not_doubted_but_said():
    """Trap: a map that was pasted from the suggestion must not stop again."""
    row = {"prompt": "What is it that we were asked for?", "text": "What is it that we were asked for?"}
    found = guess([Row(1, row)], FieldMap.parse(["completion=text"]))
    assert found.sure
    assert found.notes == ("text equals prompt in nearly all rows",)
    swapped = {"input": "q", "output": "4", "answer": "<think>4</think>"}
    assert guess([Row(1, swapped)], FieldMap.parse(["completion=output"])).sure
    assert guess([Row(1, swapped)], FieldMap.parse(["gold=answer"])).sure


def test_a_doubt_that_comes_up_once_another_is_settled_is_in_the_suggestion():
    """Trap: a suggestion that is pasted and stops at the next question."""
    row = {"response": "x", "generation": "y", "gold": "1", "gt": "2", "question": "a", "problem": "b"}
    found = guess([Row(1, row)], FieldMap.parse(["id="]))
    assert found.why == ("response and generation could each be the completion",)
    assert set(found.candidates) == {"completion", "prompt", "reference"}
    assert found.suggestion == FieldMap.parse(["completion=response,prompt=question,gold=gold,id="])
    assert guess([Row(1, row)], found.suggestion).sure


def test_what_is_given_settles_the_question_and_is_not_used_twice():
    row = {"response": "x", "generation": "y", "answer": "4"}
    assert guessed(row, given=["completion=generation"]) == {"completion": "generation", "reference": "answer"}
    assert guessed(row, given=["gold=response"]) == {"completion": "generation", "reference": "response"}
    assert guessed({"completion": "x", "answer": "4"}, given=["reference="])["reference"] == ""
    star = {"a": {"text": "x", "correct": 1}, "b": {"text": "y", "correct": 0}}
    assert guessed(star, given=["completion=*.text"])["label"] == "*.correct"


def test_a_file_of_problems_gets_no_wrong_example(tmp_path):
    """Trap: `--map completion=prompt` as an example would grade the task against its own gold."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "a long text", "answer": "4", "subject": "x"}\n' * 3)
    with pytest.raises(MapError, match=r"no field looks like a completion(.|\n)*example: --map completion=FIELD$"):
        read_generations(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"prompt": "a long text", "vicuna_reply": "4", "n": 1}\n')
    with pytest.raises(MapError, match=r"example: --map completion=vicuna_reply$"):
        read_generations(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("values", "says", "path"),
    [
        (["x", "y", 7, 8], "completion looks like the completion, but in line 3 it is the number 7", "completion"),
        (["x", {"y": 1}], "in line 2 it is an object with y", "completion"),
        (["x", "y", ["z"]], "in line 3 it is a list of 1", "completion"),
        ([["x", {"y": 1}, "z"]], r"completion\[\] looks like .* line 1 it holds an object with y", "completion[]"),
        ([["x"], ["y"], "z"], "in line 3 it is the text 'z'", "completion[]"),
    ],
)
def test_one_odd_value_is_named_with_its_line(values, says, path):
    """Trap: a worse column (`text`) must not be taken in its place without a word."""
    rows = [Row(n, {"prompt": "p", "completion": value, "text": "t"}) for n, value in enumerate(values, 1)]
    found = guess(rows, FieldMap())
    (why,) = found.why
    assert re.search(says, why)
    assert found.candidates["completion"] == (path,)


def test_a_column_of_other_values_is_passed_over():
    assert guessed({"completion": 7, "text": "x"}, {"completion": 0.5, "text": "y"})["completion"] == "text"
    assert guessed({"samples": 8, "text": "x"})["completion"] == "text"


def test_an_odd_value_is_named_in_the_units_of_the_file(tmp_path):
    (tmp_path / "a.json").write_text('[{"completion": "x"}, {"completion": 7}]')
    with pytest.raises(MapError, match="in row 2 it is the number 7"):
        read_generations(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("id", ["a", 1, True, 2.5, {"x": 1}]),
        ("id", ["a", "b", [1]]),
        ("step", [1, 2.0, "3", None]),
        ("step", [1, 2, "warm-up"]),
        ("model", ["a", "b", 7]),
        ("prompt", ["p", "q", 7]),
        ("tokens", [1, 2, "many"]),
        ("finish_reason", ["stop", "length", 3]),
        ("error", [0, 1]),
        ("error", [0, 137, 2]),
        ("error", [0.0, 1.0, None]),
        ("error", [None, None]),
        ("error", ["", ["x"], {"code": 1}, True]),
    ],
)
def test_one_odd_value_does_not_take_a_role_away(role, values):
    assert guessed(*({"completion": "x", role: value} for value in values))[role] == role
    in_lists = {"completions": [{"text": "x", role: value} for value in values]}
    if role in ("tokens", "finish_reason", "error"):
        assert guessed(in_lists)[role] == f"completions[].{role}"


def test_other_numbers_are_no_error():
    """A column `error` of distances is no message of failure."""
    assert "error" not in guessed({"completion": "x", "error": 0.25}, {"completion": "x", "error": 3.5})
    assert "error" not in guessed({"completions": [{"text": "x"}]})


def test_numbers_outside_zero_to_one_are_no_label():
    assert "label" not in guessed({"completion": "x", "score": 7}, {"completion": "y", "score": 0})
    assert guessed({"completion": "x", "score": "0.5"})["label"] == "score"


def test_an_unsure_map_shows_rows_names_and_a_flag(tmp_path):
    """Trap: values from models hold escape sequences, which must not reach the terminal."""
    (tmp_path / "a.jsonl").write_text(
        '{"response": "\\u001b[31m[bold]x\\u202e", "generation": "%s", "n": 1}\n' % ("y" * 500) * 4
    )
    with pytest.raises(MapError) as caught:
        read_generations(tmp_path / "a.jsonl")
    text = str(caught.value)
    assert text.startswith("a.jsonl: ")
    assert text.count("\n  line ") == 3
    assert "response and generation could each be the completion" in text
    assert "--map completion=response" in text
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[31m[bold]x" in text
    assert max(map(len, text.split("\n"))) < 500


def test_a_map_prints_as_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"response": "x", "answer": "y"}\n')
    records = read_generations(tmp_path / "a.jsonl")
    assert records.describe() == "completion = response  reference = answer"
    assert records.guessed == ("completion", "reference")
