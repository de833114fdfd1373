"""`json_schema`: is the answer JSON that a JSON Schema allows."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import msgspec
from pydantic import Field, PrivateAttr, model_validator

from rewardkit.extract import Found, after_thinking, fenced_code, opens_thinking, tagged
from rewardkit.leaf import Placement
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier

MAX_DEPTH = 50  # brackets inside brackets
MAX_DIGITS = 1000  # of one number
_ABSENT: Any = object()


class BadJson(ValueError):
    """A text is no JSON that can be judged; `large`: it is over a limit."""

    def __init__(self, text: str, *, large: bool = False) -> None:
        super().__init__(text)
        self.large = large


# ------------------------------------------------------------------------------------------ reading JSON

_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[{]|[\]}]')
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


def read_json(text: str) -> Any:
    """Parse strict JSON. Refused: a key twice in one object, NaN and Infinity, numbers beyond a double's range,
    more than `MAX_DEPTH` brackets inside each other.

    Raises:
        BadJson: Says what is wrong, and where.
    """
    depth = 0
    for token in _BRACKETS.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadJson(f"more than {MAX_DEPTH} brackets inside each other", large=True)
        elif token[0] in "]}":
            depth -= 1
    if _LONG_NUMBER.search(text) is not None and any(map(_too_long, _STRINGS.split(text))):
        raise BadJson(f"a number of more than {MAX_DIGITS:,} digits", large=True)
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as problem:
        raise BadJson(f"no JSON: {problem.msg} in line {problem.lineno}, column {problem.colno}") from None


_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def _too_long(text: str) -> bool:
    return _LONG_NUMBER.search(text) is not None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadJson(f"the key {_short(twice)} twice in one object")
    return made


def _constant(text: str) -> Any:
    raise BadJson(f"{text} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJson(f"the number {_short(text)} is out of range")
    return value


class _Region(NamedTuple):
    start: int
    end: int


# A string counts as one only where it can stand in JSON: a lone quotation mark in prose hides no brackets.
_MARK = re.compile(r'(?<=[{\[,:\s])"(?:[^"\\\n]|\\.)*+"(?=\s*+[,:}\]])|[\[\]{}]')
_BEGINS = re.compile(r"""\{\s*+["'}]|\[\s*+\{\s*+["'}]""")


def _balanced(text: str) -> tuple[list[_Region], int | None]:
    """Return the outermost balanced `{…}` and `[…]` of a text, and where JSON begins that is never closed."""
    regions: list[_Region] = []
    stack: list[int] = []
    for token in _MARK.finditer(text):
        mark, at = token[0], token.start()
        if mark in "{[":
            stack.append(at)
        elif mark in "}]":
            if not stack or text[stack[-1]] != ("{" if mark == "}" else "["):
                stack.clear()
                continue
            start = stack.pop()
            while regions and regions[-1].start > start:
                regions.pop()
            regions.append(_Region(start, at + 1))
    return regions, next((at for at in stack if _BEGINS.match(text, at) is not None), None)


def find_json(text: str) -> Found | None:
    """The JSON of an answer: all of it, else its last fenced code block, else the last object in its prose.

    In prose the last balanced `{…}`, or list of them, that begins as JSON does counts, whether it can be parsed or
    not; without one the last list that can be parsed. An object that is never closed is the last one.
    """
    text = text.strip()
    if not text:
        return None
    if text[0] in '{["-0123456789' or text in ("true", "false", "null"):
        whole = Found(text, "whole", 0)
        try:
            read_json(text)
        except BadJson as problem:
            if problem.large:
                return whole
        else:
            return whole
    blocks = [block for language in ("json", "") if (block := fenced_code(text, language)) is not None]
    if blocks:
        last = max(blocks, key=lambda block: block.start)
        return Found(last.text.strip(), "fenced code", last.start)
    regions, unclosed = _balanced(text)
    if unclosed is not None:
        return Found(text[unclosed:], "object", unclosed)
    for start, end in reversed(regions):
        if _BEGINS.match(text, start) is not None:
            return Found(text[start:end], "object", start)
    for start, end in reversed(regions[-20:]):
        if _reads(text[start:end]):
            return Found(text[start:end], "list", start)
    return None


def _reads(text: str) -> bool:
    try:
        read_json(text)
    except BadJson as problem:
        return problem.large
    return True


# --------------------------------------------------------------------------------------------- the schema

# Under these a schema holds data, in which "$ref" is no reference.
_DATA = frozenset({"const", "enum", "default", "examples"})


def _checked(schema: Any, formats: bool) -> Any:
    """Return a validator for a schema; raise ValueError when it is none, or needs what is not here."""
    import jsonschema  # type: ignore[import-untyped]
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    if not isinstance(schema, dict):
        raise ValueError(f"a JSON Schema is an object, got {type(schema).__name__}")
    kind: Any = jsonschema.Draft202012Validator
    dialect = schema.get("$schema")
    if dialect is not None:
        kind = jsonschema.validators.validator_for({"$schema": dialect}, default=None) if _text(dialect) else None
        if kind is None:
            raise ValueError(f"$schema {_short(dialect)} is no dialect of JSON Schema that is known here")
    if not any(key in kind.VALIDATORS for key in schema):
        raise ValueError(f"no keyword of JSON Schema in it, so that it would allow everything: {_short(schema)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            kind.check_schema(schema)
            _refuse_foreign(schema, kind, formats)
    except jsonschema.SchemaError as problem:
        raise ValueError(f"no valid JSON Schema: {_path(problem.absolute_path)}: {_cut(problem.message)}") from None
    except RecursionError:
        raise ValueError("no JSON Schema that can be read: nested too deeply") from None
    exact = jsonschema.validators.extend(kind, {"multipleOf": _multiple_of})
    # A registry that retrieves nothing: only the dialects' own schemas can be referred to.
    return exact(schema, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER if formats else None)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _refuse_foreign(schema: dict[str, Any], kind: Any, formats: bool) -> None:
    """Raise ValueError for a reference that leads outside the schema, and for a format that nothing here can check."""
    own = {value.rstrip("#") for keyword, value in _keywords(schema) if keyword in ("$id", "id") and _text(value)}
    for keyword, value in _keywords(schema):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{keyword}: {value} is no number")
        if keyword == "format" and formats and _text(value) and value not in kind.FORMAT_CHECKER.checkers:
            raise ValueError(f"the format {_short(value)} cannot be checked here")
        if keyword not in ("$ref", "$dynamicRef", "$recursiveRef") or not _text(value):
            continue
        there = value.partition("#")[0]
        if re.match(r"[a-z][a-z0-9+.-]*:", there, re.IGNORECASE) is None or there.rstrip("#") in own:
            continue
        if there.startswith(("http://json-schema.org/", "https://json-schema.org/")):
            continue
        raise ValueError(f"$ref {_short(value)} leads outside the schema, and nothing is fetched")


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a schema with its value, but none inside data."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if isinstance(value, (dict, list)):
                if key not in _DATA:
                    yield from _keywords(value)
            else:
                yield key, value
    elif isinstance(schema, list):
        for value in schema:
            yield from _keywords(value)


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword by decimal text: 19.99 is a multiple of 0.01, which it is not in binary floating point."""
    import jsonschema

    if validator.is_type(instance, "number") and Fraction(repr(instance)) % Fraction(repr(step)):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {step!r}")


def _path(parts: Any) -> str:
    """Write where something stands as `$.items[2].price`."""
    text = "$"
    for part in parts:
        plain = isinstance(part, str) and part.isidentifier() and part.isascii()
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if plain else f"[{_short(part)}]"
    return text if len(text) <= 120 else text[:117] + "..."


def _difference(mine: Any, wanted: Any, path: tuple[Any, ...] = ()) -> str | None:
    """Say where two JSON values first differ; None when they are equal. 1 equals 1.0, but true is no number."""
    if isinstance(mine, dict) and isinstance(wanted, dict):
        for key in wanted:
            if key not in mine:
                return f"{_path(path)}: {_short(key)} is lacking"
        for key in mine:
            if key not in wanted:
                return f"{_path(path)}: {_short(key)} is too much"
        parts = [(key, mine[key], wanted[key]) for key in wanted]
    elif isinstance(mine, list) and isinstance(wanted, list):
        if len(mine) != len(wanted):
            return f"{_path(path)}: {len(mine)} items, not {len(wanted)}"
        parts = [(place, *both) for place, both in enumerate(zip(mine, wanted, strict=True))]
    else:
        same = isinstance(mine, bool) == isinstance(wanted, bool) and mine == wanted
        return None if same else f"{_path(path)}: {_short(mine)}, not {_short(wanted)}"
    for part, left, right in parts:
        difference = _difference(left, right, (*path, part))
        if difference is not None:
            return difference
    return None


def _short(value: object) -> str:
    """Write a JSON value, short."""
    return _cut(ascii(value) if isinstance(value, str) else json.dumps(value, default=str), 60)


def _cut(text: str, size: int = 200) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


# ------------------------------------------------------------------------------------------- the verifier


class JsonSchemaReference(Reference):
    """A JSON Schema, as an object or as its text; with the option `equals` the right value instead."""

    given: Any = Field(description="the schema, or with `equals` the right value; a text is read as JSON")
    _validator: Any = PrivateAttr(default=None)


# pydantic warns that `schema` hides an old method of its models, which nobody calls on a verifier.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", 'Field name "schema"', UserWarning)

    class JsonSchema(Verifier[JsonSchemaReference]):
        """Accept when the completion's JSON is what a JSON Schema allows; with `equals`, when it is the right value.

        The JSON is looked for behind the thinking, in the last `<answer>` tags where there are any: all of the text,
        else its last fenced code block (without a language, or `json`), else the last object, or list of objects, in
        the prose. The last one decides, also when it is broken. The detail names the first rule that is broken, and
        where: `$.items[0].price: minimum: …`.

        The schema is the option `schema`, else the reference, as an object or as JSON text; draft 2020-12 unless
        `$schema` names another. It must be valid, have at least one keyword, and refer to nothing outside itself:
        nothing is ever fetched. Patterns in it may hang, so it runs in a worker that is killed at the deadline.

        JSON is read strictly: a key twice in one object, NaN, Infinity, comments, commas at the end and single quotes
        are `unreadable`; more than `max_size` characters, 50 brackets inside each other or 1,000 digits in one number
        are `too_large`. 1.0 is an integer, and multiples count in decimal: 19.99 is one of 0.01.

        Traps: a schema allows what it does not forbid: without `required` and `additionalProperties: false` an empty
        object passes. `format` says nothing unless `formats` is on. With `equals` a reference that is a text is read
        as JSON where it can be ("18" is the number 18), else stands for itself; null counts as missing.

        Options:
            schema: the JSON Schema, for all rows; none: each row's reference is one.
            equals: the value must equal the reference: 1 equals 1.0, true is no 1, the order of keys is free; a schema
                then only comes from the option, if at all.
            formats: check `format` too; a format that nothing here can check is a bad schema then.
            max_size: largest JSON, in characters.
            timeout: deadline in seconds for one completion.

        Example:
            rewardkit try json_schema --reference '{"type": "object", "required": ["name"]}' '{"name": "Ada"}'
        """

        name: ClassVar[str | None] = "json_schema"
        placement: ClassVar[Placement] = "process"  # type: ignore[misc]

        schema: dict[str, Any] | None = None  # type: ignore[assignment]
        equals: bool = False
        formats: bool = False
        max_size: int = Field(default=1_000_000, ge=1)
        timeout: float = Field(default=2.0, gt=0)  # type: ignore[misc]

        @model_validator(mode="after")
        def _valid(self) -> JsonSchema:
            if self.schema is not None:
                try:
                    _checked(self.schema, self.formats)
                except ValueError as problem:
                    raise ValueError(f"schema: {problem}") from None
            return self

        @property
        def needs(self) -> tuple[str, ...]:
            return ("reference",) if self.schema is None or self.equals else ()

        def prepare(self, sample: Sample) -> object:
            raw = sample.reference if self.needs else {}
            # A schema is a mapping itself, and must not be taken for the fields of the reference.
            wrapped = None if raw is None else {"given": raw}
            prepared = super().prepare(msgspec.structs.replace(sample, reference=wrapped))
            if not isinstance(prepared, JsonSchemaReference):
                return prepared
            try:
                given = self._read(prepared.given)
                schema = self.schema if self.schema is not None else None if self.equals else given
                prepared = JsonSchemaReference(given=given)
                if schema is not None:
                    prepared._validator = _checked(schema, self.formats)
                    for probe in _PROBES:  # a schema that refers to itself without end, or to nothing
                        _violation(prepared._validator, probe)
            except (ValueError, RecursionError, LookupError) as problem:
                text = "it refers to itself without end" if isinstance(problem, RecursionError) else str(problem)
                return Score(None, f"reference: {_cut(text)}", reason="bad_reference", name=self.label)
            return prepared

        def _read(self, given: Any) -> Any:
            if not isinstance(given, str):
                return given
            if not given.strip():
                raise ValueError("JSON is wanted, got an empty text")
            try:
                return read_json(given)
            except BadJson:
                if self.equals:
                    return given
                raise

        def verify(self, completion: Completion, reference: JsonSchemaReference, sample: Sample) -> Verdict:
            if not completion.text.strip():
                return Verdict.reject("the completion is empty", reason="no_answer")
            text = after_thinking(completion.text, opened=opens_thinking(sample.prompt))
            if text is None:
                return Verdict.reject("the thinking was never closed", reason="no_answer")
            tag = tagged(text, "answer", unclosed=True)
            found = find_json(text if tag is None else tag.text)
            if found is None or not found.text:
                return Verdict.reject("no JSON", reason="no_answer")
            shown = _cut(" ".join(found.text.split()))
            if len(found.text) > self.max_size:
                detail = f"{len(found.text):,} characters of JSON, more than {self.max_size:,}"
                return Verdict.reject(detail, extracted=shown, reason="too_large")
            try:
                value = read_json(found.text)
            except BadJson as problem:
                return Verdict.reject(
                    str(problem), extracted=shown, reason="too_large" if problem.large else "unreadable"
                )
            return self._judged(value, reference, found.rule, shown)

        def _judged(self, value: Any, reference: JsonSchemaReference, rule: str, shown: str) -> Verdict:
            validator = reference._validator
            if validator is not None:
                try:
                    violation = _violation(validator, value)
                except RecursionError:
                    return Verdict.abstain("the schema refers to itself without end", extracted=shown)
                except LookupError as problem:
                    return Verdict.abstain(_cut(str(problem)), extracted=shown, reason="bad_reference")
                if violation is not None:
                    return Verdict.reject(violation, extracted=shown)
            difference = _difference(value, reference.given) if self.equals else None
            if difference is not None:
                return Verdict.reject(difference, extracted=shown)
            return Verdict.accept(f"{'equal' if self.equals else 'valid'}, {_PLACES[rule]}", extracted=shown)


_PROBES: tuple[Any, ...] = (None, {}, [], "")
_PLACES = {
    "whole": "all of the text",
    "fenced code": "in a code block",
    "object": "the last object",
    "list": "the last list",
}


def _violation(validator: Any, value: Any) -> str | None:
    """Return the first rule that a value breaks; raise LookupError when a reference in the schema leads nowhere."""
    from referencing.exceptions import Unresolvable

    try:
        error = next(validator.iter_errors(value), None)
    except Unresolvable as problem:
        raise LookupError(f"the schema refers to {_short(problem.ref)}, which is not in it") from None
    if error is None:
        return None
    return f"{_path(error.absolute_path)}: {error.validator}: {_cut(error.message, 160)}"
