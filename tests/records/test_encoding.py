"""Text in another encoding is named with the line that converts it; damage in UTF-8 stays a matter of its row."""

from __future__ import annotations

import gzip
import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.errors import InputError
from rewardkit.records import read_generations
from rewardkit.records.encoding import likely_encoding

ROWS = [("q1", "Où est le café ?", "à côté"), ("q2", "“Why” – he asked", "naïve"), ("q3", "plain", "text")]
TABLE = "id,prompt,completion\n" + "".join(f"{a},{b},{c}\n" for a, b, c in ROWS)
LINES = "".join(json.dumps({"id": a, "prompt": b, "completion": c}, ensure_ascii=False) + "\n" for a, b, c in ROWS)


@pytest.mark.parametrize(
    "text", [TABLE, LINES, f"[{LINES.strip().replace(chr(10), ',')}]"], ids=["csv", "jsonl", "json"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_windows_text_is_named_and_the_line_that_converts_it_does(tmp_path, text, pack):
    path = tmp_path / "mes résultats"
    path = path.with_suffix(".csv" if text is TABLE else ".jsonl" if text is LINES else ".json")
    path.write_bytes(pack(text.encode("cp1252")))
    with pytest.raises(InputError, match=r"looks like WINDOWS-1252\..*iconv -f WINDOWS-1252 -t UTF-8") as caught:
        read_generations(path)
    command = str(caught.value).partition("convert it: ")[2]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    (converted,) = tmp_path.glob("utf8-*")
    assert [one.completions[0].text for one in read_generations(converted)] == [row[2] for row in ROWS]


def test_it_is_found_beyond_the_first_kilobytes_too(tmp_path):
    """Trap: the first letter with an accent comes after the part that readers look at."""
    rows = [{"completion": "x" * 3000}] * 30 + [{"completion": "élève à côté"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_bytes(lines.encode("latin-1"))
    with pytest.raises(InputError, match="WINDOWS-1252"):
        read_generations(tmp_path / "a.jsonl")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark(tmp_path, encoding):
    (tmp_path / "a.jsonl").write_bytes(LINES.encode(encoding))
    with pytest.raises(InputError, match=rf"(?i)looks like {encoding.replace('-', '-?')}"):
        read_generations(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "damage",
    [
        "café".encode()[:-1] + b'"',  # a letter cut in two
        "“".encode()[:2],
        b"\xff",
        b"\x80\x81",
        b"\xf0\x9f\x98",
    ],
)
@pytest.mark.parametrize("other", ["ascii", "Où"])
def test_a_damaged_row_of_utf8_costs_that_row(tmp_path, damage, other):
    good = json.dumps({"completion": other}, ensure_ascii=False).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(good * 3 + b'{"completion": "' + damage + b'"}\n' + good)
    records = read_generations(tmp_path / "a.jsonl")
    assert len(list(records)) == 4
    assert [bad.line for bad in records.bad] == [4]


def test_one_row_of_another_encoding_within_utf8_is_a_bad_row(tmp_path):
    good = LINES.encode()
    (tmp_path / "a.jsonl").write_bytes(good + '{"completion": "café"}\n'.encode("latin-1"))
    records = read_generations(tmp_path / "a.jsonl")
    assert len(list(records)) == 3
    assert [(bad.line, bad.why) for bad in records.bad] == [(4, "not UTF-8 at column 20")]


@given(st.text(), st.integers(0, 40))
def test_utf8_is_never_taken_for_something_else(text, cut):
    data = text.replace("\0", "").encode("utf-8", "ignore")
    assert likely_encoding(data) is None
    assert likely_encoding((data + b"abcd")[: len(data) - min(cut, 3)]) is None or cut > 0


def test_cyrillic_text():
    assert likely_encoding("Сколько будет дважды два? Четыре.".encode("cp1251")) == "WINDOWS-1251"
    assert likely_encoding("答案是四。因为二加二等于四。".encode("gb18030")) is None  # no idea, rather than a wrong one
