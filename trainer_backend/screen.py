"""Where a run says what it does: a reader that has gone (`| head`) ends no training."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO

from rewardkit.display import visible


class Screen:
    """A text stream that falls silent once it cannot be written to; everything else is the stream's own.

    Args:
        stream: Standard error, usually; None: there is none, and nothing is said.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text while somebody reads."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):  # a ValueError says that the file is closed
                self._leave()
        return len(text)

    def flush(self) -> None:
        """Put out what waits, while somebody reads."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._leave()

    def _leave(self) -> None:
        """Say nothing from now on, and let what still waits in buffers go nowhere: Python would exit with 120."""
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()  # type: ignore[union-attr]
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)

    def isatty(self) -> bool:
        """Whether a terminal reads."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(text: str) -> None:
    """Print lines on standard output, whether or not somebody reads; no character acts on a terminal."""
    _print(sys.stdout, text)


def tell(text: str) -> None:
    """Print lines on standard error, whether or not somebody reads; no character acts on a terminal."""
    _print(sys.stderr, text)


def _print(stream: TextIO | None, text: str) -> None:
    screen = Screen(stream)
    screen.write("\n".join(visible(line, None) for line in text.split("\n")) + "\n")
    screen.flush()


def open_streams() -> None:
    """Give a process that was started with closed standard streams others, which lead nowhere.

    Else the next file that is opened gets their number, and what a C library prints goes into it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)
