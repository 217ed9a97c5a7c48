"""Starts the embedded model service for a run, or finds a running one.

The service ends with the last process that uses it, even if that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ratchet.errors import LanguageServiceError
from ratchet.service.parent_watchdog import register_user
from ratchet.service.settings import API_KEY_VARIABLE, ServiceSettings
from ratchet.tracking.files import locked
from ratchet.tracking.silence import Silence, file_size

SILENT_SECONDS = 300.0
"""How long a starting service may write nothing: no step of its start, no line of its log."""
ADDRESS_FILE = "service.json"
USERS_FILE = "users.lock"
STARTING_FILE = "starting.txt"
"""Start-up step of a service, for its waiting clients."""
_LOG_FILE = "service.log"
_START_LOCK = "start.lock"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of a running service."""

    url: str
    pid: int
    model: str
    instance: str

    @classmethod
    def read(cls, folder: Path) -> ServiceAddress | None:
        """Read the address of a folder's service; None if missing or unreadable."""
        try:
            return cls(**json.loads((folder / ADDRESS_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


class EmbeddedService:
    """A running service used by this process, at ``url`` ending in ``/v1``; a context manager."""

    def __init__(self, address: ServiceAddress, user: BinaryIO) -> None:
        self.url = address.url
        self.pid = address.pid
        self.model = address.model
        self._user = user

    @classmethod
    def start(
        cls,
        home: str | Path,
        *,
        model: str | None = None,
        engine: str = "torch",
        seconds: float = SILENT_SECONDS,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> EmbeddedService:
        """Start the service of a home unless it runs, and wait until models can be called.

        Parameters
        ----------
        model
            A folder or a name on the hub; None for the tiny model, or that of a running service.
        seconds
            How long a starting service may show no progress.
        on_wait
            Called repeatedly with the service's current start-up step.
        """
        settings = ServiceSettings(home=Path(home).resolve(), model=model, engine=engine)
        settings.folder.mkdir(parents=True, exist_ok=True)
        user = register_user(settings.folder / USERS_FILE)
        on_wait("Starting the model service")
        try:
            with locked(settings.folder / _START_LOCK):
                address = ServiceAddress.read(settings.folder)
                if address is None or not _is_ready(address):
                    process = _spawn(settings)
                    address = _await_start(settings.folder, process, seconds, on_wait)
            _check_model(address, settings)
            return cls(address, user)
        except BaseException:
            user.close()
            raise

    def stop(self) -> None:
        """Stop using it; the service ends without users."""
        self._user.close()

    def __enter__(self) -> EmbeddedService:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _is_ready(address: ServiceAddress) -> bool:
    health = address.url.removesuffix("/v1") + "/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(health, timeout=5) as answer:
            content = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("instance") == address.instance


def service_command(**settings: object) -> list[str]:
    """Return the command that starts a service; ``settings``: see :class:`ServiceSettings`."""
    return [sys.executable, "-P", "-m", "ratchet.service", json.dumps(settings)]


def _spawn(settings: ServiceSettings) -> subprocess.Popen[bytes]:
    (settings.folder / STARTING_FILE).unlink(missing_ok=True)
    command = service_command(
        home=str(settings.home), model=settings.model, engine=settings.engine, embedded=True
    )
    environment = {name: text for name, text in os.environ.items() if name != API_KEY_VARIABLE}
    with (settings.folder / _LOG_FILE).open("wb") as log:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the run, which ends its service
        )


def _await_start(
    folder: Path,
    process: subprocess.Popen[bytes],
    seconds: float,
    on_wait: Callable[[str], None],
) -> ServiceAddress:
    begin, step, silence = time.monotonic(), "", Silence()
    while (
        process.poll() is None and silence.seconds((step, file_size(folder / _LOG_FILE))) < seconds
    ):
        address = ServiceAddress.read(folder)
        if address is not None and address.pid == process.pid and _is_ready(address):
            return address
        with contextlib.suppress(FileNotFoundError):
            step = (folder / STARTING_FILE).read_text("utf-8")
            on_wait(f"{step} ({time.monotonic() - begin:.0f} s)")
        time.sleep(0.03)
    code = process.poll()
    if code is None:
        process.kill()
        process.wait()
    problem = (
        f"showed no progress for {seconds:.0f} s" if code is None else f"ended with code {code}"
    )
    if step:
        problem += f" (its last step: {step})"
    lines = (folder / _LOG_FILE).read_text("utf-8", "replace").strip().splitlines()[-5:]
    log = "\n".join(["Its last lines:", *lines]) if lines else "It is empty."
    raise LanguageServiceError(
        f"The model service {problem}; its log is {folder / _LOG_FILE}. {log}"
    )


def _check_model(address: ServiceAddress, settings: ServiceSettings) -> None:
    if settings.model is None:
        return
    folder = Path(settings.model).expanduser()
    model_name = folder.resolve().name if folder.is_dir() else settings.model
    if model_name != address.model:
        raise LanguageServiceError(
            f"The model service of {settings.home} at {address.url} serves {address.model!r}, not"
            f" {model_name!r}. Wait until the run that uses it has ended, or choose another home."
        )
