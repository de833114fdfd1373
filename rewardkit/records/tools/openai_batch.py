"""The output file of an OpenAI-style batch, joined with its request file where that lies beside it.

The output has neither prompts nor references and is in any order, so the requests are found by `custom_id`. The request
file is the JSONL in the same folder that has the first answers' requests. Without one, prompts are empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rewardkit.errors import InputError
from rewardkit.records.groups import digest
from rewardkit.records.jsonl import parse_line
from rewardkit.records.rows import BadRow, NotGenerations
from rewardkit.records.source import Damaged, Source
from rewardkit.records.tools.chats import completions_of, prompt_of
from rewardkit.records.tools.lines import (
    Found,
    LineFormat,
    Unread,
    at,
    count,
    failure,
    first_row,
    folder_of,
    mapping,
    name_of,
    read_row,
    reference_in,
    rest,
    text_or_none,
)
from rewardkit.types import Completion

_MOST_SIBLINGS = 200  # files looked at for the requests
_LOOKED_UP = 20  # first answers whose requests decide which file is theirs


class OpenAIBatch(LineFormat):
    """Reader of a batch's output and error files."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by custom_id with an answer or an error; a file of requests is claimed too, for a clear message."""
        if not isinstance(fields.get("custom_id"), str):
            return False
        if is_request(fields):
            return True
        response = fields.get("response")
        return (isinstance(response, dict) and (cut or "body" in response)) or (
            "error" in fields and "response" in fields and response is None
        )

    def found(self, source: Source) -> Iterator[tuple[int, Found] | BadRow]:
        """Yield what the answers say, with what was asked.

        Raises:
            NotGenerations: It is the file of requests.
        """
        if is_request(first_row(source.head())[0]):
            raise NotGenerations(
                f"{source.name} holds the requests of a batch; give its output file, and leave this one beside it"
            )
        requests = find_requests(source)
        for row in self.rows(source):
            yield from read_row(row, partial(self.read, requests=requests))

    def notes(self, source: Source) -> list[str]:
        """Return which file the prompts came from."""
        requests = find_requests(source)
        if requests is None:
            return [
                "no request file lies beside it, so prompts are empty and there are no references; "
                "put the JSONL with the requests into the same folder"
            ]
        return [f"prompts are from {requests.name} beside it, joined on custom_id"]

    def read(self, fields: dict[str, Any], requests: Requests | None = None) -> Iterable[Found]:
        """Return the completions of one answer; an error or a status other than 200 makes one failed completion."""
        id = fields.get("custom_id")
        if not isinstance(id, (str, int)) or isinstance(id, bool):
            raise Unread("no custom_id")
        request = requests.get(id) if requests is not None else None
        asked = mapping(at(request, "body"))
        body = mapping(at(fields, "response", "body"))
        error = _error(fields)
        completions = (Completion("", error=error),) if error is not None else completions_of(body)
        own = {**mapping(asked.get("metadata")), **rest(request or {}, "custom_id", "method", "url", "body")}
        metadata = dict(own)
        if (model := body.get("model") or asked.get("model")) is not None:
            metadata.setdefault("model", model)
        if requests is not None:
            metadata["request_file"] = requests.name
        yield Found(completions, name_of(id), prompt_of(asked), reference_in(own), metadata)


def is_request(fields: Mapping[str, Any]) -> bool:
    """Whether a row asks for something in a batch."""
    return "custom_id" in fields and isinstance(fields.get("body"), dict) and "response" not in fields


def _error(fields: Mapping[str, Any]) -> str | None:
    error = failure(fields.get("error"))
    status = at(fields, "response", "status_code")
    if error is not None or status is None or count(status) == 200:
        if error is None and not isinstance(fields.get("response"), dict):
            return "no response"
        return error
    said = failure(at(fields, "response", "body", "error")) or text_or_none(at(fields, "response", "body", "message"))
    return f"status {name_of(status)}" + (f": {said}" if said else "")


class Requests:
    """The requests of a batch by custom_id: where each line begins, and nothing else, is held in memory.

    A batch has at most some ten thousand lines, of which each takes about a hundred bytes here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._begins: dict[int, int] = {}
        begin = 0
        with path.open("rb") as file:
            for line in file:
                fields = parse_line(line) if b"custom_id" in line else None
                if isinstance(fields, dict) and is_request(fields):
                    self._begins.setdefault(_hash(fields["custom_id"]), begin)
                begin += len(line)

    def __contains__(self, id: object) -> bool:
        return _hash(id) in self._begins

    def get(self, id: str | int) -> dict[str, Any] | None:
        """Return the request of that id."""
        begin = self._begins.get(_hash(id))
        if begin is None:
            return None
        with self.path.open("rb") as file:
            file.seek(begin)
            fields = parse_line(file.readline())
        return fields if isinstance(fields, dict) and fields.get("custom_id") == id else None


def _hash(id: Any) -> int:
    return int.from_bytes(digest([id]))


def find_requests(source: Source) -> Requests | None:
    """Return the requests that lie beside an output file; None for standard input, or when no file has them."""
    folder = folder_of(source)
    if folder is None:
        return None
    wanted = _first_ids(source)
    best: tuple[int, Requests] | None = None
    for path in _siblings(folder, source.path.name):
        try:
            if not is_request(first_row(Source(path).head())[0]):
                continue
            requests = Requests(path)
        except (OSError, InputError):
            continue
        hits = sum(id in requests for id in wanted)
        if hits and (best is None or hits > best[0]):
            best = hits, requests
    return best[1] if best is not None else None


def _first_ids(source: Source) -> list[Any]:
    ids = []
    try:
        for line in islice(source.lines(), _LOOKED_UP):
            fields = parse_line(line)
            if isinstance(fields, dict) and "custom_id" in fields:
                ids.append(fields["custom_id"])
    except Damaged:
        pass
    return ids


def _siblings(folder: Path, own: str) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    beside = [folder / name for name in names if name.endswith((".jsonl", ".ndjson")) and name != own]
    return [each for each in beside[:_MOST_SIBLINGS] if each.is_file()]


READER = OpenAIBatch()
