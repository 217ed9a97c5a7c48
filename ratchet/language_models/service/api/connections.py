"""Timeouts of incomplete requests: each open connection occupies a slot.

uvicorn closes a connection that is idle after a response, but waits forever for the first request's
head, and for the rest of a partial one. :class:`~ratchet.language_models.service.api.auth.Gate`
handles incomplete bodies.
"""

from __future__ import annotations

import asyncio

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ratchet.language_models.service.settings import Limits

_HEAD_BYTES = 64 * 1024


class IdleTimeoutProtocol(HttpToolsProtocol):
    """Closes a connection if no complete head arrives within the idle timeout."""

    _head_timer: asyncio.TimerHandle | None = None
    _in_request = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a partial head; further data do not extend the timeout."""
        super().data_received(data)
        if self._in_request:
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:  # the parser accepts any number of bytes
            self.send_400_response("The request's head is too large.")
        elif self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Stop waiting: the application reads the body."""
        self._in_request, self._head_bytes = True, 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next head, unless it has arrived already."""
        self._in_request = bool(self.pipeline)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """Build the server's configuration for an app."""
    return uvicorn.Config(
        app,
        http=IdleTimeoutProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=limits.idle_seconds,
    )
