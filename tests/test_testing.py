"""The strategies for authors: what they make is what the types say, varied, and survives the whole pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from rewardkit import Completion, Generation, Sample, parse, reward, score
from rewardkit.testing import chats, completions, generations, samples, texts
from rewardkit.types import last_reply

ROOT = Path(__file__).resolve().parents[1]
MANY = settings(max_examples=2000, suppress_health_check=list(HealthCheck), deadline=None)


def exists(strategy, condition) -> bool:
    """Whether the strategy finds such a value; Hypothesis raises NoSuchExample when it does not."""
    find(strategy, condition, settings=MANY)
    return True


def test_texts_have_what_models_write() -> None:
    for wanted in ("</think>", "\\boxed{", "```", "🧮", "\u202e", "\x00", "\ud800", "\r\n", "####"):
        assert exists(texts(), lambda text, wanted=wanted: wanted in text)
    assert exists(texts(), lambda text: not text)
    assert exists(texts(), lambda text: text.count("<think>") > 1)


@given(texts())
def test_texts_are_short_enough_to_be_many(text: str) -> None:
    assert isinstance(text, str) and len(text) <= 5000


def test_chats_have_every_shape() -> None:
    def some(condition):
        return exists(chats(), lambda chat: any(map(condition, chat)))

    assert some(lambda turn: isinstance(turn.get("content"), list) and len(turn["content"]) > 1)
    assert some(lambda turn: "tool_calls" in turn and turn.get("content", "") is None)
    assert some(lambda turn: "tool_calls" in turn and "content" not in turn)
    assert some(lambda turn: "from" in turn) and some(lambda turn: turn.get("role") == "tool")
    assert exists(chats(), lambda chat: not chat)


@given(completions(columns={"label": st.booleans()}))
def test_a_completion_of_a_chat_has_its_last_reply_as_text(completion: Completion) -> None:
    assert type(completion.metadata["label"]) is bool
    if completion.messages is not None:
        assert completion.text == last_reply(completion.messages)


def test_completions_are_texts_and_chats() -> None:
    assert exists(completions(), lambda one: one.messages is not None and len(one.messages) > 1)
    assert exists(completions(), lambda one: one.messages is None and one.finish_reason == "length")


@given(samples(st.integers(), columns={"level": st.just(3)}))
def test_a_sample_has_what_was_asked_for(sample: Sample) -> None:
    assert type(sample.reference) is int and sample.metadata == {"level": 3}


@given(generations(min_size=2, max_size=3))
def test_a_generation_has_as_many_completions_as_were_asked_for(generation: Generation) -> None:
    assert 2 <= len(generation.completions) <= 3 and generation.sample.reference is None


@reward
def turns(messages) -> float:
    return float(len(messages))


@settings(max_examples=60, deadline=None)
@given(generations(samples(st.integers() | st.just("see figure"))))
def test_built_in_rewards_survive_all_of_it(generation: Generation) -> None:
    rewards = {"right": parse("gsm8k"), "form": parse("think_format"), "size": parse("length"), "turns": turns}
    (scored,) = score(rewards, [generation])
    assert {one.state for scores in scored.scores.values() for one in scores} <= {"scored", "abstained"}


def test_without_hypothesis_the_contract_test_works_and_a_strategy_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from rewardkit.testing import assert_contract, texts\n"
        "try: texts()\n"
        "except ImportError as problem: print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "the strategies of rewardkit.testing need Hypothesis; pip install hypothesis\n"


def test_importing_it_does_not_import_hypothesis() -> None:
    code = "import sys, rewardkit.testing; print('hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"


def test_a_bad_option_of_a_strategy_is_hypothesis_own_error() -> None:
    from hypothesis.errors import InvalidArgument

    with pytest.raises(InvalidArgument):
        generations(min_size=3, max_size=1).validate()
