"""Targets: `pkg.mod:attr` or `path/file.py:attr`, the text form of "this Python object".

A target is how a reward travels: in recipes, pickles and to worker processes. Loading one imports code
that the user or a plugin named; text from models or data files never reaches this module.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from rewardkit.errors import UnknownName, UsageError, nearest

_FILE_MARK = "__rewardkit_file__"


def is_file_target(target: str) -> bool:
    """Tell whether the part before the last colon names a file."""
    place = target.rpartition(":")[0]
    return place.endswith(".py") or "/" in place or "\\" in place


def load_target(target: str) -> object:
    """Return the object that a target names.

    A file is executed once per process, under a name of its own, and its folder is appended to `sys.path`
    so that it can import its neighbours.

    Raises:
        UsageError: The text is no target, or the module or file does not import.
        UnknownName: It has no such attribute; names the nearest.
    """
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        raise UsageError(f"{target!r} is no target; write package.module:name or file.py:name")
    module = load_file(Path(place)) if is_file_target(target) else _import_module(place, target)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            raise UnknownName(f"{place} has no {attribute!r}{nearest(part, known)}")
        found = getattr(found, part)
    return found


def load_file(path: Path) -> ModuleType:
    """Import a Python file by path (once per process) and return its module."""
    absolute = _found(path)
    if absolute is None:
        raise UsageError(f"{path}: no such file; a reward in a file is written path/to/file.py:name")
    name = "rewardkit_file_" + hashlib.sha256(str(absolute).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, absolute)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    setattr(module, _FILE_MARK, str(absolute))
    folder = str(absolute.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[name]  # also when interrupted: half a module is worse than none
        if not isinstance(problem, (Exception, SystemExit)):
            raise
        raise UsageError(f"{path} does not import: {_one_line(problem)}") from problem
    return module


def target_of(thing: object) -> str | None:
    """Return the target that loads a function or class again (or the reward that was made from it).

    None when there is none: a local, a lambda, a bound method, or something whose name now means another thing.
    """
    module_name = getattr(thing, "__module__", None)
    qualified = getattr(thing, "__qualname__", "")
    module = sys.modules.get(module_name) if module_name else None
    if module is None or not qualified:
        return None
    found: object = module
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found != thing and getattr(found, "__wrapped__", None) != thing:
        return None
    return f"{getattr(module, _FILE_MARK, module_name)}:{qualified}"


def travels(target: str | None) -> bool:
    """Tell whether another process can load a target. What lives in `__main__` cannot be loaded there."""
    return target is not None and not target.startswith(("__main__:", "__mp_main__:"))


def defining_file(target: str) -> Path | None:
    """Return the file in which a target is defined, or None where there is none (a notebook, a C module)."""
    place = target.rpartition(":")[0]
    if is_file_target(target):
        return Path(place)
    module = sys.modules.get(place)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file) if file else None
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _import_module(name: str, target: str) -> ModuleType:
    if name == "__main__":
        return sys.modules["__main__"]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and not (name == problem.name or name.startswith(problem.name + ".")):
            raise UsageError(
                f"{target} needs the package {problem.name!r}, which is not installed; pip install {problem.name}"
            ) from problem
        raise UsageError(f"{target}: there is no module {problem.name!r}; is its package installed here?") from problem
    except (Exception, SystemExit) as problem:
        raise UsageError(f"{target} does not import: {_one_line(problem)}") from problem


def _found(path: Path) -> Path | None:
    """Return the absolute path of a file that exists."""
    try:
        path = path.expanduser()
        return path.resolve() if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, no such home, a loop of links, a NUL
        return None


def _one_line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
