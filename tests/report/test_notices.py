"""rewardkit.report.notices: what deserves a look is said once, worst first, with numbers that can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rewardkit.report import Summary, notices, warnings
from rewardkit.report.notices import MAX_NOTICES, RANKS, worst
from rewardkit.types import Completion, Generation, Sample, Score

RIGHT, WRONG = Score(1.0), Score(0.0, reason="wrong")


def found(
    groups: Sequence[Sequence[Score]],
    *,
    texts: Sequence[str] = ("x",),
    ids: Sequence[Any] = (),
    models: Sequence[str | None] = (None,),
    **fields: Any,
) -> list[dict[str, Any]]:
    """Warnings of a file whose groups have these scores; texts go round."""
    summary = Summary(["math"])
    for model in models:
        for key, scores in enumerate(groups, 1):
            completions = tuple(Completion(texts[at % len(texts)], **fields) for at in range(len(scores)))
            sample = Sample(ids[key - 1] if ids else key)
            summary.add(Generation(sample, completions, model, key=key), {"math": scores})
    return warnings({"models": summary.to_dict()})


def codes(warned: Sequence[dict[str, Any]]) -> list[str]:
    return [one["code"] for one in warned]


# -------------------------------------------------------------------------------------------------------------- length


def of_lengths(right: int, wrong: int, n: int) -> list[dict[str, Any]]:
    return found([[RIGHT, WRONG]] * n, texts=("x" * right, "x" * wrong))


def test_wrong_answers_that_are_longer_are_told_with_both_numbers() -> None:
    assert of_lengths(974, 1564, 30) == [
        {
            "code": "length",
            "text": "math: wrong answers are 1.61 times as long as right ones "
            "(1,564 against 974 characters; 30 and 30 completions)",
            "rows": 30,
            "command": "",
        }
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "n", "told", "why"),
    [
        (100, 126, 30, True, "just longer"),
        (100, 125, 30, False, "no more than a quarter"),
        (100, 79, 30, True, "shorter"),
        (100, 80, 30, False, "no less than four fifths"),
        (100, 500, 29, False, "29 of each say too little"),
        (0, 500, 30, False, "nothing to divide by"),
    ],
)
def test_lengths_need_enough_of_each_and_a_clear_ratio(right: int, wrong: int, n: int, told: bool, why: str) -> None:
    assert ("length" in codes(of_lengths(right, wrong, n))) is told, why


def test_an_error_is_no_wrong_answer() -> None:
    """Errors have an empty text, which would make wrong answers look short."""
    failed = Score.error("raised", "boom")
    warned = found([[RIGHT, WRONG, failed]] * 40, texts=("x" * 100, "x" * 100, ""))
    assert codes(warned) == ["errors"]


# --------------------------------------------------------------------------------------------------------- never solved


def test_problems_never_solved_are_named_with_a_command() -> None:
    groups = [[WRONG] * 4, [RIGHT, WRONG, WRONG, WRONG], [WRONG] * 4]
    warned = found(groups, ids=["a b", "c", 6])
    assert warned[0]["text"] == "math: 2 of 3 problems never solved: 6, a b"
    assert (warned[0]["code"], warned[0]["rows"]) == ("never_solved", 2)
    assert warned[0]["command"] == "rewardkit show RUN --group 6"


def test_a_name_with_spaces_is_quoted_and_a_hostile_one_gives_no_command() -> None:
    def command(id: str) -> str:
        (warned,) = (one for one in found([[WRONG] * 4, [RIGHT] * 4], ids=[id, "c"]) if one["code"] == "never_solved")
        return str(warned["command"])

    assert command("a b") == "rewardkit show RUN --group 'a b'"
    assert command("x; rm -rf .") == "rewardkit show RUN --group 'x; rm -rf .'"
    assert command("\x1b[2J") == "", "what cannot be typed is not offered"


def test_three_tries_are_too_few_to_say_never() -> None:
    assert "never_solved" not in codes(found([[WRONG] * 3, [RIGHT] * 3]))
    assert "never_solved" in codes(found([[WRONG] * 4, [RIGHT] * 4]))


def test_at_most_five_are_named() -> None:
    warned = found([*[[WRONG] * 4] * 12, [RIGHT] * 4])
    assert warned[0]["text"] == "math: 12 of 13 problems never solved: 1, 2, 3, 4, 5, …"


def test_only_a_file_without_any_success_is_a_suspect_grader() -> None:
    assert codes(found([[WRONG] * 4] * 12)) == ["suspect"]


# ------------------------------------------------------------------------------------------------- reasons and examples


def test_when_nothing_could_be_judged_the_reason_is_told_in_words() -> None:
    scores = [Score(None, "the reference 'see figure' is no number", reason="bad_reference")]
    warned = found([scores] * 3)
    assert (warned[0]["code"], warned[0]["text"]) == (
        "suspect",
        "math could not judge 3 of 3 completions: bad_reference 3 (the reference 'see figure' is no number)",
    )


def test_of_many_reasons_the_most_frequent_gives_the_example() -> None:
    many, few = Score(None, "no gold", reason="missing"), Score(None, "a", reason="bad_reference")
    assert found([[many, many, few]])[0]["text"].endswith(": missing 2, bad_reference 1 (no gold)")


def test_an_example_cannot_act_on_a_terminal() -> None:
    text = found([[Score(None, "\x1b[2J\u202e" + "x" * 500, reason="missing")]])[0]["text"]
    assert "\x1b" not in text and "\u202e" not in text and len(text) < 200


def test_timeouts_are_told_although_they_are_scored() -> None:
    late = Score(0.0, reason="timeout")
    warned = found([[RIGHT, late, Score(0.0, reason="deadline")]])
    text = "math gave 0 to 2 of 3 completions for taking too long: timeout 1, deadline 1"
    assert [one["text"] for one in warned if one["code"] == "timeouts"] == [text]


def test_cut_off_completions_are_counted_among_those_that_say_why_they_ended() -> None:
    warned = found([[RIGHT, WRONG]], finish_reason="length")
    assert warned[-1]["text"] == "2 of 2 completions were cut off by a length limit"
    assert "cut_off" not in codes(found([[RIGHT, WRONG]], finish_reason="stop"))
    assert "cut_off" not in codes(found([[RIGHT, WRONG]]))


# ----------------------------------------------------------------------------------------------------------------- time


def timed(**seconds: float) -> list[str]:
    summary = Summary(list(seconds))
    scores = {name: [Score(1.0, seconds=took), Score(0.0, seconds=took)] for name, took in seconds.items()}
    summary.add(Generation(Sample(1), (Completion("x"), Completion("y")), key=1), scores)
    return [one["text"] for one in warnings({"models": summary.to_dict()}) if one["code"] == "slow"]


def test_a_reward_slower_than_all_others_together_is_told() -> None:
    assert timed(code=2.0, math=0.5, tags=0.5) == ["code takes longer than all other rewards together: 4 s against 2 s"]
    assert timed(code=2.0, math=1.0, tags=1.0) == [], "as long is not longer"
    assert timed(code=2.0, math=0.5) == [], "of two, one is always slower"
    assert timed(code=0.2, math=0.1, tags=0.01) == [], "nobody waits for that"


# --------------------------------------------------------------------------------------------------------- which, order


def test_what_is_the_same_of_all_models_is_said_once() -> None:
    assert [one["text"] for one in found([[WRONG]] * 5, models=("a", "b", "c"))] == [
        "all 3 models: math is 0 on all 5 completions: suspect the grader or the reference before the model"
    ]
    summary = Summary(["math"])
    for model, scores in (("a", [WRONG] * 2), ("b", [RIGHT] * 2)):
        summary.add(Generation(Sample(1), (Completion("x"), Completion("x")), model, key=1), {"math": scores})
    assert [text[:16] for text in notices({"models": summary.to_dict()})] == ["a: math is 0 on ", "b: math is 1 on "]


def test_five_lines_hold_the_first_of_each_code_before_a_second_of_any() -> None:
    """Twenty rewards with errors must not hide that the file was read in part only."""
    many = [{"code": "errors", "text": str(at)} for at in range(20)]
    shown = worst([*many, {"code": "label", "text": "l"}, {"code": "rows_left", "text": "r"}])
    assert [one["text"] for one in shown] == ["0", "1", "2", "l", "r"]
    assert len(shown) == MAX_NOTICES


def test_all_codes_have_a_rank_and_rows_are_counts() -> None:
    summary = Summary(["math"])
    summary.add(Generation(Sample(1), (Completion("x"),), key=1), {"math": [Score.error("raised", "")]})
    warned = warnings({"models": summary.to_dict()}, {"bad_rows": [1, 2], "duplicate_ids": 3, "rows_left": 0})
    assert [(one["code"], one["rows"]) for one in warned] == [("bad_rows", 2), ("errors", 1), ("duplicate_ids", 3)]
    assert {one["code"] for one in warned} <= set(RANKS)
