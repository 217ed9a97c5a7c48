"""``RunFolder``: a run's parameters, numbers, events and results in files, read with no server.

The authoritative record of a run: mirrors and the report are derived from it. Any number of
processes may write to the same run.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from ratchet.errors import DataError, RunNotFoundError, StoreError, nearest
from ratchet.tracking.files import (
    JsonLines,
    is_safe_name,
    locked,
    read_plain_file,
    write_atomically,
)
from ratchet.tracking.manifest import MAIN_ARM, RunManifest, RunStatus, StageRecord
from ratchet.tracking.metrics import MetricPoint, MetricsFile
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_lock import runners
from ratchet.tracking.trainer_files import ARTIFACTS_FOLDER

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
SWEEP_FILE = "sweep.json"
"""Record of a sweep, in its own folder among the runs."""
_MOST_NAMED = 5
_Item = TypeVar("_Item")


class RunFolder:
    """One run on disk.

    Parameters
    ----------
    path
        The run's folder, which must contain a manifest; :meth:`create` creates one.

    Raises
    ------
    RunNotFoundError
        If it has no manifest.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self._manifest_path.exists():
            raise RunNotFoundError(
                f"{self.path} contains no run: expected {self._manifest_path.name} in it."
                " `ratchet runs` lists the runs."
            )
        self._metrics = MetricsFile(self.path / "metrics.jsonl", self._lock)
        self._events = JsonLines(self.path / "events.jsonl")

    @classmethod
    def create(cls, runs_dir: Path | str, manifest: RunManifest) -> Self:
        """Create a run's folder, or continue an existing one.

        A continued run keeps its creation time, stages and flow runs; everything else, including
        the status, is taken from ``manifest``. Raises StoreError if the folder can't be written.
        """
        _check_name("run id", manifest.run_id)
        for arm in manifest.arms:
            _check_name("arm", arm)
        path = Path(runs_dir) / manifest.run_id
        try:
            (path / "tables").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be created or written ({error}). Choose another folder with the"
                " setting `runs`."
            ) from error
        with locked(path / ".lock"):
            file = path / "manifest.json"
            if file.exists():
                old = _read_manifest(file)
                flow_runs = dict.fromkeys(old.prefect_flow_run_ids + manifest.prefect_flow_run_ids)
                manifest = manifest.model_copy(
                    update={
                        "created": old.created,
                        "stages": old.stages,
                        "prefect_flow_run_ids": list(flow_runs),
                        "checkpoints": old.checkpoints | manifest.checkpoints,
                        "tracking": old.tracking | manifest.tracking,
                    }
                )
            write_atomically(file, _dump(manifest))
        return cls(path)

    @property
    def run_id(self) -> str:
        """The run's id, which is its folder's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The home that the run was started with."""
        return Path(str(self.manifest.settings.get("home") or ".ratchet"))

    @property
    def manifest(self) -> RunManifest:
        """The manifest's current content on disk."""
        return _read_manifest(self._manifest_path)

    @property
    def status(self) -> RunStatus:
        """The manifest's status; interrupted if it is running but no process runs it."""
        noted = self.manifest.status
        return "interrupted" if noted == "running" and not runners(self.path) else noted

    def update(self, **changes: object) -> RunManifest:
        """Replace fields of the manifest."""
        with locked(self._lock):
            old = self.manifest
            unknown = sorted(changes.keys() - type(old).model_fields.keys())
            if unknown:
                hint = nearest(unknown[0], type(old).model_fields)
                raise DataError(f"a run's manifest has no {unknown[0]!r}.{hint}")
            data = old.model_dump() | {"updated": time.time()} | changes
            try:
                new = RunManifest.model_validate(data)
            except ValidationError as error:
                raise DataError(f"manifest of run {self.run_id!r}: {error}") from error
            write_atomically(self._manifest_path, _dump(new))
        return new

    def set_status(self, status: RunStatus, error: str | None = None) -> None:
        """Record the run's status and the time it finished, which is never before its start."""
        finished = None
        if status != "running":
            manifest = self.manifest
            now = time.time() if manifest.started is None else manifest.started.system_now()
            finished = max(manifest.created, now)
        self.update(status=status, error=error, finished=finished)

    def delete(self) -> None:
        """Delete the folder; the run's stages stay in the store.

        The manifest is deleted first, so that an interrupted deletion leaves no run.
        """
        self._manifest_path.unlink()
        shutil.rmtree(self.path)

    def record_stages(self, records: Sequence[StageRecord], **changes: Any) -> None:  # noqa: ANN401
        """Add stages, or replace those of the same arm, stage and iterations.

        They are sorted by the order of the manifest's arms, then of arrival. ``changes`` are
        further fields of the manifest, which is written once.
        """
        with locked(self._lock):
            manifest = self.manifest
            stages = {record.place: record for record in [*manifest.stages, *records]}
            ordered = in_order_of_arms(stages.values(), manifest.arms, lambda record: record.arm)
            changes |= {"stages": ordered, "updated": time.time()}
            write_atomically(self._manifest_path, _dump(manifest.model_copy(update=changes)))

    def append_metrics(
        self,
        stage: str,
        iteration: int,
        values: Mapping[str, float],
        *,
        arm: str = MAIN_ARM,
        replace: bool = False,
    ) -> bool:
        """Record one point; return whether it was new. See :meth:`append_points`."""
        point = MetricPoint(stage, iteration, dict(values), arm)
        return self._metrics.append([point], replace=replace) == 1

    def append_points(self, points: Sequence[MetricPoint], *, replace: bool = False) -> int:
        """Record points, each (arm, stage, iteration) once, flushed to the disk together.

        See :meth:`ratchet.tracking.metrics.MetricsFile.append`.
        """
        return self._metrics.append(points, replace=replace)

    def correct_points(self, expected: Sequence[MetricPoint], *, is_complete: bool) -> bool:
        """Rewrite the metrics if they differ from the points of the run's stages.

        See :meth:`ratchet.tracking.metrics.MetricsFile.correct`.
        """
        return self._metrics.correct(expected, is_complete=is_complete)

    def read_metrics(self) -> list[MetricPoint]:
        """Read all points, in the order of the manifest's arms, then of being recorded first."""
        return in_order_of_arms(self._metrics.read(), self.manifest.arms, lambda point: point.arm)

    def log_event(self, kind: str, message: str, **data: str | float | bool | None) -> None:
        """Append an event."""
        with locked(self._lock):
            event = {"time": time.time(), "kind": kind, "message": message, "data": data}
            self._events.append([event])

    def read_events(self) -> list[dict[str, Any]]:
        """Read all events, oldest first: time, kind, message, data."""
        return self._events.read()[0]

    def write_table(self, table: ResultTable) -> Path:
        """Write an arm's results on a dataset; replace those of the same name."""
        _check_name("table", table.name)
        _check_name("arm", table.arm)
        path = self.table_path(table)
        with locked(self._lock):
            old = _read_sound_table(path)
            if old is not None and (old.arm, old.name) != (table.arm, table.name):
                raise DataError(
                    f"{path.name} contains table {old.name!r} of arm {old.arm!r}, got"
                    f" {table.name!r} of {table.arm!r}. Rename one of the arms."
                )
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, table.to_json())
        return path

    def table_path(self, table: ResultTable) -> Path:
        """Return the path of a table's file."""
        return self.path / "tables" / table.file_name

    def read_tables(self) -> list[ResultTable]:
        """Read all tables, in the order of the manifest's arms, then of names."""
        tables = [ResultTable.read(path) for path in sorted((self.path / "tables").glob("*.json"))]
        tables.sort(key=lambda table: table.name)
        return in_order_of_arms(tables, self.manifest.arms, lambda table: table.arm)

    @property
    def report_path(self) -> Path:
        """Path of the run's report."""
        return self.path / "report.html"

    @property
    def usage_path(self) -> Path:
        """Path of the usage and costs of services."""
        return self.path / "usage.json"

    @property
    def ledger_path(self) -> Path:
        """Path of the ledger of every attempt at a paid call or job."""
        return self.path / "ledger.jsonl"

    @property
    def transcripts_path(self) -> Path:
        """The folder of transcripts, with a folder for each arm."""
        return self.path / "transcripts"

    @property
    def rollouts_path(self) -> Path:
        """The folder of saved rollouts, with a folder for each arm."""
        return self.path / "rollouts"

    @property
    def videos_path(self) -> Path:
        """The folder of videos of test episodes, with a folder for each arm."""
        return self.path / "videos"

    @property
    def profiles_path(self) -> Path:
        """The folder of stages' profiles, with a folder for each arm."""
        return self.path / "profiles"

    @property
    def artifacts_path(self) -> Path:
        """The folder of files that trainers have added."""
        return self.path / ARTIFACTS_FOLDER

    @property
    def _manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"


def in_order_of_arms(
    items: Iterable[_Item], arms: Iterable[str], arm_of: Callable[[_Item], str]
) -> list[_Item]:
    """Sort by arm, stably within each arm: arms may run concurrently."""
    order = {arm: position for position, arm in enumerate(arms)}
    return sorted(items, key=lambda item: order.get(arm_of(item), len(order)))


def list_runs(runs_dir: Path | str) -> list[RunFolder]:
    """List the runs in a folder, newest first.

    A folder whose manifest cannot be read is left out with a warning.
    """
    dated_folders: list[tuple[float, str, RunFolder]] = []
    for file in Path(runs_dir).glob("*/manifest.json"):
        try:
            folder = RunFolder(file.parent)
            dated_folders.append((folder.manifest.created, folder.run_id, folder))
        except (DataError, RunNotFoundError) as error:
            logger.warning("left out of the list of runs: %s", error)
    return [folder for *_, folder in sorted(dated_folders, key=lambda item: item[:2], reverse=True)]


def find_run(runs_dir: Path | str, run: str) -> RunFolder:
    """Find a run by its id, a prefix of its id, or its folder; see :func:`find_folder`.

    Raises
    ------
    RunNotFoundError
        If none or several fit, with the nearest id; or if the name is a sweep's.
    """
    folder = find_folder(runs_dir, run)
    if folder is None:
        known = _ids(runs_dir)
        hint = nearest(run, known) if known else " The folder has no runs yet."
        raise RunNotFoundError(f"no run {run!r} in {runs_dir}.{hint}")
    if not (folder / MANIFEST_FILE).exists():
        raise RunNotFoundError(
            f"{run!r} is a sweep, expected a run: `ratchet sweep-page {folder.name}` lists them."
        )
    return RunFolder(folder)


def find_folder(runs_dir: Path | str, name: str) -> Path | None:
    """Find the folder of a run or a sweep by its id, a prefix of its id, or its path.

    An exact id takes precedence over prefixes. Ids that extend the shortest match, such as those of
    attacks on a run, do not make its prefix ambiguous. Returns None if there is no match. Raises
    RunNotFoundError if the name is a prefix of several runs or sweeps.
    """
    if not name:
        return None
    for path in (Path(runs_dir) / name, Path(name)):
        if any(os.path.exists(path / file) for file in (MANIFEST_FILE, SWEEP_FILE)):
            return path
    matches = [each for each in _ids(runs_dir) if each.startswith(name)]
    if len(matches) > 1 and not all(each.startswith(f"{matches[0]}-") for each in matches[1:]):
        named = ", ".join(matches[:_MOST_NAMED])
        more = f" and {len(matches) - _MOST_NAMED} more" if len(matches) > _MOST_NAMED else ""
        raise RunNotFoundError(
            f"{name!r} is the prefix of {len(matches)} runs or sweeps in {runs_dir}: {named}{more}."
            " Give more of the id."
        )
    return Path(runs_dir) / matches[0] if matches else None


def _ids(runs_dir: Path | str) -> list[str]:
    """List the ids of all runs and sweeps in a folder, sorted."""
    names = {
        path.parent.name
        for file in (MANIFEST_FILE, SWEEP_FILE)
        for path in Path(runs_dir).glob(f"*/{file}")
    }
    return sorted(names)


def _read_manifest(path: Path) -> RunManifest:
    content = read_plain_file(path)
    try:
        return RunManifest.model_validate_json(content)
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{path}: not a run's manifest ({error}). Move the folder away and run the experiment"
            " again; finished stages are found in the store."
        ) from error


def _read_sound_table(path: Path) -> ResultTable | None:
    """Read a table; None if it is missing, invalid or has a different name."""
    try:
        table = ResultTable.read(path)
    except (OSError, DataError):
        return None
    return table if table.file_name == path.name else None


def _dump(manifest: RunManifest) -> str:
    return manifest.model_dump_json(indent=1)


def _check_name(what: str, name: str) -> None:
    if not is_safe_name(name):
        raise DataError(
            f"{what} {name!r} cannot be a file's name: expected letters, digits, '_', '.' and '-',"
            " not starting with '.' or '-'."
        )
