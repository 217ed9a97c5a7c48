"""Whether the runner that the settings ask for could work here."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ratchet.errors import ParameterError
from ratchet.lazy import require_packages

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_PACKAGES = {"dask": ("prefect_dask",), "ray": ("prefect_ray", "ray")}
_HOW_TO_START = {"dask": "dask scheduler", "ray": "ray start --head"}
_LOOK_SECONDS = 5.0


def check_runner(settings: ExperimentSettings) -> None:
    """Refuse a runner that could not work here.

    Raises
    ------
    MissingPackageError
        If a package is not installed.
    ParameterError
        If nobody answers at ``settings.cluster_address``, or the runner has no such address.
    """
    name = settings.runner
    require_packages(_PACKAGES.get(name, ()), f"settings.runner: {name!r}")
    address = settings.cluster_address
    if address is None:
        return
    if name not in _PACKAGES:
        raise ParameterError(
            f"settings.cluster_address: got {address!r} with settings.runner={name}, which has no"
            f" cluster; expected settings.runner={' or '.join(_PACKAGES)}. Leave one of them out."
        )
    if name != "ray" or address != "auto":
        _check_address(name, address)


def _check_address(name: str, address: str) -> None:
    """Knock at once, since clusters' own clients try for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise ParameterError(
            f"settings.cluster_address: got {address!r}, expected HOST:PORT, such as"
            f" {'tcp://192.0.2.1:8786' if name == 'dask' else '192.0.2.1:6379'}."
        )
    try:
        socket.create_connection((host, port), _LOOK_SECONDS).close()
    except OSError as error:
        raise ParameterError(
            f"settings.cluster_address: nobody answers at {address} ({error}). Start a cluster"
            f" there (`{_HOW_TO_START[name]}`), or leave the address out for one of this machine's."
        ) from error
