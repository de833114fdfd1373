"""One decoder layer of Llama's kind on a line of tokens, chunk by chunk.

    n = norm(x),  q, k, v = W n (q and k turned by position),  h = x + W_o attention(q, k, v)
    m = norm(h),  y = h + W_d (act(W_g m) W_u m)

Keys and values of all tokens are made first. Then each chunk of queries goes through attention and the MLP on its own;
nothing but the chunk's own intermediate values is alive. Backward the chunks come last to first, each computed again
from the layer's input and sent back at once; its gradient is written over that of the layer's output. No token is seen
by one before it, so when a chunk's turn comes, the gradients of its own keys and values are complete and go the same
way. What is summed over chunks (keys, values, adapters) is summed in float32.

Luo and others, 2025 (arXiv 2506.03077) stream a layer's backward pass by chunks of queries, too; here keys and values
are projected once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trainer_backend.model.forward import Branch
from trainer_backend.model.streamed.projection import Opened, Projection
from trainer_backend.ops.attention import attend, attend_backward, kernel_for, put_together
from trainer_backend.ops.elementwise import Activation, Norm, gated, gated_backward_, rotate_, wide


@dataclass(frozen=True)
class Segment:
    """Tokens side by side that see each other causally, and all tokens of some runs before them.

    Attributes:
        start, stop: Their columns.
        before: Runs of columns, (start, stop) each, all below `start`.
    """

    start: int
    stop: int
    before: tuple[tuple[int, int], ...] = ()


def segments_of(branches: Sequence[Branch]) -> list[Segment]:
    """Return the segments of a line from its branches (`forward.Branch`)."""
    return [Segment(branch.start, branch.stop, tuple(_runs(branch.before))) for branch in branches]


def _runs(columns: Sequence[int]) -> Iterator[tuple[int, int]]:
    if isinstance(columns, range) and columns.step == 1:
        if columns:
            yield columns.start, columns.stop
        return
    start = 0
    for at in range(1, len(columns) + 1):
        if at == len(columns) or columns[at] != columns[at - 1] + 1:
            yield columns[start], columns[at - 1] + 1
            start = at


@dataclass(frozen=True, eq=False)
class Block:
    """A decoder layer.

    Attributes:
        norms: Before attention, and before the MLP.
        projections: Of queries, keys, values and attention's output; of the MLP's gate, its other input and its output.
        head_norms: Of each head of queries and of keys (Qwen3); None: there are none.
        head_width: Numbers of a head.
        scale: Of the scores.
        activation: Of the gate.
    """

    norms: tuple[Norm, Norm]
    projections: tuple[Projection, ...]
    head_norms: tuple[Norm, Norm] | None
    head_width: int
    scale: float
    activation: Activation

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return what is trained, in the order of the gradients that `backward` returns."""
        return [weight for one in self.projections for weight in one.parameters()]


@dataclass(frozen=True, eq=False)
class Line:
    """Tokens in a line, and who sees whom.

    Attributes:
        cos, sin: [tokens, turned], of their positions.
        segments: In order; together they are all tokens.
        chunk: Tokens that go through a layer at a time.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    segments: Sequence[Segment]
    chunk: int

    def chunks(self) -> list[tuple[int, int]]:
        """Return the first column of each chunk and the one behind it."""
        count = self.cos.shape[0]
        return [(at, min(at + self.chunk, count)) for at in range(0, count, self.chunk)]


@dataclass(frozen=True, eq=False)
class Kept:
    """What attention gave in the forward pass: with it, it is not computed again.

    Attributes:
        out: [tokens, heads * head width].
        lse: [heads, tokens].
    """

    out: torch.Tensor
    lse: torch.Tensor


def forward(block: Block, x: torch.Tensor, line: Line, *, keep: bool = False) -> tuple[torch.Tensor, Kept | None]:
    """Return the layer's output, [tokens, hidden], and what attention gave, where it is to be kept.

    Args:
        block: The layer.
        x: [tokens, hidden].
        line: Positions, segments and chunks.
        keep: Whether what attention gives is kept.
    """
    work = _Work(block, x, line)
    y = torch.empty_like(x)
    outs, sums = [], []
    for a, b in line.chunks():
        normed = block.norms[0].forward(x[a:b])
        out, lse = work.attend(work.queries(normed, a, b)[1], a, b)
        if keep:
            outs.append(out)
            sums.append(lse)
        h = work.o.forward(out)
        normed = block.norms[1].forward(h, add=x[a:b])
        inner = gated(work.gate.forward(normed), work.up.forward(normed), block.activation)
        torch.add(h, work.down.forward(inner), out=y[a:b])
    return y, Kept(torch.cat(outs), torch.cat(sums, 1)) if keep else None


def backward(
    block: Block, x: torch.Tensor, slope: torch.Tensor, line: Line, kept: Kept | None = None, *, inputs: bool = True
) -> list[torch.Tensor]:
    """Write the gradient for x over that of the layer's output, and return those of `Block.parameters`.

    Args:
        block, x, line: As in the forward pass.
        slope: [tokens, hidden], of the layer's output.
        kept: What attention gave; None: it is computed again.
        inputs: Whether the gradient for x is wanted; without, what lies in `slope` has no meaning.
    """
    work = _Work(block, x, line, sums=True)
    for a, b in reversed(line.chunks()):
        work.send_back(slope[a:b], a, b, kept, inputs)
    return [one for opened in work.opened for one in opened.sums]


class _Work:
    """One pass through a layer: its weights ready to compute with, and keys and values of all tokens."""

    def __init__(self, block: Block, x: torch.Tensor, line: Line, *, sums: bool = False) -> None:
        self.block, self.x, self.line = block, x, line
        self.opened = [one.open(x.dtype, sums=sums) for one in block.projections]
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = self.opened
        tokens, width = x.shape[0], block.head_width
        self.keys = x.new_empty(tokens, self.k.weight.shape[0] // width, width)
        self.values = torch.empty_like(self.keys)
        for a, b in line.chunks():
            normed = block.norms[0].forward(x[a:b])
            self.keys[a:b] = self._turned(self.k, normed, a, b, 1)[1]
            self.values[a:b] = self.v.forward(normed).view(b - a, -1, width)
        if sums:
            self.key_slopes = torch.zeros_like(wide(self.keys))
            self.value_slopes = torch.zeros_like(self.key_slopes)

    def _turned(
        self, opened: Opened, normed: torch.Tensor, a: int, b: int, which: int
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return heads [tokens, heads, width] as projected, where their norm's gradient needs them, and as used."""
        raw = opened.forward(normed).view(b - a, -1, self.block.head_width)
        if self.block.head_norms is None:
            return None, rotate_(raw, self.line.cos[a:b], self.line.sin[a:b])
        used = self.block.head_norms[which].forward(raw)
        return raw, rotate_(used, self.line.cos[a:b], self.line.sin[a:b])

    def queries(self, normed: torch.Tensor, a: int, b: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the queries of a chunk, [tokens, heads, width], as projected and as used."""
        return self._turned(self.q, normed, a, b, 0)

    def _blocks(self, a: int, b: int) -> Iterator[tuple[slice, list[tuple[slice, bool]]]]:
        """Yield queries that see alike, and the keys of each block that they see, with whether it is causal."""
        for segment in self.line.segments:
            first, last = max(a, segment.start), min(b, segment.stop)
            if first < last:
                seen = [(slice(*run), False) for run in segment.before]
                if segment.start < first:
                    seen.append((slice(segment.start, first), False))
                yield slice(first - a, last - a), [*seen, (slice(first, last), True)]

    def attend(self, q: torch.Tensor, a: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a chunk's queries take, [tokens, heads * width], and their log-sum-exp, [heads, tokens]."""
        outs, sums = [], []
        kernel = kernel_for(q)
        for own, seen in self._blocks(a, b):
            parts = [
                attend(q[own], self.keys[at], self.values[at], causal=causal, scale=self.block.scale, kernel=kernel)
                for at, causal in seen
            ]
            out, lse = put_together(parts)
            outs.append(out.reshape(out.shape[0], -1))
            sums.append(lse)
        return (outs[0], sums[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(sums, 1))

    def _attend_back(
        self, slope: torch.Tensor, q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, a: int, b: int
    ) -> torch.Tensor:
        """Return the gradient of a chunk's queries; those of keys and values are added to what they have."""
        found = torch.zeros_like(wide(q))
        slope, out = slope.view_as(q), out.view_as(q)
        kernel = kernel_for(q)
        for own, seen in self._blocks(a, b):
            for at, causal in seen:
                dq, dk, dv = attend_backward(
                    slope[own], q[own], self.keys[at], self.values[at], out[own], lse[:, own],
                    causal=causal, scale=self.block.scale, kernel=kernel,
                )  # fmt: skip
                found[own] += dq
                self.key_slopes[at] += dk
                self.value_slopes[at] += dv
        return found.to(q.dtype)

    def send_back(self, slope: torch.Tensor, a: int, b: int, kept: Kept | None, inputs: bool) -> None:
        """Compute a chunk again and write the gradient for its inputs over that of its outputs."""
        block, x = self.block, self.x[a:b]
        normed = block.norms[0].forward(x)
        raw, q = self.queries(normed, a, b)
        out, lse = self.attend(q, a, b) if kept is None else (kept.out[a:b], kept.lse[:, a:b])
        h = self.o.forward(out)
        second = block.norms[1].forward(h, add=x)
        gate, up = self.gate.forward(second), self.up.forward(second)
        inner = gated(gate, up, block.activation)
        above = self.down.backward(slope, inner, out=inner)
        assert above is not None
        gated_backward_(above, gate, up, block.activation)
        below = self.gate.backward(gate, second)
        self.up.backward(up, second, onto=below)
        assert below is not None
        block.norms[1].backward(below, h, onto=slope)
        del second, gate, up, inner, above, below, h

        taken = self.o.backward(slope, out)
        assert taken is not None
        dq = self._attend_back(taken, q, out, lse, a, b)
        below = self._heads_back(self.q, dq, raw, normed, a, b, 0, None, inputs)
        # Every query that sees these keys has had its turn.
        dk = self.key_slopes[a:b].to(x.dtype)
        raw = None if block.head_norms is None else self.k.forward(normed).view_as(dk)
        self._heads_back(self.k, dk, raw, normed, a, b, 1, below, inputs)
        dv = self.value_slopes[a:b].to(x.dtype).reshape(b - a, -1)
        self.v.backward(dv, normed, onto=below, inputs=inputs)
        if inputs:
            assert below is not None
            block.norms[0].backward(below, x, onto=slope)

    def _heads_back(
        self,
        opened: Opened,
        slope: torch.Tensor,
        raw: torch.Tensor | None,
        normed: torch.Tensor,
        a: int,
        b: int,
        which: int,
        onto: torch.Tensor | None,
        inputs: bool,
    ) -> torch.Tensor | None:
        """Send the gradient of heads back through position, norm and projection."""
        rotate_(slope, self.line.cos[a:b], self.line.sin[a:b], back=True)
        if self.block.head_norms is not None and raw is not None:
            slope = self.block.head_norms[which].backward(slope, raw)
        return opened.backward(slope.reshape(b - a, -1), normed, onto=onto, inputs=inputs)
