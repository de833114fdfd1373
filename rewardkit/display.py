"""Text that came from a model or a stranger's file, made safe to show."""

from __future__ import annotations

import unicodedata

_NAMED = {"\n": "⏎", "\t": "\\t", "\r": "\\r"}


def visible(text: str, limit: int | None = 120) -> str:
    """Return `text` on one line, with everything that a terminal might act on shown as an escape, and shortened.

    Escaped are control characters, bidirectional overrides, zero-width and other format characters, lone surrogates,
    private and unassigned code points. A line break is shown as ⏎. At most `limit` characters come back (None: all).
    """
    pieces: list[str] = []
    length = 0
    for char in text if limit is None else text[: limit + 1]:
        piece = char if char.isprintable() or unicodedata.category(char) == "Zs" else _escaped(char)
        pieces.append(piece)
        length += len(piece)
        if limit is not None and length > limit:
            return _cut(pieces, limit)
    return "".join(pieces)


def _escaped(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(pieces: list[str], limit: int) -> str:
    length = sum(map(len, pieces))
    while pieces and length > limit - 1:
        length -= len(pieces.pop())
    return ("".join(pieces) + "…")[:limit]
