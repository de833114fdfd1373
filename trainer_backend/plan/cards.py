"""Common GPUs: their memory, and how fast they multiply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewardkit.errors import UsageError
from trainer_backend.errors import meant


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        name: As its maker writes it.
        gb: Its memory as it is sold. What can be used is this many 10^9 bytes or a little more.
        tflops: Peak of dense bfloat16 products summed in float32, 10^12 operations a second.
    """

    name: str
    gb: int
    tflops: float


CARDS: Mapping[str, Card] = {
    # NVIDIA's data sheets of each product; where one gives the peak with sparsity, half of it.
    "b200": Card("B200", 180, 2250),
    "h200": Card("H200", 141, 989),
    "h100": Card("H100 SXM", 80, 989),
    "h100-pcie": Card("H100 PCIe", 80, 756),
    "a100": Card("A100 80GB", 80, 312),
    "a100-40gb": Card("A100 40GB", 40, 312),
    "l40s": Card("L40S", 48, 362),
    "l4": Card("L4", 24, 121),
    "a10": Card("A10", 24, 125),
    "a6000": Card("RTX A6000", 48, 155),
    "rtx6000-ada": Card("RTX 6000 Ada", 48, 364),
    # The white papers of GA102, Ada and RTX Blackwell: GeForce sums in float32 at half the rate.
    "3090": Card("GeForce RTX 3090", 24, 71),
    "4080": Card("GeForce RTX 4080", 16, 97.5),
    "4090": Card("GeForce RTX 4090", 24, 165),
    "5090": Card("GeForce RTX 5090", 32, 209.5),
}


def card_of(name: str) -> Card:
    """Return a card by name; upper case, blanks and "rtx" or "nvidia" in front do not matter.

    Raises:
        UsageError: It is not in the table; names the nearest.
    """
    short = name.strip().lower().replace(" ", "-").removeprefix("nvidia-").removeprefix("geforce-")
    found = CARDS.get(short) or CARDS.get(short.removeprefix("rtx-").removeprefix("rtx"))
    if found is None:
        known = meant(short, CARDS, f"the cards are {', '.join(CARDS)}")
        raise UsageError(f"--gpu {name}: no such card{known}; for another one give its memory with --fit-in")
    return found
