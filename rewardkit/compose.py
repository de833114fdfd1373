"""Composition: rewards are values, and a sum of rewards is a reward.

    total = 0.8 * Gsm8k() + 0.2 * think_format
    safe = gate(think_format, then=total)

A composed reward prints as its formula, compares by value, and is evaluated by the same pipeline as its
parts. One rule holds everywhere: a part that could not be scored leaves the whole unscored, never a silent 0;
`first_of` is the one that goes on to the next. A part of weight 0 is a metric: reported, without any say.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import msgspec

from rewardkit.errors import UsageError
from rewardkit.types import Generation, Score, finite

if TYPE_CHECKING:
    from typing import TypeAlias

    Number: TypeAlias = int | float

_T = TypeVar("_T")


class Evaluation(Protocol):
    """What a reward is given while it is evaluated: the group, the step, and a way to ask its leaves."""

    generation: Generation
    step: int | None

    async def ask(self, leaf: Reward, at: Sequence[int]) -> list[Score]:
        """Score the completions at these places with one leaf."""
        ...

    async def together(self, questions: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        """Await several questions, at the same time where that helps."""
        ...


class Reward(ABC):
    """Anything that gives each completion of a group a score: a function, a verifier, or a composition."""

    @property
    def label(self) -> str:
        """The name shown for this reward."""
        return self.formula

    @property
    @abstractmethod
    def formula(self) -> str:
        """The text form of this reward, which `rewardkit.parse` reads back."""

    @property
    def children(self) -> tuple[Reward, ...]:
        """The rewards that this one is composed of; none for a leaf."""
        return ()

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        """Return one score for each completion at the places `at`, in that order."""
        return await evaluation.ask(self, at)

    def leaves(self) -> Iterator[Reward]:
        """Yield the leaves of this reward from left to right."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    # NumPy's numbers would otherwise take a reward for an array.
    __array_ufunc__ = None

    def __add__(self, other: Reward | Number) -> Reward:
        return _sum(self, other, 1.0)

    def __radd__(self, other: Reward | Number) -> Reward:
        return _sum(self, other, 1.0)

    def __sub__(self, other: Reward | Number) -> Reward:
        return _sum(self, other, -1.0)

    def __rsub__(self, other: Reward | Number) -> Reward:
        return _sum(-self, other, 1.0)

    def __neg__(self) -> Reward:
        return self * -1.0

    def __mul__(self, other: Reward | Number) -> Reward:
        if isinstance(other, Reward):
            if _is_constant(self):
                return other * self.constant
            if _is_constant(other):
                return self * other.constant
            return Product((*_factors(self), *_factors(other)))
        if not _is_number(other):
            return NotImplemented
        return _weighted(((finite(other, "a weight"), self),))

    def __rmul__(self, other: Number) -> Reward:
        return self * other


@dataclass(frozen=True)
class WeightedSum(Reward):
    """The sum of weight times part, plus a constant. A part of weight 0 is evaluated, shown, and never counted."""

    terms: tuple[tuple[float, Reward], ...]
    constant: float = 0.0

    def __post_init__(self) -> None:
        for weight, _ in self.terms:
            finite(weight, "a weight")
        finite(self.constant, "a constant")

    @property
    def formula(self) -> str:
        text = ""
        for weight, part in self.terms:
            inner = _grouped(part) if isinstance(part, WeightedSum) else part.formula
            body = inner if abs(weight) == 1 else f"{_number(abs(weight))}*{inner}"
            negative = math.copysign(1.0, weight) < 0
            text = f"{text} {'-' if negative else '+'} {body}" if text else f"{'-' if negative else ''}{body}"
        if self.constant or not text:
            negative = math.copysign(1.0, self.constant) < 0
            body = _number(abs(self.constant))
            text = f"{text} {'-' if negative else '+'} {body}" if text else f"{'-' if negative else ''}{body}"
        return text

    @property
    def children(self) -> tuple[Reward, ...]:
        return tuple(part for _, part in self.terms)

    def leaves(self) -> Iterator[Reward]:
        for part in self.children:  # a constant has none, and is no leaf
            yield from part.leaves()

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        columns = await evaluation.together([part.evaluate(evaluation, at) for _, part in self.terms])
        names = _part_names(self.children)
        weights = [weight for weight, _ in self.terms]
        return [self._total(names, weights, row) for row in _rows(columns, len(at))]

    def _total(self, names: Sequence[str], weights: Sequence[float], scores: Sequence[Score]) -> Score:
        parts = tuple(
            msgspec.structs.replace(score, name=name, weight=weight)
            for name, weight, score in zip(names, weights, scores, strict=True)
        )
        counted = [part for part in parts if part.weight]
        unscored = _unscored(counted)
        if unscored is not None:
            return _blocked(unscored, parts)
        return _valued(_exact_sum([p.weight * p.value for p in counted] + [self.constant]), parts)  # type: ignore[operator]

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Product(Reward):
    """The product of its factors."""

    factors: tuple[Reward, ...]

    @property
    def formula(self) -> str:
        return "*".join(_grouped(part) if isinstance(part, WeightedSum) else part.formula for part in self.factors)

    @property
    def children(self) -> tuple[Reward, ...]:
        return self.factors

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        return await _fold(self.factors, math.prod, evaluation, at)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Minimum(Reward):
    """The smallest of its parts."""

    parts: tuple[Reward, ...]

    @property
    def formula(self) -> str:
        return f"minimum({_listed(self.parts)})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return self.parts

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        return await _fold(self.parts, min, evaluation, at)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Maximum(Reward):
    """The largest of its parts."""

    parts: tuple[Reward, ...]

    @property
    def formula(self) -> str:
        return f"maximum({_listed(self.parts)})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return self.parts

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        return await _fold(self.parts, max, evaluation, at)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Clip(Reward):
    """Its part, held between `low` and `high`."""

    part: Reward
    low: float = 0.0
    high: float = 1.0

    @property
    def formula(self) -> str:
        return f"clip({self.part.formula}, low={_number(self.low)}, high={_number(self.high)})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return (self.part,)

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        return await _fold((self.part,), lambda values: min(self.high, max(self.low, values[0])), evaluation, at)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Gate(Reward):
    """`then` where the condition reaches `at`, elsewhere `otherwise`; `then` is asked only where it counts."""

    condition: Reward
    then: Reward
    at: float = 1.0
    otherwise: float = 0.0

    @property
    def formula(self) -> str:
        extra = "" if self.at == 1.0 else f", at={_number(self.at)}"
        extra += "" if self.otherwise == 0.0 else f", otherwise={_number(self.otherwise)}"
        return f"gate({self.condition.formula}, then={self.then.formula}{extra})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return (self.condition, self.then)

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        names = _part_names(self.children)
        conditions = [_named(score, names[0]) for score in await self.condition.evaluate(evaluation, at)]
        opened = [i for i, score in enumerate(conditions) if score.value is not None and score.value >= self.at]
        asked = await self.then.evaluate(evaluation, [at[i] for i in opened]) if opened else []
        answers = dict(zip(opened, asked, strict=True))
        return [self._score(condition, answers.get(i), names[1]) for i, condition in enumerate(conditions)]

    def _score(self, condition: Score, answer: Score | None, name: str) -> Score:
        if condition.value is None:
            return _blocked(condition, (condition,))
        if answer is None:
            detail = f"gate closed: {condition.label_why}"
            return Score(self.otherwise, detail, condition.extracted, condition.reason, parts=(condition,))
        parts = (condition, _named(answer, name))
        return _blocked(parts[1], parts) if answer.value is None else _taken(answer, parts)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class FirstOf(Reward):
    """The first of its parts that could be scored; a later one is asked only where all earlier ones could not."""

    parts: tuple[Reward, ...]

    @property
    def formula(self) -> str:
        return f"first_of({_listed(self.parts)})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return self.parts

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        seen: list[list[Score]] = [[] for _ in at]
        open_places = list(range(len(at)))
        for part, name in zip(self.parts, _part_names(self.parts), strict=True):
            if not open_places:
                break
            scores = await part.evaluate(evaluation, [at[i] for i in open_places])
            for i, score in zip(open_places, scores, strict=True):
                seen[i].append(_named(score, name))
            open_places = [i for i in open_places if seen[i][-1].value is None]
        return [self._score(tuple(scores)) for scores in seen]

    @staticmethod
    def _score(parts: tuple[Score, ...]) -> Score:
        last = parts[-1]
        if last.value is not None:
            return _taken(last, parts)
        return _blocked(next((part for part in parts if part.state == "error"), last), parts)

    def __repr__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Schedule(Reward):
    """One part per training step: the entry with the largest start that the step has reached.

    The step is the row's own, else the one given to the evaluation (`--step`), else the last entry applies.
    """

    entries: tuple[tuple[int, Reward], ...]

    @property
    def formula(self) -> str:
        inner = ", ".join(f"{start}: {part.formula}" for start, part in self.entries)
        return f"schedule({{{inner}}})"

    @property
    def children(self) -> tuple[Reward, ...]:
        return tuple(part for _, part in self.entries)

    def active(self, step: int | None) -> int:
        """Return the position of the entry that holds at a step."""
        if step is None:
            return len(self.entries) - 1
        return max(i for i, (start, _) in enumerate(self.entries) if start <= step or i == 0)

    async def evaluate(self, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
        row_step = evaluation.generation.sample.step
        place = self.active(row_step if row_step is not None else evaluation.step)
        name = _part_names(self.children)[place]
        scores = await self.entries[place][1].evaluate(evaluation, at)
        parts = [_named(score, name) for score in scores]
        return [_blocked(part, (part,)) if part.value is None else _taken(part, (part,)) for part in parts]

    def __repr__(self) -> str:
        return self.formula


def gate(condition: Reward, then: Reward, *, at: Number = 1.0, otherwise: Number = 0.0) -> Reward:
    """Give `then` where `condition` scores at least `at`, and `otherwise` elsewhere."""
    return Gate(_reward(condition), _reward(then), finite(at, "at"), finite(otherwise, "otherwise"))


def minimum(*parts: Reward) -> Reward:
    """Give the smallest of the parts."""
    return Minimum(_several("minimum", parts))


def maximum(*parts: Reward) -> Reward:
    """Give the largest of the parts."""
    return Maximum(_several("maximum", parts))


def clip(part: Reward, *, low: Number = 0.0, high: Number = 1.0) -> Reward:
    """Hold a reward between `low` and `high`."""
    low, high = finite(low, "low"), finite(high, "high")
    if low > high:
        raise UsageError(f"clip wants low <= high, got low={low}, high={high}")
    return Clip(_reward(part), low, high)


def first_of(*parts: Reward) -> Reward:
    """Give the first part that can be scored; only unscored ones are skipped, a 0 is an answer."""
    return FirstOf(_several("first_of", parts))


def schedule(entries: Mapping[int, Reward]) -> Reward:
    """Change the reward with the training step: `schedule({0: a, 500: b})`. The first entry starts at step 0."""
    for start in entries:
        if isinstance(start, bool) or not isinstance(start, int):
            raise UsageError(f"schedule wants whole steps, got {start!r}")
    ordered = tuple((start, _reward(entries[start])) for start in sorted(entries))
    if not ordered or ordered[0][0] != 0:
        raise UsageError("schedule wants a first entry at step 0: schedule({0: a, 500: b})")
    return Schedule(ordered)


def constant(value: Number) -> Reward:
    """Give the same number to every completion."""
    return WeightedSum((), finite(value, "a constant"))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _reward(value: object) -> Reward:
    if not isinstance(value, Reward):
        raise UsageError(f"a reward is wanted, got {type(value).__name__}; decorate a function with @reward")
    return value


def _several(name: str, parts: Sequence[Reward]) -> tuple[Reward, ...]:
    if not parts:
        raise UsageError(f"{name} wants at least one reward")
    return tuple(_reward(part) for part in parts)


def _terms(value: Reward) -> WeightedSum:
    return value if isinstance(value, WeightedSum) else WeightedSum(((1.0, value),))


def _weighted(terms: tuple[tuple[float, Reward], ...], constant: float = 0.0) -> Reward:
    """Return the sum of these terms. Sums in it that count once are opened; one term that counts once is itself."""
    flat: list[tuple[float, Reward]] = []
    for weight, part in terms:
        if _is_constant(part):
            constant += weight * part.constant
        elif weight == 1.0 and isinstance(part, WeightedSum):
            flat += part.terms
            constant += part.constant
        else:
            flat.append((weight, part))
    finite(constant, "a constant")
    if len(flat) == 1 and flat[0][0] == 1.0 and not constant:
        return flat[0][1]
    return WeightedSum(tuple(flat), constant)


def _sum(left: Reward, right: Reward | Number, sign: float) -> Reward:
    if isinstance(right, Reward):
        a, b = _terms(left), _terms(right)
        turned = tuple((sign * weight, part) for weight, part in b.terms)
        return _weighted(a.terms + turned, a.constant + sign * b.constant)
    if not _is_number(right):
        return NotImplemented  # type: ignore[no-any-return]
    a = _terms(left)
    return _weighted(a.terms, a.constant + sign * finite(right, "a constant"))


def _is_constant(value: Reward) -> TypeGuard[WeightedSum]:
    return isinstance(value, WeightedSum) and not value.terms


def _factors(value: Reward) -> tuple[Reward, ...]:
    return value.factors if isinstance(value, Product) else (value,)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _grouped(part: Reward) -> str:
    return f"({part.formula})"


def _listed(parts: Sequence[Reward]) -> str:
    return ", ".join(part.formula for part in parts)


def _part_names(parts: Sequence[Reward]) -> list[str]:
    """Return a distinct name for each part: its label, its formula where labels clash, numbered at last."""
    labels = [part.label for part in parts]
    names: list[str] = []
    for label, part in zip(labels, parts, strict=True):
        base = name = part.formula if labels.count(label) > 1 else label
        number = 1
        while name in names:
            number += 1
            name = f"{base} #{number}"
        names.append(name)
    return names


def _named(score: Score, name: str) -> Score:
    return score if score.name == name else msgspec.structs.replace(score, name=name)


def _rows(columns: Sequence[Sequence[Score]], count: int) -> Sequence[Sequence[Score]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _unscored(parts: Sequence[Score]) -> Score | None:
    """Return the part to blame: the first error, else the first abstention."""
    blocked = [part for part in parts if part.value is None]
    return next((part for part in blocked if part.state == "error"), blocked[0] if blocked else None)


def _blocked(part: Score, parts: tuple[Score, ...]) -> Score:
    return Score(None, part.label_why, part.extracted, part.reason, parts=parts, trace=part.trace)


def _taken(part: Score, parts: tuple[Score, ...]) -> Score:
    return Score(part.value, part.detail, part.extracted, part.reason, parts=parts)


def _exact_sum(values: Sequence[float]) -> float:
    """Return the sum, rounded once, so that the order of its terms makes no difference; inf where it is too large."""
    if not all(map(math.isfinite, values)):
        return math.inf
    try:
        return math.fsum(values)
    except OverflowError:  # perhaps only on the way
        total = sum(map(Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf


def _valued(value: float, parts: tuple[Score, ...]) -> Score:
    if not math.isfinite(value):
        return Score(None, "the result is too large for a number", reason="raised", parts=parts)
    return Score(value, parts=parts)


async def _fold(parts: Sequence[Reward], function: Any, evaluation: Evaluation, at: Sequence[int]) -> list[Score]:
    """Score all parts and join their values with `function`; any unscored part leaves the whole unscored."""
    columns = await evaluation.together([part.evaluate(evaluation, at) for part in parts])
    names = _part_names(parts)
    scores = []
    for row in _rows(columns, len(at)):
        named = tuple(_named(score, name) for name, score in zip(names, row, strict=True))
        unscored = _unscored(named)
        scores.append(_blocked(unscored, named) if unscored else _valued(function([p.value for p in named]), named))
    return scores
