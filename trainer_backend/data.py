"""Prompts: from a file or a data set to samples, from samples to token ids, and in which order they are drawn.

Text becomes token ids here, once; nothing downstream tokenises again. Nothing here imports torch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from rewardkit.display import visible
from rewardkit.errors import InputError, MapError, UsageError
from rewardkit.plugins import readers
from rewardkit.records import BadRow, GenerationReader, Locator, Row, Source, find_inputs, open_records
from rewardkit.records import Path as FieldPath
from rewardkit.records.chat import is_chat, is_message, split_chat
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.names import ID, NESTED_REFERENCE, PROMPT, REFERENCE, flat, spellings
from rewardkit.records.paths import MISSING, walk
from rewardkit.types import Generation, Sample, is_reply, message_text
from trainer_backend.errors import meant

Prompts: TypeAlias = Any
"""A path, a list of dicts or of samples, or a `datasets.Dataset`."""

_BATCH = 1024  # texts that are tokenised together


# ------------------------------------------------------------------------------------------------------------- samples


def load_samples(
    source: Prompts, prompt: str | None = None, reference: str | None = None, limit: int | None = None
) -> list[Sample]:
    """Return the tasks of a file or data set, in order.

    Args:
        source: A path (JSONL, JSON, CSV, parquet or Arrow, plain or compressed; a glob or folder of these), a list of
            dicts or of samples, or a `datasets.Dataset`.
        prompt: The column of the prompt (or a path into it, `extra.question`); None: found by its name.
        reference: The same for the gold answer; None: found by its name, or there is none.
        limit: At most so many.

    Returns:
        Samples with their own ids, else their place from 0. `metadata` holds every other column.

    Raises:
        InputError: There is no such file, a line of it is no row, or a row has no prompt.
        MapError: No column is the prompt; names those that there are.
        UsageError: The source is something else.
    """
    name, rows = _rows(source)
    first = list(islice(rows, limit))
    if not first:
        raise InputError(f"{name} holds no rows; one row with a prompt is one task")
    if isinstance(first[0][1], Sample):
        return [sample for _, sample in first]
    return _samples(name, first, prompt, reference)


def _rows(source: Prompts) -> tuple[str, Iterator[tuple[str, Any]]]:
    """Return the source's name, and its rows with their places: dicts, or samples where they are such."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return Path(path).name, _file_rows(path)
    columns = getattr(source, "column_names", None)
    if isinstance(columns, dict) or (isinstance(source, Mapping) and columns is None):
        splits = ", ".join(map(str, columns if isinstance(columns, dict) else source))
        raise UsageError(f"the data set is a mapping of {splits}; give one of them, such as dataset['train']")
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return "the data set", _listed(source)
    raise UsageError(f"prompts are a path, a list of dicts or a datasets.Dataset, got a {type(source).__name__}")


def _listed(source: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    kind: Any = None
    for at, row in enumerate(source):
        if kind is None:
            kind = Sample if isinstance(row, Sample) else Mapping
        if not isinstance(row, kind):
            hint = '; write {"prompt": …} for each' if isinstance(row, str) else ""
            raise UsageError(f"row {at} of the data set is a {type(row).__name__}, where a dict is wanted{hint}")
        yield f"row {at} of the data set", row if isinstance(row, Sample) else dict(row)


def _file_rows(path: str) -> Iterator[tuple[str, Any]]:
    known = readers()
    inputs = find_inputs(path, readers=known)
    for source in inputs.sources:
        _, reader = open_records(source, known)
        if isinstance(reader, GenerationReader):
            yield from _saved(source, reader)
            continue
        rows = reader.locate(source, FieldMap())[2] if isinstance(reader, Locator) else reader.rows(source)
        for row in rows:
            where = f"{source.name}:{row.line}"
            yield where, _good(row, where).fields


def _saved(source: Source, reader: GenerationReader) -> Iterator[tuple[str, Any]]:
    """Yield the tasks of saved generations, each once."""
    seen = set()
    for one in reader.generations(source):
        found = _good(one, f"{source.name}:{getattr(one, 'line', 0)}")
        key = (found.sample.id, found.sample.prompt_text)
        if key not in seen:
            seen.add(key)
            yield found.where, found.sample


def _good(row: Any, where: str) -> Any:
    if isinstance(row, BadRow):
        raise InputError(f"{where} is no row: {row.why}")
    assert isinstance(row, (Row, Generation))
    return row


def _samples(
    name: str, rows: Sequence[tuple[str, dict[str, Any]]], prompt: str | None, reference: str | None
) -> list[Sample]:
    columns = list(dict.fromkeys(column for _, fields in rows for column in fields))
    fields_of = [fields for _, fields in rows]
    prompts = _given(name, "prompt", prompt, columns) or _prompt_column(name, columns, rows)
    references = _given(name, "reference", reference, columns) or _reference_column(columns, fields_of, prompts)
    ids = next((found for rank in flat(ID) for found in spellings(columns, rank)), None)
    samples = []
    for at, (where, fields) in enumerate(rows):
        value = _at(fields, prompts)
        if not _is_prompt(value):
            column = str(FieldPath(prompts))
            raise InputError(f"{where}: {column} {_no_prompt(value)}")
        if prompts == ("messages",) and is_reply(value[-1]):
            value = split_chat(value)[0] or value
        gold = _at(fields, references) if references else None
        own = fields.get(ids) if ids is not None else None
        own = own if isinstance(own, (str, int)) and not isinstance(own, bool) else at
        rest = {key: value for key, value in fields.items() if key not in ("id", "prompt", "reference")}
        samples.append(Sample(own, value, None if gold is MISSING else gold, rest))
    return samples


def _given(name: str, role: str, text: str | None, columns: Sequence[str]) -> tuple[Any, ...]:
    """Return the path of a column that was named."""
    if text is None:
        return ()
    steps = (text,) if text in columns else FieldPath.parse(text).steps
    if steps[0] not in columns:
        raise MapError(
            f"{name} has no column {text!r} (data.{role})"
            f"{meant(text, columns, 'its columns are ' + ', '.join(columns))}"
        )
    return tuple(steps)


def _prompt_column(name: str, columns: Sequence[str], rows: Sequence[tuple[str, dict[str, Any]]]) -> tuple[Any, ...]:
    called = [column for known in flat(PROMPT) for column in spellings(columns, known)]
    for column in called:
        if any(_is_prompt(fields.get(column)) for _, fields in rows[:100]):
            return (column,)
    for column in called:  # the right name, and nothing that could be a prompt in it
        where, fields = next(row for row in rows if column in row[1])
        raise InputError(f"{where}: {column} {_no_prompt(fields[column])}")
    texts = [column for column in columns if any(_is_prompt(fields.get(column)) for _, fields in rows[:100])]
    example = texts[0] if texts else "question"
    raise MapError(
        f"{name} has no column that looks like a prompt; its columns are {', '.join(columns)}; say which one it is:"
        f' prompt = "{example}" below [data]'
    )


def _reference_column(
    columns: Sequence[str], rows: Sequence[dict[str, Any]], prompt: tuple[Any, ...]
) -> tuple[Any, ...]:
    for steps in NESTED_REFERENCE:
        if steps[0] in columns and _at(rows[0], steps) is not MISSING:
            return steps
    for known in flat(REFERENCE):
        for column in spellings(columns, known):
            if (column,) != prompt and any(fields.get(column) is not None for fields in rows[:100]):
                return (column,)
    return ()


def _at(fields: Mapping[str, Any], steps: tuple[Any, ...]) -> Any:
    return walk(fields, steps)


def _no_prompt(value: Any) -> str:
    """Say what is wrong with a value that is no prompt."""
    wanted = "where text or a list of chat messages is wanted"
    if value is MISSING or value is None:
        return f"is missing, {wanted}"
    if isinstance(value, str):
        return f"is an empty text, {wanted}"
    if not isinstance(value, list):
        return f"is {visible(repr(value), 60)}, {wanted}"
    if not value:
        return f"is an empty list, {wanted}"
    at, one = next((at, one) for at, one in enumerate(value) if not is_message(one))
    what = f"has the keys {visible(', '.join(map(str, one)), 60)}" if isinstance(one, dict) else "is no message"
    return f"is a list whose item {at} {what} ({visible(repr(one), 60)}), where a message has role and content"


def _is_prompt(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else is_chat(value)


def as_chats(samples: Sequence[Sample], system_prompt: str | None = None) -> list[Sample]:
    """Return the samples with chat messages as prompts: a text becomes one user message.

    Args:
        samples: The tasks.
        system_prompt: A system message put in front where a chat has none.
    """
    return [Sample(one.id, _chat(one.prompt, system_prompt), one.reference, one.metadata, one.step) for one in samples]


def _chat(prompt: Any, system_prompt: str | None) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt is None or (messages and _role(messages[0]) == "system"):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


# --------------------------------------------------------------------------------------------------------------- order


@dataclass
class PromptOrder:
    """In which order prompts are drawn: each epoch is a permutation of its own, and epochs follow without a gap.

    No prompt is drawn twice in an epoch. The order depends on seed and position alone, so a resumed run goes on where
    it was with `PromptOrder(count, seed, position=k)`.

    Attributes:
        count: How many prompts there are.
        seed: Of the permutations.
        shuffle: False: each epoch is 0, 1, 2, …
        position: How many have been drawn since the start.
    """

    count: int
    seed: int = 0
    shuffle: bool = True
    position: int = 0
    _epoch: int = field(default=-1, init=False, repr=False)
    _order: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"there are {self.count} prompts to draw from; at least one is wanted")
        if self.position < 0:
            raise UsageError(f"a position is at least 0, got {self.position}")

    def take(self, n: int) -> list[int]:
        """Return the indices of the next `n` prompts."""
        taken = [self._index(self.position + at) for at in range(n)]
        self.position += n
        return taken

    def _index(self, place: int) -> int:
        epoch, at = divmod(place, self.count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(self.count))
            if self.shuffle:
                random.Random(f"{self.seed}/{epoch}").shuffle(self._order)
        return self._order[at]


# ----------------------------------------------------------------------------------------------------------- token ids


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model sees it.

    Attributes:
        sample: The task.
        ids: Its token ids; the first token that is sampled follows the last.
        opener: Text of the assistant's turn that the chat template has written already (`<think>` and a line break in
            some); it belongs to the completion's text and is none of its tokens.
    """

    sample: Sample
    ids: tuple[int, ...]
    opener: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that is left out because its prompt is too long, and its length in tokens."""

    sample: Sample
    tokens: int


def encode(
    samples: Sequence[Sample],
    tokenizer: Any,
    *,
    max_prompt_length: int | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[list[Prompt], list[Refused]]:
    """Return the prompts as token ids, and those that are too long.

    Chat messages go through the chat template, which also opens the assistant's turn; where the last message is the
    assistant's own, it is continued. Text is tokenised as it is, with the special tokens that the tokenizer puts in
    front of any text.

    Args:
        samples: The tasks.
        tokenizer: A transformers tokenizer.
        max_prompt_length: The most tokens of a prompt; a longer one is refused, never cut. None: no limit.
        chat_template: In place of the tokenizer's own.
        chat_template_kwargs: What else the template is given, such as {"enable_thinking": False}.

    Raises:
        InputError: Prompts are chat messages and there is no chat template, or it refuses one of them; or a prompt
            gives no tokens.
    """
    template = _Template(tokenizer, chat_template, dict(chat_template_kwargs or {}))
    prompts: list[Prompt] = []
    refused: list[Refused] = []
    for start in range(0, len(samples), _BATCH):
        batch = samples[start : start + _BATCH]
        chats = {at: template.open(one) for at, one in enumerate(batch) if not isinstance(one.prompt, str)}
        ids = _ids(tokenizer, [chats[at][0] if at in chats else batch[at].prompt for at in range(len(batch))], chats)
        for at, one in enumerate(batch):
            if not ids[at]:
                raise InputError(f"the prompt of sample {one.id!r} gives no tokens, so there is nothing to go on from")
            if max_prompt_length is not None and len(ids[at]) > max_prompt_length:
                refused.append(Refused(one, len(ids[at])))
            else:
                prompts.append(Prompt(one, ids[at], chats[at][1] if at in chats else ""))
    return prompts, refused


def _ids(tokenizer: Any, texts: Sequence[str], templated: Mapping[int, Any]) -> list[tuple[int, ...]]:
    """Tokenise texts; the templated ones carry their special tokens already."""
    found: list[tuple[int, ...]] = [()] * len(texts)
    for special in (True, False):
        places = [at for at in range(len(texts)) if (at not in templated) is special]
        if not places:
            continue
        rows = tokenizer([texts[at] for at in places], add_special_tokens=special)["input_ids"]
        for at, row in zip(places, rows, strict=True):
            found[at] = tuple(_without_end(row, texts[at], tokenizer) if special else row)
    return found


def _without_end(ids: list[int], text: str, tokenizer: Any) -> list[int]:
    """Drop an end token that the tokenizer has put behind the text: a prompt that has ended is not gone on from."""
    end, word = tokenizer.eos_token_id, tokenizer.eos_token
    return ids[:-1] if len(ids) > 1 and ids[-1] == end and not text.endswith(word) else ids


# ------------------------------------------------------------------------------------------------------- chat template

_MARK = "\u2042reply\u2042"  # a text that no template contains


class _Template:
    """The chat template of a tokenizer, and what it writes inside the assistant's turn."""

    def __init__(self, tokenizer: Any, template: str | None, options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.options = options
        self.openers: dict[str, str] = {}  # by what the template adds to open a turn

    def open(self, sample: Sample) -> tuple[str, str]:
        """Return the text of a chat with the assistant's turn opened, and what it holds of that turn."""
        if self.template is None and not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                f"the prompts are chat messages, and the tokenizer of {self._name} has no chat template; take an"
                " instruction-tuned model, or give prompts that are text (data.chat = false)"
            )
        messages = [_message(one) for one in sample.prompt]
        if messages and is_reply(messages[-1]):
            text = self._render(messages, sample, continue_final_message=True)
            return text, message_text(messages[-1]["content"])
        text = self._render(messages, sample, add_generation_prompt=True)
        closed = self._render(messages, sample, add_generation_prompt=False)
        if not text.startswith(closed):
            return text, ""
        added = text[len(closed) :]
        if added not in self.openers:
            self.openers[added] = self._opener(added, messages, sample)
        return text, self.openers[added]

    def _opener(self, added: str, messages: list[dict[str, Any]], sample: Sample) -> str:
        """Return the part of `added` that is inside the turn: what stands behind the turn's header.

        The header is what the template writes between a chat and a reply to it. In the middle of a chat first: many
        templates put an empty thought into the last reply.
        """
        reply = {"role": "assistant", "content": _MARK}
        for chat in ([*messages, reply, {"role": "user", "content": "?"}], [*messages, reply]):
            try:
                full = self._render(chat, sample, add_generation_prompt=False)
                closed = self._render(messages, sample, add_generation_prompt=False)
            except InputError:  # this template wants another order of turns
                continue
            before, mark, _ = full.partition(_MARK)
            header = before[len(closed) :] if mark and before.startswith(closed) else None
            if header and added.startswith(header):
                return added[len(header) :]
        return ""

    def _render(self, messages: list[dict[str, Any]], sample: Sample, **how: bool) -> str:
        options = {**self.options, **how, **({} if self.template is None else {"chat_template": self.template})}
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except Exception as problem:  # whatever a template raises: it is a program of the model's
            why = " ".join(str(problem).split()) or type(problem).__name__
            raise InputError(
                f"the chat template of {self._name} refuses the prompt of sample {sample.id!r}: {why}"
            ) from problem

    @property
    def _name(self) -> str:
        return getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__


_ROLE_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant"}


def _role(message: Mapping[str, Any]) -> Any:
    role = message.get("role") or message.get("from")
    return _ROLE_NAMES.get(role, role) if isinstance(role, str) else role


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with `role` and `content`, also where it was written as from and value."""
    content = message.get("content")
    content = message.get("value") if content is None else content
    kept = {key: value for key, value in message.items() if key not in ("from", "value") and value is not None}
    return {**kept, "role": _role(message), "content": "" if content is None else content}
