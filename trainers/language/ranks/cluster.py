"""Ranks on the nodes of a Ray cluster, which share no disk. Imports Ray."""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ratchet.errors import RankError
from trainers.language.ranks.files import (
    MODEL_FOLDER,
    FileContents,
    ProcessFolder,
    answer_name,
    read_files,
    write_files,
)
from trainers.language.ranks.local import rank_worker
from trainers.subprocess_worker import Answer, died

if TYPE_CHECKING:
    import torch


class NodeRank:
    """An actor with the process of a rank, and its files."""

    def __init__(self, name: str, rank: int, world_size: int) -> None:
        self._rank, self._folder = rank, ProcessFolder()
        self._address = get_node_ip_address()  # type: ignore[no-untyped-call]
        self._worker = rank_worker(name, rank, world_size, self._folder.path, self._address)

    def receive_model(self, files: FileContents) -> str:
        """Store the initial model; return an address at which the ranks can meet."""
        write_files(files, self._folder.path / MODEL_FOLDER)
        with socket.create_server((self._address, 0)) as server:
            return f"tcp://{self._address}:{server.getsockname()[1]}"

    def execute(self, line: Mapping[str, Any], files: FileContents) -> tuple[Answer, FileContents]:
        """Execute a request; return the answer with its files."""
        with tempfile.TemporaryDirectory(dir=self._folder.path) as name:
            write_files(files, Path(name))
            answer = self._worker.execute({**line, "folder": name})
            return answer, read_files(Path(name), f"{answer_name(self._rank)}.*")


class ClusterRanks:
    """Ranks on a Ray cluster, each with one core and with one GPU if they are used.

    The interface is that of :class:`trainers.language.ranks.local.LocalRanks`.

    Parameters
    ----------
    names
        The name of each rank in errors.
    home
        Folder of the model and of files in this process.
    cluster
        The cluster's address.
    uses_gpus
        Whether each rank needs a GPU.
    timeout
        Seconds until all have started.
    """

    end_seconds = 30.0
    pids = ()

    def __init__(
        self, names: Sequence[str], home: Path, cluster: str, *, uses_gpus: bool, timeout: float
    ) -> None:
        self._names = names
        self._threads = ThreadPoolExecutor(len(names))
        if not ray.is_initialized():
            ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR)
        bundle = {"CPU": 1.0, "GPU": 1.0} if uses_gpus else {"CPU": 1.0}
        self._group = placement_group([bundle] * len(names))
        self._actors: list[Any] = []
        try:
            self._actors = [self._start(rank, bundle) for rank in range(len(names))]
            model_files = ray.put(read_files(home / MODEL_FOLDER))
            sent = [actor.receive_model.remote(model_files) for actor in self._actors]
            self.meeting: str = ray.get(sent, timeout=timeout)[0]
        except RayError as error:
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            self.close()
            raise RankError(
                f"the {len(names)} processes of language.train_service.world_size, each with"
                f" {bundle}, have not started on the Ray cluster at {cluster} within {timeout:g} s"
                f" (settings.rank_seconds): {_text(error)} Free resources: {free}."
            ) from error
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, bundle: Mapping[str, float]) -> Any:  # noqa: ANN401 -- see execute
        actor_class = ray.remote(NodeRank).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0.0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
        )
        return actor_class.remote(self._names[rank], rank, len(self._names))

    def devices(self, first: torch.device) -> list[str]:
        """Return the ranks' devices: each has the GPU that Ray assigns."""
        return ["cuda:0" if first.type == "cuda" else str(first)] * len(self._actors)

    def execute(self, line: Mapping[str, Any]) -> list[Future[Answer]]:
        """Execute a request in all ranks."""
        folder = Path(line["folder"])
        files = ray.put(read_files(folder))

        def execute(name: str, actor: Any) -> Answer:  # noqa: ANN401 -- has no type in Ray
            try:
                answer: Answer
                answer, answer_files = ray.get(actor.execute.remote(line, files))
            except RayError as error:
                return died(f"{name}: {_text(error)}")
            write_files(answer_files, folder)
            return answer

        return [
            self._threads.submit(execute, name, actor)
            for name, actor in zip(self._names, self._actors, strict=True)
        ]

    def close(self) -> None:
        """End all processes."""
        if ray.is_initialized():  # otherwise they have ended with the connection
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(self._group)
        self._threads.shutdown()


def _text(error: RayError) -> str:
    """Return Ray's message, or that of an actor's error, in one line."""
    return " ".join(str(getattr(error, "cause", None) or error).split())
