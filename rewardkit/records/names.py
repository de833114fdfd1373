"""Names that people give to the fields of saved generations, best first; names in one group are equally good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rewardkit.records.chat import is_chat, is_message
from rewardkit.types import is_reply

Ranks = tuple[tuple[str, ...], ...]

COMPLETION: Ranks = (
    ("completion", "completions"),
    ("full_model_response", "full_model_responses"),
    (
        "response",
        "responses",
        "generation",
        "generations",
        "generated_text",
        "generated_texts",
        "model_output",
        "model_outputs",
        "model_response",
        "model_responses",
        "output_response",
        "model_completion",
        "raw_generations",
    ),
    ("output", "outputs", "samples", "choices", "prediction", "predictions", "text", "texts", "code"),
    ("messages", "conversations", "conversation"),
)
# Inside an object that stands for one completion, names that would be too vague for a whole row are good enough.
ELEMENT: Ranks = (
    ("completion", "full_model_response"),
    ("response", "generation", "generated_text", "model_output", "model_response", "output_response"),
    ("output", "text", "content"),
    ("message", "messages"),
    ("solution", "code", "prediction"),
    ("answer", "model_answer"),
)
PROMPT: Ranks = (
    ("prompt",),
    ("question", "problem"),
    ("query", "instruction", "input", "input_prompt"),
    ("messages",),
)
REFERENCE: Ranks = (
    ("reference", "references", "ground_truth", "expected_answer", "gold", "gt", "gold_answer", "reference_answer"),
    ("answer", "answers", "target", "targets", "expected", "expected_output", "gts"),
    ("solution",),
    ("label",),
)
NESTED_REFERENCE: tuple[tuple[str, ...], ...] = (("reward_model", "ground_truth"),)
LABEL: Ranks = (
    ("is_correct", "label", "correct", "passed"),
    ("score", "scores"),
    ("reward", "rewards"),
)
ID: Ranks = (
    ("id",),
    ("task_id",),
    ("unique_id",),
    ("uid",),
    ("question_id",),
    ("problem_id",),
    ("example_id",),
    ("sample_id",),
    ("doc_id",),
    ("custom_id",),
    ("idx",),
)
STEP: Ranks = (("step",), ("global_step",), ("training_step",))
MODEL: Ranks = (("model",), ("model_name",), ("model_id",))
TOKENS: Ranks = (("tokens",), ("num_tokens", "n_tokens", "token_count", "completion_tokens", "output_tokens"))
FINISH: Ranks = (("finish_reason",), ("stop_reason",))
ERROR: Ranks = (("error",),)

# Names that mean something else than a completion; and words in names of columns that may be one.
OTHER = frozenset(
    name
    for ranks in (PROMPT, REFERENCE, LABEL, ID, STEP, MODEL, TOKENS, FINISH, ERROR)
    for rank in ranks
    for name in rank
)
COMPLETION_WORDS = ("complet", "respon", "generat", "output", "predict", "reply", "model_", "assistant", "rollout")

# Layouts whose fields have names that mislead: the fields that give one away, and its map.
LAYOUTS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (  # Qwen2.5-Math evaluation and its relatives (ToRA)
        ("idx", "question", "gt", "code", "pred"),
        {"id": "idx", "prompt": "question", "completion": "code[]", "reference": "gt", "label": "score[]"},
    ),
)


def flat(ranks: Ranks) -> tuple[str, ...]:
    """Return all names, best first."""
    return tuple(name for rank in ranks for name in rank)


def is_output(value: Any) -> bool:
    """Whether a value can be one model output that says something: text, a chat with a reply, an object with either."""
    if isinstance(value, str):
        return True
    if isinstance(value, dict):
        return is_message(value) or any(is_output(value[name]) for name in flat(ELEMENT) if name in value)
    return is_chat(value) and any(map(is_reply, value))


def is_output_list(value: Any) -> bool:
    """Whether a value is a list of several model outputs (and not one chat)."""
    if not isinstance(value, list) or not value or is_chat(value) or any(map(_own_task, value)):
        return False
    return all(item is None or is_output(item) for item in value) and any(item is not None for item in value)


def _own_task(value: Any) -> bool:
    """Whether an object names a task of its own, so that it is a row and not one completion of one."""
    return isinstance(value, dict) and any(name in value for name in flat(PROMPT[:3]) + REFERENCE[0])


def has_output(fields: Mapping[str, Any]) -> bool:
    """Whether an object has a field whose name and value are a completion's (any object in it may stand for one)."""
    for name in flat(COMPLETION) + flat(ELEMENT):
        value = fields.get(name)
        if value is not None and (is_output(value) or is_output_list(value) or isinstance(value, dict)):
            return True
    return False


def is_known(columns: Iterable[str]) -> bool:
    """Whether one of some columns has a name that says what it is."""
    known = {*flat(COMPLETION), *flat(PROMPT), *flat(REFERENCE), *flat(ID), *flat(LABEL)}
    return any(column in known for column in columns)


def looks_like_row(values: Sequence[Any]) -> bool:
    """Whether most of some values are objects with a completion and something to judge it by or to call it."""
    objects = [value for value in values[:100] if isinstance(value, dict)]
    good = [fields for fields in objects if _strong(fields) or (has_output(fields) and _context(fields))]
    return bool(objects) and 2 * len(good) > len(values[:100])


def _strong(fields: Mapping[str, Any]) -> bool:
    return any(is_output(fields.get(name)) or is_output_list(fields.get(name)) for name in flat(COMPLETION[:3]))


def _context(fields: Mapping[str, Any]) -> bool:
    return any(name in fields for name in flat(PROMPT) + flat(REFERENCE) + flat(ID))
