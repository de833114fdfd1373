"""Which field of a row means what: roles and their paths, as `--map role=path` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rewardkit.errors import MapError, nearest
from rewardkit.records.paths import Path
from rewardkit.records.text import visible

ROLES = (
    "completion",
    "reference",
    "prompt",
    "id",
    "label",
    "model",
    "step",
    "tokens",
    "finish_reason",
    "error",
    "group",
)
_SAME = {"gold": "reference"}

# Commas between parts; those inside brackets (quoted names) do not count.
_PART = re.compile(r'(?:[^,\["]|\["(?:[^"\\]|\\.)*"\]|\[|")+')


class FieldMap(Mapping[str, Path | None]):
    """Role to path, immutable. A role may be mapped to None: "the rows have no such field"."""

    __slots__ = ("_paths",)

    def __init__(self, paths: Mapping[str, Path | str | None] | None = None) -> None:
        found: dict[str, Path | None] = {}
        for role, path in (paths or {}).items():
            found[_role(role)] = Path.parse(path) if isinstance(path, str) else path
        self._paths = {role: found[role] for role in ROLES if role in found}

    def __getitem__(self, role: str) -> Path | None:
        return self._paths[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __hash__(self) -> int:
        return hash(tuple(self._paths.items()))

    def __repr__(self) -> str:
        return f"FieldMap({self.as_dict()!r})"

    @classmethod
    def parse(cls, arguments: Iterable[str]) -> FieldMap:
        """Return the map that `--map` arguments write: `role=path`, several by comma or by repeating.

        `role=` without a path says that the rows have no such field. `gold` is accepted for `reference`.

        Raises:
            MapError: An unknown role, a role given twice, or a path that cannot be read.
        """
        paths: dict[str, Path | None] = {}
        for argument in arguments:
            for part in _PART.findall(argument):
                if not part.strip():
                    continue
                name, equals, text = part.partition("=")
                if not equals:
                    raise MapError(f"--map {visible(part.strip())}: write role=path, such as completion=response")
                role = _role(name.strip())
                if role in paths:
                    raise MapError(f"--map gives {role} twice")
                try:
                    paths[role] = Path.parse(text.strip()) if text.strip() else None
                except MapError as problem:
                    raise MapError(f"--map {visible(part.strip())}: {problem}") from None
        return cls(paths)

    def over(self, other: Mapping[str, Path | None]) -> FieldMap:
        """Return this map, filled up from `other` where this one says nothing."""
        return FieldMap({**other, **self._paths})

    def as_dict(self) -> dict[str, str]:
        """Return role to path as text ("" for None), for a configuration file."""
        return {role: "" if path is None else str(path) for role, path in self._paths.items()}

    def arguments(self) -> str:
        """Return the map as one `--map` argument."""
        return ",".join(f"{role}={text}" for role, text in self.as_dict().items())

    def describe(self) -> str:
        """Return the map for one line of a terminal: `completion = *.solution  reference = ground_truth`."""
        return "  ".join(f"{role} = {visible(str(path))}" for role, path in self._paths.items() if path is not None)


def _role(name: str) -> str:
    role = _SAME.get(name, name)
    if role not in ROLES:
        raise MapError(f"no role {visible(name)!r}{nearest(name, ROLES)}; roles: {', '.join(ROLES)}")
    return role
