"""A text read once: every typed reading it has, its tree, and its words."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cached_property, lru_cache

from rewardkit.number import Quantity, read_number
from rewardkit.verifiers.math import typed, words
from rewardkit.verifiers.math.gate import Refused, check_size
from rewardkit.verifiers.math.grammar import parse_tree
from rewardkit.verifiers.math.leaves import defined
from rewardkit.verifiers.math.normalise import normalise
from rewardkit.verifiers.math.patterns import lazily
from rewardkit.verifiers.math.tree import SCALAR, Measure, NamedSet, Node, Num, PlusMinus, Seq, contains

_CURRENCY = lazily(r"^\s*(?:US\$|\$|€|£|¥|₹)\s*")
# An operator behind the number; number.py takes a star for Markdown.
_TRAILING = lazily(r"\\(?:cdot|times|ast|div)\s*\$?$|^[^*]+(?<!\*)\*\s*$")
_MATRIX_CALL = lazily(r"^(?:sympy\.)?Matrix\((\[.*\])\)$")
# The commonest forms of fractions, read without the rest of number.py.
_FRACTION = lazily(r"(-)?(?:\\[dt]?frac\{([0-9]{1,18})\}\{([0-9]{1,18})\}|([0-9]{1,18})/([0-9]{1,18}))")
_TO = lazily(r"^(\d{1,9}) to (\d{1,9})$")
_SPLIT_COMMA = lazily(r"\d,\d")
_GLUED = lazily(r"[\d)}]\s?[A-Za-z]$")
# Behind a whole number (not behind 1, 2, 3) an ellipsis; a question mark, an operator, an underscore; struck out.
_UNFINISHED = lazily(
    r"[^.,]*(?:,[^.,]*)?[\d)}]\s*(?:,\s*)?(?:\.{2,}|…|\\l?dots)\s*\$?|[^A-Za-z\u3040-\u9fff]*[?？][!?！？\s]*\$?"
    r"|.*[^*×]\s*[×÷]\s*\$?|[^A-Za-z]*\d\s*:[^A-Za-z]*:\s*\$?|[^_]*\d_\s*\$?|\s*~~.*~~\s*",
    re.DOTALL,
)
_MAYBE_UNFINISHED = frozenset(".…?？！!×÷_~s$ :")
_NO_ITEM = lazily(r"[\d)}\]]\s*,\s*,\s*[-+\d({\[\\]")
_GLUED_TWO = lazily(r"^-?[\d.]+[A-Za-z]{1,2}$")


class Reading:
    """One answer. What it may be is worked out when asked for, and kept."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problem: Refused | None = None
        try:
            check_size(text)
            if text[-1:] in _MAYBE_UNFINISHED and len(text) <= 200 and _UNFINISHED.fullmatch(text) is not None:
                raise Refused("it is unfinished, in doubt, or struck out")
            if ",," in text.replace(" ", "") and _NO_ITEM.search(text) is not None:
                raise Refused("an item of the list is missing")
        except Refused as problem:
            self.problem = problem

    @cached_property
    def quantity(self) -> Quantity | None:
        """The number with its unit that the text is."""
        if self.problem is not None:
            return None
        text = self.text
        simple = _FRACTION.fullmatch(text) if text[-1:] == "}" or "/" in text else None
        if simple is not None and (below := int(simple[3] or simple[5])):
            top = int(simple[2] or simple[4])
            return Quantity(Fraction(-top if simple[1] else top, below), False, "", 0, text)
        if _TRAILING.search(text) is not None:
            return None
        found = read_number(text)
        if found is not None:
            return found
        degrees = typed.read_degrees(self.plain)
        if degrees is not None:
            return Quantity(degrees, False, "degree", 0, text)
        spelled = words.number_in_words(self.plain_words)
        if spelled is not None:
            return read_number(spelled)
        plain = self.plain
        return read_number(plain) if plain != text else None

    @cached_property
    def plain(self) -> str:
        """The normal form."""
        return normalise(self.text)

    @cached_property
    def plain_words(self) -> str:
        return words.COMMAND.sub(" ", self.plain).replace("{", "").replace("}", "").strip()

    @cached_property
    def folded(self) -> str:
        return words.folded(self.plain)

    @cached_property
    def tree(self) -> Node | None:
        """What the grammar makes of it; `tree_problem` says why it makes nothing."""
        self.tree_problem: Refused | None = None
        if self.problem is not None:
            self.tree_problem = self.problem
            return None
        folded = self.folded
        if words.is_no_solution(folded):
            return NamedSet("")
        if words.is_all_reals(folded):
            return NamedSet("R")
        plain = self.plain
        plain = _MATRIX_CALL.sub(r"\1", plain)
        plain = _TO.sub(r"\1:\2", plain)
        currency = _CURRENCY.match(plain)
        try:
            if currency is not None:
                found = parse_tree(plain[currency.end() :])
                return Measure(found, "dollar") if isinstance(found, SCALAR) else found
            return parse_tree(plain)
        except Refused as problem:
            self.tree_problem = problem
            quantity = self.quantity
            if quantity is None:
                return None
            value = Num(quantity.value, quantity.digits)
            unit = "%" if quantity.percent else quantity.unit
            return Measure(value, unit) if unit else value

    @cached_property
    def ambiguous(self) -> bool:
        """The number could also be a list (2,5), or letters behind it variables (4h)."""
        return _SPLIT_COMMA.search(self.text) is not None or _GLUED.search(self.plain) is not None

    @cached_property
    def clock(self) -> typed.Clock | None:
        return typed.read_clock(self.plain) if self.problem is None else None

    @cached_property
    def date(self) -> typed.Date | None:
        return typed.read_date(self.plain_words) if self.problem is None else None

    @cached_property
    def based(self) -> typed.Based | None:
        return typed.read_based(self.plain) if self.problem is None else None

    @cached_property
    def wordy(self) -> bool:
        return self.problem is None and words.is_wordy(self.plain)

    @cached_property
    def unreadable(self) -> Refused | None:
        """Why it cannot be read as anything; None when it can."""
        if self.problem is not None:
            return self.problem
        if self.quantity is not None:
            return None
        if not self.plain.strip():
            return Refused("nothing is there")
        if self.date is not None or self.clock is not None or self.based is not None:
            return None
        tree = self.tree
        if tree is not None:
            return self._undefined(tree)
        if self.wordy:
            return None
        return self.tree_problem or Refused("no notation that is known")

    def _undefined(self, tree: Node) -> Refused | None:
        parts = tree.items if isinstance(tree, Seq) else (tree,)
        for part in parts:
            if isinstance(part, SCALAR) and not contains(part, PlusMinus) and not defined(part):
                return Refused("it has no value, such as 1/0", "undefined")
        return None

    @property
    def shown(self) -> str:
        """The text as a verdict shows it."""
        text = " ".join(self.text.split())
        return text if len(text) <= 60 else text[:57] + "..."


@lru_cache(maxsize=4096)
def read_short(text: str) -> Reading:
    return Reading(text)


def read(text: str) -> Reading:
    """Read an answer; short ones are remembered."""
    return read_short(text) if len(text) <= 200 else Reading(text)


def number_node(quantity: Quantity) -> Num:
    return Num(Fraction(quantity.value), quantity.digits)
