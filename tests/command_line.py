"""A command line for tests: as a process of its own, or in this one where a process is not the point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

import rewardkit.cli

ROOT = Path(__file__).resolve().parents[1]

REWARDS = """
from rewardkit import Completion, Score, group_reward, reward

@reward
def brief(completion, *, max_words: int = 3) -> float:
    return float(len(completion.split()) <= max_words)

@reward
def one(completion):
    return 1

@reward
def zero(completion):
    return 0.0

@reward
def picky(completion):
    "Raises on a completion that says so."
    if "raise" in completion:
        raise ValueError("this row cannot be scored: " + completion)
    return 1.0

@reward
def odd(completion):
    return float("nan") if "nan" in completion else 0.5

@reward
def abstains(completion):
    return None

@reward
def wants(completion, question):
    return 1.0

@group_reward
def one_number(completions):
    return [1.0]

@reward
def tells(completion):
    raise RuntimeError("\\x1b[31mred\\x1b[0m \\u202e[bold]loud[/bold]\\x07\\nsecond line")

total = 0.7 * one + 0.3 * zero
"""

ROWS = [
    {"id": "a", "prompt": "1+1", "completion": "#### 2", "answer": "2"},
    {"id": "b", "prompt": "1+2", "completion": "so it is 4", "answer": "3"},
    {"id": "c", "prompt": "1+3", "completion": "it is 4", "answer": "4"},
]


class Result:
    """What a run of the command line left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def summary(self) -> dict[str, Any]:
        """Standard output as strict JSON."""
        return strict_json(self.out)


def strict_json(text: str) -> Any:
    """Read JSON as JavaScript does: NaN and Infinity are errors."""

    def refuse(token: str) -> NoReturn:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what changes encodings and colours."""
    unwanted = ("PYTHONUTF8", "PYTHONIOENCODING", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LC_ALL")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, **changes}


class Command:
    """`rewardkit` in a folder of its own, which has the rewards above in `my_rewards.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "my_rewards.py").write_text(REWARDS, encoding="utf-8")

    def write(self, name: str, rows: list[dict[str, Any]]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    def process(
        self, *arguments: str | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> Result:
        """Run it as a process. What it prints must be UTF-8 whatever the environment says."""
        done = subprocess.run(
            [sys.executable, "-m", "rewardkit", *map(str, arguments)],
            cwd=self.folder,
            env=environment(**(env or {})),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))

    def scores(self, folder: Path | None = None) -> list[dict[str, Any]]:
        """The lines of scores.jsonl of the only run here, or of a given folder."""
        path = folder / "scores.jsonl" if folder is not None else self.run_folder() / "scores.jsonl"
        return [strict_json(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def run_folder(self) -> Path:
        (found,) = (self.folder / "runs").iterdir()
        return found


class Here(Command):
    """The same, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Result:
        self.capsys.readouterr()
        code = rewardkit.cli.run([str(argument) for argument in arguments])
        caught = self.capsys.readouterr()
        return Result(code, caught.out, caught.err)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """The command line in an empty folder; `cli.write("a.jsonl", rows)`, then `cli("eval", "a.jsonl", …)`."""
    monkeypatch.chdir(tmp_path)
    yield Here(tmp_path, capsys)


@pytest.fixture
def small(cli: Here) -> Path:
    """Three rows of which gsm8k finds the first and the last right."""
    return cli.write("small.jsonl", ROWS)
