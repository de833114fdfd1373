"""Regular expressions that are compiled at their first use: compiling all of them was most of the verifier's import."""

from __future__ import annotations

import re
from typing import Any, cast


class _Lazy:
    """Stands for a pattern. Its methods are the compiled pattern's own from the first use on."""

    def __init__(self, source: str, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._source, self._flags), name)
        setattr(self, name, found)
        return found


def lazily(source: str, flags: int = 0) -> re.Pattern[str]:
    """Return what can be used as `re.compile(source, flags)`; a wrong source raises at the first use only."""
    return cast("re.Pattern[str]", _Lazy(source, flags))
