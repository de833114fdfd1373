"""For authors of rewards: the contract test, and Hypothesis strategies for what models write.

from rewardkit.testing import assert_contract

def test_contract():
    assert_contract(
        IsoDay(),
        accepts=[("on 2024-02-29", {"day": "2024-02-29"})],
        rejects=[("on 2024-02-28", {"day": "2024-02-29"})],
    )

@given(generations(samples(reference=st.dates().map(str)), completions()))
def test_it_is_always_scored(generation): ...

The strategies need Hypothesis, which rewardkit itself does not: `pip install hypothesis`.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rewardkit import recipe
from rewardkit.compose import Reward
from rewardkit.engine import Engine
from rewardkit.leaf import Leaf
from rewardkit.reward import as_reward
from rewardkit.targets import travels
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.verifier import Verifier

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

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
    reference: Any = None,
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
        reference: One that it can read, where no case has one.
    """
    reward = as_reward(thing)
    accepted, rejected = list(accepts), list(rejects)
    _check_identity(reward)
    known = [reference for _, reference in accepted + rejected if reference is not None]
    good = reference if reference is not None else known[0] if known else None
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


# ------------------------------------------------------------------------------------------------------ strategies

_PIECES = (
    "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "\\boxed{", "}", "#### ",
    "The answer is ", "Answer: ", "**", "$", "`", "```\n", "```python\n", "\n", "\n\n", "\r\n", " ",
    "\t", ". ", ", ", "(A)", "B", "1,234", "-3/4", "0.5", "1e9", "50%", "½", "٣", "x = 2", "<|im_end|>",
    "</s>", "User: ", "{", "[1, 2]", '"a": null', "é", "e\u0301", "中文", "مرحبا", "🧮", "\u200b",
    "\u202e", "\x00", "\x1b[31m", "\ud800",
)  # fmt: skip


def _hypothesis() -> Any:
    """Return `hypothesis.strategies`, or say how to get it."""
    try:
        from hypothesis import strategies
    except ImportError as problem:
        raise ImportError("the strategies of rewardkit.testing need Hypothesis; pip install hypothesis") from problem
    return strategies


def texts(*, max_pieces: int = 12) -> SearchStrategy[str]:
    """Return texts that a model may write: prose, markers of answers, tags that do not match, odd characters.

    Lone surrogates are among them, as in files that were decoded badly; none is longer than a few thousand characters.

    Args:
        max_pieces: How many pieces a text is put together of, at most.
    """
    st = _hypothesis()
    odd = [text for text in ODD_TEXTS if len(text) <= 5000]
    mixed = st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), max_size=max_pieces).map("".join)
    strategy: SearchStrategy[str] = st.one_of(mixed, st.text(max_size=40), st.sampled_from(odd))
    return strategy


def chats(text: SearchStrategy[str] | None = None) -> SearchStrategy[list[dict[str, Any]]]:
    """Return chats in the shapes that files have: role and content, or from and value; content as text, as parts with
    pictures among them, null beside tool calls, or absent. Roles come in any order, and a chat may have no turns.

    Args:
        text: What is said in a turn; None: `texts()`.
    """
    st = _hypothesis()
    said = texts(max_pieces=4) if text is None else text
    part = st.one_of(
        st.builds(lambda words: {"type": "text", "text": words}, said),
        st.just({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
    )
    role = st.sampled_from(["system", "user", "assistant", "assistant", "tool"])
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turn = st.one_of(
        st.builds(lambda who, words: {"role": who, "content": words}, role, said),
        st.builds(lambda who, parts: {"role": who, "content": parts}, role, st.lists(part, max_size=3)),
        st.just({"role": "assistant", "content": None, "tool_calls": [call]}),
        st.just({"role": "assistant", "tool_calls": [call]}),
        st.builds(lambda who, words: {"from": who, "value": words}, st.sampled_from(["human", "gpt", "system"]), said),
    )
    strategy: SearchStrategy[list[dict[str, Any]]] = st.lists(turn, max_size=5)
    return strategy


def completions(
    text: SearchStrategy[str] | None = None, *, columns: Mapping[str, SearchStrategy[Any]] | None = None
) -> SearchStrategy[Completion]:
    """Return completions: plain texts, and chats whose last assistant message is the text.

    Args:
        text: What is written; None: `texts()`.
        columns: Columns of each completion, such as `{"label": st.booleans()}`.
    """
    st = _hypothesis()
    said = texts() if text is None else text
    reason = st.sampled_from(["stop", "length", None])
    tokens = st.none() | st.integers(0, 10_000)
    metadata = st.fixed_dictionaries(dict(columns or {}))
    plain = st.builds(Completion, said, tokens=tokens, finish_reason=reason, metadata=metadata)
    chat = st.builds(
        lambda turns, words, own: Completion.from_messages(
            [*turns, {"role": "assistant", "content": words}], metadata=own
        ),
        chats(),
        said,
        metadata,
    )
    strategy: SearchStrategy[Completion] = st.one_of(plain, plain, chat)
    return strategy


def samples(
    reference: SearchStrategy[Any] | None = None,
    *,
    prompt: SearchStrategy[Any] | None = None,
    columns: Mapping[str, SearchStrategy[Any]] | None = None,
) -> SearchStrategy[Sample]:
    """Return samples: a prompt (text or chat), a reference, and columns.

    Args:
        reference: The gold answers; None: samples without one.
        prompt: None: `texts()` and `chats()`.
        columns: Other columns, such as `{"keywords": st.lists(st.text())}`.
    """
    st = _hypothesis()
    strategy: SearchStrategy[Sample] = st.builds(
        Sample,
        st.integers(0, 10**6) | st.text("abc-0123", min_size=1, max_size=8),
        (texts(max_pieces=4) | chats()) if prompt is None else prompt,
        st.none() if reference is None else reference,
        st.fixed_dictionaries(dict(columns or {})),
        st.none() | st.integers(0, 1000),
    )
    return strategy


def generations(
    sample: SearchStrategy[Sample] | None = None,
    completion: SearchStrategy[Completion] | None = None,
    *,
    min_size: int = 1,
    max_size: int = 4,
) -> SearchStrategy[Generation]:
    """Return groups: a sample with some completions, for `rewardkit.score`.

    Args:
        sample: None: `samples()`, which have no reference.
        completion: None: `completions()`.
        min_size: Least number of completions.
        max_size: Largest number of completions.
    """
    st = _hypothesis()
    members = st.lists(completions() if completion is None else completion, min_size=min_size, max_size=max_size)
    strategy: SearchStrategy[Generation] = st.builds(
        Generation, samples() if sample is None else sample, members.map(tuple)
    )
    return strategy
