"""Distributions over what agents do: independent categorical factors, packed into one tensor.

An agent's action is a symbol for each (channel, position) it may write to, a decision, and perhaps
a linear message. All are factors of one masked tensor, so that one log-softmax serves them all.
What an agent does not really do (inactive channel, decision out of turn) counts nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

NO_DECISION = 2
_MASKED_LOGIT = -1e9
"""Stands for minus infinity where gradients flow: its probability is exactly 0 in f32."""


class FactorisedCategorical:
    """Independent categorical distributions side by side, some of which count.

    Parameters
    ----------
    logits
        f32 [b, F, S], unnormalised.
    allowed
        bool [b, F, S]: which outcomes are possible; at least one in each factor.
    counts
        bool [b, F]: which factors are really acted on.
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
        """Draw i64 [b, F] by the exponential race; no gradient."""
        with torch.no_grad():
            race = torch.empty_like(self._log_probs).exponential_(generator=generator)
            return (self._log_probs - race.log()).argmax(-1)

    def mode(self) -> Tensor:
        """Return the likeliest outcome of each factor, i64 [b, F]."""
        return self._log_probs.detach().argmax(-1)


@dataclass(frozen=True)
class FactorLayout:
    """Where an agent's factors lie: messages, then the decision, then the linear message.

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
        """Where the decision lies, if there is one."""
        return self.num_message_factors

    @property
    def linear_index(self) -> int:
        """Where the linear message lies, if there is one."""
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
        own = tensor[:, index]
        return own if rows is None else own.index_select(0, rows)

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
        """Return :meth:`log_prob` and :meth:`entropy`, both f32 [B, A], at once."""
        both = {n: d.factors.log_prob_and_entropy(d.pack(td)) for n, d in self.agents.items()}
        return (
            self._scatter({name: log_prob for name, (log_prob, _) in both.items()}),
            self._scatter({name: entropy for name, (_, entropy) in both.items()}),
        )

    def entropy(self) -> Tensor:
        """Return the entropies f32 [B, A]; 0 where the agent does not act."""
        return self._scatter({n: d.factors.entropy() for n, d in self.agents.items()})

    def sample(self, generators: Mapping[str, torch.Generator] | None = None) -> TensorDict:
        """Draw actions, each agent from its own generator (torch's global one when None)."""
        return self.unpack(
            {
                name: d.factors.sample(None if generators is None else generators[name])
                for name, d in self.agents.items()
            }
        )

    def mode(self) -> TensorDict:
        """Return each agent's likeliest actions."""
        return self.unpack({name: d.factors.mode() for name, d in self.agents.items()})

    def unpack(self, actions: Mapping[str, Tensor]) -> TensorDict:
        """Turn packed actions into a tensordict [B] with ``agents`` inside.

        What an agent does not really do is 0 (messages) or 2 (decisions).
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
            said = (packed * counts)[:, : layout.num_message_factors]
            said = said.view(-1, len(layout.channels), positions)
            for place, channel in enumerate(layout.channels):
                message[rows, dist.index, channel] = said[:, place]
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
    """Lay columns side by side: f32 [B, A], 0 where nothing is given; differentiable.

    Columns are agent's index → (rows i64 [b] or None for all, values f32 [b]).
    """
    empty = torch.zeros(batch_size, device=device)
    laid = []
    for index in range(num_agents):
        rows, values = columns.get(index, (None, empty))
        laid.append(values if rows is None else empty.index_copy(0, rows, values))
    return torch.stack(laid, dim=-1)
