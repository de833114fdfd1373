r"""Compare answers in mathematics: `parse`, `equal`, `verify`, `grade`.

    from rewardkit.math import equal, grade, verify

    equal("0.5", r"\frac{1}{2}")                        # True: exact values, either way round
    verify("0.333333", r"\frac{1}{3}").value            # 1.0: the second is the reference, and has its rules
    grade(r"so it is $\boxed{0.5}$", r"\frac{1}{2}")    # finds the answer in a response first

All are safe in threads and event loops: no signals, nothing is executed, no judging takes more than a second. What only
computer algebra can decide (integrals, limits, infinite sums) runs in a worker process with a deadline; see `warm`.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from rewardkit.errors import RewardkitError, WorkerError
from rewardkit.types import Completion, Generation, Sample, Score, Verdict
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
    if _pool is None and (mine.quantity is None or gold.quantity is None):
        _foresee(prediction, reference)
    try:
        return compared(mine, gold, policy)
    except NeedsAlgebra:
        return _in_worker(prediction, reference, 0)


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
    verifier = _LEAVES[1]
    sample = Sample(0, "", gold.text)
    if _pool is None and gold.quantity is None:
        _foresee(response, gold.text)
    try:
        return verifier._verdict(Completion(response), gold, sample)
    except NeedsAlgebra:
        return _in_worker(response, gold.text, 1)


_LEAVES = (Math(rules="whole"), Math())
_SIGNS = ("\\int", "\\iint", "\\sum", "\\lim", "\\prod", "\\frac{d", "∫", "∑", "Σ", "∏")
_lock = threading.Lock()
_pool: WorkerPool | None = None


def warm() -> None:
    """Start the worker for computer algebra, if it does not run, and return at once.

    It takes about a second to be ready. Otherwise it starts with the first answer or reference that has an integral, a
    limit, a sum, a product or a derivative in it, and the first answer that needs it waits; no deadline counts that.
    """
    _ask(0, "0", "1")


def _ask(leaf: int, text: str, reference: str) -> Future[list[Score]]:
    global _pool
    from rewardkit.workers import WorkerPool

    with _lock:
        if _pool is None:
            _pool = WorkerPool(_LEAVES, workers=1)
        return _pool.submit(leaf, Generation(Sample(0, "", reference), (Completion(text),)))


def _foresee(text: str, reference: str) -> None:
    """Start the worker while there is other work, where answers of this kind are about."""
    if any(sign in one for sign in _SIGNS for one in (text, reference)):
        with suppress(WorkerError):  # whoever needs it will meet the reason
            warm()


def _in_worker(text: str, reference: str, leaf: int) -> Verdict:
    score = _ask(leaf, text, reference).result()[0]
    if score.reason in ("deadline", "memory"):
        warm()  # it may have been killed, and starts again now rather than when the next answer waits for it
    if score.state == "error":
        raise RewardkitError(f"{score.reason}: {score.detail}")
    return Verdict(score.value, score.detail, score.extracted, score.reason)


def _after_fork() -> None:
    """Forget the worker: it belongs to the parent."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["Node", "Refused", "UnreadableAnswer", "equal", "grade", "parse", "verify", "warm"]
