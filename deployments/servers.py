"""Server processes of the stack: ``python -m deployments.servers prefect|mlflow …``.

``prefect HOST PORT`` replaces ``prefect server start`` and retries requests while SQLite is busy.
``mlflow OPTIONS…`` replaces ``mlflow server`` and first creates the complete database.
"""

from __future__ import annotations

import os
import sys

from flows.process.prefect_server import create_database


def serve_prefect(host: str, port: int) -> None:
    """Serve Prefect until a signal arrives."""
    import uvicorn
    from prefect.settings import get_current_settings

    create_database()
    settings = get_current_settings().server
    uvicorn.run(
        "flows.process.prefect_server:create_app",
        factory=True,
        host=host,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
    )


def serve_mlflow(arguments: list[str]) -> None:
    """Create the database if it is missing, then execute ``mlflow server`` in this process."""
    from ratchet.tracking.mirrors.mlflow.client import create_database

    create_database(os.environ["MLFLOW_BACKEND_STORE_URI"], "mlflow-artifacts:/")
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "server", *arguments])


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    if name == "prefect":
        serve_prefect(rest[0], int(rest[1]))
    else:
        serve_mlflow(rest)
