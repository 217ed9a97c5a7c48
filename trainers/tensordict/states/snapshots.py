"""Copy and restore the weights of agents and the adapted values of losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ratchet.errors import StateError, nearest
from trainers.tensordict.states.state import TensorTree, check_same_tensors, clone_tensors

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from trainers.tensordict.collectors import RolloutCollector

LOSS = "loss"
TRAIN = "train"
OBSERVATIONS = "observations"


def agent_tensors(agents: ActorCritic) -> dict[str, dict[str, Tensor]]:
    """Return each agent's parameters and buffers by name; the live ones, no copies."""
    parts = agents.parts
    return {name: dict(_tensors(parts[name])) for name in agents.agent_names}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict(keep_vars=True))


def take_agents(agents: ActorCritic) -> TensorTree:
    """Copy all agents' parameters and buffers."""
    return {name: clone_tensors(tensors) for name, tensors in agent_tensors(agents).items()}


def load_agents(agents: ActorCritic, saved: TensorTree) -> None:
    """Restore the result of :func:`take_agents`; StateError if agents, names or shapes differ."""
    live = {name: tensors for name, tensors in agent_tensors(agents).items() if tensors}
    there = {name for name, tensors in saved.items() if tensors}  # random agents have none
    for name in sorted(there ^ live.keys()):
        raise StateError(
            f"agents: the state has {sorted(there)}, expected {sorted(live)}."
            f"{nearest(name, live)} The state belongs to another protocol."
        )
    for name, tensors in live.items():
        check_same_tensors(saved[name], tensors, f"agent {name!r}")
        copy_tensors(tensors, saved[name])


def flatten_agents(tree: TensorTree) -> dict[str, Tensor]:
    """Name each agent's tensors ``AGENT:NAME``."""
    return {
        f"{agent}:{name}": tensor
        for agent, tensors in tree.items()
        for name, tensor in tensors.items()
    }


def unflatten_agents(flat: Mapping[str, Tensor]) -> TensorTree:
    """Invert :func:`flatten_agents`."""
    tree: TensorTree = {}
    for path, tensor in flat.items():
        agent, _, name = path.partition(":")
        tree.setdefault(agent, {})[name] = tensor
    return tree


def take_normalization(agents: ActorCritic) -> TensorTree:
    """Copy the observation normalisation."""
    return {OBSERVATIONS: clone_tensors(_tensors(agents.normalizer))}


def load_normalization(agents: ActorCritic, saved: TensorTree) -> None:
    """Restore the result of :func:`take_normalization`."""
    live = _tensors(agents.normalizer)
    check_same_tensors(saved.get(OBSERVATIONS, {}), live, "normalization")
    copy_tensors(live, saved[OBSERVATIONS])


def loss_tensors(loss_module: nn.Module, agents: ActorCritic) -> dict[str, Tensor]:
    """Return the tensors of a loss that belong to no agent: its buffers and own parameters."""
    theirs = {id(tensor) for tensor in agents.state_dict(keep_vars=True).values()}
    every = loss_module.state_dict(keep_vars=True).items()
    return {name: tensor for name, tensor in every if id(tensor) not in theirs}


def take_controllers(loss_module: nn.Module, agents: ActorCritic) -> TensorTree:
    """Copy the adapted values of a loss, if any."""
    controllers = loss_tensors(loss_module, agents)
    return {LOSS: clone_tensors(controllers)} if controllers else {}


def load_controllers(loss_module: nn.Module, agents: ActorCritic, saved: TensorTree) -> None:
    """Restore the result of :func:`take_controllers`."""
    live = loss_tensors(loss_module, agents)
    check_same_tensors(saved.get(LOSS, {}), live, "loss")
    copy_tensors(live, saved.get(LOSS, {}))


def take_episodes(collector: RolloutCollector) -> TensorTree:
    """Copy the episodes that the next iteration continues; empty if it starts new ones."""
    saved = collector.save_episodes()
    return {TRAIN: clone_tensors(saved)} if saved else {}


def load_episodes(collector: RolloutCollector, saved: TensorTree) -> None:
    """Restore the result of :func:`take_episodes`."""
    collector.load_episodes(saved.get(TRAIN, {}))


@torch.no_grad()
def copy_tensors(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into live tensors of the same names."""
    for name, tensor in live.items():
        tensor.copy_(saved[name])
