"""Sizes that both the code which takes memory and the planner which counts it go by; nothing here needs torch."""

from __future__ import annotations

CHUNK_BYTES = 110_000_000
"""What one chunk of rows of `ops.linear_logps` may take for its tile of logits, its sums, its notes, and copies of its
rows and of those before."""

STREAMED_CHUNK = 2_048
"""Tokens of a chunk of a streamed layer where nothing is said."""
