"""Saved generations: reading anybody's files, and the two record formats that rewardkit writes.

`read_generations(path)` is the way in. A new format is one module with one reader (see `Reader`).
"""

from __future__ import annotations

from rewardkit.records.fieldmap import ROLES, FieldMap
from rewardkit.records.generations import encode_json, generation_line, write_generations
from rewardkit.records.groups import group_key
from rewardkit.records.guess import Guess, guess
from rewardkit.records.inputs import Inputs, find_inputs, identity_of
from rewardkit.records.paths import Path
from rewardkit.records.reading import Records, read_generations
from rewardkit.records.rows import (
    BadRow,
    GenerationReader,
    Locator,
    NotGenerations,
    Reader,
    Row,
    built_in_readers,
    open_records,
    registered_readers,
)
from rewardkit.records.scores import PartRecord, ScoreRecord, cut_partial_line, read_scores, score_line
from rewardkit.records.source import Identity, Source

__all__ = [
    "ROLES",
    "BadRow",
    "FieldMap",
    "GenerationReader",
    "Guess",
    "Identity",
    "Inputs",
    "Locator",
    "NotGenerations",
    "PartRecord",
    "Path",
    "Reader",
    "Records",
    "Row",
    "ScoreRecord",
    "Source",
    "built_in_readers",
    "cut_partial_line",
    "encode_json",
    "find_inputs",
    "generation_line",
    "group_key",
    "guess",
    "identity_of",
    "open_records",
    "read_generations",
    "read_scores",
    "registered_readers",
    "score_line",
    "write_generations",
]
