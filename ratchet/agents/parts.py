"""Parts of an agent: a body and heads, with their inputs and outputs.

Scenarios implement these classes; :mod:`ratchet.agents.combined` runs them. Shape letters: b rows
(frames in which the agent acts), R rounds, C channels, V channels the agent sees, K channels it may
ever write to, P message positions, S symbols, d features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor, nn

from ratchet.errors import RenamedAttributes

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase
    from torch.nn import Parameter

    from ratchet.parameters.agents import AgentParameters

Prepared = dict[str, Tensor]
"""A scenario's data, prepared for the bodies: tensors with the same leading dimension."""


class Precomputed(Protocol):
    """Values that a body computes from its input without weights."""

    def take(self, rows: Tensor, /) -> Precomputed:
        """Select rows [r]."""


@dataclass
class AgentInput:
    """Inputs of an agent in the rows in which it acts.

    Attributes
    ----------
    round
        i64 [b].
    history
        Normalised messages in the channels that the agent sees, f32 [b, R, V, P, S].
    message
        The latest messages in the channels it may write to, [b, K, P, S].
    data
        The scenario's data, as prepared by :meth:`Perception.prepare`.
    linear_history
        Normalised linear messages it sees, f32 [b, R, V, ...]; None without a linear message space.
    invariant
        The body's cached values that no message changes, if any.
    generator
        Source of the body's noise; None stands for torch's global generator.
    precomputed
        The body's precomputed values of these rows, if any; see :meth:`AgentBody.precompute`.
    acts
        Which rows count, bool [b]; the others are padding and must not affect them. None: all.
    """

    round: Tensor
    history: Tensor
    message: Tensor
    data: Prepared
    linear_history: Tensor | None = None
    invariant: Tensor | None = None
    generator: torch.Generator | None = None
    precomputed: Precomputed | None = None
    acts: Tensor | None = None

    def take(self, rows: Tensor) -> AgentInput:
        """Select rows [r]."""

        def of(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.index_select(0, rows)

        return AgentInput(
            round=self.round.index_select(0, rows),
            history=self.history.index_select(0, rows),
            message=self.message.index_select(0, rows),
            data={key: value.index_select(0, rows) for key, value in self.data.items()},
            linear_history=of(self.linear_history),
            invariant=of(self.invariant),
            generator=self.generator,
            precomputed=None if self.precomputed is None else self.precomputed.take(rows),
            acts=of(self.acts),
        )


@dataclass
class Representation:
    """Output of a body.

    Attributes
    ----------
    pooled
        Of the datapoint and conversation, f32 [b, d]; None if no head reads it.
    symbols
        Of each symbol that can be sent, f32 [b, S, d]; None if no head reads it.
    symbol_weight
        1 for symbols that exist, 0 for the others, f32 [b, S]; None if all exist.
    """

    pooled: Tensor | None
    symbols: Tensor | None
    symbol_weight: Tensor | None = None


@dataclass
class PolicyLogits:
    """Output of a policy head, before masks.

    Attributes
    ----------
    message
        f32 [b, K, P, S].
    decision
        f32 [b, 3]; None for agents that never decide.
    linear_message
        f32 [b, d_linear]; None without a linear message space.
    """

    message: Tensor
    decision: Tensor | None = None
    linear_message: Tensor | None = None


class AgentPart(nn.Module):
    """A module that belongs to one agent."""

    def lr_parts(self, name: str) -> dict[str, list[Parameter]]:
        """Divide the parameters by whose learning-rate factor they have; all under ``name``."""
        return {name: list(self.parameters())}


class AgentBody(AgentPart, ABC):
    """Network that maps an agent's inputs to representations, which its heads share.

    A custom body, named by an agent's ``network``, is created by ``MyBody(plan, init, read)``: an
    :class:`~ratchet.agents.building.AgentPlan`, the ``Initializer`` of its weights, and the parts
    of the representation that heads read, ``"pooled"``, ``"symbols"`` or both; the rest may be
    None. Its inputs are described by :class:`AgentInput`, their ``data`` by the scenario's
    :class:`Perception`. Output vectors have ``plan.hyper_params.d_representation`` numbers.
    """

    @abstractmethod
    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b rows."""

    def invariant(self, data: Prepared) -> Tensor | None:
        """Return values that no message changes, [b, ...], computed once per datapoint and rollout.

        None if no value is worth caching.
        """
        return None

    def precompute(self, inputs: AgentInput) -> Precomputed | None:
        """Return values that do not depend on weights, for rows that are evaluated several times.

        None if no value is worth caching.
        """
        return None


class AgentPolicyHead(AgentPart, ABC):
    """Network that returns the logits of messages and decisions."""

    @abstractmethod
    def forward(self, representation: Representation | None, inputs: AgentInput) -> PolicyLogits:
        """Return logits for b rows; ``representation`` is None for agents without a body."""

    def with_ties(self) -> AgentPolicyHead:
        """Return a head that is uniform over actions that are equally good to this one.

        For imitation and for comparisons; by default the head itself.
        """
        return self


class AgentValueHead(AgentPart, ABC):
    """Estimates the return."""

    @abstractmethod
    def forward(self, representation: Representation | None, inputs: AgentInput) -> Tensor:
        """Return values f32 [b]."""


class SoloAgentHead(AgentPart, ABC):
    """Predicts the label without any conversation."""

    @abstractmethod
    def forward(self, representation: Representation | None, inputs: AgentInput) -> Tensor:
        """Return logits f32 [b, 2] of y."""


class Perception(ABC):
    """Preparation of data, and mask of allowed symbols, shared by a scenario's agents."""

    @abstractmethod
    def prepare(self, data: TensorDictBase) -> Prepared:
        """Prepare the result of ``gather_data`` for the bodies, once for all agents."""

    @abstractmethod
    def allowed_symbols(self, is_prover: bool, data: Prepared, message: Tensor) -> Tensor:
        """Return which symbols exist and are allowed: bool, broadcastable to [b, K, P, S].

        At least one symbol of each S is allowed. ``data`` has b rows, as returned by
        :meth:`prepare`; ``message`` [b, K, P, S] are the latest messages in the agent's channels.
        """

    @abstractmethod
    def num_symbols(self, data: Prepared) -> int:
        """Return S, the size of the message space."""


@dataclass
class Agent(RenamedAttributes):
    """A named player: its parts and its parameters.

    ``body`` is shared by all heads, or by all but the value head where ``value_body`` is given.
    None for agents that perceive nothing.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "agent_params": "they are agent.parameters",
        "get_model_parameter_dicts": "see combined_agents.parameter_groups(hyper_params.rl)",
        "message_logits_key": 'the logits of all messages are ("agents", "message_logits")',
        "policy_body": "it is agent.body; the critic's own, if any, is agent.value_body",
        "whole": "networks have parts: agent.body, .policy_head, .value_head",
    }

    name: str
    parameters: AgentParameters
    body: AgentBody | None = None
    policy_head: AgentPolicyHead | None = None
    value_head: AgentValueHead | None = None
    solo_head: SoloAgentHead | None = None
    value_body: AgentBody | None = None

    @property
    def is_prover(self) -> bool:
        """Whether the name has "prover" in it."""
        return "prover" in self.name

    def parts(self) -> dict[str, AgentPart]:
        """Return the parts there are, by name."""
        everything = {
            "body": self.body,
            "value_body": self.value_body,
            "policy_head": self.policy_head,
            "value_head": self.value_head,
            "solo_head": self.solo_head,
        }
        return {name: part for name, part in everything.items() if part is not None}
