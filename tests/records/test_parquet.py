"""Parquet and Arrow: the rows are those that were written, as plain Python values; damage is said, memory is flat."""

from __future__ import annotations

import datetime
import decimal
import gzip
import math
import os
import subprocess
import sys
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardkit.errors import InputError, MapError
from rewardkit.records import BadRow, Row, Source, read_generations
from rewardkit.records.arrow_file import READER as ARROW
from rewardkit.records.parquet import READER as PARQUET

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FORMATS = {
    "parquet": (PARQUET, lambda table, path: pq.write_table(table, path, row_group_size=3)),
    "file": (ARROW, lambda table, path: _write(pa.ipc.new_file, table, path)),
    "stream": (ARROW, lambda table, path: _write(pa.ipc.new_stream, table, path)),
}


def _write(opener, table, path):
    with opener(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def rows_of(reader, path):
    return list(reader.rows(Source(path)))


def one_column(tmp_path, array, form="parquet"):
    reader, write = FORMATS[form]
    write(pa.table({"x": array}), str(tmp_path / "a"))
    return [row.fields["x"] for row in rows_of(reader, tmp_path / "a")]


# Values


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (lambda: pa.array(["a", None, "é\0😀"]), ["a", None, "é\0😀"]),
        (lambda: pa.array(["a", None], pa.large_string()), ["a", None]),
        (lambda: pa.array([True, None, False]), [True, None, False]),
        (lambda: pa.array([2**63 - 1, None, -(2**63)]), [2**63 - 1, None, -(2**63)]),
        (lambda: pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (lambda: pa.array([0.5, math.nan, math.inf, None]), [0.5, None, None, None]),
        (lambda: pa.array([None, None]), [None, None]),
        (lambda: pa.array(["b", "a", None, "b"]).dictionary_encode(), ["b", "a", None, "b"]),
        (lambda: pa.array([{"a": 1, "b": "x"}, None, {"a": None}]), [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        (lambda: pa.array([[1, None], None, [], [2]]), [[1, None], None, [], [2]]),
        (lambda: pa.array([[[{"r": ["x"]}]], [], None]), [[[{"r": ["x"]}]], [], None]),
        (lambda: pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        (
            lambda: pa.array([[("k", 1), ("m", None)], None, []], pa.map_(pa.string(), pa.int64())),
            [{"k": 1, "m": None}, None, {}],
        ),
        (lambda: pa.array([[(1, "x")]], pa.map_(pa.int64(), pa.string())), [{"1": "x"}]),
        (lambda: pa.array([datetime.date(2024, 2, 29), None]), ["2024-02-29", None]),
        (lambda: pa.array([1, None], pa.timestamp("us")), ["1970-01-01T00:00:00.000001", None]),
        (lambda: pa.array([1], pa.timestamp("ms", "UTC")), ["1970-01-01T00:00:00.001Z"]),
        (lambda: pa.array([datetime.time(1, 2, 3)]), ["01:02:03.000000"]),
        (lambda: pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
        (lambda: pa.array([1500], pa.duration("ms")), [1.5]),
        (lambda: pa.array(["é".encode(), None, b"x"]), ["é", None, "x"]),
    ],
)
def test_every_type_becomes_plain_values(tmp_path, form, array, wanted):
    found = one_column(tmp_path, array(), form)
    assert found == wanted
    assert [type(value) for value in found] == [type(value) for value in wanted]


def test_rarer_types_of_arrow(tmp_path):
    uid = uuid.UUID(int=7)
    for array, wanted in [
        (pa.array(["a", None, "x" * 30], pa.string_view()), ["a", None, "x" * 30]),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())), [[1], None, [2, 3]]),
        (pa.array([0.5, None], pa.float16()), [0.5, None]),
        (pa.array([uid.bytes, None], pa.uuid()), [str(uid), None]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
    ]:
        with pa.ipc.new_file(str(tmp_path / "a"), pa.schema({"x": array.type})) as writer:
            writer.write_batch(pa.record_batch({"x": array}))
        assert [row.fields["x"] for row in rows_of(ARROW, tmp_path / "a")] == wanted, array.type


leaf_types = st.sampled_from([pa.string(), pa.int64(), pa.bool_(), pa.float64(), pa.large_string()])
types = st.recursive(
    leaf_types,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{i}", k) for i, k in enumerate(kinds)])
        )
    ),
    max_leaves=4,
)


def value_of(kind):
    if pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: value_of(field.type) for field in kind})
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        some = st.lists(value_of(kind.value_type), max_size=3)
    elif pa.types.is_boolean(kind):
        some = st.booleans()
    elif pa.types.is_floating(kind):
        some = st.floats(allow_nan=False, allow_infinity=False)
    elif pa.types.is_integer(kind):
        some = st.integers(-(2**63), 2**63 - 1)
    else:
        some = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    return st.none() | some


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_nested_values_come_back(tmp_path, form, data):
    """Trap: offsets of sliced lists, nulls of structs around values, rows across row groups and batches."""
    kind = data.draw(types)
    written = data.draw(st.lists(value_of(kind), min_size=1, max_size=8))
    assert one_column(tmp_path, pa.array(written, kind), form) == written


def test_rows_are_numbered_across_row_groups_and_batches(tmp_path):
    pq.write_table(pa.table({"x": list(range(2000))}), tmp_path / "a", row_group_size=700)
    rows = rows_of(PARQUET, tmp_path / "a")
    assert rows == [Row(at + 1, {"x": at}) for at in range(2000)]
    assert PARQUET.count(Source(tmp_path / "a")) == 2000


def test_values_are_right_in_every_slice_of_a_large_batch(tmp_path):
    """Trap: what is inside a list, a map or a struct keeps the offsets of the whole batch."""
    count = 1300
    columns = {
        "list": pa.array([[at] * (at % 4) if at % 5 else None for at in range(count)]),
        "fixed": pa.array([[at, -at] if at % 7 else None for at in range(count)], pa.list_(pa.int64(), 2)),
        "map": pa.array(
            [[(f"k{at}", at)] if at % 3 else None for at in range(count)], pa.map_(pa.string(), pa.int64())
        ),
        "struct": pa.array([{"a": [at], "b": None} if at % 2 else None for at in range(count)]),
        "word": pa.array([f"w{at % 9}" for at in range(count)]).dictionary_encode(),
    }
    batch = pa.record_batch(columns)
    with pa.ipc.new_file(str(tmp_path / "a"), batch.schema) as writer:
        writer.write_batch(batch)
    rows = [row.fields for row in rows_of(ARROW, tmp_path / "a")]
    assert rows == [
        {
            "list": [at] * (at % 4) if at % 5 else None,
            "fixed": [at, -at] if at % 7 else None,
            "map": {f"k{at}": at} if at % 3 else None,
            "struct": {"a": [at], "b": None} if at % 2 else None,
            "word": f"w{at % 9}",
        }
        for at in range(count)
    ]


def test_rows_share_no_values(tmp_path):
    """Trap: whoever takes a row owns its fields, also where a dictionary holds the value once."""
    pq.write_table(pa.table({"x": [["a"], ["a"]]}), tmp_path / "a", use_dictionary=True)
    first, second = rows_of(PARQUET, tmp_path / "a")
    first.fields["x"].append("b")
    assert second.fields["x"] == ["a"]


# Text that is none


def torn_strings(values):
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


@pytest.mark.parametrize("form", FORMATS)
def test_text_that_is_not_utf8_costs_its_row(tmp_path, form):
    reader, write = FORMATS[form]
    write(pa.table({"x": torn_strings([b"a", b"caf\xe9", b"b"]), "y": [1, 2, 3]}), str(tmp_path / "a"))
    rows = rows_of(reader, tmp_path / "a")
    assert rows == [Row(1, {"x": "a", "y": 1}), BadRow(2, "x is not UTF-8"), Row(3, {"x": "b", "y": 3})]


def test_binary_data_is_left_out_of_its_row(tmp_path):
    """Trap: a picture in a row must neither stop the run nor become a text."""
    image = pa.array([{"bytes": b"\x89PNG\xff", "path": "a.png"}, {"bytes": b"text", "path": None}])
    pq.write_table(pa.table({"image": image, "blob": [b"\xff\xfe", None]}), tmp_path / "a")
    assert [row.fields for row in rows_of(PARQUET, tmp_path / "a")] == [
        {"image": {"path": "a.png"}},
        {"image": {"bytes": "text", "path": None}, "blob": None},
    ]


# Damage


def test_a_cut_off_file_is_an_error(tmp_path):
    pq.write_table(pa.table({"completion": ["x" * 100] * 50}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for size in (4, 8, len(data) // 2, len(data) - 1):
        (tmp_path / "a.parquet").write_bytes(data[:size])
        with pytest.raises(InputError, match=r"a\.parquet: damaged or cut off parquet"):
            read_generations(tmp_path / "a.parquet")


def test_a_damaged_row_group_costs_its_rows_and_says_how_many(tmp_path):
    texts = [f"{at:08d}" * 20 for at in range(90)]
    pq.write_table(
        pa.table({"completion": texts}),
        tmp_path / "a.parquet",
        row_group_size=30,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
    )
    place = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    middle = place.data_page_offset + place.total_compressed_size // 2
    data[middle : middle + 8] = b"\0" * 8
    (tmp_path / "a.parquet").write_bytes(data)
    records = read_generations(tmp_path / "a.parquet")
    assert [g.completions[0].text for g in records] == texts[:30] + texts[60:]
    (bad,) = records.bad
    assert bad.line == 31 and bad.why.startswith("damaged from here to row 60: ")


@pytest.mark.parametrize("opener", [pa.ipc.new_file, pa.ipc.new_stream])
def test_cut_off_arrow_data_is_said(tmp_path, opener):
    with opener(str(tmp_path / "a.arrow"), pa.schema({"completion": pa.string()})) as writer:
        for at in range(10):
            writer.write_batch(pa.record_batch({"completion": [f"{at}" * 1000]}))
    data = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(data[: len(data) // 2])
    if opener is pa.ipc.new_file:
        with pytest.raises(InputError, match="damaged or cut off Arrow data"):
            read_generations(tmp_path / "a.arrow")
        return
    records = read_generations(tmp_path / "a.arrow")
    count = len(list(records))
    assert 0 < count < 10
    assert [(bad.line, bad.why[:16]) for bad in records.bad] == [(count + 1, "damaged or cut o")]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bytes_give_an_error_or_rows_but_no_traceback(tmp_path, data):
    table = pa.table({"completion": ["abc", None, "déf"], "n": [[1], None, [2, 3]], "s": [{"a": "x"}] * 3})
    form = data.draw(st.sampled_from(list(FORMATS)))
    reader, write = FORMATS[form]
    write(table, str(tmp_path / "a"))
    raw = bytearray((tmp_path / "a").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "a").write_bytes(raw)
    try:
        for row in reader.rows(Source(tmp_path / "a")):
            assert isinstance(row, (Row, BadRow))
    except InputError:
        pass


def test_encrypted_old_and_empty_files_say_so(tmp_path):
    for data, says in [(b"PARE" + b"\0" * 40, "encrypted"), (b"FEA1" + b"\0" * 40, "Feather version 1")]:
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(InputError, match=says):
            read_generations(tmp_path / "a")
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="is empty: 0 rows"):
        read_generations(tmp_path / "a.parquet")
    pq.write_table(pa.table({"completion": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet has 0 rows; --allow-empty"):
        read_generations(tmp_path / "a.parquet")
    assert list(read_generations(tmp_path / "a.parquet", allow_empty=True)) == []


def test_two_columns_of_one_name_are_an_error(tmp_path):
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["completion", "completion"])
    pq.write_table(table, tmp_path / "a")
    with pytest.raises(InputError, match="two columns are called 'completion'"):
        read_generations(tmp_path / "a")


def test_without_pyarrow_the_message_says_what_to_install(tmp_path):
    pq.write_table(pa.table({"completion": ["x"]}), tmp_path / "a.parquet")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from rewardkit.records import read_generations\n"
        "from rewardkit.errors import InputError\n"
        "try: read_generations(sys.argv[1])\n"
        "except InputError as problem: print(problem)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.parquet"], capture_output=True, text=True, check=True
    )
    assert "pip install 'rewardkit[parquet]'" in done.stdout


def test_pyarrow_is_imported_only_for_its_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"completion": "x"}\n')
    code = (
        "import sys; from rewardkit.records import read_generations; list(read_generations(sys.argv[1]));"
        "print([m for m in ('pyarrow', 'numpy', 'pandas', 'torch', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.jsonl"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# Generations


def test_chat_prompts_and_nested_gold(shared):
    records = read_generations(shared("data/torture/nested_chat.parquet"))
    generations = list(records)
    assert sum(len(one.completions) for one in generations) == 80
    assert len({one.key for one in generations}) == 40
    assert str(records.map["reference"]) == "reward_model.ground_truth"
    assert records.total == records.rows == 40 and records.bad_rows == 0
    first = generations[0]
    assert first.sample.prompt[0]["role"] == "user" and first.completions[0].messages
    assert first.where == "nested_chat.parquet: row 1"


def test_problems_without_outputs_are_no_generations(shared):
    """Trap: the file has a `solution`, which is no model's."""
    with pytest.raises(MapError, match="no field looks like a completion"):
        read_generations(shared("data/parquet_chat/kk_3ppl_test.parquet"))


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.arrow.gz", "stream.gz"])
def test_compressed_files_are_read_too(tmp_path, name):
    form = "parquet" if "parquet" in name else "stream" if "stream" in name else "file"
    FORMATS[form][1](pa.table({"completion": ["x", "y"]}), str(tmp_path / "plain"))
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert [g.completions[0].text for g in read_generations(tmp_path / name)] == ["x", "y"]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_memory_does_not_grow_with_the_row_group(tmp_path):
    """Trap: one row group of 120 MB; read by its chunks, the process would hold all of it."""
    schema = pa.schema({"completion": pa.string(), "gold": pa.string()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, compression="none", use_dictionary=False) as writer:
        texts = [f"{at:06d}" * 1000 for at in range(20_000)]
        writer.write_table(pa.table({"completion": texts, "gold": texts[:1] * 20_000}), row_group_size=20_000)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    pq.write_table(pa.table({"completion": ["x"]}), tmp_path / "small.parquet")
    # Not ru_maxrss, which a process takes over from the one that started it.
    code = (
        "import sys, pyarrow.parquet; from rewardkit.records import read_generations\n"
        "def peak(): return next(int(line.split()[1]) for line in open('/proc/self/status') if 'VmHWM' in line)\n"
        "list(read_generations(sys.argv[2]))\n"
        "before = peak()\n"
        "count = sum(1 for _ in read_generations(sys.argv[1]))\n"
        "print(count, peak() - before)"
    )
    command = [sys.executable, "-c", code, tmp_path / "a.parquet", tmp_path / "small.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 20_000
    assert grown < 110_000  # KiB; the two chunks are 240 MB
