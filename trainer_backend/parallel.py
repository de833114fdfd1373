"""Data parallel training: what one process knows of the others, on torch.distributed.

Every process owns whole groups and does its own micro-steps, however many they are; nothing is exchanged in between.
Then the processes add up their totals and, once an optimizer step, their gradients. They are added and never averaged:
each loss is already divided by the totals of the whole optimizer batch, so the number of processes changes nothing. A
process without rows adds zeros.

Started by `torchrun` or `accelerate launch`, which set RANK, WORLD_SIZE and the address to meet at; without them there
is one process, and everything here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rewardkit.errors import UsageError

T = TypeVar("T")

PATIENCE = timedelta(hours=3)
"""How long a process waits for the others. torch's 10 minutes (NCCL) and 30 (gloo) are less than slow rewards may take;
a process that has died is noticed by what started them."""

BUCKET = 67_108_864
"""Bytes of gradients that are sent in one piece."""


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: This one's number, from 0.
        size: How many there are.
        device: Where this process computes, and where tensors that are exchanged lie.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def join(cls, device: torch.device | str | None = None) -> World:
        """Return the world that the environment describes, after meeting the other processes.

        Args:
            device: "cpu", "cuda", or None: a GPU where there is one. Each process of a machine takes its own GPU.

        Raises:
            UsageError: The environment is incomplete, or a process has no GPU of its own.
        """
        kind = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        size = _number("WORLD_SIZE", 1)
        if size == 1:
            return cls(device=kind)
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UsageError(
                f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set: start the run with torchrun or accelerate"
                " launch, or unset WORLD_SIZE"
            )
        rank = _number("RANK", 0)
        if kind.type == "cuda":
            local = _number("LOCAL_RANK", rank)
            if local >= torch.cuda.device_count():
                raise UsageError(
                    f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()};"
                    " start as many processes as there are GPUs"
                )
            kind = torch.device("cuda", local)
            torch.cuda.set_device(kind)
        if not dist.is_initialized():
            backend = "nccl" if kind.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=PATIENCE)
        return cls(rank, size, kind)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this process's items: every `size`-th, so that neighbours in length are spread."""
        return list(items[self.rank :: self.size])

    def collect(self, mine: Sequence[T]) -> list[T]:
        """Return the items of all processes in the order that they had before `share`, in all of them."""
        parts = self.gather(list(mine))
        found: list[T] = []
        for at in range(sum(map(len, parts))):
            found.append(parts[at % self.size][at // self.size])
        return found

    def sums(self, values: Iterable[float]) -> list[float]:
        """Return the sums over all processes, in float64; every process gives as many."""
        return self._reduced(values, dist.ReduceOp.SUM if self.size > 1 else None)

    def highest(self, values: Iterable[float]) -> list[float]:
        """Return the highest over all processes, in float64."""
        return self._reduced(values, dist.ReduceOp.MAX if self.size > 1 else None)

    def _reduced(self, values: Iterable[float], operation: Any) -> list[float]:
        given = [float(value) for value in values]
        if self.size == 1 or not given:
            return given
        tensor = torch.tensor(given, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return [float(value) for value in tensor.tolist()]

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace the gradient of every parameter by its sum over all processes; one that has none adds zeros.

        The parameters are the same, in the same order, in all processes.
        """
        given = list(parameters)
        for parameter in given:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.size == 1:
            return
        for bucket in _buckets([parameter.grad for parameter in given if parameter.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, dist.ReduceOp.SUM)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def gather(self, value: T) -> list[T]:
        """Return what each process gave, in the order of ranks, in all of them. The value must pickle."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_first(self, value: T) -> T:
        """Return what the first process gave."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Take leave of the other processes; without it, torch complains at the end."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"the environment variable {name} is a whole number, got {text!r}: unset it, or use torchrun")
    return int(text)


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return neighbours of one dtype in pieces of about `BUCKET` bytes."""
    found: list[list[torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        if not found or found[-1][0].dtype != tensor.dtype or size + tensor.nbytes > BUCKET:
            found.append([])
            size = 0
        found[-1].append(tensor)
        size += tensor.nbytes
    return found
