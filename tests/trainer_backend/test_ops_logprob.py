"""Fused log-probs against dense ones in float64, over the grid of options; and what they promise besides values."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")

import ops_cases  # noqa: E402
from ops_cases import Case, compare, dense, fused, make  # noqa: E402
from torch.autograd import gradcheck  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from rewardkit.errors import OptionError  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.ops import Head, dense_logps, linear_logps, logprob  # noqa: E402

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
DTYPES = [F64, F32, BF16, F16]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three tiles, the last ragged, and chunks of four rows; one thread, as the machine may be shared."""
    monkeypatch.setattr(logprob, "TILE", 16)
    monkeypatch.setattr(logprob, "MOST_ROWS", 4)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ----------------------------------------------------------------------------------------------------------- the grid

OPTIONS = [
    {"softcap": cap, "scale": scale, "bias": bias, "temperature": heat, "masked": masked}
    for cap, scale, bias, heat, masked in itertools.product(
        [None, 8.0], [1.0, 0.3], [False, True], [1.0, 0.6, "row"], [False, True]
    )
]


@pytest.mark.parametrize("trained", ["hidden", "all", "bias", "head"])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_dense_logits(dtype: Any, softmax: str, entropy: str, trained: str) -> None:
    some = random.Random(f"{dtype}{softmax}{entropy}{trained}").sample(OPTIONS, 5)
    for seed, options in enumerate(some):
        if trained == "bias":
            options = options | {"bias": True}
        case = make(dtype, seed=seed, **options)
        found = fused(case, entropy, trained, softmax=softmax)
        compare(case, found, dense(case, entropy, trained), entropy=entropy, trained=trained)


@pytest.mark.parametrize("options", OPTIONS[::5], ids=str)
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_an_anchored_pass_needs_no_help_up_to_60_nats(dtype: Any, options: dict[str, Any]) -> None:
    case = make(dtype, **options)
    compare(case, fused(case, "gradient", softmax="anchored"), dense(case, "gradient"), entropy="gradient")


class Again(torch.autograd.Function):
    """A function whose backward pass calls it again: `gradcheck` goes backward more than once."""

    @staticmethod
    def forward(ctx: Any, function: Any, *inputs: Any) -> Any:
        ctx.function, ctx.inputs = function, inputs
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs]
            outputs = ctx.function(*inputs)
        asking = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(outputs, asking, slopes))
        return None, *(next(found) if x.requires_grad else None for x in inputs)


@pytest.mark.parametrize("options", OPTIONS[1::6], ids=str)
def test_gradients_are_derivatives(options: dict[str, Any]) -> None:
    softmax = "online" if options["bias"] else "auto"
    case = make(F64, rows=3, hidden=4, vocabulary=19, margins=None, **(options | {"masked": False}))
    bias = case.head.bias
    if bias is not None:
        bias[ops_cases.OUT] = 0.3  # -inf has no neighbours

    def logps_and_entropies(hidden: Any, weight: Any, *more: Any) -> Any:
        head = replace(case.head, weight=weight, bias=more[0] if more else None)
        found = linear_logps(
            hidden, head, case.targets, temperature=case.temperature, entropy="gradient", softmax=softmax
        )
        return found.logps, found.entropies

    inputs = [x.requires_grad_() for x in (case.hidden, case.head.weight, bias) if x is not None]
    assert gradcheck(lambda *xs: Again.apply(logps_and_entropies, *xs), inputs)
    frozen = [inputs[0], *(x.detach() for x in inputs[1:])]
    assert gradcheck(lambda *xs: Again.apply(logps_and_entropies, *xs), frozen)
    # The oracle itself.
    heat = case.temperature
    assert gradcheck(lambda h: dense_logps(h, case.head, case.targets, temperature=heat), [inputs[0]])


# ------------------------------------------------------------------------------------------------------- rare values


def test_a_confident_token_keeps_its_gradient_in_float32() -> None:
    weight = torch.eye(20, 20)
    hidden = torch.zeros(3, 20)
    hidden[:, 5] = torch.tensor([10.0, 30.0, 80.0])
    case = Case(hidden, Head(weight), torch.tensor([5, 5, 5]), 1.0, None, torch.ones(3).double(), torch.zeros(3))
    found, exact = fused(case), dense(case)
    naive = torch.log_softmax(hidden, 1)[1:, 5]
    assert not naive.any()  # what is to be avoided
    assert bool((found.logps[:2] < 0).all())
    torch.testing.assert_close(found.logps.double(), exact.logps, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.gradients[0], exact.gradients[0], rtol=2e-5, atol=0)
    assert found.gradients[0][2].abs().max() > 1e-35


@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_a_target_that_is_taken_out_has_minus_infinity(dtype: Any, softmax: str) -> None:
    case = make(dtype, bias=True, margins=3.0)
    case.targets[4] = ops_cases.OUT
    hidden = case.hidden.clone().requires_grad_()
    found = linear_logps(hidden, case.head, case.targets, entropy="value", softmax=softmax)
    exact, entropies = dense_logps(case.hidden.double(), case.head, case.targets)
    assert found.logps[4] == -float("inf")
    torch.testing.assert_close(found.logps.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropies.double(), entropies, rtol=1e-5, atol=1e-5)
    found.logps[4].backward()
    assert bool(hidden.grad.isfinite().all())


@pytest.mark.parametrize("trained", ["hidden", "all"])
@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_a_distribution_of_one_token(dtype: Any, softmax: str, trained: str) -> None:
    """Whether the vocabulary has one, or all others are taken out."""
    alone = make(dtype, vocabulary=5, bias=True, rows=2)
    alone.head.bias[:4] = -float("inf")
    alone.targets[:] = 4
    single = replace(alone, head=Head(alone.head.weight[4:].clone()), targets=torch.zeros(2, dtype=torch.int64))
    for case in (alone, single):
        found = fused(case, "gradient", trained, softmax=softmax)
        assert not found.logps.any() and not found.entropies.any()
        assert all(not gradient.any() for gradient in found.gradients[:1])
        assert all(gradient.abs().max() < 1e-4 for gradient in found.gradients[1:])


def test_tiles_without_any_token_left() -> None:
    """The first and the last tile hold nothing but -inf."""
    for softmax, dtype in itertools.product(("auto", "online"), (F64, F32)):
        case = make(dtype, vocabulary=48, bias=True)
        case.head.bias[:16] = case.head.bias[32:] = -float("inf")
        case.targets[:] = 20 + torch.arange(9) % 8
        found = fused(case, "gradient", "all", softmax=softmax)
        compare(case, found, dense(case, "gradient", "all"), entropy="gradient", trained="all")


@pytest.mark.parametrize("entropy", ["none", "gradient"])
@pytest.mark.parametrize("trained", ["hidden", "all"])
def test_no_rows_and_no_active_rows(entropy: str, trained: str) -> None:
    for rows, active in ((0, None), (0, torch.zeros(0, dtype=torch.bool)), (6, torch.zeros(6, dtype=torch.bool))):
        case = make(F32, rows=max(rows, 2))
        case = replace(
            case, hidden=torch.full((rows, 24), float("nan")), targets=torch.full((rows,), -1), active=active,
            slopes=torch.ones(rows), bends=torch.ones(rows),
        )  # fmt: skip
        found = fused(case, entropy, trained)
        assert found.logps.shape == (rows,) and not found.logps.any()
        assert all(not gradient.any() for gradient in found.gradients)


# ---------------------------------------------------------------------------------------------------------- the shift


@pytest.mark.parametrize("entropy", ["none", "gradient"])
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
def test_anchors_change_nothing_beyond_rounding(dtype: Any, entropy: str) -> None:
    case = make(dtype, rows=17)
    exact = dense(case, entropy)
    dice = torch.Generator().manual_seed(1)
    noise = torch.randn(17, generator=dice, dtype=F64) * 5.0
    unknown = exact.logps.clone()
    unknown[::2] = float("nan")
    filler = exact.logps.clone()
    filler[::3] = -9999.0  # vLLM's for what it has left out
    wild = torch.tensor([float("inf"), -float("inf"), 3e38, -3e38, 1e4, float("nan")]).repeat(3)[:17]
    for anchors in (exact.logps, exact.logps + noise, unknown, filler, wild.double()):
        for softmax in ("auto", "online"):
            found = fused(case, entropy, anchors=anchors.to(F32), softmax=softmax)
            compare(case, found, exact, entropy=entropy)
    near = exact.logps + noise.clamp(-10, 10)
    compare(case, fused(case, entropy, anchors=near, softmax="anchored"), exact, entropy=entropy)


class Passes:
    """Counts the passes of `linear_logps` over the tiles, by way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.online: list[bool] = []
        run = logprob._Work._pass

        def counted(work: Any, rows: Any, online: bool, *rest: Any) -> None:
            self.online.append(online)
            run(work, rows, online, *rest)

        monkeypatch.setattr(logprob._Work, "_pass", counted)


@pytest.mark.parametrize("far", [(0,), (11,), (5,), (0, 4, 8), (3, 7, 11)], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("entropy", ["none", "gradient"])
def test_a_logit_far_above_the_shift_is_done_again(
    far: tuple[int, ...], inplace: bool, entropy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three chunks of four rows; in some rows the target trails by 100 nats and more, where exp overflows."""
    for masked in (False, True):
        case = make(F32, rows=12, margins=20.0, seed=3)
        weight = case.head.weight
        for row in far:
            case.hidden[row] -= weight[case.targets[row]] * 130.0 / weight[case.targets[row]].square().sum()
        if masked:
            case.active = torch.ones(12, dtype=torch.bool)
            case.active[1] = False
            case.hidden[1] = float("nan")
        exact = dense(case, entropy)
        assert exact.logps[list(far)].max() < -90
        passes = Passes(monkeypatch)
        hidden = case.hidden.clone().requires_grad_()
        hidden_in = hidden * 1.0 if inplace else hidden
        found = linear_logps(hidden_in, case.head, case.targets, entropy=entropy, inplace=inplace, active=case.active)
        loss = (found.logps.double() * case.slopes).sum()
        if entropy == "gradient":
            loss = loss + (found.entropies.double() * case.bends).sum()
        loss.backward()
        got = ops_cases.Found(found.logps.detach(), found.entropies, [hidden.grad.double()])
        if inplace and masked:  # hidden * 1.0 hands 0 * NaN nowhere: its gradient is the buffer itself
            assert bool(got.gradients[0].isfinite().all())
        compare(case, got, exact, entropy=entropy)
        at = [row for row in range(12) if not masked or row != 1]
        chunks = {at.index(row) // 4 for row in far}
        assert passes.online.count(True) == len(chunks)
        assert passes.online.count(False) == 3


def test_nothing_is_done_twice_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(F32, rows=12, margins=50.0)
    passes = Passes(monkeypatch)
    fused(case)
    assert passes.online == [False] * 3
    passes.online.clear()
    fused(case, softmax="online")
    assert passes.online == [True] * 3


# ----------------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("trained", ["hidden", "all", "head"])
@pytest.mark.parametrize("softmax", ["auto", "online"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scoring_gives_the_same_bits_as_training(dtype: Any, softmax: str, trained: str) -> None:
    """So that a ratio to scored log-probs is exactly 1. Another chunk size may differ in the last bits."""
    for seed, options in enumerate(OPTIONS[::13]):
        case = make(dtype, seed=seed, rows=11, **options)
        for entropy in ("none", "value", "gradient"):
            found = fused(case, entropy, trained, softmax=softmax)
            with torch.no_grad():
                scored = linear_logps(
                    case.hidden, case.head, case.targets, temperature=case.temperature, active=case.active,
                    softmax=softmax, entropy=entropy,
                )  # fmt: skip
            assert bool((torch.exp(found.logps - scored.logps) == 1).all())
            assert torch.equal(found.logps, scored.logps)
            if entropy != "none":
                assert torch.equal(found.entropies, scored.entropies)
            assert not scored.logps.requires_grad


def test_chunks_and_tiles_change_nothing_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(F64, rows=13, bias=True, softcap=8.0)
    exact = dense(case, "gradient", "all")
    for most, tile in ((1, 37), (5, 7), (100, 1), (100, 64)):
        monkeypatch.setattr(logprob, "MOST_ROWS", most)
        monkeypatch.setattr(logprob, "TILE", tile)
        compare(case, fused(case, "gradient", "all"), exact, entropy="gradient", trained="all")


@pytest.mark.parametrize("entropy", ["none", "gradient"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inplace_gives_the_same_gradient(dtype: Any, entropy: str) -> None:
    for masked in (False, True):
        case = make(dtype, masked=masked, temperature="row", rows=11)
        gradients = []
        for inplace in (False, True):
            hidden = case.hidden.clone().requires_grad_()
            gathered = hidden[torch.arange(11)]
            found = linear_logps(
                gathered, case.head, case.targets, temperature=case.temperature, active=case.active,
                entropy=entropy, inplace=inplace,
            )  # fmt: skip
            loss = (found.logps * case.slopes).sum()
            if entropy == "gradient":
                loss = loss + (found.entropies * case.bends).sum()
            loss.backward()
            gradients.append(hidden.grad)
            assert torch.equal(gathered.nan_to_num(), case.hidden.nan_to_num()) != inplace
        assert torch.equal(*gradients)


def test_autograd_complains_where_inplace_takes_what_is_needed() -> None:
    case = make(F32)
    for needed in (torch.tanh, torch.exp, torch.sigmoid):
        hidden = needed(case.hidden.clone().requires_grad_())
        found = linear_logps(hidden, case.head, case.targets, inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.logps.sum().backward()


def test_a_second_backward_pass_is_an_error_that_says_what_to_do() -> None:
    case = make(F32)
    for trained in ("hidden", "all"):
        hidden, head, _ = ops_cases.trainable(case, trained)
        logps = linear_logps(hidden, head, case.targets).logps
        logps.sum().backward(retain_graph=True)
        with pytest.raises(TensorError, match="call linear_logps again"):
            logps.sum().backward()


@pytest.mark.parametrize("trained", ["hidden", "all", "head"])
def test_a_second_derivative_is_an_error(trained: str) -> None:
    hidden, head, inputs = ops_cases.trainable(make(F64), trained)
    logps = linear_logps(hidden, head, make(F64).targets).logps
    (first, *_) = torch.autograd.grad(logps.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (first.square().sum() + inputs[0].square().sum()).backward()


def test_a_trained_weight_that_changed_in_between_is_noticed() -> None:
    case = make(F32)
    hidden, head, inputs = ops_cases.trainable(case, "all")
    logps = linear_logps(hidden, head, case.targets).logps
    with torch.no_grad():
        inputs[1].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logps.sum().backward()


def test_inputs_are_left_alone() -> None:
    for dtype, trained in itertools.product(DTYPES, ("hidden", "all")):
        case = make(dtype, bias=True)
        before = [case.hidden.clone(), case.head.weight.clone(), case.head.bias.clone(), case.targets.clone()]
        fused(case, "gradient", trained)
        after = [case.hidden, case.head.weight, case.head.bias, case.targets]
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_hidden_states_and_heads_need_not_be_contiguous() -> None:
    case = make(F32)
    exact = dense(case, "gradient", "all")
    spread = torch.stack([case.hidden, case.hidden], 2)[:, :, 0]
    wide = torch.cat([case.head.weight, case.head.weight], 1)[:, :24]
    assert not spread.is_contiguous() and not wide.is_contiguous()
    hidden, weight = spread.requires_grad_(), wide.requires_grad_()
    found = linear_logps(hidden, Head(weight), case.targets, entropy="gradient")
    loss = (found.logps * case.slopes).sum() + (found.entropies * case.bends).sum()
    gradients = [g.double() for g in torch.autograd.grad(loss, [hidden, weight])]
    got = ops_cases.Found(found.logps.detach(), found.entropies, gradients)
    compare(case, got, exact, entropy="gradient", trained="all")


class Products(TorchDispatchMode):
    """Notes how many rows every matrix product has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "addmm_"):
            self.rows.append(args[1 if name.startswith("addmm") else 0].shape[-2])
        return function(*args, **(kwargs or {}))


def test_rows_that_are_not_active_are_never_projected() -> None:
    for count in (0, 1, 5, 16):
        case = make(F32, rows=16)
        case.active = torch.zeros(16, dtype=torch.bool)
        case.active[torch.randperm(16, generator=torch.Generator().manual_seed(0))[:count]] = True
        with Products() as products:
            fused(case)
        # Two products a row for each of the three tiles: h W^T and p W.
        assert sum(products.rows) == count * 3 * 2
        with Products() as products, torch.no_grad():
            linear_logps(case.hidden, case.head, case.targets, active=case.active)
        assert sum(products.rows) == count * 3


def test_values_without_a_gradient_take_one_product() -> None:
    case = make(F32, rows=8)
    with Products() as products, torch.no_grad():
        linear_logps(case.hidden, case.head, case.targets, entropy="gradient")
    assert sum(products.rows) == 8 * 3
    with Products() as products:
        fused(case, "gradient")
    assert sum(products.rows) == 8 * 3 * 3


# ---------------------------------------------------------------------------------------------------------- bad input

ROWS, WIDTH, TOKENS = 4, 6, 9


def call(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "hidden": torch.zeros(ROWS, WIDTH, requires_grad=True),
        "head": Head(torch.zeros(TOKENS, WIDTH)),
        "targets": torch.zeros(ROWS, dtype=torch.int64),
    }
    fields |= changes
    return linear_logps(fields.pop("hidden"), fields.pop("head"), fields.pop("targets"), **fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": [[0.0]]}, "hidden is"),
        ({"hidden": torch.zeros(ROWS, WIDTH + 1)}, "hidden is"),
        ({"hidden": torch.zeros(1, ROWS, WIDTH)}, "hidden is"),
        ({"hidden": torch.zeros(ROWS, WIDTH, dtype=BF16)}, "hidden has the dtype of the head"),
        ({"hidden": torch.zeros(ROWS, WIDTH, device="meta")}, "hidden is on meta"),
        ({"targets": torch.zeros(ROWS, dtype=torch.int32)}, "targets is int64"),
        ({"targets": torch.zeros(ROWS + 1, dtype=torch.int64)}, "targets is int64"),
        ({"targets": [0] * ROWS}, "targets is int64"),
        ({"targets": torch.tensor([0, 0, TOKENS, 0])}, r"targets\[2\] is 9, and the vocabulary has 9 tokens"),
        ({"targets": torch.tensor([0, -1, 0, 0])}, r"targets\[1\] is -1"),
        ({"targets": torch.zeros(ROWS, dtype=torch.int64, device="meta")}, "targets is on meta"),
        ({"active": torch.ones(ROWS)}, "active is bool"),
        ({"active": torch.ones(ROWS, 1, dtype=torch.bool)}, "active is bool"),
        ({"anchors": torch.zeros(ROWS, dtype=torch.int64)}, "anchors is"),
        ({"anchors": torch.zeros(1)}, "anchors is"),
        ({"temperature": torch.ones(ROWS, 1)}, "temperature is"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature is positive"),
        ({"temperature": float("nan")}, "temperature is positive"),
        ({"temperature": float("inf")}, "temperature is positive"),
        ({"temperature": torch.tensor([1.0, 1.0, 0.0, 1.0])}, "temperature is positive and finite in every row"),
        ({"entropy": "yes"}, "entropy is"),
        ({"softmax": "fast"}, "softmax is"),
        ({"chunk_bytes": 10}, "chunk_bytes is at least"),
        ({"inplace": True, "hidden": torch.zeros(ROWS, WIDTH)}, "there is none without autograd"),
        ({"inplace": True, "head": Head(torch.zeros(TOKENS, WIDTH, requires_grad=True))}, "head is trained"),
        ({"inplace": True, "hidden": torch.zeros(WIDTH, ROWS, requires_grad=True).T}, "contiguous"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"weight": [[0.0]]}, TensorError),
        ({"weight": torch.zeros(3)}, TensorError),
        ({"weight": torch.zeros(3, 2, dtype=torch.int64)}, TensorError),
        ({"weight": torch.zeros(2, 3).T}, TensorError),
        ({"bias": torch.zeros(2)}, TensorError),
        ({"bias": torch.zeros(3, dtype=F64)}, TensorError),
        ({"scale": 0.0}, OptionError),
        ({"scale": float("nan")}, OptionError),
        ({"softcap": -1.0}, OptionError),
        ({"softcap": float("inf")}, OptionError),
    ],
    ids=str,
)
def test_heads_that_make_no_sense_are_refused(fields: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        Head(**({"weight": torch.zeros(3, 2)} | fields))


def test_the_least_chunk_is_one_row() -> None:
    case = make(F32)
    with pytest.raises(OptionError) as problem:
        linear_logps(case.hidden, case.head, case.targets, chunk_bytes=1)
    least = int(str(problem.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    compare(case, fused(case, chunk_bytes=least), dense(case), entropy="none")
    with pytest.raises(OptionError):
        linear_logps(case.hidden, case.head, case.targets, chunk_bytes=least - 1)
