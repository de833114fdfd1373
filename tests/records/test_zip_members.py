"""Members of a zip archive: the standard library's own archives are the oracle, and damage is said, never raised."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.records import zip_members
from rewardkit.records.zip_members import BadMember, Member, NoDirectory, members, read, scan


class NoSeek(io.RawIOBase):
    """A pipe: zipfile then writes sizes after the data."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.data += bytes(data)
        return len(data)


def archive(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, *, pipe: bool = False) -> bytes:
    out = NoSeek() if pipe else io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return bytes(out.data) if pipe else out.getvalue()


def zstd_archive(files: dict[str, bytes], frames: int = 1) -> bytes:
    """An archive of method 93, put together by hand from the format's description."""
    body, directory = b"", b""
    for name, data in files.items():
        step = max(1, -(-len(data) // frames))
        parts = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
        packed = b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)
        common = struct.pack("<HHHHHLLLHH", 63, 0, 93, 0, 0, zlib.crc32(data), len(packed), len(data), len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<H", 63) + common + struct.pack("<HHHLL", 0, 0, 0, 0, len(body))
        directory += name.encode()
        body += b"PK\x03\x04" + common + name.encode() + packed
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(files), len(files), len(directory), len(body), 0)
    return body + directory + end


def contents(data: bytes) -> dict[str, bytes]:
    file = io.BytesIO(data)
    return {member.name: read(file, member) for member in members(file)}


FILES = {"a.json": b'{"a": 1}', "samples/x y_epoch_1.json": b"x" * 5000, "empty": b""}

texts = st.dictionaries(
    st.text("abc/é", min_size=1, max_size=5).filter(lambda n: not n.endswith("/")), st.binary(max_size=200)
)


@given(texts, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.booleans())
def test_any_archive_gives_back_what_went_in(files, method, pipe):
    assert contents(archive(files, method, pipe=pipe)) == files


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.binary(max_size=300), max_size=4), st.integers(1, 3))
def test_zstandard_members_of_one_or_more_frames(files, frames):
    """Trap: a decompressor that stops at the first frame loses the rest in silence."""
    assert contents(zstd_archive(files, frames)) == files


@pytest.mark.parametrize("data", [archive(FILES), archive(FILES, pipe=True), zstd_archive(FILES)])
def test_without_its_directory_the_members_are_found_one_by_one(data):
    file = io.BytesIO(data[: data.index(b"PK\x01\x02")])
    with pytest.raises(NoDirectory):
        members(file)
    assert {member.name: read(file, member) for member in scan(file)} == FILES


@pytest.mark.parametrize("data", [archive(FILES), archive(FILES, pipe=True), zstd_archive(FILES)])
def test_cut_anywhere_it_gives_whole_members_or_says_that_one_is_cut_off(data):
    for end in range(0, data.index(b"PK\x01\x02"), 7):
        file = io.BytesIO(data[:end])
        for member in scan(file):
            try:
                assert read(file, member) == FILES[member.name]
            except BadMember as problem:
                assert "cut off" in str(problem) or "damaged" in str(problem)


def test_one_byte_that_changed_is_noticed_by_the_checksum():
    data = bytearray(archive(FILES, zipfile.ZIP_STORED))
    at = data.index(b"xxxx") + 1000
    data[at] ^= 1
    file = io.BytesIO(bytes(data))
    bad = next(member for member in members(file) if member.name.startswith("samples"))
    with pytest.raises(BadMember, match="its checksum is another one"):
        read(file, bad)


def test_a_wrong_place_or_a_wrong_size_is_said():
    file = io.BytesIO(archive(FILES))
    first = members(file)[0]
    with pytest.raises(BadMember, match="is not where"):
        read(file, first._replace(offset=3))
    with pytest.raises(BadMember, match="instead of 9"):
        read(file, first._replace(size=9))
    with pytest.raises(BadMember, match="are missing"):
        read(file, first._replace(packed=10**6))


def test_what_is_encrypted_or_packed_in_an_unknown_way_is_said():
    file = io.BytesIO(archive(FILES))
    first = members(file)[0]
    with pytest.raises(BadMember, match="encrypted"):
        read(file, first._replace(flags=1))
    with pytest.raises(BadMember, match="method 99"):
        read(file, first._replace(method=99))


@pytest.mark.parametrize("make", [archive, zstd_archive])
def test_a_member_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch, make):
    """Trap: the size in the directory may lie, so what is unpacked is limited too."""
    monkeypatch.setattr(zip_members, "MAX_MEMBER", 1000)
    file = io.BytesIO(make({"bomb": b"\0" * 100_000}))
    (member,) = members(file)
    with pytest.raises(BadMember, match="is larger than"):
        read(file, member)
    with pytest.raises(BadMember, match="is larger than"):
        read(file, member._replace(size=None, crc=None))
    with pytest.raises(BadMember, match="is larger than"):
        read(file, Member("a", 8, 0, None, 2000, None, 0))
