"""The optimizer, its learning rates, and the freezing of agents by their update schedules.

Learning rate = base × factors of agent, body and GNN (:meth:`CombinedAgents.parameter_groups`)
× the schedule's scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ratchet.fast.adam import FusedAdam
from trainers.tensordict.states.state import TensorTree, check_same_tensors, clone_tensors

if TYPE_CHECKING:
    from ratchet.agents.lr_groups import ParameterGroup
    from ratchet.parameters.agents import AgentsParameters

LOSS_GROUP = "loss"


def build_adam(
    groups: Sequence[ParameterGroup],
    lr: float,
    extra: Iterable[nn.Parameter] = (),
    *,
    eps: float = 1e-8,
) -> torch.optim.Adam:
    """Build a fused Adam optimizer with one parameter group for each learning rate.

    Shared parameters are in the group of the first agent. ``lr`` is the base rate, also that of
    ``extra``, the loss's own parameters; ``eps`` is added to the denominator.
    """
    param_groups: list[dict[str, Any]] = []
    grouped_ids: set[int] = set()
    for group in groups:
        params = [param for param in group.params if id(param) not in grouped_ids]
        grouped_ids.update(map(id, params))
        if params:
            param_group = {"params": params, "name": group.name, "lr_factor": group.lr_factor}
            param_groups.append(param_group)
    loss_params = list(extra)
    if loss_params:
        param_groups.append({"params": loss_params, "name": LOSS_GROUP, "lr_factor": 1.0})
    if not param_groups:  # no agent learns: all are random or scripted
        idle = torch.zeros((), requires_grad=True)
        param_groups.append({"params": [idle], "name": "none", "lr_factor": 0.0})
    for group_of_adam in param_groups:
        group_of_adam["lr"] = lr * group_of_adam["lr_factor"]
    return FusedAdam(param_groups, lr=lr, eps=eps)


def set_learning_rates(optimizer: torch.optim.Optimizer, lr: float) -> dict[str, float]:
    """Set each group's learning rate from the base; return them by the group's name."""
    rates: dict[str, float] = {}
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)
        rates[str(group.get("name", len(rates)))] = group["lr"]
    return rates


def learning_rate_scale(iteration: int, num_iterations: int, *, anneal: bool) -> float:
    """Return the schedule's factor: 1, or falling linearly from 1 to 0 at ``num_iterations``."""
    return 1.0 - iteration / num_iterations if anneal and num_iterations else 1.0


class ParamGroupFreezer:
    """Freezes the parameters of agents whose update schedule is off, and those of rate 0.

    A frozen parameter gets no gradient, so that an optimizer skips it: it and its optimizer state
    stay the same bit for bit, and it counts in no norm. Shared parameters are trained as long as
    one of their agents is.
    """

    def __init__(self, groups: Sequence[ParameterGroup], agents: AgentsParameters) -> None:
        self.agents = agents
        self.params: dict[str, list[nn.Parameter]] = {}
        """Agent → the parameters that it trains."""
        self.off = idle_parameters(groups)
        for group in groups:
            if group.lr_factor:
                self.params.setdefault(group.agent, []).extend(group.params)

    def learning_agents(self, iteration: int) -> tuple[str, ...]:
        """Return the agents with parameters that learn in an iteration."""
        return tuple(
            name for name in self.params if self.agents[name].update_schedule.is_on(iteration, name)
        )

    def freeze_for(self, iteration: int) -> tuple[str, ...]:
        """Freeze the agents whose schedule is off, unfreeze the others; return the latter."""
        learning = self.learning_agents(iteration)
        for name in sorted(self.params, key=learning.__contains__):  # frozen agents first
            _set_learning(self.params[name], name in learning)
        _set_learning(self.off, False)
        return learning

    def unfreeze(self) -> None:
        """Unfreeze all agents."""
        for params in (*self.params.values(), self.off):
            for param in params:
                param.requires_grad_(True)


def idle_parameters(groups: Iterable[ParameterGroup]) -> list[nn.Parameter]:
    """Return the parameters with learning rate 0, which are never trained."""
    return [param for group in groups if not group.lr_factor for param in group.params]


@contextmanager
def frozen(params: Iterable[nn.Parameter]) -> Iterator[None]:
    """Disable gradients of some parameters temporarily."""
    params = list(params)
    _set_learning(params, False)
    try:
        yield
    finally:
        for param in params:
            param.requires_grad_(True)


def _set_learning(params: Iterable[nn.Parameter], learning: bool) -> None:
    for param in params:
        param.requires_grad_(learning)
        param.grad = None


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> TensorTree:
    """Copy the optimizer's state, tensors and numbers, by the parameters' names.

    ``names``: ``id`` of a parameter → its name.
    """
    state: TensorTree = {}
    for param, values in optimizer.state.items():
        tensors = {key: torch.as_tensor(value) for key, value in values.items()}
        state[names[id(param)]] = clone_tensors(tensors)
    return state


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, tensors: TensorTree, params: Mapping[str, nn.Parameter]
) -> None:
    """Restore the result of :func:`optimizer_tensors`.

    Raises StateError if a parameter is not the optimizer's, or a tensor has another shape.
    """
    mine = {id(param) for group in optimizer.param_groups for param in group["params"]}
    known = {name: param for name, param in params.items() if id(param) in mine}
    shapes: dict[str, Tensor] = {name: param for name, param in known.items() if name in tensors}
    firsts = {name: state.get("exp_avg", shapes.get(name)) for name, state in tensors.items()}
    saved = {name: t for name, t in firsts.items() if t is not None}
    check_same_tensors(saved, shapes, "optimizer")
    optimizer.state.clear()
    for name, state in tensors.items():
        param = known[name]
        values: dict[str, Any] = {}
        for key, tensor in state.items():
            values[key] = tensor.detach().to(param.device, copy=True)
        optimizer.state[param] = values
