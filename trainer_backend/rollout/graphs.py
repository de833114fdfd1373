"""Decoding steps as CUDA graphs.

A token of a small batch is bound by the launches of its kernels, thousands of them, and not by what they compute; a
graph launches all with one call. Its shapes and addresses are fixed, so there are rows and columns to spare: rows that
nobody asked for write into free slots of the cache, and columns that nobody filled are masked.

A graph lives within one call of `sample`: what it reads does not change in that time, and nothing of it is left while
the model is trained.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainer_backend.rollout.slots import SlotCache

Record = Callable[[Callable[[], torch.Tensor]], "tuple[Callable[[], None], torch.Tensor]"]
"""Takes a step that has run before; returns what runs it again, and the tensor that then holds its result."""
SPARE_ROWS = 8
"""A graph with so many times the rows that can come is left for a smaller one."""
COLUMNS = 64
"""Columns of a graph are a multiple of this."""
GROWTH = 1.25
"""Columns of a graph over those that are filled when it is recorded."""
FEWEST = 4
"""Steps that are to come at least: recording one takes as long as one or two steps."""


def cuda_graph(step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """Record a step as a CUDA graph; it does not run meanwhile.

    Raises:
        RuntimeError: It does what a graph cannot, such as looking at a result.
    """
    graph, stream = torch.cuda.CUDAGraph(), _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Not `torch.cuda.graph`, which gives all free memory back first.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            out = step()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, out


@functools.cache
def _stream(device: int) -> Any:
    """Return the stream that is recorded on: one, since cuBLAS keeps 32 MB for each that it has seen."""
    cuda: Any = torch.cuda  # without types
    return cuda.Stream(device)


class DecodingGraph:
    """The newest graph of a run, and when it is recorded anew."""

    def __init__(self, record: Record, cache: SlotCache, device: torch.device) -> None:
        """Begin without a graph.

        Args:
            record: `cuda_graph`.
            cache: The cache of the run.
            device: Where the model is.
        """
        self._record: Record | None = record
        self._cache, self._device = cache, device
        self._rows = self._columns = self._version = 0
        self._ids = self._places = torch.empty(0)
        self._replay: Callable[[], None] = lambda: None
        self._out = torch.empty(0)

    def states(
        self,
        forward: Callable[[torch.Tensor, SlotCache], torch.Tensor],
        tokens: Sequence[int],
        places: Sequence[int],
        most_rows: int,
        steps: int,
    ) -> torch.Tensor | None:
        """Return what `forward` says of one token a row; None where it is not worth a graph, or there can be none.

        Args:
            forward: Computes ids [rows, 1] where the cache's window says.
            tokens: Of each row.
            places: The column of each.
            most_rows: Rows that these can become, before others are added.
            steps: Tokens that can still come, this one included.
        """
        width = max(places) + 1
        if self._fits(len(tokens), most_rows, width):
            self._fill(tokens, places)
            self._replay()
            return self._out[: len(tokens)]
        if self._record is None or steps < FEWEST:
            return None
        self._replay, self._out = (lambda: None), torch.empty(0)  # the one before gives its memory back
        rows, (slots, columns) = max(len(tokens), most_rows), self._cache.most
        # Never more than the cache may grow to: memory was planned with that.
        self._rows = max(rows, min(1 << (rows - 1).bit_length(), slots))
        self._columns = max(width, min(-(-int(width * GROWTH) // COLUMNS) * COLUMNS, columns))
        self._cache.reserve(self._rows, self._columns)
        self._version = self._cache.version
        self._ids = torch.zeros(self._rows, 1, dtype=torch.int64, device=self._device)
        self._places = torch.zeros(self._rows, dtype=torch.int64, device=self._device)
        self._fill(tokens, places)

        def step() -> torch.Tensor:
            self._cache.write_tokens(self._places, self._columns)
            return forward(self._ids, self._cache)

        now = step()
        try:
            self._replay, self._out = self._record(step)
        except RuntimeError:  # a model that looks at what it has computed (experts that are picked) cannot be recorded
            self._record, self._rows = None, 0
        return now[: len(tokens)]

    def _fits(self, rows: int, most_rows: int, width: int) -> bool:
        return (
            rows <= self._rows < SPARE_ROWS * max(rows, most_rows)
            and width <= self._columns
            and self._version == self._cache.version
        )

    def _fill(self, tokens: Sequence[int], places: Sequence[int]) -> None:
        count = len(tokens)
        both = torch.tensor([tokens, places], device=self._device)
        self._ids[:count, 0], self._places[:count] = both[0], both[1]
        self._ids[count:], self._places[count:] = 0, 0
