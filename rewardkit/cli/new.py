"""`rewardkit new NAME`: a plugin to start from, which installs, registers, documents itself and passes its tests."""

from __future__ import annotations

import keyword
import os
import re
import shlex
from pathlib import Path

import click

from rewardkit import __version__
from rewardkit.cli.scaffold import FILES
from rewardkit.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_LONGEST = 40


@click.command("new", epilog="Example: rewardkit new colours")
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=Path("."), help="The folder to make it in.")
def command(name: str, into: Path) -> None:
    """Make the folder rewardkit-NAME: an installable plugin with a verifier, a reward and tests.

    NAME becomes the namespace of what it registers (NAME/last_line). It is lower case, with digits, hyphens or
    underscores.
    """
    made = scaffold(name, into)
    space = namespace(name)
    shown = shlex.quote(str(made))
    click.echo(f"made {shown}: {len(FILES)} files. Choose a license before you share it. Next:")
    click.echo(f"  pip install -e {shlex.quote(f'{made}[test]')}")
    click.echo(f"  pytest {shown}")
    click.echo(f"  rewardkit show {space}/last_line")


def namespace(name: str) -> str:
    """Return the namespace that a plugin's name stands for.

    Raises:
        UsageError: It is no name for a plugin; says what is wanted.
    """
    if name.startswith(("rewardkit-", "rewardkit_")):
        raise UsageError(f"a plugin's name is given without the prefix: rewardkit new {name[10:] or 'NAME'}")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        close = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:_LONGEST].strip("_")
        hint = f"; did you mean {close}?" if close and _NAME.fullmatch(close) and close != name else ""
        wanted = f"a plugin's name is lower case letters, digits, hyphens or underscores, at most {_LONGEST}"
        raise UsageError(f"{wanted}, got {name!r}{hint}")
    space = name.replace("-", "_")
    if keyword.iskeyword(space) or space == "rewardkit":
        raise UsageError(f"{name!r} cannot be a plugin's name; take another")
    return space


def scaffold(name: str, into: Path) -> Path:
    """Write the plugin's files into a new folder and return it. Nothing is written over.

    Raises:
        UsageError: The name is malformed, the folder exists, or it cannot be made.
    """
    space = namespace(name)
    folder = into / f"rewardkit-{space.replace('_', '-')}"
    try:
        folder.mkdir()  # not `exist_ok`: whoever comes second is told
    except FileExistsError:
        raise UsageError(f"{folder} exists already; remove it, or take another name") from None
    except OSError as problem:
        raise UsageError(f"{folder} cannot be made: {problem.strerror or problem}") from None
    words = {
        "@DIST@": folder.name,
        "@SPACE@": space,
        "@MODULE@": f"rewardkit_{space}",
        "@VERSION@": ".".join(__version__.split(".")[:2]),
    }
    for path, text in FILES.items():
        for mark, word in words.items():
            path, text = path.replace(mark, word), text.replace(mark, word)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
    return Path(os.path.normpath(folder))
