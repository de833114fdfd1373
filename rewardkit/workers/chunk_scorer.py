"""What a worker does with a piece of a file: read it, score it, encode the scores, sum them up."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rewardkit.compose import Clip, FirstOf, Gate, Maximum, Minimum, Product, Reward, Schedule, WeightedSum
from rewardkit.inline import Inline, Leaves
from rewardkit.leaf import Leaf
from rewardkit.records.chunks import Chunk, ChunkReader, Counts, PieceGroups, ReadPlan
from rewardkit.records.scores import ScoreLines
from rewardkit.report.summary import Summary
from rewardkit.types import Score
from rewardkit.workers.wire import leaf_from_data, leaf_to_data, plain, score_data, score_from

_BATCH = 128


class ScoringPlan(msgspec.Struct):
    """All that a process needs to score pieces of a file.

    Attributes:
        read: How to read a piece of each file.
        rewards: Each reward's name and data form.
        labels: Rewards that are the source's own label (see `Summary`).
        step: The training step for rows that do not say theirs.
    """

    read: list[ReadPlan]
    rewards: list[tuple[str, Any]]
    labels: list[str]
    step: int | None


class PieceResult(msgspec.Struct, array_like=True):
    """What became of a piece.

    Attributes:
        lines: The lines of `scores.jsonl`, with indices that count from the beginning of the piece.
        lengths: Bytes of each generation among them (array "Q").
        sizes: Completions of each generation (array "I").
        of: The group of each generation (array "I"), a place in the following four.
        slots, keys, completions, rows: Of each group (arrays "Q"); see `PieceGroups`.
        read: How many rows gave generations.
        bad_rows, bad: Lines that gave none, and the first of them with their reasons.
        models: The models met.
        summary: `Summary.state()`.
        failed: How many scores are errors.
        raised: Generation, place of the reward, and how many of its scores are errors of the reward, where any is.
        first: For each reward that failed: its place, and the data of the first such score.
    """

    lines: bytes
    lengths: bytes
    sizes: bytes
    of: bytes
    slots: bytes
    keys: bytes
    completions: bytes
    rows: bytes
    read: int
    bad_rows: int
    bad: list[tuple[int, str]]
    models: list[str]
    summary: Any
    failed: int
    raised: list[tuple[int, int, int]]
    first: list[tuple[int, list[Any]]]


class ChunkScorer:
    """Scores pieces of one file with the same rewards."""

    def __init__(self, plan: ScoringPlan) -> None:
        rewards = {name: reward_from_data(data) for name, data in plan.rewards}
        self._names = list(rewards)
        self._labels = plan.labels
        self._inline = Inline(Leaves(rewards), plan.step)
        self._groups = PieceGroups(by_task=any(part.by_task for part in plan.read))
        self._readers = [ChunkReader(part, self._groups) for part in plan.read]

    def __call__(self, chunk: Chunk) -> PieceResult:
        """Return what became of a piece. May raise whatever reading and scoring raise."""
        groups, counts, lines = self._groups, Counts(), ScoreLines()
        groups.begin()
        summary = Summary(self._names, labels=self._labels)
        errors = _Errors(self._names)
        sizes = array("I")
        generations = self._readers[chunk.part].read(chunk, counts)
        # One step for some rows, then the next step: the code of a step and what it works on stay in the caches.
        while batch := list(itertools.islice(generations, _BATCH)):
            scored = list(map(self._inline, batch))
            for place, one in enumerate(scored, len(sizes)):
                if lines.add(one.generation, one.scores):
                    errors.note(place, one.scores)
            for one in scored:
                summary.add(one.generation, one.scores)
            sizes.extend([len(one.generation.completions) for one in scored])
        text, lengths = lines.take_measured()
        return PieceResult(
            text,
            array("Q", lengths).tobytes(),
            sizes.tobytes(),
            groups.of.tobytes(),
            groups.slots.tobytes(),
            groups.keys.tobytes(),
            groups.completions.tobytes(),
            groups.rows.tobytes(),
            counts.rows,
            counts.bad_rows,
            [(bad.line, bad.why) for bad in counts.bad],
            counts.models,
            summary.state(),
            errors.failed,
            errors.raised,
            list(errors.first.items()),
        )


class _Errors:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.failed = 0
        self.raised: list[tuple[int, int, int]] = []
        self.first: dict[int, list[Any]] = {}

    def note(self, place: int, scores: Mapping[str, Sequence[Score]]) -> None:
        for reward, name in enumerate(self._names):
            failed = [score for score in scores[name] if score.state == "error"]
            self.failed += len(failed)
            raised = [score for score in failed if score.reason != "source_failed"]
            if raised:
                self.raised.append((place, reward, len(raised)))
                if reward not in self.first:
                    self.first[reward] = score_data(raised[0])


def first_scores(result: PieceResult) -> list[tuple[int, Score]]:
    """Return the place of each reward that failed, and the first score of it that says so."""
    return [(reward, score_from(data)) for reward, data in result.first]


# ------------------------------------------------------------------------------------------- rewards as data

_NODES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (WeightedSum, Product, Minimum, Maximum, FirstOf, Clip, Gate, Schedule)
}


def reward_to_data(reward: Reward) -> Any:
    """Return a reward as data from which `reward_from_data` makes an equal one, node by node.

    Raises:
        WorkerError: No other process can load one of its leaves.
        Stuck: An option cannot be sent.
    """
    if isinstance(reward, Leaf):
        return {"leaf": plain(leaf_to_data(reward))}
    fields = [_field_data(getattr(reward, name)) for name in type(reward).__dataclass_fields__]  # type: ignore[attr-defined]
    return {"node": type(reward).__name__, "fields": fields}


def _field_data(value: Any) -> Any:
    if isinstance(value, Reward):
        return reward_to_data(value)
    if isinstance(value, tuple):
        return {"tuple": [_field_data(item) for item in value]}
    return {"value": plain(value)}


def reward_from_data(data: Any) -> Reward:
    """Make the reward of `reward_to_data` again. May raise whatever importing it raises."""
    if "leaf" in data:
        return leaf_from_data(data["leaf"])
    made: Reward = _NODES[data["node"]](*map(_field_from, data["fields"]))
    return made


def _field_from(data: Any) -> Any:
    if "tuple" in data:
        return tuple(map(_field_from, data["tuple"]))
    return data["value"] if "value" in data else reward_from_data(data)
