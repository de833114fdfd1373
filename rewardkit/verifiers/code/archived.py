"""LiveCodeBench's private tests: base64 of zlib of a pickled text. Read without unpickling anything."""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib

MAX_UNPACKED = 128 << 20  # bytes

_TEXT = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"})
_IDLE = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"})


def unpacked(text: str, what: str) -> str:
    """Return the text inside.

    Raises:
        ValueError: It is not of this form, or a pickle of anything else than one text, or too large.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        unzip = zlib.decompressobj()
        raw = unzip.decompress(packed, MAX_UNPACKED)
    except (binascii.Error, zlib.error, ValueError):
        raise ValueError(f"{what}: neither JSON nor base64 of zlib data") from None
    if unzip.unconsumed_tail:
        raise ValueError(f"{what}: more than {MAX_UNPACKED:,} bytes when unpacked")
    if raw[:1] in (b"[", b"{"):
        return raw.decode()
    found: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(raw):
            if operation.name in _TEXT:
                found.append(str(argument))
            elif operation.name not in _IDLE:
                raise ValueError(f"{what}: a pickle of something else than text, which is never loaded")
    except (ValueError, IndexError, UnicodeDecodeError) as problem:
        raise ValueError(f"{what}: {problem}") from None
    if len(found) != 1:
        raise ValueError(f"{what}: a pickle of one text is wanted")
    return found[0]
