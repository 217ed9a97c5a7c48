"""A run's final agents as a model in MLflow: weights and text files, no pickle."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.store.local import hash_file
from ratchet.tracking.manifest import MAIN_ARM, ModelKind, RunManifest
from ratchet.tracking.mirrors.payload import (
    ARM_TAG,
    MAX_DIGEST_CHARS,
    RUN_TAG,
    Metric,
    parameters_yaml,
    read_hyper_params,
    run_params,
)
from ratchet.tracking.trainer_files import STATE_FOLDER, state_digest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run


STATE_TAG = "ratchet.state"


def model_digest(files: Sequence[Path]) -> str:
    """Return the digest of a state's files."""
    return state_digest({path.name: hash_file(path) for path in files})


def send_model(
    client: MlflowClient,
    run: Run,
    manifest: RunManifest,
    arm: str,
    *,
    metrics: Sequence[Metric],
    tested: Columns,
) -> str:
    """Log an arm's final state as a model of its MLflow run, with its test results.

    ``tested`` is the table of the arm's test, empty if it had none. The model of a run outside a
    sweep becomes a version of the registered model of its experiment and arm, with the alias
    ``newest``. Existing entries stay. Returns the state's digest.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    files = [Path(path) for path in manifest.checkpoints[arm]]
    digest = model_digest(files)
    model = _find(client, run, digest) or _create(client, run, manifest, arm, digest)
    if model.status != LoggedModelStatus.READY:  # new, or a sync was killed
        params = _params(manifest, arm)  # a server accepts at most 100 with a model
        if missing := {name: params[name] for name in params.keys() - model.params.keys()}:
            client.log_model_params(model.model_id, missing)
        with tempfile.TemporaryDirectory(prefix="ratchet-model-") as folder:
            model_folder, model_id = Path(folder), model.model_id
            _lay_out(model_folder, files, manifest, arm, tested=tested, model_id=model_id)
            client.log_model_artifacts(model.model_id, folder)
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    linked = run.outputs.model_outputs if run.outputs else []
    step = manifest.learned_iterations(arm)
    if model.model_id not in {output.model_id for output in linked}:
        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step)])
    _send_metrics(client, run, model, manifest.dataset_hashes.get(arm, {}), metrics)
    if manifest.parent_run_id is None:
        _register(client, run, model, manifest, arm)
    return digest


def _find(client: MlflowClient, run: Run, digest: str) -> LoggedModel | None:
    matching_models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    for model in matching_models:
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
        model_type="agents",
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
    """Log the model's test results and their datasets.

    The run has the same points already: MLflow stores them once, and links them to the model.
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
    """Register the model as the newest version of its experiment's and arm's model."""
    from mlflow.exceptions import MlflowException

    name = _model_name(manifest.name if arm == MAIN_ARM else f"{manifest.name}-{arm}")
    source = model.artifact_location
    versions = client.search_model_versions(f"name = '{name}'")
    if all(version.source != source for version in versions):
        with suppress(MlflowException):  # it exists, perhaps created by another process
            client.create_registered_model(name, tags={ARM_TAG: arm})
        tags = {RUN_TAG: manifest.run_id}
        versions += [
            client.create_model_version(
                name, source, run.info.run_id, tags, model_id=model.model_id
            )
        ]
    newest = max(versions, key=lambda version: int(version.version))
    if newest.source == source:  # a kill may have prevented its alias
        client.set_registered_model_alias(name, "newest", newest.version)


def _model_name(name: str) -> str:
    """Return a name that MLflow accepts for a model and in its URI."""
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
    """Write the state's files and MLflow's description of them to a folder.

    Optimizers of language models, most of a state's bytes, are left out.
    """
    state = Path(os.path.commonpath([path.parent for path in files]))
    for path in files:
        link = folder / STATE_FOLDER / path.relative_to(state)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    if arm in manifest.optimizer_paths:
        for link in (folder / STATE_FOLDER).glob("*.safetensors"):
            _leave_out(manifest.optimizer_paths[arm], link)
    flavor = {
        "state": STATE_FOLDER,
        "parameters": "config.yaml",
        "version": manifest.versions.get("ratchet-experiments", "unknown"),
        "base_dir": manifest.settings.get("base_dir"),
    }
    model_description: dict[str, Any] = {
        "model_id": model_id,
        "utc_time_created": str(manifest.created),
    }
    if arm in manifest.model_kinds:
        kind, parameters = manifest.model_kinds[arm], manifest.arms[arm]
        model_description |= describe_loading(folder, kind, parameters, tested, manifest.versions)
    model_description["flavors"] = {"ratchet": flavor, **model_description.get("flavors", {})}
    (folder / "MLmodel").write_text(yaml.safe_dump(model_description))
    (folder / "config.yaml").write_text(parameters_yaml(manifest, arm))


def _leave_out(path: str, link: Path) -> None:
    """Replace the links to a file of tensors, and to its structure, by copies without a part."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    structure = link.with_suffix(".json")
    content = json.loads(structure.read_text())
    *parents, part = path.split("/")
    for parent in _at(content, parents):
        parent.pop(part, None)
    try:
        with safe_open(link, "pt") as file:
            names = [name for name in file.keys() if not fnmatch(name, f"/{path}/*")]  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in names}
        for each in (link, structure):
            each.unlink()
        save_file(tensors, link)
    except SafetensorError as error:
        raise OSError(f"{link}: {error}") from error
    structure.write_text(json.dumps(content))


def _at(content: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mappings at a path of names, where ``*`` is any name."""
    mappings = [content]
    for name in names:
        mappings = [each[key] for each in mappings for key in each if name in ("*", key)]
    return mappings


LOADER = "trainers.pyfunc_models"
"""The module that builds agents from their parameters and weights, without pickle."""
EXAMPLE_FILE = "input_example.json"
REQUIREMENTS_FILE = "requirements.txt"
ENVIRONMENT_FILE = "python_env.yaml"
_TYPES = ((bool, "boolean"), (int, "long"), (float, "double"), (object, "string"))
_NOT_NEEDED = ("python", "platform", "prefect")

Columns = Mapping[str, Sequence[object]]


def describe_loading(
    folder: Path,
    kind: ModelKind,
    parameters: Mapping[str, Any],
    columns: Columns,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Return the loading part of a model's description, and write the files that it names.

    Parameters
    ----------
    folder
        The model's folder.
    kind
        Kind of the agents.
    parameters
        The arm's parameters.
    columns
        Results of the run's test, if any, as an example of predictions.
    versions
        Versions of Python and packages in the run.
    """
    if kind == "networks":
        signature = _plays(columns)
        example = list(columns.get("datapoint_id", [0]))[:2]
    else:
        signature, example = _answers(kind, parameters), ["Hello"]
    names = [column["name"] for column in signature["inputs"]]
    split = {"columns": names, "data": [[value] for value in example]}
    (folder / EXAMPLE_FILE).write_text(json.dumps(split))
    _write_environment(folder, versions)
    return {
        "flavors": {
            "python_function": {
                "loader_module": LOADER,
                "python_version": versions.get("python", ""),
                "env": {"virtualenv": ENVIRONMENT_FILE},
            }
        },
        "signature": {name: json.dumps(value) for name, value in signature.items()},
        "saved_input_example_info": {
            "artifact_path": EXAMPLE_FILE,
            "type": "dataframe",
            "pandas_orient": "split",
        },
    }


def _plays(columns: Columns) -> dict[str, Any]:
    """Return the signature of networks: datapoints to rows like those of the run's test."""
    outputs = [_column(name, _type(values)) for name, values in columns.items()]
    return {
        "inputs": [_column("datapoint_id", "long")],
        "params": [_param("dataset", "string", "test")],
        **({"outputs": outputs} if outputs else {}),
    }


def _answers(kind: ModelKind, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signature of language models: prompts to texts."""
    if kind == "language_model":
        as_in_tests = parameters.get("language", {}).get("test_temperature", 0.0)
        choice = _param("temperature", "double", as_in_tests)
    else:
        choice = _param("agent", "string", "")
    return {
        "inputs": [_column("prompt", "string")],
        "outputs": [_column("text", "string")],
        "params": [choice, _param("seed", "long", 0)],
    }


def _type(values: Sequence[object]) -> str:
    """Return MLflow's name of a column's type."""
    return next(name for kind, name in _TYPES if all(isinstance(v, kind) for v in values))


def _column(name: str, type_: str) -> dict[str, Any]:
    return {"name": name, "type": type_, "required": True}


def _param(name: str, type_: str, default: str | float) -> dict[str, Any]:
    return {"name": name, "type": type_, "default": default, "shape": None}


def _write_environment(folder: Path, versions: Mapping[str, str]) -> None:
    """Write the package versions of the run, so that MLflow warns of others."""
    needed = [f"{name}=={v}\n" for name, v in versions.items() if name not in _NOT_NEEDED]
    (folder / REQUIREMENTS_FILE).write_text("".join(needed))
    environment = {
        "python": versions.get("python", ""),
        "build_dependencies": ["pip"],
        "dependencies": [f"-r {REQUIREMENTS_FILE}"],
    }
    (folder / ENVIRONMENT_FILE).write_text(yaml.safe_dump(environment, sort_keys=False))
