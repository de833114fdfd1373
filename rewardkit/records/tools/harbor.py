"""Rewards and results of a Harbor trial: numbers without any text of the model, so there is nothing to score.

The files are known so that the message says that, and what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rewardkit.records.jsonl import NotJson, parse_json
from rewardkit.records.rows import BadRow, NotGenerations, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import SURE

_NAMES = ("reward.json", "reward-details.json")
_RESULT = (rb'"trial_name"\s*:', rb'"verifier_result"\s*:')


class HarborTrial:
    """Reader that refuses them."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the fields of a result; a file of rewards has fields of any name, so by its own name."""
        if not head.lstrip().startswith(b"{"):
            return 0
        if all(re.search(field, head) for field in _RESULT):
            return SURE
        return SURE if name in _NAMES and _only_numbers(name, head) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield nothing.

        Raises:
            NotGenerations: Always.
        """
        raise NotGenerations(
            f"{source.name} belongs to a Harbor trial: it holds rewards and no text of the model, so there is nothing "
            "to score; give generations, such as the messages of the agent's trajectory as JSONL"
        )
        yield  # a generator, as every reader's rows are


def _only_numbers(name: str, head: bytes) -> bool:
    """Whether an object holds numbers only, as rewards do; details are taken by their name."""
    if name != "reward.json":
        return True
    try:
        value = parse_json(head.strip())
    except NotJson:
        return False
    return isinstance(value, dict) and all(isinstance(item, (int, float)) for item in value.values())


READER = HarborTrial()
