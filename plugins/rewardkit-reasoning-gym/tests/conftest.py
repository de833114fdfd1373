"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared"


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Return the path of a file of the shared data, or skip the test where it is not there."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs the shared data ({name}), which is not beside this checkout")
        return path

    return find
