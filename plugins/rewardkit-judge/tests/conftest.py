"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Judge, running, says

import rewardkit_judge.client as client


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """A judge that says "the same" unless a test scripts otherwise; waits are short, and no key is set."""
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with running(says({"explanation": "as it is", "equivalent": True})) as server:
        yield server
