"""What belongs to the whole process and vLLM changes: put back after every call into it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch


@contextlib.contextmanager
def kept_state(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Put back what belongs to the whole process when the block ends: torch, random states, environment, signals.

    Importing vLLM also turns cuDNN's attention off for the whole process, which would cost training its fastest one.

    Args:
        environment: Variables to set inside, where they are not set.
    """
    with contextlib.ExitStack() as after:
        for keep in (_keep_torch, _keep_random, _keep_process):
            keep(after)
        for name, value in (environment or {}).items():
            os.environ.setdefault(name, value)
        yield


@contextlib.contextmanager
def kept_allocator() -> Iterator[None]:
    """Put back the settings of torch's allocator (PYTORCH_ALLOC_CONF) when the block ends, if they have changed.

    vLLM 0.25 turns expandable segments off while it makes its pool, and on again. It gives torch this setting alone,
    and torch sets what it is not given to the default: max_split_size_mb, garbage_collection_threshold.

    Not a part of `kept_state`, which is entered for each token: torch before 2.13 tells its settings only together with
    a list of all blocks.
    """
    before = allocator_settings()
    try:
        yield
    finally:
        if before is not None and allocator_settings() != before:
            torch._C._accelerator_setAllocatorSettings(before)


def allocator_settings() -> str | None:
    """Return the settings of torch's allocator as they were given last; None where it does not say."""
    read: Any = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if read is not None:
        return str(read())
    if not torch.cuda.is_available():
        return None
    found: str | None = torch.cuda.memory._snapshot().get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF")
    return found


def _keep_torch(after: contextlib.ExitStack) -> None:
    cuda: Any = torch.cuda  # some of it has no types
    if cuda.is_initialized():
        after.callback(cuda.set_device, cuda.current_device())  # vLLM makes its own one the current one
    # vLLM replaces this function by one that does nothing.
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()

    def threads_back() -> None:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)

    after.callback(threads_back)
    after.callback(torch.set_default_dtype, torch.get_default_dtype())
    after.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    after.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        after.callback(
            getattr(torch.backends.cuda, f"enable_{name}_sdp"), getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
        )
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        after.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    after.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32)


def _keep_random(after: contextlib.ExitStack) -> None:
    after.callback(random.setstate, random.getstate())
    after.callback(numpy.random.set_state, numpy.random.get_state())
    after.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available():
        after.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def _keep_process(after: contextlib.ExitStack) -> None:
    variables = dict(os.environ)

    def variables_back() -> None:
        if dict(os.environ) != variables:
            os.environ.clear()
            os.environ.update(variables)

    after.callback(variables_back)
    if hasattr(os, "sched_setaffinity"):
        after.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
    if threading.current_thread() is threading.main_thread():
        for sign in (signal.SIGINT, signal.SIGTERM):
            if (handler := signal.getsignal(sign)) is not None:
                after.callback(signal.signal, sign, handler)
