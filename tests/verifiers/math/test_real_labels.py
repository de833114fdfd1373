"""Real generations with published labels: every row on which `math` and the label differ is listed, with both readings.

The list is tests/cases/math_label_disagreements.jsonl. Labels that the data's notes name as faults (answers 100 times
too large or small, empty golds, lists in another order) are among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.math.verifier import Math

LISTED = Path(__file__).parents[2] / "cases" / "math_label_disagreements.jsonl"
VERIFIER = Math()


def judge(text: str, reference: object, prompt: object = "") -> Score:
    sample = Sample(0, prompt, reference)
    prepared = VERIFIER.prepare(sample)
    if isinstance(prepared, Score):
        return prepared
    return VERIFIER.glance(prepared, sample, Completion(text)) or VERIFIER.judge(prepared, sample, Completion(text))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def labelled(shared: Any) -> Iterator[tuple[tuple[Any, ...], str, Any, str, bool]]:
    """Yield (where, text, gold, prompt, label) of every labelled row."""
    for run in ("qwen2.5-3b-instruct", "qwen2.5-3b-rlft"):
        for name in ("gsm8k", "amc23", "gaokao2023en", "aqua"):
            for row in rows(shared(f"data/math_runs/{run}/{name}.jsonl")):
                yield (run, name, row["idx"], 0), row["code"][0], row["gt"], row["question"], bool(row["score"][0])
    for row in rows(shared("data/math_groups8/qwen_math_cot_8x.jsonl")):
        for place, (text, label) in enumerate(zip(row["code"], row["score"], strict=True)):
            yield ("math_groups8", "math", row["idx"], place), text, row["gt"], "", bool(label)
    for step in (400, 800):
        data = json.loads(shared(f"data/grpo_groups/amc23_step_{step}.json").read_text("utf-8"))
        for number, result in enumerate(data["categories"][0]["datasets"][0]["results"]):
            for place, one in enumerate(result["completions"]):
                gold = one.get("expected_answer", result.get("expected_answer"))
                where = (f"grpo_step_{step}", "amc23", number, place)
                yield where, one["full_model_response"], gold, "", bool(one["score"])


def disagreements(shared: Any) -> list[dict[str, Any]]:
    found = []
    for (run, name, idx, place), text, gold, prompt, label in labelled(shared):
        score = judge(text, gold, prompt)
        if (score.value == 1.0) != label:
            row = {"run": run, "dataset": name, "idx": idx, "sample": place, "gold": str(gold), "label": label}
            found.append({**row, "value": score.value, "extracted": score.extracted, "detail": score.why})
    return found


def test_every_disagreement_is_listed(shared):
    keys = ("run", "dataset", "idx", "sample", "label", "value")
    mine = [tuple(row[key] for key in keys) for row in disagreements(shared)]
    assert mine == [tuple(row[key] for key in keys) for row in rows(LISTED)]


def test_adjudicated_rows(shared):
    """Rows that were read one by one: no `correct` one is missed, no `incorrect` one accepted, broken golds abstain."""
    wanted = {
        (r["run"], r["dataset"], r["idx"], r["sample"]): r["verdict"]
        for r in rows(shared("data/adjudicated/disagreements.jsonl"))
    }
    values = {"correct": 1.0, "incorrect": 0.0, "bad_gold": None}
    for where, text, gold, prompt, _ in labelled(shared):
        if where in wanted:
            assert judge(text, gold, prompt).value == values[wanted[where]], where


def test_programs_with_output_blocks(shared):
    """ToRA: 1,062 of 1,319 are right when the shown prediction is compared as a number."""
    data = rows(shared("data/gsm8k_tora/tora-code-34b-v1.0.jsonl"))
    assert sum(judge(row["code"][0], row["gt"]).value == 1.0 for row in data) == 1062


def test_golds_equal_themselves(shared):
    """Every gold that can be read equals itself; seven broken or empty ones abstain."""
    abstained = []
    for row in rows(shared("data/math_runs/qwen2.5-3b-instruct/gaokao2023en.jsonl")):
        score = judge(f"\\boxed{{{row['gt']}}}", row["gt"])
        if score.value is None:
            abstained.append(row["idx"])
        else:
            assert score.value == 1.0, row["gt"]
    assert abstained == [83, 90, 167, 172, 192, 292, 366]
    for row in rows(shared("data/math/math500_test.jsonl")):
        assert judge(f"\\boxed{{{row['answer']}}}", row["answer"]).value == 1.0, row["answer"]
        assert judge(row["solution"], row["answer"]).value == 1.0, row["answer"]
