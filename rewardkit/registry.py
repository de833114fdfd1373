"""The registry: names -> entries, each with its owner. Nothing is imported until an entry is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rewardkit.errors import PluginError, UnknownName, nearest

Kind = Literal["verifier", "reward", "reader", "backend", "command"]

NAME = re.compile(r"[a-z][a-z0-9_]*")
_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TARGET = re.compile(rf"(?P<module>{_DOTTED}):{_DOTTED}")
_SHARED_NAMESPACE = ("verifier", "reward")


@dataclass(frozen=True)
class Owner:
    """Who registered an entry: a namespace ("" is ours) of an installed distribution."""

    namespace: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True)
class Entry:
    """One registered name.

    Attributes:
        kind: What the target is.
        name: Full name: `gsm8k`, `dates/iso_day`.
        target: Import string of the thing itself.
        summary: One line.
        owner: Who registered it.
    """

    kind: Kind
    name: str
    target: str
    summary: str
    owner: Owner


class Registry:
    """All entries by name. Verifiers and rewards share one namespace; readers, backends, commands have their own.

    A command is typed without its namespace, so its short name alone must be free.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._claims: dict[tuple[str, str], tuple[Entry, Entry]] = {}
        self._broken: dict[str, str] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry.

        Raises:
            PluginError: The name or target is malformed, or the name is taken.
        """
        owner = entry.owner
        namespace, slash, short = entry.name.rpartition("/")
        if namespace != owner.namespace or bool(slash) != bool(namespace):
            raise PluginError(f"{owner}: the name {entry.name!r} is outside of its namespace {owner.namespace!r}")
        if not NAME.fullmatch(short):
            raise PluginError(
                f"{owner}: the name {short!r} is not of the form [a-z][a-z0-9_]* (lower case, digits, underscores)"
            )
        if not _is_target(entry.target):
            raise PluginError(
                f"{owner}: the target of {entry.name!r} is an import string such as 'package.module:attribute',"
                f" got {entry.target!r}"
            )
        if not isinstance(entry.summary, str):
            raise PluginError(f"{owner}: the summary of {entry.name!r} is one line of text, got {entry.summary!r}")
        key = self._key(entry.kind, entry.name)
        other = self._entries.get(key)
        if other is not None and other.owner == owner:
            raise PluginError(f"{owner}: it registers {short!r} twice")
        if other is not None:
            if other.owner.namespace:  # what is ours stays usable whatever a plugin claims
                self._claims[key] = (other, entry)
            raise PluginError(self._claim(other, entry))
        self._entries[key] = entry

    def remove(self, owner: Owner) -> None:
        """Forget everything that an owner registered."""
        self._entries = {key: entry for key, entry in self._entries.items() if entry.owner != owner}

    def mark_broken(self, namespace: str, reason: str) -> None:
        """Remember why a namespace has no entries, so that a lookup can say it."""
        known = self._broken.get(namespace)
        self._broken[namespace] = f"{known}; {reason}" if known else reason

    def entries(self, *kinds: Kind) -> Iterator[Entry]:
        """Yield entries of these kinds (all, when none is given), ours first, then by name."""
        chosen = [entry for entry in self._entries.values() if not kinds or entry.kind in kinds]
        yield from sorted(chosen, key=lambda entry: (entry.owner.namespace, entry.kind, entry.name))

    def get(self, kind: Kind, name: str) -> Entry:
        """Return an entry.

        Raises:
            PluginError: Two owners claim the name, or its plugin did not load.
            UnknownName: Nobody has it; names the nearest.
        """
        key = self._key(kind, name)
        if key in self._claims:
            raise PluginError(self._claim(*self._claims[key]))
        if key in self._entries:
            return self._entries[key]
        namespace = name.partition("/")[0] if "/" in name else ""
        if namespace in self._broken:
            why = self._broken[namespace]
            raise PluginError(f"{name!r} belongs to plugin {namespace!r}, which does not load: {why}")
        group = key[0]
        known = sorted(entry.name for found, entry in self._entries.items() if found[0] == group)
        close = nearest(name, known)
        hint = f"{close} `rewardkit list` shows all" if close else f"; known are {', '.join(known) or 'none'}"
        raise UnknownName(f"there is no {group} named {name!r}{hint}")

    def by_target(self, target: str | None) -> Entry | None:
        """Return the entry with this target, or None."""
        return next((entry for entry in self._entries.values() if entry.target == target), None)

    @staticmethod
    def _key(kind: str, name: str) -> tuple[str, str]:
        if kind == "command":  # typed without its namespace
            return (kind, name.rpartition("/")[2])
        return ("reward" if kind in _SHARED_NAMESPACE else kind, name)

    @staticmethod
    def _claim(first: Entry, second: Entry) -> str:
        what = f"command {first.name.rpartition('/')[2]!r}" if first.kind == "command" else repr(first.name)
        return f"{what} is registered twice: by {first.owner} and by {second.owner}; uninstall one of them"


def _is_target(target: object) -> bool:
    """Tell whether this is an import string. A file is none: it would be looked for wherever the user happens to be."""
    match = _TARGET.fullmatch(target) if isinstance(target, str) else None
    return match is not None and not match["module"].endswith(".py")
