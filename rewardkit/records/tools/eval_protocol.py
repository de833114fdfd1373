"""Rows of eval-protocol (`EvaluationRow`): a conversation, its ground truth, and how it was judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rewardkit.records.paths import MISSING
from rewardkit.records.tools.lines import (
    Found,
    LineFormat,
    Unread,
    at,
    count,
    failure,
    labelled,
    mapping,
    name_of,
    number,
    rest,
    text_or_none,
)
from rewardkit.types import Completion, is_reply, last_reply

_OWN = ("input_metadata", "rollout_status", "execution_metadata")
_ROLES = (*_OWN, "messages", "ground_truth", "evaluation_result", "eval_metadata", "created_at", "pid")
# Of a rollout's status: OK, finished, still running, and the two that are about the score and not about the rollout.
_WENT_WELL, _RUNNING = (0, 100, 102, 103), 101


class EvalProtocol(LineFormat):
    """Reader of rows with their results."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by messages with the tool's metadata about the input, and another of its own fields."""
        if not isinstance(fields.get("messages"), list) or not isinstance(fields.get("input_metadata"), dict):
            return False
        return cut or any(name in fields for name in ("rollout_status", "execution_metadata", "evaluation_result"))

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the one completion of a row: all from the model's first message on."""
        messages = fields.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Unread("messages is no list of messages")
        begin = next((place for place, message in enumerate(messages) if is_reply(message)), len(messages))
        turns = tuple(messages[begin:])
        error = _error(fields.get("rollout_status"), answered=bool(turns))
        about = mapping(fields.get("execution_metadata"))
        completion = Completion(
            last_reply(turns),
            count(at(about, "usage", "completion_tokens")),
            text_or_none(about.get("finish_reason")),
            turns if len(turns) > 1 or any(at(turn, "tool_calls") for turn in turns) else None,
            error,
            _result_columns(mapping(fields.get("evaluation_result")), failed=error is not None),
        )
        source = mapping(fields.get("input_metadata"))
        id = name_of(source.get("row_id"))
        metadata = rest(fields, *_ROLES)
        for name, value in mapping(source.get("dataset_info")).items():
            metadata.setdefault(name, value)
        if (model := at(source, "completion_params", "model")) is not None:
            metadata.setdefault("model", model)
        reference, group = fields.get("ground_truth"), MISSING if id is None else id
        yield Found((completion,), id, messages[:begin], reference, metadata, None, group)


def _error(status: Any, *, answered: bool) -> str | None:
    code = at(status, "code")
    if code is None or code in _WENT_WELL or (code == _RUNNING and answered):
        return None
    if code == _RUNNING:
        return "the rollout has not finished"
    return failure({"type": f"status {code}", "message": at(status, "message")})


def _result_columns(result: dict[str, Any], *, failed: bool) -> dict[str, Any]:
    """Return the metrics by name, the result's score and reason, and a valid score as the label."""
    columns: dict[str, Any] = {}
    for name, metric in mapping(result.get("metrics")).items():
        columns[name] = at(metric, "score") if at(metric, "is_score_valid") is not False else None
    for name, value in (("evaluation_error", result.get("error")), ("evaluation_reason", result.get("reason"))):
        if value:
            columns[name] = value
    score = number(result.get("score"))
    if score is None:
        return columns
    columns["score"] = score
    valid = result.get("is_score_valid") is not False and not result.get("error") and not failed
    return labelled(columns, score) if valid else columns


READER = EvalProtocol()
