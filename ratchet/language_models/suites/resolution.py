"""Resolution of configured suites: task, interpreter and package versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import MissingPackageError, ParameterError
from ratchet.language_models.suites.running import Suite, environment_for
from ratchet.language_models.suites.task import SuiteTask

if TYPE_CHECKING:
    from ratchet.parameters.options import EvaluationParameters


def find_suite(
    name: str,
    evaluation: EvaluationParameters,
    *,
    max_tokens: int,
    seed: int,
    base_dir: Path | None,
) -> tuple[Suite, dict[str, str]]:
    """Return a suite, and the versions of the packages that it uses.

    ``max_tokens`` is the default limit of a completion.
    """
    section, python = evaluation.suites[name], evaluation.python
    task = SuiteTask.find(section.task, base_dir, section.arguments)
    packages = () if task.package is None else (task.package,)
    suite = Suite(
        name,
        task,
        find_python(python, base_dir),
        seed,
        section.max_tokens or max_tokens,
        section.arguments,
        section.temperature,
        section.limit,
        section.max_connections,
    )
    return suite, find_versions(python, packages, base_dir)


def check_suites(evaluation: EvaluationParameters, base_dir: Path | None) -> None:
    """Check that all suites can be run here; raises as :func:`find_suite`."""
    for name in evaluation.suites:
        find_suite(name, evaluation, max_tokens=1, seed=0, base_dir=base_dir)


NEEDED = ("inspect-ai", "openai")
_VERSION_SCRIPT = """
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
        The interpreter, relative to ``base_dir``; None for the current one.
    """
    interpreter = find_python(python, base_dir)
    versions = _versions(interpreter, (*NEEDED, *packages))
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        raise MissingPackageError(
            f"evaluation.suites: {', '.join(missing)} not installed for {interpreter}. Install it:"
            f" {interpreter} -m pip install {' '.join(missing)}; or set another interpreter with"
            " evaluation.python, e.g. that of a separate virtual environment."
        )
    return {name: version for name, version in versions.items() if version is not None}


def find_python(python: str | None, base_dir: Path | None) -> str:
    """Return the interpreter that has ``inspect-ai``.

    Raises ParameterError if the file does not exist.
    """
    if python is None:
        return sys.executable
    # not resolved: a virtual environment's interpreter is a link that must be called by its name
    interpreter = Path(os.path.abspath((base_dir or Path()) / Path(python).expanduser()))
    if not os.access(interpreter, os.X_OK) or interpreter.is_dir():
        raise ParameterError(
            f"evaluation.python: got {python!r}, but {interpreter} is not executable. Expected a"
            " Python interpreter, e.g. .venv-inspect/bin/python."
        )
    return str(interpreter)


@lru_cache
def _versions(python: str, names: tuple[str, ...]) -> Mapping[str, str | None]:
    done = subprocess.run(
        [python, "-c", _VERSION_SCRIPT, *names],
        env=environment_for(python),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        versions: dict[str, str | None] = json.loads(done.stdout)
    except ValueError as error:
        raise ParameterError(
            f"evaluation.python: {python} could not list its packages (code {done.returncode}):"
            f" {done.stderr.strip()[-500:] or 'unexpected output'}. Expected an interpreter"
            " of Python 3.10 or later."
        ) from error
    return versions
