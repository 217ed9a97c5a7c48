"""The agents that a run has ended with, as a model in MLflow: weights and words, no pickle."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.tracking.checkpoint_folders import STATE_FOLDER, state_digest
from ratchet.tracking.mlflow.content import ARM_TAG, RUN_TAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from ratchet.tracking.manifest import RunManifest

STATE_TAG = "ratchet.state"
MODEL_TYPE = "agents"
FLAVOR = "ratchet"


def model_digest(files: Sequence[Path]) -> str:
    """Return the digest of a state's files."""
    return state_digest(
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    )


def send_model(
    client: MlflowClient,
    experiment_id: str,
    mlflow_run_id: str,
    manifest: RunManifest,
    arm: str,
) -> str:
    """Enter an arm's final state as a model of its MLflow run, unless it is there.

    Returns the state's digest.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    files = [Path(path) for path in manifest.checkpoints[arm]]
    digest = model_digest(files)
    model = _find(client, experiment_id, mlflow_run_id, digest)
    if model is not None and model.status == LoggedModelStatus.READY:
        return digest
    if model is None:  # else a sync was killed in the middle of it
        tags = {RUN_TAG: manifest.run_id, ARM_TAG: arm, STATE_TAG: digest}
        model = client.create_logged_model(
            experiment_id,
            name=f"{manifest.run_id}-{arm}".replace(".", "-"),
            source_run_id=mlflow_run_id,
            tags=tags,
            model_type=MODEL_TYPE,
        )
    with tempfile.TemporaryDirectory(prefix="ratchet-model-") as folder:
        _lay_out(Path(folder), files, manifest, arm, model.model_id)
        client.log_model_artifacts(model.model_id, folder)
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    step = _iterations(manifest, arm)
    client.log_outputs(mlflow_run_id, [LoggedModelOutput(model.model_id, step)])
    return digest


def _find(
    client: MlflowClient, experiment_id: str, mlflow_run_id: str, digest: str
) -> LoggedModel | None:
    found = client.search_logged_models(
        [experiment_id], filter_string=f"source_run_id = '{mlflow_run_id}'"
    )
    for model in found:
        if model.tags.get(STATE_TAG) == digest:
            return model
    return None


def _lay_out(
    folder: Path, files: Sequence[Path], manifest: RunManifest, arm: str, model_id: str
) -> None:
    """Put the state's files and MLflow's description of them into a folder."""
    (folder / STATE_FOLDER).mkdir()
    for path in files:
        (folder / STATE_FOLDER / path.name).symlink_to(path.resolve())
    about: dict[str, Any] = {
        "flavors": {
            FLAVOR: {
                "state": STATE_FOLDER,
                "parameters": "config.yaml",
                "version": manifest.versions.get("ratchet-experiments", "unknown"),
            }
        },
        "model_id": model_id,
        "utc_time_created": str(manifest.created),
    }
    (folder / "MLmodel").write_text(yaml.safe_dump(about))
    (folder / "config.yaml").write_text(yaml.safe_dump(manifest.arms[arm], sort_keys=False))


def _iterations(manifest: RunManifest, arm: str) -> int:
    stages = [s for s in manifest.stages if s.arm == arm and s.stage == "train"]
    return max((stage.iteration for stage in stages), default=0)
