"""Server process: one service per home, found by an address file in its folder.

Its base model and engine, and timeouts of incomplete requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ratchet.errors import LanguageServiceError, ParameterError
from ratchet.language_models.engines.interface import Engine
from ratchet.lazy import require_packages
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora
from ratchet.service.api.app import create_app
from ratchet.service.launch import (
    ADDRESS_FILE,
    STARTING_FILE,
    USERS_FILE,
    ServiceAddress,
)
from ratchet.service.models import StoredModel
from ratchet.service.parent_watchdog import exit_without_users
from ratchet.service.service import ModelService
from ratchet.service.settings import (
    BASE_MODEL,
    SMALL_MODEL,
    Limits,
    ServiceSettings,
)
from ratchet.store.locks import FileLock
from ratchet.tracking.files import write_atomically

logger = logging.getLogger(__name__)

_STEPS_PER_REPORT = 10
_LOCK_FILE = "service.lock"
_BACKLOG = 2048
_HEAD_BYTES = 64 * 1024
_BUILD = "ratchet.scenarios.code_validation.tiny_model.build"
_RECIPES = {
    BASE_MODEL: f"{_BUILD}:ensure_base_model",
    SMALL_MODEL: f"{_BUILD}:ensure_small_model",
}
"""Models that can be generated: name → function from home to folder."""
_ENGINES = {
    "torch": "ratchet.language_models.engines.torch_engine:TorchEngine",
}


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal ends it, or, if embedded, until its last user ends."""
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    leave = threading.Event()
    if settings.embedded:
        exit_without_users(folder / USERS_FILE, leave)
    with _alone(folder), _listening(settings) as listener:
        starting = folder / STARTING_FILE
        work = describe_base_model(settings)
        write_atomically(starting, work)

        def show_step(done: int, steps: int) -> None:
            if done % _STEPS_PER_REPORT == 0:
                write_atomically(starting, f"{work}: step {done} of {steps}")

        base = find_base_model(settings, show_step)
        require_peft(settings.lora, base.folder)
        write_atomically(starting, f"Starting the engine of {base.id}")
        service = ModelService(
            *(settings, base, lambda: make_engine(settings)),
            further=further_models(settings),
        )
        instance = secrets.token_hex(8)
        app = create_app(service, instance=instance)
        server = _Server(server_config(app, settings.limits))
        _watch(server, service, leave)
        address = ServiceAddress(_url(listener), os.getpid(), base.id, instance)
        write_atomically(folder / ADDRESS_FILE, json.dumps(asdict(address)))
        if not settings.embedded:
            service.batcher.ready.add_done_callback(partial(_announce, address))
        try:
            server.run(sockets=[listener])
        finally:
            (folder / ADDRESS_FILE).unlink(missing_ok=True)
            starting.unlink(missing_ok=True)
        ready = service.batcher.ready
        if ready.done() and (error := ready.exception()) is not None:
            raise LanguageServiceError(f"The engine {settings.engine!r} did not start: {error}")


def _announce(address: ServiceAddress, ready: Future[None]) -> None:
    """Print the address once the engine has started."""
    if ready.exception() is None:
        sys.stdout.write(f"Serving {address.model} at {address.url}\n")
        sys.stdout.flush()


def require_peft(lora: Lora, base: Path) -> None:
    """Raise MissingPackageError if jobs would train adapters that PEFT runs, and it is missing."""
    if lora.rank and (lora.dropout or plain_shape(base) is None):
        require_packages(["peft"], f"LoRA of {base.name}")


class _Server(uvicorn.Server):
    """Shuts down cleanly on a signal; uvicorn's own server raises the signal again at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, and restore the handlers afterwards."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
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


def find_base_model(settings: ServiceSettings, progress: Callable[[int, int], None]) -> StoredModel:
    """Find, download or generate the base model.

    ``progress`` is called with the finished and all steps of generating it.
    """
    model = settings.model or BASE_MODEL
    folder, name = Path(model).expanduser(), model
    if model in _RECIPES:
        folder = _make(model, settings.home, progress)
    elif folder.is_dir():
        folder = folder.resolve()
        name = folder.name
    else:
        folder = _fetch(model)
    name = settings.name or name
    return StoredModel(name, folder, name)


def further_models(settings: ServiceSettings) -> dict[str, Callable[[], Path]]:
    """Return other models that can be generated, by name; none next to a user's base model."""
    name = settings.model or BASE_MODEL
    others = [other for other in _RECIPES if name in _RECIPES and other != name]
    return {other: partial(_make, other, settings.home) for other in others}


def describe_base_model(settings: ServiceSettings) -> str:
    """Describe the work of :func:`find_base_model`, for progress messages."""
    name = settings.model or BASE_MODEL
    if name in _RECIPES:
        return f"Preparing the base model {name}, which is generated once per home"
    return f"{'Reading' if Path(name).expanduser().is_dir() else 'Fetching'} the model {name}"


def make_engine(settings: ServiceSettings) -> Engine:
    """Build the configured engine; imports its packages."""
    name = settings.engine
    module, _, attribute = _ENGINES.get(name, name).partition(":")
    try:
        engine: Engine = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(
            f"The engine {name!r} is not available: {error}. Known: {', '.join(_ENGINES)}, or a"
            " class given as module:Class."
        ) from error
    return engine


def _make(name: str, home: Path, *progress: Callable[[int, int], None]) -> Path:
    module, _, function = _RECIPES[name].partition(":")
    make: Callable[..., Path] = getattr(importlib.import_module(module), function)
    return make(home, *progress)


def _fetch(name: str) -> Path:
    """Find a model in the Hugging Face cache, or download it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ParameterError(
            f"The model {name!r} is neither a local folder nor available from the Hugging Face hub"
            f" ({type(error).__name__}). Give a folder with config.json and model.safetensors, or a"
            " name on the hub."
        ) from error


class IdleTimeoutProtocol(HttpToolsProtocol):
    """Closes a connection if no complete head arrives within the idle timeout.

    uvicorn closes one that is idle after a response, but waits forever for the first request's
    head, and for the rest of a partial one. ``Gate`` handles incomplete bodies.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _in_request = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a partial head; further data do not extend the timeout."""
        super().data_received(data)
        if self._in_request:
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:  # the parser accepts any number of bytes
            self.send_400_response("The request's head is too large.")
        elif self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Stop waiting: the application reads the body."""
        self._in_request, self._head_bytes = True, 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next head, unless it has arrived already."""
        self._in_request = bool(self.pipeline)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """Build the server's configuration for an app."""
    return uvicorn.Config(
        app,
        http=IdleTimeoutProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=limits.idle_seconds,
    )
