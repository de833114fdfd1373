"""A run folder read back: what was run, its scores, and the input's texts again. Nothing here prints.

Scores stream from `scores.jsonl`; texts are read again from the input that `config.toml` names (or from the copy of
standard input), after its size and hash say that it is still the same. `scores.jsonl` follows the input's order, so
the n-th completion of one is the n-th of the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rewardkit.errors import InputError, MapError, RunFolderError, UsageError, nearest
from rewardkit.records import FieldMap, Reader, Records, ScoreRecord, read_generations, read_scores
from rewardkit.records.groups import digest, sample_slot
from rewardkit.records.inputs import Inputs, find_inputs
from rewardkit.records.text import path_text
from rewardkit.report.comparison import Side
from rewardkit.training import MARK
from rewardkit.types import Completion, Generation

_FILES = ("scores.jsonl", "summary.json", "config.toml")


class ScoredRow(NamedTuple):
    """One completion's scores: its place among all completions of the run, and a record for each reward, in order."""

    at: int
    records: tuple[ScoreRecord, ...]


class Text(NamedTuple):
    """One completion with the generation it is of, as the input has it."""

    generation: Generation
    completion: Completion


@dataclass
class SavedRun:
    """A run folder, or a file of scores alone.

    Attributes:
        path: The folder, or the file.
        scores: The file of scores.
        config: What config.toml says; empty for a file alone.
        summary: What summary.json says; None for a run that did not come to its end.
        rewards: The rewards' names, in order.
        training: Whether `rewardkit train` wrote it: its texts are in its own generations.jsonl.
    """

    path: Path
    scores: Path
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    rewards: list[str] = field(default_factory=list)
    training: bool = False

    @property
    def name(self) -> str:
        """The path as text to show."""
        return path_text(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end. A file of scores alone does not say."""
        return self.summary is not None or not self.config

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which part of the input was scored, as (i, n) with i from 1; None: all of it."""
        return parse_shard(self.config.get("options", {}).get("shard"))

    @property
    def input_identity(self) -> tuple[Any, ...] | None:
        """What was read and how: equal for runs on one input; None where that is not known."""
        if not self.config:
            return None
        held = {name: value for name, value in self.config["input"].items() if name != "path"}
        return (_canonical(held), _canonical(self.config["map"]), _canonical(self.config["options"]))

    def rows(self) -> Iterator[ScoredRow]:
        """Yield the scores of each completion; a last one that lacks some is left out.

        Raises:
            InputError: The file is damaged, or holds other rewards than config.toml says.
        """
        if not self.scores.exists():
            return
        records = read_scores(self.scores)
        names = tuple(self.rewards)
        for at, found in enumerate(zip(*[records] * len(names), strict=False)):
            if tuple([record.reward for record in found]) != names or not _one_completion(found):
                line = at * len(names) + 1
                raise InputError(
                    f"{path_text(self.scores)}:{line}: not the scores of {', '.join(names)} for one completion;"
                    " the file is damaged, or config.toml is of another run"
                )
            yield ScoredRow(at, found)


def _one_completion(found: tuple[ScoreRecord, ...]) -> bool:
    first = found[0]
    return all(
        record.index == first.index and record.id == first.id and record.model == first.model for record in found[1:]
    )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def is_run(path: Path) -> bool:
    """Whether a path is a run folder, or one of its files."""
    folder = path.parent if path.name in _FILES else path
    return (folder / "config.toml").is_file() and _config(folder) is not None


def open_run(given: str | Path) -> SavedRun:
    """Return what lies at a path: a run folder, its summary.json or scores.jsonl, or a file of scores alone.

    Raises:
        RunFolderError: There is nothing there, or something else.
    """
    path = Path(given)
    shown = path_text(path)
    if not path.exists():
        raise RunFolderError(f"no run folder {shown}{_nearest_in(path)}")
    if path.is_dir() or (path.name in _FILES and (path.parent / "config.toml").exists()):
        return _open_folder(path if path.is_dir() else path.parent)
    rewards = _rewards_of(path)
    if not rewards:
        raise RunFolderError(f"{shown} is no run folder and no file of scores; give the folder that eval printed")
    return SavedRun(path, path, rewards=rewards)


def _open_folder(folder: Path) -> SavedRun:
    shown = path_text(folder)
    if is_training_run(folder):
        scores = folder / "scores.jsonl"
        return SavedRun(folder, scores, rewards=_rewards_of(scores) if scores.exists() else [], training=True)
    config = _config(folder)
    if config is None:
        inside = sorted(path_text(one) for one in folder.iterdir() if (one / "config.toml").is_file())
        hint = f"; run folders in it: {', '.join(inside[:5])}" if inside else "; eval prints the folder that it writes"
        raise RunFolderError(f"{shown} is not a run folder{hint}")
    summary = None
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
    except FileNotFoundError:
        pass
    except ValueError as problem:
        raise RunFolderError(f"{shown}/summary.json is damaged: {problem}") from None
    return SavedRun(folder, folder / "scores.jsonl", config, summary, list(config["reward"]))


def is_training_run(folder: Path) -> bool:
    """Whether a folder is that of a run of `rewardkit train`."""
    try:
        with (folder / "config.toml").open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def _config(folder: Path) -> dict[str, Any] | None:
    """Return a run's configuration; None where there is none."""
    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = ("input", "map", "reward", "hash")
    if "identity" not in config or not all(isinstance(config.get(part), dict) for part in parts):
        return None
    config.setdefault("options", {})
    return config


def _nearest_in(path: Path) -> str:
    try:
        return nearest(path.name, [one.name for one in path.parent.iterdir() if one.is_dir()])
    except OSError:
        return ""


def _rewards_of(path: Path) -> list[str]:
    """Return the rewards of the first completion in a file of scores; [] where it is none."""
    rewards: list[str] = []
    first: ScoreRecord | None = None
    try:
        for record in read_scores(path):
            first = first or record
            if record.reward in rewards or (record.id, record.index) != (first.id, first.index):
                break
            rewards.append(record.reward)
    except InputError:
        return rewards
    return rewards


# -------------------------------------------------------------------------------------------------------------- shards


def in_shard(key: int, i: int, n: int) -> bool:
    """Tell whether the group with this key belongs to shard i of n, i from 1. A group is never split."""
    return key % n == i - 1


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """Return `i/n` as numbers, 1 <= i <= n; None for None.

    Raises:
        ValueError: It is not of that form.
    """
    if text is None:
        return None
    i, slash, n = text.partition("/")
    if not (slash and i.isascii() and i.isdigit() and n.isascii() and n.isdigit() and 1 <= int(i) <= int(n)):
        raise ValueError(f"a shard is written i/n with 1 <= i <= n, such as 1/4; got {text!r}")
    return int(i), int(n)


# --------------------------------------------------------------------------------------------------------------- texts


def open_texts(run: SavedRun, readers: Mapping[str, Reader]) -> Records:
    """Return the input of a run again, read as it was read then.

    Raises:
        InputError: It is not there, or has changed since; the message says which.
    """
    if run.training:
        generations = str(run.path / "generations.jsonl")
        return read_generations(find_inputs([generations], readers=readers), readers=readers, allow_empty=True)
    if not run.config:
        raise InputError(f"{run.name} is a file of scores alone, so the texts are not known")
    inputs = _same_input(run, readers)
    options = run.config["options"]
    wanted = run.config["map"]
    problem: Exception | None = None
    for fields in _maps(wanted):
        try:
            records = read_generations(
                inputs,
                field_map=fields,
                readers=readers,
                limit=options.get("limit"),
                group=options.get("group"),
                allow_empty=True,
                join=run.config["input"].get("join", ()),
            )
        except MapError as error:
            problem = error
            continue
        if records.map.as_dict() == wanted:
            return records
    raise InputError(f"{inputs.text} is read in another way than by the run{f': {problem}' if problem else ''}")


def _maps(wanted: Mapping[str, str]) -> Iterator[FieldMap]:
    """Yield what may have been asked for, so that the same was guessed and the rest follows: nothing, or all of it."""
    yield FieldMap()
    given = {role: text or None for role, text in wanted.items()}
    yield FieldMap({role: text for role, text in given.items() if role != "group"})
    yield FieldMap(given)


def _same_input(run: SavedRun, readers: Mapping[str, Reader]) -> Inputs:
    """Return what the run has read, wherever it is named from; size and hash must be the same."""
    held = run.config["input"]
    named = held.get("given") or [held["path"]]
    places = [Path(), run.path.parent.parent, run.path.parent]
    tried = [[str(place / name) for name in named] for place in places]
    tried.append([os.path.normpath(run.path / name) for name in held.get("from_run", ())])
    if (run.path / "input").exists():
        tried = [[str(run.path / "input")]]
    changed = False
    for given in tried:
        try:
            inputs = find_inputs(given, readers=readers)
        except InputError:
            continue
        identity = inputs.identity()
        if (identity.bytes, identity.sha256) == (held.get("bytes"), held.get("sha256")):
            return inputs
        changed = True
    raise InputError(
        f"the input {held['path']} " + ("has changed since the run" if changed else "is not there any more")
    )


def texts(run: SavedRun, records: Iterable[Generation]) -> Iterator[Text]:
    """Yield the completions of an input in the order of the run's scores."""
    shard = run.shard
    for generation in records:
        if shard is None or in_shard(generation.key, *shard):
            for completion in generation.completions:
                yield Text(generation, completion)


def with_texts(run: SavedRun, records: Iterable[Generation]) -> Iterator[tuple[ScoredRow, Text]]:
    """Yield scores and texts together.

    Raises:
        InputError: They are not of one and the same completion.
    """
    previous: Generation | None = None
    place = 0
    for row, text in zip(run.rows(), texts(run, records), strict=False):
        place = place + 1 if text.generation is previous else text.generation.start
        previous = text.generation
        record = row.records[0]
        if (record.id, record.index, record.model) != (text.generation.sample.id, place, text.generation.model):
            raise InputError(f"{path_text(run.scores)}: its scores do not follow the input at {text.generation.where}")
        yield row, text


# ------------------------------------------------------------------------------------------------------------- columns


def read_side(run: SavedRun, rewards: Sequence[str]) -> Side:
    """Read the values of some rewards into arrays: 22 bytes a completion, and 8 for each reward."""
    side = Side(values={name: array("d") for name in rewards})
    columns = [(run.rewards.index(name), side.values[name]) for name in side.values]
    codes: dict[str | None, int] = {}
    previous: str | int | None = None
    slot = 0
    for _, records in run.rows():
        first = records[0]
        if first.id != previous or type(first.id) is not type(previous):
            previous, slot = first.id, sample_slot(None, first.id, None)
        side.ids.append(slot)
        side.groups.append(int(first.group, 16) if first.group else slot)
        side.index.append(first.index)
        side.models.append(codes.setdefault(first.model, len(codes)))
        for place, values in columns:
            value = records[place].value
            values.append(float("nan") if value is None else value)
    side.names = list(codes)
    return side


def prompt_keys(run: SavedRun, readers: Mapping[str, Reader]) -> array[int]:
    """Return a 64-bit hash of the prompt for each completion that has scores, in their order.

    Raises:
        InputError: The texts cannot be read again, or a prompt is empty.
    """
    keys: array[int] = array("Q")
    previous: Generation | None = None
    key = 0
    for _, text in with_texts(run, open_texts(run, readers)):
        if text.generation is not previous:
            previous = text.generation
            if not previous.sample.prompt:
                raise InputError(f"{previous.where}: no prompt")
            key = prompt_key(previous)
        keys.append(key)
    return keys


def prompt_key(generation: Generation) -> int:
    """Return a 64-bit hash of a generation's prompt."""
    return int.from_bytes(digest([generation.sample.prompt]))


def chosen_rows(run: SavedRun, places: Iterable[int]) -> dict[int, ScoredRow]:
    """Return the rows at some places."""
    wanted = set(places)
    found: dict[int, ScoredRow] = {}
    if not wanted:
        return found
    last = max(wanted)
    for row in run.rows():
        if row.at in wanted:
            found[row.at] = row
        if row.at >= last:
            break
    return found


def identity_of(config: Mapping[str, Any]) -> str:
    """Return the hash of what a run's scores depend on: the input's bytes, the map, the options, the rewards."""
    what = {name: config[name] for name in ("input", "map", "options", "reward", "hash")}
    # A watched file grows, so what it holds says nothing about the run.
    unsaid = {"path", "given", "from_run"} | ({"bytes", "sha256"} if "watched" in config["input"] else set())
    what["input"] = {name: value for name, value in config["input"].items() if name not in unsaid}
    what["reward"] = list(config["reward"])
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def identity_without_shard(config: Mapping[str, Any]) -> str:
    """Return the identity that a run's configuration would have, had it scored all of the input."""
    options = {name: value for name, value in config["options"].items() if name != "shard"}
    return identity_of({**config, "options": options})


# --------------------------------------------------------------------------------------------------------------- names


def open_model(given: str) -> tuple[SavedRun, str | None]:
    """Return the run that `RUN` or `RUN:MODEL` names, and the model where one is named.

    Raises:
        RunFolderError: There is no such run.
    """
    end = len(given)
    while (end := given.rfind(":", 0, end)) > 0:
        if not Path(given).exists() and Path(given[:end]).exists():
            return open_run(given[:end]), given[end + 1 :]
    return open_run(given), None


def reward_pair(text: str, a: Sequence[str], b: Sequence[str]) -> tuple[str, str]:
    """Return the two rewards that `NAME` or `NAME_A,NAME_B` names; names may hold commas themselves.

    Raises:
        UsageError: A run has no such reward.
    """
    if text in a and text in b:
        return text, text
    commas = [at for at, char in enumerate(text) if char == ","]
    for at in commas:
        pair = text[:at].strip(), text[at + 1 :].strip()
        if pair[0] in a and pair[1] in b:
            return pair
    names = [text, text] if not commas else [part.strip() for part in text.split(",", 1)]
    for name, known in zip(names, (a, b), strict=True):
        if name not in known:
            raise UsageError(f"no reward {name!r}{nearest(name, known) or ';'} the run has {', '.join(known)}")
    raise UsageError(f"no rewards {text!r}; the runs have {', '.join(a)} and {', '.join(b)}")
