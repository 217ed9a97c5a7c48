"""All agents of an environment with their initial weights; those of a group have one network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.networks import ControlAgent, build_agent
from ratchet.scenarios.gymnasium.sight import agent_sights

if TYPE_CHECKING:
    import torch

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters
    from ratchet.scenarios.gymnasium.spaces import AgentSpaces


def build_all_agents(
    hyper_params: HyperParameters,
    spaces: AgentSpaces,
    sections: Mapping[str, GymnasiumAgentParameters],
    device: str | torch.device = "cpu",
) -> dict[str, ControlAgent]:
    """Build agents; a ``shared_model_group`` has the network of its first agent.

    Raises
    ------
    ParameterError
        If agents of a group are not alike.
    """
    sights = agent_sights(spaces, sections)
    firsts: dict[str, str] = {}
    agents: dict[str, ControlAgent] = {}
    for name, space in spaces.by_name.items():
        section = sections[name]
        group = section.shared_model_group
        first = name if group is None else firsts.setdefault(group, name)
        if first == name:
            agents[name] = build_agent(hyper_params, name, section, space, device, sights[name])
            continue
        _check_alike(spaces, sections, first, name)
        agents[name] = replace(agents[first], name=name)
    return agents


def _check_alike(
    spaces: AgentSpaces,
    sections: Mapping[str, GymnasiumAgentParameters],
    first: str,
    name: str,
) -> None:
    where = f"agents.{name}.shared_model_group: got {sections[name].shared_model_group!r}"
    one, other = spaces.by_name[first], spaces.by_name[name]
    if one != other:
        raise ParameterError(
            f"{where}, with which {name!r} would have the network of {first!r}: it observes and"
            f" does {other}, expected {one}. Give one group only to agents with the same spaces."
        )
    if sections[first] != sections[name]:
        mine, theirs = sections[name].to_dict(), sections[first].to_dict()
        differ = sorted(key for key in mine if mine[key] != theirs[key])
        raise ParameterError(
            f"{where}, with which {name!r} would have the network of {first!r}, whose"
            f" {', '.join(differ)} differ; expected the same parameters throughout a group. Put"
            " them into agents._default, or take the agents apart."
        )
