"""`json_schema` finds the JSON of an answer, reads it strictly, and names the first rule that it breaks."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse, score_text
from rewardkit.errors import OptionError
from rewardkit.types import Completion, Sample, Score
from rewardkit.verifiers.json_schema import JsonSchema, find_json

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "json_schema.jsonl").read_text("utf-8").splitlines()
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def judge(text: str, reference: object, prompt: object = "", **options: object) -> Score:
    verifier = JsonSchema.from_options(options)
    sample = Sample(0, prompt, reference)
    prepared = verifier.prepare(sample)
    return prepared if isinstance(prepared, Score) else verifier.judge(prepared, sample, Completion(text))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_completion_is_judged(case):
    score = judge(case["text"], case["reference"], case.get("prompt", ""), **case.get("options", {}))
    assert (score.value, score.reason) == (case["value"], case["reason"]), score.why
    for key in ("detail", "extracted"):
        assert key not in case or getattr(score, key) == case[key]


@given(VALUES, st.sampled_from(["{}", "```json\n{}\n```", "<answer>{}</answer>", "<think>{{}}</think>\n{}"]))
def test_a_value_equals_itself_wherever_it_stands(value, place):
    if value is None:
        return
    reference = json.dumps(value)
    for indent in (None, 2):
        text = place.replace("{{}}", "[1]").replace("{}", json.dumps(value, indent=indent))
        if "</answer>" in reference or "</think>" in reference or "```" in reference:
            return
        assert judge(text, reference, equals=True).value == 1.0, text


@given(st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=3), st.text("ab ,.:'\n", max_size=12))
def test_an_object_is_found_in_prose(value, prose):
    text = json.dumps(value)
    found = find_json(f"So {prose} it is {text} {prose} indeed.")
    assert found is not None and json.loads(found.text) == value


@given(VALUES, VALUES)
def test_equality_is_that_of_json(one, other):
    """A second way: canonical text, with 1.0 written as 1."""

    def canonical(value):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, list):
            return [canonical(item) for item in value]
        return {key: canonical(item) for key, item in value.items()} if isinstance(value, dict) else value

    if other is None:
        return
    same = json.dumps(canonical(one), sort_keys=True) == json.dumps(canonical(other), sort_keys=True)
    assert judge(json.dumps(one), json.dumps(other), equals=True).value == float(same)


def test_nothing_is_fetched(monkeypatch):
    opened = []

    def refuse(*arguments, **options):
        opened.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for reference in ("http://127.0.0.1:9/s.json", "https://example.com/s", "other.json", "urn:example:x"):
        # Relative to its own $id, "other.json" leads outside, too.
        schema = {"$id": "http://127.0.0.1:9/base/", "type": "object", "properties": {"a": {"$ref": reference}}}
        score = judge('{"a": 1}', schema)
        assert (score.value, score.reason, opened) == (None, "bad_reference", []), reference


def test_a_pattern_that_hangs_is_killed():
    score = score_text(JsonSchema(timeout=0.5), '"' + "a" * 60 + '!"', reference={"pattern": "^(a+)+$"})
    assert (score.value, score.reason) == (0.0, "deadline")


def test_deep_values_are_judged_by_a_schema_that_refers_to_itself():
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert judge('{"a":' * 50 + "null" + "}" * 50, schema).value == 1.0
    assert judge('{"a":' * 49 + '{"a":1}' + "}" * 49, schema).value == 0.0
    assert judge('{"a":' * 51 + "null" + "}" * 51, schema).reason == "too_large"


def test_two_definitions_that_go_round_are_the_schema_s_fault():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}},
    }
    score = judge('{"a": 1}', schema)
    assert (score.state, score.value) == ("abstained", None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": {"type": "dog"}}, "no valid JSON Schema"),
        ({"schema": {}}, "no keyword"),
        ({"schema": {"$ref": "http://example.com"}}, "nothing is fetched"),
        ({"schema": {"format": "no-such"}, "formats": True}, "cannot be checked"),
        ({"schema": [1]}, "schema"),
        ({"max_size": 0}, "max_size"),
        ({"shema": {}}, "schema"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        JsonSchema.from_options(options)


def test_a_schema_travels():
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"enum": [1, None, True, "it's"]}}}
    verifier = JsonSchema(schema=schema, equals=True)
    assert parse(repr(verifier)) == verifier == pickle.loads(pickle.dumps(verifier))
    assert (JsonSchema().needs, JsonSchema(schema=schema).needs) == (("reference",), ())


def test_hostile_texts_are_judged():
    for text in (
        '{"a":' * 200_000,
        '[{"' * 300_000,
        '"' * 1_000_000,
        "{" * 1_000_000,
        '{"a":1} ' * 120_000,
        "1" * 10**6,
    ):
        score = judge(text, {"type": "string"})
        assert score.value == 0.0 and len(score.detail) < 400 and len(score.extracted or "") <= 200
