"""Values of a row that stand for a model's output: text, chat messages, an object with text, or nothing."""

from __future__ import annotations

import json
from typing import Any

from rewardkit.records.jsonl import describe
from rewardkit.types import Completion, is_reply, message_text

_ROLES = ("role", "from")
_CONTENTS = ("content", "value", "tool_calls")
_TEXTS = ("text", "content", "message", "generated_text", "value")


class NoText(ValueError):
    """A value that cannot be a model's output; the message says what it is."""


def is_message(value: object) -> bool:
    """Whether a value is one chat message."""
    return isinstance(value, dict) and any(k in value for k in _ROLES) and any(k in value for k in _CONTENTS)


def is_chat(value: object) -> bool:
    """Whether a value is a list of chat messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def as_output(value: Any) -> tuple[str | None, tuple[dict[str, Any], ...] | None]:
    """Return a value as (text, None) or (None, messages); null is the text "".

    Raises:
        NoText: It is a list of several outputs, or an object without text.
    """
    if value is None:
        return "", None
    if isinstance(value, str):
        return value, None
    if isinstance(value, (bool, int, float)):
        return json.dumps(value), None
    if is_chat(value):
        return None, tuple(value)
    if isinstance(value, dict):
        if is_message(value):
            return None, (value,)
        for name in _TEXTS:
            if name in value:
                return as_output(value[name])
    elif not value or all(isinstance(part, dict) and "type" in part for part in value):
        return message_text(value), None  # the parts of one message
    hint = "; write its path with [] for all, or [0] for the first" if isinstance(value, list) else ""
    raise NoText(f"is {describe(value)}{hint}")


def completion_of(value: Any, **fields: Any) -> Completion:
    """Return a value as a completion.

    Raises:
        NoText: See `as_output`.
    """
    text, messages = as_output(value)
    if messages is not None:
        return Completion.from_messages(messages, **fields)
    return Completion(text or "", **fields)


def split_chat(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a conversation as what came before the last reply, and that reply ([] when there is none)."""
    for at in range(len(messages) - 1, -1, -1):
        if is_reply(messages[at]):
            return messages[:at], [messages[at]]
    return messages, []
