"""`think_format`: one well-formed `<think>` block, then the answer."""

from __future__ import annotations

from typing import Any

from rewardkit.reward import reward
from rewardkit.rewards.tags import blank, blocks, has_opened, stray_text
from rewardkit.types import Score

_OK = Score(1.0, "well formed")


@reward(name="think_format")
def think_format(
    completion: str, prompt: Any, *, strict: bool = True, answer: bool = False, opened: bool | None = None
) -> Score:
    """1 when the completion is one `<think>…</think>` block followed by its answer, else 0; the detail names the rule.

    The block must be the first thing, be closed, hold something, and be the only one; something must follow it. Line
    breaks anywhere are fine. When the prompt (its text, or its last message) already ends with `<think>`, the
    completion goes on inside it and must not open it again.

    Traps: tags are taken literally, also inside code blocks, and count only in lower case. With `answer`, tags of that
    kind inside the thinking count too. Files and trainers often hold the prompt without what the chat template adds;
    where that opens `<think>`, every completion has "no <think>" until `opened=True` says so. White space, control and
    zero-width characters alone are nothing.

    Options:
        strict: with `answer`, nothing but white space may stand between the parts or after `</answer>`; without
            `answer`, the text after the thinking must not be blank. Off: both are allowed.
        answer: after the thinking exactly one `<answer>…</answer>`, not empty, must follow.
        opened: whether the template has opened `<think>`; None: look at the end of the prompt.

    Example:
        rewardkit try think_format '<think>9 * 2 = 18</think> The answer is 18.'
    """
    problem = _problem(completion, has_opened(opened, prompt, "think"), strict, answer)
    return _OK if problem is None else Score(0.0, problem)


def _problem(text: str, opened: bool, strict: bool, answer: bool) -> str | None:
    """Return the rule that is broken, or None."""
    names = ("think", "answer") if answer else ("think",)
    placed = blocks(text, names, opened=opened)
    if isinstance(placed, str):
        return placed
    if not blank(text, 0, placed[0].start):
        return "text before <think>"
    if not strict:
        return None
    if answer:
        return stray_text(text, names, placed)
    return "nothing after </think>" if blank(text, placed[0].end, len(text)) else None
