"""`gsm8k` reproduces published labels, and says which rule found the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.gsm8k import Gsm8k, Gsm8kReference
from rewardkit.verifiers.numeric import Numeric

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "gsm8k.jsonl").read_text("utf-8").splitlines()
]
VERIFIER = Gsm8k()


def judge(text: str, reference: object, prompt: object = "") -> Score:
    sample = Sample(0, prompt, reference)
    prepared = VERIFIER.prepare(sample)
    return prepared if isinstance(prepared, Score) else VERIFIER.judge(prepared, sample, Completion(text))


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"])
    assert (score.value, score.reason) == (case["value"], case.get("reason"))
    if "detail" in case:
        assert score.detail == case["detail"]
    if "extracted" in case:
        assert score.extracted == case["extracted"]


@pytest.mark.parametrize(
    "gold",
    [
        18,
        18.0,
        "18",
        "18.00",
        "$18",
        "#### 18",
        "9 * 2 = 18\n#### 18",
        "9 * 2 = <<9*2=18>>18\nA: 18",
        {"answer": "#### 18"},
        "The answer is 18.",
    ],
)
def test_the_gold_comes_in_many_forms(gold):
    assert judge("#### 18", gold).value == 1.0
    assert judge("#### 19", gold).value == 0.0


@pytest.mark.parametrize(
    "gold", ["see figure", "", "####", "She has 9 eggs and 2 ducks.", True, ["18"], {"answer": "none"}, {"answr": 18}]
)
def test_a_gold_without_a_number_is_never_matched(gold):
    """open-r1#293: a gold that could not be read paid 1.0."""
    score = judge("#### 18", gold)
    assert (score.value, score.state) == (None, "abstained")


def test_a_missing_gold_is_missing():
    assert judge("#### 18", None).reason == "missing"


def test_the_prompt_may_have_opened_the_thinking():
    assert judge("so #### 18", 18, prompt="How many?\n<think>\n").reason == "no_answer"
    assert judge("so #### 5</think>\n#### 18", 18, prompt="How many?\n<think>\n").value == 1.0


@pytest.mark.parametrize(
    "run_on",
    [
        "\n\nQuestion: Tom has 5?\nAnswer: 7\n#### 7",
        "\nQ: Tom?\nA: The answer is 7.",
        "\n\nProblem: Tom\n\\boxed{7}",
        "\nHuman: 7",
        "<|im_end|>\n<|im_start|>user\n#### 7",
        "\n### Instruction:\n#### 7",
    ],
)
@pytest.mark.parametrize("answer", ["#### 18", "\\boxed{18}", "The answer is 18.", "A: 18", "She makes $18 every day."])
def test_a_run_on_changes_no_answer(answer, run_on):
    alone, both = judge("9 * 2 = 18\n" + answer, 18), judge("9 * 2 = 18\n" + answer + run_on, 18)
    assert alone.value == both.value == 1.0
    assert alone.extracted == both.extracted


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<answer>18</answer>\n#### 19", 19),
        ("<answer>18</answer>\nThe answer is 19.", 19),
        ("#### 19\n<answer>18</answer>", 18),
        ("\\boxed{19} <answer>18", 18),
        ("<answer>#### 18</answer>", 18),
        ("<answer>19</answer> and <answer>18</answer>", 18),
    ],
)
def test_gsm8k_and_numeric_find_the_same_answer(text, right):
    """They once read 19 and 18 in the first text: the last explicit marker counts for both."""
    for reference in (18, 19):
        sample = Sample(0, "", reference)
        both = [
            verifier.judge(verifier.prepare(sample), sample, Completion(text)).value
            for verifier in (VERIFIER, Numeric())
        ]
        assert both == [float(reference == right)] * 2


def test_an_answer_behind_the_marker_is_lacking_whatever_the_tags_say():
    assert judge("<answer>18</answer>\n####", 18).reason == "no_answer"


def test_the_reference_is_described():
    """The message about a missing reference, and `show`, say what is wanted."""
    assert Gsm8kReference.model_fields["answer"].description == "a number or a worked solution"


# ---------------------------------------------------------------------------------------- real generations

RIGHT = {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}


@pytest.mark.parametrize("model", RIGHT)
def test_four_models_row_by_row(shared, model):
    """Figures of the source's README; every one of 1,319 labels a model agrees."""
    data = rows(shared("data/gsm8k/example_model_solutions.jsonl"))
    values = [judge(row[model]["solution"], row["ground_truth"]).value for row in data]
    assert [value == 1.0 for value in values] == [row[model]["is_correct"] for row in data]
    assert sum(values) == RIGHT[model]


def test_worked_solutions_are_right_about_themselves(shared):
    """lm-evaluation-harness#1204: with the whole solution as gold, nothing matched."""
    data = rows(shared("data/gsm8k/test.jsonl"))
    scores = [judge(row["answer"], row["answer"]) for row in data]
    assert len(scores) == 1319 and all(score.value == 1.0 for score in scores)
    assert all(score.detail.endswith("after ####") for score in scores)


def test_neighbouring_golds_differ(shared):
    """Each solution against the next problem's: right only where the two numbers are equal."""
    data = rows(shared("data/gsm8k/test.jsonl"))
    plain = [int(row["answer"].rpartition("#### ")[2].replace(",", "")) for row in data]
    for here, there, mine, wanted in zip(data, data[1:], plain, plain[1:], strict=False):
        assert judge(here["answer"], there["answer"]).value == (mine == wanted)


# Rows on which the published label and this verifier differ, each read and explained.
DIFFER = {
    # "\boxed{6th}": an ordinal equals its number.
    "qwen2.5-3b-instruct": {464: (True, "6th in \\boxed")},
    # The label's grader accepts answers 100 times too large or small: 2000 (cents) for 20, 0.7 for 70.
    "qwen2.5-3b-rlft": {358: (False, "2000 in \\boxed, not 20"), 806: (False, "0.7 in \\boxed, not 70")},
}


@pytest.mark.parametrize("model", DIFFER)
def test_two_runs_row_by_row(shared, model):
    differ = {}
    for row in rows(shared(f"data/math_runs/{model}/gsm8k.jsonl")):
        score = judge(row["code"][0], row["gt"])
        if (score.value == 1.0) != row["score"][0]:
            differ[row["idx"]] = (score.value == 1.0, score.detail)
    assert differ == DIFFER[model]


def test_programs_with_output_blocks(shared):
    """ToRA: 1,062 right when the shown prediction is compared as a number; the three rows without a box agree too."""
    data = rows(shared("data/gsm8k_tora/tora-code-34b-v1.0.jsonl"))
    total = 0
    for row in data:
        shown = row["pred"][0].replace(",", "")
        try:
            right = float(shown) == float(row["gt"].replace(",", ""))
        except ValueError:
            right = False
        assert (judge(row["code"][0], row["gt"]).value == 1.0) == right, row["idx"]
        total += right
    assert total == 1062
