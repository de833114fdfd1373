"""rewardkit: reward functions you can trust, and one command that scores saved generations with them.

    from rewardkit import reward

    @reward
    def brief(completion, *, max_words: int = 120) -> float:
        return float(len(completion.split()) <= max_words)

Names are imported on first use, so that `import rewardkit` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewardkit.compose import Reward, clip, constant, first_of, gate, maximum, minimum, schedule
    from rewardkit.engine import Engine, Scored, score, score_text
    from rewardkit.errors import (
        ColumnError,
        ContractError,
        FormulaError,
        InputError,
        MapError,
        OptionError,
        PluginError,
        RewardkitError,
        RunFolderError,
        SandboxUnavailable,
        ServiceError,
        UnknownName,
        UsageError,
        WorkerError,
    )
    from rewardkit.hookspecs import hookimpl
    from rewardkit.recipe import from_data, parse, to_data
    from rewardkit.records import read_generations
    from rewardkit.reward import from_trl, group_reward, reward
    from rewardkit.types import Completion, Generation, Sample, Score, Verdict
    from rewardkit.verifier import Number, Reference, Verifier

__version__ = "0.1.0"

_HOME = {
    "compose": ("Reward", "clip", "constant", "first_of", "gate", "maximum", "minimum", "schedule"),
    "engine": ("Engine", "Scored", "score", "score_text"),
    "errors": (
        "ColumnError",
        "ContractError",
        "FormulaError",
        "InputError",
        "MapError",
        "OptionError",
        "PluginError",
        "RewardkitError",
        "RunFolderError",
        "SandboxUnavailable",
        "ServiceError",
        "UnknownName",
        "UsageError",
        "WorkerError",
    ),
    "hookspecs": ("hookimpl",),
    "recipe": ("from_data", "parse", "to_data"),
    "records": ("read_generations",),
    "reward": ("from_trl", "group_reward", "reward"),
    "types": ("Completion", "Generation", "Sample", "Score", "Verdict"),
    "verifier": ("Number", "Reference", "Verifier"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ColumnError",
    "Completion",
    "ContractError",
    "Engine",
    "FormulaError",
    "Generation",
    "InputError",
    "MapError",
    "Number",
    "OptionError",
    "PluginError",
    "Reference",
    "Reward",
    "RewardkitError",
    "RunFolderError",
    "Sample",
    "SandboxUnavailable",
    "Score",
    "Scored",
    "ServiceError",
    "UnknownName",
    "UsageError",
    "Verdict",
    "Verifier",
    "WorkerError",
    "clip",
    "constant",
    "first_of",
    "from_data",
    "from_trl",
    "gate",
    "group_reward",
    "hookimpl",
    "maximum",
    "minimum",
    "parse",
    "read_generations",
    "reward",
    "schedule",
    "score",
    "score_text",
    "to_data",
]


class _Package(ModuleType):
    """The package, with `rewardkit.reward` being the decorator although a submodule has the same name."""

    @property
    def reward(self) -> Any:
        return importlib.import_module("rewardkit.reward").reward

    @reward.setter
    def reward(self, submodule: ModuleType) -> None:
        """Ignore the import system, which would bind the submodule to this name."""


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rewardkit' has no attribute {name!r}")
    if name == "read_generations":
        importlib.import_module("rewardkit.plugins").offer_readers()
    value = getattr(importlib.import_module(f"rewardkit.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
