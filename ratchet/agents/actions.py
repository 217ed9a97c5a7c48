"""Actions of agents: factorised distributions, roles in the protocol, and packing into factors.

An agent's action is a symbol for each (channel, position) that it may write to, a decision, and
optionally a linear message. All of them are factors of one masked tensor, so that a single
log-softmax covers them. Factors on which an agent does not act (an inactive channel, a decision
out of turn) do not contribute. Shape letters: B frames, b rows in which an agent acts, F factors of
its action, W outcomes of the widest factor, A agents, C channels, P positions, S symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.parts import PolicyLogits
from ratchet.errors import StateError

if TYPE_CHECKING:
    from ratchet.protocols.base import ProtocolHandler

NO_DECISION = 2
_MASKED_LOGIT = -1e9
"""Stands for minus infinity where gradients flow: its probability is exactly 0 in f32."""

_SEEDS_TRIED = 64
NUM_DECISIONS = 3


class FactorisedCategorical:
    """Independent categorical distributions in one tensor, some of which count.

    Parameters
    ----------
    logits
        f32 [b, F, S], unnormalised.
    allowed
        bool [b, F, S]: which outcomes are possible; at least one in each factor.
    counts
        bool [b, F]: the factors on which the agent acts.
    """

    def __init__(self, logits: Tensor, allowed: Tensor, counts: Tensor) -> None:
        self.allowed = allowed
        self.counts = counts
        self._logits = logits

    @property
    def logits(self) -> Tensor:
        """Logits f32 [b, F, S] with minus infinity where an outcome is not allowed."""
        return self._logits.masked_fill(~self.allowed, float("-inf"))

    @cached_property
    def _log_probs(self) -> Tensor:
        logits = self._logits.masked_fill(~self.allowed, _MASKED_LOGIT)
        return torch.log_softmax(logits, dim=-1)

    @cached_property
    def _weights(self) -> Tensor:
        return self.counts.to(self._logits.dtype)

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`log_prob` and :meth:`entropy`, both f32 [b]."""
        return self.log_prob(actions), self.entropy()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the sum f32 [b] of the log-probabilities of the factors that count.

        Actions are i64 [b, F].
        """
        chosen = self._log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return (chosen * self._weights).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the entropies (nats) of the factors that count: f32 [b]."""
        log_probs = self._log_probs
        return -(log_probs.exp() * log_probs).sum(-1).mul(self._weights).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample i64 [b, F] by the exponential race; no gradient."""
        with torch.no_grad():
            race = torch.empty_like(self._log_probs).exponential_(generator=generator)
            return (self._log_probs - race.log()).argmax(-1)

    def mode(self) -> Tensor:
        """Return the most likely outcome of each factor, i64 [b, F]."""
        return self._log_probs.detach().argmax(-1)


@dataclass(frozen=True)
class FactorLayout:
    """Indices of an agent's factors: messages, then the decision, then the linear message.

    ``channels`` are the indices of the K channels that it may ever write to, ``message_size`` is P.
    """

    channels: tuple[int, ...]
    message_size: int
    decides: bool
    linear: bool

    @property
    def num_message_factors(self) -> int:
        """K · P."""
        return len(self.channels) * self.message_size

    @property
    def decision_index(self) -> int:
        """The index of the decision, if the agent decides."""
        return self.num_message_factors

    @property
    def linear_index(self) -> int:
        """The index of the linear message, if the agent sends one."""
        return self.num_message_factors + int(self.decides)


@dataclass
class AgentDistribution:
    """One agent's distribution over the rows in which it acts.

    ``index`` is its place in the agent dimension; ``rows`` are i64 [b] into the flat batch, None
    for all.
    """

    index: int
    rows: Tensor | None
    layout: FactorLayout
    factors: FactorisedCategorical

    def pack(self, td: TensorDictBase) -> Tensor:
        """Return the agent's actions i64 [b, F], out of frames [B]."""
        return pack_actions(td, self.layout, self.index, self.rows)


def pack_actions(
    td: TensorDictBase, layout: FactorLayout, index: int, rows: Tensor | None
) -> Tensor:
    """Return an agent's actions i64 [b, F], out of frames [B].

    ``index`` is its place in the agent dimension, ``rows`` i64 [b] are its frames: all for None.
    """

    def take(tensor: Tensor) -> Tensor:
        agent_actions = tensor[:, index]
        return agent_actions if rows is None else agent_actions.index_select(0, rows)

    message = take(td.get(("agents", "message")))
    if len(layout.channels) < message.shape[1]:
        message = message[:, list(layout.channels)]
    actions = [message.flatten(1)]
    if layout.decides:
        actions.append(take(td.get(("agents", "decision"))).unsqueeze(1))
    if layout.linear:
        actions.append(take(td.get(("agents", "linear_message"))).unsqueeze(1))
    return torch.cat(actions, dim=1) if len(actions) > 1 else actions[0]


class MultiAgentDistribution:
    """All agents' distributions over a batch of B frames.

    ``agents`` are those that act somewhere in it; ``shape`` is (A, C, P): agents, channels,
    positions.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentDistribution],
        batch_size: int,
        shape: tuple[int, int, int],
        device: torch.device | None = None,
    ) -> None:
        self.agents = dict(agents)
        self.batch_size = batch_size
        self.shape = shape
        self.device = device

    def log_prob(self, td: TensorDictBase) -> Tensor:
        """Return the log-probabilities f32 [B, A] of the actions in ``td``; 0 where none acts."""
        return self._scatter({n: d.factors.log_prob(d.pack(td)) for n, d in self.agents.items()})

    def log_prob_and_entropy(self, td: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return :meth:`log_prob` and :meth:`entropy`, both f32 [B, A], in one pass."""
        both = {n: d.factors.log_prob_and_entropy(d.pack(td)) for n, d in self.agents.items()}
        return (
            self._scatter({name: log_prob for name, (log_prob, _) in both.items()}),
            self._scatter({name: entropy for name, (_, entropy) in both.items()}),
        )

    def entropy(self) -> Tensor:
        """Return the entropies f32 [B, A]; 0 where the agent does not act."""
        return self._scatter({n: d.factors.entropy() for n, d in self.agents.items()})

    def sample(self, generators: Mapping[str, torch.Generator] | None = None) -> TensorDict:
        """Sample actions, each agent from its own generator (torch's global one when None)."""
        return self.unpack(
            {
                name: d.factors.sample(None if generators is None else generators[name])
                for name, d in self.agents.items()
            }
        )

    def mode(self) -> TensorDict:
        """Return each agent's most likely actions."""
        return self.unpack({name: d.factors.mode() for name, d in self.agents.items()})

    def unpack(self, actions: Mapping[str, Tensor]) -> TensorDict:
        """Unpack actions into a tensordict [B] that contains ``agents``.

        Factors on which an agent does not act are 0 (messages) or 2 (decisions).
        """
        num_agents, num_channels, positions = self.shape
        device = self.device
        size = (self.batch_size, num_agents)
        message = torch.zeros((*size, num_channels, positions), dtype=torch.int64, device=device)
        decision = torch.full(size, NO_DECISION, dtype=torch.int64, device=device)
        linear = torch.zeros(size, dtype=torch.int64, device=device)
        for name, packed in actions.items():
            dist = self.agents[name]
            layout = dist.layout
            counts = dist.factors.counts
            rows: Tensor | slice = slice(None) if dist.rows is None else dist.rows
            symbols = (packed * counts)[:, : layout.num_message_factors]
            symbols = symbols.view(-1, len(layout.channels), positions)
            for number, channel in enumerate(layout.channels):
                message[rows, dist.index, channel] = symbols[:, number]
            if layout.decides:
                at = layout.decision_index
                decision[rows, dist.index] = packed[:, at].where(counts[:, at], NO_DECISION)
            if layout.linear:
                linear[rows, dist.index] = packed[:, layout.linear_index]
        agents = {"message": message, "decision": decision}
        if any(dist.layout.linear for dist in self.agents.values()):
            agents["linear_message"] = linear
        return TensorDict(
            {"agents": TensorDict(agents, batch_size=[self.batch_size])},
            batch_size=[self.batch_size],
        )

    def _scatter(self, columns: Mapping[str, Tensor]) -> Tensor:
        by_index = {self.agents[n].index: (self.agents[n].rows, c) for n, c in columns.items()}
        return scatter_columns(by_index, self.batch_size, self.shape[0], self.device)


def scatter_columns(
    columns: Mapping[int, tuple[Tensor | None, Tensor]],
    batch_size: int,
    num_agents: int,
    device: torch.device | None = None,
) -> Tensor:
    """Combine columns: f32 [B, A], 0 where no value is given; differentiable.

    Columns are agent's index → (rows i64 [b] or None for all, values f32 [b]).
    """
    empty = torch.zeros(batch_size, device=device)
    laid = []
    for index in range(num_agents):
        rows, values = columns.get(index, (None, empty))
        laid.append(values if rows is None else empty.index_copy(0, rows, values))
    return torch.stack(laid, dim=-1)


def ever_decides(handler: ProtocolHandler, name: str) -> bool:
    """Return whether the agent may decide in some round: verifiers, and a simulator of one.

    This may depend on the episode's seed; the first 64 are tried.
    """
    if name in handler.verifier_names:
        return True
    rounds = torch.arange(handler.max_message_rounds).unsqueeze(1)
    seeds = torch.arange(_SEEDS_TRIED).expand(len(rounds), -1)
    rounds = rounds.expand_as(seeds)
    mask = handler.get_can_decide_mask_from_rounds_and_seed(rounds, seeds)
    return bool(mask[..., handler.agent_index(name)].any())


class Channels:
    """Some channels of a protocol, in order; their indices are copied to each device once."""

    def __init__(self, index: Tensor) -> None:
        self._copies = {index.device: index}
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def take_from(self, tensor: Tensor, dim: int) -> Tensor:
        """Select these channels of a dimension of a tensor."""
        device = tensor.device
        if device not in self._copies:
            self._copies[device] = self._index.to(device)
        return tensor.index_select(dim, self._copies[device])


@dataclass(frozen=True)
class Role:
    """One agent's role in the protocol: its index in the agent dimension and layout of actions.

    Channels it sees [V] and may ever write to [K] are None where all are.
    """

    index: int
    layout: FactorLayout
    sees: Channels | None
    writes: Channels | None


def read_role(
    handler: ProtocolHandler, name: str, *, message_size: int, d_linear: int | None
) -> Role:
    """Return an agent's role in the protocol."""
    index = list(handler.agent_names).index(name)
    sees = handler.channel_visibility_mask[index].nonzero().flatten()
    writes = handler.can_be_active_mask[:, index].any(0).nonzero().flatten()
    num_channels = len(handler.message_channel_names)
    layout = FactorLayout(
        channels=tuple(writes.tolist()),
        message_size=message_size,
        decides=ever_decides(handler, name),
        linear=d_linear is not None,
    )
    return Role(
        index,
        layout,
        None if len(sees) == num_channels else Channels(sees),
        None if len(writes) == num_channels else Channels(writes),
    )


def pack_logits(logits: PolicyLogits, layout: FactorLayout) -> Tensor:
    """Pack the factors into f32 [b, F, max(S, 3, d)]; padding is 0 and must be masked.

    Logits are messages' [b, K, P, S], decisions' [b, 3], linear messages' [b, d].
    """
    factors = [logits.message.flatten(1, 2)]
    if layout.decides:
        factors.append(_one_factor(logits.decision, "decision"))
    if layout.linear:
        factors.append(_one_factor(logits.linear_message, "linear_message"))
    if len(factors) == 1:
        return factors[0]
    width = max(factor.shape[-1] for factor in factors)
    return torch.cat([F.pad(factor, (0, width - factor.shape[-1])) for factor in factors], dim=1)


def _one_factor(logits: Tensor | None, what: str) -> Tensor:
    if logits is None:
        raise StateError(f"the policy head gave no {what} logits, expected some for this agent.")
    return logits.unsqueeze(1)


def pack_allowed(
    symbols: Tensor, layout: FactorLayout, restriction: Tensor, d_linear: int | None
) -> Tensor:
    """Pack the masks of the factors like the logits: bool [b, F, max(S, 3, d)].

    ``symbols`` are those that may be sent, bool, broadcastable to [b, K, P, S]. ``restriction`` is
    i64 [b]: 0 any decision, 1 must continue (only 2), 2 must decide (0 or 1).
    """
    b, num_symbols = len(restriction), symbols.shape[-1]
    mask = symbols.expand(b, len(layout.channels), layout.message_size, num_symbols).flatten(1, 2)
    if not (layout.decides or layout.linear):
        return mask
    width = max(num_symbols, NUM_DECISIONS * layout.decides, (d_linear or 0) * layout.linear)
    factors = layout.num_message_factors + layout.decides + layout.linear
    allowed = torch.zeros((b, factors, width), dtype=torch.bool, device=symbols.device)
    allowed[:, : layout.num_message_factors, :num_symbols] = mask
    if layout.decides:
        at = layout.decision_index
        allowed[:, at, :2] = (restriction != 1).unsqueeze(-1)
        allowed[:, at, 2] = restriction != 2
    if layout.linear:
        allowed[:, layout.linear_index, :d_linear] = True
    return allowed


def pack_counts(
    active: Tensor, can_decide: Tensor, layout: FactorLayout, writes: Channels | None
) -> Tensor:
    """Return the factors on which an agent acts, bool [b, F].

    ``active`` bool [b, C] are the channels that it is active in, ``can_decide`` bool [b] whether it
    decides, ``writes`` the K channels that it may ever write to: None for all.
    """
    if writes is not None:
        active = writes.take_from(active, 1)
    counts = [active.repeat_interleave(layout.message_size, dim=1)]
    if layout.decides:
        counts.append(can_decide.unsqueeze(1))
    if layout.linear:
        counts.append(active.any(1, keepdim=True))
    return torch.cat(counts, dim=1) if len(counts) > 1 else counts[0]


def unpack_logits(dist: MultiAgentDistribution, symbols: int) -> tuple[Tensor, Tensor]:
    """Return the logits of all agents in B frames by agent and channel; differentiable.

    Messages' f32 [B, A, C, P, S] and decisions' [B, A, 3]: 0 where an agent does not act, minus
    infinity for symbols and decisions that are not allowed.
    """
    num_agents, num_channels, positions = dist.shape
    size = (dist.batch_size, num_agents)
    message = torch.zeros((*size, num_channels, positions, symbols), device=dist.device)
    decision = torch.zeros((*size, NUM_DECISIONS), device=dist.device)
    for agent in dist.agents.values():
        layout = agent.layout
        rows: Tensor | slice = slice(None) if agent.rows is None else agent.rows
        packed = agent.factors.logits.masked_fill(~agent.factors.counts.unsqueeze(-1), 0.0)
        logits = packed[:, : layout.num_message_factors, :symbols]
        logits = logits.reshape(len(logits), len(layout.channels), positions, symbols)
        for number, channel in enumerate(layout.channels):
            message[rows, agent.index, channel] = logits[:, number]
        if layout.decides:
            decision[rows, agent.index] = packed[:, layout.decision_index, :NUM_DECISIONS]
    return message, decision
