"""The parts of the local stack: their commands, environments and health checks."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployments.access import mlflow_access, prefect_access
from flows.process.logins import PREFECT, read_logins
from flows.process.stack_file import LOOPBACK, POOL, Stack
from flows.process.temporary_server import SERVER_SETTINGS

HEARTBEAT_SECONDS = 60
"""How often a flow run tells the server that it lives."""


@dataclass(frozen=True)
class Part:
    """One process of the stack.

    ``children_go_on``: whether what it has started outlives its sudden death, as the flow runs of
    a worker do.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    is_healthy: Callable[[], bool]
    children_go_on: bool = False


def stack_parts(home: Path, stack: Stack, *, worker: bool) -> list[list[Part]]:
    """List the parts in the order in which they start; those of a group start together."""
    environment = stack_environment(home, stack)
    servers = [_prefect_server(home, stack, environment), _mlflow_server(home, stack, environment)]
    return [servers, [_worker(home, stack, environment)]] if worker else [servers]


def stack_environment(home: Path, stack: Stack) -> dict[str, str]:
    """Return the environment in which processes find the stack, and write under ``home`` alone."""
    environment = {**SERVER_SETTINGS, **os.environ}
    if stack.is_open:  # clients of this machine read the rest where they need it
        environment[PREFECT] = read_logins(home)[PREFECT]
    return environment | {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": stack.prefect_api_url,
        # a page that another machine has opened asks where it came from
        "PREFECT_SERVER_UI_API_URL": "/api" if stack.is_open else stack.prefect_api_url,
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "ui"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "prefect" / "storage"),
        # in memory, a server that is started again would not know who holds which slot
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight idle processes otherwise
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # packages in the working folder must not hide ours
        "RATCHET_PROJECT": os.environ.get("RATCHET_PROJECT", str(Path.cwd())),
    }


def free_port(wanted: int = 0, host: str = LOOPBACK) -> int:
    """Return ``wanted`` if it is free at an address of this machine, else any free port."""
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port at {host}")


def get_text(
    url: str, body: dict[str, object] | None = None, login: str | None = None
) -> str | None:
    """GET a page, or POST JSON; None when nobody answers with success.

    ``login``: ``USER:PASSWORD`` for a server that asks for it.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    if login:
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return None


def _prefect_server(home: Path, stack: Stack, environment: dict[str, str]) -> Part:
    port = str(stack.prefect_port)
    return Part(
        name="prefect",
        command=[sys.executable, "-P", "-m", "deployments.prefect_server", stack.host, port],
        environment=environment | (prefect_access(read_logins(home)) if stack.is_open else {}),
        log=home / "logs" / "prefect.log",
        is_healthy=lambda: get_text(f"{stack.prefect_api_url}/health") == "true",
    )


def _mlflow_server(home: Path, stack: Stack, environment: dict[str, str]) -> Part:
    # by name where it can be: a URL with a password would stand in the list of processes
    database = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home / 'mlflow.db'}"}
    access = mlflow_access(home, stack, read_logins(home)) if stack.is_open else {}
    return Part(
        name="mlflow",
        command=[
            *(sys.executable, "-P", "-m", "deployments.mlflow_server"),
            *("--host", stack.host, "--port", str(stack.mlflow_port), "--workers", "1"),
            *("--artifacts-destination", str(home / "mlartifacts")),
            *(("--app-name", "basic-auth") if stack.is_open else ()),
        ],
        environment=database | environment | access,
        log=home / "logs" / "mlflow.log",
        is_healthy=lambda: get_text(f"{stack.mlflow_url}/health") == "OK",
    )


def _worker(home: Path, stack: Stack, environment: dict[str, str]) -> Part:
    workers = f"{stack.prefect_api_url}/work_pools/{POOL}/workers/filter"
    return Part(
        name="worker",
        command=[
            *(sys.executable, "-m", "prefect", "worker", "start"),
            *("--pool", POOL, "--type", "process", "--install-policy", "never"),
        ],
        environment=environment,
        log=home / "logs" / "worker.log",
        is_healthy=lambda: '"ONLINE"' in (get_text(workers, {}, environment.get(PREFECT)) or ""),
        children_go_on=True,
    )
