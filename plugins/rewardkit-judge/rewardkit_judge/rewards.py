"""The three judges: `judge/rubric`, `judge/pairwise`, `judge/reference`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rewardkit import OptionError, Sample, Score, reward
from rewardkit_judge.answer import schema
from rewardkit_judge.client import Endpoint, Format, Message
from rewardkit_judge.data import fenced

CRITERIA = {
    "correct": "Everything that it states is true, and its result is right.",
    "complete": "It answers the whole question.",
    "clear": "It is easy to follow and has nothing superfluous.",
}
GRADES = 4
"""Each criterion is graded from 0 to this."""

_SYSTEM = "You are a careful judge of answers. You reply with one JSON object and nothing else."


@reward(name="judge/rubric")
async def rubric(
    completion: str,
    sample: Sample,
    *,
    criteria: dict[str, str] = CRITERIA,
    weights: dict[str, float] = {},  # noqa: B006 - an option's default is never changed
    model: str = "",
    base_url: str = "http://127.0.0.1:8000/v1",
    api_key_env: str = "OPENAI_API_KEY",
    temperature: float = 0.0,
    max_tokens: int = 512,
    max_prompt: int = 24_000,
    retries: int = 4,
    timeout: float = 60.0,
    concurrency: int = 8,
    reply_format: Format = "json_schema",
    ledger: str = "",
    input_price: float = 0.0,
    output_price: float = 0.0,
) -> Score:
    """The weighted mean of a model's grades, 0 to 4 for each criterion, scaled to [0, 1].

    The judge sees the prompt, the reference where the row has one, and the completion. An empty completion is 0 without
    asking. A judge that fails or cannot be read is an error (service), never a 0.

    Traps: a judge's grade is an opinion; text addressed to it is fenced as data and reported, not removed, and a weak
    judge may still follow it. The same judge grades long answers higher.

    Options:
        criteria: name -> what it demands.
        weights: name -> weight, above 0; 1 where not given.
        model: the judge's name at the endpoint; required.
        base_url: an OpenAI-compatible endpoint, up to and with /v1.
        api_key_env: the environment variable that holds the key, where there is one; never the key itself.
        temperature: 0 for the most repeatable verdicts.
        max_tokens: tokens that an answer may have.
        max_prompt: characters of prompt, reference and completion together.
        retries: further tries after a status 429 or 5xx, a timeout or a lost connection; Retry-After is honoured.
        timeout: seconds for one try.
        concurrency: requests at a time to this endpoint.
        reply_format: how the endpoint is told to answer in JSON; "json_object" or "none" where it knows no schemas.
        ledger: a file to which each request is appended (tokens, cost, outcome); "" for none.
        input_price: price of a million prompt tokens.
        output_price: price of a million answer tokens.

    Example:
        rewardkit try "judge/rubric(model='qwen', criteria={'polite': 'It is polite.'})" 'Thank you, gladly.'
    """
    endpoint = _endpoint("judge/rubric", locals())
    factors = _factors(criteria, weights)
    blank = _unjudgeable(completion, sample, max_prompt)
    if blank is not None:
        return blank
    pieces = _pieces(sample) | {"COMPLETION": completion}
    demands = "\n".join(f"- {json.dumps(name)}: {demand}" for name, demand in criteria.items())
    grade = {"type": "integer", "enum": list(range(GRADES + 1))}
    wanted = schema(
        scores={
            "type": "object",
            "properties": dict.fromkeys(criteria, grade),
            "required": list(criteria),
            "additionalProperties": False,
        }
    )
    task = (
        f"Grade the COMPLETION by each criterion from 0 (not at all) to {GRADES} (fully), each by itself.\n{demands}\n"
        'Reply with JSON: {"explanation": "one or two sentences", "scores": {criterion: grade}}.'
    )
    messages, found = _messages(task, pieces)
    answer = await endpoint.ask(messages, wanted)
    grades = {name: int(answer["scores"][name]) for name in criteria}
    total = sum(factors.values())
    parts = tuple(
        Score(grade / GRADES, f"{grade} of {GRADES}", name=name, weight=factors[name] / total)
        for name, grade in grades.items()
    )
    value = math.fsum(factors[name] * grade for name, grade in grades.items()) / (GRADES * total)
    shown = ", ".join(f"{name} {grade}/{GRADES}" for name, grade in grades.items())
    return Score(min(1.0, value), _detail(shown, answer, found), parts=parts)


@reward(name="judge/pairwise")
async def pairwise(
    completion: str,
    reference: str,
    sample: Sample,
    *,
    quality: str = "correctness first, then completeness, then clarity",
    model: str = "",
    base_url: str = "http://127.0.0.1:8000/v1",
    api_key_env: str = "OPENAI_API_KEY",
    temperature: float = 0.0,
    max_tokens: int = 512,
    max_prompt: int = 24_000,
    retries: int = 4,
    timeout: float = 60.0,
    concurrency: int = 8,
    reply_format: Format = "json_schema",
    ledger: str = "",
    input_price: float = 0.0,
    output_price: float = 0.0,
) -> Score:
    """How far a model prefers the completion to the reference answer, asked in both orders.

    Each order gives 1 (the completion), 0.5 (a tie) or 0 (the reference); the value is their mean, so that a judge that
    always takes the first one gives 0.5. An equal text is 0.5 and an empty one 0, without asking.

    Traps: two requests a completion. Orders that disagree are named in the detail: many of them mean a weak judge.

    Options:
        quality: what makes an answer the better one.
        model: the judge's name at the endpoint; required.
        base_url: an OpenAI-compatible endpoint, up to and with /v1.
        api_key_env: the environment variable that holds the key, where there is one; never the key itself.
        temperature: 0 for the most repeatable verdicts.
        max_tokens: tokens that an answer may have.
        max_prompt: characters of prompt, reference and completion together.
        retries: further tries after a status 429 or 5xx, a timeout or a lost connection; Retry-After is honoured.
        timeout: seconds for one try.
        concurrency: requests at a time to this endpoint.
        reply_format: how the endpoint is told to answer in JSON; "json_object" or "none" where it knows no schemas.
        ledger: a file to which each request is appended (tokens, cost, outcome); "" for none.
        input_price: price of a million prompt tokens.
        output_price: price of a million answer tokens.

    Example:
        rewardkit try "judge/pairwise(model='qwen')" --reference 'Paris.' 'The capital of France is Paris.'
    """
    endpoint = _endpoint("judge/pairwise", locals())
    gold = _text(reference)
    blank = _unjudgeable(completion, sample, max_prompt)
    if blank is not None:
        return blank
    if not gold.strip():
        return Score(None, "the reference is empty", reason="bad_reference")
    if completion.strip() == gold.strip():
        return Score(0.5, "the same text as the reference")
    wanted = schema(better={"type": "string", "enum": ["A", "B", "tie"]})
    task = (
        f"Two answers to the same question: which is better? Quality is {quality}. Their order and their length mean"
        ' nothing.\nReply with JSON: {"explanation": "one or two sentences", "better": "A" or "B" or "tie"}.'
    )
    pieces = {name: text for name, text in _pieces(sample).items() if name != "REFERENCE"}

    async def ask(first: str, second: str) -> tuple[str, dict[str, Any], list[str]]:
        messages, found = _messages(task, pieces | {"ANSWER A": first, "ANSWER B": second})
        answer = await endpoint.ask(messages, wanted)
        return answer["better"], answer, found

    (forth, answer, found), (back, _, _) = await _both(ask(completion, gold), ask(gold, completion))
    worth = {"A": 1.0, "tie": 0.5, "B": 0.0}
    value = (worth[forth] + 1.0 - worth[back]) / 2
    named = {"A": "the completion", "B": "the reference", "tie": "a tie"}
    swapped = {"A": "B", "B": "A", "tie": "tie"}[back]
    shown = f"{named[forth]}; in the other order {named[swapped]}" + ("; they disagree" if swapped != forth else "")
    return Score(value, _detail(shown, answer, found))


@reward(name="judge/reference")
async def reference(
    completion: str,
    reference: str,
    sample: Sample,
    *,
    model: str = "",
    base_url: str = "http://127.0.0.1:8000/v1",
    api_key_env: str = "OPENAI_API_KEY",
    temperature: float = 0.0,
    max_tokens: int = 512,
    max_prompt: int = 24_000,
    retries: int = 4,
    timeout: float = 60.0,
    concurrency: int = 8,
    reply_format: Format = "json_schema",
    ledger: str = "",
    input_price: float = 0.0,
    output_price: float = 0.0,
) -> Score:
    """1 when a model says that the completion's final answer is the reference's, else 0.

    Traps: where a verifier can decide (numbers, choices, code), it is cheaper and cannot be talked to; use this for
    free text. An empty completion is 0 without asking.

    Options:
        model: the judge's name at the endpoint; required.
        base_url: an OpenAI-compatible endpoint, up to and with /v1.
        api_key_env: the environment variable that holds the key, where there is one; never the key itself.
        temperature: 0 for the most repeatable verdicts.
        max_tokens: tokens that an answer may have.
        max_prompt: characters of prompt, reference and completion together.
        retries: further tries after a status 429 or 5xx, a timeout or a lost connection; Retry-After is honoured.
        timeout: seconds for one try.
        concurrency: requests at a time to this endpoint.
        reply_format: how the endpoint is told to answer in JSON; "json_object" or "none" where it knows no schemas.
        ledger: a file to which each request is appended (tokens, cost, outcome); "" for none.
        input_price: price of a million prompt tokens.
        output_price: price of a million answer tokens.

    Example:
        rewardkit try "judge/reference(model='qwen')" --reference 'Paris' 'It is the city of Paris.'
    """
    endpoint = _endpoint("judge/reference", locals())
    gold = _text(reference)
    blank = _unjudgeable(completion, sample, max_prompt)
    if blank is not None:
        return blank
    if not gold.strip():
        return Score(None, "the reference is empty", reason="bad_reference")
    task = (
        "Is the final answer of the COMPLETION the same as the REFERENCE, in meaning and value? Wording, language and"
        " working do not matter; an answer that hedges between several, or gives none, is not the same.\n"
        'Reply with JSON: {"explanation": "one or two sentences", "equivalent": true or false}.'
    )
    messages, found = _messages(task, _pieces(sample) | {"REFERENCE": gold, "COMPLETION": completion})
    answer = await endpoint.ask(messages, schema(equivalent={"type": "boolean"}))
    same = bool(answer["equivalent"])
    detail = _detail("the same" if same else "not the same", answer, found)
    return Score(1.0, detail) if same else Score(0.0, detail, reason="wrong")


# ------------------------------------------------------------------------------------------------ in common

_ENDPOINT = tuple(field.name for field in fields(Endpoint) if field.name != "reward")


def _endpoint(name: str, options: Mapping[str, Any]) -> Endpoint:
    return Endpoint(reward=name, **{option: options[option] for option in _ENDPOINT})


def _factors(criteria: Mapping[str, str], weights: Mapping[str, float]) -> dict[str, float]:
    """Return each criterion's weight."""
    if not criteria:
        raise OptionError("judge/rubric: criteria is empty; give at least one, as {'polite': 'It is polite.'}")
    for name, weight in weights.items():
        if name not in criteria:
            raise OptionError(f"judge/rubric: weights: {name!r} is no criterion; they are {', '.join(criteria)}")
        if not (weight > 0 and math.isfinite(weight)):
            raise OptionError(f"judge/rubric: the weight of {name!r} is a number above 0, got {weight}")
    return {name: float(weights.get(name, 1.0)) for name in criteria}


def _unjudgeable(completion: str, sample: Sample, limit: int) -> Score | None:
    """Return the score of what no judge is asked about: an empty text, or one that is too long."""
    if not any(sign.isprintable() and not sign.isspace() for sign in completion):
        return Score(0.0, "the completion is empty", reason="no_answer")
    given = sum(map(len, _pieces(sample).values()))
    if given > limit:
        return Score(None, f"prompt and reference have {given:,} characters, above max_prompt={limit:,}")
    if given + len(completion) > limit:
        detail = f"{len(completion):,} characters, with {given:,} of prompt and reference above max_prompt={limit:,}"
        return Score(0.0, detail, reason="too_large")
    return None


def _pieces(sample: Sample) -> dict[str, str]:
    """Return what the row says about the task."""
    pieces = {"PROMPT": sample.prompt_text, "REFERENCE": _text(sample.reference)}
    return {name: text for name, text in pieces.items() if text.strip()}


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _messages(task: str, pieces: Mapping[str, str]) -> tuple[list[Message], list[str]]:
    data, found = fenced(pieces)
    # The task comes again at the end: what stands last weighs most with small models.
    content = f"{task}\n\n{data}\n\nThe data ends here. {task}"
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": content}], found


def _detail(shown: str, answer: Mapping[str, Any], found: list[str]) -> str:
    addressed = f" [addressed to the judge: {'; '.join(found)}]" if found else ""
    return f"{shown}: {' '.join(answer['explanation'].split())}{addressed}"


async def _both(*questions: Any) -> list[Any]:
    """Wait for all; when one fails, end the others before saying so."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except* Exception as problems:
        raise problems.exceptions[0] from None
    return [task.result() for task in tasks]


__all__ = ["pairwise", "reference", "rubric"]
