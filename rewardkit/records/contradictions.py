"""Values that contradict a guess by names: a task taken for its answer, the gold for the output, and the like.

A wrong column that nobody notices is the worst fault, so each check here looks at the first rows only, costs little,
and either puts a role into doubt (the run stops and asks) or is said beside the map. docs/records.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewardkit.records import names
from rewardkit.records.chat import NoText, as_output
from rewardkit.records.jsonl import NotJson, parse_json
from rewardkit.records.names import normal, spellings
from rewardkit.records.paths import EACH, STAR, Path, walk_all
from rewardkit.types import last_reply

Fields = Mapping[str, Path | None]
Rows = Sequence[Mapping[str, Any]]

_NEARLY = 0.95  # of the rows: "nearly all"
_LONG = 40  # characters above which two equal texts are no coincidence; half of it for a task and its answer
_SEVERAL = 10  # rows from which a constant says something
_THINKING = ("<think>", "</think>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>")
_SERVICE = ("status_code", "headers")  # fields of a response that is not a model's
_SHOWN = 3


class Finding(NamedTuple):
    """What was found: why, and the roles in doubt with what they could be; none when it is only to be said."""

    why: str
    candidates: Mapping[str, tuple[Path, ...]] = {}


class _Pair(NamedTuple):
    """One completion with what its row says: texts, "" where there is none or it is no text."""

    completion: str
    prompt: str
    reference: str


def is_address(value: Any) -> bool:
    """Whether a value is a web address and nothing else."""
    return isinstance(value, str) and value.startswith(("http://", "https://")) and " " not in value.strip()


def contradictions(rows: Rows, fields: Fields, guessed: set[str], *, trusted: bool = False) -> Iterator[Finding]:
    """Yield what speaks against a map, what puts a role into doubt first.

    Args:
        rows: The first rows.
        fields: Role to path, with a completion.
        guessed: The roles that were guessed; the others are not put into doubt.
        trusted: The map comes from a known layout, whose names are not doubted.
    """
    completion = fields["completion"]
    if completion is None:
        return
    found = list(_found(rows, fields, completion, trusted))
    for finding in sorted(found, key=lambda finding: not finding.candidates):
        said = not guessed.issuperset(finding.candidates)  # by somebody, who is told and believed
        yield Finding(finding.why) if said else finding


def _found(rows: Rows, fields: Fields, completion: Path, trusted: bool) -> Iterator[Finding]:
    prompt, reference = fields.get("prompt"), fields.get("reference")
    pairs = [pair for row in rows for pair in _pairs(row, fields, completion)]
    weak = not trusted and _is_weak(completion)
    if not trusted:
        yield from _names_that_lie(rows, fields, completion)
    if not pairs:
        return
    yield from _against_prompt(pairs, completion, prompt)
    if reference is not None:
        yield from _against_reference(pairs, completion, reference, weak)
    yield from _lists_as_text(pairs, completion)
    yield from _constant(pairs, completion, weak)
    yield from _others(rows, fields, completion)
    yield from _failed(rows, fields)
    yield from _marks(rows, fields)


def _lists_as_text(pairs: Sequence[_Pair], completion: Path) -> Iterator[Finding]:
    """A list of outputs that a table wrote as text would be read as one output."""
    listed = sum(_is_list_text(pair.completion) for pair in pairs)
    if listed >= _NEARLY * len(pairs):
        why = f"{completion} holds lists that are written as text, each of which would be one completion"
        yield Finding(f"{why}; write them as lists (JSONL), or one a row", {"completion": (completion,)})


def _is_list_text(text: str) -> bool:
    if not (text.startswith("[") and text.endswith("]") and len(text) > 2):
        return False
    try:
        value = parse_json(text.encode("utf-8", "replace"))
    except NotJson:
        return False
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) and len(item) > 8 for item in value)


def _is_weak(completion: Path) -> bool:
    first = completion.steps[0]
    return isinstance(first, str) and normal(first) in (*names.WEAK, *names.ANSWERS)


def _pairs(row: Mapping[str, Any], fields: Fields, completion: Path) -> Iterator[_Pair]:
    prompt, reference = fields.get("prompt"), fields.get("reference")
    same = prompt == completion
    asked = "" if prompt is None or same else _text(next(iter(walk_all(row, prompt.steps)), None), reply=False)
    gold = "" if reference is None else _text(next(iter(walk_all(row, reference.steps)), None))
    for value in walk_all(row, completion.steps)[:_SEVERAL]:
        text = _text(value)
        if text.strip():
            yield _Pair(text.strip(), asked.strip(), gold.strip())


def _text(value: Any, *, reply: bool = True) -> str:
    """Return the text of a value; of a chat its last reply, or what its last message says."""
    if isinstance(value, list) and value and isinstance(value[-1], dict) and not reply:
        value = value[-1].get("content", value[-1].get("value"))
    try:
        text, messages = as_output(value)
    except NoText:
        return ""
    return last_reply(messages) if messages is not None else text or ""


def _share(pairs: Sequence[_Pair], among: Sequence[_Pair]) -> bool:
    return bool(among) and len(pairs) >= _NEARLY * len(among)


def _names_that_lie(rows: Rows, fields: Fields, completion: Path) -> Iterator[Finding]:
    """Look at the columns around a completion with a name that means other things too."""
    first = completion.steps[0]
    if not isinstance(first, str):
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    name, doubt = normal(first), {"completion": (completion,)}
    free = [column for column in columns if all(p is None or p.steps[0] != column for p in fields.values())]
    if all(spellings(columns, other) for other in ("chosen", "rejected")) and name not in names.flat(names.STRONG):
        pair = tuple(Path((spellings(columns, other)[0],)) for other in ("chosen", "rejected"))
        yield Finding(
            f"{first} stands beside chosen and rejected, which are pairs of preferences", {"completion": pair}
        )
    if name in ("output", "outputs"):
        given = [column for column in free if normal(column) in ("input", "inputs") and _any(rows, column)]
        lists = [column for column in given if all(isinstance(row.get(column), list) for row in rows)]
        if lists or (given and fields.get("prompt") is not None and fields.get("label") is None):
            yield Finding(f"{first} may be the expected output of {given[0]}", doubt)
    if name == "code" and names.has_tests(columns) and fields.get("reference") is None:
        yield Finding(f"{first} beside tests may be the program that is wanted, not a model's", doubt)
    if name in ("text", "texts"):
        yield from _statement(rows, fields, completion)
    objects = [row[first] for row in rows if isinstance(row.get(first), dict)]
    if objects and len(completion.steps) > 1 and all(any(key in item for key in _SERVICE) for item in objects):
        yield Finding(f"{first} looks like the response of a web service", doubt)


def _any(rows: Rows, column: str) -> bool:
    values = [row.get(column) for row in rows]
    return any(bool(value.strip()) if isinstance(value, str) else value is not None for value in values)


def _statement(rows: Rows, fields: Fields, completion: Path) -> Iterator[Finding]:
    """`text` without a prompt is often the task itself."""
    if fields.get("prompt") is not None:
        return
    texts = [text for row in rows for value in walk_all(row, completion.steps) if (text := _text(value).strip())]
    asking = [text for text in texts if text.endswith(("?", "？"))]
    signs = any(fields.get(role) is not None for role in ("model", "step", "tokens", "finish_reason", "label"))
    unsigned = fields.get("reference") is not None and not signs and fields.get("id") is None
    if unsigned or (texts and 2 * len(asking) > len(texts)):
        yield Finding(f"{completion} may be the task and not the model's output", {"completion": (completion,)})


def _against_prompt(pairs: Sequence[_Pair], completion: Path, prompt: Path | None) -> Iterator[Finding]:
    asked = [pair for pair in pairs if pair.prompt]
    same = _share([pair for pair in asked if pair.completion == pair.prompt], asked)
    if same and 2 * _mean(pair.prompt for pair in asked) > _LONG:
        yield Finding(f"{completion} equals {prompt} in nearly all rows", {"completion": (completion,)})
        return
    long = [pair for pair in asked if len(pair.prompt) > _LONG]
    if _share([pair for pair in long if pair.completion.startswith(pair.prompt)], long):
        yield Finding(f"{completion} begins with {prompt} in nearly all rows; it is judged with it")


def _against_reference(pairs: Sequence[_Pair], completion: Path, reference: Path, weak: bool) -> Iterator[Finding]:
    known = [pair for pair in pairs if pair.reference]
    swapped = {"completion": (reference, completion), "reference": (completion, reference)}
    if not known:
        return
    if all(pair.completion == pair.reference for pair in known):
        if _mean(pair.completion for pair in known) > _LONG:
            yield Finding(
                f"{completion} equals {reference} in all rows: it may be the gold",
                {"completion": (completion,)},
            )
        elif len(known) >= 5:
            yield Finding(f"{completion} equals {reference} in all of the first rows")
        return
    thinking = [pair for pair in known if any(mark in pair.reference for mark in _THINKING)]
    plain = [pair for pair in known if not any(mark in pair.completion for mark in _THINKING)]
    if len(thinking) >= 0.8 * len(known) and len(plain) >= 0.8 * len(known):
        yield Finding(f"{reference} holds a model's thinking, {completion} does not", swapped)
        return
    longer = [pair for pair in known if len(pair.reference) >= 3 * len(pair.completion) and _is_prose(pair.reference)]
    if len(known) >= 5 and _share(longer, known):
        why = f"{reference} is three times as long as {completion} or more in nearly all rows"
        yield Finding(f"{why}, and is no short answer", swapped) if weak else Finding(f"{why}: is it the gold?")


def _mean(texts: Iterable[str]) -> float:
    lengths = [len(text) for text in texts]
    return sum(lengths) / len(lengths) if lengths else 0.0


def _is_prose(text: str) -> bool:
    return len(text) > 100 and text.count(" ") >= 15


def _constant(pairs: Sequence[_Pair], completion: Path, weak: bool) -> Iterator[Finding]:
    tasks = {(pair.prompt, pair.reference) for pair in pairs}
    if len(pairs) < _SEVERAL or len(tasks) < 2 or len({pair.completion for pair in pairs}) > 1:
        return
    why = f"{completion} is the same text in all of the first {len(pairs)} rows"
    yield Finding(why, {"completion": (completion,)}) if weak else Finding(why)


def _others(rows: Rows, fields: Fields, completion: Path) -> Iterator[Finding]:
    """Say which other columns hold texts under names that speak of model outputs."""
    taken = {path.steps[0] for path in fields.values() if path is not None}
    if completion.steps[0] is STAR or EACH in completion.steps:
        return
    own = [_text(next(iter(walk_all(row, completion.steps)), None)) for row in rows]
    found = []
    for column in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(column) for row in rows]
        texts = [value for value in values if isinstance(value, str) and value.strip()]
        spoken = any(word in normal(column) for word in names.COMPLETION_WORDS[:6])
        meant = normal(column) in names.OTHER or normal(column) in names.ABOUT
        if column in taken or not spoken or meant or 2 * len(texts) <= len(rows) or values == own:
            continue
        if len(set(texts)) > 1 and 2 * _mean(texts) > _mean(own):
            found.append(column)
    if found:
        listed = ", ".join(found[:_SHOWN]) + (" and more" if len(found) > _SHOWN else "")
        yield Finding(f"not judged, though it may be outputs of models too: {listed}")


def _marks(rows: Rows, fields: Fields) -> Iterator[Finding]:
    """`label` without a reference may be the gold of a question with two answers."""
    path = fields.get("label")
    if path is None or fields.get("reference") is not None or str(path.steps[0]) != "label":
        return
    values = [value for row in rows for value in walk_all(row, path.steps) if value is not None]
    if values and all(str(value) in ("0", "1") and not isinstance(value, bool) for value in values):
        yield Finding(f"{path} is taken for marks, right or wrong; if it is the gold: --map reference={path},label=")


def _failed(rows: Rows, fields: Fields) -> Iterator[Finding]:
    path = fields.get("error")
    if path is None or len(rows) < 5 or EACH in path.steps or STAR in path.steps:
        return
    texts = [value for row in rows for value in walk_all(row, path.steps) if isinstance(value, str) and value.strip()]
    completion = fields["completion"]
    filled = [row for row in rows if completion is not None and any(walk_all(row, completion.steps))]
    if len(texts) >= _NEARLY * len(rows) and len(filled) >= _NEARLY * len(rows):
        yield Finding(f"{path} marks nearly all rows as failed, though they have completions; --map error= ignores it")
