"""What an experiment leaves behind for people: the report, and the mirrors of its folder.

No stored stages, since they act on the world outside; each notes in the run folder what it has
brought up to date, so that a second time nothing is done and nothing heavy imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from ratchet.errors import TrackingError
from tasks.stages import faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.session import FinishedTask

STAMPS_FILE = "saved.json"
_REPORT_FILE = "report.html"


async def save_report(
    folder: RunFolder, settings: ExperimentSettings, after: Sequence[FinishedTask] = ()
) -> None:
    """Build the run's report, if it is not the report of what the run is now.

    ``after`` are the tasks before it.
    """
    job = _Job("report", folder)
    await _run(job, settings, after)


async def save_mirror(
    folder: RunFolder,
    settings: ExperimentSettings,
    kind: str,
    place: str,
    *,
    after: Sequence[FinishedTask] = (),
) -> None:
    """Bring a mirror up to the run; a failure is an event of the run, not of the experiment."""
    job = _Job(kind, folder, place)
    await _run(job, settings, after)


class _Job:
    """One thing to bring up to date; no data that Prefect would look into."""

    def __init__(self, kind: str, folder: RunFolder, place: str = "") -> None:
        self.kind, self.folder, self.place = kind, folder, place

    def do(self) -> bool:
        """Do it unless it was done; return whether there was anything to do."""
        content = _digest(self.folder, self.place)
        stamps = _read_stamps(self.folder)
        is_intact = self.kind != "report" or stamps.get(_REPORT_FILE) == _file_digest(
            self.folder.report_path
        )
        if stamps.get(self.kind) == content and is_intact:
            return False
        with faults.armed("save", detail=self.kind):
            if self.kind == "report":
                _build_report(self.folder)
            else:
                sync_mirror(self.folder, self.kind, self.place)
        made = {self.kind: content}
        if self.kind == "report":
            made[_REPORT_FILE] = _file_digest(self.folder.report_path)
        _write_stamps(self.folder, {**_read_stamps(self.folder), **made})
        return True


def sync_mirror(folder: RunFolder, kind: str, place: str, *, ended: bool = True) -> None:
    """Bring a mirror up to a run; TrackingError if it can't be reached, or refuses.

    One that nobody can look at on the way is told nothing before the run has ``ended``.
    """
    from ratchet.tracking.mirrors import open_mirror

    mirror = open_mirror(kind, place)
    if ended or mirror.live:
        mirror.sync(folder)


def is_behind(folder: RunFolder, kind: str, place: str) -> bool:
    """Return whether a mirror lacks something of a run that has ended."""
    return _read_stamps(folder).get(kind) != _digest(folder, place)


def note_tracking_failure(folder: RunFolder, error: TrackingError) -> None:
    """Record that a mirror is behind, and how to let it catch up."""
    hint = f"ratchet sync {folder.run_id}"
    folder.log_event("tracking_failed", f"{error} Catch up with `{hint}`.", command=hint)


def _build_report(folder: RunFolder) -> None:
    from ratchet.reports import build_report

    build_report(folder)


async def _run(job: _Job, settings: ExperimentSettings, after: Sequence[FinishedTask]) -> None:
    await _save.with_options(
        task_run_name=f"save {job.kind}",
        retries=settings.retries if job.kind == "report" else 0,
        retry_delay_seconds=settings.retry_delay_seconds,
    )(job, wait_for=after)


@task(name="save", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _save(job: _Job) -> State[Any]:
    try:
        done = await asyncio.to_thread(job.do)
    except TrackingError as error:
        note_tracking_failure(job.folder, error)
        return Completed(name="Behind", message=str(error), data=False)
    return Completed(name="Completed" if done else "Cached", data=done)


def _digest(folder: RunFolder, place: str) -> str:
    """Return a digest of all that report and mirror are made from."""
    manifest = folder.manifest
    digest = hashlib.sha256(place.encode())
    described: list[Any] = [manifest.arms, manifest.seeds, manifest.dataset_hashes]
    described += [[*record.place, record.key] for record in manifest.stages]
    digest.update(json.dumps(described, sort_keys=True).encode())
    for path in (folder.path / "metrics.jsonl", *sorted((folder.path / "tables").glob("*.json"))):
        if path.exists():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    if place:
        digest.update(manifest.status.encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _read_stamps(folder: RunFolder) -> dict[str, str]:
    try:
        stamps = json.loads(_stamps_path(folder).read_bytes())
    except (OSError, ValueError):  # lost or cut off: everything is done once more
        return {}
    return dict(stamps) if isinstance(stamps, dict) else {}


def _write_stamps(folder: RunFolder, stamps: dict[str, str]) -> None:
    from ratchet.tracking.files import write_atomically

    write_atomically(_stamps_path(folder), json.dumps(stamps, indent=1))


def _stamps_path(folder: RunFolder) -> Path:
    return folder.path / STAMPS_FILE
