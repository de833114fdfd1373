"""Optimizers and learning-rate schedules by their names in transformers, from the libraries that keep them.

| name | optimizer | state a trained parameter |
| --- | --- | --- |
| adamw_torch | torch.optim.AdamW, fused | 8 bytes |
| adamw_8bit | bitsandbytes AdamW8bit | 2 bytes, for tensors of at least 4,096 numbers |
| sgd | torch.optim.SGD, plain | none |

Schedules are those of `transformers.get_scheduler`. Weight decay is applied to matrices and not to biases and norms.
Where the plan asks for it, AdamW's state waits in host memory between its steps (`AdamWOnHost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from rewardkit.errors import OptionError, UsageError
from trainer_backend.errors import unknown

OPTIMIZERS = ("adamw_torch", "adamw_8bit", "sgd")
"""The optimizers by name."""

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's two, as torch names them."""

BUCKET = 67_108_864
"""Bytes of moments that are on the device at a time where they wait on the host."""


def build_optimizer(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    on_host: bool = False,
) -> torch.optim.Optimizer:
    """Return an optimizer over the parameters that ask for a gradient.

    Args:
        name: A name in `OPTIMIZERS`.
        parameters: All parameters of the model; frozen ones are passed over.
        learning_rate: At the top of the schedule.
        weight_decay: Decoupled for AdamW.
        betas, epsilon: Of AdamW.
        on_host: Whether adamw_torch keeps its state in host memory; the others have little, and keep it where it is.

    Raises:
        UnknownName: No such optimizer.
        OptionError: A number that makes no sense.
        UsageError: Nothing to train, or bitsandbytes is not installed.
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    if not learning_rate >= 0.0 or not weight_decay >= 0.0:
        raise OptionError(f"learning_rate and weight_decay are at least 0, got {learning_rate} and {weight_decay}")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise UsageError(
            "the model has no parameter to train: was its adapter loaded frozen? Load it with is_trainable=True"
        )
    groups = _groups(trained, weight_decay)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=learning_rate)
    if name == "adamw_8bit":
        adamw = _bitsandbytes().optim.AdamW8bit
        made: torch.optim.Optimizer = adamw(groups, lr=learning_rate, betas=betas, eps=epsilon)
        return made
    # One kernel for all tensors: an adapter has hundreds of small ones.
    fused = all(parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda") for parameter in trained)
    kind = AdamWOnHost if on_host else torch.optim.AdamW
    return kind(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=fused)


class AdamWOnHost(torch.optim.AdamW):
    """AdamW whose moments wait in host memory, and are on the device `BUCKET` bytes at a time: the same bit by bit.

    All copies are on the current stream, in turn with the kernels that use them. At 55 GB/s they take 2 x 8 bytes a
    trained parameter: 25 ms a step for 84 million. torch pins each moment as the next larger power of two.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, **options)
        self._rooms: dict[tuple[torch.Tensor, str], torch.Tensor] = {}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step, bucket by bucket."""
        found = None if closure is None else closure()
        groups = self.param_groups
        try:
            for group in groups:
                for bucket in _buckets(group["params"]):
                    self._fetch(bucket)
                    self.param_groups = [{**group, "params": bucket}]
                    super().step()
                    self._put_back(bucket)
        finally:
            self.param_groups = groups
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state as AdamW does, once the copies to the host are done."""
        for device in {weight.device for weight in self.state if weight.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take a state, of AdamW or of this class. Its moments never are on the device, where torch would put them."""
        states: dict[int, dict[str, Any]] = state_dict["state"]
        rest = {at: {name: one for name, one in state.items() if name not in MOMENTS} for at, state in states.items()}
        super().load_state_dict({**state_dict, "state": rest})
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, weight in zip(numbers, weights, strict=True):
            for name in MOMENTS:
                if name in states.get(number, {}):
                    self.state[weight][name] = self._room(weight, name).copy_(states[number][name])

    def _fetch(self, bucket: Sequence[torch.Tensor]) -> None:
        for weight in bucket:
            state = self.state[weight]
            state.update({name: state[name].to(weight.device, non_blocking=True) for name in MOMENTS if name in state})

    def _put_back(self, bucket: Sequence[torch.Tensor]) -> None:
        for weight in bucket:
            state = self.state[weight]
            for name in MOMENTS:
                if name in state and state[name].device.type != "cpu":
                    state[name] = self._room(weight, name).copy_(state[name], non_blocking=True)

    def _room(self, weight: torch.Tensor, name: str) -> torch.Tensor:
        """Return the host memory of a moment, the same each time."""
        if (weight, name) not in self._rooms:
            try:
                room = torch.empty_like(weight, device="cpu", pin_memory=True, requires_grad=False)
            except RuntimeError:  # no more memory can be pinned: slower, and right
                room = torch.empty_like(weight, device="cpu", requires_grad=False)
            self._rooms[weight, name] = room
        return self._rooms[weight, name]


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Yield the parameters in order, as many at a time as have `BUCKET` bytes of moments; one may have more."""
    bucket: list[torch.nn.Parameter] = []
    size = 0
    for weight in parameters:
        each = len(MOMENTS) * weight.numel() * weight.element_size()
        if bucket and size + each > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(weight)
        size += each
    if bucket:
        yield bucket


def _groups(trained: list[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError:
        raise UsageError(
            'optim = "adamw_8bit" needs bitsandbytes, which is not installed: pip install "rewardkit[train]"'
        ) from None
    return bitsandbytes


def build_scheduler(
    name: str,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    warmup_steps: int = 0,
    options: Mapping[str, Any] | None = None,
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule of the learning rate; call its `step` once after each optimizer step.

    Args:
        name: As in transformers: "constant", "constant_with_warmup", "linear", "cosine", ...
        optimizer: Its optimizer.
        steps: Optimizer steps of the whole run.
        warmup_steps: Steps in which it rises from 0. "constant" has none: with warm-up it becomes
            "constant_with_warmup".
        options: What the schedule takes besides, such as min_lr.

    Raises:
        UnknownName: No such schedule.
        OptionError: Numbers of steps that make no sense, or an option that the schedule does not take.
    """
    from transformers import SchedulerType, get_scheduler

    names = [kind.value for kind in SchedulerType]
    if name not in names:
        raise unknown("schedule of the learning rate", name, names)
    if steps < 1 or not 0 <= warmup_steps <= steps:
        raise OptionError(f"a run has 1 step or more, of which warmup_steps are a part; got {steps} and {warmup_steps}")
    if name == "constant" and warmup_steps:
        name = "constant_with_warmup"
    try:
        made: torch.optim.lr_scheduler.LRScheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup_steps,
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(options or {}),
        )
    except (TypeError, ValueError) as error:
        raise OptionError(f"the schedule {name!r} cannot be made with {dict(options or {})}: {error}") from None
    return made
