"""What a caller can do wrong, in the terms of rewardkit's exception tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rewardkit.errors import RewardkitError, UnknownName, UsageError, nearest


class TensorError(UsageError):
    """A tensor has another shape, dtype or content than a formula needs; the message names it."""


class ConfigError(UsageError):
    """A setting of a training run is wrong; the message names its table and key."""


class NotFinite(RewardkitError):
    """The model gives NaN or infinity where numbers are wanted, so nothing can be sampled from it."""

    exit_code: ClassVar[int] = 3


def meant(name: str, known: Iterable[str], rest: str) -> str:
    """Return the end of a sentence about a name that is not known: the nearest one, if any, and `rest`."""
    near = nearest(name, known)
    return f"{near} {rest[:1].upper()}{rest[1:]}" if near else f"; {rest}"


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the error for a name that a table lacks, with the nearest one and all there are."""
    names = list(known)
    return UnknownName(f"there is no {what} {name!r}{meant(name, names, 'the names are ' + ', '.join(names))}")
