"""Recipes: a reward as text or data, and back; `-r` arguments and TOML tables; content hashes.

The text form is a formula (formula.py), whose names are looked up here. The data form is what JSON and TOML can hold.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardkit import compose, targets
from rewardkit.compose import Clip, FirstOf, Gate, Maximum, Minimum, Product, Reward, Schedule, WeightedSum
from rewardkit.errors import OptionError, RewardkitError, UsageError, nearest
from rewardkit.formula import MAX_DEPTH, MAX_LENGTH, build, too_long
from rewardkit.leaf import Leaf
from rewardkit.plugins import load_plugins
from rewardkit.registry import Entry, Registry
from rewardkit.reward import FunctionReward, as_reward
from rewardkit.types import finite
from rewardkit.verifier import Verifier

_COLUMN = re.compile(r"([A-Za-z_][\w.-]*)\s*=(?!=)\s*(.*)", re.DOTALL)
_BARE_PATH = re.compile(
    r"(?P<path>[^'\"()*+]+?\.py(?::[A-Za-z_][\w.]*)?|[A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_][\w.]*)(?P<call>\(.*\))?",
    re.DOTALL,
)
_LAST_NAME = re.compile(r"(?:[^'\"()*+]+[:/.])?([A-Za-z_]\w*)")
_BARE_PLUGIN = re.compile(r"(?P<path>[a-z][a-z0-9_]*/[a-z][a-z0-9_]*)(?P<call>\(.*\))?", re.DOTALL)


# ----------------------------------------------------------------------------------------------- from text


def parse(text: str, registry: Registry | None = None, *, base: Path | None = None) -> Reward:
    """Read a formula.

    Args:
        text: At most 10,000 characters, nested at most 50 deep.
        registry: Where names are looked up; None: everything that is installed.
        base: Folder that relative paths are tried in first.

    Raises:
        FormulaError: The text is no formula; says where.
        UnknownName, OptionError, PluginError, UsageError: A name, option or path in it is wrong.
    """
    known = registry or load_plugins().registry
    return build(text, lambda name, options: resolve(name, options, known, base=base))


def parse_columns(arguments: Sequence[str], registry: Registry | None = None) -> dict[str, Reward]:
    """Read the `-r` arguments of a command line: one is one column, several are not summed.

    Each is a formula, `NAME=FORMULA`, a whole unquoted path `my.py:brief`, or a TOML file with a `[reward]` table.

    Raises:
        UsageError: None given, a name used twice, or whatever `parse` raises.
    """
    registry = registry or load_plugins().registry
    columns: dict[str, Reward] = {}
    for argument in arguments:
        if len(argument) > MAX_LENGTH:
            raise too_long(argument)
        for name, reward in _argument(argument.strip(), registry):
            if name in columns:
                raise UsageError(f"two rewards are named {name!r}; name one of them: -r NAME=FORMULA")
            columns[name] = reward
    if not columns:
        names = ", ".join(entry.name for entry in registry.entries("verifier", "reward"))
        raise UsageError(f"no reward is given; add -r NAME, for example -r gsm8k. Known are {names}")
    return columns


def _argument(argument: str, registry: Registry) -> list[tuple[str, Reward]]:
    named = _COLUMN.fullmatch(argument)
    if argument.endswith(".toml") and not named:
        return list(read_toml(Path(argument), registry).items())
    text = named.group(2) if named else argument
    reward = parse(_quoted(text), registry)
    if next(reward.leaves(), None) is None:
        raise UsageError(f"{text!r} scores nothing: a formula names at least one reward, such as gsm8k")
    if named:
        return [(named.group(1), reward)]
    if isinstance(reward, Leaf):
        return [(reward.label, reward)]
    alone = _LAST_NAME.fullmatch(text)
    return [(alone.group(1) if alone else "total", reward)]


def _quoted(text: str) -> str:
    """Put quotes around a whole unquoted path or plugin name, which needs none on a command line."""
    match = _BARE_PLUGIN.fullmatch(text)
    if match is None:
        match = _BARE_PATH.fullmatch(text)
        if match is None or (re.search(r"\s-\s", match["path"]) and not _is_file(match["path"].rpartition(":")[0])):
            return text
    return "'" + match["path"].replace("\\", "\\\\") + "'" + (match["call"] or "")


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a name too long
        return False


def read_toml(path: Path, registry: Registry) -> dict[str, Reward]:
    """Read the `[reward]` table of a TOML file: `NAME = "formula"`, or the data form as a table.

    Paths in it are relative to the file's own folder.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UsageError(f"{path} is not TOML: {problem}") from None
    table = document.get("reward")
    if not isinstance(table, dict) or not table:
        raise UsageError(
            f'{path} has no [reward] table; write [reward] and below it total = "gsm8k + 0.1*think_format"'
        )
    try:
        return from_table(table, registry, base=path.parent)
    except RewardkitError as problem:
        raise type(problem)(f"{path}: {problem}") from None


def from_table(
    table: Mapping[str, Any], registry: Registry | None = None, *, base: Path | None = None
) -> dict[str, Reward]:
    """Read the entries of a `[reward]` table: a formula, a whole unquoted path, or the data form.

    Raises:
        RewardkitError: Whatever `parse` and `from_data` raise; the message begins with the key.
    """
    registry = registry or load_plugins().registry
    columns = {}
    for name, value in table.items():
        try:
            columns[name] = _from_toml(value, registry, base or Path())
        except RewardkitError as problem:
            raise type(problem)(f"reward.{name}: {problem}") from None
    return columns


def _from_toml(value: Any, registry: Registry, base: Path) -> Reward:
    return (
        parse(_quoted(value), registry, base=base) if isinstance(value, str) else from_data(value, registry, base=base)
    )


# --------------------------------------------------------------------------------------------- one reward


def resolve(
    name: str, options: Mapping[str, Any], registry: Registry | None = None, *, base: Path | None = None
) -> Reward:
    """Return the reward of a registered name or of a target, with these options.

    Raises:
        UnknownName, PluginError: The name is not known, or its plugin does not load.
        OptionError: It has no such option, or the value is of the wrong type.
        UsageError: The target does not load.
    """
    if name.endswith(".py"):
        raise UsageError(f"{name} is a file; say which reward of it: {name}:NAME")
    registry = registry or load_plugins().registry
    target = _located(name, base) if ":" in name else registry.get("reward", name).target
    found = targets.load_target(target)
    try:
        return _made(found, target, name, options)
    except RewardkitError:
        raise
    except Exception as problem:  # whatever it was that a target names
        raise UsageError(f"{name} is no reward: {type(problem).__name__}: {problem}") from problem


def _made(found: object, target: str, name: str, options: Mapping[str, Any]) -> Reward:
    if isinstance(found, type) and issubclass(found, Verifier):
        return found.from_options(options)
    made = as_reward(found, target)
    if not options:
        return made
    if isinstance(made, FunctionReward):
        return made.with_options(**options)
    if isinstance(made, Verifier):
        return type(made).from_options(made.options | dict(options))
    raise OptionError(f"{name} is a composition and has no options; write its parts instead: {made.formula}")


def _located(target: str, base: Path | None) -> str:
    """Return a target whose file, where it exists, is named by its absolute path: beside `base`, else from here."""
    if not targets.is_file_target(target):
        return target
    place, _, attribute = target.rpartition(":")
    try:
        path = Path(place).expanduser()
        found = next((file for file in ((base or Path()) / path, path) if file.is_file()), None)
        return f"{found.resolve()}:{attribute}" if found else target
    except (OSError, RuntimeError):  # a name too long, no such home: loading it will say so
        return target


# --------------------------------------------------------------------------------------------------- data


_ZERO = 0.0  # adding it turns -0.0 into the 0.0 that it equals, so that equal rewards have equal data


def to_data(reward: Reward) -> dict[str, Any]:
    """Return a reward as plain data (JSON, TOML); `from_data` reads it back.

    Raises:
        UsageError: A leaf lives inside a function and no text can name it.
    """
    return _data(reward, _leaf_data)


def _data(reward: Reward, leaf: Callable[[Leaf], dict[str, Any]]) -> dict[str, Any]:
    """Return the data form of a reward, with its leaves written by `leaf`."""

    def inner(part: Reward) -> dict[str, Any]:
        return _data(part, leaf)

    match reward:
        case WeightedSum(terms, constant):
            listed = [{"weight": weight + _ZERO, "of": inner(part)} for weight, part in terms]
            return {"sum": listed} | ({"constant": constant} if constant else {})
        case Product(factors):
            return {"product": [inner(part) for part in factors]}
        case Minimum(parts):
            return {"minimum": [inner(part) for part in parts]}
        case Maximum(parts):
            return {"maximum": [inner(part) for part in parts]}
        case FirstOf(parts):
            return {"first_of": [inner(part) for part in parts]}
        case Clip(part, low, high):
            return {"clip": inner(part), "low": low + _ZERO, "high": high + _ZERO}
        case Gate(condition, then, at, otherwise):
            return {"gate": inner(condition), "then": inner(then), "at": at + _ZERO, "otherwise": otherwise + _ZERO}
        case Schedule(entries):
            return {"schedule": [{"step": step, "of": inner(part)} for step, part in entries]}
        case Leaf():
            return leaf(reward)
    raise UsageError(f"{type(reward).__name__} has no data form")


def _leaf_data(leaf: Leaf) -> dict[str, Any]:
    name = leaf.registered or leaf.target
    if name is None:
        raise UsageError(
            f"reward {leaf.label!r} lives inside a function, so no text can name it; move it to the top of a file"
        )
    return {"reward": name} | ({"options": leaf.options} if leaf.options else {})


def from_data(data: Any, registry: Registry | None = None, *, base: Path | None = None) -> Reward:
    """Read the data form of a reward. Wherever it wants a reward, a formula does as well.

    Raises:
        UsageError: It is not a data form, or whatever `parse` raises for its names and options.
    """
    return _Reader(registry or load_plugins().registry, base).reward(data)


class _Reader:
    """Reads the data form with the operators that Python code uses, so that equal rewards stay equal."""

    def __init__(self, registry: Registry, base: Path | None) -> None:
        self.registry = registry
        self.base = base
        self.depth = 0

    def reward(self, data: Any) -> Reward:
        if isinstance(data, str):
            return parse(_quoted(data), self.registry, base=self.base)
        if not isinstance(data, Mapping):
            raise UsageError(f"a reward as data is a table such as {{reward = 'gsm8k'}}, got {type(data).__name__}")
        kind = next((kind for kind in _FIELDS if kind in data), None)
        if kind is None:
            raise UsageError(
                f"a reward as data has one of {', '.join(_FIELDS)}; got {', '.join(map(repr, data)) or 'none'}"
            )
        _only(data, kind, *_FIELDS[kind])
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UsageError(f"a reward as data is nested more than {MAX_DEPTH} deep")
        try:
            return self.node(kind, data)
        except (TypeError, ValueError) as problem:
            raise UsageError(f"not a reward as data: {kind}: {problem}") from None
        finally:
            self.depth -= 1

    def node(self, kind: str, data: Mapping[str, Any]) -> Reward:
        numbers = {name: _number(data[name], name) for name in ("at", "otherwise", "low", "high") if name in data}
        match kind:
            case "reward":
                return self.leaf(data["reward"], data.get("options", {}))
            case "sum":
                return self.sum(data["sum"], _number(data.get("constant", 0.0), "constant"))
            case "product":
                return functools.reduce(operator.mul, self.several(kind, data))
            case "clip":
                return compose.clip(self.reward(data["clip"]), **numbers)
            case "gate":
                if "then" not in data:
                    raise UsageError("a gate as data has a field 'then'")
                return compose.gate(self.reward(data["gate"]), self.reward(data["then"]), **numbers)
            case "schedule":
                return self.schedule(data["schedule"])
        join = {"minimum": compose.minimum, "maximum": compose.maximum, "first_of": compose.first_of}[kind]
        return join(*self.several(kind, data))

    def leaf(self, name: Any, options: Any) -> Reward:
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise UsageError(f"a reward as data has a name and a table of options, got {name!r} and {options!r}")
        return resolve(name, options, self.registry, base=self.base)

    def several(self, kind: str, data: Mapping[str, Any]) -> list[Reward]:
        return [self.reward(part) for part in _listed(kind, data[kind])]

    def sum(self, terms: Any, constant: float) -> Reward:
        if not terms and isinstance(terms, list):
            return compose.constant(constant)
        parts = [
            _number(term.get("weight", 1.0), "weight") * self.reward(term["of"])
            for term in _tables("sum", terms, "of", "weight")
        ]
        total = functools.reduce(operator.add, parts)
        return total + constant if constant else total

    def schedule(self, entries: Any) -> Reward:
        listed = _tables("schedule", entries, "step", "of")
        steps = {entry["step"]: self.reward(entry["of"]) for entry in listed if "step" in entry}
        if len(steps) != len(listed):
            raise UsageError("a schedule as data has one 'step' of its own in each entry")
        return compose.schedule(steps)


_FIELDS = {
    "reward": ("options",),
    "sum": ("constant",),
    "product": (),
    "minimum": (),
    "maximum": (),
    "first_of": (),
    "clip": ("low", "high"),
    "gate": ("then", "at", "otherwise"),
    "schedule": (),
}


def _listed(kind: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{kind} wants a list of at least one reward, got {value!r}")
    return value


def _tables(kind: str, value: Any, *fields: str) -> list[Mapping[str, Any]]:
    """Return a list of tables that have an `of` and no other than these fields."""
    for item in _listed(kind, value):
        if not isinstance(item, Mapping) or "of" not in item:
            raise UsageError(f"each entry of {kind} is a table with {' and '.join(fields)}, got {item!r}")
        _only(item, *fields)
    return list(value)


def _only(data: Mapping[str, Any], *known: str) -> None:
    for name in data:
        if name not in known:
            close = nearest(str(name), known) or ";"
            raise UsageError(f"a reward as data has no field {name!r} here{close} known are {', '.join(known)}")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{what} is a number, got {value!r}")
    return finite(value, what)


# --------------------------------------------------------------------------------------------------- hash


def content_hash(reward: Reward, registry: Registry | None = None) -> str:
    """Return the identity of a reward as 64 hexadecimal digits.

    A leaf's is the sha256 over its name, its distribution and version, its options as sorted JSON, and the bytes
    of the file that defines it. A composition's is the sha256 over its data form with its leaves' hashes in place.
    """
    registry = registry or load_plugins().registry
    if isinstance(reward, Leaf):
        return _leaf_hash(reward, registry)
    return _digest(json.dumps(_data(reward, lambda leaf: {"hash": _leaf_hash(leaf, registry)}), sort_keys=True))


def _leaf_hash(leaf: Leaf, registry: Registry) -> str:
    entry = _entry(leaf, registry)
    name = entry.name if entry else leaf.label
    owner = [entry.owner.distribution, entry.owner.version] if entry else ["", ""]
    file = targets.defining_file(leaf.target) if leaf.target else None
    source = file.read_bytes() if file is not None and file.is_file() else b""
    head = json.dumps([name, *owner], ensure_ascii=True) + json.dumps(leaf.options, sort_keys=True)
    return _digest(head, source)


def _entry(leaf: Leaf, registry: Registry) -> Entry | None:
    """Return the entry that a leaf is, also where it was registered by another module than the one that defines it."""
    entry = registry.by_target(leaf.target)
    if entry is not None or leaf.registered is None:
        return entry
    with contextlib.suppress(RewardkitError):
        entry = registry.get("reward", leaf.registered)
        found = targets.load_target(entry.target)
        if found is type(leaf) or getattr(found, "target", None) == leaf.target:
            return entry
    return None


def _digest(text: str, extra: bytes = b"") -> str:
    return hashlib.sha256(text.encode() + b"\0" + extra).hexdigest()
