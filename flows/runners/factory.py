"""Open the configured runner, after checking that it is available."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from flows.runners.base import Runner, num_slots
from ratchet.errors import ParameterError
from ratchet.lazy import require_packages

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_Opened = TypeVar("_Opened")

_PACKAGES = {"dask": ("prefect_dask",), "ray": ("prefect_ray", "ray")}
_START_COMMANDS = {"dask": "dask scheduler", "ray": "ray start --head"}
_CONNECT_SECONDS = 5.0


@asynccontextmanager
async def open_runner(
    settings: ExperimentSettings, log_folder: Path, max_requests: int
) -> AsyncIterator[Runner]:
    """Open the configured runner; processes and clusters that it starts end with the block.

    Parameters
    ----------
    settings
        Settings whose ``runner`` is not "inline".
    log_folder
        Folder of the logs of local processes.
    max_requests
        Maximum number of concurrent requests, which limits the number of started workers.
    """
    check_runner(settings)
    if settings.runner == "processes":
        from flows.runners.processes import Processes

        processes = Processes(min(num_slots(settings), max_requests), log_folder)
        try:
            yield processes
        finally:
            await asyncio.to_thread(processes.close)
    elif settings.runner == "work_pool":
        from flows.runners.work_pool import open_work_pool

        yield await open_work_pool(settings)
    elif settings.runner == "dask":
        from flows.runners.dask import open_dask

        async with _in_thread(open_dask(settings, max_requests)) as dask:
            yield dask
    else:
        from flows.runners.ray import open_ray

        async with _in_thread(open_ray(settings, max_requests)) as ray:
            yield ray


@asynccontextmanager
async def _in_thread(opening: AbstractContextManager[_Opened]) -> AsyncIterator[_Opened]:
    """Enter and exit a slow context manager without blocking the event loop."""
    entering = asyncio.create_task(asyncio.to_thread(opening.__enter__))
    try:
        yield await asyncio.shield(entering)
    finally:
        await asyncio.shield(_leave(opening, entering))


async def _leave(opening: AbstractContextManager[_Opened], entering: asyncio.Task[_Opened]) -> None:
    """Exit a context manager, after waiting for its entry: threads cannot be cancelled."""
    await asyncio.wait([entering])
    if entering.exception() is None:
        await asyncio.to_thread(opening.__exit__, None, None, None)


def check_runner(settings: ExperimentSettings) -> None:
    """Check that the configured runner is available."""
    name = settings.runner
    require_packages(_PACKAGES.get(name, ()), f"settings.runner: {name!r}")
    address = settings.cluster_address
    if address is None:
        return
    if name not in _PACKAGES:
        raise ParameterError(
            f"settings.cluster_address: got {address!r} with settings.runner={name}, which has no"
            f" cluster; expected settings.runner={' or '.join(_PACKAGES)}. Remove one of them."
        )
    if name != "ray" or address != "auto":
        _check_address(name, address)


def _check_address(name: str, address: str) -> None:
    """Try to connect once with a short time-out, since the clusters' clients retry for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise ParameterError(
            f"settings.cluster_address: got {address!r}, expected HOST:PORT, such as"
            f" {'tcp://192.0.2.1:8786' if name == 'dask' else '192.0.2.1:6379'}."
        )
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ParameterError(
            f"settings.cluster_address: no response from {address} ({error}). Start a cluster there"
            f" (`{_START_COMMANDS[name]}`), or remove the address to use a local cluster."
        ) from error
