"""Save a run for its readers: the report, and the mirrors of its folder.

No stored stages, since they have external effects; each records in the run folder which content it
saved, so that repeated calls skip the work and the heavy imports.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ReportError, TrackingError
from ratchet.store.local import hash_file
from tasks.stages import faults

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

STAMPS_FILE = "saved.json"
_REPORT_FILE = "report.html"


class SavedCopy:
    """A run's report (kind ``"report"``), or its copy in a mirror; opaque to Prefect."""

    def __init__(self, folder: RunFolder, kind: str, uri: str = "") -> None:
        self.folder, self.kind, self.uri = folder, kind, uri

    def update(self) -> bool:
        """Update it unless it is up to date; return whether an update was necessary.

        Raises TrackingError or ReportError, after recording an event, if a mirror or the report
        failed, which must not end the run.
        """
        try:
            return self._update()
        except TrackingError as error:
            note_tracking_failure(self.folder, error)
            raise
        except ReportError as error:
            command = f"ratchet report {self.folder.run_id}"
            self.folder.log_event("report_failed", str(error), command=command)
            raise

    def _update(self) -> bool:
        content = _digest(self.folder, self.uri)
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
                sync_mirror(self.folder, self.kind, self.uri)
        saved = {self.kind: content}
        if self.kind == "report":
            saved[_REPORT_FILE] = _file_digest(self.folder.report_path)
        from ratchet.tracking.files import write_atomically

        stamps = {**_read_stamps(self.folder), **saved}
        write_atomically(_stamps_path(self.folder), json.dumps(stamps, indent=1))
        return True


def sync_mirror(folder: RunFolder, kind: str, uri: str, *, ended: bool = True) -> None:
    """Sync a mirror with a run; TrackingError if it can't be reached, or refuses.

    A mirror that can't be viewed during the run is only synced once the run has ``ended``.
    """
    from ratchet.tracking.mirrors.base import open_mirror

    mirror = open_mirror(kind, uri)
    if ended or mirror.live:
        mirror.sync(folder)


def is_behind(folder: RunFolder, kind: str, uri: str) -> bool:
    """Return whether a mirror lacks content of a run that has ended."""
    return _read_stamps(folder).get(kind) != _digest(folder, uri)


def note_tracking_failure(folder: RunFolder, error: TrackingError) -> None:
    """Record that a mirror is behind, and the command that syncs it."""
    hint = f"ratchet sync {folder.run_id}"
    folder.log_event("tracking_failed", f"{error} Catch up with `{hint}`.", command=hint)


def _build_report(folder: RunFolder) -> None:
    from ratchet.reports import build_report

    try:
        build_report(folder)
    except Exception as error:
        logger.exception("The report of run %s was not written.", folder.run_id)
        raise ReportError(
            f"report of {folder.run_id}: {type(error).__name__}: {error}. The run's results are"
            f" stored; write the report again with `ratchet report {folder.run_id}`."
        ) from error


def _digest(folder: RunFolder, uri: str) -> str:
    """Return a digest of the content of the report and the mirror."""
    manifest = folder.manifest
    digest = hashlib.sha256(uri.encode())
    described: list[Any] = [manifest.arms, manifest.seeds, manifest.dataset_hashes]
    described += [[*record.place, record.key] for record in manifest.stages]
    digest.update(json.dumps(described, sort_keys=True).encode())
    for path in (folder.path / "metrics.jsonl", *sorted((folder.path / "tables").glob("*.json"))):
        if path.exists():
            digest.update(bytes.fromhex(hash_file(path)))
    if uri:
        digest.update(manifest.status.encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    return hash_file(path) if path.is_file() else ""


def _read_stamps(folder: RunFolder) -> dict[str, str]:
    try:
        stamps = json.loads(_stamps_path(folder).read_bytes())
    except (OSError, ValueError):  # missing or truncated: everything is saved again
        return {}
    return dict(stamps) if isinstance(stamps, dict) else {}


def _stamps_path(folder: RunFolder) -> Path:
    return folder.path / STAMPS_FILE
