"""Run folder files copied from stored stages: metrics, tables, transcripts, rollouts, videos.

The store contains the originals; copies that differ or are missing are written again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.rollouts.transcripts import sampled_transcripts
from ratchet.store.store import StageStore
from ratchet.tracking.files import write_atomically
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable, holds_results
from ratchet.tracking.run_lock import runners
from tasks.stages.files import TABLE_FILE, TRANSCRIPTS_FILE, read_table, video_path
from tasks.tensordict.stages import HISTORY_FILE, ROLLOUTS_FILE
from trainers.language.rollouts import TRAJECTORIES_FILE

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.tracking.manifest import StageRecord
    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)


class DerivedFiles:
    """Writer of the run folder's copies of stage files."""

    def __init__(self, folder: RunFolder, store: StageStore) -> None:
        self._folder = folder
        self._store = store

    def points(self, record: StageRecord, manifest: Manifest) -> list[MetricPoint]:
        """Return the metrics of a stage; of an unstaged trainer under the names it logged."""
        if HISTORY_FILE not in manifest.files:
            return [
                MetricPoint(record.stage, point.iteration, point.values, record.arm)
                for point in manifest.metrics
            ]
        path = self._store.open(manifest.key) / HISTORY_FILE
        merged: dict[tuple[str, int], dict[str, float]] = {}
        for stage, iteration, values in json.loads(path.read_text()):
            merged.setdefault((stage, iteration), {}).update(values)
        return [MetricPoint(stage, i, values, record.arm) for (stage, i), values in merged.items()]

    def write(self, record: StageRecord, manifest: Manifest) -> list[str]:
        """Write the files of a stage that are missing or differ; return their names."""
        written = [
            *self._write_table(record, manifest),
            *self._write_transcripts(record, manifest),
            *self._write_rollouts(record, manifest),
            *self._write_videos(record, manifest),
        ]
        return [str(path.relative_to(self._folder.path)) for path in written]

    def _write_table(self, record: StageRecord, manifest: Manifest) -> list[Path]:
        has_table = self._folder.manifest.kind_of(manifest.stage).has_table
        if not has_table or TABLE_FILE not in manifest.files:
            return []
        columns = read_table(self._store.open(manifest.key))
        if columns is None or not holds_results(columns):
            return []
        table = ResultTable(record.stage, columns, record.arm)
        path = self._folder.table_path(table)
        if _differs(path, _digest(table.to_json().encode())):
            return [self._folder.write_table(table)]
        return []

    def _write_transcripts(self, record: StageRecord, manifest: Manifest) -> list[Path]:
        """Copy the transcripts, up to the setting ``num_rollout_samples``."""
        parameters = self._folder.manifest.arms.get(record.arm, {})
        is_enabled = parameters.get("text_rl", {}).get("save_transcripts", False)
        if TRANSCRIPTS_FILE not in manifest.files or not is_enabled:
            return []
        kind = self._folder.manifest.kind_of(manifest.stage)
        if kind.span != "iteration":
            name = f"{record.stage}.jsonl"
        else:  # during training
            name = f"{'test-' if kind.curves == 'testing' else ''}{record.iteration}.jsonl"
        path = self._folder.transcripts_path / record.arm / name
        number = self._folder.manifest.settings.get("num_rollout_samples")
        if number is None:
            return self._copy(manifest, TRANSCRIPTS_FILE, path)
        source = self._store.open(manifest.key) / TRANSCRIPTS_FILE
        return _write(path, sampled_transcripts(source, number))

    def _write_rollouts(self, record: StageRecord, manifest: Manifest) -> list[Path]:
        """Copy rollouts of each ``rollout_sample_period``-th iteration, named by the iteration."""
        period = self._folder.manifest.settings.get("rollout_sample_period")
        if manifest.stage != "rollouts" or period is None or record.iteration % period:
            return []
        folder = self._folder.rollouts_path / record.arm
        written: list[Path] = []
        for file in (ROLLOUTS_FILE, TRAJECTORIES_FILE):
            if file in manifest.files:
                path = folder / f"{record.iteration}{Path(file).suffix}"
                written += self._copy(manifest, file, path)
        return written

    def _write_videos(self, record: StageRecord, manifest: Manifest) -> list[Path]:
        """Copy videos of a test's episodes, and remove outdated ones of that test."""
        if not self._folder.manifest.kind_of(manifest.stage).is_test:
            return []
        folder = self._folder.videos_path / record.arm
        others = set(folder.glob(f"{record.stage}-*.gif"))
        written: list[Path] = []
        for episode in itertools.count():
            name = video_path(episode)
            if name not in manifest.files:
                break
            path = folder / f"{record.stage}-{episode}.gif"
            others.discard(path)
            written += self._copy(manifest, name, path)
        for other in others:
            other.unlink()
        return written

    def _copy(self, manifest: Manifest, name: str, path: Path) -> list[Path]:
        """Copy a stage's file unless an identical copy exists."""
        if not _differs(path, manifest.files[name].sha256):
            return []
        return _write(path, (self._store.open(manifest.key) / name).read_bytes())


def check_metrics(folder: RunFolder, store: StageStore) -> bool:
    """Rewrite a run's metrics if they differ from its stored stages; return whether they did.

    Metrics of stages that are missing from the store stay.
    """
    derived = DerivedFiles(folder, store)
    records = folder.manifest.stages
    expected: list[MetricPoint] = []
    is_complete = not runners(folder.path)  # a running run may not have recorded its latest metrics
    for record in records:
        manifest = store.peek(record.key, allow_stale=True)
        if manifest is None:
            is_complete = False
        else:
            expected += derived.points(record, manifest)
    return folder.correct_points(expected, is_complete=is_complete)


def rebuild_derived_files(folder: RunFolder) -> list[str]:
    """Rebuild files of a run folder that differ from the store; return their names.

    Files of stages that are missing from the store, or whose store is unreachable, stay unchanged.
    """
    settings = ExperimentSettings.from_dict(folder.manifest.settings)
    try:
        store = StageStore(settings.store_url)
        rebuilt = ["metrics.jsonl"] if check_metrics(folder, store) else []
        derived = DerivedFiles(folder, store)
        for record in folder.manifest.stages:
            manifest = store.peek(record.key, allow_stale=True)
            if manifest is not None:
                rebuilt += derived.write(record, manifest)
    except StoreError as error:
        logger.warning("run %s was not compared with its stored stages: %s", folder.run_id, error)
        return []
    note_rebuilt(folder, rebuilt)
    return rebuilt


def note_rebuilt(folder: RunFolder, names: list[str]) -> None:
    """Record in the run's events which of its files were rebuilt from the store."""
    if names:
        text = f"missing or different from the stored stages, rebuilt: {', '.join(names)}"
        folder.log_event("rebuilt", text)
        logger.warning("run %s: %s", folder.run_id, text)


def _write(path: Path, content: str | bytes) -> list[Path]:
    data = content.encode() if isinstance(content, str) else content
    if not _differs(path, _digest(data)):
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return [path]


def _differs(path: Path, digest: str) -> bool:
    return not path.is_file() or _digest(path.read_bytes()) != digest


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
