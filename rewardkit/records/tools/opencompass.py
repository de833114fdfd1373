"""Predictions of OpenCompass: `{"0": {"origin_prompt": …, "prediction": …, "gold": …}, …}`.

A prompt of turns ({role: HUMAN, prompt: …}) becomes chat messages. A prediction is a text, or a list of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.jsonl import NotJson, describe, parse_json
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import SURE

_HEAD = re.compile(rb'\s*\{\s*"[0-9]{1,12}"\s*:\s*\{')
_FIELDS = (b'"origin_prompt"', b'"prediction"')
_ROLES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}


class OpenCompass:
    """Reader of them."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the first object's name and fields."""
        return SURE if _HEAD.match(head) and all(field in head for field in _FIELDS) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the predictions, each with its key as id.

        Raises:
            InputError: The document is not JSON, or no object.
        """
        try:
            document = parse_json(source.read().strip())
        except NotJson as problem:
            raise InputError(f"{source.name}:{problem.line}: {problem}") from None
        if not isinstance(document, dict):
            raise InputError(f"{source.name} holds {describe(document)}; wanted an object of predictions")
        for number, (id, value) in enumerate(document.items(), 1):
            if not isinstance(value, dict):
                yield BadRow(number, f"not an object: {describe(value)}")
                continue
            yield Row(number, {"id": id, **value, "origin_prompt": _prompt(value.get("origin_prompt"))})

    def locate(self, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
        """Return the map that the predictions have, "", and their rows."""
        rows = self.rows(source)
        first = list(islice(rows, 1))
        several = any(isinstance(row, Row) and isinstance(row.fields.get("prediction"), list) for row in first)
        known = {"completion": "prediction[]" if several else "prediction", "prompt": "origin_prompt", "id": "id"}
        if any(isinstance(row, Row) and "gold" in row.fields for row in first):
            known["reference"] = "gold"
        return given.over(FieldMap(known)), "", chain(first, rows)


def _prompt(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(turn, dict) and "prompt" in turn for turn in value):
        return value
    return [{"role": _ROLES.get(str(turn.get("role")), "user"), "content": turn["prompt"]} for turn in value]


READER = OpenCompass()
