"""The sandbox of this process: one for each level, started when first needed, closed when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

from rewardkit.sandbox import Level, Sandbox

_open: dict[Level, Sandbox] = {}
_owner = os.getpid()
_lock = threading.Lock()


def sandbox(level: Level) -> Sandbox:
    """Return this process's sandbox of a level.

    Raises:
        SandboxUnavailable: It cannot start.
    """
    global _owner
    with _lock:
        if _owner != os.getpid():  # a fork: its parent's servers are not ours
            _open.clear()
            _owner = os.getpid()
        if level not in _open:
            with _uncapped():
                _open[level] = Sandbox(level)
        return _open[level]


@contextlib.contextmanager
def _uncapped() -> Iterator[None]:
    """Lift the memory cap under which a worker judges: the server that is started would inherit it for good."""
    try:
        import resource
    except ImportError:
        yield
        return
    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    before = [(kind, resource.getrlimit(kind)) for kind in kinds]
    for kind, (_, hard) in before:
        resource.setrlimit(kind, (hard, hard))
    try:
        yield
    finally:
        for kind, limits in before:
            resource.setrlimit(kind, limits)


def close_all() -> None:
    """End the sandboxes of this process; the next use starts new ones."""
    with _lock:
        if _owner == os.getpid():
            for one in _open.values():
                one.close()
        _open.clear()


atexit.register(close_all)
