"""Asking an OpenAI-compatible endpoint: retries, limits, deadlines, and the ledger. Every failure is a ServiceError."""

from __future__ import annotations

import asyncio
import email.utils
import functools
import json
import math
import os
import random
import ssl
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from rewardkit import OptionError, ServiceError
from rewardkit_judge import ledger
from rewardkit_judge.answer import Unreadable, read

Message = dict[str, str]
Format = Literal["json_schema", "json_object", "none"]

MAX_BODY = 4_000_000  # bytes of a response that are read
LONGEST_WAIT = 120.0  # seconds that a Retry-After may ask for; beyond it the call has failed
FIRST_WAIT = 0.5  # seconds before the first retry; doubled for each next one
_RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}


@dataclass(frozen=True)
class Endpoint:
    """Where a judge is and how it is asked."""

    reward: str
    base_url: str
    model: str
    api_key_env: str
    temperature: float
    max_tokens: int
    retries: int
    timeout: float
    concurrency: int
    reply_format: Format
    ledger: str
    input_price: float
    output_price: float

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise OptionError(f"{self.reward}: base_url is like 'http://host:8000/v1', got {self.base_url[:60]!r}")
        if url.username or url.password or url.query:
            raise OptionError(f"{self.reward}: base_url holds no name, password or query; name api_key_env instead")
        if not self.model:
            raise OptionError(f"{self.reward} needs the option model, the name of the judge at {self.base_url}")
        if self.api_key_env and not self.api_key_env.isidentifier():
            # The value is not repeated: somebody may have put the key itself here.
            raise OptionError(f"{self.reward}: api_key_env names an environment variable; never write the key itself")
        for name in ("max_tokens", "timeout", "concurrency"):
            if getattr(self, name) <= 0:
                raise OptionError(f"{self.reward}: {name} is above 0, got {getattr(self, name)}")
        for name in ("retries", "temperature", "input_price", "output_price"):
            if getattr(self, name) < 0:
                raise OptionError(f"{self.reward}: {name} is 0 or more, got {getattr(self, name)}")

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the judge's answer as data that fits the schema.

        An answer that does not is sent back once with what is wrong with it.

        Raises:
            ServiceError: The service failed after all retries, or its answer cannot be read.
        """
        asked = list(messages)
        text = await self._complete(asked, schema)
        try:
            return read(text, dict(schema))
        except Unreadable as problem:
            wrong = str(problem)
        asked += [
            {"role": "assistant", "content": text[:4_000] or "(nothing)"},
            {
                "role": "user",
                "content": f"That cannot be read: {wrong}. Answer again with one JSON object that fits this schema and"
                f" nothing else: {json.dumps(schema)}",
            },
        ]
        text = await self._complete(asked, schema)
        try:
            return read(text, dict(schema))
        except Unreadable as problem:
            raise ServiceError(f"the judge's answer cannot be read, asked twice: {problem}: {text[:120]!r}") from None

    async def _complete(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
        """Return the text of one chat completion, after as many retries as are allowed."""
        problem = _Failed("")
        for attempt in range(1, self.retries + 2):
            try:
                async with _limit(self):
                    return await self._once(messages, schema, attempt)
            except _Failed as failed:
                problem = failed
            if not problem.again or attempt > self.retries:
                break
            await asyncio.sleep(self._wait(problem, attempt))
        tries = f" ({attempt} tries)" if attempt > 1 else ""
        raise ServiceError(f"{urlsplit(self.base_url).netloc}: {problem}{tries}")

    def _wait(self, problem: _Failed, attempt: int) -> float:
        if problem.wait is None:
            return min(20.0, FIRST_WAIT * 2.0 ** (attempt - 1)) * random.uniform(0.75, 1.25)
        if problem.wait > LONGEST_WAIT:
            raise ServiceError(f"{urlsplit(self.base_url).netloc}: {problem}: asks to wait {problem.wait:,.0f} s")
        return problem.wait

    async def _once(self, messages: Sequence[Message], schema: Mapping[str, Any], attempt: int) -> str:
        started = time.monotonic()
        outcome = "cancelled"
        usage: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(self.timeout):
                text, usage = _reading(await self._post(self._body(messages, schema)))
            outcome = "ok"
            return text
        except TimeoutError:
            outcome = f"no answer within {self.timeout:g} s"
            raise _Failed(outcome, again=True) from None
        except httpx.TransportError as problem:
            outcome = f"{type(problem).__name__}: {str(problem)[:120]}"
            raise _Failed(outcome, again=True) from None
        except (httpx.InvalidURL, httpx.HTTPError) as problem:
            outcome = f"{type(problem).__name__}: {str(problem)[:120]}"
            raise _Failed(outcome) from None
        except _Failed as problem:
            outcome, usage = str(problem), problem.usage
            raise
        finally:
            self._note(outcome, attempt, time.monotonic() - started, usage)

    def _body(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        if self.reply_format == "json_schema":
            # Strict, OpenAI refuses limits such as maxLength; servers that constrain decoding keep them either way.
            named = {"name": "verdict", "strict": False, "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.reply_format == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        """Return the body of a 200; anything else fails. Redirects are not followed: the key would go along."""
        headers = {}
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        if key:
            if not key.isascii() or not key.isprintable():
                raise _Failed(f"the key in ${self.api_key_env} holds characters that no header can")
            headers["Authorization"] = f"Bearer {key}"
        url = self.base_url.rstrip("/") + "/chat/completions"
        # A client a request: an engine's event loop may end at any time, and a pool's connections with it.
        async with (
            httpx.AsyncClient(verify=_certificates(), timeout=self.timeout) as client,
            client.stream("POST", url, json=body, headers=headers) as response,
        ):
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_BODY:
                    raise _Failed(f"a response of more than {MAX_BODY:,} bytes")
            if response.status_code == 200:
                return content
            said = " ".join(content[:300].decode("utf-8", "replace").split())[:160]
            said = said.replace(key, "…") if key else said
            raise _Failed(
                f"status {response.status_code}: {said}",
                again=response.status_code in _RETRIED,
                wait=_retry_after(response.headers.get("retry-after")),
            )

    def _note(self, outcome: str, attempt: int, seconds: float, usage: Mapping[str, Any]) -> None:
        if not self.ledger:
            return
        given, made = (_tokens(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        priced = given is not None and made is not None and (self.input_price or self.output_price)
        cost = ((given or 0) * self.input_price + (made or 0) * self.output_price) / 1e6 if priced else None
        call = ledger.Call(
            self.reward, self.base_url, self.model, outcome, attempt, round(seconds, 4), given, made, cost
        )
        try:
            ledger.append(self.ledger, call)
        except OSError as problem:
            raise OptionError(f"{self.reward}: the ledger {self.ledger} cannot be written: {problem}") from None


class _Failed(Exception):
    """One request failed; says whether another may do better, and when."""

    def __init__(
        self, text: str, *, again: bool = False, wait: float | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(text)
        self.again = again
        self.wait = wait
        self.usage = usage or {}


def _reading(content: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the first choice's text and the usage of a chat completion."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise _Failed(f"a response that is no JSON: {content[:60]!r}", again=True) from None
    usage = data.get("usage") if isinstance(data, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    try:
        text = data["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise _Failed(f"a response without choices: {content[:60]!r}", again=True, usage=usage) from None
    if not isinstance(text, str):
        raise _Failed(f"a response whose content is a {type(text).__name__}", again=True, usage=usage)
    return text, usage


def _tokens(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _retry_after(text: str | None) -> float | None:
    """Return how many seconds a Retry-After header asks to wait: a number, or a date."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()


_LIMITS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = (
    weakref.WeakKeyDictionary()
)


def _limit(endpoint: Endpoint) -> asyncio.Semaphore:
    """Return the semaphore that all rewards of one event loop share for one endpoint."""
    limits = _LIMITS.setdefault(asyncio.get_running_loop(), {})
    key = (endpoint.base_url, endpoint.concurrency)
    if key not in limits:
        limits[key] = asyncio.Semaphore(endpoint.concurrency)
    return limits[key]
