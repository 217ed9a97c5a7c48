"""Mirrors of a run: the tracking URI, and the credentials of the local stack's MLflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.stack_file import MLFLOW_PASSWORD, MLFLOW_USER, read_credentials, running_stack

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings


def choose_tracking_uri(home: str | Path, configured: str | None) -> str:
    """Return the MLflow tracking URI of a run.

    The first of: ``configured`` (from the settings), ``MLFLOW_TRACKING_URI``, the server of the
    local stack if it is running, the database in ``home``.
    """
    from ratchet.tracking.mirrors.mlflow.mirror import default_tracking_uri

    uri = configured or os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return uri
    stack = running_stack(home)
    return default_tracking_uri(home) if stack is None else stack.mlflow_url


def export_mlflow_credentials(home: str | Path, configured: str | None) -> None:
    """Set MLflow's user and password in the environment if a run uses the stack's open server.

    Parameters as :func:`choose_tracking_uri`. Other servers never receive the stack's passwords.
    """
    stack = running_stack(home)
    if stack is None or not stack.is_open or configured or os.environ.get("MLFLOW_TRACKING_URI"):
        return
    credentials = read_credentials(Path(home))
    os.environ.update({name: credentials[name] for name in (MLFLOW_USER, MLFLOW_PASSWORD)})


def choose_mirrors(settings: ExperimentSettings) -> dict[str, str]:
    """Return the mirrors of a run, kind → location, regardless of ``settings.tracking``."""
    from ratchet.tracking.mirrors.base import absolute_kind, choose_place

    uri = choose_tracking_uri(settings.home, settings.tracking_uri)
    kinds = (absolute_kind(kind, settings.base_dir) for kind in settings.mirrors)
    return {kind: choose_place(kind, uri) for kind in dict.fromkeys(kinds)}
