"""`gsm8k`: grade-school word problems, whose answer is one number behind `####`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from rewardkit.extract import answer_phrase, hash_marker
from rewardkit.number import Quantity, read_number, stated_number
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.final_number import UNFINISHED, answer_region, final_answer, judge_number, plain_verdict


def _read_gold(value: Any) -> Quantity:
    """Read a gold answer: a number, or a worked solution that ends in `#### 18` or `A: 18`."""
    if isinstance(value, Quantity):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"a number or a worked solution is wanted, got {type(value).__name__}")
    text = value if isinstance(value, str) else str(value)
    found = hash_marker(text) or answer_phrase(text)
    quantity = read_number(text) if found is None else stated_number(found.text)
    if quantity is None:
        shown = text if len(text) <= 60 else "…" + text[-59:]
        raise ValueError(f"a number or a worked solution that ends in '#### 18' or 'A: 18' is wanted, got {shown!r}")
    return quantity


Gold = Annotated[
    Quantity,
    PlainValidator(_read_gold),
    PlainSerializer(lambda quantity: quantity.text, return_type=str),
    WithJsonSchema({"type": ["number", "string"]}),
]


class Gsm8kReference(Reference):
    """The right number (18, "2,125"), or the whole worked solution with `#### 18` or `A: 18` at its end."""

    answer: Gold = Field(description="a number or a worked solution")


class Gsm8k(Verifier[Gsm8kReference]):
    r"""Accept when the completion's final number is the reference.

    The answer is the number behind the last `####`, else in the last `\boxed{}`, else behind the last "the answer is",
    "Answer:" or "A:", else the last number of the text. Where there are `<answer>` tags, it is what stands in the last
    ones, or behind such a marker after them. The verdict says which of these it was: `18 after ####`. Separators,
    currency, units, a percent sign and 18.0 for 18 make no difference; nothing is rounded.

    Traps: a model that runs on with a new question ("Question: …", "Q: …", "User: …") does not change its answer;
    what follows is cut off. A marker without a number behind it is no answer, even if the right number stands
    elsewhere: nothing is guessed. "12 or 14", "not 18", "at least 18" and "18 19" state no number. A thinking block
    that is never closed is no answer either. The last `####` wins over an earlier one; a Markdown heading
    (`#### Step 1`) is none.

    Example:
        rewardkit try gsm8k --reference 18 'so 9 * 2 = 18. #### 18'
    """

    name: ClassVar[str | None] = "gsm8k"

    def verify(self, completion: Completion, reference: Gsm8kReference, sample: Sample) -> Verdict:
        text = completion.text
        verdict = plain_verdict(text, sample, reference.answer)
        if verdict is not None:
            return verdict
        region = answer_region(text, sample)
        return UNFINISHED if region is None else judge_number(final_answer(region), reference.answer)
