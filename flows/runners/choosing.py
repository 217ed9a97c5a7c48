"""Open the runner that the settings ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from flows.runners.base import Runner, num_slots
from flows.runners.checking import check_runner

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_Opened = TypeVar("_Opened")


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
    entering = asyncio.create_task(asyncio.to_thread(opening.__enter__))
    try:
        yield await asyncio.shield(entering)
    finally:
        await asyncio.shield(_leave(opening, entering))


async def _leave(opening: AbstractContextManager[_Opened], entering: asyncio.Task[_Opened]) -> None:
    """Leave what has been entered, or still is when this begins: a thread can't be stopped."""
    await asyncio.wait([entering])
    if entering.exception() is None:
        await asyncio.to_thread(opening.__exit__, None, None, None)
