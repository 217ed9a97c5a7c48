"""Connections that say nothing, or half of something, end: each holds a place that others need.

uvicorn closes one that is idle after an answer, but waits for ever for the first request's head,
and for the rest of one that has begun. What is missing of a body is seen by
:class:`~ratchet.language_models.service.api.auth.Gate`.
"""

from __future__ import annotations

import asyncio

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ratchet.language_models.service.settings import Limits

_HEAD_BYTES = 64 * 1024


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection on which no whole head comes within the time of an idle one."""

    _head_timer: asyncio.TimerHandle | None = None
    _in_request = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun; drops that come later win no time."""
        super().data_received(data)
        if self._in_request:
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:  # the parser would keep any number
            self.send_400_response("The request's head is too large.")
        elif self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Wait no longer: what comes next is read by the application."""
        self._in_request, self._head_bytes = True, 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next head, unless it has come already."""
        self._in_request = bool(self.pipeline)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """Make the configuration of the server that answers for an app."""
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=limits.idle_seconds,
    )
