"""Compare two trees by their form: values, lists, tuples, intervals, relations, matrices, each by its own rule.

`mine` is the prediction and `gold` the reference; where the policy is not directional both play the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any, NamedTuple

from rewardkit.units import conversion
from rewardkit.verifiers.math.gate import Refused, TooLarge
from rewardkit.verifiers.math.leaves import (
    Answer,
    NeedsAlgebra,
    alike,
    complex_symbols,
    defined,
    equal_values,
    expanded,
    infinite_sign,
    numeric,
    substituted,
)
from rewardkit.verifiers.math.points import NotReal, Unknown, context
from rewardkit.verifiers.math.policy import Policy
from rewardkit.verifiers.math.rational import Irrational, Undefined, exact, modular_points, residue
from rewardkit.verifiers.math.realsets import RealSet, real_set
from rewardkit.verifiers.math.tree import (
    PI,
    SCALAR,
    ZERO,
    Add,
    Builder,
    Cases,
    Const,
    Expr,
    Fn,
    Interval,
    Matrix,
    Measure,
    Mul,
    NamedSet,
    Node,
    Num,
    PlusMinus,
    Pow,
    Ratio,
    Rel,
    Residue,
    Seq,
    SetOp,
    Sym,
    Text,
    children,
    contains,
    difference,
    negated,
    symbols,
)
from rewardkit.verifiers.math.words import is_short_word

_VALUES = (*SCALAR, Matrix, Cases)
IMAGINARY = Const("i")
_ORDER = {"<", ">", "<=", ">="}
_MAX_SIGNS = 6
_MAX_MATCH = 64


class Named(NamedTuple):
    """What a solved form says: `name = value`."""

    name: str
    value: Node


def _no(why: str, method: str = "structure") -> Answer:
    return Answer(False, method, why)


class Comparer:
    """Compares trees under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    # -- entry

    def same(self, mine: Node, gold: Node) -> Answer:
        if mine == gold:
            self.check_defined(mine)
            return Answer(True, "structure")
        if _ranges(mine) and _ranges(gold) and _ranges(mine) != _ranges(gold):
            return _no("the parameter runs through other numbers")
        mine, gold = tidy(mine), tidy(gold)
        found = self.by_form(mine, gold)
        if found.equal:
            return found
        renamed = self.renamed(mine, gold) or self.reread(mine, gold)
        return found if renamed is None else renamed

    def reread(self, mine: Node, gold: Node) -> Answer | None:
        """Try again with what can be meant in two ways: the whole number n for k, sympy's I, log to base 10."""
        ours, theirs = symbols(mine) & _PARAMETERS, symbols(gold) & _PARAMETERS
        changed, wanted = mine, gold
        if len(ours) == len(theirs) == 1 and ours != theirs and _mentions_pi(gold):
            changed = replaced(mine, Sym(next(iter(ours))), Sym(next(iter(theirs))))
        if "I" in symbols(mine) and "I" not in symbols(gold) and _holds(gold, IMAGINARY):
            changed = replaced(changed, Sym("I"), IMAGINARY)
        if _has_bare_log(mine) or _has_bare_log(gold):
            changed, wanted = _decimal_logs(changed), _decimal_logs(wanted)
        if changed == mine and wanted == gold:
            return None
        found = self.by_form(changed, wanted)
        return found if found.equal else None

    def check_defined(self, node: Node) -> None:
        if isinstance(node, SCALAR) and not defined(node):
            raise Undefined("no value")

    def by_form(self, mine: Node, gold: Node) -> Answer:
        mine, gold = _without_matrix_arithmetic(mine), _without_matrix_arithmetic(gold)
        if isinstance(mine, Text) or isinstance(gold, Text):
            return Answer(mine == gold, "text", "" if mine == gold else "different words")
        if isinstance(mine, Measure) or isinstance(gold, Measure):
            return self.measures(mine, gold)
        if isinstance(mine, Residue) or isinstance(gold, Residue):
            return self.residues(mine, gold)
        if isinstance(mine, Ratio) or isinstance(gold, Ratio):
            return self.ratios(mine, gold)
        if isinstance(mine, Rel) or isinstance(gold, Rel):
            found = self.relations(mine, gold)
            if found is not None:
                return found
        if _has_empty_member(mine) != _has_empty_member(gold):
            return _no("the empty set is no member of one")
        if _is_set_like(mine) or _is_set_like(gold):
            found = self.real_sets(mine, gold)
            if found is not None:
                return found
        if isinstance(mine, Matrix) or isinstance(gold, Matrix):
            return self.matrices(mine, gold)
        if isinstance(mine, Seq) or isinstance(gold, Seq):
            return self.sequences(mine, gold)
        if isinstance(mine, _VALUES) and isinstance(gold, _VALUES):
            return self.values(mine, gold)
        return self.by_shape(mine, gold)

    # -- values

    def values(self, mine: Expr, gold: Expr) -> Answer:
        if isinstance(mine, Cases) or isinstance(gold, Cases):
            return self.by_shape(mine, gold)
        if _is_spelled(gold) and mine != gold:
            return _no("letters in another order")
        mine, gold = expanded(mine), expanded(gold)
        if isinstance(mine, Matrix) or isinstance(gold, Matrix):
            return self.matrices(mine, gold)
        found = equal_values(mine, gold)
        if found.equal or not self.policy.rounding:
            return found
        rounded = self.rounded(mine, gold)
        return found if rounded is None else rounded

    def rounded(self, mine: Expr, gold: Expr) -> Answer | None:
        """Apply the rules for decimals: None when they do not make the two equal."""
        if symbols(mine) or symbols(gold):
            return self.rounded_coefficients(mine, gold)
        if isinstance(gold, Num) and gold.digits >= 3 and gold.value.denominator != 1 and self.rounds_to(mine, gold):
            return Answer(True, "number", "rounds to the reference")
        if isinstance(mine, Num) and mine.digits >= 6 and self.correct_digits(mine, gold):
            return Answer(True, "number", "agrees in all of its digits")
        return None

    def rounds_to(self, mine: Expr, gold: Num) -> bool:
        """Whether a more precise value rounds to a decimal."""
        if isinstance(mine, Num):
            if mine.digits and mine.digits <= gold.digits:
                return False
            if mine.value.denominator == 1:
                return False
        value = _real(mine)
        if value is None:
            return False
        step = _step(gold.value, gold.digits)
        return abs(value - gold.value) <= step / 2

    def correct_digits(self, mine: Num, gold: Expr) -> bool:
        """Whether a decimal of six or more digits is the gold's value, rounded or cut."""
        if isinstance(gold, Num) and gold.digits >= 3:
            return False
        value = _real(gold)
        if value is None or value.denominator == 1 or not value:
            return False
        if (value < 0) != (mine.value < 0):
            return False
        # what a double can hold is compared in 6 digits at least, never in more than it has
        digits = min(mine.digits, 15)
        step = _step(value, digits)
        if abs(mine.value - value) <= step / 2 or 0 <= abs(value) - abs(mine.value) < step:
            return True
        step = _step(value, 6)
        return round(mine.value / step) == round(value / step) and abs(mine.value - value) * 20 < step

    def rounded_coefficients(self, mine: Expr, gold: Expr) -> Answer | None:
        return None

    # -- units

    def measures(self, mine: Node, gold: Node) -> Answer:
        my_value, my_unit = (mine.value, mine.unit) if isinstance(mine, Measure) else (mine, "")
        gold_value, gold_unit = (gold.value, gold.unit) if isinstance(gold, Measure) else (gold, "")
        if isinstance(my_value, Rel) or isinstance(gold_value, Rel):
            found = self.relations(_inside(my_value, my_unit), _inside(gold_value, gold_unit))
            return found or _no("a relation and a quantity")
        if my_unit == "degree" and not gold_unit and contains(gold_value, Const) and _mentions_pi(gold_value):
            return self.by_form(Mul((my_value, PI, Pow(Num(Fraction(180)), Num(Fraction(-1))))), gold_value)  # type: ignore[arg-type]
        if gold_unit == "degree" and not my_unit and _mentions_pi(my_value):
            return self.by_form(my_value, Mul((gold_value, PI, Pow(Num(Fraction(180)), Num(Fraction(-1))))))  # type: ignore[arg-type]
        if "%" in (my_unit, gold_unit):
            return self.percents(my_value, my_unit, gold_value, gold_unit)
        if my_unit and gold_unit and my_unit != gold_unit:
            if self.policy.units == "ignore":
                return self.by_form(my_value, gold_value)
            factor = conversion(my_unit, gold_unit)
            if factor is None:
                return _no(f"{my_unit} is not {gold_unit}", "number")
            if factor != 1 and isinstance(my_value, _VALUES):
                my_value = tidy(_times(my_value, factor))
        elif self.policy.units == "required" and my_unit != gold_unit:
            return _no(f"the unit is {my_unit or 'missing'}, not {gold_unit or 'none'}", "number")
        return self.by_form(tidy(my_value), tidy(gold_value))

    def percents(self, mine: Node, my_unit: str, gold: Node, gold_unit: str) -> Answer:
        if my_unit and gold_unit and my_unit != gold_unit:
            return _no(f"{my_unit} is not {gold_unit}", "number")
        found = self.by_form(mine, gold)
        if my_unit == gold_unit or (found.equal and self.policy.percent):
            return found
        hundredth = Fraction(1, 100)
        if my_unit and isinstance(mine, _VALUES):
            return self.by_form(_times(mine, hundredth), gold)
        if isinstance(gold, _VALUES):
            return self.by_form(mine, _times(gold, hundredth))
        return found

    def residues(self, mine: Node, gold: Node) -> Answer:
        if isinstance(gold, Residue) and not isinstance(mine, Residue):
            return self.by_form(mine, gold.value)
        if not isinstance(gold, Residue) or not isinstance(mine, Residue):
            return _no("a residue class and something else")
        if not equal_values(mine.modulus, gold.modulus).equal:
            return _no("another modulus")
        left, right = _value_of(mine.value), _value_of(gold.value)
        if _name_of(mine.value) and _name_of(gold.value) and _name_of(mine.value) != _name_of(gold.value):
            return _no("another variable")
        try:
            a, b, m = exact(left), exact(right), exact(gold.modulus)
        except Irrational:
            return self.by_form(left, right)
        same = bool(m) and (a - b) / m == int((a - b) / m)
        return Answer(same, "number", "" if same else "another residue")

    def ratios(self, mine: Node, gold: Node) -> Answer:
        if not isinstance(mine, Ratio) or not isinstance(gold, Ratio):
            ratio, other = (mine, gold) if isinstance(mine, Ratio) else (gold, mine)
            assert isinstance(ratio, Ratio)
            if isinstance(other, Rel) and len(other.items) == 2 and other.ops == ("=",):
                if isinstance(other.items[1], Ratio):
                    return self.ratios(other.items[1], ratio)
                return _no("a ratio and an equation")
            if len(ratio.items) != 2 or ratio.open or not isinstance(other, SCALAR):
                return _no("a ratio and something else")
            value = Mul((ratio.items[0], Pow(ratio.items[1], Num(Fraction(-1)))))
            return equal_values(value, other)
        if len(mine.items) != len(gold.items) or mine.open != gold.open:
            return _no("ratios of different length")
        if len(mine.items) == 2 and _is_zero(mine.items[1]) and _is_zero(gold.items[1]):
            return self.values(mine.items[0], gold.items[0])  # 25:00 is not 1:00
        first, other_first = mine.items[0], gold.items[0]
        for item, other_item in zip(mine.items[1:], gold.items[1:], strict=True):
            found = equal_values(Mul((item, other_first)), Mul((other_item, first)))
            if not found.equal:
                return found
        if all(_is_zero(item) for item in mine.items) != all(_is_zero(item) for item in gold.items):
            return _no("a ratio of zeros")
        return Answer(True, "number")

    # -- relations

    def relations(self, mine: Node, gold: Node) -> Answer | None:
        """Compare where at least one side is a relation; None leaves it to the sets."""
        my_name, gold_name = named(mine), named(gold)
        if gold_name is not None:
            if my_name is not None:
                return self.two_solved(my_name, gold_name, mine, gold)
            if isinstance(mine, Rel):
                if mine.ops == ("=",) and isinstance(gold, Rel) and len(symbols(gold)) > 1:
                    return self.equations(mine, gold)
                if set(mine.ops) <= _ORDER | {"!="} or "in" in mine.ops:
                    return None
                return _no("an unsolved equation, where a solved form is wanted")
            return self.by_form(mine, tidy(gold_name.value))
        if isinstance(gold, Rel):
            if gold.ops == ("=",) and isinstance(mine, Rel) and mine.ops == ("=",):
                return self.equations(mine, gold)
            if (
                len(gold.ops) == len(gold.items) - 1 == 1
                and gold.ops[0] in _ORDER
                and isinstance(mine, Rel)
                and len(mine.ops) == 1
            ):
                found = self.inequalities(mine, gold)
                if found is not None:
                    return found
            if gold.ops == ("=",):
                if not isinstance(mine, Rel):
                    return _no("no equation")
                return self.by_shape(mine, gold)
            if isinstance(mine, Rel) and mine.ops != gold.ops and not self.comparable_sets(mine, gold):
                return _no("another relation")
            return None if self.comparable_sets(mine, gold) else self.by_shape(mine, gold)
        # the gold is a value, a list, a set: the prediction must be solved for it
        if my_name is not None:
            return self.by_form(tidy(my_name.value), gold)
        if isinstance(mine, Rel) and "=" in mine.ops and set(mine.ops) <= {"=", "~"}:
            return self.chained(mine, gold)
        if self.comparable_sets(mine, gold):
            return None
        if isinstance(gold, Seq) and isinstance(mine, Rel):
            return self.sequences(mine, gold)
        return _no("a relation, where a value is wanted")

    def comparable_sets(self, mine: Node, gold: Node) -> bool:
        return real_set(mine, pairs=True) is not None and real_set(gold, pairs=True) is not None

    def two_solved(self, mine: Named, gold: Named, my_node: Node, gold_node: Node) -> Answer:
        if _same_name(mine.name, gold.name):
            found = self.same(tidy(mine.value), tidy(gold.value))
            if found.equal:
                return found
        else:
            found = _no(f"{mine.name} is not {gold.name}")
        if len(symbols(gold_node)) > 1 and isinstance(my_node, Rel) and isinstance(gold_node, Rel):
            as_curves = self.equations(my_node, gold_node)
            if as_curves.equal:
                return as_curves
        return found

    def chained(self, mine: Rel, gold: Node) -> Answer:
        """Accept `2+3 = 5` for 5: equal throughout, and the last item is the answer."""
        if mine.ops.count("~") and not self.policy.rounding:
            return _no("an approximation")
        last = mine.items[-1]
        if "~" in mine.ops:  # \frac{1}{3} \approx 0.33: what stands before is the answer
            place = mine.ops.index("~")
            last = mine.items[place]
            items = mine.items[: place + 1]
        else:
            items = mine.items
        start = 1 if len(items) > 1 and _is_label(items[0]) else 0
        for left, right in zip(items[start:-1], items[start + 1 :], strict=True):
            if not isinstance(left, _VALUES) or not isinstance(right, _VALUES):
                return _no("an unsolved equation, where a value is wanted")
            if not self.values(left, right).equal:
                return _no("an unsolved equation, where a value is wanted")
        return self.by_form(tidy(last), gold)

    def equations(self, mine: Rel, gold: Rel) -> Answer:
        """Compare two equations: one side minus the other may differ by a nonzero factor."""
        if len(mine.items) != 2 or len(gold.items) != 2 or mine.ops != gold.ops:
            return self.by_shape(mine, gold)
        sides = (*mine.items, *gold.items)
        if not all(isinstance(side, SCALAR) for side in sides):
            return self.by_shape(mine, gold)
        left = difference(mine.items[0], mine.items[1])  # type: ignore[arg-type]
        right = difference(gold.items[0], gold.items[1])  # type: ignore[arg-type]
        if not symbols(right):
            return _no("no variable in the equation")
        if symbols(left) != symbols(right):
            return _no("other variables")
        factor = proportional(left, right)
        return Answer(
            factor is not None, "polynomial identity", "" if factor is not None else "no multiple of the equation"
        )

    def inequalities(self, mine: Rel, gold: Rel) -> Answer | None:
        """Compare two inequalities in several variables: a positive multiple, either way round."""
        if not all(isinstance(side, SCALAR) for side in (*mine.items, *gold.items)):
            return None
        if len(symbols(gold)) < 2 and real_set(gold) is not None:
            if self.policy.directional and real_set(mine) is None:
                return _no("an unsolved inequality, where a solved form is wanted")
            return None
        if mine.ops[0] not in _ORDER:
            return _no("another relation")
        left, strict = _oriented(mine)
        right, gold_strict = _oriented(gold)
        if strict != gold_strict:
            return _no("one of them is strict")
        factor = proportional(left, right)
        if factor is None:
            return _no("no multiple of the inequality", "polynomial identity")
        return Answer(factor > 0, "polynomial identity", "" if factor > 0 else "the other way round")

    # -- sets, lists, tuples

    def real_sets(self, mine: Node, gold: Node) -> Answer | None:
        if not (_is_interval_like(mine) or _is_interval_like(gold)):
            return None
        first, second = real_set(mine, pairs=True), real_set(gold, pairs=True)
        if first is None and isinstance(mine, SCALAR):
            return _no("a value, where a set is wanted")
        if first is None or second is None:
            if isinstance(mine, (Interval, SetOp, NamedSet, Builder)) and isinstance(
                gold, (Interval, SetOp, NamedSet, Builder)
            ):
                return self.by_shape(mine, gold)
            if isinstance(gold, SCALAR) or isinstance(mine, SCALAR):
                return _no("a set and a value")
            return None
        if first.var and second.var and first.var != second.var:
            return _no(f"{first.var} is not {second.var}")
        return self.pieces(first, second)

    def pieces(self, mine: RealSet, gold: RealSet) -> Answer:
        if len(mine.pieces) != len(gold.pieces):
            return _no("another number of intervals", "interval")
        for one, other in zip(mine.pieces, gold.pieces, strict=True):
            for end, gold_end in ((one.low, other.low), (one.high, other.high)):
                found = self.values(end, gold_end)
                if not found.equal:
                    return Answer(False, found.method, "another end")
            if (one.low_closed, one.high_closed) != (other.low_closed, other.high_closed):
                return _no("an end is open on one side only", "interval")
        return Answer(True, "interval")

    def matrices(self, mine: Node, gold: Node) -> Answer:
        my_rows, gold_rows = _rows(mine), _rows(gold)
        if my_rows is None or gold_rows is None:
            return _no("a matrix and something else")
        if len(gold_rows) > 1 and len(gold_rows[0]) > 1 and not isinstance(mine, Matrix):
            return _no("a matrix and something else")
        if isinstance(mine, Matrix) and isinstance(gold, Matrix) and _size(mine) != _size(gold):
            return _no("matrices of different sizes")
        mine_cells = [cell for row in my_rows for cell in row]
        gold_cells = [cell for row in gold_rows for cell in row]
        return self.in_order(mine_cells, gold_cells)

    def in_order(self, mine: Sequence[Node], gold: Sequence[Node]) -> Answer:
        if len(mine) != len(gold):
            return _no(f"{len(mine)} items, not {len(gold)}")
        method = "structure"
        for item, wanted in zip(mine, gold, strict=True):
            found = self.by_form(tidy(item), tidy(wanted))
            if not found.equal:
                return Answer(False, found.method, found.why or "an item differs")
            method = _stronger(method, found.method)
        return Answer(True, method)

    def sequences(self, mine: Node, gold: Node) -> Answer:
        my_kind, gold_kind = _kind(mine), _kind(gold)
        mine_items, gold_items = _items(mine), _items(gold)
        if (my_kind == "or") != (gold_kind == "or") and _are_statements(mine_items if my_kind == "or" else gold_items):
            return _no("only one of them says or")
        if gold_kind in ("tuple", "bracket"):
            return self.tuples(mine, my_kind, mine_items, gold_kind, gold_items)
        if my_kind in ("tuple", "bracket"):
            if gold_kind == "set" or gold_kind == "value":
                return _no("a tuple, where a set or value is wanted")
            named_gold = _assignments(gold_items)
            if named_gold is not None:
                return self.in_order(mine_items, [one.value for one in named_gold])
            if len(gold_items) == 1:
                return _no("a tuple, where a value is wanted")
            return self.in_order(mine_items, gold_items)
        return self.unordered(mine_items, gold_items, "set" in (my_kind, gold_kind))

    def tuples(
        self, mine: Node, my_kind: str, items: Sequence[Node], gold_kind: str, gold_items: Sequence[Node]
    ) -> Answer:
        if my_kind == "set":
            return _no("a set, where a tuple is wanted")
        if gold_kind == "bracket" and my_kind == "list" and len(gold_items) == 2:
            return _no("a list, where an interval is wanted")
        if my_kind == "value" and len(gold_items) > 1:
            return _no("one value, where a tuple is wanted")
        named_mine = _assignments(items)
        if named_mine is not None and len(named_mine) == len(items):
            named_gold = _assignments(gold_items)
            if named_gold is None:
                items = [one.value for one in named_mine]
        if (
            my_kind != gold_kind
            and "bracket" in (my_kind, gold_kind)
            and "tuple" in (my_kind, gold_kind)
            and len(items) == 2
        ):
            return _no("an end is open on one side only", "interval")
        return self.in_order(items, gold_items)

    def unordered(self, mine: Sequence[Node], gold: Sequence[Node], as_set: bool) -> Answer:
        named_mine, named_gold = _assignments(mine), _assignments(gold)
        if named_gold is not None and named_mine is not None:
            return self.assigned(named_mine, named_gold)
        if named_gold is not None:
            names = {one.name for one in named_gold}
            values = [one.value for one in named_gold]
            if len(names) == len(values) > 1:
                return self.in_order(mine, values)
            return self.matched(mine, values, as_set)
        if named_mine is not None:
            if len({one.name for one in named_mine}) > 1 and len(named_mine) > 1:
                return self.in_order([one.value for one in named_mine], gold)
            return self.matched([one.value for one in named_mine], gold, as_set)
        return self.matched(mine, gold, as_set)

    def assigned(self, mine: list[Named], gold: list[Named]) -> Answer:
        my_names, gold_names = {one.name for one in mine}, {one.name for one in gold}
        if my_names != gold_names:
            return _no("other variables")
        for name in sorted(gold_names):
            found = self.matched(
                [one.value for one in mine if one.name == name], [one.value for one in gold if one.name == name], False
            )
            if not found.equal:
                return found
        return Answer(True, "structure")

    def matched(self, mine: Sequence[Node], gold: Sequence[Node], as_set: bool) -> Answer:
        """Match items one to one in any order."""
        if len(gold) > _MAX_MATCH or len(mine) > _MAX_MATCH:
            return self.in_order(mine, gold)
        if as_set:
            mine, gold = self.distinct(mine), self.distinct(gold)
        if len(mine) != len(gold):
            return _no(f"{len(mine)} items, not {len(gold)}")
        left = list(mine)
        method = "structure"
        needs: NeedsAlgebra | None = None
        for wanted in gold:
            for place, item in enumerate(left):
                try:
                    found = self.member(item, wanted)
                except NeedsAlgebra as problem:
                    needs = problem
                    continue
                if found.equal:
                    method = _stronger(method, found.method)
                    del left[place]
                    break
            else:
                if needs is not None:
                    raise needs
                return _no("an item has no counterpart", method)
        return Answer(True, method)

    def distinct(self, items: Sequence[Node]) -> list[Node]:
        kept: list[Node] = []
        for item in items:
            try:
                if any(self.by_form(tidy(item), tidy(other)).equal for other in kept):
                    continue
            except (NeedsAlgebra, Refused):
                pass
            kept.append(item)
        return kept

    def member(self, mine: Node, gold: Node) -> Answer:
        """Compare two items: inside a list or a set, {1} is not 1, and the empty set no absence."""
        if _is_finite_set(mine) != _is_finite_set(gold):
            return _no("a set and its member")
        return self.by_form(tidy(mine), tidy(gold))

    def by_shape(self, mine: Any, gold: Any) -> Answer:
        """Compare part by part what has no rule of its own."""
        if type(mine) is not type(gold):
            return _no(f"a {_called(mine)}, where a {_called(gold)} is wanted")
        match mine, gold:
            case (Interval(), Interval()):
                if (mine.low_closed, mine.high_closed) != (gold.low_closed, gold.high_closed):
                    return _no("an end is open on one side only", "interval")
                return self.in_order((mine.low, mine.high), (gold.low, gold.high))
            case (SetOp(), SetOp()):
                if mine.op != gold.op:
                    return _no("another operation on sets")
                if mine.op == "difference":
                    return self.in_order(mine.parts, gold.parts)
                return self.matched(mine.parts, gold.parts, False)
            case (Rel(), Rel()):
                if mine.ops != gold.ops:
                    return _no("another relation")
                return self.in_order(mine.items, gold.items)
            case (Builder(), Builder()):
                found = self.by_form(tidy(mine.shape), tidy(gold.shape))
                if not found.equal:
                    return found
                return self.by_form(tidy(mine.condition), tidy(gold.condition))
            case (Cases(), Cases()):
                pairs = [Seq("tuple", pair) for pair in mine.rows], [Seq("tuple", pair) for pair in gold.rows]
                return self.matched(*pairs, False)
        if mine == gold:
            return Answer(True, "structure")
        if isinstance(mine, NamedSet):
            return _no("another set")
        return _no("different")

    # -- parameters and constants of integration

    def renamed(self, mine: Node, gold: Node) -> Answer | None:
        """Try again with parameters renamed: constants C, C_1; whole numbers k, n in a solution with pi."""
        mine_value, gold_value = _solution(mine), _solution(gold)
        if mine_value is None or gold_value is None:
            return None
        mine_names, gold_names = symbols(mine_value), symbols(gold_value)
        ours, theirs = _constants_in(mine_names), _constants_in(gold_names)
        solved = isinstance(gold, Rel) and (named(gold) or Named("", gold)).name[:1] in ("y", "f", "u", "g")
        if not all(_is_free(gold_value, name, solved) for name in theirs):
            ours = frozenset()
        if ours and len(ours) == len(theirs) <= 3 and (mine_names - ours) == (gold_names - theirs):
            for order in permutations(sorted(theirs)):
                changed = _renamed(mine_value, dict(zip(sorted(ours), order, strict=True)))
                if changed != mine_value and equal_values(changed, gold_value).equal:
                    return Answer(True, "polynomial identity", "constants renamed")
        mine_whole, gold_whole = _parameters_in(mine_value), _parameters_in(gold_value)
        if (
            len(mine_whole) == len(gold_whole) == 1
            and (_mentions_pi(gold_value) or (_is_x(gold) and _is_x(mine) and _steps(gold_value)))
            and (mine_names - mine_whole == gold_names - gold_whole)
        ):
            name = next(iter(gold_whole))
            changed = _renamed(mine_value, {next(iter(mine_whole)): name})
            if _same_coset(changed, gold_value, name):
                return Answer(True, "numeric points", "the same values for whole numbers")
        if _differ_by_constant(mine_value, gold_value):
            return Answer(True, "numeric points", "with another constant of integration")
        return None


# ------------------------------------------------------------------------------------------------ forms


def tidy(node: Node) -> Node:
    """Write plus-minus as a list, drop `k in Z`, spread `k = 4, 5, 6`, and turn degrees at the top into a unit."""
    if isinstance(node, (PlusMinus, Add, Mul, Pow, Fn)) and contains(node, PlusMinus):
        return Seq("or", _both_signs(node))
    if isinstance(node, Mul) and node.factors[-1] == Fn("degree", ()):
        rest = node.factors[:-1]
        return Measure(rest[0] if len(rest) == 1 else Mul(rest), "degree")
    if isinstance(node, Rel) and node.ops == ("==",) and isinstance(node.items[1], Residue):
        return Residue(Rel((node.items[0], node.items[1].value), ("=",)), node.items[1].modulus)
    if isinstance(node, Rel) and node.ops == ("!=",) and contains(node.items[1], PlusMinus):
        both = tidy(node.items[1])
        if isinstance(both, Seq):
            return Seq("and", tuple(Rel((node.items[0], item), ("!=",)) for item in both.items))
    if isinstance(node, Rel) and len(node.items) == 2 and node.ops == ("=",):
        left, right = node.items
        spread = tidy(right)
        if spread != right and isinstance(left, (Sym, Fn)):
            if isinstance(spread, Seq):
                return Seq("or", tuple(Rel((left, item), ("=",)) for item in spread.items))
            return Rel((left, spread), ("=",))
        return node
    if isinstance(node, Seq):
        return _tidy_items(node)
    return node


def _tidy_items(node: Seq) -> Node:
    items: list[Node] = []
    changed = False
    for item in node.items:
        if node.kind in ("list", "and", "set", "or") and _is_range_of_parameter(item) and len(node.items) > 1:
            changed = True
            continue
        new = tidy(item) if node.kind in ("list", "and", "or", "set") else item
        if isinstance(new, Seq) and new.kind == "or" and node.kind in ("list", "and", "or", "set") and new != item:
            items.extend(new.items)
            changed = True
            continue
        changed = changed or new != item
        items.append(new)
    first = items[0] if items else None
    if (
        node.kind in ("list", "and", "or")
        and len(items) > 1
        and isinstance(first, Rel)
        and first.ops in (("=",), ("!=",))
    ):
        name = first.items[0]
        if (
            len(first.items) == 2
            and isinstance(name, Sym)
            and all(isinstance(item, (*SCALAR, Measure)) for item in items[1:])
        ):
            items = [first, *[Rel((name, item), first.ops) for item in items[1:]]]
            if first.ops == ("!=",):
                return Seq("and", tuple(items))
            changed = True
    if not changed:
        return node
    if len(items) == 1:
        return tidy(items[0])
    return Seq(node.kind, tuple(items))


def _without_matrix_arithmetic(node: Node) -> Node:
    if isinstance(node, (Add, Mul, Pow, Fn)) and contains(node, Matrix):
        return expanded(node)
    return node


def _both_signs(node: Expr) -> tuple[Expr, ...]:
    if _count_signs(node) > _MAX_SIGNS:
        raise TooLarge("too many plus-minus signs")
    return _with_sign(node, 1), _with_sign(node, -1)


def _count_signs(node: Any) -> int:
    return isinstance(node, PlusMinus) + sum(map(_count_signs, children(node)))


def _with_sign(node: Any, sign: int) -> Any:
    match node:
        case PlusMinus(arg, own):
            value = _with_sign(arg, sign)
            return value if own * sign > 0 else negated(value)
        case Add(terms):
            return Add(tuple(_with_sign(term, sign) for term in terms))
        case Mul(factors):
            return Mul(tuple(_with_sign(factor, sign) for factor in factors))
        case Pow(base, exponent):
            return Pow(_with_sign(base, sign), _with_sign(exponent, sign))
        case Fn(name, args):
            return Fn(name, tuple(_with_sign(arg, sign) for arg in args))
    return node


_PARAMETERS = frozenset("knmlj")


def _is_range_of_parameter(node: Node) -> bool:
    return (
        isinstance(node, Rel) and node.ops == ("in",) and isinstance(node.items[0], Sym)
        and node.items[0].name in _PARAMETERS and isinstance(node.items[1], NamedSet) and node.items[1].name[:1] in "ZN"
    )  # fmt: skip


def _ranges(node: Node) -> frozenset[str]:
    """Return the sets through which parameters run."""
    items = node.items if isinstance(node, Seq) else ()
    return frozenset(item.items[1].name for item in items if _is_range_of_parameter(item))  # type: ignore[union-attr]


def _mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with a change made to every node, from the leaves up."""
    match node:
        case Seq(kind, items):
            node = Seq(kind, tuple(_mapped(item, change) for item in items))
        case Rel(items, ops):
            node = Rel(tuple(_mapped(item, change) for item in items), ops)
        case Measure(value, unit):
            node = Measure(_mapped(value, change), unit)
        case Add(terms):
            node = Add(tuple(_mapped(term, change) for term in terms))
        case Mul(factors):
            node = Mul(tuple(_mapped(factor, change) for factor in factors))
        case Pow(base, exponent):
            node = Pow(_mapped(base, change), _mapped(exponent, change))
        case Fn(name, args):
            node = Fn(name, tuple(_mapped(arg, change) for arg in args))
    return change(node)


def replaced(node: Node, old: Node, new: Node) -> Any:
    return _mapped(node, lambda one: new if one == old else one)


def _holds(node: Node, part: Node) -> bool:
    return node == part or any(_holds(child, part) for child in children(node))


def _is_bare_log(node: Node) -> bool:
    return isinstance(node, Fn) and node.name == "log" and len(node.args) == 1


def _has_bare_log(node: Node) -> bool:
    return _is_bare_log(node) or any(map(_has_bare_log, children(node)))


def _decimal_logs(node: Node) -> Any:
    return _mapped(node, lambda one: Fn("log", (one.args[0], Num(Fraction(10)))) if _is_bare_log(one) else one)


def named(node: Node) -> Named | None:
    """Return what a solved form says: x = 5, 5 = x, f(x) = 2x, (x,y) = (2,3), x in (0,1), x = 6 = 2*3."""
    if not isinstance(node, Rel):
        return None
    if node.ops == ("in",) and isinstance(node.items[0], Sym):
        return Named(node.items[0].name, node.items[1])
    if set(node.ops) != {"="}:
        return None
    left, right = node.items[0], node.items[-1]
    if len(node.items) > 2:
        if not _is_label(left):
            return None
        for one, other in zip(node.items[1:-1], node.items[2:], strict=True):
            if not isinstance(one, _VALUES) or not isinstance(other, _VALUES) or not equal_values(one, other).equal:
                return None
        return Named(_label(left), right)
    if _is_label(left) and not (isinstance(left, Sym) and left.name in symbols(right)):
        return Named(_label(left), right)
    if isinstance(right, Sym) and not isinstance(left, Sym) and right.name not in symbols(left):
        if symbols(left):
            return None
        return Named(right.name, left)
    return None


_FUNCTIONS = ("P", "V", "S", "T", "A", "C", "y")


def _is_label(node: Node) -> bool:
    if isinstance(node, Sym):
        return True
    if isinstance(node, Fn) and node.name.startswith("call "):
        return True
    if isinstance(node, Seq) and node.kind == "tuple":
        return all(isinstance(item, Sym) for item in node.items)
    if isinstance(node, Mul) and len(node.factors) == 2:  # P(A), V(x)
        return all(isinstance(factor, Sym) for factor in node.factors) and _label(node.factors[0]) in _FUNCTIONS
    return (
        isinstance(node, Fn) and node.name in ("sin", "cos", "tan", "abs") and len(node.args) == 1
        and (isinstance(node.args[0], Sym) or _is_product_of_points(node.args[0]))
    )  # fmt: skip


def _is_product_of_points(node: Node) -> bool:
    return isinstance(node, Mul) and all(isinstance(factor, Sym) and factor.name.isupper() for factor in node.factors)


def _label(node: Node) -> str:
    if isinstance(node, Sym):
        return node.name
    if isinstance(node, Fn):
        inner = ",".join(_label(arg) for arg in node.args)
        return f"{node.name.removeprefix('call ')}({inner})"
    if isinstance(node, Seq):
        return "(" + ",".join(_label(item) for item in node.items) + ")"
    if isinstance(node, Mul):
        return "".join(_label(factor) for factor in node.factors)
    return str(getattr(node, "value", node))


def _same_name(mine: str, gold: str) -> bool:
    if mine == gold:
        return True
    if "()" in mine + gold:
        return mine.partition("(")[0] == gold.partition("(")[0]
    function = {"f(x)", "y", "y(x)", "g(x)", "h(x)"}
    return (
        mine in function
        and gold in function
        and (mine == "y" or gold == "y" or (mine[1:] == gold[1:] and "y" in mine + gold))
    )


def _is_set_like(node: Node) -> bool:
    return isinstance(node, (Interval, SetOp, NamedSet, Builder, Rel, Seq))


def _are_statements(items: Sequence[Node]) -> bool:
    """Whether `and` between them is not `or`: equations of several variables, letters of logic."""
    named_items = _assignments(items)
    if named_items is not None:
        return len({one.name for one in named_items}) > 1
    return all(isinstance(item, Sym) for item in items) or any(isinstance(item, Rel) for item in items)


def _has_empty_member(node: Node) -> bool:
    return isinstance(node, Seq) and node.kind == "set" and NamedSet("") in node.items


def _is_finite_set(node: Node) -> bool:
    return (isinstance(node, Seq) and node.kind == "set") or node == NamedSet("")


def _is_interval_like(node: Node) -> bool:
    if isinstance(node, (Interval, SetOp, NamedSet, Builder)):
        return True
    if isinstance(node, Rel):
        return bool(set(node.ops) & (_ORDER | {"!=", "in", "notin"}))
    return isinstance(node, Seq) and node.kind in ("and", "or", "list") and any(map(_is_interval_like, node.items))


def _kind(node: Node) -> str:
    return node.kind if isinstance(node, Seq) else "value"


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Seq) else (node,)


def _assignments(items: Sequence[Node]) -> list[Named] | None:
    found = []
    for item in items:
        one = named(item) if isinstance(item, Rel) and set(item.ops) == {"="} else None
        if one is None:
            return None
        found.append(one)
    return found or None


def _rows(node: Node) -> list[list[Node]] | None:
    """Return the rows of a matrix; a tuple is a column, [[1,2],[3,4]] rows."""
    if isinstance(node, Matrix):
        return [list(row) for row in node.rows]
    if isinstance(node, Seq) and node.kind in ("tuple", "bracket"):
        return [[item] for item in node.items]
    return None


def _size(matrix: Matrix) -> tuple[int, int]:
    return len(matrix.rows), len(matrix.rows[0])


def _is_spelled(node: Node) -> bool:
    """Whether a product is rather a word, a sequence of tosses or a Roman numeral: dog, HTHT, RRL, XIV."""
    if not isinstance(node, Mul) or not all(
        isinstance(factor, Sym) and len(factor.name) == 1 for factor in node.factors
    ):
        return False
    names = [factor.name for factor in node.factors if isinstance(factor, Sym)]
    if is_short_word("".join(names)):
        return True
    return all(map(str.isupper, names)) and (
        set(names) <= set("IVXLCDM")
        or (len(names) > 2 and (len(set(names)) < len(names) or not set(names) <= set("ABCDEFGH")))
    )


def _called(node: Any) -> str:
    if isinstance(node, Seq):
        return node.kind
    if isinstance(node, SCALAR):
        return "value"
    return {"Rel": "relation", "SetOp": "set", "NamedSet": "set", "Builder": "set"}.get(
        type(node).__name__, type(node).__name__.lower()
    )


_STRENGTH = ("text", "structure", "interval", "number", "polynomial identity", "numeric points", "sympy")


def _stronger(one: str, other: str) -> str:
    return max(one, other, key=_STRENGTH.index)


def _inside(value: Node, unit: str) -> Node:
    """Move a unit behind an equation to its right side: x = 5 cm."""
    if not unit or not isinstance(value, Rel):
        return Measure(value, unit) if unit else value
    return Rel((*value.items[:-1], Measure(value.items[-1], unit)), value.ops)


def _value_of(node: Node) -> Any:
    if isinstance(node, Rel):
        return node.items[-1]
    return node


def _name_of(node: Node) -> str:
    return node.items[0].name if isinstance(node, Rel) and isinstance(node.items[0], Sym) else ""


def _mentions_pi(node: Node) -> bool:
    return node == PI or any(map(_mentions_pi, children(node)))


def _is_zero(node: Expr) -> bool:
    return equal_values(node, ZERO).equal


def _times(value: Node, factor: Fraction) -> Expr:
    if isinstance(value, Num):
        return Num(value.value * factor, value.digits)
    return Mul((Num(factor), value))  # type: ignore[arg-type]


def _oriented(relation: Rel) -> tuple[Expr, bool]:
    """Return an inequality as `expression > 0`, and whether it is strict."""
    left, right = relation.items
    op = relation.ops[0]
    if op.startswith("<"):
        left, right = right, left
    return difference(left, right), not op.endswith("=")  # type: ignore[arg-type]


def proportional(left: Expr, right: Expr) -> Fraction | None:
    """Return the constant c with left = c * right, or its sign where it is no fraction; None when there is none."""
    names = symbols(left) | symbols(right)
    if complex_symbols(left) | complex_symbols(right):
        for sign in (1, -1):
            if equal_values(left, right if sign > 0 else negated(right)).equal:
                return Fraction(sign)
        return None
    point = {name: Fraction(7 * place + 3, 5) for place, name in enumerate(sorted(names))}
    try:
        for seed in range(4):
            at = {name: value + Fraction(seed, 3) for name, value in point.items()}
            first, second = exact(left, at), exact(right, at)
            if second and first:
                factor = first / second
                same = equal_values(left, Mul((Num(factor), right)))
                return factor if same.equal else None
            if bool(second) != bool(first):
                return None
        return None
    except (Irrational, Undefined):
        pass
    return _numeric_factor(left, right, names)


def _numeric_factor(left: Expr, right: Expr, names: frozenset[str]) -> Fraction | None:
    from rewardkit.verifiers.math.points import Evaluator

    mp = context(50)
    factor: Any = None
    agreed = 0
    for seed in range(8):
        at = {name: mp.mpf(7 * place + 3 + 2 * seed) / (5 + seed) for place, name in enumerate(sorted(names))}
        try:
            first, second = Evaluator(at, 50).value(left), Evaluator(at, 50).value(right)
        except (Refused, ZeroDivisionError):
            continue
        except (Unknown, NotReal):
            return None
        if not second or not first:
            if bool(second) != bool(first):
                return None
            continue
        here = first / second
        if factor is None:
            factor = here
        elif abs(here - factor) > abs(factor) * mp.mpf(10) ** -35:
            return None
        agreed += 1
    if agreed < 3 or (hasattr(factor, "imag") and factor.imag):
        return None
    return Fraction(1) if factor.real > 0 else Fraction(-1)


# --------------------------------------------------------------------------------------------- decimals


def _real(expr: Expr) -> Fraction | None:
    """Return a constant's value as a fraction, rounded to many digits where it is irrational."""
    if infinite_sign(expr):
        return None
    try:
        return exact(expr)
    except Irrational:
        pass
    except Refused:
        return None
    try:
        value = numeric(expr)
    except (Refused, Unknown, NotReal):
        return None
    if (hasattr(value, "imag") and value.imag) or not value:
        return None
    if abs(int(context(50).mag(value))) > 4000:
        return None
    return Fraction(context(50).nstr(value.real, 40, strip_zeros=False))


def _step(value: Fraction, digits: int) -> Fraction:
    """Return one unit of the last of so many significant digits."""
    size = abs(value)
    if not size:
        return Fraction(1, 10**digits)
    power = len(str(size.numerator)) - len(str(size.denominator))
    while Fraction(10) ** power > size:
        power -= 1
    while Fraction(10) ** (power + 1) <= size:
        power += 1
    return Fraction(10) ** (power - digits + 1)


# ------------------------------------------------------------------------------------------ parameters


def _solution(node: Node) -> Expr | None:
    value = node
    if isinstance(node, Rel):
        one = named(node)
        if one is None:
            return None
        value = tidy(one.value)
    return value if isinstance(value, SCALAR) else None


def _constants_in(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if name in ("C", "c", "K") or name[:2] in ("C_", "c_", "A_", "k_"))


def _is_x(node: Node) -> bool:
    one = named(node) if isinstance(node, Rel) else None
    return one is not None and one.name in ("x", "theta")


def _steps(value: Expr) -> bool:
    """Whether a value is `3 + 7 k`: a step of 2 or more from a start."""
    terms = value.terms if isinstance(value, Add) else ()
    return any(
        isinstance(term, Mul) and any(isinstance(factor, Num) and abs(factor.value) >= 2 for factor in term.factors)
        for term in terms
    )


def _differ_by_constant(mine: Expr, gold: Expr) -> bool:
    """Whether F(x) + C and G(x) + C are the same family: F - G is a constant."""
    names = symbols(gold)
    own = Sym("C")
    if len(names) != 2 or "C" not in names or symbols(mine) != names:
        return False
    if not all(isinstance(one, Add) and own in one.terms for one in (mine, gold)):
        return False
    left, right = (Add(tuple(t for t in one.terms if t != own)) for one in (mine, gold))  # type: ignore[union-attr]
    name = next(iter(names - {"C"}))
    if symbols(left) != {name} or symbols(right) != {name}:
        return False
    at = Num(Fraction(7, 10))
    try:
        shift = difference(substituted(left, name, at), substituted(right, name, at))
        return equal_values(difference(left, right), shift).equal
    except (Refused, NeedsAlgebra):
        return False


def _is_free(value: Expr, name: str, solved: bool) -> bool:
    """Whether a letter stands where a constant of integration does: added to a function, before e^x, in y = C x."""
    terms = value.terms if isinstance(value, Add) else (value,)
    own = Sym(name)
    for term in terms:
        factors = term.factors if isinstance(term, Mul) else (term,)
        factors = tuple(factor for factor in factors if not isinstance(factor, Num))
        others = [factor for factor in factors if factor != own]
        if len(others) == len(factors):
            if name in symbols(term):
                return False
        elif others and name in symbols(Mul(tuple(others))):
            return False
        elif not others:
            if len(terms) == 1 or not symbols(value) - {name}:
                return False
        elif not solved and not any(_is_transcendental(factor) for factor in others):
            return False
    return True


def _is_transcendental(node: Node) -> bool:
    return (isinstance(node, Fn) or (isinstance(node, Pow) and bool(symbols(node.exponent)))) and bool(symbols(node))


def _parameters_in(value: Expr) -> frozenset[str]:
    return symbols(value) & _PARAMETERS


def _renamed(value: Expr, names: dict[str, str]) -> Expr:
    result = value
    for old in names:
        result = substituted(result, old, Sym("\x00" + old))
    for old, new in names.items():
        result = substituted(result, "\x00" + old, Sym(new))
    return result


def _same_coset(mine: Expr, gold: Expr, name: str) -> bool:
    """Whether two values linear in a whole number run through the same set."""
    if symbols(mine) != {name} or symbols(gold) != {name}:
        return False
    mp = context(50)
    try:
        mine_at = [numeric(substituted(mine, name, Num(Fraction(k)))) for k in (0, 1, 2)]
        gold_at = [numeric(substituted(gold, name, Num(Fraction(k)))) for k in (0, 1, 2)]
    except (Refused, Unknown, NotReal):
        return False
    tiny = mp.mpf(10) ** -30
    if any(hasattr(value, "imag") and value.imag for value in (*mine_at, *gold_at)):
        return False
    my_step, step = mine_at[1] - mine_at[0], gold_at[1] - gold_at[0]
    if abs(mine_at[2] - mine_at[1] - my_step) > tiny or abs(gold_at[2] - gold_at[1] - step) > tiny or abs(step) < tiny:
        return False
    if abs(abs(my_step) - abs(step)) > tiny:
        return False
    shift = (mine_at[0] - gold_at[0]) / step
    return bool(abs(shift - mp.nint(shift)) < tiny)


__all__ = ["Comparer", "alike", "modular_points", "named", "residue", "tidy"]
