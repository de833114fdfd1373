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
    "contains": {
        "accepts": [("The capital is Paris.", "Paris"), ("red, blue", ["blue", "red"]), ("It is 25.", 25)],
        "rejects": [("125", "25"), ("P", "Paris"), ("", "Paris")],
    },
    "regex": {
        "accepts": [("On 2024-02-29.", "[0-9]{4}-[0-9]{2}-[0-9]{2}")],
        "rejects": [("yesterday", "[0-9]{4}"), ("", ".*")],
    },
    "choice": {
        "accepts": [("The answer is (B) Paris.", "B"), ("\\boxed{\\text{c}}", "C")],
        "rejects": [("A or B", "B"), ("A common mistake.", "A"), ("", "B")],
    },
    "json_schema": {
        "accepts": [('So {"a": 1}.', {"required": ["a"]}), ("[1]", '{"type": "array"}')],
        "rejects": [("{}", {"required": ["a"]}), ('{"a": NaN}', {"required": ["a"]}), ("", {"type": "object"})],
    },
    "math_verify": {"accepts": [("so it is $\\boxed{7}$", "7")], "rejects": [("$\\boxed{8}$", "7"), ("", "7")]},
    "math": {
        "accepts": [("so it is $\\boxed{0.5}$", "\\frac{1}{2}"), ("the answer is $x = 5$", 5), ("#### 18", "#### 18")],
        "rejects": [("\\boxed{\\frac{1}{3}}", "\\frac{1}{2}"), ("no idea", "3"), ("", "x")],
    },
    "code": {
        "accepts": [
            ("def f(x): return 2 * x", {"tests": ["assert f(4) == 8"]}),
            ("```python\nprint(int(input()) + 1)\n```", {"tests": [{"stdin": "4", "stdout": "5"}]}),
        ],
        "rejects": [
            ("def f(x): return x", {"tests": ["assert f(4) == 8"]}),
            ("I cannot.", {"tests": ["assert f(4) == 8"]}),
            ("", {"tests": ["assert f(4) == 8"]}),
        ],
    },
    "number_close": {
        "accepts": [("about 101", 100), ("5.04 m", "500 cm")],
        "rejects": [("102", 100), ("no idea", 3), ("", 3)],
    },
    "arithmetic": {"rejects": [("#### 7 or 8", 18)]},
    "answer_correct": {"rejects": [("<answer>17</answer>", 18), ("18", 18)]},
    "answer_integer": {"rejects": [("<answer>1.5</answer>", None), ("18", None)]},
    "format_strict": {"rejects": [("<answer>18</answer>", None)]},
    "format_soft": {"rejects": [("<answer>18</answer>", None)]},
    "tag_count": {"rejects": [("18", None)]},
    "gsm8k_set": {"rejects": [("18", 18), ("", "#### 18")]},
    "gsm8k_think_set": {"rejects": [("18", 18)]},
    "distance": {"accepts": [("it is 10", "#### 10")], "rejects": [("-10", 10), ("no idea", 10)]},
    "overlong": {"columns": {"tokens": 20_480}},
    "cosine_length": {"accepts": [("", None)]},
    "cosine_set": {"reference": 18},
    "repetition": {"rejects": [("one two three", None)]},
    "script_share": {"accepts": [("Latin", None)], "rejects": [("число", None), ("18", None)]},
    "stop_reason": {"columns": {"finish_reason": "stop"}, "rejects": [("cut", None)]},
    "email_keywords": {
        "columns": {"keywords": ["refund"]},
        "accepts": [("Dear Anna,\nyour refund is here.", None)],
        "rejects": [("Dear Anna,\nhere.\n\n> my refund?", None), ("", None)],
    },
    "email_match": {
        "accepts": [("Dear Anna,\r\nhere. \n", "Dear Anna,\nhere.")],
        "rejects": [("Dear Bob,\nhere.", "Dear Anna,\nhere."), ("", "Dear Anna,\nhere.")],
    },
    "email_too_long": {"columns": {"max_words": 5}, "rejects": [("Dear Anna, it is here.", None), ("", None)]},
    "email_recipient": {
        "columns": {"recipient": "Anna Smith"},
        "accepts": [("Dear Ms. Smith,\nhere.", None)],
        "rejects": [("Dear Ann,\nhere. Anna", None), ("", None)],
    },
    "email_signature": {
        "accepts": [("Hi Anna,\nhere.\n\nBest regards,\nTom Fisher\ntom@example.com", None)],
        "rejects": [("Hi Anna,\nmail tom@example.com.", None), ("", None)],
    },
    "email_set": {
        "columns": {"keywords": ["refund"], "recipient": "Bob"},
        "accepts": [("Dear Anna, the refund is here.", "Dear Bob"), ("Dear Bob", "Dear Bob, refund")],
        "rejects": [("Dear Anna", "Dear Bob"), ("", "Dear Bob")],
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
    if name == "math_verify":
        pytest.importorskip("math_verify")
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
