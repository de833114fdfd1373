"""A summary made in pieces, as worker processes and shards make it, is the summary of the whole to the last bit."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rewardkit.report import Summary, warnings
from rewardkit.report.column import MAX_KINDS
from rewardkit.report.summary import NAMED, was_cut
from rewardkit.types import Completion, Generation, Sample, Score

NAMES = ["math", "total"]
Item = tuple[Generation, dict[str, list[Score]]]


def score(rng: random.Random, distinct: int) -> Score:
    kind = rng.randrange(10)
    seconds = rng.random() if rng.random() < 0.5 else None
    if kind == 0:
        return Score(
            None, rng.choice(["", "no reference", "gold '?'"]), reason=rng.choice(["missing", "bad_reference"])
        )
    if kind == 1:
        return Score(None, "x" * rng.randrange(400), reason=rng.choice(["raised", "service"]), seconds=seconds)
    value = rng.randrange(distinct) / max(1, distinct - 1) * rng.choice([1.0, 1.0, -1.0])
    return Score(value, reason=rng.choice([None, "wrong", "no_answer"]), seconds=seconds)


def total(rng: random.Random, distinct: int) -> Score:
    parts = tuple(
        msgspec.structs.replace(score(rng, distinct), name=name, weight=rng.choice([0.5, 0.5, weight]))
        for name, weight in (("math", 0.5), ("format", 0.1))
        if rng.random() < 0.9
    )
    return msgspec.structs.replace(score(rng, distinct), parts=parts)


def stream(seed: int, length: int, distinct: int) -> list[Item]:
    rng = random.Random(seed)
    items = []
    for at in range(length):
        size = rng.randrange(0, 5)
        texts = ["x" * rng.randrange(50) for _ in range(size)]
        completions = tuple(
            Completion(
                text,
                finish_reason=rng.choice([None, "stop", "length"]),
                metadata=rng.choice([{}, {"label": rng.choice([0, 1, True, 0.5, "no", None])}]) if at > 3 else {},
            )
            for text in texts
        )
        key = rng.choice([0, rng.randrange(1, 9), rng.randrange(1, 9), rng.getrandbits(64), -rng.getrandbits(62)])
        sample = Sample(rng.choice([rng.randrange(5), str(rng.randrange(5)), "数学", "\ud800", "y" * 300, 1 << 70]))
        generation = Generation(sample, completions, rng.choice([None, "a", "b"]), key=key)
        columns = {
            "math": [score(rng, distinct) for _ in texts],
            "total": [total(rng, distinct) for _ in texts],
        }
        items.append((generation, columns))
    return items


def summed(items: Sequence[Item]) -> Summary:
    summary = Summary(NAMES)
    for generation, scores in items:
        summary.add(generation, scores)
    return summary


def dump(summary: Summary) -> str:
    figures = summary.to_dict()
    warnings({"models": figures})
    return json.dumps(figures, allow_nan=False)


def sent(summary: Summary) -> Any:
    """A state as it arrives from another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(summary.state()))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(0, 40),
    distinct=st.sampled_from([1, 2, 5, 1000]),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
@example(seed=1, length=30, distinct=2, cuts=[0, 0, 30])
@example(seed=2, length=40, distinct=5, cuts=list(range(40)))
def test_any_split_gives_the_figures_of_the_whole(seed: int, length: int, distinct: int, cuts: list[int]) -> None:
    items = stream(seed, length, distinct)
    edges = [0, *sorted(cuts), length]
    merged = Summary(NAMES)
    for start, end in itertools.pairwise(edges):
        merged.absorb(sent(summed(items[start:end])))
    assert dump(merged) == dump(summed(items))


@pytest.mark.parametrize("pieces", [2, 3, 40])
def test_values_that_outgrow_their_byte_do_so_in_pieces_too(pieces: int) -> None:
    """One piece has few values and another many; or none has many, and only together they do."""
    items = stream(7, 2400, 4000)  # halves have too many values on their own, fortieths have not
    assert len({one.value for _, scores in items for one in scores["math"]}) > MAX_KINDS
    size = len(items) // pieces
    merged = Summary(NAMES)
    for start in range(0, len(items), size):
        merged.absorb(sent(summed(items[start : start + size])))
    assert dump(merged) == dump(summed(items))


def test_scores_may_be_added_before_between_and_after_states() -> None:
    items = stream(3, 90, 3)
    merged = summed(items[:20])
    merged.absorb(sent(summed(items[20:50])))
    for generation, scores in items[50:70]:
        merged.add(generation, scores)
    merged.absorb(sent(summed(items[70:])))
    assert dump(merged) == dump(summed(items))


def test_a_group_that_goes_on_after_another_group_was_absorbed_stays_apart_from_it() -> None:
    def one(key: int, value: float) -> Item:
        return Generation(Sample(key), (Completion("x"),), key=key), {name: [Score(value)] for name in NAMES}

    items = [one(1, 1.0), one(2, 0.0), one(1, 1.0)]
    merged = summed(items[:1])
    merged.absorb(sent(summed(items[1:2])))
    merged.add(*items[2])
    assert dump(merged) == dump(summed(items))


def test_taking_a_state_changes_nothing() -> None:
    summary = summed(stream(4, 50, 3))
    before = dump(summary)
    assert summary.state() == summary.state()
    assert dump(summary) == before


def test_states_of_states_and_of_nothing() -> None:
    items = stream(5, 60, 4)
    halves = Summary(NAMES)
    halves.absorb(sent(summed(items[:30])))
    whole = Summary(NAMES)
    whole.absorb(sent(Summary(NAMES)))
    whole.absorb(sent(halves))
    whole.absorb(sent(summed(items[30:])))
    assert dump(whole) == dump(summed(items))


def test_a_state_of_other_rewards_is_refused() -> None:
    other = Summary(["math"])
    other.add(Generation(Sample(1), (Completion("x"),)), {"math": [Score(1.0)]})
    with pytest.raises(ValueError, match="a summary of math, total cannot take in one of math"):
        Summary(NAMES).absorb(other.state())


def test_the_figures_of_many_measured_times_are_exact_but_for_quantiles() -> None:
    def times(start: int, end: int) -> Summary:
        summary = Summary(["math"])
        for at in range(start, end):
            scores = [Score(1.0, seconds=(at * 7919 % 9973) / 9973)]
            summary.add(Generation(Sample(at), (Completion("x"),), key=at + 1), {"math": scores})
        return summary

    merged = Summary(["math"])
    for start in (0, 6000, 12000):
        merged.absorb(sent(times(start, start + 6000)))
    got = merged.to_dict()["default"]["rewards"]["math"]["seconds"]
    want = times(0, 18000).to_dict()["default"]["rewards"]["math"]["seconds"]
    assert {name: got[name] for name in ("total", "max", "n")} == {name: want[name] for name in ("total", "max", "n")}
    assert abs(got["p50"] - 0.5) < 0.06 and abs(got["p95"] - 0.95) < 0.03


def test_ids_of_unsolved_groups_do_not_depend_on_order_or_pieces() -> None:
    """More groups than ids are kept: which are named must not depend on which came first."""
    rng = random.Random(1)
    items = []
    for at in range(3 * NAMED):
        solved = rng.random() < 0.99
        scores = [Score(float(solved and place == 2)) for place in range(4)]
        generation = Generation(Sample(at), tuple(Completion("x") for _ in scores), key=rng.getrandbits(64) or 1)
        items.append((generation, {"math": scores, "total": scores}))
    singles = [
        (
            Generation(one.sample, (completion,), key=one.key),
            {name: [held[at]] for name, held in scores.items()},
        )
        for one, scores in items
        for at, completion in enumerate(one.completions)
    ]
    rng.shuffle(singles)
    want = summed(items)
    assert dump(summed(singles)) == dump(want)
    assert dump(summed(items[::-1])) == dump(want)
    merged = Summary(NAMES)
    for start in range(0, len(singles), 1000):
        merged.absorb(sent(summed(singles[start : start + 1000])))
    assert dump(merged) == dump(want)
    never = want.to_dict()["default"]["groups"]["never_solved"]["math"]
    assert never["of"] == 3 * NAMED and 0 < never["n"] < NAMED
    assert len(never["ids"]) == 5 and never["ids"] == sorted(never["ids"])


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        ("length", True), ("MAX_TOKENS", True), ("FinishReason.MAX_TOKENS", True), ("maxTokens", True),
        ("max-tokens", True), ("Length", True), ("FINISH_REASON_LENGTH", True), ("stop", False), ("eos", False),
        ("", False), ("lengthy", False),
    ],
)  # fmt: skip
def test_what_says_that_a_completion_was_cut_off(reason: str, cut: bool) -> None:
    assert was_cut(reason) is cut
