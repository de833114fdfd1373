r"""Where a completion states its answer: spans with a rank and the rule that found them.

The strongest marker wins, and of one kind the last; a marker that points to nothing (an unfinished box, `####` at the
end) means that there is no answer, and nothing is guessed from elsewhere then.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, NamedTuple

from rewardkit.extract import Found, after_thinking, cut_run_on, hash_marker, tagged
from rewardkit.verifiers.final_number import guessed_answer
from rewardkit.verifiers.math.normalise import closing
from rewardkit.verifiers.math.patterns import lazily

MAX_TAIL = 20_000  # characters at the end of a completion that are looked at
MAX_BOXES = 32

Rule = Literal["boxed", "hash", "tag", "json", "phrase", "bold", "conclusion"]
RULES: tuple[Rule, ...] = ("tag", "hash", "boxed", "json", "phrase", "bold", "conclusion")


class Span(NamedTuple):
    """A stated answer.

    Attributes:
        text: What stands there; "" where the marker points to nothing.
        rule: What found it, as shown to people.
        why: Why there is no answer although a marker is there.
        alternatives: Two boxes joined by "or": an answer only where both are equal.
    """

    text: str
    rule: str
    why: str = ""
    alternatives: tuple[str, ...] = ()


def find_answer(
    text: str, rules: tuple[Rule, ...] = RULES, boxes: str = "join", *, opened: bool = False
) -> Span | None:
    """Return the stated answer of a completion; None when it states none.

    Args:
        rules: Which rules may find it.
        boxes: Several boxes side by side: "join" into a list, or only the "last".
        opened: The prompt has already opened the thinking.
    """
    region = after_thinking(cut_run_on(text[-5 * MAX_TAIL :]), opened=opened)
    if region is None:
        return Span("", "thinking", "the thinking was never closed")
    region = region[-MAX_TAIL:]
    if "tag" in rules:
        tag = tagged(region, "answer", unclosed=True)
        if tag is not None:
            behind = _marked(region[tag.start + len(tag.text) :], rules, boxes)
            if behind is not None:
                return behind
            return _marked(tag.text, rules, boxes) or Span(
                _bare(tag.text), "<answer>", "" if tag.text else "the tag is empty"
            )
    found = _marked(region, rules, boxes)
    if found is not None:
        return found
    return _guessed(region, rules)


def _marked(text: str, rules: tuple[Rule, ...], boxes: str) -> Span | None:
    if "hash" in rules:
        found = hash_marker(text)
        if found is None and "####" in text:
            found = _any_hash(text)
        if found is not None:
            corrected = _corrected(text, found.start + len(found.text))
            if corrected is not None:
                return corrected
            return Span(_bare(found.text), "####", "" if found.text else "nothing stands behind ####")
    if "boxed" in rules:
        boxed = _boxed(text, boxes)
        if boxed is not None:
            behind = text.rfind(boxed.text) + len(boxed.text) if boxed.text else -1
            corrected = _corrected(text, behind) if behind > 0 else None
            return corrected or boxed
    if "json" in rules:
        json = _json_answer(text)
        if json is not None:
            return json
    if "phrase" in rules:
        return _phrase(text)
    return None


_CORRECTION = lazily(
    r"(?:\b(?:wait|no|actually|sorry|oops|correction|scratch that|i mean|make that|hold on|rather)\b[\s,.!;:—–…-]*)+"
    r"(?:(?:it|that|this|the answer)(?:\s+(?:is|should be|must be|would be)|'s|’s)\s+|make (?:it|that)\s+|"
    r"should be\s+)?(?:actually\s+|rather\s+)?"
    r"(\$[^$\n]{1,40}\$|-?[\d.,/]*\d%?|\(?[A-K]\)?(?![A-Za-z]))[\s.!*)]*$",
    re.IGNORECASE,
)


def _corrected(text: str, at: int) -> Span | None:
    """Return what the last words behind a stated answer put in its place: "Wait, it is 13."."""
    tail = text[at:].rstrip()
    if not 0 < len(tail) <= 300:
        return None
    match = _CORRECTION.search(tail)
    if match is None or (match[1].strip("()").isalpha() and not match[1].strip("()").isupper()):
        return None
    if (
        match.start()
        and re.search(r"[.!?…,;\n—–-]\s*(?:but\s+|oh,?\s+)?$", tail[: match.start()], re.IGNORECASE) is None
    ):
        return None
    return Span(_bare(match[1].strip("$")), "answer phrase")


def _any_hash(text: str) -> Found | None:
    at = text.rfind("####")
    line = text[at + 4 :].lstrip("#").partition("\n")[0].strip()
    return Found(line, "####", at) if line and not text[at:].partition("\n")[2].strip() else None


# ------------------------------------------------------------------------------------------------- boxes

_BOX = lazily(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE_BOX = lazily(r"\s*([^\s${}\\]{1,64})")
_BETWEEN = lazily(
    r"[\s$,.;、，()\\]*(?:\\text\{)?(?:and|和|及|与|,|、)?\}?[\s$,()\\]*(?:[A-Za-z]{1,2}(?:_\d)?\s*=\s*)?[\s$\\(]*"
)
_OR = lazily(r"\bor\b|或|\blor\b")
_LIST_GAP = lazily(
    r"[\s$.)\\\]]*(?:,|;|and\b|和|及|、|,\s*and\b|&)[\s$(\\\[]*(?:and\b)?[\s$(\\\[]*(?:[a-z](?:_\{?\d\}?)?\s*=\s*)?[\s$]*"
)


def _boxed(text: str, mode: str) -> Span | None:
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    boxes: list[tuple[int, int, str]] = []
    at = 0
    matches = list(_BOX.finditer(text))[-MAX_BOXES:]
    for match in matches:
        if match.start() < at:
            continue  # a box inside a box
        if match[1] is None:
            bare = _BARE_BOX.match(text, match.end())
            inside = bare[1].rstrip(".,;:") if bare else ""
            at = bare.end() if bare else match.end()
        else:
            end = closing(text, match.end() - 1)
            if end < 0:
                return Span("", "\\boxed", "the last box is not closed")
            inside, at = text[match.end() : end].strip(), end + 1
        boxes.append((match.start(), at, inside))
    last = boxes[-1]
    if not last[2].strip(" $"):
        return Span("", "\\boxed", "the last box is empty")
    together = [last]
    for box in reversed(boxes[:-1]):
        gap = text[box[1] : together[0][0]]
        if len(gap) > 60:
            break
        if _OR.search(gap) is not None and len(gap) < 30:
            return Span("", "\\boxed", "boxes joined by or", (box[2], last[2]))
        if _LIST_GAP.fullmatch(gap) is None:
            break
        together.insert(0, box)
    if mode == "last" or len(together) == 1 or len({box[2] for box in together}) == 1:
        sentence = text[max(0, last[0] - 40) : last[0]]
        if _same_line_alternative(text, boxes):
            return Span("", "\\boxed", "several different final answers in one line")
        hedge = _hedged_behind(text, last[1])
        if hedge:
            return Span("", "\\boxed", hedge)
        del sentence
        return Span(last[2], "\\boxed")
    return Span(", ".join(box[2] for box in together), "\\boxed, joined")


_FINAL = lazily(r"\b(?:final answer|answer)\b[^\\\n]{0,40}\\boxed", re.IGNORECASE)
_ALTERNATIVE = lazily(r"[^.\n]{0,80},?\s+or\s+[^.\n]{0,40}(?:=|\\boxed|\d)")


def _same_line_alternative(text: str, boxes: list[tuple[int, int, str]]) -> bool:
    """Whether several final answers are announced in the last line, all different."""
    start = text.rfind("\n", 0, boxes[-1][0]) + 1
    here = [box for box in boxes if box[0] >= start]
    return len({box[2] for box in here}) > 1 and len(_FINAL.findall(text[start:])) > 1


def _hedged_behind(text: str, at: int) -> str:
    rest = text[at : at + 160].partition("\n")[0]
    if re.match(
        r"[\s$)\\.]*(?:,?\s*(?:or|或)\s+)(?!equivalently|simply|about|approximately|rather|we|just|in )",
        rest,
    ):
        tail = re.split(r"\bor\b|或", rest, maxsplit=1)[1]
        if re.match(r"\s*(?:maybe |perhaps |possibly )?\$?\\?[\w\\-]{0,12}\s*[=\d{]", tail) and not re.match(
            r"\s*\$?\s*(?:approximately|about)", tail
        ):
            return "an alternative stands behind the box"
    return ""


# ------------------------------------------------------------------------------------------------ markers

_JSON = lazily(
    r"[\"'](?:final_?)?answer[\"']\s{0,4}:\s{0,4}(?:\"((?:[^\"\\\n]|\\.){0,1024})\"|'([^'\n]{0,1024})'|([^,}\]\n]{1,1024}))",
    re.IGNORECASE,
)


def _json_answer(text: str) -> Span | None:
    last = deque(_JSON.finditer(text), maxlen=1)
    if not last:
        return None
    found = last[0]
    inner = next(group for group in found.groups() if group is not None)
    return Span(inner.replace("\\\\", "\\").strip(), 'JSON "answer"')


_MARK = lazily(
    r"(?:\b(?:the\s+)?(?:final|correct|right|my|overall)?\s*(?:answers?|result|solution)\b[ *_]{0,4}"
    r"(?:(?:to|for) (?:the|this|your) (?:\w{1,20} ){0,3}(?:question|problem))?[ *_]{0,4}"
    r"(?P<mark>\s?[:：=]|is ?:|are ?:|\b(?:is|are|equals|would be|will be|should be|must be|IS)\b)"
    r"|(?:la |le |el )?(?:respuesta|réponse|resposta|risposta)(?: final| finale)?\s*(?:est\b|es\b|é|è|:)"
    r"|(?:die |the )?antwort(?: ist|:| lautet)"
    r"|ответ\s*(?:[:：—-])"
    r"|(?:(?:最终|正确|最后)?(?:答案|结果|結果)(?:是|为|為|[:：])+)"
    r"|(?:^|\n)[ \t*_#>]{0,8}A[ *_]{0,3}[:：]"
    r"|\b(?:correct|right|best) (?:option|choice)(?: is|:)"
    r"|\b(?:option|choice)\s*[:：]"
    r"|\bI (?:choose|pick|select)\b(?: option)?)",
    re.IGNORECASE,
)
_MAX_MARKS = 200
_NOT_OWN = lazily(
    r"\b(?:reference|gold|expected|ground[ -]truth|wrong|incorrect)\s*$|\b(?:reference|gold|expected)\s+.$"
)


def _phrase(text: str) -> Span | None:
    marks = list(_MARK.finditer(text))[-_MAX_MARKS:]
    for match in reversed(marks):
        if _NOT_OWN.search(text, max(0, match.start() - 24), match.start() + 1) is not None:
            continue
        colon = match[0].rstrip("*_ ").endswith((":", "：", "="))
        rest = text[match.end() :].lstrip(" \t*_:：")
        line = (
            rest.lstrip("\n *_").partition("\n")[0]
            if not rest.partition("\n")[0].strip(" *_")
            else rest.partition("\n")[0]
        )
        line = _display(rest, line)
        if not line.strip(" *_$"):
            if colon and not rest.strip():
                return Span("", "answer phrase", "nothing stands behind it")
            continue
        said = (match["mark"] or "").strip().lower() in ("is", "are", "equals")
        if said and re.match(r"\s*not\b", line) is not None:
            continue
        span = _first_statement(line)
        if span and _statable(span, colon):
            corrected = _corrected(text, match.end())
            if corrected is not None:
                return corrected
            return Span(span, "answer phrase")
    return None


def _display(rest: str, line: str) -> str:
    """Take in display mathematics that goes over several lines."""
    stripped = rest.lstrip()
    for left, right in (("\\[", "\\]"), ("$$", "$$")):
        if stripped.startswith(left):
            end = stripped.find(right, 2)
            if 0 < end < 2000:
                return stripped[: end + 2]
    return line


_SENTENCE = lazily(r"(?:(?<!\bp)(?<!\ba)[.!?](?=\s|$|\*)|。)")
_MATH = lazily(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


_REMARK = lazily(r",\s+(?:and )?(?:not|because|since|which|rather)\b")


def _first_statement(line: str) -> str:
    """Return the first sentence of a line, without what only surrounds it."""
    line = line.strip()
    sentence = _SENTENCE.split(line, maxsplit=1)[0] if not line.startswith(("$$", "\\[")) else line
    sentence = _REMARK.split(sentence, maxsplit=1)[0]
    return _bare(sentence)


def _bare(text: str) -> str:
    text = text.strip().strip("*_` \t\n").strip()
    text = re.sub(r"\s*[.。]$", "", text)
    math = list(_MATH.finditer(text))
    if math and not re.search(r"[^\W_]", _MATH.sub("", text)):
        pieces = [next(group for group in match.groups() if group is not None) for match in math]
        return ", ".join(piece.strip() for piece in pieces) if len(pieces) > 1 else pieces[0].strip()
    if math:
        joined = _MATH.sub(lambda match: next(group for group in match.groups() if group is not None), text)
        return re.sub(r"^(?:the value of|about|approximately|therefore|so|thus|then)\s+", "", joined.strip())
    return text


def _statable(span: str, colon: bool) -> bool:
    """Whether a phrase of prose states something rather than talks about an answer."""
    if colon:
        return True
    return re.search(r"\d|\\[A-Za-z]|[=∅∞π√½]", span) is not None or len(span) <= 24


# ------------------------------------------------------------------------------------- without any marker

_REFUSED = lazily(
    r"\b(?:cannot|can ?not|can't|could not|couldn't|unable to|impossible to|not able to|not possible to|do not know"
    r"|don't know|not enough information|insufficient information|no solution yet|have no solution|not sure|unsure"
    r"|mark this|full marks|full credit|grader|(?:reference|gold|expected|ground[ -]truth) (?:answer|solution|is)"
    r"|score ?:)",
    re.IGNORECASE,
)
_BOLD = lazily(r"\*\*([^*\n]{1,300})\*\*")
_CHOICE = [
    lazily(r"选(?:择)?\s*[:：]?\s*\(?([A-K])\)?(?![A-Za-z])"),
    lazily(r"\b(?:option|choice|answer)\s+\(?([A-K])\)?(?![A-Za-z'’])"),
    lazily(r"(?<![A-Za-z'’])\(?([B-HJ-K])\)?\s+(?:is (?:the )?(?:correct|right|best)|fits best|fits)\b"),
    lazily(r"\bI (?:choose|pick|select)\s+\(?([A-K])\)?(?![A-Za-z'’])"),
]


def _guessed(text: str, rules: tuple[Rule, ...]) -> Span | None:
    kept = text.rstrip()
    if not kept:
        return None
    line = kept[kept.rfind("\n") + 1 :].strip()
    if _REFUSED.search(line) is not None:
        return Span("", "conclusion", "it refuses to answer")
    if "bold" in rules and line.startswith("**"):
        bold = _BOLD.fullmatch(line.rstrip(". "))
        if bold is not None:
            return Span(_bare(bold[1]), "bold last line")
    if "conclusion" not in rules:
        return None
    for pattern in _CHOICE:
        found = list(pattern.finditer(line))
        if found:
            return Span(found[-1][1], "conclusion")
    between = _RANGE.search(line)
    if between is not None and not any(map(str.isdigit, line[between.end() - 1 :].lstrip("-0123456789.,"))):
        return Span("", "last number", "a range is no value")
    return _conclusion(line) or _last_number(text)


_RANGE = lazily(
    r"\bbetween\s+\$?-?[\d.,]{1,20}%?\$?\s+and\s+\$?-?\d|\b(?:are|is|from|need)\s+\d[\d.,]*\s*(?:-|–|to)\s*\d",
    re.IGNORECASE,
)


_VALUE_BEFORE_WORDS = lazily(r"[^\W\d_]{2,}")


def _conclusion(line: str) -> Span | None:
    """Return the last value that the last line states: its mathematics, a ratio, a time, or a number."""
    if len(line) <= 120 and re.search(r"[^\W\d_]{2,}(?<!\b(?:or|pi))", re.sub(r"\\[A-Za-z]+", "", line)) is None:
        return Span(_bare(line).removeprefix("=").strip(), "last line")
    math = list(_MATH.finditer(line))
    if (
        math
        and not any(map(str.isdigit, line[math[-1].end() :]))
        and not line[: math[-1].start()].rstrip().endswith("US")
    ):
        inner = _together(line, math)
        if _VALUE_BEFORE_WORDS.search(re.sub(r"\\[A-Za-z]+| or ", "", inner)) is None:
            return Span(inner.strip(), "last formula")
    ratio = re.search(r"\d+(?:\.\d+)?(?:\s?:\s?\d+(?:\.\d+)?)+(?:\s?[ap]\.?m\b)?(?=[^\d:]*$)", line, re.IGNORECASE)
    if ratio is not None:
        return Span(ratio[0], "last value")
    return None


_OR_AND = lazily(r"\s*(?:,|,?\s*(?:or|and)\b|或|和)\s*")


def _together(line: str, math: list[re.Match[str]]) -> str:
    """Return the last formula with those before it that "or", "and" or a comma joins to it."""
    parts = [math[-1]]
    for match in reversed(math[:-1]):
        if _OR_AND.fullmatch(line, match.end(), parts[0].start()) is None:
            break
        parts.insert(0, match)
    return " or ".join(next(group for group in match.groups() if group is not None) for match in parts)


def _last_number(text: str) -> Span | None:
    found = guessed_answer(text)
    if found is None:
        return None
    if found.rule == "denied":
        return Span("", "last number", "it is denied, only a bound, or one of several")
    return Span(found.text, "last number")
