"""The ledger: one line of JSON a request, appended; what a run cost is summed up from its lines."""

from __future__ import annotations

import datetime
import json
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SCHEMA = "rewardkit_judge.call/1"
RUN = uuid.uuid4().hex[:12]
"""This process's run: every line has it."""

_LOCK = threading.Lock()


@dataclass(frozen=True)
class Call:
    """One request: what was asked of whom, how it ended, and what it used. Texts and keys are never in it."""

    reward: str
    base_url: str
    model: str
    outcome: str  # "ok", or what went wrong
    attempt: int
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None  # in the currency of the prices; None where tokens or prices are not known


def append(path: str, call: Call) -> None:
    """Append one line. Lines of several processes do not mix: each is one write to a file opened for appending."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"schema": SCHEMA, "run": RUN, "time": now, **asdict(call)}) + "\n"
    file = Path(path).expanduser()
    with _LOCK:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


@dataclass
class Total:
    """What one run asked of one model."""

    run: str
    model: str
    started: str
    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    """Answered calls whose cost is not known."""


def totals(path: Path) -> list[Total]:
    """Return what each run spent, in the order of the file."""
    found: dict[tuple[str, str], Total] = {}
    for row in _rows(path):
        key = (str(row.get("run")), str(row.get("model")))
        total = found.setdefault(key, Total(*key, started=str(row.get("time"))))
        total.calls += 1
        total.failed += row.get("outcome") != "ok"
        total.prompt_tokens += _count(row.get("prompt_tokens"))
        total.completion_tokens += _count(row.get("completion_tokens"))
        cost = row.get("cost")
        if isinstance(cost, (int, float)):
            total.cost += cost
        elif row.get("outcome") == "ok":
            total.unpriced += 1
    return list(found.values())


def _rows(path: Path) -> Iterator[dict[str, object]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:  # a line that a full disk cut off
                continue
            if isinstance(row, dict) and row.get("schema") == SCHEMA:
                yield row


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
