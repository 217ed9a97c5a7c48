"""Synchronous client of a training service, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import aiohttp
from pydantic import TypeAdapter, ValidationError

from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import EMBEDDED, Endpoint
from ratchet.language_models.retrying import RetryPolicy, with_retries


class SyncClient:
    """Calls a service in a separate event loop; a context manager.

    Parameters
    ----------
    url
        The service's, with or without ``/v1``, or ``"embedded"`` for the one that Ratchet starts.
    api_key_name
        The environment variable that contains the key.
    """

    def __init__(
        self,
        url: str,
        api_key_name: str | None = None,
        *,
        timeout_seconds: float = 600.0,
        policy: RetryPolicy | None = None,
    ) -> None:
        if url != EMBEDDED and not url.rstrip("/").endswith("/v1"):
            url = f"{url.rstrip('/')}/v1"
        endpoint = Endpoint(url, api_key_name, timeout_seconds=timeout_seconds)
        self.endpoint = endpoint
        self._connection = Connection(endpoint)
        self._policy = policy or RetryPolicy()
        self._runner = asyncio.Runner()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        make_form: Callable[[], aiohttp.FormData] | None = None,
        /,
        **fields: TypeAdapter[Any],
    ) -> dict[str, Any]:
        """Retry until a response has these fields; return them.

        A form can be sent only once, so one is created for each attempt.
        """

        async def once() -> dict[str, Any]:
            form = None if make_form is None else make_form()
            answer = await self._connection.request_json(method, path, body, form=form)
            try:
                return {
                    name: adapter.validate_python(answer[name]) for name, adapter in fields.items()
                }
            except (KeyError, ValidationError):
                raise self._connection.unreadable(str(answer)) from None

        what = f"{self._connection.endpoint.label}: {method} {path}"
        return self._runner.run(with_retries(once, self._policy, what))

    def close(self) -> None:
        """Close the connections."""
        with ThreadPoolExecutor(1) as thread:  # the caller may be in another event loop
            thread.submit(self._runner.close).result()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
