"""A Prefect server that asks its database again by itself when SQLite was busy.

Prefect gives up a transaction that another one has overtaken, and answers with 503 so that its
client asks again. Its UI does not: a press of *Submit* would be lost, with an error.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = 10.0
"""For so long a request is tried again; an attempt that is under way then is the last."""
_PAUSE = 0.1  # in a transaction's time SQLite is free again
_UNAVAILABLE = 503


def create_app() -> ASGIApp:
    """Return Prefect's server, which tries again what SQLite was too busy for."""
    from prefect.server.api.server import create_app as create_prefect

    return asked_again(create_prefect(final=True))


def asked_again(server: ASGIApp) -> ASGIApp:
    """Have requests answered again for which a server was busy; it has done nothing for them."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await server(scope, receive, send)
            return
        request = await _whole(receive)
        deadline = time.monotonic() + SECONDS
        while not await _answered(server, scope, request, receive, send, deadline):
            await asyncio.sleep(_PAUSE)

    return answer


async def _answered(
    server: ASGIApp,
    scope: Scope,
    request: list[Message],
    receive: Receive,
    send: Send,
    deadline: float,
) -> bool:
    """Let a server answer; return False, with nothing sent, if it is to be asked again."""
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
        return False  # what was answered with 503 is raised too, for the log
    return not is_refused


async def _whole(receive: Receive) -> list[Message]:
    """Read a request to its end."""
    read = [await receive()]
    while read[-1].get("more_body", False):
        read.append(await receive())
    return read
