"""Plugins as their users meet them: installed distributions, found by a new process, good ones and broken ones.

An "installed distribution" is made here as pip leaves it: the package, and NAME-VERSION.dist-info beside it. One test
installs a source tree with pip itself.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rewardkit
from rewardkit import plugins
from rewardkit.errors import PluginError, UnknownName
from rewardkit.plugins import Plugins, load
from rewardkit.registry import Owner

HERE = Path(__file__).parent
SOURCES = HERE / "plugins_for_tests"
ROOT = HERE.parent


class Site:
    """A folder with installed distributions, and processes that see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder.parent / "work"
        folder.mkdir()
        self.work.mkdir()

    def install(self, name: str, version: str, entry_points: str, source: str | None = None, module: str = "") -> None:
        """Add a distribution; its one module holds `source`."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        if source is not None:
            (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n", encoding="utf-8")

    def plugin(self, namespace: str, source: str, *, name: str = "", version: str = "1.0", module: str = "") -> None:
        module = module or f"rewardkit_{namespace}"
        name = name or module.replace("_", "-")
        self.install(name, version, f"[rewardkit]\n{namespace} = {module}\n", source, module)

    def install_good(self) -> None:
        """Both plugins of plugins_for_tests, as pip would leave them."""
        shutil.copytree(SOURCES / "dates" / "rewardkit_dates", self.folder / "rewardkit_dates")
        self.install("rewardkit-dates", "1.2", "[rewardkit]\ndates = rewardkit_dates\n")
        shutil.copy(SOURCES / "shout" / "rewardkit_shout.py", self.folder)
        self.install("rewardkit-shout", "0.3", "[rewardkit]\nshout = rewardkit_shout\n")

    def run(
        self, *arguments: str, stdin: str | None = None, traceback: str = "none"
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m rewardkit` and check what holds for every run: no traceback, no escape bytes."""
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COLUMNS")}
        done = subprocess.run(
            [sys.executable, "-m", "rewardkit", *arguments],
            capture_output=True, cwd=self.work, timeout=120,
            env=env | {"PYTHONPATH": path, "FORCE_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            input=stdin.encode() if stdin is not None else None,
        )  # fmt: skip
        shown = done.stdout + done.stderr
        assert b"\x1b" not in shown
        if traceback == "none":
            assert b"Traceback" not in shown, shown.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The site in this process: for what need not be seen from outside."""
    monkeypatch.syspath_prepend(str(site.folder))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(site.folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


def loaded(site: Site) -> Plugins:
    points = [point for one in metadata.distributions(path=[str(site.folder)]) for point in one.entry_points]
    return load(sorted(points, key=lambda point: (point.name, point.value)))


def problem(site: Site) -> str:
    """The one problem of the one plugin of a site."""
    (broken,) = loaded(site).broken
    return broken.problem


HOOK = """
from rewardkit import hookimpl
@hookimpl
def rewardkit_rewards(register):
    register({arguments})
"""

# ------------------------------------------------------------------------------------------------------ it works


def test_two_plugins_are_listed_shown_and_used(site: Site) -> None:
    site.install_good()
    done = site.run("list")
    assert done.returncode == 0 and done.stderr == ""
    for line in (
        "  dates/iso_day  The last ISO date is the reference day",
        "  dates/mentions_year  1 when a year is mentioned",
        "  shout/loud",
        "  shout/nothing  Trains nothing",
        "  dates/weekday",
    ):
        assert " ".join(line.split()) in " ".join(done.stdout.split())
    assert "rewardkit-dates 1.2" in done.stdout and "rewardkit-shout 0.3" in done.stdout
    assert site.run("list", "--names").stdout.split() == [
        *[entry.name for entry in load([]).registry.entries("reward")],
        *[entry.name for entry in load([]).registry.entries("verifier")],
        "dates/iso_day_set", "dates/mentions_year", "dates/iso_day", "shout/loud",
    ]  # fmt: skip
    ours = str(len(list(load([]).registry.entries())))
    done = site.run("plugins")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["namespace", "distribution", "entries", "module"],
        ["(built", "in)", "rewardkit", rewardkit.__version__, ours, "rewardkit.builtin"],
        ["dates", "rewardkit-dates", "1.2", "6", "rewardkit_dates"],
        ["shout", "rewardkit-shout", "0.3", "2", "rewardkit_shout"],
    ]  # fmt: skip


def test_a_plugins_names_work_in_formulas_on_the_command_line(site: Site) -> None:
    site.install_good()
    done = site.run("try", "dates/iso_day(within_days=2)", "it is 2024-03-01", "--reference", "2024-02-29")
    assert (done.returncode, done.stdout) == (0, "iso_day = 1   extracted '2024-03-01'   1 days off\n")
    done = site.run(
        "try", "x=2*'dates/iso_day' - 'shout/loud'(share=0.5)", "NO 2024-02-29", "--reference", '{"day": "2024-02-29"}'
    )
    assert done.returncode == 0 and done.stdout.startswith("x = 1\n  2 * iso_day = 1   ")
    done = site.run("try", "dates/iso_day_set", "2024-02-29", "--reference", "2024-02-29")
    assert done.returncode == 0 and done.stdout.startswith("iso_day_set = 1.1\n")
    done = site.run("try", "0.5*dates/iso_day", "x", "--reference", "2024-02-29")
    assert done.returncode == 2 and "'dates/iso_day'" in done.stderr and "is quoted" in done.stderr
    done = site.run("try", "dates/iso_dya", "x")
    assert done.returncode == 2 and "did you mean dates/iso_day?" in done.stderr
    done = site.run("try", "dates/iso_day", "x", "--reference", "2024-02-30")
    assert done.returncode == 0 and "abstained" in done.stdout and "bad_reference" in done.stdout
    done = site.run("show", "dates/iso_day")
    assert done.returncode == 0
    assert "dates/iso_day  (verifier, rewardkit-dates 1.2)" in done.stdout
    assert "within_days = 0  int  days that it may be off." in done.stdout and "day  date" in done.stdout
    assert "shout/loud  (reward, rewardkit-shout 0.3)" in site.run("show", "shout/loud").stdout


def test_a_plugins_command_is_in_help_and_runs_and_a_broken_one_breaks_nothing_else(site: Site) -> None:
    site.install_good()
    done = site.run("--help")
    assert done.returncode == 0 and done.stderr == ""
    for line in ("weekday Print the weekday of an ISO date.", "broken_command Does not import.", "eval Score saved"):
        assert line in " ".join(done.stdout.split())
    assert site.run("weekday", "2024-02-29").stdout == "Thursday\n"
    assert "Usage: rewardkit weekday" in site.run("weekday", "--help").stdout
    done = site.run("broken_command")
    assert done.returncode == 2 and "rewardkit_dates.no_such_module" in done.stderr
    done = site.run("odd_command")
    assert done.returncode == 2 and "is no click command, but a FunctionReward" in done.stderr
    done = site.run("weekdya", "2024-02-29")
    assert done.returncode == 2 and "did you mean weekday?" in done.stderr
    assert site.run("list").returncode == 0


def test_nothing_is_imported_before_it_is_used(site: Site) -> None:
    site.install_good()
    code = (
        "import sys; from rewardkit.cli import run; run(['--help']);"
        "late = {'pydantic', 'rich', 'sympy', 'rewardkit_dates.iso_day', 'rewardkit_dates.command'};"
        "print(sorted(late & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(site.folder), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "weekday" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_pip_installs_a_plugin_from_its_source(site: Site) -> None:
    """The whole way of an author: pyproject.toml, entry point, pip, and the name works."""
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip and setuptools in this environment: without network no other build backend is at hand")
    if tuple(map(int, metadata.version("setuptools").split(".")[:2])) < (70, 1) and not importlib.util.find_spec(
        "wheel"
    ):
        pytest.skip("needs setuptools >= 70.1 (or wheel), which builds wheels by itself")
    source = site.folder.parent / "source"  # a copy, since building leaves files behind
    shutil.copytree(SOURCES / "dates", source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site.folder), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "dates rewardkit-dates 1.2 6 rewardkit_dates" in " ".join(site.run("plugins").stdout.split())
    done = site.run("try", "dates/iso_day", "2024-02-29", "--reference", "2024-02-29")
    assert (done.returncode, done.stdout[:11]) == (0, "iso_day = 1")


# --------------------------------------------------------------------------------------------- those that are broken

BROKEN_SOURCES = [
    ("raise ImportError('two\\nlines')", "does not import: ImportError: two lines"),
    (
        "import not_there_q",
        "needs the module 'not_there_q', which is not installed (ModuleNotFoundError); pip install not_there_q",
    ),
    ("import not_there_q.sub", "pip install not_there_q"),
    ("from email import no_such", "does not import: ImportError: cannot import name 'no_such'"),
    ("import sys; sys.exit('bye')", "does not import: SystemExit: bye"),
    ("def x(:", "does not import: SyntaxError: invalid syntax"),
    ("1/0", "does not import: ZeroDivisionError"),
    ("def f(): f()\nf()", "does not import: RecursionError"),
    (
        "from rewardkit import hookimpl\n@hookimpl\ndef rewardkit_verifier(register): pass",
        "there is no hook 'rewardkit_verifier'; did you mean rewardkit_verifiers? The hooks are rewardkit_",
    ),
    ("def rewardkit_verifierz(register): pass", "did you mean rewardkit_verifiers?"),
    (
        "from rewardkit import hookimpl\n@hookimpl\ndef add_all(register): pass",
        "there is no hook 'add_all'; The hooks are",
    ),
    (
        "import rewardkit\n@rewardkit.hookimpl(specname='rewardkit_verifierz')\ndef rewardkit_rewards(register): pass",
        "did you mean rewardkit_verifiers?",
    ),
    (
        "from rewardkit import hookimpl\n@hookimpl\ndef rewardkit_verifiers(regster): pass",
        "Argument(s) {'regster'} are declared in the hookimpl but can not be found in the hookspec",
    ),
    (
        "def rewardkit_verifiers(register): register('a', 'b:c', 'd')",
        "rewardkit_verifiers is not marked as a hook; put @rewardkit.hookimpl above it",
    ),
    (
        "import pluggy\n@pluggy.HookimplMarker('other')\ndef rewardkit_rewards(register): pass",
        "rewardkit_rewards is not marked as a hook",
    ),
    (HOOK.format(arguments="'a', 'm:x', 's'); raise KeyError('midway'"), "KeyError: 'midway'"),
    (HOOK.format(arguments="'a', 'm:x', 's'); raise SystemExit('bye'"), "SystemExit: bye"),
    (HOOK.format(arguments="'a', 'm:x', 's'); register('a', 'm:y', 's'"), "rewardkit-q 1.0: it registers 'a' twice"),
    (HOOK.format(arguments="'A', 'm:x', 's'"), "rewardkit-q 1.0: the name 'A' is not of the form [a-z][a-z0-9_]*"),
    (HOOK.format(arguments="'other/a', 'm:x', 's'"), "outside of its namespace 'q'"),
    (HOOK.format(arguments="None, 'm:x', 's'"), "a name is text, got None"),
    (HOOK.format(arguments="'a', len, 's'"), "the target of 'q/a' is an import string"),
    (HOOK.format(arguments="'a', 'file.py:x', 's'"), "the target of 'q/a' is an import string"),
    (HOOK.format(arguments="'a', 'm:x'"), "TypeError: register() missing 1 required positional argument: 'summary'"),
    (HOOK.format(arguments="'a', 'm:x', 5"), "the summary of 'q/a' is one line of text"),
]


@pytest.mark.parametrize(("source", "said"), BROKEN_SOURCES, ids=[said[:40] for _, said in BROKEN_SOURCES])
def test_a_broken_plugin_is_kept_with_its_reason_and_leaves_nothing_behind(source: str, said: str, here: Site) -> None:
    here.plugin("q", source)
    found = loaded(here)
    (broken,) = found.broken
    assert said in broken.problem and "\n" not in broken.problem
    assert (broken.owner.namespace, broken.owner.distribution, broken.entries) == ("q", "rewardkit-q", 0)
    assert {entry.owner.namespace for entry in found.registry.entries()} == {""}
    with pytest.raises(PluginError) as caught:
        found.registry.get("reward", "q/a")
    assert str(caught.value) == f"'q/a' belongs to plugin 'q', which does not load: {broken.problem}"


def test_the_full_name_may_be_registered_too(here: Site) -> None:
    here.plugin("q", HOOK.format(arguments="'q/a', 'm:x', 's'"))
    assert loaded(here).registry.get("reward", "q/a").target == "m:x"


@pytest.mark.parametrize("key", ["Dates", "my-dates", "a.b", "1st", "naïve", "a b"])
def test_a_malformed_namespace_is_a_broken_plugin(key: str, here: Site) -> None:
    here.install(
        "x", "1", f"[rewardkit]\n{key} = rewardkit_x\n", HOOK.format(arguments="'a', 'm:x', 's'"), "rewardkit_x"
    )
    assert problem(here) == f"its namespace {key!r} (the entry point's key) is not of the form [a-z][a-z0-9_]*"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module_q", "its own module 'no_such_module_q' is missing (ModuleNotFoundError); install it again"),
        ("no_such_module_q.hooks", "its own module 'no_such_module_q' is missing"),
        ("email.no_such_q", "its own module 'email.no_such_q' is missing"),
        ("json:dumps", "its entry point names a function, not the module that holds the hooks"),
        ("json:no_such", "does not import: AttributeError"),
        ("not a module!", "its entry point 'not a module!' names no module"),
    ],
)
def test_an_entry_point_that_leads_nowhere(value: str, said: str, here: Site) -> None:
    here.install("x", "1", f"[rewardkit]\nq = {value}\n")
    assert said in problem(here)


def test_every_command_works_beside_a_broken_plugin_and_says_so_on_one_line(site: Site) -> None:
    site.install_good()
    site.plugin("torn", "import no_such_module_q")
    site.plugin("torn2", "print('noise'); raise RuntimeError('\\x1b[31mred\\x07')")
    line = "rewardkit: plugins that do not load: torn, torn2; `rewardkit plugins` says why\n"
    for arguments in (["--help"], ["plugins"], ["show", "gsm8k"], ["list", "--names"], ["weekday", "2024-02-29"],
                      ["try", "gsm8k", "#### 18", "--reference", "18"]):  # fmt: skip
        done = site.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "noise\n" + line), arguments
        assert "noise" not in done.stdout
    missing = "no_such_module_q"
    reason = f"needs the module {missing!r}, which is not installed (ModuleNotFoundError); pip install {missing}"
    done = site.run("list")
    assert done.returncode == 0 and "dates/iso_day" in done.stdout
    assert line in done.stderr and f"broken: plugin 'torn' (rewardkit-torn 1.0): {reason}\n" in done.stderr
    done = site.run("plugins")
    assert f"broken: torn: {reason}\n" in done.stdout
    assert "broken: torn2: does not import: RuntimeError: \\x1b[31mred\\x07\n" in done.stdout
    done = site.run("try", "torn/thing", "text")
    assert done.returncode == 2 and reason in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "rewardkit: 'torn/thing' belongs to plugin 'torn', which does not load: "
    )
    assert site.run("show", "torn/thing").returncode == 2
    assert site.run("eval", "x.jsonl", "-r", "torn/thing").returncode == 2


def test_a_target_that_does_not_import_is_an_error_only_when_used(site: Site) -> None:
    site.plugin(
        "q",
        HOOK.format(arguments="'far', 'rewardkit_q_far:far', 'Needs more'); register('gone', 'rewardkit_q:gone', 's'")
        + "\ndef near(completion): return 1.0\n",
    )
    (site.folder / "rewardkit_q_far.py").write_text("import no_such_module_q\n", encoding="utf-8")
    done = site.run("list")
    assert (done.returncode, done.stderr) == (0, "") and "q/far" in done.stdout
    done = site.run("try", "q/far", "text")
    assert done.returncode == 2
    assert "needs the package 'no_such_module_q', which is not installed; pip install no_such_module_q" in done.stderr
    done = site.run("show", "q/gone")
    assert done.returncode == 2 and "rewardkit_q has no 'gone'" in done.stderr


def test_two_distributions_with_one_namespace_and_one_name_are_both_named(here: Site) -> None:
    here.plugin("q", HOOK.format(arguments="'a', 'm:x', 's'"), name="first-q", module="first_q")
    source = HOOK.format(arguments="'own', 'm:z', 's'); register('a', 'm:y', 's'")
    here.plugin("q", source, name="second-q", module="second_q", version="2.0")
    found = loaded(here)
    text = "'q/a' is registered twice: by first-q 1.0 and by second-q 2.0; uninstall one of them"
    assert [(one.owner.distribution, one.problem) for one in found.broken] == [("second-q", text)]
    with pytest.raises(PluginError) as caught:
        found.registry.get("verifier", "q/a")
    assert str(caught.value) == text
    with pytest.raises(PluginError, match="registered twice"):
        found.registry.get("reward", "q/own")  # went with its plugin


def test_two_distributions_may_share_a_namespace(here: Site) -> None:
    here.plugin("q", HOOK.format(arguments="'a', 'm:x', 's'"), name="first-q", module="first_q")
    here.plugin("q", HOOK.format(arguments="'b', 'm:x', 's'"), name="second-q", module="second_q")
    here.plugin("q", "1/0", name="third-q", module="third_q")
    found = loaded(here)
    assert {found.registry.get("reward", name).owner.distribution for name in ("q/a", "q/b")} == {"first-q", "second-q"}
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        found.registry.get("reward", "q/c")


def test_a_plugin_cannot_take_one_of_our_commands_nor_one_of_another_plugin(site: Site) -> None:
    hook = "from rewardkit import hookimpl\n@hookimpl\ndef rewardkit_commands(register): register({!r}, 'm:x', 's')\n"
    site.plugin("p", hook.format("list"))
    site.plugin("q", hook.format("extra"))
    site.plugin("r", hook.format("extra"))
    done = site.run("plugins")
    own = f"'list' is registered twice: by rewardkit {rewardkit.__version__} and by rewardkit-p 1.0"
    assert own in done.stdout
    assert "command 'extra' is registered twice: by rewardkit-q 1.0 and by rewardkit-r 1.0" in done.stdout
    assert site.run("list").returncode == 0
    assert site.run("--help").stdout.count("  list ") == 1
    done = site.run("extra")
    assert done.returncode == 2 and "by rewardkit-q 1.0 and by rewardkit-r 1.0; uninstall one of them" in done.stderr


def test_a_plugin_that_registers_nothing_is_noted(site: Site) -> None:
    site.plugin("empty", "import rewardkit\n")
    site.plugin("yields", "from rewardkit import hookimpl\n@hookimpl\ndef rewardkit_rewards():\n    return ['a']\n")
    done = site.run("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("empty", "yields"):
        assert f"note: {name} registers nothing; does its module hold the hooks?" in done.stdout


def test_damaged_metadata_of_others_breaks_nothing(site: Site) -> None:
    site.install_good()
    site.install("garbage", "1", "[rewardkit]\nno equals sign\n")
    (site.folder / "latin-1.dist-info").mkdir()
    (site.folder / "latin-1.dist-info" / "entry_points.txt").write_bytes(b"[console_scripts]\nx\xe9 = a:b\n")
    nameless = site.folder / "~leftover-2.dist-info"
    nameless.mkdir()
    (nameless / "entry_points.txt").write_text("[rewardkit]\nleft = rewardkit_left\n", encoding="utf-8")
    done = site.run("plugins")
    assert done.returncode == 0
    assert "dates rewardkit-dates 1.2 6 rewardkit_dates" in " ".join(done.stdout.split())
    assert "None" not in done.stdout
    assert site.run("--help").returncode == 0


def test_the_other_rewardkit_is_pointed_out(site: Site) -> None:
    done = site.run("plugins")
    assert (
        "harbor" not in done.stdout
        and "No plugins are installed. docs/plugins.md shows how to write one." in done.stdout
    )
    site.install("harbor-rewardkit", "0.2.3", "[console_scripts]\nrewardkit = rewardkit.cli:main\n")
    done = site.run("plugins")
    assert done.returncode == 0
    assert "warning: harbor-rewardkit 0.2.3 is installed too. It has the same import name and command" in done.stdout


def test_our_own_entries_load_and_each_target_exists() -> None:
    from rewardkit.targets import load_target

    found = load([])
    assert found.broken == []
    for entry in found.registry.entries():
        assert load_target(entry.target) is not None, entry
        assert entry.summary and "\n" not in entry.summary
        assert entry.owner == Owner("", "rewardkit", rewardkit.__version__)


def test_our_version_is_written_in_two_places_that_agree() -> None:
    import tomllib

    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        == rewardkit.__version__
    )


# --------------------------------------------------------------------------------------------------- the quick look


def points_by_importlib(folder: Path) -> list[str]:
    found = []
    for one in metadata.distributions(path=[str(folder)]):
        found += [point.value for point in one.entry_points if point.group == plugins.GROUP]
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["x-1.dist-info", "x.egg-info", "X-1.DIST-INFO", "x-1.0.0-py3.11.egg-info", "notes"]),
    st.text("[]rewardkit \n=.x", max_size=40).map(lambda text: text + "\n[rewardkit]\na = m\n")
    | st.text("[]rewardkit \n=x", max_size=30),
)
@example("x-1.dist-info", "[rewardkit]\na = m\n")
@example("x.egg-info", "[rewardkit]\r\na = m")
def test_the_quick_look_never_overlooks_a_plugin(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    folder = tmp_path_factory.mktemp("look")
    (folder / name).mkdir()
    (folder / name / "entry_points.txt").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder)])
        patch.setattr(sys, "meta_path", [PathFinder])
        none = plugins.surely_none()
    try:
        found = points_by_importlib(folder)
    except Exception:  # damaged
        found = []
    assert not (none and found)


def test_the_quick_look_leaves_to_importlib_what_it_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "not there")])
    assert plugins.surely_none() and plugins.installed() == []
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"PK")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert not plugins.surely_none()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [PathFinder, metadata.DistributionFinder])
    assert not plugins.surely_none()
    egg = tmp_path / "x-1-py3.11.egg"
    egg.mkdir()
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(sys, "path", [str(egg)])
    assert not plugins.surely_none()


# ------------------------------------------------------------------------------------------------ the command line


def test_the_small_commands_without_plugins(site: Site) -> None:
    done = site.run("list")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("exact", "numeric", "gsm8k", "label", "think_format", "length", "jsonl", "csv"):
        assert f"\n  {name} " in done.stdout
    assert "(not installed)" not in done.stdout and "\n  eval " not in done.stdout
    done = site.run("show", "numeric")
    assert "tolerance = 0 " in done.stdout and "'auto' | 'marked' | 'whole'" in done.stdout and "number" in done.stdout
    assert "<class" not in done.stdout and "content hash  " in done.stdout
    done = site.run("show", "gsm8k")
    assert (
        "gsm8k  (verifier, rewardkit " in done.stdout
        and "Options: none" in done.stdout
        and "Runs: inline" in done.stdout
    )
    done = site.run("show", "length")
    assert "at_most = 512   int  " in done.stdout and "upper bound" in done.stdout
    assert "strict = True " in site.run("show", "think_format").stdout


def test_show_and_try_take_a_reward_of_the_users_own_file(site: Site) -> None:
    (site.work / "my_rewards.py").write_text(
        "from rewardkit import reward\n\n@reward\ndef brief(completion, *, max_words: int = 120) -> float:\n"
        '    """Short is good.\n\n    Args:\n        max_words: as many are fine.\n    """\n'
        "    return float(len(completion.split()) <= max_words)\n\n"
        "@reward\ndef bad(completion):\n    raise ValueError('\\x1b[31mred')\n",
        encoding="utf-8",
    )
    done = site.run("show", "my_rewards.py:brief")
    assert done.returncode == 0
    for part in (
        "brief  (reward, from ",
        "Short is good.",
        "max_words = 120  int  as many are fine.",
        "Needs: nothing but",
    ):
        assert part in done.stdout
    done = site.run("show", "'my_rewards.py:brief'(max_words=3) + gsm8k")
    assert done.returncode == 0 and "a composition" in done.stdout
    assert site.run("try", "my_rewards.py:brief(max_words=1)", "two words").stdout.startswith("brief = 0")
    assert site.run("try", "my_rewards.py:brief(max_words=1)", "-", stdin="one").stdout.startswith("brief = 1")
    done = site.run("try", "my_rewards.py:bad", "x", traceback="of the user's own reward")
    assert done.stdout.startswith("bad = error") and "\\x1b[31mred" in done.stdout
    assert done.stderr.startswith("Traceback") and "my_rewards.py" in done.stderr and "\\x1b[31mred" in done.stderr


def test_show_describes_a_verifier_whose_options_must_be_given(site: Site) -> None:
    source = (
        HOOK.format(arguments="'x', 'm:x', 's'")
        .replace("rewardkit_rewards", "rewardkit_verifiers")
        .replace("m:x", "rewardkit_q:Must")
    )
    site.plugin(
        "q",
        source
        + "from rewardkit import Reference, Verdict, Verifier\nclass R(Reference):\n    text: str\n"
        + "class Must(Verifier[R]):\n    schema_name: str\n"
        + "    def verify(self, completion, reference, sample): return Verdict.accept()\n",
    )
    done = site.run("show", "q/x")
    assert done.returncode == 0, done.stderr
    assert "q/x  (verifier, rewardkit-q 1.0)" in done.stdout and "schema_name  str" in done.stdout
    assert "Undefined" not in done.stdout
    done = site.run("try", "q/x", "text", "--reference", "t")
    assert done.returncode == 2 and "schema_name" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["evall"],
            "there is no command 'evall'; did you mean eval? The commands are eval, train, plan, plot, compare",
        ),
        (["zzz"], "there is no command 'zzz'; The commands are"),
        (["list", "extra"], "Got unexpected extra argument (extra)"),
        (["list", "bell\x07"], "bell\\x07"),
        (["show"], "Missing argument 'NAME|RUN'"),
        (["show", "gsmk8"], "there is no reward named 'gsmk8'; did you mean gsm8k?"),
        (["show", "jsonl"], "there is no reward named 'jsonl'"),
        (["try", "gsm8k", "x", "--colum", "a=b"], "--column"),
        (["try", "gsm8k", "x", "--column", "a"], "--column wants NAME=VALUE, got 'a'"),
        (["try", "gsm8k", "x", "--column", "reference=1"], "give it with --reference"),
        (["try", "gate(", "x"], "column 6"),
        (["try", "\x1b[31m", "x"], "\\x1b"),
        (["try", "no.toml", "x"], "no.toml: no such file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], said: str, site: Site) -> None:
    done = site.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.startswith("rewardkit: ") and done.stderr.count("\n") == 1


def test_without_arguments_help_is_shown_and_the_exit_code_is_2(site: Site) -> None:
    done = site.run()
    assert (done.returncode, done.stderr) == (2, "") and done.stdout == site.run("-h").stdout
    assert site.run("--version").stdout == f"rewardkit {rewardkit.__version__}\n"


def test_traceback_is_shown_when_asked_for_and_keeps_the_exit_code(site: Site) -> None:
    done = site.run("show", "gsmk8", "--traceback", traceback="asked for")
    assert done.returncode == 2 and "Traceback" in done.stderr and "UnknownName" in done.stderr


def test_a_reader_that_has_gone_is_no_missed_bar(site: Site) -> None:
    """As with `rewardkit list | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "rewardkit", "list"], stdout=writer, stderr=subprocess.PIPE, env=env)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_try_reads_references_as_text_or_json(site: Site) -> None:
    assert (
        site.run("try", "gsm8k", "#### 18", "--reference", "18").stdout
        == "gsm8k = 1   extracted '18'   18 after ####\n"
    )
    assert site.run("try", "gsm8k", "#### 17", "--reference", '{"answer": "18"}').stdout.startswith(
        "gsm8k = 0   extracted '17'   wrong"
    )
    done = site.run("try", "gsm8k", "#### 17", "--reference", "[" * 100_000)
    assert done.returncode == 0 and "abstained" in done.stdout and "bad_reference" in done.stdout
    done = site.run("try", "length(unit='tokens', at_most=10)", "x", "--column", "tokens=5")
    assert done.returncode == 0 and done.stdout.startswith("length = 1")


def test_try_scores_every_column_of_a_toml_file(site: Site) -> None:
    (site.work / "r.toml").write_text('[reward]\none = "gsm8k"\ntwo = "length"\n', encoding="utf-8")
    done = site.run("try", "r.toml", "#### 18", "--reference", "18")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["one", "two"]


def test_names_that_are_unknown_stay_unknown_beside_plugins(here: Site) -> None:
    here.plugin("q", HOOK.format(arguments="'a', 'm:x', 's'"))
    with pytest.raises(UnknownName, match="did you mean q/a"):
        loaded(here).registry.get("reward", "q/b")
