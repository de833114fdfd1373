"""The key-value cache of the transformers sampler: rows of different lengths, without padding.

A cache row (slot) holds the tokens of one sequence from column 0 on, so a token's column is its position, whatever
stands in the other rows. Nothing is concatenated while decoding: a step writes one column in each row. Rows are copied
(a sequence branches), moved (a hole is filled) and added (more prompts) in place.

Storage is zeroed: attention multiplies what it masks by 0, and 0 times what happened to lie in memory may be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 1.5
"""Storage grows by at least this factor, so that copying it costs less than filling it."""


class Window:
    """Which part of the storage the next forward pass writes and reads.

    Attributes:
        first, rows: The slots `first` to `first + rows`.
        start: The column that a prompt's tokens are written from; the same in each row.
        places: int64 [rows]; the column that each row's single token is written to. None: `start` counts.
        width: Columns that are read.
    """

    def __init__(self) -> None:
        self.first, self.rows, self.start, self.width = 0, 0, 0, 0
        self.places: torch.Tensor | None = None
        self.order: torch.Tensor | None = None


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own hook
    """One layer's keys and values, each [slots, heads, columns, head_dim]."""

    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, window: Window, slots: int, columns: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window, self.slots, self.columns = window, slots, columns

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for these heads, dtype and device."""
        self.keys, self.values = self._storage(key_states), self._storage(value_states)
        self.is_initialized = True

    def _storage(self, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros(self.slots, like.shape[1], self.columns, like.shape[3], dtype=like.dtype, device=like.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the states where the window says, and return what is read: [rows, heads, width, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at = self.window
        rows = slice(at.first, at.first + at.rows)
        keys, values = self.keys[rows, :, : at.width], self.values[rows, :, : at.width]
        if at.places is None:
            keys[:, :, at.start :] = key_states
            values[:, :, at.start :] = value_states
        else:
            keys[at.order, :, at.places] = key_states[:, :, 0]
            values[at.order, :, at.places] = value_states[:, :, 0]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns that the mask covers and the first of them."""
        return self.window.width, 0

    def get_seq_length(self) -> int:
        """Return the column of the first token that is written."""
        return self.window.start if self.window.places is None else self.window.width - 1

    def get_max_length(self) -> int:
        """Return -1: it grows."""
        return -1

    def grow(self, slots: int, columns: int) -> None:
        """Make room for so many; keeps what there is."""
        old = (self.keys, self.values) if self.is_initialized else ()
        self.slots, self.columns = slots, columns
        if old:
            self.keys, self.values = (self._storage(part) for part in old)
            for new, part in zip((self.keys, self.values), old, strict=True):
                new[: part.shape[0], :, : part.shape[2]] = part

    def copy(self, source: torch.Tensor, target: torch.Tensor, columns: int) -> None:
        """Copy the first columns of slots `source` to slots `target`."""
        for part in (self.keys, self.values):
            part[target, :, :columns] = part[source, :, :columns]


class SlotCache(Cache):
    """A cache of `layers` layers that never grows beyond `most` slots and columns by itself."""

    def __init__(self, layers: int, most: tuple[int, int]) -> None:
        self.window = Window()
        self._slot_layers = [SlotLayer(self.window, 0, 0) for _ in range(layers)]
        super().__init__(layers=[*self._slot_layers])
        self.slots = self.columns = 0
        self.version = 0  # another one whenever the storage lies elsewhere
        self.most = most

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for so many rows and columns."""
        if slots <= self.slots and columns <= self.columns:
            return
        self.slots = self._grown(self.slots, slots, self.most[0])
        self.columns = self._grown(self.columns, columns, self.most[1])
        self.version += 1
        for layer in self._slot_layers:
            layer.grow(self.slots, self.columns)

    @staticmethod
    def _grown(now: int, wanted: int, most: int) -> int:
        return now if wanted <= now else max(wanted, min(int(now * GROWTH), most))

    def write_prompts(self, first: int, rows: int, start: int, tokens: int) -> None:
        """Let the next pass write `tokens` columns from `start` on in slots `first` to `first + rows`."""
        at = self.window
        at.first, at.rows, at.start, at.width, at.places, at.order = first, rows, start, start + tokens, None, None

    def write_tokens(self, places: torch.Tensor, width: int) -> None:
        """Let the next pass write one column in each of the first rows, at `places` [rows], and read `width`."""
        at = self.window
        at.first, at.rows, at.start, at.width, at.places = 0, len(places), 0, width, places
        at.order = torch.arange(len(places), device=places.device)

    def copy(self, source: Sequence[int], target: Sequence[int], columns: int, device: torch.device) -> None:
        """Copy slots; a target is never a source."""
        if not source:
            return
        from_, to = (torch.tensor(slots, device=device) for slots in (source, target))
        for layer in self._slot_layers:
            layer.copy(from_, to, columns)
