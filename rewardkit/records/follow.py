"""A file that another program is still writing: its lines as they are appended, across rotations."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from typing import BinaryIO

from rewardkit.errors import InputError
from rewardkit.records.source import MAX_LINE, Source
from rewardkit.records.text import path_text
from rewardkit.types import Generation

POLL = 0.2  # seconds between looks at a file that has no new line
_WAITING = 1024  # generations read and not taken yet


class FollowedSource(Source):
    """A file of lines that grows.

    Only whole lines are given out: a half-written last one waits for its end. Until `following` is set, `lines` ends
    where the file ends now; after that it waits for more, until `stop` is set. When the path leads to another file,
    or the file has become shorter (a rotation), the rest of the old file comes first and then the new one from its
    start.

    Args:
        path: The file; it may not be there yet.
        stop: Ends the waiting.

    Attributes:
        following: Whether `lines` waits at the end of the file.
        rotations: How often another file took the place of the one that was read.
        by_lines: Whether `lines` was called: a format that is read in another way cannot be followed.

    Raises:
        InputError: Standard input, a folder, a compressed file; or stopped before there was a first line.
    """

    def __init__(self, path: str | os.PathLike[str], stop: threading.Event) -> None:
        name = os.fspath(path)
        if name == "-":
            raise InputError("--watch follows a file; standard input is read to its end without it")
        while not _has_line(name):
            if stop.wait(POLL):
                raise InputError(f"{path_text(name)}: stopped before it had a first line")
        super().__init__(path)
        self.stop = stop
        self.following = False
        self.rotations = 0
        self.by_lines = False
        if self.head(4) != self._raw_start():
            raise InputError(f"{self.name} is compressed or begins with a byte-order mark; --watch follows plain lines")

    def _raw_start(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(4)

    def lines(self) -> Iterator[bytes]:
        """Yield whole lines with their ends. A line longer than MAX_LINE comes cut to MAX_LINE + 1, without an end."""
        self.by_lines = True
        file: BinaryIO = self.path.open("rb")
        begun = bytearray()  # the last line, without its end yet
        try:
            while True:
                piece = file.readline(1 << 20)
                if piece:
                    if len(begun) <= MAX_LINE:
                        begun += piece
                    if piece.endswith(b"\n"):
                        yield bytes(begun[: MAX_LINE + 1]) if len(begun) > MAX_LINE else bytes(begun)
                        begun.clear()
                    continue
                if not self.following:
                    return
                newer = self._rotated(file)
                if newer is not None:
                    file.close()
                    file = newer
                    self.rotations += 1
                    if begun:
                        yield bytes(begun[: MAX_LINE + 1])
                        begun.clear()
                elif self.stop.wait(POLL):
                    return
        finally:
            file.close()

    def _rotated(self, file: BinaryIO) -> BinaryIO | None:
        """Return the file that the path leads to now, where it is another one or begins anew."""
        try:
            now, before = os.stat(self.path), os.fstat(file.fileno())
            if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
                # What was written to the old file between our last look and the rotation comes first.
                return self.path.open("rb") if file.tell() >= before.st_size else None
            return self.path.open("rb") if now.st_size < file.tell() else None
        except OSError:  # between its removal and the new one
            return None


def _has_line(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\n" in file.read(1 << 20) or os.path.getsize(path) > 1 << 20
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise InputError(f"{path_text(path)} cannot be followed: {problem.strerror}") from None


def batches(records: Iterable[Generation], source: FollowedSource, seconds: float) -> Generator[list[Generation]]:
    """Yield the generations of a followed file as they come, an empty list when none has come for `seconds`.

    A thread reads; it ends when the source is stopped or this generator is closed. What the reading raises is raised
    here.
    """
    line: queue.Queue[Generation | BaseException | None] = queue.Queue(_WAITING)

    def read() -> None:
        end: BaseException | None = None
        try:
            for generation in records:
                if not _put(line, generation, source.stop):
                    return
        except BaseException as problem:
            end = problem
        _put(line, end, source.stop)

    reader = threading.Thread(target=read, name="rewardkit-follow", daemon=True)
    reader.start()
    try:
        while True:
            batch, ended = _take(line, seconds)
            yield batch
            if isinstance(ended, BaseException):
                raise ended
            if ended:
                return
    finally:
        source.stop.set()
        with contextlib.suppress(RuntimeError):
            reader.join()


def _put(
    line: queue.Queue[Generation | BaseException | None], item: Generation | BaseException | None, stop: threading.Event
) -> bool:
    while True:
        try:
            line.put(item, timeout=POLL)
            return True
        except queue.Full:
            if stop.is_set():
                return False


def _take(
    line: queue.Queue[Generation | BaseException | None], seconds: float
) -> tuple[list[Generation], bool | BaseException]:
    """Return what has come within some seconds, and whether (or with what exception) the reading has ended."""
    batch: list[Generation] = []
    end = time.monotonic() + seconds
    while len(batch) < _WAITING:
        left = end - time.monotonic()
        try:
            item = line.get_nowait() if batch else line.get(timeout=max(left, 0.001))
        except queue.Empty:
            break
        if isinstance(item, Generation):
            batch.append(item)
        else:
            return batch, True if item is None else item
    return batch, False
