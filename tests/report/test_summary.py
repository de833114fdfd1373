"""rewardkit.report.summary: what is counted, what never enters a mean, and that order is nothing."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardkit.report import Summary, notices, warnings
from rewardkit.report.terminal import render_summary
from rewardkit.types import Completion, Generation, Sample, Score

Shared = Callable[[str], Path]
ABSTAINED = Score(None, reason="missing")
FAILED = Score.error("raised", "ZeroDivisionError")
RIGHT, WRONG = Score(1.0), Score(0.0, reason="wrong")


def group(scores: Sequence[Score], key: int = 0, model: str | None = None, labels: Sequence[Any] = ()) -> Generation:
    metadata = [{"label": label} for label in labels] or [{} for _ in scores]
    completions = tuple(Completion("text", metadata=columns) for columns in metadata)
    return Generation(Sample(key), completions, model, key=key)


def summed(groups: Sequence[Sequence[Score]], name: str = "math", **options: Any) -> dict[str, Any]:
    summary = Summary([name], **options)
    for key, scores in enumerate(groups, 1):
        summary.add(group(scores, key), {name: scores})
    figures = summary.to_dict()
    json.dumps(figures, allow_nan=False)
    return figures.get("default", {})


def of(values: Sequence[float]) -> list[Score]:
    return [Score(value) for value in values]


# --------------------------------------------------------------------------------------------------------------- counts


def test_what_could_not_be_judged_enters_no_mean_and_every_count() -> None:
    """2 of 3 scored are right: 0.667, and not 0.4 (unscored as 0) nor NaN."""
    figures = summed([[RIGHT, WRONG, ABSTAINED, FAILED, RIGHT]])
    math_ = figures["rewards"]["math"]
    assert math_["mean"] == 2 / 3
    assert (math_["n"], math_["scored"], math_["abstained"], math_["errors"], math_["right"]) == (5, 3, 1, 1, 2)
    assert math_["reasons"] == {"missing": 1, "raised": 1, "wrong": 1}
    assert (math_["min"], math_["max"]) == (0.0, 1.0)
    assert math_["std_over_batch"] == pytest.approx(math.sqrt(1 / 3))
    assert figures["completions"] == 5
    assert figures["pass_at_k"]["math"]["1"]["value"] == 2 / 3
    assert list(figures["pass_at_k"]["math"]) == ["1", "2", "3"], "three scored completions, not five"
    assert figures["groups"]["zero_signal"]["math"] == {"n": 0, "all_fail": 0, "all_pass": 0, "of": 1}


def test_nothing_scored_is_null_and_not_nan() -> None:
    figures = summed([[ABSTAINED, FAILED]] * 12)
    reward = figures["rewards"]["math"]
    for name in ("mean", "interval", "right", "min", "max", "std_over_batch", "std_within_groups", "seconds"):
        assert reward[name] is None, name
    assert (reward["n"], reward["problems"]) == (24, 0)
    assert figures["pass_at_k"] == {}
    assert figures["groups"]["expected_dead_share"]["math"] == {"4": None, "8": None, "16": None}
    assert figures["groups"]["zero_signal"]["math"]["of"] == 0
    assert figures["label"] is None


def test_zero_rows() -> None:
    summary = Summary(["math"])
    assert summary.to_dict() == {}
    summary.add(Generation(Sample(1), ()), {"math": []})
    figures = summary.to_dict()
    json.dumps(figures, allow_nan=False)
    assert figures["default"]["completions"] == 0
    assert notices({"models": figures}) == []


def test_a_reward_without_one_score_a_completion_is_named() -> None:
    with pytest.raises(ValueError, match="math has 1 scores for 8 completions"):
        Summary(["math"]).add(group([RIGHT] * 8), {"math": [RIGHT]})


def test_ragged_groups() -> None:
    """1, 3, 8 and 2 completions: half of the groups reach 3, so pass@8 of one group is not shown."""
    figures = summed([of([1.0]), of([0, 1, 0]), of([0.0] * 8), of([1, 1])])
    assert figures["groups"]["n"] == 4
    assert figures["groups"]["sizes"] == {"1": 1, "2": 1, "3": 1, "8": 1}
    assert figures["groups"]["zero_signal"]["math"] == {"n": 2, "all_fail": 1, "all_pass": 1, "of": 3}
    pass_at_k = figures["pass_at_k"]["math"]
    assert {k: (held["problems"], held["left_out"]) for k, held in pass_at_k.items()} == {
        "1": (4, 0),
        "2": (3, 1),
        "3": (2, 2),
    }
    assert pass_at_k["1"]["value"] == pytest.approx((1 + 1 / 3 + 0 + 1) / 4)
    assert figures["rewards"]["math"]["mean"] == pytest.approx(4 / 14)
    assert figures["groups"]["expected_dead_share"]["math"]["4"] == 1.0


def test_a_group_without_a_scored_completion_is_left_out_of_pass_at_1() -> None:
    held = summed([[RIGHT, WRONG], [ABSTAINED, ABSTAINED]])["pass_at_k"]["math"]["1"]
    assert (held["value"], held["problems"], held["left_out"]) == (0.5, 1, 1)


def test_float32_noise_does_not_hide_a_dead_group() -> None:
    figures = summed([of([0.1, 0.10000000149011612]), of([0.3, 0.1])])
    assert figures["groups"]["zero_signal"]["math"]["n"] == 1


def test_fractional_rewards_have_no_right_and_no_pass_at_k() -> None:
    figures = summed([of([0.5, 1.0]), of([0.0, 0.0])])
    assert figures["rewards"]["math"]["right"] is None
    assert figures["pass_at_k"] == {}
    assert figures["groups"]["zero_signal"]["math"] == {"n": 1, "all_fail": 1, "all_pass": 0, "of": 2}
    outside = summed([of([-2.0, -2.0]), of([0.0, 0.0])])
    assert outside["groups"]["zero_signal"]["math"] == {"n": 2, "all_fail": None, "all_pass": None, "of": 2}


def test_both_spreads_have_their_own_name() -> None:
    """Over the batch 0, 0, 10, 10 spreads by 5.77; within the groups there is none."""
    reward = summed([of([0.0, 0.0]), of([10.0, 10.0])])["rewards"]["math"]
    assert reward["std_over_batch"] == pytest.approx(math.sqrt(100 / 3))
    assert reward["std_within_groups"] == 0.0


def test_more_than_255_values_change_nothing_but_the_store() -> None:
    values = [[(7 * g + 3 * i) / 1000 for i in range(4)] for g in range(300)]
    scores = [[*of(held), ABSTAINED] for held in values]
    figures = summed(scores)
    reward = figures["rewards"]["math"]
    flat = [Fraction(v) for held in values for v in held]
    assert reward["mean"] == pytest.approx(float(sum(flat) / len(flat)), rel=1e-14)
    assert (reward["n"], reward["scored"], reward["abstained"]) == (1500, 1200, 300)
    assert (reward["min"], reward["max"]) == (0.0, 2.102)
    assert figures["groups"]["zero_signal"]["math"]["of"] == 300
    assert reward["std_within_groups"] == pytest.approx(math.sqrt(sum((3 * i - 4.5) ** 2 for i in range(4)) / 3) / 1000)


def test_weighted_totals_and_parts_are_what_was_scored() -> None:
    """trl 5352: weights 0.7 and 0.3, values 1 and 0, are 0.7 everywhere."""
    score = Score(0.7, parts=(Score(1.0, name="math", weight=0.7), Score(0.0, name="format", weight=0.3)))
    figures = summed([[score] * 3] * 5, "total")
    total = figures["rewards"]["total"]
    assert total["mean"] == total["min"] == total["max"] == 0.7
    assert {name: (part["mean"], part["weight"]) for name, part in total["parts"].items()} == {
        "math": (1.0, 0.7),
        "format": (0.0, 0.3),
    }
    assert "0.700" in render_summary({"models": {"default": figures}}, width=100, color=False)


def test_a_part_is_counted_where_the_whole_is_unscored() -> None:
    whole = Score(None, reason="missing", parts=(Score(None, reason="missing", name="math"), Score(1.0, name="format")))
    parts = summed([[whole, whole]], "total")["rewards"]["total"]["parts"]
    assert (parts["math"]["abstained"], parts["math"]["mean"]) == (2, None)
    assert (parts["format"]["scored"], parts["format"]["mean"]) == (2, 1.0)


def test_a_weight_that_changes_is_null() -> None:
    scores = [Score(w, parts=(Score(1.0, name="a", weight=w),)) for w in (0.1, 0.5)]
    assert summed([scores], "total")["rewards"]["total"]["parts"]["a"]["weight"] is None


def test_seconds() -> None:
    seconds = summed([[Score(1.0, seconds=0.25), Score(0.0, seconds=0.5), Score(1.0)]])["rewards"]["math"]["seconds"]
    assert seconds == {"total": 0.75, "max": 0.5, "p50": 0.375, "p95": 0.4875, "n": 2}


@pytest.mark.parametrize(
    ("labels", "expected", "why"),
    [
        ([1, 0, 1], (2, 3, 0, 1), "integers"),
        ([True, False, False], (3, 3, 0, 0), "truth values"),
        ([1.0, 0.0, None], (2, 2, 0, 0), "a missing one is not a disagreement"),
        ([0, 0, 1], (1, 3, 1, 1), "both ways of differing"),
        (["1", "no", 0.5], None, "text and fractions are no label of right and wrong"),
        ([], None, "no label column"),
    ],
)
def test_agreement_with_the_label(labels: list[Any], expected: tuple[int, ...] | None, why: str) -> None:
    scores = [RIGHT, WRONG, WRONG]
    summary = Summary(["math", "label"])
    summary.add(group(scores, 1, labels=labels), {"math": scores, "label": scores})
    held = summary.to_dict()["default"]["label"]
    if expected is None:
        assert held is None, why
    else:
        names = ("agree", "n", "accepts", "rejects", "groups_rejected")
        assert held == {"math": dict(zip(names, (*expected, 0), strict=True))}, why


def test_a_label_that_comes_late_or_is_missing_on_some_rows_stays_with_its_completion() -> None:
    """A list of labels that began at the first label would set each beside an earlier score."""
    summary = Summary(["math"])
    summary.add(group([WRONG, WRONG], 1), {"math": [WRONG, WRONG]})
    summary.add(group([RIGHT], 2, labels=[1]), {"math": [RIGHT]})
    summary.add(group([WRONG], 3), {"math": [WRONG]})
    summary.add(group([RIGHT], 4, labels=[0]), {"math": [RIGHT]})
    held = summary.to_dict()["default"]["label"]["math"]
    assert (held["agree"], held["n"], held["accepts"]) == (1, 2, 1)


def test_a_grader_that_fails_whole_groups_which_the_label_calls_right_is_suspect() -> None:
    summary = Summary(["math"])
    for key in range(1, 6):
        scores = [WRONG] * 4 if key < 3 else [RIGHT, WRONG, WRONG, WRONG]
        summary.add(group(scores, key, labels=[1, 1, 0, 0]), {"math": scores})
    found = warnings({"models": summary.to_dict()})
    assert (found[0]["code"], found[0]["rows"]) == ("suspect", 2)
    assert found[0]["text"].startswith("math fails all completions of 2 groups in which the file's label says")
    assert found[1]["text"] == "math differs from the file's label on 7 of 20 (0 only right here, 7 only there)"
    assert found[1]["command"] == "rewardkit show RUN --disagree"


def test_only_rewards_between_0_and_1_are_compared_with_the_label() -> None:
    scores = of([0.7, 1.0, 1.0])
    summary = Summary(["total"])
    summary.add(group(scores, 1, labels=[0, 1, 0]), {"total": scores})
    assert summary.to_dict()["default"]["label"] is None


def test_models_side_by_side_are_apart() -> None:
    summary = Summary(["math"])
    for key in range(1, 4):
        summary.add(group([RIGHT], key, "6B"), {"math": [RIGHT]})
        summary.add(group([WRONG], key, "175B"), {"math": [WRONG]})
    figures = summary.to_dict()
    assert [(name, held["rewards"]["math"]["right"], held["groups"]["n"]) for name, held in figures.items()] == [
        ("6B", 3, 3),
        ("175B", 0, 3),
    ]


def test_a_model_named_default_does_not_replace_the_completions_without_a_model() -> None:
    for models in ((None, "default"), ("default", None), ("default (no model)", "default", None)):
        summary = Summary(["math"])
        for key, model in enumerate(models, 1):
            summary.add(group([RIGHT] * key, key, model), {"math": [RIGHT] * key})
        figures = summary.to_dict()
        assert len(figures) == len(models)
        assert [held["completions"] for held in figures.values()] == list(range(1, len(models) + 1))
        assert [name for name in models if name is not None] == [name for name in figures if name in models]


# ---------------------------------------------------------------------------------------------------- order is nothing


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, list[Score]]]:
    value = st.one_of(
        st.sampled_from([0.0, -0.0, 1.0, 0.1, 0.7, -2.5]),
        st.floats(-1e9, 1e9, allow_nan=False),
    )
    score = st.one_of(st.builds(Score, value), st.just(ABSTAINED), st.just(FAILED))
    groups = draw(st.lists(st.lists(score, min_size=1, max_size=6), min_size=1, max_size=14))
    return [(key, scores) for key, scores in enumerate(groups, 1)]


def dump(pieces: Sequence[tuple[int, Sequence[Score]]]) -> str:
    summary = Summary(["math"])
    for key, scores in pieces:
        summary.add(group(scores, key), {"math": scores})
    return json.dumps(summary.to_dict(), allow_nan=False, sort_keys=True)


@settings(max_examples=60, deadline=None)
@given(batches(), st.randoms())
def test_rows_in_another_order_give_the_same_bytes(groups: list[tuple[int, list[Score]]], rng: random.Random) -> None:
    pieces = [(key, [score]) for key, scores in groups for score in scores]
    assert dump(rng.sample(pieces, len(pieces))) == dump(groups)


def test_the_order_is_nothing_with_many_values_either() -> None:
    """-0.0 and 0.0 are one least value; which came first must not show."""
    rng = random.Random(3)
    groups = [(key, of([rng.random() for _ in range(rng.randint(1, 9))])) for key in range(1, 200)]
    groups += [(200, of([0.0])), (201, of([-0.0]))]
    pieces = [(key, [score]) for key, scores in groups for score in scores]
    assert dump(rng.sample(pieces, len(pieces))) == dump(groups)
    assert dump(groups[::-1]) == dump(groups)


def test_generations_made_in_code_are_a_group_each() -> None:
    summary = Summary(["math"])
    for _ in range(3):
        summary.add(Generation(Sample("same"), (Completion("a"), Completion("b"))), {"math": [RIGHT, WRONG]})
    assert summary.to_dict()["default"]["groups"]["sizes"] == {"2": 3}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4), max_size=14))
def test_any_finite_score_gives_strict_json_and_a_table(groups: list[list[float]]) -> None:
    figures = summed([of(values) for values in groups])
    if groups:
        assert render_summary({"models": {"default": figures}}, width=80, color=False)


# -------------------------------------------------------------------------------------------------------------- notices


def told(groups: Sequence[Sequence[Score]], **info: Any) -> list[str]:
    return notices({"models": {"default": summed(groups)}}, info)


def test_0_percent_on_all_rows_is_a_suspect_grader() -> None:
    """lm-evaluation-harness 1204: the whole worked solution was the gold, so nothing matched."""
    assert told([[WRONG]] * 40) == [
        "math is 0 on all 40 completions: suspect the grader or the reference before the model"
    ]


def test_unreadable_references_and_errors_are_told_with_their_reasons() -> None:
    lines = told([[RIGHT, WRONG, ABSTAINED, Score(None, reason="bad_reference"), FAILED]])
    assert lines == [
        "math ended in an error on 1 of 5 completions: raised 1 (ZeroDivisionError)",
        "math could not judge 2 of 5 completions: bad_reference 1, missing 1",
    ]


def test_a_constant_part_is_told() -> None:
    def score(value: float) -> Score:
        return Score(value + 0.1, parts=(Score(value, name="math", weight=1.0), Score(1.0, name="tags", weight=0.1)))

    assert told([[score(0.0), score(1.0)]]) == ["math: its part tags is 1 on all 2 completions"]
    assert told([of([1.0, 1.0])]) == ["math is 1 on all 2 completions: nothing can be learned from it"]


def test_the_label_is_told_of_for_the_reward_closest_to_it() -> None:
    summary = Summary(["math", "format"])
    scores = {"math": [RIGHT, WRONG, RIGHT], "format": [WRONG, RIGHT, RIGHT]}
    summary.add(group(scores["math"], 1, labels=[1, 0, 0]), scores)
    assert notices({"models": summary.to_dict()}) == [
        "math differs from the file's label on 1 of 3 (1 only right here, 0 only there)"
    ]


def test_there_are_at_most_five_worst_first() -> None:
    summary = Summary(["a", "b", "c", "d"])
    for key in range(1, 4):
        scores = {"a": [WRONG] * 2, "b": [FAILED, RIGHT], "c": of([0.5, 0.5]), "d": [ABSTAINED, RIGHT]}
        summary.add(group([WRONG] * 2, key), scores)
    lines = notices({"models": summary.to_dict()}, {"bad_rows": ["a.jsonl:3"], "duplicate_ids": 2, "rows_left": 10})
    assert [line[:20] for line in lines] == [
        "1 row of the input c",
        "a is 0 on all 6 comp",
        "b ended in an error ",
        "d could not judge 3 ",
        "c is 0.5 on all 6 co",
    ]


@pytest.mark.parametrize(
    ("number", "lines"),
    [
        (
            1,
            [
                "1 row of the input could not be read and is in no figure",
                "1 row has the id of another task; --group FIELD says which rows are one group",
                "1 row of the input was not read",
            ],
        ),
        (
            1200,
            [
                "1,200 rows of the input could not be read and are in no figure",
                "1,200 rows have the id of another task; --group FIELD says which rows are one group",
                "1,200 rows of the input were not read",
            ],
        ),
    ],
)
def test_one_is_not_many(number: int, lines: list[str]) -> None:
    assert notices({"models": {}}, dict.fromkeys(("bad_rows", "duplicate_ids", "rows_left"), number)) == lines


def test_one_completion_and_one_group_are_not_many() -> None:
    assert told([[FAILED]]) == ["math ended in an error on 1 of 1 completion: raised 1 (ZeroDivisionError)"]
    assert told([[ABSTAINED]]) == ["math could not judge 1 of 1 completion: missing 1"]
    assert told([[RIGHT, RIGHT], [WRONG]]) == ["math has no spread in 1 of 1 group: it teaches GRPO nothing"]


def test_many_dead_groups_are_told() -> None:
    assert told([[RIGHT] * 2, [WRONG] * 2, [RIGHT, WRONG]]) == [
        "math has no spread in 2 of 3 groups: they teach GRPO nothing"
    ]


# ------------------------------------------------------------------------------------------------------------ real data


PASS_AT_400 = {1: 19.70, 4: 42.07, 8: 54.43, 16: 66.39, 32: 77.34, 50: 85.00}
PASS_AT_800 = {1: 17.90, 8: 46.76, 50: 70.00}


@pytest.mark.parametrize(
    ("step", "mean", "pass_at", "dead", "characters"),
    [(400, 0.197, PASS_AT_400, 3, (974, 1564)), (800, 0.179, PASS_AT_800, 6, (825, 1200))],
)
def test_real_groups(
    shared: Shared, step: int, mean: float, pass_at: dict[int, float], dead: int, characters: tuple[int, int]
) -> None:
    """data/README.md, "What a correct run prints": each figure of the two GRPO files that rests on their labels."""
    text = shared(f"data/grpo_groups/amc23_step_{step}.json").read_text(encoding="utf-8")
    summary = Summary(["math"])
    for key, row in enumerate(json.loads(text)["categories"][0]["datasets"][0]["results"], 1):
        labels = [completion["score"] for completion in row["completions"]]
        completions = tuple(
            Completion(completion["full_model_response"], metadata={"label": completion["score"]})
            for completion in row["completions"]
        )
        scores = [RIGHT if label else WRONG for label in labels]
        summary.add(Generation(Sample(key), completions, key=key), {"math": scores})
    figures = summary.to_dict()["default"]
    assert figures["rewards"]["math"]["mean"] == mean
    for k, value in pass_at.items():
        assert round(100 * figures["pass_at_k"]["math"][str(k)]["value"], 2) == value, k
    assert figures["groups"]["zero_signal"]["math"] == {"n": dead, "all_fail": dead, "all_pass": 0, "of": 20}
    never = figures["groups"]["never_solved"]["math"]
    assert (never["n"], never["of"], len(never["ids"])) == (dead, 20, min(dead, 5))
    assert (figures["label"]["math"]["agree"], figures["label"]["math"]["n"]) == (1000, 1000)
    length = figures["length"]["math"]
    assert tuple(round(length[side]["mean_characters"]) for side in ("right", "wrong")) == characters
    shown = render_summary({"models": {"default": figures}}, width=120, color=False)
    pieces = [f"{mean}", f"{round(1000 * mean)} of 1,000", f"pass@8 {pass_at[8]:.1f} %", f"{dead} of 20 groups"]
    pieces += ["61.4 % at G=4, 46.3 % at G=8, 33.6 % at G=16"] if step == 400 else []
    for piece in [*pieces, f"{characters[1]:,} against {characters[0]:,} characters"]:
        assert piece in shown


@pytest.mark.parametrize("distinct", [7, 3000])
def test_length_against_a_graded_reward(distinct: int) -> None:
    """Pearson's r, against the standard library's; unscored completions are in neither."""
    rng = random.Random(distinct)
    values = [rng.randrange(distinct) / distinct for _ in range(900)]
    texts = ["x" * (20 + int(200 * value * rng.random())) for value in values]
    summary = Summary(["graded"])
    for key, (value, text) in enumerate(zip(values, texts, strict=True), 1):
        scores = [Score(value), ABSTAINED]
        generation = Generation(Sample(key), (Completion(text), Completion("y" * 999)), key=key)
        summary.add(generation, {"graded": scores})
    length = summary.to_dict()["default"]["length"]["graded"]
    assert length == {"correlation": pytest.approx(statistics.correlation(values, list(map(len, texts))), rel=1e-9)}


def test_without_spread_there_is_no_correlation() -> None:
    assert summed([of([0.5, 0.5])])["length"]["math"] == {"correlation": None}
    assert summed([of([0.5, 0.7])])["length"]["math"] == {"correlation": None}, "texts of one length"
    assert summed([[ABSTAINED]])["length"]["math"] is None
