"""Attention in blocks against one softmax over all keys, in float64: values, sums and gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the operations need torch")

from trainer_backend.ops import attention  # noqa: E402
from trainer_backend.ops.attention import attend, attend_backward, kernel_for, put_together  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SCALE = 0.3


def random(*shape: int, seed: int, **options: Any) -> torch.Tensor:
    value = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return value.to(**options) if options else value


def dense(q: Any, k: Any, v: Any, visible: Any) -> tuple[Any, Any]:
    """Outcome [queries, heads, width] and log-sum-exp [heads, queries] of one softmax under autograd."""
    times = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(times, 1) for one in (k, v))
    scores = (torch.einsum("qhd,khd->hqk", q, k) * SCALE).masked_fill(~visible, -float("inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def blocks(queries: int, keys: int) -> tuple[list[tuple[slice, bool]], Any]:
    """Two full blocks, a hole that is not seen, and a causal square; and who sees whom."""
    square, hole = slice(keys - queries, keys), slice(4, 6)
    visible = torch.zeros(queries, keys, dtype=torch.bool)
    seen = [(slice(0, hole.start), False), (slice(hole.stop, square.start), False), (square, True)]
    for at, causal in seen:
        size = at.stop - at.start
        visible[:, at] = torch.ones(queries, size).tril().bool() if causal else True
    return seen, visible


def in_blocks(q: Any, k: Any, v: Any, slope: Any, seen: Any, kernel: Any) -> tuple[Any, ...]:
    options = {"scale": SCALE, "kernel": kernel}
    out, lse = put_together([attend(q, k[at], v[at], causal=causal, **options) for at, causal in seen])
    dq, dk, dv = (torch.zeros_like(one, dtype=torch.float64) for one in (q, k, v))
    for at, causal in seen:
        found = attend_backward(slope, q, k[at], v[at], out, lse, causal=causal, **options)
        dq += found[0]
        dk[at] += found[1]
        dv[at] += found[2]
    return out, lse, dq, dk, dv


def compare(found: Any, q: Any, k: Any, v: Any, slope: Any, visible: Any, bound: float) -> None:
    exact = [one.detach().double().cpu().requires_grad_() for one in (q, k, v)]
    out, lse = dense(*exact, visible)
    wanted = (out, lse, *torch.autograd.grad(out, exact, slope.double().cpu()))
    for one, other in zip(found, wanted, strict=True):
        apart = (one.double().cpu() - other.detach()).norm() / other.detach().norm()
        assert float(apart) < bound, float(apart)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("queries", [1, 5])
def test_blocks_are_one_softmax(heads: tuple[int, int], queries: int) -> None:
    q = 3.0 * random(queries, heads[0], 8, seed=0)
    k, v, slope = (
        random(9 + queries, heads[1], 8, seed=1), random(9 + queries, heads[1], 8, seed=2),
        random(queries, heads[0], 8, seed=3),
    )  # fmt: skip
    seen, visible = blocks(queries, len(k))
    compare(in_blocks(q, k, v, slope, seen, kernel_for(q)), q, k, v, slope, visible, 1e-12)


def test_scores_of_very_different_sizes() -> None:
    """One block has all the probability, and nothing overflows."""
    q, k, v = random(3, 2, 8, seed=0), random(12, 2, 8, seed=1), random(12, 2, 8, seed=2)
    k[:4] *= 400.0
    seen, visible = blocks(3, 12)
    out, lse, *slopes = in_blocks(q, k, v, q, seen, "cpu")
    exact, sums = dense(q, k, v, visible)
    torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, sums, rtol=1e-12, atol=1e-12)
    assert all(bool(one.isfinite().all()) for one in slopes)  # those of scores cancel, so no digit of them is exact


def test_a_single_block_is_left_as_it_is() -> None:
    one = attend(*(random(5, 2, 8, seed=seed) for seed in range(3)), causal=True, scale=SCALE, kernel="cpu")
    assert put_together([one]) is one


@pytest.mark.parametrize(
    ("queries", "width", "recurs", "hopper", "kernel"),
    [
        pytest.param(2048, 128, True, True, "cudnn", id="full chunks"),
        pytest.param(2048, 128, False, True, "flash", id="once"),
        pytest.param(4, 128, True, True, "flash", id="a trial"),
        pytest.param(2048, 256, True, True, "flash", id="wide heads"),
        pytest.param(2048, 128, True, False, "flash", id="not measured there"),
    ],
)
def test_which_kernel_a_gpu_takes(
    queries: int, width: int, recurs: bool, hopper: bool, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_hopper", lambda device: hopper)
    q: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=(queries, 32, width))
    assert kernel_for(q, recurs=recurs) == kernel


@CUDA
@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_kernels_of_a_gpu(dtype: Any, heads: tuple[int, int], kernel: Any) -> None:
    place = {"device": "cuda", "dtype": dtype}
    q, slope = random(512, heads[0], 64, seed=0, **place), random(512, heads[0], 64, seed=1, **place)
    k, v = random(1536, heads[1], 64, seed=2, **place), random(1536, heads[1], 64, seed=3, **place)
    seen, visible = blocks(512, 1536)
    compare(in_blocks(q, k, v, slope, seen, kernel), q, k, v, slope, visible, 2e-2)
    # Rows of a larger tensor, as a projection gives them.
    rows = random(512, heads[0] * 64 + 64, seed=4, **place)[:, : heads[0] * 64].unflatten(1, (heads[0], 64))
    compare(in_blocks(rows, k, v, slope, seen, kernel), rows, k, v, slope, visible, 2e-2)
