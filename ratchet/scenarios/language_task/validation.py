"""The tasks that training is looked after by: neither learned from nor among the final tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError, ParameterError
from ratchet.plugins import file_at, is_class_spec
from ratchet.scenarios.language_task.sources.base import SOURCES
from ratchet.scenarios.language_task.task import Task
from ratchet.scenarios.language_task.verifiers_kind.loading import PREFIX

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

VALIDATION = "validation"


def set_apart(
    tasks: Mapping[str, Sequence[Task]], wanted: int, num_train: int | None
) -> dict[str, Sequence[Task]]:
    """Add the set ``validation``: the last ``wanted`` tasks for training, which lose them.

    Unless the tasks have such a set, of which it is the first (all for 0). No prompt of it is left
    for training.

    Raises
    ------
    DataError
        If nothing is left for training.
    """
    train, own = tasks["train"], tasks.get(VALIDATION)
    if own is None and not wanted:
        return dict(tasks)
    if own is None and len(train) <= wanted:
        raise DataError(
            f"language_task.num_validation: got {wanted}, expected fewer than the {len(train)}"
            " tasks that are for training and validation. Give more tasks, or set fewer apart."
        )
    chosen = train[-wanted:] if own is None else own[: wanted or None]
    prompts = {task.prompt_key for task in chosen}
    left = [task for task in train if task.prompt_key not in prompts]
    return {**tasks, "train": left[:num_train], VALIDATION: chosen}


def check_validation(hyper_params: HyperParameters, base_dir: Path | None) -> None:
    """Refuse ``validate_every`` where there are no tasks to validate with.

    Raises
    ------
    ParameterError
        If there are none.
    UnknownNameError, DataError
        If it is not known what the dataset is.
    """
    every = hyper_params.language.validate_every
    if every is None or hyper_params.language_task.num_validation:
        return
    dataset, place = hyper_params.dataset, file_at(hyper_params.dataset, base_dir)
    if not (place.exists() or is_class_spec(dataset) or dataset.startswith(PREFIX)):
        if place.suffix == ".jsonl":
            raise DataError(f"dataset: there is no file {place}.")
        SOURCES.check(dataset)
    if not place.joinpath(f"{VALIDATION}.jsonl").is_file():
        raise ParameterError(
            f"language.validate_every: got {every}, but there are no tasks to validate with."
            " Expected language_task.num_validation, e.g. 100, or a folder of tasks with"
            f" {VALIDATION}.jsonl."
        )
