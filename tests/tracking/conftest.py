"""One empty MLflow database for all tests of tracking: setting it up takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.tracking.mlflow.client import connect, default_tracking_uri


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set a database up once, to be copied."""
    home = tmp_path_factory.mktemp("mlflow")
    connect(default_tracking_uri(home)).search_experiments()
    return home / "mlflow.db"
