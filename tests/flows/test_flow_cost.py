"""What a run asks Prefect's server, and how soon a server that is busy is asked again."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from deployments.parts import stack_environment
from flows import run_experiment
from flows.process import temporary_server
from flows.process.environment import prepare_environment
from flows.process.stack_file import ProcessMark, Stack
from ratchet.parameters.settings import ExperimentSettings


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


@pytest.mark.slow
def test_prefect_is_asked_as_often_however_many_stages_a_run_has(lab, monkeypatch) -> None:
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    prepare_environment(lab.folder / "home")
    asked: list[str] = []
    for client in (httpx.AsyncClient, httpx.Client):
        _count(client, asked, monkeypatch)
    counts = []
    for iterations in (3, 3, 6):
        asked.clear()
        params = lab.hyper_params(rl__num_iterations=iterations, seed=len(counts))
        settings = ExperimentSettings.from_dict(lab.settings(iterations_per_task=1))
        run_experiment(params, settings, name="tiny")
        counts.append([each for each in asked if "/csrf" not in each])
    assert len(counts[2]) == len(counts[1]) <= 9, counts


def _count(client: Any, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    send = client.send

    def counted(self: Any, request: httpx.Request, *args: Any, **kwargs: Any) -> Any:
        asked.append(f"{request.method} {request.url.path}")
        return send(self, request, *args, **kwargs)

    monkeypatch.setattr(client, "send", counted)
