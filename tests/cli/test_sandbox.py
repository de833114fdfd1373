"""`rewardkit sandbox`: the level that works, the one that does not and why, the exit codes, JSON."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from rewardkit import sandbox
from rewardkit.cli import sandbox as page
from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import LEVELS, reasons


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(page.command, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def test_what_works_is_said_and_tried() -> None:
    problem = sandbox.available()["strict"]
    if problem is not None and not os.environ.get("CI"):
        pytest.skip(problem)
    code, text = invoke("--require", "strict")
    assert code == 0, text
    assert "strict    works" in text and "self-test of strict: 14 of 14 attempts stopped" in text
    assert "NOT STOPPED  start a process" in text.partition("self-test of unsafe")[2]


@pytest.fixture
def no_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that refuses namespaces, seen at the point where the answer of the kernel is known."""
    real = page.self_test

    def refused(level: sandbox.Level) -> list[tuple[str, str]]:
        if level == "strict":
            raise reasons.unavailable(level, "new namespaces", 1)
        return real(level)

    monkeypatch.setattr(page, "self_test", refused)


@pytest.mark.usefixtures("no_strict")
def test_what_does_not_work_is_explained() -> None:
    code, text = invoke()
    assert code == 0
    assert "strict    no" in text and "new namespaces: Operation not permitted" in text
    assert "level='landlock'" in text and "docker run" in text
    assert invoke("--require", "strict")[0] == 1
    assert invoke("--require", "unsafe")[0] == 0


@pytest.mark.usefixtures("no_strict")
def test_json() -> None:
    code, text = invoke("--json", "--require", "strict")
    found = json.loads(text)
    assert code == 1 and list(found["levels"]) == list(LEVELS)
    strict = found["levels"]["strict"]
    assert (strict["works"], strict["step"], strict["cause"]) == (False, "new namespaces", "Operation not permitted")
    assert strict["ways_out"] and found["levels"]["unsafe"]["works"] is True


@pytest.mark.parametrize("number", [1, 13, 22, 28, 38, 87, 0])
@pytest.mark.parametrize("level", LEVELS)
def test_every_reason_is_one_message(level: sandbox.Level, number: int) -> None:
    problem = reasons.unavailable(level, "a step", number)
    assert isinstance(problem, SandboxUnavailable)
    assert str(problem).startswith(f"the sandbox level '{level}' cannot be started: a step: ")
    assert problem.reason == "sandbox_unavailable"
