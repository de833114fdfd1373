"""Logs of calls to an OpenAI-style API: one answer a line, alone or under `response` with its `request` beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rewardkit.records.tools.chats import completions_of, is_body, prompt_of
from rewardkit.records.tools.lines import Found, LineFormat, Unread, failure, mapping, name_of, reference_in, rest
from rewardkit.types import Completion

_OF_BODY = (
    "id", "object", "created", "created_at", "choices", "output", "usage", "system_fingerprint", "service_tier",
    "error", "status", "incomplete_details", "prompt_logprobs", "kv_transfer_params", "prompt_token_ids",
)  # fmt: skip
_IDS = ("chatcmpl-", "cmpl-", "resp_")  # the client library writes `object` after the choices
_ASKED = ("messages", "prompt", "input", "instructions")


class OpenAIChat(LineFormat):
    """Reader of answers as the API gives them."""

    def claims(self, fields: Mapping[str, Any], cut: bool) -> bool:
        """Go by an answer's own shape; rows of other tools that hold one have fields of their own as well."""
        if any(name in fields for name in ("custom_id", "responses_create_params", "doc_id")):
            return False
        if is_body(fields) and ("object" in fields or (cut and str(fields.get("id")).startswith(_IDS))):
            return True
        return is_body(fields.get("response")) and isinstance(fields.get("request"), dict)

    def read(self, fields: dict[str, Any]) -> Iterable[Found]:
        """Return the completions of one call; prompt and reference are taken from where the log has them."""
        if "response" in fields or "request" in fields:
            request, metadata = mapping(fields.get("request")), rest(fields, "request", "response", "error")
            body = fields.get("response")
            error = failure(fields.get("error")) or failure(mapping(body).get("error"))
        else:
            request, body = fields, fields
            metadata = rest(fields, *_OF_BODY, *_ASKED)
            error = failure(fields.get("error"))
        if error is not None:
            completions: tuple[Completion, ...] = (Completion("", error=error),)
        elif not isinstance(body, dict):
            raise Unread("no response")
        else:
            completions = completions_of(body)
        metadata.setdefault("model", mapping(body).get("model") or request.get("model"))
        prompt, reference = prompt_of(request), reference_in(metadata)
        id = metadata.pop("id", None)
        if not prompt and reference is None and id is None:
            id = mapping(body).get("id")  # nothing else tells the calls apart
        yield Found(completions, name_of(id), prompt, reference, metadata)


READER = OpenAIChat()
