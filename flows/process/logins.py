"""The passwords of a local stack that other machines reach: a file that only its owner reads.

Lines of ``NAME=VALUE``, as a shell reads them. Written by :mod:`deployments.access`.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.errors import RatchetError

FILE_NAME = "logins.env"
PREFECT = "PREFECT_API_AUTH_STRING"
MLFLOW_USER, MLFLOW_PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


class LoginError(RatchetError, RuntimeError):
    """The passwords of a stack are not where they should be."""


def read_logins(home: Path) -> dict[str, str]:
    """Return what clients of the stack set in their environment.

    Raises
    ------
    LoginError
        If the file is not there, or not whole.
    """
    file = home / FILE_NAME
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        message = f"the servers ask for passwords, but {file} cannot be read: {error}"
        raise LoginError(f"{message}. Start them again: `ratchet down`, `ratchet up`.") from error
    found = {name: value for name, _, value in (line.partition("=") for line in lines) if value}
    missing = {PREFECT, MLFLOW_USER, MLFLOW_PASSWORD} - set(found)
    if missing:
        raise LoginError(f"{file}: expected lines NAME=VALUE for {', '.join(sorted(missing))} too")
    return found
