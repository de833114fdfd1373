"""`rewardkit sandbox`: which level of the sandbox works on this machine, why not the others, and the self-test."""

from __future__ import annotations

import json

import click

from rewardkit.cli.columns import aligned
from rewardkit.display import visible
from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox import LEVELS, Level, self_test

_HOLDS = {
    "strict": "namespaces, a read-only root of its own, no capabilities, few system calls; the default",
    "landlock": "few system calls, nothing writable; no namespaces; only when asked for by name",
    "unsafe": "limits of time, memory and output only; only when asked for by name",
}


@click.command("sandbox")
@click.option("--require", type=click.Choice(LEVELS), help="Exit with 1 when this level does not work here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.pass_context
def command(context: click.Context, require: Level | None, as_json: bool) -> None:
    """Say which level of the sandbox works here and why not the others, and try what each must stop."""
    levels = {level: _look_at(level) for level in LEVELS}
    if as_json:
        click.echo(json.dumps({"schema": "rewardkit.sandbox/1", "default": "strict", "levels": levels}))
    else:
        _show(levels)
    if require is not None and not levels[require]["works"]:
        context.exit(1)


def _look_at(level: Level) -> dict[str, object]:
    try:
        tried = self_test(level)
    except SandboxUnavailable as problem:
        found = {"step": problem.step, "cause": problem.cause, "ways_out": list(problem.ways_out)}
        return {"works": False, "why": str(problem).partition("\n")[0], **found, "self_test": {}}
    return {"works": True, "why": "", "self_test": dict(tried)}


def _show(levels: dict[Level, dict[str, object]]) -> None:
    rows = [("level", "here", "what holds a program")]
    rows += [(level, "works" if found["works"] else "no", _HOLDS[level]) for level, found in levels.items()]
    click.echo(aligned(rows, indent=""))
    for found in levels.values():
        if not found["works"]:
            click.echo(visible(f"\n{found['why']}", limit=2000).lstrip("\\n"))
            for way in found["ways_out"]:  # type: ignore[attr-defined]
                click.echo(visible(f"  - {way}", limit=2000))
    working = [level for level, found in levels.items() if found["works"]]
    for level in working:
        tried = levels[level]["self_test"]
        assert isinstance(tried, dict)
        stopped = [name for name, refusal in tried.items() if refusal]
        click.echo(f"\nself-test of {level}: {len(stopped)} of {len(tried)} attempts stopped")
        marks = [
            ("stopped" if refusal else "NOT STOPPED", name, visible(refusal, limit=100))
            for name, refusal in tried.items()
        ]
        click.echo(aligned(marks, indent="  "))
