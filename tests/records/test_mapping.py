"""Rows to generations: what each kind of path means, and that nothing is lost in silence."""

from __future__ import annotations

import json
import re

import pytest

from rewardkit.errors import MapError
from rewardkit.records import FieldMap, read_generations


def read(tmp_path, rows, *maps, name="a.jsonl", **options):
    data = "\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows)
    (tmp_path / name).write_text(data + "\n")
    return read_generations(tmp_path / name, field_map=FieldMap.parse(maps), **options)


def texts(generations):
    return [[c.text for c in g.completions] for g in generations]


def labels(generations):
    return [[c.metadata.get("label") for c in g.completions] for g in generations]


def test_a_flat_row_keeps_every_column_but_the_completion(tmp_path):
    row = {"id": 7, "question": "q", "response": "r", "gold": "1", "score": 1, "step": 3, "extra": [1]}
    (g,) = read(tmp_path, [row])
    assert (g.sample.id, g.sample.prompt, g.sample.reference, g.sample.step) == (7, "q", "1", 3)
    assert g.sample.metadata == {k: v for k, v in row.items() if k != "response"}
    assert g.completions[0].metadata == {"label": 1}
    assert g.where == "a.jsonl:1"


def test_lists_side_by_side_are_matched_by_position(tmp_path):
    records = read(
        tmp_path,
        [
            {"q": "x", "code": ["a", None, "c"], "ok": [True, False, None], "n": [1, 2, 3]},
            {"q": "y", "code": ["a", "b"], "ok": [True], "n": [1, 2]},
            {"q": "z", "code": []},
            {"q": "u", "code": "text"},
            {"q": "v"},
            {"q": "w", "code": None, "ok": None},
            {"q": "t", "code": ["a"]},
        ],
        "completion=code[],label=ok[],prompt=q,tokens=n[]",
    )
    generations = list(records)
    assert texts(generations) == [["a", "", "c"], [""], ["a"]]
    assert labels(generations)[0] == [True, False, None]
    assert [c.tokens for c in generations[0].completions] == [1, 2, 3]
    assert "label" not in generations[2].completions[0].metadata
    assert [(b.line, b.why) for b in records.bad] == [
        (2, "label: ok[] has 1 values for 2 completions"),
        (3, "code[] is an empty list"),
        (4, "code[]: is the text 'text', not a list"),
        (5, "no field code"),
    ]
    assert (records.rows, records.bad_rows) == (3, 4)


def test_an_index_picks_one(tmp_path):
    rows = [{"code": ["a", "b"]}, {"code": []}]
    records = read(tmp_path, rows, "completion=code[1]")
    assert texts(records) == [["b"]]
    assert records.bad[0].why == "no field code[1]"


NESTED = {
    "model": {"name": "m"},
    "sets": [
        {
            "task": "t",
            "results": [
                {
                    "q": "1",
                    "gold": 10,
                    "answers": [{"text": "a", "score": 1, "gold": "shown"}, {"text": None, "score": 0}],
                },
                {"q": "2", "gold": 20, "answers": [{"text": "b", "score": 0.5}, {"score": 0}]},
            ],
        }
    ],
}


@pytest.mark.parametrize(
    "arguments",
    [
        "completion=sets[0].results[].answers[].text,prompt=q,reference=gold,label=score,model=model.name",
        "completion=sets[].results[].answers[].text,prompt=sets[].results[].q,reference=sets[].results[].gold,"
        "label=sets[].results[].answers[].score,model=model.name",
        "completion=answers[].text,prompt=q,reference=gold,label=answers[].score,model=model.name",
    ],
    ids=["from the root", "all from the root", "from the rows"],
)
def test_nested_documents_give_a_group_a_result(tmp_path, arguments):
    """Trap: an answer's own `gold` (what it said) must not replace the result's."""
    records = read(tmp_path, NESTED, arguments, name="a.json")
    in_a_line = read(tmp_path, [NESTED], arguments) if arguments.startswith("completion=sets") else records
    assert texts(in_a_line) == [["a", ""], ["b", ""]]
    assert [g.sample.reference for g in in_a_line] == [10, 20]
    generations = list(records)
    assert texts(generations) == [["a", ""], ["b", ""]]
    assert [g.sample.reference for g in generations] == [10, 20]
    assert [g.sample.prompt for g in generations] == ["1", "2"]
    assert labels(generations) == [[1, 0], [0.5, 0]]
    assert {g.model for g in generations} == {"m"}
    assert generations[0].sample.metadata["q"] == "1"
    assert "answers" not in generations[0].sample.metadata
    assert generations[0].completions[0].metadata == {"score": 1, "gold": "shown", "label": 1}
    # A broken element is an error of its own and does not take its neighbours along.
    assert generations[1].completions[1].error.startswith("no field ")
    assert [c.error for g in generations for c in g.completions][:3] == [None] * 3


def test_a_map_from_a_nested_guess_reads_back(tmp_path):
    rows = {"sets": [{"results": [{"question": "1", "answer": 10, "completions": [{"text": "a", "score": 1}]}] * 3}]}
    first = read(tmp_path, rows, name="a.json")
    assert str(first.map["completion"]) == "sets[].results[].completions[].text"
    again = read(tmp_path, rows, first.map.arguments(), name="a.json")
    assert list(again) == list(first)
    assert again.map == first.map
    assert not again.guessed


def test_a_samples_own_field_in_a_list_makes_a_sample_of_each(tmp_path):
    row = {"batch": 1, "completions": ["a", "b"], "prompts": ["p", "q"], "golds": [1, 2]}
    generations = list(read(tmp_path, [row], "completion=completions[],prompt=prompts[],reference=golds[]"))
    assert [(g.sample.prompt, g.sample.reference) for g in generations] == [("p", 1), ("q", 2)]
    assert texts(generations) == [["a"], ["b"]]
    assert generations[1].sample.metadata == {"batch": 1, "prompts": "q", "golds": 2}


def test_a_list_of_objects_beside_the_completions_does_not_follow_each_sample(tmp_path):
    row = {"outs": ["a", "b"], "tasks": [{"q": "p"}, {"q": "q"}]}
    generations = list(read(tmp_path, [row], "completion=outs[],prompt=tasks[].q"))
    assert [(g.sample.prompt, g.sample.metadata) for g in generations] == [("p", {}), ("q", {})]


def test_a_samples_own_field_only_in_its_completions_makes_a_sample_of_each(tmp_path):
    row = {"results": [{"q": "p", "gold": 1, "text": "a"}, {"q": "q", "gold": 2, "text": "b"}]}
    generations = list(read(tmp_path, [row], "completion=results[].text,prompt=q,reference=results[].gold"))
    assert [(g.sample.prompt, g.sample.reference, g.completions[0].text) for g in generations] == [
        ("p", 1, "a"),
        ("q", 2, "b"),
    ]


def test_models_side_by_side(tmp_path):
    rows = [
        {"q": "1", "gold": 1, "x": {"solution": "a", "ok": True}, "y": {"solution": "b", "ok": False}},
        {"q": "2", "gold": 2, "x": {"solution": "c", "ok": True}},
        {"q": "3", "gold": 3, "x": {"solution": "e"}, "y": None},
    ]
    records = read(tmp_path, rows, "completion=*.solution,label=*.ok,prompt=q,reference=gold")
    generations = list(records)
    assert [(g.model, g.completions[0].text, g.sample.reference) for g in generations] == [
        ("x", "a", 1), ("y", "b", 1), ("x", "c", 2), ("x", "e", 3), ("y", "", 3),
    ]  # fmt: skip
    assert labels(generations)[:2] == [[True], [False]]
    assert generations[0].sample.metadata == {"q": "1", "gold": 1}
    assert generations[0].sample.id == generations[1].sample.id
    assert generations[0].key != generations[1].key
    assert records.models == ["x", "y"]
    assert [(b.line, b.why) for b in records.bad] == [(2, "no field y")]  # said, not skipped


def test_models_side_by_side_with_lists_inside(tmp_path):
    rows = [{"q": "1", "x": {"outs": ["a", "b"], "ok": [1, 0]}, "y": {"outs": ["c", "d"], "ok": [0, 1]}}]
    generations = list(read(tmp_path, rows, "completion=*.outs[],label=*.ok[],prompt=q"))
    assert texts(generations) == [["a", "b"], ["c", "d"]]
    assert labels(generations) == [[1, 0], [0, 1]]


def test_a_models_object_is_looked_into_before_the_row(tmp_path):
    rows = [{"q": "1", "n": 0, "x": {"outs": ["a"], "n": 1}, "y": {"outs": ["b"]}}]
    generations = list(read(tmp_path, rows, "completion=*.outs[],tokens=n,prompt=q"))
    assert [g.completions[0].tokens for g in generations] == [1, 0]


CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": [{"type": "text", "text": "an"}, {"type": "text", "text": "swer"}]},
]


def test_a_conversation_is_split_before_its_last_reply(tmp_path):
    shared_gpt = [{"from": "human", "value": "u"}, {"from": "gpt", "value": "answer"}]
    rows = [
        {"messages": CHAT, "answer": "1"},
        {"messages": shared_gpt, "answer": "2"},
        {"messages": CHAT[:2], "answer": "3"},
    ]
    records = read(tmp_path, rows)
    assert records.map["prompt"] == records.map["completion"]
    generations = list(records)
    assert texts(generations) == [["answer"], ["answer"], [""]]
    assert generations[0].sample.prompt == CHAT[:2]
    assert generations[0].completions[0].messages == (CHAT[2],)
    assert generations[2].sample.prompt == CHAT[:2]


def test_chat_in_prompt_and_completion_gives_the_text_form_too(tmp_path):
    """Trap: a list of messages is one completion, not a list of completions."""
    rows = [{"prompt": CHAT[:2], "completion": CHAT[2:]}, {"prompt": CHAT[:2], "completion": CHAT[2]}]
    assert texts(read(tmp_path, rows)) == [["answer"], ["answer"]]
    many = [{"prompt": CHAT[:2], "completions": [CHAT[2:], CHAT[2:]]}]
    assert texts(read(tmp_path, many)) == [["answer", "answer"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (12, "12"),
        (1.5, "1.5"),
        (True, "true"),
        ({"text": "x"}, "x"),
        ({"message": {"role": "assistant", "content": "x"}}, "x"),
        ({"content": None}, ""),
        ([{"type": "text", "text": "x"}], "x"),
        ([], ""),
    ],
)
def test_other_values_of_a_completion(tmp_path, value, text):
    assert texts(read(tmp_path, [{"out": value}, {"out": "y"}], "completion=out")) == [[text], ["y"]]


def test_a_value_without_text_is_a_bad_row(tmp_path):
    rows = [{"out": "x"}, {"out": {"a": 1}}, {"out": ["a", "b"]}, {"other": 1}]
    records = read(tmp_path, rows, "completion=out")
    assert texts(records) == [["x"]]
    assert [b.why for b in records.bad] == [
        "out is an object with a",
        "out is a list of 2; write its path with [] for all, or [0] for the first",
        "no field out",
    ]


def test_a_missing_bracket_is_said_at_once(tmp_path):
    with pytest.raises(MapError, match=r"out is a list of 2; write its path with \[\]"):
        read(tmp_path, [{"out": ["a", "b"]}] * 5, "completion=out")


def test_rows_that_their_source_marks_as_failed(tmp_path):
    rows = [
        {"completion": "x", "error": None},
        {"error": "timed out"},
        {"completion": None, "error": {"code": 5}},
        {"completion": "y", "error": ""},
    ]
    assert [g.completions[0].error for g in read(tmp_path, rows)] == [None, "timed out", '{"code":5}', None]


NO_FAILURE = [
    None, False, 0, 0.0, "", " ", "False", "false", "None", "0", "0.0", "nan", "NaN", "null", "NULL", "N/A", "<NA>",
    [], {}, {"code": None}, {"code": None, "message": "", "failed": False}, [None], [{"a": ["none"]}],
]  # fmt: skip
FAILURES = [
    (True, "marked as failed"),
    (1, "marked as failed"),
    (1.0, "marked as failed"),
    ("True", "marked as failed"),
    ("1", "marked as failed"),
    (137, "137"),
    ("timed out", "timed out"),
    ("no", "no"),
    ({"code": 5, "message": None}, '{"code":5,"message":null}'),
    (["x"], '["x"]'),
]


@pytest.mark.parametrize("value", NO_FAILURE, ids=repr)
def test_what_says_that_nothing_failed(tmp_path, value):
    assert [g.completions[0].error for g in read(tmp_path, [{"completion": "x", "error": value}], "error=error")] == [
        None
    ]
    (g,) = read(
        tmp_path, [{"completions": [{"text": "x", "error": value}]}], "completion=completions[].text,error=error"
    )
    assert g.completions[0].error is None


@pytest.mark.parametrize(("value", "error"), FAILURES, ids=repr)
def test_what_says_that_something_failed(tmp_path, value, error):
    assert [g.completions[0].error for g in read(tmp_path, [{"completion": "", "error": value}] * 2)] == [error] * 2


def test_a_table_of_errors_as_text(tmp_path):
    """Trap: a CSV's False is text, and text is true."""
    words = ["False", "None", "0", "nan", "", "null", "Timeout"]
    (tmp_path / "a.csv").write_text("completion,error\n" + "".join(f"x,{word}\n" for word in words))
    records = read_generations(tmp_path / "a.csv")
    assert [g.completions[0].error for g in records] == [None] * 6 + ["Timeout"]


def test_an_error_that_comes_after_the_first_rows(tmp_path):
    """Trap: in the first hundred rows the column is empty."""
    rows = [{"completion": "x", "error": None}] * 150 + [{"completion": None, "error": "timed out"}]
    assert [g.completions[0].error for g in read(tmp_path, rows)][-2:] == [None, "timed out"]


@pytest.mark.parametrize("broken", [{"x": 1}, ["a", "b"]])
def test_a_broken_element_of_a_list_leaves_its_neighbours(tmp_path, broken):
    records = read(tmp_path, [{"prompt": "p", "completions": ["1", "1", broken, "1"]}], "completion=completions[]")
    (g,) = records
    assert [c.text for c in g.completions] == ["1", "1", "", "1"]
    assert [c.error is None for c in g.completions] == [True, True, False, True]
    assert re.match(r"completions\[\] is (an object with x|a list of 2)", g.completions[2].error)
    assert records.bad_rows == 0


def test_a_broken_element_keeps_its_label_and_the_sources_own_error(tmp_path):
    row = {"outs": [{"text": {"x": 1}, "error": "cut", "ok": 0}, {"text": "a", "ok": 1}, {"text": {"y": 1}, "ok": 0}]}
    (g,) = read(tmp_path, [row], "completion=outs[].text,error=error,label=outs[].ok")
    assert [c.error for c in g.completions] == ["cut", None, "outs[].text is an object with y"]
    assert labels([g]) == [[0, 1, 0]]


def test_a_list_that_holds_nothing_readable_is_refused_as_a_wrong_map(tmp_path):
    with pytest.raises(MapError, match=r"a\.jsonl:1: outs\[\] is an object with x\n  no row fits the map"):
        read(tmp_path, [{"outs": [{"x": 1}, {"x": 2}]}] * 3, "completion=outs[]")
    with pytest.raises(MapError, match=r"no field outs\[\]\.txt"):
        read(tmp_path, [{"outs": [{"text": "1"}]}] * 3, "completion=outs[].txt")
    row = {"outs": [{"error": "x"}]}
    assert [g.completions[0].error for g in read(tmp_path, [row], "completion=outs[].text,error=error")] == ["x"]


def test_one_bad_step_in_a_list_of_samples_leaves_the_others(tmp_path):
    row = {"outs": ["a", "b", "c"], "steps": [1, "x", 3]}
    records = read(tmp_path, [row], "completion=outs[],step=steps[]")
    assert texts(records) == [["a"], ["c"]]
    assert [b.why for b in records.bad] == ["step is the text 'x', not a whole number"]


def test_ids_of_mixed_types_stay_ids(tmp_path):
    """Trap: one id that is no text and no integer must not make ids of contents for the whole file."""
    ids = [1, "a", 2.5, True, [1, 2], {"b": 1, "a": 2}]
    records = read(tmp_path, [{"id": id, "prompt": "p", "completion": "x"} for id in ids] * 2)
    assert [g.sample.id for g in records][:6] == [1, "a", "2.5", "true", "[1,2]", '{"a":2,"b":1}']
    assert [g.start for g in records] == [0] * 6 + [1] * 6


def test_steps_ids_and_labels_of_other_kinds(tmp_path):
    rows = [
        {"completion": "a", "id": 1.5, "step": "12", "label": "True"},
        {"completion": "b", "id": {"x": 1}, "step": 3.0, "label": "0.5"},
        {"completion": "c", "id": None, "step": None, "label": "yes"},
        {"completion": "d", "id": True, "step": "x"},
    ]
    records = read(tmp_path, rows, "id=id,step=step,label=label")
    generations = list(records)
    assert [g.sample.id for g in generations][:2] == ["1.5", '{"x":1}']
    assert len(generations[2].sample.id) == 16
    assert [g.sample.step for g in generations] == [12, 3, None]
    assert labels(generations) == [[True], [0.5], ["yes"]]
    assert records.bad[0].why == "step is the text 'x', not a whole number"


def test_what_else_an_object_holds_stays_among_the_columns(tmp_path):
    (g,) = read(tmp_path, [{"out": {"text": "x", "seconds": 2}, "gold": 1}], "completion=out.text")
    assert g.sample.metadata == {"gold": 1, "out": {"seconds": 2}}


def test_a_column_whose_name_has_a_dot(tmp_path):
    rows = [{"completion": "x", "reward_model.ground_truth": "4"}]
    (g,) = read(tmp_path, rows, "reference=reward_model.ground_truth")
    assert g.sample.reference == "4"
    (g,) = read(tmp_path, rows, 'reference=["reward_model.ground_truth"]')
    assert g.sample.reference == "4"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("completion=out,label=ok[]", r"label=ok\[\] has a \[\], but completion=out has none"),
        ("completion=out,label=*.x", "has a"),
        ("completion=outs[],label=n[][]", "only one"),
    ],
)
def test_paths_that_do_not_fit_together(tmp_path, arguments, says):
    rows = [{"out": "x", "ok": [1], "outs": ["x"], "n": [[1]], "m": {"x": 1}}]
    with pytest.raises(MapError, match=says):
        read(tmp_path, rows, arguments)


def test_a_path_that_no_row_has_is_refused_before_grading(tmp_path):
    rows = [{"question": "q", "answer": "1", "completion": "x"}] * 3
    with pytest.raises(
        MapError, match=r"a\.jsonl: reference=answr is not in any of the first 3 rows; fields: question, answer"
    ):
        read(tmp_path, rows, "reference=answr")
    with pytest.raises(MapError, match="did you mean answer"):
        read(tmp_path, rows, "gold=answr")
    assert len(list(read(tmp_path, rows, "error=failure"))) == 3  # may come later


def test_a_missing_reference_is_none_and_no_bad_row(tmp_path):
    rows = [{"completion": "x", "answer": "1"}, {"completion": "y"}, {"completion": "z", "answer": None}]
    records = read(tmp_path, rows)
    assert [g.sample.reference for g in records] == ["1", None, None]
    assert records.bad_rows == 0
