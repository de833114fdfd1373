"""One input file, or standard input, as decompressed bytes.

Gzip and Zstandard are known by their first bytes, so a wrong suffix does no harm. Text is UTF-8 whatever the
locale says; a byte-order mark is skipped. Standard input and pipes are copied to a spool file first, because
detection reads the beginning twice and reports read texts again later.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shlex
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec

from rewardkit.errors import InputError, nearest
from rewardkit.records.text import path_text, visible

MAX_LINE = 256 * 1024 * 1024  # bytes; a longer line is reported as a bad row instead of filling the memory
HEAD = 64 * 1024  # bytes that readers see when they say whether a file is theirs
_BUFFER = 256 * 1024

_UTF8_BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# Formats in which line ends mean nothing: parquet, Arrow files and streams, zip archives.
_NO_LINES = (b"PAR1", b"PARE", b"ARRO", b"\xff\xff\xff\xff", b"PK\x03\x04")
_COMPRESSED = (".gz", ".zst", ".zstd")


class Damaged(InputError):
    """Compressed data that ends too early or is broken."""


class Identity(msgspec.Struct, frozen=True):
    """What a file was, for the run folder.

    Attributes:
        path: As given.
        bytes: Size as stored.
        sha256: Of the bytes as stored.
        lines: How many line ends they hold, which is the number of rows of a format with one a line; None for
            compressed data.
    """

    path: str
    bytes: int
    sha256: str
    lines: int | None = None


class Source:
    """One input, opened as often as needed.

    Attributes:
        given: The path as it was given; "-" is standard input.
        path: The file that holds the bytes (the spool file for standard input).
        name: Short name for messages: that of the file, "stdin", or the path of a pipe or device.

    Args:
        path: A file, or "-" for standard input.
        spool: Where standard input or a pipe is copied; a temporary file when not given.

    Raises:
        InputError: No such file, a folder (`find_inputs` says which files to read in one), or not readable.
    """

    def __init__(self, path: str | os.PathLike[str], *, spool: str | os.PathLike[str] | None = None) -> None:
        self.given = os.fspath(path)
        self._temporary: IO[bytes] | None = None
        if self.given == "-":
            self.name = "stdin"
            if sys.stdin is None:  # the shell closed it
                raise InputError("standard input is closed")
            self.path = self._copy(sys.stdin.buffer, spool)
            return
        self.path = Path(self.given)
        self.name = path_text(self.path.name)
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(
                    f"{path_text(self.given)} is a folder, where one file is wanted{_example_in(self.path)}"
                )
            if not stat.S_ISREG(mode):
                self.name = path_text(self.given)  # the last part of /dev/null or /dev/fd/63 says nothing
                with self.path.open("rb") as pipe:
                    self.path = self._copy(pipe, spool)
            else:
                self.path.open("rb").close()
        except FileNotFoundError:
            raise InputError(_absent(self.path, path_text(self.given))) from None
        except (OSError, ValueError) as problem:
            raise InputError(f"{path_text(self.given)} cannot be read: {problem}") from None

    def _copy(self, stream: BinaryIO, spool: str | os.PathLike[str] | None) -> Path:
        if spool is None:
            self._temporary = cast("IO[bytes]", tempfile.NamedTemporaryFile(prefix="rewardkit-", suffix=".input"))  # noqa: SIM115
            shutil.copyfileobj(stream, self._temporary, _BUFFER)
            self._temporary.flush()
            return Path(self._temporary.name)
        with open(spool, "wb") as copy:
            shutil.copyfileobj(stream, copy, _BUFFER)
        return Path(spool)

    @property
    def plain_name(self) -> str:
        """The name without a compression suffix, in lower case: what the file is called inside."""
        name = self.name.rpartition("/")[2].lower()
        for suffix in _COMPRESSED:
            name = name.removesuffix(suffix)
        return name

    def identity(self) -> Identity:
        """Return path, size, SHA-256 and number of lines of the stored bytes; reads the file once."""
        digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
        with self._raw() as file:
            start = file.peek(4)[:4]
            compressed = _is_gzip(start) or _is_zstd(start) or start in _NO_LINES
            while piece := file.read(_BUFFER):
                digest.update(piece)
                size += len(piece)
                lines += piece.count(b"\n")
                last = piece[-1:]
        lines += last != b"\n"
        return Identity(self.given, size, digest.hexdigest(), None if compressed else lines)

    def _raw(self) -> io.BufferedReader:
        """Return the bytes as stored."""
        return cast("io.BufferedReader", self.path.open("rb", buffering=_BUFFER))

    def shell_text(self) -> str:
        """Return the beginning of a shell's command that gives the decompressed bytes to the next one."""
        with self._raw() as file:
            start = file.peek(4)[:4]
        tool = "gzip -dc" if _is_gzip(start) else "zstd -dc" if _is_zstd(start) else "cat"
        return f"{tool} {shlex.quote(path_text(self.given))} | "

    def conversion(self, encoding: str) -> str:
        """Return what to do about a text in another encoding."""
        new = shlex.quote(f"utf8-{self.plain_name}")
        return f"convert it: {self.shell_text()}iconv -f {encoding} -t UTF-8 > {new}"

    def open_seekable(self) -> BinaryIO:
        """Return the decompressed bytes as a file in which one can go back; the caller closes it.

        Compressed data is copied to a temporary file without a name.

        Raises:
            Damaged: Compressed data ends too early or is broken.
        """
        raw = self._raw()
        start = raw.peek(4)[:4]
        if raw.seekable() and not _is_gzip(start) and not _is_zstd(start):
            return cast("BinaryIO", raw)
        copy = cast("BinaryIO", tempfile.TemporaryFile(prefix="rewardkit-"))  # noqa: SIM115
        try:
            with self._decompressed(raw) as stream:
                shutil.copyfileobj(stream, copy, _BUFFER)
        except BaseException as problem:
            copy.close()
            if isinstance(problem, (EOFError, OSError, zlib.error)):
                raise Damaged(f"{self.name}: data is damaged or cut off: {problem}") from None
            raise
        copy.seek(0)
        return copy

    def open(self) -> BinaryIO:
        """Return the decompressed bytes after any byte-order mark; the caller closes it.

        Raises:
            InputError: The text is UTF-16 or UTF-32.
            Damaged: Compressed data is broken from the start.
        """
        stream = self._decompressed(self._raw())
        try:
            start = stream.peek(4)[:4]
        except (EOFError, OSError, zlib.error) as problem:
            stream.close()
            raise Damaged(f"{self.name}: compressed data is damaged: {problem}") from None
        if start.startswith(_UTF8_BOM):
            stream.read(len(_UTF8_BOM))
        for mark, encoding in _OTHER_BOMS.items():
            if start.startswith(mark):
                stream.close()
                raise InputError(f"{self.name} is {encoding}, and rewardkit reads UTF-8; {self.conversion(encoding)}")
        return cast("BinaryIO", stream)

    @staticmethod
    def _decompressed(raw: Any) -> Any:
        magic = raw.peek(4)[:4]
        if _is_gzip(magic):
            return io.BufferedReader(_GzipFile(raw), _BUFFER)
        if _is_zstd(magic):
            return io.BufferedReader(_ZstdFile(raw), _BUFFER)
        return raw

    def head(self, size: int = HEAD) -> bytes:
        """Return the first `size` bytes of `open()`, or what can be read of them."""
        with self.open() as stream:
            try:
                return stream.read(size)
            except (EOFError, OSError, zlib.error):
                return b""

    def lines(self) -> Iterator[bytes]:
        """Yield lines with their ends; only "\\n" ends a line. A line longer than MAX_LINE comes cut to MAX_LINE + 1.

        Raises:
            Damaged: Compressed data ends too early or is broken; the lines before it have been yielded.
        """
        with self.open() as stream:
            readline = stream.readline
            try:
                while line := readline(MAX_LINE + 1):
                    if len(line) > MAX_LINE and not line.endswith(b"\n"):
                        while (rest := readline(MAX_LINE)) and not rest.endswith(b"\n"):
                            pass
                    yield line
            except (EOFError, OSError, zlib.error) as problem:
                raise Damaged(f"{self.name}: data is damaged or cut off here: {problem}") from None

    def read(self) -> bytes:
        """Return everything.

        Raises:
            Damaged: Compressed data ends too early or is broken.
        """
        with self.open() as stream:
            try:
                return stream.read()
            except (EOFError, OSError, zlib.error) as problem:
                raise Damaged(f"{self.name}: data is damaged or cut off: {problem}") from None


def _is_gzip(start: bytes) -> bool:
    return start.startswith(b"\x1f\x8b")


def _is_zstd(start: bytes) -> bool:
    return start == b"\x28\xb5\x2f\xfd" or (start[1:] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F)


class _GzipFile(gzip.GzipFile):
    """A gzip stream that closes the file below it."""

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._raw_file = raw

    def close(self) -> None:
        super().close()
        self._raw_file.close()


class _ZstdFile(io.RawIOBase):
    """A Zstandard stream of one or more frames; unlike the library's reader, it notices a cut-off end."""

    def __init__(self, raw: io.BufferedReader) -> None:
        import zstandard

        self._raw = raw
        self._context = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._ready = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._at >= len(self._ready):
            if not self._fill():
                return 0
        part = self._ready[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fill(self) -> bool:
        data = b""
        if self._frame is not None and self._frame.eof:
            data, self._frame = self._frame.unused_data, None
        data = data or self._raw.read(128 * 1024)
        if not data:
            if self._frame is not None:
                raise EOFError("Zstandard data ends before its end marker")
            return False
        if self._frame is None:
            self._frame = self._context.decompressobj()
        try:
            self._ready, self._at = self._frame.decompress(data), 0
        except self._error as problem:
            raise OSError(str(problem)) from None
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()


def _absent(path: Path, given: str) -> str:
    """Return why a path leads to no file, and where it may have been meant to lead."""
    try:
        if path.is_symlink():
            return f"{given} is a link to {visible(path_text(os.readlink(path)))}, and there is no such file"
        return f"no file {given}{nearest(path.name, sorted(os.listdir(path.parent))[:10_000])}"
    except (OSError, ValueError):
        return f"no file {given}"


def _example_in(folder: Path) -> str:
    for name in sorted(os.listdir(folder))[:10_000]:
        if ".json" in name or ".csv" in name:
            return f", such as {folder / name}"
    return ""
