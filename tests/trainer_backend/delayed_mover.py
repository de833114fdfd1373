"""A stand-in for a device whose copies run on two engines beside the computing one, for tests on a CPU.

A copy happens when somebody waits for it, and no sooner. Until then what it writes to reads as NaN, and a tensor that
was let go of before it was copied is lost: its memory would hold something else. Host memory is the real one, used
again in each micro-step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Literal

import torch

from trainer_backend.model.offload import Arriving, HostMemory, Parked


class Engine:
    """Copies one after the other, each when it is waited for."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.done = 0

    def queue(self, copy: Callable[[], None]) -> int:
        """Add a copy, and return its number."""
        self.waiting.append(copy)
        return self.done + len(self.waiting)

    def wait(self, number: int | None = None) -> None:
        """Run the copies up to a number; None: all of them."""
        while self.waiting and (number is None or self.done < number):
            self.done += 1
            self.waiting.pop(0)()


class Delayed:
    """The mover of such a device.

    Attributes:
        forgets: What does not wait as it should, in a negative control.
        memory: Where copies lie on the host.
        copies: How many there were, both ways.
    """

    def __init__(self, *, forgets: Literal["take", "settle"] | None = None, limit: int | None = None) -> None:
        self.forgets = forgets
        self.memory = HostMemory(pin=False, limit=limit, slab=4096)
        self.copies = 0
        self._out, self._in = Engine(), Engine()

    @property
    def waiting(self) -> int:
        """Copies that were asked for and have not happened."""
        return len(self._out.waiting) + len(self._in.waiting)

    def out(self, tensor: torch.Tensor) -> Parked:
        host = self.memory.take(tensor).fill_(torch.nan)
        source = weakref.ref(tensor)
        return Parked(host, self._out.queue(lambda: self._copy(source(), host)))

    def settle(self, parked: Parked) -> None:
        if self.forgets != "settle":
            self._out.wait(parked.done)

    def back(self, parked: Parked) -> Arriving:
        tensor = torch.full_like(parked.host, torch.nan)

        def copy() -> None:
            self._out.wait(parked.done)
            self._copy(parked.host, tensor)

        return Arriving(tensor, self._in.queue(copy))

    def take(self, arriving: Arriving) -> torch.Tensor:
        if self.forgets == "take":
            return arriving.tensor.clone()  # what lies there now; the copy may still come
        self._in.wait(arriving.done)
        return arriving.tensor

    def _copy(self, source: torch.Tensor | None, target: torch.Tensor) -> None:
        self.copies += 1
        if source is not None:
            target.copy_(source.detach())

    def reset(self) -> None:
        self.memory.reset()

    def abandon(self) -> None:
        self._out.wait()
        self._in.wait()
        self.memory.reset()

    def close(self) -> None:
        self.abandon()
        self.memory.close()
