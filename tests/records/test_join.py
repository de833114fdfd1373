"""Columns joined from another file by an id: what is added, what wins, what does not match."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardkit.errors import InputError, MapError
from rewardkit.records import FieldMap, read_generations


def put(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def joined(tmp_path, rows, table, join="", **options):
    put(tmp_path / "rows.jsonl", rows)
    put(tmp_path / "table.jsonl", table)
    return read_generations(tmp_path / "rows.jsonl", join=f"{tmp_path / 'table.jsonl'}{join}", **options)


def test_columns_are_added_before_the_map_is_guessed(tmp_path):
    table = [{"task_id": f"T/{at}", "prompt": f"p{at}", "answer": f"a{at}", "test": at} for at in range(5)]
    rows = [{"task_id": f"T/{at}", "completion": f"c{at}"} for at in (3, 1, 3)]
    records = joined(tmp_path, rows, table)
    found = [(one.sample.id, one.sample.prompt, one.sample.reference, one.sample.metadata["test"]) for one in records]
    assert found == [("T/3", "p3", "a3", 3), ("T/1", "p1", "a1", 1), ("T/3", "p3", "a3", 3)]
    assert records.notes == ["joined table.jsonl by task_id"]
    assert records.unjoined == 0
    assert len({one.key for one in records}) == 2


def test_a_row_s_own_columns_win_and_rows_without_a_partner_stay(tmp_path):
    table = [{"id": 1, "level": 7, "answer": "a"}]
    rows = [{"id": 1, "completion": "x", "level": None}, {"id": 2, "completion": "y"}, {"completion": "z"}]
    records = joined(tmp_path, rows, table)
    for _ in range(2):
        assert [(one.sample.reference, one.sample.metadata.get("level", "-")) for one in records] == [
            ("a", None),
            (None, "-"),
            (None, "-"),
        ]
        assert records.unjoined == 2


def test_a_joined_column_is_never_the_completion(tmp_path):
    """Trap: `response` is the better name, but it is the other file's."""
    rows, table = [{"id": 1, "output": "mine"}], [{"id": 1, "response": "theirs", "output": "theirs too"}]
    (one,) = joined(tmp_path, rows, table)
    assert one.completions[0].text == "mine"
    assert one.sample.metadata["response"] == "theirs"


def test_another_column_can_be_named_in_either_order(tmp_path):
    rows = [{"meta": {"q": "a"}, "completion": "x"}]
    table = [{"key.name": 1, "problem_key": "a", "answer": "7"}]
    for join in (":problem_key=meta.q", ":meta.q=problem_key"):
        (one,) = joined(tmp_path, rows, table, join)
        assert one.sample.reference == "7"
    (one,) = joined(tmp_path, [{"k": 1, "completion": "x"}], [{"k": 1, "answer": "7"}], ":k")
    assert one.sample.reference == "7"


@pytest.mark.parametrize(
    ("mine", "theirs", "note"),
    [
        (["1", "2"], [1, 2], " (whole numbers as text in the rows, numbers there)"),
        ([1, 2], ["1", "2"], " (numbers in the rows, whole numbers as text there)"),
        ([1.0, 2.0], [1, 2], ""),
        (["1", "2"], ["1", "2"], ""),
    ],
)
def test_numbers_and_texts_meet_only_where_all_of_a_side_are_numbers(tmp_path, mine, theirs, note):
    rows = [{"id": key, "completion": f"c{at}"} for at, key in enumerate(mine)]
    records = joined(tmp_path, rows, [{"id": key, "answer": f"a{at}"} for at, key in enumerate(theirs)])
    assert [one.sample.reference for one in records] == ["a0", "a1"]
    assert records.notes == [f"joined table.jsonl by id{note}"]


@pytest.mark.parametrize("mine", [["01"], ["1", "x"], [True], ["+1"], ["1 "]])
def test_what_only_looks_alike_is_not_joined(tmp_path, mine):
    """Trap: True == 1 and 1.0 == 1 as keys of a dict; int("01") is 1."""
    rows = [{"id": key, "completion": "x"} for key in mine]
    with pytest.raises(MapError, match="no row finds its partner"):
        joined(tmp_path, rows, [{"id": 1, "answer": "a"}])


def test_nothing_matched_names_both_sides(tmp_path):
    rows = [{"task_id": f"a/{at}", "completion": "x"} for at in range(150)]
    table = [{"task_id": "b\x1b/1", "answer": "y"}]
    with pytest.raises(MapError) as caught:
        joined(tmp_path, rows, table)
    text = str(caught.value)
    assert "rows.jsonl: task_id is the text 'a/0', the text 'a/1', the text 'a/2'" in text
    assert r"table.jsonl: task_id is the text 'b\x1b/1'" in text


def test_a_partner_may_come_after_the_first_rows(tmp_path):
    """Trap: the table is of the last rows, which the guess does not look at."""
    rows = [{"id": at, "completion": "x"} for at in range(500)]
    records = joined(tmp_path, rows, [{"id": 499, "answer": "y"}], field_map=FieldMap.parse(["reference=answer"]))
    assert [one.sample.reference for one in records][-2:] == [None, "y"]
    assert records.unjoined == 499


def test_one_id_for_two_unlike_rows_is_an_error_with_their_lines(tmp_path):
    rows = [{"id": 1, "completion": "x"}]
    same = {"id": 1, "answer": "a"}
    assert len(list(joined(tmp_path, rows, [same, same]))) == 1
    with pytest.raises(MapError, match=r"table\.jsonl: lines 1 and 3 both have id 1, and differ"):
        joined(tmp_path, rows, [same, {"id": 2}, {"id": 1, "answer": "b"}])


def test_what_cannot_be_joined_says_why(tmp_path):
    rows, table = [{"name_": "a", "completion": "x"}], [{"other": 1}]
    with pytest.raises(MapError, match="no id column of one name"):
        joined(tmp_path, rows, table)
    with pytest.raises(
        MapError, match=r"--join: table\.jsonl has no column othr; columns: other; did you mean other\?"
    ):
        joined(tmp_path, rows, table, ":othr")
    with pytest.raises(MapError, match=r"--join: rows\.jsonl has no column other; columns: name_, completion"):
        joined(tmp_path, rows, table, ":other")
    with pytest.raises(MapError, match="FILE:column=column of the rows"):
        joined(tmp_path, rows, table, ":a=")
    with pytest.raises(InputError, match="no file"):
        read_generations(tmp_path / "rows.jsonl", join=[tmp_path / "tabel.jsonl"])
    (tmp_path / "table.jsonl").write_text('{"id": 1}\n{oops\n')
    with pytest.raises(InputError, match=r"table\.jsonl: line 2: .*must be whole"):
        read_generations(tmp_path / "rows.jsonl", join=[tmp_path / "table.jsonl"])


def test_a_document_of_rows_by_id_is_a_table_too(tmp_path):
    put(tmp_path / "rows.jsonl", [{"id": "q2", "completion": "x"}])
    (tmp_path / "gold.json").write_text(json.dumps({"q1": {"answer": "1"}, "q2": {"answer": "2"}}))
    (one,) = read_generations(tmp_path / "rows.jsonl", join=[tmp_path / "gold.json"])
    assert one.sample.reference == "2"


def test_several_tables_and_several_files(tmp_path):
    put(tmp_path / "gold.jsonl", [{"id": 1, "answer": "a1"}, {"id": 2, "answer": "a2"}])
    put(tmp_path / "tests.jsonl", [{"uid": 2, "test": "t2"}])
    for at in (1, 2):
        put(tmp_path / f"run{at}.jsonl", [{"id": at, "completion": "x"}])
    records = read_generations(
        f"{tmp_path}/run*.jsonl", join=[tmp_path / "gold.jsonl", f"{tmp_path}/tests.jsonl:uid=id"]
    )
    assert [(one.sample.reference, one.sample.metadata.get("test")) for one in records] == [("a1", None), ("a2", "t2")]
    assert records.unjoined == 1


def test_generations_that_a_reader_makes_get_what_they_lack(tmp_path):
    own = {"schema": "rewardkit.generation/1", "id": 1, "completions": [{"text": "x"}], "columns": {"level": 3}}
    table = [{"id": 1, "level": 9, "extra": 5, "question": "2 + 2?", "answer": "4"}]
    (one,) = joined(tmp_path, [own], table)
    assert (one.sample.prompt, one.sample.reference) == ("2 + 2?", "4")
    assert (one.sample.metadata["level"], one.sample.metadata["extra"]) == (3, 5)
    own |= {"prompt": "mine", "reference": "mine too"}
    (other,) = joined(tmp_path, [own], table)
    assert (other.sample.prompt, other.sample.reference) == ("mine", "mine too")
    assert one.key != other.key  # what a group is about counts


keys = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", "1", "x y"]), st.none())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    mine=st.lists(keys, min_size=1, max_size=8),
    theirs=st.dictionaries(keys.filter(lambda key: key is not None), st.integers(), min_size=1, max_size=6),
)
def test_every_row_meets_its_partner(tmp_path, mine, theirs):
    """Against a join by plain comparison, with the rule for sides that are all numbers."""
    filled = [key for key in mine if key is not None]
    as_text = {str(key) for key in theirs}

    def whole(key):
        return isinstance(key, str) and str(key).lstrip("-").isdigit()

    turn = bool(filled) and (
        (all(type(key) is int for key in theirs) and all(map(whole, filled)))
        or (all(type(key) is int for key in filled) and all(map(whole, theirs)))
    )

    def partner(key):
        for other, value in theirs.items():
            if key is not None and ((type(key) is type(other) and key == other) or (turn and str(key) == str(other))):
                return value
        return None

    assert as_text
    wanted = [partner(key) for key in mine]
    rows = [{"id": key, "completion": "x"} for key in mine]
    table = [{"id": key, "value": value} for key, value in theirs.items()]
    if all(value is None for value in wanted):
        with pytest.raises(MapError):
            joined(tmp_path, rows, table)
        return
    records = joined(tmp_path, rows, table)
    assert [one.sample.metadata.get("value") for one in records] == wanted
    assert records.unjoined == wanted.count(None)
