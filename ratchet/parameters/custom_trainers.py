"""Trainers given as a section, with ``custom_trainer_module_path`` and what belongs to them.

Brings its parts to where experiments have them; stands between files and hyper-parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.errors import ParameterError

_PATH, _CLASS = "custom_trainer_module_path", "custom_trainer_class_name"
_STEPS = "total_train_steps"
_SECTION = "language"


def gather_trainer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Move what stands in such a section to ``rl.num_iterations`` and to ``language``.

    ``data`` are an experiment's, with nested keys; left as they are without such a section.

    Raises
    ------
    ParameterError
        If it names a file without a class, or the other way round, or what stands in it is said
        elsewhere too.
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


def _joined(section: object, more: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = dict(section) if isinstance(section, Mapping) else {}
    twice = sorted(given.keys() & more.keys())
    if twice:
        raise ParameterError(
            f"trainer: {', '.join(twice)} is given in the trainer's section and in {name!r},"
            " expected it in one of them."
        )
    return given | dict(more)
