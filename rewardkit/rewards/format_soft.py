"""`format_soft`: the completion holds a reasoning block and then an answer block."""

from __future__ import annotations

from typing import Any

from rewardkit.reward import reward
from rewardkit.rewards.tags import blocks, has_opened, tag_names
from rewardkit.types import Score

_OK = Score(0.5, "well formed")


@reward(name="format_soft")
def format_soft(
    completion: str, prompt: Any, *, reasoning: str = "reasoning", answer: str = "answer", opened: bool | None = None
) -> Score:
    """0.5 when the completion holds `<reasoning>…</reasoning>` and then `<answer>…</answer>`, each once, none empty.

    Unlike with `format_strict`, text may stand before, between and after them. Else 0, and the detail names the rule.
    What the answer says does not matter.

    Traps: tags are taken literally, in this case, also inside code blocks. A second block of a kind earns nothing.

    Options:
        reasoning: name of the first tag; `format_soft(reasoning='think')` for `<think>`.
        answer: name of the second tag.
        opened: whether the template has opened the first tag; None: look at the end of the prompt.

    Example:
        rewardkit try format_soft 'Well. <reasoning>9 * 2</reasoning> So: <answer>18</answer> Done.'
    """
    names = tag_names("format_soft", reasoning=reasoning, answer=answer)
    placed = blocks(completion, names, opened=has_opened(opened, prompt, reasoning))
    return Score(0.0, placed) if isinstance(placed, str) else _OK
