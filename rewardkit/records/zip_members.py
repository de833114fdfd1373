"""The members of a zip archive, each read alone and with a limit: stored, deflated, or Zstandard (method 93).

The standard library reads method 93 only from Python 3.14. An archive that was cut off has lost its directory, which
stands at the end; its members are then found by their own headers, one after the other.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAX_MEMBER = 256 * 1024 * 1024  # bytes, packed or not; a larger member is refused instead of filling the memory

MAGIC = b"PK\x03\x04"
_HEADER = struct.Struct("<4s5H3I2H")  # the header in front of each member, up to its name
_STORED, _DEFLATED, _ZSTD = 0, 8, 93
_SIZE_LATER = 0x8  # flag: sizes and checksum come after the data
_ENCRYPTED = 0x1
_ZIP64 = 0xFFFF_FFFF


class NoDirectory(ValueError):
    """The directory at the archive's end is absent or broken."""


class BadMember(ValueError):
    """A member that cannot be read; the message says why."""


class Member(NamedTuple):
    """One member: name, method, flags, checksum, sizes packed and unpacked, and where its header begins in the file.

    Without a directory, checksum and sizes of one that is cut off may be unknown (None).
    """

    name: str
    method: int
    flags: int
    crc: int | None
    packed: int | None
    size: int | None
    offset: int


def members(file: BinaryIO) -> list[Member]:
    """Return what the archive's directory lists, folders left out.

    Raises:
        NoDirectory: There is none, or it is broken.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return [
                Member(i.filename, i.compress_type, i.flag_bits, i.CRC, i.compress_size, i.file_size, i.header_offset)
                for i in archive.infolist()
                if not i.is_dir()
            ]
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, EOFError) as problem:
        raise NoDirectory(str(problem)) from None


def scan(file: BinaryIO) -> Iterator[Member]:
    """Yield the members of an archive without a directory, up to its end or to where none can be found any more."""
    offset = 0
    while True:
        file.seek(offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(MAGIC):
            return
        _, _, flags, method, _, _, crc, packed, size, name_size, extra_size = _HEADER.unpack(header)
        name = file.read(name_size).decode("utf-8", "replace")
        extra = file.read(extra_size)
        begin = offset + _HEADER.size + name_size + extra_size
        if flags & _SIZE_LATER:
            try:
                data, used = _unpack(file, begin, None, method)
            except BadMember:
                yield Member(name, method, flags, None, None, None, offset)
                return  # where the next one begins is not known
            yield Member(name, method, flags, zlib.crc32(data), used, len(data), offset)
            offset = _after_descriptor(file, begin + used)
            continue
        if _ZIP64 in (packed, size):
            packed, size = _zip64(extra, packed, size)
        yield Member(name, method, flags, crc, packed, size, offset)
        offset = begin + packed


def read(file: BinaryIO, member: Member) -> bytes:
    """Return the bytes of a member that the directory lists.

    Raises:
        BadMember: It is damaged, cut off, encrypted, too large, or packed by a method that is not known.
    """
    if member.flags & _ENCRYPTED:
        raise BadMember("is encrypted")
    if max(member.packed or 0, member.size or 0) > MAX_MEMBER:
        raise BadMember(f"is larger than {MAX_MEMBER // 2**20} MiB")
    file.seek(member.offset)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise BadMember("is not where the archive's directory says: the archive is damaged")
    name_size, extra_size = _HEADER.unpack(header)[-2:]
    data, _ = _unpack(file, member.offset + _HEADER.size + name_size + extra_size, member.packed, member.method)
    if member.size is not None and len(data) != member.size:
        raise BadMember(f"is damaged or cut off: {len(data):,} bytes instead of {member.size:,}")
    if member.crc is not None and zlib.crc32(data) != member.crc:
        raise BadMember("is damaged: its checksum is another one")
    return data


def _unpack(file: BinaryIO, begin: int, packed: int | None, method: int) -> tuple[bytes, int]:
    """Return the unpacked bytes of what begins at `begin`, and how many packed bytes they took."""
    file.seek(begin)
    raw = file.read(MAX_MEMBER + 1 if packed is None else packed)
    if packed is not None and len(raw) < packed:
        raise BadMember(f"is cut off: {packed - len(raw):,} bytes are missing")
    if method == _STORED and packed is not None:
        return raw, packed
    if method == _DEFLATED:
        return _inflate(raw)
    if method == _ZSTD:
        return _unzstd(raw, whole=packed is not None)
    raise BadMember(f"is packed by method {method}, which is not known here")


def _inflate(raw: bytes) -> tuple[bytes, int]:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = stream.decompress(raw, MAX_MEMBER + 1)
    except zlib.error as problem:
        raise BadMember(f"is damaged: {problem}") from None
    if len(data) > MAX_MEMBER:
        raise BadMember(f"is larger than {MAX_MEMBER // 2**20} MiB")
    if not stream.eof:
        raise BadMember("is cut off: its data ends too early")
    return data, len(raw) - len(stream.unused_data)


def _unzstd(raw: bytes, *, whole: bool) -> tuple[bytes, int]:
    """Unpack one or more frames; `whole`: all of `raw` is this member's, else the first frame is."""
    import zstandard

    context = zstandard.ZstdDecompressor(max_window_size=2**31)
    try:
        if whole:
            with context.stream_reader(io.BytesIO(raw), read_across_frames=True) as stream:
                data = stream.read(MAX_MEMBER + 1)
            used = len(raw)
        else:
            frame = context.decompressobj()
            data = frame.decompress(raw)
            if not frame.eof:
                raise BadMember("is cut off: its data ends too early")
            used = len(raw) - len(frame.unused_data)
    except zstandard.ZstdError as problem:
        raise BadMember(f"is damaged: {problem}") from None
    if len(data) > MAX_MEMBER:
        raise BadMember(f"is larger than {MAX_MEMBER // 2**20} MiB")
    return data, used


def _zip64(extra: bytes, packed: int, size: int) -> tuple[int, int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and length >= 16 and at + 20 <= len(extra):
            size, packed = struct.unpack_from("<QQ", extra, at + 4)
            return packed, size
        at += 4 + length
    return packed, size


def _after_descriptor(file: BinaryIO, end: int) -> int:
    """Return where the next header begins after the data that end at `end`: their sizes stand between, in 4 ways."""
    file.seek(end)
    after = file.read(64)
    at = after.find(b"PK", 4 if after.startswith(b"PK\x07\x08") else 0)
    return end + at if at >= 0 else end + len(after)
