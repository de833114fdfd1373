"""JSONL, JSON documents and CSV: every line is a row or a bad row with its number and reason."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import InputError, MapError
from rewardkit.records import BadRow, FieldMap, Row, Source, open_records
from rewardkit.records.csv_table import READER as CSV
from rewardkit.records.json_document import READER as DOCUMENT
from rewardkit.records.jsonl import READER as JSONL
from rewardkit.records.jsonl import parse_line


def rows_of(reader, tmp_path, data: bytes, name="a"):
    (tmp_path / name).write_bytes(data)
    return list(reader.rows(Source(tmp_path / name)))


# JSONL


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a": "never clos', "cut off at column 7"),
        (b'{"a": ', "cut off at column 7"),
        (b'{"a": }', "not JSON at column 7"),
        (b"not json at all", "not JSON at column 1"),
        (b"[1,2,3]", "a list of 3"),
        (b'"text\\u001b[31m"', r"the text 'text\\x1b\[31m'"),
        (b"null", "not an object: null"),
        (b"7", "the number 7"),
        ("{'é': \xff}".encode("latin-1"), "not UTF-8 at column 3"),
        ('{"é": "'.encode() + b"\xff", "not UTF-8 at column 8"),
        (b'{"a": 1} {"b": 2}', "not JSON at column 10"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\x00\x00\x00", "not JSON"),
    ],
)
def test_what_is_no_object_says_why_with_the_column(line, why):
    import re

    found = parse_line(line + b"\r\n")
    assert isinstance(found, str)
    assert re.search(why, found), found


def test_only_a_line_feed_ends_a_line(tmp_path):
    """Trap: str.splitlines also splits at U+2028, U+0085, form feeds and lone carriage returns."""
    text = "a\u2028b\u0085c\x0c"
    data = json.dumps({"completion": text}, ensure_ascii=False).replace("\\f", "\\f").encode()
    rows = rows_of(JSONL, tmp_path, b"\r\n" + data + b"\r\n \t\n" + data)
    assert rows == [Row(2, {"completion": text}), Row(4, {"completion": text})]


def test_integers_are_exact_and_what_no_float_holds_stays_text():
    digits = "7" * 5000
    line = f'{{"a": {2**70}, "b": NaN, "c": [-Infinity, 1e999, {digits}], "d": {-(2**65)}}}'.encode()
    assert parse_line(line) == {"a": 2**70, "b": None, "c": [None, "1e999", digits], "d": -(2**65)}
    assert parse_line(f'{{"a": {2**70}}}'.encode()) == {"a": 2**70}  # by the fast decoder


def test_lone_surrogates_become_replacement_characters():
    assert parse_line(rb'{"a\ud800": ["\udc00x", "\ud83d\ude00"]}') == {"a\ufffd": ["\ufffdx", "😀"]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_any_object_reads_as_the_standard_library_reads_it(fields, ascii_only):
    line = json.dumps(fields, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        line.decode()
    except UnicodeDecodeError:
        assert "UTF-8" in parse_line(line)
        return
    found = parse_line(line)
    assert found == json.loads(json.dumps(json.loads(line)))


# Detection


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("a.jsonl", b'{"a": 1}\n', "jsonl"),
        ("a.jsonl", b'not json\n{"a": 1}\n', "jsonl"),
        ("a.jsonl", b'{\n "a": [\n', "json"),
        ("a.jsonl", b'[{"a": 1},\n', "jsonl"),
        ("a.json", b'{"a": 1}\n{"a": 2}\n', "jsonl"),
        ("a.json", b'{"a": 1}\n', "json"),
        ("a.json", b'[{"a": 1}, {"a": 2}]', "json"),
        ("a.json", b'{"a": "' + b"x" * 100_000, "json"),
        ("stdin", b'{"a": 1}\n\n{"a": 2}\n', "jsonl"),
        ("stdin", b'[{"a": 1}]', "json"),
        ("stdin", b"a,b\n1,2\n3,4\n", "csv"),
        ("a.csv", b"completion\nx\n", "csv"),
        ("a.tsv", b"a\tb\n1\t2\n", "csv"),
        ("a.jsonl", b'{"schema": "rewardkit.generation/1", "id": 1}\n', "generations"),
    ],
)
def test_a_format_is_recognised(tmp_path, name, head, format):
    (tmp_path / name).write_bytes(head)
    assert open_records(Source(tmp_path / name))[0] == format


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"SQLite format 3", "is SQLite"), (b"version https://git-lfs.x", "Git LFS"), (b"hello", "not recognised")],
)
def test_other_formats_are_named_with_what_can_be_read(tmp_path, data, says):
    (tmp_path / "data").write_bytes(data)
    with pytest.raises(InputError, match=rf"{says}.*JSONL, JSON, CSV, TSV, parquet and Arrow.*\.zip"):
        open_records(Source(tmp_path / "data"))


def test_a_plugin_reader_is_one_object_and_the_surest_wins(tmp_path):
    class Shout:
        unit = "line"
        map = FieldMap({"completion": "LOUD"})

        def detect(self, name, head):
            return 95 * head.startswith(b"!")

        def rows(self, source):
            for number, line in enumerate(source.lines(), 1):
                yield Row(number, {"LOUD": line[1:].decode().strip()})

    from rewardkit.records import built_in_readers, read_generations

    (tmp_path / "a.csv").write_bytes(b"!hi\n!ho\n")
    records = read_generations(tmp_path / "a.csv", readers={**built_in_readers(), "loud/shout": Shout()})
    assert [g.completions[0].text for g in records] == ["hi", "ho"]
    assert (records.format, records.guessed) == ("loud/shout", ())


# JSON documents

ROW = {"question": "q", "response": "r", "gold": 1}


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ([ROW, ROW], [ROW, ROW]),
        (
            {"question": ["q", "p"], "response": ["r", None]},
            [{"question": "q", "response": "r"}, {"question": "p", "response": None}],
        ),
        ({"run": {"date": 1}, "results": [ROW, ROW]}, [ROW, ROW]),
        (
            {"parts": [{"name": "a", "sets": [{"results": [ROW]}]}, {"name": "b", "sets": [{"results": [ROW]}]}]},
            [ROW, ROW],
        ),
        ({"q1": ROW, "q2": ROW}, [{"id": "q1", **ROW}, {"id": "q2", **ROW}]),
        (
            {"q1": ["a", "b"], "q2": ["c", "d"]},
            [{"id": "q1", "completions": ["a", "b"]}, {"id": "q2", "completions": ["c", "d"]}],
        ),
        (
            {"response": {"x": "r", "y": "s"}, "gold": {"y": 2, "x": 1}},
            [{"id": "x", "response": "r", "gold": 1}, {"id": "y", "response": "s", "gold": 2}],
        ),
        (
            {"response": {"0": "r", "1": "s"}, "gold": {"0": 1, "1": 2}},
            [{"response": "r", "gold": 1}, {"response": "s", "gold": 2}],
        ),
        (ROW, [ROW]),
        ({"id": "run", "samples": [{"input": "q", "output": "o"}]}, [{"input": "q", "output": "o"}]),
    ],
    ids=[
        "list",
        "columns",
        "nested",
        "nested twice",
        "by id",
        "lists by id",
        "keyed columns",
        "pandas",
        "one row",
        "run id",
    ],
)
def test_rows_are_found_in_a_document(tmp_path, document, rows):
    found = rows_of(DOCUMENT, tmp_path, json.dumps(document, indent=1).encode())
    assert [row.fields for row in found] == rows
    assert [row.line for row in found] == list(range(1, len(rows) + 1))


def test_two_lists_of_generations_are_not_chosen_between(tmp_path):
    """Trap: taking the first list would lose the second without a word."""
    with pytest.raises(MapError, match=r"train\[\] and test\[\].*--map completion=train\[\]\.response"):
        rows_of(DOCUMENT, tmp_path, json.dumps({"train": [ROW], "test": [ROW]}).encode())


def test_the_objects_around_a_row_come_with_it(tmp_path):
    document = {"model": "m", "sets": [{"name": "s", "results": [ROW]}]}
    (row,) = rows_of(DOCUMENT, tmp_path, json.dumps(document).encode())
    assert [outer.get("name", outer.get("model")) for outer in row.outer] == ["s", "m"]


def test_an_element_that_is_no_object_is_a_bad_row(tmp_path):
    found = rows_of(DOCUMENT, tmp_path, json.dumps([ROW, 3, ROW]).encode())
    assert found[1] == BadRow(2, "not an object: the number 3")


def test_a_broken_document_says_where(tmp_path):
    with pytest.raises(InputError, match=r"a:3: not JSON at column 1: "):
        rows_of(DOCUMENT, tmp_path, b'[{"a": 1},\n{"a": 2}\n{"a": 3}]')


# CSV


def test_cells_stay_text_and_empty_ones_are_null(tmp_path):
    rows = rows_of(CSV, tmp_path, b'id,completion,answer\n007,"a ""b"",\nc",1e5\n8,,\n')
    assert rows == [
        Row(2, {"id": "007", "completion": 'a "b",\nc', "answer": "1e5"}),
        Row(4, {"id": "8", "completion": None, "answer": None}),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_among_four(tmp_path, delimiter):
    data = f"completion{delimiter}answer\n".encode() + f'"1, 2; 3"{delimiter}4\n'.encode() * 3
    rows = rows_of(CSV, tmp_path, data)
    assert rows[0].fields == {"completion": "1, 2; 3", "answer": "4"}


def test_ragged_rows_and_bad_bytes_are_bad_rows(tmp_path):
    rows = rows_of(CSV, tmp_path, b"a,b\n1,2\n1\n1,2,3\n\xff,2\n\n5,6\n")
    assert [(type(r).__name__, r.line) for r in rows] == [
        ("Row", 2),
        ("BadRow", 3),
        ("BadRow", 4),
        ("BadRow", 5),
        ("Row", 7),
    ]
    assert rows[1].why == "1 cells, the header has 2"


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest_in_silence(tmp_path):
    rows = rows_of(CSV, tmp_path, b'a,b\n1,2\n"open,3\n4,5\n6,7\n')
    assert rows[0].line == 2
    assert isinstance(rows[-1], BadRow)
    assert rows[-1].line == 3
    assert "3 lines" in rows[-1].why


def test_a_huge_cell_is_read(tmp_path):
    """Trap: the csv module refuses cells above 131,072 characters unless told otherwise."""
    rows = rows_of(CSV, tmp_path, b"a,b\n" + b"x" * 500_000 + b",1\n")
    assert len(rows[0].fields["a"]) == 500_000


def test_one_name_twice_in_the_header_is_refused(tmp_path):
    with pytest.raises(InputError, match="'a' twice"):
        rows_of(CSV, tmp_path, b"a,a\n1,2\n")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_input_error(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for name, reader in (("a.jsonl", JSONL), ("a.csv", CSV), ("a.json", DOCUMENT)):
            path = Path(folder) / name
            path.write_bytes(data)
            try:
                for row in reader.rows(Source(path)):
                    assert isinstance(row, (Row, BadRow))
            except InputError:
                pass


def test_no_number_that_is_read_is_infinite():
    found = parse_line(b'{"a": [1e400, -1e400, Infinity, 1e308]}')
    assert [v for v in found["a"] if isinstance(v, float)] == [1e308]
    assert all(math.isfinite(v) for v in found["a"] if isinstance(v, float))
