"""Names that people give to the fields of saved generations, best first; names in one rank are equally good.

A name is looked for as it is written; where no column is called exactly so, names are compared in `normal` form:
`Model Output`, `model-output` and `modelOutput` are `model_output`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from rewardkit.records.chat import is_chat, is_message
from rewardkit.types import is_reply

Ranks = tuple[tuple[str, ...], ...]

# Names that say it; then names that mean other things too; chats; and answers.
STRONG: Ranks = (
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
        "model_completions",
        "model_generation",
        "model_prediction",
        "raw_generations",
        "raw_generation",
        "raw_output",
        "raw_outputs",
        "raw_response",
        "raw_responses",
        "raw_completion",
        "llm_output",
        "llm_outputs",
        "llm_response",
        "llm_responses",
        "generated_output",
        "generated_outputs",
        "generated_response",
        "generated_responses",
        "generated_solution",
        "generated_solutions",
        "generated_code",
        "full_response",
        "full_output",
        "response_text",
        "completion_text",
        "output_text",
        "output_list",
        "actual_output",
        "assistant_response",
        "assistant_output",
        "model_patch",
        "origin_prediction",
        "rollout",
        "rollouts",
        "回答",
        "模型回答",
        "模型输出",
        "模型回复",
        "回复",
    ),
)
WEAK: tuple[str, ...] = (
    "output",
    "outputs",
    "samples",
    "choices",
    "prediction",
    "predictions",
    "predict",
    "predicted",
    "attempt",
    "attempts",
    "reply",
    "replies",
    "candidates",
    "generated",
    "text",
    "texts",
    "code",
    "code_list",
    "输出",
    "预测",
)
CHATS: tuple[str, ...] = ("messages", "conversations", "conversation", "chat", "dialogue", "trajectory")
ANSWERS: tuple[str, ...] = (
    "model_answer",
    "model_answers",
    "llm_answer",
    "llm_answers",
    "generated_answer",
    "generated_answers",
    "student_answer",
)
# Answers cut out of an output: a completion only if somebody says so.
EXTRACTED: tuple[str, ...] = (
    "pred",
    "preds",
    "predicted_answer",
    "predicted_answers",
    "extracted_answer",
    "parsed_answer",
    "final_answer",
    "hypothesis",
)
COMPLETION: Ranks = (*STRONG, WEAK, CHATS, ANSWERS)
# What the options of a question are called too; and what a number of something is called too.
OPTIONS = frozenset(("choices", "candidates"))
COUNTED = frozenset(("attempt", "attempts", "samples", "rollout", "rollouts", "generation", "generations", "replies"))
# Inside an object that stands for one completion, names that would be too vague for a whole row are good enough.
ELEMENT: Ranks = (
    ("completion", "full_model_response"),
    (
        "response",
        "generation",
        "generated_text",
        "model_output",
        "model_response",
        "output_response",
        "raw_output",
        "llm_output",
    ),
    ("output", "text", "content"),
    ("message", "messages"),
    ("solution", "code", "prediction"),
    ("answer", "model_answer"),
)
# Lists of completions inside an object, such as the whole response of a service.
INNER_LISTS: tuple[str, ...] = ("choices", "outputs", "completions", "generations", "candidates")
PROMPT: Ranks = (
    ("prompt",),
    ("question", "problem", "question_text", "question_content", "problem_statement", "problem_text", "问题", "题目"),
    (
        "query",
        "instruction",
        "input",
        "input_prompt",
        "user_prompt",
        "user_input",
        "origin_prompt",
        "prompt_text",
        "inputs",
        "prompts",
        "questions",
        "指令",
        "提示",
        "提示词",
        "输入",
    ),
    ("q",),
    ("messages",),
)
REFERENCE: Ranks = (
    (
        "reference",
        "references",
        "ref",
        "refs",
        "ground_truth",
        "ground_truths",
        "groundtruth",
        "expected_answer",
        "gold",
        "golden",
        "gt",
        "gold_answer",
        "gold_answers",
        "golden_answer",
        "golden_answers",
        "gold_label",
        "reference_answer",
        "reference_answers",
        "reference_output",
        "reference_outputs",
        "reference_response",
        "ground_truth_answer",
        "correct_answer",
        "correct_answers",
        "true_answer",
        "expected_response",
        "standard_answer",
        "ideal",
        "ideal_answer",
        "标准答案",
        "参考答案",
        "正确答案",
    ),
    (
        "answer",
        "answers",
        "target",
        "targets",
        "expected",
        "expected_output",
        "expected_outputs",
        "gts",
        "answer_key",
        "答案",
    ),
    ("solution", "canonical_solution", "reference_solution", "ground_truth_solution", "gold_solution"),
    ("a",),
    ("label", "correct"),
)
NESTED_REFERENCE: tuple[tuple[str, ...], ...] = (("reward_model", "ground_truth"),)
LABEL: Ranks = (
    ("is_correct", "label", "correct", "passed"),
    ("pass", "is_passed", "correctness", "corrects", "graded_list", "是否正确"),
    ("correctness_math_verify",),
    ("score", "scores", "得分"),
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
    ("instance_id",),
    ("prompt_id",),
    ("qid",),
    ("uuid",),
    ("idx",),
    ("编号",),
)
STEP: Ranks = (("step",), ("global_step",), ("training_step",))
MODEL: Ranks = (("model",), ("model_name",), ("model_id",), ("model_name_or_path",), ("generator",), ("模型",))
TOKENS: Ranks = (
    ("tokens",),
    ("num_tokens", "n_tokens", "token_count", "completion_tokens", "output_tokens", "num_output_tokens"),
)
FINISH: Ranks = (("finish_reason", "finish_reasons"), ("stop_reason", "stop_reasons"))
ERROR: Ranks = (("error",),)

# Names that mean something else than a completion; and words in names of columns that may be one.
OTHER = frozenset(
    name
    for ranks in (PROMPT, REFERENCE, LABEL, ID, STEP, MODEL, TOKENS, FINISH, ERROR)
    for rank in ranks
    for name in rank
)
COMPLETION_WORDS = (
    "complet",
    "respon",
    "generat",
    "output",
    "predict",
    "reply",
    "model_",
    "assistant",
    "rollout",
    "attempt",
    "llm",
)
# Columns about the task or the row: text, but never a model's output.
ABOUT = frozenset(
    """
    subject level category categories topic type problem_type question_type answer_type source source_type data_source
    dataset dataset_name split url link domain difficulty lang language file filename path name title author date
    timestamp time created created_at entry_point test tests test_list test_setup_code test_imports test_case
    test_cases unit_tests public_tests private_tests input_output starter_code hint hints explanation rationale
    context contexts passage document documents options option metadata meta info extra_info ability system
    system_prompt tags tag comment comments status verdict reason hash version prompt_template task
    tasks group subset grade judge judgement judgment review feedback critique evaluation rating index worker
    annotator labeler status_code description summary note notes why 科目 难度 类型 来源
    """.split()  # noqa: SIM905 (one a line would be a hundred lines)
)
_TESTS = frozenset(
    ("test", "tests", "test_list", "test_cases", "test_case", "unit_tests", "public_tests", "private_tests")
)


class Layout(NamedTuple):
    """A file whose field names mislead: the fields that give it away, and its map.

    Attributes:
        needed: Columns that are all there.
        paths: Role to path; those whose column is not there are left out.
        lists: Which of the needed hold lists only.
        only: All columns that may be there; None for any.
    """

    needed: tuple[str, ...]
    paths: Mapping[str, str]
    lists: tuple[str, ...] = ()
    only: frozenset[str] | None = None


LAYOUTS: tuple[Layout, ...] = (
    Layout(  # Qwen2.5-Math evaluation and its relatives (ToRA)
        ("idx", "question", "gt", "code", "pred"),
        {"id": "idx", "prompt": "question", "completion": "code[]", "reference": "gt", "label": "score[]"},
        lists=("code",),
    ),
    Layout(  # LLaMA-Factory's generated_predictions.jsonl: the label is the gold text, also where it is 0 or 1
        ("prompt", "predict", "label"), {"prompt": "prompt", "completion": "predict", "reference": "label"}
    ),
    Layout(  # samples of code for EvalPlus and BigCodeBench: nothing but the task's name and the program
        ("task_id", "solution"),
        {"id": "task_id", "completion": "solution"},
        only=frozenset(("task_id", "solution", "_identifier", "raw_solution")),
    ),
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = re.compile(r"[\s_.:/-]+")


@lru_cache(4096)
def normal(name: str) -> str:
    """Return a name in the form that names are compared in: `modelOutput`, `Model Output` -> `model_output`."""
    parts = _CAMEL.sub("_", unicodedata.normalize("NFKC", name[:200]))
    return _BETWEEN.sub("_", parts).strip("_").casefold()


def spellings(columns: Iterable[str], name: str) -> list[str]:
    """Return the columns called `name`: the one written exactly so, else all whose normal form it is."""
    listed = columns if isinstance(columns, (list, tuple, dict)) else list(columns)
    return [name] if name in listed else [column for column in listed if normal(column) == name]


def spelled(fields: Mapping[str, Any], name: str) -> str | None:
    """Return the key of an object that is called `name` (see `spellings`), or None."""
    return name if name in fields else next((key for key in fields if normal(key) == name), None)


def has_tests(columns: Iterable[str]) -> bool:
    """Whether one of some columns holds a program's tests."""
    return any(normal(column) in _TESTS for column in columns)


def flat(ranks: Ranks) -> tuple[str, ...]:
    """Return all names, best first."""
    return tuple(name for rank in ranks for name in rank)


def is_output(value: Any) -> bool:
    """Whether a value can be one model output that says something: text, a chat with a reply, an object with either."""
    if isinstance(value, str):
        return True
    if isinstance(value, dict):
        return is_message(value) or any(map(is_output, _texts(value))) or _holds_list(value)
    return is_chat(value) and any(map(is_reply, value))


def _holds_list(value: Mapping[str, Any]) -> bool:
    """Whether an object holds a list of completions, as the response of a service does."""
    lists = [value[key] for key in _called(value, INNER_LISTS)]
    return any(isinstance(item, list) and any(map(_is_choice, item)) for item in lists)


def _is_choice(value: Any) -> bool:
    return isinstance(value, dict) and (is_message(value) or any(map(is_output, _texts(value))))


def _texts(value: Mapping[str, Any]) -> list[Any]:
    return [value[key] for key in _called(value, flat(ELEMENT))]


def is_output_list(value: Any) -> bool:
    """Whether a value is a list of several model outputs (and not one chat)."""
    if not isinstance(value, list) or not value or is_chat(value) or any(map(_own_task, value)):
        return False
    return all(item is None or is_output(item) for item in value) and any(item is not None for item in value)


def _own_task(value: Any) -> bool:
    """Whether an object names a task of its own, so that it is a row and not one completion of one."""
    return isinstance(value, dict) and bool(_called(value, flat(PROMPT[:4]) + REFERENCE[0]))


def has_output(fields: Mapping[str, Any]) -> bool:
    """Whether an object has a field whose name and value are a completion's (any object in it may stand for one)."""
    for name in _called(fields, flat(COMPLETION) + flat(ELEMENT)):
        value = fields[name]
        if value is not None and (is_output(value) or is_output_list(value) or isinstance(value, dict)):
            return True
    return False


def is_known(columns: Iterable[str]) -> bool:
    """Whether one of some columns has a name that says what it is."""
    return any(normal(column) in _known() for column in columns)


def looks_like_row(values: Sequence[Any]) -> bool:
    """Whether most of some values are objects with a completion and something to judge it by or to call it."""
    objects = [value for value in values[:100] if isinstance(value, dict)]
    good = [fields for fields in objects if _strong(fields) or (has_output(fields) and _context(fields))]
    return bool(objects) and 2 * len(good) > len(values[:100])


def _strong(fields: Mapping[str, Any]) -> bool:
    return any(is_output(fields[key]) or is_output_list(fields[key]) for key in _called(fields, flat(STRONG)))


def _context(fields: Mapping[str, Any]) -> bool:
    return bool(_called(fields, flat(PROMPT) + flat(REFERENCE) + flat(ID)))


def _called(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the keys of an object that have one of some names, in the order of the names."""
    keys: dict[str, str] = {}
    for key in fields:
        keys.setdefault(normal(key), key)
    keys.update({key: key for key in fields})
    return [keys[name] for name in names if name in keys]


@cache
def _known() -> frozenset[str]:
    return frozenset({*flat(COMPLETION), *flat(PROMPT), *flat(REFERENCE), *flat(ID), *flat(LABEL)})
