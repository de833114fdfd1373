"""Group-relative advantages: the rewards of one batch in, one number a completion out. Pure functions.

Groups are told apart by their id, never by position or prompt text, so the rows of a batch may stand in any order.
Sums are exactly rounded (`math.fsum`), so another order gives the same result to the last bit.

A completion that was not scored (its reward abstained or ended in an error) leaves mean, standard deviation and loss:
its advantage is 0 and it is not `active`. A group without anything to compare gets advantage 0 and is named in `dead`
with the reason: "unscored" (no completion was scored), "single" (one was), "no_spread" (all scores are alike, within
the tolerance of `rewardkit.stats.alike`), "fewer_than_k" (pass@k only). Its completions stay active: in a loss that
divides by tokens or rows they count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from rewardkit.errors import OptionError
from rewardkit.stats import alike
from trainer_backend.errors import TensorError, unknown

if TYPE_CHECKING:
    import numpy as np


Values: TypeAlias = "Sequence[float | None] | torch.Tensor | np.ndarray[Any, Any]"
"""One number a completion. In a list None is a completion that was not scored."""

Dead: TypeAlias = Literal["unscored", "single", "no_spread", "fewer_than_k"]

EPSILON = 1e-4
"""Added to a standard deviation before it divides; TRL's value."""


@dataclass(frozen=True)
class Advantages:
    """The advantages of one batch.

    Attributes:
        values: float64 [n]; 0 for completions that are not active and for those of dead groups.
        active: bool [n]; whether a completion was scored and so takes part in the loss.
        groups: How many groups there are.
        dead: For each group that teaches nothing, by its id, why.
    """

    values: torch.Tensor
    active: torch.Tensor
    groups: int
    dead: Mapping[Hashable, Dead] = field(default_factory=dict)

    @property
    def dead_share(self) -> float:
        """The share of groups that teach nothing; 0 for an empty batch."""
        return len(self.dead) / self.groups if self.groups else 0.0

    def why_dead(self) -> dict[str, int]:
        """Return how many groups are dead for each reason."""
        return dict(Counter(self.dead.values()))


def advantages(
    *,
    rewards: Values,
    groups: Sequence[Hashable] | torch.Tensor | np.ndarray[Any, Any],
    method: str = "group",
    scored: Sequence[bool] | torch.Tensor | np.ndarray[Any, Any] | None = None,
    weights: Sequence[float] | None = None,
    ddof: int = 1,
    epsilon: float = EPSILON,
    k: int | None = None,
) -> Advantages:
    """Return one advantage a completion.

    Args:
        rewards: [n], or [n, components] with `weights`: then the weighted sum is taken, before the method, or for
            "gdpo" after normalising each component.
        groups: [n]; the id of each completion's group: text, whole numbers or anything hashable.
        method: A name in `METHODS`.
        scored: [n] bool; False leaves a completion out. For lists, None among the rewards says the same.
        weights: [components]; the default is 1 for each.
        ddof: 1 divides squares by n - 1 (as torch.std and TRL do), 0 by n.
        epsilon: Added to the standard deviation.
        k: For "pass_at_k" only.

    Raises:
        TensorError: Lengths differ, a reward is NaN or infinite, or ids are missing.
        UnknownName: No such method.
        OptionError: An option that the method does not have, or a wrong value.
    """
    if method not in METHODS:
        raise unknown("method of advantages", method, METHODS)
    if ddof not in (0, 1):
        raise OptionError(f"ddof is 0 or 1, got {ddof!r}")
    if not (isinstance(epsilon, (int, float)) and math.isfinite(epsilon) and epsilon >= 0):
        raise OptionError(f"epsilon is a number of at least 0, got {epsilon!r}")
    if (k is not None) != (method == "pass_at_k"):
        raise OptionError(f"pass_at_k needs k, and no other method takes it; got method={method!r}, k={k!r}")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise OptionError(f"k is a whole number of at least 1, got {k!r}")
    columns, active = _columns(rewards, scored)
    ids = _plain(groups)
    if len(ids) != len(active):
        raise TensorError(f"groups has {len(ids):,} ids for {len(active):,} rewards")
    factors = _weights(weights, len(columns))
    batch = _Batch(columns, factors, ids, active, ddof, float(epsilon), k)
    values = METHODS[method].rule(batch)
    return Advantages(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(active, dtype=torch.bool),
        len(batch.members),
        batch.dead,
    )


# -------------------------------------------------------------------------------------------------------------- input


def _plain(values: Any) -> list[Any]:
    """Return a list of a tensor, an array or a sequence."""
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def _columns(rewards: Any, scored: Any) -> tuple[list[list[float]], list[bool]]:
    """Return one list a component, and which completions are scored; unscored ones are 0 in the lists."""
    rows = [row if isinstance(row, (list, tuple)) else [row] for row in _plain(rewards)]
    widths = {len(row) for row in rows} or {1}
    if len(widths) > 1 or 0 in widths:
        raise TensorError(f"rewards has rows of {', '.join(map(str, sorted(widths)))} components; all need the same")
    active = [all(value is not None for value in row) for row in rows]
    if scored is not None:
        marks = _plain(scored)
        if len(marks) != len(rows):
            raise TensorError(f"scored has {len(marks):,} marks for {len(rows):,} rewards")
        active = [known and bool(mark) for known, mark in zip(active, marks, strict=True)]
    columns = [
        [_number(row[at], place) if known else 0.0 for place, (row, known) in enumerate(zip(rows, active, strict=True))]
        for at in range(widths.pop())
    ]
    return columns, active


def _number(value: Any, place: int) -> float:
    if not isinstance(value, (bool, int, float)):
        raise TensorError(f"rewards[{place}] is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise TensorError(f"rewards[{place}] is {value}; a completion without a reward is None, or scored=False there")
    return float(value)


def _weights(weights: Sequence[float] | None, count: int) -> list[float]:
    factors = [1.0] * count if weights is None else [float(weight) for weight in _plain(weights)]
    if len(factors) != count:
        raise TensorError(f"weights has {len(factors)} values for {count} reward components")
    if not all(map(math.isfinite, factors)):
        raise TensorError(f"weights are finite numbers, got {factors}")
    return factors


class _Batch:
    """One batch: rewards by component, which rows each group has, and which groups are found dead."""

    def __init__(
        self,
        columns: list[list[float]],
        weights: list[float],
        ids: list[Hashable],
        active: list[bool],
        ddof: int,
        epsilon: float,
        k: int | None,
    ) -> None:
        self.columns = columns
        self.weights = weights
        self.n = len(ids)
        self.ddof = ddof
        self.epsilon = epsilon
        self.k = k
        self.totals = [
            math.fsum(weight * column[at] for weight, column in zip(weights, columns, strict=True))
            for at in range(self.n)
        ]
        self.active = [at for at in range(self.n) if active[at]]
        self.members: dict[Hashable, list[int]] = {}
        for at, name in enumerate(ids):
            places = self.members.setdefault(name, [])
            if active[at]:
                places.append(at)
        self.dead: dict[Hashable, Dead] = {}
        for name, places in self.members.items():
            if len(places) < 2:
                self.dead[name] = "single" if places else "unscored"
            elif self.flat(places):
                self.dead[name] = "no_spread"

    def flat(self, places: Sequence[int]) -> bool:
        """Whether all components of some rows are alike (a constant sum of components that differ is seen by GDPO)."""
        return _flat([self.totals[at] for at in places])

    def live(self) -> list[list[int]]:
        """Return the rows of each group that is not dead."""
        return [places for name, places in self.members.items() if name not in self.dead]

    def spread(self, values: Sequence[float], mean: float) -> float:
        """Return the standard deviation with `ddof`; infinite (advantage 0) where it divides by nothing."""
        n = len(values) - self.ddof
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / n) if n > 0 else math.inf

    def scale(self, values: Sequence[float], mean: float) -> float:
        """Return what divides: the standard deviation plus epsilon; infinite for values that are all alike."""
        return math.inf if _flat(values) else self.spread(values, mean) + self.epsilon


def _flat(values: Sequence[float]) -> bool:
    return not values or alike(min(values), max(values))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ------------------------------------------------------------------------------------------------------------ methods


def _each_group(batch: _Batch, rule: Callable[[list[float]], Sequence[float]]) -> list[float]:
    """Apply a rule to the totals of each live group."""
    result = [0.0] * batch.n
    for places in batch.live():
        for at, value in zip(places, rule([batch.totals[at] for at in places]), strict=True):
            result[at] = value
    return result


def _group(batch: _Batch) -> list[float]:
    def rule(values: list[float]) -> list[float]:
        mean = _mean(values)
        scale = batch.scale(values, mean)
        return [(value - mean) / scale for value in values]

    return _each_group(batch, rule)


def _centred(values: list[float]) -> list[float]:
    mean = _mean(values)
    return [value - mean for value in values]


def _none(batch: _Batch) -> list[float]:
    return _each_group(batch, _centred)


def _batch(batch: _Batch) -> list[float]:
    values = [batch.totals[at] for at in batch.active]
    scale = batch.scale(values, _mean(values)) if values else math.inf
    return [value / scale for value in _each_group(batch, _centred)]


def _leave_one_out(batch: _Batch) -> list[float]:
    return _each_group(batch, lambda values: [v * len(values) / (len(values) - 1) for v in _centred(values)])


def _whitened(batch: _Batch, values: list[float]) -> list[float]:
    """Return values less their mean over the batch's active rows, divided by their standard deviation there."""
    result = [0.0] * batch.n
    known = [values[at] for at in batch.active]
    if not known:
        return result
    mean = _mean(known)
    scale = batch.scale(known, mean)
    for at in batch.active:
        result[at] = (values[at] - mean) / scale
    return result


def _reinforce_pp(batch: _Batch) -> list[float]:
    # The batch is the group here, so a group of one, or one without spread, still learns from the others.
    flat = _flat([batch.totals[at] for at in batch.active])
    if not flat and len(batch.active) > 1:
        batch.dead = {name: why for name, why in batch.dead.items() if why == "unscored"}
    return _whitened(batch, batch.totals)


def _reinforce_pp_baseline(batch: _Batch) -> list[float]:
    centred = _each_group(batch, _centred)
    whitened = _whitened(batch, centred)
    live = {at for places in batch.live() for at in places}
    return [value if at in live else 0.0 for at, value in enumerate(whitened)]


def _gdpo(batch: _Batch) -> list[float]:
    result = [0.0] * batch.n
    dead = dict(batch.dead)
    for name, places in batch.members.items():
        if dead.get(name) in ("single", "unscored"):
            continue
        normal = []
        for weight, column in zip(batch.weights, batch.columns, strict=True):
            values = [column[at] for at in places]
            mean = _mean(values)
            scale = batch.scale(values, mean)
            normal.append([weight * (value - mean) / scale for value in values])
        sums = [math.fsum(parts) for parts in zip(*normal, strict=True)]
        # What counts is the spread after normalising: components may cancel in the plain sum and not here.
        if _flat(sums):
            dead[name] = "no_spread"
            continue
        dead.pop(name, None)
        for at, value in zip(places, sums, strict=True):
            result[at] = value
    batch.dead = dead
    whitened = _whitened(batch, result)
    live = {at for places in batch.live() for at in places}
    return [value if at in live else 0.0 for at, value in enumerate(whitened)]


def _pass_at_k(batch: _Batch) -> list[float]:
    k = batch.k or 1
    for name, places in batch.members.items():
        if len(places) > 1 and len(places) < k:
            batch.dead[name] = "fewer_than_k"
    return _each_group(batch, lambda values: _best_of_k(values, k, batch.epsilon))


def _best_of_k(values: list[float], k: int, epsilon: float) -> list[float]:
    """Return (E[max of k | i among them] - E[max of k]) / (std of the max of k + epsilon) over all k-subsets.

    With values in ascending order r_1 <= .. <= r_n, r_j is the greatest of C(j - 1, k - 1) of the C(n, k) subsets; of
    those that hold i, it is so in C(j - 2, k - 2) for j > i, and r_i itself in C(i - 1, k - 1).
    """
    n = len(values)
    order = sorted(range(n), key=values.__getitem__)
    ranked = [values[at] for at in order]
    subsets = math.comb(n, k)
    shares = [math.comb(j, k - 1) / subsets for j in range(n)]
    mean = math.fsum(r * share for r, share in zip(ranked, shares, strict=True))
    scale = math.sqrt(math.fsum(share * (r - mean) ** 2 for r, share in zip(ranked, shares, strict=True))) + epsilon
    with_i = math.comb(n - 1, k - 1)
    result = [0.0] * n
    above = [0.0] * (n + 1)  # above[i]: the sum over j >= i of r_j C(j - 1, k - 2), counting from 0
    for j in range(n - 1, -1, -1):
        above[j] = above[j + 1] + (ranked[j] * math.comb(j - 1, k - 2) if k > 1 and j > 0 else 0.0)
    best_flat = _flat([r for r, share in zip(ranked, shares, strict=True) if share])
    for i, at in enumerate(order):
        held = (above[i + 1] + ranked[i] * math.comb(i, k - 1)) / with_i
        result[at] = 0.0 if best_flat else (held - mean) / scale
    return result


def _max(batch: _Batch) -> list[float]:
    def rule(values: list[float]) -> list[float]:
        second, first = sorted(values)[-2:]
        scale = batch.scale(values, _mean(values))
        best = values.index(first)
        return [(first - second) / scale if at == best else 0.0 for at in range(len(values))]

    return _each_group(batch, rule)


@dataclass(frozen=True)
class Method:
    """One way to make advantages.

    Attributes:
        rule: The function.
        formula: As it is written in `docs/losses.md`; mean and std are those of the completion's group.
        source: The paper.
        use: When to take it.
    """

    rule: Callable[[_Batch], list[float]]
    formula: str
    source: str
    use: str


METHODS: Mapping[str, Method] = {
    "group": Method(_group, "(R - mean) / (std + eps)", "arXiv:2402.03300 section 4.1", "the default"),
    "none": Method(_none, "R - mean", "arXiv:2503.20783 equation 3", "no bias towards very easy and very hard tasks"),
    "batch": Method(
        _batch, "(R - mean) / (std of the batch + eps)", "arXiv:2508.08221", "groups with little spread stay quiet"
    ),
    "leave_one_out": Method(
        _leave_one_out, "R_i - mean of the others", "arXiv:2402.14740 equation 8 (RLOO)", "an unbiased baseline"
    ),
    "reinforce_pp": Method(
        _reinforce_pp,
        "(R - mean of the batch) / (std of the batch + eps)",
        "arXiv:2501.03262",
        "one completion a prompt",
    ),
    "reinforce_pp_baseline": Method(
        _reinforce_pp_baseline,
        "R - mean, then whitened over the batch",
        "arXiv:2501.03262",
        "several completions a prompt, one scale for all",
    ),
    "gdpo": Method(
        _gdpo,
        "sum over components of w (R_c - mean_c) / (std_c + eps), then whitened over the batch",
        "arXiv:2601.05242",
        "several components of different scale",
    ),
    "pass_at_k": Method(
        _pass_at_k,
        "(E[max of k | i in it] - E[max of k]) / (std of max of k + eps)",
        "arXiv:2508.10751 equations 14-16 for 0 and 1; arXiv:2505.15201 for any reward",
        "train what pass@k measures",
    ),
    "max": Method(
        _max,
        "best: (first - second) / (std + eps); others 0",
        "arXiv:2503.19595",
        "only the best completion matters",
    ),
}
"""The methods by name."""
