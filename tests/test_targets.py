"""Targets: the text form of a Python object loads exactly that object, once, or says why it cannot."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewardkit import targets
from rewardkit.errors import UnknownName, UsageError
from rewardkit.reward import reward
from rewardkit.targets import defining_file, is_file_target, load_file, load_target, target_of, travels


@pytest.fixture(autouse=True)
def tidy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test imports, and the folders that it leaves on the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("rewardkit_file_", "neighbour_", "half_", "quits_")):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("target", "is_file"),
    [
        ("pkg.mod:attr", False),
        ("pkg:attr.inner", False),
        ("my.py:brief", True),
        ("../x/my.py:brief", True),
        ("C:\\x\\my.py:brief", True),
        ("folder/without_ending:brief", True),
        ("py:brief", False),
    ],
)
def test_what_is_a_file(target: str, is_file: bool) -> None:
    assert is_file_target(target) is is_file


@pytest.mark.parametrize("target", ["", ":", "json", "json:", ":loads", "my.py"])
def test_text_that_is_no_target(target: str) -> None:
    with pytest.raises(UsageError, match=r"is no target; write package\.module:name or file\.py:name"):
        load_target(target)


def test_a_dotted_attribute_is_followed_and_a_wrong_one_names_the_nearest(file: Callable[..., Path]) -> None:
    path = file("class Outer:\n    class Inner:\n        pass\n")
    assert load_target(f"{path}:Outer.Inner").__name__ == "Inner"  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match=r"has no 'Outer\.Iner'; did you mean Inner\?"):
        load_target(f"{path}:Outer.Iner")
    with pytest.raises(UnknownName, match="did you mean Outer"):
        load_target(f"{path}:outer")


def test_a_file_runs_once_however_its_path_is_written(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("import neighbour_count\nneighbour_count.runs.append(1)\nx = object()\n")
    file("runs = []\n", "neighbour_count.py")
    link = path.with_name("link.py")
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    found = [load_target(f"{place}:x") for place in (path, "mine.py", "./mine.py", link)]
    assert all(thing is found[0] for thing in found)
    assert sys.modules["neighbour_count"].runs == [1]


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"x = {folder!r}\n")
    assert [load_target(f"{tmp_path / folder / 'mine.py'}:x") for folder in ("a", "b")] == ["a", "b"]


def test_the_folder_goes_to_the_end_of_the_path_so_that_it_hides_nothing(file: Callable[..., Path]) -> None:
    file("raise RuntimeError('the wrong json')\n", "json.py")
    path = file("import json\nx = json.loads('1')\n")
    assert load_target(f"{path}:x") == 1
    assert sys.path[-1] == str(path.parent)


@pytest.mark.parametrize("place", ["nowhere/x.py", "~nobody-of-this-name/x.py", "x" * 5000 + ".py", "a\0b.py", "."])
def test_a_path_that_cannot_be_a_file_says_so(place: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_file(Path(place))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "does not import: SyntaxError"),
        ("import package_that_is_not_here\n", "does not import: ModuleNotFoundError: No module named"),
        ("1 / 0\n", "does not import: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "does not import: SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_import_is_a_usage_error_each_time(
    file: Callable[..., Path], text: str, said: str
) -> None:
    path = file(text)
    for _ in range(2):  # half a module must not stay behind
        with pytest.raises(UsageError, match=said):
            load_target(f"{path}:x")


def test_an_interrupted_import_passes_and_leaves_no_half_module(file: Callable[..., Path]) -> None:
    path = file("x = 1\nraise KeyboardInterrupt\ny = 2\n")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            load_target(f"{path}:x")


def test_modules_that_do_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_there.py").write_text("import package_that_is_not_here.inner\n")
    (tmp_path / "quits_early.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(UsageError, match="there is no module 'not_there'; is its package installed here"):
        load_target("not_there:x")
    with pytest.raises(UsageError, match=r"there is no module 'rewardkit\.not_there'"):
        load_target("rewardkit.not_there:x")
    with pytest.raises(UsageError, match="needs the package 'package_that_is_not_here', which is not installed"):
        load_target("half_there:x")
    with pytest.raises(UsageError, match="does not import: SystemExit: 1"):
        load_target("quits_early:x")
    with pytest.raises(UsageError, match="does not import"):
        load_target(".relative:x")


# -- from an object to its target


def plain() -> None: ...


other = functools.wraps(plain)(lambda: None)


@reward
def decorated(completion: str) -> float:
    return 1.0


class Judge:
    def method(self, completion: str) -> float:
        return 1.0

    @classmethod
    def built(cls, completion: str) -> float:
        return 1.0

    @staticmethod
    def loose(completion: str) -> float:
        return 1.0


class SubJudge(Judge):
    pass


@pytest.mark.parametrize("thing", [plain, Judge, Judge.loose, Judge.built, Judge.method, decorated.function])
def test_what_has_a_target_is_loaded_by_it(thing: object) -> None:
    target = target_of(thing)
    assert target is not None and travels(target)
    found = load_target(target)
    assert found == thing or found.function is thing  # type: ignore[attr-defined]
    assert defining_file(target) == Path(__file__)


def test_what_a_target_would_load_wrongly_has_none() -> None:
    def local() -> None: ...

    class Local: ...

    assert target_of(local) is target_of(Local) is target_of(lambda: None) is None
    assert target_of(functools.partial(plain)) is None
    # Its target would load the function without the object that it is bound to.
    assert target_of(Judge().method) is None
    # Its target would load the method bound to the base class.
    assert target_of(SubJudge.built) is None
    # It goes by the name of the function that it wraps.
    assert target_of(other) is None
    assert target_of(17) is None


def test_what_comes_from_a_file_is_named_by_that_file(file: Callable[..., Path]) -> None:
    path = file("from rewardkit import reward\n@reward\ndef brief(completion): return 1.0\nclass K: pass\n")
    for name in ("brief", "K"):
        thing = load_target(f"{path}:{name}")
        assert target_of(getattr(thing, "function", thing)) == f"{path}:{name}"
        assert travels(f"{path}:{name}") and defining_file(f"{path}:{name}") == path


def test_what_lives_in_main_is_found_here_but_does_not_travel() -> None:
    assert load_target("__main__:__name__") == "__main__"
    assert not travels("__main__:brief") and not travels("__mp_main__:brief") and not travels(None)


def test_main_is_the_running_script_and_is_not_run_again(file: Callable[..., Path]) -> None:
    path = file(
        "import pickle\nfrom rewardkit import reward\nprint('ran')\n"
        "@reward\ndef brief(completion, *, n: int = 1): return float(n)\n"
        "again = pickle.loads(pickle.dumps(brief.with_options(n=3)))\n"
        "print(again.target, again('x', n=2), again == brief.with_options(n=3), again == brief)\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.split("\n")[:2] == ["ran", "__main__:brief 2.0 True False"], done.stderr


def test_defining_file_of_what_has_none() -> None:
    assert defining_file("sys:path") is None
    assert defining_file("no_such_package.inner:x") is None
    assert targets.defining_file("json:loads") is not None
