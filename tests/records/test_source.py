"""Files as decompressed bytes: compression by content, encodings, pipes, damage."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import threading

import pytest
import zstandard

from rewardkit.errors import InputError
from rewardkit.records import Source, read_generations
from rewardkit.records import source as source_module
from rewardkit.records.jsonl import READER as JSONL
from rewardkit.records.rows import BadRow
from rewardkit.records.source import Damaged

LINE = b'{"completion": "x"}\n'


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zst], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a"])
def test_compression_is_known_by_content_whatever_the_suffix(tmp_path, pack, name):
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbf" + LINE * 3))
    source = Source(tmp_path / name)
    assert list(source.lines()) == [LINE] * 3
    assert source.head(5) == LINE[:5]
    assert list(source.lines()) == [LINE] * 3  # as often as needed


@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
def test_several_members_are_one_file(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(LINE) + pack(b"") + pack(LINE * 2))
    assert list(Source(tmp_path / "a").lines()) == [LINE] * 3


@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
def test_a_cut_off_end_is_seen(tmp_path, pack):
    """Trap: the Zstandard library's own reader stops at a cut-off frame without a word."""
    lines = b"".join(b'{"completion": "%d"}\n' % (i * 7919) for i in range(50_000))
    packed = pack(lines)
    (tmp_path / "a").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(Damaged):
        list(Source(tmp_path / "a").lines())
    rows = list(JSONL.rows(Source(tmp_path / "a")))
    assert isinstance(rows[-1], BadRow)
    assert "cut off" in rows[-1].why
    assert rows[-1].line == len(rows)


@pytest.mark.parametrize("start", [b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
def test_garbage_after_the_first_bytes_is_damage_and_no_traceback(tmp_path, start):
    (tmp_path / "a.jsonl.gz").write_bytes(start + b"garbage" * 9)
    with pytest.raises(InputError, match=r"a\.jsonl\.gz"):
        read_generations(tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_other_encodings_get_a_way_out(tmp_path, encoding):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (tmp_path / "a.csv").write_bytes(mark + "completion\nx\n".encode(encoding))
    with pytest.raises(InputError, match="iconv -f UTF-"):
        read_generations(tmp_path / "a.csv")


def test_identity_is_that_of_the_stored_bytes(tmp_path):
    data = gzip.compress(LINE)
    (tmp_path / "a.gz").write_bytes(data)
    identity = Source(tmp_path / "a.gz").identity()
    assert (identity.bytes, identity.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert identity.path == str(tmp_path / "a.gz")
    assert identity.lines is None


@pytest.mark.parametrize(
    ("data", "lines"), [(b"", 0), (LINE * 3, 3), (LINE * 2 + b"{}", 3), (b"\n", 1), (b"x" * 600_000, 1)]
)
def test_identity_counts_lines(tmp_path, data, lines):
    (tmp_path / "a").write_bytes(data)
    identity = Source(tmp_path / "a").identity()
    assert (identity.lines, identity.bytes) == (lines, len(data))
    assert identity.sha256 == hashlib.sha256(data).hexdigest()


def test_standard_input_is_copied_to_the_spool_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(LINE * 2))))
    records = read_generations("-", spool=tmp_path / "spool")
    assert [g.where for g in records] == ["stdin:1", "stdin:2"]
    assert (tmp_path / "spool").read_bytes() == gzip.compress(LINE * 2)
    assert records.source.identity().path == "-"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_read_once_like_standard_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(LINE * 2))
    writer.start()
    assert len(list(read_generations(tmp_path / "pipe"))) == 2
    writer.join()


def test_missing_files_and_directories_say_what_to_do(tmp_path):
    (tmp_path / "answers.jsonl").write_bytes(LINE)
    with pytest.raises(InputError, match=r"did you mean answers\.jsonl"):
        Source(tmp_path / "answer.jsonl")
    with pytest.raises(InputError, match=r"is a folder, where one file is wanted, such as .*answers\.jsonl"):
        Source(tmp_path)
    with pytest.raises(InputError):
        Source("a\0b")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_a_dangling_link_is_called_one(tmp_path):
    """Trap: `no file a.jsonl; did you mean a.jsonl?`"""
    os.symlink("gone\x1b.jsonl", tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl is a link to gone\\x1b\.jsonl, and there is no such file$"):
        Source(tmp_path / "a.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs /dev/null")
def test_a_device_is_called_by_its_path():
    with pytest.raises(InputError, match=r"^/dev/null is empty"):
        read_generations("/dev/null")
    assert Source("/dev/null").plain_name == "null"


def test_a_line_beyond_the_limit_is_one_bad_row(tmp_path, monkeypatch):
    """Trap: the rest of a long line must not count as further lines."""
    monkeypatch.setattr(source_module, "MAX_LINE", 64)
    monkeypatch.setattr("rewardkit.records.jsonl.MAX_LINE", 64)
    (tmp_path / "a.jsonl").write_bytes(LINE + b'{"completion": "' + b"x" * 1000 + b'"}\n' + LINE)
    rows = list(JSONL.rows(Source(tmp_path / "a.jsonl")))
    assert [type(row).__name__ for row in rows] == ["Row", "BadRow", "Row"]
    assert rows[2].line == 3


def test_the_locale_is_nothing_to_us(tmp_path):
    """Trap: in the C locale without UTF-8 mode, text files open as ASCII."""
    (tmp_path / "résultats 1.jsonl").write_text('{"completion": "数学 😀"}\n', encoding="utf-8")
    (tmp_path / "t.csv").write_text("completion\n数学 😀\n", encoding="utf-8")
    code = (
        "import sys; from rewardkit.records import read_generations as r;"
        "print([[ascii(g.completions[0].text) for g in r(p)] for p in sys.argv[1:]])"
    )
    env = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    command = [sys.executable, "-c", code, str(tmp_path / "résultats 1.jsonl"), str(tmp_path / "t.csv")]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert eval(done.stdout) == [[ascii("数学 😀")]] * 2
