"""A language model as judge over any OpenAI-compatible endpoint: rubric, pairwise and reference forms."""

from __future__ import annotations

from rewardkit import hookimpl
from rewardkit.hookspecs import Register


@hookimpl
def rewardkit_rewards(register: Register) -> None:
    register("rubric", "rewardkit_judge.rewards:rubric", "A model grades each criterion of a rubric")
    register("pairwise", "rewardkit_judge.rewards:pairwise", "A model prefers the completion to the reference answer")
    register("reference", "rewardkit_judge.rewards:reference", "A model says whether the answer is the reference's")


@hookimpl
def rewardkit_commands(register: Register) -> None:
    register("judge_costs", "rewardkit_judge.costs:command", "Sum up a judge's ledger: calls, tokens and cost a run.")
