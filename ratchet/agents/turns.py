"""Turns of agents: gather their inputs, evaluate their actions, and cache both.

Within a rollout, :class:`RolloutCache` stores everything that no message changes. Over epochs of
minibatches, :class:`FrameCache` stores everything that no weight changes: which agents act, their
inputs, allowed actions and actions. Used by :mod:`ratchet.agents.combined`. Shape letters: B or N
frames, b rows in which an agent acts, F factors of its action, W outcomes of the widest factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.agents.actions import FactorisedCategorical, Role, pack_logits
from ratchet.agents.networks.layers import ObservationNormalizer
from ratchet.agents.parts import (
    Agent,
    AgentInput,
    AgentPolicyHead,
    Perception,
    Prepared,
    Representation,
)
from ratchet.errors import StateError

Generators = Mapping[str, torch.Generator]

NUM_EVALUATIONS = 3
"""Log-probability, entropy, value."""


class DataSource(Protocol):
    """Source of scenario data by datapoint id, such as an environment."""

    def gather_data(self, datapoint_id: Tensor, /) -> TensorDictBase:
        """Return the scenario's data, batch size of ``datapoint_id``."""


@dataclass
class RolloutCache:
    """Cache of values that no message changes, for one rollout with fixed weights.

    Rows whose datapoint has changed are recomputed. A new rollout, other weights or another data
    source need a new cache.
    """

    data_ids: Tensor | None = None
    data: Prepared = field(default_factory=dict)
    invariant_ids: dict[str, Tensor] = field(default_factory=dict)
    invariants: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Turn:
    """One agent in the rows i64 [b] of the batch in which it acts; None stands for all rows."""

    agent: Agent
    role: Role
    rows: Tensor | None
    inputs: AgentInput

    @cached_property
    def shared(self) -> Representation | None:
        """The body's representation of the inputs, None without a body."""
        body = self.agent.body
        return None if body is None else body(self.inputs)

    def take(self, tensor: Tensor) -> Tensor:
        """Select the agent's rows of a tensor [B, ...]."""
        return take(tensor, self.rows)


def take(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Select rows [b] of a tensor [B, ...]; all for None."""
    return tensor if rows is None else tensor.index_select(0, rows)


class TurnGatherer:
    """Gathers turns of agents and roles by name, in the protocol's order."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        roles: Mapping[str, Role],
        perception: Perception,
        normalizer: ObservationNormalizer,
        d_linear: int | None,
    ) -> None:
        self.agents = agents
        self.roles = roles
        self.perception = perception
        self.normalizer = normalizer
        self.d_linear = d_linear
        self.source: DataSource | None = None

    def gather(
        self,
        td: TensorDictBase,
        names: Sequence[str] | None,
        generators: Generators | None,
        cache: RolloutCache | None,
        acting: Tensor | None = None,
    ) -> list[Turn]:
        """Return the turns of all agents that act somewhere in frames [B].

        ``acting`` is bool [B, A]; where an agent is active in some channel when None.
        """
        if acting is None:
            acting = td.get(("agents", "active")).any(-1)
        prepared = self._prepare(td, cache)
        turns = []
        for name in self.agents if names is None else names:
            acting_rows = acting[:, self.roles[name].index].nonzero().flatten()
            if len(acting_rows) == 0:
                continue
            rows = None if len(acting_rows) == len(acting) else acting_rows
            inputs = self._perceive(name, td, rows, prepared)
            inputs.generator = None if generators is None else generators[name]
            body = self.agents[name].body
            if body is not None and cache is not None:
                inputs.invariant = _invariant(
                    cache, name, td.get("datapoint_id"), rows, body.invariant
                )
            turns.append(Turn(self.agents[name], self.roles[name], rows, inputs))
        return turns

    def _perceive(
        self, name: str, td: TensorDictBase, rows: Tensor | None, prepared: Prepared
    ) -> AgentInput:
        role = self.roles[name]
        history, message = take(td.get("x"), rows), take(td.get("message"), rows)
        linear = None
        if self.d_linear is not None:
            linear = take(td.get("linear_message_history"), rows)
            linear = linear if role.sees is None else role.sees.take_from(linear, 2)
            linear = self.normalizer("linear_message_history", linear)
        if role.sees is not None:
            history = role.sees.take_from(history, 2)
        if role.writes is not None:
            message = role.writes.take_from(message, 1)
        return AgentInput(
            round=take(td.get("round"), rows),
            history=self.normalizer("x", history),
            message=message,
            data=prepared if rows is None else {k: take(v, rows) for k, v in prepared.items()},
            linear_history=linear,
        )

    def _gather_data(self, ids: Tensor) -> Prepared:
        if self.source is None:
            raise StateError(
                "the agents have no scenario data; expected a call of"
                " combined_agents.bind(environment) before act, evaluate or values."
            )
        return self.perception.prepare(self.source.gather_data(ids))

    def _prepare(self, td: TensorDictBase, cache: RolloutCache | None) -> Prepared:
        """Return the data of all frames, as prepared for the bodies."""
        ids = td.get("datapoint_id")
        if cache is None:
            return self._gather_data(ids)
        if cache.data_ids is None:
            cache.data, cache.data_ids = self._gather_data(ids), ids.clone()
            return cache.data
        stale = (cache.data_ids != ids).nonzero().flatten()
        if len(stale):
            for key, value in self._gather_data(ids[stale]).items():
                cache.data[key][stale] = value
            cache.data_ids[stale] = ids[stale]
        return cache.data


def _invariant(
    cache: RolloutCache,
    name: str,
    ids: Tensor,
    rows: Tensor | None,
    compute: Callable[[Prepared], Tensor | None],
) -> Tensor | None:
    """Return cached values that no message changes; compute only rows whose datapoint is new."""

    def fresh(which: Tensor | None) -> Tensor | None:
        return compute({key: take(value, which) for key, value in cache.data.items()})

    known = cache.invariant_ids.get(name)
    if known is None:
        first = fresh(rows)
        if first is None:
            return None
        known = cache.invariant_ids[name] = torch.full_like(ids, -1)
        cached = cache.invariants[name] = first.new_zeros((len(ids), *first.shape[1:]))
        index: Tensor | slice = slice(None) if rows is None else rows
        cached[index], known[index] = first, ids[index]
        return first
    is_stale = ids != known
    if rows is not None:
        is_stale &= torch.zeros_like(is_stale).index_fill(0, rows, True)
    stale = is_stale.nonzero().flatten()
    cached = cache.invariants[name]
    if len(stale):
        new = fresh(stale)
        assert new is not None  # it was a tensor before
        cached[stale], known[stale] = new, ids[stale]
    return take(cached, rows)


@dataclass(frozen=True)
class TakenActions:
    """Allowed and taken actions of an agent in its rows.

    Attributes
    ----------
    allowed
        bool [b, F, W].
    counts
        Factors on which it acts, bool [b, F].
    actions
        i64 [b, F].
    """

    allowed: Tensor
    counts: Tensor
    actions: Tensor

    def take(self, rows: Tensor) -> TakenActions:
        """Select rows."""
        return TakenActions(*(take(t, rows) for t in (self.allowed, self.counts, self.actions)))


def evaluate_actions(turn: Turn, actions: TakenActions) -> Tensor:
    """Return log-probability, entropy and value of an agent's actions, with gradients: f32 [3, b].

    Raises StateError if the agent has no policy head.
    """
    logits = pack_logits(policy_head(turn)(turn.shared, turn.inputs), turn.role.layout)
    factors = FactorisedCategorical(logits, actions.allowed, actions.counts)
    log_prob, entropy = factors.log_prob_and_entropy(actions.actions)
    value = estimate_values(turn)
    ratings = [log_prob, entropy, torch.zeros_like(log_prob) if value is None else value]
    acts = turn.inputs.acts
    return torch.stack(ratings) if acts is None else torch.stack(ratings).where(acts, 0.0)


def policy_head(turn: Turn) -> AgentPolicyHead:
    """Return an agent's policy head."""
    head = turn.agent.policy_head
    if head is None:
        raise StateError(
            f"agent {turn.agent.name!r} has no policy head; expected one. Build the scenario"
            " for a trainer of type rl."
        )
    return head


def estimate_values(turn: Turn) -> Tensor | None:
    """Return an agent's estimated returns f32 [b]; None without a value head."""
    agent, inputs = turn.agent, turn.inputs
    if agent.value_head is None:
        return None
    seen = turn.shared
    if agent.value_body is not None:
        # without cached values of the policy's body
        inputs = replace(inputs, invariant=None, precomputed=None)
        seen = agent.value_body(inputs)
    return cast(Tensor, agent.value_head(seen, inputs))


def arrange_by_agent(
    ratings: Sequence[tuple[Turn, Tensor]], size: int, num_agents: int, device: torch.device
) -> Tensor:
    """Arrange evaluations [3, b] of agents as f32 [3, B, A], 0 where an agent does not act."""
    laid = torch.zeros(NUM_EVALUATIONS, size * num_agents, device=device)
    if not ratings:
        return laid.view(NUM_EVALUATIONS, size, num_agents)
    every = torch.arange(size, device=device)
    positions = [
        (every if turn.rows is None else turn.rows) * num_agents + turn.role.index
        for turn, _ in ratings
    ]
    values = torch.cat([rating for _, rating in ratings], dim=1)
    return laid.index_copy(1, torch.cat(positions), values).view(NUM_EVALUATIONS, size, num_agents)


@dataclass(frozen=True)
class _CachedTurn:
    """One agent's rows, and each frame's index in them: i64 [N], -1 where it does not act."""

    turn: Turn
    actions: TakenActions
    row_of_frame: Tensor


class FrameCache:
    """Cache of the turn and actions of each agent that acts in any of N frames."""

    def __init__(
        self, chosen: Sequence[tuple[Turn, TakenActions]], num_frames: int, device: torch.device
    ) -> None:
        self._agents: dict[str, _CachedTurn] = {}
        every = torch.arange(num_frames, device=device)
        for turn, actions in chosen:
            row_of_frame = every
            if turn.rows is not None:
                row_of_frame = torch.full_like(every, -1)
                row_of_frame[turn.rows] = every[: len(turn.rows)]
            body = turn.agent.body
            if body is not None:
                turn.inputs.precomputed = body.precompute(turn.inputs)
            self._agents[turn.agent.name] = _CachedTurn(turn, actions, row_of_frame)

    def take(
        self, index: Tensor, names: Sequence[str] | None = None
    ) -> list[tuple[Turn, TakenActions]]:
        """Return turns and actions in frames ``index`` i64 [B]; rows are positions in ``index``."""
        turns = []
        for name in self._agents if names is None else names:
            known = self._agents.get(name)
            if known is None:
                continue
            cached_rows = known.row_of_frame.index_select(0, index)
            acting_frames = (cached_rows >= 0).nonzero().flatten()
            if len(acting_frames) == 0:
                continue
            rows = None if len(acting_frames) == len(index) else acting_frames
            cached_rows = cached_rows if rows is None else cached_rows.index_select(0, rows)
            turn = replace(known.turn, rows=rows, inputs=known.turn.inputs.take(cached_rows))
            turns.append((turn, known.actions.take(cached_rows)))
        return turns
