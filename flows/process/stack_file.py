"""``stack.json``: where the local stack's servers are, for whoever wants to use or stop them.

Written by ``deployments.local_stack``, read by the command line.
"""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "stack.json"
LOOPBACK = "127.0.0.1"
POOL = "ratchet"
"""The work pool whose worker runs flows as processes of this machine."""


@dataclass(frozen=True)
class ProcessMark:
    """A process and when it started, since a number alone may be another's by now."""

    pid: int
    started: float

    def is_alive(self) -> bool:
        """Return whether that very process still runs."""
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
    def of(cls, pid: int) -> ProcessMark:
        """Mark a process that runs now."""
        import psutil

        return cls(pid, psutil.Process(pid).create_time())


@dataclass(frozen=True)
class Stack:
    """The local stack as it was started: who runs it, and its parts by name.

    ``ready``: whether all health checks have passed. ``host``: the address at which the servers
    listen; at any but this machine's own they ask for passwords (:mod:`flows.process.logins`).
    """

    prefect_port: int
    mlflow_port: int
    ready: bool
    supervisor: ProcessMark
    processes: dict[str, ProcessMark] = field(default_factory=dict)
    host: str = LOOPBACK

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the servers."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def address(self) -> str:
        """Where this machine reaches the servers, as a URL names it."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def prefect_url(self) -> str:
        """The Prefect UI."""
        return f"http://{self.address}:{self.prefect_port}"

    @property
    def prefect_api_url(self) -> str:
        """What ``PREFECT_API_URL`` is set to."""
        return f"{self.prefect_url}/api"

    @property
    def mlflow_url(self) -> str:
        """The MLflow UI, and its tracking URI."""
        return f"http://{self.address}:{self.mlflow_port}"

    def is_up(self) -> bool:
        """Return whether the stack is ready and its supervisor runs."""
        return self.ready and self.supervisor.is_alive()

    def write(self, home: Path) -> None:
        """Write ``<home>/stack.json``, whole or not at all."""
        home.mkdir(parents=True, exist_ok=True)
        urls = {"prefect_url": self.prefect_url, "mlflow_url": self.mlflow_url}
        aside = home / f"{FILE_NAME}.{os.getpid()}"
        aside.write_text(json.dumps({**urls, **asdict(self)}, indent=2) + "\n", encoding="utf-8")
        aside.replace(home / FILE_NAME)


def read_stack(home: Path) -> Stack | None:
    """Read ``<home>/stack.json``; None when there is none, or none that can be read."""
    try:
        data: dict[str, Any] = json.loads((home / FILE_NAME).read_text(encoding="utf-8"))
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
    """Read the local stack of a home; None when it is not up."""
    stack = read_stack(Path(home))
    return stack if stack is not None and stack.is_up() else None
