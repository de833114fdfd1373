"""Sum up scores as they stream by: the `models` part of `summary.json`.

No text is kept, but for the ids of some groups. A score costs one byte while its reward has few different values,
eight bytes after that; a completion four bytes for its length; a piece of a group twelve, which hold the identity of
the group. Groups are put together only when the result is asked for, so a group may come in pieces and in any order,
and the result is the same to the last bit. Quantiles of times are estimates, and alone depend on the order.

A summary may be made in pieces, in several processes too: `state` of one goes into `absorb` of another.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import accumulate, compress
from operator import add, mul
from typing import Any

from rewardkit.report.column import UNSCORED, Column, Tally
from rewardkit.report.notices import notices, warnings
from rewardkit.stats import (
    Interval,
    expected_dead_share,
    group_spread,
    interval_over_problems,
    mean_pass_at_k,
    moments,
    multiplicities,
    pass_ks,
)
from rewardkit.types import Completion, Generation, Score

__all__ = ["NAMED", "SIZES", "Summary", "notices", "warnings"]

SIZES = (4, 8, 16)
"""Group sizes for which the share of groups without spread is forecast."""

NAMED = 2048
"""Of so many groups of a model (those with the least keys, which are hashes) the id is kept, to name unsolved ones."""

SHOWN_IDS = 5
MIN_TRIES = 4
"""A problem counts as never solved from this many scored completions on."""

_KEYS = 1 << 64
_MAX_ID = 100  # characters; a longer id is not kept
_NO_LABEL = 2
_BATCH = 512  # completions whose scores wait


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
            model = self._open(generation.model)
        completions = generation.completions
        size = len(completions)
        for reward in self.reward_names:
            if len(scores[reward]) != size:
                raise ValueError(self._unequal(generation, scores))
        if size:
            model.begin(generation.key, generation.sample.id, completions)
            for reward, wait in model.waiting:
                wait(scores[reward])
            if len(model.characters) >= model.due:
                model.settle()

    def _open(self, name: str | None) -> _Model:
        model = self._models[name] = _Model(self.reward_names)
        return model

    def _unequal(self, generation: Generation, scores: Mapping[str, Sequence[Score]]) -> str:
        size = len(generation.completions)
        reward = next(reward for reward in self.reward_names if len(scores[reward]) != size)
        where = f"{generation.where}: " if generation.where else ""
        return f"{where}{reward} has {len(scores[reward])} scores for {size} completions"

    def state(self) -> dict[str, Any]:
        """Return all of it as numbers, texts, bytes, lists and dicts (of this machine's byte order), for `absorb`."""
        return {"models": [[name, model.state()] for name, model in self._models.items()]}

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Take in the `state` of another summary of the same rewards.

        It is as if the other's generations had been added after the own ones: the figures are the same to the last
        bit, but for quantiles of times where more were measured than are kept.

        Raises:
            ValueError: It is of other rewards.
        """
        for name, held in state["models"]:
            if list(held["columns"]) != list(self.reward_names):
                theirs, ours = ", ".join(held["columns"]), ", ".join(self.reward_names)
                raise ValueError(f"a summary of {ours} cannot take in one of {theirs}")
            (self._models.get(name) or self._open(name)).absorb(held)

    def to_dict(self) -> dict[str, Any]:
        """Return {model: figures}, the value of `models` in `summary.json`: finite numbers, and None for n/a.

        Completions without a model are under "default", or under a name like it that no model has.
        """
        nameless = _free_name(self._models)
        return {nameless if name is None else name: model.to_dict(self._labels) for name, model in self._models.items()}


def _free_name(taken: Collection[str | None]) -> str:
    name = "default"
    while name in taken:
        name += " (no model)"
    return name


class _Model:
    """One model's columns, and which group each piece of them belongs to."""

    def __init__(self, reward_names: Sequence[str]) -> None:
        self.columns = {name: Column() for name in reward_names}
        # Scores wait to be looked at many at a time, which is cheaper than a call for each.
        self.waiting = [(name, column.waiting.extend) for name, column in self.columns.items()]
        self.due = _BATCH
        self.keys = array("Q")  # 0: a group of its own
        self.lengths = array("I")
        self.characters = array("I")
        self.labels = bytearray()  # 0, 1 or _NO_LABEL for each completion; empty while there are none
        self.finished = self.cut = 0
        self.names = _Names()
        self._last = 0  # key and id of the piece that came last
        self._last_id: str | int = ""

    def begin(self, key: int, id: str | int, completions: Sequence[Completion]) -> None:
        """Take in the completions of a group, or of a piece of one."""
        if key and key == self._last:
            self.lengths[-1] += len(completions)
            if id != self._last_id:
                self._name(key % _KEYS, id)
        else:
            self.keys.append(key % _KEYS)
            self.lengths.append(len(completions))
            self._last = key
            if key and key < self.names.bound:
                self._name(key % _KEYS, id)
        add_length, labels = self.characters.append, self.labels
        for completion in completions:
            add_length(len(completion.text))
            if completion.metadata and "label" in completion.metadata:
                self._add_label(completion.metadata["label"])
            elif labels:
                labels.append(_NO_LABEL)
            if reason := completion.finish_reason:
                self.finished += 1
                self.cut += type(reason) is str and was_cut(reason)

    def settle(self) -> None:
        """Let the columns look at the scores that wait."""
        for column in self.columns.values():
            column.settle()
        self.due = len(self.characters) + _BATCH

    def _name(self, key: int, id: str | int) -> None:
        self._last_id = id
        if key < self.names.bound:
            self.names.add(key, id)

    def _add_label(self, label: object) -> None:
        if not self.labels:
            self.labels += bytes((_NO_LABEL,)) * (len(self.characters) - 1)
        known = isinstance(label, (bool, int, float)) and label in (0, 1)
        self.labels.append(int(label) if known else _NO_LABEL)  # type: ignore[call-overload]

    def state(self) -> dict[str, Any]:
        self.settle()
        return {
            "keys": self.keys.tobytes(),
            "lengths": self.lengths.tobytes(),
            "characters": self.characters.tobytes(),
            "labels": bytes(self.labels),
            "finished": [self.finished, self.cut],
            "names": self.names.state(),
            "columns": {name: column.state() for name, column in self.columns.items()},
        }

    def absorb(self, state: Mapping[str, Any]) -> None:
        self.settle()
        before = len(self.characters)
        self._last = 0
        self.keys.frombytes(state["keys"])
        self.lengths.frombytes(state["lengths"])
        self.characters.frombytes(state["characters"])
        if state["labels"] or self.labels:
            none = bytes((_NO_LABEL,))
            self.labels += none * (before - len(self.labels))
            self.labels += state["labels"] or none * (len(self.characters) - before)
        self.finished += state["finished"][0]
        self.cut += state["finished"][1]
        self.names.absorb(state["names"])
        for name, column in self.columns.items():
            column.absorb(state["columns"][name])
        self.due = len(self.characters) + _BATCH

    def to_dict(self, labels: Collection[str]) -> dict[str, Any]:
        self.settle()
        groups = _Groups(self.keys, self.lengths, self.names)
        found = {name: _Figures(column, groups) for name, column in self.columns.items()}
        compared = {}
        if self.labels.count(0) + self.labels.count(1):
            published = bytes(self.labels)
            compared = {
                name: figures.agreement(published, groups)
                for name, figures in found.items()
                if name not in labels and figures.tally.judges()
            }
        return {
            "completions": len(self.characters),
            "rewards": {name: figures.reward() for name, figures in found.items()},
            "pass_at_k": {name: figures.spread.pass_at_k() for name, figures in found.items() if figures.binary},
            "groups": {
                "n": len(groups.sizes),
                "sizes": {str(size): times for size, times in sorted(Counter(groups.sizes).items())},
                "zero_signal": {name: figures.zero_signal() for name, figures in found.items()},
                "never_solved": {name: figures.never_solved(groups) for name, figures in found.items()},
                "expected_dead_share": {name: figures.spread.expected_dead_share() for name, figures in found.items()},
            },
            "length": {name: figures.length(self.characters) for name, figures in found.items()},
            "cut_off": {"n": self.cut, "of": self.finished} if self.finished else None,
            "label": {name: held for name, held in compared.items() if held["n"]} or None,
        }


# Why a source says that a completion ended; the reward `stop_reason` knows the same words.
_CUT = {
    "length", "limit", "max_tokens", "max_new_tokens", "max_output_tokens", "max_completion_tokens", "max_length",
    "model_length", "model_context_window_exceeded", "token_limit", "truncated", "incomplete", "cut_off",
}  # fmt: skip


@lru_cache(maxsize=256)
def was_cut(finish_reason: str) -> bool:
    """Whether a finish reason says that a limit ended the completion: `length`, `MAX_TOKENS`, `maxTokens`, …"""
    word = finish_reason.strip().rpartition(".")[2][:100]
    word = "".join(f"_{char}" if char.isupper() and not word.isupper() else char for char in word)
    return word.lower().replace("-", "_").replace(" ", "_").removeprefix("finish_reason_").strip("_") in _CUT


class _Names:
    """The ids of the groups with the least keys. Keys are hashes, so these are a sample that no order changes."""

    def __init__(self) -> None:
        self.bound = _KEYS
        self.ids: dict[int, str | int] = {}

    def add(self, key: int, id: str | int) -> None:
        """Keep an id; of several of one group, the first in order. A key must be below `bound`."""
        if type(id) is int and abs(id) < 1 << 63:
            kept: str | int = id
        else:
            kept = id if isinstance(id, str) else str(id)
            if not kept.isascii():
                kept = kept.encode("utf-8", "replace").decode()
            if len(kept) > _MAX_ID:
                kept = ""
        known = self.ids.setdefault(key, kept)
        if known != kept:
            self.ids[key] = min(known, kept, key=id_order)
        elif len(self.ids) >= 2 * NAMED:
            self._prune()

    def _prune(self) -> None:
        least = sorted(self.ids)[:NAMED]
        self.ids = {key: self.ids[key] for key in least}
        self.bound = least[-1] + 1

    def least(self) -> dict[int, str | int]:
        """Return the ids by key."""
        if len(self.ids) > NAMED:
            self._prune()
        return self.ids

    def state(self) -> list[Any]:
        return [array("Q", self.ids).tobytes(), list(self.ids.values())]

    def absorb(self, state: Sequence[Any]) -> None:
        for key, id in zip(array("Q", state[0]), state[1], strict=True):
            if key < self.bound:
                self.add(key, id)


def id_order(id: str | int) -> tuple[bool, int, str]:
    """Return what ids are sorted by: numbers first, and texts of digits as numbers."""
    if isinstance(id, int):
        return False, id, ""
    return True, int(id) if id.isascii() and id.isdigit() else -1, id


class _Groups:
    """Which pieces make up each group: pieces sorted by the key of their group, and the sizes of groups.

    Attributes:
        sizes: Completions in each group, in ascending order of keys.
        named: Those groups whose id is known, by place.
    """

    def __init__(self, keys: array[int], lengths: array[int], names: _Names) -> None:
        starts = array("Q", accumulate(lengths, initial=0))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._from = array("Q", map(starts.__getitem__, order))
        self._to = array("Q", map(add, self._from, map(lengths.__getitem__, order)))
        self.sizes = array("Q")
        self.named: dict[int, str | int] = {}
        ids = names.least()
        previous = 0
        for at in order:
            key = keys[at]
            if key and key == previous:
                self.sizes[-1] += lengths[at]
                continue
            if key in ids:
                self.named[len(self.sizes)] = ids[key]
            self.sizes.append(lengths[at])
            previous = key
        self._ends = array("Q", accumulate(self.sizes, initial=0))

    def arranged(self, data: bytes | array[Any]) -> Any:
        """Return what was in order of arrival in the order of groups."""
        if isinstance(data, bytes):
            return b"".join(map(data.__getitem__, map(slice, self._from, self._to)))
        grouped: array[Any] = array(data.typecode)
        for start, end in zip(self._from, self._to, strict=True):
            grouped += data[start:end]
        return grouped

    def pieces(self, arranged: Any) -> Iterator[Any]:
        """Return the part of each group."""
        return map(arranged.__getitem__, map(slice, self._ends, self._ends[1:]))

    def at(self, arranged: Any, place: int) -> Any:
        """Return the part of one group."""
        return arranged[self._ends[place] : self._ends[place + 1]]


class _Figures:
    """What one reward's column says: over completions, over groups, beside lengths and labels."""

    def __init__(self, column: Column, groups: _Groups) -> None:
        self.column = column
        self.tally: Tally = column.tally()
        self.binary = self.tally.binary()
        self.ranks = column.ranked()
        self.arranged = groups.arranged(column.doubles() if self.ranks is None else self.ranks[1])
        self.spread = _Spread(self._contents(groups))

    def _contents(self, groups: _Groups) -> Iterator[tuple[list[float], int]]:
        """Yield the scored values of groups, sorted, and how many groups hold just these."""
        pieces = groups.pieces(self.arranged)
        if self.ranks is None:
            yield from ((sorted(value for value in piece if value == value), 1) for piece in pieces)
            return
        levels, _ = self.ranks
        sorted_pieces: Counter[bytes] = Counter()
        for piece, times in Counter(pieces).items():
            sorted_pieces[bytes(sorted(piece))] += times
        for ranks, times in sorted_pieces.items():
            yield [levels[rank] for rank in ranks if rank != UNSCORED], times

    def reward(self) -> dict[str, Any]:
        """Return the figures of one reward: over all completions, and over problems with a scored completion."""
        tally, spread = self.tally, self.spread
        found = moments(tally.values)
        return {
            "mean": found.mean if found else None,
            "interval": spread.interval(),
            "problems": len(spread.sums),
            **_counts(tally),
            "right": tally.values.get(1.0, 0) if self.binary and isinstance(tally.values, dict) else None,
            "min": tally.low,
            "max": tally.high,
            "std_over_batch": found.std if found else None,
            "std_within_groups": spread.std_within_groups(),
            "reasons": tally.reasons,
            "examples": {reason: self.column.details[reason] for reason in sorted(self.column.details)},
            "seconds": self.column.seconds.to_dict(),
            "parts": {name: _part(part) for name, part in self.column.parts.items()},
        }

    def zero_signal(self) -> dict[str, int | None]:
        """Return how many groups, `of` those with at least two scored completions, have no spread.

        `all_fail` and `all_pass` are those at 0 and at 1; None for a reward that has values outside [0, 1].
        """
        spread = self.spread
        fail, passed = (spread.all_fail, spread.all_pass) if self.tally.graded() else (None, None)
        return {"n": spread.dead, "all_fail": fail, "all_pass": passed, "of": spread.of}

    def never_solved(self, groups: _Groups) -> dict[str, Any] | None:
        """Return how many groups, `of` those with at least four scored completions, are at 0 throughout.

        `ids` names up to five of them, of those whose id is known. None for a reward with values outside [0, 1].
        """
        spread = self.spread
        if not self.tally.graded() or not spread.tried:
            return None
        ids: list[str | int] = []
        if spread.unsolved:
            ids = [id for place, id in groups.named.items() if id != "" and self._unsolved(groups, place)]
        return {"n": spread.unsolved, "of": spread.tried, "ids": sorted(ids, key=id_order)[:SHOWN_IDS]}

    def _unsolved(self, groups: _Groups, place: int) -> bool:
        piece = groups.at(self.arranged, place)
        if self.ranks is None:
            values = [value for value in piece if value == value]
        else:
            values = [self.ranks[0][rank] for rank in piece if rank != UNSCORED]
        return len(values) >= MIN_TRIES and not any(values)

    def agreement(self, labels: bytes, groups: _Groups) -> dict[str, Any]:
        """Compare scores of 0 and 1 with the labels 0 and 1 that the source gave.

        `accepts` counts what the reward accepts and the label does not, `rejects` the other way round;
        `groups_rejected`: groups of which it accepts nothing, where the label says that two or more are right.
        """
        scores = self._verdicts()
        both = Counter(zip(scores, labels, strict=True))
        agree, accepts, rejects = both[0, 0] + both[1, 1], both[1, 0], both[0, 1]
        rejected = 0
        if rejects:
            pairs = zip(groups.pieces(groups.arranged(scores)), groups.pieces(groups.arranged(labels)), strict=True)
            rejected = sum(label.count(1) > 1 and not any(piece) for piece, label in pairs)
        return {
            "agree": agree,
            "n": agree + accepts + rejects,
            "accepts": accepts,
            "rejects": rejects,
            "groups_rejected": rejected,
        }

    def _verdicts(self) -> bytes:
        """Return 0 for a score of 0, 1 for one of 1, and 2 for any other and for none."""
        known = {0.0: 0, 1.0: 1}
        if self.ranks is None:
            return bytes(known.get(value, 2) for value in self.column.doubles())
        levels, ranks = self.ranks
        return ranks.translate(bytes(known.get(value, 2) for value in levels).ljust(256, b"\2"))

    def length(self, characters: array[int]) -> dict[str, Any] | None:
        """Set the score against the length of the text, over scored completions; None when there are none.

        For a reward of 0 and 1: count and mean of characters of each. For others: Pearson's correlation of score and
        characters; None without any spread.
        """
        if not self.tally.scored:
            return None
        if self.binary:
            verdicts = self._verdicts()
            wrong = verdicts.translate(b"\1".ljust(256, b"\0"))
            right = verdicts.translate(b"\0\1".ljust(256, b"\0"))
            return {"right": _characters(characters, right), "wrong": _characters(characters, wrong)}
        return {"correlation": self._correlation(characters)}

    def _correlation(self, characters: array[int]) -> float | None:
        found = moments(self.tally.values)
        if found is None or not found.std:
            return None
        values = self.column.doubles()
        lengths = [size for size, value in zip(characters, values, strict=True) if value == value]
        n, total = len(lengths), sum(lengths)
        spread = n * sum(map(mul, lengths, lengths)) - total * total  # n^2 times the variance, exactly
        if not spread:
            return None
        scored = (value for value in values if value == value)
        mean = total / n
        shared = math.fsum((size - mean) * (value - found.mean) for size, value in zip(lengths, scored, strict=True))
        correlation = shared / (math.sqrt(spread / n) * found.std * math.sqrt(n - 1))
        return max(-1.0, min(1.0, correlation)) if math.isfinite(correlation) else None


def _characters(characters: array[int], chosen: bytes) -> dict[str, Any]:
    n = chosen.count(1)
    return {"n": n, "mean_characters": sum(compress(characters, chosen)) / n if n else None}


class _Spread:
    """What one reward's groups say: sums for the interval, right answers for pass@k, groups without spread."""

    def __init__(self, contents: Iterable[tuple[list[float], int]]) -> None:
        self.sums = array("d")
        self.counts = array("I")
        self.deviations = array("d")
        self.sizes: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.multiplicities: Counter[tuple[int, ...]] = Counter()
        self.of = self.dead = self.all_fail = self.all_pass = self.tried = self.unsolved = 0
        for values, times in contents:
            self.sizes[len(values)] += times
            if values:
                self._add_sum(values, times)
                self.pairs[len(values), values.count(1.0)] += times
            if len(values) > 1:
                self._add_group(values, times)
            if len(values) >= MIN_TRIES:
                self.tried += times
                self.unsolved += times * (not any(values))
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


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _counts(tally: Tally) -> dict[str, int]:
    return {"n": tally.n, "scored": tally.scored, "abstained": tally.abstained, "errors": tally.errors}


def _part(column: Column) -> dict[str, Any]:
    tally = column.tally()
    found = moments(tally.values)
    weight = column.weight if column.weight is not None and math.isfinite(column.weight) else None
    return {
        "weight": None if column.weights_differ else weight,
        "mean": found.mean if found else None,
        **_counts(tally),
        "min": tally.low,
        "max": tally.high,
    }
