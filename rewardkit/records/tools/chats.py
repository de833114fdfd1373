"""Answers of OpenAI-style APIs as completions: chat completions, legacy completions, and responses with their items.

A batch's output, logs of calls and NeMo-Gym rollouts all hold such bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewardkit.records.chat import as_output
from rewardkit.records.tools.lines import Unread, at, count, failure, items, mapping, text_or_none
from rewardkit.types import Completion, message_text

_FINISH = {"completed": "stop", "max_output_tokens": "length"}  # in the words of chat completions
_BODIES = ("chat.completion", "text_completion", "response")


def is_body(value: Any) -> bool:
    """Whether a value is the body of an answer that can hold text."""
    if not isinstance(value, dict):
        return False
    if value.get("object") in _BODIES:
        return isinstance(value.get("choices", value.get("output")), list)
    choices = items(value.get("choices"))
    return bool(choices) and all(isinstance(each, dict) and ("message" in each or "text" in each) for each in choices)


def completions_of(body: Mapping[str, Any], metadata: dict[str, Any] | None = None) -> tuple[Completion, ...]:
    """Return the completions in a body: one for each choice, or the one of a response.

    Raises:
        Unread: It holds none, such as that of an embedding.
        NoText: A choice is no text.
    """
    known = dict(metadata or {})
    if isinstance(body.get("output"), list):
        return (response_completion(body, known),)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        kind = text_or_none(body.get("object"))
        raise Unread("the answer has no choices and no output" + (f"; it is of the kind {kind}" if kind else ""))
    tokens = count(at(body, "usage", "completion_tokens")) if len(choices) == 1 else None
    ordered = sorted(map(mapping, choices), key=lambda choice: count(choice.get("index")) or 0)
    return tuple(_of_choice(choice, tokens, known) for choice in ordered)


def _of_choice(choice: dict[str, Any], tokens: int | None, metadata: dict[str, Any]) -> Completion:
    finish = text_or_none(choice.get("finish_reason"))
    message = choice.get("message")
    if not isinstance(message, dict):
        text, _ = as_output(choice.get("text"))
        return Completion(text or "", tokens, finish, metadata=metadata)
    text = message_text(message.get("content")) or text_or_none(message.get("refusal")) or ""
    more = any(message.get(name) for name in ("tool_calls", "reasoning_content", "reasoning", "function_call"))
    messages = ({"role": "assistant", **message},) if more else None
    return Completion(text, tokens, finish, messages, metadata=metadata)


def response_completion(body: Mapping[str, Any], metadata: dict[str, Any]) -> Completion:
    """Return the one completion of a response: its text is that of the messages after the last call of a tool."""
    messages = response_messages(items(body.get("output")))
    text = ""
    for message in messages:
        said = message["role"] == "assistant" and not message.get("tool_calls")
        text = text + message_text(message.get("content")) if said else ""
    plain = len(messages) <= 1 and not any("reasoning_content" in message for message in messages)
    ended = text_or_none(at(body, "incomplete_details", "reason")) or text_or_none(body.get("status"))
    return Completion(
        text,
        count(at(body, "usage", "output_tokens")),
        _FINISH.get(ended or "", ended),
        None if plain else tuple(messages),
        failure(body.get("error")),
        metadata,
    )


def response_messages(output: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the items of a response as chat messages: reasoning joins the message that follows it."""
    messages: list[dict[str, Any]] = []
    thought = ""
    for item in map(mapping, output):
        kind = item.get("type", "message")
        if kind == "reasoning":
            thought += "".join(map(message_text, (item.get("summary"), item.get("content"))))
            continue
        if kind == "message":
            message = {"role": item.get("role") or "assistant", "content": _content(item.get("content"))}
        elif kind.endswith("_output") if isinstance(kind, str) else False:
            message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": message_text(item.get("output"))}
        else:
            call = {"name": item.get("name") or kind, "arguments": item.get("arguments")}
            call_id = item.get("call_id") or item.get("id")
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": call}]}
        if thought and message["role"] == "assistant":
            message["reasoning_content"], thought = thought, ""
        messages.append(message)
    if thought:
        messages.append({"role": "assistant", "content": None, "reasoning_content": thought})
    return messages


def _content(content: Any) -> str:
    parts = [{**part, "text": part.get("text") or part.get("refusal")} if isinstance(part, dict) else part
             for part in content] if isinstance(content, list) else content  # fmt: skip
    return message_text(parts)


def prompt_of(request: Mapping[str, Any]) -> Any:
    """Return the prompt of a request's body: its messages, or its text with any instructions as a system message."""
    if request.get("messages") is not None:
        return request["messages"]
    prompt = request.get("input") if request.get("input") is not None else request.get("prompt")
    if prompt is None:
        prompt = ""
    if isinstance(prompt, list) and all(isinstance(item, dict) for item in prompt):
        prompt = response_messages([{"role": "user", **item} for item in prompt])
    instructions = text_or_none(request.get("instructions"))
    if not instructions:
        return prompt
    turns = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": instructions}, *turns]
