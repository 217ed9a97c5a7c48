"""The values that identify an experiment in every version: those that differ from first defaults.

Ids of runs and sweeps are hashes of them. A parameter that a later version adds is at its default,
so it changes no id. A version that changes a default adds a row to :data:`CHANGED_DEFAULTS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_origin

from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.base import SECTIONS, SubParameters
from ratchet.parameters.key_inputs import is_concerned
from ratchet.store.keys import canonical_json

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


@dataclass(frozen=True)
class DefaultChange:
    """A default that affects results and has changed.

    Attributes
    ----------
    path
        Dotted path of the parameter, in which ``*`` stands for every agent.
    old, new
        Its values before and since ``version``.
    """

    path: str
    old: object
    new: object
    version: str


CHANGED_DEFAULTS: tuple[DefaultChange, ...] = (
    DefaultChange("agents.*.num_invalid_generation_retries", 20, 3, "0.1.0"),
)
"""Every changed default, the oldest change of a parameter first."""


def earlier_defaults(hyper_params: HyperParameters) -> Iterator[dict[str, DefaultChange]]:
    """Iterate over earlier versions' defaults, each the changes since then by dotted path.

    Only of parameters that have the current default, for each agent separately.
    """
    paths = {change: _paths(change, hyper_params) for change in CHANGED_DEFAULTS}
    latest = {path: change.new for change in CHANGED_DEFAULTS for path in paths[change]}
    current = {path for path, new in latest.items() if hyper_params.get(path) == new}
    for start in range(len(CHANGED_DEFAULTS)):
        changes: dict[str, DefaultChange] = {}
        for change in CHANGED_DEFAULTS[start:]:
            for path in paths[change]:
                if path in current:
                    changes.setdefault(path, change)
        yield changes


def _paths(change: DefaultChange, hyper_params: HyperParameters) -> list[str]:
    """Return the paths of a parameter in an experiment: one for each agent that has it."""
    _, star, field = change.path.partition("*.")
    if not star:
        return [change.path]
    agents = hyper_params.agents
    return [
        change.path.replace("*", name)
        for name in agents
        if field.partition(".")[0] in type(agents[name]).model_fields
    ]


def parameters_digest(arms: Mapping[str, HyperParameters], origin: Sequence[str] = ()) -> str:
    """Return a hash that identifies an experiment with these arms.

    ``origin`` adds further inputs, such as the parent of a fork.
    """
    values = {arm: identifying_values(params) for arm, params in arms.items()}
    return hashlib.sha256(canonical_json([values, list(origin)])).hexdigest()


def identifying_values(hyper_params: HyperParameters) -> dict[str, Any]:
    """Return the values of an experiment that differ from their first defaults, as plain data.

    A changed default counts with its first value, unless no stage reads the parameter.
    """
    data, fields = hyper_params.to_dict(), type(hyper_params).model_fields
    result = {
        name: data[name]
        for name, field in fields.items()
        if name in data and name != "phases" and data[name] != _plain(field.default)
    }
    if hyper_params.phases:
        result["phases"] = _described(hyper_params.phases, data["phases"])
    trainers = {hyper_params.trainer_name}
    for name, section in sorted(SECTIONS.items()):
        is_read = is_concerned(section, hyper_params, trainers)
        values = _differences(getattr(hyper_params, name), section.model(), name, is_read=is_read)
        if values:
            result[name] = values
    agents = _identifying_agents(hyper_params)
    return {**result, "agents": agents} if agents else result


def _identifying_agents(hyper_params: HyperParameters) -> dict[str, Any]:
    """Return the differences of each agent; agents equal to the default agent are left out."""
    agents = hyper_params.agents
    values = {
        name: _differences(agents[name], type(agents[name])(), f"agents.{name}", is_read=True)
        for name in agents
    }
    default = values.pop(DEFAULT_AGENT)
    others = {name: each for name, each in values.items() if each != default}
    return {DEFAULT_AGENT: default, **others} if default else others


def _differences(
    section: SubParameters, base: SubParameters, path: str, *, is_read: bool
) -> dict[str, Any]:
    """Return the values of a section that differ from those of ``base``, of the same class."""
    data, unread = section.to_dict(), set(section.unread())
    result: dict[str, Any] = {}
    for name, default in base.to_dict().items():
        value, counterpart = getattr(section, name), getattr(base, name)
        if isinstance(value, SubParameters) and type(value) is type(counterpart):
            inner = _differences(
                value, counterpart, f"{path}.{name}", is_read=is_read and name not in unread
            )
            if inner:
                result[name] = inner
            continue
        first = _first_default(f"{path}.{name}", default)
        is_unread = not is_read or name in unread
        if data[name] != first and not (is_unread and data[name] == default):
            result[name] = _described(value, data[name])
    extra = data.keys() - type(section).model_fields.keys()
    return result | {name: data[name] for name in sorted(extra)}


def _first_default(path: str, default: object) -> object:
    """Return the first default of a parameter, given its current one."""
    return next((c.old for c in CHANGED_DEFAULTS if fnmatchcase(path, c.path)), default)


def without_defaults(section: SubParameters) -> dict[str, Any]:
    """Return a section as plain data without optional values that are at their defaults."""
    values: dict[str, Any] = _described(section, section.to_dict())
    return values


def _described(value: object, plain: Any) -> Any:  # noqa: ANN401 -- plain data
    """Return plain data without the optional values of sections that are at their defaults."""
    if isinstance(value, SubParameters):
        fields = type(value).model_fields
        return {
            name: _described(getattr(value, name), each)
            for name, each in plain.items()
            if name not in fields
            or get_origin(fields[name].annotation) is Literal  # e.g. the kind of a schedule
            or each != _plain(fields[name].get_default(call_default_factory=True))
        }
    if isinstance(value, Mapping) and isinstance(plain, Mapping):
        pairs = zip(plain.items(), value.values(), strict=True)
        return {name: _described(inner, each) for (name, each), inner in pairs}
    if isinstance(value, list | tuple) and isinstance(plain, list):
        return [_described(inner, each) for inner, each in zip(value, plain, strict=True)]
    return plain


def _plain(value: object) -> object:
    """Return a default as plain data."""
    if isinstance(value, SubParameters):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
