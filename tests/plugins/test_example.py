"""`plugins/rewardkit-example` is the plugin that docs/plugins.md shows, and installs by itself.

That it works as the page says is what executing the page tests (`tests/test_docs.py`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugins" / "rewardkit-example"
SHOWN = re.findall(
    r'^```\w+ title="rewardkit-example/([^"]+)"\n(.*?)^```',
    (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
OWN = {"README.md"}
BUILT = ("__pycache__", "build", ".hypothesis", ".pytest_cache")


@pytest.mark.parametrize(("name", "shown"), SHOWN, ids=[name for name, _ in SHOWN])
def test_a_file_is_as_the_page_shows_it(name: str, shown: str) -> None:
    assert (PLUGIN / name).read_text(encoding="utf-8") == shown


def test_the_page_shows_every_file() -> None:
    files = {path.relative_to(PLUGIN) for path in PLUGIN.rglob("*") if path.is_file()}
    made = {str(path) for path in files if not any(part in BUILT or part.endswith(".egg-info") for part in path.parts)}
    assert made - OWN == {name for name, _ in SHOWN} and len(SHOWN) == 6


def test_it_installs_by_itself_and_its_tests_pass(tmp_path: Path) -> None:
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip and setuptools in this environment: no network for another build backend")
    source = tmp_path / "source"  # a copy, since building leaves files behind
    shutil.copytree(PLUGIN, source, ignore=shutil.ignore_patterns(*BUILT, "*.egg-info"))
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    env = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site), str(source)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(source / "rewardkit_example")  # what is tested is what was installed
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(source)],
        capture_output=True, text=True, env=env, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr
