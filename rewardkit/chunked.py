"""A file of saved generations, scored in pieces by several processes, as if it were read and scored in order.

`ChunkedScores` is what `run.py` takes instead of an engine's stream where that is worth it: it yields a `Piece` for
what a worker has done, and single `Scored` for what has to be done here, always in the file's order.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import accumulate, pairwise
from typing import TypeAlias, cast

import msgspec

from rewardkit import targets
from rewardkit.engine import Engine, Scored
from rewardkit.errors import WorkerError
from rewardkit.records.chunks import Chunk, ChunkReader, Onto, cut_files, moves, plan_chunks
from rewardkit.records.groups import Groups
from rewardkit.records.reading import ManyRecords, Records
from rewardkit.records.scores import moved
from rewardkit.types import Generation, Score
from rewardkit.workers.chunk_pool import MOST, ChunkPool
from rewardkit.workers.chunk_scorer import PieceResult, ScoringPlan, first_scores, reward_to_data
from rewardkit.workers.pool import cpu_count
from rewardkit.workers.wire import Stuck

SMALL = 4 << 20
"""Bytes of a file up to which the start of worker processes takes longer than they save."""

_LARGEST = 8 << 20  # bytes of a piece that is sent around; a longer line is scored here


class Piece(msgspec.Struct):
    """Scored generations, ready to be written and summed up.

    Attributes:
        lines: Their lines of `scores.jsonl`.
        completions: How many completions they have.
        failed: How many scores are errors.
        summary: `Summary.state()` of them.
        rows: For each reward's name, how many scores there are, and how many of them are errors of the reward.
        first: The first score of each reward that is such an error, in order.
    """

    lines: bytes
    completions: int
    failed: int
    summary: Mapping[str, object]
    rows: dict[str, tuple[int, int]]
    first: list[tuple[str, Score]]


Exact: TypeAlias = Callable[[PieceResult], bool]
"""Whether a piece has to be scored in order after all, since the run will stop within it."""


def chunked(
    engine: Engine, records: Records, *, workers: int | None, labels: list[str], small: int | None = None
) -> ChunkedScores | None:
    """Return a file's scores in pieces; None where one process does as well, or must do.

    That is so for small files, formats that can only be read as a whole, and rewards that wait, look at whole
    groups, or cannot be loaded by another process.
    """
    count = min(cpu_count(), MOST) if workers is None else workers
    if count < 2 or engine.outside or engine.away or engine.takes_group:
        return None
    if not all(targets.travels(leaf.target) for leaf in engine.leaves):
        return None
    try:
        size = sum(path.stat().st_size for path in {part.source.path for part in records.parts})
    except OSError:
        return None
    if size < (SMALL if small is None else small):
        return None
    read = plan_chunks(records)
    if read is None:
        return None
    try:
        rewards = [(name, reward_to_data(reward)) for name, reward in engine.rewards.items()]
        plan = ScoringPlan(read, rewards, labels, engine.step)
        return ChunkedScores(engine, records, plan, ChunkPool(plan, count))
    except (WorkerError, Stuck):
        return None


class ChunkedScores:
    """The scores of one file. Close it when done.

    Attributes:
        pool: The worker processes.
    """

    def __init__(self, engine: Engine, records: Records, plan: ScoringPlan, pool: ChunkPool) -> None:
        self.pool = pool
        self._engine = engine
        self._records = records
        self._groups = Groups(by_task=records.by_task)
        self._readers = [ChunkReader(part, self._groups) for part in plan.read]
        self._names = list(engine.rewards)
        self._chunks = cut_files(records)
        self._part = -1

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def next_here(self) -> Iterator[Generation] | None:
        """Return the generations of the next piece, for whoever scores them himself; None at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return None
        self._enter(chunk.part)
        return self.read(chunk)

    def stream(self, exact: Exact) -> Iterator[Piece | Scored]:
        """Score everything that is left, in order."""
        waiting: deque[tuple[Chunk, Future[PieceResult | None] | None]] = deque()
        self.pool.start()
        room = self.pool.workers + 2
        for chunk in self._chunks:
            waiting.append((chunk, self.pool.submit(chunk) if len(chunk.data) <= _LARGEST else None))
            if len(waiting) >= room:
                yield from self._next(waiting, exact)
        while waiting:
            yield from self._next(waiting, exact)

    def _next(
        self, waiting: deque[tuple[Chunk, Future[PieceResult | None] | None]], exact: Exact
    ) -> Iterator[Piece | Scored]:
        chunk, future = waiting.popleft()
        result = None if future is None else future.result()
        self._enter(chunk.part)
        if result is None or exact(result):
            yield from self._engine.score_unchecked(self.read(chunk))
        else:
            yield self._piece(result, chunk.part)

    def _enter(self, part: int) -> None:
        """Begin with the next file, where there are several."""
        records = self._records
        if self._part < 0:  # a look at the first rows has counted them, too
            records._clear()
        if part != self._part:
            self._part = part
            records.parts[part]._clear()
            self._before = (records.rows, records.bad_rows)

    def read(self, chunk: Chunk) -> Iterator[Generation]:
        """Yield the generations of a piece, in order, and count them."""
        part = self._records.parts[chunk.part]
        for generation in self._readers[chunk.part].read(chunk, Onto(part)):
            self._counted(part)
            yield generation
        self._counted(part)

    def _counted(self, part: Records) -> None:
        part.duplicate_ids = self._groups.duplicate_ids
        if part is not self._records:
            cast("ManyRecords", self._records).absorb(part, self._before)

    def _piece(self, result: PieceResult, place: int) -> Piece:
        part = self._records.parts[place]
        part.rows += result.read
        for line, why in result.bad:
            part._note_bad(line, why)
        part.bad_rows += result.bad_rows - len(result.bad)
        for model in result.models:
            part._note_model(model)
        lines = self._placed(result)
        self._counted(part)
        completions = sum(array("I", result.sizes))
        raised = dict.fromkeys(range(len(self._names)), 0)
        for _, reward, count in result.raised:
            raised[reward] += count
        return Piece(
            lines,
            completions,
            result.failed,
            result.summary,
            {name: (completions, raised[place]) for place, name in enumerate(self._names)},
            [(self._names[place], score) for place, score in first_scores(result)],
        )

    def _placed(self, result: PieceResult) -> bytes:
        """Return the lines with the true place of each completion in its group."""
        about = (result.slots, result.keys, result.completions, result.rows)
        by = moves(self._groups, *(array("Q", data) for data in about))
        if not any(by):
            return result.lines
        starts = accumulate(array("Q", result.lengths), initial=0)
        parts = zip(pairwise(starts), array("I", result.of), strict=True)
        return moved(result.lines, ((start, end, by[group]) for (start, end), group in parts if by[group]))
