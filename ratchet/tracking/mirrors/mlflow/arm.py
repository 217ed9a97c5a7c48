"""``ArmMirror``: one arm of a run and its MLflow run.

The mirror finds the MLflow runs and owns the lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ratchet.store.local import hash_file
from ratchet.tracking.files import standalone_copy, write_atomically
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.mirrors.mlflow.models import model_digest, send_model
from ratchet.tracking.mirrors.payload import (
    MAX_DIGEST_CHARS,
    Metric,
    dataset_sizes,
    final_metrics,
    parameters_yaml,
    point_metrics,
    read_hyper_params,
    run_files,
    run_params,
    run_tags,
    system_metrics,
)
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_warnings import arm_warnings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

MAX_METRICS_PER_BATCH = 1000
MAX_PARAMS_PER_BATCH = 100
_STATUS = {
    "running": "RUNNING",
    "completed": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "cancelled": "KILLED",
    "pruned": "KILLED",
}


class ArmMirror:
    """Sync one arm to its MLflow run; update the cursor in place."""

    def __init__(
        self,
        client: MlflowClient,
        folder: RunFolder,
        arm: str,
        cursor: ArmCursor,
        save_cursor: Callable[[], None],
    ) -> None:
        self._client = client
        self._folder = folder
        self._manifest = folder.manifest
        self._arm = arm
        self._cursor = cursor
        self._save_cursor = save_cursor

    def sync(
        self,
        run: Run | None,
        points: list[MetricPoint],
        *,
        experiment_id: str,
        parent: str | None,
    ) -> str:
        """Sync the arm's MLflow run (created if None) with the run folder; return its id."""
        recorded = [*point_metrics(points, self._manifest.kinds), *self._final_metrics()]
        metrics = [_finite(metric) for metric in recorded]
        run = run or self._create(experiment_id)
        warnings = [*arm_warnings(points), *self._warn_of_infinities(run, recorded)]
        missing = self._missing(run, metrics)
        if missing is None:
            run = self._replace(run, experiment_id)
            missing = metrics
        self._describe(run, parent, warnings)
        self._send(run.info.run_id, metrics, missing)
        self._send_system(run.info.run_id)
        self._send_datasets(run.info.run_id, dataset_sizes(points))
        self._send_files(run.info.run_id)
        self._send_model(run.info.run_id)
        self._set_status(run)
        return str(run.info.run_id)

    def _warn_of_infinities(self, run: Run, metrics: Sequence[Metric]) -> list[str]:
        """Return a warning that names infinite metrics, logged once, when it is new."""
        names = sorted({key for key, _, value, _ in metrics if math.isinf(value)})
        if not names:
            return []
        some = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        text = (
            f"{some}: infinite values are stored in MLflow as ±1.8e308, the largest number that its"
            " databases hold; metrics.jsonl has them as they are."
        )
        if text not in run.data.tags.get("ratchet.warnings", ""):
            logger.warning("run %s, arm %s: %s", self._manifest.run_id, self._arm, text)
        return [text]

    def _create(self, experiment_id: str) -> Run:
        """Create the MLflow run with its tags, by which a later sync finds it."""
        name = self._manifest.run_id
        if self._arm != MAIN_ARM:
            name = f"{name} · {self._arm}"
        return self._client.create_run(
            experiment_id,
            start_time=int(self._manifest.created * 1000),
            tags=run_tags(self._manifest, self._arm),
            run_name=name,
        )

    def _replace(self, run: Run, experiment_id: str) -> Run:
        """Delete an MLflow run with replaced values, and create a new one."""
        logger.warning(
            "run %s, arm %s: recorded metrics were replaced; MLflow run %s is recreated",
            self._manifest.run_id,
            self._arm,
            run.info.run_id,
        )
        self._client.delete_run(run.info.run_id)
        return self._create(experiment_id)

    def _final_metrics(self) -> list[Metric]:
        learned = self._manifest.learned_iterations(self._arm)
        return final_metrics(self._tables(), int(self._manifest.created * 1000), learned)

    def _tables(self) -> list[ResultTable]:
        return [table for table in self._folder.read_tables() if table.arm == self._arm]

    def _missing(self, run: Run, metrics: list[Metric]) -> list[Metric] | None:
        """Return the metrics that MLflow lacks; None if its values differ from the run folder's."""
        cursor = self._cursor
        if cursor.mlflow_run_id != run.info.run_id:
            self._restart_cursor(run.info.run_id)
        known = metrics[: cursor.sent]
        if not cursor.in_flight and len(known) == cursor.sent and cursor.sent:
            if cursor.digest == metrics_digest(known):
                return metrics[cursor.sent :]
        elif not cursor.in_flight and not run.data.metrics:
            return metrics
        return self._compare(run, metrics)

    def _compare(self, run: Run, metrics: list[Metric]) -> list[Metric] | None:
        """Compare with the complete history in MLflow, which has each (key, step) at most once."""
        keys = {key for key, *_ in metrics} & run.data.metrics.keys()
        there = {
            (key, point.step): point.value
            for key in sorted(keys)
            for point in self._client.get_metric_history(run.info.run_id, key)
        }
        missing = [metric for metric in metrics if metric[:2] not in there]
        for key, step, value, _ in metrics:
            if (key, step) in there and not _equal(there[key, step], value):
                return None
        return missing

    def _restart_cursor(self, mlflow_run_id: str) -> None:
        fresh = ArmCursor(mlflow_run_id=mlflow_run_id)
        for name in type(fresh).model_fields:
            setattr(self._cursor, name, getattr(fresh, name))

    def _describe(self, run: Run, parent: str | None, warnings: Sequence[str]) -> None:
        """Set missing parameters, and missing or changed tags."""
        from mlflow.entities import Param, RunTag

        if self._cursor.mlflow_run_id != run.info.run_id:
            self._restart_cursor(run.info.run_id)
        tags = run_tags(self._manifest, self._arm)
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        if warnings:
            tags["ratchet.warnings"] = "\n".join(warnings)
        new_tags = [
            RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value
        ]
        if new_tags:
            self._client.log_batch(run.info.run_id, tags=new_tags)
        for gone in {"ratchet.error", "ratchet.warnings"} & (run.data.tags.keys() - tags.keys()):
            self._client.delete_tag(run.info.run_id, gone)
        params = run_params(read_hyper_params(self._manifest, self._arm))
        new = [Param(key, value) for key, value in params.items() if key not in run.data.params]
        for chunk in _chunks(new, MAX_PARAMS_PER_BATCH):
            self._client.log_batch(run.info.run_id, params=chunk)

    def _send(self, run_id: str, metrics: list[Metric], missing: list[Metric]) -> None:
        """Send metrics in batches, with the cursor marked as in flight."""
        from mlflow.entities import Metric as MlflowMetric

        cursor = self._cursor
        if missing:
            cursor.in_flight = True
            self._save_cursor()
        for chunk in _chunks(missing, MAX_METRICS_PER_BATCH):
            batch = [MlflowMetric(key, value, time, step) for key, step, value, time in chunk]
            self._client.log_batch(run_id, metrics=batch)
        cursor.sent, cursor.digest = len(metrics), metrics_digest(metrics)
        cursor.in_flight = False
        self._save_cursor()

    def _send_system(self, run_id: str) -> None:
        """Send system metrics; MLflow stores repeated points, with equal times, once."""
        from mlflow.entities import Metric as MlflowMetric

        if self._arm != MAIN_ARM:
            return
        noted = system_metrics(self._folder)
        for chunk in _chunks(noted[self._cursor.system :], MAX_METRICS_PER_BATCH):
            batch = [MlflowMetric(key, value, time, step) for key, step, value, time in chunk]
            self._client.log_batch(run_id, metrics=batch)
        self._cursor.system = len(noted)
        self._save_cursor()

    def _send_datasets(self, run_id: str, sizes: Mapping[str, int]) -> None:
        """Log the datasets with their digests and sizes as the run's inputs."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        hashes = self._manifest.dataset_hashes.get(self._arm, {})
        if self._cursor.datasets == hashes:
            return
        inputs = [
            DatasetInput(
                Dataset(
                    name,
                    digest[:MAX_DIGEST_CHARS],
                    "ratchet",
                    json.dumps({"sha256": digest}),
                    profile=json.dumps({"num_rows": sizes[name]}) if name in sizes else None,
                ),
                [InputTag("mlflow.data.context", name)],
            )
            for name, digest in hashes.items()
        ]
        self._client.log_inputs(run_id, inputs)
        self._cursor.datasets = dict(hashes)
        self._save_cursor()

    def _send_files(self, run_id: str) -> None:
        """Upload new and changed files."""
        sent = self._cursor.files
        config = parameters_yaml(self._manifest, self._arm)
        digest = hashlib.sha256(config.encode()).hexdigest()
        if sent.get("config.yaml") != digest:
            self._client.log_text(run_id, config, "config.yaml")
            sent["config.yaml"] = digest
        for path, artifact_folder in run_files(self._folder, self._arm).items():
            if not path.exists():
                continue
            artifact = f"{artifact_folder}/{path.name}"
            digest = hash_file(path)
            if sent.get(artifact) != digest:
                with standalone_copy(path) as file:
                    self._client.log_artifact(run_id, str(file), artifact_folder or None)
                sent[artifact] = digest
        self._save_cursor()

    def _send_model(self, run_id: str) -> None:
        """Log the final state as a model once the run is completed."""
        files = [Path(path) for path in self._manifest.checkpoints.get(self._arm, [])]
        is_there = bool(files) and all(path.exists() for path in files)
        if self._manifest.status != "completed" or not is_there:
            return
        if self._cursor.model != model_digest(files):
            tables = self._tables()
            self._cursor.model = send_model(
                self._client,
                self._client.get_run(run_id),
                self._manifest,
                self._arm,
                metrics=[_finite(metric) for metric in self._final_metrics()],
                tested=next((table.columns for table in tables if table.name == "test"), {}),
            )
            self._save_cursor()

    def _set_status(self, run: Run) -> None:
        status = _STATUS[self._manifest.status]
        if run.info.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(run.info.run_id, status=status)
            return
        finished = self._manifest.finished or self._manifest.updated
        self._client.set_terminated(run.info.run_id, status, int(finished * 1000))


def _finite(metric: Metric) -> Metric:
    """Replace infinities by the largest number, as MLflow's databases do."""
    key, step, value, time = metric
    if math.isinf(value):
        value = math.copysign(sys.float_info.max, value)
    return key, step, value, time


def _equal(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class ArmCursor(BaseModel):
    """Progress of the mirror for one arm.

    ``sent`` metrics, in the order of the run folder, with the digest of their keys, steps and
    values; ``files`` maps artifact paths to content digests; ``model`` is the digest of the final
    state that was logged as a model. ``system`` counts system metrics.
    """

    mlflow_run_id: str = ""
    sent: int = 0
    digest: str = ""
    in_flight: bool = False
    datasets: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    model: str = ""
    system: int = 0


class Cursor(BaseModel):
    """Progress of the mirror at one tracking server, stored as ``mlflow.json``.

    Written before a batch is sent (in flight) and after it has arrived. A cursor in flight, lost or
    of a different server requires a comparison with MLflow.
    """

    tracking_uri: str
    experiment_id: str = ""
    arms: dict[str, ArmCursor] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, tracking_uri: str) -> Self:
        """Read the cursor; an empty one if it is missing, damaged or of a different server."""
        try:
            cursor = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return cls(tracking_uri=tracking_uri)
        return cursor if cursor.tracking_uri == tracking_uri else cls(tracking_uri=tracking_uri)

    def write(self, path: Path) -> None:
        """Write the cursor atomically."""
        write_atomically(path, self.model_dump_json(indent=1))


def metrics_digest(metrics: Sequence[tuple[str, int, float, int]]) -> str:
    """Return a digest of keys, steps and values; times do not count."""
    digest = hashlib.sha256()
    for key, step, value, _ in metrics:
        digest.update(f"{key}\t{step}\t{value!r}\n".encode())
    return digest.hexdigest()
