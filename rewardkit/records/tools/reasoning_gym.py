"""Results of reasoning-gym's evaluation scripts: one data set, or categories of data sets, in a JSON document.

Rows are found and read as in any nested document, so every completion counts and not only the best one
(`results[].completions[].full_model_response`); each row also gets the columns `dataset` and `category` from around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.json_document import READER as DOCUMENT
from rewardkit.records.rows import BadRow, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import SURE

_FIELDS = (rb'"average_(?:[a-z]{1,20}_)?score"\s*:', rb'"total_examples"\s*:', rb'"results"\s*:\s*\[')


class ReasoningGym:
    """Reader of them."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the names of a data set's figures."""
        return SURE if head.lstrip().startswith(b"{") and all(re.search(field, head) for field in _FIELDS) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the results."""
        return self.locate(source, FieldMap())[2]

    def locate(self, source: Source, given: FieldMap) -> tuple[FieldMap, str, Iterator[Row | BadRow]]:
        """Return the map relative to the results, their path, and the results with their data set's name."""
        relative, prefix, rows = DOCUMENT.locate(source, given)
        return relative, prefix, map(_with_dataset, rows)


def _with_dataset(row: Row | BadRow) -> Row | BadRow:
    if isinstance(row, Row) and row.outer:
        dataset = row.outer[0]
        for column, name in (("dataset", "name"), ("category", "category")):
            if isinstance(dataset.get(name), str):
                row.fields.setdefault(column, dataset[name])
    return row


READER = ReasoningGym()
