"""Progress while a run goes on: a bar on a real terminal, plain lines anywhere else.

No escape byte is written unless the stream is a real terminal; `FORCE_COLOR` does not make a pipe one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

from rewardkit.display import visible
from rewardkit.report.text import duration, three

if TYPE_CHECKING:
    import rich.progress


class Progress:
    """Tell how far a run is: a bar on a real terminal, elsewhere a plain line every ten seconds or ten per cent.

    A line at ten per cent comes at most once a second, and there is always a last line. Use it as a context manager.

    Args:
        stream: Where to tell it; standard error, usually.
        total: How many there are, where known.
        quiet: Say nothing at all.
        what: What is counted.
        clock: Seconds that never run backwards; for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int | None = None,
        quiet: bool = False,
        what: str = "completions",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done = 0
        self.failed = 0
        self._stream = stream
        self._total = total or None
        self._quiet = quiet
        self._what = visible(what)
        self._clock = clock
        self._started = self._said = clock()
        self._tenths = 0
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._started = self._said = self._clock()
        if not self._quiet and is_terminal(self._stream):
            self._bar = _bar(self._stream)
            self._task = self._bar.add_task(self._what, total=self._total, failed="", rate="")
            self._bar.start()
        return self

    @property
    def total(self) -> int | None:
        """How many there are, where known; it may be told later."""
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total or None
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self._total)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar away while something else is printed or asked on the terminal."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    def advance(self, n: int, failed: int = 0) -> None:
        """Count `n` more, of which `failed` ended in an error."""
        self.done += n
        self.failed += failed
        if self._quiet:
            return
        now = self._clock()
        waited = now - self._said
        if self._bar is not None:
            if waited >= 0.1:
                self._redraw(now)
        elif waited >= 10.0 or (waited >= 1.0 and self._total and self.done * 10 // self._total > self._tenths):
            self._say(now)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._bar is not None:
            self._redraw(self._clock())
            self._bar.stop()
            self._bar = None
        elif not self._quiet and (self.done or kind is None):
            self._say(self._clock(), last=True)
        return False

    def _redraw(self, now: float) -> None:
        self._said = now
        if self._bar is not None and self._task is not None:
            failed = f"{self.failed:,} failed" if self.failed else ""
            self._bar.update(self._task, completed=self.done, failed=failed, rate=self._rate(now))

    def _say(self, now: float, last: bool = False) -> None:
        self._said = now
        share = ""
        if self._total:
            self._tenths = self.done * 10 // self._total
            share = f" of {self._total:,} ({100 * self.done // self._total} %)"
        took = f" in {duration(now - self._started)}" if last else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        rate = self._rate(now)
        self._stream.write(f"{self._what}: {self.done:,}{share}{took}{failed}{', ' + rate if rate else ''}\n")
        self._stream.flush()

    def _rate(self, now: float) -> str:
        seconds = now - self._started
        return f"{three(self.done / seconds)}/s" if seconds > 0 and self.done else ""


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a real terminal that can move its cursor; no environment variable makes a pipe one."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):
        return False


def wants_color(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: a real terminal, and NO_COLOR is not set (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def _bar(stream: TextIO) -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("  {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[failed]}", markup=False),
        TimeRemainingColumn(),
        console=Console(file=stream, force_jupyter=False),
    )
