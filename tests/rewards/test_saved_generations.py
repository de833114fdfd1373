"""Every reward of this folder over real completions: a value or an abstention, never an error."""

from __future__ import annotations

import pytest

from rewardkit import Engine, read_generations
from rewardkit.rewards.answer_correct import answer_correct
from rewardkit.rewards.answer_integer import answer_integer
from rewardkit.rewards.arithmetic import arithmetic
from rewardkit.rewards.cosine_length import cosine_length, cosine_set
from rewardkit.rewards.distance import distance
from rewardkit.rewards.format_soft import format_soft
from rewardkit.rewards.format_strict import format_strict
from rewardkit.rewards.gsm8k_set import gsm8k_set, gsm8k_think_set
from rewardkit.rewards.overlong import overlong
from rewardkit.rewards.repetition import repetition
from rewardkit.rewards.script_share import script_share
from rewardkit.rewards.stop_reason import stop_reason
from rewardkit.rewards.tag_count import tag_count
from rewardkit.rewards.think_format import think_format

THINK = {"reasoning": "think"}
REWARDS = {
    "arithmetic": (arithmetic, -3, 4),
    "answer_correct": (answer_correct, 0, 2),
    "answer_integer": (answer_integer, 0, 0.5),
    "format_strict": (format_strict.with_options(**THINK), 0, 0.5),
    "format_soft": (format_soft.with_options(**THINK), 0, 0.5),
    "tag_count": (tag_count.with_options(**THINK), 0, 0.5),
    "gsm8k_set": (gsm8k_set, 0, 4),
    "gsm8k_think_set": (gsm8k_think_set, 0, 4),
    "think_format": (think_format.with_options(answer=True), 0, 1),
    "ratio": (distance, 0, 1),
    "linear": (distance.with_options(form="linear", scale=10), 0, 1),
    "log": (distance.with_options(form="log"), 0, 1),
    "overlong": (overlong, -1, 0),
    "overlong_words": (overlong.with_options(at_most=300, cache=100, unit="words"), -1, 0),
    "cosine_length": (cosine_length, 0.5, 1),
    "cosine_set": (cosine_set, -1, 1),
    "repetition": (repetition, -1, 0),
    "repetition_characters": (repetition.with_options(unit="characters", n=10), -1, 0),
    "script_share": (script_share, 0, 1),
    "stop_reason": (stop_reason, -1, 0),
}
FILES = [
    "gsm8k/example_model_solutions.jsonl",
    "grpo_groups/amc23_step_400.json",
    "grpo_groups/amc23_step_800.json",
    "math_groups8/qwen_math_cot_8x.jsonl",
    *(
        f"math_runs/qwen2.5-3b-{run}/{task}.jsonl"
        for run in ("instruct", "rlft")
        for task in ("gsm8k", "amc23", "aqua")
    ),
    "math_runs/qwen2.5-3b-instruct/gaokao2023en.jsonl",
    "math_runs/qwen2.5-3b-rlft/gaokao2023en.jsonl",
]


@pytest.mark.parametrize("name", FILES)
def test_no_error_state(shared, name):
    path = shared(f"data/{name}")
    count = 0
    with Engine({key: reward for key, (reward, _, _) in REWARDS.items()}, workers=1) as engine:
        for scored in engine.score_unchecked(read_generations(path)):
            for key, (_, low, high) in REWARDS.items():
                for score in scored.scores[key]:
                    assert score.state != "error", (key, score.why, scored.generation.where)
                    assert score.value is None or low <= score.value <= high, (key, score)
                    count += 1
    assert count >= 40 * len(REWARDS)


def test_formats_of_a_run_that_learned_them(shared):
    """grpo_groups: strict formats are counted alike by two rewards: 881 and 985 of 1,000."""
    for step, right in ((400, 881), (800, 985)):
        rewards = {"think": think_format.with_options(answer=True), "strict": format_strict.with_options(**THINK)}
        totals = dict.fromkeys(rewards, 0.0)
        with Engine(rewards, workers=1) as engine:
            for scored in engine.score(read_generations(shared(f"data/grpo_groups/amc23_step_{step}.json"))):
                for key in rewards:
                    totals[key] += sum(score.value for score in scored.scores[key])
        assert totals == {"think": right, "strict": right / 2}
