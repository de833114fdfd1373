"""`math`: is the stated answer mathematically the reference."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, PrivateAttr, WithJsonSchema

from rewardkit.extract import opens_thinking
from rewardkit.leaf import Placement
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.math import typed
from rewardkit.verifiers.math.extraction import RULES, Rule, Span, find_answer
from rewardkit.verifiers.math.gate import Refused, TooLarge
from rewardkit.verifiers.math.leaves import Answer, NeedsAlgebra
from rewardkit.verifiers.math.policy import EXACT, Policy
from rewardkit.verifiers.math.reading import Reading, read
from rewardkit.verifiers.math.tree import SCALAR, Interval, Matrix, Measure, NamedSet, Node, Rel, Seq, SetOp
from rewardkit.verifiers.math.verify import decide

Kind = Literal["number", "expression", "list", "interval", "equation", "matrix", "choice", "text", "time"]


def gold_text(value: Any) -> str:
    """Return a reference as text: a number, a text, a worked solution that ends in a box or ####, or a list of texts.

    Raises:
        ValueError: It is empty or no such thing.
    """
    if isinstance(value, bool):
        value = "True" if value else "False"
    if isinstance(value, (int, float)):
        value = repr(value)
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value):
            raise ValueError("a list of answers is wanted, got an empty one or other things")
        value = ", ".join(str(item) for item in value)
    if not isinstance(value, str):
        raise ValueError(f"an answer as text is wanted, got {type(value).__name__}")
    if "####" in value or "\\boxed" in value:
        found = find_answer(value, ("hash", "boxed"))
        value = found.text if found is not None else value
    return str(value)


def _read_gold(value: Any) -> Reading:
    if isinstance(value, Reading):
        return value
    reading = read(gold_text(value))
    problem = reading.unreadable
    if problem is not None:
        raise ValueError(f"an answer is wanted, got {reading.shown!r}: {problem}")
    return reading


Gold = Annotated[
    Reading,
    PlainValidator(_read_gold),
    PlainSerializer(lambda reading: reading.text, return_type=str),
    WithJsonSchema({"type": ["string", "number", "array"]}),
]


class MathReference(Reference):
    r"""The right answer: `\frac{1}{2}`, "x = 5", "[1,2)", "C", 18; or a worked solution with a `\boxed{}` or `####`."""

    answer: Gold = Field(description="an answer: a number, a formula, a set, a choice, words")
    _unused: Any = PrivateAttr(default=None)


class Math(Verifier[MathReference]):
    r"""Accept when the stated answer equals the reference mathematically.

    The answer is what the last `<answer>` tags hold; else it stands behind the last `####`, in the last `\boxed{}`,
    in a JSON field "answer", behind "the answer is" (in several languages), in a bold last line; without any of these
    it is the last value of the conclusion. Boxes side by side form a list. An unfinished box or thinking, a refusal,
    "3 or 4" between boxes, and several different final answers are no answer.

    Numbers are exact: 0.5 is \frac{1}{2}, 45% is 0.45. A decimal reference of three or more digits accepts what rounds
    to it, an exact one a decimal with six correct digits. Units, currency and degree signs may be missing on one side;
    where both are there they must agree. Formulas are equal where their values are; sets and lists in any order, tuples
    in theirs; intervals with their ends; equations up to a factor. A reference that cannot be read abstains.

    Traps: the whole answer must be read; a number inside something unreadable never counts. An unsolved equation is no
    answer where the reference is solved. Nothing of an answer is ever executed, and no answer takes more than a second.

    Options:
        kinds: which kinds of reference are judged; others abstain as unsupported.
        rounding: False: decimals are exact, nothing is rounded.
        units: "agree" as above; "required": the reference's unit must be there; "ignore": units never matter.
        percent: False: 45% is 0.45 and never 45.
        boxes: several boxes: "join" into a list, or only the "last".
        rules: which rules may find the answer; "whole" takes all of the completion.

    Example:
        rewardkit try math --reference '\frac{1}{2}' 'so the answer is $\boxed{0.5}$'
    """

    name: ClassVar[str | None] = "math"
    placement: ClassVar[Placement] = "process"  # type: ignore[misc]
    timeout: ClassVar[float | None] = 1.0  # type: ignore[misc]

    kinds: tuple[Kind, ...] = ()
    rounding: bool = True
    units: Literal["agree", "required", "ignore"] = "agree"
    percent: bool = True
    boxes: Literal["join", "last"] = "join"
    rules: tuple[Rule, ...] | Literal["whole"] = RULES

    @property
    def glances(self) -> bool:
        return True

    def warm(self) -> None:
        importlib.import_module("rewardkit.verifiers.math.symbolic").warm()

    def glance(self, prepared: object, sample: Sample, completion: Completion) -> Score | None:
        assert isinstance(prepared, MathReference)
        try:
            verdict = self._verdict(completion, prepared.answer, sample)
        except NeedsAlgebra:
            return None
        return Score(verdict.value, verdict.detail, verdict.extracted, verdict.reason, self.label)

    def verify(self, completion: Completion, reference: MathReference, sample: Sample) -> Verdict:
        try:
            return self._verdict(completion, reference.answer, sample)
        except NeedsAlgebra as hard:
            span = self._stated(completion.text, sample)
            assert span is not None
            return by_algebra(read(span.text), reference.answer, hard, span.rule)

    def _stated(self, text: str, sample: Sample) -> Span | None:
        if self.rules == "whole":
            return Span(text.strip(), "whole text") if text.strip() else None
        return find_answer(text, self.rules, self.boxes, opened=opens_thinking(sample.prompt))

    def _verdict(self, completion: Completion, gold: Reading, sample: Sample) -> Verdict:
        if self.kinds and kind_of(gold) not in self.kinds:
            return Verdict.abstain(f"{gold.shown!r} is of kind {kind_of(gold)}, which is not asked for")
        span = self._stated(completion.text, sample)
        if span is None:
            return Verdict.reject("no answer", reason="no_answer")
        if len(span.alternatives) == 2 and _alike(*span.alternatives):
            span = Span(span.alternatives[-1], span.rule)
        if not span.text.strip():
            return Verdict.reject(span.why or f"no answer {place(span.rule)}", reason="no_answer")
        policy = _policy(self.rounding, self.units, self.percent)
        mine = read(span.text)
        verdict = compared(mine, gold, policy, span.rule)
        return verdict if verdict.value == 1.0 else _by_option(mine, gold, sample, policy, span.rule) or verdict


def _alike(one: str, other: str) -> bool:
    """Whether two alternatives are the same value, so that either is the answer."""
    first, second = read(one), read(other)
    if first.unreadable is not None or second.unreadable is not None:
        return False
    try:
        return decide(first, second, EXACT).equal
    except (Refused, NeedsAlgebra):
        return False


def _by_option(mine: Reading, gold: Reading, sample: Sample, policy: Policy, rule: str) -> Verdict | None:
    """Accept the right option's text for its letter, where the prompt lists the options, and the other way round."""
    if not sample.prompt or mine.problem is not None:
        return None
    letters, picked = typed.read_choices(gold.plain), typed.chosen(mine.plain) if len(mine.plain) <= 400 else None
    if (letters is None) == (picked is None) or len(letters or picked or ()) != 1:
        return None
    from rewardkit.verifiers.choice_options import options_in

    options = options_in(sample.prompt_text[-MAX_OPTIONS_TEXT:])
    letter = next(iter(letters or picked or ()))
    if options is None or letter not in options.labels or len(options.texts) != len(options.labels):
        return None
    text = read(options.texts[options.labels.index(letter)].strip())
    if text.unreadable is not None:
        return None
    try:
        same = (decide(text, gold, policy) if letters is None else decide(mine, text, policy)).equal
    except (Refused, NeedsAlgebra):
        return None
    if not same:
        return None
    shown = f"{mine.shown!r} {place(rule)} is option {letter}" if letters else f"option {letter} is {text.shown!r}"
    return Verdict.accept(f"{shown} (text)", extracted=mine.shown)


MAX_OPTIONS_TEXT = 20_000  # characters at the end of a prompt in which options are looked for


@lru_cache(maxsize=16)
def _policy(rounding: bool, units: str, percent: bool) -> Policy:
    return Policy(rounding, units, percent)


_PLACES = {
    "\\boxed": "in \\boxed",
    "\\boxed, joined": "in several \\boxed",
    "####": "after ####",
    "<answer>": "in <answer>",
    "answer phrase": 'after "the answer is"',
    "bold last line": "in the bold last line",
    "last number": "as the last number",
    "last value": "as the last value",
    "last formula": "as the last formula",
    "last line": "as the last line",
    "conclusion": "in the conclusion",
    "whole text": "as the whole text",
    "": "",
}


def place(rule: str) -> str:
    return _PLACES.get(rule, f"in {rule}")


def compared(mine: Reading, gold: Reading, policy: Policy, rule: str = "") -> Verdict:
    """Judge a prediction against a readable reference.

    Raises:
        NeedsAlgebra: Only computer algebra can tell.
    """
    where = f" {place(rule)}" if rule else ""
    if mine.problem is not None:
        return _refused(mine, mine.problem, where)
    try:
        answer = decide(mine, gold, policy)
    except Refused as problem:
        return _refused(mine, problem, where)
    except RecursionError:
        return _refused(mine, TooLarge("nested too deeply"), where)
    return _worded(answer, mine, gold, where)


def _refused(mine: Reading, problem: Refused, where: str) -> Verdict:
    reason: Literal["too_large", "unreadable"] = "too_large" if problem.kind == "too_large" else "unreadable"
    return Verdict.reject(f"{mine.shown!r}{where} is not read: {problem}", extracted=mine.shown, reason=reason)


def _worded(answer: Answer, mine: Reading, gold: Reading, where: str) -> Verdict:
    why = f", {answer.why}" if answer.why else ""
    if answer.equal:
        return Verdict.accept(f"{_form(mine)}{where} equals {_form(gold)} ({answer.method}{why})", extracted=mine.shown)
    return Verdict.reject(f"{_form(mine)}{where} is not {_form(gold)} ({answer.method}{why})", extracted=mine.shown)


def _form(reading: Reading) -> str:
    """Return the normal form that was compared, short."""
    quantity = reading.__dict__.get("quantity")
    if quantity is not None and len(str(quantity.value)) <= 24:
        unit = "%" if quantity.percent else f" {quantity.unit}" if quantity.unit else ""
        return f"{quantity.value}{unit}"
    text = " ".join(reading.plain.split())
    return text if len(text) <= 60 else text[:57] + "..."


def by_algebra(mine: Reading, gold: Reading, hard: NeedsAlgebra, rule: str = "") -> Verdict:
    """Judge with computer algebra; may take long, so it belongs into a worker."""
    from rewardkit.verifiers.math import symbolic

    where = f" {place(rule)}" if rule else ""
    try:
        answer = symbolic.equal(hard.left, hard.right)
    except symbolic.TooSlow:
        text = f"{mine.shown!r}{where}: computer algebra needs more than {symbolic.SECONDS:g} s"
        return Verdict.reject(text, extracted=mine.shown, reason="deadline")
    except (symbolic.Undecided, NotImplementedError, Refused) as problem:
        if isinstance(problem, Refused) and problem.kind == "too_large":
            return _refused(mine, problem, where)
        text = str(problem) or "computer algebra finds no answer"
        return Verdict.reject(
            f"{mine.shown!r}{where} cannot be compared: {text}", extracted=mine.shown, reason="unreadable"
        )
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as problem:
        text = f"computer algebra fails: {type(problem).__name__}"
        return Verdict.reject(f"{mine.shown!r}{where}: {text}", extracted=mine.shown, reason="unreadable")
    return _worded(answer, mine, gold, where)


def kind_of(gold: Reading) -> Kind:
    """Return what kind of answer a reference is."""
    if gold.quantity is not None:
        return "number"
    if typed.read_choices(gold.plain) is not None:
        return "choice"
    if gold.date is not None or gold.clock is not None:
        return "time"
    if gold.based is not None:
        return "number"
    tree: Node | None = gold.tree
    if tree is None:
        return "text"
    if isinstance(tree, (Interval, SetOp, NamedSet)):
        return "interval"
    if isinstance(tree, Rel):
        return "equation"
    if isinstance(tree, Matrix):
        return "matrix"
    if isinstance(tree, Seq):
        return "list"
    return "expression" if isinstance(tree, (*SCALAR, Measure)) else "list"
