"""The operations between a layer's products: formulas against autograd in float64, kernels against the formulas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the operations need torch")

from trainer_backend.ops import elementwise_kernels as kernels  # noqa: E402
from trainer_backend.ops.elementwise import Norm, gated, gated_backward_, rotate_  # noqa: E402

HERE = Path(__file__).parent
F64 = torch.float64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_norm_and_its_gradient(offset: float) -> None:
    x, weight, slope = random(5, 3, 11).requires_grad_(), random(11, seed=1), random(5, 3, 11, seed=2)
    exact = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * (weight + offset)
    (wanted,) = torch.autograd.grad(exact, x, slope)
    norm = Norm(weight, 1e-3, offset)
    torch.testing.assert_close(norm.forward(x.detach()), exact.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(norm.backward(slope, x.detach()), wanted, rtol=1e-12, atol=1e-13)
    onto = random(5, 3, 11, seed=3)
    total = onto + wanted
    assert norm.backward(slope, x.detach(), onto) is onto
    torch.testing.assert_close(onto, total, rtol=1e-12, atol=1e-13)


def test_the_norm_of_a_sum() -> None:
    x, add = random(4, 9), random(4, 9, seed=1)
    total, norm = x + add, Norm(random(9, seed=2), 1e-6)
    torch.testing.assert_close(norm.forward(x, add=add), norm.forward(total), rtol=0, atol=0)
    assert torch.equal(x, total)


def test_rotations_are_those_of_transformers() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x, angles = random(6, 3, 8), random(6, 4, seed=1)
    cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([angles.sin()] * 2, 1)
    wanted, _ = llama.apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos[None], sin[None])
    found = rotate_(x.clone(), cos, sin)
    torch.testing.assert_close(found, wanted[0].transpose(0, 1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(rotate_(found, cos, sin, back=True), x, rtol=1e-13, atol=1e-13)


def test_the_way_back_is_the_transpose() -> None:
    """Also where the two halves have different angles, and of a part of a head alone."""
    x, y, cos, sin = random(5, 2, 10), random(5, 2, 10, seed=1), random(5, 6, seed=2), random(5, 6, seed=3)
    there, again = rotate_(x.clone(), cos, sin), rotate_(y.clone(), cos, sin, back=True)
    torch.testing.assert_close((there * y).sum(), (x * again).sum(), rtol=1e-13, atol=1e-13)
    assert torch.equal(there[..., 6:], x[..., 6:])


ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_and_their_gradients(name: Any) -> None:
    gate, up, slope = (3.0 * random(7, 5, seed=seed) for seed in range(3))
    gate.requires_grad_()
    up.requires_grad_()
    exact = ACTIVATIONS[name](gate) * up
    wanted = torch.autograd.grad(exact, (gate, up), slope)
    mine = gate.detach().clone(), up.detach().clone()
    torch.testing.assert_close(gated(*mine, name), exact.detach(), rtol=1e-13, atol=1e-13)
    gated_backward_(slope, *mine, name, product=True)
    for found, one in zip(mine, wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(slope, exact.detach(), rtol=1e-13, atol=1e-13)


def test_kernels_in_the_interpreter() -> None:
    """In a process of its own: Triton looks for TRITON_INTERPRET when it is imported."""
    pytest.importorskip("triton", reason="the kernels need triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider"]
    root = str(HERE.parents[1])
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [*command, "interpreted_elementwise.py"], cwd=HERE, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_the_compiler_takes_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter accepts what the compiler refuses."""
    pytest.importorskip("triton", reason="the kernels need triton")
    from test_ops_kernels import Compiled

    try:
        from triton.backends.nvidia.compiler import get_ptxas

        get_ptxas(90)
    except Exception as problem:
        pytest.skip(f"needs Triton's ptxas: {problem}")
    seen: dict[Any, Any] = {}
    launched = ["_norm", "_norm_backward", "_rotate", "_gated", "_gated_backward"]
    for name in launched:
        monkeypatch.setattr(kernels, name, Compiled(getattr(kernels, name), seen))
    monkeypatch.setattr(kernels, "takes", lambda x: True)
    for dtype in (torch.bfloat16, torch.float32):
        x, heads = torch.zeros(3, 256, dtype=dtype), torch.zeros(3, 2, 64, dtype=dtype)
        for offset in (0.0, 1.0):
            norm = Norm(torch.ones(256, dtype=dtype), 1e-5, offset)
            norm.forward(x.clone())
            norm.forward(x.clone(), add=x)
            norm.backward(x, x)
            norm.backward(x, x, x.clone())
        for back in (False, True):
            rotate_(heads, x[:, :64], x[:, :64], back=back)
        for name in ACTIVATIONS:
            gated(x, x, name)
            for product in (False, True):
                gated_backward_(x, x.clone(), x.clone(), name, product=product)
    assert {key[0] for key in seen} == set(launched)
    assert all("ptx" in kernel.asm and "cubin" in kernel.asm for kernel in seen.values())
