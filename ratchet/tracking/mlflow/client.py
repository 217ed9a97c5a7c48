"""The door to MLflow: a client with short timeouts, and its failures as ``TrackingError``.

The only module that imports mlflow, and it does so on first use (two seconds).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.tracking.failures import tracking_error
from ratchet.tracking.files import locked
from ratchet.tracking.urls import without_logins

if TYPE_CHECKING:
    from mlflow import MlflowClient

# A tracker that is down must not hold up an experiment. Whoever sets these keeps them.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def default_tracking_uri(home: Path | str) -> str:
    """Return the URI of the database in Ratchet's home folder."""
    return f"sqlite:///{Path(home).resolve() / 'mlflow.db'}"


def artifact_location(tracking_uri: str) -> str | None:
    """Return where artifacts lie: beside a local database; a server decides for itself (None)."""
    if not tracking_uri.startswith("sqlite:///"):
        return None
    database = Path(tracking_uri.removeprefix("sqlite:///")).resolve()
    return (database.parent / "mlartifacts").as_uri()


def connect(tracking_uri: str) -> MlflowClient:
    """Make a client. Reaches out to a server only when the client is used.

    Raises
    ------
    TrackingError
        If a local database cannot be opened.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with tracking_errors(tracking_uri), _sole_maker(tracking_uri):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=tracking_uri)


@contextlib.contextmanager
def _sole_maker(tracking_uri: str) -> Iterator[None]:
    """Let one process at a time open a local database: two that make a new one both fail."""
    if not tracking_uri.startswith("sqlite:///"):
        yield
        return
    database = Path(tracking_uri.removeprefix("sqlite:///"))
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(database.parent / f".{database.name}.lock"):
        yield


@contextlib.contextmanager
def tracking_errors(tracking_uri: str) -> Iterator[None]:
    """Turn what MLflow and the libraries under it raise into ``TrackingError``."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, CommandError, OSError) as error:
        raise tracking_error(f"tracking at {tracking_uri}", error) from error


def run_url(tracking_uri: str, experiment_id: str, mlflow_run_id: str) -> str | None:
    """Return the page of a run on a tracking server; None for a local database.

    It asks for the pages of trained models: others stand where a browser comes for the first time.
    """
    if not tracking_uri.startswith(("http://", "https://")):
        return None
    server = without_logins(tracking_uri).rstrip("/")
    page = f"{server}/#/experiments/{experiment_id}/runs/{mlflow_run_id}"
    return f"{page}?workflowType=machine_learning"
