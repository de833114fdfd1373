"""Two columns of scores for the same problems, compared: paired difference, won and lost, a 2 x 2 table.

The unit is the problem: the difference is the mean over problems of (B - A), its interval and the sign test count
problems. Nothing here reads files. A side is arrays with one entry a completion (`Side`), about 30 bytes a completion
and reward; joining two sides takes another 150 bytes a completion of the larger one while it sorts.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rewardkit.display import visible
from rewardkit.report.terminal import DASH, cells, shorten, three
from rewardkit.stats import MIN_PROBLEMS, Interval, agreement, alike, interval_over_problems, paired_difference

JoinedBy = Literal["group", "id", "prompt"]
Key = Callable[[int], int]


@dataclass
class Side:
    """The scores of one run, one entry a completion, in the order of its file.

    Attributes:
        ids: 64-bit hash of the sample's id.
        groups: Key of the group.
        index: The completion's place in its group.
        models: Code of its model, a place in `names`.
        names: The models.
        values: By reward; NaN where there is no score.
        prompts: 64-bit hash of the prompt; empty until it is asked for.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    groups: array[int] = field(default_factory=lambda: array("Q"))
    index: array[int] = field(default_factory=lambda: array("I"))
    models: array[int] = field(default_factory=lambda: array("H"))
    names: list[str | None] = field(default_factory=list)
    values: dict[str, array[float]] = field(default_factory=dict)
    prompts: array[int] = field(default_factory=lambda: array("Q"))

    def rows(self, model: str | None) -> Sequence[int]:
        """Return the places of a model's completions."""
        if len(self.names) == 1:
            return range(len(self.ids))
        code = self.names.index(model)
        return array("L", (at for at, found in enumerate(self.models) if found == code))


# ---------------------------------------------------------------------------------------------------------------- join


@dataclass
class Joined:
    """The completions that two sides have for the same problems.

    Attributes:
        by: What says that two completions are for the same problem.
        pairwise: Each problem has as many completions on either side, so that `a[i]` is compared with `b[i]`; otherwise
            only the problems' means are.
        a, b: Places in the sides, ordered by problem and index.
        problem_a, problem_b: The problem of each.
        only_a, only_b: Problems that the other side lacks, and their completions.
        ambiguous: Ids left out, because they name more than one problem.
        other_task: Problems joined by id that differ in something else that makes a group: prompt, reference, step.
    """

    by: JoinedBy
    pairwise: bool = True
    a: array[int] = field(default_factory=lambda: array("L"))
    b: array[int] = field(default_factory=lambda: array("L"))
    problem_a: array[int] = field(default_factory=lambda: array("Q"))
    problem_b: array[int] = field(default_factory=lambda: array("Q"))
    only_a: tuple[int, int] = (0, 0)
    only_b: tuple[int, int] = (0, 0)
    ambiguous: int = 0
    other_task: int = 0


def join(
    side_a: Side,
    side_b: Side,
    model_a: str | None,
    model_b: str | None,
    prompts: Callable[[], bool] = lambda: False,
) -> Joined | None:
    """Return the problems that both have, by whichever of group and id finds more of them; by prompt if none does.

    Args:
        side_a, side_b: The runs.
        model_a, model_b: Which model of each.
        prompts: Fills `Side.prompts` of both, or says that it cannot; only called where it is needed.
    """
    rows_a, rows_b = side_a.rows(model_a), side_b.rows(model_b)
    same_model = model_a == model_b
    best: Joined | None = None
    ways: tuple[JoinedBy, ...] = ("group", "id") if same_model else ("id",)
    for way in ways:
        found = _join(way, side_a, side_b, rows_a, rows_b, same_model)
        if best is None or len(found.a) + len(found.b) > len(best.a) + len(best.b):
            best = found
        if len(best.a) == len(rows_a) and len(best.b) == len(rows_b):
            return best
    if best is not None and best.a:
        return best
    if prompts():
        best = _join("prompt", side_a, side_b, rows_a, rows_b, same_model)
    return best if best is not None and best.a else None


def _join(
    way: JoinedBy, side_a: Side, side_b: Side, rows_a: Sequence[int], rows_b: Sequence[int], same_model: bool
) -> Joined:
    """Merge the completions of both sides, each sorted by what `way` says and then by index."""
    keys_a, keys_b = _keys(side_a, way), _keys(side_b, way)
    joined = Joined(way)
    blocks_a = _blocks(_ordered(rows_a, keys_a, side_a.index), keys_a)
    blocks_b = _blocks(_ordered(rows_b, keys_b, side_b.index), keys_b)
    only_a, only_b = [0, 0], [0, 0]
    a, b = next(blocks_a, None), next(blocks_b, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            only_a = [only_a[0] + 1, only_a[1] + len(a[1])]
            a = next(blocks_a, None)
        elif a is None or b[0] < a[0]:
            only_b = [only_b[0] + 1, only_b[1] + len(b[1])]
            b = next(blocks_b, None)
        else:
            _match(joined, a, b, side_a, side_b, same_model)
            a, b = next(blocks_a, None), next(blocks_b, None)
    joined.only_a, joined.only_b = (only_a[0], only_a[1]), (only_b[0], only_b[1])
    if way == "id":
        _by_problem(joined)
    return joined


def _match(
    joined: Joined,
    a: tuple[int, Sequence[int]],
    b: tuple[int, Sequence[int]],
    side_a: Side,
    side_b: Side,
    same_model: bool,
) -> None:
    key, rows_a = a
    _, rows_b = b
    if joined.by == "id":
        groups_a, groups_b = {side_a.groups[at] for at in rows_a}, {side_b.groups[at] for at in rows_b}
        if len(groups_a) > 1 or len(groups_b) > 1:
            joined.ambiguous += 1
            return
        # Where every completion has an id of its own, the group says what the problem is.
        key = groups_a.pop()
        joined.other_task += same_model and key not in groups_b
    joined.pairwise = joined.pairwise and len(rows_a) == len(rows_b)
    joined.a.extend(rows_a)
    joined.b.extend(rows_b)
    joined.problem_a.extend([key] * len(rows_a))
    joined.problem_b.extend([key] * len(rows_b))


def _keys(side: Side, way: JoinedBy) -> array[int]:
    return {"group": side.groups, "id": side.ids, "prompt": side.prompts}[way]


def _ordered(rows: Sequence[int], keys: array[int], index: array[int]) -> array[int]:
    return array("L", sorted(rows, key=lambda at: keys[at] << 32 | index[at]))


def _blocks(ordered: array[int], keys: array[int]) -> Iterator[tuple[int, array[int]]]:
    """Yield each key with the places that have it; `ordered` is sorted by key."""
    for start, end in _runs(ordered, keys.__getitem__):
        yield keys[ordered[start]], ordered[start:end]


def _runs(items: Sequence[int], key: Key) -> Iterator[tuple[int, int]]:
    """Yield where each stretch of equal keys begins and ends."""
    start, previous = 0, None
    for at, item in enumerate(items):
        found = key(item)
        if at and found != previous:
            yield start, at
            start = at
        previous = found
    if len(items):
        yield start, len(items)


def _by_problem(joined: Joined) -> None:
    """Put the completions of one problem side by side, where it has several ids."""
    orders = []
    for problems in (joined.problem_a, joined.problem_b):
        orders.append(array("L", sorted(range(len(problems)), key=problems.__getitem__)))
    joined.a, joined.problem_a = _taken(joined.a, orders[0]), _taken(joined.problem_a, orders[0])
    joined.b, joined.problem_b = _taken(joined.b, orders[1]), _taken(joined.problem_b, orders[1])


def _taken(items: array[int], order: array[int]) -> array[int]:
    return array(items.typecode, map(items.__getitem__, order))


# ------------------------------------------------------------------------------------------------------------- compare


@dataclass(frozen=True)
class Change:
    """A completion (or, where only means are compared, a problem's first one) on which the sides differ."""

    row_a: int
    row_b: int
    a: float
    b: float


@dataclass
class Comparison:
    """Reward `reward_a` of side A against `reward_b` of side B, over the problems that both have scored.

    Attributes:
        problems, completions: How many are compared; completions of A where only means are.
        a, b: Mean over those problems of the problem's mean.
        difference: b - a: the mean over problems of their differences.
        interval: Of the difference, over problems; None for fewer than ten, and without any spread.
        wins, losses, ties: Problems on which B is higher, lower, the same.
        p: Two-sided exact sign test on wins and losses.
        verdict: "higher", "lower", "no difference shown", "too few problems" or "nothing scored".
        percent: All values are 0 or 1, so that the means are shares.
        unscored_a, unscored_b: Completions of A, of B left out because that side has no value there.
        unscored_problems: Problems left out since nothing of them is scored on both sides.
        rose, fell: Completions (problems, where only means are compared) that differ.
        won, lost: The first few of these, the largest changes first.
        agree: Completions on which both have the same value; None where only means are compared.
        agreement: Interval of their share, over problems.
        table: For values that are all 0 or 1: {"both", "a_only", "b_only", "neither"}, counts of ones.
        kappa: Cohen's kappa of that table.
    """

    model_a: str | None
    model_b: str | None
    reward_a: str
    reward_b: str
    problems: int = 0
    completions: int = 0
    a: float | None = None
    b: float | None = None
    difference: float | None = None
    interval: Interval | None = None
    wins: int = 0
    losses: int = 0
    ties: int = 0
    p: float | None = None
    verdict: str = "nothing scored"
    percent: bool = False
    unscored_a: int = 0
    unscored_b: int = 0
    unscored_problems: int = 0
    rose: int = 0
    fell: int = 0
    won: list[Change] = field(default_factory=list)
    lost: list[Change] = field(default_factory=list)
    agree: int | None = None
    agreement: Interval | None = None
    table: dict[str, int] | None = None
    kappa: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the changed completions as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in ("won", "lost")}


def compare(joined: Joined, a: array[float], b: array[float], found: Comparison, *, changes: int = 5) -> Comparison:
    """Fill `found` with what two columns of values say about joined completions.

    Args:
        joined: Which completions stand for the same problem.
        a, b: Values by place in their side, NaN where there is none.
        found: With the names of models and rewards.
        changes: How many changed completions to keep, in either direction.
    """
    before, after = array("d"), array("d")
    sums, counts = array("d"), array("L")
    for rows_a, rows_b in _problems(joined):
        values_a, values_b = [a[at] for at in rows_a], [b[at] for at in rows_b]
        found.unscored_a += sum(map(math.isnan, values_a))
        found.unscored_b += sum(map(math.isnan, values_b))
        if joined.pairwise:
            pairs = [(x, y) for x, y in zip(values_a, values_b, strict=True) if x == x and y == y]
            values_a, values_b = [x for x, _ in pairs], [y for _, y in pairs]
            sums.append(sum(alike(x, y) for x, y in pairs))
            counts.append(len(pairs))
        else:
            values_a, values_b = [x for x in values_a if x == x], [y for y in values_b if y == y]
        if not values_a or not values_b:
            found.unscored_problems += 1
            continue
        found.completions += len(values_a)
        before.append(_mean(values_a))
        after.append(_mean(values_b))
    _differ(found, before, after)
    found.percent = all(
        value in (0.0, 1.0) for rows, column in ((joined.a, a), (joined.b, b)) for value in _scored(rows, column)
    )
    if joined.pairwise and found.problems:
        found.agree = round(math.fsum(sums))
        found.agreement = interval_over_problems(sums, counts)
        if found.percent:
            _tabulate(found, joined, a, b)
    _find_changes(found, joined, a, b, changes)
    return found


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else math.fsum(values) / len(values)


def _scored(rows: array[int], column: array[float]) -> Iterator[float]:
    return (value for value in map(column.__getitem__, rows) if value == value)


def _problems(joined: Joined) -> Iterator[tuple[array[int], array[int]]]:
    """Yield the places of each problem's completions on either side."""
    runs_a = _runs(joined.problem_a, int)
    runs_b = _runs(joined.problem_b, int)
    for (start_a, end_a), (start_b, end_b) in zip(runs_a, runs_b, strict=True):
        yield joined.a[start_a:end_a], joined.b[start_b:end_b]


def _differ(found: Comparison, before: array[float], after: array[float]) -> None:
    paired = paired_difference(before, after)
    if paired is None:
        return
    found.problems = len(before)
    found.a, found.b = math.fsum(before) / len(before), math.fsum(after) / len(after)
    found.difference, found.interval, found.p = paired.mean, paired.interval, paired.p
    found.wins, found.losses, found.ties = paired.wins, paired.losses, paired.ties
    if found.problems < MIN_PROBLEMS:
        found.verdict = "too few problems"
    elif paired.interval is None:  # every problem differs by the same, so there is nothing that an interval could add
        found.verdict = "higher" if found.wins else "lower" if found.losses else "no difference shown"
    elif paired.interval.low > 0:
        found.verdict = "higher"
    else:
        found.verdict = "lower" if paired.interval.high < 0 else "no difference shown"


def _tabulate(found: Comparison, joined: Joined, a: array[float], b: array[float]) -> None:
    table = {(1.0, 1.0): 0, (1.0, 0.0): 0, (0.0, 1.0): 0, (0.0, 0.0): 0}
    for at_a, at_b in zip(joined.a, joined.b, strict=True):
        pair = a[at_a], b[at_b]
        if pair in table:
            table[pair] += 1
    found.table = dict(zip(("both", "a_only", "b_only", "neither"), table.values(), strict=True))
    agreed = agreement(*table.values())
    found.kappa = agreed.kappa if agreed else None


def _changes(joined: Joined, a: array[float], b: array[float]) -> Iterator[Change]:
    if joined.pairwise:
        everything = (Change(x, y, a[x], b[y]) for x, y in zip(joined.a, joined.b, strict=True))
    else:
        everything = (_mean_change(x, y, a, b) for x, y in _problems(joined))
    # A comparison with NaN is false, so that what is not scored falls out.
    return (one for one in everything if abs(one.b - one.a) >= 0 and not alike(one.a, one.b))


def _mean_change(rows_a: array[int], rows_b: array[int], a: array[float], b: array[float]) -> Change:
    means = []
    for rows, column in ((rows_a, a), (rows_b, b)):
        values = list(_scored(rows, column))
        means.append(_mean(values) if values else math.nan)
    return Change(rows_a[0], rows_b[0], means[0], means[1])


def _find_changes(found: Comparison, joined: Joined, a: array[float], b: array[float], most: int) -> None:
    def first(change: Change) -> tuple[float, int]:
        return -abs(change.b - change.a), change.row_a

    def rising() -> Iterator[Change]:
        for change in _changes(joined, a, b):
            if change.b > change.a:
                found.rose += 1
                yield change

    def falling() -> Iterator[Change]:
        for change in _changes(joined, a, b):
            if change.b < change.a:
                found.fell += 1
                yield change

    found.won = heapq.nsmallest(max(most, 1), rising(), key=first)[:most]
    found.lost = heapq.nsmallest(max(most, 1), falling(), key=first)[:most]


# -------------------------------------------------------------------------------------------------------------- screen


def render(comparisons: Sequence[Comparison], *, width: int) -> list[str]:
    """Return the table of comparisons, and a verdict for each. They are all of one model of A and one of B."""
    head = ["reward", "A", "B", "difference", "95 % over problems", "won", "lost", "tied", "sign test"]
    rows = [head, *map(_row, comparisons)]
    room = max(width - 2 - sum(max(cells(row[i]) for row in rows) + 2 for i in range(1, len(head))), 12)
    rows = [[shorten(row[0], room), *row[1:]] for row in rows]
    widths = [max(cells(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for row in rows:
        padded = [row[0] + " " * (widths[0] - cells(row[0]))]
        padded += [" " * (size - cells(cell)) + cell for cell, size in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(padded).rstrip())
    lines.append("")
    return lines + [f"  {name_of(one)}: {in_words(one)}" for one in comparisons]


def name_of(one: Comparison, with_model: bool = False) -> str:
    """Return the reward of a comparison, `x against y` where they differ, with its model where that is asked for."""
    name = _against(one.reward_a, one.reward_b)
    if one.model_a != one.model_b or (with_model and one.model_a is not None):
        name = f"{_against(one.model_a or '-', one.model_b or '-')}: {name}"
    return name


def _against(a: str, b: str) -> str:
    return visible(a, 60) if a == b else f"{visible(a, 60)} against {visible(b, 60)}"


def _row(one: Comparison) -> list[str]:
    if one.difference is None or one.a is None or one.b is None:
        return [name_of(one), *["n/a"] * 4, "0", "0", "0", "n/a"]
    ends = (
        DASH.join(f" {signed(end, one.percent)} " for end in (one.interval.low, one.interval.high)).strip()
        if one.interval
        else "n/a"
    )
    unit = " points" if one.percent else ""
    return [
        name_of(one),
        *(f"{100 * value:.1f} %" if one.percent else three(value) for value in (one.a, one.b)),
        signed(one.difference, one.percent) + unit,
        ends,
        *(f"{count:,}" for count in (one.wins, one.losses, one.ties)),
        f"p {_p(one.p)}",
    ]


def signed(value: float, percent: bool) -> str:
    """Return a difference with its sign, in percentage points where it is one of shares."""
    return f"{100 * value:+.2f}" if percent else f"{'+' if value >= 0 else '-'}{three(abs(value))}"


def _p(p: float | None) -> str:
    return "n/a" if p is None else "<0.001" if p < 0.001 else f"{p:.2g}"


def in_words(one: Comparison) -> str:
    """Return what a comparison says, in a sentence."""
    if one.verdict == "nothing scored":
        return "no problem is scored on both sides"
    if one.verdict == "too few problems":
        return f"no difference shown: {one.problems} problem{'s' * (one.problems != 1)} are too few for an interval"
    if not one.wins and not one.losses:
        return f"no difference: all {one.problems:,} problems are tied"
    if one.verdict == "no difference shown":
        return "no difference shown: the interval holds 0"
    side = "above" if one.verdict == "higher" else "below"
    if one.interval is None:
        return f"B is {one.verdict}, on every problem by the same"
    return f"B is {one.verdict}: the whole interval lies {side} 0"


def render_agreement(one: Comparison) -> list[str]:
    """Return how far two rewards agree on the same completions: 2 x 2 table, share with interval, kappa."""
    if one.agree is None or not one.completions:
        return []
    a, b = visible(one.reward_a, 30), visible(one.reward_b, 30)
    if a == b:
        a, b = f"{a} (A)", f"{b} (B)"
    lines = []
    if one.table is not None:
        table = one.table
        rows = [
            ["", f"{b} = 1", f"{b} = 0"],
            [f"{a} = 1", f"{table['both']:,}", f"{table['a_only']:,}"],
            [f"{a} = 0", f"{table['b_only']:,}", f"{table['neither']:,}"],
        ]
        widths = [max(cells(row[i]) for row in rows) for i in range(3)]
        lines += ["  " + "  ".join(" " * (w - cells(c)) + c for c, w in zip(row, widths, strict=True)) for row in rows]
    share = f"  agree on {one.agree:,} of {one.completions:,} ({100 * one.agree / one.completions:.2f} %"
    if one.agreement is not None:
        share += f", {100 * one.agreement.low:.2f}{DASH}{100 * one.agreement.high:.2f} over problems"
    lines.append(share + ")")
    if one.table is not None:
        lines[-1] += "   Cohen's kappa " + (
            "n/a: both always say the same" if one.kappa is None else f"{one.kappa:.3f}"
        )
    return lines


def common_rewards(a: Mapping[str, Any] | Sequence[str], b: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Return the rewards that both sides have, in the order of A."""
    return [name for name in a if name in b]
