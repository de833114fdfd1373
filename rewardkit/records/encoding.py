"""Which encoding text that is not UTF-8 is likely in, so that the user can be told how to convert it.

Nothing is converted here: a wrong guess would change texts without a word.
"""

from __future__ import annotations

import re

from rewardkit.errors import InputError
from rewardkit.records.source import Source

_RUN = re.compile(rb"[\x80-\xff]+")
# What Western texts in Windows-1252 hold beyond ASCII: letters, quotation marks, dashes, a few signs. Without ÿ and þ
# (0xFF and 0xFE are what damage looks like).
_WESTERN = frozenset(
    b"\x80\x85\x8a\x8c\x8e\x91\x92\x93\x94\x95\x96\x97\x99\x9a\x9c\x9e\x9f"
    b"\xa0\xa1\xa3\xa7\xa9\xaa\xab\xae\xb0\xb1\xb2\xb3\xb4\xb5\xb7\xb9\xba\xbb\xbc\xbd\xbe\xbf"
) | frozenset(range(0xC0, 0xFE))
_LEADS = frozenset(b"\xc2\xc3")  # Â and Ã, or a letter in UTF-8 that was cut in two
_CYRILLIC = frozenset(range(0xC0, 0x100)) | frozenset(b"\xa8\xb8\xb3\xbf\xab\xbb\x96\x97\xb9")


def likely_encoding(data: bytes) -> str | None:
    """Return iconv's name of the encoding that text is likely in; None for UTF-8, damaged or not, and for no idea."""
    wide = _wide(data[:4096])
    if wide:
        return wide
    try:
        data.decode()
        return None
    except UnicodeDecodeError as problem:
        if problem.start >= len(data) - 3 and problem.reason == "unexpected end of data":
            return None  # the beginning of a file may end within a character
    if b"\x00" in data:
        return None
    runs = _RUN.findall(data)
    if any(map(_is_utf8, runs)):
        return None
    high = b"".join(runs)
    if len(high) < 1.6 * len(runs):
        signs = sum(byte in _WESTERN for byte in high)
        return "WINDOWS-1252" if signs >= 0.9 * len(high) and not _LEADS.issuperset(high) else None
    return "WINDOWS-1251" if sum(byte in _CYRILLIC for byte in high) >= 0.97 * len(high) else None


def _wide(start: bytes) -> str | None:
    even, odd, half = start[0::2].count(0), start[1::2].count(0), len(start) // 2
    if half < 2:
        return None
    if odd > 0.4 * half and even < 0.05 * half:
        return "UTF-16LE"
    return "UTF-16BE" if even > 0.4 * half and odd < 0.05 * half else None


def _is_utf8(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_encoding(source: Source, size: int) -> None:
    """Raise InputError, with the line that converts the file, when its first `size` bytes are in another encoding."""
    encoding = likely_encoding(source.head(size))
    if encoding is None:
        return
    raise InputError(f"{source.name} is not UTF-8; it looks like {encoding}. If it is, {source.conversion(encoding)}")
