"""From what a user gives as input (files, quoted globs, folders, zip archives, `-`) to the files that are read.

Files come in natural order: step 2 before step 10. What lies beside saved generations and is none (documentation,
settings, figures, another program's failures) is passed over and said, never silently.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rewardkit.errors import InputError
from rewardkit.records.archive import ZipMember, is_zip, members
from rewardkit.records.rows import Reader, registered_readers
from rewardkit.records.source import HEAD, Identity, Source
from rewardkit.records.text import path_text, visible

Given: TypeAlias = str | os.PathLike[str] | Source

_SURE = 95  # a reader this sure of an archive reads it whole; any other claim goes by the name alone
_DIGITS = "0123456789"
_MOST = 100_000  # files looked at in one folder

_SIDECAR = re.compile(
    r".*_failures|.*_materialized_inputs|.*metadata\.jsonl?$|aggregated_results|summary\.json$|readme|licen[cs]e"
    r"|scores\.jsonl|log\.jsonl$|(dataset_infos?|state|dataset_dict)\.json$|_(success|metadata|common_metadata)$"
    r"|(config|.*_config|trainer_state|tokenizer|vocab|special_tokens_map|added_tokens|.*\.index)\.json$"
    r"|.*\.(md|rst|log|toml|ya?ml|py|ipynb|sh|html?|css|js|png|jpe?g|svg|pdf|pt|pth|bin|safetensors|np[yz]|pkl|tmp|part)$"
)
_FIGURES = re.compile(r"results_.*\.json$")  # beside lm-eval's samples_*.jsonl and lighteval's details_*.parquet
_DETAILS = re.compile(r"(samples_.*\.jsonl|details_.*\.parquet)$")


@dataclass
class Inputs:
    """The files that are read.

    Attributes:
        given: What was given, as text.
        sources: What is read, in order; an archive's members are sources of their own.
        stored: The files that hold them: an archive once.
        passed: What was passed over: name and why.
        found: Whether sources were found in a folder, by a glob or in an archive, not named one by one.
    """

    given: list[str]
    sources: list[Source] = field(default_factory=list)
    stored: list[Source] = field(default_factory=list)
    passed: list[tuple[str, str]] = field(default_factory=list)
    found: bool = False

    @property
    def text(self) -> str:
        """What was given, for messages."""
        more = f" and {len(self.given) - 1:,} more" if len(self.given) > 1 else ""
        return path_text(self.given[0]) + more

    @property
    def stem(self) -> str:
        """A short name for a run's folder."""
        if len(self.given) > 1:
            return f"{_stem(self.given[0])}-and-{len(self.given) - 1}"
        return _stem(self.given[0])

    def identity(self) -> Identity:
        """Return that of the one file, or of all together: the hash over each one's name, size and hash."""
        return identity_of(self.stored, path=self.given[0] if len(self.given) == 1 else ", ".join(self.given))

    def notes(self) -> list[str]:
        """Return one sentence for each reason why files were passed over."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.passed:
            reasons.setdefault(why, []).append(name)
        return [f"passed over ({why}): {_some(names)}" for why, names in reasons.items()]


def identity_of(files: Sequence[Source], path: str | None = None) -> Identity:
    """Return the identity of one file, or one of several: it changes with any name, size or content, and the order."""
    if len(files) == 1 and (path is None or path == files[0].given):
        return files[0].identity()
    every = [file.identity() for file in files]
    parts = [[file.name, one.bytes, one.sha256] for file, one in zip(files, every, strict=True)]
    lines = [one.lines for one in every]
    return Identity(
        path if path is not None else ", ".join(file.given for file in files),
        sum(one.bytes for one in every),
        hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
        None if None in lines else sum(count for count in lines if count is not None),
    )


def find_inputs(
    given: Given | Sequence[Given],
    *,
    readers: Mapping[str, Reader] | None = None,
    spool: str | os.PathLike[str] | None = None,
) -> Inputs:
    """Return the files that are meant; only their beginnings are read.

    Args:
        given: A file, a glob (`**` for any folders between), a folder, a zip archive, "-", or several of these.
        readers: Formats by name; rewardkit's own when not given.
        spool: Where standard input is copied.

    Raises:
        InputError: There is no such file, or none that a reader knows; or it is a run folder of ours.
    """
    several = [given] if isinstance(given, (str, os.PathLike, Source)) else list(given)
    if not several:
        raise InputError("no input was given")
    names = [os.fspath(one.given if isinstance(one, Source) else one) for one in several]
    finder = _Finder(Inputs(names), registered_readers() if readers is None else readers)
    for one in several:
        finder.add(one, spool)
    return finder.finish()


class _Finder:
    def __init__(self, inputs: Inputs, readers: Mapping[str, Reader]) -> None:
        self.inputs = inputs
        self.readers = readers
        self.seen: set[Path] = set()
        self.repeated = 0  # files that were given before
        self.named: list[Source] = []  # whose names must be made unlike

    def add(self, given: Given, spool: str | os.PathLike[str] | None) -> None:
        if isinstance(given, Source):
            self._file(given)
            return
        text = os.fspath(given)
        if text == "-":
            self._file(Source(text, spool=spool))
        elif _is_folder(text):
            self._folder(Path(text), f"{text.rstrip('/')}/" if len(self.inputs.given) > 1 else "")
        elif glob.has_magic(text) and not os.path.lexists(text):
            self._glob(text)
        else:
            source = Source(given, spool=spool)
            self.named.append(source)
            self._file(source)

    def _file(self, source: Source) -> None:
        """Take a file that was named; whether a reader knows it is found out when it is opened."""
        if self._again(source):
            return
        self.inputs.stored.append(source)
        if is_zip(source.head(4)) and self._sure(source) < _SURE:
            self._archive(source)
        else:
            self.inputs.sources.append(source)

    def _again(self, source: Source) -> bool:
        path = source.path.resolve()
        if path in self.seen:
            self.repeated += 1
            self._pass(source.name, "given twice")
            return True
        self.seen.add(path)
        return False

    def _sure(self, source: Source) -> int:
        head = source.head(HEAD)
        return max((reader.detect(source.plain_name, head) for reader in self.readers.values()), default=0)

    def _count(self) -> int:
        """Return how many files were found so far, those of them too that were found before."""
        return len(self.inputs.sources) + self.repeated

    def _pass(self, name: str, why: str) -> None:
        self.inputs.passed.append((name, why))

    def _archive(self, archive: Source) -> None:
        names = members(archive)
        if not names:
            raise InputError(f"{archive.name} is a zip archive without a file")
        before = self._count()
        for name in self._wanted(sorted(names, key=_natural)):
            self._found(ZipMember(archive, name))
        if self._count() == before:
            raise InputError(f"{archive.name} holds no file that a reader knows: {_some(names)}")

    def _folder(self, folder: Path, prefix: str = "") -> None:
        _refuse_run(folder)
        before = self._count()
        for name, path in self._files_in(folder):
            self._from_disk(path, f"{prefix}{name}")
        if self._count() == before:
            seen = [name for name, _ in self.inputs.passed]
            holds = f"; it holds {_some(seen)}" if seen else "; it is empty"
            raise InputError(f"{path_text(folder)} holds no file that a reader knows{holds}")

    def _glob(self, pattern: str) -> None:
        matches = [Path(name) for name in sorted(glob.iglob(pattern, recursive=True), key=_natural)]
        if not matches:
            raise InputError(f"no file matches {path_text(pattern)}")
        before = self._count()
        files = {path_text(path): path for path in matches if not path.is_dir()}
        if not files:
            for folder in matches:
                self._folder(folder, f"{folder}/")
            return
        last = os.path.basename(pattern)
        # glob leaves out what is hidden, unless the pattern says a hidden folder by name.
        wanted = self._wanted(list(files), hidden=True) if glob.has_magic(last) else list(files)
        for name in wanted:
            self._from_disk(files[name], None)
        if self._count() == before:
            raise InputError(
                f"no file that a reader knows matches {path_text(pattern)}; it matches {_some(list(files))}"
            )

    def _from_disk(self, path: Path, name: str | None) -> None:
        if not path.is_file() and path.exists():
            self._pass(name or path_text(path), "no regular file")
            return
        source = Source(path)
        if name is None:
            self.named.append(source)
        else:
            source.name = path_text(name)
        if self._again(source):
            return
        if is_zip(source.head(4)) and self._sure(source) < _SURE:
            self.inputs.stored.append(source)
            self._archive(source)
        elif self._found(source):
            self.inputs.stored.append(source)

    def _found(self, source: Source) -> bool:
        """Take a file that was found and not named, if a reader knows it."""
        self.inputs.found = True
        if not source.head(1):
            self._pass(source.name, "empty")
        elif self._sure(source) <= 0:
            self._pass(source.name, "no reader knows it")
        else:
            self.inputs.sources.append(source)
            return True
        return False

    def _wanted(self, names: list[str], *, hidden: bool = False) -> list[str]:
        """Return the names that are not those of what lies beside saved generations."""
        details = any(_DETAILS.match(name.rpartition("/")[2]) for name in names)
        kept = []
        for name in names:
            parts = name.replace(os.sep, "/").split("/")
            last = parts[-1].lower()
            if not hidden and ("__MACOSX" in parts or any(map(_is_hidden, parts))):
                self._pass(visible(name), "hidden")
            elif _SIDECAR.match(last) or (details and _FIGURES.match(last)):
                self._pass(visible(name), "by their names no generations")
            else:
                kept.append(name)
        return kept

    def _files_in(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Yield name and path of a folder's files; those of a saved data set in the order that it states."""
        whole = _dataset_files(folder)
        if whole is not None:
            yield from ((path.name, path) for path in whole)
            return
        names: list[str] = []
        replaced: dict[str, list[Path]] = {}
        for name, kind in _walk(folder):
            if kind == "run":
                self._pass(visible(name), "a run folder of rewardkit")
            elif kind == "link":
                self._pass(visible(name), "a link to a folder")
            elif kind == "dataset":
                replaced[name] = _dataset_files(folder / name) or []
                names.append(name)
            else:
                names.append(name)
        for name in self._wanted(sorted(names, key=_natural)):
            if name in replaced:
                yield from ((f"{name}/{path.name}", path) for path in replaced[name])
            else:
                yield name, folder / name

    def finish(self) -> Inputs:
        """Make names of files in unlike folders unlike."""
        names = [source.name for source in self.inputs.sources]
        if len(set(names)) < len(names):
            paths = [os.path.abspath(source.path) for source in self.named]
            base = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
            for source, path in zip(self.named, paths, strict=True):
                if names.count(source.name) > 1:
                    source.name = path_text(os.path.relpath(path, base))
        return self.inputs


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:
        return False


def _natural(name: str) -> list[list[tuple[int, int, str]]]:
    """Return a key by which `step_2` comes before `step_10`."""
    return [
        [(0, int(part), part) if part[0] in _DIGITS else (1, 0, part) for part in re.split(r"([0-9]+)", piece) if part]
        for piece in name.replace(os.sep, "/").split("/")
    ]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") and part not in (".", "..")


def _stem(given: str) -> str:
    if given == "-":
        return "stdin"
    parts = [part for part in Path(given).parts if not glob.has_magic(part) and part not in (os.sep, ".", "..")]
    if not parts:
        return "input"
    return path_text(parts[-1]).split(".")[0] or "input"


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _walk(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each file's path below a folder with "", and folders that are one thing with what they are."""
    count = 0
    for place, folders, files in os.walk(folder):
        here = os.path.relpath(place, folder)
        for name in list(folders):
            path = Path(place, name)
            kind = "link" if path.is_symlink() else "run" if _is_run(path) else "dataset" if _is_dataset(path) else ""
            if kind or name.startswith("."):
                folders.remove(name)
                if not name.startswith("."):
                    yield os.path.normpath(os.path.join(here, name)), kind
        for name in files:
            count += 1
            if count > _MOST:
                raise InputError(
                    f"{path_text(folder)} holds more than {_MOST:,} files; give a folder inside, or a glob"
                )
            yield os.path.normpath(os.path.join(here, name)), ""


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run of ours and no generations that are worth reading."""
    if not (folder / "config.toml").is_file() or not (folder / "log.jsonl").is_file():
        return False
    return not any(name.startswith("generations") for name in os.listdir(folder))


def _refuse_run(folder: Path) -> None:
    try:
        if not _is_run(folder):
            return
    except OSError as problem:
        raise InputError(f"{path_text(folder)} cannot be read: {problem.strerror}") from None
    import tomllib

    name = path_text(folder)
    was = ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        was = tomllib.loads((folder / "config.toml").read_text("utf-8"))["input"]["path"]
    again = f"; what it scored was {visible(str(was))}" if was else ""
    raise InputError(f"{name} is a run folder, the result of an evaluation; look at it: rewardkit show {name}{again}")


# What `datasets` writes with `save_to_disk`.


def _is_dataset(folder: Path) -> bool:
    return (folder / "state.json").is_file() and "_data_files" in _json_object(folder / "state.json")


def _json_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 1 << 26:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _dataset_files(folder: Path) -> list[Path] | None:
    """Return the Arrow files of a saved data set in its order; None for any other folder.

    Raises:
        InputError: It has several splits, a selection of rows kept apart, or lacks a file.
    """
    splits = _json_object(folder / "dataset_dict.json").get("splits")
    if isinstance(splits, list) and splits and all(isinstance(name, str) for name in splits):
        places = [folder / name for name in splits if os.path.basename(name) == name]
        if len(places) > 1:
            either = " or ".join(path_text(place) for place in places)
            raise InputError(f"{path_text(folder)} is a data set of {len(places)} splits; give one: {either}")
        return _dataset_files(places[0]) if places else None
    if not _is_dataset(folder):
        return None
    state = _json_object(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise InputError(
            f"{path_text(folder)} keeps its choice of rows in a file of its own, as old versions of datasets did; "
            "load it and save it again"
        )
    files = state["_data_files"]
    listed = files if isinstance(files, list) else []
    named = [str(one.get("filename")) if isinstance(one, dict) else "" for one in listed]
    if not named or not all(name and os.path.basename(name) == name for name in named):
        raise InputError(f"{path_text(folder)}: its state.json names no data files")
    for name in named:
        if not (folder / name).is_file():
            raise InputError(f"{path_text(folder)}: {visible(name)}, which its state.json names, is missing")
    return [folder / name for name in named]
