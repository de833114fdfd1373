"""`gsm8k_set`: the five rewards that GRPO notebooks train GSM8K with, added up; at most 2 + 4 * 0.5 = 4.

`gsm8k_think_set` is the same with `<think>` in place of `<reasoning>`.
"""

from __future__ import annotations

from rewardkit.rewards.answer_correct import answer_correct
from rewardkit.rewards.answer_integer import answer_integer
from rewardkit.rewards.format_soft import format_soft
from rewardkit.rewards.format_strict import format_strict
from rewardkit.rewards.tag_count import tag_count

gsm8k_set = answer_correct + answer_integer + format_strict + format_soft + tag_count

gsm8k_think_set = (
    answer_correct
    + answer_integer
    + format_strict.with_options(reasoning="think")
    + format_soft.with_options(reasoning="think")
    + tag_count.with_options(reasoning="think")
)
