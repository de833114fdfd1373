"""`samples_*.jsonl` of lm-evaluation-harness (`--log_samples`): one row for each document and filter.

The same completions stand in the rows of every filter, so each document is read once, and what the other filters made
of it becomes the column `filters`. Memory does not grow with the file beyond a few bytes a document.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rewardkit.records.groups import Groups, digest
from rewardkit.records.rows import BadRow, NotGenerations, Row
from rewardkit.records.source import Source
from rewardkit.records.tools.lines import (
    Found,
    LineFormat,
    Unread,
    items,
    labelled,
    mapping,
    name_of,
    number,
    parsed,
    read_row,
    rest,
    text_of,
)
from rewardkit.types import Completion

_ORDER = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps")
_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_OWN = (*_ORDER, *_HASHES, "filter", "metrics")
_WINDOW = 2000  # rows that a filter's row may stand away from where it is expected

_NO_TEXT = "log-likelihoods of given options, no text that a reward could read; lm-eval writes text for generate_until"


class LmEval(LineFormat):
    """Reader of logged samples."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by the names that start every row; of a row that is cut off, by the first that are there."""
        names = [name for name in _ORDER if name in fields]
        return names == list(_ORDER) or (cut and len(names) > 1 and list(fields) == list(_ORDER[: len(names)]))

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield each document once for each time that it was answered.

        Raises:
            NotGenerations: The first row is one of log-likelihoods.
        """
        filters = _filters(self.rows(source))
        streams = [_Stream(self.rows(source), name) for name in filters]
        once = _Once() if len(filters) > 1 else None
        first = True
        for row in self.rows(source):
            if isinstance(row, BadRow):
                yield row
                continue
            if first and _is_likelihood(row.fields):
                raise NotGenerations(f"{source.name} holds {_NO_TEXT}")
            first = False
            if once is not None:
                key, own = _key(row.fields), _filter(row)
                if not once.is_new(str(own), key):
                    continue
                results = [stream.take(key) for stream in streams]
                # One filter's verdicts for the whole file, in whatever order the rows are.
                shared = {name: row.fields[name] for name in (*_ORDER, *_HASHES) if name in row.fields}
                row.fields = shared | (results[0] or {})
                _add_filters(row.fields, [fields for fields in results if fields is not None])
            yield from read_row(row, self.read)

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the completions of a document. The label is the first metric under the file's first filter."""
        if _is_likelihood(fields):
            raise Unread(_NO_TEXT)
        requests, asked = items(fields.get("resps")), _arguments(fields.get("arguments"))
        if not requests:
            raise Unread("resps is no list of answers")
        columns = rest(fields, *_OWN)
        doc = fields.get("doc")
        metadata = {**mapping(doc), **({} if isinstance(doc, dict) else {"doc": doc})}
        metadata.update({name: fields[name] for name in ("doc_hash", "filter") if name in fields})
        id = name_of(fields.get("doc_id"))
        for place, answers in enumerate(requests):
            argument = asked[place] if place < len(asked) else []
            texts = [
                text_of(answer, f"resps[{place}]") for answer in (answers if isinstance(answers, list) else [answers])
            ]
            if not texts:
                raise Unread(f"resps[{place}] is empty")
            own = id if place == 0 else f"{id}/{place}"
            yield Found(_completions(texts, columns, fields), own, _prompt(argument), fields.get("target"), metadata)


def _completions(texts: list[str], columns: dict[str, Any], fields: Mapping[str, Any]) -> tuple[Completion, ...]:
    """Return completions with the row's metrics: one value each where a metric is a list of as many."""
    done = []
    names = _metrics(fields, columns)
    for place, text in enumerate(texts):
        own = dict(columns)
        for name in names:
            values = columns[name]
            if isinstance(values, list) and len(values) == len(texts):
                own[name] = values[place]
        verdict = next((own[name] for name in names if number(own[name]) is not None), None)
        shared = len(texts) > 1 and not any(isinstance(columns[name], list) for name in names)
        done.append(Completion(text, metadata=own if shared else labelled(own, verdict)))
    return tuple(done)


def _metrics(fields: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    """Return the metrics' names; versions that do not list them write nothing else beside the fixed fields."""
    names = fields.get("metrics")
    listed = names if isinstance(names, list) else list(columns)
    return [name for name in listed if isinstance(name, str) and name in columns and name != "filters"]


def _arguments(value: Any) -> list[list[Any]]:
    """Return the arguments of each request, in order: lists, or since 0.4.3 objects with arg_0, arg_1 and so on."""
    groups = list(value.values()) if isinstance(value, dict) else items(value)
    return [list(group.values()) if isinstance(group, dict) else items(group) for group in groups]


def _prompt(argument: list[Any]) -> Any:
    """Return what was asked: text, or chat messages, which the harness passes on as JSON in a list of one."""
    prompt = argument[0] if argument else ""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = parsed(prompt[0])
    return "" if prompt is None else prompt


def _is_likelihood(fields: Mapping[str, Any]) -> bool:
    """Whether a row was asked for the likelihood of a text: its second argument is that text, or there is none."""
    asked, answers = _arguments(fields.get("arguments")), items(fields.get("resps"))
    if any(isinstance(answer, list) for answer in items(answers[0] if answers else None)):
        return True
    if not asked or not asked[0]:
        return False
    return len(asked[0]) == 1 or isinstance(asked[0][1], str)


def _filter(row: Row | BadRow) -> Any:
    return row.fields.get("filter") if isinstance(row, Row) else None


def _filters(rows: Iterable[Row | BadRow]) -> list[str]:
    """Return the names of the filters, in order of their first rows."""
    return list({name: None for name in map(_filter, rows) if isinstance(name, str)})


def _key(fields: Mapping[str, Any]) -> int:
    document = fields.get("doc_hash") or fields.get("doc")
    return int.from_bytes(digest([fields.get("doc_id"), document, fields.get("prompt_hash")]))


def _add_filters(fields: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """Put the results of all filters under `filters`, by name."""
    fields["filters"] = {
        str(row.get("filter")): {"filtered_resps": row.get("filtered_resps"), **rest(row, *_OWN, "filters")}
        for row in others
    }


class _Once:
    """Tells whether a row is the first, under any filter, of one answering of its document."""

    def __init__(self) -> None:
        self._seen: dict[str, Groups] = {}
        self._read = Groups()

    def is_new(self, filter: str, key: int) -> bool:
        before = self._seen.setdefault(filter, Groups()).start(key, key, 1)
        if before < self._read.start(key, key, 0):
            return False
        self._read.start(key, key, 1)
        return True


class _Stream:
    """The rows of one filter, taken by document; they come in nearly the order of those of the others."""

    def __init__(self, rows: Iterable[Row | BadRow], filter: str) -> None:
        self._rows = (row for row in rows if _filter(row) == filter)
        self._waiting: dict[int, deque[dict[str, Any]]] = {}
        self._size = 0

    def take(self, key: int) -> dict[str, Any] | None:
        """Return the next row of a document, or None when it is not near."""
        while key not in self._waiting and self._size < _WINDOW:
            row = next(self._rows, None)
            if row is None:
                return None
            if isinstance(row, Row):
                slim = rest(row.fields, *_ORDER[1:5])
                self._waiting.setdefault(_key(row.fields), deque()).append(slim)
                self._size += 1
        found = self._waiting.get(key)
        if not found:
            return None
        fields = found.popleft()
        self._size -= 1
        if not found:
            del self._waiting[key]
        return fields


READER = LmEval()
