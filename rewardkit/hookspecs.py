"""The hooks that a plugin may implement, and the markers for them.

A plugin is an installed distribution with an entry point in group `rewardkit`:

    [project.entry-points.rewardkit]
    dates = "rewardkit_dates"          # key: the namespace; value: the module that holds the hooks

Every hook is called once, when rewardkit loads its plugins, in the order of the namespaces. It is handed
`register(name, target, summary)` and returns nothing. The target is an import string (`package.module:attribute`)
and is not imported until the entry is used, so a plugin's own module should import nothing heavy.
Names are `[a-z][a-z0-9_]*`; the full name is `NAMESPACE/NAME`.
"""

from __future__ import annotations

from typing import Protocol

import pluggy

hookspec = pluggy.HookspecMarker("rewardkit")
hookimpl = pluggy.HookimplMarker("rewardkit")


class Register(Protocol):
    """What a hook is handed."""

    def __call__(self, name: str, target: str, summary: str) -> None:
        """Register one entry.

        Args:
            name: `[a-z][a-z0-9_]*`, without the namespace.
            target: `package.module:attribute`.
            summary: One line for `rewardkit list`.
        """


@hookspec
def rewardkit_verifiers(register: Register) -> None:
    """Register verifiers: targets are subclasses of `rewardkit.Verifier`."""


@hookspec
def rewardkit_rewards(register: Register) -> None:
    """Register rewards and presets: targets are reward functions, or compositions (a preset)."""


@hookspec
def rewardkit_readers(register: Register) -> None:
    """Register readers of saved generations: targets follow `rewardkit.records.Reader`."""


@hookspec
def rewardkit_backends(register: Register) -> None:
    """Register training backends: targets follow `rewardkit.training.Backend`."""


@hookspec
def rewardkit_commands(register: Register) -> None:
    """Register commands of the command line: targets are click commands."""
