"""Following a file that grows: whole lines only, across rotations, without a busy loop and without losing one."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewardkit.errors import InputError
from rewardkit.records.follow import FollowedSource


class Reader:
    """Reads a followed file in a thread, as a run does."""

    def __init__(self, path: Path) -> None:
        self.stop = threading.Event()
        self.source = FollowedSource(path, self.stop)
        self.source.following = True
        self.lines: list[bytes] = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        for line in self.source.lines():
            self.lines.append(line)

    def wait_for(self, count: int) -> list[bytes]:
        wait(lambda: len(self.lines) >= count)
        return self.lines

    def end(self) -> list[bytes]:
        self.stop.set()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.lines


def wait(until: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "live.jsonl"
    path.write_bytes(b"1\n")
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    reader = Reader(path)
    yield reader
    reader.end()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_appended_lines_come_as_they_are_written(path: Path, reader: Reader) -> None:
    reader.wait_for(1)
    append(path, b"2\n3\n")
    assert reader.wait_for(3) == [b"1\n", b"2\n", b"3\n"]


def test_a_half_written_line_waits_for_its_end(path: Path, reader: Reader) -> None:
    append(path, b'{"a": ')
    append(path, b"")
    reader.wait_for(1)
    time.sleep(0.5)
    assert reader.lines == [b"1\n"]
    append(path, b"1}\n")
    assert reader.wait_for(2)[1] == b'{"a": 1}\n'


def test_a_half_written_line_is_left_out_at_the_end(path: Path) -> None:
    reader = Reader(path)
    append(path, b"half")
    reader.wait_for(1)
    assert reader.end() == [b"1\n"]


def test_rotation_by_renaming_reads_the_rest_of_the_old_file_first(path: Path, reader: Reader) -> None:
    reader.wait_for(1)
    old = path.with_suffix(".1")
    os.rename(path, old)
    append(old, b"2\n")  # the writer has not noticed yet
    time.sleep(0.3)
    path.write_bytes(b"3\n")
    assert reader.wait_for(3) == [b"1\n", b"2\n", b"3\n"]
    assert reader.source.rotations == 1


def test_rotation_by_truncating_begins_anew(path: Path, reader: Reader) -> None:
    append(path, b"a long enough line\n")
    reader.wait_for(2)
    path.write_bytes(b"2\n")
    assert reader.wait_for(3)[2] == b"2\n"


def test_the_unfinished_last_line_of_a_rotated_file_is_a_line(path: Path, reader: Reader) -> None:
    append(path, b"last")
    reader.wait_for(1)
    time.sleep(0.3)
    os.rename(path, path.with_suffix(".1"))
    path.write_bytes(b"3\n")
    assert reader.wait_for(3) == [b"1\n", b"last", b"3\n"]


def test_it_waits_for_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "later.jsonl"
    timer = threading.Timer(0.3, path.write_bytes, (b"1\n",))
    timer.start()
    source = FollowedSource(path, threading.Event())
    assert list(source.lines()) == [b"1\n"]  # not following yet: what is there now
    timer.join()


def test_stopping_before_the_first_line_is_said(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InputError, match="before it had a first line"):
        FollowedSource(tmp_path / "never.jsonl", stop)


def test_compressed_files_and_standard_input_are_refused(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b"1\n" * 10) + b"\n")
    with pytest.raises(InputError, match="compressed"):
        FollowedSource(packed, threading.Event())
    with pytest.raises(InputError, match="standard input"):
        FollowedSource("-", threading.Event())
    with pytest.raises(InputError, match="cannot be followed"):
        FollowedSource(tmp_path, threading.Event())


def test_a_line_beyond_the_limit_comes_cut_and_the_next_one_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardkit.records.follow.MAX_LINE", 10)
    append(path, b"x" * 5_000_000 + b"\n2\n")
    reader = Reader(path)
    assert reader.wait_for(3) == [b"1\n", b"x" * 11, b"2\n"]
    reader.end()
