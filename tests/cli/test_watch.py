"""`rewardkit eval --watch`: a running job's file is scored as it grows, and Ctrl-C leaves a finished folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Here


def row(at: int, right: bool = True) -> str:
    return json.dumps({"id": at, "prompt": f"p{at}", "answer": "4", "completion": f"#### {4 if right else 5}"}) + "\n"


class Watch:
    """A process that watches a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        command += "from rewardkit.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "eval", "live.jsonl", "-r", "gsm8k", "--watch", "-o", "run", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, count: int) -> dict[str, Any]:
        """Return the summary once it counts so many completions."""

        def there() -> bool:
            return self.summary() is not None and completions(self.summary()) >= count

        wait(there)
        summary = self.summary()
        assert summary is not None
        return summary

    def summary(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / "run/summary.json").read_text())
        except FileNotFoundError:
            return None
        return found

    def end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def completions(summary: dict[str, Any] | None) -> int:
    return sum(model["completions"] for model in (summary or {"models": {}})["models"].values())


def wait(until: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def live(cli: Here) -> Path:
    path = cli.folder / "live.jsonl"
    path.write_text(row(0) + row(1, right=False))
    return path


@pytest.fixture
def watch(live: Path) -> Iterator[Watch]:
    watch = Watch(live.parent)
    yield watch
    if watch.process.poll() is None:
        watch.process.kill()
        watch.process.communicate()


def test_appended_rows_are_scored_and_ctrl_c_keeps_them(live: Path, watch: Watch) -> None:
    watch.wait_for(2)
    with live.open("a") as file:
        file.write(row(2) + row(3)[:20])  # a half-written last line
        file.flush()
        assert completions(watch.wait_for(3)) == 3
        file.write(row(3)[20:])
    assert completions(watch.wait_for(4)) == 4
    code, out, err = watch.end()
    assert code == 130
    assert "--resume goes on" in err
    assert "gsm8k 0.75 (4 scored, 0 unscored)" in out
    assert "\x1b" not in out + err
    lines = [json.loads(line) for line in (live.parent / "run/scores.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [0, 1, 2, 3]


def test_a_rotated_file_goes_on(live: Path, watch: Watch) -> None:
    watch.wait_for(2)
    os.rename(live, live.with_suffix(".1"))
    live.write_text(row(7))
    assert completions(watch.wait_for(3)) == 3
    assert watch.end()[0] == 130


def test_resume_takes_over_and_watches_on(live: Path, watch: Watch) -> None:
    watch.wait_for(2)
    watch.end()
    with live.open("a") as file:
        file.write(row(2))
    again = Watch(live.parent, "--resume")
    assert completions(again.wait_for(3)) == 3
    assert again.end()[0] == 130
    lines = [json.loads(line) for line in (live.parent / "run/scores.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [0, 1, 2]


def test_what_cannot_be_followed_is_refused(cli: Here, live: Path) -> None:
    (cli.folder / "a.json").write_text(json.dumps([{"prompt": "p", "completion": "4", "answer": "4"}] * 3) + "\n")
    done = cli("eval", "a.json", "-r", "gsm8k", "--watch")
    assert done.code == 2 and "files of lines" in done.err
    done = cli("eval", "live.jsonl", "-r", "my_rewards.py:one_number", "--watch")
    assert done.code == 2 and "whole groups" in done.err
    done = cli("eval", "live.jsonl", "live.jsonl", "-r", "gsm8k", "--watch")
    assert done.code == 2 and "one file" in done.err
    done = cli("eval", "live.jsonl", "-r", "gsm8k", "--watch", "--limit", "3")
    assert done.code == 2 and "--watch goes on until" in done.err
