"""`rewardkit try FORMULA TEXT`: score one text and explain the result."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import msgspec

from rewardkit import recipe
from rewardkit.display import visible
from rewardkit.engine import score_text
from rewardkit.errors import UsageError
from rewardkit.types import Score

_OWN_OPTION = {
    "reference": "give it with --reference",
    "prompt": "give it with --prompt",
    "step": "give it with --step",
    "text": "it is the second argument",
    "reward": "it is the first argument",
}


@click.command("try", epilog="Example: rewardkit try gsm8k --reference 18 '9 * 2 = 18. #### 18'")
@click.argument("formula")
@click.argument("text")
@click.option("--reference", help="The gold answer: text, or a JSON object for several fields.")
@click.option("--prompt", default="", help="The prompt, for rewards that look at it.")
@click.option(
    "--column", "columns", multiple=True, metavar="NAME=VALUE",
    help="Any other column: 12, true, [1, 2] as in JSON, or plain text. May be repeated.",
)  # fmt: skip
@click.option("--step", type=click.IntRange(0), metavar="N", help="The training step, for schedules.")
def command(
    formula: str, text: str, reference: str | None, prompt: str, columns: tuple[str, ...], step: int | None
) -> int:
    """Score TEXT (- reads it from standard input) with a reward and explain the result.

    The exit code is 3 when the reward ends in an error, else 0.
    """
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    rewards = recipe.parse_columns([formula])
    given = dict(_column(column) for column in columns)
    code = 0
    for name, reward in rewards.items():
        scored = score_text(reward, text, reference=_value(reference), prompt=prompt, step=step, **given)
        click.echo("\n".join(explain(msgspec.structs.replace(scored, name=name))))
        for line in (scored.trace or "").splitlines():
            click.echo(visible(line, limit=400), err=True)
        code = 3 if scored.state == "error" else code
    return code


def explain(scored: Score, depth: int = 0) -> list[str]:
    """Return a score and its parts as lines: name, value or state, what was extracted, why."""
    value = f"{scored.value:g}" if scored.value is not None else scored.state
    weight = f"{scored.weight:g} * " if scored.weight is not None else ""
    line = f"{'  ' * depth}{weight}{visible(scored.name)} = {value}"
    if scored.extracted is not None:
        line += f"   extracted {visible(repr(scored.extracted))}"
    if scored.why:
        line += f"   {visible(scored.why, limit=400)}"
    return [line] + [part_line for part in scored.parts for part_line in explain(part, depth + 1)]


def _column(argument: str) -> tuple[str, Any]:
    name, equals, value = argument.partition("=")
    if not equals or not name:
        raise UsageError(f"--column wants NAME=VALUE, got {argument!r}")
    if name in _OWN_OPTION:
        raise UsageError(f"{name} is no other column; {_OWN_OPTION[name]}")
    return name, _json(value)


def _value(text: str | None) -> Any:
    """Read a JSON object or list as such; everything else stays the text that it is."""
    return _json(text) if text is not None and text.lstrip().startswith(("{", "[")) else text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
