"""Where ``inspect-ai`` is installed, and in which version: asked of the interpreter that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ratchet.errors import MissingPackageError, ParameterError

NEEDED = ("inspect-ai", "openai")
_ASK = """
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        owners = metadata.packages_distributions().get(name)
        return metadata.version(owners[0]) if owners else None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def find_versions(
    python: str | None, packages: tuple[str, ...], base_dir: Path | None
) -> dict[str, str]:
    """Return the versions of ``inspect-ai``, ``openai`` and of packages of tasks.

    Parameters
    ----------
    python
        The interpreter, from ``base_dir``; None for the one that runs this.

    Raises
    ------
    ParameterError
        If there is no such interpreter.
    MissingPackageError
        With what is to be installed, and how.
    """
    interpreter = find_python(python, base_dir)
    found = _versions(interpreter, (*NEEDED, *packages))
    missing = [name for name, version in found.items() if version is None]
    if missing:
        raise MissingPackageError(
            f"evaluation.suites: {', '.join(missing)} not installed for {interpreter}. Install it:"
            f" {interpreter} -m pip install {' '.join(missing)}; or name another interpreter with"
            " evaluation.python, e.g. one of a virtual environment of its own."
        )
    return {name: version for name, version in found.items() if version is not None}


def find_python(python: str | None, base_dir: Path | None) -> str:
    """Return the interpreter that has ``inspect-ai``.

    Raises ParameterError if there is no such file.
    """
    if python is None:
        return sys.executable
    # not resolved: a virtual environment's interpreter is a link that must be called by its name
    found = Path(os.path.abspath((base_dir or Path()) / Path(python).expanduser()))
    if not os.access(found, os.X_OK) or found.is_dir():
        raise ParameterError(
            f"evaluation.python: got {python!r}, but {found} is no program. Expected a Python"
            " interpreter, e.g. .venv-inspect/bin/python."
        )
    return str(found)


def environment_for(python: str) -> dict[str, str]:
    """Return the environment in which an interpreter is started.

    Without what would set options of ``inspect-ai``, and of another one without our modules.
    """
    own = {"PYTHONPATH", "PYTHONHOME"} if python != sys.executable else set()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith("INSPECT_")
    }


@lru_cache
def _versions(python: str, names: tuple[str, ...]) -> Mapping[str, str | None]:
    done = subprocess.run(
        [python, "-c", _ASK, *names],
        env=environment_for(python),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, str | None] = json.loads(done.stdout)
    except ValueError as error:
        raise ParameterError(
            f"evaluation.python: {python} could not say what it has (code {done.returncode}):"
            f" {done.stderr.strip()[-500:] or 'it printed something else'}. Expected an interpreter"
            " of Python 3.10 or later."
        ) from error
    return found
