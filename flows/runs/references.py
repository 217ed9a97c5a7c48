"""Stages that runs need: recorded stages, stages shared by forks, and the inputs of both.

Read by garbage collection and by the export of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.errors import DataError, ParameterError
from ratchet.store.keys import is_key
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import ITERATION_STAGES, StageRecord
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall


FORK_FILE = "fork.json"
_MANIFEST = "manifest.json"


class Fork(BaseModel):
    """Stages that a forked run shares with its parent: ``fork.json`` in the run folder."""

    model_config = ConfigDict(frozen=True)

    parent: str
    iteration: int
    stage: str = ""
    stages: list[StageRecord]

    @property
    def point(self) -> ForkPoint:
        """The first stage of a fork of chat models."""
        return ForkPoint.from_stage(self.iteration, self.stage or ITERATION_STAGES[0])

    @property
    def origin(self) -> tuple[str, str]:
        """The parent's id and the point, which identify a fork in addition to its parameters."""
        return self.parent, f"{self.iteration}:{self.stage}".rstrip(":")

    def write(self, folder: Path) -> None:
        """Write the file into a run's folder, which is created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FORK_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, folder: Path) -> Fork | None:
        """Read a run's file; None if the run is not a fork, DataError if the file is damaged."""
        path = folder / FORK_FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (ValueError, ValidationError) as error:
            raise DataError(f"{path}: {error}. Remove the run's folder and fork again.") from error


@dataclass(frozen=True, order=True)
class ForkPoint:
    """The first stage of a fork: its iteration, and its index within the iteration."""

    iteration: int
    index: int = 0

    @classmethod
    def from_stage(cls, iteration: int, stage: str = ITERATION_STAGES[0]) -> ForkPoint:
        """Return the point before an iteration's stage; ParameterError if it is unknown."""
        if stage not in ITERATION_STAGES:
            raise ParameterError(
                f"fork: got the stage {iteration}:{stage}, expected K or K:STAGE with one of"
                f" {', '.join(ITERATION_STAGES)}."
            )
        return cls(iteration, ITERATION_STAGES.index(stage))

    @property
    def required(self) -> list[tuple[str, int]]:
        """The parent's stages (name, iteration) that a fork continues directly."""
        before = self.iteration - 1
        state = ("await_fine_tune_jobs", before) if self.iteration else ("initial_state", 0)
        stages = ("sample_rollouts", "create_fine_tune_jobs")
        return [state] + [
            (name, self.iteration) for name in stages if ITERATION_STAGES.index(name) < self.index
        ]

    def is_after(self, call: StageCall) -> bool:
        """Return whether a stage comes before the point."""
        if call.kind.state == "first":
            return self > ForkPoint(0)
        if call.stage not in ITERATION_STAGES:
            return False
        return ForkPoint(call.iteration, ITERATION_STAGES.index(call.stage)) < self


def run_keys(folder: Path) -> set[str]:
    """Return the keys of the stages that a run's folder names.

    Raises DataError if its manifest or ``fork.json`` is damaged, so that its stages are unknown.
    """
    keys = {record.key for record in RunFolder(folder).manifest.stages}
    fork = Fork.read(folder)
    return keys if fork is None else keys | {record.key for record in fork.stages}


def with_inputs(store: StageStore, keys: Iterable[str]) -> set[str]:
    """Return the keys with those of all their direct and indirect inputs."""
    collected_keys: set[str] = set()
    pending = list(keys)
    while pending:
        key = pending.pop()
        if key in collected_keys:
            continue
        collected_keys.add(key)
        manifest = store.peek(key)
        if manifest is not None:
            inputs = manifest.inputs.values()
            pending += [value for value in inputs if isinstance(value, str) and is_key(value)]
    return collected_keys


class References:
    """Stages that the runs of some folders need; unchanged runs are not read again.

    ``except_run`` is the folder of a run that does not count.
    """

    def __init__(
        self, store: StageStore, folders: Iterable[Path], *, except_run: Path | None = None
    ) -> None:
        self._store = store
        self._folders = sorted({folder.resolve() for folder in folders})
        self._except_run = None if except_run is None else except_run.resolve()
        self._read: dict[Path, tuple[object, set[str]]] = {}
        self._needed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    @property
    def num_runs(self) -> int:
        """Number of runs at the last call of :meth:`needed`."""
        return len(self._read)

    def needed(self) -> frozenset[str]:
        """Return the keys of all stages that runs need.

        Raises DataError if a run, or a runs folder, cannot be read.
        """
        runs = {run for folder in self._folders for run in _runs_in(folder)} - {self._except_run}
        self._read = {run: cached for run, cached in self._read.items() if run in runs}
        for run in sorted(runs):
            stamp = _stamp(run / _MANIFEST), _stamp(run / FORK_FILE)
            cached = self._read.get(run)
            if cached is None or cached[0] != stamp:
                self._read[run] = stamp, run_keys(run)
        named = frozenset().union(*(keys for _, keys in self._read.values()))
        if named != self._needed[0]:
            self._needed = named, frozenset(with_inputs(self._store, named))
        return self._needed[1]


def _runs_in(folder: Path) -> list[Path]:
    """List the runs of a folder; DataError if the folder or a link in it cannot be read."""
    path = folder
    try:
        runs = []
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if _stamp(path / _MANIFEST) is not None:
                runs.append(path)
            elif path.is_symlink():
                path.stat()  # fails if the link's target is currently missing
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), expected a readable runs folder or run."
            " Make it readable on this machine, or remove it if its runs are no longer needed."
        ) from error
    return runs


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
