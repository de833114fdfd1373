"""`results.jsonl` of the verifiers library up to 0.3 (and of its older environments later): one rollout a line.

`metadata.json` beside it, where there is one, names the environment and the model; they become columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.chat import completion_of, is_chat
from rewardkit.records.jsonl import NotJson, parse_json
from rewardkit.records.rows import BadRow
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import (
    Found,
    LineFormat,
    at,
    count,
    failure,
    folder_of,
    labelled,
    mapping,
    name_of,
    parsed,
    reference_in,
    rest,
)
from rewardkit.types import Completion, last_reply

_FIELDS = ("example_id", "prompt", "completion", "reward")
_ABOUT_ROLLOUT = ("timing", "generation_ms", "is_completed", "stop_condition")
_OF_SAMPLE = ("example_id", "prompt", "answer", "info", "task", "tool_defs")
_LONGEST_SIDECAR = 1 << 20  # bytes


class VerifiersResults(LineFormat):
    """Reader of the older results."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by the rollout's four names and one about how it went, which others' rows lack."""
        return all(name in fields for name in _FIELDS) and any(name in fields for name in _ABOUT_ROLLOUT)

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the rows say, with the run's environment and model."""
        run = _run_columns(source)
        for result in super().found(source):
            if run and not isinstance(result, BadRow):
                line, found = result
                result = line, found._replace(metadata={**run, **found.metadata})
            yield result

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the one completion of a row; its reward is the label, its metrics are columns."""
        error = _error(fields.get("error"))
        own = rest(fields, *_OF_SAMPLE, "completion", "error")
        if error is None:
            own = labelled(own, fields.get("reward"))
        about: dict[str, Any] = {
            "tokens": count(at(fields, "token_usage", "output_tokens")),
            "finish_reason": "length" if fields.get("is_truncated") is True else None,
            "error": error,
            "metadata": own,
        }
        value = fields.get("completion")
        turns = tuple(value) if isinstance(value, list) and is_chat(value) else None
        completion = Completion(last_reply(turns), messages=turns, **about) if turns else completion_of(value, **about)
        info = parsed(fields.get("info"))
        metadata = {name: fields[name] for name in ("task", "tool_defs") if fields.get(name) is not None}
        if info:
            metadata["info"] = info
        reference = fields.get("answer")
        if reference is None or reference == "":
            reference = reference_in(mapping(info))
        prompt = "" if fields.get("prompt") is None else fields["prompt"]
        yield Found((completion,), name_of(fields.get("example_id")), prompt, reference, metadata)


def _error(value: Any) -> str | None:
    """Return the failure of a rollout: the repr of an exception, or since 0.2 an object with that of its chain."""
    if isinstance(value, dict):
        for name in ("error_chain_repr", "message", "error"):
            if isinstance(value.get(name), str) and value[name]:
                return str(value[name])
    return None if value in ("None", "null") else failure(value)


def _run_columns(source: Source) -> dict[str, Any]:
    folder = folder_of(source)
    if folder is None or source.plain_name != "results.jsonl" or not (folder / "metadata.json").is_file():
        return {}
    try:
        run = parse_json(Source(folder / "metadata.json").head(_LONGEST_SIDECAR))
    except (InputError, NotJson):
        return {}
    return {name: run[name] for name in ("env_id", "model") if isinstance(mapping(run).get(name), str)}


READER = VerifiersResults()
