"""The tile operations on a GPU: two products with a float32 result, and what lies between them.

A kernel alone (exponentials never stored) would have to compute each product again for the gradient and add [rows,
hidden] tiles atomically: three products. So a tile of exponentials is stored, and cuBLAS multiplies it with the
weights. How it is made depends on the case:

* In general cuBLAS writes a tile of float32 logits, and one kernel turns it into exponentials.
* On Hopper, in bfloat16, without a bias or a cap and with an anchored shift, a Triton kernel makes the exponentials
  out of the product's float32 sums while those are in registers: no logit is written anywhere.

docs/decisions.md has the figures of both.
"""

from __future__ import annotations

import os

import torch

from trainer_backend.ops.head import Head
from trainer_backend.ops.tiles import Places, Rows, Scaled, TorchTiles

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs none
    triton = None
try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # as above, or a Triton of before 3.4
    TensorDescriptor = None

BLOCK = 1024
"""Columns of a tile that a program holds at once, and that share one entry of `Lost`."""

TOGETHER = 2
"""Blocks of a tile that a program holds at once."""

WARPS = 4
"""Warps of the program that does so."""

WIDEST = 16384
"""The widest hidden state that a program holds in registers; wider ones take the torch way for that one step."""

PRODUCT = (128, 256, 64)
"""Rows, columns and inner steps of a program's part of the fused product."""


def takes(x: torch.Tensor) -> bool:
    """Whether kernels run on a tensor: one on a GPU, or any in Triton's interpreter, and float64 never."""
    if triton is None or x.dtype == torch.float64:
        return False
    return x.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def tiles_for(hidden: torch.Tensor) -> TorchTiles:
    """Return the operations for a tensor: kernels on a GPU (or in Triton's interpreter), else torch."""
    return TritonTiles() if takes(hidden) else TorchTiles()


class TritonTiles(TorchTiles):
    """The operations on CUDA. Two-byte inputs keep their exponentials in two bytes, which the second product reads."""

    def loses(self, dtype: torch.dtype) -> int:
        return BLOCK if dtype.itemsize == 2 else 0

    def share_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def product(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        if left.device.type == "cuda" and left.dtype != out.dtype:
            torch.ops.aten.mm.dtype_out(left, right.T, out.dtype, out=out)
        else:
            super().product(left, right, out)

    def add_product(self, sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, first: bool = False) -> None:
        if left.device.type != "cuda" or left.dtype == sums.dtype:
            super().add_product(sums, left, right, first=first)
        elif first:
            torch.ops.aten.mm.dtype_out(left, right, sums.dtype, out=sums)
        else:
            torch.ops.aten.addmm.dtype_out(sums, left, right, sums.dtype, out=sums)

    def target(self, rows: Rows, head: Head) -> None:
        _target[(rows.hidden.shape[0],)](
            rows.hidden, head.weight, head.weight if head.bias is None else head.bias, rows.targets,
            rows.inverse_temperature, rows.target_logit, rows.target_slope,
            head.hidden, rows.hidden.stride(0), head.weight.stride(0), head.scale, head.softcap or 0.0,
            HAS_BIAS=head.bias is not None, HAS_CAP=head.softcap is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip

    def raise_shift(self, rows: Rows, raw: torch.Tensor, head: Head, start: int, room: float) -> torch.Tensor:
        factor = torch.empty_like(rows.shift)
        _raise[(raw.shape[0],)](
            raw, head.weight if head.bias is None else head.bias, rows.targets, rows.inverse_temperature,
            rows.shift, rows.total, rows.weighted, rows.highest, factor, start, raw.shape[1], raw.stride(0),
            head.scale, head.softcap or 0.0, room,
            HAS_BIAS=head.bias is not None, HAS_CAP=head.softcap is not None, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return factor

    def exponentials(
        self, rows: Rows, raw: torch.Tensor, head: Head, start: int, e_weighted: torch.Tensor | None
    ) -> torch.Tensor:
        lost = rows.lost
        none = rows.total  # stands for a pointer that is not used
        count, width = raw.shape
        dtype = rows.hidden.dtype
        # The exponentials of a row take the first bytes of its logits.
        e = raw.view(dtype)[:, :width]
        plain = head.bias is None and head.softcap is None
        _exponentials[(count,)](
            raw, e, none if e_weighted is None else e_weighted,
            none if head.bias is None else head.bias, rows.targets, rows.inverse_temperature, rows.shift,
            rows.total, rows.weighted, rows.highest,
            none if lost is None else lost.column, none if lost is None else lost.z,
            none if lost is None else lost.share, none if lost is None else lost.weighted,
            start, width, raw.stride(0), e.stride(0), 0 if e_weighted is None else e_weighted.stride(0),
            start // BLOCK, 0 if lost is None else lost.column.stride(0), head.scale, head.softcap or 0.0,
            HAS_BIAS=head.bias is not None, HAS_CAP=head.softcap is not None, PLAIN=plain, ENTROPY=rows.entropy,
            FULL=plain and width % (BLOCK * TOGETHER) == 0, WRITE_WEIGHTED=e_weighted is not None,
            LOST=lost is not None, BLOCK=BLOCK, TOGETHER=TOGETHER, num_warps=WARPS,
        )  # fmt: skip
        return e

    def fuses(self, hidden: torch.Tensor, head: Head) -> bool:
        if TensorDescriptor is None or hidden.dtype != torch.bfloat16 or hidden.device.type != "cuda":
            return False
        # The copy engine reads rows that begin on 16 bytes. Other chips need a kernel of their own.
        starts = (hidden.data_ptr(), head.weight.data_ptr(), 2 * head.weight.stride(0), 2 * head.hidden)
        plain = head.bias is None and head.softcap is None and not any(at % 16 for at in starts)
        return plain and torch.version.hip is None and torch.cuda.get_device_capability(hidden.device)[0] == 9

    def fused(self, rows: Rows, head: Head, start: int, weight: torch.Tensor, e: torch.Tensor) -> None:
        lost = rows.lost
        assert lost is not None
        count, width = e.shape
        m, n, k = PRODUCT
        per_block = BLOCK // n
        blocks = triton.cdiv(width, BLOCK)
        # The sums, largest (and its column) and weighted sums of each n columns of each row.
        found = torch.empty(4 if rows.entropy else 3, blocks * per_block, count, device=e.device)
        programs = triton.cdiv(count, m) * triton.cdiv(width, n)
        if e.device.type == "cuda":
            programs = min(programs, torch.cuda.get_device_properties(e.device).multi_processor_count)
        _fused[(programs,)](
            TensorDescriptor.from_tensor(rows.hidden, [m, k]), TensorDescriptor.from_tensor(weight, [n, k]),
            TensorDescriptor.from_tensor(e, [m, n // 2]), rows.targets, rows.inverse_temperature, rows.shift,
            found[0], found[1], found[2].view(torch.int32), found[-1], count, width, head.hidden, start, head.scale,
            ENTROPY=rows.entropy, M=m, N=n, K=k, num_warps=8, num_stages=3,
        )  # fmt: skip
        _collect[(triton.cdiv(count, 16),)](
            found[0], found[1], found[2].view(torch.int32), found[-1], rows.total, rows.weighted, rows.highest,
            lost.column, lost.z, lost.share, count, triton.cdiv(width, n), start, start // BLOCK,
            lost.column.stride(0), ENTROPY=rows.entropy, BLOCKS=triton.next_power_of_2(blocks), PER_BLOCK=per_block,
            N=n, ROWS=16, num_warps=4,
        )  # fmt: skip

    def refine(self, rows: Rows, head: Head) -> None:
        lost = rows.lost
        if lost is None:
            return
        _refine[(rows.hidden.shape[0],)](
            rows.hidden, head.weight, head.weight if head.bias is None else head.bias, rows.inverse_temperature,
            rows.shift, rows.total, rows.weighted, lost.column, lost.z, lost.share, lost.weighted,
            head.hidden, rows.hidden.stride(0), head.weight.stride(0), lost.column.shape[1], head.scale,
            head.softcap or 0.0, HAS_BIAS=head.bias is not None, HAS_CAP=head.softcap is not None,
            BLOCK=min(4096, triton.next_power_of_2(head.hidden)), num_warps=4,
        )  # fmt: skip

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
        if head.hidden > WIDEST:
            super().direction(rows, head, own, others, sums, out, at)
            return
        lost = rows.lost
        lost_share = rows.total if lost is None else lost.weighted if sums is rows.weighted_sums else lost.share
        indexed = isinstance(at, torch.Tensor)
        factor = rows.inverse_temperature * head.scale
        _direction[(sums.shape[0],)](
            sums, head.weight, rows.targets, own * rows.target_slope * factor, others * factor, rows.total,
            rows.total if lost is None else lost.column, lost_share, out.bits, out.scale,
            at if isinstance(at, torch.Tensor) else rows.targets, 0 if isinstance(at, torch.Tensor) else at.start,
            head.hidden, head.weight.stride(0), out.bits.stride(0), 0 if lost is None else lost.column.shape[1],
            INDEXED=indexed, NARROW=out.narrow, BLOCK=triton.next_power_of_2(head.hidden), num_warps=8,
        )  # fmt: skip

    def scale_rows(
        self, directions: Scaled, factor: torch.Tensor, other: Scaled | None, other_factor: torch.Tensor | None
    ) -> torch.Tensor:
        own = factor.to(directions.scale.dtype) * directions.scale
        also = own if other is None or other_factor is None else other_factor.to(own.dtype) * other.scale
        _scale[(own.shape[0],)](
            directions.bits, directions.buffer, directions.bits if other is None else other.bits, own, also,
            directions.buffer.shape[1], directions.bits.stride(0),
            TWO=other is not None, NARROW=directions.narrow,
            BLOCK=min(4096, triton.next_power_of_2(directions.buffer.shape[1])), num_warps=4,
        )  # fmt: skip
        return directions.buffer


if triton is not None:

    @triton.jit
    def _tanh(x):
        """tanh by exp, and by its series near 0, where the quotient cancels."""
        small = x * (1.0 + x * x * (-1.0 / 3.0 + x * x * (2.0 / 15.0 - x * x * (17.0 / 315.0))))
        e = tl.exp(-2.0 * tl.abs(x))
        large = (1.0 - e) / (1.0 + e)
        return tl.where(tl.abs(x) < 0.125, small, tl.where(x < 0.0, -large, large))

    @triton.jit
    def _power(exponent):
        """2 to an integer between -126 and 127."""
        return ((exponent + 127) << 23).to(tl.float32, bitcast=True)

    @triton.jit
    def _encode(value):
        """The codes of `tiles.Scaled`."""
        bits = value.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        small = (tl.abs(value) * 524288.0 + 0.5).to(tl.int32)
        large = tl.minimum((magnitude + 0x400 - (119 << 23)) >> 11, 0x7FFF)
        return (tl.where(magnitude < (120 << 23), small, large) | ((bits >> 16) & 0x8000)).to(tl.int16)

    @triton.jit
    def _decode(code):
        wide = code.to(tl.int32)
        magnitude = wide & 0x7FFF
        small = magnitude.to(tl.float32) * (1.0 / 524288.0)
        large = ((magnitude << 11) + (119 << 23)).to(tl.float32, bitcast=True)
        value = tl.where(magnitude < 4096, small, large)
        return tl.where(wide < 0, -value, value)

    @triton.jit
    def _load_logits(
        raw, bias, row, columns, inside, start, raw_stride, inverse, scale, cap,
        HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
    ):  # fmt: skip
        """Return z and the cap's slope of some columns of a row."""
        x = tl.load(raw + row.to(tl.int64) * raw_stride + columns, mask=inside, other=0.0).to(tl.float32) * scale
        if HAS_BIAS:
            x += tl.load(bias + start + columns, mask=inside, other=0.0).to(tl.float32)
        slope = tl.full(x.shape, 1.0, tl.float32)
        if HAS_CAP:
            tanh = _tanh(x / cap)
            slope = 1.0 - tanh * tanh
            x = cap * tanh
        return x * inverse, slope

    @triton.jit
    def _logit(
        hidden, weight, bias, row, column, width, hidden_stride, weight_stride, scale, cap,
        HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Return one logit by a dot product of its own, summed in float32, and the cap's slope there."""
        sums = tl.zeros([BLOCK], dtype=tl.float32)
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            left = tl.load(hidden + row * hidden_stride + at, mask=at < width, other=0.0).to(tl.float32)
            right = tl.load(weight + column * weight_stride + at, mask=at < width, other=0.0).to(tl.float32)
            sums += left * right
        x = tl.sum(sums, 0) * scale
        if HAS_BIAS:
            x += tl.load(bias + column).to(tl.float32)
        slope = 1.0
        if HAS_CAP:
            tanh = _tanh(x / cap)
            slope = 1.0 - tanh * tanh
            x = cap * tanh
        return x, slope

    @triton.jit
    def _target(
        hidden, weight, bias, targets, inverses, logits, slopes, width, hidden_stride, weight_stride, scale, cap,
        HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """The target's logit over temperature, and the cap's slope there."""
        row = tl.program_id(0).to(tl.int64)
        x, slope = _logit(
            hidden, weight, bias, row, tl.load(targets + row), width, hidden_stride, weight_stride, scale, cap,
            HAS_BIAS, HAS_CAP, BLOCK,
        )  # fmt: skip
        tl.store(logits + row, x * tl.load(inverses + row))
        tl.store(slopes + row, slope)

    @triton.jit
    def _raise(
        raw, bias, targets, inverses, shifts, totals, weighteds, highests, factors, start, width, raw_stride,
        scale, cap, room, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Raise a row's shift to its highest logit so far, and take its sums along (`tiles._reshift`)."""
        row = tl.program_id(0)
        target = tl.load(targets + row) - start
        inverse = tl.load(inverses + row)
        top = -float("inf")
        for begin in range(0, width, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            inside = columns < width
            z, _ = _load_logits(
                raw, bias, row, columns, inside, start, raw_stride, inverse, scale, cap, HAS_BIAS, HAS_CAP
            )
            top = tl.maximum(top, tl.max(tl.where(inside & (columns != target), z, -float("inf")), 0))
        before = tl.load(shifts + row)
        shift = tl.maximum(before, top - room)
        moved = before - shift
        total = tl.load(totals + row)
        weighted = tl.load(weighteds + row)
        factor = tl.where(total > 0.0, tl.exp(moved), 0.0)
        tl.store(weighteds + row, tl.where(total > 0.0, (weighted + total * moved) * factor, 0.0))
        tl.store(totals + row, total * factor)
        tl.store(highests + row, tl.load(highests + row) + moved)
        tl.store(shifts + row, shift)
        tl.store(factors + row, factor)

    @triton.jit
    def _exponentials(
        raw, e, e_weighted, bias, targets, inverses, shifts, totals, weighteds, highests,
        lost_column, lost_z, lost_share, lost_weighted, start, width, raw_stride, e_stride, weighted_stride, lost_start,
        lost_stride, scale, cap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, PLAIN: tl.constexpr,
        ENTROPY: tl.constexpr, FULL: tl.constexpr, WRITE_WEIGHTED: tl.constexpr, LOST: tl.constexpr,
        BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
    ):  # fmt: skip
        """Sum a row of a tile, write its exponentials over it, and note the largest of each block as written.

        The kernel is bound by its instructions, so the common case (`PLAIN`: no bias, no cap) is one multiply-add in
        base 2, and the target's column is put out beforehand instead of being compared with.
        """
        row = tl.program_id(0)
        target = tl.load(targets + row) - start
        inverse = tl.load(inverses + row)
        shift = tl.load(shifts + row)
        base = raw + row.to(tl.int64) * raw_stride
        if PLAIN:
            if (target >= 0) & (target < width):
                tl.store(base + target, -float("inf"))
            tl.debug_barrier()
        total = tl.load(totals + row)
        weighted = tl.load(weighteds + row)
        highest = tl.load(highests + row)
        factor = scale * inverse * 1.4426950408889634
        shift_2 = shift * 1.4426950408889634
        block = tl.arange(0, TOGETHER)
        for begin in range(0, width, TOGETHER * BLOCK):
            columns = begin + block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
            if PLAIN:
                if FULL:
                    x = tl.load(base + columns)
                else:
                    x = tl.load(base + columns, mask=columns < width, other=-float("inf"))
                z_2 = x * factor - shift_2
            else:
                inside = columns < width
                z, slope = _load_logits(
                    raw, bias, row, columns, inside, start, raw_stride, inverse, scale, cap, HAS_BIAS, HAS_CAP
                )
                z_2 = tl.where(inside & (columns != target), z - shift, -float("inf")) * 1.4426950408889634
            exp = tl.exp2(z_2)
            top_2 = tl.max(z_2, 1)
            highest = tl.maximum(highest, tl.max(top_2, 0) * 0.6931471805599453)
            # What is written lies where other threads have read: all have by now.
            tl.debug_barrier()
            written_at = e + row.to(tl.int64) * e_stride + columns
            narrow = (exp if PLAIN else exp * slope).to(e.dtype.element_ty)
            if FULL:
                tl.store(written_at, narrow)
            else:
                tl.store(written_at, narrow, mask=columns < width)
            if ENTROPY:
                share = tl.where(exp > 0.0, exp * z_2 * 0.6931471805599453, 0.0)
                weighted += tl.sum(tl.sum(share, 1), 0)
                if WRITE_WEIGHTED:
                    weighted_at = e_weighted + row.to(tl.int64) * weighted_stride + columns
                    value = share if PLAIN else share * slope
                    tl.store(weighted_at, value.to(e_weighted.dtype.element_ty), mask=columns < width)
            total += tl.sum(tl.sum(exp, 1), 0)
            if LOST:
                largest = tl.exp2(top_2)
                # A block whose largest counts for nothing by now will count for nothing at the end.
                if tl.max(largest, 0) > total * 2e-3:
                    at = tl.max(tl.where(z_2 == top_2[:, None], columns, -1), 1)
                    top = top_2 * 0.6931471805599453
                    entry = row.to(tl.int64) * lost_stride + lost_start + begin // BLOCK + block
                    some = begin + block * BLOCK < width
                    tl.store(lost_column + entry, start + at, mask=some)
                    tl.store(lost_z + entry, top, mask=some)
                    # The slope of the largest follows from its z: a second reduction for it is not needed.
                    steep = _slope(top + shift, inverse, cap, HAS_CAP)
                    written = (largest * steep).to(e.dtype.element_ty).to(tl.float32)
                    tl.store(lost_share + entry, written, mask=some)
                    if WRITE_WEIGHTED:
                        summed = (tl.where(largest > 0.0, largest * top, 0.0) * steep).to(e_weighted.dtype.element_ty)
                        tl.store(lost_weighted + entry, summed.to(tl.float32), mask=some)
        tl.store(totals + row, total)
        tl.store(weighteds + row, weighted)
        tl.store(highests + row, highest)

    @triton.jit
    def _part(acc, factor, shift_2, target, left, first, ENTROPY: tl.constexpr):
        """The exponentials of some columns of the fused product, their sums, and the largest and its column."""
        columns = first + tl.arange(0, acc.shape[1])[None, :]
        z_2 = acc * factor[:, None] - shift_2[:, None]
        z_2 = tl.where((columns == target[:, None]) | (columns >= left), -float("inf"), z_2)
        top_2 = tl.max(z_2, 1)
        at = tl.max(tl.where(z_2 == top_2[:, None], columns, -1), 1)
        exp = tl.exp2(z_2)
        total = tl.sum(exp, 1)
        weighted = total
        if ENTROPY:
            weighted = tl.sum(tl.where(exp > 0.0, exp * z_2 * 0.6931471805599453, 0.0), 1)
        return exp, total, top_2, at, weighted

    @triton.jit
    def _fused(
        hidden, weight, e, targets, inverses, shifts, totals, tops, columns, weighteds,
        count, width, inner, start, scale, ENTROPY: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """The product h W^T of a tile, [M, N] at a time, turned into exponentials before it leaves the registers.

        The parts go round the programs, rows first: those that run together read the same weights.
        """
        down = tl.cdiv(count, M)
        for part in range(tl.program_id(0), down * tl.cdiv(width, N), tl.num_programs(0)):
            m = (part % down) * M
            n = (part // down) * N
            acc = tl.zeros((M, N), dtype=tl.float32)
            for k in range(0, inner, K):
                acc = tl.dot(hidden.load([m, k]), weight.load([n, k]).T, acc)
            rows = m + tl.arange(0, M)
            inside = rows < count
            factor = tl.load(inverses + rows, mask=inside, other=0.0) * (scale * 1.4426950408889634)
            shift_2 = tl.load(shifts + rows, mask=inside, other=0.0) * 1.4426950408889634
            target = (tl.load(targets + rows, mask=inside, other=0) - start - n).to(tl.int32)
            # In two halves: the registers hold no more than that beside the sums.
            left, right = tl.split(tl.permute(tl.reshape(acc, (M, 2, N // 2)), (0, 2, 1)))
            exp, total, top_2, at, weighted = _part(left, factor, shift_2, target, width - n, 0, ENTROPY)
            e.store([m, n], exp.to(e.dtype))
            exp, total_r, top_r, at_r, weighted_r = _part(right, factor, shift_2, target, width - n, N // 2, ENTROPY)
            e.store([m, n + N // 2], exp.to(e.dtype))
            place = (n // N) * count + rows
            tl.store(totals + place, total + total_r, mask=inside)
            tl.store(tops + place, tl.maximum(top_2, top_r), mask=inside)
            tl.store(columns + place, n + tl.where(top_r > top_2, at_r, at), mask=inside)
            if ENTROPY:
                tl.store(weighteds + place, weighted + weighted_r, mask=inside)

    @triton.jit
    def _collect(
        totals, tops, columns, weighteds, total, weighted, highest, lost_column, lost_z, lost_share,
        count, parts, start, lost_start, lost_stride, ENTROPY: tl.constexpr, BLOCKS: tl.constexpr,
        PER_BLOCK: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """Add what `_fused` found in a tile to the rows' sums, and note the largest of each block."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        block = tl.arange(0, BLOCKS)[:, None, None]
        part = block * PER_BLOCK + tl.arange(0, PER_BLOCK)[None, :, None]
        place = part * count + row[None, None, :]
        inside = (part < parts) & (row < count)[None, None, :]
        here = row < count
        more = tl.sum(tl.sum(tl.load(totals + place, mask=inside, other=0.0), 1), 0)
        tl.store(total + row, tl.load(total + row, mask=here) + more, mask=here)
        if ENTROPY:
            more = tl.sum(tl.sum(tl.load(weighteds + place, mask=inside, other=0.0), 1), 0)
            tl.store(weighted + row, tl.load(weighted + row, mask=here) + more, mask=here)
        top_2 = tl.load(tops + place, mask=inside, other=-float("inf"))
        block_2 = tl.max(top_2, 1)
        column = tl.load(columns + place, mask=inside, other=0)
        at = tl.max(tl.where(top_2 == tl.expand_dims(block_2, 1), column, -1), 1)
        top = block_2 * 0.6931471805599453
        tl.store(highest + row, tl.maximum(tl.load(highest + row, mask=here), tl.max(top, 0)), mask=here)
        block = tl.arange(0, BLOCKS)[:, None]
        entry = row.to(tl.int64)[None, :] * lost_stride + lost_start + block
        some = (block * PER_BLOCK < parts) & here[None, :]
        tl.store(lost_column + entry, start + at, mask=some)
        tl.store(lost_z + entry, top, mask=some)
        tl.store(lost_share + entry, tl.exp2(block_2).to(tl.bfloat16).to(tl.float32), mask=some)

    @triton.jit
    def _slope(z, inverse, cap, HAS_CAP: tl.constexpr):
        """The soft cap's slope at a logit over temperature."""
        slope = tl.full(z.shape, 1.0, tl.float32)
        if HAS_CAP:
            tanh = z / (inverse * cap)
            slope = 1.0 - tanh * tanh
        return tl.where(z > -float("inf"), slope, 0.0)

    @triton.jit
    def _refine(
        hidden, weight, bias, inverses, shifts, totals, weighteds, lost_column, lost_z, lost_share, lost_weighted,
        width, hidden_stride, weight_stride, blocks, scale, cap,
        HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Compute the logits that matter again, and leave in `Lost` what the sums lack."""
        row = tl.program_id(0).to(tl.int64)
        total = tl.load(totals + row)
        weighted = tl.load(weighteds + row)
        shift = tl.load(shifts + row)
        inverse = tl.load(inverses + row)
        least = total * 2e-3
        more = 0.0
        more_weighted = 0.0
        for block in range(0, blocks):
            place = row * blocks + block
            before = tl.load(lost_z + place)
            was = tl.exp(before)
            lost = 0.0
            lost_too = 0.0
            if was > least:
                column = tl.load(lost_column + place).to(tl.int64)
                x, slope = _logit(
                    hidden, weight, bias, row, column, width, hidden_stride, weight_stride, scale, cap,
                    HAS_BIAS, HAS_CAP, BLOCK,
                )  # fmt: skip
                z = x * inverse - shift
                exp = tl.exp(z)
                more += exp - was
                more_weighted += exp * z - was * before
                lost = exp * slope - tl.load(lost_share + place)
                lost_too = exp * z * slope - tl.load(lost_weighted + place)
            tl.store(lost_share + place, lost)
            tl.store(lost_weighted + place, lost_too)
        tl.store(totals + row, total + more)
        tl.store(weighteds + row, weighted + more_weighted)

    @triton.jit
    def _direction(
        sums, weight, targets, owns, others, totals, lost_column, lost_share, out, scales, places, first,
        width, weight_stride, out_stride, blocks,
        INDEXED: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """A row's direction from its sums and what `_refine` found missing in them."""
        row = tl.program_id(0).to(tl.int64)
        place = tl.load(places + row) if INDEXED else first + row
        at = tl.arange(0, BLOCK)
        inside = at < width
        value = tl.load(sums + row * width + at, mask=inside, other=0.0)
        least = tl.load(totals + row) * 1e-5
        for block in range(0, blocks):
            lost = tl.load(lost_share + row * blocks + block)
            if tl.abs(lost) > least:
                column = tl.load(lost_column + row * blocks + block).to(tl.int64)
                value += lost * tl.load(weight + column * weight_stride + at, mask=inside, other=0.0).to(tl.float32)
        target = tl.load(targets + row)
        own = tl.load(weight + target * weight_stride + at, mask=inside, other=0.0).to(tl.float32)
        value = value * tl.load(others + row) + own * tl.load(owns + row)
        if NARROW:
            largest = tl.max(tl.abs(value), 0)
            exponent = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 126
            exponent = tl.minimum(tl.maximum(exponent, -100), 100)
            tl.store(scales + place, _power(exponent))
            tl.store(out + place * out_stride + at, _encode(value * _power(-exponent)), mask=inside)
        else:
            tl.store(out + place * out_stride + at, value, mask=inside)

    @triton.jit
    def _scale(
        bits, buffer, other, factors, other_factors, width, stride,
        TWO: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Multiply directions by the loss's scalars, into the same bytes."""
        row = tl.program_id(0).to(tl.int64)
        factor = tl.load(factors + row)
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < width
            value = tl.load(bits + row * stride + at, mask=inside, other=0)
            value = (_decode(value) if NARROW else value) * factor
            if TWO:
                more = tl.load(other + row * stride + at, mask=inside, other=0)
                value += (_decode(more) if NARROW else more) * tl.load(other_factors + row)
            tl.store(buffer + row * stride + at, value.to(buffer.dtype.element_ty), mask=inside)
