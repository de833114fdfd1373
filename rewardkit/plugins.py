"""Finding and loading plugins, one by one: a broken one is listed with its reason and breaks nothing else."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pluggy

from rewardkit import __version__, builtin, hookspecs
from rewardkit.errors import PluginError, UsageError, nearest
from rewardkit.registry import NAME, Entry, Kind, Owner, Registry
from rewardkit.targets import load_target

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from rewardkit.records import Reader

GROUP = "rewardkit"

_HOOKS: dict[str, Kind] = {
    "rewardkit_verifiers": "verifier",
    "rewardkit_rewards": "reward",
    "rewardkit_readers": "reader",
    "rewardkit_backends": "backend",
    "rewardkit_commands": "command",
}


@dataclass(frozen=True)
class Plugin:
    """One plugin: who it is, how many entries it registered, and why it is broken, if it is."""

    owner: Owner
    module: str
    entries: int = 0
    problem: str = ""


@dataclass
class Plugins:
    """Everything that was loaded: the registry and the plugins, broken ones included."""

    registry: Registry = field(default_factory=Registry)
    plugins: list[Plugin] = field(default_factory=list)

    @property
    def broken(self) -> list[Plugin]:
        """The plugins that could not be loaded."""
        return [plugin for plugin in self.plugins if plugin.problem]


@functools.cache
def load_plugins() -> Plugins:
    """Load rewardkit's own entries and every installed plugin, once per process."""
    return load(installed())


def installed() -> list[EntryPoint]:
    """Return the entry points of all installed plugins, in the order of their namespaces."""
    if surely_none():
        return []
    from importlib import metadata

    try:
        found = list(metadata.entry_points(group=GROUP))
    except Exception:  # one damaged distribution, whoever's it is, spoils the whole list: look into each by itself
        found = [point for distribution in metadata.distributions() for point in _points(distribution)]
    return sorted(found, key=lambda point: (point.name, point.value))


def surely_none() -> bool:
    """Tell whether no plugin can be installed, without importlib.metadata: its import is a third of `--help`'s time."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return False
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:  # an archive may hold anything
            return False
        except OSError:
            continue
        described = [name for name in names if name.lower().endswith((".dist-info", ".egg-info"))]
        if folder.endswith(".egg") or any(_names_group(os.path.join(folder, name)) for name in described):
            return False
    return True


def _names_group(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "entry_points.txt"), "rb") as file:
            return f"[{GROUP}]".encode() in file.read()
    except OSError:
        return False


def _points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return list(distribution.entry_points.select(group=GROUP))
    except Exception:
        return []


def readers(note: Callable[[str], None] = warnings.warn) -> dict[str, Reader]:
    """Return all registered readers by name, ours and those of plugins; `note` hears of those that do not load."""
    found: dict[str, Reader] = {}
    for entry in load_plugins().registry.entries("reader"):
        try:
            found[entry.name] = cast("Reader", load_target(entry.target))
        except UsageError as problem:
            note(f"the reader {entry.name!r} of {entry.owner} does not load and is left out: {problem}")
    return found


def offer_readers() -> None:
    """Let `read_generations` know the readers of plugins, which lie on a higher floor than it."""
    from rewardkit.records.rows import use_readers

    use_readers(readers)


def load(points: Iterable[EntryPoint]) -> Plugins:
    """Load our own entries, then these entry points."""
    result = Plugins()
    ours = Owner("", "rewardkit", __version__)
    result.plugins.append(_register(builtin, ours, "rewardkit.builtin", result.registry))
    for point in points:
        # What a plugin prints while it loads must not end up in our output.
        with contextlib.redirect_stdout(sys.stderr):
            plugin = _load_one(point, result.registry)
        if plugin.problem:
            result.registry.mark_broken(plugin.owner.namespace, plugin.problem)
        result.plugins.append(plugin)
    return result


def _load_one(point: EntryPoint, registry: Registry) -> Plugin:
    owner = _owner(point)
    if not NAME.fullmatch(point.name):
        why = f"its namespace {point.name!r} (the entry point's key) is not of the form [a-z][a-z0-9_]*"
        return Plugin(owner, point.value, problem=why)
    if not point.pattern.match(point.value):
        return Plugin(owner, point.value, problem=f"its entry point {point.value!r} names no module")
    try:
        module = point.load()
    except (Exception, SystemExit) as problem:
        return Plugin(owner, point.value, problem=_import_problem(problem, point))
    if not isinstance(module, ModuleType):
        why = f"its entry point names a {type(module).__name__}, not the module that holds the hooks"
        return Plugin(owner, point.value, problem=why)
    return _register(module, owner, point.value, registry)


def _owner(point: EntryPoint) -> Owner:
    # Leftovers of an interrupted (un)installation may lack a name, a version or all metadata.
    name = version = None
    with contextlib.suppress(Exception):
        if point.dist is not None:
            name, version = point.dist.name, point.dist.version
    return Owner(point.name, name or point.value, version or "")


def _register(module: ModuleType, owner: Owner, name: str, registry: Registry) -> Plugin:
    """Let one plugin register its entries. pluggy checks the hooks' arguments; we check their names."""
    manager = pluggy.PluginManager("rewardkit")
    manager.add_hookspecs(hookspecs)
    count = 0

    def registering(kind: Kind) -> Callable[[str, str, str], None]:
        def register(name: str, target: str, summary: str) -> None:
            nonlocal count
            if not isinstance(name, str):
                raise PluginError(f"{owner}: a name is text, got {name!r}")
            short = name.removeprefix(f"{owner.namespace}/") if owner.namespace else name
            full = f"{owner.namespace}/{short}" if owner.namespace else short
            registry.add(Entry(kind, full, target, summary, owner))
            count += 1

        register.__qualname__ = "register"  # what Python calls it when its arguments are wrong
        return register

    try:
        manager.register(module, name)
        _refuse_unknown_hooks(manager, module)
        for hook, kind in _HOOKS.items():
            getattr(manager.hook, hook)(register=registering(kind))
    except (Exception, SystemExit) as problem:
        registry.remove(owner)
        return Plugin(owner, name, problem=_hook_problem(problem))
    return Plugin(owner, name, count)


def _refuse_unknown_hooks(manager: pluggy.PluginManager, module: ModuleType) -> None:
    """Refuse a misspelt hook, which pluggy would ignore, and a hook that lacks its marker."""
    for name, thing in list(vars(module).items()):
        mark = manager.parse_hookimpl_opts(module, name)
        hook = name if mark is None else mark.get("specname") or name
        looks_like_hook = inspect.isfunction(thing) and name.startswith("rewardkit_")
        if hook not in _HOOKS and (mark is not None or looks_like_hook):
            close = nearest(hook, _HOOKS) or ";"
            raise PluginError(f"there is no hook {hook!r}{close} The hooks are {', '.join(_HOOKS)}")
        if name in _HOOKS and mark is None:
            raise PluginError(f"{name} is not marked as a hook; put @rewardkit.hookimpl above it")


def _import_problem(problem: BaseException, point: EntryPoint) -> str:
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        missing = problem.name
        if f"{point.module}.".startswith(f"{missing}."):
            return f"its own module {missing!r} is missing (ModuleNotFoundError); install it again"
        install = f"pip install {missing.partition('.')[0]}"
        return f"needs the module {missing!r}, which is not installed (ModuleNotFoundError); {install}"
    return f"does not import: {type(problem).__name__}: {' '.join(str(problem).split())}"


def _hook_problem(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    if isinstance(problem, (PluginError, pluggy.PluginValidationError)):
        return text
    return f"{type(problem).__name__}: {text}"
