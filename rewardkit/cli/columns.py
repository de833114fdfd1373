"""Plain text columns for the small commands."""

from __future__ import annotations

from collections.abc import Sequence

from rewardkit.display import visible


def aligned(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Return rows as left-aligned columns, two spaces apart; the last one is not padded."""
    cells = [[visible(cell, limit=400) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))] if cells else []
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        lines.append((indent + "  ".join([*padded, row[-1]])).rstrip())
    return "\n".join(lines)
