"""`rewardkit list`: every registered name, with its owner; plugins that do not load come last."""

from __future__ import annotations

from collections.abc import Iterator

import click

from rewardkit.cli.columns import aligned
from rewardkit.display import visible
from rewardkit.plugins import load_plugins
from rewardkit.registry import Entry, Kind, Registry

_TITLES: dict[Kind, str] = {
    "verifier": "Verifiers decide correctness",
    "reward": "Rewards give any number",
    "reader": "Readers of saved generations",
    "backend": "Training backends",
    "command": "Commands of plugins",
}


@click.command("list", epilog="Example: rewardkit list --names")
@click.option("--names", is_flag=True, help="Only the names of rewards and verifiers, one a line.")
def command(names: bool) -> None:
    """List rewards, verifiers, readers and backends with the plugin that they come from."""
    plugins = load_plugins()
    if names:
        for entry in plugins.registry.entries("verifier", "reward"):
            click.echo(entry.name)
        return
    for kind, title in _TITLES.items():
        rows = [(entry.name, entry.summary, str(entry.owner)) for entry in _shown(plugins.registry, kind)]
        if rows:
            click.echo(f"{title}\n{aligned(rows)}\n")
    for broken in plugins.broken:
        text = f"broken: plugin {broken.owner.namespace!r} ({broken.owner}): {broken.problem}"
        click.echo(visible(text, limit=2000), err=True)
    click.echo("rewardkit show NAME says more about a verifier or reward.")


def _shown(registry: Registry, kind: Kind) -> Iterator[Entry]:
    for entry in registry.entries(kind):
        if kind != "command" or entry.owner.namespace:  # --help has ours
            yield entry
