"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine must not fail a test; and a change is judged by the same examples each time, while developers
# get fresh ones.
settings.register_profile("rewardkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("rewardkit"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "rewardkit")

# Nothing in the tests may ask a hub for a model or a data set.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Real data that is too large to commit lies beside the checkout, where somebody has put it there.
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Return the path of a file of the shared data, or skip the test where it is not there."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs the shared data ({name}), which is not beside this checkout")
        return path

    return find
