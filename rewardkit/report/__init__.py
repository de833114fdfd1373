"""What is said about a run: the summary that goes into `summary.json`, and how it looks on a terminal."""

from __future__ import annotations

from rewardkit.report.notices import notices, warnings
from rewardkit.report.summary import Summary

__all__ = ["Summary", "notices", "warnings"]
