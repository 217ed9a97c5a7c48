"""``MlflowMirror``: idempotent sync of run folders with MLflow.

The run folder is authoritative: MLflow may be down, wiped or changed, and is synced later.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ratchet.errors import TrackingError
from ratchet.tracking.files import locked
from ratchet.tracking.manifest import MAIN_ARM, RunManifest
from ratchet.tracking.mirrors.base import MIRRORS, Mirror
from ratchet.tracking.mirrors.mlflow.arm import ArmCursor, ArmMirror, Cursor
from ratchet.tracking.mirrors.mlflow.client import (
    artifact_location,
    connect,
    default_tracking_uri,
    run_url,
    tracking_errors,
)
from ratchet.tracking.mirrors.mlflow.sweep import BestMember, keep_files, sync_sweep
from ratchet.tracking.mirrors.payload import ARM_TAG, FIRST, RUN_TAG
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.urls import without_logins

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

KIND = "mlflow.experimentKind"
"""Tag that selects MLflow's pages of an experiment; its guess may be chat pages for agents."""
CUSTOM_MODELS = "custom_model_development"
INFERRED = "_inferred"
NOTE = "mlflow.note.content"

__all__ = ["MlflowMirror", "default_tracking_uri"]


@MIRRORS.register("mlflow")
class MlflowMirror(Mirror):
    """Mirrors run folders to one tracking server or database.

    Parameters
    ----------
    tracking_uri
        ``http(s)://…`` or ``sqlite:///…``; see :func:`default_tracking_uri`.
    """

    title = "MLflow"
    files = ("mlflow.json",)
    live = True

    def __init__(self, tracking_uri: str) -> None:
        super().__init__(tracking_uri)
        self.tracking_uri = tracking_uri
        self._connected: MlflowClient | None = None

    @classmethod
    def choose_place(cls, tracking_uri: str) -> str:
        """Return the tracking URI."""
        return tracking_uri

    def sync(self, folder: RunFolder) -> str:
        """Sync MLflow with a run folder; return the id of the experiment's MLflow run.

        One MLflow run for the experiment (arm "main"), a child for every other arm; all are found
        by their tags. Each (metric, step) is sent exactly once. If a recorded metric was replaced,
        the arm's MLflow run, whose metrics cannot be deleted, is recreated.

        Raises
        ------
        TrackingError
            If MLflow can't be reached within a few seconds or refuses. The experiment continues,
            and the next call catches up.
        """
        with locked(folder.path / ".mlflow.lock"):
            client = self._client()
            with tracking_errors(self.tracking_uri):
                return self._sync(client, folder)

    def sync_sweep(self, folder: Path, experiment_name: str, best: BestMember | None) -> None:
        """Sync MLflow with a sweep's folder: status, files, and the result of its ``best`` member.

        Raises TrackingError as :meth:`sync`.
        """
        client = self._client()
        with tracking_errors(self.tracking_uri):
            experiment_id = self._named_experiment(client, experiment_name)

            def find(run_id: str) -> Run | None:
                return _runs_by_arm(client, experiment_id, run_id).get(MAIN_ARM)

            run_id = sync_sweep(client, experiment_id, folder.parent, folder.name, find, best)
            if run_id is not None:
                keep_files(client, run_id, folder)

    def _client(self) -> MlflowClient:
        if self._connected is None:
            self._connected = connect(self.tracking_uri)
        return self._connected

    def _sync(self, client: MlflowClient, folder: RunFolder) -> str:
        manifest = folder.manifest
        cursor_path = folder.path / self.files[0]
        cursor = Cursor.read(cursor_path, self.tracking_uri)
        cursor.experiment_id = self._named_experiment(client, str(manifest.experiment_name))
        runs = _runs_by_arm(client, cursor.experiment_id, manifest.run_id)
        points = folder.read_metrics()
        parent = self._sweep_parent(client, cursor.experiment_id, manifest, folder.path.parent)
        arms = [MAIN_ARM, *sorted(manifest.arms.keys() - {MAIN_ARM})]
        for arm in arms:
            arm_cursor = cursor.arms.setdefault(arm, ArmCursor())
            mirror = ArmMirror(client, folder, arm, arm_cursor, lambda: cursor.write(cursor_path))
            run_id = mirror.sync(
                runs.get(arm),
                [point for point in points if point.arm == arm],
                experiment_id=cursor.experiment_id,
                parent=parent,
            )
            if arm == MAIN_ARM:
                parent = run_id
        self._note(folder, manifest, cursor)
        return cursor.arms[MAIN_ARM].mlflow_run_id

    def _named_experiment(self, client: MlflowClient, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            location = artifact_location(self.tracking_uri)
            try:
                tags = {KIND: CUSTOM_MODELS, NOTE: _experiment_note(name)}
                return str(client.create_experiment(name, location, tags))
            except MlflowException:
                experiment = client.get_experiment_by_name(name)  # created by another process
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            location = without_logins(self.tracking_uri)
            raise TrackingError(
                f"the MLflow experiment {name!r} at {location} is deleted. Restore it"
                f" (`mlflow experiments restore -x {experiment.experiment_id}`) or set"
                " settings.experiment_name, then `ratchet sync RUN`."
            )
        if experiment.tags.get(KIND, CUSTOM_MODELS + INFERRED).endswith(INFERRED):
            client.set_experiment_tag(experiment.experiment_id, KIND, CUSTOM_MODELS)
        return str(experiment.experiment_id)

    def _sweep_parent(
        self, client: MlflowClient, experiment_id: str, manifest: RunManifest, runs: Path
    ) -> str | None:
        """Find or create the MLflow run of this run's sweep or parent run."""
        if manifest.parent_run_id is None:
            return None

        def find(run_id: str) -> Run | None:
            return _runs_by_arm(client, experiment_id, run_id).get(MAIN_ARM)

        sweep = sync_sweep(client, experiment_id, runs, manifest.parent_run_id, find)
        if sweep is not None:
            return sweep
        parent = find(manifest.parent_run_id)
        return None if parent is None else str(parent.info.run_id)

    def _note(self, folder: RunFolder, manifest: RunManifest, cursor: Cursor) -> None:
        """Record in the run's manifest where it is mirrored."""
        runs = {arm: arm_cursor.mlflow_run_id for arm, arm_cursor in cursor.arms.items()}
        tracking = {
            "uri": without_logins(self.tracking_uri),
            "experiment_id": cursor.experiment_id,
            "runs": runs,
            "url": run_url(self.tracking_uri, cursor.experiment_id, runs[MAIN_ARM]),
        }
        if manifest.tracking != tracking:
            folder.update(tracking=tracking)


def _runs_by_arm(client: MlflowClient, experiment_id: str, run_id: str) -> dict[str, Run]:
    """Find a run's MLflow runs by their tags; the oldest if an arm has several."""
    matching_runs = client.search_runs(
        [experiment_id],
        filter_string=f"tags.`{RUN_TAG}` = '{run_id}'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
    )
    runs: dict[str, Run] = {}
    for run in matching_runs:
        runs.setdefault(run.data.tags[ARM_TAG], run)
    return runs


def _experiment_note(name: str) -> str:
    """Return a description of an experiment's runs in Markdown, which users may replace."""
    return f"""Runs of the experiment *{name}* of Ratchet.

- A run's description has its parameters and the commands to continue it. Arms are its
  children, and members of a sweep are children of the sweep's run.
- Metrics: `{FIRST}/…` are results during training, `final/…` final results with 95 % intervals
  (`low`, `high`); all others start with the stage that logs them.
- Parameters are those that the run has read; `config.yaml` among the artifacts has all.
- Artifacts: the report, result tables and transcripts. The models are the final agents:
  `mlflow.pyfunc.load_model("models:/NAME@newest")`.
"""
