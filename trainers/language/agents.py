"""Assignment of agents to the models they train, and checks of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, StateError
from ratchet.scenarios.language_task.parameters import RANDOM, SMALL

if TYPE_CHECKING:
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters


def shared_models(agents: Mapping[str, LanguageAgentParameters]) -> dict[str, str]:
    """Return each learning agent's model: its ``shared_model_group``, or its own name.

    Raises ParameterError if agents of a group differ in other parameters, or none learns.
    """
    models: dict[str, str] = {}
    members: dict[str, str] = {}
    for name, agent in agents.items():
        if not agent.is_model:
            continue
        models[name] = model = agent.shared_model_group or name
        first = members.setdefault(model, name)
        if agents[first] != agent:
            raise ParameterError(
                f"agents.{name}: got other parameters than agents.{first}, expected the same in"
                f" the shared_model_group {model!r}, since they train one model."
            )
    if not models:
        raise ParameterError(
            f"agents: got {RANDOM!r} or a function as the model of each of {', '.join(agents)},"
            " expected a language model for at least one, which learns."
        )
    return models


def check_models(model_names: Mapping[str, str], stored: Iterable[str]) -> None:
    """Refuse a state whose models are not those of the agents, by agent.

    Raises StateError.
    """
    models = dict.fromkeys(model_names.values())
    if {*stored} != {*models}:
        raise StateError(
            f"state: it has the models {', '.join(stored)}, expected {', '.join(models)}. Train"
            " from scratch, or leave shared_model_group and the models of agents as they were."
        )


def check_agent(name: str, agent: LanguageAgentParameters) -> None:
    """Refuse greedy sampling, and adapters of models that are built here."""
    if agent.temperature == 0:
        raise ParameterError(
            f"agents.{name}.temperature: got 0, expected more: completions of a task are compared,"
            " and all would be equal. Tests have a separate temperature,"
            " language.test_temperature."
        )
    if agent.lora.rank is not None and agent.model == SMALL:
        raise ParameterError(
            f"agents.{name}.lora.rank: got {agent.lora.rank} with the model {SMALL!r}, which"
            " is built here and fully trained; leave it out, or set a model's folder or name."
        )
