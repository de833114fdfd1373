"""Logs of inspect_ai: `.eval` (a zip with one file a sample and epoch) and `.json` (one document).

A sample's epochs are the completions of one group. `input` is the prompt, `target` the reference (a list of one is its
element), what the model wrote after the input the completion; the log's model is the model. Of the scorers, the one
that says right or wrong becomes the label: C is 1, I and N (no answer) are 0, P is 0.5. The choice is made once for
the log, from its first samples: letters before true and false, these before 0 and 1, these before other numbers up to
1; the log's order decides between equals. Every scorer's value is a column under its own name. A sample with an
error is an error. Events and the store are not read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import msgspec

from rewardkit.errors import InputError
from rewardkit.records.chat import split_chat
from rewardkit.records.groups import Groups
from rewardkit.records.jsonl import NotJson, describe, parse_json
from rewardkit.records.paths import MISSING
from rewardkit.records.rows import BadRow, NotGenerations, Row
from rewardkit.records.source import Source
from rewardkit.records.text import shorten, visible
from rewardkit.records.tools.lines import items
from rewardkit.records.zip_members import MAGIC, BadMember, Member, NoDirectory, members, read, scan
from rewardkit.types import Completion, Generation, Sample, last_reply, message_text

_PEEK = 100  # samples looked at to choose the label
_MEMBER = re.compile(r"samples/(.+)_epoch_([0-9]{1,9})\.json", re.DOTALL)
_IN_HEAD = re.compile(rb"_journal/start\.json|header\.json|samples/[^\0]{1,300}_epoch_[0-9]+\.json")
_FIELDS = (rb'"eval"\s*:\s*\{', rb'"status"\s*:\s*"', rb'"(?:task_id|run_id|eval_id)"\s*:')
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ATTACHED = "attachment://"


class _Record(msgspec.Struct):
    """What is read of a sample; the rest is skipped without being kept."""

    id: Any = None
    epoch: Any = 1
    input: Any = ""
    target: Any = None
    choices: Any = None
    messages: Any = None
    output: Any = None
    scores: Any = None
    score: Any = None  # before logs had several scorers
    metadata: Any = None
    error: Any = None
    limit: Any = None
    attachments: Any = None


# A sample as it stands in the log: its number, its place for messages, and what reads it (or says why it cannot).
_Place: TypeAlias = tuple[int, str, Callable[[], "_Record | str"]]

_decode = msgspec.json.Decoder(_Record).decode


class InspectLog:
    """Reader of both forms."""

    unit = "row"

    def detect(self, name: str, head: bytes) -> int:
        """Go by the members of the archive, or by the fields at the top of the document."""
        if head.startswith(MAGIC):
            return 99 if name.endswith(".eval") or _IN_HEAD.match(head, 30) else 0
        return 97 if head.lstrip().startswith(b"{") and all(re.search(field, head) for field in _FIELDS) else 0

    def rows(self, source: Source) -> Iterator[Row | BadRow]:
        """Yield the samples as they are, for a map that overrides what the fields mean."""
        with _open(source) as log:
            for number, where, load in itertools.chain.from_iterable(log.tasks()):
                record = load()
                if isinstance(record, str):
                    yield BadRow(number, f"{where}: {record}")
                else:
                    fields = {name: getattr(record, name) for name in _Record.__struct_fields__}
                    yield Row(number, {name: value for name, value in fields.items() if value is not None})
            yield from log.bad

    def generations(self, source: Source) -> Iterator[Generation | BadRow]:
        """Yield a group for each sample id, its epochs as completions.

        Raises:
            NotGenerations: The log has no samples.
            InputError: The document is not JSON.
        """
        groups = Groups()
        with _open(source) as log:
            label = _label_scorer(log)
            for task in log.tasks():
                yield from _groups_of(task, source.name, log, label, groups)
            yield from log.bad


def _groups_of(
    task: list[_Place], name: str, log: _Log, label: str | None, groups: Groups
) -> Iterator[Generation | BadRow]:
    """Yield the epochs of one sample id as a group; more than one where input or target differ."""
    waiting: list[tuple[Sample, Completion, str]] = []
    for number, where, load in task:
        record = load()
        if isinstance(record, str):
            yield BadRow(number, f"{where}: {record}")
            continue
        try:
            sample, completions = _sample(record, log.task), _completions(record, label)
            if waiting and not _same(waiting[0][0], sample):
                yield _group(waiting, log.model, groups)
                waiting = []
        except RecursionError:
            yield BadRow(number, f"{where}: nested too deeply")
            continue
        waiting += [(sample, completion, f"{name}: {where}") for completion in completions]
    if waiting:
        yield _group(waiting, log.model, groups)


def _same(one: Sample, other: Sample) -> bool:
    return (type(one.id), one.id, one.prompt, one.reference) == (
        type(other.id),
        other.id,
        other.prompt,
        other.reference,
    )


def _group(rows: list[tuple[Sample, Completion, str]], model: str | None, groups: Groups) -> Generation:
    sample, _, where = rows[0]
    completions = tuple(completion for _, completion, _ in rows)
    _, key, start = groups.place(model, sample.id, None, sample.prompt, sample.reference, MISSING, len(completions))
    return Generation(sample, completions, model, start, where, key)


# The two containers


class _Log:
    """A log's samples by id, in order; `bad`: what was found wrong with the container, complete after `tasks`."""

    model: str | None = None
    task: str | None = None
    scorers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.bad: list[BadRow] = []

    def tasks(self) -> Iterator[list[_Place]]:
        """Yield the epochs of each sample id."""
        yield from ()

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _header(self, header: Any) -> None:
        about = header.get("eval") if isinstance(header, dict) else None
        if isinstance(about, dict):
            model, task, scorers = about.get("model"), about.get("task"), about.get("scorers")
            self.model = model if isinstance(model, str) else None
            self.task = task if isinstance(task, str) else None
            if isinstance(scorers, list):
                names = [scorer.get("name") for scorer in scorers if isinstance(scorer, dict)]
                self.scorers = tuple(name for name in names if isinstance(name, str))


def _open(source: Source) -> _Log:
    return _Zip(source) if source.head(len(MAGIC)) == MAGIC else _Document(source)


class _Document(_Log):
    def __init__(self, source: Source) -> None:
        super().__init__()
        try:
            document = parse_json(source.read().strip())
        except NotJson as problem:
            raise InputError(f"{source.name}:{problem.line}: {problem}") from None
        samples = document.get("samples") if isinstance(document, dict) else None
        if not isinstance(samples, list) or not samples:
            raise NotGenerations(f"{source.name} is an inspect_ai log without samples (only its header)")
        self._header(document)
        self._samples = samples

    def tasks(self) -> Iterator[list[_Place]]:
        by_id: dict[tuple[type, Any], list[_Place]] = {}
        for number, value in enumerate(self._samples, 1):
            id = value.get("id") if isinstance(value, dict) else None
            key = (type(id), id if isinstance(id, (str, int)) else number)
            by_id.setdefault(key, []).append((number, f"row {number}", partial(_converted, value)))
        yield from by_id.values()


class _Zip(_Log):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self._file = source.open_seekable()
        try:
            listed = members(self._file)
        except NoDirectory:
            listed = self._without_directory()
        self._members: dict[str, list[tuple[int, Member]]] = {}
        header: dict[str, Member] = {}
        for member in listed:
            if found := _MEMBER.fullmatch(member.name):
                self._members.setdefault(found[1], []).append((int(found[2]), member))
            elif member.name in ("header.json", "_journal/start.json"):
                header[member.name] = member
        if not self._members and not self.bad:
            self._file.close()
            raise NotGenerations(f"{source.name} is an inspect_ai log without samples (--no-log-samples?)")
        for name in ("header.json", "_journal/start.json"):
            if self.model is None and name in header:
                self._header(self._load(header[name], parse_json))

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _without_directory(self) -> list[Member]:
        """Return the members of a cut-off archive by their own headers: a run that was killed leaves such a log."""
        listed = list(scan(self._file))
        count = sum(_MEMBER.fullmatch(member.name) is not None for member in listed)
        why = f"the archive is cut off or damaged: it has no directory; {count:,} samples found without it"
        self.bad.append(BadRow(count + 1, why))
        return listed

    def _load(self, member: Member, parse: Callable[[bytes], Any]) -> Any:
        """Return the parsed member, or why there is none."""
        try:
            return parse(read(self._file, member))
        except (BadMember, NotJson, OSError) as problem:
            return str(problem)

    def tasks(self) -> Iterator[list[_Place]]:
        number = itertools.count(1)
        for id in sorted(self._members, key=_order):
            epochs = sorted(self._members[id], key=lambda item: item[0])
            yield [
                (next(number), visible(shorten(member.name, 120)), partial(self._load, member, _parsed))
                for _, member in epochs
            ]


def _order(id: str) -> tuple[bool, int, str]:
    """Numbers by size, then texts: samples stand in the archive in the order in which they ended."""
    number = id.isascii() and id.isdigit() and len(id) < 20
    return not number, int(id) if number else 0, id


def _parsed(data: bytes) -> _Record | str:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        try:
            return _converted(parse_json(data))
        except NotJson as problem:
            return str(problem)


def _converted(value: Any) -> _Record | str:
    if not isinstance(value, dict):
        return f"not an object: {describe(value)}"
    return _Record(**{name: value[name] for name in _Record.__struct_fields__ if name in value})


# One sample


def _sample(record: _Record, task: str | None) -> Sample:
    attached = record.attachments if isinstance(record.attachments, dict) else {}
    metadata: dict[str, Any] = dict(record.metadata) if isinstance(record.metadata, dict) else {}
    if record.choices:
        metadata["choices"] = record.choices
    if task is not None:
        metadata["task"] = task
    target = record.target
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    id = record.id if isinstance(record.id, (str, int)) and not isinstance(record.id, bool) else str(record.id)
    prompt = _attach(record.input, attached)
    return Sample(id, "" if prompt is None else prompt, _attach(target, attached), metadata)


def _completions(record: _Record, label: str | None) -> list[Completion]:
    """Return the completion of an epoch; where the model was asked for several choices, one for each.

    Scorers judge the first, so the others have no label.
    """
    attached = record.attachments if isinstance(record.attachments, dict) else {}
    output = record.output if isinstance(record.output, dict) else {}
    choices = [choice for choice in items(output.get("choices")) if isinstance(choice, dict)]
    messages = _attach([m for m in items(record.messages) if isinstance(m, dict)], attached)
    generated = _generated(messages)
    error = _message(record.error) or (_message(output.get("error")) if not choices else None)
    scores = _scores(record)
    metadata: dict[str, Any] = {name: _plain(score.get("value")) for name, score in scores.items()}
    if scores:
        metadata["scores"] = scores
    if isinstance(record.limit, dict):
        metadata["limit"] = record.limit.get("type")
    metadata["epoch"] = record.epoch
    own = metadata if label is None else metadata | {"label": _label(scores.get(label, {}).get("value"))}
    if not choices:
        written = output.get("completion")
        text = written if isinstance(written, str) and written else last_reply(generated)
        return [Completion(text, messages=tuple(generated) or None, error=error, metadata=own)]
    tokens = _tokens(output) if len(choices) == 1 else None
    completions = []
    for at, choice in enumerate(choices):
        message = _attach(choice.get("message"), attached)
        message = message if isinstance(message, dict) else {}
        stop = choice.get("stop_reason")
        turns = generated if at == 0 and generated else [message]
        completions.append(
            Completion(
                message_text(message.get("content")),
                tokens=tokens,
                finish_reason=stop if isinstance(stop, str) else None,
                messages=tuple(turns),
                error=error,
                metadata=own if at == 0 else {"epoch": record.epoch, "choice": at},
            )
        )
    return completions


def _generated(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what came after the input: from the first message that a model wrote, else the last reply."""
    for at, message in enumerate(messages):
        if message.get("source") == "generate":
            return messages[at:]
    return split_chat(messages)[1]


def _attach(value: Any, attached: dict[str, Any]) -> Any:
    """Return a value with references to long texts replaced by these texts."""
    if not attached:
        return value
    if isinstance(value, str):
        return attached.get(value[len(_ATTACHED) :], value) if value.startswith(_ATTACHED) else value
    if isinstance(value, list):
        return [_attach(item, attached) for item in value]
    if isinstance(value, dict):
        return {name: _attach(item, attached) for name, item in value.items()}
    return value


def _message(error: Any) -> str | None:
    if not error:
        return None
    if isinstance(error, dict):
        error = error.get("message") or "failed"
    return error if isinstance(error, str) else "failed"


def _tokens(output: dict[str, Any]) -> int | None:
    usage = output.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


# Scores


def _scores(record: _Record) -> dict[str, dict[str, Any]]:
    scores = record.scores if isinstance(record.scores, dict) else {}
    if not scores and isinstance(record.score, dict):
        scores = {"score": record.score}
    return {name: score for name, score in scores.items() if isinstance(score, dict)}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def _label(value: Any) -> Any:
    """Return a scorer's value as a label; what is none is left for the `label` reward to refuse."""
    value = _plain(value)
    if isinstance(value, str):
        return _LETTERS.get(value, _WORDS.get(value.strip().lower(), value))
    return value


def _kind(value: Any) -> int:
    """Return how much a value looks like a verdict: 3 letters, 2 true and false, 1 0 and 1, 0 up to 1, -1 not."""
    if isinstance(value, str):
        return 3 if value in _LETTERS else 2 if value.strip().lower() in _WORDS else -1
    if isinstance(value, bool):
        return 2
    if isinstance(value, (int, float)) and 0 <= value <= 1:
        return 1 if value in (0, 1) else 0
    return -1


def _label_scorer(log: _Log) -> str | None:
    seen: dict[str, list[int]] = {name: [] for name in log.scorers}
    for _, _, load in itertools.islice(itertools.chain.from_iterable(log.tasks()), _PEEK):
        record = load()
        for name, score in ({} if isinstance(record, str) else _scores(record)).items():
            value = _plain(score.get("value"))
            if value is not None:
                seen.setdefault(name, []).append(_kind(value))
    return _best({name: min(kinds) for name, kinds in seen.items() if kinds}.items())


def _best(kinds: Iterable[tuple[str, int]]) -> str | None:
    best: tuple[str, int] | None = None
    for name, kind in kinds:
        if kind >= 0 and (best is None or kind > best[1]):
            best = (name, kind)
    return None if best is None else best[0]


READER = InspectLog()
