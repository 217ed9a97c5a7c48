"""What stands beside the name of an environment or evaluator, held against what that takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, nearest
from ratchet.scenarios.language_task.environments.base import ENVIRONMENTS
from ratchet.scenarios.language_task.evaluators.base import find_scoring

if TYPE_CHECKING:
    from ratchet.parameters.base import Reference
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters

_SCORED = 3
"""An evaluator that is a function is given task, completion and messages first."""


def check_options(section: LanguageTaskParameters, base_dir: Path | None) -> None:
    """Refuse options that environment or evaluator do not take; neither is made.

    Raises
    ------
    ParameterError, UnknownNameError
        With the nearest option, or if there is nothing of that name.
    """
    if section.environment is not None:
        found = ENVIRONMENTS.find(section.environment.name, base_dir)
        _check(section.environment, found, "language_task.environment")
    if section.evaluator is not None:
        scoring = find_scoring(section.evaluator, base_dir)
        first = 0 if isinstance(scoring, type) else _SCORED
        _check(section.evaluator, scoring, "language_task.evaluator", first)


def check_sizes(section: LanguageTaskParameters, dataset: str) -> None:
    """Refuse more tasks than a dataset can have, before anything is drawn.

    Raises
    ------
    ParameterError
        With the number of different tasks.
    """
    most = {
        "reverse": section.reverse.num_symbols**section.reverse.length,
        "arithmetic": len(section.arithmetic.operations)
        * 10 ** (2 * section.arithmetic.num_digits),
    }.get(dataset)
    wanted = (section.num_train or 0) + section.num_validation + (section.num_test or 0)
    if most is not None and wanted > most:
        raise ParameterError(
            f"language_task.num_train: got {section.num_train}, with num_validation"
            f" {section.num_validation} and num_test {section.num_test}, but {dataset} has at most"
            f" {most} different tasks as configured; expected no more together. Ask for longer"
            " ones, or for fewer."
        )


def _check(reference: Reference, found: Callable[..., object], path: str, first: int = 0) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of what is made in C, nothing is known
        return
    try:
        signature.bind(*[None] * first, **reference.given)
    except TypeError as error:
        takes = list(signature.parameters)[first:]
        unknown = [name for name in reference.given if name not in takes]
        raise ParameterError(
            f"{path}: {reference.name} can't be made with {dict(reference.given)}: {error}."
            f"{nearest(unknown[0], takes) if unknown else ''}"
        ) from error
