"""Take the weights of agents and what a loss adapts as values, and put them back."""

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
    """Put back what :func:`take_agents` returned; StateError if agents, names or shapes differ."""
    live = {name: tensors for name, tensors in agent_tensors(agents).items() if tensors}
    there = {name for name, tensors in saved.items() if tensors}  # random agents have none
    for name in sorted(there ^ live.keys()):
        raise StateError(
            f"agents: the state has {sorted(there)}, expected {sorted(live)}."
            f"{nearest(name, live)} The state is of another protocol."
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
    """Undo :func:`flatten_agents`."""
    tree: TensorTree = {}
    for path, tensor in flat.items():
        agent, _, name = path.partition(":")
        tree.setdefault(agent, {})[name] = tensor
    return tree


def take_normalization(agents: ActorCritic) -> TensorTree:
    """Copy what observations are normalised with."""
    return {OBSERVATIONS: clone_tensors(_tensors(agents.normalizer))}


def load_normalization(agents: ActorCritic, saved: TensorTree) -> None:
    """Put back what :func:`take_normalization` returned."""
    live = _tensors(agents.normalizer)
    check_same_tensors(saved.get(OBSERVATIONS, {}), live, "normalization")
    copy_tensors(live, saved[OBSERVATIONS])


def own_tensors(loss_module: nn.Module, agents: ActorCritic) -> dict[str, Tensor]:
    """Return what belongs to a loss and to no agent: its buffers and own parameters."""
    theirs = {id(tensor) for tensor in agents.state_dict(keep_vars=True).values()}
    every = loss_module.state_dict(keep_vars=True).items()
    return {name: tensor for name, tensor in every if id(tensor) not in theirs}


def take_controllers(loss_module: nn.Module, agents: ActorCritic) -> TensorTree:
    """Copy what a loss adapts; empty if it adapts nothing."""
    own = own_tensors(loss_module, agents)
    return {LOSS: clone_tensors(own)} if own else {}


def load_controllers(loss_module: nn.Module, agents: ActorCritic, saved: TensorTree) -> None:
    """Put back what :func:`take_controllers` returned."""
    live = own_tensors(loss_module, agents)
    check_same_tensors(saved.get(LOSS, {}), live, "loss")
    copy_tensors(live, saved.get(LOSS, {}))


def take_episodes(collector: RolloutCollector) -> TensorTree:
    """Copy the episodes that the next iteration goes on with; empty if it begins anew."""
    saved = collector.save_episodes()
    return {TRAIN: clone_tensors(saved)} if saved else {}


def load_episodes(collector: RolloutCollector, saved: TensorTree) -> None:
    """Put back what :func:`take_episodes` returned."""
    collector.load_episodes(saved.get(TRAIN, {}))


@torch.no_grad()
def copy_tensors(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into live tensors of the same names."""
    for name, tensor in live.items():
        tensor.copy_(saved[name])
