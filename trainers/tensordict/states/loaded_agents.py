"""Agents that start from the weights of an earlier run (``load_checkpoint_and_parameters``).

Their parameters were loaded from that run before any component was built, see
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
"""The part that games do not need: agents with and without it can load each other's weights."""


def loaded_agent_names(names: tuple[str, ...], sections: AgentsParameters) -> list[str]:
    """Return the agents that start from an earlier run's weights."""
    return [name for name in names if sections[name].load_checkpoint_and_parameters]


def load_earlier_agents(
    agents: ActorCritic, sections: AgentsParameters, find: StateFinder
) -> TensorTree | None:
    """Load the weights of earlier runs into the agents configured for it, in place.

    Returns the observation normalisation of those runs; None if no agent is loaded, or if the
    runs' normalisations differ.
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
    """Refuse weights that differ from those another agent with the same network has loaded."""
    for key, tensor in live.items():
        first = loaded.setdefault(id(tensor), name)
        if first != name and not torch.equal(tensor.cpu(), state.agents[name][key]):
            raise StateError(
                f"agents {first!r} and {name!r}: their {key} differ in the earlier run, but"
                " they share one network here, expected equal weights. Set no shared_model_group,"
                " or load a run in which they shared one."
            )


def _load_agent(live: Mapping[str, Tensor], state: State, name: str, whose: str) -> None:
    if name not in state.agents:
        raise StateError(
            f"{whose}: the run has no such agent, expected one of"
            f" {sorted(state.agents)}.{nearest(name, state.agents)}"
        )
    saved = state.agents[name]
    mine = {key: tensor for key, tensor in live.items() if not _is_solo(key) or key in saved}
    common = {key: tensor for key, tensor in saved.items() if not _is_solo(key) or key in live}
    check_same_tensors(common, mine, whose)
    copy_tensors(mine, common)


def _is_solo(name: str) -> bool:
    return name.partition(".")[0] == _SOLO_HEAD


def _common_normalization(states: list[State]) -> TensorTree | None:
    """Return the normalisation of all states if it is the same."""
    parts = [State(normalization=state.normalization) for state in states]
    if not parts or any(other != parts[0] for other in parts[1:]):
        return None
    return parts[0].normalization if OBSERVATIONS in parts[0].normalization else None
