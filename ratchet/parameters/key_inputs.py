"""Select the parameters that stages read for a purpose, as plain data for stage keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.base import SECTIONS, Section, SubParameters
from ratchet.parameters.purposes import EVERYTHING, Purpose, declared_purposes
from ratchet.plugins import class_name

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


def parameters_read(
    hyper_params: HyperParameters,
    purposes: Collection[Purpose],
    trainers: Collection[str] | None = None,
    agent: str | None = None,
) -> dict[str, Any]:
    """Return the parameters that an experiment's stage reads for some purposes, as plain data.

    Sections that don't concern its protocol or scenario are left out. ``trainers`` are the names of
    the trainer if its reads are known: then sections of other trainers are left out too, and so are
    fields without effect (:meth:`SubParameters.unread`). Without ``agent`` all agents are included,
    except those equal to the default.
    """
    sections = [s for s in SECTIONS.values() if is_concerned(s, hyper_params, trainers)]
    result = _values_read(hyper_params, sections, purposes, is_known=trainers is not None)
    agents = agents_read(hyper_params, purposes, agent)
    return {**result, "agents": agents} if any(agents.values()) else result


def _values_read(
    hyper_params: HyperParameters,
    sections: Collection[Section],
    purposes: Collection[Purpose],
    *,
    is_known: bool,
) -> dict[str, Any]:
    """Return the values read at the top level and in some sections; all fields if unknown."""
    data = hyper_params.to_dict() | {"trainer": hyper_params.trainer_name}
    declared = declared_purposes(type(hyper_params))
    result = {name: data[name] for name in declared if declared[name].intersection(purposes)}
    for section in sections:
        values, parameters = data[section.name], getattr(hyper_params, section.name)
        unread = parameters.unread()
        if not is_known and len(unread) < len(values):
            unread = ()
        read = {
            name: _part_read(getattr(parameters, name), values[name], purposes, is_known=is_known)
            for name, its in section.purposes.items()
            if name in values and its.intersection(purposes) and name not in unread
        }
        if read:
            result[section.name] = read
    return result


def is_concerned(
    section: Section, hyper_params: HyperParameters, trainers: Collection[str] | None
) -> bool:
    """Return whether the experiment may read a section; any trainer may if ``trainers`` is None."""
    if trainers is not None and section.trainers and not set(trainers) & set(section.trainers):
        return False
    protocol, scenario = hyper_params.interaction_protocol, hyper_params.scenario
    return section.may_be_read("protocols", protocol) and section.may_be_read("scenarios", scenario)


def agents_read(
    hyper_params: HyperParameters,
    purposes: Collection[Purpose] = EVERYTHING,
    agent: str | None = None,
) -> dict[str, Any]:
    """Return the agents' parameters that are read for some purposes.

    Agents whose selected values equal the default agent's are left out.
    """
    agents = hyper_params.agents
    read = {
        name: section_read(agents[name], purposes)
        for name in (agents if agent is None else (agent,))
    }
    default = read.get(DEFAULT_AGENT)
    return {name: read[name] for name in read if name == DEFAULT_AGENT or read[name] != default}


def section_read(
    section: SubParameters, purposes: Collection[Purpose], *, is_known: bool = True
) -> dict[str, Any]:
    """Return the values of one section read for some purposes; undeclared fields are included.

    The fields of a nested section declare their own purposes. Unless the reader is known, fields
    without effect are included.
    """
    declared, unread = declared_purposes(type(section)), section.unread() if is_known else ()
    return {
        name: _part_read(getattr(section, name), value, purposes, is_known=is_known)
        for name, value in section.to_dict().items()
        if (declared.get(name) or EVERYTHING).intersection(purposes) and name not in unread
    }


def _part_read(
    part: object, value: object, purposes: Collection[Purpose], *, is_known: bool
) -> object:
    if isinstance(part, SubParameters):
        return section_read(part, purposes, is_known=is_known)
    return value


def data_parameters(hyper_params: HyperParameters) -> dict[str, Any]:
    """Return the parameters that affect the datasets, as plain data.

    Ratchet's scenarios sample with ``dataset_seed`` if it is set, so repetitions with different
    seeds share their data.
    """
    scenario = hyper_params.scenario
    sections = [s for s in SECTIONS.values() if s.may_be_read("scenarios", scenario)]
    data = _values_read(hyper_params, sections, {Purpose.DATA}, is_known=False)
    if _dataset_seed(hyper_params) is not None:
        del data["seed"]
    return data


def data_seed(hyper_params: HyperParameters) -> int:
    """Return the seed of the datasets: the scenario's ``dataset_seed`` if set, or ``seed``."""
    seed = _dataset_seed(hyper_params)
    return hyper_params.seed if seed is None else seed


def _dataset_seed(hyper_params: HyperParameters) -> int | None:
    """Return the ``dataset_seed`` of Ratchet's scenario; None for others, which may not read it."""
    for section in SECTIONS.values():
        is_built_in = section.model.__module__.startswith("ratchet.scenarios.")
        if is_built_in and hyper_params.scenario in section.scenarios:
            seed: int | None = getattr(getattr(hyper_params, section.name), "dataset_seed", None)
            if seed is not None:
                return seed
    return None


def without_paths(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Remove the paths of plug-in files: the code fingerprint covers their source."""
    return {name: _without_path(value) for name, value in parameters.items()}


def _without_path(value: object) -> object:
    if isinstance(value, str) and ".py:" in value:
        return value.rpartition(":")[2]
    if isinstance(value, Mapping) and {"module_path", "class_name"} == value.keys():
        return value["class_name"]
    return _without_file(value)


def _without_file(value: object) -> object:
    """Remove the file from class references (``name``) at any depth."""
    if isinstance(value, list | tuple):
        return [_without_file(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    rest = {name: _without_file(inner) for name, inner in value.items()}
    reference = rest.get("name")
    return {**rest, "name": class_name(reference)} if isinstance(reference, str) else rest
