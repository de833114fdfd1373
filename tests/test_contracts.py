"""Every registered verifier and reward keeps the contract, and the contract test notices what does not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rewardkit import Completion, Reference, Sample, Verdict, Verifier, parse, reward
from rewardkit.plugins import load
from rewardkit.testing import assert_contract

CASES: dict[str, dict[str, Any]] = {
    "exact": {"accepts": [("Paris", "Paris"), ("18", 18)], "rejects": [("Rome", "Paris"), ("", "Paris")]},
    "numeric": {"accepts": [("it is 0.75", "3/4"), ("#### 1,234", 1234)], "rejects": [("7", "8"), ("no idea", 3)]},
    "gsm8k": {
        "accepts": [("9 * 2 = 18\n#### 18", "so 9 * 2\n#### 18"), ("$29.00.", 29)],
        "rejects": [("#### 17", "#### 18"), ("", "18")],
    },
    "label": {"columns": {"label": 1}},
    "think_format": {
        "accepts": [("<think>\na\nb\n</think>\n18", None)],
        "rejects": [("</think>18<think>", None), ("18", None)],
    },
    "length": {"accepts": [("short enough", None)], "rejects": [("word " * 2000, None)]},
}
NAMES = [entry.name for entry in load([]).registry.entries("verifier", "reward")]


@pytest.mark.parametrize("name", NAMES)
def test_builtin_keeps_the_contract(name: str) -> None:
    assert name in CASES, f"{name} is registered and has no case here"
    assert_contract(parse(name), **CASES[name])


class Nothing(Reference):
    text: str


class AcceptsAll(Verifier[Nothing]):
    """Accepts also the empty text."""

    def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
        return Verdict.accept()


class Fragile(Verifier[Nothing]):
    """Raises on what it did not expect."""

    def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
        return Verdict.accept() if completion.text.encode().strip() == b"a" else Verdict.reject("no")


@reward
def random_reward(completion: str) -> float:
    return random.random()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (AcceptsAll(), "accepts the empty text"),
        (Fragile(), "makes it fail: raised: UnicodeEncodeError"),
        (random_reward, "not deterministic"),
    ],
)
def test_contract_test_notices_a_broken_reward(broken: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_contract(broken, accepts=[("a", "b")] if isinstance(broken, Verifier) else [])


def test_contract_test_wants_a_reference_to_work_with() -> None:
    with pytest.raises(AssertionError, match="give at least one case with a reference"):
        assert_contract(parse("gsm8k"))


def test_contract_test_says_which_case_differs() -> None:
    with pytest.raises(AssertionError, match=r"'#### 1' with '2' scores 0.0 \(wrong: .*\), not 1"):
        assert_contract(parse("gsm8k"), accepts=[("#### 1", "2")])
