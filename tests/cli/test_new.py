"""`rewardkit new`: what it makes is really installed, listed, shown, and tested in processes of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from rewardkit.cli.new import command, namespace, scaffold
from rewardkit.cli.scaffold import FILES
from rewardkit.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, cwd=site, timeout=300)


@pytest.mark.parametrize("name", ["colours", "my-unit_2"])
def test_a_new_plugin_installs_registers_documents_itself_and_passes_its_tests(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip and setuptools in this environment: no network for another build backend")
    space = name.replace("-", "_")
    folder = scaffold(name, tmp_path)
    assert folder.name == f"rewardkit-{space.replace('_', '-')}"
    site = tmp_path / "site"
    site.mkdir()
    done = run(
        site, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--no-build-isolation", "--target", str(site), str(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = run(site, "-m", "rewardkit", "plugins").stdout
    assert f"{space} {folder.name} 0.1 2 rewardkit_{space}" in " ".join(listed.split())
    shown = run(site, "-m", "rewardkit", "show", f"{space}/last_line").stdout
    for part in (
        f"{space}/last_line  (verifier, {folder.name} 0.1)",
        "ignore_case = False  bool  let upper",
        "line  str  the",
    ):
        assert part in shown
    assert "max_words = 100  int  largest number" in run(site, "-m", "rewardkit", "show", f"{space}/short").stdout
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    # The README's own example.
    formula = f"'{space}/last_line' + 0.1*'{space}/short'"
    assert formula in (folder / "README.md").read_text(encoding="utf-8")
    done = run(site, "-m", "rewardkit", "try", formula, "--reference", "Paris", "Paris")
    assert done.stdout.startswith("total = 1.1\n"), done.stderr


def test_its_own_tests_notice_when_it_is_broken(tmp_path: Path) -> None:
    folder = scaffold("colours", tmp_path)
    file = folder / "rewardkit_colours" / "verifiers.py"
    file.write_text(file.read_text(encoding="utf-8").replace("if equal:", "if True:"), encoding="utf-8")
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "last_line", str(folder))
    assert done.returncode == 1 and "test_last_line_keeps_the_contract" in done.stdout


def test_it_says_the_next_three_commands(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["colours", "--into", str(tmp_path / ".")], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.splitlines()[1:] == [
        f"  pip install -e '{tmp_path}/rewardkit-colours[test]'",
        f"  pytest {tmp_path}/rewardkit-colours",
        "  rewardkit show colours/last_line",
    ]


def test_every_file_is_there_and_filled_in(tmp_path: Path) -> None:
    folder = scaffold("colours", tmp_path)
    made = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert made == [
        "README.md", "pyproject.toml", "rewardkit_colours/__init__.py", "rewardkit_colours/rewards.py",
        "rewardkit_colours/verifiers.py", "tests/test_colours.py",
    ]  # fmt: skip
    assert len(made) == len(FILES)
    assert not any(
        "@" + mark in (folder / file).read_text("utf-8")
        for file in made
        for mark in ("DIST", "SPACE", "MODULE", "VERSION")
    )
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"] == {"rewardkit": {"colours": "rewardkit_colours"}}
    assert project["name"] == "rewardkit-colours" and "license" not in project


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Colours", "did you mean colours?"), ("my colours", "did you mean my_colours?"), ("1st", "did you mean st?"),
        ("", "got ''"), ("_x", "did you mean x?"), ("../x", "did you mean x?"), ("a.b", "did you mean a_b?"),
        ("farben\u00fc", "did you mean farben?"), ("a--b", "got 'a--b'"), ("x" * 41, "at most 40"),
        ("a\nb", "got 'a\\nb'"),
        ("rewardkit-dates", "rewardkit new dates"), ("class", "cannot be a plugin's name"), ("-", "got '-'"),
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_and_nothing_is_made(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        scaffold(name, tmp_path)
    assert said in str(caught.value) and list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "rewardkit-colours"
    folder.mkdir()
    (folder / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="exists already"):
        scaffold("colours", tmp_path)
    assert [path.name for path in folder.iterdir()] == ["mine"]
    (tmp_path / "rewardkit-file").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="exists already"):
        scaffold("file", tmp_path)


def test_a_folder_that_is_not_there_is_an_error_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be made: No such file"):
        scaffold("colours", tmp_path / "nowhere")


def test_hyphens_and_underscores_are_one_name() -> None:
    assert namespace("my-unit") == namespace("my_unit") == "my_unit"


def test_it_is_a_command() -> None:
    """Registered in builtin.py and listed by help, like every command of ours."""
    done = run(ROOT, "-m", "rewardkit", "new", "Bad Name")
    assert done.returncode == 2 and done.stderr.startswith("rewardkit: a plugin's name is lower case")
