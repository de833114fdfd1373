"""`choice` reads a choice in every usual way of writing it, and none where none is made."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse
from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.choice import Choice
from rewardkit.verifiers.choice_options import options_in, read_options

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "choice.jsonl").read_text("utf-8").splitlines()
]


def judge(text, reference, prompt="", columns=None, **options) -> Score:
    verifier = Choice.from_options(options)
    sample = Sample(0, prompt, reference, columns or {})
    prepared = verifier.prepare(sample)
    # Special tokens are dropped by the engine; a verifier that is called directly must bear them.
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(
        case["text"], case["reference"], case.get("prompt", ""), case.get("columns"), **case.get("options", {})
    )
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    for key in ("detail", "extracted"):
        assert key not in case or getattr(score, key) == case[key]


# Written-out forms, each of which names one label and nothing else.
FORMS = [
    "{}", "({})", "{}.", "**{}**", "Answer: {}", "The answer is {}.", "The answer is ({}).", "\\boxed{{{}}}",
    "\\boxed{{\\text{{{}}}}}", "<answer>{}</answer>", "So the correct choice is {}, since it fits.", "#### {}",
    "Long story.\n\n({})", "Option {}", "I choose ({}).", "$\\boxed{{\\textbf{{({})}}}}$", "answer is **({})**",
]  # fmt: skip


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"), st.sampled_from(FORMS), st.booleans())
def test_every_form_names_exactly_its_letter(letter, reference, form, lower):
    text = form.format(letter.lower() if lower else letter)
    assert judge(text, reference).value == float(letter == reference), text


@given(st.lists(st.text("bcdfgh", min_size=3, max_size=6), min_size=2, max_size=6, unique=True), st.data())
def test_label_index_and_text_are_one_reference(texts, data):
    right = data.draw(st.integers(0, len(texts) - 1))
    letter = "ABCDEF"[right]
    answer = data.draw(st.sampled_from([letter, texts[right], f"({letter}) {texts[right]}"]))
    for reference in (letter, right, texts[right]):
        assert judge(f"The answer is {answer}.", reference, columns={"choices": texts}).value == 1.0
    prompt = "Which?\n" + "\n".join(f"({label}) {text}" for label, text in zip("ABCDEF", texts, strict=False))
    assert judge(f"The answer is {answer}.", letter, prompt).value == 1.0
    other = (right + 1) % len(texts)
    assert judge(f"The answer is {answer}.", "ABCDEF"[other], prompt).value == 0.0


@given(st.lists(st.sampled_from("ABCD"), min_size=2, max_size=4, unique=True), st.sampled_from("ABCD"))
def test_a_hedge_never_earns(letters, reference):
    for text in (
        " or ".join(letters),
        "The answer is " + " or ".join(letters) + ".",
        "\n".join(f"Answer: {letter}" for letter in letters),
        " ".join(f"\\boxed{{{letter}}}" for letter in letters),
        ", ".join(letters),
        "<answer>" + "/".join(letters) + "</answer>",
        "\n".join(f"{letter}) yes" for letter in letters),
    ):
        assert judge(text, reference).value == 0.0, text


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_gets_a_verdict(text):
    score = judge(text, "B", text)
    assert score.state in ("scored", "abstained")


LISTS = [
    ("(A) 4 (B) 5  (C) 6", ("A", "B", "C"), ("4", "5", "6")),
    ("Which?\nA) 2.5 m\nB) 3, or more\n\nAnswer:", ("A", "B"), ("2.5 m", "3, or more")),
    ("a. x\nb. y", ("a", "b"), ("x", "y")),
    ("1) x\n2) y\n3) z", ("1", "2", "3"), ("x", "y", "z")),
    ("(i) x (ii) y", ("i", "ii"), ("x", "y")),
    ("(A) A) 59 (B) B) 69", ("A", "B"), ("59", "69")),
    ("A)x\nB)y", ("A", "B"), ("x", "y")),
]


@pytest.mark.parametrize(("prompt", "labels", "texts"), LISTS)
def test_options_are_read_from_a_prompt(prompt, labels, texts):
    assert options_in(prompt) == (labels, texts)


@pytest.mark.parametrize(
    "prompt", ["", "What is 2 + 2?", "J. A. Smith and B. C. Jones", "Vitamin A. It is", "(B) (C)", "A)"]
)
def test_no_options_where_there_are_none(prompt):
    assert options_in(prompt) is None


@pytest.mark.parametrize(
    "value", [[], ["x"], "x", 3, {}, {"A": "x"}, [["x"], ["y"]], {"long label": "x", "b": "y"}, [None, 1]]
)
def test_what_is_no_list_of_options_is_refused(value):
    with pytest.raises(ValueError, match="option"):
        read_options(value)


def test_array_columns_are_read():
    """A Parquet reader hands out arrays, known by their `tolist`."""

    class Array:
        def __init__(self, *items):
            self.items = list(items)

        def tolist(self):
            return self.items

    assert judge("B", 1, columns={"choices": Array("x", "y")}).value == 1.0
    assert judge("y", "B", columns={"choices": {"text": Array("x", "y"), "label": Array("A", "B")}}).value == 1.0


AQUA = {"qwen2.5-3b-instruct": (188, 2), "qwen2.5-3b-rlft": (180, 2)}


@pytest.mark.parametrize("model", AQUA)
def test_agreement_on_aqua(shared, model):
    """254 rows each. The four disagreements were read: the labels guess A where no letter was given (1) or the
    thinking never ended (1), overlook a boxed A (1), and take the first of `(D). </answer> E` (1)."""
    rows = [json.loads(line) for line in shared(f"data/math_runs/{model}/aqua.jsonl").read_text("utf-8").splitlines()]
    published = [bool(row["score"][0]) for row in rows]
    ours = [judge(row["code"][0], row["gt"], row["question"]).value == 1.0 for row in rows]
    right, disagreements = AQUA[model]
    assert (len(rows), sum(published)) == (254, right)
    assert sum(one != other for one, other in zip(published, ours, strict=True)) == disagreements


@pytest.mark.parametrize(("name", "text"), [("math_cases", "prediction"), ("math_responses", "response")])
def test_published_faults(shared, name, text):
    rows = [json.loads(line) for line in shared(f"cases/{name}.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] == "mcq"]
    assert len(rows) >= 9
    wrong = [row["id"] for row in rows if (judge(row[text], row["gold"]).value == 1.0) != row["expected"]]
    assert wrong == []


@pytest.mark.parametrize("options", [{"gold": "letter"}, {"index_base": 2}, {"choices_in": "row"}, {"goald": "auto"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Choice.from_options(options)


def test_it_travels():
    verifier = Choice(gold="index", index_base=1)
    assert parse(repr(verifier)) == verifier == pickle.loads(pickle.dumps(verifier))


def test_long_texts_are_judged():
    prompt = "Which?\nA) x\nB) y"
    for text in ("a " * 500_000, "A or " * 200_000, "The answer is " * 70_000, "\\boxed{" * 150_000, "(" * 10**6):
        assert judge(text, "B", prompt).value == 0.0
    assert judge("word " * 200_000 + "\nAnswer: B", "B", prompt).value == 1.0
    for long in ("A) " * 300_000, "A. B. " * 100_000, "1. 2. " * 100_000, "(A)" * 300_000):
        assert judge("B", "B", long).value == 1.0
