"""rewardkit.stats against enumeration, exact fractions and published figures."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import stats as oracle

from rewardkit import stats

Shared = Callable[[str], Path]
numbers = st.floats(-1e6, 1e6, allow_nan=False)


# ----------------------------------------------------------------------------------------------- mean and spread


@given(st.lists(numbers, min_size=2, max_size=30))
def test_moments_are_the_exact_ones_rounded(values: list[float]) -> None:
    found = stats.moments(values)
    assert found is not None and found.std is not None
    assert found.n == len(values)
    assert found.mean == pytest.approx(float(sum(map(Fraction, values)) / len(values)), rel=1e-12, abs=1e-12)
    assert found.std == pytest.approx(math.sqrt(oracle.variance(values)), rel=1e-9, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0, -3.5]), min_size=2), st.randoms())
def test_moments_do_not_depend_on_order_or_on_being_counted(values: list[float], rng: random.Random) -> None:
    shuffled = rng.sample(values, len(values))
    counted = stats.moments(Counter(shuffled))
    listed = stats.moments(values)
    assert listed is not None and counted is not None
    assert stats.moments(shuffled) == listed
    assert counted.mean == listed.mean  # exactly: a counted value is added by exact powers of two
    assert counted.std == pytest.approx(listed.std, rel=1e-12)


def test_equal_values_have_their_own_mean() -> None:
    """fsum([0.7] * 3) / 3 is 0.6999999999999998."""
    assert math.fsum([0.7] * 3) / 3 != 0.7
    assert stats.moments([0.7] * 3) == stats.Moments(3, 0.7, 0.0)
    assert stats.moments({0.7: 1000}) == stats.Moments(1000, 0.7, 0.0)


def test_moments_of_nothing_one_and_too_much() -> None:
    assert stats.moments([]) is None
    assert stats.moments({}) is None
    assert stats.moments([2.0]) == stats.Moments(1, 2.0, None)
    assert stats.moments([1e308, 1e308, -1.0]) is None, "overflow is n/a, never infinity"
    assert stats.moments([1e200, -1e200]) == stats.Moments(2, 0.0, None), "a spread that overflows is n/a"


def test_quantile_is_linear_between_neighbours() -> None:
    assert [stats.quantile([0.0, 1.0, 5.0], q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 3.0, 5.0]
    assert stats.quantile([4.0], 0.95) == 4.0


def test_reservoir_is_exact_while_all_fit_and_close_after_that() -> None:
    small = stats.Reservoir(size=100)
    for value in (0.3, 0.1, 0.2):
        small.add(value)
    assert small.to_dict() == {"total": 0.6, "max": 0.3, "p50": 0.2, "p95": pytest.approx(0.29), "n": 3}
    large = stats.Reservoir(size=1000)
    for at in range(50_000):
        large.add((at * 7919 % 50_000) / 50_000)
    assert len(large.kept) == 1000
    figures = large.to_dict()
    assert figures is not None
    assert figures["n"] == 50_000
    assert figures["total"] == pytest.approx(24_999.5)
    assert figures["p50"] == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(1000))
    assert figures["p95"] == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / 1000))
    assert stats.Reservoir().to_dict() is None


def test_reservoir_keeps_late_items_as_often_as_early_ones() -> None:
    """A skip that is off by one would favour one end of the stream."""
    kept: list[float] = []
    for seed in range(300):
        reservoir = stats.Reservoir(size=20, seed=seed)
        for at in range(200):
            reservoir.add(float(at))
        kept += reservoir.kept
    thirds = Counter(int(value // 50) for value in kept)
    assert sum(thirds.values()) == 6000
    assert all(abs(thirds[third] - 1500) < 5 * math.sqrt(1500 * 0.75) for third in range(4)), thirds


# ------------------------------------------------------------------------------------------------------ interval


def test_fewer_than_ten_problems_have_no_interval() -> None:
    assert stats.interval_over_problems([0.0, 1.0] * 4 + [1.0], [1] * 9) is None
    assert stats.interval_over_problems([0.0, 1.0] * 5, [1] * 10) is not None
    assert stats.interval_over_problems([], []) is None


def test_problems_without_a_scored_completion_do_not_count() -> None:
    nine = stats.interval_over_problems([0.0, 1.0] * 4 + [1.0, 0.0], [1] * 9 + [0])
    assert nine is None
    with_empty = stats.interval_over_problems([0.0, 1.0] * 5 + [0.0] * 7, [1] * 10 + [0] * 7)
    assert with_empty == stats.interval_over_problems([0.0, 1.0] * 5, [1] * 10)
    assert with_empty is not None and with_empty.problems == 10
    many = stats.interval_over_problems([0.0, 1.0] * 10 + [0.0], [1] * 20 + [0], resample_up_to=12)
    assert many is not None and (many.problems, many.method[:6]) == (20, "normal")


def test_equal_problems_claim_no_certainty() -> None:
    """Resampling 1,319 zeros gives the interval 0 to 0, as if nothing else could ever happen."""
    assert stats.interval_over_problems([0.0] * 1319, [1] * 1319) is None
    assert stats.interval_over_problems([0.7 * n for n in range(1, 30)], list(range(1, 30))) is None


def test_sums_at_the_end_of_the_range_have_no_interval() -> None:
    assert stats.interval_over_problems([1e308, -1e308] * 10, [1] * 20) is None
    assert stats.interval_over_problems([math.inf, 0.0] * 10, [1] * 20) is None


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.interval_over_problems([0.0, 1.0] * 10, [1] * 20, level=level)


ROUGH = random.Random(5)
SHAPES = {
    "binary": [(float(ROUGH.random() < 0.3), 1) for _ in range(400)],
    "groups of 8": [(float(ROUGH.randint(0, 8)), 8) for _ in range(60)],
    "ragged": [(float(ROUGH.randint(0, n)), n) for n in (ROUGH.choice((1, 3, 8, 2)) for _ in range(70))],
    "fractional": [(ROUGH.random(), 1) for _ in range(300)],
    "skewed": [(ROUGH.random() ** 8 * 1000 - 20, 1) for _ in range(300)],
    "runs beside single ones": [(0.0, 1)] * 90 + [(1.0, 1)] * 60 + [(ROUGH.random(), 1) for _ in range(130)],
    "more than one block": [(ROUGH.gauss(0, 1), ROUGH.randint(1, 400)) for _ in range(700)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_bootstrap_agrees_with_one_that_draws_each_problem(shape: str) -> None:
    """Both ends lie within the noise of 2,000 and 4,000 draws: five standard errors of a 2.5 % quantile."""
    problems = SHAPES[shape]
    found = stats.interval_over_problems([s for s, _ in problems], [c for _, c in problems])
    assert found is not None and "bootstrap" in found.method
    low, high = oracle.bootstrap(problems, 4000)
    noise = (high - low) / 3.92 * 5 * 2.67 * math.sqrt(1 / 2000 + 1 / 4000)
    assert found.low == pytest.approx(low, abs=noise)
    assert found.high == pytest.approx(high, abs=noise)


def test_bootstrap_of_a_mean_is_the_normal_interval_when_there_are_many() -> None:
    """0/1 over 2,000 problems, p = 0.4: 0.4 +- 1.96 sqrt(0.24 / 2000) = 0.3785 to 0.4215."""
    found = stats.interval_over_problems([1.0, 0.0, 1.0, 0.0, 0.0] * 400, [1] * 2000)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.3785, abs=0.0015), pytest.approx(0.4215, abs=0.0015))


def test_completions_of_one_problem_are_not_independent() -> None:
    """20 problems x 50 equal samples: the textbook interval over 1,000 samples would be five times too narrow."""
    found = stats.interval_over_problems([50.0, 0.0] * 10, [50] * 20)
    assert found is not None
    assert found.high - found.low > 5 * 2 * 1.96 * math.sqrt(0.25 / 1000)


def test_above_the_cut_the_interval_is_the_linearised_one() -> None:
    """Written out: r = S / N, se = sqrt(n / (n - 1) sum((s - r c)^2)) / N, z = 1.959964."""
    problems = SHAPES["ragged"]
    found = stats.interval_over_problems([s for s, _ in problems], [c for _, c in problems], resample_up_to=50)
    exact = [(Fraction(s), c) for s, c in problems]
    completions, n = sum(c for _, c in exact), len(exact)
    ratio = sum(s for s, _ in exact) / completions
    se = math.sqrt(Fraction(n, n - 1) * sum((s - ratio * c) ** 2 for s, c in exact)) / completions
    assert found is not None and found.method.startswith("normal")
    assert found.low == pytest.approx(float(ratio) - 1.959964 * se, rel=1e-6)
    assert found.high == pytest.approx(float(ratio) + 1.959964 * se, rel=1e-6)
    tally = Counter(problems)
    again = stats.interval_of_tally(tally, resample_up_to=50)
    assert again is not None and again.low == pytest.approx(found.low, rel=1e-12)


def test_the_interval_is_the_same_in_every_python() -> None:
    """Written down once: only `random()`, `randbytes()` and exactly rounded sums are used. A change here is a change
    of every saved interval."""
    binary = stats.interval_over_problems([float(i % 7 == 0) for i in range(500)], [1] * 500)
    mixed = stats.interval_over_problems([(i * 37 % 101) / 100 for i in range(300)], [1 + i % 3 for i in range(300)])
    assert binary is not None and mixed is not None
    assert (binary.low, binary.high) == (0.114, 0.176)
    assert (mixed.low, mixed.high) == (
        pytest.approx(0.22978717664876547, rel=1e-12),
        pytest.approx(0.2696948214445788, rel=1e-12),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=10, max_size=40), st.randoms())
def test_the_order_of_problems_is_nothing(problems: list[tuple[int, int]], rng: random.Random) -> None:
    def ends(pairs: list[tuple[int, int]]) -> stats.Interval | None:
        return stats.interval_over_problems([float(s) for s, _ in pairs], [c for _, c in pairs], draws=50)

    assert ends(problems) == ends(rng.sample(problems, len(problems)))


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=5, max_size=60))
def test_a_symmetric_interval_holds_the_mean(half: list[float]) -> None:
    values = [*half, *(-value for value in half)]
    found = stats.interval_over_problems(values, [1] * len(values), draws=400)
    if found is not None:
        assert found.low <= 0.0 <= found.high
        assert max(map(abs, values)) >= max(-found.low, found.high)


@pytest.mark.parametrize(("m", "p"), [(1, 0.5), (7, 0.01), (16, 0.7), (33, 0.25), (200, 0.999)])
def test_binomials_follow_their_distribution(m: int, p: float) -> None:
    draws = 20_000
    seen = Counter(stats._binomials(random.Random(3), [m] * draws, p))
    expected = [float(weight) for weight in oracle.binomial_pmf(m, Fraction(p))]
    assert set(seen) <= set(range(m + 1))
    for k, weight in enumerate(expected):
        assert abs(seen[k] - draws * weight) <= 5 * math.sqrt(draws * weight * (1 - weight)) + 5 * (weight < 1e-3)


# -------------------------------------------------------------------------------------------------------- pass@k


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert stats.pass_at_k(n, c, k) == float(oracle.pass_at_k(n, c, k))


def test_pass_at_k_stays_exact_for_large_groups() -> None:
    """1 - a product of floats loses digits where pass@k is small: 1 of 100,000, k = 3, is 3e-5 exactly."""
    assert stats.pass_at_k(100_000, 1, 3) == 3e-5
    assert stats.pass_at_k(1000, 0, 1000) == 0.0
    assert stats.pass_at_k(1000, 1, 1000) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_what_cannot_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="n=4"):
        stats.pass_at_k(n, c, k)


def test_groups_below_k_are_left_out_and_counted() -> None:
    pairs = [(1, 1), (3, 1), (8, 0), (2, 2)]
    at_2 = stats.mean_pass_at_k(pairs, 2)
    assert (at_2.value, at_2.problems, at_2.left_out) == (pytest.approx((2 / 3 + 0 + 1) / 3), 3, 1)
    assert at_2.interval is None
    assert stats.mean_pass_at_k(Counter(pairs), 2) == at_2
    none = stats.mean_pass_at_k(pairs, 9)
    assert (none.value, none.problems, none.left_out) == (None, 0, 4)
    assert stats.mean_pass_at_k([(0, 0), (1, 1), (0, 0)], 1).left_out == 2


@pytest.mark.parametrize(
    ("sizes", "ks", "why"),
    [
        ([50] * 20, [1, 2, 4, 8, 16, 32, 50], "powers of two, and the size itself"),
        ([8] * 5, [1, 2, 4, 8], "the size is a power: named once"),
        ([8] * 9 + [7], [1, 2, 4, 8], "one short group takes nothing away"),
        ([1] * 9 + [64], [1], "one large group adds nothing"),
        ([1, 3, 8, 2], [1, 2, 3], "half of the groups reach 3"),
        ([1], [1], "one completion"),
        ([0, 0, 0, 4], [1, 2, 4], "groups without a scored completion have no say"),
        ([], [], "no groups"),
        ([0], [], "nothing scored"),
    ],
)
def test_ks_rest_on_half_of_the_groups(sizes: list[int], ks: list[int], why: str) -> None:
    assert stats.pass_ks(sizes) == ks, why
    assert stats.pass_ks(Counter(sizes)) == ks, why


# -------------------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("values", "dead", "fail", "passed", "why"),
    [
        ([], None, False, False, "an empty group has no spread to speak of"),
        ([1.0], None, False, False, "one completion cannot differ from itself"),
        ([0.0, 0.0], True, True, False, "all wrong"),
        ([1.0, 1.0, 1.0], True, False, True, "all right"),
        ([0.5, 0.5], True, False, False, "dead, but neither"),
        ([0.0, 1.0], False, False, False, "alive"),
        ([0.1, 0.10000000149011612], True, False, False, "0.1 and float32(0.1)"),
        ([0.0, 5.5e-17], True, True, False, "0.1 + 0.2 - 0.3"),
        ([1000.0, 1000.0001], True, False, False, "float32 noise of a large value"),
        ([0.0, 1e-3], False, False, False, "small, but a difference"),
        ([-1.0, 1.0], False, False, False, "equal size, other sign"),
    ],
)
def test_spread_within_a_group(values: list[float], dead: bool | None, fail: bool, passed: bool, why: str) -> None:
    found = stats.group_spread(values)
    assert (found.zero_signal, found.all_fail, found.all_pass) == (dead, fail, passed), why
    assert found.n == len(values)


def test_the_spread_within_a_group_is_the_sample_one() -> None:
    assert stats.group_spread([0.0, 0.0, 1.0, 1.0]).std == pytest.approx(statistics.stdev([0.0, 0.0, 1.0, 1.0]))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=7), min_size=1, max_size=5),
    st.integers(1, 5),
)
def test_expected_dead_share_is_that_of_all_subsets(problems: list[list[float]], size: int) -> None:
    found = stats.expected_dead_share([stats.multiplicities(values) for values in problems], size)
    exact = oracle.dead_share(problems, size)
    assert found == (None if exact is None else pytest.approx(float(exact), abs=1e-12))


def test_scores_that_are_alike_are_one_score() -> None:
    assert stats.multiplicities([0.1, 1.0, 0.10000000149011612, 0.0, 1.0]) == (1, 2, 2)
    assert stats.multiplicities([]) == ()


def test_a_group_has_completions() -> None:
    with pytest.raises(ValueError, match="at least one"):
        stats.expected_dead_share([(1, 1)], 0)


# ---------------------------------------------------------------------------------------------------- comparison


def test_sign_test_is_the_sum_over_all_signs() -> None:
    for n in range(11):
        for wins in range(n + 1):
            assert stats.sign_test(wins, n - wins) == pytest.approx(float(oracle.sign_test(wins, n - wins)), rel=1e-12)


def test_sign_test_of_many() -> None:
    """Against Pascal's triangle, on both sides of where the first term is taken from `lgamma`."""
    weights = oracle.binomial_pmf(118, Fraction(1, 2))
    assert stats.sign_test(64, 54) == pytest.approx(float(2 * sum(weights[:55])), rel=1e-12)
    assert stats.sign_test(10_100, 9_901) == pytest.approx(stats.sign_test(10_099, 9_901), rel=0.03)
    assert stats.sign_test(500_000, 500_000) == 1.0
    assert 0.0 <= stats.sign_test(300_000, 0) < 1e-300
    with pytest.raises(ValueError, match="counts"):
        stats.sign_test(-1, 3)


def test_paired_difference_written_out() -> None:
    before = [0.0] * 6 + [1.0] * 6
    after = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0] + [1.0] * 5 + [0.0]
    found = stats.paired_difference(before, after)
    assert found is not None and found.interval is not None
    assert (found.wins, found.losses, found.ties) == (3, 1, 8)
    assert found.mean == pytest.approx(2 / 12)
    std = math.sqrt((4 - 12 * (1 / 6) ** 2) / 11)
    assert found.interval.high - found.mean == pytest.approx(1.959964 * std / math.sqrt(12), rel=1e-6)
    assert found.p == pytest.approx(2 * (1 + 4) / 16)


def test_paired_difference_of_little() -> None:
    assert stats.paired_difference([], []) is None
    few = stats.paired_difference([0.0, 1.0], [1.0, 1.0])
    assert few is not None and few.interval is None and few.p == 1.0
    same = stats.paired_difference([0.1] * 20, [0.1] * 20)
    assert same is not None and same.interval is None and same.ties == 20
    with pytest.raises(ValueError, match=r"argument 2|shorter|longer"):
        stats.paired_difference([0.0], [1.0, 1.0])


# ----------------------------------------------------------------------------------------------------- real data


def counts(path: Path) -> list[tuple[int, int]]:
    results = json.loads(path.read_text(encoding="utf-8"))["categories"][0]["datasets"][0]["results"]
    return [(len(r["completions"]), sum(c["score"] for c in r["completions"])) for r in results]


@pytest.mark.parametrize(
    ("name", "pass_at", "dead", "forecast"),
    [
        (
            "amc23_step_400.json",
            {1: 19.70, 4: 42.07, 8: 54.43, 16: 66.39, 32: 77.34, 50: 85.00},
            3,
            {4: 61.4, 8: 46.3, 16: 33.6},
        ),
        ("amc23_step_800.json", {1: 17.90, 8: 46.76, 50: 70.00}, 6, {}),
    ],
)
def test_real_groups_give_the_known_figures(
    shared: Shared, name: str, pass_at: dict[int, float], dead: int, forecast: dict[int, float]
) -> None:
    """data/README.md, "What a correct run prints"; reported_faults.md, groups that teach nothing."""
    pairs = counts(shared(f"data/grpo_groups/{name}"))
    for k, value in pass_at.items():
        found = stats.mean_pass_at_k(pairs, k).value
        assert found is not None and round(100 * found, 2) == value
    assert sum(bool(stats.group_spread([1.0] * c + [0.0] * (n - c)).zero_signal) for n, c in pairs) == dead
    for size, value in forecast.items():
        share = stats.expected_dead_share([(c, n - c) for n, c in pairs], size)
        assert share is not None and round(100 * share, 1) == value


def test_real_groups_have_a_wide_interval(shared: Shared) -> None:
    pairs = counts(shared("data/grpo_groups/amc23_step_400.json"))
    found = stats.interval_over_problems([float(c) for _, c in pairs], [n for n, _ in pairs])
    assert found is not None and found.problems == 20
    assert (found.low, found.high) == (pytest.approx(0.104, abs=0.012), pytest.approx(0.303, abs=0.012))


def test_real_runs_show_no_difference(shared: Shared) -> None:
    """gsm8k, base against RL: +0.76 points (95 % +-1.61), 64 won, 54 lost, p 0.41."""

    def labels(run: str) -> dict[object, float]:
        lines = shared(f"data/math_runs/{run}/gsm8k.jsonl").read_text(encoding="utf-8").splitlines()
        return {row["idx"]: float(row["score"][0]) for row in map(json.loads, lines)}

    before, after = labels("qwen2.5-3b-instruct"), labels("qwen2.5-3b-rlft")
    found = stats.paired_difference(list(before.values()), [after[idx] for idx in before])
    assert found is not None and found.interval is not None
    assert (found.wins, found.losses) == (64, 54)
    assert round(100 * found.mean, 2) == 0.76
    assert round(50 * (found.interval.high - found.interval.low), 2) == 1.61
    assert round(found.p, 2) == 0.41


# ----------------------------------------------------------------------------------------------- group diagnostics


def test_diagnostics_name_both_spreads_apart() -> None:
    """Problems of different difficulty spread over the batch, and teach nothing: each group is of one mind."""
    found = stats.group_diagnostics([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0, None], [1.0, 0.0]])
    assert (found.groups, found.dead, found.all_fail, found.all_pass) == (4, 3, 2, 1)
    assert found.dead_share == 0.75
    assert found.std_within_groups == pytest.approx(math.sqrt(0.5) / 4)
    assert found.std_over_batch == pytest.approx(statistics.stdev([0, 0, 1, 1, 0, 0, 1, 0]))
    assert (found.scored, found.unscored) == (8, 1)
    assert found.shares is None


def test_diagnostics_of_groups_of_one_and_of_nothing() -> None:
    """axolotl 3353: a group of one has a spread of NaN. Here it has none, and is no dead group either."""
    found = stats.group_diagnostics([[1.0], [None, None], [0.5, None]])
    assert (found.groups, found.dead, found.dead_share, found.std_within_groups) == (0, 0, None, None)
    assert (found.scored, found.unscored) == (2, 3)
    empty = stats.group_diagnostics([])
    assert (empty.groups, empty.dead_share, empty.std_over_batch) == (0, None, None)


def test_a_component_that_is_constant_in_every_group_has_no_share_whatever_its_weight() -> None:
    shares = stats.component_shares(
        {"math": [[1.0, 0.0], [0.0, 1.0]], "format": [[1.0, 1.0], [0.0, 0.0]]}, {"math": 0.1, "format": 100.0}
    )
    assert shares == {"math": 1.0, "format": 0.0}


def test_a_component_against_the_total_has_a_negative_share() -> None:
    shares = stats.component_shares({"math": [[1.0, 0.0]], "short": [[0.0, 0.5]]})
    assert shares == {"math": 2.0, "short": -1.0}, "1 - 0 = 1 and 0 - 0.5 = -0.5, of the 0.5 between the totals"


def test_without_spread_there_are_no_shares() -> None:
    assert stats.component_shares({"a": [[1.0, 1.0], [1.0]], "b": [[0.5, 0.5], [0.0]]}) is None
    assert stats.component_shares({"a": [[1.0, 0.0]], "b": [[0.0, 1.0]]}) is None, "they cancel: nothing to share"
    assert stats.component_shares({"a": [[1.0, None]], "b": [[0.0, 1.0]]}) is None
    assert stats.component_shares({}) is None


def test_shapes_and_names_must_fit() -> None:
    with pytest.raises(ValueError, match="shorter"):
        stats.component_shares({"a": [[1.0, 0.0]], "b": [[1.0]]})
    with pytest.raises(ValueError, match="shorter"):
        stats.component_shares({"a": [[1.0, 0.0], [0.0]], "b": [[1.0, 0.0]]})
    with pytest.raises(ValueError, match="got maths"):
        stats.component_shares({"math": [[1.0, 0.0]]}, {"maths": 0.5})


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(-8, 8)), min_size=1, max_size=6),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.booleans(),
)
def test_shares_are_the_exact_ones(groups: list[list[tuple[float, int]]], weight: float, scaled: bool) -> None:
    components = {
        "math": [[row[0] for row in group] for group in groups],
        "length": [[row[1] / 8 for row in group] for group in groups],
    }
    weights = {"math": 1.0, "length": weight}
    got, want = stats.component_shares(components, weights, scaled=scaled), oracle.shares(components, weights, scaled)
    assert (got is None) == (want is None)
    if got is not None and want is not None:
        assert math.fsum(got.values()) == pytest.approx(1.0)
        for name, share in want.items():
            assert got[name] == pytest.approx(float(share), rel=1e-9, abs=1e-9)
    shuffled = {name: [group[::-1] for group in held[::-1]] for name, held in components.items()}
    assert stats.component_shares(shuffled, weights, scaled=scaled) == got, "order is nothing, to the last bit"


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_forecast_of_dead_groups_is_what_a_trainer_would_meet(size: int) -> None:
    rng = random.Random(5)
    problems = [
        [float(rng.random() < p) for _ in range(rng.choice([6, 12, 20]))] for p in (0.0, 0.05, 0.3, 0.7, 1.0) * 6
    ]
    want = oracle.simulated_dead_share(problems, size, draws=20_000)
    got = stats.expected_dead_share([stats.multiplicities(values) for values in problems], size)
    assert got == pytest.approx(want, abs=5 * math.sqrt(0.25 / 20_000))


# ----------------------------------------------------------------------------------------------- durations in pieces


def test_a_reservoir_made_in_pieces_is_the_whole_while_pieces_are_kept_whole() -> None:
    rng = random.Random(2)
    values = [rng.expovariate(1.0) for _ in range(3000)]
    whole, merged = stats.Reservoir(size=50), stats.Reservoir(size=50)
    for value in values:
        whole.add(value)
    for start in range(0, len(values), 40):
        piece = stats.Reservoir(size=50)
        for value in values[start : start + 40]:
            piece.add(value)
        merged.absorb(piece.state())
    assert merged.to_dict() == whole.to_dict()
    assert merged.kept == whole.kept


@pytest.mark.parametrize("sizes", [(4000, 1000), (1000, 4000), (10, 5000), (5000, 10), (0, 5000)])
def test_samples_of_two_reservoirs_stand_for_both_in_proportion(sizes: tuple[int, int]) -> None:
    """A merge that took half from each would count the smaller side too often."""
    from_first = kept = late = 0
    for seed in range(60):
        first, second = stats.Reservoir(size=40, seed=seed), stats.Reservoir(size=40, seed=seed + 1000)
        for _ in range(sizes[0]):
            first.add(1.0)
        for _ in range(sizes[1]):
            second.add(2.0)
        first.absorb(second.state())
        for _ in range(1000):
            first.add(3.0)
        from_first += first.kept.count(1.0)
        late += first.kept.count(3.0)
        kept += len(first.kept)
        assert first.n == sum(sizes) + 1000
        assert first.to_dict()["total"] == sizes[0] + 2 * sizes[1] + 3000  # type: ignore[index]
    everything = sum(sizes) + 1000
    assert kept == 60 * 40
    for seen, of in ((from_first, sizes[0]), (late, 1000)):
        share = of / everything
        assert abs(seen - kept * share) <= 5 * math.sqrt(kept * share * (1 - share)) + 1, (seen, of)
