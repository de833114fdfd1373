"""Generations by id, with what the evaluation made of them: `{"raw_generations": {ID: [text, …]}, …}`.

CRUXEval writes it, and so do scripts that follow it. `raw_scored_generations` has a true or false for each; other
objects by id become columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.jsonl import NotJson, describe, parse_json
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import SURE

_HEAD = re.compile(rb'"raw_generations"\s*:\s*\{')
_TEXTS = "raw_generations"


class Cruxeval:
    """Reader of such documents."""

    unit = "row"
    map = FieldMap({"completion": f"{_TEXTS}[]", "id": "id", "label": "raw_scored_generations[]"})

    def detect(self, name: str, head: bytes) -> int:
        """Go by the first object's name."""
        return SURE if head.lstrip().startswith(b"{") and _HEAD.search(head) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield a row for each id.

        Raises:
            InputError: The document is not JSON, or has no object of generations.
        """
        try:
            document = parse_json(source.read().strip())
        except NotJson as problem:
            raise InputError(f"{source.name}:{problem.line}: {problem}") from None
        texts = document.get(_TEXTS) if isinstance(document, dict) else None
        if not isinstance(texts, dict):
            raise InputError(f"{source.name}: {_TEXTS} is {describe(texts)}, not an object of lists by id")
        others = {name: value for name, value in document.items() if name != _TEXTS and isinstance(value, dict)}
        for number, (id, value) in enumerate(texts.items(), 1):
            if not isinstance(value, list):
                yield BadRow(number, f"{_TEXTS} holds {describe(value)}, not a list")
                continue
            fields: dict[str, Any] = {"id": id, _TEXTS: value}
            fields.update({name: column[id] for name, column in others.items() if id in column})
            yield Row(number, fields, (document,))


READER = Cruxeval()
