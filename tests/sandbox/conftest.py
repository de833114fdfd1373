"""A sandbox of each level, and copies of it with a layer taken out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from behind_walls import SOURCE, Cut, started

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import Level, Sandbox, host, programs


def pytest_report_header() -> str:
    found = []
    for level in ("strict", "landlock"):
        try:
            Sandbox(level).close()
        except SandboxUnavailable as problem:
            found.append(f"{level} unavailable ({problem.step}: {problem.cause})")
        else:
            found.append(level)
    return f"sandbox: {', '.join(found)}; uid {os.geteuid()}"


@pytest.fixture(scope="session")
def strict() -> Iterator[Sandbox]:
    with started("strict") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def landlock() -> Iterator[Sandbox]:
    with started("landlock") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def unsafe() -> Iterator[Sandbox]:
    with started("unsafe") as sandbox:
        yield sandbox


@pytest.fixture(params=["strict", "landlock", "unsafe"])
def any_level(request: pytest.FixtureRequest) -> Sandbox:
    sandbox: Sandbox = request.getfixturevalue(request.param)
    return sandbox


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sandbox]]:
    """Start a sandbox from a copy of its source with something cut out. The self-test is off unless asked for."""
    sandboxes: list[Sandbox] = []

    def start(*cuts: Cut, level: Level = "strict", probe: bool = False) -> Sandbox:
        folder = tmp_path / f"copy{len(os.listdir(tmp_path))}"
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name, old, new in cuts:
            text = (folder / name).read_text(encoding="utf-8")
            assert old in text, f"{name} has changed: {old!r} is not in it"
            (folder / name).write_text(text.replace(old, new), encoding="utf-8")
        monkeypatch.setattr(programs, "BOOT", folder / "boot.py")
        if not probe:
            monkeypatch.setattr(host, "_probe", lambda sandbox: [])
        try:
            sandbox = Sandbox(level)
        finally:
            monkeypatch.undo()
        sandboxes.append(sandbox)
        return sandbox

    yield start
    for sandbox in sandboxes:
        sandbox.close()
