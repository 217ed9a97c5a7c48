"""Client of MLflow with short timeouts, whose failures are ``TrackingError``.

Imports mlflow on first use, which takes two seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import TrackingError
from ratchet.tracking.database_templates import copy_template
from ratchet.tracking.mirrors.base import tracking_error
from ratchet.tracking.urls import mlflow_page

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

# An unavailable server must not delay an experiment. Values set by the user stay.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}
_LOGGERS = ("mlflow", "alembic")
"""Loggers with the level MLFLOW_LOGGING_LEVEL, which MLflow reads only when it is imported."""

_LEFT_BY_MIGRATIONS = "select 1 from sqlite_master where name glob '_alembic_tmp_*'"


def default_tracking_uri(home: Path | str) -> str:
    """Return the URI of the database in Ratchet's home folder."""
    return f"sqlite:///{Path(home).resolve() / 'mlflow.db'}"


def artifact_location(tracking_uri: str) -> str | None:
    """Return the artifact folder next to a local database; None for a server, which has its own."""
    if not tracking_uri.startswith("sqlite:///"):
        return None
    database = Path(tracking_uri.removeprefix("sqlite:///")).resolve()
    return (database.parent / "mlartifacts").as_uri()


def connect(tracking_uri: str) -> MlflowClient:
    """Create a client, which connects to a server on first use."""
    _prepare_environment()
    with tracking_errors(tracking_uri):
        create_database(tracking_uri, artifact_location(tracking_uri))
        from mlflow import MlflowClient
        from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry

        _artifact_repository_registry.register("mlflow-artifacts", _artifacts_of_server)  # type: ignore[no-untyped-call] # MLflow has no types here

        return MlflowClient(tracking_uri=tracking_uri)


def _artifacts_of_server(
    uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
) -> ArtifactRepository:
    """Open artifacts of an experiment that a server created: of a local database, in its folder."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    folder = artifact_location(tracking_uri or "")
    if folder is None or uri.startswith("mlflow-artifacts://"):  # of a named server
        return MlflowArtifactsRepository(uri, tracking_uri, registry_uri)
    return LocalArtifactRepository(uri.replace("mlflow-artifacts:", folder, 1))


def create_database(tracking_uri: str, artifact_root: str | None) -> None:
    """Create a missing local database under a temporary name, and rename it into place.

    MLflow creates it in many transactions, and cannot open a database with only some of them. One
    process creates it, others wait. Other tracking URIs need no database.
    """
    database = _local_database(tracking_uri)
    if database is None or _has_content(database):
        return
    _prepare_environment()
    import mlflow

    copy_template(
        f"mlflow-{mlflow.__version__}",
        database,
        _migrate,
        lambda copy: _open_store(copy, artifact_root),  # creates the experiment with id 0
    )


def _migrate(database: Path) -> None:
    _open_store(database, "unused")
    with contextlib.closing(sqlite3.connect(database)) as created:
        created.execute("delete from experiments")  # with the wrong artifact root
        created.commit()


def _open_store(database: Path, artifact_root: str | None) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"sqlite:///{database}", artifact_root)  # type: ignore[no-untyped-call] # MLflow has no types here
    store.engine.dispose()


def is_unfinished(database: Path) -> bool:
    """Return whether a process was killed while creating a database."""
    if not _has_content(database):
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as known:
            return bool(known.execute(_LEFT_BY_MIGRATIONS).fetchone())
    except sqlite3.Error:  # not a database, which MLflow reports itself
        return False


def unfinished_text(database: Path) -> str:
    """Return the message about an unfinished database, with advice."""
    return (
        f"{database} is an incomplete MLflow database: its creation was interrupted. Move it away"
        f" with `mv {database} {database}.damaged`, then `ratchet sync RUN` for each run of"
        " `ratchet runs`: run folders are complete"
    )


def _prepare_environment() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _LOGGERS:
        level = os.environ["MLFLOW_LOGGING_LEVEL"] or _ENVIRONMENT["MLFLOW_LOGGING_LEVEL"]
        logging.getLogger(name).setLevel(level.upper())


def _local_database(tracking_uri: str) -> Path | None:
    is_local = tracking_uri.startswith("sqlite:///")
    return Path(tracking_uri.removeprefix("sqlite:///")) if is_local else None


def _has_content(database: Path) -> bool:
    return database.is_file() and database.stat().st_size > 0


@contextlib.contextmanager
def tracking_errors(tracking_uri: str) -> Iterator[None]:
    """Convert errors of MLflow and its libraries to ``TrackingError``."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, CommandError, OSError) as error:
        database = _local_database(tracking_uri)
        if database is not None and is_unfinished(database.resolve()):
            raise TrackingError(f"{unfinished_text(database.resolve())}.") from error
        raise tracking_error(f"tracking at {tracking_uri}", error) from error


def run_url(tracking_uri: str, experiment_id: str, mlflow_run_id: str) -> str | None:
    """Return the page of a run on a tracking server; None for a local database."""
    if not tracking_uri.startswith(("http://", "https://")):
        return None
    return mlflow_page(tracking_uri, f"experiments/{experiment_id}/runs/{mlflow_run_id}")
