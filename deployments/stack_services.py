"""Services of the local stack: commands, environments, health checks, and access control."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from flows.process.stack_file import (
    CREDENTIALS_FILE,
    LOOPBACK,
    MLFLOW_PASSWORD,
    MLFLOW_USER,
    POOL,
    PREFECT_AUTH,
    CredentialsError,
    Stack,
    read_credentials,
)
from flows.process.temporary_server import SERVER_SETTINGS
from ratchet.lazy import require_packages

_USER = "admin"
_MLFLOW_USERS = "mlflow_auth.db"


@dataclass(frozen=True)
class StackService:
    """One process of the stack.

    ``children_survive``: whether child processes outlive a crash of the service, as the flow runs
    of a worker do.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    is_healthy: Callable[[], bool]
    children_survive: bool = False


def stack_services(home: Path, stack: Stack, *, worker: bool) -> list[list[StackService]]:
    """List the services in start order; the services of a group start together."""
    environment = stack_environment(home, stack)
    servers = [_prefect_server(home, stack, environment), _mlflow_server(home, stack, environment)]
    return [servers, [_worker(home, stack, environment)]] if worker else [servers]


def stack_environment(home: Path, stack: Stack) -> dict[str, str]:
    """Return the environment of processes that use the stack and write only under ``home``."""
    environment = {**SERVER_SETTINGS, **os.environ}
    if stack.is_open:  # local clients read the other credentials from the file when needed
        environment[PREFECT_AUTH] = read_credentials(home)[PREFECT_AUTH]
    return environment | {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": stack.prefect_api_url,
        # relative, so that a browser on a different machine queries the host of the page
        "PREFECT_SERVER_UI_API_URL": "/api" if stack.is_open else stack.prefect_api_url,
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "ui"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "prefect" / "storage"),
        # leases in memory would be lost when the server restarts
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # would start eight idle processes
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # packages in the working folder must not shadow Ratchet's
        "RATCHET_PROJECT": os.environ.get("RATCHET_PROJECT", str(Path.cwd())),
    }


def create_credentials(home: Path) -> dict[str, str]:
    """Create the passwords of a stack if they do not exist; return the clients' environment."""
    require_packages(["flask_wtf"], by="MLflow's log-in")
    file, users = home / CREDENTIALS_FILE, home / _MLFLOW_USERS
    if not file.exists():
        if users.exists():
            raise CredentialsError(
                f"{users} contains users, but the file with their passwords, {file}, is missing."
                f" Restore it, or delete these users: `rm {users}`."
            )
        home.mkdir(parents=True, exist_ok=True)
        credentials = {
            PREFECT_AUTH: f"{_USER}:{secrets.token_hex(24)}",
            MLFLOW_USER: _USER,
            MLFLOW_PASSWORD: secrets.token_hex(24),
        }
        _write_private(file, "".join(f"{name}={v}\n" for name, v in credentials.items()))
    home.chmod(0o700)
    # MLflow creates its tables in an empty file, and SQLite keeps the file's permissions
    os.close(os.open(users, os.O_WRONLY | os.O_CREAT, 0o600))
    users.chmod(0o600)
    return read_credentials(home)


def mlflow_access(home: Path, stack: Stack, credentials: dict[str, str]) -> dict[str, str]:
    """Return the environment in which MLflow's server requires its password.

    Sessions end with the server, since each start generates a new session key. Allowed hosts and
    origins that the user has set, e.g. those of a proxy, are retained.
    """
    settings = home / "mlflow_auth.ini"
    settings.write_text(
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = sqlite:///{home / _MLFLOW_USERS}\n"
        f"admin_username = {credentials[MLFLOW_USER]}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        encoding="utf-8",
    )
    hosts = [f"{name}:{stack.mlflow_port}" for name in local_hostnames(stack.host)]
    origins = ",".join(f"http://{host}" for host in hosts)
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_AUTH_ADMIN_PASSWORD": credentials[MLFLOW_PASSWORD],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(24),
        "MLFLOW_SERVER_ALLOWED_HOSTS": os.environ.get(
            "MLFLOW_SERVER_ALLOWED_HOSTS", ",".join(hosts)
        ),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": os.environ.get(
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", origins
        ),
    }


def local_hostnames(host: str) -> list[str]:
    """Return the names and addresses of this machine for a server that listens at ``host``."""
    import psutil

    if host not in ("0.0.0.0", "::"):
        return list(dict.fromkeys([_in_url(host), "127.0.0.1", "localhost"]))
    addresses = [a for interface in psutil.net_if_addrs().values() for a in interface]
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    hosts = [_in_url(a.address.partition("%")[0]) for a in addresses if a.family in families]
    return list(dict.fromkeys([socket.gethostname(), socket.getfqdn(), "localhost", *hosts]))


def free_port(preferred: int = 0, host: str = LOOPBACK) -> int:
    """Return ``preferred`` if it is free at an address of this machine, else any free port."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port at {host}")


def get_text(
    url: str,
    body: Mapping[str, object] | None = None,
    login: str | None = None,
    method: str | None = None,
) -> str | None:
    """GET a page, or POST JSON; None without a successful response.

    ``login``: ``USER:PASSWORD`` for a server that requires it; ``method``: HTTP method, if other.
    A POST or PATCH to Prefect's API has a CSRF token if the server requires one.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **csrf_headers(url, login)} if data else {}
    if login:
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return str(response.read().decode())
    except (urllib.error.URLError, OSError):
        return None


def csrf_headers(url: str, login: str | None) -> dict[str, str]:
    """Return the headers that Prefect requires of requests which change anything."""
    client = str(uuid4())
    api_url = url[: url.index("/api/") + len("/api")]
    token = get_text(f"{api_url}/csrf-token?client={client}", login=login)  # None without CSRF
    if token is None:
        return {}
    return {"Prefect-Csrf-Client": client, "Prefect-Csrf-Token": json.loads(token)["token"]}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _write_private(file: Path, text: str) -> None:
    """Write a new file atomically that only its owner can ever read."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as private:
        private.write(text)
    temporary.replace(file)


def _prefect_server(home: Path, stack: Stack, environment: dict[str, str]) -> StackService:
    access = {}
    if stack.is_open:
        access = {"PREFECT_SERVER_API_AUTH_STRING": read_credentials(home)[PREFECT_AUTH]}
    return StackService(
        name="prefect",
        command=[
            *(sys.executable, "-P", "-m", "deployments.servers"),
            *("prefect", stack.host, str(stack.prefect_port)),
        ],
        environment=environment | access,
        log=home / "logs" / "prefect.log",
        is_healthy=lambda: get_text(f"{stack.prefect_api_url}/health") == "true",
    )


def _mlflow_server(home: Path, stack: Stack, environment: dict[str, str]) -> StackService:
    # an argument would show a URL with a password in the list of processes
    database = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home / 'mlflow.db'}"}
    access = mlflow_access(home, stack, read_credentials(home)) if stack.is_open else {}
    return StackService(
        name="mlflow",
        command=[
            *(sys.executable, "-P", "-m", "deployments.servers", "mlflow"),
            *("--host", stack.host, "--port", str(stack.mlflow_port), "--workers", "1"),
            *("--artifacts-destination", str(home / "mlartifacts")),
            *(("--app-name", "basic-auth") if stack.is_open else ()),
        ],
        environment=database | environment | access,
        log=home / "logs" / "mlflow.log",
        is_healthy=lambda: get_text(f"{stack.mlflow_url}/health") == "OK",
    )


def _worker(home: Path, stack: Stack, environment: dict[str, str]) -> StackService:
    workers = f"{stack.prefect_api_url}/work_pools/{POOL}/workers/filter"
    login = environment.get(PREFECT_AUTH)
    return StackService(
        name="worker",
        command=[
            *(sys.executable, "-m", "prefect", "worker", "start"),
            *("--pool", POOL, "--type", "process", "--install-policy", "never"),
        ],
        environment=environment,
        log=home / "logs" / "worker.log",
        is_healthy=lambda: '"ONLINE"' in (get_text(workers, {}, login) or ""),
        children_survive=True,
    )
