"""Put changes over plain, nested parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.parameters.custom_trainers import change_own_trainer, is_own_trainer
from ratchet.parameters.torchrl import TORCHRL_TRAINERS
from ratchet.parameters.torchrl_names import forget_names


def merge_changes(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put nested changes over an experiment's nested parameters.

    Mappings are merged, all else is replaced; a mapping of another ``kind`` (an update
    schedule) replaces the whole. Names that follow from what is changed are left out.
    """
    return forget_names(merge_nested(data, changes), changes)


def merge_nested(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put nested changes over any nested parameters; see :func:`merge_changes`."""
    result = dict(data)
    for key, value in changes.items():
        old = result.get(key)
        if key == "trainer" and old in TORCHRL_TRAINERS and _is_group(value):
            result = merge_nested(result, {"torchrl": {"config": {key: value}}})
        elif key == "trainer" and is_own_trainer(old) and isinstance(value, Mapping):
            moved = change_own_trainer(result, value)
            result[key] = moved.pop(key)
            result = merge_nested(result, moved)
        elif isinstance(old, Mapping) and isinstance(value, Mapping) and _same_kind(old, value):
            result[key] = merge_nested(old, value)
        else:
            result[key] = value
    return result


def _is_group(value: object) -> bool:
    """Whether changes to ``trainer`` are settings of TorchRL's trainer, not another trainer."""
    return isinstance(value, Mapping) and "class_name" not in value


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "kind" not in new or old.get("kind", "constant") == new["kind"]
