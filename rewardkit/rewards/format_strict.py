"""`format_strict`: the completion is a reasoning block and an answer block, and nothing else."""

from __future__ import annotations

from typing import Any

from rewardkit.reward import reward
from rewardkit.rewards.tags import blocks, has_opened, stray_text, tag_names
from rewardkit.types import Score

_OK = Score(0.5, "well formed")


@reward(name="format_strict")
def format_strict(
    completion: str, prompt: Any, *, reasoning: str = "reasoning", answer: str = "answer", opened: bool | None = None
) -> Score:
    """0.5 when the completion is `<reasoning>…</reasoning><answer>…</answer>` from its first to its last character.

    Each tag stands there once, and neither block is empty. White space between the blocks and around them, and line
    breaks inside them, make no difference. Else 0, and the detail names the rule. What the answer says does not matter.

    Traps: tags are taken literally, in this case, also inside code blocks. `opened`, as in `think_format`, is for chat
    templates that open the reasoning.

    Options:
        reasoning: name of the first tag; `format_strict(reasoning='think')` for `<think>`.
        answer: name of the second tag.
        opened: whether the template has opened the first tag; None: look at the end of the prompt.

    Example:
        rewardkit try format_strict '<reasoning>9 * 2</reasoning> <answer>18</answer>'
    """
    names = tag_names("format_strict", reasoning=reasoning, answer=answer)
    placed = blocks(completion, names, opened=has_opened(opened, prompt, reasoning))
    problem = placed if isinstance(placed, str) else stray_text(completion, names, placed)
    return _OK if problem is None else Score(0.0, problem)
