"""The fused head on a GPU against the float64 oracle: values, gradients, memory and bits at a moderate size.

Needs torch, triton and msgspec only: `python3 -m pytest --noconftest -q tests/trainer_backend/test_ops_cuda.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")
pytest.importorskip("triton", reason="the kernels need triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from ops_cases import compare, dense, fused, make  # noqa: E402

from trainer_backend.ops import Head, kernels, linear_logps, logprob  # noqa: E402
from trainer_backend.ops.tiles import Scaled  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# How far exponentials are rounded.
SHARE = {F32: 0.0, F16: 2.0**-12, BF16: 2.0**-9}
GRID = [
    {"softcap": cap, "bias": bias, "temperature": heat, "masked": masked}
    for cap, bias, heat, masked in itertools.product([None, 8.0], [False, True], [1.0, "row"], [False, True])
]


def wide_case(dtype: Any, **options: Any) -> Any:
    sizes = {"rows": 300, "hidden": 256, "vocabulary": 2 * logprob.TILE + 77}
    return make(dtype, device="cuda", **(sizes | {"margins": None} | options))


@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_values_and_gradients_on_cuda(dtype: Any, entropy: str, softmax: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "MOST_ROWS", 128)
    monkeypatch.setattr(logprob, "TILE", 2048)
    for seed, options in enumerate(GRID[len(entropy) % 3 :: 3]):
        case = make(dtype, device="cuda", rows=300, hidden=256, vocabulary=5000, seed=seed, margins=None, **options)
        case = replace(case, hidden=case.hidden * 0.4)
        found, exact = fused(case, entropy, softmax=softmax), dense(case, entropy)
        compare(case, found, exact, entropy=entropy, loose=10.0, share=SHARE[dtype])


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_a_trained_head_on_cuda(dtype: Any) -> None:
    case = make(dtype, device="cuda", rows=200, hidden=128, vocabulary=3000, bias=True, margins=None)
    compare(
        case, fused(case, "gradient", "all"), dense(case, "gradient", "all"), entropy="gradient", trained="all",
        loose=10.0, share=SHARE[dtype],
    )  # fmt: skip


def test_error_before_and_after_rounding() -> None:
    """2e-4 of the direction before it is rounded to bfloat16, and little more than rounding alone after."""
    case = wide_case(BF16)
    case = replace(case, hidden=case.hidden * 0.4)
    exact = dense(replace(case, slopes=torch.ones_like(case.slopes))).gradients[0]
    work = logprob._Work(case.hidden, case.head, case.targets, 1.0, None, "none", None, logprob.CHUNK_BYTES, "auto")
    kept = Scaled(torch.empty_like(case.hidden))
    work.forward(kept)
    before = (kept.read(slice(0, 300)).double() - exact).norm() / exact.norm()
    alone = (exact.to(BF16).double() - exact).norm() / exact.norm()
    after = (kept.times(torch.ones(300, device="cuda")).double() - exact).norm() / exact.norm()
    assert before <= 2e-4 and after <= 1.03 * alone, (before, after, alone)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_scoring_gives_the_same_bits_on_cuda(dtype: Any) -> None:
    for options, softmax in itertools.product(GRID[::5], ("auto", "online")):
        case = wide_case(dtype, **options)
        for entropy in ("none", "value", "gradient"):
            found = fused(case, entropy, softmax=softmax)
            with torch.no_grad():
                scored = linear_logps(
                    case.hidden, case.head, case.targets, temperature=case.temperature, active=case.active,
                    softmax=softmax, entropy=entropy,
                )  # fmt: skip
            assert torch.equal(found.logps, scored.logps)


def test_a_chunk_is_done_again_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "MOST_ROWS", 16)
    for inplace, far in itertools.product((False, True), ([0], [20], [47], [3, 40])):
        case = make(BF16, device="cuda", rows=48, hidden=64, vocabulary=500, margins=None)
        own = case.head.weight[case.targets].double()
        push = 150.0 / own.square().sum(1, keepdim=True) * own
        case.hidden[far] -= push[far].to(BF16)
        exact = dense(case)
        assert exact.logps[far].max() < -90
        hidden = case.hidden.clone().requires_grad_()
        found = linear_logps(hidden.view_as(hidden), case.head, case.targets, inplace=inplace)
        (gradient,) = torch.autograd.grad((found.logps.double() * case.slopes).sum(), hidden)
        assert (gradient.double() - exact.gradients[0]).norm() < 3e-3 * exact.gradients[0].norm()
        torch.testing.assert_close(found.logps.double().detach(), exact.logps, rtol=2e-5, atol=2e-4)


def test_autograd_sees_that_hidden_states_were_overwritten_on_cuda() -> None:
    case = make(BF16, device="cuda")
    hidden = torch.tanh(case.hidden.clone().requires_grad_())
    found = linear_logps(hidden, case.head, case.targets, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.logps.sum().backward()


@pytest.mark.parametrize(
    "way", [{}, {"graph": False}, {"softmax": "online"}, {"active": True}, {"inplace": True}], ids=str
)
def test_memory_on_cuda(way: dict[str, Any]) -> None:
    """A chunk and one gradient, flat in rows."""
    weight = torch.randn(60_000, 1024, device="cuda").to(BF16)
    extra = []
    for rows in (8192, 24_576):
        options = dict(way)
        graph = options.pop("graph", True)
        hidden = torch.randn(rows, 1024, device="cuda").to(BF16).requires_grad_(graph)
        targets = torch.randint(0, 60_000, (rows,), device="cuda")
        if options.get("active"):
            options["active"] = torch.arange(rows, device="cuda") % 3 > 0

        def once(hidden: Any = hidden, targets: Any = targets, options: Any = options, graph: bool = graph) -> None:
            given = hidden.view_as(hidden) if options.get("inplace") else hidden
            found = linear_logps(given, Head(weight), targets, **options)
            if graph:
                torch.autograd.grad(found.logps.sum(), hidden)

        once()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        once()
        torch.cuda.synchronize()
        gradient = rows * 1024 * 2 if graph and not options.get("inplace") else 0
        extra.append(torch.cuda.max_memory_allocated() - base - gradient - rows * 48)
        del hidden
    chunk = logprob.MOST_ROWS * 1024 * 2  # gathered rows, or copies, of the chunk before
    assert max(extra) <= logprob.CHUNK_BYTES + 3 * chunk, extra
    assert extra[1] <= extra[0] * 1.05 + 1e6, extra


def test_the_fused_product_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponentials out of the product's registers, and by a tile of logits, are the same to rounding."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    starts = []
    inner = kernels.TritonTiles.fused

    def counted(self: Any, *values: Any) -> None:
        starts.append(values[2])
        inner(self, *values)

    monkeypatch.setattr(kernels.TritonTiles, "fused", counted)
    for rows, hidden, vocabulary in ((300, 256, 33_000), (2500, 72, 16_385), (129, 1000, 40_001)):
        case = make(BF16, device="cuda", rows=rows, hidden=hidden, vocabulary=vocabulary, margins=None)
        case = replace(case, hidden=case.hidden * (6.0 / hidden**0.5), temperature=0.8)
        for entropy in ("none", "value"):
            monkeypatch.setattr(kernels.TritonTiles, "fuses", FUSES)
            starts.clear()
            one = fused(case, entropy, softmax="anchored")
            assert starts
            monkeypatch.setattr(kernels.TritonTiles, "fuses", lambda self, hidden, head: False)
            two = fused(case, entropy, softmax="anchored")
            torch.testing.assert_close(one.logps, two.logps, rtol=1e-6, atol=1e-5)
            if entropy == "value":
                torch.testing.assert_close(one.entropies, two.entropies, rtol=1e-5, atol=1e-4)
            off = (one.gradients[0] - two.gradients[0]).norm() / two.gradients[0].norm()
            assert off < 1e-3, off
        compare(case, one, dense(case, "value"), entropy="value", loose=10.0, share=SHARE[BF16])


FUSES = kernels.TritonTiles.fuses
