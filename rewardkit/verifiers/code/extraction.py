"""Text -> program: what of a completion is the code, and which rule said so.

Everything is linear in the length of the text. Nothing is parsed or run: a text that is no program fails in the
sandbox.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from rewardkit.extract import after_thinking, tagged
from rewardkit.types import BlameCompletion

Where = Literal["auto", "last", "first", "all", "whole", "continue"]

MAX_SOURCE = 1 << 20  # characters of a program
MAX_BLOCKS = 1000  # fenced blocks that are looked at

USUAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where base models run on after a function: the stop words of the Codex paper."""


class Program(NamedTuple):
    """A program found in a completion.

    Attributes:
        source: Python source.
        rule: What it was taken from, as shown to people: "last fenced block", "prompt continued".
    """

    source: str
    rule: str


class NoProgram(NamedTuple):
    """There is no program that can be run, and the completion is to blame."""

    reason: BlameCompletion
    detail: str


class _Block(NamedTuple):
    language: str
    text: str
    closed: bool


_FENCE = re.compile(r"^([ \t]{0,16})(`{3,64}|~{3,64})[ \t]*([\w+#.-]{0,32})[^\n`]*$", re.MULTILINE)
_PYTHON = frozenset({"python", "py", "python3", "py3", "python2", "pypy", "pypy3"})
_ANY = frozenset({"", "code", "text", "txt", "plaintext", "plain", "none"})
_TAGS = (("[PYTHON]", "[/PYTHON]"), ("[BEGIN]", "[DONE]"), ("[CODE]", "[/CODE]"))
_DEFINED = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]{0,200})?=(?!=)", re.MULTILINE)
_CODE_LINE = re.compile(
    r"^(?:(?:async[ ]+def|def|class)[ ]+\w+[ ]*[(:\[]|from[ ]+[\w.]+[ ]+import\b"
    r"|import[ ]+[\w.]+(?:[ ]+as[ ]+\w+)?[ ]*(?:[,;#]|$)|@\w+)",
    re.MULTILINE,
)

_ASSIGNED = re.compile(r"""[A-Za-z_]\w*(?:[ ]*:[^=\n]{1,100})?[ ]*=[^=]|[rbuRBU]{0,2}(?:\"{3}|'{3})""")


def defined_names(source: str) -> set[str]:
    """Return the names that a program defines or assigns at the start of a line."""
    return {match[1] or match[2] for match in _DEFINED.finditer(source)}


def is_code_prompt(prompt: str) -> bool:
    """Whether a prompt is the beginning of a program, as in HumanEval, rather than a task in words."""
    first = next((line for line in prompt.splitlines() if line.strip() and not line.startswith("#")), "")
    if _CODE_LINE.match(first) is not None:
        return True
    return _ASSIGNED.match(first) is not None and _CODE_LINE.search(prompt) is not None


def extract_program(
    text: str,
    *,
    prompt: str = "",
    names: Collection[str] = (),
    where: Where = "auto",
    stop: Sequence[str] = (),
    opened: bool = False,
) -> Program | NoProgram:
    """Find the program in a completion.

    Args:
        text: The completion.
        prompt: The prompt, where it is itself the beginning of a program; else "".
        names: What the tests call: a block that defines these is preferred.
        where: "auto", or what to take: the "last", "first" or "all" fenced blocks, the "whole" text, or the
            prompt "continue"d by the text.
        stop: A continuation ends before the first of these.
        opened: The prompt has already opened `<think>`.
    """
    answer = after_thinking(text, opened=opened)
    if answer is None:
        return NoProgram("no_answer", "no code found: the thinking block is never closed")
    if not answer.strip():
        return NoProgram("no_answer", "no code found: the answer is empty")
    text = answer[: 8 * MAX_SOURCE].replace("\r\n", "\n")  # as Python itself reads sources
    found = _find(text, prompt.replace("\r\n", "\n"), frozenset(names), where, stop)
    return found if isinstance(found, NoProgram) else _checked(found)


_MATTERS = ("think>", "<answer", "</answer", "[answer]", *(mark.lower() for pair in _TAGS for mark in pair))


def code_parts(text: str) -> object:
    """Return what decides about the program in a text: its fenced blocks and what surrounds them but prose.

    Two texts with equal parts have the same program, whatever the options and the prompt.
    """
    lowered = text.lower()
    if len(text) > MAX_SOURCE or any(mark in lowered for mark in _MATTERS):
        return text
    blocks = list(_blocks(text))
    first = next((line for line in text.split("\n", 200) if line.strip()), "")
    if not _python(blocks) or first[:1].isspace():
        return text
    return [tuple(block) for block in blocks]


def check_program(source: str | bytes, rule: str = "program") -> Program | NoProgram:
    """Return a program, or why it is none that could be run."""
    if isinstance(source, (bytes, bytearray)):
        try:
            source = bytes(source).decode()
        except UnicodeDecodeError as problem:
            return NoProgram("unreadable", f"syntax error: the program is not UTF-8 (byte {problem.start})")
    return _checked(Program(source, rule))


def _checked(program: Program) -> Program | NoProgram:
    source, rule = program
    if len(source) > MAX_SOURCE:
        return NoProgram("too_large", f"the program is longer than {MAX_SOURCE:,} characters")
    if "\0" in source:
        return NoProgram("unreadable", "syntax error: a NUL character in the program")
    if any("\ud800" <= char <= "\udfff" for char in source) if not source.isascii() else False:
        return NoProgram("unreadable", "syntax error: the program cannot be written as UTF-8")
    if not source.strip():
        return NoProgram("no_answer", f"no code found: {rule} is empty")
    return program


def _find(text: str, prompt: str, names: frozenset[str], where: Where, stop: Sequence[str]) -> Program | NoProgram:
    if where == "continue" or (where == "auto" and prompt and _continues(text, prompt)):
        return _continued(text, prompt, stop)
    if where == "whole":
        return Program(text, "whole text")
    inner, place = _marked(text)
    blocks = list(_blocks(inner))
    if not blocks:
        return _unfenced(inner, place, prompt, names, stop)
    chosen = _python(blocks)
    if not chosen:
        return NoProgram("no_answer", f"no code found: the only fenced blocks are {_listed(blocks)}")
    if where == "all":
        source = "\n\n".join(block.text for block in chosen)
        rule = "fenced block" if len(chosen) == 1 else f"all {len(chosen)} fenced blocks joined"
    else:
        at = 0 if where == "first" else _best(chosen, names) if where == "auto" else len(chosen) - 1
        source = chosen[at].text
        rule = _rule(chosen, at)
    return _with_prompt(source, rule + place, prompt, names, stop)


def _continues(text: str, prompt: str) -> bool:
    """Whether a text goes straight on where a code prompt ends: indented, or in the middle of a line."""
    first = next((line for line in text.split("\n", 200) if line.strip()), "")
    if first.lstrip().startswith(("```", "~~~")):
        return False
    if not prompt.endswith("\n") and _FENCE.search(text) is None:
        return True
    indent = len(first) - len(first.lstrip())
    if indent == 1 and first[0] == " " and _last_indent(prompt) != 1:
        return _CODE_LINE.match(first[1:]) is None  # the space that some tokenizers put in front of a text
    return indent > 0


def _last_indent(text: str) -> int:
    line = text.rstrip().rpartition("\n")[2]
    return len(line) - len(line.lstrip())


def _continued(text: str, prompt: str, stop: Sequence[str]) -> Program:
    cut = min((at for word in stop if word and (at := text.find(word)) >= 0), default=len(text))
    rule = "prompt continued" if cut == len(text) else "prompt continued, cut at a stop word"
    return Program(prompt + text[:cut], rule)


def _marked(text: str) -> tuple[str, str]:
    """Return what stands between answer tags or code marks, and a word for the rule."""
    answer = tagged(text, "answer", unclosed=True)
    place = ""
    if answer is not None and answer.text:
        start = text.rfind(answer.text)
        inside = text[start:]
        closing = inside.lower().find("</answer")
        text, place = inside if closing < 0 else inside[:closing], " in <answer>"
    for opening, closing_mark in _TAGS:
        at = text.rfind(opening)
        if at >= 0:
            body = text[at + len(opening) :]
            return body.partition(closing_mark)[0], f" in {opening}"
    return text, place


def _blocks(text: str) -> Iterator[_Block]:
    """Give the fenced blocks; one that is never closed reaches to the end."""
    opening: re.Match[str] | None = None
    count = 0
    for match in _FENCE.finditer(text):
        indent, mark, language = match[1], match[2], match[3]
        if opening is None:
            opening = match
        elif (
            mark[0] == opening[2][0]
            and len(mark) >= len(opening[2])
            and not language
            and len(indent.expandtabs(4)) <= len(opening[1].expandtabs(4)) + 3
        ):
            yield _block(opening, text[opening.end() + 1 : max(opening.end() + 1, match.start())], True)
            opening = None
            count += 1
            if count >= MAX_BLOCKS:
                return
    if opening is not None:
        yield _block(opening, text[opening.end() + 1 :], False)


def _block(opening: re.Match[str], body: str, closed: bool) -> _Block:
    if opening[1]:  # inside a list item
        body = textwrap.dedent(body)
    return _Block(opening[3].lower(), body, closed)


def _python(blocks: Sequence[_Block]) -> list[_Block]:
    """Return the blocks that are Python: those that say so, else those that say nothing."""
    said = [block for block in blocks if block.language in _PYTHON or block.language.endswith(".py")]
    return said or [block for block in blocks if block.language in _ANY]


def _best(blocks: Sequence[_Block], names: frozenset[str]) -> int:
    """Return the place of the last block that defines the most of what the tests call."""
    if len(blocks) == 1 or not names:
        return len(blocks) - 1
    counts = [len(names & defined_names(block.text)) for block in blocks]
    return max(range(len(blocks)), key=lambda at: (counts[at], at))


def _rule(blocks: Sequence[_Block], at: int) -> str:
    if not blocks[at].closed:
        return "unclosed fence"
    if len(blocks) == 1:
        return "fenced block"
    which = "first" if at == 0 else "last" if at == len(blocks) - 1 else f"{at + 1}."
    return f"{which} of {len(blocks)} fenced blocks"


def _listed(blocks: Sequence[_Block]) -> str:
    return ", ".join(sorted({block.language for block in blocks})[:5])


def _unfenced(text: str, place: str, prompt: str, names: frozenset[str], stop: Sequence[str]) -> Program | NoProgram:
    """Take a text without a fence: a program, perhaps behind some prose, or the rest of the prompt's."""
    text = text.removeprefix(" ") if _CODE_LINE.match(text[1:]) else text
    if prompt and not names & defined_names(text):
        return _continued(text, prompt, stop)
    return _with_prompt(*_behind_prose(text, place), prompt, names, stop)


def _behind_prose(text: str, place: str) -> tuple[str, str]:
    """Drop what stands before the first line of code, where that is prose."""
    first = _CODE_LINE.search(text)
    if first is not None:
        before = [line for line in text[: first.start()].splitlines() if line.strip()]
        if before and all(_PROSE.match(line) for line in before):
            return text[first.start() :], "no fence, from the first line of code" + place
    return text, ("no fence, whole text" if not place else f"text{place}")


# Words with spaces between them and no sign that only code has.
_PROSE = re.compile(r"^(?![#@\"'])[^=()\[\]{}#]*\b[^\W\d_]+[,:]? [^\W\d_]+\b[^=\[\]{}]*$|^[^\W\d_]+[!:.,]*$")


def _with_prompt(source: str, rule: str, prompt: str, names: frozenset[str], stop: Sequence[str]) -> Program:
    """Put what a code prompt provides (imports, helpers) in front of a program; let a mere body continue it."""
    if not prompt:
        return Program(source, rule)
    first = next((line for line in source.splitlines() if line.strip()), "")
    if first[:1] in " \t" and not names & defined_names(source):
        return Program(_continued(source, prompt, stop).source, f"{rule}, continuing the prompt")
    head = preamble(prompt, names)
    if not head or "from __future__" in source:
        return Program(source, rule)
    return Program(f"{head}\n{source}", rule)


def preamble(prompt: str, names: Collection[str]) -> str:
    """Return what stands in a code prompt before the last function or class that is to be written."""
    starts = [
        match.start()
        for match in re.finditer(r"^(?:async[ ]+def|def|class)[ ]+(\w+)", prompt, re.MULTILINE)
        if not names or match[1] in names
    ]
    if not starts:
        return ""
    head = prompt[: starts[-1]].rstrip()
    while head.rpartition("\n")[2].startswith("@"):  # its decorators
        head = head.rpartition("\n")[0].rstrip()
    return head


# ---------------------------------------------------------------------------------------- predictions

_ANSWER_MARKS = (("[ANSWER]", "[/ANSWER]"),)
MAX_PREDICTION = 1 << 16  # characters


def extract_prediction(text: str, given: str, *, opened: bool = False) -> Program | NoProgram:
    """Find a predicted value: in answer tags, in the last fenced block, else the whole text.

    Of `assert f(3) == 9` the right side counts. `given` is the source of the arguments, which stand on the left.
    """
    answer = after_thinking(text, opened=opened)
    if answer is None:
        return NoProgram("no_answer", "no answer found: the thinking block is never closed")
    rule, body = "whole text", answer
    for opening, closing in _ANSWER_MARKS:
        at = answer.rfind(opening)
        if at >= 0:
            rule, body = f"in {opening}", answer[at + len(opening) :].partition(closing)[0]
    inside = tagged(answer, "answer", unclosed=True)
    if rule == "whole text" and inside is not None:
        rule, body = "in <answer>", inside.text
    blocks = _python(list(_blocks(body)))
    if blocks:
        rule, body = _rule(blocks, len(blocks) - 1), blocks[-1].text
    body = body.strip()
    if body.startswith("assert "):
        left = f"assert f({given}) =="
        body = body[len(left) :] if body.startswith(left) else body.rpartition("==")[2]
        rule += ", right of =="
    if len(body) > MAX_PREDICTION:
        return NoProgram("too_large", f"the answer is longer than {MAX_PREDICTION:,} characters")
    found = _checked(Program(body.strip(), rule))
    return NoProgram("no_answer", "no answer found") if isinstance(found, NoProgram) and not body else found
