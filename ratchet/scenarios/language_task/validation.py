"""Checks of parameters against task sources, environments and evaluators; validation scores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.games import OPEN_SPIEL
from ratchet.plugins import file_at, is_class_spec
from ratchet.scenarios.language_task.environments.base import ENVIRONMENTS
from ratchet.scenarios.language_task.evaluators import load_evaluator
from ratchet.scenarios.language_task.sources.base import SOURCES
from ratchet.scenarios.language_task.task import Task

if TYPE_CHECKING:
    from ratchet.parameters.base import Reference
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters

_SCORED = 3
"""An evaluator that is a function is given task, completion and messages first."""

VALIDATION = "validation"


def check_options(section: LanguageTaskParameters, base_dir: Path | None) -> None:
    """Refuse options that environment or evaluator do not accept, without creating them."""
    if section.environment is not None:
        environment_class = ENVIRONMENTS.find(section.environment.name, base_dir)
        _check(section.environment, environment_class, "language_task.environment")
    if section.evaluator is not None:
        scoring = load_evaluator(section.evaluator, base_dir)
        first = 0 if isinstance(scoring, type) else _SCORED
        _check(section.evaluator, scoring, "language_task.evaluator", first)


def check_sizes(section: LanguageTaskParameters, dataset: str) -> None:
    """Refuse more tasks than a dataset can have, before anything is drawn."""
    max_tasks = {
        "reverse": section.reverse.num_symbols**section.reverse.length,
        "arithmetic": len(section.arithmetic.operations)
        * 10 ** (2 * section.arithmetic.num_digits),
    }.get(dataset)
    num_tasks = (section.num_train or 0) + section.num_validation + (section.num_test or 0)
    if max_tasks is not None and num_tasks > max_tasks:
        raise ParameterError(
            f"language_task.num_train: got {section.num_train}, with num_validation"
            f" {section.num_validation} and num_test {section.num_test}, but {dataset} has at most"
            f" {max_tasks} different tasks as configured; expected no more in total. Choose longer"
            " ones, or for fewer."
        )


def _check(reference: Reference, factory: Callable[..., object], path: str, first: int = 0) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # callables written in C have no signature
        return
    try:
        signature.bind(*[None] * first, **reference.given)
    except TypeError as error:
        takes = list(signature.parameters)[first:]
        unknown = [name for name in reference.given if name not in takes]
        raise ParameterError(
            f"{path}: {reference.name} does not accept {dict(reference.given)}: {error}."
            f"{nearest(unknown[0], takes) if unknown else ''}"
        ) from error


def set_apart(
    tasks: Mapping[str, Sequence[Task]], count: int, num_train: int | None
) -> dict[str, Sequence[Task]]:
    """Add the set ``validation``: the last ``count`` training tasks, which are removed there.

    If the tasks have such a set, its first ``count`` tasks are used (all for 0). Its prompts are
    removed from training.
    """
    train, validation_tasks = tasks["train"], tasks.get(VALIDATION)
    if validation_tasks is None and not count:
        return dict(tasks)
    if validation_tasks is None and len(train) <= count:
        raise DataError(
            f"language_task.num_validation: got {count}, expected fewer than the {len(train)}"
            " tasks that are for training and validation. Give more tasks, or set fewer apart."
        )
    chosen = train[-count:] if validation_tasks is None else validation_tasks[: count or None]
    prompts = {task.prompt_key for task in chosen}
    left = [task for task in train if task.prompt_key not in prompts]
    return {**tasks, "train": left[:num_train], VALIDATION: chosen}


def check_validation(hyper_params: HyperParameters, base_dir: Path | None) -> None:
    """Refuse ``validate_every`` without validation tasks."""
    every = hyper_params.language.validate_every
    if every is None or hyper_params.language_task.num_validation:
        return
    dataset, path = hyper_params.dataset, file_at(hyper_params.dataset, base_dir)
    if not (path.exists() or is_class_spec(dataset) or dataset.startswith(OPEN_SPIEL)):
        if path.suffix == ".jsonl":
            raise DataError(f"dataset: there is no file {path}.")
        SOURCES.check(dataset)
    if not path.joinpath(f"{VALIDATION}.jsonl").is_file():
        raise ParameterError(
            f"language.validate_every: got {every}, but there are no tasks to validate with."
            " Expected language_task.num_validation, e.g. 100, or a folder of tasks with"
            f" {VALIDATION}.jsonl."
        )
