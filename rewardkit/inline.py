"""Scoring in this very thread: what an engine does with rewards that never wait, here and in chunk workers alike.

`Inline` is the fast way for a stream of generations. `Evaluation` is one group under evaluation; the engine's
concurrent one is derived from it, so that where a reward runs never changes a result.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rewardkit.compose import Reward
from rewardkit.errors import UsageError
from rewardkit.extract import PLAIN_ENDS, strip_special_tokens
from rewardkit.leaf import Leaf, attempt_group, attempt_prepare, broke
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifier import Verifier

_T = TypeVar("_T")

_KEPT = 1024  # references that a verifier has read and may meet again: rows of one group need not be neighbours
_KEPT_LENGTH = 4096  # characters of such a reference, so that what is kept stays small


class Scored(msgspec.Struct, frozen=True):
    """One generation with its scores: for each reward's name, one score a completion."""

    generation: Generation
    scores: dict[str, list[Score]]


set_field = msgspec.structs.force_setattr
clock = time.perf_counter


class Judge:
    """A leaf made ready: it reads a reference once, however many rows in a row have it."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._takes_group = leaf.takes_group
        self._judge = leaf.judge
        self._known: dict[str, object] | None = {} if _reads_reference_only(leaf) else None

    def prepare(self, sample: Sample) -> object:
        """Return what the leaf makes of the reference; a Score where it cannot be read."""
        known, reference = self._known, sample.reference
        if known is None or type(reference) is not str or len(reference) > _KEPT_LENGTH:
            return attempt_prepare(self.leaf, sample)
        prepared = known.get(reference)
        if prepared is None:
            prepared = attempt_prepare(self.leaf, sample)
            if len(known) >= _KEPT:
                known.clear()
            known[reference] = prepared
        return prepared

    def __call__(self, generation: Generation, at: Sequence[int] | None = None) -> list[Score]:
        """Judge completions in this thread, or all; a group reward always judges the whole generation."""
        sample, completions = generation.sample, generation.completions
        known, reference = self._known, sample.reference
        prepared = known.get(reference) if known is not None and type(reference) is str else None
        if prepared is None:
            prepared = self.prepare(sample)
        if at is not None:
            completions = tuple([completions[i] for i in at])
        if type(prepared) is Score:
            return [msgspec.structs.replace(prepared) for _ in completions]
        if self._takes_group:
            return attempt_group(self.leaf, prepared, generation)
        judge, scores = self._judge, []
        begun = clock()
        for completion in completions:
            try:
                score: Score = judge(prepared, sample, completion)  # type: ignore[assignment]
            except BaseException as problem:
                score = broke(self.leaf, problem)
            ended = clock()
            if score.seconds is None:
                # The score was made a moment ago and nobody else holds it yet.
                set_field(score, "seconds", ended - begun)
            begun = ended
            scores.append(score)
        return scores


def _reads_reference_only(leaf: Leaf) -> bool:
    """Whether what `prepare` returns follows from a reference that is a text, and from nothing else."""
    if not isinstance(leaf, Verifier) or type(leaf).prepare is not Verifier.prepare:
        return False
    return len(type(leaf).reference_type().model_fields) == 1


class Leaves:
    """The leaves of some rewards; equal ones share a slot, so that each completion is judged once.

    Attributes:
        rewards: The rewards by name.
        leaves: The leaves, each at its slot.
        slots: The slot of a leaf, by the `id` of the object.
    """

    def __init__(self, rewards: Mapping[str, Reward]) -> None:
        self.rewards = dict(rewards)
        self.leaves: list[Leaf] = []
        self.slots: dict[int, int] = {}
        for reward in self.rewards.values():
            for leaf in reward.leaves():
                self._admit(leaf)
        self.judges = [Judge(leaf) for leaf in self.leaves]

    def _admit(self, leaf: Reward) -> None:
        if not isinstance(leaf, Leaf):
            raise UsageError(f"{type(leaf).__name__} is neither a leaf nor a composition")
        for slot, known in enumerate(self.leaves):
            if type(known) is type(leaf) and known == leaf:
                self.slots[id(leaf)] = slot
                return
        self.slots[id(leaf)] = len(self.leaves)
        self.leaves.append(leaf)


class Evaluation:
    """One group under evaluation where everything is inline: nothing here ever waits.

    Rewards of whole groups see `generation`, the members put together; all others see each member as it is in
    the source, with its own reference and columns.
    """

    def __init__(self, leaves: Leaves, step: int | None, members: tuple[Generation, ...], at: Sequence[int]) -> None:
        self.leaves = leaves
        self.members = members
        self.generation = members[0] if len(members) == 1 else _together(members)
        self.step = step
        self.valid = at
        self.known: dict[int, dict[int, Score]] = {}

    async def ask(self, leaf: Reward, at: Sequence[int]) -> list[Score]:
        """Score the completions at these places with one leaf."""
        slot = self.leaves.slots[id(leaf)]
        known = self.known.setdefault(slot, {})
        missing = [i for i in at if i not in known]
        if missing:
            known.update(await self._judge_at(slot, missing))
        return [known[i] for i in at]

    async def _judge_at(self, slot: int, at: Sequence[int]) -> dict[int, Score]:
        leaf = self.leaves.leaves[slot]
        if leaf.takes_group:
            whole = _chosen(self.generation, self.valid)
            scores = await self.judge(slot, whole, range(len(self.valid)))
            return dict(zip(self.valid, scores, strict=True))
        found: dict[int, Score] = {}
        start = 0
        for member in self.members:
            end = start + len(member.completions)
            places = [i for i in at if start <= i < end]
            if places:
                scores = await self.judge(slot, member, [i - start for i in places])
                found.update(zip(places, scores, strict=True))
            start = end
        return found

    async def judge(self, slot: int, generation: Generation, at: Sequence[int]) -> list[Score]:
        """Judge completions of one generation with the leaf of a slot."""
        return self.leaves.judges[slot](generation, at)

    async def together(self, questions: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        """Await several questions, one after the other."""
        return [await question for question in questions]


async def score_unit(evaluation: Evaluation) -> list[Scored]:
    """Score one group: one generation, or several that a file has spread over rows."""
    members, at = evaluation.members, evaluation.valid
    completions = [completion for member in members for completion in member.completions]
    scored = [Scored(member, {}) for member in members]
    for name, reward in evaluation.leaves.rewards.items():
        answers = await reward.evaluate(evaluation, at)
        if len(at) != len(completions):
            answers = _with_failed(answers, at, completions)
        finished = iter([_finished(answer, name) for answer in answers])
        for one in scored:
            one.scores[name] = list(itertools.islice(finished, len(one.generation.completions)))
    return scored


def members_of(unit: Sequence[Generation]) -> tuple[tuple[Generation, ...], list[int]]:
    """Return the generations of a group as rewards see them, and the places of completions that can be judged."""
    members = tuple(map(cleaned, unit))
    completions = (completion for member in members for completion in member.completions)
    return members, [i for i, completion in enumerate(completions) if completion.error is None]


class Inline:
    """Scores generations one by one with rewards that never wait."""

    def __init__(self, leaves: Leaves, step: int | None) -> None:
        self._leaves = leaves
        self.step = step
        self._plain = self._plainly()

    def _plainly(self) -> list[tuple[str, Judge]] | None:
        """Return a judge for each name, where each reward is a leaf that nothing else needs; None otherwise."""
        leaves = self._leaves
        rewards = list(leaves.rewards.items())
        if len(rewards) != len(leaves.leaves) or any(leaf.takes_group for leaf in leaves.leaves):
            return None
        if not all(isinstance(reward, Leaf) for _, reward in rewards):
            return None
        return [(name, leaves.judges[leaves.slots[id(reward)]]) for name, reward in rewards]

    def __call__(self, generation: Generation) -> Scored:
        """Score one generation that is a group by itself, or whose rewards look at completions one by one."""
        plain = self._plain
        if plain is None:
            return self.unit((generation,))[0]
        for completion in generation.completions:
            if completion.error is not None:
                return self.unit((generation,))[0]
            if completion.text[-1:] not in PLAIN_ENDS:
                generation = cleaned(generation)
        scores = {}
        for name, judge in plain:
            answers = scores[name] = judge(generation)
            for answer in answers:
                if (answer.name is not name and answer.name != name) or (answer.parts and answer.seconds is None):
                    scores[name] = [_finished(answer, name) for answer in answers]
                    break
        return Scored(generation, scores)

    def unit(self, unit: tuple[Generation, ...]) -> list[Scored]:
        """Score one group, which a file may have spread over rows."""
        members, at = members_of(unit)
        coroutine = score_unit(Evaluation(self._leaves, self.step, members, at))
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: list[Scored] = done.value
            return result
        raise RuntimeError("an inline reward waited")  # a bug of ours: only the engine's concurrent evaluation may wait


def cleaned(generation: Generation) -> Generation:
    """Drop the special tokens that some samplers leave at the end of a text."""
    completions = generation.completions
    for completion in completions:
        text = completion.text
        if text[-1:] in PLAIN_ENDS:
            continue
        if (kept := strip_special_tokens(text)) is not text and kept != text:
            break
    else:
        return generation
    texts = (strip_special_tokens(completion.text) for completion in completions)
    changed = tuple(msgspec.structs.replace(c, text=t) for c, t in zip(completions, texts, strict=True))
    return msgspec.structs.replace(generation, completions=changed)


def _together(members: Sequence[Generation]) -> Generation:
    """Return one generation with the completions of all; its sample is the first one's."""
    completions = tuple(completion for member in members for completion in member.completions)
    return msgspec.structs.replace(members[0], completions=completions)


def _chosen(generation: Generation, places: Sequence[int]) -> Generation:
    """Return a group with the completions at some places: those that its source does not mark as failed."""
    if len(places) == len(generation.completions):
        return generation
    return msgspec.structs.replace(generation, completions=tuple(generation.completions[i] for i in places))


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
