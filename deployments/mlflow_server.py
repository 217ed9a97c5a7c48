"""The stack's MLflow server: MLflow's own, after its database was created whole.

The stack runs this module instead of ``mlflow server``.
"""

from __future__ import annotations

import os
import sys

from ratchet.tracking.mlflow.client import create_database


def main(arguments: list[str]) -> None:
    """Create the database if there is none; then be ``mlflow server``."""
    create_database(os.environ["MLFLOW_BACKEND_STORE_URI"], "mlflow-artifacts:/")
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "server", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
