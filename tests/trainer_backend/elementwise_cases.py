"""What the kernels of `ops.elementwise` are tried on, in Triton's interpreter and on a GPU: each against torch.

`interpreted_elementwise.py` and `test_elementwise_cuda.py` run the checks on their device.
"""

from __future__ import annotations

from typing import Any

import torch

from trainer_backend.ops import elementwise_kernels as kernels
from trainer_backend.ops.elementwise import (
    Norm,
    gated_backward_torch_,
    gated_torch,
    rotate_torch_,
)

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = [F32, BF16, F16]
# Sums go in another order, so a number may be rounded to the next; the interpreter cuts bfloat16 where a GPU rounds.
BOUNDS = {F32: 3e-6, F16: 4e-3, BF16: 3.2e-2}
SHAPES = [(1, 8), (5, 24), (7, 33), (3, 4, 16), (2, 3, 13)]


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str, *, view: bool = False) -> torch.Tensor:
    """Random numbers; `view`: as rows of a larger tensor, which do not lie side by side."""
    dice = torch.Generator().manual_seed(seed)
    wide = (*shape[:-1], shape[-1] + 8) if view else shape
    value = torch.randn(wide, generator=dice).to(device, dtype)
    return value[..., 4 : 4 + shape[-1]] if view else value


def same(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    assert found is not None and found.dtype == wanted.dtype and found.shape == wanted.shape
    torch.testing.assert_close(found.float(), wanted.float(), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def check_norm(shape: tuple[int, ...], dtype: torch.dtype, offset: float, view: bool, device: str) -> None:
    x, slope, onto = (make(shape, dtype, seed, device, view=view) for seed in range(3))
    norm = Norm(make(shape[-1:], dtype, 3, device), 1e-5, offset)
    same(kernels.norm(x, norm.weight, norm.epsilon, offset, None), norm.forward_torch(x), dtype)
    same(kernels.norm_backward(slope, x, norm.weight, 1e-5, offset, None), norm.backward_torch(slope, x), dtype)
    mine, theirs = onto.clone(), onto.clone()
    same(kernels.norm_backward(slope, x, norm.weight, 1e-5, offset, mine), norm.backward_torch(slope, x, theirs), dtype)
    same(mine, theirs, dtype)
    before = onto.clone()
    same(kernels.norm_backward(slope, x, norm.weight, 1e-5, offset, onto), theirs, dtype)  # in a view, too
    assert not torch.equal(onto, before)
    mine, theirs = x.clone(), x.clone()
    same(kernels.norm(mine, norm.weight, 1e-5, offset, slope), norm.forward_torch(theirs, add=slope), dtype)
    same(mine, theirs, dtype)


def check_rotation(heads: int, width: int, turned: int, dtype: torch.dtype, view: bool, device: str) -> None:
    x = make((6, heads * width), dtype, 0, device, view=view).unflatten(1, (heads, width))
    cos, sin = make((6, turned), dtype, 1, device), make((6, turned), dtype, 2, device)
    for back in (False, True):
        mine, theirs = (
            make((6, heads * width), dtype, 0, device, view=view).unflatten(1, (heads, width)) for _ in "ab"
        )
        assert kernels.rotate_(mine, cos, sin, back)
        same(mine, rotate_torch_(theirs, cos, sin, back=back), dtype)
        assert torch.equal(mine[..., turned:], x[..., turned:])


def check_gate(shape: tuple[int, ...], dtype: torch.dtype, activation: Any, view: bool, device: str) -> None:
    def parts() -> list[torch.Tensor]:
        return [make(shape, dtype, seed, device, view=view) for seed in range(3)]

    _, gate, up = parts()
    gate[0].mul_(30.0)  # where exponentials overflow if they may
    same(kernels.gated(gate, up, activation), gated_torch(gate, up, activation), dtype)
    for product in (False, True):
        mine, theirs = parts(), parts()
        assert kernels.gated_backward_(*mine, activation, product)
        gated_backward_torch_(*theirs, activation, product=product)
        for one, other in zip(mine, theirs, strict=True):
            same(one, other, dtype)


def check_refusals(device: str) -> None:
    """What the kernels leave to torch, untouched."""
    x = make((4, 8), F32, 0, device)
    norm = Norm(make((8,), F32, 1, device), 1e-5)
    assert kernels.norm(x.double(), norm.weight.double(), 1e-5, 0.0, None) is None
    assert kernels.norm(x.T.contiguous().T, norm.weight, 1e-5, 0.0, None) is None
    assert kernels.norm(x.to(BF16), norm.weight, 1e-5, 0.0, None) is None  # torch gives float32 then
    assert kernels.norm_backward(x, x, norm.weight, 1e-5, 0.0, x[:1].expand(4, 8)) is None
    assert not kernels.rotate_(x.view(4, 1, 8), x[:, :3], x[:, :3], False)
    assert kernels.gated(x, x.T.contiguous().T, "silu") is None
    same(norm.forward(x.to(BF16)), norm.forward_torch(x.to(BF16)), F32)
