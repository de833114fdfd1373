"""Log-probs of tokens straight from hidden states and the head, without logits in memory.

For a row with hidden state h and target y, z_j = logit_j / temperature (`Head` says what a logit is), and

    logp = z_y - log sum_j exp z_j.

A loss is any function of the log-probs. Where the head is frozen, as under LoRA, its gradient in h is therefore

    d loss / d h = c u,    c = d loss / d logp (a number a row),    u = d logp / d h = sum_j (1[j = y] - p_j) d_j W_j,

with d_j = dz_j / d(h . W_j). The direction u knows nothing of the loss. It is formed in the forward pass while a tile
of logits is there, and the backward pass multiplies it by c: two products (h W^T and p W), where keeping nothing and
computing the logits again would take three, and no tensor of size rows x vocabulary at any time.

One pass over the tiles, for a chunk of rows (e_j = exp(z_j - m), j != y; t_j the soft cap's derivative):

    s = sum e_j,     a1 = sum e_j (z_j - m),     A = sum e_j t_j W_j
    x = log s + m - z_y,     logp = -softplus(x),     p_y = exp logp,     r = exp(m - lse) = p_j / e_j
    u = (scale / temperature) ((1 - p_y) t_y W_y - r A)
    H = p_y (-logp) + r (s (lse - m) - a1)                                                   (entropy, nats)
    dH/dh = -(scale / temperature) (p_y (logp + H) t_y W_y + r (A1 + (m - lse + H) A)),
        A1 = sum e_j (z_j - m) t_j W_j

The target's column is left out of the sums and the softplus is taken of what is left, so that a confident token keeps
its gradient: z_y - lse rounds to 0 from a margin of 17 nats on in float32.

The shift m only has to be within some 60 nats of the largest z, since floating point keeps its relative precision over
that range. z_y, less the sampler's log-prob where it is given, is such a shift almost always, and is known before the
first tile: the anchored softmax needs no running maximum and never rescales A. A chunk in which some z lies more than
60 nats above its shift is done again online (a running maximum; A is rescaled when it rises). float16 has no such
range, so it always goes online; so does the entropy's gradient where exponentials are kept in two bytes.

Rows that the loss cannot use (`active`) are never projected. Where weight or bias are trained too, the backward pass
goes over the vocabulary once more (the logits and d loss / d logits of a tile of tokens, two products).

Sources: the softplus form, the shift and the direction are derived above; online softmax: arXiv:1805.02867.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from rewardkit.errors import OptionError
from trainer_backend.errors import TensorError
from trainer_backend.ops.head import Head
from trainer_backend.ops.kernels import tiles_for
from trainer_backend.ops.tiles import FP16_ROOM, Lost, Places, Rows, Scaled, capped, sum_dtype
from trainer_backend.sizes import CHUNK_BYTES
from trainer_backend.tensors import describe

TOO_FAR = 60.0
"""How far, in nats, a z may lie above the anchored shift: exp(60) times a sum over a vocabulary is no overflow."""

LEAST_GUESS = 20.0
"""How far, in nats, an anchor raises the shift above z_y at most: then even a wrong one loses nothing that counts."""

TILE = 16_384
"""Tokens of the vocabulary in one tile."""

MOST_ROWS = 1024
"""Rows of a chunk at most: more would not make the products faster. Twice as many where no logits are written, which
leaves room for them in a chunk's bytes: then the weights are read half as often."""


@dataclass(frozen=True)
class LinearLogps:
    """What `linear_logps` returns.

    Attributes:
        logps: [rows], float32 (float64 for float64 input): log-prob of each target, in nats; 0 in rows not active.
        entropies: [rows], of the whole distribution of each row, in nats; None unless asked for; 0 in rows not active.
    """

    logps: torch.Tensor
    entropies: torch.Tensor | None


def linear_logps(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    anchors: torch.Tensor | None = None,
    entropy: Literal["none", "value", "gradient"] = "none",
    active: torch.Tensor | None = None,
    inplace: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    softmax: Literal["auto", "anchored", "online"] = "auto",
) -> LinearLogps:
    """Return the log-probs of targets, differentiable in the hidden states (and in a head that is trained).

    Peak memory above the inputs is `chunk_bytes`, and one [rows, hidden] in the input's dtype that becomes the gradient
    (none with `inplace`; two with the entropy's gradient). Under `torch.no_grad` one product is done, by the same
    operations: the same call gives the same bits, so that a ratio is exactly 1 before the first update. The gradient
    can be taken once.

    Args:
        hidden: [rows, hidden] in the dtype of the head.
        head: The head.
        targets: int64 [rows].
        temperature: One, or one a row, [rows]; the logits alone are divided by it.
        anchors: [rows]; log-probs that the sampler gave, which save work and never change a value. NaN: unknown.
        entropy: "value" also returns the entropies; "gradient" lets them be differentiated (a third product).
        active: bool [rows]; rows that the loss uses. Others cost nothing and get neither value nor gradient.
        inplace: Overwrite `hidden`: for a tensor that nothing else needs, such as gathered rows. Where autograd needs
            it for the layer before, the backward pass says so.
        chunk_bytes: Memory for one chunk of rows.
        softmax: "anchored" and "online" force one of the two ways (the text above); "auto" picks.

    Raises:
        TensorError: A shape, a dtype or a device; a target outside the vocabulary.
        OptionError: A temperature that is not positive; `inplace` where hidden states are needed again; no chunk fits.
    """
    work = _Work(hidden, head, targets, temperature, anchors, entropy, active, chunk_bytes, softmax, inplace)
    graph = torch.is_grad_enabled() and (hidden.requires_grad or head.trained)
    if inplace:
        _check_inplace(work, graph)
    if not graph:
        answer = work.forward(directions=None)
        return LinearLogps(answer.logps, None if entropy == "none" else answer.entropies)
    function: Any = _Trained if head.trained else _Frozen
    logps, entropies = function.apply(hidden, head.weight, head.bias, work, inplace)
    return LinearLogps(logps, None if entropy == "none" else entropies)


@dataclass(frozen=True)
class _Answer:
    """What a forward pass leaves."""

    logps: torch.Tensor
    entropies: torch.Tensor
    lse: torch.Tensor  # of z, [rows]


class _Flag:
    """A bool on a device, that is read later without waiting for what was asked of the device since."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value
        self._event: torch.cuda.Event | None = None
        if value.device.type == "cuda":
            self._value = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def __bool__(self) -> bool:
        if self._event is not None:
            self._event.synchronize()
        return bool(self._value)


class _Work:
    """One call, checked and cut into chunks of rows and tiles of tokens."""

    def __init__(
        self,
        hidden: torch.Tensor,
        head: Head,
        targets: torch.Tensor,
        temperature: float | torch.Tensor,
        anchors: torch.Tensor | None,
        entropy: str,
        active: torch.Tensor | None,
        chunk_bytes: int,
        softmax: str,
        inplace: bool = False,
    ) -> None:
        if not isinstance(hidden, torch.Tensor) or hidden.dim() != 2 or hidden.shape[1] != head.hidden:
            raise TensorError(f"hidden is [rows, {head.hidden}] like the head, got {describe(hidden)}")
        if hidden.dtype != head.weight.dtype:
            raise TensorError(f"hidden has the dtype of the head, {head.weight.dtype}, got {hidden.dtype}")
        if hidden.device != head.weight.device:
            raise TensorError(f"hidden is on {hidden.device} and the head on {head.weight.device}")
        if entropy not in ("none", "value", "gradient"):
            raise OptionError(f'entropy is "none", "value" or "gradient", got {entropy!r}')
        if softmax not in ("auto", "anchored", "online"):
            raise OptionError(f'softmax is "auto", "anchored" or "online", got {softmax!r}')
        self.rows = hidden.shape[0]
        self.head = Head(
            head.weight.detach(), None if head.bias is None else head.bias.detach(), head.scale, head.softcap
        )
        self.trained = head.trained
        self.dtype = sum_dtype(hidden.dtype)
        self.device = hidden.device
        self.hidden = hidden.detach()
        self.targets = self._row_tensor("targets", targets, (torch.int64,))
        self.active = None if active is None else self._row_tensor("active", active, (torch.bool,))
        self.anchors = None if anchors is None else self._row_tensor("anchors", anchors, FLOATS).to(self.dtype)
        self.inverse_temperature = self._inverse(temperature)
        self.entropy = entropy
        self.careful = softmax == "auto"
        self.tiles = tiles_for(hidden)
        self.share_dtype = self.tiles.share_dtype(hidden.dtype)
        self.online = softmax == "online" or (softmax == "auto" and self._wants_online())
        fuses = not self.online and entropy != "gradient" and head.vocabulary >= TILE
        self.fused = fuses and self.tiles.fuses(self.hidden, self.head)
        copied = inplace or active is not None or not hidden.is_contiguous()
        copies = 2 if copied or not self.fused else 0
        block = self.tiles.loses(self.share_dtype)
        # Of each block 16 bytes in `Lost`, and as much again for what a tile finds in its parts.
        notes = 32 * -(-head.vocabulary // block) if block else 0
        self.chunk, self.tile = _shape_of_a_chunk(
            head, self.share_dtype.itemsize, chunk_bytes, entropy == "gradient", self.fused, copies, notes
        )
        self.parts = _parts(self.head.weight, self.tile)
        # Two-byte exponentials take the place of half as many logits.
        self.fused_parts = _parts(self.head.weight, 2 * self.tile)
        self._check_targets()
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, int, int], torch.Tensor] = {}

    def _wants_online(self) -> bool:
        """Whether exponentials in two bytes need a shift that is the largest z and no guess of it."""
        # float16 has no range for a guess. The entropy's gradient takes (lse - m) A from A1, and with m far from lse
        # the rounding of both, of the size of lse - m, would stay.
        bends = self.entropy == "gradient" and self.share_dtype.itemsize == 2
        return bends or self.share_dtype == torch.float16

    def _row_tensor(self, name: str, value: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or value.shape != (self.rows,) or value.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TensorError(f"{name} is {wanted} [{self.rows}] like the rows of hidden, got {describe(value)}")
        if value.device != self.device:
            raise TensorError(f"{name} is on {value.device} and hidden on {self.device}")
        return value.detach()

    def _inverse(self, temperature: float | torch.Tensor) -> torch.Tensor:
        if isinstance(temperature, torch.Tensor):
            value = self._row_tensor("temperature", temperature, FLOATS).to(self.dtype)
            if not bool(((value > 0) & value.isfinite()).all()):
                raise OptionError("temperature is positive and finite in every row")
            return value.reciprocal()
        if not 0.0 < temperature < math.inf:
            raise OptionError(f"temperature is positive and finite, got {temperature}")
        return torch.full((self.rows,), 1.0 / temperature, dtype=self.dtype, device=self.device)

    def _check_targets(self) -> None:
        bad = (self.targets < 0) | (self.targets >= self.head.vocabulary)
        if self.active is not None:
            bad &= self.active
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise TensorError(
                f"targets[{row}] is {int(self.targets[row])}, and the vocabulary has {self.head.vocabulary:,} tokens"
            )

    def chunks(self) -> Iterator[Places]:
        """Yield the places of the rows to do, a chunk at a time."""
        if self.active is None or bool(self.active.all()):
            for start in range(0, self.rows, self.chunk):
                yield slice(start, min(start + self.chunk, self.rows))
        else:
            yield from torch.split(self.active.nonzero().squeeze(1), self.chunk)

    def forward(self, directions: Scaled | None, entropy_directions: Scaled | None = None) -> _Answer:
        """Fill log-probs and entropies, and the directions where they are wanted."""
        zeros = [torch.zeros(self.rows, dtype=self.dtype, device=self.device) for _ in range(3)]
        answer = _Answer(*zeros)
        inplace = directions is not None and directions.buffer is self.hidden
        waiting: tuple[Rows, Places, _Flag] | None = None
        for at in self.chunks():
            # A chunk that is done again needs what its directions have overwritten (indexing has made a copy already).
            hidden = self.hidden[at]
            hidden = hidden.clone() if inplace and isinstance(at, slice) else hidden.contiguous()
            rows = self.start(at, hidden, self.online)
            self._pass(rows, self.online, directions is not None, entropy_directions is not None)
            self._finish(rows, at, answer, directions, entropy_directions)
            rows.lost = None
            if self.careful and not self.online:
                # The chunk before is looked at while this one runs, so that the device never waits for the answer.
                flag = _Flag((rows.highest > TOO_FAR).any())
                self._redo(waiting, answer, directions, entropy_directions)
                waiting = rows, at, flag
        self._redo(waiting, answer, directions, entropy_directions)
        return answer

    def _redo(
        self,
        waiting: tuple[Rows, Places, _Flag] | None,
        answer: _Answer,
        directions: Scaled | None,
        entropy_directions: Scaled | None,
    ) -> None:
        """Do a chunk again online if one of its shifts was too far off."""
        if waiting is None or not waiting[2]:
            return
        at = waiting[1]
        rows = self.start(at, waiting[0].hidden, online=True)
        self._pass(rows, True, directions is not None, entropy_directions is not None)
        self._finish(rows, at, answer, directions, entropy_directions)

    def start(self, at: Places, hidden: torch.Tensor, online: bool) -> Rows:
        """Return a chunk with its target's logit and its shift."""
        count = hidden.shape[0]

        def column(value: float = 0.0) -> torch.Tensor:
            return torch.full((count,), value, dtype=self.dtype, device=self.device)

        rows = Rows(
            hidden, self.targets[at], self.inverse_temperature[at],
            target_logit=column(), target_slope=column(), shift=column(torch.finfo(self.dtype).min / 2),
            total=column(), weighted=column(), highest=column(-math.inf), entropy=self.entropy != "none",
        )  # fmt: skip
        self.tiles.target(rows, self.head)
        if not online:
            shift = rows.target_logit
            if self.anchors is not None:
                guess = self.anchors[at]
                # One far below the truth (vLLM writes -9999 for what it left out) would lose every exponential.
                guess = torch.where(guess.isfinite(), guess, torch.zeros_like(guess)).clamp(-LEAST_GUESS, 0.0)
                shift = shift - guess
            rows.shift.copy_(torch.where(shift.isfinite(), shift, torch.zeros_like(shift)))
        return rows

    def _pass(self, rows: Rows, online: bool, directions: bool, entropy_directions: bool) -> None:
        """Go over all tiles once."""
        count, width = rows.hidden.shape
        if directions:
            rows.sums = self._buffer("sums", count, width, self.dtype)
        if entropy_directions:
            rows.weighted_sums = self._buffer("weighted", count, width, self.dtype)
        rows.lost = self._lost(count)
        if self.fused and not online:
            self._fused_pass(rows)
            return
        room = FP16_ROOM if self.share_dtype == torch.float16 else 0.0
        for start, stop, weight in self.parts:
            raw = self._buffer("raw", count, stop - start, self.dtype)
            self.tiles.product(rows.hidden, weight, raw)
            if online:
                self._raise_shift(rows, raw, start, room)
            # Written also where no direction is wanted: another kernel would sum in another order.
            bends = self.entropy == "gradient"
            e_weighted = self._buffer("e_weighted", count, stop - start, self.share_dtype) if bends else None
            e = self.tiles.exponentials(rows, raw, self.head, start, e_weighted)
            if rows.sums is not None:
                self.tiles.add_product(rows.sums, e, weight, first=start == 0)
            if rows.weighted_sums is not None and e_weighted is not None:
                self.tiles.add_product(rows.weighted_sums, e_weighted, weight, first=start == 0)
        self.tiles.refine(rows, self.head)

    def _fused_pass(self, rows: Rows) -> None:
        """Go over all tiles once, where a product comes out as exponentials."""
        for start, stop, weight in self.fused_parts:
            tile = self._buffer("raw", rows.hidden.shape[0], self.tile, self.dtype)
            e = tile.view(self.share_dtype)[:, : stop - start]
            self.tiles.fused(rows, self.head, start, weight, e)
            if rows.sums is not None:
                self.tiles.add_product(rows.sums, e, weight, first=start == 0)
        self.tiles.refine(rows, self.head)

    def _raise_shift(self, rows: Rows, raw: torch.Tensor, start: int, room: float) -> None:
        """Move a chunk to the shift that a tile asks for, with everything that is summed."""
        factor = self.tiles.raise_shift(rows, raw, self.head, start, room).unsqueeze(1)
        if start == 0:
            return  # nothing is summed yet
        moved = factor.log().clamp(min=-1e4)  # z - m changes by it
        for plain, weighted in (
            (rows.sums, rows.weighted_sums),
            (None if rows.lost is None else rows.lost.share, None if rows.lost is None else rows.lost.weighted),
        ):
            if weighted is not None and plain is not None:
                weighted.addcmul_(plain, moved).mul_(factor)
            if plain is not None:
                plain.mul_(factor)
        if rows.lost is not None:
            rows.lost.z.add_(moved)

    def _lost(self, count: int) -> Lost | None:
        each = self.tiles.loses(self.share_dtype)
        if not each:
            return None
        blocks = sum(-(-(stop - start) // each) for start, stop, _ in self.parts)
        column = torch.zeros(count, blocks, dtype=torch.int32, device=self.device)
        z = torch.full_like(column, -math.inf, dtype=self.dtype)
        return Lost(column, z, torch.zeros_like(z), torch.zeros_like(z))

    def _finish(
        self, rows: Rows, at: Places, answer: _Answer, directions: Scaled | None, entropy_directions: Scaled | None
    ) -> None:
        """Turn a chunk's sums into log-probs, entropies and directions."""
        closed = _Closed.of(rows)
        answer.logps[at] = -closed.nll
        answer.entropies[at] = closed.entropy
        # Where no other token is left, there is no shift.
        answer.lse[at] = torch.where(rows.total > 0, rows.shift + closed.gap, rows.target_logit + closed.nll)
        if entropy_directions is not None:
            assert rows.sums is not None and rows.weighted_sums is not None
            rows.weighted_sums.addcmul_(rows.sums, (closed.entropy - closed.gap).unsqueeze(1))
            known = torch.where(closed.probability > 0, closed.entropy - closed.nll, torch.zeros_like(closed.nll))
            self.tiles.direction(
                rows, self.head, -closed.probability * known, -closed.rate, rows.weighted_sums, entropy_directions, at
            )
        if directions is not None:
            assert rows.sums is not None
            self.tiles.direction(rows, self.head, closed.rest, -closed.rate, rows.sums, directions, at)

    def _buffer(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Return [rows, columns] of the call's own memory, which is taken once; it holds whatever was there."""
        view = self._views.get((name, rows, columns))
        if view is None:
            kept = self._buffers.get(name)
            if kept is None or kept.numel() < rows * columns:
                most = columns if name in ("sums", "weighted") else self.tile
                kept = torch.empty(min(self.chunk, self.rows) * most, dtype=dtype, device=self.device)
                self._buffers[name] = kept
            view = self._views[name, rows, columns] = kept[: rows * columns].view(rows, columns)
        return view

    def done(self) -> None:
        """Give the call's own memory back."""
        self._buffers.clear()
        self._views.clear()


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Closed:
    """A chunk's sums in closed form, each [rows]: -logp, p_y, 1 - p_y, r, lse - m, H."""

    nll: torch.Tensor
    probability: torch.Tensor
    rest: torch.Tensor
    rate: torch.Tensor
    gap: torch.Tensor
    entropy: torch.Tensor

    @classmethod
    def of(cls, rows: Rows) -> _Closed:
        log_total = rows.total.log()
        x = log_total + (rows.shift - rows.target_logit)
        zero = torch.zeros_like(x)
        nll = torch.logaddexp(x, zero)
        # lse is above both m + log s and z_y; the difference to the higher one is exact where it matters.
        gap = torch.where(x > 0, log_total + torch.logaddexp(-x, zero), rows.target_logit - rows.shift + nll)
        probability, rate = (-nll).exp(), (-gap).exp()
        own = torch.where(probability > 0, probability * nll, zero)
        entropy = own + rate * (rows.total * gap - rows.weighted) if rows.entropy else zero
        return cls(nll, probability, -torch.expm1(-nll), rate, gap, entropy)


class _Frozen(torch.autograd.Function):
    """Two products in the forward pass; the backward pass only scales."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, work: _Work, inplace: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        directions, bends = _forward(work, inplace)
        answer = work.forward(directions, bends)
        work.done()
        ctx.directions, ctx.bends = _without_inactive(work, directions), _without_inactive(work, bends)
        if bends is None:
            ctx.mark_non_differentiable(answer.entropies)
        return answer.logps, answer.entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _hidden_gradient(ctx, gradients), None, None, None, None


class _Trained(torch.autograd.Function):
    """As `_Frozen`, and d loss / d weight by a second pass over the vocabulary."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, work: _Work, inplace: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        directions, bends = _forward(work, inplace=False) if ctx.needs_input_grad[0] else (None, None)
        answer = work.forward(directions, bends)
        work.done()
        ctx.directions, ctx.bends = _without_inactive(work, directions), _without_inactive(work, bends)
        ctx.work, ctx.answer = work, answer
        ctx.save_for_backward(hidden, weight, bias)  # what autograd checks for changes in between
        logps, entropies = answer.logps.clone(), answer.entropies.clone()
        if work.entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors
        bends = gradients[1] if ctx.work.entropy == "gradient" else None
        weight = bias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            weight, bias = _head_gradient(ctx.work, ctx.answer, gradients[0], bends)
        hidden = _hidden_gradient(ctx, gradients) if ctx.needs_input_grad[0] else None
        return (
            hidden,
            weight if ctx.needs_input_grad[1] else None,
            bias if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


def _forward(work: _Work, inplace: bool) -> tuple[Scaled, Scaled | None]:
    """Return where the directions of log-probs and entropies are kept."""
    target = work.hidden if inplace else torch.empty_like(work.hidden, memory_format=torch.contiguous_format)
    if inplace:
        torch.autograd.graph.increment_version(work.hidden)  # a kernel's writes are not seen by autograd
    bends = Scaled(torch.empty_like(target)) if work.entropy == "gradient" else None
    return Scaled(target), bends


def _without_inactive(work: _Work, directions: Scaled | None) -> Scaled | None:
    """Put 0 where a row is not active: its direction was never written."""
    if directions is not None and work.active is not None:
        directions.bits.masked_fill_(~work.active.unsqueeze(1), 0)
    return directions


def _hidden_gradient(ctx: Any, gradients: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if ctx.directions is None:
        raise TensorError(
            "the gradient of linear_logps was taken before, and it is computed in place: call linear_logps again for a"
            " second backward pass"
        )
    directions, bends, ctx.directions, ctx.bends = ctx.directions, ctx.bends, None, None
    tiles = tiles_for(directions.buffer)
    return tiles.scale_rows(directions, gradients[0], bends, None if bends is None else gradients[1])


def _head_gradient(
    work: _Work, answer: _Answer, slopes: torch.Tensor, bends: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return d loss / d weight and d loss / d bias: a tile of tokens at a time, over all rows, summed in float32.

    Args:
        work: The call.
        answer: Its log-probs, entropies and log-sum-exps.
        slopes: d loss / d logp, [rows].
        bends: d loss / d entropy, [rows], or None.
    """
    head, dtype = work.head, work.dtype
    weight = torch.empty_like(head.weight)
    bias = None if head.bias is None else torch.empty_like(head.bias)
    for start, stop, tile in work.parts:
        sums = torch.zeros(tile.shape, dtype=dtype, device=work.device)
        columns = torch.zeros(stop - start, dtype=dtype, device=work.device)
        for at in work.chunks():
            hidden = work.hidden[at]
            raw = work._buffer("raw", hidden.shape[0], stop - start, dtype)
            work.tiles.product(hidden, tile, raw)
            z, cap = capped(raw, head, None if head.bias is None else head.bias[start:stop].to(dtype))
            log_p = z.mul_(work.inverse_temperature[at].unsqueeze(1)).sub_(answer.lse[at].unsqueeze(1))
            p = log_p.exp()
            grad = p * -slopes[at].to(dtype).unsqueeze(1)
            place = work.targets[at] - start
            row = ((place >= 0) & (place < stop - start)).nonzero().squeeze(1)
            # 1 - p_y from the log-prob: 1 minus the probability rounds a confident token's share to 0.
            grad[row, place[row]] = slopes[at].to(dtype)[row] * -torch.expm1(answer.logps[at][row])
            if bends is not None:
                log_p = torch.where(p > 0, log_p, torch.zeros_like(p))
                grad.sub_(p * (log_p + answer.entropies[at].unsqueeze(1)) * bends[at].to(dtype).unsqueeze(1))
            if cap is not None:
                grad.mul_(cap)
            grad.mul_(work.inverse_temperature[at].unsqueeze(1))
            columns.add_(grad.sum(0))
            work.tiles.add_product(sums, grad.to(work.share_dtype).T, hidden)
        weight[start:stop] = sums.mul_(head.scale)
        if bias is not None:
            bias[start:stop] = columns
    work.done()
    return weight, bias


def _check_inplace(work: _Work, graph: bool) -> None:
    if not graph or work.trained:
        why = "the head is trained and needs the hidden states again" if graph else "there is none without autograd"
        raise OptionError(f"inplace keeps the gradient in hidden: leave it out, {why}")
    if not work.hidden.is_contiguous():
        raise OptionError("inplace needs contiguous hidden states")


def _parts(weight: torch.Tensor, tile: int) -> list[tuple[int, int, torch.Tensor]]:
    """Return the tiles of the vocabulary: first token, the one after the last, their weight vectors."""
    vocabulary = weight.shape[0]
    return [(at, min(at + tile, vocabulary), weight[at : at + tile]) for at in range(0, vocabulary, tile)]


def _shape_of_a_chunk(
    head: Head, share: int, chunk_bytes: int, bend: bool, fused: bool, copies: int, notes: int
) -> tuple[int, int]:
    """Return how many rows fit, and the tokens of a tile.

    A chunk holds a tile of logits (the exponentials take its place), the sums, `copies` of its hidden states, and
    `notes` bytes a row.
    """
    item = head.weight.element_size()
    wide = max(4, item)
    most = 2 * MOST_ROWS if fused else MOST_ROWS
    each = rows = tile = 0
    for tokens in (TILE // 2, TILE // 4) if fused else (TILE,):
        tile = min(tokens, head.vocabulary)
        each = tile * wide + head.hidden * (wide + copies * item) + notes
        each += tile * share + head.hidden * wide if bend else 0
        rows = min(most, chunk_bytes // each)
        if rows == most:
            break
    if rows < 1:
        raise OptionError(f"chunk_bytes is at least {each:,} for one row of this head, got {chunk_bytes:,}")
    return rows if rows < 256 else rows - rows % 128, tile
