"""``find_suite``: from what an experiment says of a suite to what is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.language_models.suites.installation import find_python, find_versions
from ratchet.language_models.suites.running import Suite
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
    """Return a suite, and the versions of the packages that it stands on.

    ``max_tokens`` bounds answers where the suite does not say.

    Raises
    ------
    ParameterError, UnknownNameError
        If its file or its function is not there, or the interpreter.
    MissingPackageError
        If a package is not installed for that.
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
    """Check that all suites could be run here; raises as :func:`find_suite`."""
    for name in evaluation.suites:
        find_suite(name, evaluation, max_tokens=1, seed=0, base_dir=base_dir)
