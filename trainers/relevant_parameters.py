"""Which hyper-parameters an experiment's trainer, protocol and scenario may read at all.

What the keys of stages are made of; each family of trainers takes out what a stage never reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratchet.parameters.agents import DEFAULT_AGENT, ORIGIN_FIELDS
from ratchet.parameters.base import SECTIONS
from trainers.registry import registered_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.base import Trainer

_NEVER_READ = ("base_run",)
_BUILT_IN = "trainers."


def is_built_in(trainer: type[Trainer]) -> bool:
    """Say whether it is one of Ratchet's own trainers, of which is known what they read."""
    return trainer.__module__.startswith(_BUILT_IN)


def relevant_parameters(hyper_params: HyperParameters, trainer: type[Trainer]) -> dict[str, Any]:
    """Return all parameters but the sections that trainer, protocol and scenario don't concern.

    Sections of other trainers are left out only for built-in trainers, since nobody knows what
    a user's own one reads.
    """
    data = hyper_params.to_dict()
    data["trainer"] = hyper_params.trainer_name
    own = is_built_in(trainer)
    names = {hyper_params.trainer_name, *registered_names(trainer)}
    if hyper_params.pretrain_agents:
        names.add("solo_agent")
    for name, section in SECTIONS.items():
        concerned = any(
            section.concerns(
                trainer=trainer_name,
                protocol=hyper_params.interaction_protocol,
                scenario=hyper_params.scenario,
            )
            for trainer_name in (names if own else {*names, *section.trainers})
        )
        if not concerned or name in _NEVER_READ:
            del data[name]
    data["agents"] = without_fields(data["agents"], ORIGIN_FIELDS)
    if "message_regression" in data and not data["message_regression"]["enabled"]:
        del data["message_regression"]
    return data


def without_fields(agents: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Leave some parameters out of every agent's, and then agents that are as the default one."""
    kept = {
        agent: {name: value for name, value in section.items() if name not in names}
        for agent, section in agents.items()
    }
    default = kept.get(DEFAULT_AGENT)
    return {
        agent: kept[agent] for agent in kept if agent == DEFAULT_AGENT or kept[agent] != default
    }
