"""Server process: one service per home, found by an address file in its folder."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn

from ratchet.errors import LanguageServiceError
from ratchet.language_models.service.api.app import create_app
from ratchet.language_models.service.api.connections import server_config
from ratchet.language_models.service.base_models import (
    describe_base_model,
    find_base_model,
    further_models,
    make_engine,
)
from ratchet.language_models.service.jobs.trainer_choice import choose_trainer
from ratchet.language_models.service.parent_watchdog import exit_without_users
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.service.settings import ServiceSettings
from ratchet.store.locks import FileLock
from ratchet.tracking.files import write_atomically

logger = logging.getLogger(__name__)

USERS_FILE = "users.lock"
STARTING_FILE = "starting.txt"
"""Start-up step of a service, for its waiting clients."""
_LOCK_FILE = "service.lock"
_ADDRESS_FILE = "service.json"
_BACKLOG = 2048


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
            return cls(**json.loads((folder / _ADDRESS_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal ends it, or, if embedded, until its last user ends.

    Raises
    ------
    LanguageServiceError
        If another service runs in the same home, the port is in use, or the engine does not start.
    ParameterError
        If the base model does not exist, or the trainer's packages are not installed.
    """
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    leave = threading.Event()
    if settings.embedded:
        exit_without_users(folder / USERS_FILE, leave)
    with _alone(folder), _listening(settings) as listener:
        starting = folder / STARTING_FILE
        write_atomically(starting, describe_base_model(settings))
        base = find_base_model(settings)
        write_atomically(starting, f"Starting the engine of {base.id}")
        trainer = choose_trainer(settings, base.folder)
        service = ModelService(
            *(settings, base, lambda: make_engine(settings)),
            trainer=trainer,
            further=further_models(settings),
        )
        instance = secrets.token_hex(8)
        app = create_app(service, instance=instance)
        server = _Server(server_config(app, settings.limits))
        _watch(server, service, leave)
        address = ServiceAddress(_url(listener), os.getpid(), base.id, instance)
        write_atomically(folder / _ADDRESS_FILE, json.dumps(asdict(address)))
        try:
            server.run(sockets=[listener])
        finally:
            (folder / _ADDRESS_FILE).unlink(missing_ok=True)
            starting.unlink(missing_ok=True)
        ready = service.batcher.ready
        if ready.done() and (error := ready.exception()) is not None:
            raise LanguageServiceError(f"The engine {settings.engine!r} did not start: {error}")


class _Server(uvicorn.Server):
    """Shuts down cleanly on a signal; uvicorn's own server raises the signal again at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, and restore the handlers afterwards."""
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _watch(server: uvicorn.Server, service: ModelService, leave: threading.Event) -> None:
    """Stop the server when its last user has ended, or when the engine does not start.

    Once it has started, its objects are exempt from garbage collection: a full collection takes 0.2
    s, every few hundred chats.
    """

    def watch_users() -> None:
        leave.wait()
        server.should_exit = True

    def on_ready(_: object) -> None:
        if service.batcher.ready.exception() is not None:
            server.should_exit = True
        gc.freeze()

    threading.Thread(target=watch_users, name="leaving", daemon=True).start()
    service.batcher.ready.add_done_callback(on_ready)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / _LOCK_FILE)
    if not lock.try_acquire():
        address = ServiceAddress.read(folder)
        where = "" if address is None else f" at {address.url}"
        raise LanguageServiceError(
            f"A model service already runs for {folder}{where} ({lock.holder()}). Use that one,"
            " stop it, or choose another --home."
        )
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _listening(settings: ServiceSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns off Nagle's delay (40 ms per response) only if the protocol is named
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise LanguageServiceError(
                f"The model service cannot listen on {settings.host}:{settings.port}: {error}."
                " Choose another --port; 0 selects a free one."
            ) from error
        listener.listen(_BACKLOG)
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
