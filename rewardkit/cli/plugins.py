"""`rewardkit plugins`: what is installed, how many entries each registered, what is broken and why."""

from __future__ import annotations

import importlib.metadata

import click

from rewardkit.cli.columns import aligned
from rewardkit.display import visible
from rewardkit.plugins import load_plugins

# Another distribution that installs a package and a script of the same name; whichever was installed
# last has overwritten the other's files.
_RIVAL = "harbor-rewardkit"


@click.command("plugins")
def command() -> None:
    """List installed plugins, and what is wrong with those that do not load."""
    plugins = load_plugins()
    rows = [("namespace", "distribution", "entries", "module")]
    for plugin in plugins.plugins:
        state = "broken" if plugin.problem else str(plugin.entries)
        rows.append((plugin.owner.namespace or "(built in)", str(plugin.owner), state, plugin.module))
    click.echo(aligned(rows, indent=""))
    for plugin in plugins.plugins:
        if plugin.problem:
            click.echo(visible(f"broken: {plugin.owner.namespace}: {plugin.problem}", limit=2000))
        elif not plugin.entries:
            click.echo(f"note: {plugin.owner.namespace} registers nothing; does its module hold the hooks?")
    if len(plugins.plugins) == 1:
        click.echo("No plugins are installed. docs/plugins.md shows how to write one.")
    warning = rival_warning()
    if warning:
        click.echo(visible(warning, limit=2000))


def rival_warning() -> str:
    """Return a warning when the other distribution with our import name is installed, else ""."""
    try:
        version = importlib.metadata.version(_RIVAL)
    except importlib.metadata.PackageNotFoundError:
        return ""
    return (
        f"warning: {_RIVAL} {version} is installed too. It has the same import name and command as this package, so"
        " each overwrites files of the other: keep them in different environments, then reinstall this one"
        " (pip install --force-reinstall --no-deps rewardkit)."
    )
