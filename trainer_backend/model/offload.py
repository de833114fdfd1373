"""Layer inputs that wait in host memory for the backward pass; the layers are computed again from them.

With gradient checkpointing a model keeps one tensor a layer, its input: layers x tokens x hidden values. They are all
that grows with the number of layers, and each is needed once, in reverse order, long after it was made. So each is
copied to the host while its layer computes, and back while the layer above it goes backward. What is computed is the
same: gradients are bit-equal to those without. Streamed layers may keep more than their input; what is kept of one
layer is a group, which comes back together.

    store = LayerInputs(mover_for(device))
    undo = checkpoint_layers(model, store)           # any model of transformers
    with learning(model), store.micro_step():        # one forward pass and its backward pass (`modes.learning`)
        score(...); loss.backward()

How it holds together. `LayerInputs` keeps the order of the groups, starts the copy back of the next one when one is
taken, and is empty at the end of each micro-step, or says so. Streamed layers put and take their groups themselves
(`Streamed.store`). torch's checkpoint saves a layer's arguments as autograd saves tensors, so saved-tensor hooks around
it see exactly those (inside, its own are in force): each is a group. A `Mover` does the copies; on a CPU there is
nothing to move. On CUDA they run on two side streams:

* a copy to the host waits for what was queued before it on the current stream, which made the tensor; the tensor is
  held until a layer has been queued beside the copy, and then the current stream waits for it: memory is used again in
  the order of the stream, so how much is needed does not depend on how far the CPU is ahead of the device;
* memory for a copy back is taken on the current stream, so the copy waits for what was queued there (it may still use
  that memory), and the current stream waits for the copy before it computes;
* host memory is used again in the next micro-step, whose copies to the host wait for this one's copies back.

The current stream is asked for at each call: autograd runs the backward pass in another thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer_backend.model.errors import ModelError
from trainer_backend.model.forward import base_of

LEAST_BYTES = 65_536
"""Smaller tensors stay where they are: copying them takes longer than it frees."""

SLAB = 268_435_456
"""Bytes of host memory that are taken and pinned at a time. Pinning takes half a second a GB, once."""

ALIGNED = 256


class HostMemoryError(ModelError):
    """Layer inputs need more host memory than they were given; this is no lack of device memory."""


@dataclass(frozen=True)
class Parked:
    """A tensor on its way to the host, or there."""

    host: torch.Tensor
    done: Any = None


@dataclass(frozen=True)
class Arriving:
    """A tensor on its way back to the device, or there."""

    tensor: torch.Tensor
    done: Any = None


class Mover(Protocol):
    """Copies tensors to the host and back, in the background where the device can."""

    def out(self, tensor: torch.Tensor) -> Parked:
        """Start a copy to the host; the tensor must be held until `settle`."""

    def settle(self, parked: Parked) -> None:
        """Have what is computed next wait for the copy to the host: the tensor may be let go of."""

    def back(self, parked: Parked) -> Arriving:
        """Start a copy back, after the one to the host."""

    def take(self, arriving: Arriving) -> torch.Tensor:
        """Return the tensor for use by what is computed next."""

    def reset(self) -> None:
        """Every tensor was taken: host memory may be used again."""

    def abandon(self) -> None:
        """Copies that nobody will take may be under way: wait for them, then as `reset`."""

    def close(self) -> None:
        """As `abandon`, and give host memory back."""


class InPlace:
    """The mover of a CPU: layer inputs are in host memory already."""

    def out(self, tensor: torch.Tensor) -> Parked:
        """Return the tensor itself."""
        return Parked(tensor)

    def settle(self, parked: Parked) -> None:
        """Nothing to do."""

    def back(self, parked: Parked) -> Arriving:
        """Return the tensor itself."""
        return Arriving(parked.host)

    def take(self, arriving: Arriving) -> torch.Tensor:
        """Return the tensor itself."""
        return arriving.tensor

    def reset(self) -> None:
        """Nothing to do."""

    def abandon(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class HostMemory:
    """Host memory for one micro-step at a time: slabs that are filled from the start and then used again.

    torch's own pinned memory comes in powers of two (168 MB take 256); a slab holds a whole number of what it was taken
    for, rounded up by a 32nd of a full slab, and what is small finds room in any. Slabs that have become too small are
    given back when a larger one is taken. Where pinning is refused, the slab stays pageable: slower, and right.
    """

    def __init__(
        self, *, pin: bool, limit: int | None = None, slab: int = SLAB, wait: Callable[[], None] = lambda: None
    ) -> None:
        """Take none yet.

        Args:
            pin: Whether slabs are pinned.
            limit: Bytes that may be taken; None: as many as there are.
            slab: Bytes of a full slab.
            wait: Waits for all copies, before a slab is given back that an earlier micro-step has used.
        """
        self.pin, self.limit, self.slab, self.wait = pin, limit, slab, wait
        self.slabs: list[torch.Tensor] = []
        self.refused = False
        self._used: list[int] = []  # bytes of each slab

    @property
    def bytes(self) -> int:
        """All slabs together."""
        return sum(slab.numel() for slab in self.slabs)

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory for a tensor of that shape and type.

        Raises:
            HostMemoryError: It would exceed the limit, or there is none.
        """
        size = like.numel() * like.element_size()
        each = -(-size // ALIGNED) * ALIGNED
        at = next((at for at, used in enumerate(self._used) if used + size <= self.slabs[at].numel()), None)
        if at is None:
            self._drop_unused()
            at = self._grow(size)
        start = self._used[at]
        self._used[at] += each
        return self.slabs[at][start : start + size].view(like.dtype).view(like.shape)

    def _drop_unused(self) -> None:
        """Give back slabs that this micro-step does not use: they are too small for what it needs."""
        if 0 in self._used:
            self.wait()
            for at in reversed(range(len(self.slabs))):
                if not self._used[at]:
                    self._release(self.slabs.pop(at))
                    del self._used[at]

    def _grow(self, least: int) -> int:
        """Take a slab of at least so many bytes, and return its place."""
        step = max(ALIGNED, self.slab // 32)
        each = max(-(-least // step), 1) * step
        size = max(self.slab // each, 1) * each
        if self.limit is not None:
            size = min(size, max(least, self.limit - self.bytes))
        if self.limit is not None and self.bytes + size > self.limit:
            raise HostMemoryError(
                f"layer inputs need more than the {self.limit / 1e9:.1f} GB of host memory they may take; lower"
                " memory.token_budget or max_completion_length"
            )
        try:
            slab = torch.empty(size, dtype=torch.uint8)
        except RuntimeError as error:
            raise HostMemoryError(
                f"the host has no {size / 1e9:.1f} GB more for layer inputs ({self.bytes / 1e9:.1f} GB are taken);"
                " lower memory.token_budget or max_completion_length"
            ) from error
        if self.pin and not self.refused:
            self.refused = int(_cuda().cudaHostRegister(slab.data_ptr(), size, 0)) != 0
            if self.refused:
                _take_last_error()
        self.slabs.append(slab)
        self._used.append(0)
        return len(self.slabs) - 1

    def _release(self, slab: torch.Tensor) -> None:
        if self.pin and slab.is_pinned():
            _cuda().cudaHostUnregister(slab.data_ptr())

    def reset(self) -> None:
        """Use all of it again."""
        self._used = [0] * len(self.slabs)

    def close(self) -> None:
        """Give all of it back. Nothing may be copying."""
        for slab in self.slabs:
            self._release(slab)
        self.slabs.clear()
        self.reset()


def _take_last_error() -> None:
    """Take the error that a refused call has left: CUDA keeps it, and the next kernel's start would raise it."""
    with contextlib.suppress(RuntimeError):
        _throwaway()


def _throwaway() -> None:
    torch.zeros(1, device="cuda")


def _cuda() -> Any:
    runtime: Any = torch.cuda.cudart  # has no types
    return runtime()


class CudaMover:
    """The mover of a CUDA device: pinned host memory and two side streams."""

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.device = device
        self.memory = HostMemory(pin=True, limit=limit, wait=self._wait)
        stream: Any = torch.cuda.Stream
        self._out, self._in = stream(device), stream(device)

    def _wait(self) -> None:
        self._out.synchronize()
        self._in.synchronize()

    def out(self, tensor: torch.Tensor) -> Parked:
        """Start a copy to the host behind what made the tensor."""
        host = self.memory.take(tensor)
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
        return Parked(host, self._out.record_event())

    def settle(self, parked: Parked) -> None:
        """Have the current stream wait for the copy to the host."""
        torch.cuda.current_stream(self.device).wait_event(parked.done)

    def back(self, parked: Parked) -> Arriving:
        """Start a copy back, into memory that is free once the current stream has come to this point."""
        tensor = torch.empty_like(parked.host, device=self.device)
        self._in.wait_stream(torch.cuda.current_stream(self.device))
        self._in.wait_event(parked.done)
        with torch.cuda.stream(self._in):
            tensor.copy_(parked.host, non_blocking=True)
        return Arriving(tensor, self._in.record_event())

    def take(self, arriving: Arriving) -> torch.Tensor:
        """Return the tensor; the current stream waits for its copy."""
        torch.cuda.current_stream(self.device).wait_event(arriving.done)
        return arriving.tensor

    def reset(self) -> None:
        """Use host memory again: later copies to it wait for the copies from it."""
        self._out.wait_stream(self._in)
        self.memory.reset()

    def abandon(self) -> None:
        """Wait for all copies, then use host memory again."""
        self._wait()
        self.memory.reset()

    def close(self) -> None:
        """Wait for all copies, then give host memory back."""
        self.abandon()
        self.memory.close()


def mover_for(device: torch.device | str, limit: int | None = None) -> Mover:
    """Return the mover of a device; `limit` bounds the host memory it takes, in bytes."""
    place = torch.device(device)
    return CudaMover(place, limit) if place.type == "cuda" else InPlace()


@dataclass(eq=False)
class _Part:
    """One tensor of a group: `near` is itself, as long as it is on the device; parked None: it stays there."""

    near: torch.Tensor | None
    version: int
    parked: Parked | None
    arriving: Arriving | None = None


@dataclass(eq=False)
class Group:
    """What is kept of one layer: one tensor or more, which come back together.

    Attributes:
        index: How many were put before it.
        taken: Whether its backward pass has had it, or never will.
    """

    index: int
    taken: bool = False
    _parts: list[_Part] = field(default_factory=list)
    _early: int = 0  # how many of them it was put with; the others were added


@dataclass(eq=False)
class LayerInputs:
    """The layer inputs of one micro-step, in host memory, and what else of a layer is kept with its input.

    On the device are at most what computes, what arrives or leaves beside it, and the newest.

    Attributes:
        mover: Does the copies.
        least: Bytes from which on a tensor is moved.
        moved: Bytes moved to the host since the start.
    """

    mover: Mover
    least: int = LEAST_BYTES
    moved: int = 0
    _groups: list[Group] = field(default_factory=list)
    _seen: int = 0

    @property
    def held(self) -> int:
        """How many layers' groups wait for their backward pass."""
        return sum(not group.taken for group in self._groups)

    @contextlib.contextmanager
    def micro_step(self) -> Iterator[None]:
        """Own what is stored between a forward pass and its backward pass; nothing may be left (see `forget`).

        Raises:
            RuntimeError: Layer inputs were left: a forward pass without its backward pass.
        """
        if self.held:
            raise RuntimeError("layer inputs of an earlier micro-step are still held")
        try:
            yield
        except BaseException:
            self.forget()
            raise
        if self.held:
            left = self.held
            self.forget()
            raise RuntimeError(f"{left} layer inputs were stored and never used: a forward pass had no backward pass")
        self._groups.clear()

    def forget(self) -> None:
        """Let go of what is stored: the forward pass is given up, and has no backward pass."""
        self.mover.abandon()
        for group in self._groups:
            group.taken = True
            group._parts.clear()
        self._groups.clear()

    def close(self) -> None:
        """Give host memory back; it is taken anew where layer inputs are stored again."""
        self.forget()
        self.mover.close()

    def put(self, *tensors: torch.Tensor) -> Group:
        """Start a layer's group with its input, before the layer computes: the copy runs beside it.

        Raises:
            HostMemoryError: There is no more host memory for it.
            RuntimeError: A tensor that was put before was changed in place.
        """
        if self._groups:
            self._make_way()
        else:
            self.mover.reset()
        group = Group(len(self._groups))
        self._groups.append(group)
        self.add(group, *tensors)
        group._early = len(tensors)
        return group

    def add(self, group: Group, *tensors: torch.Tensor) -> None:
        """Add what the layer has made to its group, which is the newest.

        Raises:
            HostMemoryError: There is no more host memory for it.
        """
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            moves = size >= self.least and tensor.is_contiguous()
            group._parts.append(_Part(tensor, tensor._version, self.mover.out(tensor) if moves else None))
            self.moved += size if moves else 0

    def take(self, group: Group) -> list[torch.Tensor]:
        """Return a group's tensors for the layer's backward pass, and start the copies of the group before it.

        Raises:
            RuntimeError: It was taken, or let go of; or a tensor of it was changed in place.
        """
        if group.taken:
            raise RuntimeError(
                "a layer input was asked for twice, or after its micro-step: a graph can go backward once"
            )
        group.taken = True
        tensors = [self._found(part) for part in group._parts]
        group._parts.clear()
        if group.index:
            self._start(self._groups[group.index - 1])
        if not self.held:
            self._groups.clear()
        return tensors

    def _make_way(self) -> None:
        """Let go of what has had a layer's time to leave: not yet of what was added to the newest just now."""
        newest = self._groups[-1]
        older = self._groups[-2]._parts if len(self._groups) > 1 else []
        for part in [*older, *newest._parts[: newest._early]]:
            self._let_go(part)

    def _let_go(self, part: _Part) -> None:
        if part.near is None or part.parked is None:
            return
        if part.near._version != part.version:
            raise RuntimeError(
                "a layer changed its input in place, so its copy on the host cannot be trusted; use mode resident"
            )
        self.mover.settle(part.parked)
        part.near = None

    def _start(self, group: Group) -> None:
        for part in group._parts:
            if part.near is None and part.arriving is None and part.parked is not None:
                part.arriving = self.mover.back(part.parked)

    def _found(self, part: _Part) -> torch.Tensor:
        if part.near is not None:
            tensor = part.near
            self._let_go(part)
            return tensor
        assert part.parked is not None
        return self.mover.take(part.arriving or self.mover.back(part.parked))

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a layer under torch's checkpoint, its arguments in this store."""
        before = self._seen
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            out = checkpoint(function, *args, use_reentrant=False, **options)
        if torch.is_grad_enabled() and before == self._seen:
            raise RuntimeError(
                "this version of torch's checkpoint does not save arguments as autograd does; use mode resident"
            )
        return out

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | Group:
        self._seen += 1
        size = tensor.numel() * tensor.element_size()
        # 4 dimensions: an attention mask, which all layers share.
        if not tensor.is_floating_point() or tensor.dim() > 3 or size < self.least or not tensor.is_contiguous():
            return tensor
        return self.put(tensor)

    def _unpack(self, saved: torch.Tensor | Group) -> torch.Tensor:
        return saved if isinstance(saved, torch.Tensor) else self.take(saved)[0]


def checkpoint_layers(model: nn.Module, store: LayerInputs | None = None) -> Callable[[], None]:
    """Have every layer computed again in the backward pass, while it is in training mode itself (`modes.learning`).

    Args:
        model: A causal language model of transformers, or a PeftModel around it.
        store: Where layer inputs wait; None: where they were made.

    Returns:
        Undoes it: the layers are as they were before.

    Raises:
        ModelError: The model has no layers that can be checkpointed.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(base_of(model)).__name__} has no layers that transformers can checkpoint;"
            " set gradient_checkpointing = false"
        )
    before = [{name: vars(layer)[name] for name in _SET if name in vars(layer)} for layer in layers]
    for layer in layers:
        # What `gradient_checkpointing_enable` sets; it also makes the embedding's output ask for a gradient, which
        # only the other kind of checkpoint needs.
        layer._gradient_checkpointing_func = functools.partial(_again, layer, store)
        layer.gradient_checkpointing = True

    def undo() -> None:
        for layer, values in zip(layers, before, strict=True):
            for name in _SET:
                vars(layer).pop(name, None)
            vars(layer).update(values)

    return undo


_SET = ("_gradient_checkpointing_func", "gradient_checkpointing")  # of a layer


def _again(
    layer: nn.Module, store: LayerInputs | None, function: Callable[..., Any], *args: Any, **keywords: Any
) -> Any:
    """Call a layer's own function so that it is called again in the backward pass."""

    def call(*inner: Any) -> Any:
        # The layer's own flag is what asks for this; what it computes goes by the flags of the modules in it.
        was, layer.training = layer.training, False
        try:
            return function(*inner, **keywords)
        finally:
            layer.training = was

    # Only what is in training mode may draw random numbers, which must then be drawn again as they were.
    random = any(module.training for module in layer.modules() if module is not layer)
    if store is None:
        return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=random)
    return store.run(call, *args, preserve_rng_state=random)
