"""Two readings -> a verdict: typed readings first, then trees, then words."""

from __future__ import annotations

from rewardkit.number import Quantity, same_number
from rewardkit.types import Verdict
from rewardkit.verifiers.math import typed, words
from rewardkit.verifiers.math.compare import Comparer
from rewardkit.verifiers.math.gate import Refused
from rewardkit.verifiers.math.leaves import Answer
from rewardkit.verifiers.math.policy import Policy
from rewardkit.verifiers.math.reading import Reading
from rewardkit.verifiers.math.tree import SCALAR, Measure, Mul, Node, Num, Seq, Sym, contains


def decide(mine: Reading, gold: Reading, policy: Policy) -> Answer:
    """Compare two readable answers.

    Raises:
        NeedsAlgebra: Only computer algebra can tell.
        Refused: The prediction cannot be read, or a value is undefined or too large.
    """
    quick = _quantities(mine, gold, policy)
    if quick is not None:
        return quick
    typed_answer = _typed(mine, gold, policy)
    if typed_answer is not None:
        return typed_answer
    if mine.problem is not None:
        raise mine.problem
    if gold.tree is not None and mine.tree is not None:
        try:
            found = Comparer(policy).same(mine.tree, gold.tree)
        except Refused:
            if mine.plain == gold.plain:
                return Answer(True, "text")
            raise
        if found.equal or not (mine.wordy and gold.wordy):
            return found if found.equal else _other_readings(mine, gold, policy) or found
    return _words(mine, gold)


def _quantities(mine: Reading, gold: Reading, policy: Policy) -> Answer | None:
    """Compare two numbers with units; None leaves it to other readings."""
    first, second = mine.quantity, gold.quantity
    if first is None or second is None:
        return None
    if first.text is second.text or (first == second):
        return Answer(True, "number")
    if _same_quantity(first, second, policy):
        return Answer(True, "number")
    if mine.ambiguous or gold.ambiguous:
        return None
    why = ""
    if first.unit and second.unit and first.unit != second.unit:
        why = f"{first.unit} is not {second.unit}" if first.value == second.value else ""
    return Answer(False, "number", why)


def _same_quantity(mine: Quantity, gold: Quantity, policy: Policy) -> bool:
    if policy.units == "required" and mine.unit != gold.unit and not (mine.unit and gold.unit):
        return False
    if policy.units == "ignore":
        mine, gold = mine._replace(unit=""), gold._replace(unit="")
    if not policy.percent and mine.percent != gold.percent:
        scaled = mine.value / 100 if mine.percent else mine.value
        return scaled == (gold.value / 100 if gold.percent else gold.value)
    if same_number(mine, gold):
        return True
    differ = mine.unit and gold.unit and mine.unit != gold.unit
    if not policy.rounding or differ or not (mine.digits or gold.digits):
        return False
    comparer = Comparer(policy)
    scale = 1 if mine.percent == gold.percent else 100
    value = Num(mine.value / scale if mine.percent else mine.value, mine.digits)
    wanted = Num(gold.value / scale if gold.percent else gold.value, gold.digits)
    found = comparer.rounded(value, wanted)
    if found is None and scale == 100:
        found = comparer.rounded(Num(mine.value, mine.digits), Num(gold.value, gold.digits))
    return found is not None


def _typed(mine: Reading, gold: Reading, policy: Policy) -> Answer | None:
    letters = typed.read_choices(gold.plain) if len(gold.plain) <= 40 else None
    if letters is not None and gold.quantity is None:
        picked = typed.chosen(mine.plain) if mine.problem is None and len(mine.plain) <= 400 else None
        if picked is not None:
            return Answer(picked == letters, "text", "" if picked == letters else "another choice")
        if len(letters) > 1 and mine.tree is None:
            return Answer(False, "text", "no choice")
        if mine.tree is None or mine.wordy or not isinstance(mine.tree, (*SCALAR, Seq, Measure)):
            return Answer(False, "text", "no choice")
    if gold.clock is not None and mine.clock is not None and _as_clock(mine, gold):
        same = typed.same_clock(mine.clock, gold.clock)
        return Answer(same, "number", "" if same else "another time")
    if gold.clock is not None and gold.clock.half and mine.quantity is not None:  # "5" for 5 am
        hour = mine.quantity.value
        return Answer(hour * 60 % 720 == gold.clock.minutes % 720 and 1 <= hour <= 12, "number")
    if gold.date is not None or mine.date is not None:
        if gold.date is not None and mine.date is not None:
            same = typed.same_date(mine.date, gold.date)
            return Answer(same, "number", "" if same else "another date")
        if (gold.date is not None and gold.tree is None) or (mine.date is not None and mine.tree is None):
            return Answer(False, "text", "a date and something else")
    return _based(mine, gold)


def _as_clock(mine: Reading, gold: Reading) -> bool:
    assert mine.clock is not None and gold.clock is not None
    return (mine.clock.padded and gold.clock.padded) or bool(mine.clock.half or gold.clock.half)


def _based(mine: Reading, gold: Reading) -> Answer | None:
    first, second = mine.based, gold.based
    if first is None and second is None:
        return None
    if first is not None and second is not None:
        same = first == second
        return Answer(same, "number", "" if same else "other digits or another base")
    said = first or second
    other = mine if first is None else gold
    assert said is not None
    plain = other.plain.strip().upper().replace(" ", "").replace(",", "").lstrip("0") or "0"
    same = plain == said.digits
    return Answer(same, "number", "" if same else "other digits")


def _other_readings(mine: Reading, gold: Reading, policy: Policy) -> Answer | None:
    """Words where a short word also reads as a product of letters; nothing else."""
    if mine.folded == gold.folded and mine.folded in _CHOICES and len(mine.plain) == len(gold.plain) == 1:
        return Answer(True, "text")
    if mine.folded == gold.folded and mine.folded.isalpha() and len(mine.folded) >= 2 and _same_case(mine, gold):
        return Answer(True, "text")
    return None


_FORMULA = frozenset("\\=^_+")
_CHOICES = frozenset("abcde")


def _same_case(mine: Reading, gold: Reading) -> bool:
    """Whether nothing hangs on the case of letters: it is the same, or there are only words of a language."""
    if "\\text{" in mine.text and "\\text{" in gold.text:
        return True
    first, second = words.letters(mine.plain), words.letters(gold.plain)
    if [one.casefold() for one in first] != [one.casefold() for one in second]:
        return True  # other spellings of one word: Mon, Monday
    bare = words.without_fonts(mine.plain + gold.plain)
    if (
        len(first) > 1
        and not _FORMULA.intersection(bare)
        and any(words.is_common(one) or words.is_word(one) for one in first)
    ):  # a sentence
        rest = zip(first[1:], second[1:], strict=True)
        return all(one == other or len(one) > 1 for one, other in rest)
    return all(one == other or words.is_word(one, other) for one, other in zip(first, second, strict=True))


def _words(mine: Reading, gold: Reading) -> Answer:
    if not gold.wordy and gold.tree is not None:
        if mine.tree_problem is not None:
            raise mine.tree_problem
        return Answer(False, "structure", "not comparable")
    if mine.folded == gold.folded and mine.folded:
        same = _same_case(mine, gold)
        return Answer(same, "text", "" if same else "upper and lower case differ")
    if gold.tree is not None and mine.tree is None and not mine.wordy and mine.tree_problem is not None:
        raise mine.tree_problem
    return Answer(False, "text", "different words")


def method_text(answer: Answer) -> str:
    return answer.method


__all__ = ["Answer", "Mul", "Node", "Sym", "Verdict", "contains", "decide", "words"]
