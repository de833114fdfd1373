"""Tables in pieces: whatever the sizes, the pieces' rows are those that the reader itself gives."""

from __future__ import annotations

import datetime
import decimal
import random

import pytest

from rewardkit.records import BadRow, Source
from rewardkit.records.arrow_file import READER as ARROW
from rewardkit.records.parquet import READER as PARQUET
from rewardkit.records.table_chunks import BatchReader, cut_table, rows_of_piece

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(count: int):
    chance = random.Random(count)
    text = [chance.choice([None, "", "é\0😀", "x" * chance.randrange(400)]) for _ in range(count)]
    whole = [chance.choice([None, at, -(2**63)]) for at in range(count)]
    return pa.table(
        {
            "text": pa.array(text),
            "kind": pa.array([chance.choice(["a", "b", None]) for _ in range(count)]).dictionary_encode(),
            "whole": pa.array(whole, pa.int64()),
            "number": pa.array([chance.choice([0.5, float("nan"), None]) for _ in range(count)]),
            "messages": pa.array([[{"role": "user", "content": item}] * chance.randrange(3) for item in text]),
            "map": pa.array([[("k", item)] for item in whole], pa.map_(pa.string(), pa.int64())),
            "when": pa.array([datetime.datetime(2024, 2, 29)] * count, pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.50"), None] * (count // 2) + [None] * (count % 2)),
            "torn": pa.array([b"\xff" if chance.random() < 0.1 else b"fine" for _ in range(count)]),
        },
        metadata={"huggingface": "x" * 10_000},
    )


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("size", [1, 3000, 1 << 20])
def test_pieces_have_the_rows_of_the_whole(tmp_path, form, size):
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(table(301), path, row_group_size=70)
    else:
        with pa.ipc.new_file(str(path), table(301).schema) as writer:
            writer.write_table(table(301), max_chunksize=70)
    reader = PARQUET if form == "parquet" else ARROW
    assert isinstance(reader, BatchReader)
    pieces = list(cut_table(reader.batches(Source(path)), size))
    assert [piece.first for piece in pieces[1:]] == [piece.first + piece.rows for piece in pieces[:-1]]
    assert len(pieces) == (301 if size == 1 else len(pieces)) and (len(pieces) > 5 or size > 3000)
    rows = [row for piece in pieces for row in rows_of_piece(piece.data, piece.first)]
    assert rows == list(reader.rows(Source(path))) and len(rows) == 301


def test_damage_is_said_behind_the_rows_before_it():
    """Trap: rows that lie in a batch before the damage must come first, and numbers must go on behind it."""
    batch = pa.record_batch({"x": pa.array(range(10))})
    stream = [(1, batch), BadRow(11, "lost"), (31, batch), BadRow(41, "lost, too"), BadRow(51, "all of it")]
    pieces = list(cut_table(stream, 1 << 20))
    assert [(piece.first, piece.rows, piece.damage) for piece in pieces] == [
        (1, 10, "lost"),
        (31, 10, "lost, too"),
        (51, 0, "all of it"),
    ]
    assert list(rows_of_piece(pieces[2].data, 51)) == []
