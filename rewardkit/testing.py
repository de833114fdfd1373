"""The contract test: what every verifier and reward must hold, ours and those of plugins.

from rewardkit.testing import assert_contract

def test_contract():
    assert_contract(
        IsoDay(),
        accepts=[("on 2024-02-29", {"day": "2024-02-29"})],
        rejects=[("on 2024-02-28", {"day": "2024-02-29"})],
    )
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rewardkit import recipe
from rewardkit.compose import Reward
from rewardkit.engine import Engine
from rewardkit.leaf import Leaf
from rewardkit.reward import as_reward
from rewardkit.targets import travels
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifier import Verifier

ODD_TEXTS: tuple[str, ...] = (
    "",
    " \n\t ",
    "\x00",
    "\x1b[31mred\x1b[0m",
    "\ud800",
    "\u202e123\u202c",
    "\u200b\u2060\ufeff",
    "🧮" * 50,
    "مرحبا ١٢٣",
    "<think><think></think>",
    "</answer><answer>",
    "#### ",
    "\\boxed{",
    "\\boxed{}" * 20,
    "NaN",
    "-inf",
    "1e999999999",
    "9" * 5000,
    "1/0",
    "```python\nraise SystemExit\n```",
    "{" * 200,
    "'; import os; os.abort() #",
    "a " * 100_000,
)
"""Texts that a model may write and a reward must survive."""

ODD_REFERENCES: tuple[Any, ...] = (
    "",
    " ",
    "see figure",
    "\x00",
    [],
    [None],
    {},
    {"unexpected": {"nested": [1]}},
    True,
    -0.0,
    10**400,
    "1/0",
    "1e999999999",
)
"""References that a data set may hold."""

Case = tuple[str, Any]


def assert_contract(
    thing: Reward | Callable[..., Any],
    *,
    accepts: Iterable[Case] = (),
    rejects: Iterable[Case] = (),
    columns: Mapping[str, Any] | None = None,
) -> None:
    """Check that a reward keeps its contract; raise AssertionError that says what it breaks.

    It pickles, copies, compares and prints as a formula that reads back; gives the same score twice; survives
    odd texts and odd references without an exception; abstains without a reference when it needs one; gives
    only finite numbers (a verifier: in [0, 1]); and a verifier never accepts an empty text.

    Args:
        thing: A reward, verifier, verifier class or function.
        accepts: (text, reference) pairs that must score 1.
        rejects: (text, reference) pairs that must score 0.
        columns: Other columns that the reward needs.
    """
    reward = as_reward(thing)
    accepted, rejected = list(accepts), list(rejects)
    _check_identity(reward)
    known = [reference for _, reference in accepted + rejected if reference is not None]
    good = known[0] if known else None
    needs = {name for leaf in reward.leaves() if isinstance(leaf, Leaf) for name in leaf.needs}
    assert good is not None or "reference" not in needs, "give at least one case with a reference that it can read"
    with Engine(reward, workers=1) as engine:
        ask = _Asking(engine, dict(columns or {}))
        for value, cases in ((1.0, accepted), (0.0, rejected)):
            for text, reference in cases:
                score = ask(text, reference)
                assert score.value == value, (
                    f"{text!r} with {reference!r} scores {score.value} ({score.why}), not {value:g}"
                )
        _check_odd_texts(reward, ask, [text for text, _ in accepted + rejected], good)
        _check_odd_references(ask, accepted[0][0] if accepted else "12", wanted="reference" in needs)


class _Asking:
    """Scores single texts, twice each, with columns that a reward needs."""

    def __init__(self, engine: Engine, columns: dict[str, Any]) -> None:
        self.engine = engine
        self.columns = columns

    def __call__(self, text: str, reference: Any) -> Score:
        first, second = self._score(text, reference), self._score(text, reference)
        same = (first.value, first.reason, first.extracted, first.detail)
        assert same == (second.value, second.reason, second.extracted, second.detail), (
            f"not deterministic: {text[:60]!r} gave {first.value} ({first.why}), then {second.value} ({second.why})"
        )
        return first

    def _score(self, text: str, reference: Any) -> Score:
        sample = Sample("contract", "prompt", copy.deepcopy(reference), copy.deepcopy(self.columns))
        generation = Generation(sample, (Completion(text, metadata=copy.deepcopy(self.columns)),))
        # The check for missing columns looks at the first generations only; the states are what is tested here.
        (scored,) = self.engine.score_unchecked([generation])
        return next(iter(scored.scores.values()))[0]


def _check_identity(reward: Reward) -> None:
    assert copy.deepcopy(reward) == reward, "a copy is not equal"
    assert reward.formula, "it prints as nothing"
    if all(isinstance(leaf, Leaf) and leaf.target is not None for leaf in reward.leaves()):
        restored = pickle.loads(pickle.dumps(reward))
        assert restored == reward, f"pickling turns {reward!r} into {restored!r}"
        assert hash(restored) == hash(reward), "equal rewards have different hashes"
    if all(isinstance(leaf, Leaf) and travels(leaf.target) for leaf in reward.leaves()):
        assert recipe.parse(reward.formula) == reward, f"its formula {reward.formula} reads back as something else"
        assert recipe.from_data(recipe.to_data(reward)) == reward, "its data form reads back as something else"


def _check_odd_texts(reward: Reward, ask: _Asking, known: Sequence[str], reference: Any) -> None:
    for text in (*ODD_TEXTS, *(f"{text}\x00\u202e" for text in known)):
        score = ask(text, reference)
        assert score.state != "error", f"the text {text[:60]!r} makes it fail: {score.why}\n{score.trace or ''}"
        if isinstance(reward, Verifier) and not text.strip():
            assert not score.value, f"it accepts the empty text {text!r} for the reference {reference!r}"


def _check_odd_references(ask: _Asking, text: str, *, wanted: bool) -> None:
    for reference in ODD_REFERENCES:
        score = ask(text, reference)
        assert score.state != "error", (
            f"the reference {str(reference)[:60]!r} makes it fail: {score.why}\n{score.trace or ''}"
        )
    if wanted:
        score = ask(text, None)
        assert score.reason == "missing", (
            f"without a reference it is {score.state} ({score.why}), not abstained: missing"
        )
