"""Rollouts of NeMo-Gym: `responses_create_params` is the request, `response` the answer, the rest is the verifier's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rewardkit.records.rows import BadRow, NotGenerations
from rewardkit.records.source import Source
from rewardkit.records.tools.chats import completions_of, prompt_of
from rewardkit.records.tools.lines import (
    Found,
    LineFormat,
    Unread,
    at,
    failure,
    first_row,
    labelled,
    mapping,
    name_of,
    reference_in,
    rest,
)
from rewardkit.types import Completion

_TASK, _ROLLOUT, _FAILED = "_ng_task_index", "_ng_rollout_index", "_ng_failure_class"


class NemoGym(LineFormat):
    """Reader of rollouts; `…_failures.jsonl` too, whose rows are all errors."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by the request's name together with an answer, or by the two indices."""
        asked = isinstance(fields.get("responses_create_params"), dict)
        return (asked and isinstance(fields.get("response"), dict)) or (_TASK in fields and _ROLLOUT in fields)

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the rows say.

        Raises:
            NotGenerations: The first row is an input that has not been run.
        """
        first, cut = first_row(source.head())
        if first and not cut and not isinstance(first.get("response"), dict) and _FAILED not in first:
            raise NotGenerations(
                f"{source.name} holds inputs of rollouts and no responses; give the rollouts beside it"
            )
        return super().found(source)

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the one completion of a row; its reward is the label."""
        failed = failure(fields.get(_FAILED))
        body = fields.get("response")
        own = {"rollout": fields[_ROLLOUT]} if _ROLLOUT in fields else {}
        if "reward" in fields:
            own = labelled({**own, "reward": fields["reward"]}, fields["reward"])
        if failed is not None:
            completions: tuple[Completion, ...] = (Completion("", error=failed, metadata=own),)
        elif not isinstance(body, dict):
            raise Unread("no response; this is an input of a rollout" if body is None else "response is no object")
        else:
            completions = completions_of(body, own)
        request = mapping(fields.get("responses_create_params"))
        metadata = rest(fields, "responses_create_params", "response", _TASK, _ROLLOUT, "reward")
        if (model := at(body, "model")) is not None:
            metadata.setdefault("model", model)
        reference = reference_in(metadata, mapping(metadata.get("verifier_metadata")))
        yield Found(completions, name_of(fields.get(_TASK)), prompt_of(request), reference, metadata)


READER = NemoGym()
