"""Files of the local stack in ``home``: ports and processes (``stack.json``), and passwords.

Written by :mod:`deployments.local_stack`, read by the command line and by runs.
"""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError

STACK_FILE = "stack.json"
CREDENTIALS_FILE = "logins.env"
"""Passwords of a stack that other machines can reach: lines ``NAME=VALUE`` as in a shell."""
LOOPBACK = "127.0.0.1"
POOL = "ratchet"
"""The work pool whose worker runs flows as processes of this machine."""
PREFECT_AUTH = "PREFECT_API_AUTH_STRING"
MLFLOW_USER, MLFLOW_PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


class CredentialsError(RatchetError, RuntimeError):
    """The file with a stack's passwords is missing or incomplete."""


@dataclass(frozen=True)
class ProcessMark:
    """A process id with the start time, since the system reuses ids."""

    pid: int
    started: float

    def is_alive(self) -> bool:
        """Return whether this process, not a later one with the same id, is running."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            return (
                abs(process.create_time() - self.started) < 1
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return False

    @classmethod
    def from_pid(cls, pid: int) -> ProcessMark:
        """Mark a running process."""
        import psutil

        return cls(pid, psutil.Process(pid).create_time())


@dataclass(frozen=True)
class Stack:
    """The local stack as started: ports, supervisor, and service processes by name.

    ``ready``: whether all health checks have passed. ``host``: the address at which the servers
    listen; at any except a loopback address they require passwords (:func:`read_credentials`).
    """

    prefect_port: int
    mlflow_port: int
    ready: bool
    supervisor: ProcessMark
    processes: dict[str, ProcessMark] = field(default_factory=dict)
    host: str = LOOPBACK

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the servers."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def address(self) -> str:
        """Address of the servers for this machine, as in a URL."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def prefect_url(self) -> str:
        """URL of the Prefect UI."""
        return f"http://{self.address}:{self.prefect_port}"

    @property
    def prefect_api_url(self) -> str:
        """Value of ``PREFECT_API_URL``."""
        return f"{self.prefect_url}/api"

    @property
    def mlflow_url(self) -> str:
        """URL of the MLflow UI, and its tracking URI."""
        return f"http://{self.address}:{self.mlflow_port}"

    def is_up(self) -> bool:
        """Return whether the stack is ready and its supervisor is running."""
        return self.ready and self.supervisor.is_alive()

    def write(self, home: Path) -> None:
        """Write ``<home>/stack.json`` atomically."""
        home.mkdir(parents=True, exist_ok=True)
        urls = {"prefect_url": self.prefect_url, "mlflow_url": self.mlflow_url}
        temporary = home / f"{STACK_FILE}.{os.getpid()}"
        content = json.dumps({**urls, **asdict(self)}, indent=2) + "\n"
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(home / STACK_FILE)


def read_stack(home: Path) -> Stack | None:
    """Read ``<home>/stack.json``; None if it is missing or unreadable."""
    try:
        data: dict[str, Any] = json.loads((home / STACK_FILE).read_text(encoding="utf-8"))
        return Stack(
            prefect_port=data["prefect_port"],
            mlflow_port=data["mlflow_port"],
            ready=data["ready"],
            supervisor=ProcessMark(**data["supervisor"]),
            processes={name: ProcessMark(**mark) for name, mark in data["processes"].items()},
            host=data.get("host", LOOPBACK),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def running_stack(home: Path | str) -> Stack | None:
    """Read the local stack of a home; None if it is not running."""
    stack = read_stack(Path(home))
    return stack if stack is not None and stack.is_up() else None


def read_credentials(home: Path) -> dict[str, str]:
    """Return the environment variables with which clients log in to the stack's servers."""
    file = home / CREDENTIALS_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        message = f"the servers require passwords, but {file} cannot be read: {error}"
        raise CredentialsError(
            f"{message}. Restart the servers: `ratchet down`, `ratchet up`."
        ) from error
    values = {name: value for name, _, value in (line.partition("=") for line in lines) if value}
    missing = {PREFECT_AUTH, MLFLOW_USER, MLFLOW_PASSWORD} - set(values)
    if missing:
        raise CredentialsError(
            f"{file}: expected lines NAME=VALUE also for {', '.join(sorted(missing))}"
        )
    return values
