"""What can be given as input: several files, globs, folders, archives, saved data sets; what is passed over is said."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardkit.errors import InputError, MapError
from rewardkit.records import BadRow, Source, find_inputs, identity_of, read_generations

SAMPLES = Path(__file__).parents[1] / "samples"
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)


def jsonl(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def row(at, **more):
    return {"id": at, "prompt": f"p{at}", "completion": f"c{at}", **more}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def texts(records):
    return [completion.text for one in records for completion in one.completions]


# The same generations in every way of giving them


@st.composite
def tables(draw):
    """Rows of prompt (text or chat), nested gold, completions and labels, as many of each a row."""
    chat = draw(st.booleans())
    size = draw(st.integers(1, 3))
    rows = []
    for prompt in draw(st.lists(words, min_size=1, max_size=7, unique=True)):
        rows.append(
            {
                "prompt": [{"role": "user", "content": prompt}] if chat else prompt,
                "completions": draw(st.lists(words, min_size=size, max_size=size)),
                "correct": draw(st.lists(st.booleans(), min_size=size, max_size=size)),
                "reward_model": {"ground_truth": draw(words), "style": draw(st.none() | words)},
                "level": draw(st.none() | st.integers(-5, 5)),
            }
        )
    return rows


def pieces(rows):
    return [rows[at : at + 3] for at in range(0, len(rows), 3)]


def as_several(folder, rows):
    return [put(folder, {f"{at}.jsonl": jsonl(some)}) / f"{at}.jsonl" for at, some in enumerate(pieces(rows))]


def as_glob(folder, rows):
    put(folder, {f"step_{at * 3}/x.jsonl": jsonl(some) for at, some in enumerate(pieces(rows))})
    return f"{folder}/**/*.jsonl"


def as_folder(folder, rows):
    put(folder, {f"step_{at * 3}/x.jsonl.gz": gzip.compress(jsonl(some)) for at, some in enumerate(pieces(rows))})
    return put(folder, {"README.md": b"# x", "step_0/metadata.json": b"{}", ".hidden/x.jsonl": b"{}\n"})


def as_zip(folder, rows):
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for at, some in enumerate(pieces(rows)):
            archive.writestr(f"a/{at * 3}.jsonl.gz", gzip.compress(jsonl(some)))
        archive.writestr("a/summary.json", "{}")
    return folder / "all.zip"


def as_parquet(folder, rows):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=3)
    return folder / "a.parquet"


def as_arrow(folder, rows):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return folder / "a.arrow"


def as_dataset(folder, rows):
    """The layout that `datasets` writes: streams of Arrow, and their names in order in state.json."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(rows)
    count = len(pieces(rows))
    names = [f"data-{at:05d}-of-{count:05d}.arrow" for at in range(count)]
    for at, name in enumerate(names):
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table.slice(at * 3, 3))
    state = {"_data_files": [{"filename": name} for name in names], "_format_type": None, "_split": None}
    return put(folder, {"state.json": json.dumps(state).encode(), "dataset_info.json": b"{}"})


def as_parquet_in_zip(folder, rows):
    path = as_parquet(folder, rows)
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, "a.parquet")
    return folder / "all.zip"


WAYS = [as_several, as_glob, as_folder, as_zip, as_parquet, as_arrow, as_dataset, as_parquet_in_zip]
folders = itertools.count()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(rows=tables())
def test_every_way_gives_the_same_generations(tmp_path, way, rows):
    folder = tmp_path / str(next(folders))
    folder.mkdir()
    records = read_generations(way(folder, rows))
    found = [
        {
            "prompt": one.sample.prompt,
            "completions": [completion.text for completion in one.completions],
            "correct": [completion.metadata["label"] for completion in one.completions],
            "reward_model": {
                "ground_truth": one.sample.reference,
                "style": one.sample.metadata["reward_model"]["style"],
            },
            "level": one.sample.metadata["level"],
        }
        for one in records
    ]
    assert found == rows
    assert (records.rows, records.bad_rows, records.duplicate_ids) == (len(rows), 0, 0)
    assert sum(part.rows for part in records.parts) == len(rows)


# Order and names


def test_files_come_in_natural_order_with_their_names(tmp_path):
    put(tmp_path, {f"step_{at}/out.jsonl": jsonl([row(at)]) for at in (10, 9, 100, 2)})
    records = read_generations(tmp_path)
    assert [one.where for one in records] == [f"step_{at}/out.jsonl:1" for at in (2, 9, 10, 100)]
    assert [part.source.name for part in records.parts] == [f"step_{at}/out.jsonl" for at in (2, 9, 10, 100)]
    pattern = read_generations(f"{tmp_path}/step_*/out.jsonl")
    assert [one.where for one in pattern] == [f"step_{at}/out.jsonl:1" for at in (2, 9, 10, 100)]


def test_unlike_names_stay_short_and_order_is_as_given(tmp_path):
    put(tmp_path, {"x/b.jsonl": jsonl([row(1)]), "y/a.jsonl": jsonl([row(2)])})
    records = read_generations([tmp_path / "x/b.jsonl", tmp_path / "y/a.jsonl"])
    assert [one.where for one in records] == ["b.jsonl:1", "a.jsonl:1"]


def test_names_that_hold_digits_of_other_scripts(tmp_path):
    """Trap: "²".isdigit() is true and int("²") raises."""
    put(tmp_path, {"²x1.jsonl": jsonl([row(1)]), "٣.jsonl": jsonl([row(2)]), "a" + "9" * 200: jsonl([row(3)])})
    assert sorted(texts(read_generations(tmp_path))) == ["c1", "c2", "c3"]


def test_a_name_with_glob_characters_is_first_a_file(tmp_path):
    put(tmp_path, {"a[1].jsonl": jsonl([row(1)]), "a1.jsonl": jsonl([row(2)])})
    assert texts(read_generations(tmp_path / "a[1].jsonl")) == ["c1"]


def test_a_pattern_below_a_hidden_folder(tmp_path):
    """Trap: what is hidden is left out below a folder, not because of where the folder lies."""
    put(tmp_path, {".cache/x.jsonl": jsonl([row(1)]), ".cache/.y.jsonl": jsonl([row(2)])})
    assert texts(read_generations(f"{tmp_path}/.cache/*.jsonl")) == ["c1"]
    assert texts(read_generations(tmp_path / ".cache")) == ["c1"]


def test_a_file_given_twice_counts_once(tmp_path):
    put(tmp_path, {"a.jsonl": jsonl([row(1)])})
    records = read_generations([tmp_path / "a.jsonl", tmp_path, f"{tmp_path}/*.jsonl", Source(tmp_path / "a.jsonl")])
    assert texts(records) == ["c1"]
    assert any(note.startswith("passed over (given twice): ") for note in records.notes)


def test_standard_input_can_be_an_archive(tmp_path, monkeypatch):
    as_zip(tmp_path, [row(1)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "all.zip").read_bytes())))
    records = read_generations("-")
    assert [one.where for one in records] == ["stdin/a/0.jsonl.gz:1"]


# Groups, counts, limits over files


def test_a_group_may_be_spread_over_files(tmp_path):
    put(tmp_path, {f"{at}.jsonl": jsonl([row(1), row(2)]) for at in range(3)})
    generations = list(read_generations(tmp_path))
    assert [(one.sample.id, one.start) for one in generations] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert len({one.key for one in generations}) == 2


def test_one_id_with_two_prompts_in_two_files_is_counted(tmp_path):
    put(tmp_path, {"a.jsonl": jsonl([row(1)]), "b.jsonl": jsonl([row(1, prompt="other"), row(2)])})
    records = read_generations(tmp_path)
    assert len({one.key for one in records}) == 3
    assert records.duplicate_ids == 1


def test_bad_rows_say_their_file(tmp_path):
    put(tmp_path, {"a.jsonl": jsonl([row(1)]) + b"{oops\n", "b.jsonl": jsonl([row(2)]) + b"\n7\n" + jsonl([row(3)])})
    records = read_generations(tmp_path)
    for _ in range(2):  # iterating again starts again
        assert texts(records) == ["c1", "c2", "c3"]
        assert (records.rows, records.bad_rows) == (3, 2)
        assert [(bad.file, bad.line) for bad in records.bad] == [("a.jsonl", 2), ("b.jsonl", 3)]


def test_counts_grow_while_iterating(tmp_path):
    """Trap: --strict stops at the first bad row, not at the end."""
    put(tmp_path, {"a.jsonl": b"[]\n" + jsonl([row(1)]), "b.jsonl": jsonl([row(2)])})
    records = read_generations(tmp_path)
    stream = iter(records)
    next(stream)
    assert (records.rows, records.bad) == (1, [BadRow(1, "not an object: a list of 0", "a.jsonl")])


def test_only_a_hundred_bad_rows_are_kept_over_all_files(tmp_path):
    put(tmp_path, {f"{at}.jsonl": jsonl([row(at)]) + b"{\n" * 70 for at in range(3)})
    records = read_generations(tmp_path)
    assert len(list(records)) == 3
    assert (records.bad_rows, len(records.bad)) == (210, 100)
    assert [bad.file for bad in records.bad] == ["0.jsonl"] * 70 + ["1.jsonl"] * 30


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_limit_counts_rows_of_all_files(tmp_path, limit):
    put(tmp_path, {"a.jsonl": jsonl([row(1)]) + b"{\n" + jsonl([row(2)]), "b.jsonl": jsonl([row(3), row(4), row(5)])})
    records = read_generations(tmp_path, limit=limit)
    for _ in range(2):
        assert texts(records) == ["c1", "c2", "c3", "c4", "c5"][: limit if limit < 2 else limit - 1]
        assert records.bad_rows == (limit >= 2)


def test_the_number_of_rows_is_known_where_the_files_say_it(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for at in (1, 2):
        pq.write_table(pa.table({"completion": ["x"] * 5 * at}), tmp_path / f"{at}.parquet")
    assert read_generations(tmp_path / "1.parquet").total == 5
    assert read_generations(tmp_path).total == 15
    assert read_generations(tmp_path, limit=7).total == 7
    put(tmp_path, {"3.jsonl": jsonl([{"completion": "x"}])})
    assert read_generations(tmp_path).total is None


# Maps


def test_a_file_of_another_shape_gets_a_map_of_its_own(tmp_path):
    put(
        tmp_path,
        {
            "a.jsonl": jsonl([{"prompt": "p", "completion": "x", "answer": "1"}]),
            "b.jsonl": jsonl([{"question": "q", "responses": ["y", "z"], "gold": "2"}]),
            "c.csv": b"prompt,response\nr,w\n",
        },
    )
    records = read_generations(tmp_path)
    assert [(one.sample.prompt, one.sample.reference) for one in records] == [("p", "1"), ("q", "2"), ("r", None)]
    assert texts(records) == ["x", "y", "z", "w"]
    assert records.format == "jsonl, csv"
    assert sum("is read as completion" in note for note in records.notes) == 2


def test_a_later_file_that_is_not_sure_stops_before_anything_is_scored(tmp_path):
    put(
        tmp_path,
        {"a.jsonl": jsonl([row(1)]), "b.jsonl": jsonl([{"output": "x", "prediction": "y"}])},
    )
    with pytest.raises(MapError, match=r"(?s)^b\.jsonl: which field.*it was found in .*name the other files"):
        read_generations(tmp_path)
    with pytest.raises(MapError, match=r"^b\.jsonl"):
        read_generations([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


def test_the_first_map_helps_where_a_later_file_alone_is_not_sure(tmp_path):
    """A field that only some rows have must not make a file unreadable whose usual fields are there."""
    first = [{"id": 1, "output": "x"}]
    put(tmp_path, {"a.jsonl": jsonl(first), "b.jsonl": jsonl([{"id": 2, "output": "y", "prediction": "z"}])})
    assert texts(read_generations(tmp_path)) == ["x", "y"]


def test_what_lies_beside_is_passed_over_and_said(tmp_path):
    beside = {
        "metadata.json": b'{"model": "m"}',
        "out_failures.jsonl": jsonl([row(9)]),
        "aggregated_results.jsonl": jsonl([row(9)]),
        "summary.json": b'{"output": "x"}',
        "README.md": b"# completion",
        ".hidden.jsonl": jsonl([row(9)]),
        "metrics.json": b'{"accuracy": 0.5}',
        "empty.jsonl": b"",
        "weights.bin": b"\0" * 40,
        "notes.txt": b"hello",
    }
    put(tmp_path, {"a.jsonl": jsonl([row(1)]), **beside})
    records = read_generations(tmp_path)
    assert texts(records) == ["c1"]
    said = " ".join(records.notes)
    assert {name for name, _ in records.inputs.passed} == set(beside)
    for why in ("hidden", "by their names", "empty", "no reader knows it", "one JSON object without a completion"):
        assert why in said
    # What is named is read, whatever it is called.
    assert texts(read_generations(tmp_path / "out_failures.jsonl")) == ["c9"]


def test_figures_beside_samples_are_passed_over(tmp_path):
    put(tmp_path, {"samples_x.jsonl": jsonl([row(1)]), "results_2024.json": b'[{"completion": "no"}]'})
    assert texts(read_generations(tmp_path)) == ["c1"]
    os.remove(tmp_path / "samples_x.jsonl")
    assert texts(read_generations(tmp_path)) == ["no"]


# Errors


def test_what_leads_nowhere_says_so(tmp_path):
    put(tmp_path, {"empty/x": b"", "other/a.txt": b"hello", "other/b.png": b"\x89PNG"})
    (tmp_path / "nothing").mkdir()
    for given_, says in [
        (tmp_path / "nothing", "holds no file that a reader knows; it is empty"),
        (tmp_path / "other", r"holds no file that a reader knows; it holds b\.png, a\.txt"),
        (f"{tmp_path}/*.jsonl", r"no file matches .*/\*\.jsonl$"),
        (f"{tmp_path}/other/*", "no file that a reader knows matches"),
        (tmp_path / "other/a.txt", "a.txt: format not recognised"),
        (tmp_path / "none.jsonl", "no file .*none.jsonl"),
        ([], "no input was given"),
    ]:
        with pytest.raises(InputError, match=says):
            read_generations(given_)


def test_only_empty_files(tmp_path):
    put(tmp_path, {"a.jsonl": b"", "b.jsonl": b"\n\n"})
    with pytest.raises(InputError, match=r"no generations in a\.jsonl, b\.jsonl; --allow-empty"):
        read_generations([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert texts(read_generations([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], allow_empty=True)) == []


def test_a_run_folder_is_no_input(tmp_path):
    run = {"config.toml": b'[input]\npath = "x\\u001b.jsonl"\n', "scores.jsonl": b"{}\n", "log.jsonl": b"{}\n"}
    put(tmp_path / "run", run)
    with pytest.raises(InputError, match=r"rewardkit show .*run; what it scored was x\\x1b\.jsonl"):
        read_generations(tmp_path / "run")
    put(tmp_path, {"a.jsonl": jsonl([row(1)])})
    records = read_generations(tmp_path)
    assert texts(records) == ["c1"]
    assert records.notes == ["passed over (a run folder of rewardkit): run"]
    put(tmp_path / "run", {"generations.jsonl": jsonl([row(2)])})  # a training run keeps its generations
    assert texts(read_generations(tmp_path / "run")) == ["c2"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_links_to_folders_are_not_followed(tmp_path):
    """Trap: a folder that holds a link to itself has no end."""
    put(tmp_path, {"a/x.jsonl": jsonl([row(1)])})
    os.symlink(tmp_path / "a", tmp_path / "a" / "again")
    records = read_generations(tmp_path)
    assert texts(records) == ["c1"]
    assert records.notes == ["passed over (a link to a folder): a/again"]


# Archives


def zipped(path, files, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_are_read_whatever_their_names(tmp_path, method):
    """Trap: nothing is written, so names that lead out of a folder do no harm; control characters are spelled out."""
    path = zipped(tmp_path / "a.dat", {"../../x.jsonl": jsonl([row(1)]), "b\x1b.jsonl": jsonl([row(2)])}, method)
    assert [one.where for one in read_generations(path)] == ["a.dat/../../x.jsonl:1", r"a.dat/b\x1b.jsonl:1"]
    assert os.listdir(tmp_path) == ["a.dat"]


def test_hidden_and_foreign_members_are_passed_over(tmp_path):
    files = {"__MACOSX/._x.jsonl": b"\0\5\26\7", "x.jsonl": jsonl([row(1)]), "x.png": b"\x89PNG"}
    records = read_generations(zipped(tmp_path / "a.zip", files))
    assert texts(records) == ["c1"]
    assert len(records.inputs.passed) == 2


def test_damaged_archives_say_so(tmp_path):
    path = zipped(tmp_path / "a.zip", {"x.jsonl": jsonl([row(at) for at in range(5000)])})
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"a\.zip: the zip archive is damaged or cut off"):
        read_generations(path)
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    records = read_generations(path)
    assert 0 < len(list(records)) <= 5000
    assert "damaged or cut off" in records.bad[-1].why
    with pytest.raises(InputError, match="zip archive without a file"):
        read_generations(zipped(tmp_path / "none.zip", {}))
    with pytest.raises(InputError, match=r"holds no file that a reader knows: a\.png"):
        read_generations(zipped(tmp_path / "png.zip", {"a.png": b"\x89PNG"}))


def test_an_archive_named_like_a_table_is_an_archive(tmp_path):
    assert texts(read_generations(zipped(tmp_path / "a.csv", {"x.jsonl": jsonl([row(1)])}))) == ["c1"]


# Saved data sets


def test_data_that_datasets_itself_saved():
    pytest.importorskip("pyarrow")
    records = read_generations(SAMPLES / "datasets/saved")
    generations = list(records)
    assert [one.sample.prompt for one in generations] == [
        [{"role": "user", "content": f"{at} + {at}?"}] for at in range(11, -1, -1)
    ]
    assert [one.sample.reference for one in generations] == [str(2 * at) for at in range(11, -1, -1)]
    assert {one.sample.step for one in generations} == {10}
    assert generations[6].where == "data-00001-of-00002.arrow: row 1"
    assert len(list(read_generations(SAMPLES / "datasets/one_split"))) == 3
    with pytest.raises(InputError, match=r"2 splits; give one: .*splits.train or .*splits.test"):
        read_generations(SAMPLES / "datasets/splits")
    assert len(list(read_generations(SAMPLES / "datasets/splits/test"))) == 3


def test_a_saved_data_set_is_whole_and_inside_its_folder(tmp_path):
    def state(name, **more):
        return {"state.json": json.dumps({"_data_files": [{"filename": name}], **more}).encode()}

    for at, (files, says) in enumerate(
        [
            (state("gone.arrow"), "gone.arrow, which its state.json names, is missing"),
            (state("../secret"), "names no data files"),
            (state(7), "names no data files|is missing"),
            (state("x", _indices_data_files=[{"filename": "y"}]), "load it and save it again"),
        ]
    ):
        with pytest.raises(InputError, match=says):
            read_generations(put(tmp_path / str(at), files))


# Identity


def test_the_identity_of_several_files_changes_with_each(tmp_path):
    put(tmp_path, {"d/a.jsonl": jsonl([row(1)]), "d/b.jsonl": jsonl([row(2), row(3)])})
    identity = find_inputs(tmp_path / "d").identity()
    assert (identity.lines, identity.bytes) == (3, len(jsonl([row(1), row(2), row(3)])))
    seen = {identity.sha256}
    for name, data in [("d/b.jsonl", jsonl([row(2), row(4)])), ("d/c.jsonl", jsonl([row(5)]))]:
        put(tmp_path, {name: data})
        seen.add(find_inputs(tmp_path / "d").identity().sha256)
    os.rename(tmp_path / "d/c.jsonl", tmp_path / "d/z.jsonl")
    seen.add(find_inputs(tmp_path / "d").identity().sha256)
    assert len(seen) == 4
    os.rename(tmp_path / "d", tmp_path / "moved")
    assert find_inputs(tmp_path / "moved").identity().sha256 in seen  # the folder's own name says nothing


def test_the_identity_of_one_file_stays_that_of_its_bytes(tmp_path):
    put(tmp_path, {"a.jsonl": jsonl([row(1)])})
    assert find_inputs(tmp_path / "a.jsonl").identity() == Source(tmp_path / "a.jsonl").identity()
    path = zipped(tmp_path / "a.zip", {"x.jsonl": jsonl([row(1)]), "y.jsonl": jsonl([row(2)])})
    assert find_inputs(path).identity().sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert identity_of([Source(path)]).lines is None


@pytest.mark.parametrize(
    ("given_", "stem"),
    [
        ("a.b.jsonl", "a"),
        ("-", "stdin"),
        ("runs/x/", "x"),
        ("runs/*.jsonl", "runs"),
        ("**/*", "input"),
        (["a.jsonl", "b.jsonl"], "a-and-1"),
        ("../..", "input"),
    ],
)
def test_a_short_name_for_the_run(given_, stem):
    from rewardkit.records.inputs import Inputs

    assert Inputs(given_ if isinstance(given_, list) else [given_]).stem == stem


# Tables as text


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("prompt;answer;completion\n1,5 + 1;2,5;so 2,5\n3,0;4,0;x,y,z\n", [(2, "so 2,5"), (3, "x,y,z")]),
        ("sep=;\r\nprompt;completion\r\na,b;c\r\n", [(3, "c")]),
        ('prompt,completion\n"a;b\nc; d","e\n\n""f"" ;;"\ng,h\n', [(2, 'e\n\n"f" ;;'), (6, "h")]),
        ("\ufeffprompt;completion\nété;ça\n", [(2, "ça")]),
        ("prompt|completion\na|b\n", [(2, "b")]),
    ],
)
def test_tables_with_other_delimiters_and_line_ends_within_quotes(tmp_path, data, wanted):
    (tmp_path / "a.csv").write_text(data, encoding="utf-8", newline="")
    records = read_generations(tmp_path / "a.csv")
    assert [(one.where, one.completions[0].text) for one in records] == [(f"a.csv:{at}", text) for at, text in wanted]


def test_a_field_of_24_megabytes(tmp_path):
    """Trap: the csv module's own limit is 128 KiB."""
    field = "x, y;\n" * 4_000_000
    (tmp_path / "a.csv").write_text(f'prompt,completion\np,"{field}"\nq,r\n')
    assert texts(read_generations(tmp_path / "a.csv")) == [field, "r"]
