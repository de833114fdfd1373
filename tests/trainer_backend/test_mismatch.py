"""Weights against a mismatch of sampler and trainer, and its measures, against plain Python."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the trainer's formulas need torch")

from rewardkit.errors import OptionError, UnknownName  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.mismatch import BOUNDS, importance_weights, mismatch  # noqa: E402

OLD = [[-1.0, -2.0, -0.5], [-3.0, -1.0, -9.0]]
ROLLOUT = [[-1.5, -2.0, -2.5], [-2.0, -1.2, 5.0]]
MASK = [[True, True, True], [True, True, False]]


def tensors(old: list, rollout: list, mask: list) -> dict:
    return {
        "old_logps": torch.tensor(old, dtype=torch.float64),
        "rollout_logps": torch.tensor(rollout, dtype=torch.float64),
        "mask": torch.tensor(mask),
    }


def plain(correction: str, low: float, high: float) -> list[list[float]]:
    """The definitions, one number at a time."""
    rows = []
    for old, rollout, mask in zip(OLD, ROLLOUT, MASK, strict=True):
        logs = [a - b if counts else 0.0 for a, b, counts in zip(old, rollout, mask, strict=True)]
        count = sum(mask)
        if correction.startswith("sequence"):
            logs = [math.fsum(logs)]
        elif correction == "geometric_mask":
            logs = [math.fsum(logs) / count]
        qs = [math.exp(value) for value in logs]
        inside = [low <= q <= high for q in qs]
        if correction.endswith("truncate"):
            rows.append([min(max(q, low), high) for q in qs])
        elif correction == "geometric_mask":
            rows.append([float(good) for good in inside])
        else:
            rows.append([q if good else 0.0 for q, good in zip(qs, inside, strict=True)])
    return rows


@pytest.mark.parametrize("bounds", [(0.5, 2.0), (0.0, 1.2), (0.9, 10.0)])
@pytest.mark.parametrize("correction", [name for name in BOUNDS if name != "none"])
def test_weights_equal_their_definition(correction: str, bounds: tuple[float, float]) -> None:
    low, high = bounds
    found = importance_weights(**tensors(OLD, ROLLOUT, MASK), correction=correction, low=low, high=high)
    expected = torch.tensor(plain(correction, low, high), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_equal_log_probs_weigh_exactly_one() -> None:
    for correction in BOUNDS:
        found = importance_weights(**tensors(OLD, OLD, MASK), correction=correction)
        assert (found == 1.0).all(), correction


def test_a_token_that_the_sampler_does_not_know_weighs_one() -> None:
    rollout = [[math.nan] * 3, [-2.0, -1.2, math.nan]]
    found = importance_weights(**tensors(OLD, rollout, MASK), correction="token_truncate")
    assert found[0].tolist() == [1.0, 1.0, 1.0]
    assert mismatch(**tensors(OLD, rollout, MASK)).tokens == 2


def test_a_long_row_does_not_overflow() -> None:
    """The product over 10,000 tokens is exp(1,000), which no float holds."""
    old, rollout = torch.zeros(1, 10_000), torch.full((1, 10_000), -0.1)
    mask = torch.ones(1, 10_000, dtype=torch.bool)
    found = importance_weights(old_logps=old, rollout_logps=rollout, mask=mask, correction="sequence_truncate")
    assert found.tolist() == [[3.0]]
    assert importance_weights(old_logps=old, rollout_logps=rollout, mask=mask, correction="sequence_mask").tolist() == [
        [0.0]
    ]


def test_measures_equal_their_definition() -> None:
    found = mismatch(**tensors(OLD, ROLLOUT, MASK))
    logs = [0.5, 0.0, 2.0, -1.0, 0.2]
    qs = [math.exp(value) for value in logs]
    assert found.tokens == 5
    assert found.k1 == pytest.approx(-math.fsum(logs) / 5)
    assert found.k3 == pytest.approx(math.fsum(q - value - 1 for q, value in zip(qs, logs, strict=True)) / 5)
    assert found.ess == pytest.approx(math.fsum(qs) ** 2 / (5 * math.fsum(q * q for q in qs)))
    assert found.chi2 == pytest.approx(math.fsum((q - 1) ** 2 for q in qs) / 5)
    assert found.outside == pytest.approx(2 / 5)  # exp(2) and exp(-1)
    assert found.largest == pytest.approx(2.0)


def test_without_mismatch_the_measures_say_so() -> None:
    found = mismatch(**tensors(OLD, OLD, MASK))
    assert (found.k1, found.k3, found.ess, found.chi2, found.outside, found.largest) == (0, 0, 1, 0, 0, 0)


def test_nothing_counted_is_no_division_by_zero() -> None:
    assert mismatch(**tensors(OLD, ROLLOUT, [[False] * 3] * 2)).tokens == 0


def test_wrong_input_says_what_was_wanted() -> None:
    with pytest.raises(UnknownName, match="did you mean token_mask"):
        importance_weights(**tensors(OLD, ROLLOUT, MASK), correction="token_musk")
    with pytest.raises(OptionError, match="low < high"):
        importance_weights(**tensors(OLD, ROLLOUT, MASK), correction="token_mask", low=2.0, high=1.0)
    with pytest.raises(TensorError, match=r"rollout_logps is float32 or float64 \[2, 3\]"):
        importance_weights(**(tensors(OLD, ROLLOUT, MASK) | {"rollout_logps": torch.zeros(2, 2)}), correction="none")
    with pytest.raises(TensorError, match=r"old_logps\[0, 1\] is nan"):
        importance_weights(**tensors([[0.0, math.nan, 0.0], [0.0] * 3], ROLLOUT, MASK), correction="token_mask")
