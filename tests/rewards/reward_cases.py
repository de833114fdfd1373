"""What the tests of rewards share: case tables, and judging one text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardkit import Completion, Generation, Reward, Sample, Score
from rewardkit.engine import Engine
from rewardkit.reward import FunctionReward

CASES = Path(__file__).parents[1] / "cases"


def cases(name: str) -> Any:
    """Parametrize a test over the rows of tests/cases/NAME.jsonl."""
    rows = [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return pytest.mark.parametrize("case", rows, ids=[f"{row['text'][:30]!r}: {row['why']}"[:90] for row in rows])


def judge(
    reward: Reward,
    text: str,
    *,
    reference: Any = None,
    prompt: Any = "",
    tokens: int | None = None,
    columns: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Score:
    """Score one text; an exception is raised, not turned into an error score."""
    sample = Sample(0, prompt, reference)
    completion = Completion(text, tokens=tokens, metadata=columns or {})
    if isinstance(reward, FunctionReward):
        leaf = reward.with_options(**options or {})
        prepared = leaf.prepare(sample)
        return prepared if isinstance(prepared, Score) else leaf.judge(prepared, sample, completion)
    with Engine(reward, workers=1) as engine:
        (scored,) = engine.score_unchecked([Generation(sample, (completion,))])
    return next(iter(scored.scores.values()))[0]


def check(reward: Reward, case: dict[str, Any]) -> None:
    """Compare a score with a row; what the row does not say is not compared."""
    given = ("reference", "prompt", "tokens", "columns", "options")
    score = judge(reward, case["text"], **{key: case[key] for key in given if key in case})
    if case["value"] is None:
        assert (score.value, score.state) == (None, "abstained"), score
    else:
        assert score.value == pytest.approx(case["value"], abs=1e-12, rel=1e-12), score
        assert str(score.value) != "-0.0"
    for key in ("detail", "reason", "extracted"):
        assert key not in case or getattr(score, key) == case[key], score
