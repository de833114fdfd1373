"""Sum up scores as they stream by: the `models` part of `summary.json`, and what in it deserves a look.

No text is kept. A score costs one byte while its reward has at most 255 different values, eight bytes after that; a
generation costs twelve bytes, which hold the identity of its group. Groups are put together only when the result is
asked for, so a group may come in pieces and in any order, and the result is the same to the last bit.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from rewardkit.stats import (
    Interval,
    Reservoir,
    alike,
    expected_dead_share,
    group_spread,
    interval_over_problems,
    mean_pass_at_k,
    moments,
    multiplicities,
    pass_ks,
)
from rewardkit.types import MACHINE_REASONS, REFERENCE_REASONS, Completion, Generation, Score

UNSCORED = 255  # the code of a completion without a value; NaN once values are held as doubles
NAN = math.nan
SIZES = (4, 8, 16)
"""Group sizes for which the share of groups without spread is forecast."""

MAX_NOTICES = 5


class Column:
    """The scores of one reward, or of one part of it, in order of arrival."""

    def __init__(self) -> None:
        self.abstained = 0
        self.errors = 0
        self.reasons: dict[str, int] = {}
        self.table: list[float] = []
        self.places: dict[float, int] = {}
        self.codes = array("B")
        self.values: array[float] | None = None
        self.seconds = Reservoir()
        self.parts: dict[str, Column] = {}
        self.weight: float | None = None
        self.weights_differ = False
        self.agree = 0
        self.labelled = 0

    def add(self, scores: Iterable[Score]) -> None:
        """Take in the scores of some completions."""
        place = self.places.get
        for score in scores:
            value = score.value
            if score.reason is not None:
                self.reasons[score.reason] = self.reasons.get(score.reason, 0) + 1
            if value is None:
                self._add_unscored(score.state == "error")
            elif self.values is not None:
                self.values.append(value + 0.0)
            else:
                code = place(value, UNSCORED)
                if code == UNSCORED:
                    self._add_new(value + 0.0)  # + 0.0 turns -0.0 into 0.0
                else:
                    self.codes.append(code)
            if score.seconds is not None:
                self.seconds.add(score.seconds)
            for part in score.parts:
                self._part(part).add((part,))

    def _add_unscored(self, is_error: bool) -> None:
        if is_error:
            self.errors += 1
        else:
            self.abstained += 1
        if self.values is None:
            self.codes.append(UNSCORED)
        else:
            self.values.append(NAN)

    def _add_new(self, value: float) -> None:
        if len(self.table) < UNSCORED:
            self.places[value] = len(self.table)
            self.codes.append(len(self.table))
            self.table.append(value)
            return
        decoded = [*self.table, NAN]
        self.values = array("d", map(decoded.__getitem__, self.codes))
        self.values.append(value)
        self.codes = array("B")

    def _part(self, part: Score) -> Column:
        column = self.parts.get(part.name)
        if column is None:
            column = self.parts[part.name] = Column()
            column.weight = part.weight
        elif column.weight != part.weight:
            column.weights_differ = True
        return column

    @property
    def n(self) -> int:
        """How many completions, scored or not."""
        return len(self.codes) if self.values is None else len(self.values)

    @property
    def scored(self) -> int:
        """How many completions have a value."""
        return self.n - self.abstained - self.errors

    @property
    def data(self) -> array[Any]:
        """The codes or the values, one a completion."""
        return self.codes if self.values is None else self.values

    def decode(self, codes: bytes) -> list[float]:
        """Return the scored values among codes."""
        table = self.table
        return [table[code] for code in codes if code != UNSCORED]

    def tally(self) -> dict[float, int] | list[float]:
        """Return all scored values: counted while few differ, as a list after that."""
        if self.values is not None:
            return [value for value in self.values if value == value]
        counts = Counter(self.codes)
        return {self.table[code]: counts[code] for code in range(len(self.table))}

    @property
    def least(self) -> float | None:
        """The least scored value."""
        return min(self.table if self.values is None else self.tally(), default=None)

    @property
    def most(self) -> float | None:
        """The greatest scored value."""
        return max(self.table if self.values is None else self.tally(), default=None)

    def is_binary(self) -> bool:
        """Whether there are scored values, and all are 0 or 1."""
        return self.values is None and bool(self.table) and all(value in (0.0, 1.0) for value in self.table)

    def graded(self) -> bool:
        """Whether all scored values lie in [0, 1], so that 0 is a fail and 1 a pass."""
        low, high = self.least, self.most
        return low is None or high is None or (low >= 0.0 and high <= 1.0)

    def judges(self) -> bool:
        """Whether 0 and 1 are the ends of its values, so that these can be compared with a label."""
        return self.least in (0.0, 1.0) and self.most in (0.0, 1.0)

    def compare(self, scores: Sequence[Score], labels: Sequence[float | None]) -> None:
        """Count where a 0-or-1 score equals the label that the source gave."""
        for score, label in zip(scores, labels, strict=True):
            if label is not None and score.value in (0.0, 1.0):
                self.labelled += 1
                self.agree += score.value == label


class Summary:
    """What `summary.json` says about models and rewards, from a stream of scored generations.

    Args:
        reward_names: The rewards, in the order in which they are shown.
        labels: Rewards that are the source's own label; they are not compared with it.
    """

    def __init__(self, reward_names: Sequence[str], *, labels: Collection[str] = ("label",)) -> None:
        self.reward_names = tuple(reward_names)
        self._labels = frozenset(labels)
        self._models: dict[str | None, _Model] = {}

    def add(self, generation: Generation, scores: Mapping[str, Sequence[Score]]) -> None:
        """Take in one generation: for each reward's name, one score a completion.

        Generations with one `key` are one group; those made in code (key 0) are a group each.

        Raises:
            ValueError: A reward has not exactly one score for each completion.
        """
        model = self._models.get(generation.model)
        if model is None:
            model = self._models[generation.model] = _Model(self.reward_names)
        completions = generation.completions
        size = len(completions)
        for reward in self.reward_names:
            if len(scores[reward]) != size:
                where = f"{generation.where}: " if generation.where else ""
                raise ValueError(f"{where}{reward} has {len(scores[reward])} scores for {size} completions")
        if not size:
            return
        model.begin(generation.key, size)
        labels = None
        for completion in completions:
            if completion.metadata and "label" in completion.metadata:
                labels = [_label(completion) for completion in completions]
                break
        for reward, column in model.columns.items():
            column.add(scores[reward])
            if labels and reward not in self._labels:
                column.compare(scores[reward], labels)

    def to_dict(self) -> dict[str, Any]:
        """Return {model: figures}, the value of `models` in `summary.json`: finite numbers, and None for n/a.

        Completions without a model are under "default", or under a name like it that no model has.
        """
        nameless = _free_name(self._models)
        return {nameless if name is None else name: model.to_dict() for name, model in self._models.items()}


def _free_name(taken: Collection[str | None]) -> str:
    name = "default"
    while name in taken:
        name += " (no model)"
    return name


def _label(completion: Completion) -> float | None:
    label = completion.metadata.get("label")
    return float(label) if isinstance(label, (bool, int, float)) and label in (0, 1) else None


class _Model:
    """One model's columns, and which group each piece of them belongs to."""

    def __init__(self, reward_names: Sequence[str]) -> None:
        self.columns = {name: Column() for name in reward_names}
        self.keys = array("Q")
        self.lengths = array("I")

    def begin(self, key: int, size: int) -> None:
        """Open a piece of a group. A key of 0 gets one of its own."""
        self.keys.append(key % (1 << 64) if key else len(self.keys) + 1)
        self.lengths.append(size)

    def to_dict(self) -> dict[str, Any]:
        groups = _Groups(self.keys, self.lengths)
        columns = self.columns
        spreads = {name: _Spread(groups.contents(column)) for name, column in columns.items()}
        compared = {
            name: {"agree": column.agree, "n": column.labelled}
            for name, column in columns.items()
            if column.labelled and column.judges()
        }
        return {
            "completions": sum(self.lengths),
            "rewards": {name: _reward(column, spreads[name]) for name, column in columns.items()},
            "pass_at_k": {name: spreads[name].pass_at_k() for name, column in columns.items() if column.is_binary()},
            "groups": {
                "n": len(groups.sizes),
                "sizes": {str(size): times for size, times in sorted(Counter(groups.sizes).items())},
                "zero_signal": {name: spreads[name].zero_signal(column.graded()) for name, column in columns.items()},
                "expected_dead_share": {name: spread.expected_dead_share() for name, spread in spreads.items()},
            },
            "label": compared or None,
        }


class _Groups:
    """Which pieces make up each group: pieces sorted by the key of their group, and the sizes of groups."""

    def __init__(self, keys: array[int], lengths: array[int]) -> None:
        self.lengths = lengths
        self.starts = array("Q", accumulate(lengths, initial=0))
        self.order = array("Q", sorted(range(len(keys)), key=keys.__getitem__))
        self.sizes = array("Q")
        previous = None
        for at in self.order:
            if keys[at] == previous:
                self.sizes[-1] += lengths[at]
            else:
                self.sizes.append(lengths[at])
            previous = keys[at]

    def contents(self, column: Column) -> Iterator[tuple[list[float], int]]:
        """Yield the scored values of groups, sorted, and how many groups hold just these."""
        pieces = self._pieces(column.data)
        if column.values is not None:
            yield from ((sorted(value for value in piece if value == value), 1) for piece in pieces)
            return
        found = Counter(piece.tobytes() for piece in pieces)
        yield from ((sorted(column.decode(codes)), times) for codes, times in found.items())

    def _pieces(self, data: array[Any]) -> Iterator[array[Any]]:
        grouped = array(data.typecode)
        starts, lengths = self.starts, self.lengths
        for at in self.order:
            start = starts[at]
            grouped.extend(data[start : start + lengths[at]])
        start = 0
        for size in self.sizes:
            yield grouped[start : start + size]
            start += size


class _Spread:
    """What one reward's groups say: sums for the interval, right answers for pass@k, groups without spread."""

    def __init__(self, contents: Iterable[tuple[list[float], int]]) -> None:
        self.sums = array("d")
        self.counts = array("I")
        self.deviations = array("d")
        self.sizes: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.multiplicities: Counter[tuple[int, ...]] = Counter()
        self.of = self.dead = self.all_fail = self.all_pass = 0
        for values, times in contents:
            self.sizes[len(values)] += times
            if values:
                self._add_sum(values, times)
                self.pairs[len(values), values.count(1.0)] += times
            if len(values) > 1:
                self._add_group(values, times)
            if len(values) >= min(SIZES):
                self.multiplicities[multiplicities(values)] += times

    def _add_sum(self, values: Sequence[float], times: int) -> None:
        try:
            total = math.fsum(values)
        except OverflowError:
            total = math.inf  # no interval then
        self.sums.extend([total] * times)
        self.counts.extend([len(values)] * times)

    def _add_group(self, values: Sequence[float], times: int) -> None:
        spread = group_spread(values)
        self.of += times
        if spread.std is not None:
            self.deviations.extend([spread.std] * times)
        if spread.zero_signal:
            self.dead += times
            self.all_fail += spread.all_fail * times
            self.all_pass += spread.all_pass * times

    def interval(self) -> dict[str, Any] | None:
        return _interval(interval_over_problems(self.sums, self.counts))

    def std_within_groups(self) -> float | None:
        """Return the mean over groups with two scored completions or more of the sample std, as TRL does."""
        found = moments(self.deviations)
        return found.mean if found else None

    def zero_signal(self, graded: bool) -> dict[str, int | None]:
        """Return how many groups, `of` those with at least two scored completions, have no spread.

        `all_fail` and `all_pass` are those at 0 and at 1; None for a reward that has values outside [0, 1].
        """
        fail, passed = (self.all_fail, self.all_pass) if graded else (None, None)
        return {"n": self.dead, "all_fail": fail, "all_pass": passed, "of": self.of}

    def expected_dead_share(self) -> dict[str, float | None]:
        return {str(size): expected_dead_share(self.multiplicities, size) for size in SIZES}

    def pass_at_k(self) -> dict[str, Any]:
        figures = {}
        for k in pass_ks(self.sizes):
            at_k = mean_pass_at_k(self.pairs, k)
            figures[str(k)] = {
                "value": at_k.value,
                "interval": _interval(at_k.interval),
                "problems": at_k.problems,
                "left_out": at_k.left_out + self.sizes[0],
            }
        return figures


# ------------------------------------------------------------------------------------------------------------- figures


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _reward(column: Column, spread: _Spread) -> dict[str, Any]:
    """Return the figures of one reward: over all completions, and over problems with a scored completion."""
    tally = column.tally()
    found = moments(tally)
    return {
        "mean": found.mean if found else None,
        "interval": spread.interval(),
        "problems": len(spread.sums),
        **_counts(column),
        "right": tally.get(1.0, 0) if column.is_binary() and isinstance(tally, dict) else None,
        "min": column.least,
        "max": column.most,
        "std_over_batch": found.std if found else None,
        "std_within_groups": spread.std_within_groups(),
        "reasons": dict(sorted(column.reasons.items(), key=lambda item: (-item[1], item[0]))),
        "seconds": column.seconds.to_dict(),
        "parts": {name: _part(part) for name, part in column.parts.items()},
    }


def _counts(column: Column) -> dict[str, int]:
    return {"n": column.n, "scored": column.scored, "abstained": column.abstained, "errors": column.errors}


def _part(column: Column) -> dict[str, Any]:
    found = moments(column.tally())
    return {
        "weight": None if column.weights_differ else _finite(column.weight),
        "mean": found.mean if found else None,
        **_counts(column),
        "min": column.least,
        "max": column.most,
    }


# ------------------------------------------------------------------------------------------------------------- notices


def notices(summary: Mapping[str, Any], input_info: Mapping[str, Any] | None = None) -> list[str]:
    """Return at most five sentences about what makes the figures doubtful, worst first.

    Args:
        summary: With `models`, as `Summary.to_dict` returns it.
        input_info: Of the input, each a number or a list: `bad_rows` that could not be read, `duplicate_ids`,
            `rows_left` that were not read (`--limit`). Other keys are passed over.

    Names in the sentences are as in the file: print them through `terminal.visible`.
    """
    found: list[tuple[int, int, str]] = []
    for key, rank, text in (
        ("bad_rows", 0, "{} of the input could not be read and {are} in no figure"),
        ("duplicate_ids", 6, "{} {have} the id of another task; --group FIELD says which rows are one group"),
        ("rows_left", 9, "{} of the input {were} not read"),
    ):
        number = _how_many((input_info or {}).get(key))
        if number:
            verbs = _ONE if number == 1 else _MANY
            found.append((rank, -number, text.format(_counted(number, "row"), **verbs)))
    models = summary.get("models") or {}
    for model, figures in models.items():
        for reward, held in figures["rewards"].items():
            name = f"{model}: {reward}" if len(models) > 1 else reward
            found += _about_reward(name, held)
            found += _about_groups(name, figures["groups"]["zero_signal"][reward], held)
        found += _about_labels(model if len(models) > 1 else "", figures["label"] or {})
    found.sort(key=lambda notice: notice[:2])
    return [text for _, _, text in found[:MAX_NOTICES]]


_ONE = {"are": "is", "have": "has", "were": "was"}
_MANY = {verb: verb for verb in _ONE}


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _how_many(value: object) -> int:
    if isinstance(value, Sized):
        return len(value)
    return int(value) if isinstance(value, (int, float)) else 0


def _about_reward(name: str, held: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    n, scored = held["n"], held["scored"]
    if held["errors"]:
        kinds = _kinds(held["reasons"], MACHINE_REASONS)
        share = f"{held['errors']:,} of {_counted(n, 'completion')}"
        yield 2, -held["errors"], f"{name} ended in an error on {share} ({kinds})"
    if held["abstained"]:
        kinds = _kinds(held["reasons"], REFERENCE_REASONS)
        rank = 3 if scored else 1
        share = f"{held['abstained']:,} of {_counted(n, 'completion')}"
        yield rank, -held["abstained"], f"{name} could not judge {share} ({kinds})"
    if scored < 2:
        return
    if held["min"] == held["max"] == 0.0:
        text = f"{name} is 0 on all {scored:,} completions: suspect the grader or the reference before the model"
        yield 1, -scored, text
    elif alike(held["min"], held["max"]):
        yield 5, -scored, f"{name} is {held['max']:.3g} on all {scored:,} completions: nothing can be learned from it"
    for part, of in held["parts"].items():
        if of["scored"] > 1 and alike(of["min"], of["max"]) and of["weight"] != 0 and len(held["parts"]) > 1:
            yield 5, -of["scored"], f"{name}: its part {part} is {of['max']:.3g} on all {of['scored']:,} completions"


def _kinds(reasons: Mapping[str, int], of: Collection[str]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.items() if reason in of)


def _about_groups(name: str, zero: Mapping[str, Any], held: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    if zero["of"] and 2 * zero["n"] > zero["of"] and not (held["scored"] and alike(held["min"], held["max"])):
        share = f"{zero['n']:,} of {_counted(zero['of'], 'group')}"
        they = "it teaches" if zero["of"] == 1 else "they teach"
        yield 7, -zero["n"], f"{name} has no spread in {share}: {they} GRPO nothing"


def _about_labels(model: str, compared: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[int, int, str]]:
    """Tell how far the reward that is closest to the label differs; the others may measure something else."""
    differ = sorted((held["n"] - held["agree"], name) for name, held in compared.items())
    if differ and differ[0][0]:
        count, name = differ[0]
        prefix = f"{model}: " if model else ""
        yield 4, -count, f"{prefix}{name} differs from the file's label on {count:,} of {compared[name]['n']:,}"
