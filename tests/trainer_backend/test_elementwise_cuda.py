"""The kernels of `ops.elementwise` on a GPU against torch: values at sizes of real layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the operations need torch")
pytest.importorskip("triton", reason="the kernels need triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from elementwise_cases import SHAPES, TYPES, check_gate, check_norm, check_refusals, check_rotation  # noqa: E402

DTYPES = pytest.mark.parametrize("dtype", TYPES, ids=str)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@DTYPES
def test_norms(dtype: torch.dtype, offset: float) -> None:
    for shape in (*SHAPES, (301, 4096), (70, 14_337), (515, 8, 128), (20_000, 64)):
        for view in (False, True):
            check_norm(shape, dtype, offset, view, "cuda")


@DTYPES
def test_rotations(dtype: torch.dtype) -> None:
    for heads, width, turned in ((32, 128, 128), (8, 64, 32), (7, 96, 96), (1, 256, 256)):
        for view in (False, True):
            check_rotation(heads, width, turned, dtype, view, "cuda")


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@DTYPES
def test_gates(dtype: torch.dtype, activation: str) -> None:
    for shape in ((3, 37), (300, 14_336), (17, 1_537)):
        for view in (False, True):
            check_gate(shape, dtype, activation, view, "cuda")


def test_what_the_kernels_leave_to_torch() -> None:
    check_refusals("cuda")
