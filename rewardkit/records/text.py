"""Text that came from a model or a stranger's file, made safe to show and to write."""

from __future__ import annotations

import os
import re
from typing import Any

from rewardkit import display

_SURROGATE = re.compile("[\ud800-\udfff]")


def shorten(text: str, limit: int) -> str:
    """Return `text` cut to at most `limit` characters, the last of them `…` when something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: str) -> str:
    """Return all of `text` with line ends, escapes, bidirectional marks and the like spelled out."""
    return display.visible(text, limit=None)


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text to show and to write, read as UTF-8 whatever the locale says."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # it has been text already
        return without_surrogates(os.fspath(path))


def without_surrogates(text: str) -> str:
    """Return `text` with each lone surrogate, which UTF-8 cannot hold, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def clean(value: Any) -> Any:
    """Return a JSON value with `without_surrogates` applied to every text in it, keys too."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value
