"""Trainers given as a section with ``custom_trainer_module_path``.

Moves the section's fields to where experiments have them, before parameters are validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.errors import ParameterError
from ratchet.parameters.base import SECTIONS

_PATH, _CLASS = "custom_trainer_module_path", "custom_trainer_class_name"
_STEPS = "total_train_steps"
_SECTION = "language"
_REFERENCE = {"module_path", "class_name"}
_PATHS = {
    _PATH: "trainer.module_path",
    _CLASS: "trainer.class_name",
    _STEPS: "rl.num_iterations",
    **{name: f"trainer.{name}" for name in _REFERENCE},
}
"""Field of such a section → its path in an experiment; others are fields of ``language``."""


def gather_trainer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Move the fields of such a section to ``rl.num_iterations`` and to ``language``.

    ``data`` are an experiment's, with nested keys; unchanged without such a section.
    """
    trainer = data.get("trainer")
    if not isinstance(trainer, Mapping) or not {_PATH, _CLASS} & trainer.keys():
        return dict(data)
    missing = {_PATH, _CLASS} - trainer.keys()
    if missing:
        raise ParameterError(
            f"trainer: got {sorted(trainer)} without {missing.pop()}, expected both {_PATH} (from"
            f" the experiment file's folder) and {_CLASS}."
        )
    rest = {name: value for name, value in trainer.items() if name not in (_PATH, _CLASS)}
    result = {**data, "trainer": {"module_path": trainer[_PATH], "class_name": trainer[_CLASS]}}
    if _STEPS in rest:
        steps = {"num_iterations": rest.pop(_STEPS)}
        result["rl"] = _joined(data.get("rl"), steps, "rl")
    if rest:
        result[_SECTION] = _joined(data.get(_SECTION), rest, _SECTION)
    return result


def is_custom_trainer(trainer: object) -> bool:
    """Return whether an experiment's trainer is a class in a file, given by its two parts."""
    return isinstance(trainer, Mapping) and trainer.keys() == _REFERENCE


def change_custom_trainer(data: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes in the section of a custom trainer as changes of the experiment.

    ``data`` is the experiment, whose trainer is a class in a file.
    """
    result: dict[str, Any] = {"trainer": dict(data["trainer"])}
    for name, value in change.items():
        top, _, inner = _path_of(name).partition(".")
        result.setdefault(top, {})[inner] = value
    return result


def path_of_custom_trainer(data: Mapping[str, Any], path: str) -> str:
    """Return the path of ``trainer.total_train_steps`` and similar fields in an experiment."""
    top, _, rest = path.partition(".")
    if top != "trainer" or not rest or not is_custom_trainer(data.get("trainer")):
        return path
    name, dot, inner = rest.partition(".")
    return f"{_path_of(name)}{dot}{inner}"


def _path_of(name: str) -> str:
    of_section = name in SECTIONS[_SECTION].model.model_fields
    return _PATHS.get(name, f"{_SECTION if of_section else 'trainer'}.{name}")


def _joined(section: object, more: Mapping[str, Any], name: str) -> dict[str, Any]:
    parameters = dict(section) if isinstance(section, Mapping) else {}
    twice = sorted(parameters.keys() & more.keys())
    if twice:
        raise ParameterError(
            f"trainer: {', '.join(twice)} is given in the trainer's section and in {name!r},"
            " expected it in one of them."
        )
    return parameters | dict(more)
