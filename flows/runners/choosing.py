"""Which runner the settings ask for, whether it could work here, and opening it."""

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

_PACKAGES = {"dask": ("prefect_dask",), "ray": ("prefect_ray", "ray")}
_HOW_TO_START = {"dask": "dask scheduler", "ray": "ray start --head"}
_LOOK_SECONDS = 5.0
_Opened = TypeVar("_Opened")


def check_runner(settings: ExperimentSettings) -> None:
    """Refuse a runner that could not work here.

    Raises
    ------
    MissingPackageError
        If a package is not installed.
    ParameterError
        If nobody answers at ``settings.cluster_address``, or the runner has no such address.
    """
    name = settings.runner
    require_packages(_PACKAGES.get(name, ()), f"settings.runner: {name!r}")
    address = settings.cluster_address
    if address is None:
        return
    if name not in _PACKAGES:
        raise ParameterError(
            f"settings.cluster_address: got {address!r} with settings.runner={name}, which has no"
            f" cluster; expected settings.runner={' or '.join(_PACKAGES)}. Leave one of them out."
        )
    if name != "ray" or address != "auto":
        _check_address(name, address)


def _check_address(name: str, address: str) -> None:
    """Knock at once, since clusters' own clients try for minutes."""
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
        socket.create_connection((host, port), _LOOK_SECONDS).close()
    except OSError as error:
        raise ParameterError(
            f"settings.cluster_address: nobody answers at {address} ({error}). Start a cluster"
            f" there (`{_HOW_TO_START[name]}`), or leave the address out for one of this machine's."
        ) from error


@asynccontextmanager
async def open_runner(
    settings: ExperimentSettings, log_folder: Path, most: int
) -> AsyncIterator[Runner]:
    """Open the runner of the settings; what it has started ends with the block.

    Parameters
    ----------
    settings
        Whose ``runner`` is not "inline".
    log_folder
        Where what processes of this machine print is kept.
    most
        How much there is to do at once: no more workers are started.

    Raises
    ------
    ParameterError
        As :func:`check_runner`, or if there is no such work pool.
    """
    check_runner(settings)
    if settings.runner == "processes":
        from flows.runners.processes import Processes

        processes = Processes(min(num_slots(settings), most), log_folder)
        try:
            yield processes
        finally:
            await asyncio.to_thread(processes.close)
    elif settings.runner == "work_pool":
        from flows.runners.work_pool import open_work_pool

        yield await open_work_pool(settings)
    elif settings.runner == "dask":
        from flows.runners.dask import open_dask

        async with _in_thread(open_dask(settings, most)) as dask:
            yield dask
    else:
        from flows.runners.ray import open_ray

        async with _in_thread(open_ray(settings, most)) as ray:
            yield ray


@asynccontextmanager
async def _in_thread(opening: AbstractContextManager[_Opened]) -> AsyncIterator[_Opened]:
    """Enter and leave what takes its time without keeping others from their work."""
    opened = await asyncio.to_thread(opening.__enter__)
    try:
        yield opened
    finally:
        await asyncio.shield(asyncio.to_thread(opening.__exit__, None, None, None))
