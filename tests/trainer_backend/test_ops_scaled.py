"""Gradient directions in two bytes: what a round trip costs, over every exponent."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")

from trainer_backend.ops.tiles import Scaled, _decoded, _encoded  # noqa: E402

NARROW = [torch.bfloat16, torch.float16]


def kept(value: Any, dtype: Any) -> Scaled:
    scaled = Scaled(torch.full(value.shape, 7.0, dtype=dtype))
    scaled.write(slice(0, value.shape[0]), value.clone())
    return scaled


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_round_trip_keeps_12_bits_below_the_largest_of_the_row(dtype: Any) -> None:
    dice = torch.Generator().manual_seed(0)
    for power in range(-100, 100, 7):
        fraction = (1.0 + torch.rand(40, 64, generator=dice)) * torch.where(
            torch.rand(40, 64, generator=dice) < 0.5, -1.0, 1.0
        )
        value = torch.ldexp(fraction, power - torch.arange(64, dtype=torch.int32) % 24)
        back = kept(value, dtype).read(slice(0, 40))
        top = value.abs().amax(1, keepdim=True)
        # 2^-13 of the value itself from 2^-7 of the largest on, 2^-19 of the largest below.
        bound = torch.maximum(value.abs() * 2.0**-13, top * 2.0**-19)
        assert bool(((back - value).abs() <= bound * 1.001).all()), power
        assert bool((torch.sign(back) * torch.sign(value) >= 0).all())


def test_every_code_is_a_value_and_goes_back_to_itself() -> None:
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = _decoded(codes)
    assert torch.equal(_encoded(values), codes)
    rising = values[2**15 :]  # codes 0 to 0x7FFF
    assert rising[0] == 0 and bool((rising.diff() > 0).all()) and rising[-1] < 1
    assert torch.equal(_decoded(torch.arange(-(2**15), 0, dtype=torch.int32).to(torch.int16)), -rising)


def test_the_nearest_code_is_taken() -> None:
    values = _decoded(torch.arange(2**15, dtype=torch.int32).to(torch.int16))
    dice = torch.Generator().manual_seed(0)
    some = torch.cat(
        [torch.rand(4000, generator=dice), torch.rand(4000, generator=dice) * 2.0**-7, torch.tensor([1 - 2.0**-24])]
    )
    nearest = (values[None, :] - some[:, None]).abs().amin(1)
    torch.testing.assert_close((_decoded(_encoded(some)) - some).abs(), nearest, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_zeros_and_largest_values(dtype: Any) -> None:
    value = torch.zeros(4, 5)
    value[1, 2] = -3.0
    value[2] = torch.tensor([1.0, 0.5, 2.0**-30, -1.0, 0.0])
    value[3, 0] = torch.tensor(2.0).nextafter(torch.tensor(0.0))  # just below a power of two
    scaled = kept(value, dtype)
    back = scaled.read(slice(0, 4))
    assert not back[0].any()
    torch.testing.assert_close(back, value, rtol=2.0**-12, atol=2.0**-19)
    assert bool((torch.log2(scaled.scale) % 1 == 0).all())  # powers of two, a row each
    assert scaled.scale[1] == 4.0 and scaled.scale[3] == 2.0


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_product_is_rounded_once(dtype: Any) -> None:
    """As good as the product in float64, rounded: 1.02 times its error, where two roundings in a row are 1.4 times."""
    dice = torch.Generator().manual_seed(0)
    value = torch.randn(3000, 64, generator=dice)
    factor = torch.randn(3000, generator=dice)
    exact = value.double() * factor.double()[:, None]
    scaled = kept(value, dtype)
    got = scaled.times(factor)
    assert got is scaled.buffer and got.dtype == dtype
    once = (exact.to(dtype).double() - exact).norm()
    twice = ((value.to(dtype).double() * factor.double()[:, None]).to(dtype).double() - exact).norm()
    assert twice > 1.3 * once
    assert (got.double() - exact).norm() < (1.02 if dtype == torch.bfloat16 else 1.3) * once


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32, torch.float64], ids=str)
def test_two_directions_are_added_before_rounding(dtype: Any) -> None:
    dice = torch.Generator().manual_seed(0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    first, second = (torch.randn(1500, 8, generator=dice, dtype=wide) for _ in range(2))
    factors = torch.randn(2, 1500, generator=dice, dtype=torch.float64)
    got = kept(first, dtype).times(factors[0], kept(second, dtype), factors[1])
    exact = first.double() * factors[0][:, None] + second.double() * factors[1][:, None]
    unit = torch.finfo(dtype).eps
    # Both directions were rounded to 2^-13 of themselves.
    parts = (first.double() * factors[0][:, None]).abs() + (second.double() * factors[1][:, None]).abs()
    slack = 2.0**-12 if dtype in NARROW else 4 * torch.finfo(wide).eps
    assert bool(
        ((got.double() - exact).abs() <= exact.abs() * unit / 2 + parts * slack + 1e-4 * (dtype in NARROW)).all()
    )


def test_some_rows_are_kept_by_index_and_the_others_left() -> None:
    scaled = Scaled(torch.zeros(6, 4, dtype=torch.bfloat16))
    value = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    scaled.write(torch.tensor([4, 1]), value.clone())
    torch.testing.assert_close(scaled.read(torch.tensor([4, 1])), value, rtol=2.0**-12, atol=2.0**-18)
    assert not scaled.bits[[0, 2, 3, 5]].any()
