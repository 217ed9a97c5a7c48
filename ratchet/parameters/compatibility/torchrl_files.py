"""Recognise configurations written for TorchRL's ``train.py``, and move their groups.

An experiment file may be such a configuration, unchanged, or have its groups as sections; both are
moved to ``torchrl.config`` before parameters are validated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.errors import ParameterError, shown
from ratchet.parameters.compatibility.torchrl_names import library_defaults, resolved, with_names
from ratchet.parameters.reading.deep_merge import merge_nested
from ratchet.parameters.trainers import TORCHRL_ALGORITHMS, TORCHRL_TRAINERS

SECTION = "torchrl"
_DEFAULTS, _TRAINER = "defaults", "trainer"
_GROUP = re.compile(
    r"defaults|hydra|training_env|env|networks?|models?|exploration(_module)?|greedy_module"
    r"|transforms?\d*|loss(_module)?|value|gae|target_net_updater|replay_buffer|sampler|storage"
    r"|writer|collector|optimizer|lr_scheduler|logger|hooks?|weight_updater|weight_sync_schemes?"
    r"|policy_module\d+|checkpoint(_rotation)?|wandb"
)


def is_library_config(data: Mapping[str, Any]) -> bool:
    """Return whether a file was written for TorchRL itself: it has a list of defaults."""
    return isinstance(data.get(_DEFAULTS), list) and "scenario" not in data


def uses_library_groups(data: Mapping[str, Any]) -> bool:
    """Return whether the library resolves a file's references (``${…}``)."""
    return is_library_config(data) or data.get(_TRAINER) in TORCHRL_TRAINERS


def gather_groups(data: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Move the library's groups from the top of an experiment into ``torchrl.config``.

    ``data`` are a file's, with nested keys; unchanged if they do not concern TorchRL. ``known`` are
    the valid top-level keys of an experiment.
    """
    if is_library_config(data):
        data = _as_experiment(data, known)
    if not _has_groups(data):
        return dict(data)
    section = _mapping(data.get(SECTION), SECTION)
    config, choices = (
        _mapping(section.get(part), f"{SECTION}.{part}") for part in ("config", "choices")
    )
    choices = _flat(choices)
    result = {}
    for name, value in data.items():
        if _is_choice(name, value):
            choices |= _flat({name: value})
        elif name in known or not (name in config or is_group(name)):
            result[name] = value
        else:
            config = merge_nested(config, {name: value})
    for part, content in (("config", config), ("choices", choices)):
        if content:
            section[part] = content
    _move_seed(result, section)
    return with_names({**result, SECTION: section} if section else result)


def _mapping(value: object, name: str) -> dict[str, Any]:
    """Return a mapping with text as keys, an empty one for null; refuse other values."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ParameterError(f"{name}: got {shown(value)}, expected a mapping with text as keys.")
    return dict(value)


def path_in_section(data: Mapping[str, Any], path: str) -> str:
    """Return the path of ``trainer.total_frames`` and similar keys; here ``trainer`` is a name."""
    if path.startswith("trainer.") and _has_groups(data):
        return f"{SECTION}.config.{path}"
    return path


def name_choices(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Separate choices of options (``optimizer=adamw``) from values (``optimizer.lr=0.1``)."""
    if not _has_groups(data):
        return dict(changes)
    return {
        f"{SECTION}.choices.{path}" if _is_choice(path, value) else path: value
        for path, value in changes.items()
    }


def _has_groups(data: Mapping[str, Any]) -> bool:
    return data.get(_TRAINER) in TORCHRL_TRAINERS or library_defaults(data) is not None


def is_group(name: str) -> bool:
    """Return whether a name at the top is that of one of the library's groups."""
    return bool(_GROUP.fullmatch(name))


def _is_choice(name: str, value: object) -> bool:
    if name == _TRAINER:  # else the name of a trainer here
        return value in TORCHRL_ALGORITHMS
    if "@" in name:
        return True
    return is_group(name) and isinstance(value, str) and not value.startswith("${")


def _as_experiment(data: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    experiment_keys = {"settings", "arms", "seed", "dataset", SECTION, "gymnasium"} & set(known)
    config = {name: value for name, value in data.items() if name not in experiment_keys}
    section = _mapping(data.get(SECTION), SECTION)
    return {
        "scenario": "gymnasium",
        **{name: data[name] for name in data if name in experiment_keys},
        SECTION: {**section, "config": config},
    }


def _flat(choices: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return options by the dotted names of their packages, such as ``replay_buffer.sampler``."""
    result: dict[str, Any] = {}
    for name, value in choices.items():
        result |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return {f"{above}{name}": value for name, value in result.items()}


def _move_seed(data: dict[str, Any], section: dict[str, Any]) -> None:
    """Use the library's ``trainer.seed`` as the experiment's."""
    trainer = (section.get("config") or {}).get(_TRAINER)
    if not isinstance(trainer, Mapping) or "seed" not in trainer:
        return
    rest = {name: value for name, value in trainer.items() if name != "seed"}
    seed = trainer["seed"]
    if isinstance(seed, str):  # it refers to the experiment's, or to another value
        seed = resolved({"seed": data.get("seed"), **section["config"]}, f"{_TRAINER}.seed")
    section["config"] = {**section["config"], _TRAINER: rest}
    if seed is not None:
        data["seed"] = seed
