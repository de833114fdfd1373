"""Slow and obvious second versions of rewardkit.stats: enumeration, fractions, a bootstrap drawn one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product


def pass_at_k(n: int, c: int, k: int) -> Fraction:
    """The share of all subsets of k completions that hold a right one."""
    right = [1] * c + [0] * (n - c)
    subsets = [any(right[i] for i in subset) for subset in combinations(range(n), k)]
    return Fraction(sum(subsets), len(subsets))


def dead_share(problems: Sequence[Sequence[float]], size: int) -> Fraction | None:
    """The share of all subsets of `size` completions whose values are all the same, averaged over problems."""
    shares = []
    for values in problems:
        if len(values) >= size:
            subsets = [len({values[i] for i in subset}) == 1 for subset in combinations(range(len(values)), size)]
            shares.append(Fraction(sum(subsets), len(subsets)))
    return sum(shares, Fraction(0)) / len(shares) if shares else None


def sign_test(wins: int, losses: int) -> Fraction:
    """Of all 2^n ways to give n differences a sign, the share at least as uneven as what was seen."""
    n = wins + losses
    uneven = abs(wins - losses)
    extreme = sum(abs(2 * sum(signs) - n) >= uneven for signs in product((0, 1), repeat=n))
    return Fraction(extreme, 2**n)


def binomial_pmf(n: int, p: Fraction) -> list[Fraction]:
    """Pascal's triangle with exact weights."""
    row = [Fraction(1)]
    for _ in range(n):
        row = [a * (1 - p) + b * p for a, b in zip([*row, Fraction(0)], [Fraction(0), *row], strict=True)]
    return row


def bootstrap(
    problems: Sequence[tuple[float, int]], draws: int, level: float = 0.95, seed: int = 1
) -> tuple[float, float]:
    """The percentile bootstrap, every problem drawn by `random.choices`; ends by counting."""
    rng = random.Random(seed)
    ratios = []
    for _ in range(draws):
        sample = rng.choices(problems, k=len(problems))
        ratios.append(sum(s for s, _ in sample) / sum(c for _, c in sample))
    ratios.sort()
    tail = (1 - level) / 2
    return ratios[int(tail * draws)], ratios[int((1 - tail) * draws) - 1]


def variance(values: Sequence[float]) -> Fraction:
    """The sample variance, exactly."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    return sum((value - mean) ** 2 for value in exact) / (len(exact) - 1)


def simulated_dead_share(problems: Sequence[Sequence[float]], size: int, draws: int, seed: int = 1) -> float:
    """Draw groups as a trainer would, from completions that are there, and count those that are all the same."""
    rng = random.Random(seed)
    large = [values for values in problems if len(values) >= size]
    dead = sum(len(set(rng.sample(rng.choice(large), size))) == 1 for _ in range(draws))
    return dead / draws


def shares(
    components: dict[str, Sequence[Sequence[float]]], weights: dict[str, float], scaled: bool = False
) -> dict[str, Fraction] | None:
    """Fractions, and one thing at a time: how much the squares of the totals' deviations owe to each component."""
    owed = {name: Fraction(0) for name in components}
    whole = Fraction(0)
    groups = len(next(iter(components.values())))
    for at in range(groups):
        columns = {n: [Fraction(weights[n]) * Fraction(x) for x in groups[at]] for n, groups in components.items()}
        totals = [sum(row, Fraction(0)) for row in zip(*columns.values(), strict=True)]
        if len(totals) < 2 or len(set(totals)) == 1:
            continue
        size = len(totals)
        squares = sum((t - sum(totals) / size) ** 2 for t in totals)
        for name, values in columns.items():
            # A double sum over pairs: n * sum of products of deviations = sum over pairs of products of differences.
            pairs = sum((values[i] - values[j]) * (totals[i] - totals[j]) for i in range(size) for j in range(i))
            owed[name] += pairs / size / (squares if scaled else 1)
        whole += 1 if scaled else squares
    return {name: term / whole for name, term in owed.items()} if whole else None
