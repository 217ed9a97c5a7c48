"""Which MLflow a run is mirrored to, and what else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.logins import MLFLOW_PASSWORD, MLFLOW_USER, read_logins
from flows.process.stack_file import running_stack

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings


def choose_tracking_uri(home: str | Path, chosen: str | None) -> str:
    """Return the MLflow to mirror to.

    What the settings say (``chosen``), else ``MLFLOW_TRACKING_URI``, else the local stack's server
    if it is up, else the database in ``home``. Only the stack's server is shown its passwords.
    """
    from ratchet.tracking.mlflow.mirror import default_tracking_uri

    named = chosen or os.environ.get("MLFLOW_TRACKING_URI")
    if named:
        return named
    stack = running_stack(home)
    if stack is None:
        return default_tracking_uri(home)
    if stack.is_open:
        logins = read_logins(Path(home))
        os.environ.update({name: logins[name] for name in (MLFLOW_USER, MLFLOW_PASSWORD)})
    return stack.mlflow_url


def choose_mirrors(settings: ExperimentSettings) -> dict[str, str]:
    """Return what a run is mirrored to, unless tracking is off: the kinds, and where.

    Raises
    ------
    MissingPackageError
        If the package of one of them is not installed.
    """
    from ratchet.tracking.mirrors import choose_place

    uri = choose_tracking_uri(settings.home, settings.tracking_uri)
    return {kind: choose_place(kind, uri) for kind in dict.fromkeys(settings.mirrors)}
