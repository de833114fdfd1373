"""The path grammar: what is written is what is read, and nothing but MapError comes out of odd text."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import MapError
from rewardkit.records.fieldmap import ROLES, FieldMap
from rewardkit.records.paths import EACH, MISSING, STAR, Path, walk, walk_all

steps = st.lists(
    st.one_of(st.text(max_size=8), st.integers(-(10**9) + 1, 10**9 - 1), st.just(EACH)), min_size=1, max_size=6
)


@given(steps, st.booleans())
def test_a_path_reads_back_as_it_is_written(parts, star):
    """Traps: names with dots, brackets, commas, quotes, stars, blanks at the ends, control characters, surrogates."""
    path = Path([STAR, "x", *parts] if star else parts)
    assert Path.parse(str(path)) == path
    assert pickle.loads(pickle.dumps(path)) == path


@given(st.text(alphabet='ab.[]",=* 0-9\\\n\u2028é', max_size=20))
def test_no_text_raises_anything_but_map_error(text):
    try:
        path = Path.parse(text)
    except MapError:
        return
    assert Path.parse(str(path)) == path


@given(st.lists(st.text(max_size=20), max_size=3))
def test_no_map_argument_raises_anything_but_map_error(arguments):
    try:
        fields = FieldMap.parse(arguments)
    except MapError:
        return
    assert FieldMap.parse([fields.arguments()]) == fields


@given(st.dictionaries(st.sampled_from(ROLES), st.none() | steps.map(Path)))
def test_a_map_reads_back_from_one_argument(paths):
    """Trap: a comma inside a quoted name is not the end of a part."""
    fields = FieldMap(paths)
    assert FieldMap.parse([fields.arguments()]) == fields
    assert FieldMap(fields.as_dict() | {r: None for r, p in fields.items() if p is None}) == fields


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a",)),
        ("a.b[0][]", ("a", "b", 0, EACH)),
        ("a[-1].c", ("a", -1, "c")),
        ('["x.y"].z', ("x.y", "z")),
        ("*.solution", (STAR, "solution")),
        ('["*"]', ("*",)),
        ("[].text", (EACH, "text")),
        ("model answer", ("model answer",)),
    ],
)
def test_what_a_path_means(text, expected):
    assert Path.parse(text).steps == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("a..b", "position 3"),
        ("a[", "position 2"),
        ("a[x]", "position 2"),
        ("a.*", "comes first"),
        ("*", "comes first"),
        ("*.a.*", "position 5"),
        ("a]b", "position 2"),
        ('a["x', "position 2"),
        (".a", "position 1"),
    ],
)
def test_a_bad_path_says_where(text, says):
    with pytest.raises(MapError, match=says):
        Path.parse(text)


def test_a_wrong_role_names_the_nearest():
    with pytest.raises(MapError, match="did you mean completion"):
        FieldMap.parse(["completions=x"])
    with pytest.raises(MapError, match="twice"):
        FieldMap.parse(["id=a", "id=b"])
    with pytest.raises(MapError, match="role=path"):
        FieldMap.parse(["completion"])


def test_gold_is_the_reference_and_an_empty_path_is_none():
    fields = FieldMap.parse(["gold=a.b, label="])
    assert fields == {"reference": Path(("a", "b")), "label": None}
    assert fields.describe() == "reference = a.b"


def test_walk_tells_null_from_missing():
    assert walk({"a": None}, ("a",)) is None
    assert walk({"a": None}, ("a", "b")) is MISSING
    assert walk({"a": [1]}, ("a", 1)) is MISSING
    assert walk_all({"a": [{"b": 1}, {}, {"b": 3}]}, ("a", EACH, "b")) == [1, 3]
