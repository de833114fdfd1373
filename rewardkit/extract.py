"""Text -> candidate answers.

Each rule looks for one kind of marker and returns where the *last* one points to, as a `Found`; None when the text
has no such marker. A marker that is there but points to nothing (an unterminated box, `####` at the end) gives
a `Found` with an empty text: the completion announced an answer and did not give one, so a caller
should not go on to guess from elsewhere.

`strip_special_tokens`, `cut_run_on` and `after_thinking` first take away what is no part of the answer. Everything is
linear in the length of the text, whatever the text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from rewardkit.number import find_numbers, whole_span
from rewardkit.types import is_reply, message_text

MAX_ANSWER = 4096  # characters of an answer that are looked at; a longer one is cut
MAX_PHRASES = 1000  # "answer" and "A:" are looked at from the last one on, so many of them
MAX_TURNS = 1000  # labels of a new question that are looked at
MAX_TAIL = 65_536  # characters at the end of a text in which its last number is looked for


class Found(NamedTuple):
    """A candidate answer.

    Attributes:
        text: What stands there, without surrounding space; "" when the marker points to nothing.
        rule: The rule that found it, as shown to people: "####", "\\boxed", "last number".
        start: Where the text starts in what was searched.
    """

    text: str
    rule: str
    start: int


# --------------------------------------------------------------------- what is no part of the answer

SPECIAL_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eot|>",
    "<|return|>",
    "<|endofturn|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|finetune_right_pad_id|>",
    "<|pad|>",
    "<|padding|>",
    "<|user|>",
    "<|observation|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "</s>",
    "<eos>",
    "<pad>",
    "<EOS>",
    "<PAD>",
    "[PAD]",
    "[EOS]",
    "[|endofturn|]",
)
_LAST_CHARS = frozenset(token[-1] for token in SPECIAL_TOKENS)
_TOKENS_BACKWARDS = re.compile(rf"(?:\s|{'|'.join(re.escape(token[::-1]) for token in SPECIAL_TOKENS)})*+")


PLAIN_ENDS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?$)}")
"""Characters with which no special token ends."""


def strip_special_tokens(text: str) -> str:
    """Drop end-of-turn, end-of-text and padding tokens of common models, and space between them, from the end."""
    last = text[-1:]
    if last.isspace():
        last = text.rstrip()[-1:]
    if last not in _LAST_CHARS:
        return text
    width = 256
    while True:  # a regex runs forwards, so over the end of the text turned round; most often that is short
        match = _TOKENS_BACKWARDS.match(text[: -width - 1 : -1])
        length = match.end() if match is not None else 0
        if length + 64 <= width or width >= len(text):
            break
        width *= 16
    tokens = text[len(text) - length :].lstrip()
    return text[: len(text) - len(tokens)] if tokens else text


_END_OF_TURN = re.compile(
    r"<(?:\|(?:im_end|im_start|endoftext|eot_id|eom_id|end_of_text|start_header_id|end|user|endofturn|end_of_turn)\|"
    r"|end_of_turn|start_of_turn|eos|/s|｜(?:end▁of▁sentence|User)｜)>"
)
_ANGLED = re.compile("<[/|｜es]")
_INSTRUCTION = re.compile(r"\[/?INST\]")
_NEW_TURN = re.compile(
    r"\n[ \t>*_#]*+(?=[HUQPEIqpNnT])(?:"
    r"(?P<turn>(?:Human|User|HUMAN|USER)[ *_]{0,3}[:：])"
    r"|(?P<question>(?:Q|Question|Problem|Exercise|QUESTION|PROBLEM|question|problem"
    r"|New (?:question|problem)|(?:The )?[Nn]ext (?:question|problem))[ *_]{0,3}(?:#?\d{1,4}[ *_]{0,3})?[:：])"
    r"|(?P<heading>(?:Instruction|Human|User|Input|Question)\b)"
    r")"
)
_ANSWERED = re.compile(
    r"####|\\boxed|\\fbox|</answer>|\banswers?\b[ *_]{0,4}(?:is|are|[:：=])|(?:^|\n)[ \t*_#]{0,8}A[ *_]{0,3}[:：]",
    re.IGNORECASE,
)
_MARKED = re.compile(r"####|\\boxed|\\fbox|</answer>|\banswers? (?:is|are)\b", re.IGNORECASE)


def cut_run_on(text: str) -> str:
    """Cut off where a model runs on after its answer: a new question, or the user's next turn.

    A turn marker (`<|im_start|>user`, `User:`, `### Instruction`) or an end-of-turn token always ends the
    completion. `Question:`, `Q:` and `Problem:` at the start of a line do when an answer stands before
    them: a marked one, or a number in the line before that was worked out or that no marked answer follows. So a
    completion that first restates its question is left whole. A question without a label counts when it is a
    paragraph after a `####` answer and is followed by another one. Nothing is cut inside `<think>`, and never
    all of the text.
    """
    start = 0
    cut = len(text)
    # One character is looked for much faster than several, so that decides what is worth looking for.
    if "<" in text and _ANGLED.search(text) is not None:
        start = max(0, text.find("</think>"))
        cut = _first_token(_END_OF_TURN, text, start, cut)
    if "[" in text and "INST]" in text:
        cut = _first_token(_INSTRUCTION, text, start, cut)
    if _NEW_TURN.search(text, start, cut) is not None:
        cut = _new_turn(text, start, cut)
    if "#" in text:
        first = text.find("####", start, cut)
        if first >= 0 and text.find("####", first + 4, cut) >= 0:
            cut = _unlabelled(text, first, cut)
    return text if cut == len(text) else text[:cut].rstrip()


_OPENED = re.compile("<[/|｜esatAT]")


def runs_on(text: str) -> bool:
    """Whether a text may be more than an answer and its working.

    That is so where it has anything for which `cut_run_on` might cut it, but for a second `####`, or that may begin
    or end thinking, or an `<answer>`.
    """
    # One character is looked for much faster than several, so that decides what is worth looking for.
    if "<" in text and _OPENED.search(text) is not None:
        return True
    return ("[" in text and "INST]" in text) or _NEW_TURN.search(text) is not None


def _first_token(pattern: re.Pattern[str], text: str, start: int, end: int) -> int:
    """Return where the first of some tokens stands that has something before it, else `end`."""
    token = pattern.search(text, start, end)
    while token is not None and _blank(text, start, token.start()):
        start = token.end()
        token = pattern.search(text, start, end)
    return end if token is None else token.start()


def _blank(text: str, start: int, end: int) -> bool:
    """Whether nothing was written between two places (`</think>` itself is nothing)."""
    return not text[start:end].removeprefix("</think>").strip()


def _new_turn(text: str, start: int, end: int) -> int:
    """Return where the first new turn or question stands that follows an answer, else `end`."""
    begun = answered = worked = False
    seen = start  # up to here nothing was answered
    marked = -1  # the next strongly marked answer; `end` when there is none
    for turn in islice(_NEW_TURN.finditer(text, start, end), MAX_TURNS):
        at = turn.start()
        begun = begun or not _blank(text, start, at)
        heading = turn["heading"]
        if not begun or (heading and "##" not in turn[0]):
            continue
        if turn["turn"] or (heading and heading != "Question"):
            return at
        answered = answered or _ANSWERED.search(text, max(start, seen - 32), at) is not None
        worked = worked or _WORKED.search(text, max(start, seen - 32), at) is not None
        seen = at
        if answered:
            return at
        if not _concludes(text[max(start, at - 300) : at]):
            continue
        if marked < turn.end():
            found = _MARKED.search(text, turn.end(), end)
            marked = end if found is None else found.start()
        if worked or marked == end or (at < 64 and _is_number(text[start:at])):
            return at
    return end


def _concludes(head: str) -> bool:
    """Whether the last line of a text states a number, rather than announces what comes."""
    line = head.rstrip("*_ \t\n").rpartition("\n")[2]
    return not line.endswith((":", "：")) and _COUNTED.search(line) is not None


# Something was worked out: a calculation, a conclusion.
_WORKED = re.compile(r"=\s?[$€£]?\s?\d|[\d)]\s?=|\b(?:thus|therefore|hence|in total|altogether)\b", re.IGNORECASE)
# A number that could be an answer, not that of "Step 2" or "2 steps".
_COUNTED = re.compile(
    r"(?<![A-Za-z\d])(?<!Step )(?<!step )(?<!Part )\d[\d.,]*"
    r"(?!\d)(?! (?:steps?|parts?|facts?|ways?|questions?|problems?)\b)(?![.)] )"
)
_QUESTION = re.compile(r"\n[ \t]*\n(?P<first>\S[^\n]{30,2000}\?)[ \t]*\n")
_DOUBT = re.compile(
    r"(?:wait|hmm|but|so|is|are|was|does|did|do|let|actually|hold|ok|okay|now|can|right|correct|check|why)\b",
    re.IGNORECASE,
)


def _unlabelled(text: str, first: int, cut: int) -> int:
    """Return where a question without a label starts after a `####` answer, if another answer follows it."""
    line = text.find("\n", first, cut)
    if line < 0 or not any(map(str.isdecimal, text[first : min(line, first + 64)])):
        return cut
    last = text.rfind("####", first, cut)
    for match in _QUESTION.finditer(text, line, last):
        question = match["first"]
        if _DOUBT.match(question) is None and any(map(str.isdecimal, question)):
            return match.start()
    return cut


def after_thinking(text: str, *, opened: bool = False) -> str | None:
    """Return what follows the thinking: all of the text when there is none; None when it was never closed.

    `opened`: the prompt has already opened `<think>`.
    """
    if "think>" not in text or "<" not in text:
        return None if opened else text
    closed = text.rfind("</think>")
    if closed < 0:
        return None if opened or "<think>" in text else text
    if text.find("<think>", closed) >= 0:
        return None
    return text[closed + 8 :]


def opens_thinking(prompt: object, tag: str = "think") -> bool:
    """Whether a prompt ends with `<think>` (or another tag), so that a completion goes on inside it.

    Of chat messages the last one counts, when it is the assistant's: a user may well talk about the tag.
    """
    if type(prompt) is str:
        last_char = prompt[-1:]
        if last_char != ">" and not last_char.isspace():
            return False  # nearly always
    elif isinstance(prompt, (list, tuple)):
        last = prompt[-1] if prompt else None
        if not isinstance(last, Mapping) or not is_reply(last):
            return False
        content = last.get("content")
        prompt = message_text(last.get("value") if content is None else content)
    if not isinstance(prompt, str):
        return False
    end = prompt[-len(tag) - 66 :]
    return "<" in end and end.rstrip().endswith(f"<{tag}>")


# ------------------------------------------------------------------------------------------- the rules


def hash_marker(text: str) -> Found | None:
    """The line behind the last `####`, as GSM8K writes its answers.

    A Markdown heading of that depth (`#### Step 1`) is no marker, unless it is the last line: then it
    stands where the answer should be. The number may stand on the next line, alone.
    """
    if "#" not in text:
        return None
    at = text.rfind("####")
    last = True
    while at >= 0:
        first = at
        while first and text[first - 1] == "#":
            first -= 1
        if first == at and text[at + 4 : at + 5] != "#":
            line, start = _line(text, at + 4)
            if not line and (below := _next_line(text, start)) and _is_number(below[0]):
                return Found(below[0], "####", below[1])
            if not line and last and (closed := _closed(text, first)) is not None:
                return closed
            line = line.rstrip("# \t")
            if not line or _starts_number(line):
                return Found(line, "####", start)
            if last and not text[start + len(line) :].strip():
                phrase = answer_phrase(line)
                return None if phrase is not None and phrase.text else Found(line, "####", start)
        last = False
        at = text.rfind("####", 0, first)
    return None


def _closed(text: str, end: int) -> Found | None:
    """Return what stands before a closing `####` on the same line: `#### 18 ####`."""
    line = max(text.rfind("\n", 0, end) + 1, end - MAX_ANSWER)
    opened = text.rfind("####", line, end)
    inner = text[opened + 4 : end].strip() if opened >= 0 else ""
    if not inner or text[max(0, opened - 1) : opened] == "#" or not _starts_number(inner):
        return None
    return Found(inner, "####", text.index(inner, opened))


def _line(text: str, at: int) -> tuple[str, int]:
    """Return the rest of the line at `at`, without surrounding space, and where it starts."""
    end = text.find("\n", at, at + MAX_ANSWER)
    raw = text[at : end if end >= 0 else at + MAX_ANSWER]
    left = raw.lstrip()
    return left.rstrip(), at + len(raw) - len(left)


def _next_line(text: str, at: int) -> tuple[str, int] | None:
    """Return the next line that is not blank."""
    chunk = text[at : at + MAX_ANSWER]
    left = chunk.lstrip()
    return _line(text, at + len(chunk) - len(left)) if left else None


_NUMBER_FIRST = re.compile(
    r"[^\w\n]{0,12}"
    r"(?:(?:minus|negative|not|about|approximately|(?:less|more|fewer|greater) than|at (?:least|most)) ){0,2}"
    r"(?:(?:US\$|USD |EUR |\\(?:boxed|text|[dt]?frac|mathbf)\s?\{|[A-Za-z]\w{0,2} ?= ?)[^\w\n]{0,6}){0,3}"
    r"[\d½¼¾⅓⅔]"
)


def _starts_number(line: str) -> bool:
    return line[0].isdecimal() or _NUMBER_FIRST.match(line) is not None


def _is_number(line: str) -> bool:
    spans = list(find_numbers(line[:64]))
    return len(spans) == 1 and not any(map(str.isalnum, line[: spans[0][0]] + line[spans[0][1] :]))


_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\s${}\\]{0,64}")


def boxed(text: str) -> Found | None:
    """The inside of the last `\\boxed{…}` or `\\fbox{…}`, with balanced braces; empty when it is not closed."""
    if "\\" not in text:
        return None
    at = text.rfind("\\boxed")
    at = max(at, text.rfind("\\fbox", max(at, 0)))
    if at < 0:
        return None
    match = _BOX.match(text, at)
    if match is None:
        return None
    start = match.end()
    if match[1] is None:
        bare = _BARE.match(text, start)
        return Found(bare[0].rstrip(".,;:") if bare else "", "\\boxed", start)
    close = text.find("}", start)
    inside = text[start : max(start, close)]
    if close >= 0 and "{" not in inside and "\\" not in inside:
        return Found(inside.strip(), "\\boxed", start + len(inside) - len(inside.lstrip()))
    depth = 1
    for brace in _BRACE.finditer(text, start):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if not depth:
                inside = text[start : brace.start()]
                return Found(inside.strip(), "\\boxed", start + len(inside) - len(inside.lstrip()))
    return Found("", "\\boxed", start)


_ANSWER = re.compile(
    r"(?:nswers?|NSWERS?)(?P<key>[\"'](?=\s{0,4}:))?"
    r"(?:[ *_]{0,4} (?:to|for) (?:the|this|your) (?:\w{1,20} ){0,3}(?:question|problem))?[ *_]{0,4}"
    r"(?:(?P<mark>[:：=]|is ?:|are ?:)"
    r"|(?P<said>is|are|was|will be|would be|should be|must be|IS|equals|comes (?:out )?to(?: be)?)\b"
    r"[ *_]{0,4}(?P<colon>[:：]?)"
    r"|(?P<heading>\n))"
)
_MARKUP = " \t*_:#："
_LETTER = re.compile(r"[ \t*_#>]{0,12}A[ *_]{0,3}[:：]")


def answer_phrase(text: str) -> Found | None:
    """The rest of the line behind the last "the answer is", "Final answer:", or "A:" at the start of a line.

    Rule names: "A:", "answer:" (with a colon or as a heading, where an empty text means that the answer is
    lacking) and "the answer is" (a phrase of prose; one that says no number is passed over).
    """
    letter = _last_letter(text)
    low = letter.start if letter is not None else 0
    if text.find("nswer", low) < 0 and text.find("NSWER", low) < 0:
        return letter
    for word in islice(_backwards(text, ("nswer", "NSWER"), low), MAX_PHRASES):
        found = _said(text, word)
        if found is not None:
            return found
    return letter


_OTHER_LETTER = re.compile(r"\s{1,16}[*_#>]{0,12}B[ *_]{0,3}[:：]")


def _is_option(text: str, at: int) -> bool:
    """Whether the next line is labelled "B:", so that "A:" labels no answer."""
    line = text.find("\n", at, at + MAX_ANSWER)
    return line >= 0 and _OTHER_LETTER.match(text, line) is not None


def _last_letter(text: str) -> Found | None:
    at = text.rfind("\nA: ")
    if at >= 0 and text.rfind("A", at + 2) < 0 and (text.find("B", at) < 0 or not _is_option(text, at + 3)):
        return Found(*_answer_line(text, at + 3, "A:"))
    if "A:" not in text and "A*" not in text and "A：" not in text:
        return None
    for at in islice(_backwards(text, ("A:", "A*", "A：")), MAX_PHRASES):
        line = text.rfind("\n", max(0, at - 13), at) + 1
        match = _LETTER.match(text, line) if line or at <= 12 else None
        if match is not None and match.start() <= at < match.end() and not _is_option(text, match.end()):
            return Found(*_answer_line(text, match.end(), "A:"))
    return None


def _backwards(text: str, words: tuple[str, ...], low: int = 0) -> Iterator[int]:
    """Yield where any of the words stands, from the last to the first; linear, each is searched once through."""
    places = [text.rfind(word, low) for word in words]
    while (at := max(places)) >= 0:
        yield at
        which = places.index(at)
        places[which] = text.rfind(words[which], low, at)


def _said(text: str, word: int) -> Found | None:
    match = _ANSWER.match(text, word)
    if match is None or text[word - 1 : word] not in ("a", "A"):
        return None
    if match["heading"] is not None:
        line = text.rfind("\n", 0, word) + 1
        if text[line : word - 1].strip(_MARKUP).lower() not in ("", "final", "the", "the final", "my", "my final"):
            return None
        shown, rule, start = _answer_line(text, match.end(), "answer:")
        return None if _is_worked(text, start, shown) else Found(shown, rule, start)
    if match["key"]:
        value = _VALUE.match(text, match.end())
        if value is None:
            return None
        inner = value[1] if value[1] is not None else value[2]
        return Found(inner.strip(), "answer:", text.index(inner.strip(), value.start()))
    if match["mark"] or match["colon"]:
        shown, rule, start = _answer_line(text, match.end(), "answer:")
        return None if _is_worked(text, start, shown) else Found(shown, rule, start)
    rest, rule, start = _answer_line(text, match.end(), "the answer is")
    first = _FIRST_SENTENCE.match(rest)
    if rest and (first is None or _NUMERAL.search(first[0]) is None or rest.startswith("not ")):
        return None
    return Found(rest, rule, start)


# What stands behind a JSON key.
_VALUE = re.compile(r"\s{0,4}(?:\"([^\"\n]{0,1024})\"|([^,}\]\n]{0,1024}))")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")


def _is_worked(text: str, start: int, shown: str) -> bool:
    """Whether a worked solution follows "Answer:", so that the number it states comes last, not first."""
    parts = _SENTENCE_END.split(text[start : start + MAX_ANSWER].partition("\n\n")[0])
    if len(parts) < 2 or not _starts_worked(parts[0]):
        return False
    numbered = [part for part in parts[1:] if _NUMERAL.search(part) is not None]
    if "=" in parts[0]:
        return any("=" in part for part in numbered)
    return bool(numbered)


def _starts_worked(part: str) -> bool:
    """Whether a sentence is one step: a calculation, or prose that does not begin with its number."""
    if part.count("=") == 1 and _NAMED.match(part) is not None:
        return False
    return _NUMERAL.search(part) is not None and ("=" in part or _PROSE.match(part) is not None)


_NAMED = re.compile(r"\W{0,6}[A-Za-z]\w{0,12}\s?=")
_PROSE = re.compile(r"\W{0,6}[A-Z][a-z]{1,20} [a-z]{1,20} ")
_NUMERAL = re.compile(r"[\d½¼¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
_FIRST_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?!\s|$)){1,1024}")


def _answer_line(text: str, at: int, rule: str) -> tuple[str, str, int]:
    line, start = _line(text, at)
    shown = line.strip(_MARKUP)
    if not shown and (below := _next_line(text, start)) is not None:
        line, start = below
        shown = line.strip(_MARKUP)
    return shown, rule, start + len(line) - len(line.lstrip(_MARKUP))


def last_number(text: str) -> Found | None:
    """The last number in prose; its text may be one that `read_number` refuses (`3:30`, `2\\pi`)."""
    window = 256
    while True:
        start = max(0, len(text) - window)
        if start:
            start = max(text.rfind("\n", 0, start) + 1, start - window)
        spans = list(deque(find_numbers(text, start), maxlen=8))
        if not start or window >= MAX_TAIL or (spans and spans[-1][0] > start + 64):
            if not spans:
                return None
            first, last = whole_span(text, spans)
            return Found(text[first:last].strip(), "last number", first)
        window *= 4


@lru_cache(maxsize=32)
def _tag(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){re.escape(tag)}\s{{0,8}}>", re.IGNORECASE)


def tagged(text: str, tag: str = "answer", *, unclosed: bool = False) -> Found | None:
    """The inside of the last complete `<tag>…</tag>`, in any case; line breaks are part of it.

    `unclosed`: take the rest of the text when the last opening tag has no closing one, because a stop string ate it.
    """
    if "<" not in text:
        return None
    opened: int | None = None
    inside: tuple[int, int] | None = None
    for match in _tag(tag).finditer(text):
        if not match[1]:
            opened = match.end()
        elif opened is not None:
            inside, opened = (opened, match.start()), None
    if unclosed and opened is not None:
        inside = (opened, len(text))
    if inside is None:
        return None
    body = text[inside[0] : inside[1]]
    return Found(body.strip(), f"<{tag}>", inside[0] + len(body) - len(body.lstrip()))


_FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]{0,32})[^\n`]*$", re.MULTILINE)


def fenced_code(text: str, language: str | None = None) -> Found | None:
    """The inside of the last complete fenced code block, of one language if given; unstripped."""
    fence = ""
    start = 0
    wanted = False
    found: Found | None = None
    for match in _FENCE.finditer(text):
        mark = match[1]
        if not fence:
            fence, start = mark, min(match.end() + 1, len(text))
            wanted = language is None or match[2].lower() == language.lower()
        elif mark[0] == fence[0] and len(mark) >= len(fence) and not match[2]:
            if wanted:
                found = Found(text[start : max(start, match.start())], "fenced code", start)
            fence = ""
    return found


def final_line(text: str) -> Found | None:
    """The last line that is not blank."""
    kept = text.rstrip()
    if not kept:
        return None
    line, start = _line(kept, kept.rfind("\n") + 1)
    return Found(line, "final line", start)
