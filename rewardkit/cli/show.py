"""`rewardkit show NAME`: everything about one reward, from its own docstring, options and reference.

The path of a run folder shows that run instead (`show_run.py`).
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from pydantic.fields import FieldInfo

from rewardkit import recipe
from rewardkit.cli.columns import aligned
from rewardkit.compose import Reward
from rewardkit.display import visible
from rewardkit.errors import UnknownName
from rewardkit.leaf import Leaf
from rewardkit.plugins import load_plugins
from rewardkit.registry import Entry, Registry
from rewardkit.reward import FunctionReward
from rewardkit.targets import load_target, target_of
from rewardkit.verifier import Verifier

_NUMBERS = ("Fraction", "Quantity")


_EPILOG = """\b
Examples:
  rewardkit show gsm8k
  rewardkit show runs/gsm8k-1f3a09c2 --worst 5 -r total
  rewardkit show runs/gsm8k-1f3a09c2 --group 6
  rewardkit show runs/gsm8k-1f3a09c2 --sample q412:3
  rewardkit show runs/gsm8k-1f3a09c2 --disagree=gsm8k,numeric
"""


@click.command("show", epilog=_EPILOG)
@click.argument("name", metavar="NAME|RUN")
@click.option("-r", "--reward", metavar="NAME", help="The reward that --worst, --best, --disagree and --errors go by.")
@click.option("--worst", type=click.IntRange(1), metavar="N", help="The N completions with the lowest values.")
@click.option("--best", type=click.IntRange(1), metavar="N", help="The N completions with the highest values.")
@click.option("--group", metavar="ID", help="All completions of the problem with this id, or this group key.")
@click.option("--sample", metavar="ID[:INDEX]", help="The completions of one sample, or one of them.")
@click.option(
    "--disagree", is_flag=False, flag_value="", metavar="[A,B]",
    help="Where the reward and the label in the file differ, or (--disagree=A,B) where two rewards do.",
)  # fmt: skip
@click.option("--errors", is_flag=True, help="Completions on which a reward ended in an error.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Show at most N completions. Default: 20.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with texts in full.")
def command(
    name: str,
    reward: str | None,
    worst: int | None,
    best: int | None,
    group: str | None,
    sample: str | None,
    disagree: str | None,
    errors: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show one reward, or a saved run.

    NAME shows what a reward does, its options, its reference, an example. RUN is a run folder (RUN:MODEL one model of
    it), also of a training run: its summary or, with an option that chooses some, completions with their scores,
    reasons and texts.
    """
    options = (reward, worst, best, group, sample, disagree, limit, errors or None, as_json or None)
    registry = load_plugins().registry
    if any(option is not None for option in options) or _is_run(name, registry):
        from rewardkit.cli.show_run import Wanted, show_run

        show_run(name, Wanted(reward, worst, best, group, sample, disagree, errors, limit, as_json))
        return
    kind = _verifier(name, registry)
    if kind is not None:
        click.echo("\n".join(_verifier_lines(kind, registry)))
        return
    for shown, made in recipe.parse_columns([name], registry).items():
        click.echo("\n".join(_lines(shown, made, registry)))


def _is_run(name: str, registry: Registry) -> bool:
    """Whether a name means a folder. A registered name means what is registered, whatever the folder holds."""
    if any(entry.name == name for entry in registry.entries("verifier", "reward")):
        return False
    path = Path(name)
    return path.is_dir() or path.name in ("scores.jsonl", "summary.json")


def _verifier(name: str, registry: Registry) -> type[Verifier[Any]] | None:
    """Return the class of a registered verifier. It may have options that must be given, so it is not made here."""
    try:
        found = load_target(registry.get("verifier", name).target)
    except UnknownName:
        return None
    return found if isinstance(found, type) and issubclass(found, Verifier) else None


def _lines(name: str, reward: Reward, registry: Registry) -> list[str]:
    if isinstance(reward, Verifier):
        return _verifier_lines(type(reward), registry, reward)
    if not isinstance(reward, Leaf):
        return _composition_lines(name, reward, registry)
    entry = registry.by_target(reward.target)
    lines, described = _head(reward, "reward", entry, reward.target, reward.label)
    if isinstance(reward, FunctionReward):
        lines += _function_options(reward, described)
    lines += ["", f"Needs: {', '.join(reward.needs) or 'nothing but the completion'}"]
    return lines + _tail("async" if reward.is_async else reward.placement, reward.deadline, reward, registry)


def _composition_lines(name: str, reward: Reward, registry: Registry) -> list[str]:
    preset = next((entry for entry in registry.entries("reward") if entry.name == name), None)
    head = f"{name}  (preset, {preset.owner})" if preset else f"{name}  (a composition)"
    lines = [visible(head, limit=400), ""]
    if preset:
        lines += [visible(preset.summary, limit=400) + ".", ""]
    lines += [f"  {visible(reward.formula, limit=2000)}", "", "Parts"]
    leaves = [leaf for leaf in reward.leaves() if isinstance(leaf, Leaf)]
    lines.append(aligned([(leaf.label, leaf.formula, ", ".join(leaf.needs)) for leaf in leaves]))
    needs = dict.fromkeys(need for leaf in leaves for need in leaf.needs)
    lines += ["", f"Needs: {', '.join(needs) or 'nothing but the completion'}"]
    return [*lines, "", f"content hash  {recipe.content_hash(reward, registry)}"]


def _verifier_lines(kind: type[Verifier[Any]], registry: Registry, made: Leaf | None = None) -> list[str]:
    target = target_of(kind)
    lines, described = _head(kind, "verifier", registry.by_target(target), target, kind.__name__)
    lines += _fields("Options", kind.model_fields, described)
    lines += ["", *_fields("Reference", kind.reference_type().model_fields, {})]
    if made is None and not any(field.is_required() for field in kind.model_fields.values()):
        made = kind()
    limit = made.deadline if made is not None else getattr(kind, "timeout", None)
    return lines + _tail(kind.placement, limit, made, registry)


def _head(
    thing: Any, kind: str, entry: Entry | None, target: str | None, label: str
) -> tuple[list[str], dict[str, str]]:
    """Return name, owner and documentation, and what the documentation says about each option."""
    owner = str(entry.owner) if entry else f"from {target}"
    text, described = _split_docs(inspect.getdoc(thing) or "No documentation.")
    shown = [visible(line, limit=400) for line in text.splitlines()]
    return [visible(f"{entry.name if entry else label}  ({kind}, {owner})", limit=400), "", *shown, ""], described


def _tail(placement: str, timeout: float | None, reward: Leaf | None, registry: Registry) -> list[str]:
    limit = f", deadline {timeout:g} s a completion" if timeout else ""
    digest = recipe.content_hash(reward, registry) if reward else "depends on the options that must be given"
    return ["", f"Runs: {placement}{limit}", "", f"content hash  {digest}"]


def _split_docs(text: str) -> tuple[str, dict[str, str]]:
    """Take the `Args:` section out of a docstring: what is left, and the description of each argument."""
    match = re.search(r"^(?:Args|Options):\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
    if match is None:
        return text, {}
    described: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc(match[1]).splitlines():
        named = re.match(r"(\w+)(?: \([^)]*\))?:\s+(.*)", line)
        if named:
            current = named[1]
            described[current] = named[2]
        elif current and line.strip():
            described[current] += " " + line.strip()
    rest = (text[: match.start()] + text[match.end() :]).strip()
    return rest, described


def _function_options(reward: FunctionReward, described: dict[str, str]) -> list[str]:
    try:
        hints = typing.get_type_hints(inspect.unwrap(reward.function))
    except Exception:  # a hint that only a type checker can resolve
        hints = {}
    rows = [
        (f"{name} = {option.default!r}", _type_name(hints.get(name, type(option.default))), described.get(name, ""))
        for name, option in reward.signature.options.items()
    ]
    return ["Options", aligned(rows)] if rows else ["Options: none"]


def _fields(title: str, fields: Mapping[str, FieldInfo], described: dict[str, str]) -> list[str]:
    rows = []
    for name, field in fields.items():
        default = "" if field.is_required() else f" = {_default(field)}"
        rows.append((f"{name}{default}", _type_name(field.annotation), field.description or described.get(name, "")))
    return [title, aligned(rows)] if rows else [f"{title}: none"]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return str(value) if isinstance(value, Fraction) else repr(value)


def _type_name(annotation: Any) -> str:
    """Return a type for people: `number | None`, `'words' | 'tokens'`, `list[str]`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is typing.Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_name(part) for part in arguments)
    if isinstance(origin, type) and arguments:
        return f"{origin.__name__}[{', '.join(_type_name(part) for part in arguments)}]"
    if isinstance(annotation, type):
        return "number" if annotation.__name__ in _NUMBERS else annotation.__name__
    return re.sub(r"\b(?:\w+\.)+", "", str(annotation))
