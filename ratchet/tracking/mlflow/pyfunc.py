"""How MLflow's own loader, ``mlflow.pyfunc.load_model``, is told to load a run's model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ratchet.tracking.manifest import ModelKind

LOADER = "trainers.loaded_model"
"""The module that builds agents of their parameters and weights; it unpickles nothing."""
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
    """Return what a model's description says of loading it; write the files that it names.

    Parameters
    ----------
    folder
        The model's.
    kind
        What the agents are.
    parameters
        The arm's.
    columns
        What the run's own test has found, if it had one: what a prediction looks like.
    versions
        Of Python and packages, with which the run was made.
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
    """Return the signature of what plays datapoints: rows as those of the run's test."""
    outputs = [_column(name, _type(values)) for name, values in columns.items()]
    return {
        "inputs": [_column("datapoint_id", "long")],
        "params": [_param("dataset", "string", "test")],
        **({"outputs": outputs} if outputs else {}),
    }


def _answers(kind: ModelKind, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signature of what answers prompts."""
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
    """Return what MLflow calls a column's type."""
    return next(name for kind, name in _TYPES if all(isinstance(v, kind) for v in values))


def _column(name: str, type_: str) -> dict[str, Any]:
    return {"name": name, "type": type_, "required": True}


def _param(name: str, type_: str, default: str | float) -> dict[str, Any]:
    return {"name": name, "type": type_, "default": default, "shape": None}


def _write_environment(folder: Path, versions: Mapping[str, str]) -> None:
    """Say which packages the model was made with, so that MLflow warns of others."""
    needed = [f"{name}=={v}\n" for name, v in versions.items() if name not in _NOT_NEEDED]
    (folder / REQUIREMENTS_FILE).write_text("".join(needed))
    environment = {
        "python": versions.get("python", ""),
        "build_dependencies": ["pip"],
        "dependencies": [f"-r {REQUIREMENTS_FILE}"],
    }
    (folder / ENVIRONMENT_FILE).write_text(yaml.safe_dump(environment, sort_keys=False))
