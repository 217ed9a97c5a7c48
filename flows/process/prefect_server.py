"""A Prefect server whose database is copied, and that retries requests while SQLite is busy.

Prefect rolls back a transaction that conflicts with another one and responds with 503, so that its
client retries. Its UI does not retry: a click on *Submit* would fail.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.tracking.database_templates import copy_template

if TYPE_CHECKING:
    from fastapi import FastAPI
    from sqlalchemy.ext.asyncio import AsyncSession
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = 10.0
"""Retry period of a request; an attempt that is running at its end is the last."""
_PAUSE = 0.1  # SQLite is free again after a transaction
_UNAVAILABLE = 503
_SQLITE = "sqlite+aiosqlite:///"
DOCUMENTATION = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
"""Paths at which Prefect describes its API without a password; below ``/api`` with one."""


def create_database() -> None:
    """Create the local database of the configured server if it is missing."""
    import prefect
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url
    address = "" if url is None else url.get_secret_value()
    path = Path(address.removeprefix(_SQLITE))
    if path.is_absolute() and address.startswith(_SQLITE):
        copy_template(f"prefect-{prefect.__version__}", path, _migrate)


def _migrate(path: Path) -> None:
    """Migrate in a separate process, since a server cannot start after migrations in its own."""
    subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={**os.environ, "PREFECT_API_DATABASE_CONNECTION_URL": f"{_SQLITE}{path}"},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def create_app() -> ASGIApp:
    """Return Prefect's server with retries while SQLite is busy.

    Imported objects are never freed, and looking for garbage among them takes a seventh of the
    start.
    """
    gc.disable()
    from prefect.server.api.server import create_app as create_prefect
    from prefect.settings import get_current_settings

    _lock_automations()
    server = create_prefect(final=True)
    if get_current_settings().server.api.auth_string is not None:
        _protect_documentation(server)
    app = retry_when_busy(server)
    gc.freeze()
    gc.enable()
    return app


def _lock_automations() -> None:
    """Lock SQLite's database before an automation reads its state.

    Prefect 3.8 reads first, and SQLite refuses to write if another transaction has written since.
    After four such attempts, Prefect drops the event: a run that has ended would be reported.
    """
    from prefect.server.database import provide_database_interface
    from prefect.server.events import triggers

    def automations_session(
        begin_transaction: bool = False,
    ) -> AbstractAsyncContextManager[AsyncSession]:
        return provide_database_interface().session_context(
            begin_transaction=begin_transaction, with_for_update=begin_transaction
        )

    triggers.automations_session = automations_session  # type: ignore[attr-defined, assignment]


def _protect_documentation(server: FastAPI) -> None:
    """Redirect the API's documentation, which needs no password, to the one that needs it."""
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    def redirect(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/api{request.scope['path']}")

    server.router.routes[:0] = [Route(path, redirect) for path in DOCUMENTATION]


def retry_when_busy(server: ASGIApp) -> ASGIApp:
    """Retry requests to which a server responds with 503; they have had no effect."""

    async def retrying_server(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await server(scope, receive, send)
            return
        request = [await receive()]
        while request[-1].get("more_body", False):
            request.append(await receive())
        deadline = time.monotonic() + SECONDS
        while not await _try_request(server, scope, request, receive, send, deadline):
            await asyncio.sleep(_PAUSE)

    return retrying_server


async def _try_request(
    server: ASGIApp,
    scope: Scope,
    request: list[Message],
    receive: Receive,
    send: Send,
    deadline: float,
) -> bool:
    """Execute a request; return False, with no response sent, if it must be retried."""
    unread = list(request)
    is_refused = False

    async def receive_again() -> Message:
        return unread.pop(0) if unread else await receive()

    async def send_unless_busy(message: Message) -> None:
        nonlocal is_refused
        if message["type"] == "http.response.start":
            is_refused = message["status"] == _UNAVAILABLE and time.monotonic() < deadline
        if not is_refused:
            await send(message)

    try:
        await server(dict(scope), receive_again, send_unless_busy)
    except Exception:
        if not is_refused:
            raise
        return False  # Prefect also raises the error of a 503 response, for its log
    return not is_refused
