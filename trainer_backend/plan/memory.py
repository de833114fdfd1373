"""How much memory there is, on a device and on its host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CGROUP = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""A container's limit, what it uses, and what of that are files read before, which give way."""


def free_memory(device: torch.device | str) -> tuple[int, int | None]:
    """Return the free bytes of a device, and of the host where it is another memory.

    Processes that train together on one host each have their part of it: LOCAL_WORLD_SIZE, which torchrun sets.
    """
    import torch

    place = torch.device(device)
    host = available_host() // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0]), host
    return host, None


def available_host(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of host memory that can be had without swapping; a container's limit counts.

    Args:
        meminfo: Where Linux says what the machine has.
        cgroup: Where it says what the container has.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(1024 * _number_of(meminfo, "MemAvailable:"))
    for limit, used, stat, files in _CGROUP:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        with contextlib.suppress(OSError, ValueError):
            left += _number_of(cgroup / stat, files)
        found.append(max(0, left))
    return min(found) if found else 2**33


def _number_of(file: Path, name: str) -> int:
    """Return the number behind a name in a file of such lines.

    Raises:
        OSError, ValueError: There is none.
    """
    for line in file.read_text(encoding="ascii").splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0] == name:
            return int(parts[1])
    raise ValueError(f"{file} has no {name}")
