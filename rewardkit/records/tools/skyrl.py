"""Evaluation dumps of SkyRL: one JSONL file a data set, and `aggregated_results.jsonl`, which holds only averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rewardkit.records.rows import NotGenerations
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import (
    SURE,
    Found,
    LineFormat,
    at,
    items,
    labelled,
    number,
    rest,
    text_of,
    text_or_none,
)
from rewardkit.types import Completion

AVERAGES = "aggregated_results.jsonl"
_FIELDS = ("input_prompt", "output_response", "score")


class SkyRL(LineFormat):
    """Reader of the dump of one data set."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by the prompt's and the output's names, with the environment beside them unless that is cut off."""
        return all(name in fields for name in _FIELDS[: 2 if cut else 3]) and (cut or "env_class" in fields)

    def detect(self, name: str, head: bytes) -> int:
        """Claim the file of averages too, so that it gets a clear answer."""
        return SURE if name == AVERAGES and b'"eval/' in head else super().detect(name, head)

    def found(self, source: Source) -> Any:
        """Yield what the rows say.

        Raises:
            NotGenerations: It is the file of averages.
        """
        if source.plain_name == AVERAGES and b'"eval/' in source.head():
            raise NotGenerations(f"{source.name} holds averages and no completions; give the files beside it")
        return super().found(source)

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the one completion of a row. A score for each token counts by its sum."""
        score = fields.get("score")
        if isinstance(score, list):
            score = sum(number(value) or 0 for value in items(score))
        completion = Completion(
            text_of(fields.get("output_response"), "output_response"),
            finish_reason=text_or_none(fields.get("stop_reason")),
            metadata=labelled({"score": fields.get("score")}, score),
        )
        extras = fields.get("env_extras")
        reference = at(extras, "reward_spec", "ground_truth")
        if reference is None:
            reference = at(extras, "reward_model", "ground_truth")
        metadata = rest(fields, *_FIELDS, "stop_reason")
        yield Found((completion,), None, fields.get("input_prompt") or "", reference, metadata)


READER = SkyRL()
