"""What a stack needs that other machines reach: passwords, and the names under which they do."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from flows.process.logins import (
    FILE_NAME,
    MLFLOW_PASSWORD,
    MLFLOW_USER,
    PREFECT,
    LoginError,
    read_logins,
)
from flows.process.stack_file import Stack
from ratchet.lazy import require_packages

_SESSION_KEY = "MLFLOW_FLASK_SERVER_SECRET_KEY"
_USER = "admin"
_USERS = "mlflow_auth.db"


def make_logins(home: Path) -> dict[str, str]:
    """Make the passwords of a stack, once; return what clients set in their environment.

    Raises
    ------
    MissingPackageError
        If MLflow could not ask for its password here.
    LoginError
        If MLflow has users already, whose administrator has a password that is gone.
    """
    require_packages(["flask_wtf"], by="MLflow's log-in")
    if not (home / FILE_NAME).exists():
        if (home / _USERS).exists():
            raise LoginError(
                f"{home / _USERS} has users, but their passwords' file {home / FILE_NAME} is gone."
                f" Put it back, or begin anew, without these users: `rm {home / _USERS}`."
            )
        home.mkdir(parents=True, exist_ok=True)
        made = {
            PREFECT: f"{_USER}:{secrets.token_hex(24)}",
            MLFLOW_USER: _USER,
            MLFLOW_PASSWORD: secrets.token_hex(24),
        }
        _write_privately(home / FILE_NAME, "".join(f"{n}={v}\n" for n, v in made.items()))
    _keep_private(home)
    return read_logins(home)


def prefect_access(logins: dict[str, str]) -> dict[str, str]:
    """Return the environment in which Prefect's server asks for its password."""
    return {"PREFECT_SERVER_API_AUTH_STRING": logins[PREFECT]}


def mlflow_access(home: Path, stack: Stack, logins: dict[str, str]) -> dict[str, str]:
    """Return the environment in which MLflow's server asks for its password.

    Sessions end with the server, since their key is a new one. Names that the user has set for
    MLflow, say those of a proxy, stay.
    """
    settings = home / "mlflow_auth.ini"
    settings.write_text(
        "[mlflow]\n"
        "default_permission = READ\n"
        f"database_uri = sqlite:///{home / _USERS}\n"
        f"admin_username = {logins[MLFLOW_USER]}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        encoding="utf-8",
    )
    places = [f"{name}:{stack.mlflow_port}" for name in own_names(stack.host)]
    origins = ",".join(f"http://{place}" for place in places)
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_AUTH_ADMIN_PASSWORD": logins[MLFLOW_PASSWORD],
        _SESSION_KEY: secrets.token_hex(24),
        "MLFLOW_SERVER_ALLOWED_HOSTS": os.environ.get(
            "MLFLOW_SERVER_ALLOWED_HOSTS", ",".join(places)
        ),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": os.environ.get(
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", origins
        ),
    }


def own_names(host: str) -> list[str]:
    """Return under which names this machine is reached when a server listens at ``host``."""
    import psutil

    if host not in ("0.0.0.0", "::"):
        return list(dict.fromkeys([_in_url(host), "127.0.0.1", "localhost"]))
    addresses = [a for some in psutil.net_if_addrs().values() for a in some]
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    found = [_in_url(a.address.partition("%")[0]) for a in addresses if a.family in families]
    return list(dict.fromkeys([socket.gethostname(), socket.getfqdn(), "localhost", *found]))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _keep_private(home: Path) -> None:
    """Let only the owner enter the folder and read MLflow's users and their password hashes.

    MLflow finds its database empty and creates the tables; SQLite keeps a file's permissions.
    """
    home.chmod(0o700)
    os.close(os.open(home / _USERS, os.O_WRONLY | os.O_CREAT, 0o600))
    (home / _USERS).chmod(0o600)


def _write_privately(file: Path, text: str) -> None:
    """Write a new file that was never anybody else's to read, whole or not at all."""
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as private:
        private.write(text)
    aside.replace(file)
