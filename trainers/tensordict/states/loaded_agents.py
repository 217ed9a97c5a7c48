"""Agents that begin with the weights of an earlier run (``load_checkpoint_and_parameters``).

Their parameters have been taken from that run before anything was built, see
:mod:`ratchet.experiment_files.base_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratchet.errors import StateError, nearest
from trainers.tensordict.states.snapshots import OBSERVATIONS, agent_tensors, copy_tensors
from trainers.tensordict.states.state import State, TensorTree, check_same_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.parameters.agents import AgentsParameters
    from ratchet.tracking.trainer_files import StateFinder

_SOLO_HEAD = "solo_head"
"""The part that no conversation needs: agents with and without it can be loaded as each other."""


def loaded_agent_names(names: tuple[str, ...], sections: AgentsParameters) -> list[str]:
    """Return those of some agents that begin with an earlier run's weights."""
    return [name for name in names if sections[name].load_checkpoint_and_parameters]


def load_earlier_agents(
    agents: ActorCritic, sections: AgentsParameters, find: StateFinder
) -> TensorTree | None:
    """Put the weights of earlier runs into the agents, in place, that are to have them.

    Returns what observations were normalised with where the agents come from; None if nobody is
    loaded, or if they come from different normalisations.

    Raises
    ------
    CheckPointNotFoundError
        If a run has no such state.
    StateError
        If it has no such agent, or one with other shapes.
    """
    states: dict[str, State] = {}
    loaded: dict[int, str] = {}
    for name in loaded_agent_names(agents.agent_names, sections):
        run, version = str(sections[name].checkpoint_run_id), sections[name].checkpoint_version
        saved = find(run, version)
        if saved.digest not in states:
            states[saved.digest] = State.load(saved.open())
        whose = f"agent {name!r} of run {run} after {saved.iteration} iterations"
        _check_not_loaded(agent_tensors(agents)[name], states[saved.digest], name, loaded)
        _load_agent(agent_tensors(agents)[name], states[saved.digest], name, whose)
    return _common_normalization(list(states.values()))


def _check_not_loaded(
    live: Mapping[str, Tensor], state: State, name: str, loaded: dict[int, str]
) -> None:
    """Refuse weights that another agent with the same network has loaded otherwise."""
    for key, tensor in live.items():
        first = loaded.setdefault(id(tensor), name)
        if first != name and not torch.equal(tensor.cpu(), state.agents[name][key]):
            raise StateError(
                f"agents {first!r} and {name!r}: their {key} are different in the earlier run, but"
                " they have one network here, expected the same. Give them no shared_model_group,"
                " or load a run in which they had one."
            )


def _load_agent(live: Mapping[str, Tensor], state: State, name: str, whose: str) -> None:
    if name not in state.agents:
        raise StateError(
            f"{whose}: there is no such agent in that run, expected one of"
            f" {sorted(state.agents)}.{nearest(name, state.agents)}"
        )
    saved = state.agents[name]
    mine = {key: tensor for key, tensor in live.items() if not _is_solo(key) or key in saved}
    given = {key: tensor for key, tensor in saved.items() if not _is_solo(key) or key in live}
    check_same_tensors(given, mine, whose)
    copy_tensors(mine, given)


def _is_solo(name: str) -> bool:
    return name.partition(".")[0] == _SOLO_HEAD


def _common_normalization(states: list[State]) -> TensorTree | None:
    """Return the normalisation of all states, if they have the same one."""
    found = [State(normalization=state.normalization) for state in states]
    if not found or any(other != found[0] for other in found[1:]):
        return None
    return found[0].normalization if OBSERVATIONS in found[0].normalization else None
