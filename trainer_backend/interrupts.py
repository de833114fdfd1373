"""Ctrl-C once: finish the step and save. Twice: now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = ("SIGINT", "SIGTERM")


class Interrupts:
    """Whether somebody wants the run to end, from inside `watched`.

    Attributes:
        asked: Whether a first signal has come while the run was at work that is worth finishing.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.asked = False
        self._patient = False
        self._say = say

    @contextmanager
    def watched(self) -> Iterator[Interrupts]:
        """Take SIGINT and SIGTERM; outside of the main thread, where that cannot be done, nothing is taken."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before: dict[int, Any] = {}
        for name in _SIGNALS:
            number = getattr(signal, name)
            before[number] = signal.signal(number, self._came)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside, a first signal waits until somebody looks at `asked`."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self._patient:
            raise KeyboardInterrupt
        self.asked = True
        self._say("finishing this step, then saving; Ctrl-C again stops at once")
