"""Parameters of agents that come from an earlier run: ``load_checkpoint_and_parameters``.

What an agent is comes from that run, weights and parameters alike; how it learns is said by the
experiment that loads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.purposes import Purpose, declared_purposes

if TYPE_CHECKING:
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.checkpoint_folders import SavedState

_SHARED = (
    "scenario",
    "d_representation",
    "message_size",
    "include_linear_message_space",
    "d_linear_message_space",
)
"""Parameters beside the agents' that decide their shapes."""


def with_loaded_agents(
    hyper_params: HyperParameters, settings: ExperimentSettings
) -> HyperParameters:
    """Give agents that are to be loaded the parameters that they have in the run they come from.

    A second time changes nothing: the version ``latest`` is replaced by the number of iterations
    that it stands for.

    Raises
    ------
    ParameterError
        If no run is named, or its agents cannot play here.
    RunNotFoundError, CheckPointNotFoundError
        If there is no such run, or it has no such state.
    """
    agents = hyper_params.agents
    if not any(agents[name].load_checkpoint_and_parameters for name in agents):
        return hyper_params
    data = hyper_params.to_dict()
    for name in _agent_names(hyper_params, settings):
        section = agents[name]
        if section.load_checkpoint_and_parameters:
            data["agents"][name] = _loaded(hyper_params, name, section, settings)
    return type(hyper_params).from_dict(data)


def loaded_states(
    hyper_params: HyperParameters, settings: ExperimentSettings
) -> dict[str, SavedState]:
    """Return the state that each loaded agent comes from, by agent.

    Raises
    ------
    RunNotFoundError, CheckPointNotFoundError
        If there is no such run, or it has no such state.
    """
    agents = hyper_params.agents
    if not any(agents[name].load_checkpoint_and_parameters for name in agents):
        return {}
    return {
        name: _find(name, agents[name], settings)
        for name in _agent_names(hyper_params, settings)
        if agents[name].load_checkpoint_and_parameters
    }


def _agent_names(hyper_params: HyperParameters, settings: ExperimentSettings) -> list[str]:
    from ratchet.protocols.registry import build_protocol_handler

    base_dir = None if settings.base_dir is None else Path(settings.base_dir)
    handler = build_protocol_handler(hyper_params, base_dir=base_dir)
    return list(handler.agent_names or hyper_params.agents.named)  # an environment names its own


def _find(name: str, section: AgentParameters, settings: ExperimentSettings) -> SavedState:
    from ratchet.experiment_files.saved_states import find_saved_state

    path = f"agents.{name}"
    if section.checkpoint_run_id is None:
        raise ParameterError(
            f"{path}.checkpoint_run_id: got None, expected the id of the run to load the agent"
            f" from, since {path}.load_checkpoint_and_parameters is true."
        )
    if section.is_text:
        raise ParameterError(
            f"{path}.load_checkpoint_and_parameters: got true, but a chat model's weights lie"
            " with its service. Name the trained model in model_name instead."
        )
    return find_saved_state(section.checkpoint_run_id, section.checkpoint_version, settings)


def _loaded(
    hyper_params: HyperParameters,
    name: str,
    section: AgentParameters,
    settings: ExperimentSettings,
) -> dict[str, Any]:
    state = _find(name, section, settings)
    source = type(hyper_params).from_dict(state.hyper_params)
    known = _agent_names(source, settings)
    whose = f"run {state.run_id}"
    if name not in known:
        raise ParameterError(
            f"agents.{name}.checkpoint_run_id: {whose} has no agent {name!r}.{nearest(name, known)}"
        )
    for path in _SHARED:
        here, there = getattr(hyper_params, path), getattr(source, path)
        if here != there:
            raise ParameterError(
                f"{path}: got {here!r}, but agent {name!r} of {whose} was made for {there!r},"
                f" and is to be loaded. Expected {there!r}."
            )
    theirs = source.agents[name].to_dict()
    for reason in ("is_random", "use_manual_architecture"):
        if theirs[reason] or getattr(section, reason):
            raise ParameterError(
                f"agents.{name}.load_checkpoint_and_parameters: got true, but {reason} is true"
                f" {'in ' + whose if theirs[reason] else 'here'}: such an agent has no weights."
                " Leave one of the two out."
            )
    purposes = declared_purposes(type(section))
    own = {
        key: value
        for key, value in section.to_dict().items()
        if purposes[key] and Purpose.NETWORKS not in purposes[key]
    }
    return {**theirs, **own, "checkpoint_version": str(state.iteration)}
