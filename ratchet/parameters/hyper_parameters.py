"""``HyperParameters``: the parameters that affect an experiment's result.

Top-level values are defined here; sections come from the registry, so plug-ins add theirs without
an edit of this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError

from ratchet.errors import ParameterError, RatchetError, nearest, shown
from ratchet.parameters.agents import DEFAULT_AGENT, AgentParameters, AgentsParameters
from ratchet.parameters.base import SECTIONS, References, SubParameters
from ratchet.parameters.compatibility.converters import PARAMETERS_VERSION, VERSION_KEY, upgraded
from ratchet.parameters.compatibility.custom_trainers import gather_trainer, path_of_custom_trainer
from ratchet.parameters.compatibility.torchrl_files import gather_groups, path_in_section
from ratchet.parameters.compatibility.torchrl_names import forget_names
from ratchet.parameters.phases import Phases
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.reading.deep_merge import (
    expand_paths,
    follow_default,
    forget_iterations,
    merge_agent,
    merge_nested,
)
from ratchet.parameters.reading.discovery import agent_model, load_files, load_plugins
from ratchet.parameters.reading.messages import (
    describe_validation_error,
    raise_together,
    suggest_at_top,
)
from ratchet.parameters.trainers import MAX_ITERATIONS, TrainerReference

OMITTED_IF_EMPTY = frozenset({"phases", "files"})
"""Parameters that plain data contain only if they are not empty."""


class HyperParameters(BaseModel):
    """All parameters that affect the result of an experiment.

    Sections (``rl``, ``ppo``, ``nip_protocol`` …) are attributes too: those registered with
    :func:`ratchet.parameters.register_parameters`, with their defaults where not given. ``agents``
    maps names to agent parameters, ``_default`` to those of all other agents. The default
    ``interaction_protocol`` is the scenario's, "nip" for most. With ``phases``,
    ``rl.num_iterations`` is the sum of their iterations.

    - ``scenario``: name of the scenario, which builds data, environment and agents.
    - ``trainer``: name of the trainer, ``path/to/file.py:Class``, or ``module_path`` and
      ``class_name``.
    - ``dataset``: dataset of the scenario; scenarios list their own.
    - ``seed``: seed of everything that is sampled.
    - ``pretrain_agents``: train the agents' bodies on labels before training.
    - ``test_size``: share of the datapoints that are held out for tests, if the dataset has no
      split.
    - ``d_representation``: dimension of the representation that bodies pass to heads.
    - ``message_size``: number of symbols in a message of a network.
    - ``include_linear_message_space``: add a channel for real-valued messages.
    - ``d_linear_message_space``: dimension of real-valued messages.
    - ``callbacks``: callbacks of the trainer, each with its arguments next to its name.
    - ``phases``: curriculum of training phases.
    - ``files``: files that custom code reads, as paths or patterns (``prompts/*.txt``) relative to
      the experiment file's folder; their content counts as code of the stages that run it.

    Raises
    ------
    ParameterError
        For an unknown key, a wrong type or a value out of range; with the dotted path, the value
        and the expected one.
    """

    model_config = ConfigDict(frozen=True, extra="allow", validate_default=True)

    scenario: Annotated[str, Purpose.DATA, Purpose.GAME]
    trainer: Annotated[str | TrainerReference, Purpose.GAME]
    dataset: Annotated[str, Purpose.DATA, Purpose.GAME]
    interaction_protocol: Annotated[str, Purpose.GAME] = "nip"
    seed: Annotated[NonNegativeInt, Purpose.DATA, Purpose.GAME, Purpose.PRETRAINING] = 6198
    pretrain_agents: Annotated[bool, Purpose.NETWORKS] = False
    test_size: Annotated[float, Purpose.DATA] = Field(default=0.2, gt=0, lt=1)
    d_representation: Annotated[PositiveInt, Purpose.NETWORKS] = 16
    message_size: Annotated[PositiveInt, Purpose.NETWORKS] = 1
    include_linear_message_space: Annotated[bool, Purpose.NETWORKS] = False
    d_linear_message_space: Annotated[PositiveInt, Purpose.NETWORKS] = 2
    callbacks: Annotated[References, Purpose.NOTHING] = ()
    """Each callback declares which stages' keys include it."""
    phases: Annotated[Phases, Purpose.NOTHING] = ()
    """A stage reads only the parameters of its phase."""
    files: Annotated[tuple[str, ...], Purpose.NOTHING] = ()
    """The fingerprints of stages with custom code contain their digests."""

    def __init__(self, **data: Any) -> None:  # noqa: ANN401 -- pydantic's signature
        data = self.gather(data)
        plain = {name: data.pop(name) for name in list(data) if name in type(self).model_fields}
        errors: list[RatchetError] = _unknown(data)
        sections = _read_sections(data, errors)
        agents = _read_agents(plain.get("scenario"), data.get("agents", {}), errors)
        if agents is not None and "interaction_protocol" not in plain:
            played = getattr(agents[DEFAULT_AGENT], "default_protocol", "nip")
            plain["interaction_protocol"] = played
        try:
            super().__init__(**plain)
        except ValidationError as error:
            wrong = ParameterError(describe_validation_error(error, model=type(self)))
            raise_together([wrong, *errors])
        raise_together(errors)
        raise_together(list(_not_finite({**plain, **data})))
        if self.phases:
            sections["rl"] = _sum_iterations(self.phases, data.get("rl", {}), sections["rl"])
        extra = self.__pydantic_extra__
        assert extra is not None  # extra="allow"
        extra.update(sections, agents=agents)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- sections are of any type
        """Return the defaults of a section that was registered after this value was created."""
        extra = object.__getattribute__(self, "__pydantic_extra__") or {}
        if name in extra:
            return extra[name]
        if name in SECTIONS:
            return SECTIONS[name].model()
        raise AttributeError(f"HyperParameters has no {name!r}.{nearest(name, self.known_keys())}")

    @property
    def trainer_name(self) -> str:
        """The trainer's registered name, or the class name of a trainer from a file."""
        return self.trainer if isinstance(self.trainer, str) else self.trainer.class_name

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the valid top-level keys of an experiment file."""
        return sorted([*cls.model_fields, *SECTIONS, "agents"])

    @classmethod
    def gather(cls, data: Mapping[str, Any], others: tuple[str, ...] = ()) -> dict[str, Any]:
        """Move the top-level groups of other systems' files to their sections.

        The nested ``data`` are not changed; ``others`` are further valid top-level keys.
        """
        load_plugins()
        return gather_groups(gather_trainer(data), (*cls.known_keys(), *others))

    def get(self, path: str) -> Any:  # noqa: ANN401 -- a value or a section of any type
        """Return the value or section at a dotted path, e.g. ``agents.prover.d_gnn``.

        Raises ParameterError if it does not exist.
        """
        node: Any = self
        for name in path.split("."):
            if isinstance(node, AgentsParameters):
                node = node[name]
                continue
            if node is self.phases:
                node = {phase.name: phase for phase in self.phases}
            if isinstance(node, Mapping) and name in node:
                node = node[name]
                continue
            known = self.known_keys() if node is self else getattr(type(node), "model_fields", ())
            if name not in known:
                raise ParameterError(
                    f"{path}: there is no parameter {shown(name)}.{nearest(name, known)}"
                )
            node = getattr(node, name)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain data; :meth:`from_dict` is its exact inverse.

        Sections that other experiments' files registered are left out: readers do not load those
        files.
        """
        result: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        if isinstance(self.trainer, TrainerReference):
            result["trainer"] = self.trainer.to_dict()
        result["callbacks"] = [reference.to_dict() for reference in self.callbacks]
        result["files"] = list(self.files)
        result["phases"] = [phase.to_dict() for phase in self.phases]
        result = {n: v for n, v in result.items() if v or n not in OMITTED_IF_EMPTY}
        for name, section in sorted(SECTIONS.items()):
            values = getattr(self, name)
            is_own = section.model.__module__.startswith("ratchet.")
            is_read = is_own or section.may_be_read("scenarios", self.scenario)
            if is_read or values != section.model():
                result[name] = values.to_dict()
        result["agents"] = self.agents.to_dict()
        return result

    def to_saved_dict(self) -> dict[str, Any]:
        """Return the saved form: all values, and the version of their names."""
        return {VERSION_KEY: PARAMETERS_VERSION, **self.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], base_dir: str | Path | None = None) -> Self:
        """Make parameters from plain data; from those of an earlier version too.

        Paths of the user's files start from ``base_dir``: they are loaded first, for the sections
        that they register. None if they have been.
        """
        current = upgraded(data, "from_dict")
        if base_dir is not None:
            load_files(current, base_dir)
        return cls(**current)

    def replace(self, changes: Mapping[str, Any], base_dir: str | Path | None = None) -> Self:
        """Make a copy with some values changed.

        Changes are dotted path → new value, e.g. ``{"rl.num_iterations": 20}``. Agents with the
        value of ``agents._default`` follow its changes. ``base_dir`` is as for :meth:`from_dict`,
        where a change names a file.
        """
        data = forget_iterations(self.to_dict(), changes)
        defaults = {p: v for p, v in changes.items() if p.startswith(f"agents.{DEFAULT_AGENT}.")}
        followed = follow_default(data, expand_paths(defaults, "changes"))
        data = merge_nested(data, {"agents": followed.get("agents", {})})
        for path, value in changes.items():
            if path.startswith("phases."):
                data = merge_nested(data, expand_paths({path: value}, "changes"))
            else:
                set_path(data, path_in_section(data, path_of_custom_trainer(data, path)), value)
        return type(self).from_dict(forget_names(data, changes), base_dir)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HyperParameters):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.scenario, self.trainer, self.dataset, self.seed))


def _not_finite(data: object, path: str = "") -> Iterator[RatchetError]:
    """Yield an error for each number in plain data that keys cannot contain: NaN and infinity."""
    if isinstance(data, float) and not math.isfinite(data):
        yield ParameterError(f"{path}: got {data}, expected a finite number.")
    elif isinstance(data, Mapping):
        for name, value in data.items():
            yield from _not_finite(value, f"{path}.{name}" if path else str(name))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _not_finite(value, f"{path}.{index}")


def set_path(data: dict[str, Any], path: str, value: object) -> None:
    """Set ``data["a"]["b"]`` for the path ``a.b``, creating missing sections."""
    *parents, last = path.split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ParameterError(
                f"{path}: {shown(parent)} is the value {shown(child)}, expected a section that"
                f" has {shown(last)}."
            )
        data = child
    data[last] = value


def _sum_iterations(phases: Phases, rl_values: object, rl: SubParameters) -> SubParameters:
    """Return the section ``rl`` with the iterations of all phases; refuse another number."""
    names = [phase.name for phase in phases]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(
                f"phases: got {names}, expected each name once, not {shown(name)} twice."
            )
    total = sum(phase.num_iterations for phase in phases)
    if isinstance(rl_values, SubParameters):
        rl_values = rl_values.model_dump(include=rl_values.model_fields_set)
    if total > MAX_ITERATIONS:
        raise ParameterError(
            f"phases: got {total:,} iterations in total, expected at most {MAX_ITERATIONS:,}."
        )
    num_iterations = rl_values.get("num_iterations") if isinstance(rl_values, Mapping) else None
    if num_iterations not in (None, total):
        raise ParameterError(
            f"rl.num_iterations: got {num_iterations}, but the phases {', '.join(names)} have"
            f" {total} iterations in total, expected that or none. Leave it out, and change a"
            f" phase's: phases.{names[-1]}.num_iterations."
        )
    return rl.model_copy(update={"num_iterations": total})


def _unknown(data: Mapping[str, Any]) -> list[RatchetError]:
    """Return an error for each invalid top-level key."""
    return [
        ParameterError(
            f"{name}: unknown parameter (value {shown(value)})."
            f"{suggest_at_top(name, HyperParameters.known_keys())}"
            " A plug-in's section must be registered before it is read."
        )
        for name, value in data.items()
        if name not in SECTIONS and name != "agents"
    ]


def _read_sections(data: Mapping[str, Any], errors: list[RatchetError]) -> dict[str, SubParameters]:
    """Validate the sections that are registered."""
    sections = {}
    for name, section in sorted(SECTIONS.items()):
        value = data.get(name, {})
        if isinstance(value, SubParameters):  # perhaps from another import of the same file
            value = value.to_dict()
        try:
            sections[name] = section.model.model_validate(value)
        except ValidationError as error:
            message = describe_validation_error(error, prefix=name, model=section.model)
            errors.append(ParameterError(message))
    return sections


def _read_agents(
    scenario: object, data: object, errors: list[RatchetError]
) -> AgentsParameters | None:
    """Validate the agents, each over the values of ``_default``; None if something is wrong."""
    if isinstance(data, AgentsParameters):
        return data
    if not isinstance(data, Mapping):
        errors.append(
            ParameterError(f"agents: got {shown(data)}, expected a mapping from agent names.")
        )
        return None
    if not isinstance(scenario, str):
        return None  # its own validation reports the error
    try:
        model = agent_model(scenario)
    except RatchetError as error:
        errors.append(error)
        return None
    default = data.get(DEFAULT_AGENT, {})
    if isinstance(default, SubParameters):
        default = default.to_dict()
    agents: dict[str, AgentParameters] = {}
    for name in dict.fromkeys((DEFAULT_AGENT, *data)):
        under = default if DEFAULT_AGENT in agents else {}  # whose errors are reported already
        try:
            agents[name] = _read_agent(model, name, data.get(name, {}), under)
        except ParameterError as error:
            errors.append(error)
    if len(agents) < len({DEFAULT_AGENT, *data}):
        return None
    return AgentsParameters(agents.pop(DEFAULT_AGENT), agents)


def _read_agent(
    model: type[SubParameters], name: str, value: object, default: Mapping[str, Any]
) -> AgentParameters:
    if isinstance(value, SubParameters):
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise ParameterError(
            f"agents.{name}: got {shown(value)}, expected a mapping of parameters."
        )
    try:
        own_fields = model.model_fields.keys() - AgentParameters.model_fields.keys()
        merged = merge_agent(default, value, own_fields or model.model_fields)
        agent = model.model_validate(merged)
    except ValidationError as error:
        message = describe_validation_error(error, prefix=f"agents.{name}", model=model)
        raise ParameterError(message) from error
    if not isinstance(agent, AgentParameters):
        raise PydanticCustomError("agent_model", "{m} is no AgentParameters", {"m": str(model)})
    return agent
