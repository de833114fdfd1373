"""`choice`: multiple choice, answered by a label or by the text of an option.

choice_options.py reads the question's options, choice_statements.py what a completion states.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from rewardkit.extract import tagged
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.choice_options import DIGITS, LETTERS, MAX_END, ROMAN, USUAL, Options, options_in, read_options
from rewardkit.verifiers.choice_statements import MAX_STATEMENT, Place, Reader, clean, plain_text, stated
from rewardkit.verifiers.numeric import UNFINISHED, answer_region


class ChoiceReference(Reference):
    """The right option: its label, its index, its text, or a list of these where several are right."""

    answer: Any = Field(description="label, index or text of the right option; a list where several are right")
    choices: Any = Field(default=None, description="the options: a list of texts, or a mapping of label to text")
    options: Any = Field(default=None, description="another name for the same")
    _reader: Any = PrivateAttr(default=None)
    _right: frozenset[int] = PrivateAttr(default=frozenset())


class Choice(Verifier[ChoiceReference]):
    r"""Accept when the completion chooses the right option, by its label or by its text.

    The answer is what the last `<answer>` tags hold; else the last of a `\boxed{}`, `####`, "the answer is",
    "Answer:", "the correct choice is", or a last line that is nothing but an answer; else "I choose B" or "B is
    correct", a first line that is nothing but an answer, or the only option that the last sentences name. It may be
    B, (B), b), **B**, \boxed{\text{B}}, "option B", "B) Paris", "Paris", or the number where the options are numbers.

    The options come from the column `choices` or `options` (a list of texts, a mapping of label to text, ARC's
    `{"text": […], "label": […]}`), else from the last list `A) … B) …`, `(A) …`, `A. …` in the prompt, also with digits
    or roman numerals. Without any, labels are the letters A to J and only labels can be read.

    Traps: "A" is a label only where it is no article, "I" only where it is no pronoun. "A or B", two different answers
    side by side, and "B) Paris" where Paris is C are `unreadable`; "A and C" are two answers, and wrong unless both are
    right. A box that names no option is `unreadable`, whatever stands before it. Nothing is read from a refusal or
    a negation ("it cannot be B"). Only the last 20,000 characters count.

    Options:
        gold: what the reference is: "label", "index" or "text"; "auto": a number is an index into a list of choices,
            else a label; a text is a label, else an option's text, else an index, and abstains where two of these fit.
            A number abstains, too, where no options are known.
        index_base: the index of the first option, 0 or 1.
        choices_in: where the options are: the "column", the "prompt", or nowhere ("none"); "auto": as above.

    Example:
        rewardkit try choice --reference B 'The answer is (B) Paris.'
    """

    name: ClassVar[str | None] = "choice"

    gold: Literal["auto", "label", "index", "text"] = "auto"
    index_base: int = Field(default=0, ge=0, le=1)
    choices_in: Literal["auto", "column", "prompt", "none"] = "auto"

    def prepare(self, sample: Sample) -> object:
        prepared = super().prepare(sample)
        if not isinstance(prepared, ChoiceReference):
            return prepared
        try:
            options, right = self._question(prepared, sample)
        except ValueError as problem:
            return Score(None, f"answer: {problem}", reason="bad_reference", name=self.label)
        ready = ChoiceReference(answer=prepared.answer)
        ready._reader = _reader(options)
        ready._right = right
        return ready

    def verify(self, completion: Completion, reference: ChoiceReference, sample: Sample) -> Verdict:
        if not completion.text.strip():
            return Verdict.reject("the completion is empty", reason="no_answer")
        text = answer_region(completion.text, sample)
        if text is None:
            return UNFINISHED
        reader: Reader = reference._reader
        tag = tagged(text, "answer", unclosed=True)
        if tag is None:
            place = stated(text, reader)
            if place is None:
                return Verdict.reject("names no option", reason="no_answer")
        else:
            reading = reader.line(tag.text) or reader.read(tag.text) if len(tag.text) <= MAX_STATEMENT else None
            inner = None if reading is not None else stated(tag.text, reader)
            place = Place(0, "in <answer>", reading if inner is None else inner.reading, tag.text)
        return _verdict(place, reader.options, reference._right)

    # -- the question

    def _question(self, reference: ChoiceReference, sample: Sample) -> tuple[Options, frozenset[int]]:
        """Return the options as the completion saw them, and the right ones among them."""
        column = prompt = None
        given = reference.choices if reference.choices is not None else reference.options
        if given is not None and self.choices_in in ("auto", "column"):
            column = read_options(given)
        if self.choices_in in ("auto", "prompt"):
            prompt = options_in(sample.prompt_text[-5 * MAX_END :])
        if column is None:
            if prompt is not None:
                try:
                    return prompt, self._right(reference.answer, prompt, indexed=False)[0]
                except ValueError:
                    if self.choices_in == "prompt" or self.gold in ("index", "text"):
                        raise
            return self._unlisted(reference.answer)
        right, by_label = self._right(reference.answer, column, indexed=isinstance(given, (list, tuple, str)))
        if prompt is None or len(prompt.labels) != len(column.labels):
            return column, right
        mine, shown = list(map(plain_text, column.texts)), list(map(plain_text, prompt.texts))
        if mine == shown or not shown:
            return Options(prompt.labels, column.texts), right
        if sorted(mine) != sorted(shown) or len(set(mine)) < len(mine):
            return column, right
        if by_label:
            raise ValueError(
                "the prompt shows the options in another order than the column, so that no label is certain"
            )
        return prompt, frozenset(shown.index(mine[place]) for place in right)

    def _right(self, answer: Any, options: Options, *, indexed: bool) -> tuple[frozenset[int], bool]:
        """Find the right options; also whether they were found by label. Raises ValueError."""
        if isinstance(answer, list):
            if not answer or any(isinstance(item, list) for item in answer):
                raise ValueError("a label, an index or a text is wanted, or a list of these")
            each = [self._right(item, options, indexed=indexed) for item in answer]
            return frozenset().union(*(places for places, _ in each)), any(by_label for _, by_label in each)
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if isinstance(answer, int) and not isinstance(answer, bool):
            as_label = self.gold == "label" or (self.gold == "auto" and options.labels[0] == "1" and not indexed)
            if self.gold != "text" and not as_label:
                return frozenset({self._at(answer, options)}), False
            answer = str(answer)
        if isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise ValueError(f"a label, an index or a text is wanted, got {str(answer)[:60]!r}")
        return self._from_text(answer, options)

    def _from_text(self, answer: str, options: Options) -> tuple[frozenset[int], bool]:
        reader = _reader(options)
        word = clean(answer).strip(" .,;:()[]")
        if self.gold == "index":
            if re.fullmatch(r"\d{1,3}", word) is None:
                raise ValueError(f"an index is wanted, got {answer[:60]!r}")
            return frozenset({self._at(int(word), options)}), False
        label = reader.places.get(word.casefold())
        if self.gold != "text" and label is not None:
            return frozenset({label}), True
        same = [place for place, own in enumerate(reader.plain) if own and own == plain_text(answer)]
        if self.gold != "label" and same:
            if len(same) > 1:
                raise ValueError(f"{answer[:60]!r} is the text of {len(same)} options")
            index = int(word) - self.index_base if re.fullmatch(r"\d{1,2}", word) else -1
            if self.gold == "auto" and 0 <= index < len(options.labels) and index != same[0]:
                raise ValueError(
                    f"{word!r} may be an index or the text of {options.labels[same[0]]}; say so with gold="
                )
            return frozenset(same), False
        if self.gold == "auto" and re.fullmatch(r"\d{1,2}", word) and not options.labels[0].isdecimal():
            return frozenset({self._at(int(word), options)}), False
        reading = reader.read(answer) if self.gold != "text" else reader._as_text(clean(answer))
        if reading is None or not reading.whole or reading.hedged:
            place = stated(answer, reader) if self.gold == "auto" and len(answer) > 12 else None
            reading = place.reading if place is not None and place.rule in _WRITTEN else None
        if reading is None or reading.hedged:
            known = ", ".join(options.labels)
            raise ValueError(f"{answer[:60]!r} is neither a label ({known}) nor the text of an option")
        return reading.places, True

    def _at(self, index: int, options: Options) -> int:
        if not 0 <= index - self.index_base < len(options.labels):
            raise ValueError(f"the index {index} lies outside the {len(options.labels)} options")
        return index - self.index_base

    def _unlisted(self, answer: Any) -> tuple[Options, frozenset[int]]:
        """Without known options the reference says by itself what labels look like."""
        if self.gold == "text":
            raise ValueError("no options are known, so that no text can be found among them")
        if isinstance(answer, int) and not isinstance(answer, bool) and self.gold == "auto":
            raise ValueError(f"no options are known, so that {answer} may be a label or an index; say so with gold=")
        words = [clean(str(item)).strip(" .,;:()[]") for item in (answer if isinstance(answer, list) else [answer])]
        if self.gold == "auto" and any(word.isdecimal() for word in words):
            raise ValueError(
                f"no options are known, so that {answer!r:.60} may be a label or an index; say so with gold="
            )
        kinds = [LETTERS]
        if self.gold != "index" and all(word in DIGITS for word in words):
            kinds = [DIGITS]
        elif all(word.upper() in ROMAN for word in words) and any(word.upper() not in USUAL for word in words):
            kinds = [ROMAN]
        right, _ = self._right(answer, Options(kinds[0]), indexed=False)
        few = kinds[0] is LETTERS and max(right) < len(USUAL)
        return Options(USUAL if few else kinds[0]), right


_WRITTEN = ("in \\boxed", "after ####", 'after "the answer is"', 'after "answer:"', "as the last line")


@lru_cache(maxsize=256)
def _reader(options: Options) -> Reader:
    return Reader(options)


def _verdict(place: Place, options: Options, right: frozenset[int]) -> Verdict:
    reading, rule = place.reading, place.rule
    if reading is None:
        shown = " ".join(place.text[:200].split())
        if not shown:
            return Verdict.reject(f"no option {rule}", reason="no_answer")
        return Verdict.reject(f"{_cut(shown)!r} {rule} names no option", extracted=shown, reason="unreadable")
    shown = options.show(reading.places)
    if reading.hedged:
        return Verdict.reject(
            f"{_cut(reading.text)!r} {rule} leaves open which one", extracted=shown, reason="unreadable"
        )
    if reading.places == right:
        return Verdict.accept(f"{shown} {rule}", extracted=shown)
    return Verdict.reject(f"{shown} {rule}, not {options.show(right)}", extracted=shown)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
