"""One decoder layer of Llama's kind on a line of tokens, chunk by chunk.

    n = norm(x),  q, k, v = W n (q and k turned by position),  h = x + W_o attention(q, k, v)
    m = norm(h),  y = h + W_d (act(W_g m) W_u m)

Keys and values of all tokens are made first. Then each chunk of queries goes through attention and the MLP on its own;
nothing but the chunk's own intermediate values is alive, and what is kept for the backward pass (`Kept`). There the
chunks come last to first, each computed again from the layer's input, but for what was kept, and sent back at once; its
gradient is written over that of the layer's output. No token is seen by one before it, so when a chunk's turn comes,
the gradients of its own keys and values are complete and go the same way. What is summed over chunks (keys, values,
adapters) is summed in float32.

Luo and others, 2025 (arXiv 2506.03077) stream a layer's backward pass by chunks of queries, too; here keys and values
are projected once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trainer_backend.model.forward import Branch
from trainer_backend.model.streamed.projection import Opened, Projection
from trainer_backend.ops.attention import Kernel, attend, attend_backward, kernel_for, put_together
from trainer_backend.ops.elementwise import Activation, Norm, gated, gated_backward_, rotate_, wide

Keep: TypeAlias = Literal["inputs", "attention", "all"]
"""What is kept for the backward pass: a layer's input; what attention gave, too; or all that no projection need be
computed again."""


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
        """Return the first column of each chunk and the one behind it.

        A segment that does not fit begins a chunk of its own: fewer blocks of attention, and full ones, whose sizes are
        those of other long segments.
        """
        cuts = [0]
        for segment in self.segments:
            while segment.stop - cuts[-1] > self.chunk:
                cuts.append(segment.start if segment.start > cuts[-1] else cuts[-1] + self.chunk)
        if self.segments:
            cuts.append(self.segments[-1].stop)
        return list(itertools.pairwise(cuts))

    def recurs(self, queries: int, keys: int) -> bool:
        """Whether a block has the size of others: a full chunk, and keys of whole chunks."""
        return queries == self.chunk and keys % self.chunk == 0


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a layer's forward pass beside its input; what is None is computed again.

    Bytes a token and layer, the input among them, with b bytes a number, s of a log-sum-exp (4, for float64 8), hidden
    size H, inner size F, n heads and k key heads of D numbers:

        inputs       b H
        attention    b (H + n D) + s n
        all          b (2 H + 2 n D + 2 k D + 2 F) + s n

    Attributes:
        out: [tokens, n D], what attention gives.
        lse: [n, tokens], the log-sum-exp of its scores.
        q: [tokens, n D]: as used; where heads have norms, as projected, which their gradient needs.
        k: [tokens, k D], likewise.
        v: [tokens, k D].
        h: [tokens, H], what the second norm is applied to.
        gate, up: [tokens, F]. The backward pass writes over them.
    """

    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    h: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    up: torch.Tensor | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return what is kept, in order: `Kept(*tensors)` is the same again."""
        fields = (self.out, self.lse, self.q, self.k, self.v, self.h, self.gate, self.up)
        return tuple(one for one in fields if one is not None)


def forward(block: Block, x: torch.Tensor, line: Line, keep: Keep = "inputs") -> tuple[torch.Tensor, Kept]:
    """Return the layer's output, [tokens, hidden], and what is kept for the backward pass.

    Args:
        block: The layer.
        x: [tokens, hidden].
        line: Positions, segments and chunks.
        keep: How much is kept.
    """
    work = _Work(block, x, line)
    kept = work.room(keep)
    work.make_keys(kept)
    y = torch.empty_like(x)
    for a, b in line.chunks():
        normed = block.norms[0].forward(x[a:b])
        q = work.turned(work.q.forward(normed, out=_rows(kept.q, a, b)), a, b, 0)
        out, lse = work.attend(q, a, b)
        if kept.out is not None and kept.lse is not None:
            kept.out[a:b], kept.lse[:, a:b] = out, lse
        h = work.o.forward(out, out=_rows(kept.h, a, b))
        normed = block.norms[1].forward(h, add=x[a:b])
        inner = gated(
            work.gate.forward(normed, out=_rows(kept.gate, a, b)),
            work.up.forward(normed, out=_rows(kept.up, a, b)),
            block.activation,
        )
        torch.add(h, work.down.forward(inner), out=y[a:b])
    return y, kept


def backward(
    block: Block, x: torch.Tensor, slope: torch.Tensor, line: Line, kept: Kept, *, inputs: bool = True
) -> list[torch.Tensor]:
    """Write the gradient for x over that of the layer's output, and return those of `Block.parameters`.

    Args:
        block, x, line: As in the forward pass.
        slope: [tokens, hidden], of the layer's output.
        kept: What the forward pass kept.
        inputs: Whether the gradient for x is wanted; without, what lies in `slope` has no meaning.
    """
    work = _Work(block, x, line, sums=True)
    if kept.k is None or kept.v is None:
        work.make_keys(Kept())
    else:
        work.use_keys(kept.k, kept.v)
    work.key_slopes = torch.zeros_like(wide(work.keys))
    work.value_slopes = torch.zeros_like(work.key_slopes)
    for a, b in reversed(line.chunks()):
        work.send_back(slope[a:b], a, b, kept, inputs)
    return [one for opened in work.opened for one in opened.sums]


def _rows(kept: torch.Tensor | None, a: int, b: int) -> torch.Tensor | None:
    return None if kept is None else kept[a:b]


class _Work:
    """One pass through a layer: its weights ready to compute with, and keys and values of all tokens.

    Every chunk needs all seven weights, so 4-bit ones are written out together, once a pass: 2 bytes for each number
    of the layer's linear layers in bfloat16 (436 MB at Llama-3.1-8B's shape). One at a time would mean once a chunk,
    and larger chunks, which make up for that time, take as much memory as it saves.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_slopes: torch.Tensor
    value_slopes: torch.Tensor

    def __init__(self, block: Block, x: torch.Tensor, line: Line, *, sums: bool = False) -> None:
        self.block, self.x, self.line = block, x, line
        self.opened = [one.open(x.dtype, sums=sums) for one in block.projections]
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = self.opened

    def room(self, keep: Keep) -> Kept:
        """Return room for what is kept of the forward pass."""
        x, tokens = self.x, self.x.shape[0]
        if keep == "inputs":
            return Kept()
        width = self.q.weight.shape[0]
        out, lse = x.new_empty(tokens, width), wide(x[:0]).new_empty(width // self.block.head_width, tokens)
        if keep == "attention":
            return Kept(out, lse)
        q, k, v, h, gate, up = (
            x.new_empty(tokens, one.weight.shape[0]) for one in (self.q, self.k, self.v, self.o, self.gate, self.up)
        )
        return Kept(out, lse, q, k, v, h, gate, up)

    def make_keys(self, kept: Kept) -> None:
        """Project keys and values of all tokens; what is kept of them lies where there is room for it."""
        tokens, width = self.x.shape[0], self.k.weight.shape[0]
        k = self.x.new_empty(tokens, width) if kept.k is None else kept.k
        v = self.x.new_empty(tokens, width) if kept.v is None else kept.v
        normed_heads = self.block.head_norms is not None
        self.keys, self.values = self._heads(k), self._heads(v)
        if normed_heads and kept.k is not None:
            self.keys = torch.empty_like(self.keys)
        for a, b in self.line.chunks():
            normed = self.block.norms[0].forward(self.x[a:b])
            used = self.turned(self.k.forward(normed, out=k[a:b]), a, b, 1)
            if normed_heads:  # else they were turned where they lie
                self.keys[a:b] = used
            self.v.forward(normed, out=v[a:b])

    def use_keys(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Take keys and values of all tokens from what was kept of them."""
        self.keys, self.values = self._heads(k), self._heads(v)
        if self.block.head_norms is not None:
            self.keys = torch.empty_like(self.keys)
            for a, b in self.line.chunks():
                self.keys[a:b] = self.turned(k[a:b], a, b, 1)

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(rows.shape[0], -1, self.block.head_width)

    def turned(self, raw: torch.Tensor, a: int, b: int, which: int) -> torch.Tensor:
        """Return a chunk's queries (which: 0) or keys (1) as used, [tokens, heads, width], from the projection's.

        Without norms of heads they are turned where they lie.
        """
        heads = self._heads(raw)
        if self.block.head_norms is not None:
            heads = self.block.head_norms[which].forward(heads)
        return rotate_(heads, self.line.cos[a:b], self.line.sin[a:b])

    def _blocks(self, a: int, b: int) -> Iterator[tuple[slice, list[tuple[slice, bool]]]]:
        """Yield queries that see alike, and the keys of each block that they see, with whether it is causal."""
        for segment in self.line.segments:
            first, last = max(a, segment.start), min(b, segment.stop)
            if first < last:
                seen = [(slice(*run), False) for run in segment.before]
                if segment.start < first:
                    seen.append((slice(segment.start, first), False))
                yield slice(first - a, last - a), [*seen, (slice(first, last), True)]

    def _kernel(self, q: torch.Tensor, keys: slice) -> Kernel:
        return kernel_for(q, recurs=self.line.recurs(q.shape[0], keys.stop - keys.start))

    def attend(self, q: torch.Tensor, a: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a chunk's queries take, [tokens, heads * width], and their log-sum-exp, [heads, tokens]."""
        outs, sums = [], []
        for own, seen in self._blocks(a, b):
            parts = [
                attend(
                    q[own], self.keys[at], self.values[at],
                    causal=causal, scale=self.block.scale, kernel=self._kernel(q[own], at),
                )
                for at, causal in seen
            ]  # fmt: skip
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
        for own, seen in self._blocks(a, b):
            for at, causal in seen:
                dq, dk, dv = attend_backward(
                    slope[own], q[own], self.keys[at], self.values[at], out[own], lse[:, own],
                    causal=causal, scale=self.block.scale, kernel=self._kernel(q[own], at),
                )  # fmt: skip
                found[own] += dq
                self.key_slopes[at] += dk
                self.value_slopes[at] += dv
        return found.to(q.dtype)

    def send_back(self, slope: torch.Tensor, a: int, b: int, kept: Kept, inputs: bool) -> None:
        """Compute a chunk again, but for what was kept, and write the gradient for its inputs over its outputs'."""
        block, x = self.block, self.x[a:b]
        normed = block.norms[0].forward(x)
        raw = self.q.forward(normed) if kept.q is None else kept.q[a:b]
        as_used = kept.q is not None and block.head_norms is None
        q = self._heads(raw) if as_used else self.turned(raw, a, b, 0)
        if kept.out is None or kept.lse is None:
            out, lse = self.attend(q, a, b)
        else:
            out, lse = kept.out[a:b], kept.lse[:, a:b]
        if kept.h is None:
            h = self.o.forward(out)
            second = block.norms[1].forward(h, add=x)
        else:
            h = kept.h[a:b]
            second = block.norms[1].forward(h)
        gate = self.gate.forward(second) if kept.gate is None else kept.gate[a:b]
        up = self.up.forward(second) if kept.up is None else kept.up[a:b]
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
        if block.head_norms is not None:
            raw = self.k.forward(normed) if kept.k is None else kept.k[a:b]
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
        raw: torch.Tensor,
        normed: torch.Tensor,
        a: int,
        b: int,
        which: int,
        onto: torch.Tensor | None,
        inputs: bool,
    ) -> torch.Tensor | None:
        """Send the gradient of heads back through position, norm (of heads as projected, `raw`) and projection."""
        rotate_(slope, self.line.cos[a:b], self.line.sin[a:b], back=True)
        if self.block.head_norms is not None:
            slope = self.block.head_norms[which].backward(slope, self._heads(raw))
        return opened.backward(slope.reshape(b - a, -1), normed, onto=onto, inputs=inputs)
