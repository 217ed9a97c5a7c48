"""The zero-knowledge version of a protocol: played twice, while a simulator predicts the second.

Wraps any handler with a single verifier ``verifier``; order of play and rewards are computed by the
base protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ratchet.errors import ParameterError
from ratchet.parameters.protocols import ZkProtocolParameters
from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.protocols.handler import (
    Integers,
    KeyPathMapping,
    ProtocolHandler,
    ProtocolStep,
    rounds_and_seeds,
)

COPIES = ("standard", "adversarial", "simulator")
VERIFIER, ADVERSARIAL, SIMULATOR = "verifier", "adversarial_verifier", "simulator"
COPY_OF = {VERIFIER: "standard", ADVERSARIAL: "adversarial", SIMULATOR: "simulator"}


class ZeroKnowledgeProtocolHandler(ProtocolHandler):
    """A base protocol played twice in parallel, and a simulator.

    Notes
    -----
    A step also reads ``("agents", "message_logits")`` float[*B, A, C, P, S] and
    ``("agents", "decision_logits")`` float[*B, A, 3]; logits that are not finite (masked)
    count as 0.
    """

    def __init__(self, base: SingleVerifierProtocolHandler) -> None:
        super().__init__(base.hyper_params)
        self.base = base

    @classmethod
    def around(cls, handler: ProtocolHandler) -> Self:
        """Wrap a handler."""
        if not isinstance(handler, SingleVerifierProtocolHandler):
            raise ParameterError(
                f"protocol_common.zero_knowledge: got True with {type(handler).__name__},"
                " expected a SingleVerifierProtocolHandler. Set it to false."
            )
        return cls(handler)

    @property
    def parameters(self) -> ZkProtocolParameters:
        """The section ``zk_protocol``."""
        parameters: ZkProtocolParameters = self.hyper_params.zk_protocol
        return parameters

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The base's agents, then the adversarial verifier and the simulator."""
        return (*self.base.agent_names, ADVERSARIAL, SIMULATOR)

    @property
    def prover_names(self) -> tuple[str, ...]:
        """The base's provers."""
        return tuple(self.base.prover_names)

    @property
    def verifier_names(self) -> tuple[str, ...]:
        """The verifier and the adversarial verifier."""
        return (VERIFIER, ADVERSARIAL)

    @property
    def message_channel_names(self) -> tuple[str, ...]:
        """All standard copies, all adversarial ones, all of the simulator."""
        return tuple(f"{c}_{copy}" for copy in COPIES for c in self.base.message_channel_names)

    @property
    def agent_channel_visibility(self) -> Set[tuple[str, str]]:
        """Agents that see a base channel see copies of it: provers two, others their own."""
        return {
            (agent, f"{channel}_{copy}")
            for agent in self.agent_names
            for base_agent, channel in self.base.agent_channel_visibility
            if base_agent == self._base_agent(agent)
            for copy in self._copies_of(agent)
        }

    @property
    def max_message_rounds(self) -> int:
        """The base's."""
        return self.base.max_message_rounds

    @property
    def played_message_rounds(self) -> int:
        """The base's."""
        return self.base.played_message_rounds

    @property
    def min_message_rounds(self) -> int:
        """The base's."""
        return self.base.min_message_rounds

    @property
    def max_verifier_questions(self) -> int:
        """The base's."""
        return self.base.max_verifier_questions

    @property
    def randomize_channel_order(self) -> bool:
        """The base's."""
        return self.base.randomize_channel_order

    @property
    def source_classes(self) -> tuple[type, ...]:
        """The class itself and the base's."""
        return (type(self), *self.base.source_classes)

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return the base's result for its agent and channel, in the agent's own copies."""
        channel, _, copy = channel_name.rpartition("_")
        return copy in self._copies_of(agent_name) and self.base.can_agent_be_active(
            self._base_agent(agent_name), round, channel
        )

    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return which agents act in which channels, bool[*B, A, C]: the base's mask, copied."""
        base = self.base.get_active_agents_mask_from_rounds_and_seed(round, seed)
        spread = base[..., self.on_device("_source_agent", base.device), :]
        return spread.repeat(*(1,) * (spread.ndim - 1), len(COPIES)) & self.on_device(
            "_plays_copy", base.device
        )

    def get_verifier_guess_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return where both verifiers may decide, bool[*B]."""
        return self.base.get_verifier_guess_mask_from_rounds_and_seed(round, seed)

    def get_can_decide_mask_from_rounds_and_seed(self, round: Integers, seed: Integers) -> Tensor:
        """Return which agents may decide, bool[*B, A]: both verifiers and the simulator."""
        guess = self.get_verifier_guess_mask_from_rounds_and_seed(round, seed)
        return guess.unsqueeze(-1) & self.on_device("_decides", guess.device)

    def step_interaction_protocol(self, env_td: KeyPathMapping) -> ProtocolStep:
        """Judge what the agents just did; see :class:`ProtocolHandler`."""
        shared_done = torch.as_tensor(env_td["done"])
        terminated = torch.as_tensor(env_td["terminated"])
        agent_done = torch.as_tensor(env_td["agents", "done"])
        decision = torch.as_tensor(env_td["agents", "decision"])
        y = torch.as_tensor(env_td["y"])
        ended = shared_done | terminated
        rounds, seeds = rounds_and_seeds(env_td["round"], env_td["seed"])

        standard, adversarial = (
            self.base.judge(rounds, seeds, y, decision[..., i], ended=ended | agent_done[..., i])
            for i in self._verifier_indices
        )
        decided = torch.stack([standard.decided, adversarial.decided], -1)
        was_done = agent_done[..., self._verifier_indices]
        verifiers_done = was_done | decided
        shared_done = shared_done | (verifiers_done.all(-1) & ~ended)
        last_round = rounds >= self.played_message_rounds - 1
        terminated = terminated | (last_round & ~shared_done)

        next_agent_done = agent_done | shared_done.unsqueeze(-1)
        next_agent_done[..., self._verifier_indices] |= verifiers_done
        counts = ~ended & ~was_done.any(-1)
        simulated = torch.where(counts, self.simulator_reward(env_td), 0.0)
        reward = self._rewards(self.base.rewards(standard, y), simulated)
        return ProtocolStep(shared_done, next_agent_done, terminated, reward)

    def counted_decisions(self, env_td: KeyPathMapping) -> Tensor:
        """Return the agents' decisions in a step, int[*B, A]; both verifiers' may be forced."""
        counted = super().counted_decisions(env_td).clone()
        y = torch.as_tensor(env_td["y"])
        for index in self._verifier_indices:
            counted[..., index] = self.base.counted_decision(
                env_td["round"], env_td["seed"], y, counted[..., index]
            )
        return counted

    def simulator_reward(self, env_td: KeyPathMapping) -> Tensor:
        """Return how alike simulator and adversarial verifier are, whether or not it counts.

        float32[*B]: coefficient x (cosine of messages + cosine of decisions), the one over all of
        an agent's own channels laid end to end. ``env_td`` is that of
        :meth:`step_interaction_protocol`.
        """
        rounds, seeds = rounds_and_seeds(env_td["round"], env_td["seed"])
        active = self.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
        guess = self.get_verifier_guess_mask_from_rounds_and_seed(rounds, seeds)
        message_logits = torch.as_tensor(env_td["agents", "message_logits"]).detach().float()
        decision_logits = torch.as_tensor(env_td["agents", "decision_logits"]).detach().float()
        messages, decisions = [], []
        for agent in (ADVERSARIAL, SIMULATOR):
            index, channels = self.agent_index(agent), self._own_channels(agent)
            channel_logits = message_logits[..., index, channels, :, :]
            speaks = active[..., index, channels, None, None]
            messages.append(
                torch.where(speaks & channel_logits.isfinite(), channel_logits, 0.0).flatten(-3)
            )
            logits = decision_logits[..., index, :]
            decisions.append(torch.where(guess.unsqueeze(-1) & logits.isfinite(), logits, 0.0))
        likeness = _cosine(*messages) + _cosine(*decisions)
        return self.parameters.simulator_reward_coefficient * likeness

    def reward_mid_point_estimate(self, agent_name: str) -> float:
        """Return the base's for its agents; 0, midway between likeness and its opposite, else."""
        self.agent_index(agent_name)
        if agent_name in (ADVERSARIAL, SIMULATOR):
            return 0.0
        return self.base.reward_mid_point_estimate(agent_name)

    def _rewards(self, base_reward: Tensor, simulated: Tensor) -> Tensor:
        """Add to the base's rewards [*B, A - 2] what the simulator's are worth to each agent."""
        both = torch.nn.functional.pad(base_reward, (0, 2))
        share = self.on_device("_share_of_simulated", both.device)
        return both + simulated.unsqueeze(-1) * share

    def _own_channels(self, agent: str) -> slice:
        start = COPIES.index(COPY_OF[agent]) * self.base.num_channels
        return slice(start, start + self.base.num_channels)

    def _base_agent(self, agent: str) -> str:
        return VERIFIER if agent in COPY_OF else agent

    def _copies_of(self, agent: str) -> tuple[str, ...]:
        return (COPY_OF[agent],) if agent in COPY_OF else ("standard", "adversarial")

    @cached_property
    def _verifier_indices(self) -> list[int]:
        return [self.agent_index(VERIFIER), self.agent_index(ADVERSARIAL)]

    @cached_property
    def _share_of_simulated(self) -> Tensor:
        """float32[A], what part of the simulator's reward each agent gets."""
        shares: Mapping[str, float] = {
            **dict.fromkeys(self.prover_names, self.parameters.aux_prover_reward_coefficient),
            ADVERSARIAL: -1.0,
            SIMULATOR: 1.0,
        }
        return torch.tensor(
            [shares.get(name, 0.0) for name in self.agent_names], dtype=torch.float32
        )

    @cached_property
    def _source_agent(self) -> Tensor:
        """int64[A], the base agent that each agent acts like."""
        return torch.tensor([self.base.agent_index(self._base_agent(a)) for a in self.agent_names])

    @cached_property
    def _plays_copy(self) -> Tensor:
        """bool[A, C], which copies an agent acts in."""
        plays = [[copy in self._copies_of(a) for copy in COPIES] for a in self.agent_names]
        return torch.tensor(plays).repeat_interleave(self.base.num_channels, dim=1)

    @cached_property
    def _decides(self) -> Tensor:
        """bool[A]."""
        return torch.tensor([name in COPY_OF for name in self.agent_names])


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine over the last dimension, 0 with a zero vector: [*B, N] → [*B]."""
    return (_unit(first) * _unit(second)).sum(-1)


def _unit(vector: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return torch.where(norm > 0, vector / norm, 0.0)
