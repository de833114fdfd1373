"""What the tests of the fused head share: rows of every kind, and their float64 oracle. Needs torch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainer_backend.ops import Head, dense_logps, linear_logps
from trainer_backend.ops.reference import dense_logits

OUT = 3  # the column that a bias of -inf takes out


@dataclass
class Case:
    """Inputs of `linear_logps`, and a scalar for each row that stands for a loss."""

    hidden: torch.Tensor
    head: Head
    targets: torch.Tensor
    temperature: Any
    active: torch.Tensor | None
    slopes: torch.Tensor
    bends: torch.Tensor

    @property
    def counted(self) -> torch.Tensor:
        return torch.ones_like(self.targets, dtype=torch.bool) if self.active is None else self.active


def make(
    dtype: torch.dtype, *, rows: int = 9, hidden: int = 24, vocabulary: int = 37, seed: int = 0,
    softcap: float | None = None, scale: float = 1.0, bias: bool = False, temperature: Any = 1.0, masked: bool = False,
    margins: float | None = 40.0, device: str = "cpu",
) -> Case:  # fmt: skip
    """Rows whose target leads or trails the best other token by up to `margins` nats, first and last token among them.

    None leaves them as they fall. Softcapped logits stay where float32 knows the cap's slope (tanh below 0.99).
    """
    dice = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64)

    weight = normal(vocabulary, hidden)
    targets = torch.randint(OUT + 1, vocabulary, (rows,), generator=dice)
    targets[:2] = torch.tensor([vocabulary - 1, 0])[:rows]
    by_row = temperature == "row"
    heat = torch.rand(rows, generator=dice, dtype=torch.float64) + 0.5 if by_row else torch.full((rows,), temperature)
    states = normal(rows, hidden) * (0.3 if softcap else 1.0)
    wanted = torch.linspace(-1, 1, rows, dtype=torch.float64)[torch.randperm(rows, generator=dice)]
    if margins is not None:
        wanted *= min(margins, 0.8 * softcap) if softcap else margins
    own = weight[targets]
    for _ in range(0 if margins is None else 30):
        logits = states @ weight.T
        best = logits.scatter(1, targets[:, None], float("-inf")).amax(1)
        short = wanted * heat / scale - (logits.gather(1, targets[:, None])[:, 0] - best)
        states = states + 0.7 * own * (short / (own * own).sum(1))[:, None]
    assert (states @ weight.T).abs().max() < 500, "these margins cannot be had in so few dimensions"
    offsets = normal(vocabulary) if bias else None
    if offsets is not None:
        offsets[OUT] = float("-inf")
    active = torch.rand(rows, generator=dice) > 0.4 if masked else None
    if active is not None:
        states[~active] = float("nan")
        targets[~active] = torch.tensor([-100, 10**9])[torch.arange(int((~active).sum())) % 2]
    return Case(
        states.to(device, dtype),
        Head(weight.to(device, dtype), None if offsets is None else offsets.to(device, dtype), scale, softcap),
        targets.to(device), heat.to(device) if by_row else temperature, None if active is None else active.to(device),
        normal(rows).to(device), normal(rows).to(device),
    )  # fmt: skip


def trainable(case: Case, trained: str) -> tuple[torch.Tensor, Head, list[torch.Tensor]]:
    """Return hidden states and head with what is trained asking for a gradient, and a list of these.

    `trained` is "hidden", "all", "bias" (and hidden) or "head" (alone).
    """
    hidden = case.hidden.clone().requires_grad_(trained != "head")
    weight = case.head.weight.clone().requires_grad_(trained in ("all", "head"))
    bias = case.head.bias
    bias = None if bias is None else bias.clone().requires_grad_(trained != "hidden")
    head = Head(weight, bias, case.head.scale, case.head.softcap)
    return hidden, head, [t for t in (hidden, weight, bias) if t is not None and t.requires_grad]


@dataclass
class Found:
    """Log-probs, entropies and the gradients of what was trained (float64)."""

    logps: torch.Tensor
    entropies: torch.Tensor | None
    gradients: list[torch.Tensor]


def fused(case: Case, entropy: str = "none", trained: str = "hidden", **options: Any) -> Found:
    hidden, head, inputs = trainable(case, trained)
    found = linear_logps(
        hidden, head, case.targets, temperature=case.temperature, active=case.active, entropy=entropy, **options
    )
    loss = (found.logps.double() * case.slopes).sum()
    if entropy == "gradient":
        loss = loss + (found.entropies.double() * case.bends).sum()
    gradients = torch.autograd.grad(loss, inputs)
    return Found(found.logps.detach(), found.entropies, [g.double() for g in gradients])


def dense(case: Case, entropy: str = "none", trained: str = "hidden") -> Found:
    """The oracle: float64, and rows that are not active set aside beforehand."""
    counted = case.counted
    hidden, head, inputs = trainable(case, trained)
    wide = Head(
        head.weight.double(), None if head.bias is None else head.bias.double(), case.head.scale, case.head.softcap
    )
    heat = case.temperature[counted] if isinstance(case.temperature, torch.Tensor) else case.temperature
    logps, entropies = dense_logps(hidden.double()[counted], wide, case.targets[counted], temperature=heat)
    loss = (logps * case.slopes[counted]).sum()
    if entropy == "gradient":
        loss = loss + (entropies * case.bends[counted]).sum()
    # Of leaves in float64, so that what comes back is not rounded to the input's dtype.
    leaves = [t.detach().double().requires_grad_() for t in inputs]
    swap = {id(old): new for old, new in zip(inputs, leaves, strict=True)}
    hidden = swap.get(id(hidden), hidden.double())
    bias = None if head.bias is None else swap.get(id(head.bias), head.bias.double())
    wide = Head(swap.get(id(head.weight), head.weight.double()), bias, case.head.scale, case.head.softcap)
    logps, entropies = dense_logps(hidden[counted], wide, case.targets[counted], temperature=heat)
    loss = (logps * case.slopes[counted]).sum()
    if entropy == "gradient":
        loss = loss + (entropies * case.bends[counted]).sum()
    gradients = torch.autograd.grad(loss, leaves)
    spread = torch.zeros(len(counted), 2, dtype=torch.float64, device=counted.device)
    spread[counted] = torch.stack([logps.detach(), entropies.detach()], 1)
    return Found(spread[:, 0], spread[:, 1], list(gradients))


def largest_logit(case: Case) -> torch.Tensor:
    """Return max(1, largest |z|) of each row; what an error of a log-prob is measured by."""
    logits = dense_logits(torch.nan_to_num(case.hidden.double()), case.head)
    heat = case.temperature[:, None] if isinstance(case.temperature, torch.Tensor) else case.temperature
    return (logits / heat).nan_to_num(posinf=0.0, neginf=0.0).abs().amax(1).clamp(min=1.0)


# Of one number: its rounding when it is returned (for values that are normal numbers), and the least that is not lost.
ROUNDING = {
    torch.float64: 2e-16,
    torch.float32: 1e-7,
    torch.bfloat16: 2.0**-8 + 2.0**-12,
    torch.float16: 2.0**-11 + 2.0**-12,
}
LEAST = {torch.float64: 0.0, torch.float32: 1e-37, torch.bfloat16: 1e-37, torch.float16: 2.0**-24}


def compare(
    case: Case,
    found: Found,
    exact: Found,
    *,
    entropy: str,
    trained: str = "hidden",
    loose: float = 1.0,
    share: float = 0.0,
) -> None:
    """Assert that values and gradients agree, row by row, within rounding.

    Args:
        loose: How many times what plain torch needs.
        share: How far exponentials are rounded, relative to themselves, where they are kept in two bytes.
    """
    dtype = case.hidden.dtype
    unit = (1e-14 if dtype == torch.float64 else 1e-6) * loose
    largest = largest_logit(case)
    off = (found.logps.double() - exact.logps).abs() / largest
    assert off.max().item() <= unit, f"log-probs are off by {off.max():.2e} of the largest logit"
    counted = case.counted
    assert not found.logps[~counted].any()
    if entropy == "none":
        assert found.entropies is None
    else:
        off = (found.entropies.detach().double() - exact.entropies).abs() / largest
        assert off.max().item() <= 3 * unit, f"entropies are off by {off.max():.2e} of the largest logit"
        assert not found.entropies[~counted].any()
    for index, (got, want) in enumerate(zip(found.gradients, exact.gradients, strict=True)):
        is_hidden = index == 0 and trained != "head"
        bound = (ROUNDING[dtype] + share + 4 * unit * largest.max()) * want.abs() if not is_hidden else None
        if is_hidden:
            rows = want.norm(dim=1)
            allowed = (ROUNDING[dtype] + share + 4 * unit * largest) * rows + LEAST[dtype] * want.shape[1] ** 0.5
            if entropy == "gradient":  # a sum whose terms cancel where the distribution is sharp
                size = case.head.weight.double().norm(dim=1).max() * case.head.scale / 0.5
                allowed = allowed + (4 * unit * largest + 4 * share) * size * case.bends.abs()
            worst = ((got - want).norm(dim=1) - allowed).max().item()
            assert worst <= 0, f"a row of the gradient is off by {worst:.2e} more than rounding allows"
            assert not got[~counted].any()
        else:
            assert bound is not None
            scale = want.abs().max() if entropy != "gradient" else want.abs().max() * 10
            allowed = bound + (4 * unit * largest.max() + share) * scale + LEAST[dtype]
            assert bool(((got - want).abs() <= allowed).all()), f"gradient {index} of {trained} is off"
