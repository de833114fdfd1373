"""The kernels of `ops.elementwise` in Triton's interpreter. `test_ops_elementwise.py` runs this file in a process of
its own, since TRITON_INTERPRET has to be set before Triton is imported.
"""

from __future__ import annotations

import os

import pytest
import torch
from elementwise_cases import SHAPES, TYPES, check_gate, check_norm, check_refusals, check_rotation

from trainer_backend.ops import elementwise_kernels as kernels

assert os.environ.get("TRITON_INTERPRET") == "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs, tiles and steps also for a few numbers."""
    for name, value in (("TILE", 64), ("BLOCK", 16), ("STEPS", 2), ("FILLED", 1)):
        monkeypatch.setattr(kernels, name, value)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_norms(dtype: torch.dtype, offset: float, view: bool) -> None:
    for shape in SHAPES:
        check_norm(shape, dtype, offset, view, "cpu")


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rotations(dtype: torch.dtype, view: bool) -> None:
    for heads, width, turned in ((1, 8, 8), (3, 12, 8), (5, 16, 16), (9, 10, 2)):
        check_rotation(heads, width, turned, dtype, view, "cpu")


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gates(dtype: torch.dtype, activation: str) -> None:
    for view in (False, True):
        for shape in ((1, 5), (4, 16), (3, 37)):
            check_gate(shape, dtype, activation, view, "cpu")


def test_what_the_kernels_leave_to_torch() -> None:
    check_refusals("cpu")
