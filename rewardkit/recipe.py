"""Recipes: a reward as text or data, and back.

The text form is a formula:

    0.8*gsm8k + 0.2*think_format(strict=True)
    gate(think_format, then='my_rewards.py:brief'(max_words=80), otherwise=-1)

Grammar: numbers, names, quoted paths, calls with named options, `+ - * ( )`. A formula is tokenised and built by
hand; nothing in it is ever evaluated. The data form is what JSON and TOML can hold.
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
from typing import Any, NamedTuple

from rewardkit import compose, targets
from rewardkit.compose import Clip, FirstOf, Gate, Maximum, Minimum, Product, Reward, Schedule, WeightedSum
from rewardkit.errors import FormulaError, OptionError, RewardkitError, UsageError, nearest
from rewardkit.plugins import load_plugins
from rewardkit.registry import Entry, Registry
from rewardkit.reward import FunctionReward, Leaf, as_reward
from rewardkit.types import finite
from rewardkit.verifier import Verifier

MAX_LENGTH = 10_000
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<mark>[-+*(){}\[\],:=])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMBINATORS = ("gate", "minimum", "maximum", "clip", "first_of", "schedule")
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_COLUMN = re.compile(r"([A-Za-z_][\w.-]*)\s*=(?!=)\s*(.*)", re.DOTALL)
_BARE_PATH = re.compile(
    r"(?P<path>[^'\"()*+]+?\.py(?::[A-Za-z_][\w.]*)?|[A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_][\w.]*)(?P<call>\(.*\))?",
    re.DOTALL,
)
_LAST_NAME = re.compile(r"(?:[^'\"()*+]+[:/.])?([A-Za-z_]\w*)")
_BARE_PLUGIN = re.compile(r"(?P<path>[a-z][a-z0-9_]*/[a-z][a-z0-9_]*)(?P<call>\(.*\))?", re.DOTALL)


# ------------------------------------------------------------------------------------------------- to text


def formula(reward: Reward) -> str:
    """Return the formula of a reward; `parse` reads it back."""
    return reward.formula


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
    return _Parser(text, registry or load_plugins().registry, base).whole()


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
            raise _too_long(argument)
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


def _too_long(text: str) -> FormulaError:
    return FormulaError(f"a formula has at most {MAX_LENGTH:,} characters, got {len(text):,}")


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
    columns = {}
    for name, value in table.items():
        try:
            columns[name] = _from_toml(value, registry, path.parent)
        except RewardkitError as problem:
            raise type(problem)(f"{path}: reward.{name}: {problem}") from None
    return columns


def _from_toml(value: Any, registry: Registry, base: Path) -> Reward:
    return (
        parse(_quoted(value), registry, base=base) if isinstance(value, str) else from_data(value, registry, base=base)
    )


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """Recursive descent over the tokens; builds rewards with the same operators that Python code uses."""

    def __init__(self, text: str, registry: Registry, base: Path | None) -> None:
        if len(text) > MAX_LENGTH:
            raise _too_long(text)
        self.text = text
        self.registry = registry
        self.base = base
        self.tokens = self._tokens()
        self.place = 0
        self.depth = 0

    def whole(self) -> Reward:
        if self.peek.kind == "end":
            raise FormulaError("the formula is empty; write for example gsm8k + 0.1*think_format")
        try:
            result = self.reward()
        except ValueError as problem:  # numbers that are finite one by one
            raise FormulaError(str(problem)) from None
        if self.peek.kind != "end":
            raise self.wrong("an operator or the end")
        return result

    # -- tokens

    def _tokens(self) -> list[_Token]:
        tokens = []
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                self.tokens, self.place = [_Token("other", self.text[at], at)], 0
                raise self.wrong("a number, name, quoted path or one of + - * ( )")
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup or "", match.group(), at))
            at = match.end()
        tokens.append(_Token("end", "the end", len(self.text)))
        return tokens

    @property
    def peek(self) -> _Token:
        return self.tokens[self.place]

    def take(self, mark: str | None = None) -> _Token:
        token = self.peek
        if mark is not None and token.text != mark:
            raise self.wrong(repr(mark))
        self.place += 1
        return token

    def taken(self, mark: str) -> bool:
        if self.peek.kind == "mark" and self.peek.text == mark:
            self.place += 1
            return True
        return False

    def wrong(self, wanted: str) -> FormulaError:
        token = self.peek
        near = self.text[max(0, token.at - 20) : token.at + 20]
        hint = ""
        following = self.text[token.at + 1 :].lstrip()[:1]
        if token.text == "/" and (following.isdigit() or following in (".", "(")):
            hint = "; there is no division, multiply by the inverse"
        elif token.text in (":", "/", ".", "\\"):
            hint = "; a path or a plugin's name inside a formula is quoted: 'my_rewards.py:brief', 'dates/iso_day'"
        found = token.text if token.kind == "end" else repr(token.text)
        return FormulaError(f"wanted {wanted} at column {token.at + 1}, found {found} (near {near!r}){hint}")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise FormulaError(f"the formula is nested more than {MAX_DEPTH} deep at column {self.peek.at + 1}")

    # -- arithmetic

    def expression(self) -> Reward | float:
        self.deeper()
        result = self.signed_term()
        while self.peek.kind == "mark" and self.peek.text in "+-":
            minus = self.take().text == "-"
            term = self.signed_term()
            result = result - term if minus else result + term
        self.depth -= 1
        return result

    def signed_term(self) -> Reward | float:
        negative = False
        while self.peek.kind == "mark" and self.peek.text in "+-":
            negative ^= self.take().text == "-"
        return self.term(-1.0 if negative else 1.0)

    def term(self, sign: float) -> Reward | float:
        """Numbers gather into one weight, so that 2*a*b is 2 times the product a*b."""
        weight, factors = sign, []
        while True:
            factor = self.factor()
            if isinstance(factor, float):
                weight *= factor
            else:
                factors.append(factor)
            if not self.taken("*"):
                break
        if not factors:
            return weight
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return weight * product

    def factor(self) -> Reward | float:
        token = self.peek
        if token.kind == "number":
            return self.finite(self.take())
        if self.taken("("):
            inner = self.expression()
            self.take(")")
            return inner
        if token.kind in ("name", "text"):
            return self.atom(self.take())
        raise self.wrong("a number, a reward or '('")

    def finite(self, token: _Token) -> float:
        value = float(token.text)
        if value in (float("inf"), float("-inf")):
            raise FormulaError(f"{token.text} at column {token.at + 1} is too large a number")
        return value

    # -- rewards

    def atom(self, token: _Token) -> Reward:
        if self.peek.text == ":":
            raise self.wrong("an operator or the end")
        called = self.taken("(")
        if token.kind == "name" and token.text in _COMBINATORS:
            if not called:
                raise FormulaError(f"{token.text} at column {token.at + 1} wants arguments: {token.text}(…)")
            return self.combinator(token)
        options = self.options() if called else {}
        name = _unquote(token.text) if token.kind == "text" else token.text
        return resolve(name, options, self.registry, base=self.base)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while not self.taken(")"):
            if not self.names_a_value():
                raise self.wrong("an option as name=value")
            name = self.take()
            self.take("=")
            if name.text in options:
                raise FormulaError(f"option {name.text} at column {name.at + 1} is given twice")
            options[name.text] = self.literal()
            if not self.taken(","):
                self.take(")")
                break
        return options

    def names_a_value(self) -> bool:
        return self.peek.kind == "name" and self.tokens[self.place + 1].text == "="

    def literal(self) -> Any:
        self.deeper()
        value = self._literal()
        self.depth -= 1
        return value

    def _literal(self) -> Any:
        negative = self.taken("-")
        token = self.peek
        if token.kind == "number":
            self.take()
            number = int(token.text) if token.text.isdigit() and len(token.text) <= 300 else self.finite(token)
            return -number if negative else number
        if negative:
            raise self.wrong("a number")
        if token.kind == "text":
            return _unquote(self.take().text)
        if token.kind == "name" and token.text in _CONSTANTS:
            return _CONSTANTS[self.take().text]
        if self.taken("["):
            return self._items("]", self.literal)
        if self.taken("{"):
            return dict(self._items("}", lambda: self._pair(self.literal)))
        raise self.wrong("a value: a number, a quoted text, True, False, None, [ ] or { }")

    def _items(self, closing: str, item: Callable[[], Any]) -> list[Any]:
        items = []
        while not self.taken(closing):
            items.append(item())
            if not self.taken(","):
                self.take(closing)
                break
        return items

    def _pair(self, value: Callable[[], Any]) -> tuple[Any, Any]:
        key = self.literal()
        if isinstance(key, (list, dict)):
            raise self.wrong("a number or a text as key")
        self.take(":")
        return key, value()

    def combinator(self, token: _Token) -> Reward:
        name = token.text
        if name == "schedule":
            self.take("{")
            entries = self._items("}", lambda: self._pair(self.reward))
            self.take(")")
            if len(dict(entries)) != len(entries):
                raise FormulaError(f"schedule at column {token.at + 1} gives one step twice")
            return compose.schedule(dict(entries))
        given: list[Reward] = []
        named: dict[str, Any] = {}
        while not self.taken(")"):
            if self.names_a_value():
                key = self.take().text
                self.take("=")
                if key in named:
                    raise FormulaError(f"{name} at column {token.at + 1} is given {key} twice")
                named[key] = self.reward() if key in ("condition", "then", "part") else self.literal()
            else:
                given.append(self.reward())
            if not self.taken(","):
                self.take(")")
                break
        try:
            return getattr(compose, name)(*given, **named)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as problem:
            text = str(problem).replace("()", "")
            raise FormulaError(f"{name} at column {token.at + 1}: {text}") from None

    def reward(self) -> Reward:
        built = self.expression()
        return compose.constant(built) if isinstance(built, float) else built


def _unquote(token: str) -> str:
    """Return the text of a quoted token; a backslash keeps the next character, and \\n is a line break."""
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], token[1:-1], flags=re.DOTALL)


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


def travel_data(leaf: Leaf) -> dict[str, Any]:
    """Return a leaf as data that another process can load without looking for plugins: by target, never by name."""
    if leaf.target is None:
        raise UsageError(
            f"reward {leaf.label!r} lives inside a function and cannot travel; move it to the top of a file"
        )
    return {"reward": leaf.target} | ({"options": leaf.options} if leaf.options else {})


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
