"""The stack's Prefect server: Prefect's own, which asks SQLite again where the UI would not.

The stack runs this module instead of ``prefect server start``.
"""

from __future__ import annotations

import sys


def main(host: str, port: int) -> None:
    """Serve until told to stop."""
    import uvicorn
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    uvicorn.run(
        "flows.process.asked_again:create_app",
        factory=True,
        host=host,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
