r"""Compare answers in mathematics: `parse`, `equal`, `verify`, `grade`.

    from rewardkit.math import equal, grade, verify

    equal("0.5", r"\frac{1}{2}")                        # True: exact values, either way round
    verify("0.333333", r"\frac{1}{3}").value            # 1.0: the second is the reference, and has its rules
    grade(r"so it is $\boxed{0.5}$", r"\frac{1}{2}")    # finds the answer in a response first

All are safe in threads and event loops: no signals, nothing is executed, nothing takes more than about a second. What
only computer algebra can decide (integrals, limits, infinite sums) runs in a worker process with a deadline.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rewardkit.errors import RewardkitError
from rewardkit.types import Completion, Generation, Sample, Verdict
from rewardkit.verifiers.math.gate import Refused
from rewardkit.verifiers.math.leaves import NeedsAlgebra
from rewardkit.verifiers.math.policy import DEFAULT, EXACT, Policy
from rewardkit.verifiers.math.reading import read
from rewardkit.verifiers.math.tree import Node, Text
from rewardkit.verifiers.math.verifier import Math, compared, gold_text

if TYPE_CHECKING:
    from rewardkit.workers import WorkerPool


class UnreadableAnswer(RewardkitError):
    """A text that is no answer: why is in its message."""


def parse(text: str) -> Node:
    """Return the tree of an answer; words are a `Text`.

    Raises:
        UnreadableAnswer: It cannot be read as an answer.
    """
    reading = read(text)
    problem = reading.unreadable
    if problem is not None:
        raise UnreadableAnswer(f"{reading.shown!r}: {problem}")
    tree = reading.tree
    return tree if tree is not None else Text(reading.folded)


def equal(a: str, b: str) -> bool:
    """Whether two answers have the same exact value; symmetric, and True for a readable answer and itself.

    False where one of them cannot be read. Nothing is rounded.
    """
    first, second = read(a), read(b)
    if first.unreadable is not None or second.unreadable is not None:
        return False
    return _judged(a, b, EXACT) or (a != b and _judged(b, a, EXACT))


def _judged(prediction: str, reference: str, policy: Policy) -> bool:
    return _verdict(prediction, reference, policy).value == 1.0


def verify(prediction: str, reference: str) -> Verdict:
    """Judge an extracted answer against a reference; an unreadable reference abstains."""
    return _verdict(prediction, reference, DEFAULT)


def _verdict(prediction: str, reference: str, policy: Policy) -> Verdict:
    gold = read(reference)
    problem = gold.unreadable
    if problem is not None:
        return Verdict.abstain(f"{gold.shown!r}: {problem}", reason="bad_reference" if gold.text.strip() else "missing")
    mine = read(prediction)
    if not mine.text.strip():
        return Verdict.reject("the prediction is empty", reason="no_answer")
    try:
        return compared(mine, gold, policy)
    except NeedsAlgebra:
        return _in_worker(prediction, reference, Math(rules="whole"))


def grade(response: str, reference: str) -> Verdict:
    """Find the answer that a whole response states, and judge it against a reference."""
    try:
        gold = read(gold_text(reference))
    except ValueError as problem:
        return Verdict.abstain(str(problem), reason="bad_reference")
    problem_found = gold.unreadable
    if problem_found is not None:
        reason: str = "bad_reference" if gold.text.strip() else "missing"
        return Verdict.abstain(f"{gold.shown!r}: {problem_found}", reason=reason)  # type: ignore[arg-type]
    verifier = Math()
    sample = Sample(0, "", gold.text)
    try:
        return verifier._verdict(Completion(response), gold, sample)
    except NeedsAlgebra:
        return _in_worker(response, gold.text, verifier)


_lock = threading.Lock()
_pools: dict[str, WorkerPool] = {}


def _in_worker(text: str, reference: str, verifier: Math) -> Verdict:
    from rewardkit.workers import WorkerPool

    with _lock:
        pool = _pools.get(repr(verifier))
        if pool is None:
            pool = _pools[repr(verifier)] = WorkerPool([verifier], workers=1)
    score = pool.submit(0, Generation(Sample(0, "", reference), (Completion(text),))).result()[0]
    if score.state == "error":
        raise RewardkitError(f"{score.reason}: {score.detail}")
    return Verdict(score.value, score.detail, score.extracted, score.reason)


__all__ = ["Node", "Refused", "UnreadableAnswer", "equal", "grade", "parse", "verify"]
