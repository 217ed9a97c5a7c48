"""The agents that a run has ended with, as a model in MLflow: weights and words, no pickle."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.tracking.checkpoint_folders import STATE_FOLDER, state_digest
from ratchet.tracking.content import (
    ARM_TAG,
    MAX_DIGEST_CHARS,
    RUN_TAG,
    Metric,
    learned_iterations,
    parameters_yaml,
    read_hyper_params,
    run_params,
)
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mlflow.pyfunc import describe_loading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

    from ratchet.tracking.manifest import RunManifest
    from ratchet.tracking.mlflow.pyfunc import Columns

STATE_TAG = "ratchet.state"
NEWEST = "newest"
MODEL_TYPE = "agents"
FLAVOR = "ratchet"


def model_digest(files: Sequence[Path]) -> str:
    """Return the digest of a state's files."""
    return state_digest(
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    )


def send_model(
    client: MlflowClient,
    run: Run,
    manifest: RunManifest,
    arm: str,
    *,
    metrics: Sequence[Metric],
    tested: Columns,
) -> str:
    """Enter an arm's final state as a model of its MLflow run, with what it has reached.

    ``tested`` is the table of the arm's test, empty if it had none. The model of a run that is no
    member of a sweep is a version of the registered model of its experiment and arm, and the one
    with the alias ``newest``. What is there already stays. Returns the state's digest.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    files = [Path(path) for path in manifest.checkpoints[arm]]
    digest = model_digest(files)
    model = _find(client, run, digest) or _create(client, run, manifest, arm, digest)
    if model.status != LoggedModelStatus.READY:  # new, or a sync was killed in the middle of it
        params = _params(manifest, arm)  # a server is told no more than 100 with a model
        if missing := {name: params[name] for name in params.keys() - model.params.keys()}:
            client.log_model_params(model.model_id, missing)
        with tempfile.TemporaryDirectory(prefix="ratchet-model-") as folder:
            place, model_id = Path(folder), model.model_id
            _lay_out(place, files, manifest, arm, tested=tested, model_id=model_id)
            client.log_model_artifacts(model.model_id, folder)
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    linked = run.outputs.model_outputs if run.outputs else []
    step = learned_iterations(manifest, arm)
    if model.model_id not in {output.model_id for output in linked}:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step)])
    _send_metrics(client, run, model, manifest.dataset_hashes.get(arm, {}), metrics)
    if manifest.parent_run_id is None:
        _register(client, run, model, manifest, arm)
    return digest


def _find(client: MlflowClient, run: Run, digest: str) -> LoggedModel | None:
    found = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    for model in found:
        if model.tags.get(STATE_TAG) == digest:
            return model
    return None


def _create(
    client: MlflowClient, run: Run, manifest: RunManifest, arm: str, digest: str
) -> LoggedModel:
    return client.create_logged_model(
        run.info.experiment_id,
        name=_model_name(f"{manifest.run_id}-{arm}"),
        source_run_id=run.info.run_id,
        tags={RUN_TAG: manifest.run_id, ARM_TAG: arm, STATE_TAG: digest},
        params=_params(manifest, arm),
        model_type=MODEL_TYPE,
    )


def _params(manifest: RunManifest, arm: str) -> dict[str, str]:
    return run_params(read_hyper_params(manifest, arm))


def _send_metrics(
    client: MlflowClient,
    run: Run,
    model: LoggedModel,
    hashes: Mapping[str, str],
    metrics: Sequence[Metric],
) -> None:
    """Tell what the model has reached in tests, and on which data.

    The run has the same points already: MLflow keeps those once, and notes that they are the
    model's.
    """
    from mlflow.entities import Metric as MlflowMetric

    there = {metric.key for metric in model.metrics or []}
    points = []
    for key, step, value, time in metrics:
        kind, _, data = key.split("/")[1].partition("-")
        data = data or "test"
        digest = hashes[data][:MAX_DIGEST_CHARS] if data in hashes else None
        if kind == "test" and key not in there:
            point = MlflowMetric(
                *(key, value, time, step, model.model_id),
                dataset_name=data if digest else None,
                dataset_digest=digest,
            )
            points.append(point)
    if points:
        client.log_batch(run.info.run_id, metrics=points)


def _register(
    client: MlflowClient, run: Run, model: LoggedModel, manifest: RunManifest, arm: str
) -> None:
    """Enter the model as a version of its experiment's and arm's, and call it the newest."""
    from mlflow.exceptions import MlflowException

    name = _model_name(manifest.name if arm == MAIN_ARM else f"{manifest.name}-{arm}")
    source = model.artifact_location
    versions = client.search_model_versions(f"name = '{name}'")
    if all(version.source != source for version in versions):
        with suppress(MlflowException):  # it is there, or somebody else was faster
            client.create_registered_model(name, tags={ARM_TAG: arm})
        tags = {RUN_TAG: manifest.run_id}
        versions += [
            client.create_model_version(
                name, source, run.info.run_id, tags, model_id=model.model_id
            )
        ]
    newest = max(versions, key=lambda version: int(version.version))
    if newest.source == source:  # whose alias a kill may have cut off
        client.set_registered_model_alias(name, NEWEST, newest.version)


def _model_name(name: str) -> str:
    """Make a name that MLflow takes for a model and for the alias of its address."""
    return re.sub(r"[/:.%\"'@]", "-", name)


def _lay_out(
    folder: Path,
    files: Sequence[Path],
    manifest: RunManifest,
    arm: str,
    *,
    tested: Columns,
    model_id: str,
) -> None:
    """Put the state's files and MLflow's description of them into a folder."""
    state = Path(os.path.commonpath([path.parent for path in files]))
    for path in files:
        place = folder / STATE_FOLDER / path.relative_to(state)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    own = {
        "state": STATE_FOLDER,
        "parameters": "config.yaml",
        "version": manifest.versions.get("ratchet-experiments", "unknown"),
        "base_dir": manifest.settings.get("base_dir"),
    }
    about: dict[str, Any] = {
        "model_id": model_id,
        "utc_time_created": str(manifest.created),
    }
    if arm in manifest.model_kinds:
        kind, parameters = manifest.model_kinds[arm], manifest.arms[arm]
        about |= describe_loading(folder, kind, parameters, tested, manifest.versions)
    about["flavors"] = {FLAVOR: own, **about.get("flavors", {})}
    (folder / "MLmodel").write_text(yaml.safe_dump(about))
    (folder / "config.yaml").write_text(parameters_yaml(manifest, arm))
