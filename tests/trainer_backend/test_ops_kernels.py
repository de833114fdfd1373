"""The Triton kernels without a GPU: their values in the interpreter, and whether the compiler takes them (9.0)."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")
triton = pytest.importorskip("triton", reason="the kernels need triton")

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from trainer_backend.ops import Head, kernels, linear_logps, logprob  # noqa: E402

HERE = Path(__file__).parent


def test_kernels_in_the_interpreter() -> None:
    """In a process of its own: Triton looks for TRITON_INTERPRET when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", "interpreted_ops.py"]
    root = str(HERE.parents[1])
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32",
    torch.int16: "*i16", torch.bool: "*i1",
}  # fmt: skip


class Compiled:
    """Stands for a kernel: compiles each different launch for compute capability 9.0 and runs nothing."""

    def __init__(self, function: Any, seen: dict[Any, Any]) -> None:
        self.function, self.seen = function, seen

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *values: Any, **constants: Any) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
        signature = {}
        for name, value in zip(self.function.arg_names, values, strict=False):
            if isinstance(value, TensorDescriptor):
                block = ",".join(str(size) for size in value.block_shape)
                signature[name] = f"tensordesc<{POINTERS[value.base.dtype][1:]}[{block}]>"
            elif isinstance(value, torch.Tensor):
                signature[name] = POINTERS[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        signature |= dict.fromkeys(constants, "constexpr")
        key = self.function.__name__, *signature.items(), *constants.items(), *options.items()
        if key not in self.seen:
            source = ASTSource(fn=self.function, signature=signature, constexprs=constants)
            self.seen[key] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def test_the_compiler_takes_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter accepts what the compiler refuses."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        get_ptxas(90)
    except Exception as problem:
        pytest.skip(f"needs Triton's ptxas: {problem}")
    seen: dict[Any, Any] = {}
    launched = ["_target", "_raise", "_exponentials", "_fused", "_collect", "_refine", "_direction", "_scale"]
    for name in launched:
        monkeypatch.setattr(kernels, name, Compiled(getattr(kernels, name), seen))
    monkeypatch.setattr(logprob, "tiles_for", lambda hidden: kernels.TritonTiles())
    # Of what is launched on a GPU, as far as it does not ask the GPU.
    monkeypatch.setattr(
        kernels.TritonTiles, "fuses", lambda self, hidden, head: hidden.dtype == torch.bfloat16 and head.bias is None
    )
    dice = torch.Generator().manual_seed(0)
    for dtype, (cap, bias), (entropy, softmax, masked) in itertools.product(
        (torch.bfloat16, torch.float32),
        ((None, False), (5.0, True)),
        (("none", "auto", False), ("none", "online", False), ("gradient", "online", True), ("value", "auto", True)),
    ):
        hidden = torch.randn(3, 64, generator=dice).to(dtype).requires_grad_()
        weight = torch.randn(2 * logprob.TILE + 5, 64, generator=dice).to(dtype)
        head = Head(weight, torch.zeros(len(weight), dtype=dtype) if bias else None, 1.0, cap)
        targets = torch.zeros(3, dtype=torch.int64)
        active = torch.tensor([True, False, True]) if masked else None
        found = linear_logps(hidden, head, targets, entropy=entropy, softmax=softmax, active=active)
        (found.logps.sum() + (found.entropies.sum() if entropy == "gradient" else 0.0)).backward()
    assert {key[0] for key in seen} == set(launched)
    assert all("ptx" in kernel.asm and "cubin" in kernel.asm for kernel in seen.values())
