"""Clients of an endpoint, one set per event loop, which raise Ratchet's errors.

Most of a call's own CPU time is spent in HTTP and the SDK's pydantic types. Chat requests therefore
use the SDK's URL and headers, but go through aiohttp directly: a tenth of the time of
``chat.completions.create``. All other requests use the SDK.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import openai
from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAioHttpClient

from ratchet.errors import (
    ContentFilterError,
    LanguageModelError,
    MissingKeyError,
    PromptTooLongError,
)
from ratchet.language_models.endpoints import NO_KEY, Endpoint
from ratchet.language_models.ledger import Attempt
from ratchet.language_models.retrying import TransientError, is_transient, retry_after_seconds

_MAX_CONNECTIONS = 1000
_CONNECT_SECONDS = 10.0
_MAX_REASON = 500
_MAX_SHOWN = 200
_FIRST_REDIRECT = 300
_TOO_MANY_REQUESTS = 429
_TOO_LONG = re.compile(r"context.?(length|window|size)|(prompt|input) (is|was) too long", re.I)
_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
)
"""Errors of requests that did not reach a service."""

if logging.getLogger("httpx2").level == logging.NOTSET:  # otherwise it logs a line per call
    logging.getLogger("httpx2").setLevel(logging.WARNING)


class _Turns:
    """Resumes callers one at a time, in the order of their responses.

    aiohttp sends requests from a task that is scheduled after all ready callbacks. If many
    responses arrived together, all would be processed before the next request is sent; then all
    would be sent together, answered together, and so on.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the caller's turn; it ends when the caller next waits."""
        await self._lock.acquire()
        asyncio.get_running_loop().call_soon(self._lock.release)


@dataclass(frozen=True)
class _Clients:
    """The clients of one event loop: the SDK's, and an HTTP session for the same requests."""

    sdk: AsyncOpenAI
    session: aiohttp.ClientSession
    chat_url: str
    turns: _Turns

    @property
    def root(self) -> str:
        """The service's URL, without ``/v1``."""
        return str(self.sdk.base_url).removesuffix("/").removesuffix("/v1")

    def url_of(self, path: str) -> str:
        """Return the URL of a path: below the endpoint's, or with a leading slash the service's."""
        if path.startswith("/"):
            return f"{self.root}{path}"
        return f"{str(self.sdk.base_url).rstrip('/')}/{path}"

    def chat_url_of(self, model: str) -> str:
        """Return the URL for completions; Azure's contains ``{model}``."""
        if "{model}" not in self.chat_url:
            return self.chat_url
        return self.chat_url.replace("{model}", quote(model, safe=""))

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()
        await self.sdk.close()


class StatusError(LanguageModelError):
    """A service responded with a permanent error, of HTTP status ``status``."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Answer:
    """The response of a service from either client; header names ignore case."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    reason: str


class Connection:
    """The clients of an endpoint, created on first use in an event loop, closed with it.

    Threads may share it: each loop has its own client. The SDK's retries are off.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients]
        self._clients = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def client(self) -> AsyncOpenAI:
        """Return this event loop's client."""
        return (await self._loop_clients()).sdk

    async def post_chat(self, body: Mapping[str, Any], billed: Attempt) -> bytes:
        """Send a request for a completion, once, and return the response body.

        ``billed`` is notified if the service certainly has not processed the request.

        Raises TransientError if a retry may succeed.
        """
        try:
            clients = await self._loop_clients()
        except MissingKeyError:
            billed.refused()
            raise
        content = json.dumps(body, separators=(",", ":")).encode()
        failure: LanguageModelError
        try:
            async with clients.session.post(
                clients.chat_url_of(body["model"]), data=content, allow_redirects=False
            ) as response:
                answer = await response.read()
                await clients.turns.wait()
                if response.status < _FIRST_REDIRECT:
                    return answer
                headers, reason = response.headers, response.reason or ""
                failure = self._status_failure(_Answer(response.status, headers, answer, reason))
                if _is_refusal(response.status, failure):
                    billed.refused()
        except (TimeoutError, aiohttp.ClientError) as error:
            if isinstance(error, _NEVER_SENT):
                billed.refused()
            failure = self._lost(error)
        raise failure  # outside the except block: texts of other errors may contain the key

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        form: aiohttp.FormData | None = None,
    ) -> bytes:
        """Send a request that the SDK does not support, once, and return the response body.

        ``path`` is appended to the endpoint's URL; with a leading slash, to the service's, which
        has no ``/v1``.

        Raises TransientError if a retry may succeed.
        """
        clients = await self._loop_clients()
        data: aiohttp.Payload | bytes | None = None
        headers = {}
        if form is not None:
            data = form()
            headers["content-type"] = data.headers["Content-Type"]
        elif body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["content-type"] = "application/json"
        failure: LanguageModelError
        try:
            async with clients.session.request(
                method,
                clients.url_of(path),
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as response:
                answer = await response.read()
                if response.status < _FIRST_REDIRECT:
                    return answer
                reason = response.reason or ""
                got = _Answer(response.status, response.headers, answer, reason)
                failure = self._status_failure(got)
        except (TimeoutError, aiohttp.ClientError) as error:
            failure = self._lost(error)
        raise failure  # outside the except block: texts of other errors may contain the key

    async def request_json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        form: aiohttp.FormData | None = None,
    ) -> dict[str, Any]:
        """Send as :meth:`send`, and parse the response, an object of the service's API."""
        content = await self.send(method, path, body, form=form)
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self.unreadable(content.decode("utf-8", "replace"))
        return answer

    def failure(self, error: openai.OpenAIError) -> LanguageModelError:
        """Convert an SDK error to Ratchet's: transient or not, without the key."""
        if isinstance(error, openai.APITimeoutError):
            return self._time_out(error.__cause__)
        if isinstance(error, openai.APIStatusError):
            got = error.response
            return self._status_failure(
                _Answer(got.status_code, got.headers, got.content, got.reason_phrase)
            )
        if isinstance(error, openai.APIResponseValidationError):
            return self.unreadable(error.response.text)
        if isinstance(error, openai.APIConnectionError):
            return self._unreachable(error.__cause__ or error)
        label = self.endpoint.label
        return LanguageModelError(f"{label}: {type(error).__name__}: {self.redact(str(error))}")

    def unreadable(self, content: str) -> TransientError:
        """Return the error for an unreadable response, e.g. from a proxy or truncated."""
        excerpt = repr(self.redact(content)[:_MAX_SHOWN])
        return TransientError(
            f"{self.endpoint.label}: the response is not valid for its API; it starts with"
            f" {excerpt}"
        )

    def refusal(self, answer: Mapping[str, Any]) -> LanguageModelError:
        """Return the error for a refusal that a service reports in a successful response."""
        return self._status_failure(_Answer(400, {}, json.dumps(answer).encode(), ""))

    def redact(self, text: str) -> str:
        """Remove the key from an external text, and shorten it."""
        key = self.endpoint.api_key()
        if key != NO_KEY:
            text = text.replace(key, "[key]")
        return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…"

    async def health(self) -> Mapping[str, Any]:
        """Return the service's ``/health`` response; empty if it has no such endpoint."""
        clients = await self._loop_clients()
        url = f"{clients.root}/health"
        try:
            async with clients.session.get(url, allow_redirects=False) as response:
                body = json.loads(await response.read())
        except (TimeoutError, aiohttp.ClientError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}

    async def _loop_clients(self) -> _Clients:
        loop = asyncio.get_running_loop()
        clients = self._clients.get(loop)
        if clients is not None:
            return clients
        with self._lock:
            clients = _make_clients(self.endpoint)
            self._clients[loop] = clients
        closer = _close_with_loop(clients)
        _CLOSERS.setdefault(loop, []).append(closer)
        await anext(closer)
        return clients

    def _lost(self, error: BaseException) -> TransientError:
        """Return the error for a request without a response."""
        if isinstance(error, TimeoutError) and not isinstance(error, _NEVER_SENT):
            return self._time_out(error)
        return self._unreachable(error)

    def _time_out(self, error: BaseException | None) -> TransientError:
        sent = not isinstance(error, _NEVER_SENT)
        seconds = self.endpoint.timeout_seconds if sent else _CONNECT_SECONDS
        text = f"{self.endpoint.label}: no response within {seconds:g} s"
        return TransientError(text, may_have_acted=sent)

    def _unreachable(self, error: BaseException) -> TransientError:
        reason = self.redact(str(error) or type(error).__name__)
        text = f"{self.endpoint.label}: cannot be reached ({reason})"
        return TransientError(text, may_have_acted=not isinstance(error, _NEVER_SENT))

    def _status_failure(self, answer: _Answer) -> LanguageModelError:
        status = answer.status
        code, reason = _read_error(answer)
        text = f"{self.endpoint.label}: answered {status}: {self.redact(reason)}"
        if code == "content_filter":
            return ContentFilterError(text)
        if _is_too_long(status, code, reason):
            return PromptTooLongError(text)
        if is_transient(status, code, answer.headers):
            return TransientError(
                text,
                retry_after_seconds(answer.headers),
                may_have_acted=status != _TOO_MANY_REQUESTS,
            )
        if status in (401, 403):
            text += (
                f" Check the key in {self.endpoint.key_variable}."
                if self.endpoint.key_variable
                else " No key was sent: name its environment variable in agents.NAME.api_key_name."
            )
        return StatusError(text, status)


_CLOSERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]]
_CLOSERS = weakref.WeakKeyDictionary()


async def _close_with_loop(clients: _Clients) -> AsyncGenerator[None]:
    """Close clients when the loop shuts down its generators, as at the end of ``asyncio.run``."""
    try:
        yield
    finally:
        await clients.close()


@cache
def _certificates() -> ssl.SSLContext:
    """Load the CA certificates once: it takes longer than many calls."""
    return httpx2.create_ssl_context()


def _make_clients(endpoint: Endpoint) -> _Clients:
    limits = httpx2.Limits(
        max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS
    )
    timeout = httpx2.Timeout(endpoint.timeout_seconds, connect=_CONNECT_SECONDS)
    http = DefaultAioHttpClient(
        verify=_certificates(),
        limits=limits,
        timeout=timeout,
        event_hooks={"response": [_check_answer]},
    )
    key, url = endpoint.api_key(), endpoint.url()
    sdk: AsyncOpenAI
    if endpoint.api_version is not None and url is not None:
        sdk = AsyncAzureOpenAI(
            azure_endpoint=url,
            api_version=endpoint.api_version,
            api_key=key,
            max_retries=0,
            http_client=http,
        )
        chat_url = f"{sdk.base_url}deployments/{{model}}/chat/completions"
        chat_url += f"?api-version={quote(endpoint.api_version)}"
        key_header = {"api-key": key}
    else:
        sdk = AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=http)
        chat_url = f"{sdk.base_url}chat/completions"
        key_header = {"authorization": f"Bearer {key}"}
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, ssl=_certificates()),
        headers={**_plain_headers(sdk), **key_header},
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=endpoint.timeout_seconds
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=_proxy(chat_url),
    )
    return _Clients(sdk, session, chat_url, _Turns())


async def _check_answer(response: httpx2.Response) -> None:
    """Refuse a success that is neither an object of the API nor a list of such objects.

    The SDK would return it as a string, an object without attributes, or an empty list.
    """
    if not response.is_success:
        return
    content = await response.aread()
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    items = body["data"] if isinstance(body, dict) and "data" in body else [body]
    if not isinstance(items, list) or not all(map(_is_api_object, items)):
        raise openai.APIResponseValidationError(response, body)


def _is_api_object(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def _proxy(url: str) -> str | None:
    """Find the environment's proxy for a URL, once: aiohttp looks it up in every call."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _plain_headers(sdk: AsyncOpenAI) -> dict[str, str]:
    """Return the SDK's headers without those that describe the machine: each slows every call."""
    return {
        name: text
        for name, text in sdk.default_headers.items()
        if isinstance(text, str) and not name.lower().startswith("x-stainless")
    }


def _is_too_long(status: int, code: str | None, reason: str) -> bool:
    """Return whether a prompt was refused for its length, in any service's wording."""
    if code == "context_length_exceeded" or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return True
    return status in (400, 422) and _TOO_LONG.search(reason) is not None


def _is_refusal(status: int, failure: LanguageModelError) -> bool:
    """Return whether an error means that no work was done or billed.

    A service may have done the work before it failed (5xx), timed out (408), or withheld its
    result; only the other client errors are refusals.
    """
    is_clients = _FIRST_REDIRECT <= status < 500 and status != 408
    return is_clients and not isinstance(failure, ContentFilterError)


def _read_error(answer: _Answer) -> tuple[str | None, str]:
    """Find the code and reason in an error body of any format."""
    try:
        body: Any = json.loads(answer.content)
    except ValueError:
        return None, answer.content.decode("utf-8", "replace") or answer.reason
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        code = inner.get("code")
        return str(code) if code is not None else None, str(inner.get("message") or inner)
    return None, str(inner)
