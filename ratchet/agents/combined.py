"""All agents run as one actor with an agent dimension.

An agent is computed only in the frames in which it acts, and only once for policy and value where
they share a body. Values that no message changes are computed once per datapoint in a rollout
(:class:`RolloutCache`). Shape letters: B frames, A agents, C channels, P positions, S symbols, R
rounds, b rows in which one agent acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.agents.actions import (
    AgentDistribution,
    FactorisedCategorical,
    MultiAgentDistribution,
    pack_actions,
    pack_allowed,
    pack_counts,
    pack_logits,
    read_role,
    scatter_columns,
    unpack_logits,
)
from ratchet.agents.actor_critic import INDEX, TURNS, ActorCritic, Key
from ratchet.agents.lr_groups import ParameterGroup, parameter_groups
from ratchet.agents.networks.layers import ObservationNormalizer
from ratchet.agents.parts import Agent, AgentInput, Perception
from ratchet.agents.turns import (
    DataSource,
    FrameCache,
    Generators,
    RolloutCache,
    TakenActions,
    Turn,
    TurnGatherer,
    arrange_by_agent,
    estimate_values,
    evaluate_actions,
    policy_head,
)
from ratchet.errors import StateError, UnknownNameError, nearest

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.trainers import RlParameters
    from ratchet.protocols.base import ProtocolHandler

__all__ = ["CombinedAgents", "DataSource", "RolloutCache"]

_OBSERVATION_KEYS: tuple[Key, ...] = (
    "round",
    "x",
    "message",
    "datapoint_id",
    "decision_restriction",
    ("agents", "active"),
    ("agents", "can_decide"),
)


class CombinedAgents(ActorCritic):
    """Module that runs all agents together, in the protocol's order."""

    remembers = True

    def __init__(
        self,
        agents: Mapping[str, Agent],
        protocol_handler: ProtocolHandler,
        hyper_params: HyperParameters,
        perception: Perception,
    ) -> None:
        super().__init__()
        self.agent_names: tuple[str, ...] = tuple(protocol_handler.agent_names)
        for name in self.agent_names:
            if name not in agents:
                raise UnknownNameError(f"no agent {name!r} was built.{nearest(name, agents)}")
        self.agents = {name: agents[name] for name in self.agent_names}
        self.num_channels = len(protocol_handler.message_channel_names)
        self.message_size = hyper_params.message_size
        self.max_rounds = protocol_handler.max_message_rounds
        linear = hyper_params.include_linear_message_space
        self.d_linear = hyper_params.d_linear_message_space if linear else None
        self.normalizer = ObservationNormalizer()
        self.parts = nn.ModuleDict(
            {name: nn.ModuleDict(dict(agent.parts())) for name, agent in self.agents.items()}
        )
        self._roles = {
            name: read_role(
                protocol_handler, name, message_size=self.message_size, d_linear=self.d_linear
            )
            for name in self.agent_names
        }
        self._perception = perception
        self._gatherer = TurnGatherer(
            self.agents, self._roles, perception, self.normalizer, self.d_linear
        )
        self._memory: FrameCache | None = None

    @property
    def observation_keys(self) -> tuple[Key, ...]:
        """Keys of the messages, the datapoint and the turn."""
        return _OBSERVATION_KEYS + (("linear_message_history",) if self.d_linear else ())

    @property
    def action_keys(self) -> tuple[Key, ...]:
        """Messages, decisions, and linear messages where there are any."""
        names = ["message", "decision", *(["linear_message"] if self.d_linear else [])]
        return tuple(("agents", name) for name in names)

    def bind(self, source: DataSource) -> None:
        """Set where scenario data come from: usually an environment."""
        self._gatherer.source = source

    @contextmanager
    def bound_to(self, source: DataSource) -> Iterator[None]:
        """Use scenario data of ``source`` within a context."""
        before, self._gatherer.source = self._gatherer.source, source
        try:
            yield
        finally:
            self._gatherer.source = before

    def new_cache(self) -> RolloutCache:
        """Create an empty cache, for one rollout with fixed weights."""
        return RolloutCache()

    @torch.no_grad()
    def act(
        self,
        td: TensorDictBase,
        *,
        generators: Generators | None = None,
        deterministic: bool = False,
        cache: RolloutCache | None = None,
    ) -> TensorDictBase:
        """Choose actions for one step of a rollout, as :class:`ActorCritic` does; return ``td``.

        ``agents`` of the frames [B] gets message, decision (2 out of turn), linear_message,
        message_logits, decision_logits, log_prob and value; 0 where an agent does not act. Without
        a cache everything is computed.
        """
        turns = self._gatherer.gather(td, None, generators, cache)
        dist = self._distribution(td, turns)
        actions = dist.mode() if deterministic else dist.sample(generators)
        td.get("agents").update(actions.get("agents"))
        td.set(("agents", "log_prob"), dist.log_prob(td))
        td.set(("agents", "value"), self._values(turns, td.batch_size[0]))
        self._write_logits(td, dist, td.get("x").shape[-1])
        return td

    def evaluate(
        self,
        td: TensorDictBase,
        *,
        agents: Sequence[str] | None = None,
        with_logits: bool = False,
        generators: Generators | None = None,
    ) -> TensorDictBase:
        """Evaluate the actions in frames [B], as :class:`ActorCritic` does, into a new tensordict.

        In addition to log_prob, entropy and value f32 [B, A], ``agents`` contain, with ``logits``,
        ``message_logits`` [B, A, C, P, S] and ``decision_logits`` [B, A, 3]. Generators are for
        noise in the bodies, if any; torch's global one when None.
        """
        turns = self._gatherer.gather(td, agents, generators, None)
        columns = self._score(td, [(turn, self._taken(td, turn)) for turn in turns])
        size = td.batch_size[0]
        named = dict(zip(("log_prob", "entropy", "value"), columns, strict=True))
        out = TensorDict({"agents": TensorDict(named, batch_size=[size])}, batch_size=[size])
        if with_logits:
            self._write_logits(out, self._distribution(td, turns), td.get("x").shape[-1])
        return out

    def score(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of :meth:`evaluate`: log_prob, entropy and value, f32 [B, A]."""
        turns = self._gatherer.gather(td, agents, None, None)
        return self._score(td, [(turn, self._taken(td, turn)) for turn in turns])

    def score_remembered(
        self, td: TensorDictBase, *, agents: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`score` for cached frames."""
        turns = td.get(TURNS, None)
        if turns is not None:
            names = self.agent_names if agents is None else agents
            return self._score(td, [self._unpack(turns, name) for name in names])
        index = td.get(INDEX, None)
        if self._memory is None or index is None:
            return self.score(td, agents=agents)
        return self._score(td, self._memory.take(index, agents))

    def padded_turns(self, frames: TensorDictBase) -> TensorDict:
        """Return each agent's inputs and actions in frames [N]; padding where it does not act."""
        acting = frames.get(("agents", "active")).any(-1)
        packed = {}
        for turn in self._gatherer.gather(frames, None, None, None, torch.ones_like(acting)):
            turn.inputs.acts = acting[:, turn.role.index]
            inputs = {name: value for name, value in vars(turn.inputs).items() if value is not None}
            packed[turn.agent.name] = {**inputs, "taken": vars(self._taken(frames, turn))}
        return TensorDict(packed, frames.batch_size)

    def _unpack(self, turns: TensorDictBase, name: str) -> tuple[Turn, TakenActions]:
        inputs = dict(turns[name].items())
        taken, data = (dict(inputs.pop(key).items()) for key in ("taken", "data"))
        turn = Turn(self.agents[name], self._roles[name], None, AgentInput(data=data, **inputs))
        return turn, TakenActions(**taken)

    @contextmanager
    def remembering(self, frames: TensorDictBase) -> Iterator[None]:
        """Cache values of frames [N] that no weight changes."""
        turns = self._gatherer.gather(frames, None, None, None)
        chosen = [(turn, self._taken(frames, turn)) for turn in turns]
        self._memory = FrameCache(chosen, frames.batch_size[0], frames.get("round").device)
        try:
            yield
        finally:
            self._memory = None

    def values(
        self,
        td: TensorDictBase,
        acting: Tensor | None = None,
        *,
        cache: RolloutCache | None = None,
        generators: Generators | None = None,
    ) -> Tensor:
        """Return estimated returns in frames [B]: f32 [B, A], 0 where ``acting`` is false.

        ``acting`` is bool [B, A]; by default those of acting agents are wanted. The cache is that
        of the rollout that the frames end, if any.
        """
        turns = self._gatherer.gather(td, None, generators, cache, acting)
        return self._values(turns, td.batch_size[0])

    def get_dist(
        self,
        td: TensorDictBase,
        *,
        agents: Sequence[str] | None = None,
        generators: Generators | None = None,
    ) -> MultiAgentDistribution:
        """Return the distribution over all agents' actions in frames [B], with gradients."""
        return self._distribution(td, self._gatherer.gather(td, agents, generators, None))

    def solo_logits(self, agent_name: str, data: TensorDictBase) -> Tensor:
        """Return the logits f32 [B, 2] of y that an agent predicts without any conversation.

        ``data`` [B] is the scenario's, as ``gather_data`` gives it.
        """
        agent, role = self.agents[agent_name], self._roles[agent_name]
        if agent.solo_head is None:
            raise StateError(
                f"agent {agent_name!r} has no solo head; expected one. Build the scenario with"
                " trainer: solo_agent or pretrain_agents: true."
            )
        prepared = self._perception.prepare(data)
        size, symbols = data.batch_size[0], self._perception.num_symbols(prepared)
        sees = self.num_channels if role.sees is None else len(role.sees)
        like: Tensor = next(iter(prepared.values()))

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((size, *shape), device=like.device)

        linear = None
        if self.d_linear is not None:
            linear = zeros(self.max_rounds, sees, self.d_linear)
            linear = self.normalizer("linear_message_history", linear)
        history = zeros(self.max_rounds, sees, self.message_size, symbols)
        inputs = AgentInput(
            round=zeros().to(torch.int64),
            history=self.normalizer("x", history),
            message=zeros(len(role.layout.channels), self.message_size, symbols),
            data=prepared,
            linear_history=linear,
        )
        logits: Tensor = agent.solo_head(None if agent.body is None else agent.body(inputs), inputs)
        return logits

    def parameter_groups(
        self, rl: RlParameters, *, solo: bool = False, solo_body_factor: bool = True
    ) -> list[ParameterGroup]:
        """Divide all agents' parameters by learning rate; see :mod:`ratchet.agents.lr_groups`."""
        return parameter_groups(
            rl, self.agents.values(), solo=solo, solo_body_factor=solo_body_factor
        )

    def _distribution(self, td: TensorDictBase, turns: list[Turn]) -> MultiAgentDistribution:
        """Run the policy heads and mask what may not be done."""
        agents = {turn.agent.name: self._agent_distribution(td, turn) for turn in turns}
        shape = (len(self.agent_names), self.num_channels, self.message_size)
        return MultiAgentDistribution(agents, td.batch_size[0], shape, td.get("round").device)

    def _agent_distribution(self, td: TensorDictBase, turn: Turn) -> AgentDistribution:
        logits = pack_logits(policy_head(turn)(turn.shared, turn.inputs), turn.role.layout)
        factors = FactorisedCategorical(logits, *self._masks(td, turn))
        return AgentDistribution(turn.role.index, turn.rows, turn.role.layout, factors)

    def _masks(self, td: TensorDictBase, turn: Turn) -> tuple[Tensor, Tensor]:
        """Return allowed actions, bool [b, F, W], and the factors that count, bool [b, F]."""
        role, inputs = turn.role, turn.inputs
        symbols = self._perception.allowed_symbols(
            turn.agent.is_prover, inputs.data, inputs.message
        )
        restriction = turn.take(td.get("decision_restriction"))
        counts = pack_counts(
            turn.take(td.get(("agents", "active"))[:, role.index]),
            turn.take(td.get(("agents", "can_decide"))[:, role.index]),
            role.layout,
            role.writes,
        )
        return pack_allowed(symbols, role.layout, restriction, self.d_linear), counts

    def _score(
        self, td: TensorDictBase, chosen: Sequence[tuple[Turn, TakenActions]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        ratings = [(turn, evaluate_actions(turn, actions)) for turn, actions in chosen]
        laid = arrange_by_agent(
            ratings, td.batch_size[0], len(self.agent_names), td.get("round").device
        )
        return cast(tuple[Tensor, Tensor, Tensor], laid.unbind(0))

    def _taken(self, td: TensorDictBase, turn: Turn) -> TakenActions:
        allowed, counts = self._masks(td, turn)
        actions = pack_actions(td, turn.role.layout, turn.role.index, turn.rows)
        return TakenActions(allowed, counts, actions)

    def _values(self, turns: list[Turn], size: int) -> Tensor:
        columns = {
            turn.role.index: (turn.rows, value)
            for turn in turns
            if (value := estimate_values(turn)) is not None
        }
        device = turns[0].inputs.round.device if turns else None
        return scatter_columns(columns, size, len(self.agent_names), device)

    def _write_logits(self, td: TensorDictBase, dist: MultiAgentDistribution, symbols: int) -> None:
        message, decision = unpack_logits(dist, symbols)
        td.set(("agents", "message_logits"), message)
        td.set(("agents", "decision_logits"), decision)
