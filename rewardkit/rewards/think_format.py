"""`think_format`: one well-formed `<think>` block, then the answer."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from rewardkit.extract import opens_thinking
from rewardkit.reward import reward
from rewardkit.types import Score

_TAG = re.compile(r"</?(?:think|answer)>")
_OK = Score(1.0, "well formed")


@reward(name="think_format")
def think_format(completion: str, prompt: Any, *, strict: bool = True, answer: bool = False) -> Score:
    """1 when the completion is one `<think>…</think>` block followed by its answer, else 0; the detail names the rule.

    The block must be the first thing, be closed, hold something, and be the only one; something must follow it. Line
    breaks anywhere are fine. When the prompt already ends with `<think>`, the completion goes on inside it and must not
    open it again.

    Traps: tags are taken literally, also inside code blocks, and count only in lower case. With `answer`, tags of that
    kind inside the thinking count too.

    Options:
        strict: with `answer`, nothing but white space may stand between the parts or after `</answer>`; without
            `answer`, the text after the thinking must not be blank. Off: both are allowed.
        answer: after the thinking exactly one `<answer>…</answer>`, not empty, must follow.

    Example:
        rewardkit try think_format '<think>9 * 2 = 18</think> The answer is 18.'
    """
    problem = _problem(completion, opens_thinking(prompt), strict, answer)
    return _OK if problem is None else Score(0.0, problem)


def _problem(text: str, opened: bool, strict: bool, answer: bool) -> str | None:
    """Return the rule that is broken, or None."""
    wanted = ["<think>", "</think>"] + ["<answer>", "</answer>"] * answer
    if opened:
        wanted = wanted[1:]
    tags = (match for match in _TAG.finditer(text) if answer or "answer" not in match[0])
    found = list(islice(tags, 5))
    names = [match[0] for match in found]
    if names != wanted:
        return _wrong_tags(names, wanted, opened)
    if not opened and text[: found[0].start()].strip():
        return "text before <think>"
    close = found[0 if opened else 1]
    if not text[0 if opened else found[0].end() : close.start()].strip():
        return "the thinking is empty"
    if not answer:
        return "nothing after </think>" if strict and not text[close.end() :].strip() else None
    first, last = found[-2:]
    if not text[first.end() : last.start()].strip():
        return "the answer is empty"
    if strict and text[close.end() : first.start()].strip():
        return "text between </think> and <answer>"
    if strict and text[last.end() :].strip():
        return "text after </answer>"
    return None


def _wrong_tags(names: list[str], wanted: list[str], opened: bool) -> str:
    if opened and "<think>" in names:
        return "<think> again, although the prompt has opened it"
    for name in ("<think>", "</think>", "<answer>", "</answer>"):
        if names.count(name) > 1:
            return f"{name} more than once"
    for name in wanted:
        if name not in names:
            return f"{name.replace('</', '<')} is never closed" if name.startswith("</") else f"no {name}"
    return "tags out of order: " + " ".join(names)
