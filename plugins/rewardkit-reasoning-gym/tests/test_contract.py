"""The contract test that every verifier passes: one of each kind of guard, and the one for mixed data."""

from __future__ import annotations

import pytest
from judging import tagged

from rewardkit import parse
from rewardkit.testing import assert_contract

CASES = {
    "'reasoning_gym/gcd'": (tagged("4"), tagged("44"), "4"),
    "'reasoning_gym/score'(task='lcm')": (tagged("12"), tagged("120"), "12"),
    "'reasoning_gym/countdown'": (
        tagged("6*4"),
        tagged("6*4=24"),
        {"answer": "6*4", "metadata": {"numbers": [6, 4], "target": 24}},
    ),
    "'reasoning_gym/spiral_matrix'(timeout=5.0)": (tagged("1 2"), tagged("2 1"), "1 2"),
    "'reasoning_gym/gsm_symbolic'(whole=True)": ("5", "-5", "5"),
}


@pytest.mark.parametrize("formula", CASES)
def test_contract(formula: str) -> None:
    right, wrong, reference = CASES[formula]
    assert_contract(parse(formula), accepts=[(right, reference)], rejects=[(wrong, reference)])
