"""Which MLflow a run is mirrored to."""

from __future__ import annotations

import os
from pathlib import Path

from flows.process.stack_file import read_stack


def choose_tracking_uri(home: str | Path, chosen: str | None) -> str:
    """Return the MLflow to mirror to.

    What the settings say (``chosen``), else ``MLFLOW_TRACKING_URI``, else the local stack's server
    if it is up, else the database in ``home``.
    """
    from ratchet.tracking.mlflow.mirror import default_tracking_uri

    named = chosen or os.environ.get("MLFLOW_TRACKING_URI")
    if named:
        return named
    stack = read_stack(Path(home).resolve())
    up = stack is not None and stack.is_up()
    return stack.mlflow_url if stack is not None and up else default_tracking_uri(home)
