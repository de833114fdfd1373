"""`tag_count`: a little for each tag that is there once, less a fine for text after the last."""

from __future__ import annotations

from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.rewards.tags import blank, has_opened, tag_names
from rewardkit.types import Score


@reward(name="tag_count")
def tag_count(
    completion: str,
    prompt: Any,
    *,
    reasoning: str = "reasoning",
    answer: str = "answer",
    each: float = 0.125,
    trailing: float = 0.001,
    floor: float = 0.0,
    opened: bool | None = None,
) -> Score:
    """`each` for every one of `<reasoning>`, `</reasoning>`, `<answer>`, `</answer>` that stands there exactly once.

    For every character after the last `</answer>` it is `trailing` less, but never below `floor`; white space at the
    ends of that tail is free. Without `</answer>` there is no tail. With the defaults a whole set earns 0.5, and 0.488
    with 12 characters behind it.

    Traps: which pair comes first does not matter, `format_soft` looks at that. A pair around nothing does not count.
    Tags are taken literally, in this case, also inside code blocks. The tag count of open-r1, from 0 to 1, is
    `tag_count(reasoning='think', each=0.25, trailing=0)`.

    Options:
        reasoning: name of the first pair of tags.
        answer: name of the second pair.
        each: points for one tag.
        trailing: points off for one character of the tail.
        floor: the least it gives.
        opened: whether the template has opened the first tag, which then counts as there; None: look at the end of
            the prompt.

    Example:
        rewardkit try tag_count '<reasoning>9 * 2</reasoning> <answer>18</answer> Bye.'
    """
    for option, value in (("each", each), ("trailing", trailing)):
        if value < 0:
            raise OptionError(f"tag_count: option {option}={value}: 0 or more points are wanted")
    names = tag_names("tag_count", reasoning=reasoning, answer=answer)
    count = _pair(completion, reasoning, has_opened(opened, prompt, reasoning)) + _pair(completion, answer, False)
    closing = f"</{names[-1]}>"
    at = completion.rfind(closing)
    tail = len(completion[at + len(closing) :].strip()) if at >= 0 else 0
    detail = f"{count} of 4 tags"
    if tail:
        detail += f", {tail:,} character{'s' * (tail != 1)} after {closing}"
    return Score(max(floor, each * count - trailing * tail), detail)


def _pair(text: str, name: str, opened: bool) -> int:
    """Return how many tags of a pair stand there once; none when there is nothing between them."""
    start, end = f"<{name}>", f"</{name}>"
    first = text.count(start) == (0 if opened else 1)
    last = text.count(end) == 1
    if first and last:
        inside = 0 if opened else text.find(start) + len(start)
        if blank(text, inside, max(inside, text.find(end))):
            return 0
    return first + last
