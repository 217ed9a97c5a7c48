"""The SDK's client of an endpoint, one for each event loop, and its errors as ours.

Nearly all of a call's own CPU time goes into the SDK's HTTP client and its pydantic types. So the
transport is aiohttp's, and requests go through the SDK's ``post`` with plain bodies and answers:
a quarter of the time of ``chat.completions.create``.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any

import httpx2
import openai
from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAioHttpClient

from ratchet.errors import ContentFilterError, LanguageModelError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.retrying import TransientError, is_transient, retry_after_seconds

_MAX_CONNECTIONS = 1000
_CONNECT_SECONDS = 10.0
_MAX_REASON = 500


class Connection:
    """An endpoint's clients, made when first needed in an event loop, closed with it.

    Parameters
    ----------
    endpoint
        The service.

    Notes
    -----
    May be shared by threads: each loop has its own client. The SDK's own retries are off.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI]
        self._clients = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def client(self) -> AsyncOpenAI:
        """Give this event loop's client.

        Raises
        ------
        MissingKeyError
            If the key or the embedded service's URL isn't in the environment.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                client = _make_client(self.endpoint)
                self._clients[loop] = client
                closer = _close_with_loop(client)
            else:
                return client
        await anext(closer)
        _CLOSERS.setdefault(loop, []).append(closer)
        return client

    def failure(self, error: openai.OpenAIError) -> LanguageModelError:
        """Turn an SDK's error into ours: transient or not, with no key in it."""
        label = self.endpoint.label
        if isinstance(error, openai.APITimeoutError):
            return TransientError(f"{label}: no answer in {self.endpoint.timeout_seconds:g} s")
        if isinstance(error, openai.APIStatusError):
            return self._status_failure(error)
        if isinstance(error, openai.APIConnectionError):
            reason = self.redact(str(error.__cause__ or error))
            return TransientError(f"{label}: can't be reached ({reason})")
        return LanguageModelError(f"{label}: {type(error).__name__}: {self.redact(str(error))}")

    def redact(self, text: str) -> str:
        """Take the key out of a text that came from outside, and cut it to a readable length."""
        key = self.endpoint.api_key()
        if len(key) > len("none"):
            text = text.replace(key, "[key]")
        return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…"

    def _status_failure(self, error: openai.APIStatusError) -> LanguageModelError:
        status = error.status_code
        code, reason = _read_error(error)
        text = f"{self.endpoint.label}: answered {status}: {self.redact(reason)}"
        if code == "content_filter":
            return ContentFilterError(text)
        headers = error.response.headers
        if is_transient(status, code, headers):
            return TransientError(text, retry_after_seconds(headers))
        if status in (401, 403):
            text += (
                f" Check the key in {self.endpoint.key_variable}."
                if self.endpoint.key_variable
                else " No key was sent: name its environment variable in agents.NAME.api_key_name."
            )
        return LanguageModelError(text)


_CLOSERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]]
_CLOSERS = weakref.WeakKeyDictionary()


async def _close_with_loop(client: AsyncOpenAI) -> AsyncGenerator[None]:
    """Close the client when the loop closes its generators, as ``asyncio.run`` does at its end."""
    try:
        yield
    finally:
        await client.close()


@cache
def _certificates() -> ssl.SSLContext:
    """Read the certificates of authorities once: it takes longer than many calls."""
    return httpx2.create_ssl_context()


def _make_client(endpoint: Endpoint) -> AsyncOpenAI:
    http_client = DefaultAioHttpClient(
        verify=_certificates(),
        limits=httpx2.Limits(
            max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS
        )
    )
    timeout = httpx2.Timeout(endpoint.timeout_seconds, connect=_CONNECT_SECONDS)
    url = endpoint.url()
    if endpoint.api_version is not None and url is not None:
        return AsyncAzureOpenAI(
            azure_endpoint=url,
            api_version=endpoint.api_version,
            api_key=endpoint.api_key(),
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
        )
    return AsyncOpenAI(
        base_url=url,
        api_key=endpoint.api_key(),
        max_retries=0,
        timeout=timeout,
        http_client=http_client,
    )


def _read_error(error: openai.APIStatusError) -> tuple[str | None, str]:
    """Find the code and the reason in an error's body, whatever form it has."""
    body: Any = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            return inner.get("code"), str(inner.get("message") or inner)
    return None, str(body) if body else str(error)
