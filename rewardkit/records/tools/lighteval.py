"""Details of lighteval: `details_TASK_DATE.parquet`, one sample a row.

A row is three structs: `doc` (query, choices, gold_index, id, task_name), `model_response` (text: one for each
completion, output_tokens) and `metric`, in some versions `metrics`. The reference is `choices[gold_index]`, a list
where several are right. A metric of a sample with one completion may be the label; that of a sample with several is
about all of them, and a column. A log-likelihood task has no text: its rows are bad rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rewardkit.records.tools.lines import (
    Found,
    Unread,
    items,
    labelled,
    mapping,
    name_of,
    number,
    rest,
    text_of,
    text_or_none,
)
from rewardkit.records.tools.tables import TableFormat, verdict_among
from rewardkit.types import Completion

_METRICS = ("metric", "metrics")
_OF_DOC = ("query", "choices", "gold_index", "id", "task_name")


class LightevalDetails(TableFormat):
    """Reader of them."""

    columns: ClassVar[Sequence[frozenset[str]]] = (
        frozenset({"doc", "model_response", "metric"}),
        frozenset({"doc", "model_response", "metrics"}),
    )

    def choose(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Go by the metrics of samples with one completion."""
        single = [row for row in rows if len(_texts(row)) == 1]
        names = dict.fromkeys(name for row in single for name in _metrics(row))
        return verdict_among({name: [number(_metrics(row).get(name)) for row in single] for name in names})

    def read_labelled(self, fields: dict[str, Any], *, label: str | None) -> Iterable[Found]:
        """Return a row's completions."""
        doc, response, metrics = mapping(fields.get("doc")), mapping(fields.get("model_response")), _metrics(fields)
        texts = _texts(fields)
        if not texts:
            raise Unread("no text: a log-likelihood task, in which the model only rates given answers")
        about_one = len(texts) == 1
        metadata = {name: value for name, value in rest(doc, *_OF_DOC).items() if value not in (None, [], {})}
        metadata |= {"task": text_or_none(doc.get("task_name"))} | ({} if about_one else metrics)
        choices = items(doc.get("choices"))
        if len(choices) > 1:
            metadata["choices"] = choices
        completions = tuple(_completion(response, at, text) for at, text in enumerate(texts))
        if about_one:
            own = dict(completions[0].metadata) | metrics
            own = own if label is None else labelled(own, metrics.get(label))
            completions = (Completion(completions[0].text, completions[0].tokens, metadata=own),)
        prompt = text_of(doc.get("query"), "doc.query")
        yield Found(completions, name_of(doc.get("id")), prompt, _gold(doc, choices), metadata)


def _texts(row: Mapping[str, Any]) -> list[Any]:
    return items(mapping(row.get("model_response")).get("text"))


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next((row[name] for name in _METRICS if isinstance(row.get(name), dict)), {})
    return {name: value for name, value in found.items() if value is not None}


def _completion(response: Mapping[str, Any], at: int, text: Any) -> Completion:
    metadata: dict[str, Any] = {}
    for name, column in (("text_post_processed", "text_post_processed"), ("reasonings", "reasoning")):
        values = items(response.get(name))
        if at < len(values) and values[at] is not None:
            metadata[column] = values[at]
    tokens = items(response.get("output_tokens"))
    known = at < len(tokens) and isinstance(tokens[at], list) and bool(tokens[at])
    return Completion(
        text_of(text, f"model_response.text[{at}]"), len(tokens[at]) if known else None, metadata=metadata
    )


def _gold(doc: Mapping[str, Any], choices: list[Any]) -> Any:
    """Return the right answers of a sample: one as itself, several as a list, none (or a wrong index) as None."""
    index = doc.get("gold_index")
    golds: list[Any] = []
    for at in index if isinstance(index, list) else [index]:
        if type(at) is int and 0 <= at < len(choices):
            golds += choices[at] if isinstance(choices[at], list) else [choices[at]]
    unlike = [gold for place, gold in enumerate(golds) if gold not in golds[:place]]
    return unlike[0] if len(unlike) == 1 else unlike or None


READER = LightevalDetails()
