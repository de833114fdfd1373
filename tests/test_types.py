"""Types: frozen, finite, and the blame rule holds by construction."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.types import (
    COMPLETION_REASONS,
    MACHINE_REASONS,
    REFERENCE_REASONS,
    Completion,
    Generation,
    Sample,
    Score,
    Verdict,
    finite,
    last_reply,
    message_text,
)


class Scalar:
    """What NumPy and torch scalars have in common."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


MADE = [
    Completion("x"),
    Sample(1),
    Generation(Sample(1), (Completion("x"),)),
    Verdict.accept(),
    Score(1.0),
]


@pytest.mark.parametrize("thing", MADE, ids=lambda thing: type(thing).__name__)
def test_nothing_that_travels_can_be_changed(thing: object) -> None:
    with pytest.raises(AttributeError):
        setattr(thing, thing.__struct_fields__[0], "other")  # type: ignore[attr-defined]


def test_default_metadata_is_not_shared_between_samples() -> None:
    Sample(1).metadata["leaked"] = True
    Completion("x").metadata["leaked"] = True
    assert Sample(2).metadata == {} and Completion("y").metadata == {}


def test_a_null_output_is_an_empty_text_and_never_the_word_none() -> None:
    with pytest.raises(TypeError, match="text is a str, got NoneType"):
        Completion(None)  # type: ignore[arg-type]


# -- finite numbers


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, Scalar(math.nan), Decimal("Infinity")])
def test_numbers_that_are_not_finite_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a score's value is a finite number"):
        Score(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a verdict's value is a finite number"):
        Verdict.partial(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1", b"1", [1.0], {}, 1 + 0j, object()])
def test_what_is_no_number_is_refused_and_text_is_not_converted(value: object) -> None:
    with pytest.raises(TypeError, match="x is a number, got"):
        finite(value, "x")
    with pytest.raises(TypeError):
        Score(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1, Fraction(1), Decimal("1.0"), Scalar(1.0)])
def test_scalars_of_other_kinds_become_plain_floats(value: object) -> None:
    for made in (Score(value), Verdict(value)):  # type: ignore[arg-type]
        assert made.value == 1.0 and type(made.value) is float


@pytest.mark.parametrize("value", [-0.1, 1.0000001, 2, -1])
def test_a_verdict_outside_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"lies in \[0, 1\]"):
        Verdict.partial(value)


# -- the blame rule


@pytest.mark.parametrize("reason", sorted(COMPLETION_REASONS))
def test_what_the_completion_causes_is_scored_and_never_unscored(reason: str) -> None:
    assert Score(0.0, reason=reason).state == "scored"  # type: ignore[arg-type]
    assert Verdict(0.0, reason=reason).value == 0.0  # type: ignore[arg-type]
    for kind in (Score, Verdict):
        with pytest.raises(ValueError):
            kind(None, reason=reason)


@pytest.mark.parametrize("reason", sorted(REFERENCE_REASONS))
def test_what_the_reference_causes_is_abstained_and_never_a_zero(reason: str) -> None:
    assert Score(None, reason=reason).state == "abstained"  # type: ignore[arg-type]
    assert Verdict(None, reason=reason).value is None  # type: ignore[arg-type]
    for kind in (Score, Verdict):
        with pytest.raises(ValueError):
            kind(0.0, reason=reason)


@pytest.mark.parametrize("reason", sorted(MACHINE_REASONS))
def test_what_the_machine_causes_is_an_error_and_no_verdict_at_all(reason: str) -> None:
    assert Score.error(reason, "x").state == "error"  # type: ignore[arg-type]
    for refused in (lambda: Score(0.0, reason=reason), lambda: Verdict(0.0, reason=reason)):  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            refused()
    with pytest.raises(ValueError):
        Verdict(None, reason=reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 0.0])
def test_a_reason_outside_the_closed_list_is_refused_also_without_a_value(value: float | None) -> None:
    for kind in (Score, Verdict):
        with pytest.raises(ValueError, match="reason"):
            kind(value, reason="felt_wrong")


def test_a_score_without_value_abstains_and_a_verdict_must_say_why() -> None:
    score = Score(None, "no tags to judge")
    assert (score.state, score.reason, score.why) == ("abstained", "unsupported", "unsupported: no tags to judge")
    with pytest.raises(ValueError):
        Verdict(None)


def test_verdict_constructors() -> None:
    assert Verdict.accept("x", extracted="18") == Verdict(1.0, "x", "18", None)
    assert Verdict.partial(0.5, reason="output") == Verdict(0.5, "", None, "output")
    assert Verdict.reject("x") == Verdict(0.0, "x", None, "wrong")
    assert Verdict.reject(reason="no_answer").reason == "no_answer"
    assert Verdict.abstain("x") == Verdict(None, "x", None, "unsupported")
    assert Score.of(Verdict.reject("12 is not 13", extracted="12"), "n") == Score(
        0.0, "12 is not 13", "12", "wrong", "n"
    )


def test_why_says_reason_and_detail_or_what_there_is_of_them() -> None:
    assert Score(0.0, "12 is not 13", reason="wrong").why == "wrong: 12 is not 13"
    assert Score(0.0, reason="wrong").why == "wrong"
    assert Score(0.5, "two of four").why == "two of four"
    assert Score(0.5).why == ""


# -- chats


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, "b"], "ab"),
        ([{"type": "text", "text": None}, None, 3], ""),
        ({"type": "text", "text": "one part"}, "one part"),
        (b"bytes", ""),
        (17, ""),
        ([], ""),
    ],
)
def test_message_text_of_parts_and_of_what_is_no_text(content: object, text: str) -> None:
    assert message_text(content) == text


def test_message_text_of_a_list_that_is_nested_without_end_does_not_recurse() -> None:
    nested: list[object] = []
    nested.append(nested)
    assert message_text(nested) == ""


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "a"),
        ([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "a"),
        # A column of one table holds both kinds; the keys of the other kind are there and null.
        ([{"role": None, "content": None, "from": "gpt", "value": "a"}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "thanks"}], "a"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], ""),
        # A tool call comes last: what was said before it is not the answer.
        ([{"role": "assistant", "content": "thinking"}, {"role": "assistant", "content": None, "tool_calls": []}], ""),
        ([{"role": "user", "content": "q"}], ""),
        (["no message", {"role": "assistant", "content": "a"}, 7], "a"),
        ([], ""),
    ],
)
def test_last_reply(messages: list[dict[str, object]], text: str) -> None:
    assert last_reply(messages) == text
    made = Completion.from_messages(messages, tokens=3)
    assert (made.text, made.messages, made.tokens) == (text, tuple(messages), 3)


def test_prompt_text_of_text_of_a_chat_and_of_nothing() -> None:
    chat = [{"role": "system", "content": "s"}, {"from": "human", "value": "q"}, "stray"]
    assert Sample(1, chat).prompt_text == "s\nq"
    assert Sample(1, "plain").prompt_text == "plain"
    assert Sample(1, None).prompt_text == ""


# -- JSON

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.builds(
        Score,
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
        st.none() | st.text(),
        st.none() | st.sampled_from(sorted(COMPLETION_REASONS)),
        st.text(),
        parts=st.tuples(
            st.builds(Score, st.none(), reason=st.sampled_from(sorted(MACHINE_REASONS | REFERENCE_REASONS)))
        ),
    )
)
def test_a_score_survives_json_exactly(score: Score) -> None:
    text = msgspec.json.encode(score)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert msgspec.json.decode(text, type=Score) == score


@given(
    st.builds(
        Generation,
        st.builds(Sample, st.integers(-(2**53), 2**53) | st.text(), plain, plain, st.dictionaries(st.text(), plain)),
        st.tuples(st.builds(Completion, st.text(), st.none() | st.integers(0, 10**6))),
    )
)
def test_a_generation_survives_json_exactly(generation: Generation) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(generation), type=Generation)
    assert decoded == generation
    assert type(decoded.sample.id) is type(generation.sample.id)


@pytest.mark.parametrize(
    "text", ['{"value": null, "reason": "wrong"}', '{"value": 1, "reason": "raised"}', '{"value": 2}']
)
def test_json_cannot_bring_in_what_the_constructor_refuses(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Verdict)
