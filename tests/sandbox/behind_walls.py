"""What the sandbox's tests share: limits, and how to run what must end well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import Level, Limits, Sandbox, host

SOURCE = Path(host.__file__).parent
WIDE = Limits(cpu_seconds=20, wall_seconds=60)
"""For programs that are to end by themselves, on a machine that may be busy."""

Cut = tuple[str, str, str]
"""A file of the sandbox, a text in it, and what stands there when a layer is taken out."""


def started(level: Level) -> Sandbox:
    """Start a level; where it is not to be had, fail in CI and skip elsewhere."""
    try:
        return Sandbox(level)
    except SandboxUnavailable as problem:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs the sandbox level {level}: {problem}")
        pytest.skip(str(problem))


def printed(sandbox: Sandbox, source: str, limits: Limits = WIDE) -> str:
    """Run a program that must end well; return what it printed."""
    done = sandbox.run(source, limits=limits)
    assert (done.status, done.code) == ("exited", 0), done
    return done.stdout.decode().strip()
