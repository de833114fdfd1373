"""The judge's answer: strict JSON, checked against a schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]

MAX_ANSWER = 20_000


class Unreadable(ValueError):
    """The judge's answer is not what was asked for; says what is wrong with it."""


def read(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the judge's answer as data.

    The whole answer is one JSON object; one code fence around it is allowed, since many models cannot help it.
    Nothing is searched for inside prose: there, a quoted text's JSON would be taken for the verdict.

    Raises:
        Unreadable: It is no JSON, has a key twice, or does not fit the schema.
    """
    if len(text) > MAX_ANSWER:
        raise Unreadable(f"it has {len(text):,} characters")
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and len(body) > 6:
        first, _, rest = body[3:-3].partition("\n")
        body = rest if first.strip() in ("", "json", "JSON") else body
    try:
        found = json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise Unreadable(f"it is no JSON: {str(problem)[:80]}") from None
    for error in jsonschema.Draft202012Validator(schema).iter_errors(found):
        where = ".".join(map(str, error.absolute_path))
        raise Unreadable(f"{where + ': ' if where else ''}{error.message[:120]}")
    answer: dict[str, Any] = found
    return answer


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties; the explanation, which is short, comes first."""
    properties = {"explanation": {"type": "string", "maxLength": 300}, **properties}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
