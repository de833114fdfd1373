"""The kernels of the fused head in Triton's interpreter, on a CPU. `test_ops_kernels.py` runs this file in a process of
its own, since TRITON_INTERPRET has to be set before Triton is imported.

The interpreter cuts float32 to bfloat16 where a GPU rounds, so bfloat16 has a wider bound here.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from ops_cases import OUT, compare, dense, fused, make, trainable
from triton.runtime import interpreter

from trainer_backend.ops import Head, kernels, linear_logps, logprob
from trainer_backend.ops.tiles import Scaled, TorchTiles

assert os.environ.get("TRITON_INTERPRET") == "1"
torch.set_num_threads(1)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# How far exponentials are rounded (bfloat16: cut).
SHARE = {F32: 0.0, F16: 2.0**-11, BF16: 2.0**-7}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "TILE", 32)
    monkeypatch.setattr(logprob, "MOST_ROWS", 3)
    monkeypatch.setattr(kernels, "BLOCK", 8)
    monkeypatch.setattr(kernels, "TOGETHER", 2)


def check(case: Any, entropy: str, trained: str = "hidden", **options: Any) -> None:
    assert isinstance(kernels.tiles_for(case.hidden), kernels.TritonTiles)
    dtype = case.hidden.dtype
    found, exact = fused(case, entropy, trained, **options), dense(case, entropy, trained)
    compare(case, found, exact, entropy=entropy, trained=trained, loose=3.0, share=SHARE[dtype])


GRID = [
    {"softcap": cap, "bias": bias, "temperature": heat, "masked": masked, "scale": scale}
    for (cap, bias, heat, masked), scale in zip(
        itertools.product([None, 8.0], [False, True], [1.0, "row"], [False, True]), [1.0, 0.3] * 8, strict=True
    )
]


@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_kernels_agree_with_dense_logits(dtype: Any, entropy: str, softmax: str) -> None:
    at = ["none", "value", "gradient"].index(entropy) + 3 * (softmax == "online")
    for seed, options in enumerate(GRID[at::10]):
        check(make(dtype, rows=4, hidden=32, vocabulary=45, seed=seed, **options), entropy, softmax=softmax)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_kernels_with_a_trained_head(dtype: Any) -> None:
    check(make(dtype, rows=5, hidden=32, vocabulary=45, bias=True), "gradient", "all")


@pytest.mark.parametrize(("vocabulary", "tile", "block", "together"), [(16, 16, 4, 2), (17, 16, 8, 2), (9, 16, 4, 4)])
def test_sizes_that_fit_and_that_do_not(
    vocabulary: int, tile: int, block: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full tiles take another path (no masks) than ragged ones."""
    monkeypatch.setattr(logprob, "TILE", tile)
    monkeypatch.setattr(kernels, "BLOCK", block)
    monkeypatch.setattr(kernels, "TOGETHER", together)
    for dtype, bias in ((F32, False), (F16, False), (F16, True)):
        case = make(dtype, rows=2, hidden=33, vocabulary=vocabulary, bias=bias, margins=20.0)
        check(case, "gradient")


@pytest.fixture
def fusing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where exponentials are made inside the first product; a list with the first column of each tile done so."""
    monkeypatch.setattr(logprob, "TILE", 64)
    monkeypatch.setattr(kernels, "BLOCK", 32)
    monkeypatch.setattr(kernels, "PRODUCT", (16, 16, 16))
    starts = []
    inner = kernels.TritonTiles.fused

    def counted(self: Any, rows: Any, head: Any, start: int, weight: Any, e: Any) -> None:
        starts.append(start)
        inner(self, rows, head, start, weight, e)

    plain = kernels.TritonTiles.fuses
    cuda = type("Pretends", (), {"type": "cuda"})()

    def fuses(self: Any, hidden: Any, head: Any) -> bool:
        stand_in = type("Hidden", (), {"dtype": hidden.dtype, "device": cuda, "data_ptr": hidden.data_ptr})()
        return plain(self, stand_in, head)

    def wide(value: Any) -> Any:
        bits = value.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32) if value.dtype == tl.bfloat16 else value

    # The interpreter multiplies the bits of bfloat16 as if they were integers.
    dot = interpreter.InterpreterBuilder.create_dot
    monkeypatch.setattr(
        interpreter.InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels.TritonTiles, "fuses", fuses)
    monkeypatch.setattr(kernels.TritonTiles, "fused", counted)
    return starts


@pytest.mark.parametrize("entropy", ["none", "value"])
@pytest.mark.parametrize(("vocabulary", "hidden"), [(64, 32), (145, 24)])
def test_the_fused_product(entropy: str, vocabulary: int, hidden: int, fusing: list[int]) -> None:
    """Ragged parts, tiles and chunks; the target in the first and the last column."""
    options = [{}, {"temperature": "row", "scale": 0.3}, {"masked": True}]
    for seed, some in enumerate(options):
        case = make(BF16, rows=7, hidden=hidden, vocabulary=vocabulary, seed=seed, margins=None, **some)
        case = replace(case, hidden=case.hidden * 0.5)
        check(case, entropy, softmax="anchored")
        assert set(fusing) == set(range(0, vocabulary, 64))
        with torch.no_grad():
            scored = linear_logps(
                case.hidden, case.head, case.targets, temperature=case.temperature, active=case.active, entropy=entropy
            )
        assert torch.equal(scored.logps, fused(case, entropy).logps)
        fusing.clear()


def test_the_fused_product_agrees_with_its_two_steps(fusing: list[int]) -> None:
    case = make(BF16, rows=5, hidden=32, vocabulary=77, margins=None)
    found = []
    for way in (kernels.TritonTiles(), TorchTiles()):
        work = logprob._Work(case.hidden, case.head, case.targets, 1.0, None, "value", None, 10**6, "anchored")
        rows = work.start(slice(0, 5), case.hidden, False)
        rows.lost = work._lost(5)
        e = torch.full((5, 80), 7.0, dtype=BF16)[:, :77]
        way.fused(rows, case.head, 0, case.head.weight, e)
        found.append((rows, e))
    (rows, e), (exact, exact_e) = found
    torch.testing.assert_close(e.float(), exact_e.float(), rtol=2.0**-7, atol=1e-30)
    assert not e.gather(1, case.targets[:, None]).any()
    for name in ("total", "weighted", "highest"):
        torch.testing.assert_close(getattr(rows, name), getattr(exact, name), rtol=1e-5, atol=1e-5)
    z = (case.hidden.float() @ case.head.weight.float().T - exact.shift[:, None]).scatter(
        1, case.targets[:, None], -1e9
    )
    for at in range(3):
        block = z[:, 32 * at : 32 * at + 32]
        assert torch.equal(rows.lost.column[:, at].long(), block.argmax(1) + 32 * at)
        torch.testing.assert_close(rows.lost.z[:, at], block.amax(1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rows.lost.share[:, at], e[:, 32 * at : 32 * at + 32].float().amax(1), rtol=0, atol=0)


def test_a_fused_chunk_is_done_again(fusing: list[int]) -> None:
    for inplace in (False, True):
        case = make(BF16, rows=14, hidden=32, vocabulary=90, margins=None, seed=2)
        own = case.head.weight[case.targets[4]].float()
        case.hidden[4] -= (own * 120.0 / own.square().sum()).to(BF16)
        exact = dense(case)
        assert exact.logps[4] < -90
        hidden = case.hidden.clone().requires_grad_()
        found = linear_logps(hidden.view_as(hidden), case.head, case.targets, inplace=inplace)
        (gradient,) = torch.autograd.grad((found.logps.double() * case.slopes).sum(), hidden)
        off = (gradient.double() - exact.gradients[0]).norm(dim=1) / exact.gradients[0].norm(dim=1).clamp(min=1e-2)
        assert off.max() < 2.0**-6 and fusing
        torch.testing.assert_close(found.logps.double().detach(), exact.logps, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "why",
    [{"bias": True}, {"softcap": 8.0}, {"hidden": 33}, {"dtype": F16}, {"dtype": F32}, {"vocabulary": 40}],
    ids=str,
)
def test_what_is_not_fused(why: dict[str, Any], fusing: list[int]) -> None:
    options = {"dtype": BF16, "rows": 3, "hidden": 32, "vocabulary": 70, "margins": None} | why
    check(make(options.pop("dtype"), **options), "none")
    assert not fusing


def test_tiles_of_nothing_but_minus_infinity() -> None:
    for softmax in ("auto", "online"):
        case = make(F32, rows=3, vocabulary=48, bias=True)
        case.head.bias[:16] = case.head.bias[32:] = -float("inf")
        case.targets[:] = 20
        check(case, "gradient", softmax=softmax)
        case.head.bias[:] = -float("inf")
        case.head.bias[20] = 0.5
        found = fused(case, "gradient", softmax=softmax)
        assert not found.logps.any() and not found.entropies.any() and not found.gradients[0].any()


def test_no_active_rows() -> None:
    case = make(F16, rows=3)
    case = replace(case, active=torch.zeros(3, dtype=torch.bool), hidden=case.hidden * float("nan"))
    found = fused(case, "gradient")
    assert not found.logps.any() and not found.gradients[0].any()
    assert OUT < 37


def test_a_chunk_is_done_again() -> None:
    for dtype, inplace in ((F32, True), (F16, False)):
        case = make(dtype, rows=7, margins=10.0, seed=2)
        own = case.head.weight[case.targets[4]].float()
        case.hidden[4] -= (own * 120.0 / own.square().sum()).to(dtype)
        exact = dense(case)
        assert exact.logps[4] < -90
        hidden = case.hidden.clone().requires_grad_()
        found = linear_logps(hidden.view_as(hidden), case.head, case.targets, inplace=inplace)
        (gradient,) = torch.autograd.grad((found.logps.double() * case.slopes).sum(), hidden)
        off = (gradient.double() - exact.gradients[0]).norm(dim=1) / exact.gradients[0].norm(dim=1).clamp(min=1e-2)
        assert off.max() < 3e-3
        torch.testing.assert_close(found.logps.double().detach(), exact.logps, rtol=1e-5, atol=1e-5)


def test_autograd_sees_that_hidden_states_were_overwritten() -> None:
    case = make(F16)
    hidden = torch.tanh(case.hidden.clone().requires_grad_())
    found = linear_logps(hidden, case.head, case.targets, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.logps.sum().backward()


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_scoring_gives_the_same_bits(dtype: Any) -> None:
    for options, softmax in ((GRID[1], "auto"), (GRID[12], "online")):
        case = make(dtype, rows=3, vocabulary=45, **options)
        for entropy in ("none", "gradient"):
            found = fused(case, entropy, softmax=softmax)
            with torch.no_grad():
                scored = linear_logps(
                    case.hidden, case.head, case.targets, temperature=case.temperature, active=case.active,
                    softmax=softmax, entropy=entropy,
                )  # fmt: skip
            assert torch.equal(found.logps, scored.logps)


def test_the_entropy_of_a_row_whose_target_trails_keeps_its_gradient() -> None:
    """A shift 30 nats below lse: rounded exponentials times 30 must not stand in for a difference that is near 1."""
    case = make(BF16, rows=6, hidden=32, vocabulary=300, seed=3, margins=None)
    case.targets = (case.hidden.double() @ case.head.weight.double().T).argmin(1)
    case.slopes = torch.zeros_like(case.slopes)
    exact = dense(case, "gradient").gradients[0]
    assert dense(case).logps.max() < -20

    def error(softmax: str) -> float:
        return float((fused(case, "gradient", softmax=softmax).gradients[0] - exact).norm() / exact.norm())

    assert error("auto") < 0.03 < error("anchored"), (error("auto"), error("anchored"))


@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_the_largest_exponentials_are_refined(dtype: Any, softmax: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target trails: a competitor's vector is nearly the whole direction, and its rounding would be the error."""
    case = make(dtype, rows=6, hidden=32, vocabulary=45, margins=None)
    case.hidden *= 3.0

    def direction_error() -> float:
        hidden, head, _ = trainable(case, "hidden")
        work = logprob._Work(hidden, head, case.targets, 1.0, None, "none", None, 10**6, softmax)
        kept = Scaled(torch.empty_like(case.hidden))
        work.forward(kept)
        exact = dense(replace(case, slopes=torch.ones(6))).gradients[0]
        return float((kept.read(slice(0, 6)).double() - exact).norm() / exact.norm())

    with_it = direction_error()
    monkeypatch.setattr(kernels.TritonTiles, "loses", lambda self, dtype: 0)
    without = direction_error()
    if (dtype, softmax) != (BF16, "online"):  # there the largest is 1, which has no rounding
        assert with_it < 0.5 * without, (with_it, without)
    assert with_it < 2e-4

    # A logit whose product was off (as matrix units round) is put right in the log-prob too.
    monkeypatch.undo()
    small_again(monkeypatch)
    product = kernels.TritonTiles.product

    def off(self: Any, left: Any, right: Any, out: Any) -> None:
        product(self, left, right, out)
        out.mul_(1.0 + 1e-4)

    monkeypatch.setattr(kernels.TritonTiles, "product", off)
    exact = dense(case).logps
    refined = (fused(case, softmax=softmax).logps.double() - exact).abs().mean()
    monkeypatch.setattr(kernels.TritonTiles, "loses", lambda self, dtype: 0)
    rough = (fused(case, softmax=softmax).logps.double() - exact).abs().mean()
    assert refined < 0.5 * rough


def small_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (logprob, "TILE", 32), (logprob, "MOST_ROWS", 3), (kernels, "BLOCK", 8), (kernels, "TOGETHER", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_directions_are_scaled_as_in_torch(dtype: Any) -> None:
    """Every code there is, one direction and two."""
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(16, 4096)
    dice = torch.Generator().manual_seed(0)

    def make_scaled(flip: bool) -> Scaled:
        scaled = Scaled(torch.randn(16, 4096, generator=torch.Generator().manual_seed(int(flip))).to(dtype))
        if dtype != F32:
            scaled.bits.copy_(codes.flip(1) if flip else codes)
            scaled.scale.copy_(torch.ldexp(torch.ones(16), torch.arange(16) % 5 - 2))
        return scaled

    factors = torch.randn(2, 16, generator=dice)
    for two in (False, True):
        ways = [TorchTiles(), kernels.TritonTiles()]
        found = [
            way.scale_rows(
                make_scaled(False), factors[0], make_scaled(True) if two else None, factors[1] if two else None
            )
            for way in ways
        ]
        bound = {BF16: 2.0**-7, F16: 2.0**-10, F32: 2e-7}[dtype]
        torch.testing.assert_close(found[1].float(), found[0].float(), rtol=bound, atol=2e-6)


def test_kernels_write_the_codes_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(F16, rows=5, hidden=32, vocabulary=45, masked=True, margins=20.0)
    kept = []
    for way in (None, TorchTiles()):
        if way is not None:
            monkeypatch.setattr(kernels.TritonTiles, "direction", TorchTiles.direction)
            monkeypatch.setattr(kernels.TritonTiles, "loses", lambda self, dtype: 0)
        work = logprob._Work(case.hidden, case.head, case.targets, 1.0, None, "none", case.active, 10**6, "online")
        scaled = Scaled(torch.zeros_like(case.hidden))
        work.forward(scaled)
        kept.append(scaled)
    assert torch.equal(kept[0].scale, kept[1].scale)
    torch.testing.assert_close(
        kept[0].read(case.active.nonzero().squeeze(1)),
        kept[1].read(case.active.nonzero().squeeze(1)),
        rtol=2e-3,
        atol=1e-3,
    )
    assert not kept[0].bits[~case.active].any()


def test_a_head_of_one_token() -> None:
    hidden = torch.randn(2, 5, dtype=F16).requires_grad_()
    found = linear_logps(hidden, Head(torch.randn(1, 5, dtype=F16)), torch.zeros(2, dtype=torch.int64), entropy="value")
    found.logps.sum().backward()
    assert not found.logps.any() and not hidden.grad.any() and not found.entropies.any()
