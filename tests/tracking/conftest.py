"""One empty MLflow database for all tracking tests: its setup takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.tracking.mirrors.mlflow.client import connect, default_tracking_uri


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database once, to be copied."""
    home = tmp_path_factory.mktemp("mlflow")
    connect(default_tracking_uri(home)).search_experiments()
    return home / "mlflow.db"
