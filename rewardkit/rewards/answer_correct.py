"""`answer_correct`: 2 when the number between the answer tags is right."""

from __future__ import annotations

from typing import Any

from rewardkit.reward import reward
from rewardkit.rewards.number_answers import right_number
from rewardkit.rewards.tags import tag_names, tagged_answer
from rewardkit.types import Sample, Score
from rewardkit.verifiers.numeric import judge_number, marked_answer


@reward(name="answer_correct")
def answer_correct(completion: str, reference: Any, sample: Sample, *, answer: str = "answer") -> Score:
    r"""2 when the number between the last `<answer>` tags is the reference, else 0.

    Numbers are compared, not texts: 1,000 is 1000, $18 and 18.0 are 18, and `<answer>\boxed{18}</answer>` is 18, too.
    The reference is a number, or a worked solution that ends in `#### 18`.

    Traps: without the tags nothing is right; `numeric` and `gsm8k` also find other answers. The closing tag may be
    lacking, since a stop string eats it. Two numbers are none. For a reference that is no number use `exact`.

    Options:
        answer: name of the tag.

    Example:
        rewardkit try answer_correct --reference 1000 '<reasoning>10 * 100</reasoning><answer>1,000</answer>'
    """
    (name,) = tag_names("answer_correct", answer=answer)
    gold = right_number(sample)
    if isinstance(gold, Score):
        return gold
    found = tagged_answer(completion, sample.prompt, name)
    if isinstance(found, Score):
        return found
    marked = marked_answer(found.text)
    verdict = judge_number(marked or found._replace(rule="<answer>"), gold)
    detail = verdict.detail.replace("in <answer>", f"in <{name}>") if marked is None else verdict.detail
    return Score(2.0 if verdict.value else 0.0, detail, verdict.extracted, verdict.reason)
