"""`traces.jsonl` of the verifiers library from 0.4 on: one episode a line, with a trace for each agent in it.

A trace is a tree of messages. A completion is what was sampled, and the tools' answers between, on the path from the
root to the last leaf; the prompt is what stands before it.
"""

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
    items,
    labelled,
    mapping,
    name_of,
    number,
    reference_in,
    rest,
    text_or_none,
)
from rewardkit.types import Completion, message_text

# Of the task's data, what is about running it and no column.
_FRAME = (
    "prompt", "system_prompt", "timeout", "resources", "skills", "network_allow", "network_block", "artifacts",
    "artifact_max_bytes", "workdir", "agent_user",
)  # fmt: skip
_NAMES = ("id", "idx", "name")


class VerifiersTraces(LineFormat):
    """Reader of episodes."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by a task with its data and a list of traces with nodes."""
        if not isinstance(at(fields, "task", "data"), dict):
            return False
        traces = fields.get("traces")
        if not isinstance(traces, list):
            return cut and "env" in fields and "traces" not in fields
        return all(isinstance(trace, dict) and (cut or "nodes" in trace) for trace in traces)

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return one completion for each trace, and an error for an episode that has none."""
        task = mapping(fields.get("task"))
        episode_error = None if fields.get("ok") is True else failure(_last(fields.get("errors")))
        traces = [trace for trace in items(fields.get("traces")) if isinstance(trace, dict)]
        if not traces:
            if episode_error is None:
                raise Unread("an episode without traces")
            yield self._found(fields, task, None, Completion("", error=episode_error), _task_prompt(task))
        for trace in traces:
            prompt, completion = _of_trace(trace)
            own_task = mapping(trace.get("task")) or task
            yield self._found(fields, own_task, _agent(trace), completion, prompt or _task_prompt(own_task))

    def _found(
        self, episode: Mapping[str, Any], task: dict[str, Any], agent: str | None, completion: Completion, prompt: Any
    ) -> Found:
        data = mapping(task.get("data"))
        id = next((data[name] for name in _NAMES if data.get(name) is not None), task.get("key") or task.get("hash"))
        group = at(episode, "group", "id")
        metadata = rest(data, *_FRAME, *_NAMES)
        metadata.update({name: value for name, value in (
            ("task", task.get("type")), ("env", at(episode, "env", "id")), ("agent", agent)) if value})  # fmt: skip
        return Found(
            (completion,),
            name_of(id),
            prompt,
            reference_in(data, mapping(data.get("info"))),
            metadata,
            count(at(episode, "run", "work", "step")),
            MISSING if group is None else [group, agent],
        )


def _agent(trace: Mapping[str, Any]) -> str | None:
    return text_or_none(at(trace, "agent", "name"))


def _last(values: Any) -> Any:
    return values[-1] if isinstance(values, list) and values else None


def _task_prompt(task: Mapping[str, Any]) -> Any:
    data = mapping(task.get("data"))
    prompt, system = data.get("prompt") or "", text_or_none(data.get("system_prompt"))
    if not system:
        return prompt
    turns = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": system}, *turns]


def _of_trace(trace: Mapping[str, Any]) -> tuple[list[Any], Completion]:
    path, leaves = _last_path(items(trace.get("nodes")))
    sampled = [place for place, node in enumerate(path) if node.get("sampled") is True]
    begin = sampled[0] if sampled else len(path)
    turns = [mapping(node.get("message")) for node in path]
    reply = turns[sampled[-1]] if sampled else {}
    text = text_or_none(trace.get("root_reply")) or message_text(reply.get("content"))
    plain = len(turns) - begin <= 1 and not reply.get("tool_calls") and not reply.get("reasoning_content")
    calls = [mapping(call) for call in items(trace.get("calls")) if not at(call, "error")]
    error = _trace_error(trace)
    completion = Completion(
        text,
        count(trace.get("num_output_tokens")),
        text_or_none(_last(calls).get("finish_reason")) if calls else None,
        None if plain else tuple(turns[begin:]),
        error,
        _columns(trace, leaves, failed=error is not None),
    )
    return turns[:begin], completion


def _last_path(nodes: list[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the nodes from the root to the last leaf, and how many leaves there are.

    Raises:
        Unread: The links between the nodes are no tree.
    """
    tree = [mapping(node) for node in nodes]
    parents = [node.get("parent") for node in tree]
    inner = {parent for parent in parents if type(parent) is int}
    leaves = [place for place in range(len(tree)) if place not in inner]
    if tree and not leaves:
        raise Unread("the nodes' parents go round in a circle")
    path: list[dict[str, Any]] = []
    place: Any = leaves[-1] if leaves else None
    while place is not None:
        if type(place) is not int or not 0 <= place < len(tree) or len(path) == len(tree):
            raise Unread(f"node {len(path)} from the last has a parent that is no node before it")
        path.append(tree[place])
        place = parents[place]
    return path[::-1], len(leaves)


def _trace_error(trace: Mapping[str, Any]) -> str | None:
    """Return what failed in a trace; errors of attempts before one that is `ok` do not count."""
    if trace.get("ok") is True:
        return None
    last = failure(_last(trace.get("errors")))
    if last is None and trace.get("ok") is False:
        return f"not ok: {text_or_none(trace.get('stop_condition')) or 'no reason is given'}"
    return last


def _columns(trace: Mapping[str, Any], leaves: int, *, failed: bool) -> dict[str, Any]:
    """Return metrics and rewards by name, and the trace's whole reward as the label unless a part is missing."""
    columns: dict[str, Any] = dict(mapping(trace.get("metrics")))
    total: float = 0.0
    rewards = mapping(trace.get("rewards"))
    known = bool(rewards) and not failed
    for name, reward in rewards.items():
        score = columns[name] = number(at(reward, "score"))
        weight = number(at(reward, "weight"))
        known = known and score is not None
        total += (score or 0) * (1 if weight is None else weight)
    if known:
        columns = labelled({**columns, "reward": total}, total)
    for name in ("info", "stop_condition", "is_timeout"):
        if trace.get(name):
            columns.setdefault(name, trace[name])
    if leaves > 1:
        columns.setdefault("branches", leaves)
    return columns


READER = VerifiersTraces()
