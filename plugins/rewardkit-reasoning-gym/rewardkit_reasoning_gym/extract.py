"""The answer in a completion: what stands in the last `<answer>` block, found in linear time."""

from __future__ import annotations

OPEN, CLOSE = "<answer>", "</answer>"


def last_answer(text: str) -> str | None:
    """Return the stripped text of the last `<answer>…</answer>`, or None.

    Equal to `reasoning_gym.utils.extract_answer`, whose pattern takes quadratic time on many tags that never close.
    """
    found, position = None, 0
    while True:
        start = text.find(OPEN, position)
        end = text.find(CLOSE, start + len(OPEN)) if start >= 0 else -1
        if end < 0:
            return found
        found = text[start + len(OPEN) : end].strip()
        position = end + len(CLOSE)
