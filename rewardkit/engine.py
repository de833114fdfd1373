"""The engine: rewards in, generations in, scores out. The one pipeline, on disk and in training.

Generations are read as a stream and come out in the same order. A reward runs where it says: inline, awaited
(async), in a thread, or in a killable worker process; none of that changes a result. Whatever goes wrong becomes
the state of that completion's score; only a broken contract or a wrong option stops the run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rewardkit import targets
from rewardkit.compose import Reward
from rewardkit.errors import ColumnError, UsageError, nearest
from rewardkit.extract import strip_special_tokens
from rewardkit.leaf import Leaf, attempt, attempt_group, attempt_prepare, failure
from rewardkit.records import gather
from rewardkit.reward import MISSING, as_reward, column
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifier import Verifier
from rewardkit.workers import WorkerPool

_T = TypeVar("_T")

PEEK = 32
"""How many generations are looked at for missing columns before anything is scored."""

WINDOW = 128
"""How many generations may be under way at once."""


class Scored(msgspec.Struct, frozen=True):
    """One generation with its scores: for each reward's name, one score a completion."""

    generation: Generation
    scores: dict[str, list[Score]]


def score(
    rewards: Reward | Callable[..., Any] | Mapping[str, Reward],
    generations: Iterable[Generation],
    *,
    workers: int | None = None,
    concurrency: int = 64,
    step: int | None = None,
) -> Iterator[Scored]:
    """Score generations, in order, as a stream.

    Args:
        rewards: One reward, or several by name.
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
    reward: Reward | Callable[..., Any],
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
        rewards: Reward | Callable[..., Any] | Mapping[str, Reward],
        *,
        workers: int | None = None,
        concurrency: int = 64,
        step: int | None = None,
    ) -> None:
        self.rewards = named_rewards(rewards)
        self.step = step
        self.leaves: list[Leaf] = []
        self.slots: dict[int, int] = {}
        for reward in self.rewards.values():
            for leaf in reward.leaves():
                self._admit(leaf)
        self.takes_group = any(leaf.takes_group for leaf in self.leaves)
        self.outside = any(_outside(leaf) for leaf in self.leaves)
        self._workers = workers
        self._concurrency = concurrency
        self._pool: WorkerPool | None = None
        self._loop: _LoopThread | None = None
        self._lock = threading.Lock()

    def _admit(self, leaf: Reward) -> None:
        """Give a leaf its slot; equal leaves share one, so that each completion is judged once."""
        if not isinstance(leaf, Leaf):
            raise UsageError(f"{type(leaf).__name__} is neither a leaf nor a composition")
        for slot, known in enumerate(self.leaves):
            if type(known) is type(leaf) and known == leaf:
                self.slots[id(leaf)] = slot
                return
        limit = "a deadline" if leaf.timeout is not None else "a memory cap" if leaf.memory is not None else ""
        if limit and _stays_here(leaf) and not leaf.is_async:
            raise UsageError(
                f"reward {leaf.label!r} has {limit}, but is defined where no worker process can load it"
                f" ({leaf.target or 'inside a function'}); move it to the top of a file and import it from there"
            )
        self.slots[id(leaf)] = len(self.leaves)
        self.leaves.append(leaf)

    # -- scoring

    def score(self, generations: Iterable[Generation]) -> Iterator[Scored]:
        """Score generations, in order, as a stream. See `rewardkit.score`."""
        stream = iter(gather(generations) if self.takes_group else generations)
        first = list(itertools.islice(stream, PEEK))
        check_columns(self.leaves, first)
        yield from self.score_unchecked(itertools.chain(first, stream))

    def score_unchecked(self, generations: Iterable[Generation]) -> Iterator[Scored]:
        """Score whole groups without the look for missing columns, which here are only states of their rows."""
        if self.outside:
            yield from self._score_outside(generations)
            return
        for generation in generations:
            yield _run_inline(self._score_one(generation, _Inline))

    def _score_outside(self, generations: Iterable[Generation]) -> Iterator[Scored]:
        """Keep a window of generations under way on the loop's thread, and give them back in order."""
        loop = self._started_loop()
        under_way: deque[concurrent.futures.Future[Scored]] = deque()
        try:
            for generation in generations:
                under_way.append(loop.submit(self._score_one(generation, _Concurrent)))
                if len(under_way) >= WINDOW:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    async def _score_one(self, generation: Generation, kind: type[_Inline] | type[_Concurrent]) -> Scored:
        generation = _cleaned(generation)
        completions = generation.completions
        at = [i for i, completion in enumerate(completions) if completion.error is None]
        evaluation = kind(self, generation, at)
        scores: dict[str, list[Score]] = {}
        for name, reward in self.rewards.items():
            answers = await reward.evaluate(evaluation, at)
            if len(at) != len(completions):
                answers = _with_failed(answers, at, completions)
            scores[name] = [_finished(answer, name) for answer in answers]
        return Scored(generation, scores)

    # -- what runs outside

    def _started_loop(self) -> _LoopThread:
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread(self._concurrency)
            return self._loop

    def pool(self) -> WorkerPool:
        """The worker processes, started when first asked for."""
        with self._lock:
            if self._pool is None:
                self._pool = WorkerPool(self.leaves, workers=self._workers)
            return self._pool

    def close(self) -> None:
        """End workers, threads and the loop. Scores that are not read yet are lost."""
        with self._lock:
            pool, loop = self._pool, self._loop
            self._pool = self._loop = None
        if pool is not None:
            pool.close()
        if loop is not None:
            loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Inline:
    """One generation under evaluation where everything is inline: nothing here ever waits."""

    def __init__(self, engine: Engine, generation: Generation, at: Sequence[int]) -> None:
        self.engine = engine
        self.generation = generation
        self.step = engine.step
        self.valid = at
        self.known: dict[int, dict[int, Score]] = {}

    async def ask(self, leaf: Reward, at: Sequence[int]) -> list[Score]:
        slot = self.engine.slots[id(leaf)]
        known = self.known.setdefault(slot, {})
        missing = [i for i in at if i not in known]
        if missing:
            known.update(await self._judge(slot, missing))
        return [known[i] for i in at]

    async def _judge(self, slot: int, at: Sequence[int]) -> dict[int, Score]:
        return judge_here(self.engine.leaves[slot], self.generation, at, self.valid)

    async def together(self, questions: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        return [await question for question in questions]


class _Concurrent(_Inline):
    """One generation under evaluation on the loop's thread."""

    def __init__(self, engine: Engine, generation: Generation, at: Sequence[int]) -> None:
        super().__init__(engine, generation, at)
        self.locks: dict[int, asyncio.Lock] = {}

    async def ask(self, leaf: Reward, at: Sequence[int]) -> list[Score]:
        slot = self.engine.slots[id(leaf)]
        async with self.locks.setdefault(slot, asyncio.Lock()):
            return await super().ask(leaf, at)

    async def together(self, questions: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        return list(await asyncio.gather(*questions))

    async def _judge(self, slot: int, at: Sequence[int]) -> dict[int, Score]:
        leaf = self.engine.leaves[slot]
        loop = self.engine._started_loop()
        if leaf.is_async:
            return await self._await_all(leaf, at, loop)
        if leaf.placement == "thread":
            return await self._thread_all(leaf, at, loop)
        if leaf.placement == "process" and not _stays_here(leaf):
            places = self.valid if leaf.takes_group else at
            scores = await asyncio.wrap_future(self.engine.pool().submit(slot, self.generation, places))
            return dict(zip(places, scores, strict=True))
        return judge_here(leaf, self.generation, at, self.valid)

    async def _await_all(self, leaf: Leaf, at: Sequence[int], loop: _LoopThread) -> dict[int, Score]:
        sample, completions = self.generation.sample, self.generation.completions
        prepared = attempt_prepare(leaf, sample)
        if isinstance(prepared, Score):
            return dict.fromkeys(at, prepared)

        if leaf.takes_group:
            return await self._await_group(leaf, prepared, loop)

        async def one(i: int) -> Score:
            async with loop.limit:
                started = time.perf_counter()
                try:
                    answer: Any = leaf.judge(prepared, sample, completions[i])
                    result: Score = await asyncio.wait_for(answer, leaf.timeout)
                except TimeoutError:
                    result = _late(leaf)
                except (Exception, SystemExit) as problem:
                    result = failure(leaf.label, problem)
                return _timed(result, started)

        return dict(zip(at, await asyncio.gather(*[one(i) for i in at]), strict=True))

    async def _await_group(self, leaf: Leaf, prepared: object, loop: _LoopThread) -> dict[int, Score]:
        whole = _without_failed(self.generation, self.valid)
        async with loop.limit:
            try:
                answer: Any = leaf.judge_group(prepared, whole)
                scores: list[Score] = await asyncio.wait_for(answer, leaf.timeout)
            except TimeoutError:
                scores = [_late(leaf) for _ in self.valid]
            except (Exception, SystemExit) as problem:
                scores = [failure(leaf.label, problem) for _ in self.valid]
        return dict(zip(self.valid, scores, strict=True))

    async def _thread_all(self, leaf: Leaf, at: Sequence[int], loop: _LoopThread) -> dict[int, Score]:
        sample, completions = self.generation.sample, self.generation.completions

        async def run(function: Callable[[], Any], late: Callable[[], Any]) -> Any:
            async with loop.limit:
                try:
                    return await asyncio.wait_for(asyncio.wrap_future(_in_thread(function)), leaf.timeout)
                except TimeoutError:
                    return late()

        prepared = await run(lambda: attempt_prepare(leaf, sample), lambda: _late(leaf))
        if isinstance(prepared, Score):
            return dict.fromkeys(at, prepared)

        def judging(i: int) -> Callable[[], Score]:
            def judge() -> Score:
                started = time.perf_counter()
                return _timed(attempt(leaf, prepared, sample, completions[i]), started)

            return judge

        scores = await asyncio.gather(*[run(judging(i), lambda: _late(leaf)) for i in at])
        return dict(zip(at, scores, strict=True))


def judge_here(leaf: Leaf, generation: Generation, at: Sequence[int], valid: Sequence[int]) -> dict[int, Score]:
    """Judge completions in this thread. A group reward always gets all `valid` ones."""
    prepared = attempt_prepare(leaf, generation.sample)
    if isinstance(prepared, Score):
        return dict.fromkeys(at, prepared)
    sample, completions = generation.sample, generation.completions
    if leaf.takes_group:
        whole = _without_failed(generation, valid)
        return dict(zip(valid, attempt_group(leaf, prepared, whole), strict=True))
    scores = {}
    for i in at:
        started = time.perf_counter()
        scores[i] = _timed(attempt(leaf, prepared, sample, completions[i]), started)
    return scores


def _without_failed(generation: Generation, valid: Sequence[int]) -> Generation:
    """Return a group without the completions that its source marks as failed."""
    if len(valid) == len(generation.completions):
        return generation
    return msgspec.structs.replace(generation, completions=tuple(generation.completions[i] for i in valid))


class _LoopThread:
    """An event loop of our own on a daemon thread, so that nothing depends on the caller's."""

    def __init__(self, concurrency: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.limit = asyncio.Semaphore(concurrency)
        self.thread = threading.Thread(target=self._run, name="rewardkit-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)
        if not self.thread.is_alive():
            self.loop.close()

    @staticmethod
    async def _cancel_all() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _in_thread(function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
    """Run a function on a daemon thread: one that never returns cannot hold up the process's end."""
    future: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as problem:
            if not future.cancelled():
                future.set_exception(problem)
        else:
            if not future.cancelled():
                future.set_result(result)

    threading.Thread(target=run, name="rewardkit-reward", daemon=True).start()
    return future


# ------------------------------------------------------------------------------------------------ details


def named_rewards(rewards: Reward | Callable[..., Any] | Mapping[str, Reward]) -> dict[str, Reward]:
    """Return rewards by name; a single one goes by its own label."""
    if isinstance(rewards, Mapping):
        named = {str(name): as_reward(reward) for name, reward in rewards.items()}
    else:
        reward = as_reward(rewards)
        named = {reward.label if isinstance(reward, Leaf) else "total": reward}
    if not named:
        raise UsageError("no reward is given; pass one, for example rewardkit.parse('gsm8k')")
    return named


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
        aliases = ("answer", "reference", "solution", "ground_truth", "target", "expected", "gold", "label")
        guess = next((hint for hint in (nearest(alias, found) for alias in aliases) if hint), "")
        guess += "" if guess else "; say which column holds it: --map reference=COLUMN"
    where = f"{generation.where}: " if generation.where else ""
    listed = ", ".join(found) if found else "none"
    return f"{where}sample {sample.id!r}: {leaf.label} needs {what}, found columns {listed}{guess}"


def _outside(leaf: Leaf) -> bool:
    return leaf.is_async or leaf.placement == "thread" or (leaf.placement == "process" and not _stays_here(leaf))


def _stays_here(leaf: Leaf) -> bool:
    """Tell whether no other process can load this leaf: it lives in `__main__`, a notebook or a function."""
    return not (targets.travels(leaf.target))


def _cleaned(generation: Generation) -> Generation:
    """Drop the special tokens that some samplers leave at the end of a text."""
    completions = generation.completions
    texts = [strip_special_tokens(completion.text) for completion in completions]
    if all(
        text is completion.text or text == completion.text for text, completion in zip(texts, completions, strict=True)
    ):
        return generation
    cleaned = tuple(msgspec.structs.replace(c, text=t) for c, t in zip(completions, texts, strict=True))
    return msgspec.structs.replace(generation, completions=cleaned)


def _with_failed(answers: Sequence[Score], at: Sequence[int], completions: Sequence[Completion]) -> list[Score]:
    """Put the completions that their source marks as failed back in their places."""
    known = dict(zip(at, answers, strict=True))
    return [
        known[i] if i in known else Score.error("source_failed", " ".join(str(completion.error).split())[:300])
        for i, completion in enumerate(completions)
    ]


def _finished(answer: Score, name: str) -> Score:
    """Give a score its column's name, and a composed one the time of its parts."""
    if answer.name == name and (answer.seconds is not None or not answer.parts):
        return answer
    return msgspec.structs.replace(answer, name=name, seconds=_total_seconds(answer))


def _total_seconds(answer: Score) -> float | None:
    if answer.seconds is not None or not answer.parts:
        return answer.seconds
    known = [seconds for seconds in map(_total_seconds, answer.parts) if seconds is not None]
    return sum(known) if known else None


def _timed(answer: Score, started: float) -> Score:
    if answer.seconds is None:
        # The score was made a moment ago and nobody else holds it yet.
        msgspec.structs.force_setattr(answer, "seconds", time.perf_counter() - started)
    return answer


def _late(leaf: Leaf) -> Score:
    return Score.error("service", f"no answer within {leaf.timeout:g} s", name=leaf.label)


def _run_inline(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Drive a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("an inline reward waited")  # a bug of ours: only `_Concurrent` may wait
