"""rewardkit's own generations: an exact round trip, and clear answers to anything else."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import InputError
from rewardkit.records import FieldMap, encode_json, generation_line, group_key, read_generations, write_generations
from rewardkit.records.groups import named_group_key
from rewardkit.types import Completion, Generation, Sample

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6)
columns = st.dictionaries(texts, values, max_size=3)
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts | st.none()})
completions = st.builds(
    Completion,
    texts,
    tokens=st.none() | st.integers(0, 2**40),
    finish_reason=st.none() | texts,
    messages=st.none() | st.lists(message, max_size=3).map(tuple),
    error=st.none() | texts,
    metadata=columns,
)
samples = st.builds(
    Sample, id=texts | st.integers(-(2**40), 2**40), prompt=texts | st.lists(message, max_size=3), reference=values,
    metadata=columns, step=st.none() | st.integers(0, 10**6),
)  # fmt: skip


@st.composite
def generations(draw):
    sample, model = draw(samples), draw(st.none() | texts)
    key = group_key(model, sample.id, sample.step, sample.prompt, sample.reference)
    if draw(st.booleans()):
        key = named_group_key(model, sample.step, draw(texts))
    done = tuple(draw(st.lists(completions, min_size=1, max_size=3)))
    return Generation(sample, done, model, draw(st.integers(1, 9)), "", key)


def without_place(generation):
    return Generation(generation.sample, generation.completions, generation.model, generation.start, "", generation.key)


@given(st.lists(generations(), min_size=1, max_size=3))
def test_written_generations_read_back_equal(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("g") / "generations.jsonl"
    assert write_generations(path, written) == len(written)
    records = read_generations(path)
    assert list(map(without_place, records)) == written
    assert (records.format, records.bad_rows, records.rows) == ("generations", 0, len(written))


def test_the_line_is_that_of_the_design():
    g = Generation(Sample("q1", "p", "4", {"level": 2}, 3), (Completion("x", 5, "stop"),))
    assert json.loads(generation_line(g)) == {
        "schema": "rewardkit.generation/1", "id": "q1", "step": 3, "prompt": "p", "reference": "4",
        "completions": [{"text": "x", "tokens": 5, "finish_reason": "stop"}], "columns": {"level": 2},
    }  # fmt: skip


def test_what_is_written_is_strict_json():
    """Traps: NaN, infinities, lone surrogates, arrays."""

    class Array:
        def tolist(self):
            return [1, 2]

    g = Generation(
        Sample(1, "\ud800", float("nan"), {"a": float("inf"), "b": Array(), "c": "\udfff"}), (Completion("x"),)
    )
    line = generation_line(g)
    found = json.loads(line.decode("utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert (found["prompt"], found.get("reference"), found["columns"]) == (
        "\ufffd",
        None,
        {"a": None, "b": [1, 2], "c": "\ufffd"},
    )
    with pytest.raises(TypeError, match="a record holds a complex"):
        generation_line(Generation(Sample(1, metadata={"a": 1j}), (Completion("x"),)))


# What a terminal or an editor acts on: C1 controls, reading order, zero width, separators.
ACTIVE = [
    0x7F,
    *range(0x80, 0xA0),
    0x61C,
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0xFEFF,
]


def test_characters_that_act_are_written_as_escapes():
    """Trap: JSON escapes only what is below U+0020, so `cat generations.jsonl` would obey a model's U+009B."""
    beside = "é\xa0\xbf٠\u060c\u2010\u2027\u202f\u205f\u2070数😀\ufeee ﻼ"  # neighbours by code point and by byte
    for text in (*map(chr, ACTIVE), "".join(map(chr, ACTIVE)), "\\\x9b2J", "\ud800\u202e"):
        data = encode_json({"k" + text: [text + beside]})
        shown = data.decode()
        assert not any(chr(code) in shown for code in ACTIVE), ascii(text)
        clean = text.replace("\ud800", "\ufffd")
        assert json.loads(data) == {"k" + clean: [clean + beside]}
        assert beside in shown  # nothing else changes
    assert encode_json("\x9b") == b'"\\u009b"'
    assert encode_json("\x7f") == b'"\\u007f"'


@given(values)
def test_escapes_change_no_value(value):
    assert json.loads(encode_json(value)) == json.loads(json.dumps(value))


def line(**changes):
    fields = {"schema": "rewardkit.generation/1", "id": 1, "completions": [{"text": "x"}]} | changes
    return json.dumps({k: v for k, v in fields.items() if v is not ...}) + "\n"


def test_bad_lines_are_counted_with_their_reason(tmp_path):
    (tmp_path / "g").write_text(
        line() + line(completions=[]) + line(schema=...) + line(id=...) + line(completions=[{"text": 3}])
        + line(group="zz") + "{\n" + line(id=2) + line()[:30]
    )  # fmt: skip
    records = read_generations(tmp_path / "g")
    assert [(g.where, g.sample.id) for g in records] == [("g:1", 1), ("g:8", 2)]
    assert [b.line for b in records.bad] == [2, 3, 4, 5, 6, 7, 9]
    assert records.bad[3].why.startswith("Expected `str`, got `int`")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            "rewardkit.generation/2",
            r"g:2: schema rewardkit.generation/2: .*reads rewardkit.generation/1; install a newer",
        ),
        ("rewardkit.score/1", "these are scores"),
        (7, "wanted rewardkit.generation/1"),
    ],
)
def test_another_schema_is_refused(tmp_path, schema, says):
    (tmp_path / "g").write_text(line() + line(schema=schema))
    with pytest.raises(InputError, match=says):
        list(read_generations(tmp_path / "g"))


def test_scores_given_for_generations_are_recognised(tmp_path):
    (tmp_path / "scores.jsonl").write_text('{"schema":"rewardkit.score/1","id":1}\n')
    with pytest.raises(InputError, match="these are scores"):
        read_generations(tmp_path / "scores.jsonl")


def test_spread_groups_are_counted_and_a_field_can_group(tmp_path):
    (tmp_path / "g").write_text(
        line(id=1, columns={"u": 1}) + line(id=1, columns={"u": 1}) + line(id=2, columns={"u": 1})
    )
    assert [g.start for g in read_generations(tmp_path / "g")] == [0, 1, 0]
    assert [g.start for g in read_generations(tmp_path / "g", group="u")] == [0, 1, 2]


def test_a_field_groups_within_a_step(tmp_path):
    (tmp_path / "g").write_text("".join(line(id=n, step=n // 2, columns={"u": 1}) for n in range(4)))
    assert [g.start for g in read_generations(tmp_path / "g", group="u")] == [0, 1, 0, 1]


def test_a_map_overrides_what_the_fields_mean(tmp_path):
    (tmp_path / "g").write_text(line(columns={"other": "7"}))
    (g,) = read_generations(tmp_path / "g", field_map=FieldMap.parse(["gold=columns.other"]))
    assert (g.sample.reference, g.completions[0].text) == ("7", "x")


def test_a_binary_file_can_be_written_to():
    file = io.BytesIO()
    write_generations(file, [Generation(Sample(1), (Completion("x"),))] * 2)
    assert file.getvalue().count(b"\n") == 2
