"""The engine: rewards in, generations in, scores out. The one pipeline, on disk and in training.

Generations are read as a stream and come out in the same order. A reward runs where it says: inline, awaited
(async), in a thread, or in a killable worker process; none of that changes a result. Whatever goes wrong becomes
the state of that completion's score; only a broken contract or a wrong option stops the run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import msgspec

from rewardkit import recipe, targets
from rewardkit.compose import Reward
from rewardkit.errors import ColumnError, UsageError, nearest
from rewardkit.inline import Evaluation, Inline, Judge, Leaves, members_of, score_unit
from rewardkit.inline import Scored as Scored
from rewardkit.leaf import Leaf, attempt_glance, failure
from rewardkit.loop import LoopThread
from rewardkit.records import names
from rewardkit.records.names import flat
from rewardkit.reward import MISSING, as_reward, column
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifier import Verifier
from rewardkit.workers import WorkerPool

_T = TypeVar("_T")

Rewards: TypeAlias = Reward | Callable[..., Any] | str | Mapping[str, Reward | Callable[..., Any] | str]
"""What `score` takes: one reward, function or formula, or several by name."""

PEEK = 32
"""How many generations are looked at for missing columns before anything is scored."""

WINDOW = 128
"""How many generations may be under way at once."""

REMEMBERED = 65_536
"""How many answers are kept for completions that are identical, where a reward says what that is."""


def score(
    rewards: Rewards,
    generations: Iterable[Generation],
    *,
    workers: int | None = None,
    concurrency: int = 64,
    step: int | None = None,
) -> Iterator[Scored]:
    """Score generations, in order, as a stream.

    Args:
        rewards: One reward, or several by name; a function or a formula will do.
        generations: The groups to score.
        workers: Worker processes for rewards that need one; None: one a core. It never changes a result.
        concurrency: How many async or thread rewards may wait at once.
        step: The training step for rows that do not say theirs (for `schedule`).

    Raises:
        ColumnError: None of the first rows has a column that a reward needs.
        ContractError: A reward returned the wrong number of values.
        UsageError: A reward has a deadline, but cannot be loaded by another process.
    """
    with Engine(rewards, workers=workers, concurrency=concurrency, step=step) as engine:
        yield from engine.score(generations)


def score_text(
    reward: Reward | Callable[..., Any] | str,
    text: str,
    *,
    reference: Any = None,
    prompt: Any = "",
    step: int | None = None,
    **columns: Any,
) -> Score:
    """Score one text, for trying a reward out: `score_text(Gsm8k(), "#### 18", reference="18")`.

    What the reward needs and is not given is the score's state (abstained, missing), not an exception.
    """
    generation = Generation(Sample(0, prompt, reference, columns, step), (Completion(text),))
    with Engine(reward, workers=1) as engine:
        scored = next(engine.score_unchecked([generation]))
    return next(iter(scored.scores.values()))[0]


class Engine:
    """Rewards made ready: workers, threads and an event loop are started when first needed, and kept.

    Use it as a context manager, or call `close`. `score` may be called many times (once a training step).
    """

    def __init__(
        self,
        rewards: Rewards,
        *,
        workers: int | None = None,
        concurrency: int = 64,
        step: int | None = None,
    ) -> None:
        self.rewards = named_rewards(rewards)
        self._ready = Leaves(self.rewards)
        self.leaves = self._ready.leaves
        for leaf in self.leaves:
            self._check_limits(leaf)
        self.away = [slot for slot, leaf in enumerate(self.leaves) if _goes_away(leaf)]
        for slot in self.away:
            if self.leaves[slot].glances:
                self._ready.judges[slot] = self._glancing(slot)
        self._inline = Inline(self._ready, step)
        self.takes_group = any(leaf.takes_group for leaf in self.leaves)
        self.outside = any(_outside(leaf) for leaf in self.leaves)
        self.known: dict[object, asyncio.Future[Score]] = {}
        self.repeated = 0  # completions that were not judged, since one with the same identity was
        self._workers = workers
        self._concurrency = concurrency
        self._started = _Started()
        # An engine that is forgotten, or still open when the interpreter ends, must not leave anything behind.
        self._finalizer = weakref.finalize(self, self._started.close)

    def _glancing(self, slot: int) -> _Glancing:
        # Weak: what the engine holds must not hold the engine, which closes its workers when it is forgotten.
        engine = weakref.ref(self)

        def ask_worker(generation: Generation, at: list[int]) -> list[Score]:
            alive = engine()
            assert alive is not None
            return alive.in_worker(slot, generation, at).result()

        return _Glancing(self.leaves[slot], ask_worker)

    @property
    def step(self) -> int | None:
        """The training step for rows that do not say theirs."""
        return self._inline.step

    @step.setter
    def step(self, step: int | None) -> None:
        self._inline.step = step

    def _check_limits(self, leaf: Leaf) -> None:
        limit = "a deadline" if leaf.deadline is not None else "a memory cap" if leaf.worker_memory is not None else ""
        if limit and _stays_here(leaf) and not leaf.is_async:
            raise UsageError(
                f"reward {leaf.label!r} has {limit}, but is defined where no worker process can load it"
                f" ({leaf.target or 'inside a function'}); move it to the top of a file and import it from there"
            )

    # -- scoring

    def score(self, generations: Iterable[Generation]) -> Iterator[Scored]:
        """Score generations, in order, as a stream. See `rewardkit.score`."""
        stream = _stream(generations)
        first = list(itertools.islice(stream, PEEK))
        check_columns(self.leaves, first)
        yield from self.score_unchecked(itertools.chain(first, stream))

    def score_unchecked(self, generations: Iterable[Generation]) -> Iterator[Scored]:
        """Score without the look for missing columns, which here are only states of their rows."""
        units: Iterable[tuple[Generation, ...]]
        order: Iterator[int] | None = None
        if not self.takes_group and not self.outside:
            yield from map(self._inline, generations)
            return
        if self.takes_group:
            units, order = _grouped(generations)
        else:
            units = ((generation,) for generation in generations)
        results = self._units_outside(units) if self.outside else map(self._inline.unit, units)
        if order is None:
            yield from itertools.chain.from_iterable(results)
        else:
            yield from _in_order(itertools.chain.from_iterable(results), order)

    def _units_outside(self, units: Iterable[tuple[Generation, ...]]) -> Iterator[list[Scored]]:
        """Keep a window of units under way on the loop's thread, and give them back in order."""
        loop = self.started_loop()
        under_way: deque[concurrent.futures.Future[list[Scored]]] = deque()
        try:
            for unit in units:
                under_way.append(loop.submit(self._score_unit(unit)))
                if len(under_way) >= WINDOW:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    async def _score_unit(self, unit: tuple[Generation, ...]) -> list[Scored]:
        members, at = members_of(unit)
        return await score_unit(_Concurrent(self, self._ready, members, at))

    # -- what runs outside

    def started_loop(self) -> LoopThread:
        """The event loop's thread, started when first asked for."""
        with self._started.lock:
            if self._started.loop is None:
                self._started.loop = LoopThread(self._concurrency)
            return self._started.loop

    def pool(self) -> WorkerPool:
        """The worker processes, started when first asked for."""
        with self._started.lock:
            if self._started.pool is None:
                self._started.pool = WorkerPool([self.leaves[slot] for slot in self.away], workers=self._workers)
            return self._started.pool

    def in_worker(self, slot: int, generation: Generation, at: Sequence[int]) -> concurrent.futures.Future[list[Score]]:
        """Judge completions with the leaf of a slot in a worker process."""
        return self.pool().submit(self.away.index(slot), generation, list(at))

    def close(self) -> None:
        """End workers, threads and the loop. Scores that are not read yet are lost."""
        self._started.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Started:
    """What an engine has started so far."""

    def __init__(self) -> None:
        self.pool: WorkerPool | None = None
        self.loop: LoopThread | None = None
        self.lock = threading.Lock()

    def close(self) -> None:
        with self.lock:
            pool, loop = self.pool, self.loop
            self.pool = self.loop = None
        if pool is not None:
            pool.close()
        if loop is not None:
            loop.close()


class _Glancing(Judge):
    """A leaf that decides most completions here by bounded work, and the others in a worker."""

    def __init__(self, leaf: Leaf, ask_worker: Callable[[Generation, list[int]], list[Score]]) -> None:
        super().__init__(leaf)
        self._ask_worker = ask_worker

    def __call__(self, generation: Generation, at: Sequence[int] | None = None) -> list[Score]:
        """Judge completions, or all; wait for the worker where one is needed."""
        places = range(len(generation.completions)) if at is None else at
        glanced, late = self.glance(generation, places)
        return _filled(glanced, self._ask_worker(generation, late) if late else [])

    def glance(self, generation: Generation, at: Sequence[int]) -> tuple[list[Score | None], list[int]]:
        """Return the scores of completions, None for those that need a worker, and the places of these."""
        sample, completions = generation.sample, generation.completions
        prepared = self.prepare(sample)
        if isinstance(prepared, Score):
            return [msgspec.structs.replace(prepared) for _ in at], []
        scores: list[Score | None] = []
        for i in at:
            started = time.perf_counter()
            score = attempt_glance(self.leaf, prepared, sample, completions[i])
            scores.append(None if score is None else _timed(score, started))
        return scores, [i for i, score in zip(at, scores, strict=True) if score is None]


def _filled(glanced: Sequence[Score | None], late: Iterable[Score]) -> list[Score]:
    """Put what the workers decided into the gaps."""
    rest = iter(late)
    return [next(rest) if score is None else score for score in glanced]


class _Concurrent(Evaluation):
    """One group under evaluation on the loop's thread."""

    def __init__(self, engine: Engine, leaves: Leaves, members: tuple[Generation, ...], at: Sequence[int]) -> None:
        super().__init__(leaves, engine.step, members, at)
        self.engine = engine
        self.locks: dict[int, asyncio.Lock] = {}

    async def ask(self, leaf: Reward, at: Sequence[int]) -> list[Score]:
        slot = self.leaves.slots[id(leaf)]
        async with self.locks.setdefault(slot, asyncio.Lock()):
            return await super().ask(leaf, at)

    async def together(self, questions: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        return list(await asyncio.gather(*questions))

    async def judge(self, slot: int, generation: Generation, at: Sequence[int]) -> list[Score]:
        leaf = self.engine.leaves[slot]
        if leaf.is_async:
            return await self._waiting(leaf, generation, at, _call_async)
        if leaf.placement == "thread":
            return await self._waiting(leaf, generation, at, self.engine.started_loop().call_in_thread)
        judge = self.leaves.judges[slot]
        if isinstance(judge, _Glancing):
            glanced, late = judge.glance(generation, at)
            found = await asyncio.wrap_future(self.engine.in_worker(slot, generation, late)) if late else []
            return _filled(glanced, found)
        if _goes_away(leaf):
            return await self._once_each(slot, generation, at)
        return await super().judge(slot, generation, at)

    async def _once_each(self, slot: int, generation: Generation, at: Sequence[int]) -> list[Score]:
        """Judge in a worker; of completions that share an identity only the first one."""
        leaf, known = self.engine.leaves[slot], self.engine.known
        keys = [leaf.identity(generation.sample, generation.completions[i]) for i in at]
        if not any(key is not None for key in keys):
            return await self._in_worker(slot, generation, at)
        full: object
        mine: dict[object, int] = {}
        theirs: dict[int, asyncio.Future[Score]] = {}
        for i, key in zip(at, keys, strict=True):
            full = (slot, i if key is None else key)
            if key is not None and full in known:
                theirs[i] = known[full]
                continue
            mine[full] = i
            if key is not None:
                known[full] = asyncio.get_running_loop().create_future()
        places = list(mine.values())
        try:
            scores = dict(zip(places, await self._in_worker(slot, generation, places), strict=True))
        except BaseException as problem:
            for full in mine:
                _settle(known.pop(full, None), problem)
            raise
        for full, i in mine.items():
            _settle(known.get(full), scores[i])
            if scores[i].state == "error":
                known.pop(full, None)
        _forget(known)
        for i, future in theirs.items():
            scores[i] = msgspec.structs.replace(await future, seconds=0.0)
        self.engine.repeated += len(theirs)
        return [scores[i] for i in at]

    async def _in_worker(self, slot: int, generation: Generation, at: Sequence[int]) -> list[Score]:
        return await asyncio.wrap_future(self.engine.in_worker(slot, generation, at))

    async def _waiting(self, leaf: Leaf, generation: Generation, at: Sequence[int], call: _Call) -> list[Score]:
        """Judge with a leaf that waits for something else, each call within its deadline."""
        limit = self.engine.started_loop().limit
        sample, completions = generation.sample, generation.completions
        async with limit:
            prepared: object = await _within(leaf, lambda: call(lambda: leaf.prepare(sample)))
        if isinstance(prepared, Score):
            return [msgspec.structs.replace(prepared) for _ in at]

        async def one(i: int) -> Score:
            async with limit:
                started = time.perf_counter()
                answer = await _within(leaf, lambda: call(lambda: leaf.judge(prepared, sample, completions[i])))
                return _timed(answer, started)

        if not leaf.takes_group:
            return list(await asyncio.gather(*[one(i) for i in at]))
        async with limit:
            answers = await _within(leaf, lambda: call(lambda: leaf.judge_group(prepared, generation)))
        return [msgspec.structs.replace(answers) for _ in at] if isinstance(answers, Score) else answers


def _settle(future: asyncio.Future[Score] | None, outcome: Score | BaseException) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, Score):
        future.set_result(outcome)
    elif isinstance(outcome, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(outcome)
        future.exception()  # seen, even where nobody else waits


def _forget(known: dict[object, asyncio.Future[Score]]) -> None:
    """Drop the oldest answers beyond what is kept."""
    for key in list(itertools.islice(known, max(0, len(known) - REMEMBERED))):
        if known[key].done():
            del known[key]


_Call = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]


async def _call_async(function: Callable[[], Any]) -> Any:
    answer = function()
    return await answer if inspect.isawaitable(answer) else answer


async def _within(leaf: Leaf, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Await a call within the leaf's deadline. Whatever it raises becomes a score, its own TimeoutError too."""
    deadline = asyncio.timeout(leaf.deadline)
    try:
        async with deadline:
            return await call()
    except BaseException as problem:
        task = asyncio.current_task()
        if isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the engine is closing
        if isinstance(problem, TimeoutError) and deadline.expired():
            return Score.error("service", f"no answer within {leaf.deadline:g} s", name=leaf.label)
        return failure(leaf.label, problem)


def _grouped(generations: Iterable[Generation]) -> tuple[list[tuple[Generation, ...]], Iterator[int]]:
    """Put rows of one group together; return the groups, and where their members stood. Holds all in memory.

    Groups come in order of first appearance. A generation made in code (key 0) is a group by itself.
    """
    groups: dict[object, list[tuple[int, Generation]]] = {}
    for place, generation in enumerate(generations):
        groups.setdefault(generation.key or (place,), []).append((place, generation))
    members = list(groups.values())
    places = [place for group in members for place, _ in group]
    return [tuple(generation for _, generation in group) for group in members], iter(places)


def _in_order(results: Iterable[Scored], places: Iterable[int]) -> Iterator[Scored]:
    """Give results back in the order in which they stood, each as soon as all before it are there."""
    waiting: dict[int, Scored] = {}
    following = 0
    for place, result in zip(places, results, strict=True):
        waiting[place] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


# ------------------------------------------------------------------------------------------------ details


def named_rewards(rewards: Rewards) -> dict[str, Reward]:
    """Return rewards by name; a single one goes by its own label. A text is read as a formula."""
    if isinstance(rewards, Mapping):
        named = {str(name): _reward(reward) for name, reward in rewards.items()}
    else:
        reward = _reward(rewards)
        named = {reward.label if isinstance(reward, Leaf) else "total": reward}
    if not named:
        raise UsageError("no reward is given; pass one, for example rewardkit.parse('gsm8k')")
    return named


def _reward(given: Reward | Callable[..., Any] | str) -> Reward:
    return recipe.parse(given) if isinstance(given, str) else as_reward(given)


def _stream(generations: Iterable[Generation]) -> Iterator[Generation]:
    """Give the generations one by one; say what is wrong with what is none."""
    hint = "read a file with rewardkit.read_generations(path), or make Generation(Sample(...), (Completion(...), ...))"
    if isinstance(generations, (Generation, str, bytes, PathLike)):
        raise UsageError(f"a stream of generations is wanted, got one {type(generations).__name__}; {hint}")
    for generation in generations:
        if not isinstance(generation, Generation):
            raise UsageError(f"generations are wanted, got a {type(generation).__name__}; {hint}")
        yield generation


def check_columns(leaves: Sequence[Leaf], peek: Sequence[Generation]) -> None:
    """Refuse to start when none of these generations has a column that a leaf needs.

    Raises:
        ColumnError: Says the place, the sample, what is needed, what was found, and the nearest name.
    """
    if not peek:
        return
    for leaf in leaves:
        for name in leaf.needs:
            if not any(_has(name, leaf, generation) for generation in peek):
                raise ColumnError(_missing_text(leaf, name, peek[0]))


def _has(name: str, leaf: Leaf, generation: Generation) -> bool:
    if name == "reference":
        if generation.sample.reference is not None:
            return True
        fields = type(leaf).reference_type().model_fields if isinstance(leaf, Verifier) else ()
        return any(generation.sample.metadata.get(field) is not None for field in fields)
    return any(column(name, generation.sample, completion) is not MISSING for completion in generation.completions)


def _missing_text(leaf: Leaf, name: str, generation: Generation) -> str:
    sample = generation.sample
    found = list(sample.metadata)
    for completion in generation.completions[:1]:
        found += [key for key in completion.metadata if key not in found]
    what = f"column {name!r}"
    guess = nearest(name, found) or ("; say which one holds it: --map label=COLUMN" if name == "label" else "")
    if name == "reference":
        what = "a reference"
        if isinstance(leaf, Verifier):
            first = next(iter(type(leaf).reference_type().model_fields.values()))
            what += f" ({first.description})" if first.description else ""
        guess = _reference_like(found) or "; say which column holds it: --map reference=COLUMN"
    where = f"{generation.where}: " if generation.where else ""
    listed = ", ".join(found) if found else "none"
    return f"{where}sample {sample.id!r}: {leaf.label} needs {what}, found columns {listed}{guess}"


def _reference_like(columns: Sequence[str]) -> str:
    """Return `; did you mean x?` for a column that is called like a reference, or nearly so, else ""."""
    other = {*flat(names.PROMPT), *flat(names.COMPLETION), *flat(names.ID)}
    free = [column for column in columns if column.lower() not in other]
    for alias in flat(names.REFERENCE):
        if alias in free:
            return f"; did you mean {alias}?"
    return next((hint for hint in (nearest(alias, free) for alias in flat(names.REFERENCE)) if hint), "")


def _outside(leaf: Leaf) -> bool:
    return leaf.is_async or leaf.placement == "thread" or (_goes_away(leaf) and not leaf.glances)


def _goes_away(leaf: Leaf) -> bool:
    """Tell whether a leaf runs in a worker process."""
    return leaf.placement == "process" and not leaf.is_async and not _stays_here(leaf)


def _stays_here(leaf: Leaf) -> bool:
    """Tell whether no other process can load this leaf: it lives in `__main__`, a notebook or a function."""
    return not targets.travels(leaf.target)


def _timed(answer: Score, started: float) -> Score:
    if answer.seconds is None:
        # The score was made a moment ago and nobody else holds it yet.
        msgspec.structs.force_setattr(answer, "seconds", time.perf_counter() - started)
    return answer
