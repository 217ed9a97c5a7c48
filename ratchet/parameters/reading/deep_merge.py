"""Merge layers of plain, nested parameters: one rule for all layers.

Layers are ``agents._default`` under each agent, a base run under a file, a file under its arms,
phases and overrides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ratchet.errors import ParameterError, nearest, shown
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.base import SubParameters
from ratchet.parameters.compatibility.custom_trainers import (
    change_custom_trainer,
    is_custom_trainer,
)
from ratchet.parameters.compatibility.torchrl_names import forget_names
from ratchet.parameters.trainers import TORCHRL_TRAINERS

PHASES = "phases"


def merge_changes(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested changes into an experiment's nested parameters.

    Mappings are merged, other values are replaced; a mapping with a different ``kind`` (an update
    schedule) replaces the complete mapping. Phases are changed by name. Names and the number of
    iterations are removed if they follow from changed values.
    """
    return forget_iterations(forget_names(merge_nested(data, changes), changes), changes)


def merge_nested(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested changes into any nested parameters; see :func:`merge_changes`."""
    result = dict(data)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, SubParameters) and isinstance(value, Mapping):
            old = old.to_dict()
        if key == "trainer" and old in TORCHRL_TRAINERS and _is_group(value):
            result = merge_nested(result, {"torchrl": {"config": {key: value}}})
        elif key == "trainer" and is_custom_trainer(old) and isinstance(value, Mapping):
            moved = change_custom_trainer(result, value)
            result[key] = moved.pop(key)
            result = merge_nested(result, moved)
        elif key == PHASES and isinstance(old, list | tuple) and isinstance(value, Mapping):
            result[key] = _change_phases(old, value)
        elif isinstance(old, Mapping) and isinstance(value, Mapping) and _same_kind(old, value):
            result[key] = merge_nested(old, value)
        else:
            result[key] = value
    return result


def merge_agent(
    default: Mapping[str, Any], agent: Mapping[str, Any], fields: Collection[str]
) -> dict[str, Any]:
    """Merge an agent's parameters over those of ``_default``.

    Parameters with all ``fields`` of an agent, such as saved ones, take no part of a section from
    ``_default``.
    """
    if agent.keys() >= set(fields):
        return {**default, **agent}
    return merge_nested(default, agent)


def change_every_agent(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the changes of ``data`` to the default agent to every agent of the base."""
    agents = data.get("agents")
    changes = agents.get(DEFAULT_AGENT) if isinstance(agents, Mapping) else None
    if not isinstance(changes, Mapping):
        return dict(base)
    changed = {name: merge_nested(agent, changes) for name, agent in base["agents"].items()}
    return {**base, "agents": changed}


def follow_default(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Extend nested changes of the default agent to agents that have the same values.

    In complete parameters each agent has all values; those equal to the default ones follow them,
    as they would in a file. Changes of a named agent take precedence.
    """
    agents = data.get("agents")
    agent_changes = changes.get("agents")
    changed = agent_changes.get(DEFAULT_AGENT) if isinstance(agent_changes, Mapping) else None
    if not isinstance(agents, Mapping) or not isinstance(changed, Mapping):
        return dict(changes)
    followed = {
        name: _where_equal(agents[DEFAULT_AGENT], agent, changed)
        for name, agent in agents.items()
        if name != DEFAULT_AGENT
    }
    return merge_nested({"agents": followed}, changes)


def _where_equal(
    default: Mapping[str, Any], agent: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the changes of values that are equal in both."""
    followed: dict[str, Any] = {}
    for key, value in changes.items():
        theirs, agent_value = default.get(key), agent.get(key)
        if theirs == agent_value:
            followed[key] = value
        elif (
            isinstance(value, Mapping)
            and isinstance(theirs, Mapping)
            and isinstance(agent_value, Mapping)
        ):
            followed[key] = _where_equal(theirs, agent_value, value)
    return followed


def forget_iterations(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the number of iterations if phases are changed, since it is their sum.

    ``changes`` may be dotted. It stays if the changes set it.
    """
    section = data.get("rl")
    is_changed = any(name.partition(".")[0] == PHASES for name in changes)
    rl_changes = changes.get("rl")
    is_given = "rl.num_iterations" in changes or (
        isinstance(rl_changes, Mapping) and "num_iterations" in rl_changes
    )
    if not is_changed or is_given or not isinstance(section, Mapping):
        return dict(data)
    rest = {name: value for name, value in section.items() if name != "num_iterations"}
    return {**data, "rl": rest}


def expand_paths(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Nest dotted keys: ``{"rl.lr": 1, "rl": {"gamma": 1}}`` → ``{"rl": {"lr": 1, "gamma": 1}}``.

    Raises ParameterError if a key is not text.
    """
    result: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise ParameterError(f"{source}: the key {shown(key)} is not text. Put it in quotes.")
        nested = expand_paths(value, source) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        result = merge_nested(result, nested)
    return result


def has_path(values: object, path: str) -> bool:
    """Return whether nested mappings contain a dotted path."""
    for name in path.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def _change_phases(phases: Sequence[Any], changes: Mapping[str, Any]) -> list[Any]:
    """Apply changes to the phases that they name."""
    names = [phase.get("name") if isinstance(phase, Mapping) else None for phase in phases]
    result = list(phases)
    for name, change in changes.items():
        if name not in names:
            known = [str(each) for each in names if each is not None]
            raise ParameterError(
                f"{PHASES}.{name}: there is no phase {shown(name)}, expected one of {known}."
                f"{nearest(name, known)}"
            )
        if not isinstance(change, Mapping):
            raise ParameterError(
                f"{PHASES}.{name}: got {shown(change)}, expected a phase's parameter, such as"
                f" {PHASES}.{name}.num_iterations."
            )
        index = names.index(name)
        result[index] = merge_nested(expand_paths(result[index], f"{PHASES}.{name}"), change)
    return result


def _is_group(value: object) -> bool:
    """Return whether changes of ``trainer`` configure TorchRL's trainer, not name another."""
    return isinstance(value, Mapping) and "class_name" not in value


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether two mappings have the same kind, or the same ``_type`` in nip's files."""
    if "_type" in new and old.get("_type") != new["_type"]:
        return False
    return "kind" not in new or old.get("kind", "constant") == new["kind"]
