"""Prefect's servers that we start: in batches they write, and a busy one is asked again at once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from deployments.parts import stack_environment
from flows.process import temporary_server
from flows.process.stack_file import ProcessMark, Stack


def answered(status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a server's answer."""
    sent: list[dict[str, Any]] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def keep(message: Any) -> None:
        sent.append(message)

    asyncio.run(temporary_server.asked_again_soon(server)({"type": "http"}, None, keep))
    return list(sent[0]["headers"])


def test_a_busy_server_is_asked_again_at_once() -> None:
    from prefect.client.base import _parse_retry_after

    (told,) = [value for name, value in answered(503) if name == b"retry-after"]
    seconds = _parse_retry_after(told.decode())
    assert seconds is not None
    assert 0 < seconds < 0.5, "by itself Prefect's client waits for two seconds"
    assert answered(200) == [(b"a", b"b")]


def test_servers_write_in_batches_unless_told_otherwise(tmp_path, monkeypatch) -> None:
    name = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"
    stack = Stack(1, 2, ready=True, supervisor=ProcessMark(1, 0.0))
    up = partial(stack_environment, tmp_path, stack)
    for environment in (temporary_server._server_environment, up):
        monkeypatch.delenv(name, raising=False)
        assert int(environment()[name]) >= 100
        monkeypatch.setenv(name, "7")
        assert environment()[name] == "7"
