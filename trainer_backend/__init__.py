"""The bundled GRPO trainer. What stands here is imported when it is first asked for: torch takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig, read_training_file
    from trainer_backend.run import Outcome
    from trainer_backend.train import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "Outcome", "read_training_file"]

_HOMES = {
    "GRPOConfig": "trainer_backend.config",
    "GRPOTrainer": "trainer_backend.train",
    "Outcome": "trainer_backend.run",
    "read_training_file": "trainer_backend.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
