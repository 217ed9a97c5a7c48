"""Parameter groups and their learning-rate factors: agent × body (× GNN), per actor and critic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ratchet.errors import ParameterError
from ratchet.parameters.agents import LrFactors

if TYPE_CHECKING:
    from torch.nn import Parameter

    from ratchet.agents.parts import AgentPart
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.trainers import RlParameters

ROLES = ("actor", "critic")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that learn at ``lr_factor`` times the base rate, in a fixed order.

    ``name`` is ``agent.part``, unique. A part is ``gnn``, ``body`` (the rest of a body;
    ``value_gnn`` and ``value_body`` if the value head has a separate body), ``policy``, ``value``
    or ``solo``.
    """

    name: str
    agent: str
    part: str
    params: tuple[Parameter, ...]
    lr_factor: float


class Learner(Protocol):
    """An agent's name, parameters and parts, as required for learning rates."""

    name: str

    @property
    def parameters(self) -> AgentParameters:
        """With the agent's factors."""

    @property
    def body(self) -> AgentPart | None:
        """The policy's body, or the shared one."""

    @property
    def value_body(self) -> AgentPart | None:
        """The critic's own body."""

    @property
    def policy_head(self) -> AgentPart | None:
        """The policy head."""

    @property
    def value_head(self) -> AgentPart | None:
        """The value head."""

    @property
    def solo_head(self) -> AgentPart | None:
        """The solo head."""


def check_shared_factors(rl: RlParameters, agents: Mapping[str, AgentParameters]) -> None:
    """Check that actor and critic agree wherever they share a body."""
    if not rl.use_shared_body:
        return
    factors_by_path: dict[str, LrFactors] = {"rl.body_lr_factor": rl.body_lr_factor}
    for name, parameters in agents.items():
        if parameters.is_random or parameters.use_manual_architecture:
            continue
        for field in ("agent_lr_factor", "body_lr_factor", "gnn_lr_factor"):
            factors = getattr(parameters, field, None)
            if isinstance(factors, LrFactors):
                factors_by_path[f"agents.{name}.{field}"] = factors
    for path, factors in factors_by_path.items():
        if factors.actor != factors.critic:
            raise ParameterError(
                f"{path}: got actor={factors.actor} and critic={factors.critic}, expected equal"
                " factors, since rl.use_shared_body=true gives actor and critic one body."
                " Make them equal or set rl.use_shared_body=false."
            )


def parameter_groups(
    rl: RlParameters,
    agents: Iterable[Learner],
    *,
    solo: bool = False,
    solo_body_factor: bool = True,
) -> list[ParameterGroup]:
    """Divide the agents' parameters by learning rate: groups, none empty, each parameter in one.

    Parameters shared by agents are in a group of each.

    With ``solo`` the body and solo head of each are trained instead of policy and value. Then
    ``solo_body_factor`` sets whether body factors count; false for
    ``solo_agent.body_lr_factor_override``, which does not change a GNN's factor.
    """
    groups: list[ParameterGroup] = []
    for agent in agents:
        parameters = agent.parameters
        actor, critic = parameters.agent_lr_factor.actor, parameters.agent_lr_factor.critic
        body_rl = None if solo and not solo_body_factor else rl.body_lr_factor
        if agent.body is not None:
            groups += _body_groups(agent, agent.body, "", "actor", body_rl)
        if solo:
            head = agent.solo_head
            groups += _group(agent, "solo", head.parameters() if head else (), actor)
            continue
        if agent.policy_head is not None:
            groups += _group(agent, "policy", agent.policy_head.parameters(), actor)
        if agent.value_body is not None:
            groups += _body_groups(agent, agent.value_body, "value_", "critic", body_rl)
        if agent.value_head is not None:
            groups += _group(agent, "value", agent.value_head.parameters(), critic)
    return groups


def _body_groups(
    agent: Learner, body: AgentPart, prefix: str, role: str, rl_factor: LrFactors | None
) -> list[ParameterGroup]:
    """Return the groups of one body; without ``rl_factor`` no body factor counts."""
    groups = []
    for part, params in body.lr_parts("body").items():
        factor = float(getattr(agent.parameters.agent_lr_factor, role))
        if rl_factor is not None:
            factor *= getattr(rl_factor, role) * getattr(agent.parameters.body_lr_factor, role)
        special = getattr(agent.parameters, f"{part}_lr_factor", None)
        if part != "body" and isinstance(special, LrFactors):
            factor *= getattr(special, role)
        groups += _group(agent, prefix + part, params, factor)
    return groups


def _group(
    agent: Learner, part: str, params: Iterable[Parameter], factor: float
) -> list[ParameterGroup]:
    params = tuple(params)
    if not params:
        return []
    return [ParameterGroup(f"{agent.name}.{part}", agent.name, part, params, factor)]
