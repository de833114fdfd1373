"""The command line. One command a file; each is imported only when it runs.

This is the one place where errors become messages and exit codes: 0 done; 1 a bar that was asked for was missed;
2 usage, configuration, input, or a plugin that was named; 3 stopped because a reward failed; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING

import click

from rewardkit import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rewardkit.plugins import Plugins
    from rewardkit.registry import Entry

COMMANDS = ("eval", "train", "plan", "plot", "compare", "merge", "list", "show", "try", "sandbox", "plugins", "new")
"""Our own commands in the order in which help shows them; `rewardkit/builtin.py` registers them like a plugin's."""


class _Commands(click.Group):
    """Commands by name, ours and those of plugins; none is imported before it is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(set(_commands()).difference(COMMANDS))]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _commands():
            return None
        from rewardkit.errors import PluginError
        from rewardkit.targets import load_target

        entry = _plugins().registry.get("command", name)
        loaded = load_target(entry.target)
        if not isinstance(loaded, click.Command):
            raise PluginError(f"{entry.owner}: {entry.target} is no click command, but a {type(loaded).__name__}")
        return loaded

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in _commands():
            from rewardkit.errors import UsageError, nearest

            known = self.list_commands(context)
            hint = nearest(name, known) or ";"
            raise UsageError(f"there is no command {name!r}{hint} The commands are {', '.join(known)}")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _commands()[name].summary) for name in self.list_commands(context)])


@functools.cache
def _plugins() -> Plugins:
    """Load the plugins, and say on one line, once, which of them are broken."""
    from rewardkit.plugins import load_plugins

    loaded = load_plugins()
    if loaded.broken:
        names = ", ".join(dict.fromkeys(plugin.owner.namespace for plugin in loaded.broken))
        _say(f"plugins that do not load: {names}; `rewardkit plugins` says why")
    return loaded


def _commands() -> dict[str, Entry]:
    """Return the entries of all commands by what is typed: their names without the namespace."""
    return {entry.name.rpartition("/")[2]: entry for entry in _plugins().registry.entries("command")}


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: rewardkit eval generations.jsonl -r gsm8k",
)
@click.version_option(__version__, message="rewardkit %(version)s")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error (may stand anywhere).")
def app(traceback: bool) -> None:
    """Reward functions you can trust, and one command that scores saved generations with them."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Every error of ours is one message on stderr."""
    show_trace = "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    if not arguments:
        run(["--help"])
        return 2
    stdout = sys.stdout
    try:
        result = app.main(arguments, prog_name="rewardkit", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as problem:
        return _report(f"{problem.format_message()} `{_command_path(problem)} --help` shows the usage", 2)
    except click.ClickException as problem:
        return _report(problem.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", 130)
    except SystemExit:
        # That is how click ends when the reader of our output has gone (`| head`), which is no missed bar.
        if sys.stdout is not stdout:  # click has wrapped it, to keep it silent at Python's own exit
            return 0
        raise
    except Exception as problem:
        if show_trace:
            import traceback

            traceback.print_exc()
        return _report_exception(problem)


def _command_path(problem: click.UsageError) -> str:
    return problem.ctx.command_path if problem.ctx is not None else "rewardkit"


def _report_exception(problem: Exception) -> int:
    from rewardkit.errors import RewardkitError

    if isinstance(problem, RewardkitError):
        return _report(str(problem), problem.exit_code)
    if isinstance(problem, OSError) and problem.strerror:
        return _report(f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror, 2)
    text = f"{type(problem).__name__}: {str(problem)[:500]}"
    return _report(f"an error of rewardkit's own: {text}; run again with --traceback and report it", 3)


def _report(message: str, code: int) -> int:
    _say(message)
    return code


def _say(message: str) -> None:
    """Print a message on stderr. It may span lines (rows that are shown); each is made safe for a terminal."""
    from rewardkit.display import visible

    with contextlib.suppress(OSError):  # a full or closed standard error must not change the exit code
        click.echo("rewardkit: " + "\n".join(visible(line, limit=2000) for line in message.split("\n")), err=True)


def main() -> None:
    """The `rewardkit` script."""
    for stream in (sys.stdout, sys.stderr):
        # Whatever the locale says, we read and write UTF-8.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
