"""Every exception that rewardkit raises on purpose.

RewardkitError                      has `exit_code`, what the command line returns for it
├── UsageError              (2)     a name, option, formula or configuration is wrong
│   ├── FormulaError                a formula cannot be read
│   ├── UnknownName                 no reward, verifier or field of that name; carries the nearest
│   └── OptionError                 an option of a reward has a wrong name or value
├── InputError              (2)     a file, a line or a column is not what it should be
│   ├── ColumnError                 rows lack what a reward needs
│   └── MapError                    which column means what is wrong, or cannot be guessed
├── PluginError             (2)     a plugin that was named does not load, or two claim one name
├── ContractError           (3)     a reward broke its contract (eight completions, one number)
├── RunFolderError          (2)     a run folder cannot be continued, or belongs to another run
├── WorkerError             (3)     worker processes cannot be started
├── ServiceError                    raised by rewards: a service failed; the row's state is error/service
└── SandboxUnavailable              raised by rewards: no sandbox; the row's state is error/sandbox_unavailable

A message says where, what was wanted, what came, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rewardkit.types import BlameMachine


class RewardkitError(Exception):
    """Base of all of rewardkit's own exceptions."""

    exit_code: ClassVar[int] = 2


class UsageError(RewardkitError):
    """A name, option, formula or configuration is wrong."""


class FormulaError(UsageError):
    """A formula cannot be read."""


class UnknownName(UsageError):
    """No entry of that name."""


class OptionError(UsageError):
    """An option of a reward has a wrong name or value."""


class InputError(RewardkitError):
    """A file, a line or a column is not what it should be."""


class ColumnError(InputError):
    """Rows lack a column that a reward needs."""


class MapError(InputError):
    """Which column means what is wrong, or cannot be guessed."""


class PluginError(RewardkitError):
    """A plugin that was named does not load, or two plugins claim one name."""


class RunFolderError(RewardkitError):
    """A run folder cannot be continued, or belongs to another run."""


class ContractError(RewardkitError):
    """A reward broke its contract: the wrong number of values, or something that is no number."""

    exit_code: ClassVar[int] = 3


class WorkerError(RewardkitError):
    """Worker processes cannot be started."""

    exit_code: ClassVar[int] = 3


class ServiceError(RewardkitError):
    """Raise it in a reward when something it depends on over a network failed."""

    reason: ClassVar[BlameMachine] = "service"


class SandboxUnavailable(RewardkitError):
    """Raise it in a reward when no sandbox can be started."""

    reason: ClassVar[BlameMachine] = "sandbox_unavailable"
    step: str = ""
    cause: str = ""
    ways_out: tuple[str, ...] = ()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` for the known name closest to `name`, or ""."""
    import difflib  # only when something is wrong

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
