"""Tags such as `<think>`: what the rewards for formats have in common.

Tags are taken literally: in this case, without attributes, also inside code blocks. Everything is linear in the
length of the text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from rewardkit.errors import OptionError
from rewardkit.extract import Found, after_thinking, cut_run_on, opens_thinking, tagged
from rewardkit.types import Score


class Block(NamedTuple):
    """Where a block stands: its opening tag, what is inside, its closing tag."""

    start: int
    inside: int
    close: int
    end: int


def blocks(text: str, names: tuple[str, ...], *, opened: bool = False) -> list[Block] | str:
    """Return the block of each name, or the rule that the text breaks.

    Every tag must be there once, in the order of `names`, and each block must hold something that can be seen.
    `opened`: the prompt has opened the first block, so its opening tag must not come again.
    """
    wanted = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    given = wanted[1:] if opened else wanted
    found = list(islice(_pattern(names).finditer(text), len(wanted) + 1))
    tags = [match[0] for match in found]
    if tags != given:
        return _wrong_tags(tags, wanted, opened)
    edges = [match.span() for match in found]
    if opened:
        edges.insert(0, (0, 0))
    placed = [Block(*first, *last) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    for name, block in zip(names, placed, strict=True):
        if blank(text, block.inside, block.close):
            return f"<{name}> is empty"
    return placed


def _wrong_tags(tags: list[str], wanted: list[str], opened: bool) -> str:
    first = wanted[0]
    if opened and first in tags:
        return f"{first} again, although the prompt has opened it"
    for tag, after in pairwise(tags):
        if tag == after and not tag.startswith("</"):
            return f"{tag} inside {tag}"
    for tag in wanted:
        if tags.count(tag) > 1:
            return f"{tag} more than once"
    for tag in wanted[1:] if opened else wanted:
        if tag not in tags:
            return f"{tag.replace('</', '<')} is never closed" if tag.startswith("</") else f"no {tag}"
    return "tags out of order: " + " ".join(tags)


def stray_text(text: str, names: tuple[str, ...], placed: list[Block]) -> str | None:
    """Return the rule that text outside of the blocks breaks, or None: only white space may stand there."""
    if not blank(text, 0, placed[0].start):
        return f"text before <{names[0]}>"
    for (left, right), (block, following) in zip(pairwise(names), pairwise(placed), strict=True):
        if not blank(text, block.end, following.start):
            return f"text between </{left}> and <{right}>"
    return None if blank(text, placed[-1].end, len(text)) else f"text after </{names[-1]}>"


_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]*+"
)


def blank(text: str, start: int, end: int) -> bool:
    """Whether nothing between two places can be seen: white space, control and zero-width characters."""
    return _INVISIBLE.fullmatch(text, start, end) is not None


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("</?(?:" + "|".join(map(re.escape, names)) + ")>")


_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}", re.ASCII)


@lru_cache(maxsize=64)
def tag_names(reward: str, **options: str) -> tuple[str, ...]:
    """Return tag names that are the options of a reward.

    Raises:
        OptionError: One is no name of a tag, or two are the same.
    """
    for option, name in options.items():
        if not _NAME.fullmatch(name):
            raise OptionError(f"{reward}: option {option}={name[:40]!r}: the name of a tag is wanted, such as 'think'")
    names = tuple(options.values())
    if len(set(names)) < len(names):
        raise OptionError(f"{reward}: {' and '.join(options)} are the same tag {names[0]!r}")
    return names


def has_opened(opened: bool | None, prompt: object, name: str) -> bool:
    """Whether a completion goes on inside `<name>`: what the option says, else whether the prompt ends with that tag.

    The prompt is text, or chat messages, of which the last one counts when it is the assistant's.
    """
    return opens_thinking(prompt, name) if opened is None else opened


def tagged_answer(text: str, prompt: object, name: str) -> Found | Score:
    """Return the inside of the last `<name>…</name>` after the thinking, or the score 0 that says why there is none.

    A closing tag may be lacking, since a stop string eats it.
    """
    region = after_thinking(cut_run_on(text), opened=opens_thinking(prompt))
    if region is None:
        return Score(0.0, "the thinking was never closed", reason="no_answer")
    found = tagged(region, name, unclosed=True)
    if found is None:
        return Score(0.0, f"no <{name}>", reason="no_answer")
    if blank(found.text, 0, len(found.text)):
        return Score(0.0, f"<{name}> is empty", reason="no_answer")
    return found
