"""Members of a zip archive as sources, read where they lie: nothing is unpacked to the disk."""

from __future__ import annotations

import io
import shlex
import zlib
from pathlib import Path
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.source import Source
from rewardkit.records.text import visible

_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # the second one: no member at all


def is_zip(head: bytes) -> bool:
    """Whether a file that begins so is a zip archive."""
    return head.startswith(_MAGIC)


class ZipMember(Source):
    """One member of an archive. `path` and `given` are the archive's; the name is ARCHIVE/MEMBER."""

    def __init__(self, archive: Source, member: str) -> None:
        self.given = archive.given
        self.path: Path = archive.path
        self.name = f"{archive.name}/{visible(member)}"
        self.member = member
        self._archive = archive  # keeps a spool file of standard input alive
        self._temporary = None

    def shell_text(self) -> str:
        """Return the beginning of a shell's command that gives the member's bytes to the next one."""
        return f"unzip -p {shlex.quote(self.given)} {shlex.quote(self.member)} | "

    def _raw(self) -> io.BufferedReader:
        import zipfile

        try:
            # The archive's file stays open until the member is closed.
            with zipfile.ZipFile(self.path) as archive:
                return io.BufferedReader(_MemberFile(archive.open(self.member)), 256 * 1024)
        except NotImplementedError as problem:
            raise InputError(f"{self.name}: {problem}; unpack it with another program") from None
        except RuntimeError:
            raise InputError(f"{self.name} is encrypted; unpack the archive first") from None
        except (zipfile.BadZipFile, KeyError, OSError, ValueError) as problem:
            raise InputError(f"{self.name}: the archive is damaged: {problem}") from None


def members(archive: Source) -> list[str]:
    """Return the names of an archive's files in the order in which they lie there.

    Raises:
        InputError: It is damaged.
    """
    import zipfile  # only where there is one: it takes a while to import

    try:
        with zipfile.ZipFile(archive.path) as opened:
            return list(dict.fromkeys(info.filename for info in opened.infolist() if not info.is_dir()))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
        raise InputError(f"{archive.name}: the zip archive is damaged or cut off: {problem}") from None


class _MemberFile(io.RawIOBase):
    """A member's bytes, whose damage is an OSError like that of any other compressed data."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import lzma
        import zipfile

        try:
            data = self._stream.read(len(buffer))
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as problem:
            raise OSError(str(problem)) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()
