"""`rewardkit show RUN`: the saved summary, or some of its completions with their scores and texts.

Scores stream, and only the completions that are shown are kept; texts are then read from the input again.
"""

from __future__ import annotations

import heapq
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import msgspec

from rewardkit.display import visible
from rewardkit.errors import InputError, UsageError, nearest
from rewardkit.plugins import readers
from rewardkit.records import FieldMap, Records, ScoreRecord, encode_json
from rewardkit.records.text import path_text
from rewardkit.report.terminal import is_terminal, render_summary, three, wants_color
from rewardkit.saved import SavedRun, ScoredRow, Text, open_model, open_texts, reward_pair, with_texts
from rewardkit.types import Completion

SCHEMA = "rewardkit.show/1"
LIMIT = 20
_CHOICES = 5000  # ids looked at for one that is written nearly so
_SHORT, _HEAD, _BEFORE, _AFTER = 700, 120, 300, 150  # characters of a text: all of it, else these parts

Test = Callable[[ScoredRow], bool]


@dataclass
class Wanted:
    """What was asked for on the command line."""

    reward: str | None = None
    worst: int | None = None
    best: int | None = None
    group: str | None = None
    sample: str | None = None
    disagree: str | None = None
    errors: bool = False
    limit: int | None = None
    as_json: bool = False

    @property
    def any(self) -> bool:
        """Whether completions are asked for, and not the summary."""
        chosen = (self.worst, self.best, self.group, self.sample, self.disagree)
        return self.errors or any(one is not None for one in chosen)


@dataclass
class _Found:
    """Completions to show, under a title; `of` were there to choose from."""

    title: str
    rows: list[ScoredRow]
    of: int
    labels: dict[int, float] = field(default_factory=dict)


def show_run(given: str, wanted: Wanted) -> None:
    """Show a run, or what of it is wanted.

    Raises:
        RunFolderError: There is no such run.
        InputError: Its scores are damaged.
        UsageError: It has no such reward, group, sample or model.
    """
    run, model = open_model(given)
    if wanted.reward is not None and wanted.reward not in run.rewards:
        hint = nearest(wanted.reward, run.rewards) or ";"
        raise UsageError(f"no reward {wanted.reward!r}{hint} the run has {', '.join(run.rewards)}")
    if not run.finished:
        click.echo(f"rewardkit: {visible(_unfinished(run), 400)}", err=True)
    if not wanted.any:
        if run.training:
            from rewardkit.cli.show_training import show_training

            show_training(run, as_json=wanted.as_json)
        else:
            _show_summary(run, wanted)
        return
    found = list(_find(run, model, wanted))
    texts, why_not = _texts_of(run, [row.at for part in found for row in part.rows])
    if wanted.as_json:
        _print_json(run, found, texts, why_not)
        return
    if why_not:
        click.echo(f"rewardkit: scores only: {visible(why_not, 400)}", err=True)
    for part in found:
        for line in _lines(run, part, texts, wanted):
            click.echo(line)


def _unfinished(run: SavedRun) -> str:
    return f"{run.name} is an unfinished run: what it has scored so far is shown; eval with --resume goes on there"


# ------------------------------------------------------------------------------------------------------------- summary


def _show_summary(run: SavedRun, wanted: Wanted) -> None:
    if run.summary is None:
        _show_counts(run, wanted)
        return
    if wanted.as_json:
        click.echo(msgspec.json.format(encode_json(run.summary), indent=1).decode())
        return
    from rewardkit.cli.eval import bad_lines

    held = run.summary["input"]
    fields = {role: path or None for role, path in held.get("map", {}).items()}
    click.echo(f"read   {visible(str(held.get('format') or 'an empty file'))}   {FieldMap(fields).describe()}")
    for line in bad_lines(str(held["path"]), held.get("bad_rows", 0), held.get("bad_lines", [])):
        click.echo(line)
    if run.summary.get("stopped"):
        click.echo(f"stopped: {visible(str(run.summary['stopped']), 400)}")
    width = shutil.get_terminal_size((120, 24)).columns if is_terminal(sys.stdout) else 100
    color = wants_color(sys.stdout)
    click.echo(render_summary(run.summary, width=width, color=color, run=path_text(run.path)), color=color)
    click.echo(f"{visible(run.name, 300)}/   summary.json   scores.jsonl   config.toml")


def _show_counts(run: SavedRun, wanted: Wanted) -> None:
    """Show how far a run without a summary is: count, mean and states of each reward."""
    held: dict[tuple[str | None, str], _Counts] = {}
    completions = 0
    for row in run.rows():
        completions += 1
        for record in row.records:
            held.setdefault((record.model, record.reward), _Counts()).add(record)
    if wanted.as_json:
        figures = [{"model": model, "reward": reward, **one.to_dict()} for (model, reward), one in held.items()]
        document = {"schema": SCHEMA, "run": run.name, "finished": run.finished, "n": completions, "rewards": figures}
        click.echo(msgspec.json.format(encode_json(document), indent=1).decode())
        return
    click.echo(f"{completions:,} completions")
    for (model, reward), one in held.items():
        name = visible(reward, 60) if model is None else f"{visible(model)}: {visible(reward, 60)}"
        states = "  ".join(f"{state} {count:,}" for state, count in one.states.items())
        click.echo(f"  {name}  mean {three(one.mean)}  {states}")


class _Counts:
    """Counts and mean of one reward's scores."""

    def __init__(self) -> None:
        self.states = {"scored": 0, "abstained": 0, "error": 0}
        self.sum = 0.0

    def add(self, record: ScoreRecord) -> None:
        self.states[record.state] += 1
        self.sum += record.value or 0.0

    @property
    def mean(self) -> float | None:
        n = self.states["scored"]
        return self.sum / n if n and math.isfinite(self.sum) else None

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, **self.states}


# --------------------------------------------------------------------------------------------------------------- which


def _find(run: SavedRun, model: str | None, wanted: Wanted) -> Iterator[_Found]:
    """Yield what is wanted; filters hold together, `worst` and `best` order what they leave."""
    tests: list[Test] = []
    titles: list[str] = []
    if model is not None:
        _check_model(run, model)
        tests.append(lambda row: row.records[0].model == model)
        titles.append(f"model {visible(model)}")
    if wanted.errors:
        at = [run.rewards.index(wanted.reward)] if wanted.reward else range(len(run.rewards))
        tests.append(lambda row: any(row.records[i].state == "error" for i in at))
        titles.append("errors")
    for text, resolve in ((wanted.group, _group), (wanted.sample, _sample)):
        if text is not None:
            test, title = resolve(run, text)
            tests.append(test)
            titles.append(title)
    labels: dict[int, float] = {}

    def rows() -> Iterable[ScoredRow]:
        return run.rows() if wanted.disagree is None else _disagreeing(run, wanted, labels, titles)

    if wanted.worst is None and wanted.best is None:
        kept = _Kept(rows(), tests)
        yield _first(kept, wanted, titles, labels)
    for name, size, sign in (("worst", wanted.worst, 1.0), ("best", wanted.best, -1.0)):
        if size is not None:
            yield _extreme(run, wanted.reward or run.rewards[0], name, size, sign, _Kept(rows(), tests), titles, labels)


def _first(kept: _Kept, wanted: Wanted, titles: Sequence[str], labels: Mapping[int, float]) -> _Found:
    limit = LIMIT if wanted.limit is None else wanted.limit
    shown: list[ScoredRow] = []
    for row in kept:
        if len(shown) < limit:
            shown.append(row)
    title = ", ".join(dict.fromkeys(titles))
    return _Found(title, _together(shown) if wanted.group is not None else shown, kept.n, _labels_of(shown, labels))


def _extreme(
    run: SavedRun,
    reward: str,
    name: str,
    size: int,
    sign: float,
    kept: _Kept,
    titles: Sequence[str],
    labels: Mapping[int, float],
) -> _Found:
    """Return the rows with the lowest (sign 1) or highest (sign -1) values; of equal ones, the first in the file."""
    place = run.rewards.index(reward)
    kept.tests.append(lambda row: row.records[place].value is not None)
    chosen = heapq.nsmallest(size, kept, key=lambda row: (sign * (row.records[place].value or 0.0), row.at))
    title = ", ".join(dict.fromkeys([f"{name} by {visible(reward, 60)}", *titles]))
    return _Found(title, chosen, kept.n, _labels_of(chosen, labels))


def _labels_of(rows: Sequence[ScoredRow], labels: Mapping[int, float]) -> dict[int, float]:
    return {row.at: labels[row.at] for row in rows if row.at in labels}


class _Kept:
    """The rows that pass all tests, counted."""

    def __init__(self, rows: Iterable[ScoredRow], tests: Sequence[Test]) -> None:
        self.n = 0
        self.rows = rows
        self.tests = list(tests)

    def __iter__(self) -> Iterator[ScoredRow]:
        for row in self.rows:
            if all(test(row) for test in self.tests):
                self.n += 1
                yield row


def _together(rows: list[ScoredRow]) -> list[ScoredRow]:
    """Put the rows of one group together, as a file may spread them."""
    order: dict[object, int] = {}
    for row in rows:
        order.setdefault(_group_of(row), len(order))
    return sorted(rows, key=lambda row: (order[_group_of(row)], row.records[0].index))


def _group_of(row: ScoredRow) -> object:
    first = row.records[0]
    return first.group or (first.model, type(first.id), first.id)


def _check_model(run: SavedRun, model: str) -> None:
    models = {row.records[0].model for row in run.rows()}
    if model not in models:
        names = [name for name in models if name is not None]
        raise UsageError(
            f"no model {model!r}{nearest(model, names) or ';'} the run has {_listed(sorted(names)) or 'none'}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _group(run: SavedRun, text: str) -> tuple[Test, str]:
    """Return the test for a group, named by the id of one of its samples or by its key."""
    ids = _readings(text)
    groups: dict[object, set[object]] = {}
    for row in run.rows():
        first = row.records[0]
        for at, id in enumerate(ids):
            if type(first.id) is type(id) and first.id == id:
                groups.setdefault(at, set()).add(_group_of(row))
        if first.group == text:
            groups.setdefault("key", set()).add(first.group)
    if not groups:
        shown = _as_shown(run, text)
        if shown is None:
            raise UsageError(f"no group {text!r} in {run.name}{_near(run, text)}")
        ids, groups = [shown], {0: {_group_of(row) for row in run.rows() if _is(row, shown)}}
    _say_both(ids, [at for at in groups if isinstance(at, int)], text)
    first_found = next(iter(sorted(groups, key=str)))
    keys = groups[first_found]
    title = f"group {text}" if first_found == "key" else f"group {visible(repr(ids[int(str(first_found))]), 100)}"
    return lambda row: _group_of(row) in keys, title


def _sample(run: SavedRun, text: str) -> tuple[Test, str]:
    """Return the test for one sample, or one completion of it."""
    wanted: list[tuple[str | int, int | None]] = [(id, None) for id in _readings(text)]
    head, colon, tail = text.rpartition(":")
    if colon and tail.isascii() and tail.isdigit():
        wanted += [(id, int(tail)) for id in _readings(head)]
    found: set[int] = set()
    for row in run.rows():
        for at, (id, index) in enumerate(wanted):
            if _is(row, id) and index in (None, row.records[0].index):
                found.add(at)
    if not found:
        for part, index in ((text, None), (head, int(tail) if colon and tail.isascii() and tail.isdigit() else None)):
            shown = _as_shown(run, part) if part else None
            if shown is not None and any(
                _is(row, shown) and index in (None, row.records[0].index) for row in run.rows()
            ):
                wanted, found = [(shown, index)], {0}
                break
    if not found:
        sizes = [row.records[0].index for row in run.rows() if any(_is(row, id) for id, _ in wanted)]
        if sizes:
            raise UsageError(f"sample {head!r} has no index {tail}; it has {min(sizes)} to {max(sizes)}")
        raise UsageError(f"no sample {text!r} in {run.name}{_near(run, text)}")
    same_index = [at for at in found if wanted[at][1] == wanted[min(found)][1]]
    _say_both([id for id, _ in wanted], same_index, text)
    id, index = wanted[min(found)]
    at_index = "" if index is None else f" index {index}"
    return (
        lambda row: _is(row, id) and index in (None, row.records[0].index),
        f"sample {visible(repr(id), 100)}{at_index}",
    )


def _is(row: ScoredRow, id: str | int) -> bool:
    found = row.records[0].id
    return type(found) is type(id) and found == id


def _readings(text: str) -> list[str | int]:
    """Return the ids that a text may mean, the likeliest first: an integer, the text, the text in quotation marks."""
    ids: list[str | int] = []
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 4000:
        ids.append(int(text))
    ids.append(text)
    if text[:1] == '"':
        try:
            quoted = json.loads(text)
        except ValueError:
            quoted = None
        if isinstance(quoted, str):
            ids.append(quoted)
    return ids


def _say_both(ids: Sequence[str | int], found: Sequence[int], text: str) -> None:
    if len(found) > 1:
        one, other = (ids[at] for at in sorted(found)[:2])
        how = f"""; for that, write '"{text}"'""" if isinstance(one, int) else ""
        message = f"there is the id {one!r} and the id {other!r}; the first is shown{how}"
        click.echo(f"rewardkit: {visible(message, 400)}", err=True)


def _as_shown(run: SavedRun, text: str) -> str | int | None:
    """Return the id that we show as this text, for ids that nobody can type."""
    return next((row.records[0].id for row in run.rows() if _shown_id(row.records[0].id) in (text, f"'{text}'")), None)


def _shown_id(id: str | int) -> str:
    return visible(repr(id), limit=100)


def _near(run: SavedRun, text: str) -> str:
    """Return `; did you mean x?`, or some of the ids that there are."""
    ids = dict.fromkeys(row.records[0].id for row, _ in zip(run.rows(), range(200_000), strict=False))
    number = _readings(text)[0]
    if isinstance(number, int):
        close = heapq.nsmallest(3, (id for id in ids if isinstance(id, int)), key=lambda id: abs(id - number))
        if close:
            return f"; the nearest ids are {', '.join(map(str, sorted(close)))}"
    few = [id for id, _ in zip((id for id in ids if isinstance(id, str)), range(_CHOICES), strict=False)]
    some = ", ".join(_shown_id(id) for id, _ in zip(ids, range(3), strict=False))
    return nearest(text, few) or (f"; ids are such as {some}" if some else "; it has no scores yet")


# ------------------------------------------------------------------------------------------------------------ disagree


def _disagreeing(run: SavedRun, wanted: Wanted, labels: dict[int, float], titles: list[str]) -> Iterator[ScoredRow]:
    """Return the rows on which two rewards differ, or a reward and the label in the file; fill in the labels."""
    if wanted.disagree:
        names = reward_pair(wanted.disagree, run.rewards, run.rewards)
        if names[0] == names[1]:
            raise UsageError("--disagree wants two rewards, NAME,NAME, or none to compare with the label in the file")
        titles.append(f"{visible(names[0], 60)} and {visible(names[1], 60)} differ")
        return _two_differ(run, *(run.rewards.index(name) for name in names))
    formulas = run.config.get("reward", {})
    judging = [name for name in run.rewards if formulas.get(name) != "label"]
    reward = wanted.reward or next(iter(judging), None)
    if reward is None:
        raise UsageError("the run has no reward but label, so there is nothing to compare it with")
    titles.append(f"{visible(reward, 60)} and the label in the file differ")
    place = run.rewards.index(reward)
    try:
        records = open_texts(run, readers())
    except InputError as problem:
        label = next((name for name in run.rewards if formulas.get(name) == "label"), None)
        if label is None:
            raise InputError(f"the labels in the file cannot be read again: {problem}") from None
        return _two_differ(run, place, run.rewards.index(label))
    return _label_differs(run, records, place, labels)


def _two_differ(run: SavedRun, a: int, b: int) -> Iterator[ScoredRow]:
    for row in run.rows():
        x, y = row.records[a].value, row.records[b].value
        if x is not None and y is not None and x != y:
            yield row


def _label_differs(run: SavedRun, records: Records, place: int, labels: dict[int, float]) -> Iterator[ScoredRow]:
    any_label = False
    for row, text in with_texts(run, records):
        label = _label(text.completion)
        any_label = any_label or label is not None
        value = row.records[place].value
        if label is not None and value in (0.0, 1.0) and value != label:
            if len(labels) < 100_000:
                labels[row.at] = label
            yield row
    if not any_label:
        raise UsageError(f"{run.config['input']['path']} has no label of 0 or 1; --disagree NAME,NAME compares rewards")


def _label(completion: Completion) -> float | None:
    label = completion.metadata.get("label")
    return float(label) if isinstance(label, (bool, int, float)) and label in (0, 1) else None


# --------------------------------------------------------------------------------------------------------------- texts


def _texts_of(run: SavedRun, places: Iterable[int]) -> tuple[dict[int, Text], str]:
    """Return the texts at some places, and why there are none."""
    wanted = set(places)
    found: dict[int, Text] = {}
    if not wanted:
        return found, ""
    last = max(wanted)
    try:
        for row, text in with_texts(run, open_texts(run, readers())):
            if row.at in wanted:
                found[row.at] = text
            if row.at >= last:
                break
    except InputError as problem:
        return {}, str(problem)
    return found, ""


def _print_json(run: SavedRun, found: Sequence[_Found], texts: dict[int, Text], why_not: str) -> None:
    document = {
        "schema": SCHEMA,
        "run": run.name,
        "finished": run.finished,
        "texts": why_not or None,
        "shown": [
            {
                "what": part.title,
                "of": part.of,
                "completions": [_as_json(row, part, texts.get(row.at)) for row in part.rows],
            }
            for part in found
        ],
    }
    click.echo(msgspec.json.format(encode_json(document), indent=1).decode())


def _as_json(row: ScoredRow, part: _Found, text: Text | None) -> dict[str, Any]:
    first = row.records[0]
    scores = [
        {name: value for name, value in msgspec.to_builtins(record).items() if name not in _COMMON}
        for record in row.records
    ]
    held: dict[str, Any] = {"id": first.id, "index": first.index, "model": first.model, "group": first.group}
    held["scores"] = scores
    if row.at in part.labels:
        held["label"] = part.labels[row.at]
    if text is not None:
        sample = text.generation.sample
        held |= {"where": text.generation.where, "reference": sample.reference, "prompt": sample.prompt}
        held |= {"text": text.completion.text, "error": text.completion.error}
    return held


_COMMON = ("schema", "id", "index", "model", "group")


def _lines(run: SavedRun, part: _Found, texts: dict[int, Text], wanted: Wanted) -> Iterator[str]:
    if not part.rows:
        yield f"{part.title}: none"
        return
    more = f", the first {len(part.rows):,} shown; --limit N shows more" if part.of > len(part.rows) else ""
    if wanted.worst is not None or wanted.best is not None:
        more = f" scored, {len(part.rows):,} shown" if part.of > len(part.rows) else ""
    yield f"{part.title}: {part.of:,} completion{'s' * (part.of != 1)}{more}"
    several = len({row.records[0].model for row in part.rows}) > 1
    for row in part.rows:
        yield ""
        yield from _completion_lines(run, row, part, texts.get(row.at), several)


def _completion_lines(run: SavedRun, row: ScoredRow, part: _Found, text: Text | None, several: bool) -> Iterator[str]:
    first = row.records[0]
    model = f"   model {visible(first.model)}" if first.model is not None else "   no model" if several else ""
    where = f"   {visible(text.generation.where)}" if text is not None and text.generation.where else ""
    yield f"id {_shown_id(first.id)}   index {first.index}{model}{where}"
    names = [visible(record.reward, 40) for record in row.records]
    width = max(9, *map(len, names))
    for name, record in zip(names, row.records, strict=True):
        yield f"  {name.ljust(width)}  {_score_text(record)}"
        yield from _part_lines(record.parts, width)
    if row.at in part.labels:
        yield f"  {'label'.ljust(width)}  {part.labels[row.at]:g}   (in the file)"
    if text is None:
        return
    sample = text.generation.sample
    reference = sample.reference if isinstance(sample.reference, str) else _json_text(sample.reference)
    yield f"  {'reference'.ljust(width)}  {_shortened(reference, [])}"
    if sample.prompt:
        yield f"  {'prompt'.ljust(width)}  {_shortened(sample.prompt_text, [], 300)}"
    if text.completion.error is not None:
        yield f"  {'failed'.ljust(width)}  {visible(text.completion.error, 300)}"
    answers = [record.extracted for record in row.records if record.extracted]
    yield f"  {'text'.ljust(width)}  {_shortened(text.completion.text, answers)}"


def _score_text(record: ScoreRecord) -> str:
    value = record.state if record.value is None else _number(record.value)
    why = f"   {visible(record.reason, 300)}" if record.reason else ""
    extracted = "" if record.extracted is None else f"   extracted {visible(repr(record.extracted), 120)}"
    return f"{value}{why}{extracted}"


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def _part_lines(parts: Sequence[Any], width: int, depth: int = 1) -> Iterator[str]:
    for part in parts:
        name = "  " * depth + "· " + ("" if part.weight is None else f"{part.weight:g} * ") + visible(part.name, 40)
        value = part.state if part.value is None else _number(part.value)
        yield f"  {name.ljust(width)}  {value}" + (f"   {visible(part.reason, 200)}" if part.reason else "")
        if depth < 20:
            yield from _part_lines(part.parts, width, depth + 1)


def _json_text(value: Any) -> str:
    return "none" if value is None else encode_json(value).decode()


def _shortened(text: str, answers: Sequence[str], most: int = _SHORT) -> str:
    """Return a text on one line: its beginning, and what is around the answer where it can be found, else its end."""
    if len(text) <= most:
        return visible(text, limit=None)
    end = len(text)
    for answer in answers:
        at = text.rfind(answer)
        if at >= 0:
            end = max(_HEAD, min(end, at + len(answer) + _AFTER))
            break
    start = max(_HEAD, end - min(most - _HEAD, _BEFORE + _AFTER + 100))
    gap = f" … {start - _HEAD:,} characters … " if start > _HEAD else ""
    rest = f" … {len(text) - end:,} characters" if end < len(text) else ""
    return visible(text[:_HEAD], limit=None) + gap + visible(text[start:end], limit=None) + rest
