"""Ranks as processes of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil

from trainers.subprocess_worker import Answer, SubprocessWorker

if TYPE_CHECKING:
    import torch

_PROCESS = "trainers.language.ranks.process"
_THIS_MACHINE = "127.0.0.1"


def rank_worker(
    name: str, rank: int, world_size: int, home: Path, address: str
) -> SubprocessWorker:
    """Return the process of a rank, which starts with its first request.

    ``name`` names it in errors, ``home`` contains the model and files, and ``address`` is that of
    this machine, by whose network interface the others reach it.
    """
    # ranks import the same modules as this process
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {"PYTHONPATH": path}
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", interface)
    arguments = (str(rank), str(world_size), str(home))
    return SubprocessWorker(_PROCESS, name, arguments=arguments, environment=environment)


class LocalRanks:
    """Ranks as processes of this machine.

    Parameters
    ----------
    names
        The name of each rank in errors.
    home
        Folder of the model and of files.
    """

    end_seconds = 3.0
    """How long a lost rank may be unnoticed after another reports a failure."""

    def __init__(self, names: Sequence[str], home: Path) -> None:
        self._home = home
        self._workers = [
            rank_worker(name, rank, len(names), home, _THIS_MACHINE)
            for rank, name in enumerate(names)
        ]
        self._threads = ThreadPoolExecutor(len(names))

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes on this machine."""
        return [each.pid for each in self._workers if each.pid is not None]

    @property
    def meeting(self) -> str:
        """The address of the file through which the ranks meet."""
        return f"file://{self._home}/meeting-{uuid4().hex}"

    def devices(self, first: torch.device) -> list[str]:
        """Return the ranks' devices: the GPUs from the first on."""
        if first.type != "cuda":
            return [str(first)] * len(self._workers)
        return [f"cuda:{(first.index or 0) + rank}" for rank in range(len(self._workers))]

    def execute(self, line: Mapping[str, object]) -> list[Future[Answer]]:
        """Execute a request in all ranks."""
        return [self._threads.submit(each.execute, line) for each in self._workers]

    def close(self) -> None:
        """End all processes."""
        for each in self._workers:
            each.close()
        self._threads.shutdown()
