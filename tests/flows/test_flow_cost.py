"""Prefect's servers that we start: in batches they write, and a busy one asks again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from deployments.parts import stack_environment
from flows.process import asked_again, temporary_server
from flows.process.stack_file import ProcessMark, Stack


def answered(statuses: list[int]) -> tuple[list[int], list[bytes]]:
    """Return what a client sees of a server that answers so, and the requests that it has had."""
    sent: list[int] = []
    asked: list[bytes] = []
    coming = iter([{"body": b"a", "more_body": True}, {"body": b"b"}])

    async def server(scope: Any, receive: Any, send: Any) -> None:
        asked.append((await receive())["body"] + (await receive())["body"])
        status = statuses[len(asked) - 1]
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
        asyncio.run(asked_again.asked_again(server)({"type": "http"}, receive, keep))
    return sent, asked


def test_a_busy_server_is_asked_again_by_itself(monkeypatch) -> None:
    assert answered([503, 503, 201]) == ([201], [b"ab"] * 3), "the UI would give up at the first"
    assert answered([200]) == ([200], [b"ab"])
    assert answered([500, 200]) == ([500], [b"ab"]), "a fault is none of a busy database"
    monkeypatch.setattr(asked_again, "SECONDS", 0.0)
    assert answered([503, 200]) == ([503], [b"ab"]), "it is told in the end"


def test_servers_write_in_batches_unless_told_otherwise(tmp_path, monkeypatch) -> None:
    name = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"
    stack = Stack(1, 2, ready=True, supervisor=ProcessMark(1, 0.0))
    up = partial(stack_environment, tmp_path, stack)
    for environment in (temporary_server._server_environment, up):
        monkeypatch.delenv(name, raising=False)
        assert int(environment()[name]) >= 100
        monkeypatch.setenv(name, "7")
        assert environment()[name] == "7"
