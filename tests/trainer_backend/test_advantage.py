"""Advantages against exact fractions, enumeration and the formulas of the papers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Sequence
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch", reason="the trainer's formulas need torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rewardkit.errors import OptionError, UnknownName  # noqa: E402
from trainer_backend.advantage import METHODS, advantages  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402


def values_of(
    rewards: Sequence[float | None], groups: Sequence[Hashable], method: str = "group", **more: object
) -> list:
    return advantages(rewards=rewards, groups=groups, method=method, **more).values.tolist()  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ exact second versions


def exact_moments(values: Sequence[Fraction], ddof: int = 1) -> tuple[Fraction, float]:
    mean = sum(values, Fraction(0)) / len(values)
    squares = sum(((value - mean) ** 2 for value in values), Fraction(0)) / (len(values) - ddof)
    return mean, math.sqrt(squares)


def exact_group(values: Sequence[Fraction], ddof: int = 1, epsilon: float = 1e-4) -> list[float]:
    mean, std = exact_moments(values, ddof)
    if len(set(values)) == 1:
        return [0.0] * len(values)
    return [float(value - mean) / (std + epsilon) for value in values]


eighths = st.integers(-80, 80).map(lambda n: Fraction(n, 8))
grouped = st.lists(st.lists(eighths, min_size=2, max_size=9), min_size=1, max_size=6)


def laid_out(groups: list[list[Fraction]], seed: int) -> tuple[list[float], list[int], list[int]]:
    """Return rewards and group ids in mixed order, and the order."""
    rows = [(float(value), name) for name, values in enumerate(groups) for value in values]
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    return [rows[at][0] for at in order], [rows[at][1] for at in order], order


@given(grouped, st.integers(0, 99), st.sampled_from([0, 1]))
def test_group_equals_exact_fractions_in_any_order(groups: list[list[Fraction]], seed: int, ddof: int) -> None:
    rewards, ids, order = laid_out(groups, seed)
    expected = [value for values in groups for value in exact_group(values, ddof)]
    found = values_of(rewards, ids, ddof=ddof)
    assert found == pytest.approx([expected[at] for at in order], rel=1e-12, abs=1e-12)


@given(grouped)
def test_none_and_leave_one_out_equal_exact_fractions(groups: list[list[Fraction]]) -> None:
    rewards, ids, order = laid_out(groups, 0)
    centred, others = [], []
    for values in groups:
        total = sum(values, Fraction(0))
        alike = len(set(values)) == 1
        centred += [0 if alike else value - total / len(values) for value in values]
        others += [0 if alike else value - (total - value) / (len(values) - 1) for value in values]
    assert values_of(rewards, ids, "none") == pytest.approx([float(centred[at]) for at in order], abs=1e-12)
    assert values_of(rewards, ids, "leave_one_out") == pytest.approx([float(others[at]) for at in order], abs=1e-12)


@given(grouped)
def test_batch_divides_by_the_spread_of_the_batch(groups: list[list[Fraction]]) -> None:
    rewards, ids, order = laid_out(groups, 1)
    everything = [value for values in groups for value in values]
    _, std = exact_moments(everything)
    expected = [
        0.0 if len(set(values)) == 1 else float(value - sum(values, Fraction(0)) / len(values)) / (std + 1e-4)
        for values in groups
        for value in values
    ]
    assert values_of(rewards, ids, "batch") == pytest.approx([expected[at] for at in order], rel=1e-12, abs=1e-12)


@given(st.lists(eighths, min_size=2, max_size=12))
def test_reinforce_pp_whitens_over_the_batch(values: list[Fraction]) -> None:
    mean, std = exact_moments(values)
    expected = [0.0 if len(set(values)) == 1 else float(value - mean) / (std + 1e-4) for value in values]
    found = values_of([float(value) for value in values], list(range(len(values))), "reinforce_pp")
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_reinforce_pp_baseline_by_hand() -> None:
    # Centred: -1, 1, -3, 3; mean 0, variance 20 / 3.
    found = values_of([0.0, 2.0, 0.0, 6.0], ["a", "a", "b", "b"], "reinforce_pp_baseline", epsilon=0.0)
    assert found == pytest.approx([value / math.sqrt(20 / 3) for value in (-1.0, 1.0, -3.0, 3.0)])


def best_of_k(values: Sequence[float], k: int, epsilon: float) -> list[float]:
    """The definition: all subsets of k, their best, and the mean of it over those that hold i."""
    subsets = list(itertools.combinations(range(len(values)), k))
    bests = [max(values[at] for at in subset) for subset in subsets]
    mean = math.fsum(bests) / len(bests)
    std = math.sqrt(math.fsum((best - mean) ** 2 for best in bests) / len(bests))
    result = []
    for i in range(len(values)):
        held = [best for subset, best in zip(subsets, bests, strict=True) if i in subset]
        result.append(0.0 if max(bests) == min(bests) else (math.fsum(held) / len(held) - mean) / (std + epsilon))
    return result


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, -2.0]), min_size=2, max_size=8), st.integers(1, 8))
def test_pass_at_k_equals_enumeration(values: list[float], k: int) -> None:
    found = advantages(rewards=values, groups=["a"] * len(values), method="pass_at_k", k=k)
    if k > len(values):
        assert found.values.tolist() == [0.0] * len(values)
        assert found.dead["a"] in ("fewer_than_k", "no_spread")
        return
    expected = best_of_k(values, k, 1e-4) if len(set(values)) > 1 else [0.0] * len(values)
    assert found.values.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_pass_at_k_of_zeros_and_ones_is_the_papers_formula() -> None:
    n, wrong, k = 8, 5, 4
    mean = 1 - math.comb(wrong, k) / math.comb(n, k)
    std = math.sqrt(mean * (1 - mean))
    right = (1 - mean) / std
    other = (1 - mean - math.comb(wrong - 1, k - 1) / math.comb(n - 1, k - 1)) / std
    found = values_of([1.0] * 3 + [0.0] * 5, ["a"] * 8, "pass_at_k", k=k, epsilon=0.0)
    assert found == pytest.approx([right] * 3 + [other] * 5)


def test_max_rewards_the_best_alone() -> None:
    found = values_of([1.0, 4.0, 2.0], ["a"] * 3, "max", epsilon=0.0)
    assert found == pytest.approx([0.0, 2.0 / math.sqrt(7 / 3), 0.0])
    assert values_of([4.0, 4.0, 2.0], ["a"] * 3, "max") == [0.0, 0.0, 0.0]


def test_gdpo_by_hand() -> None:
    rewards = [[1.0, 100.0], [0.0, 300.0], [1.0, 200.0], [0.0, 200.0]]
    groups = ["a", "a", "b", "b"]
    root = math.sqrt(0.5)
    # Group a: components +-0.5 / 0.7071 and -+100 / 141.42, which cancel; group b: the second has no spread.
    found = advantages(rewards=rewards, groups=groups, method="gdpo", epsilon=0.0)
    sums = [0.0, 0.0, 0.5 / root, -0.5 / root]
    std = math.sqrt(sum(value * value for value in sums) / 3)
    assert found.values.tolist() == pytest.approx([value / std for value in sums])
    assert found.dead == {"a": "no_spread"}


def test_gdpo_sees_components_that_cancel_in_the_sum() -> None:
    """trl#3857: one component spreads, the sum is constant: the plain sum teaches nothing, normalised parts may."""
    rewards = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    plain = advantages(rewards=rewards, groups=["a"] * 3, weights=[1.0, 1.0])
    assert plain.dead == {"a": "no_spread"} and plain.dead_share == 1.0
    weighted = advantages(rewards=rewards, groups=["a"] * 3, method="gdpo", weights=[1.0, 0.5])
    assert weighted.dead == {}
    assert weighted.values.tolist()[0] > 0 > weighted.values.tolist()[1]


def test_weights_multiply_components() -> None:
    rewards = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert values_of(rewards, ["a"] * 3, "none", weights=[2.0, 1.0]) == [1.0, 0.0, -1.0]


# ---------------------------------------------------------------------------------------- unscored rows and dead groups


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pass_at_k"])
@given(seed=st.integers(0, 50))
def test_unscored_rows_change_nobody_elses_advantage(method: str, seed: int) -> None:
    """An abstained reward as 0 (or NaN) would move the mean of its group."""
    dice = random.Random(seed)
    groups = [dice.choice("abc") for _ in range(12)]
    rewards = [dice.choice([0.0, 0.5, 1.0, 2.0]) for _ in groups]
    alone = values_of(rewards, groups, method)
    places = [dice.randrange(len(rewards) + 1) for _ in range(4)]
    mixed: list[float | None] = list(rewards)
    names = list(groups)
    for place in sorted(places, reverse=True):
        mixed.insert(place, None)
        names.insert(place, dice.choice("abc"))
    found = advantages(rewards=mixed, groups=names, method=method)
    assert [v for v, r in zip(found.values.tolist(), mixed, strict=True) if r is not None] == alone
    assert [v for v, r in zip(found.values.tolist(), mixed, strict=True) if r is None] == [0.0] * 4
    assert found.active.tolist() == [reward is not None for reward in mixed]


def test_scored_false_is_the_same_as_none_and_may_hide_nan() -> None:
    by_mask = advantages(
        rewards=torch.tensor([1.0, math.nan, 0.0]),
        groups=torch.tensor([5, 5, 5]),
        scored=torch.tensor([True, False, True]),
    )
    by_none = advantages(rewards=[1.0, None, 0.0], groups=[5, 5, 5])
    assert by_mask.values.tolist() == by_none.values.tolist()
    assert by_mask.active.tolist() == [True, False, True]


def test_a_group_of_one_gets_zero_not_nan() -> None:
    """axolotl#3353: the standard deviation of one value is NaN, and so was the loss."""
    found = advantages(rewards=[3.0, 1.0, 0.0], groups=["one", "two", "two"])
    assert found.values[0].item() == 0.0
    assert found.dead == {"one": "single"}
    assert found.active.tolist() == [True] * 3


def test_dead_groups_are_named_with_the_reason() -> None:
    rewards = [1.0, 1.0, None, None, 0.5, 0.0, 1.0]
    groups = ["flat", "flat", "blank", "blank", "single", "live", "live"]
    found = advantages(rewards=rewards, groups=groups)
    assert found.dead == {"flat": "no_spread", "blank": "unscored", "single": "single"}
    assert found.why_dead() == {"no_spread": 1, "unscored": 1, "single": 1}
    assert found.groups == 4 and found.dead_share == 0.75


def test_float_noise_is_no_spread() -> None:
    """0.1 + 0.2 and 0.3 differ by 5.6e-17; without a tolerance and with epsilon 0 they would be +-1."""
    assert values_of([0.1 + 0.2, 0.3, 0.3], ["a"] * 3, epsilon=0.0) == [0.0, 0.0, 0.0]


def test_ids_tell_groups_apart_not_places_or_equal_hashes() -> None:
    assert values_of([1.0, 0.0, 0.0, 1.0], ["a", "b", "a", "b"], "none") == [0.5, -0.5, -0.5, 0.5]
    assert advantages(rewards=[1.0, 0.0], groups=[1, "1"]).groups == 2


def test_an_empty_batch_is_no_error() -> None:
    found = advantages(rewards=[], groups=[])
    assert found.values.shape == (0,) and found.groups == 0 and found.dead_share == 0.0


def test_reinforce_pp_does_not_need_groups() -> None:
    found = advantages(rewards=[1.0, 0.0], groups=["a", "b"], method="reinforce_pp")
    assert found.dead == {} and found.values[0] > 0


def test_arrays_tensors_and_lists_are_one() -> None:
    numpy = pytest.importorskip("numpy")
    rewards, groups = [1.0, 0.0, 0.5], [2, 2, 2]
    expected = values_of(rewards, groups)
    assert values_of(numpy.array(rewards, dtype="float32"), numpy.array(groups)) == expected
    assert values_of(torch.tensor(rewards), torch.tensor(groups)) == expected


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_with_its_place(bad: float) -> None:
    with pytest.raises(TensorError, match=r"rewards\[1\] is .*scored=False"):
        advantages(rewards=[0.0, bad], groups=["a", "a"])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"groups": ["a"]}, TensorError, "1 ids for 2 rewards"),
        ({"scored": [True]}, TensorError, "1 marks for 2 rewards"),
        ({"weights": [1.0, 2.0]}, TensorError, "2 values for 1 reward component"),
        ({"weights": [math.nan]}, TensorError, "finite"),
        ({"rewards": [[1.0], [1.0, 2.0]]}, TensorError, "rows of 1, 2 components"),
        ({"rewards": ["1", "0"]}, TensorError, r"rewards\[0\] is a str"),
        ({"method": "grop"}, UnknownName, "did you mean group"),
        ({"ddof": 2}, OptionError, "ddof is 0 or 1"),
        ({"epsilon": -1.0}, OptionError, "epsilon"),
        ({"k": 2}, OptionError, "pass_at_k needs k"),
        ({"method": "pass_at_k"}, OptionError, "pass_at_k needs k"),
        ({"method": "pass_at_k", "k": 0}, OptionError, "at least 1"),
    ],
)
def test_wrong_input_says_what_was_wanted(arguments: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        advantages(**({"rewards": [1.0, 0.0], "groups": ["a", "a"]} | arguments))
