"""`exact`: is the completion the reference text."""

from __future__ import annotations

import unicodedata
from typing import Any, ClassVar

from pydantic import Field, field_validator

from rewardkit.extract import strip_special_tokens
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier


class ExactReference(Reference):
    """The right text. A number stands for its digits (18 for "18"), true and false for these words."""

    text: str = Field(description="a text")

    @field_validator("text", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> str:
        if isinstance(value, bool):
            value = "true" if value else "false"
        if isinstance(value, (int, float)):
            value = str(value)
        if not isinstance(value, str):
            raise ValueError(f"a text is wanted, got {type(value).__name__}")
        if not value.strip():
            raise ValueError("a text is wanted, got an empty one")
        return strip_special_tokens(value) or value


class Exact(Verifier[ExactReference]):
    """Accept when the completion is the reference, character by character.

    Both sides are treated the same way first: tokens such as `</s>` and `[PAD]` at the end are dropped, Unicode is
    composed (NFC: é written as one character or as two is one text), and the options apply. The whole completion
    counts, also any reasoning in it. An empty completion is no answer.

    Traps: 18.0 is not 18 and 1,000 is not 1000; use `numeric` for numbers. True is not true unless `ignore_case`.

    Options:
        strip: drop white space at both ends.
        ignore_case: compare case-folded (ß equals ss).
        fold_space: let any run of white space, line breaks too, count as one space.

    Example:
        rewardkit try exact --reference Paris 'Paris'
    """

    name: ClassVar[str | None] = "exact"

    strip: bool = True
    ignore_case: bool = False
    fold_space: bool = False

    def verify(self, completion: Completion, reference: ExactReference, sample: Sample) -> Verdict:
        text = strip_special_tokens(completion.text) or completion.text
        if not text.strip():
            return Verdict.reject("the completion is empty", reason="no_answer")
        mine, wanted = self._plain(text), self._plain(reference.text)
        extracted = text.strip() if len(text) <= 200 else text[:200].strip() + "..."
        if mine == wanted:
            return Verdict.accept(f"equal: {_short(mine)}", extracted=extracted)
        return Verdict.reject(_difference(mine, wanted), extracted=extracted)

    def _plain(self, text: str) -> str:
        if self.fold_space:
            text = " ".join(text.split()) if self.strip else _one_space(text)
        elif self.strip:
            text = text.strip()
        text = unicodedata.normalize("NFC", text)
        return unicodedata.normalize("NFC", text.casefold()) if self.ignore_case else text


def _one_space(text: str) -> str:
    inner = " ".join(text.split())
    return " " * text[:1].isspace() + inner + " " * text[-1:].isspace()


def _difference(mine: str, wanted: str) -> str:
    """Say where two texts part, in one short line."""
    if mine.casefold() == wanted.casefold():
        return f"only the case differs: {_short(mine)}, not {_short(wanted)}"
    if "".join(mine.split()) == "".join(wanted.split()):
        return f"only white space differs: {_short(mine)}, not {_short(wanted)}"
    if len(mine) <= 60 and len(wanted) <= 60:
        return f"{mine!r}, not {wanted!r}"
    at = _first_difference(mine, wanted)
    if at == len(wanted):
        return f"{len(mine) - at} characters more than the reference: {_short(mine[at:])}"
    if at == len(mine):
        return f"ends {len(wanted) - at} characters early, before {_short(wanted[at:])}"
    return f"differs at character {at + 1}: {_short(mine[at:])}, not {_short(wanted[at:])}"


def _first_difference(mine: str, wanted: str) -> int:
    low, high = 0, min(len(mine), len(wanted))
    while low < high:
        middle = (low + high + 1) // 2
        if mine[low:middle] == wanted[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
