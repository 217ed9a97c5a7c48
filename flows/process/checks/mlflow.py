"""The MLflow that runs are mirrored to: there, of a kind that works, in the mode for training."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from flows.process.checks.base import Check, Places, bad, good, warning
from flows.process.checks.servers import answers
from flows.process.stack_file import running_stack
from ratchet.tracking.mlflow.client import is_unfinished, unfinished_text
from ratchet.tracking.urls import without_logins

_PICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
_KINDS = (
    "select e.experiment_id, e.name from experiments e join experiment_tags t"
    " on t.experiment_id = e.experiment_id"
    " where t.key = 'mlflow.experimentKind' and t.value like 'genai%'"
)


def mlflow(places: Places) -> Iterator[Check]:
    """Check the MLflow that the environment names, or the stack's, or the home's database.

    One behind a proxy may answer other paths than ``/health``, and ask who is there.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    stack = running_stack(places.home)
    database = (places.home / "mlflow.db").resolve()
    if chosen and chosen.startswith(("http://", "https://")):
        yield from answers(places, "mlflow", chosen, "MLFLOW_TRACKING_URI", refusals=True)
    elif chosen and (chosen.startswith("file:") or "://" not in chosen):
        details = f"MLFLOW_TRACKING_URI: {chosen} is a folder of files, which MLflow no longer"
        uri = f"sqlite:///{database}"
        yield bad("mlflow", f"{details} writes: `export MLFLOW_TRACKING_URI={uri}`")
    elif chosen:
        yield good("mlflow", f"MLFLOW_TRACKING_URI: {without_logins(chosen)}")
    elif stack is not None:
        yield from answers(places, "mlflow", stack.mlflow_url, "the local stack")
    else:
        yield good("mlflow", f"no server: runs write to {places.home / 'mlflow.db'}")
    if os.environ.get(_PICKLE, "false").lower() in ("1", "true"):
        yield warning("mlflow pickles", f"{_PICKLE} is on: models may run code: `unset {_PICKLE}`")


def mlflow_database(places: Places) -> Iterator[Check]:
    """Name the home's database if its creation was interrupted, which no MLflow can open."""
    database = (places.home / "mlflow.db").resolve()
    if is_unfinished(database):
        yield bad("mlflow database", unfinished_text(database))


def mlflow_mode(places: Places) -> Iterator[Check]:
    """Name experiments of the home's database that open as those of language-model apps do.

    Their pages begin with traces, of which training has none, and hide runs and charts.
    """
    database = (places.home / "mlflow.db").resolve()
    for experiment_id, name in _in_the_wrong_mode(database):
        code = (
            "from mlflow import MlflowClient; MlflowClient("
            f"'sqlite:///{database}').set_experiment_tag('{experiment_id}',"
            " 'mlflow.experimentKind', 'custom_model_development')"
        )
        details = f"experiment {name!r} opens in the mode for GenAI apps"
        yield warning("mlflow mode", f'{details}: `python -c "{code}"`')


def _in_the_wrong_mode(database: Path) -> list[tuple[str, str]]:
    if not database.is_file():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as known:
            return [(str(number), str(name)) for number, name in known.execute(_KINDS)]
    except sqlite3.Error:  # it is being made, or of another version
        return []
