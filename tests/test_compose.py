"""Composition: values with a formula; unscored never becomes a number; sums are rounded once."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.compose import (
    Product,
    Reward,
    Schedule,
    WeightedSum,
    clip,
    constant,
    first_of,
    gate,
    maximum,
    minimum,
    schedule,
)
from rewardkit.engine import score
from rewardkit.errors import UsageError
from rewardkit.reward import FunctionReward, group_reward, reward
from rewardkit.types import Completion, Generation, Sample, Score

ASKED: list[tuple[str, str]] = []


@reward(name="a")
def a(completion: str, a: Any = None) -> Any:
    return a


@reward(name="b")
def b(completion: str, b: Any = None) -> Any:
    ASKED.append(("b", completion))
    return b


@reward(name="c")
def c(completion: str, c: Any = None) -> Any:
    return c


@reward(name="broken")
def broken(completion: str) -> float:
    raise RuntimeError("no")


@reward(name="other/a")
def same_label(completion: str) -> float:
    return 1.0


@reward(name="lengths")
def lengths(completion: str, *, scale: float = 1.0) -> float:
    return scale * len(completion)


def judge(
    made: Reward, texts: Sequence[str] = ("x",), *, step: int | None = None, at: int | None = None, **columns: Any
) -> Any:
    """Return the score of one text, or of several; columns give `a`, `b` and `c` their values."""
    generation = Generation(Sample(0, "", None, columns, at), tuple(map(Completion, texts)))
    scores = next(score({"total": made}, [generation], step=step)).scores["total"]
    return scores[0] if len(texts) == 1 else scores


# -- values


def test_compositions_compare_and_hash_by_value() -> None:
    def build() -> Reward:
        return gate(a, then=0.7 * a + 0.3 * lengths.with_options(scale=2.0) - 1, otherwise=-1)

    assert build() == build() and hash(build()) == hash(build()) and len({build(), build()}) == 1
    assert build() != gate(a, then=0.7 * a + 0.3 * lengths - 1, otherwise=-1)
    assert a + b != b + a  # another order is another formula (with the same values)
    assert minimum(a, b) != maximum(a, b)


def test_compositions_pickle() -> None:
    total = schedule({0: a, 5: gate(a, then=clip(2 * b) * c)}) + first_of(a, minimum(b, c)) * 0
    assert pickle.loads(pickle.dumps(total)) == total


def test_a_part_of_weight_one_alone_is_the_part_itself() -> None:
    assert 1 * a is a and a * 1.0 is a and a + 0 is a and sum([a]) is a
    assert sum([a, b]) == a + b
    assert 0 * a != a


@pytest.mark.parametrize(
    ("made", "formula"),
    [
        (a + b, "a + b"),
        (a - b, "a - b"),
        (-a, "-a"),
        (-a - b, "-a - b"),
        (0.8 * a + 0.2 * b, "0.8*a + 0.2*b"),
        (0.8 * a - 0.2 * b, "0.8*a - 0.2*b"),
        (a + 1, "a + 1"),
        (a - 1, "a - 1"),
        (1 - a, "-a + 1"),
        (1.5 + a, "a + 1.5"),
        (a - 1 + 1, "a"),
        (2 * (a + b), "2*(a + b)"),
        (-(a - b), "-(a - b)"),
        (a - (b - c), "a - b + c"),
        (a - (b + 2), "a - b - 2"),
        (a * b, "a*b"),
        (a * b * c, "a*b*c"),
        (a * (b * c), "a*b*c"),
        (2 * a * b, "(2*a)*b"),
        (2 * (a * b), "2*a*b"),
        (a * (b + c), "a*(b + c)"),
        (a + b * c, "a + b*c"),
        (0 * a + b, "0*a + b"),
        (1e-7 * a, "1e-07*a"),
        (1e20 * a, "1e+20*a"),
        (constant(0), "0"),
        (constant(-2.5), "-2.5"),
        (gate(a, b), "gate(a, then=b)"),
        (gate(a, then=b, at=0.5, otherwise=-1), "gate(a, then=b, at=0.5, otherwise=-1)"),
        (clip(a), "clip(a, low=0, high=1)"),
        (clip(a + b, low=-1), "clip(a + b, low=-1, high=1)"),
        (minimum(a, b + c), "minimum(a, b + c)"),
        (maximum(a), "maximum(a)"),
        (first_of(a, 2 * b), "first_of(a, 2*b)"),
        (schedule({500: b, 0: a}), "schedule({0: a, 500: b})"),
        (0.5 * lengths.with_options(scale=2.0), "0.5*lengths(scale=2.0)"),
        (same_label + a, "'other/a' + a"),
    ],
)
def test_formula_text(made: Reward, formula: str) -> None:
    assert made.formula == formula
    assert repr(made) == formula or isinstance(made, FunctionReward)


# -- what is refused


@pytest.mark.parametrize("wrong", [True, "2", None, [1], 1 + 0j])
def test_only_numbers_and_rewards_can_be_added_or_multiplied(wrong: Any) -> None:
    for operation in (
        lambda: a + wrong,
        lambda: wrong + a,
        lambda: a - wrong,
        lambda: wrong - a,
        lambda: a * wrong,
        lambda: wrong * a,
    ):
        with pytest.raises(TypeError):
            operation()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 10**400])
def test_weights_and_bounds_are_finite_also_when_made_from_data(wrong: Any) -> None:
    for operation in (
        lambda: wrong * a,
        lambda: a + wrong,
        lambda: constant(wrong),
        lambda: clip(a, high=wrong),
        lambda: gate(a, b, at=wrong),
        lambda: gate(a, b, otherwise=wrong),
        lambda: WeightedSum(((wrong, a),)),
        lambda: WeightedSum((), wrong),
    ):
        with pytest.raises(ValueError, match="finite number"):
            operation()


def test_fractions_and_other_real_numbers_are_weights() -> None:
    assert Fraction(1, 4) * a == 0.25 * a and a + Fraction(1, 2) == a + 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: minimum(),
        lambda: first_of(),
        lambda: maximum(a, 1),  # type: ignore[arg-type]
        lambda: gate(len, a),  # type: ignore[arg-type]
        lambda: clip(a, low=1, high=0),
        lambda: schedule({}),
        lambda: schedule({1: a}),
        lambda: schedule({-1: a, 0: b}),
        lambda: schedule({0: a, 1.5: b}),  # type: ignore[dict-item]
        lambda: schedule({False: a}),
        lambda: schedule({0: 1.0}),  # type: ignore[dict-item]
    ],
)
def test_wrong_compositions_are_usage_errors(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()


# -- sums

ordinary = st.floats(-1e100, 1e100)
any_float = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = (a, b, c)


def test_seven_tenths_of_one_and_three_tenths_of_nothing_is_seven_tenths() -> None:
    assert judge(0.7 * a + 0.3 * b, a=1.0, b=0.0).value == 0.7
    assert judge(0.3 * b + 0.7 * a, a=1.0, b=0.0).value == 0.7
    assert judge(0.1 * a + 0.2 * b + 0.7 * c, a=1, b=1, c=1).value == 1.0  # ((.1 + .2) + .7) is 1.0000000000000002 else


@given(st.lists(st.tuples(ordinary, ordinary), min_size=1, max_size=3), ordinary)
def test_a_sum_is_rounded_once(terms: list[tuple[float, float]], plus: float) -> None:
    """Oracle: the sum of the rounded products and the constant as exact fractions, rounded to a float."""
    made = WeightedSum(tuple((weight, LEAVES[i]) for i, (weight, _) in enumerate(terms)), plus)
    values = {"abc"[i]: value for i, (_, value) in enumerate(terms)}
    exact = sum((Fraction(weight * value) for weight, value in terms), Fraction(plus))
    assert judge(made, **values).value == float(exact)


@given(any_float, any_float, any_float, any_float, any_float)
def test_the_order_of_a_sum_makes_no_difference_to_value_or_state(
    u: float, v: float, x: float, y: float, z: float
) -> None:
    columns = {"a": x, "b": y, "c": z}
    results = [
        judge(made, **columns)
        for made in (u * a + v * b + c, c + v * b + u * a, v * b + c + u * a, WeightedSum(((1, c), (u, a), (v, b))))
    ]
    assert {(result.state, result.value) for result in results} == {(results[0].state, results[0].value)}
    assert all(result.value is None or math.isfinite(result.value) for result in results)


def test_a_sum_that_is_too_large_only_on_the_way_is_scored() -> None:
    assert judge(a + b - c, a=1e308, b=1e308, c=1e308).value == 1e308


@pytest.mark.parametrize(
    "made",
    [a + b, 1e300 * a, 1e300 * a - 1e300 * b, a * b, a * b * 0.5, clip(a + b), gate(c, then=a + b), minimum(a, a * b)],
    ids=str,
)
def test_too_large_for_a_number_is_an_error_and_not_inf(made: Reward) -> None:
    result = judge(made, a=1.7e308, b=1.7e308, c=1)
    assert (result.value, result.state, result.reason) == (None, "error", "raised")
    assert "too large for a number" in result.detail


# -- unscored parts


@pytest.mark.parametrize(
    "made",
    [a + b, a - b, 1e-300 * b + a, a * b, b * 2, minimum(a, b), maximum(a, b), clip(b), gate(b, then=a),
     gate(a, then=b), schedule({0: b}), 0 * a + b],
    ids=str,
)  # fmt: skip
def test_any_unscored_part_leaves_the_whole_unscored(made: Reward) -> None:
    result = judge(made, a=1.0, b=None)
    assert (result.value, result.state) == (None, "abstained")
    assert "b: the reward returned None" in result.detail


@pytest.mark.parametrize("made", [a + broken, broken + a, a * broken, minimum(a, broken), first_of(broken, a)], ids=str)
def test_an_error_wins_over_an_abstention_in_any_order(made: Reward) -> None:
    result = judge(made, a=None)
    assert (result.state, result.reason) == ("error", "raised")
    assert "broken: RuntimeError: no" in result.detail and result.trace


@pytest.mark.parametrize("value", [None, 1e308, -5.0, 0.0])
@pytest.mark.parametrize(
    "build", [lambda m: a + 0 * m, lambda m: 0 * m + a, lambda m: a - 0 * m], ids=["+", "first", "-"]
)
def test_a_metric_never_touches_the_total_not_even_unscored_or_huge(value: float | None, build: Any) -> None:
    result = judge(build(b), a=0.25, b=value)
    assert result.value == 0.25
    shown = {part.name: (part.weight, part.value) for part in result.parts}
    assert shown == {"a": (1.0, 0.25), "b": (0.0, value)}


def test_a_metric_that_raises_is_shown_and_does_not_touch_the_total() -> None:
    result = judge(a + 0 * broken, a=1)
    assert result.value == 1.0 and result.parts[1].state == "error"


def test_only_metrics_is_zero() -> None:
    assert judge(0 * a + 0 * b, a=5, b=None).value == 0.0


def test_a_zero_times_a_sum_is_a_metric_with_its_parts() -> None:
    result = judge(a + 0 * (b + c), a=1, b=2, c=3)
    assert result.value == 1.0
    assert [(part.name, part.value) for part in result.parts[1].parts] == [("b", 2.0), ("c", 3.0)]


# -- first_of, gate, clip, schedule


def test_first_of_skips_what_is_unscored_but_a_zero_is_an_answer() -> None:
    assert judge(first_of(a, b), a=0.0, b=1.0).value == 0.0
    result = judge(first_of(a, broken, b, c), a=None, b=0.5, c=1.0)
    assert result.value == 0.5
    assert [(part.name, part.state) for part in result.parts] == [
        ("a", "abstained"), ("broken", "error"), ("b", "scored"),
    ]  # fmt: skip


def test_first_of_asks_a_later_part_only_where_the_earlier_could_not() -> None:
    ASKED.clear()

    @reward
    def long_only(completion: str) -> float | None:
        return 1.0 if len(completion) > 2 else None

    results = judge(first_of(long_only, b), ["abc", "x", "abcd", "yz"], b=0.25)
    assert [result.value for result in results] == [1.0, 0.25, 1.0, 0.25]
    assert ASKED == [("b", "x"), ("b", "yz")]


def test_first_of_nothing_scored_is_unscored_for_the_last_reason() -> None:
    result = judge(first_of(a, b), a=None, b=None)
    assert (result.state, result.detail) == ("abstained", "b: the reward returned None")
    assert len(result.parts) == 2


def test_a_gate_asks_then_only_where_it_is_open() -> None:
    ASKED.clear()
    short = 1 - 0.5 * lengths  # 0.5, 0, -0.5 for one, two, three letters
    results = judge(gate(short, then=b, at=0.0, otherwise=-1), ["x", "abc", "yz"], b=0.25)
    assert [result.value for result in results] == [0.25, -1.0, 0.25]
    assert ASKED == [("b", "x"), ("b", "yz")]
    assert [len(result.parts) for result in results] == [2, 1, 2]


def test_a_gate_that_is_closed_everywhere_asks_nobody() -> None:
    ASKED.clear()
    assert judge(gate(a, then=b), a=0.5).value == 0.0 and not ASKED


def test_a_gate_is_open_exactly_at_its_threshold() -> None:
    assert judge(gate(a, then=b), a=1.0, b=0.25).value == 0.25
    assert judge(gate(a, then=b), a=math.nextafter(1.0, 0), b=0.25).value == 0.0


def test_a_closed_gate_keeps_the_condition_s_reason_and_an_open_one_then_s() -> None:
    @reward
    def tags(completion: str) -> Score:
        return Score(0.0, "no closing tag", "x", "unreadable")

    closed = judge(gate(tags, then=b))
    assert (closed.value, closed.reason, closed.extracted) == (0.0, "unreadable", "x")
    assert closed.detail == "gate closed: tags: no closing tag"
    opened = judge(gate(tags, then=tags, at=0))
    assert (opened.value, opened.reason, opened.detail) == (0.0, "unreadable", "no closing tag")


def test_a_gate_whose_condition_is_unscored_is_not_closed_but_unscored() -> None:
    ASKED.clear()
    result = judge(gate(a, then=b, otherwise=-1), a=None, b=1)
    assert (result.value, result.state) == (None, "abstained") and not ASKED


def test_a_group_reward_behind_a_gate_still_sees_the_whole_group() -> None:
    seen: list[int] = []

    @group_reward
    def rank(completions: list[str]) -> list[float]:
        seen.append(len(completions))
        return [float(i) for i in range(len(completions))]

    results = judge(gate(lengths, then=rank, at=2), ["x", "yy", "z", "ww"])
    assert [result.value for result in results] == [0.0, 1.0, 0.0, 3.0] and seen == [4]


@given(ordinary, ordinary, ordinary, ordinary)
def test_clip_minimum_maximum_and_product(x: float, y: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert judge(clip(a, low=low, high=high), a=x).value == sorted((low, x, high))[1]
    assert judge(minimum(a, b), a=x, b=y).value == sorted((x, y))[0]
    assert judge(maximum(a, b), a=x, b=y).value == sorted((x, y))[1]
    assert judge(a * b, a=x, b=y).value == float(Fraction(x) * Fraction(y))


@pytest.mark.parametrize(
    ("row", "given_step", "value"),
    [
        (0, None, 1.0),
        (4, None, 1.0),
        (5, None, 2.0),
        (10**9, None, 3.0),
        (None, 4, 1.0),
        (None, 5, 2.0),
        (0, 5, 1.0),  # the row's own step comes first
        (7, 100, 2.0),
        (None, None, 3.0),  # no step: as at the end of training
        (-1, None, 1.0),
    ],
)
def test_schedule_goes_by_the_row_then_by_the_given_step_then_takes_the_last(
    row: int | None, given_step: int | None, value: float
) -> None:
    made = schedule({9: c, 0: a, 5: b})
    assert judge(made, at=row, step=given_step, a=1, b=2, c=3).value == value


def test_schedule_asks_only_the_entry_that_holds() -> None:
    ASKED.clear()
    assert judge(schedule({0: a, 5: b}), at=0, a=1, b=1).value == 1 and not ASKED


# -- parts


def test_nested_parts_are_recorded_with_weights_and_names() -> None:
    result = judge(0.5 * a + 0.25 * (b * c) - 0.125 * minimum(a, b), a=1, b=2, c=3)
    assert result.value == 0.5 + 1.5 - 0.125
    assert [(part.name, part.weight, part.value) for part in result.parts] == [
        ("a", 0.5, 1.0), ("b*c", 0.25, 6.0), ("minimum(a, b)", -0.125, 1.0),
    ]  # fmt: skip
    assert [(part.name, part.weight, part.value) for part in result.parts[1].parts] == [
        ("b", None, 2.0),
        ("c", None, 3.0),
    ]


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (a + a, ["a", "a #2"]),
        (a + same_label, ["a", "'other/a'"]),
        (lengths + lengths.with_options(scale=2.0), ["lengths", "lengths(scale=2.0)"]),
        (a + a + same_label + a, ["a", "a #2", "'other/a'", "a #3"]),
        (a + b, ["a", "b"]),
        (minimum(a, a), ["a", "a #2"]),
        (Product((a, a, a)), ["a", "a #2", "a #3"]),
        (WeightedSum(((1, a), (1, a), (1, reward(name="a #2")(lengths)))), ["a", "a #2", "a #2 #2"]),
    ],
)
def test_parts_have_distinct_names_so_that_none_hides_another(made: Reward, names: list[str]) -> None:
    assert [part.name for part in judge(made, a=1, b=1).parts] == names


def test_one_leaf_twice_in_a_composition_is_asked_once() -> None:
    ASKED.clear()
    assert judge(b + 2 * b + minimum(b, b), b=1).value == 4.0
    assert ASKED == [("b", "x")]


def test_every_completion_has_its_own_score_and_none_is_fine() -> None:
    results = judge(1 - 0.5 * lengths, ["", "x", "xyz"])
    assert [result.value for result in results] == [1.0, 0.5, -0.5]
    empty = Generation(Sample(0), ())
    for made in (a + b, constant(1), gate(a, b), first_of(a, b), minimum(a, b), schedule({0: a})):
        assert next(score({"t": made}, [empty])).scores == {"t": []}


def test_a_constant_is_scored_everywhere() -> None:
    assert [result.value for result in judge(constant(0.5), ["x", "y"])] == [0.5, 0.5]
    assert judge(gate(a, then=constant(1), otherwise=-1), a=1).value == 1.0


def test_leaves_are_listed_from_left_to_right() -> None:
    assert list((a + gate(b, then=c * a)).leaves()) == [a, b, c, a]
    assert list(constant(1).leaves()) == []


def test_the_active_entry_of_one_entry() -> None:
    assert isinstance(schedule({0: a}), Schedule)
    assert judge(schedule({0: a}), a=1, at=77).value == 1.0
