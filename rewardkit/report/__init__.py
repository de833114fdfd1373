"""What is said about a run: the summary that goes into `summary.json`, and how it looks on a terminal."""

from __future__ import annotations

from rewardkit.report.summary import Summary, notices

__all__ = ["Summary", "notices"]
