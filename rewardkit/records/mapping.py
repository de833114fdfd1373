"""Rows to generations, by a field map.

A completion path's last `[]` is the list of a group's completions; each earlier `[]` makes one sample of each
element. The other paths are looked up as follows.
1. A path that begins like the completion's, up to a `[]`, means the same element: with
   completion = results[].answers[].text, results[].gold is the result's and results[].answers[].score the answer's.
2. A path with a `[]` of its own is a list beside the completions, matched by position.
3. Any other path of a sample (id, prompt, reference, step, model, group) is looked up in the sample, then in what is
   around it, then in the completion; any other path of a completion (label, tokens, finish_reason, error) in the
   completion first, then outwards.
When a sample's own field lies in its completions, or in a list beside them, each completion is its own sample.

An element of a list of completions that cannot be read becomes a completion with an `error`; its neighbours stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rewardkit.errors import MapError
from rewardkit.records.chat import NoText, completion_of, is_chat, split_chat
from rewardkit.records.groups import Groups
from rewardkit.records.jsonl import describe
from rewardkit.records.paths import EACH, MISSING, STAR, Path, Step, walk
from rewardkit.records.rows import Row
from rewardkit.records.text import shorten, visible
from rewardkit.types import Completion, Generation, Sample

SAMPLE_ROLES = ("id", "prompt", "reference", "step", "model", "group")
COMPLETION_ROLES = ("label", "tokens", "finish_reason", "error")

# Generations of a row; a text among them says why a part of the row gives none.
Mapper: TypeAlias = Callable[[Row, str], Sequence[Generation | str]]
# The same where a row gives one at most: fields, and where they are.
FlatMapper: TypeAlias = Callable[[dict[str, Any], str], Generation | str]

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


_UNMAPPED = "\ud800"  # a name that no column has: reading replaces lone surrogates


class _Bad(ValueError):
    """A row, or a part of one, that gives no generation; the message says why."""


def mapper(fields: Mapping[str, Path | None], models: Sequence[str], groups: Groups) -> Mapper:
    """Return the function that turns a row into generations.

    Args:
        fields: Role to path, with a completion.
        models: The columns that `*` stands for.
        groups: Counts ids and groups.

    Raises:
        MapError: Paths that do not fit together.
    """
    flat = flat_mapper(fields, groups)
    if flat is not None:
        return lambda row, where: (flat(row.fields, where),)
    return _Nested({role: path for role, path in fields.items() if path is not None}, models, groups)


def flat_mapper(fields: Mapping[str, Path | None], groups: Groups) -> FlatMapper | None:
    """Return a fast function for the common case, one completion a row and plain names; None for other maps."""
    paths = {role: path for role, path in fields.items() if path is not None}
    plain = all(len(path.steps) == 1 and isinstance(path.steps[0], str) for path in paths.values())
    if not plain or paths.get("prompt") == paths["completion"]:
        return None
    return _flat({role: str(path.steps[0]) for role, path in paths.items()}, groups)


def _flat(names: Mapping[str, str], groups: Groups) -> FlatMapper:
    completion_name = names["completion"]
    id_name, prompt_name, reference_name, label_name, group_name, tokens_name, finish_name = (
        names.get(role, _UNMAPPED)
        for role in ("id", "prompt", "reference", "label", "group", "tokens", "finish_reason")
    )
    step_name, model_name, error_name = names.get("step"), names.get("model"), names.get("error")
    simple = error_name is None and tokens_name == finish_name == _UNMAPPED
    bare = simple and label_name == _UNMAPPED
    place = groups.place

    def completion_in(fields: dict[str, Any], value: Any) -> Completion:
        get = fields.get
        error = None if error_name is None else _error(get(error_name))
        if value is MISSING:
            if error is None:
                raise _Bad(_no_field(completion_name))
            value = None
        return completion_of(
            value,
            tokens=_tokens(get(tokens_name)),
            finish_reason=_text(get(finish_name)),
            error=error,
            metadata={"label": _label(fields[label_name])} if label_name in fields else {},
        )

    def flat(fields: dict[str, Any], where: str) -> Generation | str:
        get = fields.get
        value = fields.pop(completion_name, MISSING)
        try:
            if bare and type(value) is str:
                completion = Completion(value)
            elif simple and type(value) is str:
                metadata = {"label": _label(get(label_name))} if label_name in fields else {}
                completion = Completion(value, None, None, None, None, metadata)
            else:
                completion = completion_in(fields, value)
            step = None if step_name is None else _step(get(step_name))
        except NoText as problem:
            return f"{visible(completion_name)} {problem}"
        except _Bad as problem:
            return str(problem)
        id = get(id_name)
        if type(id) is not int and type(id) is not str:
            id = _id(id)
        prompt = get(prompt_name)
        if prompt is None:
            prompt = ""
        reference = get(reference_name)
        model = None if model_name is None else _text(get(model_name))
        id, key, start = place(model, id, step, prompt, reference, get(group_name), 1)
        return Generation(Sample(id, prompt, reference, fields, step), (completion,), model, start, where, key)

    return flat


class _Where(NamedTuple):
    """Where a role lies: at `steps` in an axis's scope (None: search); `beside`: a list along the completions."""

    axis: int | None
    steps: tuple[Step, ...]
    beside: bool = False
    tail: tuple[Step, ...] = ()


class _Nested:
    """The general case: models side by side, lists of completions, lists of samples, conversations."""

    def __init__(self, paths: Mapping[str, Path], models: Sequence[str], groups: Groups) -> None:
        completion = paths["completion"].steps
        self._written = str(paths["completion"])
        self._star = completion[0] is STAR
        self._models: Sequence[str | None] = models if self._star else (None,)
        self._groups = groups
        self._chat = paths.get("prompt") == paths["completion"]
        body = completion[1:] if self._star else completion
        self._axes, self._tail = _split(body)
        self._where: dict[str, _Where] = {}
        for role, path in paths.items():
            if role != "completion" and not (role == "prompt" and self._chat):
                self._where[role] = self._place(role, path.steps, completion)
        self._hidden = set(models) if self._star else {_first_name(completion)}
        # completion = output.text leaves what else `output` has among the columns.
        self._keep = () if self._star or self._axes or len(completion) < 2 else completion

    def _place(self, role: str, steps: tuple[Step, ...], completion: tuple[Step, ...]) -> _Where:
        axis: int | None = None
        if steps[0] is STAR:
            if not self._star:
                raise MapError(f"{role}={Path(steps)} has a *, but completion={self._written} has none")
            axis, steps, completion = 0, steps[1:], completion[1:]
        elif self._star:
            completion = ()
        shared = 0
        while shared < min(len(steps), len(completion)) and steps[shared] == completion[shared]:
            shared += 1
        ends = [at + 1 for at in range(shared) if steps[at] is EACH]
        if ends:
            axis, steps = len(ends), steps[ends[-1] :]
        if EACH not in steps:
            return _Where(axis, steps)
        at = steps.index(EACH)
        if not self._axes:
            raise MapError(f"{role}={Path(steps)} has a [], but completion={self._written} has none")
        if EACH in steps[at + 1 :] or axis == len(self._axes):
            raise MapError(f"{role}={Path(steps)}: only one [] can run along the completions")
        return _Where(axis, steps[:at], True, steps[at + 1 :])

    def __call__(self, row: Row, where: str) -> Sequence[Generation | str]:
        results: list[Generation | str] = []
        for model in self._models:
            try:
                self._one_model(row, where, model, results)
            except _Bad as problem:
                results.append(str(problem))
        return results

    def _one_model(self, row: Row, where: str, model: str | None, results: list[Generation | str]) -> None:
        around = [*reversed(row.outer), row.fields]
        base: Any = row.fields
        if model is not None:
            base = row.fields.get(model, MISSING)
            if base is MISSING:
                raise _Bad(_no_field(model))
            if base is not None and not isinstance(base, dict):
                raise _Bad(f"{visible(model)} is {describe(base)}, not an object")
            if self._axes:
                around.append(base)
        metadata = {name: value for name, value in row.fields.items() if name not in self._hidden}
        if self._keep:
            metadata.update(_without(row.fields, self._keep))
        self._samples(_Scopes(around, [base], metadata, model, where), 0, results)

    def _samples(self, scopes: _Scopes, axis: int, results: list[Generation | str]) -> None:
        """Walk down the axes that make samples; at the last axis, or without one, make the generations."""
        base = scopes.elements[-1]
        if not self._axes:
            self._generations(scopes, [base], results, in_list=False)
            return
        steps = self._axes[axis]
        values = walk(base, steps)
        last = axis == len(self._axes) - 1
        written = Path((*steps, EACH))
        if values is None and last:
            self._generations(scopes, [None], results, in_list=True)
            return
        if base is None:
            self._generations(scopes, [None], results, in_list=True)
            return
        if not isinstance(values, list):
            raise _Bad(_no_field(Path(steps)) if values is MISSING else f"{written}: is {describe(values)}, not a list")
        if not values:
            raise _Bad(f"{written} is an empty list")
        if last:
            self._generations(scopes, values, results, in_list=True)
            return
        ahead = self._axes[axis + 1]
        hidden = ahead[0] if ahead else (self._tail[0] if self._tail else None)
        for element in values:
            own = element if isinstance(element, dict) else {}
            metadata = {**scopes.metadata, **{name: value for name, value in own.items() if name != hidden}}
            try:
                self._samples(scopes.inside(element, metadata), axis + 1, results)
            except _Bad as problem:
                results.append(str(problem))

    def _generations(
        self, scopes: _Scopes, elements: list[Any], results: list[Generation | str], *, in_list: bool
    ) -> None:
        count = len(elements)
        beside = {role: self._beside(role, place, scopes, count) for role, place in self._where.items() if place.beside}
        prompts, completions = [], []
        for at, element in enumerate(elements):
            prompt, completion = self._completion(scopes, element, at, beside, in_list)
            prompts.append(prompt)
            completions.append(completion)
        shared = {role: self._of_sample(role, scopes) for role in SAMPLE_ROLES if role not in beside}
        own = [role for role in SAMPLE_ROLES if role in beside or (in_list and self._lies_in(role, shared, elements))]
        if not in_list:
            for role in SAMPLE_ROLES:
                if shared[role] is MISSING and role in self._where:
                    shared[role] = self._search(self._where[role], [elements[0]])
        if self._chat:
            own.append("prompt")
        if not own or (count == 1 and not beside):
            values = shared | {role: self._of_completion(role, elements[0], beside, 0, prompts) for role in own}
            results.append(self._generation(scopes, values, tuple(completions), scopes.metadata))
            return
        dropped = {_first_name(self._where[role].steps) for role in own if role in beside}
        for at, element in enumerate(elements):
            values = shared | {role: self._of_completion(role, element, beside, at, prompts) for role in own}
            metadata = {name: value for name, value in scopes.metadata.items() if name not in dropped}
            for role in own:
                if role in beside and not self._where[role].tail:
                    metadata[str(_first_name(self._where[role].steps))] = values[role]
            try:
                results.append(self._generation(scopes, values, (completions[at],), metadata))
            except _Bad as problem:
                results.append(str(problem))

    def _completion(
        self, scopes: _Scopes, element: Any, at: int, beside: Mapping[str, Any], in_list: bool
    ) -> tuple[Any, Completion]:
        found = {role: self._about_completion(role, scopes, element, at, beside) for role in COMPLETION_ROLES}
        error = _error(None if found["error"] is MISSING else found["error"])
        value = element if element is None else walk(element, self._tail)
        if value is MISSING:
            what = _no_field(self._written)
            if error is None and not in_list:
                raise _Bad(what)
            # One broken element must not take its neighbours along: it becomes an error of its own.
            error, value = error or what, ""
        metadata: dict[str, Any] = {}
        if isinstance(element, dict) and self._tail and (in_list or self._star):
            metadata = {name: item for name, item in element.items() if name != self._tail[0]}
        if found["label"] is not MISSING:
            metadata["label"] = _label(found["label"])
        fields: dict[str, Any] = {
            "tokens": None if found["tokens"] is MISSING else _tokens(found["tokens"]),
            "finish_reason": None if found["finish_reason"] is MISSING else _text(found["finish_reason"]),
            "error": error,
            "metadata": metadata,
        }
        prompt: Any = MISSING
        try:
            if self._chat and is_chat(value):
                before, reply = split_chat(value)  # type: ignore[arg-type]
                return before, completion_of(reply, **fields) if reply else Completion("", **fields)
            return prompt, completion_of(value, **fields)
        except NoText as problem:
            what = f"{visible(self._written)} {problem}"
            if not in_list:
                raise _Bad(what) from None
            return prompt, Completion("", **fields | {"error": error or what})

    def _about_completion(self, role: str, scopes: _Scopes, element: Any, at: int, beside: Mapping[str, Any]) -> Any:
        if role in beside:
            return beside[role][at]
        place = self._where.get(role)
        if place is None:
            return MISSING
        if place.axis is None:
            return self._search(place, [element, *reversed(scopes.all())])
        return self._at_axis(place, scopes, element)

    def _of_sample(self, role: str, scopes: _Scopes) -> Any:
        place = self._where.get(role)
        if place is None:
            return scopes.model if role == "model" and scopes.model is not None else MISSING
        if place.axis is None:
            return self._search(place, list(reversed(scopes.all())))
        if place.axis == len(self._axes) and self._axes:
            return MISSING
        return self._at_axis(place, scopes, None)

    def _lies_in(self, role: str, shared: Mapping[str, Any], elements: list[Any]) -> bool:
        if role not in self._where or shared[role] is not MISSING:
            return False
        place = self._where[role]
        if place.axis is not None and place.axis != len(self._axes):
            return False
        return any(walk(element, place.steps) is not MISSING for element in elements)

    def _of_completion(self, role: str, element: Any, beside: Mapping[str, Any], at: int, prompts: list[Any]) -> Any:
        if role == "prompt" and self._chat:
            return prompts[at]
        if role in beside:
            return beside[role][at]
        return self._search(self._where[role], [element])

    def _at_axis(self, place: _Where, scopes: _Scopes, element: Any) -> Any:
        axis = place.axis or 0
        scope = element if axis == len(self._axes) and self._axes else scopes.elements[axis]
        return walk(scope, place.steps)

    @staticmethod
    def _search(place: _Where, scopes: Sequence[Any]) -> Any:
        for scope in scopes:
            value = walk(scope, place.steps)
            if value is not MISSING:
                return value
        return MISSING

    def _beside(self, role: str, place: _Where, scopes: _Scopes, count: int) -> list[Any]:
        if place.axis is None:
            values = self._search(place, list(reversed(scopes.all())))
        else:
            values = self._at_axis(place, scopes, None)
        if values is MISSING or values is None:
            return [MISSING] * count
        if not isinstance(values, list):
            raise _Bad(f"{role}: {Path((*place.steps, EACH))} is {describe(values)}, not a list")
        if len(values) != count:
            raise _Bad(f"{role}: {Path((*place.steps, EACH))} has {len(values):,} values for {count:,} completions")
        return [walk(value, place.tail) for value in values]

    def _generation(
        self, scopes: _Scopes, values: Mapping[str, Any], completions: tuple[Completion, ...], metadata: dict[str, Any]
    ) -> Generation:
        found = {role: None if value is MISSING else value for role, value in values.items()}
        model, step, reference = _text(found["model"]), _step(found["step"]), found["reference"]
        prompt = "" if found["prompt"] is None else found["prompt"]
        id, key, start = self._groups.place(
            model, _id(found["id"]), step, prompt, reference, found["group"], len(completions)
        )
        return Generation(Sample(id, prompt, reference, metadata, step), completions, model, start, scopes.where, key)


class _Scopes(NamedTuple):
    """Where one sample's fields may lie.

    around: the document's objects and the row, outermost first. elements: the row (or its model's object), then
    one element for each axis walked down so far.
    """

    around: list[Any]
    elements: list[Any]
    metadata: dict[str, Any]
    model: str | None
    where: str

    def inside(self, element: Any, metadata: dict[str, Any]) -> _Scopes:
        return self._replace(elements=[*self.elements, element], metadata=metadata)

    def all(self) -> list[Any]:
        """Every scope, outermost first; without lists, a model's object counts as the completion, not as a scope."""
        return [*self.around, *self.elements[1:]]


def _split(steps: Sequence[Step]) -> tuple[list[tuple[Step, ...]], tuple[Step, ...]]:
    """Return the steps before each `[]`, and those after the last."""
    axes: list[tuple[Step, ...]] = []
    part: list[Step] = []
    for step in steps:
        if step is EACH:
            axes.append(tuple(part))
            part = []
        else:
            part.append(step)
    return axes, tuple(part)


def _first_name(steps: Sequence[Step]) -> Step | None:
    return steps[0] if steps else None


def _without(fields: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
    """Return the one field that `steps` begin with, less what lies at their end; {} when nothing else is in it."""
    name, rest = steps[0], steps[1:]
    inside = fields.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or not isinstance(inside, dict) or not rest:
        return {}
    kept = {key: value for key, value in inside.items() if key != rest[0]} | _without(inside, rest)
    return {name: kept} if kept else {}


def _no_field(path: object) -> str:
    return f"no field {visible(shorten(str(path), 60))}"


def _id(value: Any) -> str | int | None:
    if value is None or type(value) is str or type(value) is int:
        return value
    return str(as_json(value))


def _step(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
        return int(value)
    raise _Bad(f"step is {describe(value)}, not a whole number")


def _tokens(value: Any) -> int | None:
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, float) and value.is_integer() and value >= 0:
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if isinstance(value, list) and all(type(token) is int for token in value):
        return len(value)  # token ids
    return None


def _text(value: Any) -> str | None:
    return value if value is None or type(value) is str else as_json(value)


# What tables write where nothing failed, and where something did but it does not say what.
_NOT_FAILED = frozenset({"", "0", "0.0", "false", "none", "null", "nan", "n/a", "<na>"})
_FAILED = frozenset({"1", "1.0", "true"})


def _error(value: Any) -> str | None:
    """Return the source's failure message.

    None, which means that nothing failed, for null, false, 0, these and the like as text, and a list or an object
    that holds nothing else.
    """
    if value is None or not _failed(value):
        return None
    text = as_json(value)
    return "marked as failed" if text.strip().lower() in _FAILED else text


def _failed(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > 40 or value.strip().lower() not in _NOT_FAILED
    if isinstance(value, dict):
        return any(map(_failed, value.values()))
    return any(map(_failed, value)) if isinstance(value, list) else bool(value)


def _label(value: Any) -> Any:
    """Return a label; true, false and numbers that a file holds as text (a CSV does) become what they say."""
    if type(value) is not str:
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if _NUMBER.fullmatch(text) else value


def as_json(value: Any) -> str:
    """Return a value as text: itself, or its JSON form."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
