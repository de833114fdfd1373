"""The documentation is executed: Python blocks run, files that are shown are written, console sessions are replayed.

A page's blocks run in order, in one folder and one namespace. In a block's first line after the fence,
`title="my_rewards.py"` writes the block to that file. In a `console` block each `$ ` line is run and what follows
is compared with its output, where `...` stands for any text.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_page_is_true(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    namespace: dict[str, object] = {"__name__": "documentation"}
    for language, info, code in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        titled = re.search(r'title="([^"]+)"', info)
        if titled:
            file = tmp_path / titled[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile(code, page, "exec"), namespace)
        elif language == "console":
            replay(code, tmp_path)


def replay(session: str, folder: Path) -> None:
    for step in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, encoding="utf-8")
        shown = done.stdout + done.stderr
        pattern = r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*?") for word in expected.split())
        assert re.fullmatch(rf"\s*{pattern}\s*", shown, re.DOTALL), (
            f"$ {command}\n--- documented\n{expected}\n--- printed\n{shown}"
        )


def test_every_command_and_builtin_is_documented() -> None:
    from rewardkit.cli import COMMANDS
    from rewardkit.plugins import load

    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    names = [*COMMANDS, *(entry.name for entry in load([]).registry.entries("verifier", "reward", "reader"))]
    assert [
        name
        for name in names
        if f"`{name}`" not in text and f"## {name}" not in text and f"rewardkit {name}" not in text
    ] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8")):
            if not (ROOT / page).parent.joinpath(target).exists():
                broken.append(f"{page}: {target}")
    assert broken == []


def test_no_page_holds_a_memory_address() -> None:
    assert [page for page in PAGES if re.search(r"\b0x[0-9a-f]{8,}", (ROOT / page).read_text(encoding="utf-8"))] == []
