"""The statistics behind every figure that is shown: intervals over problems, pass@k, dead groups, paired tests.

Pure functions on plain numbers; only the standard library. Two rules hold throughout:

* The unit is the problem, never the completion. Fifty samples of one problem say little about the next problem, so
  intervals resample problems. (AMC23 at 20 problems x 50 samples: 10 to 30 %, where samples alone would claim +-2.5.)
* The same numbers in another order give the same result to the last bit: sums are exactly rounded (`math.fsum`, and not
  `sum`, which rounds differently from Python 3.12 on) and problems are sorted before anything is drawn.

Where a function takes `tally`, it takes the items themselves or a mapping from item to how often it occurs; files of a
million problems hold few different ones.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import mul, truediv
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)

MIN_PROBLEMS = 10
"""Below this many problems no interval is given: resampling so few says little about any other problem."""

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-8
"""Scores this close are one: float32 has an eps of 1.2e-7, and TRL asks `isclose(std, 0)`, whose tolerance is 1e-8."""


def counted(tally: Iterable[T] | Mapping[T, int]) -> Mapping[T, int]:
    """Return how often each item occurs; a mapping is returned as it is."""
    return tally if isinstance(tally, Mapping) else Counter(tally)


# ---------------------------------------------------------------------------------------------------- mean and spread


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sample standard deviation (divided by n - 1; None for fewer than two values)."""

    n: int
    mean: float
    std: float | None


def moments(tally: Iterable[float] | Mapping[float, int]) -> Moments | None:
    """Return mean and sample standard deviation, or None when there are no values or they overflow a float.

    mean = fsum(x) / n, and equal values have exactly their own; std = sqrt(fsum((x - mean)^2) / (n - 1)).
    """
    if isinstance(tally, Mapping):
        values, times = list(tally), list(tally.values())
        n = sum(times)
    else:
        values, times = list(tally), []
        n = len(values)
    if not n:
        return None
    low, high = min(values), max(values)
    if low == high:
        return Moments(n, low, 0.0 if n > 1 else None)
    try:
        mean = total(values, times) / n
        squares = total([(value - mean) * (value - mean) for value in values], times)
    except OverflowError:
        return None
    std = math.sqrt(squares / (n - 1))
    return Moments(n, mean, std if math.isfinite(std) else None)


def total(values: Iterable[float], times: Sequence[int] = ()) -> float:
    """Return the exactly rounded sum of values, each as often as `times` says (no times: once each).

    A value is added once for each bit of its count, times that power of two, since those products are exact.
    """
    if not times:
        return math.fsum(values)
    return math.fsum(
        math.ldexp(value, j)
        for value, count in zip(values, times, strict=True)
        for j in range(count.bit_length())
        if count >> j & 1
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the q-quantile of sorted values, linear between neighbours (Hyndman and Fan 1996, type 7)."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class Reservoir:
    """Total and maximum of a stream of durations, and quantiles from a fixed-size uniform sample of it.

    Algorithm L (Li 1994): how many items to skip is drawn, so that most items cost an append. The generator is
    seeded, so a stream always keeps the same items. The total is kept in whole nanoseconds, so that order is nothing.

    Attributes:
        pending: Durations that were not looked at yet. Where a call for each is too dear, append to this list and call
            `settle` when it is longer than `BATCH`.
    """

    __slots__ = ("_kept", "_largest", "_n", "_nanoseconds", "_next", "_random", "_size", "_threshold", "pending")

    BATCH = 512

    def __init__(self, size: int = 2048, seed: int = 0) -> None:
        self._n = 0
        self._largest = 0.0
        self._kept = array("d")
        self.pending: list[float] = []
        self._nanoseconds = 0
        self._size = size
        self._random = random.Random(seed)
        self._threshold = 1.0
        self._next = size
        self._skip()

    def _skip(self) -> None:
        uniform = self._random.random
        self._threshold *= math.exp(math.log(1.0 - uniform()) / self._size)
        self._next += math.floor(math.log(1.0 - uniform()) / math.log1p(-self._threshold))

    def add(self, seconds: float) -> None:
        """Take in one duration in seconds."""
        self.pending.append(seconds)
        if len(self.pending) > self.BATCH:
            self.settle()

    def settle(self) -> None:
        """Look at what is pending."""
        pending = self.pending
        if pending:
            self._nanoseconds += sum(map(round, map(mul, pending, repeat(1e9))))
            self._largest = max(self._largest, max(pending))
            self._take(pending)
            pending.clear()

    def _take(self, items: Sequence[float]) -> None:
        if self._n < self._size:
            self._kept.extend(items[: self._size - self._n])
        end = self._n + len(items)
        while self._next < end:
            self._kept[int(self._random.random() * self._size)] = items[self._next - self._n]
            self._next += 1
            self._skip()
        self._n = end

    @property
    def n(self) -> int:
        """How many durations were added."""
        return self._n + len(self.pending)

    @property
    def kept(self) -> array[float]:
        """The sample: all of them while there are at most `size`."""
        self.settle()
        return self._kept

    def state(self) -> dict[str, Any] | None:
        """Return all of it as plain data, for `absorb`; None when nothing was added."""
        self.settle()
        if not self._n:
            return None
        return {
            "n": self._n,
            "largest": self._largest,
            "nanoseconds": self._nanoseconds,
            "kept": self._kept.tobytes(),
        }

    def absorb(self, state: Mapping[str, Any] | None) -> None:
        """Take in another reservoir's `state`, as if its durations had been added after the own ones.

        Total, maximum and count are exactly those. So is the sample while the other one has kept all it was given;
        after that both samples are drawn from in proportion to what they stand for.
        """
        if state is None:
            return
        self.settle()
        self._nanoseconds += state["nanoseconds"]
        self._largest = max(self._largest, state["largest"])
        other = array("d", state["kept"])
        if state["n"] == len(other):
            self._take(other)
        elif self._n == len(self._kept):
            own, self._kept = self._kept, other
            n, self._n = self._n, state["n"]
            self._restart(self._n)
            self._take(own)
            assert self._n == n + state["n"]
        else:
            self._mix(other, state["n"])

    def _mix(self, other: array[float], n: int) -> None:
        uniform = self._random.random
        sides = [(list(self._kept), self._n), (list(other), n)]
        left = [self._n, n]
        mixed = array("d")
        for _ in range(self._size):
            side = int(uniform() * (left[0] + left[1]) >= left[0])
            left[side] -= 1
            items = sides[side][0]
            at = int(uniform() * len(items))
            items[at], items[-1] = items[-1], items[at]
            mixed.append(items.pop())
        self._kept = mixed
        self._restart(self._n + n)

    def _restart(self, n: int) -> None:
        """Go on behind `n` items of which a full sample is kept.

        The threshold is distributed as the `size`-th least of n uniform numbers: Beta(size, n - size + 1).
        """
        self._n = self._next = n
        self._threshold = self._random.betavariate(self._size, n - self._size + 1)
        self._next += math.floor(math.log(1.0 - self._random.random()) / math.log1p(-self._threshold))

    def to_dict(self) -> dict[str, float | int] | None:
        """Return total, max, p50 and p95 in seconds and the count n; None when nothing was measured."""
        self.settle()
        if not self._n:
            return None
        ordered = sorted(self._kept)
        return {
            "total": self._nanoseconds / 1e9,
            "max": self._largest,
            "p50": quantile(ordered, 0.5),
            "p95": quantile(ordered, 0.95),
            "n": self._n,
        }


# ------------------------------------------------------------------------------------------------------------ interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean.

    Attributes:
        low, high: Its ends.
        level: The confidence, 0.95.
        method: How it was made, in words.
        problems: How many problems it rests on.
    """

    low: float
    high: float
    level: float
    method: str
    problems: int


def interval_over_problems(
    sums: Sequence[float],
    counts: Sequence[int],
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    resample_up_to: int = 20_000,
) -> Interval | None:
    """Return a confidence interval of the ratio mean sum(sums) / sum(counts) over problems.

    `sums` and `counts` hold, for each problem, the sum and the number of its scored completions; problems with none
    are passed over. See `interval_of_tally`, which this calls with the pairs counted.
    """
    if len(sums) <= resample_up_to:
        pairs = Counter(zip(sums, counts, strict=True))
        return interval_of_tally(pairs, level=level, draws=draws, seed=seed, resample_up_to=resample_up_to)
    judged = [at for at, count in enumerate(counts) if count > 0] if min(counts) <= 0 else None
    if judged is not None:
        sums, counts = [sums[at] for at in judged], [counts[at] for at in judged]
    return _interval(sums, counts, [], len(sums), level, None)


def interval_of_tally(
    problems: Mapping[tuple[float, int], int],
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    resample_up_to: int = 20_000,
) -> Interval | None:
    """Return a confidence interval of the ratio mean of problems given as {(sum, count): how many}.

    Up to `resample_up_to` problems: percentile bootstrap (Efron 1979; Davison and Hinkley 1997, section 5.3.1): as many
    problems as there are are drawn with replacement, `draws` times, and the ratio taken each time.
    Above: normal interval with the linearised variance of a ratio r = S / N (Cochran 1977, section 6.4):
    var(r) = n / (n - 1) * sum((s_i - r * c_i)^2) / N^2 for n problems.

    None for fewer than `MIN_PROBLEMS` problems; where all problems have one mean, since resampling equal things gives a
    width of 0, which would claim a certainty that nobody has; and for sums near the end of a float's range.
    """
    pairs = sorted((pair for pair, times in problems.items() if pair[1] > 0 and times > 0), reverse=True)
    times = [problems[pair] for pair in pairs]
    n = sum(times)
    dice = (draws, seed) if n <= resample_up_to else None
    return _interval([sum for sum, _ in pairs], [count for _, count in pairs], times, n, level, dice)


def _interval(
    sums: Sequence[float],
    counts: Sequence[int],
    times: Sequence[int],
    n: int,
    level: float,
    dice: tuple[int, int] | None,
) -> Interval | None:
    """Return the interval of n problems, each as often as `times` says (empty: once); `dice` are draws and seed."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is a number between 0 and 1, got {level}")
    if n < MIN_PROBLEMS or max(max(sums), -min(sums)) > 1e150 / n:
        return None
    low, high = min(map(truediv, sums, counts)), max(map(truediv, sums, counts))
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return None
    if dice is None:
        low, high = _linearised(sums, counts, times, n, level)
        return Interval(low, high, level, "normal, linearised ratio over problems", n)
    draws, seed = dice
    low, high = _bootstrap(list(zip(sums, counts, strict=True)), times, n, level, draws, seed)
    return Interval(low, high, level, f"percentile bootstrap over problems, {draws} draws, seed {seed}", n)


def _z(level: float) -> float:
    from statistics import NormalDist  # 10 ms to import, and seldom needed

    return NormalDist().inv_cdf(0.5 + level / 2)


def _linearised(
    sums: Sequence[float], counts: Sequence[int], times: Sequence[int], n: int, level: float
) -> tuple[float, float]:
    completions = total(counts, times)
    mean = total(sums, times) / completions
    squares = total(((s - mean * count) ** 2 for s, count in zip(sums, counts, strict=True)), times)
    half = _z(level) * math.sqrt(squares * n / (n - 1)) / completions
    return mean - half, mean + half


def _bootstrap(
    pairs: Sequence[tuple[float, int]], times: Sequence[int], n: int, level: float, draws: int, seed: int
) -> tuple[float, float]:
    """Return the ends of the percentile bootstrap.

    Problems lie in blocks. How many of a draw's n problems come from each block is multinomial, drawn as binomials one
    after another; which of the block's problems they are is drawn uniformly. Only `random()` and `randbytes()` are
    used, whose sequences are the same in every Python version.
    """
    rng = random.Random(seed)
    sums, counts, remaining, left = [0.0] * draws, [0] * draws, [n] * draws, n
    for block in _blocks(pairs, times):
        took = _binomials(rng, remaining, block.size / left) if block.size < left else remaining
        left -= block.size
        drawn = block.draw(rng, took)
        sums = [a + b for a, b in zip(sums, drawn[0], strict=True)]
        counts = [a + b for a, b in zip(counts, drawn[1], strict=True)]
        remaining = [a - b for a, b in zip(remaining, took, strict=True)]
    ratios = sorted(a / b for a, b in zip(sums, counts, strict=True))
    tail = (1.0 - level) / 2
    return quantile(ratios, tail), quantile(ratios, 1.0 - tail)


class _Alike:
    """Problems that are all the same pair: drawing some of them needs no dice."""

    def __init__(self, pair: tuple[float, int], size: int) -> None:
        self.pair = pair
        self.size = size

    def draw(self, rng: random.Random, took: Sequence[int]) -> tuple[list[float], list[int]]:
        return [self.pair[0] * m for m in took], [self.pair[1] * m for m in took]


class _Mixed:
    """At most 256 different problems: a random byte draws one; bytes are looked up and added without Python objects.

    Bytes that would make some problems likelier than others are thrown away.
    """

    def __init__(self, pairs: Sequence[tuple[float, int]]) -> None:
        self.size = len(pairs)
        self.kept = 256 - 256 % self.size
        self.sums = _Planes([sum for sum, _ in pairs])
        self.counts = _Planes([count for _, count in pairs])

    def draw(self, rng: random.Random, took: Sequence[int]) -> tuple[list[float], list[int]]:
        needed, places = sum(took), b""
        thrown_away = bytes(range(self.kept, 256))
        while len(places) < needed:
            places += rng.randbytes((needed - len(places)) * 256 // self.kept + 8).translate(None, thrown_away)
        ends = list(accumulate(took))
        return self.sums.totals(places, ends), [round(count) for count in self.counts.totals(places, ends)]


class _Planes:
    """Numbers as `low + step * q`, q of 24 bits, in one table of 256 bytes for each byte of q.

    Whole numbers over a range below 2^24 are exact; others are off by at most 2^-25 of their range, a thousandth or
    less of what the bootstrap's own dice add.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.low = min(values)
        width = max(values) - self.low
        whole = width < 1 << 24 and all(float(value).is_integer() for value in values)
        self.step = 1.0 if whole else width / ((1 << 24) - 1)
        steps = [round((value - self.low) / self.step) if self.step else 0 for value in values]
        steps = [q for q in steps for _ in range(256 // len(values))]
        steps += [0] * (256 - len(steps))
        tables = [bytes(q >> shift & 255 for q in steps) for shift in (0, 8, 16)]
        self.tables = [(256**place, table) for place, table in enumerate(tables) if any(table)]

    def totals(self, places: bytes, ends: Sequence[int]) -> list[float]:
        """Return the sum of the values at `places` between each end and the one before."""
        starts = [0, *ends[:-1]]
        steps = [0] * len(ends)
        for factor, table in self.tables:
            plane = places.translate(table)
            steps = [q + factor * sum(plane[a:b]) for q, a, b in zip(steps, starts, ends, strict=True)]
        return [self.low * (b - a) + self.step * q for q, a, b in zip(steps, starts, ends, strict=True)]


RUN = 48  # from so many equal problems on, one binomial draw is cheaper than drawing each


def _blocks(pairs: Sequence[tuple[float, int]], times: Sequence[int]) -> list[_Alike | _Mixed]:
    runs = [_Alike(pair, count) for pair, count in zip(pairs, times, strict=True) if count >= RUN]
    rest = [pair for pair, count in zip(pairs, times, strict=True) if count < RUN for _ in range(count)]
    return [*runs, *(_Mixed(rest[at : at + 256]) for at in range(0, len(rest), 256))]


def _binomials(rng: random.Random, trials: Sequence[int], p: float) -> list[int]:
    """Return one draw of Binomial(m, p) for each m in `trials`.

    It is the sum of Binomial(2^j, p) over the bits j of m, and those few distributions are tabulated.
    """
    uniform = rng.random
    tables = [_cumulative(1 << j, p) for j in range(max(trials).bit_length())]
    drawn = []
    for m in trials:
        hits, j = 0, 0
        while m:
            if m & 1:
                first, cumulative = tables[j]
                hits += first + bisect(cumulative, uniform() * cumulative[-1], 0, len(cumulative) - 1)
            m >>= 1
            j += 1
        drawn.append(hits)
    return drawn


def _cumulative(trials: int, p: float) -> tuple[int, list[float]]:
    """Return the least outcome and the cumulative weights of Binomial(trials, p), without tails below 1e-18."""
    odds = p / (1.0 - p)
    mode = min(trials, int((trials + 1) * p))
    down, up = [], []
    weight, k = 1.0, mode
    while k > 0 and weight > 1e-18:
        weight *= k / ((trials - k + 1) * odds)
        k -= 1
        down.append(weight)
    weight, k = 1.0, mode
    while k < trials and weight > 1e-18:
        weight *= (trials - k) * odds / (k + 1)
        k += 1
        up.append(weight)
    return mode - len(down), list(accumulate([*reversed(down), 1.0, *up]))


# -------------------------------------------------------------------------------------------------------------- pass@k


@dataclass(frozen=True, slots=True)
class PassAtK:
    """pass@k over problems.

    Attributes:
        value: The mean of the problems' estimates; None when no problem has k completions.
        interval: Over those problems; None for fewer than ten.
        problems: How many have at least k scored completions.
        left_out: How many have fewer.
    """

    value: float | None
    interval: Interval | None
    problems: int
    left_out: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of k draws is right, of n completions with c right.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1), as one division of exact integers.
    """
    if not 0 <= c <= n:
        raise ValueError(f"right completions are between 0 and n={n}, got {c}")
    if not 1 <= k <= n:
        raise ValueError(f"k is between 1 and n={n}, got {k}")
    ways = math.comb(n, k)
    return (ways - math.comb(n - c, k)) / ways


def mean_pass_at_k(tally: Iterable[tuple[int, int]] | Mapping[tuple[int, int], int], k: int) -> PassAtK:
    """Return pass@k of problems given as (n completions, c right); those with n < k are left out and counted."""
    values: Counter[tuple[float, int]] = Counter()
    left_out = 0
    for (n, c), times in counted(tally).items():
        if n < k:
            left_out += times
        else:
            values[pass_at_k(n, c, k), 1] += times
    problems = sum(values.values())
    found = moments({value: times for (value, _), times in values.items()})
    return PassAtK(found.mean if found else None, interval_of_tally(values), problems, left_out)


def pass_ks(sizes: Iterable[int] | Mapping[int, int]) -> list[int]:
    """Return the ks worth showing for groups of these sizes: 1, 2, 4, … and the last size itself.

    The last is the largest size that at least half of the groups reach, so that one large group does not add a figure
    that rests on it alone, and one short group does not take away those of all others.
    """
    tally = {size: times for size, times in counted(sizes).items() if size > 0}
    half = sum(tally.values()) / 2
    reached = 0
    for size in sorted(tally, reverse=True):
        reached += tally[size]
        if reached >= half:
            powers = [1 << j for j in range(size.bit_length())]
            return powers if powers[-1] == size else [*powers, size]
    return []


# -------------------------------------------------------------------------------------------------------------- groups


def alike(low: float, high: float) -> bool:
    """Whether two scores count as one: relative tolerance 1e-6, absolute 1e-8."""
    apart = abs(high - low)
    return apart <= ABSOLUTE_TOLERANCE or apart <= RELATIVE_TOLERANCE * max(abs(low), abs(high))


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """The spread within one group.

    Attributes:
        n: Scored completions.
        std: Sample standard deviation (n - 1, as `torch.std` and TRL's `reward_std`); None for fewer than two.
        zero_signal: No spread, so that group-relative advantages are all 0; None for fewer than two.
        all_fail: No spread, and all at 0.
        all_pass: No spread, and all at 1.
    """

    n: int
    std: float | None
    zero_signal: bool | None
    all_fail: bool
    all_pass: bool


def group_spread(values: Sequence[float]) -> GroupSpread:
    """Return the spread of one group's scored values."""
    if len(values) < 2:
        return GroupSpread(len(values), None, None, False, False)
    low, high = min(values), max(values)
    dead = alike(low, high)
    found = moments(values)
    fail, passed = dead and alike(low, 0.0), dead and alike(high, 1.0)
    return GroupSpread(len(values), found.std if found else None, dead, fail, passed)


def multiplicities(values: Iterable[float]) -> tuple[int, ...]:
    """Return how often each different value occurs, in ascending order of value; neighbours that are alike are one."""
    counts: list[int] = []
    previous: float | None = None
    for value in sorted(values):
        if previous is not None and alike(previous, value):
            counts[-1] += 1
        else:
            counts.append(1)
        previous = value
    return tuple(counts)


def expected_dead_share(tally: Iterable[tuple[int, ...]] | Mapping[tuple[int, ...], int], size: int) -> float | None:
    """Return the share of groups of `size` that would have no spread, or None when no problem has `size` completions.

    Each problem is given by how often each different score occurs, for a right-or-wrong reward (c, n - c). A group of G
    drawn from its n completions without replacement has one score throughout with probability
    sum_v C(m_v, G) / C(n, G), which for two scores is (C(c, G) + C(n - c, G)) / C(n, G); averaged over problems with
    n >= G. Without replacement the estimate is unbiased, for the reason that pass@k is.
    """
    if size < 1:
        raise ValueError(f"a group has at least one completion, got size {size}")
    shares: dict[float, int] = {}
    for counts, times in counted(tally).items():
        n = sum(counts)
        if n >= size:
            share = sum(math.comb(m, size) for m in counts) / math.comb(n, size)
            shares[share] = shares.get(share, 0) + times
    found = moments(shares)
    return found.mean if found else None


@dataclass(frozen=True, slots=True)
class GroupDiagnostics:
    """What the groups of one training batch, or of a file, can teach.

    Attributes:
        groups: Groups with at least two scored completions; the others have no spread to speak of.
        dead: Those without spread, whose group-relative advantages are all 0.
        all_fail, all_pass: Dead ones at 0 and at 1; for rewards in [0, 1].
        dead_share: dead / groups; None without groups.
        std_within_groups: The mean over groups of the sample standard deviation within each (TRL's `reward_std`).
        std_over_batch: The sample standard deviation of all scored completions together, whatever their group. It is
            large where problems differ in difficulty, also when no group has any spread.
        scored, unscored: Completions with and without a number.
        shares: `component_shares`, where components were given.
    """

    groups: int
    dead: int
    all_fail: int
    all_pass: int
    dead_share: float | None
    std_within_groups: float | None
    std_over_batch: float | None
    scored: int
    unscored: int
    shares: dict[str, float] | None


def group_diagnostics(
    rewards: Iterable[Sequence[float | None]],
    *,
    components: Mapping[str, Sequence[Sequence[float | None]]] | None = None,
    weights: Mapping[str, float] | None = None,
) -> GroupDiagnostics:
    """Return how much signal groups of rewards hold for a group-relative method such as GRPO.

    Args:
        rewards: One sequence a group; None is a completion without a score, which is left out.
        components: By name, what the rewards were summed from, in the same shape.
        weights: Their factors; 1 where none is given.
    """
    unscored = 0
    values: list[float] = []
    spreads: list[GroupSpread] = []
    for group in rewards:
        scored = [float(value) for value in group if value is not None]
        unscored += len(group) - len(scored)
        values += scored
        spreads.append(group_spread(scored))
    judged = [spread for spread in spreads if spread.zero_signal is not None]
    dead = sum(spread.zero_signal is True for spread in judged)
    within = moments(spread.std for spread in judged if spread.std is not None)
    over = moments(values)
    return GroupDiagnostics(
        groups=len(judged),
        dead=dead,
        all_fail=sum(spread.all_fail for spread in judged),
        all_pass=sum(spread.all_pass for spread in judged),
        dead_share=dead / len(judged) if judged else None,
        std_within_groups=within.mean if within else None,
        std_over_batch=over.std if over else None,
        scored=len(values),
        unscored=unscored,
        shares=component_shares(components, weights) if components else None,
    )


def component_shares(
    components: Mapping[str, Sequence[Sequence[float | None]]],
    weights: Mapping[str, float] | None = None,
    *,
    scaled: bool = False,
) -> dict[str, float] | None:
    """Return what share of the spread within groups each component of a weighted sum brings in.

    A group-relative method sees the total t = sum_c w_c x_c only through its deviations from the mean of its group. The
    sum of their squares splits exactly, since each is a sum over components:

        sum_ij (t_ij - t_i)^2 = sum_c sum_ij w_c (x_cij - x_ci) (t_ij - t_i)

    with i a group, j a completion, x_ci and t_i means over a group. Component c's share is its term of the outer sum
    divided by the left side: the covariance of its weighted value with the total, over the variance of the total (the
    natural decomposition of the variance, Shorrocks 1982, Econometrica 50:193-211). Shares add up to 1. That of a
    component which is constant within every group is 0, however large its weight; one that pulls against the total has
    a negative share.

    Args:
        components: By name, one sequence a group with one number a completion; None is unscored. All have one shape.
        weights: Factors by name; 1 where none is given.
        scaled: Every group counts the same: the mean over groups of each one's shares. That is what is learned from
            where advantages are divided by the group's standard deviation; without it groups of more spread count more.

    Returns:
        Shares by name; None when no group has a spread. A completion that any component left unscored is left out, as
        is a group with fewer than two others.

    Raises:
        ValueError: Components of different shapes, or a weight for a component that is not there.
    """
    names = list(components)
    unknown = sorted(set(weights or {}) - set(names))
    if unknown:
        raise ValueError(f"weights are of components, which are {', '.join(names)}; got {', '.join(unknown)}")
    factors = [float((weights or {}).get(name, 1.0)) for name in names]
    terms = [_group_terms(group, factors) for group in zip(*components.values(), strict=True)]
    live = [group for group in terms if group]
    if not live:
        return None
    if scaled:
        live = [[term / math.fsum(group) for term in group] for group in live]
    sums = [math.fsum(group[at] for group in live) for at in range(len(names))]
    whole = math.fsum(sums)
    return {name: term / whole for name, term in zip(names, sums, strict=True)}


def _group_terms(group: Sequence[Sequence[float | None]], factors: Sequence[float]) -> list[float]:
    """Return each component's part of the sum of squares of one group's totals; empty when there is no spread."""
    weighted = [
        [factor * value for factor, value in zip(factors, row, strict=True) if value is not None]
        for row in zip(*group, strict=True)
    ]
    rows = [row for row in weighted if len(row) == len(factors)]
    if len(rows) < 2:
        return []
    totals = [math.fsum(row) for row in rows]
    if alike(min(totals), max(totals)):
        return []
    apart = _deviations(totals)
    columns = zip(*rows, strict=True)
    return [math.fsum(map(mul, _deviations(column), apart)) for column in columns]


def _deviations(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


# ---------------------------------------------------------------------------------------------------------- comparison


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact sign test (ties left out): min(1, 2 P(X <= min(wins, losses))).

    X is Binomial(wins + losses, 1/2). The largest term is one division of exact integers (above 20,000 by `lgamma`),
    the others follow from it by their ratios.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"wins and losses are counts, got {wins} and {losses}")
    n, k = wins + losses, min(wins, losses)
    if 2 * k == n:
        return 1.0
    if n <= 20_000:
        term = math.comb(n, k) / (1 << n)
    else:
        log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2.0)
        term = math.exp(log)
    tail = 0.0
    while term > tail * 1e-18:
        tail += term
        term *= k / (n - k + 1)
        k -= 1
    return min(1.0, 2.0 * tail)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """What changed between two runs on the same problems.

    Attributes:
        mean: Mean of after - before.
        interval: Normal interval of that mean; None for fewer than ten problems or without any spread.
        wins, losses, ties: Problems that rose, fell, stayed.
        p: Two-sided exact sign test on wins and losses.
    """

    mean: float
    interval: Interval | None
    wins: int
    losses: int
    ties: int
    p: float


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, level: float = 0.95
) -> PairedDifference | None:
    """Return how problems, one number each in both runs and in one order, differ; None when there are none.

    The interval is mean +- z * std / sqrt(n) of the differences. Leave out problems that one run has not scored.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    found = moments(differences)
    if found is None:
        return None
    ties = sum(alike(a, b) for a, b in zip(before, after, strict=True))
    wins = sum(d > 0 and not alike(a, b) for a, b, d in zip(before, after, differences, strict=True))
    losses = found.n - ties - wins
    interval = None
    if found.n >= MIN_PROBLEMS and found.std:
        half = _z(level) * found.std / math.sqrt(found.n)
        interval = Interval(found.mean - half, found.mean + half, level, "normal, paired differences", found.n)
    return PairedDifference(found.mean, interval, wins, losses, ties, sign_test(wins, losses))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two right-or-wrong judges agree on the same completions.

    Attributes:
        share: Completions on which both say the same.
        kappa: Cohen's kappa, (share - chance) / (1 - chance); None where both always say one and the same thing.
    """

    share: float
    kappa: float | None


def agreement(both: int, first_only: int, second_only: int, neither: int) -> Agreement | None:
    """Return the agreement of two judges from their 2 x 2 table of counts; None for an empty table.

    Chance is what the two would agree on if they judged independently at their own rates (Cohen 1960). One division of
    exact integers each: with n completions, kappa = (n * agree - expected) / (n^2 - expected).
    """
    if min(both, first_only, second_only, neither) < 0:
        raise ValueError(f"a table holds counts, got {both}, {first_only}, {second_only}, {neither}")
    n = both + first_only + second_only + neither
    if not n:
        return None
    agree = both + neither
    expected = (both + first_only) * (both + second_only) + (neither + first_only) * (neither + second_only)
    return Agreement(agree / n, (n * agree - expected) / (n * n - expected) if expected < n * n else None)
