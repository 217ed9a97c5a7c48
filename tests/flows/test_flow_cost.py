"""Prefect servers started by Ratchet: batched writes, and retries while busy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from deployments.stack_services import stack_environment
from flows.process import prefect_server, temporary_server
from flows.process.stack_file import ProcessMark, Stack


def responses_of(statuses: list[int]) -> tuple[list[int], list[bytes]]:
    """Return the statuses that a client receives from such a server, and the server's requests."""
    sent: list[int] = []
    requests: list[bytes] = []
    coming = iter([{"body": b"a", "more_body": True}, {"body": b"b"}])

    async def server(scope: Any, receive: Any, send: Any) -> None:
        requests.append((await receive())["body"] + (await receive())["body"])
        status = statuses[len(requests) - 1]
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": b""})
        if status >= 500:
            raise OSError("the database is locked")  # as Starlette does, for the log

    async def receive() -> Any:
        return next(coming)

    async def keep(message: Any) -> None:
        if "status" in message:
            sent.append(message["status"])

    with suppress(OSError):
        asyncio.run(prefect_server.retry_when_busy(server)({"type": "http"}, receive, keep))
    return sent, requests


def test_requests_to_a_busy_server_are_retried(monkeypatch) -> None:
    assert responses_of([503, 503, 201]) == ([201], [b"ab"] * 3), "the UI would fail at the first"
    assert responses_of([200]) == ([200], [b"ab"])
    assert responses_of([500, 200]) == ([500], [b"ab"]), "other errors are not retried"
    monkeypatch.setattr(prefect_server, "SECONDS", 0.0)
    assert responses_of([503, 200]) == ([503], [b"ab"]), "the last response is sent"


def test_servers_write_in_batches_by_default(tmp_path, monkeypatch) -> None:
    name = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"
    stack = Stack(1, 2, ready=True, supervisor=ProcessMark(1, 0.0))
    up = partial(stack_environment, tmp_path, stack)
    for environment in (partial(temporary_server._server_environment, tmp_path), up):
        monkeypatch.delenv(name, raising=False)
        assert int(environment()[name]) >= 100
        monkeypatch.setenv(name, "7")
        assert environment()[name] == "7"
