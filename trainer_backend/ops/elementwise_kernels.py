"""`elementwise` on a GPU: each tensor is read once and written once, with float32 in between.

All are bound by memory. A norm holds whole rows in registers, so that the sum over a row and what follows from it share
one read. What is written in place lies where the same program has read it, and nowhere else is it read.
"""

from __future__ import annotations

import torch

from trainer_backend.ops.kernels import takes

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU needs none
    triton = None

WIDEST = 16384
"""The widest row that a program holds in registers."""

TILE = 4096
"""Numbers of each tensor that a program of a norm or a rotation holds at once, where a row is no wider."""

BLOCK = 2048
"""Numbers of each tensor that a program of a gate holds at once."""

PER_THREAD = 16
"""Numbers of each tensor that a thread holds at once: two loads of 16 bytes in two-byte types."""

STEPS, FILLED = 4, 1024
"""Tiles that a program of a norm goes through with one read of the weight, and the programs that must be left then."""

_NARROW = (torch.bfloat16, torch.float16, torch.float32)


def norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, offset: float, add: torch.Tensor | None
) -> torch.Tensor | None:
    """Return `Norm.forward`, or None, and nothing done, for what the kernel does not take."""
    if not _rows_fit(x, *(() if add is None else (add,))) or not _weight_fits(weight, x):
        return None
    # A weight of another type decides the type of the outcome unless there is an offset.
    if (not offset and weight.dtype != x.dtype) or (add is not None and (_repeats(x) or add.dtype != x.dtype)):
        return None
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, grid, sizes, options = _tiles(x)
    other = x if add is None else add  # stands for a pointer that is not used
    _norm[grid](
        x, other, weight, out, rows, *sizes, *_strides(x), *_strides(other), *_strides(out), epsilon, offset,
        ADD=add is not None, OFFSET=bool(offset), **options,
    )  # fmt: skip
    if add is not None:
        torch.autograd.graph.increment_version(x)
    return out


def norm_backward(
    slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, epsilon: float, offset: float, onto: torch.Tensor | None
) -> torch.Tensor | None:
    """Return `Norm.backward`, or None, and nothing done, for what the kernel does not take."""
    if not _rows_fit(x, slope, *(() if onto is None else (onto,))) or not _weight_fits(weight, x):
        return None
    if onto is not None and _repeats(onto):
        return None
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if onto is None else onto
    rows, grid, sizes, options = _tiles(x)
    _norm_backward[grid](
        slope, x, weight, out, rows, *sizes, *_strides(slope), *_strides(x), *_strides(out), epsilon, offset,
        ONTO=onto is not None, OFFSET=bool(offset), **options,
    )  # fmt: skip
    if onto is not None:
        torch.autograd.graph.increment_version(onto)
    return out


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool) -> bool:
    """Do `elementwise.rotate_`, or return False, and nothing done, for what the kernel does not take."""
    if x.dim() != 3 or cos.dim() != 2 or not _rows_fit(x) or not _rows_fit(cos, sin) or _repeats(x):
        return False
    tokens, heads, width = x.shape
    half = cos.shape[1] // 2
    if cos.device != x.device or cos.shape[0] != tokens or cos.shape[1] % 2 or not 0 < 2 * half <= width:
        return False
    across = triton.next_power_of_2(half)
    down = min(triton.next_power_of_2(heads), max(1, TILE // across))
    _rotate[tokens, triton.cdiv(heads, down)](
        x, cos, sin, heads, half, *_strides(x), cos.stride(0), sin.stride(0),
        BACK=back, HEADS=down, HALF=across, num_warps=_warps(down * across),
    )  # fmt: skip
    torch.autograd.graph.increment_version(x)
    return True


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor | None:
    """Return `elementwise.gated`, or None, and nothing done, for what the kernel does not take."""
    if not _rows_fit(gate, up):
        return None
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    flat = _flat(gate, up, out)
    if flat is None:
        return None
    programs, blocks, width, strides = flat
    _gated[(programs,)](gate, up, out, blocks, width, *strides, ACT=activation, BLOCK=BLOCK, num_warps=_warps(BLOCK))
    return out


def gated_backward_(slope: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str, product: bool) -> bool:
    """Do `elementwise.gated_backward_`, or return False, and nothing done, for what the kernel does not take."""
    if not _rows_fit(gate, slope, up) or _repeats(gate) or _repeats(up) or (product and _repeats(slope)):
        return False
    flat = _flat(slope, gate, up)
    if flat is None:
        return False
    programs, blocks, width, strides = flat
    _gated_backward[(programs,)](
        slope, gate, up, blocks, width, *strides, ACT=activation, PRODUCT=product, BLOCK=BLOCK, num_warps=_warps(BLOCK)
    )
    for written in (gate, up, slope)[: 3 if product else 2]:
        torch.autograd.graph.increment_version(written)
    return True


def _rows_fit(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether tensors of one shape and device hold rows, in one piece each, that the kernels read."""
    if not takes(x) or not x.numel():
        return False
    return all(
        one.shape == x.shape and one.device == x.device and one.dtype in _NARROW and one.stride(-1) == 1
        for one in (x, *others)
    )


def _weight_fits(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a norm's kernel takes x with this weight."""
    if x.dim() not in (2, 3) or x.shape[-1] > WIDEST or weight.shape != x.shape[-1:]:
        return False
    return weight.stride(0) == 1 and weight.dtype in _NARROW and weight.device == x.device


def _repeats(x: torch.Tensor) -> bool:
    """Whether rows of x, as of an expanded tensor, are one: torch says what is wrong with writing there."""
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _strides(x: torch.Tensor) -> tuple[int, int]:
    """From token to token, and from head to head; a row without heads is one."""
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0


def _warps(numbers: int) -> int:
    return max(1, min(16, numbers // (32 * PER_THREAD)))


def _tiles(x: torch.Tensor) -> tuple[int, tuple[int], tuple[int, int, int], dict[str, int]]:
    """Return the rows, the grid, (heads, width, tiles of a program) and the constants of a norm's launch."""
    width = x.shape[-1]
    rows = x.numel() // width
    across = triton.next_power_of_2(width)
    down = max(1, TILE // across)
    tiles = triton.cdiv(rows, down)
    steps = STEPS if tiles >= STEPS * FILLED else 1
    sizes = (x.shape[1] if x.dim() == 3 else 1, width, steps)
    options = {"ROWS": down, "ACROSS": across, "num_warps": _warps(down * across)}
    return rows, (triton.cdiv(tiles, steps),), sizes, options


def _flat(*tensors: torch.Tensor) -> tuple[int, int, int, list[int]] | None:
    """Return programs, blocks of a row, its width and the row strides of a gate; None where rows lie irregularly."""
    if all(x.is_contiguous() for x in tensors):
        rows, width, strides = 1, tensors[0].numel(), [0 for _ in tensors]
    elif tensors[0].dim() == 2:
        rows, width = tensors[0].shape
        strides = [x.stride(0) for x in tensors]
    else:
        return None
    blocks = triton.cdiv(width, BLOCK)
    return rows * blocks, blocks, width, strides


if triton is not None:

    @triton.jit
    def _rows(step, steps, heads, ROWS: tl.constexpr):
        """The rows of a program's tile, and the token and the head of each."""
        row = (tl.program_id(0) * steps + step) * ROWS + tl.arange(0, ROWS)[:, None]
        return row, (row // heads).to(tl.int64), (row % heads).to(tl.int64)

    @triton.jit
    def _weight(weight, column, inside, offset, OFFSET: tl.constexpr):
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            w += offset
        return w

    @triton.jit
    def _norm(
        x, add, weight, out, rows, heads, width, steps, x_token, x_head, add_token, add_head, out_token, out_head,
        epsilon, offset, ADD: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, ACROSS: tl.constexpr,
    ):  # fmt: skip
        """The norm of some rows, and of their sums with others, which are written over them."""
        column = tl.arange(0, ACROSS)[None, :]
        inside = column < width
        w = _weight(weight, column, inside, offset, OFFSET)
        for step in range(steps):
            row, token, head = _rows(step, steps, heads, ROWS)
            mask = (row < rows) & inside
            x_at = x + token * x_token + head * x_head + column
            value = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
            if ADD:
                value += tl.load(add + token * add_token + head * add_head + column, mask=mask, other=0.0).to(
                    tl.float32
                )
                narrow = value.to(x.dtype.element_ty)
                tl.store(x_at, narrow, mask=mask)
                value = narrow.to(tl.float32)
            value = value * tl.rsqrt(tl.sum(value * value, 1) / width + epsilon)[:, None]
            if not OFFSET:
                value = value.to(x.dtype.element_ty).to(tl.float32)
            out_at = out + token * out_token + head * out_head + column
            tl.store(out_at, (value * w).to(out.dtype.element_ty), mask=mask)

    @triton.jit
    def _norm_backward(
        slope, x, weight, out, rows, heads, width, steps, slope_token, slope_head, x_token, x_head, out_token, out_head,
        epsilon, offset, ONTO: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, ACROSS: tl.constexpr,
    ):  # fmt: skip
        """The gradient of some rows from that of their norm, or added to what `out` holds."""
        column = tl.arange(0, ACROSS)[None, :]
        inside = column < width
        w = _weight(weight, column, inside, offset, OFFSET)
        for step in range(steps):
            row, token, head = _rows(step, steps, heads, ROWS)
            mask = (row < rows) & inside
            value = tl.load(x + token * x_token + head * x_head + column, mask=mask, other=0.0).to(tl.float32)
            inner = tl.load(slope + token * slope_token + head * slope_head + column, mask=mask, other=0.0)
            out_at = out + token * out_token + head * out_head + column
            # Before the sums, which wait for what is read above.
            before = value
            if ONTO:
                before = tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
            inner = inner.to(tl.float32) * w
            scale = tl.rsqrt(tl.sum(value * value, 1) / width + epsilon)
            mean = tl.sum(value * inner, 1) / width * scale
            found = (inner - value * scale[:, None] * mean[:, None]) * scale[:, None]
            if ONTO:
                found += before
            tl.store(out_at, found.to(out.dtype.element_ty), mask=mask)

    @triton.jit
    def _rotate(
        x, cos, sin, heads, half, x_token, x_head, cos_token, sin_token,
        BACK: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    ):  # fmt: skip
        """Turn some heads of a token, with one read of its angles."""
        token = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
        column = tl.arange(0, HALF)[None, :]
        inside = column < half
        mask = (head < heads) & inside
        a_at = x + token * x_token + head.to(tl.int64) * x_head + column
        b_at = a_at + half
        a = tl.load(a_at, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_at, mask=mask, other=0.0).to(tl.float32)
        cos_at = cos + token * cos_token + column
        sin_at = sin + token * sin_token + column
        cos_a = tl.load(cos_at, mask=inside, other=0.0).to(tl.float32)
        cos_b = tl.load(cos_at + half, mask=inside, other=0.0).to(tl.float32)
        sin_a = tl.load(sin_at, mask=inside, other=0.0).to(tl.float32)
        sin_b = tl.load(sin_at + half, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            first = a * cos_a + b * sin_b
            second = b * cos_b - a * sin_a
        else:
            first = a * cos_a - b * sin_a
            second = b * cos_b + a * sin_b
        tl.store(a_at, first.to(x.dtype.element_ty), mask=mask)
        tl.store(b_at, second.to(x.dtype.element_ty), mask=mask)

    @triton.jit
    def _sigmoid(x):
        return 1.0 / (1.0 + tl.exp(-x))

    @triton.jit
    def _act(x, ACT: tl.constexpr):
        """act(x) and act'(x); which of them is not used costs nothing."""
        if ACT == "silu":
            share = _sigmoid(x)
            slope = share * (1.0 + x * (1.0 - share))
        elif ACT == "gelu":
            share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
            slope = share + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        else:
            # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
            share = _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            slope = share + x * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        return x * share, slope

    @triton.jit
    def _gated(
        gate, up, out, blocks, width, gate_row, up_row, out_row, ACT: tl.constexpr, BLOCK: tl.constexpr
    ):  # fmt: skip
        row = (tl.program_id(0) // blocks).to(tl.int64)
        first = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
        column = tl.arange(0, BLOCK)
        inside = column < width - first
        value, _ = _act(tl.load(gate + row * gate_row + first + column, mask=inside, other=0.0).to(tl.float32), ACT)
        value *= tl.load(up + row * up_row + first + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * out_row + first + column, value.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _gated_backward(
        slope, gate, up, blocks, width, slope_row, gate_row, up_row,
        ACT: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = (tl.program_id(0) // blocks).to(tl.int64)
        first = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
        column = tl.arange(0, BLOCK)
        inside = column < width - first
        slope_at = slope + row * slope_row + first + column
        gate_at = gate + row * gate_row + first + column
        up_at = up + row * up_row + first + column
        above = tl.load(slope_at, mask=inside, other=0.0).to(tl.float32)
        left = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(up_at, mask=inside, other=0.0).to(tl.float32)
        value, inner = _act(left, ACT)
        tl.store(gate_at, (above * right * inner).to(gate.dtype.element_ty), mask=inside)
        tl.store(up_at, (above * value).to(up.dtype.element_ty), mask=inside)
        if PRODUCT:
            tl.store(slope_at, (value * right).to(slope.dtype.element_ty), mask=inside)
