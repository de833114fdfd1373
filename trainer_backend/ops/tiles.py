"""What is done to one tile of logits, in plain torch: the oracle of the kernels, and what runs where they do not.

The names are those of `logprob`'s text: z logits over temperature, m the row's shift, e = exp(z - m) without the
target, s = sum e, a1 = sum e (z - m), t = the soft cap's derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from trainer_backend.ops.head import Head

Places: TypeAlias = "slice | torch.Tensor"
"""Which rows of a whole batch: a slice, or int64 indices."""

FP16_ROOM = 8.0
"""How far, in nats, the largest e may lie above 1 in float16: e and e (z - m) stay below 65504, and the least that is
not lost lies 27 nats below the largest."""


@dataclass
class Rows:
    """A chunk of rows and what is summed over their tiles.

    Attributes:
        hidden: [rows, hidden] in the dtype of the head.
        targets: int64 [rows].
        inverse_temperature: [rows].
        target_logit: z of the target, [rows].
        target_slope: t of the target, [rows].
        shift: m, [rows].
        total: s, [rows].
        weighted: a1, [rows]; left alone unless `entropy`.
        highest: The largest z - m seen, [rows].
        entropy: Whether the entropy is wanted.
        sums: sum of e t W, [rows, hidden]; None when only log-probs are wanted.
        weighted_sums: sum of e (z - m) t W, [rows, hidden]; None unless the entropy's gradient is wanted.
        lost: The largest exponentials, which are refined at the end; None where nothing is rounded.
    """

    hidden: torch.Tensor
    targets: torch.Tensor
    inverse_temperature: torch.Tensor
    target_logit: torch.Tensor
    target_slope: torch.Tensor
    shift: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor
    highest: torch.Tensor
    entropy: bool = False
    sums: torch.Tensor | None = None
    weighted_sums: torch.Tensor | None = None
    lost: Lost | None = None


@dataclass
class Lost:
    """The largest exponential of each block of columns, as it went into the sums.

    A row of a peaked distribution has a few tokens that make up nearly all of its direction: their rounding to two
    bytes (2^-9) would be the error of the whole, as the rounding inside a product of matrix units is that of the
    log-prob. Those few logits are computed again, each by a dot product of its own, and the difference is put into the
    sums.

    Attributes:
        column: int32 [rows, blocks]; its column.
        z: [rows, blocks]; its z - m.
        share: [rows, blocks]; e t as it was summed; after `refine` what is missing in the sum.
        weighted: [rows, blocks]; the same of e (z - m) t.
    """

    column: torch.Tensor
    z: torch.Tensor
    share: torch.Tensor
    weighted: torch.Tensor


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return what is summed in: float32, and float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def capped(raw: torch.Tensor, head: Head, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Turn products h.w into logits in place; return them and the soft cap's derivative (None: 1 everywhere)."""
    if head.scale != 1.0:
        raw.mul_(head.scale)
    if bias is not None:
        raw.add_(bias)
    if head.softcap is None:
        return raw, None
    tanh = raw.div_(head.softcap).tanh_()
    slope = torch.addcmul(torch.ones_like(tanh), tanh, tanh, value=-1.0)
    return tanh.mul_(head.softcap), slope


class TorchTiles:
    """The tile operations in torch, on any device."""

    def loses(self, dtype: torch.dtype) -> int:
        """Return how many columns share one entry of `Lost`; 0: nothing is rounded."""
        return 0

    def share_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return what exponentials are kept in for inputs of `dtype`: here the sums' own, so that none is rounded."""
        return sum_dtype(dtype)

    def product(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        """Write left [rows, inner] @ right [columns, inner].T to `out` [rows, columns], summed in `out`'s dtype."""
        torch.mm(left.to(out.dtype), right.to(out.dtype).T, out=out)

    def add_product(self, sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, first: bool = False) -> None:
        """Add left [rows, inner] @ right [inner, columns] to `sums` [rows, columns], summed in its dtype.

        With `first` the product takes the place of what is there, whatever it is.
        """
        sums.addmm_(left.to(sums.dtype), right.to(sums.dtype), beta=0.0 if first else 1.0)

    def fuses(self, hidden: torch.Tensor, head: Head) -> bool:
        """Return whether `fused` is there for these inputs and faster than its two steps one by one."""
        return False

    def fused(self, rows: Rows, head: Head, start: int, weight: torch.Tensor, e: torch.Tensor) -> None:
        """Do `product` and `exponentials` of a tile in one; the shift is final.

        Args:
            rows: What is summed so far.
            head: The head.
            start: The vocabulary's index of the first column.
            weight: The tile's part of the head, [columns, hidden].
            e: [rows, columns] in `share_dtype`, for e t.
        """
        raw = torch.empty(e.shape, dtype=rows.total.dtype, device=e.device)
        self.product(rows.hidden, weight, raw)
        e.copy_(self.exponentials(rows, raw, head, start, None))

    def target(self, rows: Rows, head: Head) -> None:
        """Fill `target_logit` and `target_slope`: the logit of the target by a product of its own."""
        dtype = rows.total.dtype
        raw = (rows.hidden.to(dtype) * head.weight[rows.targets].to(dtype)).sum(1)
        bias = None if head.bias is None else head.bias[rows.targets].to(dtype)
        logit, slope = capped(raw, head, bias)
        rows.target_logit.copy_(logit * rows.inverse_temperature)
        rows.target_slope.copy_(torch.ones_like(logit) if slope is None else slope)

    def raise_shift(self, rows: Rows, raw: torch.Tensor, head: Head, start: int, room: float) -> torch.Tensor:
        """Raise each row's shift to its largest z so far less `room`; return the factor of what was summed, [rows]."""
        z, _ = self._logits(rows, raw.clone(), head, start)
        shift = torch.maximum(rows.shift, z.amax(1) - room)
        return _reshift(rows, shift)

    def exponentials(
        self, rows: Rows, raw: torch.Tensor, head: Head, start: int, e_weighted: torch.Tensor | None
    ) -> torch.Tensor:
        """Sum a tile; return its e t, in the bytes of `raw`.

        Args:
            rows: What is summed so far.
            raw: The tile's products h.w, [rows, columns]; overwritten.
            head: The head.
            start: The vocabulary's index of the first column.
            e_weighted: [rows, columns] in `share_dtype`, for e (z - m) t; or None.
        """
        z, slope = self._logits(rows, raw, head, start)
        z.sub_(rows.shift.unsqueeze(1))
        torch.maximum(rows.highest, z.amax(1), out=rows.highest)
        exp = z.exp() if rows.entropy else z.exp_()
        rows.total.add_(exp.sum(1))
        if rows.entropy:
            # -inf * 0 is 0: a column that is out has no share in anything.
            share = z.clamp_(min=torch.finfo(z.dtype).min).mul_(exp)
            rows.weighted.add_(share.sum(1))
            if e_weighted is not None:
                e_weighted.copy_(share if slope is None else share.mul_(slope))
        return raw.copy_(exp if slope is None else exp.mul_(slope))

    def scale_rows(
        self, directions: Scaled, factor: torch.Tensor, other: Scaled | None, other_factor: torch.Tensor | None
    ) -> torch.Tensor:
        """Return `Scaled.times`."""
        return directions.times(factor, other, other_factor)

    def refine(self, rows: Rows, head: Head) -> None:
        """Put the difference between the largest exponentials and what they were rounded to into the sums."""

    def direction(
        self,
        rows: Rows,
        head: Head,
        own: torch.Tensor,
        others: torch.Tensor,
        sums: torch.Tensor,
        out: Scaled,
        at: Places,
    ) -> None:
        """Write (own t_y W_y + others * sums) * scale / temperature, a direction for each row, to `out`.

        Args:
            rows: The chunk.
            head: The head.
            own: [rows]; what the target's weight vector counts.
            others: [rows]; what the sums count.
            sums: [rows, hidden]; overwritten.
            out: Where the directions are kept.
            at: The chunk's places there.
        """
        factor = rows.inverse_temperature * head.scale
        target = head.weight[rows.targets].to(sums.dtype)
        sums.mul_((others * factor).unsqueeze(1))
        out.write(at, sums.addcmul_(target, (own * rows.target_slope * factor).unsqueeze(1)))

    def _logits(
        self, rows: Rows, raw: torch.Tensor, head: Head, start: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return z of a tile, the target's column -inf, and t."""
        width = raw.shape[1]
        bias = None if head.bias is None else head.bias[start : start + width].to(raw.dtype)
        z, slope = capped(raw, head, bias)
        z.mul_(rows.inverse_temperature.unsqueeze(1))
        at = rows.targets - start
        inside = (at >= 0) & (at < width)
        row = inside.nonzero().squeeze(1)
        z[row, at[row]] = float("-inf")
        return z, slope


class Scaled:
    """Gradient directions [rows, hidden], kept in two bytes a value where the input has two, until they are scaled.

    A direction that was rounded to bfloat16, and once more after it is multiplied by the loss's scalar, would carry 1.4
    times the error of one rounding. So it is kept in a float of its own in the same bytes: a sign, 3 bits of exponent
    and 12 of mantissa (bfloat16 has 7), below a power of two for each row. Only the product is rounded to the input's
    dtype.

    A code is sign << 15 | magnitude. With |value| = 2^exponent a, 0 <= a < 1, the magnitude is round(2^19 a) below a =
    2^-7, and the bits of a as float32, less those of 2^-8, without the last 11, above.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        """Take the buffer that the gradient is returned in, [rows, hidden], in the input's dtype; contiguous."""
        self.buffer = buffer
        self.narrow = buffer.dtype in (torch.bfloat16, torch.float16)
        self.bits = buffer.view(torch.int16) if self.narrow else buffer
        self.scale = torch.ones(buffer.shape[0], dtype=sum_dtype(buffer.dtype), device=buffer.device)

    def write(self, rows: Places, value: torch.Tensor) -> None:
        """Keep the directions of some rows; `value` [rows, hidden] is overwritten."""
        if self.narrow:
            exponent = torch.frexp(value.abs().amax(1)).exponent
            self.scale[rows] = torch.ldexp(torch.ones_like(value[:, 0]), exponent)
            self.bits[rows] = _encoded(torch.ldexp(value, -exponent.unsqueeze(1)))
        else:
            self.bits[rows] = value

    def read(self, rows: Places) -> torch.Tensor:
        """Return the directions of some rows, [rows, hidden], in float32 (float64 for float64)."""
        if not self.narrow:
            return self.bits[rows].clone()
        return _decoded(self.bits[rows]).mul_(self.scale[rows].unsqueeze(1))

    def times(
        self, factor: torch.Tensor, other: Scaled | None = None, other_factor: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return factor [rows] times the directions, in the buffer itself and in the input's dtype.

        Args:
            factor: [rows].
            other: Directions of the same shape to be added, times `other_factor` [rows].
            other_factor: [rows].
        """
        for start in range(0, self.buffer.shape[0], _STEP):
            rows = slice(start, start + _STEP)
            value = self.read(rows)
            value.mul_(factor[rows].to(value.dtype).unsqueeze(1))
            if other is not None and other_factor is not None:
                value.addcmul_(other.read(rows), other_factor[rows].to(value.dtype).unsqueeze(1))
            self.buffer[rows] = value
        return self.buffer


def _encoded(value: torch.Tensor) -> torch.Tensor:
    """Return the codes of float32 values below 1 in magnitude (see `Scaled`), int16."""
    bits = value.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    small = (value.abs() * 2.0**19).round().to(torch.int32)
    large = (magnitude + 0x400 - _LEAST) >> 11
    code = torch.where(magnitude < _LEAST + (1 << 23), small, large.clamp(max=0x7FFF))
    return (code | ((bits >> 16) & 0x8000)).to(torch.int16)


def _decoded(codes: torch.Tensor) -> torch.Tensor:
    """Return the values of codes, float32."""
    magnitude = codes.to(torch.int32) & 0x7FFF
    small = magnitude.to(torch.float32) * 2.0**-19
    large = ((magnitude << 11) + _LEAST).view(torch.float32)
    return torch.where(magnitude < 4096, small, large).mul_(1.0 - 2.0 * (codes < 0).to(torch.float32))


_LEAST = 119 << 23  # the bits of 2^-8 in float32
_STEP = 1024  # rows scaled at a time, so that what is scaled in float32 stays small


def _reshift(rows: Rows, shift: torch.Tensor) -> torch.Tensor:
    """Move a row's sums to another shift; return the factor that its sums of vectors need."""
    # A row that has seen nothing but -inf keeps its sums, which are 0.
    moved = torch.where(torch.isfinite(shift), rows.shift - shift, torch.zeros_like(shift))
    factor = torch.where(rows.total > 0, moved.exp(), torch.zeros_like(moved))
    rows.weighted.add_(torch.where(rows.total > 0, rows.total * moved, torch.zeros_like(moved))).mul_(factor)
    rows.total.mul_(factor)
    rows.highest.add_(moved)
    rows.shift.copy_(shift)
    return factor
