"""`contains`: does a text, or each of several, occur in the completion."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import deque
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from rewardkit.extract import (
    Found,
    after_thinking,
    boxed,
    cut_run_on,
    final_line,
    hash_marker,
    opens_thinking,
    tagged,
)
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier

Within = Literal["reply", "answer", "last_line", "whole"]

# Characters that show nothing: zero-width space, word joiner, byte order mark, soft hyphen, marks of direction.
_UNSEEN = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
# Scripts that put no space between words, and Hangul, whose particles are joined to the word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


def _read_texts(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json_texts(value)
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ValueError("a text or a list of texts is wanted, got an empty list")
    return tuple(_read_text(item) for item in values)


def _json_texts(text: str) -> Any:
    """Return the list that a table keeps as JSON, `["Paris","Rome"]`; any other text as it is."""
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError):
        return text
    listed = isinstance(texts, list) and texts and all(isinstance(item, str) for item in texts)
    return texts if listed else text


def number_text(value: int | float) -> str:
    """Return a number of a table as it is written; a column with gaps turns 12 into 12.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _read_text(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError(f"a text is wanted, got {value}, which may be written in many ways; give it as text")
    if isinstance(value, (int, float)):
        value = number_text(value)
    if not isinstance(value, str):
        raise ValueError(f"a text or a list of texts is wanted, got {type(value).__name__}")
    if not _UNSEEN.sub("", value).strip():
        raise ValueError("a text is wanted, got an empty one, which occurs everywhere")
    return value


class ContainsReference(Reference):
    """The text that must occur, or a list of them, also as JSON. A number stands for its digits, 12.0 for 12."""

    texts: Annotated[tuple[str, ...], BeforeValidator(_read_texts)]


class Contains(Verifier[ContainsReference]):
    r"""Accept when the reference occurs in the completion; of a list, all of them, or any.

    Both sides are treated the same way first: Unicode is composed (NFC), characters that show nothing (zero-width
    space, marks of direction) are dropped, any run of white space counts as one space. The completion is searched
    for the reference, never the other way round, and an empty completion is no answer.

    With `whole_word` no letter or digit may touch an occurrence, nor may it be a part of a longer number: 25 does not
    occur in 125, 1.25, 25,000 or -25, but in "25.", "$25" and "25 %". Scripts without spaces between words
    (Chinese, Japanese, Thai, …) have no such bounds.

    Traps: only the text counts, not what is said about it: "it is not Paris" contains Paris, and so does a list of
    all capitals; look `within` the answer, or use `exact` or `choice`. For numbers use `numeric`: 25.0 is not 25 here.

    Options:
        mode: of a list of texts, "all" must occur, or "any" one of them.
        ignore_case: compare case-folded (ß equals ss).
        whole_word: an occurrence inside a longer word or number does not count.
        within: where to look: the "reply" (what comes after the thinking), the "answer" (inside the last `<answer>`
            tags, after ####, in \boxed, after "the answer is" or "Answer:", below the heading "Answer"), the
            "last_line", or the "whole" text. But for "whole", a new question that the model asks itself is cut off.

    Example:
        rewardkit try contains --reference Paris 'The capital is Paris.'
    """

    name: ClassVar[str | None] = "contains"

    mode: Literal["all", "any"] = "all"
    ignore_case: bool = False
    whole_word: bool = True
    within: Within = "reply"

    def verify(self, completion: Completion, reference: ContainsReference, sample: Sample) -> Verdict:
        place = searched(completion.text, sample, self.within)
        if isinstance(place, Verdict):
            return place
        text = self._plain(place)
        if not text.strip():
            return Verdict.reject("the completion is empty", reason="no_answer")
        lacking = []
        found = None
        for wanted in reference.texts:
            at = _occurrence(text, self._plain(wanted).strip(), self.whole_word)
            if at is None:
                lacking.append(wanted)
                continue
            found = found or text[slice(*at)]
            if self.mode == "any":
                return Verdict.accept(f"has {short(wanted)}", extracted=found[:200])
        count = len(reference.texts)
        if not lacking:
            what = short(reference.texts[0]) if count == 1 else f"all {count} texts"
            return Verdict.accept(f"has {what}", extracted=(found or "")[:200])
        shown = found[:200] if found else None
        if self.mode == "any" or count == 1:
            what = short(lacking[0]) if count == 1 else f"none of {count} texts"
            return Verdict.reject(f"has not {what}" if count == 1 else f"has {what}", extracted=shown)
        return Verdict.reject(f"lacks {short(lacking[0])}, {count - len(lacking)} of {count} occur", extracted=shown)

    def _plain(self, text: str) -> str:
        text = " ".join(unicodedata.normalize("NFC", _UNSEEN.sub("", text)).split())
        return unicodedata.normalize("NFC", text.casefold()) if self.ignore_case else text


def searched(text: str, sample: Sample, within: Within) -> str | Verdict:
    """Return the part of a completion to search, stripped, or the verdict when there is no such part."""
    if not text.strip():
        return Verdict.reject("the completion is empty", reason="no_answer")
    if within == "whole":
        return text.strip()
    reply = after_thinking(cut_run_on(text), opened=opens_thinking(sample.prompt))
    if reply is None:
        return Verdict.reject("the thinking was never closed", reason="no_answer")
    if within == "reply":
        return reply.strip()
    found = final_line(reply) if within == "last_line" else marked_text(reply)
    if found is None or not found.text:
        what = "nothing after the thinking" if within == "last_line" else "no marked answer"
        return Verdict.reject(what, reason="no_answer")
    return found.text


_SAYS = re.compile(
    r"\banswers?[ *_]{0,4}(?:to (?:the|this|your) question[ *_]{0,4})?"
    r"(?:is|are|was|will be|would be|[:：=])[ *_:：]{0,6}",
    re.IGNORECASE,
)
# A line that is nothing but "Final answer", as the heading of the next one.
_HEADING = re.compile(
    r"^[ \t>#*_]{0,12}(?:(?:the|my) )?(?:final )?answer[ \t\r#*_:：]{0,12}$", re.IGNORECASE | re.MULTILINE
)


def marked_text(text: str) -> Found | None:
    """The answer that a text marks as such: in `<answer>`, after `####`, in `\\boxed`, behind "the answer is"."""
    found = tagged(text, "answer", unclosed=True) or hash_marker(text) or boxed(text)
    if found is not None:
        return found
    ends = [match.end() for rule in (_SAYS, _HEADING) for match in deque(rule.finditer(text), maxlen=1)]
    if not ends:
        return None
    end = max(ends)
    return Found(text[end : end + 4096].lstrip().partition("\n")[0].strip(), "the answer is", end)


def _occurrence(text: str, wanted: str, whole_word: bool) -> tuple[int, int] | None:
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not whole_word or not (_runs_on(text, at, -1) or _runs_on(text, end - 1, 1)):
            return at, end
        # Inside a word nothing can begin, so that long runs are passed over at once.
        inside = _LATIN.match(text, at) if at and _LATIN.match(text, at - 1) is not None else None
        at = text.find(wanted, at + 1 if inside is None else inside.end())
    return None


_LATIN = re.compile("[A-Za-z0-9]++")


def _runs_on(text: str, edge: int, step: int) -> bool:
    """Whether the word or number at an edge of an occurrence goes on beyond it."""
    beside = edge + step
    if not 0 <= beside < len(text) or not _in_word(text[edge]):
        return False
    char = text[beside]
    if _in_word(char):
        return _UNSPACED.match(char) is None and _UNSPACED.match(text[edge]) is None
    if not text[edge].isdecimal():
        return False
    beyond = text[beside + step] if 0 <= beside + step < len(text) else " "
    if char in ".,":
        return beyond.isdecimal()
    # A minus sign, not the dash of "10-25" or "x-25".
    return step < 0 and char in "-−" and not (_in_word(beyond) or beyond in ")]")


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M"


def short(text: str) -> str:
    """Return a text as it is shown in a verdict."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
