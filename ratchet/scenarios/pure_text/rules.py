"""Rules of a protocol in plain Python: tables of turns, decisions and outcomes.

They are read from the protocol's handler once per game and not at every step, since text episodes
run one by one and a step on tensors of one element would be the largest cost. Protocols without the
usual judgement by one verifier have no table; then ``outcome`` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.errors import ParameterError, ProtocolSpecificationError
from ratchet.protocols.base import (
    DeterministicSingleVerifierProtocolHandler,
    SingleVerifierProtocolHandler,
)
from ratchet.protocols.checks import check_text_specs
from ratchet.protocols.decision_scales import DECISION_SCALES
from ratchet.protocols.handler import KeyPathMapping, ProtocolHandler, ProtocolStep
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.rollouts.specs import NO_DECISION

_SEEDS_TRIED = 64
_JUDGEMENT = (
    "apply_force_guess",
    "get_can_decide_mask_from_rounds_and_seed",
    "get_verifier_guess_mask_from_rounds_and_seed",
    "judge",
    "rewards",
    "step_interaction_protocol",
)


def check_common(handler: ProtocolHandler) -> None:
    """Check ``protocol_common``, regardless of how the handler was created."""
    common = handler.common
    if common.zero_knowledge:
        raise ParameterError(
            "protocol_common.zero_knowledge: got True with a text scenario; expected a tensor"
            " scenario, since it compares logits. Set it to false."
        )
    if not common.randomize_prover_stance:
        return
    if len(handler.prover_names) != 1 or not isinstance(handler, SingleVerifierProtocolHandler):
        raise ParameterError(
            f"protocol_common.randomize_prover_stance: got True with {type(handler).__name__},"
            f" whose provers are {list(handler.prover_names)}; expected a protocol with a single"
            " prover and a single verifier. Set it to false, or change the protocol."
        )


def check_speakers(handler: ProtocolHandler, num_seeds: int) -> None:
    """Check for the first seeds that a channel never has two speakers in a round."""
    rounds = torch.arange(handler.max_message_rounds).unsqueeze(-1)
    seeds = torch.arange(num_seeds)
    active = handler.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
    crowded = (active.sum(-2) > 1).nonzero().tolist()
    if crowded:
        round, seed, channel = crowded[0]
        raise crowded_channel(handler, round, channel, active[round, seed, :, channel].tolist())


def crowded_channel(
    handler: ProtocolHandler, round: int, channel: int, speaks: list[bool]
) -> ProtocolSpecificationError:
    """Create the error for agents that write in one channel in one round."""
    speakers = [name for name, acts in zip(handler.agent_names, speaks, strict=True) if acts]
    return ProtocolSpecificationError(
        f"{type(handler).__name__}: in round {round} channel"
        f" {handler.message_channel_names[channel]!r} has the speakers {speakers}; in a text"
        " scenario expected at most one. Give each a separate channel or round."
    )


def endless(handler: ProtocolHandler) -> ProtocolSpecificationError:
    """Create the error for an episode that does not end with its last round."""
    last = handler.max_message_rounds - 1
    return ProtocolSpecificationError(
        f"{type(handler).__name__}: an episode continues after round {last}, its last; expected"
        " step_interaction_protocol to mark it as done or terminated."
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Allowed actions of one agent in one round; no ``channels`` if it isn't its turn.

    ``headers`` are those its reply must have, by channel; ``is_last``: it never acts later.
    """

    channels: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    may_decide: bool = False
    is_last: bool = False


class Outcome(NamedTuple):
    """Outcome of a round: ``rewards`` by agent."""

    decided: bool
    terminated: bool
    rewards: tuple[float, ...]


def unsure_rewards(
    rewards: tuple[float, ...], opposite: tuple[float, ...], confidence: float
) -> tuple[float, ...]:
    """Return the rewards for a decision of some confidence, ``opposite`` those for the other."""
    share = (1 + confidence) / 2
    pairs = zip(rewards, opposite, strict=True)
    return tuple(share * reward + (1 - share) * other for reward, other in pairs)


class RoundRules:
    """Rules of one protocol for text scenarios.

    Parameters
    ----------
    handler
        The protocol; each of its agents must have a text spec.
    """

    def __init__(self, handler: ProtocolHandler) -> None:
        check_common(handler)
        self.handler = handler
        self.agent_names = tuple(handler.agent_names)
        self.channel_names = tuple(handler.message_channel_names)
        self.places = {name: index for index, name in enumerate(self.agent_names)}
        self.num_rounds = handler.max_message_rounds
        self.scale = DECISION_SCALES[handler.common.verifier_decision_scale]
        self.specs: dict[str, TextAgentSpec] = check_text_specs(handler)
        self.shown_names = {
            name: None if spec.anonymous else spec.human_name for name, spec in self.specs.items()
        }
        self.stances_are_argued = any(spec.argued_decision for spec in self.specs.values())
        sees = handler.agent_channel_visibility
        self.visible_channels = {
            agent: tuple(c for c in self.channel_names if (agent, c) in sees)
            for agent in self.agent_names
        }
        shuffled = handler.verifier_names if handler.randomize_channel_order else ()
        self.shuffled_agents = frozenset(shuffled)
        self._first_seeds: dict[bytes, int] = {}
        self._representative = lru_cache(maxsize=1024)(self._find_representative)
        self._turns = lru_cache(maxsize=1024)(self._ask_turns)
        self._outcomes = lru_cache(maxsize=1024)(self._ask_outcomes)
        check_speakers(handler, 1 if self._ignores_seed else _SEEDS_TRIED)

    def turns(self, seed: int) -> tuple[tuple[Turn, ...], ...]:
        """Return the allowed actions, by round and agent, for an episode's seed."""
        return self._turns(self._like(seed))

    def turn(self, round: int, seed: int, agent: str) -> Turn:
        """Return an agent's allowed actions in a round; empty after the last."""
        if round >= self.num_rounds:
            return Turn()
        return self.turns(seed)[round][self.places[agent]]

    def outcome(
        self,
        round: int,
        seed: int,
        y: int,
        stance: int,
        decisions: tuple[int, ...],
        confidence: float = 1.0,
    ) -> Outcome | None:
        """Return the outcome of a round; None for protocols with custom judgement.

        ``stance`` is that of the episode; decisions are 0, 1 or 2 by agent, and ``confidence`` is
        the verifier's.
        """
        if self._verifier is None:
            return None
        outcomes = self._outcomes(self._like(seed), y, stance)[round]
        decision = decisions[self._verifier]
        if confidence == 1 or decision == NO_DECISION:
            return outcomes[decision]
        sure, opposite = outcomes[decision], outcomes[1 - decision]
        return sure._replace(rewards=unsure_rewards(sure.rewards, opposite.rewards, confidence))

    def counted_decision(self, decision: int, y: int) -> int:
        """Return the effective decision of a verifier that may decide, for the true label y."""
        return decision if self._forced is None else self._forced[y]

    def stance_of(self, agent: str, prover_stance: int) -> int | None:
        """Return a prover's stance, 0 reject or 1 accept; None for other agents.

        By default the prover is rewarded for this decision. In an episode of stance 0 provers
        argue for the opposite sides; the episode's stance is read only if stances vary.
        """
        if agent not in self.handler.prover_names:
            return None
        if not self._stances_vary:
            return self._paid_decisions.get(agent, 1)
        return self._sides[agent] if prover_stance else 1 - self._sides[agent]

    def argued_stance(self, prover_stance: int, agent: str, text: str) -> int:
        """Return an episode's stance after a message, which sets it if its agent chooses a side."""
        read = self.specs[agent].argued_decision
        if read is None:
            return prover_stance
        argued = read(text)
        if argued not in (0, 1):
            raise ProtocolSpecificationError(
                f"{type(self.handler).__name__}.text_agent_spec({agent!r}).argued_decision: got"
                f" {argued!r} for the message {text!r}, expected 0 or 1."
            )
        return int(argued == self._sides[agent])

    def judge(self, env_td: KeyPathMapping, prover_stance: Tensor) -> ProtocolStep:
        """Judge a step [*B] by the protocol, and reward provers for their stances if these vary.

        ``prover_stance`` int[*B] is read only if stances vary.
        """
        handler = self.handler
        step = handler.step_interaction_protocol(env_td)
        common = handler.common
        if not self._stances_vary or common.shared_reward:
            return step
        assert isinstance(handler, SingleVerifierProtocolHandler)  # checked when built
        decisions = torch.as_tensor(env_td["agents", "decision"])
        verifier = handler.agent_index(handler.verifier_name)
        y = torch.as_tensor(env_td["y"])
        counted = handler.apply_force_guess(decisions[..., verifier], y)
        decided = step.shared_done & ~torch.as_tensor(env_td["done"])
        reward = step.reward.clone()
        for prover, wants in self._sides.items():
            stance = torch.where(prover_stance == 1, wants, 1 - wants)
            paid = decided & handler.prover_is_paid(stance, counted, y)
            reward[..., handler.agent_index(prover)] = paid * common.prover_reward
        return step._replace(reward=reward)

    @cached_property
    def _stances_vary(self) -> bool:
        """Whether provers' stances are sampled, or chosen by what one of them argues for."""
        return self.stances_are_argued or self.handler.common.randomize_prover_stance

    @cached_property
    def _sides(self) -> Mapping[str, int]:
        """The decision for which each prover argues in an episode of stance 1."""
        provers = self.handler.prover_names
        return {provers[0]: 1} if len(provers) == 1 else self._paid_decisions

    @cached_property
    def _forced(self) -> tuple[int, int] | None:
        """The decision that is forced for each true label; None if none is."""
        handler = self.handler
        if not isinstance(handler, SingleVerifierProtocolHandler):
            return None
        if handler.common.force_guess is None:
            return None
        reject, accept = handler.apply_force_guess(torch.full((2,), 2), torch.arange(2)).tolist()
        return reject, accept

    @cached_property
    def _paid_decisions(self) -> Mapping[str, int]:
        handler = self.handler
        if isinstance(handler, SingleVerifierProtocolHandler):
            return handler.prover_paid_decisions
        return {}

    @cached_property
    def _verifier(self) -> int | None:
        """The verifier's index, if the usual judgement reads only its decision."""
        usual = SingleVerifierProtocolHandler.step_interaction_protocol
        handler = self.handler
        if not isinstance(handler, SingleVerifierProtocolHandler):
            return None
        if type(handler).step_interaction_protocol is not usual:
            return None
        return handler.agent_index(handler.verifier_name)

    @cached_property
    def _judges_by_turns(self) -> bool:
        """Whether a seed affects only the order of play, as in the usual judgement."""
        handler_class, usual = type(self.handler), SingleVerifierProtocolHandler
        return issubclass(handler_class, usual) and all(
            getattr(handler_class, name) is getattr(usual, name) for name in _JUDGEMENT
        )

    @cached_property
    def _ignores_seed(self) -> bool:
        """Whether no seed changes anything."""
        name = "get_active_agents_mask_from_rounds_and_seed"
        handler_class, usual = type(self.handler), DeterministicSingleVerifierProtocolHandler
        return (
            self._judges_by_turns
            and issubclass(handler_class, usual)
            and getattr(handler_class, name) is getattr(usual, name)
        )

    def _like(self, seed: int) -> int:
        """Return the first seed that was played just as this one; tables are kept by it."""
        return 0 if self._ignores_seed else self._representative(seed)

    def _find_representative(self, seed: int) -> int:
        if not self._judges_by_turns:
            return seed
        rounds = torch.arange(self.num_rounds)
        active = self.handler.get_active_agents_mask_from_rounds_and_seed(rounds, seed)
        return self._first_seeds.setdefault(active.numpy().tobytes(), seed)

    def _ask_turns(self, seed: int) -> tuple[tuple[Turn, ...], ...]:
        rounds = torch.arange(self.num_rounds)
        active = self.handler.get_active_agents_mask_from_rounds_and_seed(rounds, seed).tolist()
        decides = self.handler.get_can_decide_mask_from_rounds_and_seed(rounds, seed).tolist()
        played = range(self.handler.played_message_rounds)
        last = [
            max((r for r in played if any(active[r][a])), default=-1)
            for a in range(len(self.agent_names))
        ]
        min_decision_round = self.handler.min_message_rounds - 1
        return tuple(
            tuple(
                self._turn(a, active[r][a], decides[r][a] and r >= min_decision_round, last[a] == r)
                for a in range(len(self.agent_names))
            )
            for r in range(self.num_rounds)
        )

    def _turn(self, agent: int, active: list[bool], may_decide: bool, is_last: bool) -> Turn:
        channels = tuple(channel for channel, acts in enumerate(active) if acts)
        if not channels:
            return Turn()
        agent_headers = self.specs[self.agent_names[agent]].headers
        names = [self.channel_names[c] for c in channels]
        headers = {name: agent_headers[name] for name in names if name in agent_headers}
        return Turn(channels, headers, may_decide, is_last)

    def _ask_outcomes(self, seed: int, y: int, stance: int) -> tuple[tuple[Outcome, ...], ...]:
        """Compute the outcomes of all rounds and decisions together, by round and decision."""
        assert self._verifier is not None  # asked by ``outcome`` only
        shape, num_agents = (self.num_rounds, 3), len(self.agent_names)
        decision = torch.full((*shape, num_agents), 2)
        decision[..., self._verifier] = torch.arange(3)
        nobody = torch.zeros(shape, dtype=torch.bool)
        state: dict[str | tuple[str, str], Tensor] = {
            "round": torch.arange(self.num_rounds).unsqueeze(-1).expand(shape),
            "seed": torch.full(shape, seed),
            "y": torch.full(shape, y),
            "done": nobody,
            "terminated": nobody,
            ("agents", "done"): nobody.unsqueeze(-1).expand(*shape, num_agents),
            ("agents", "decision"): decision,
        }
        step = self.judge(state, torch.full(shape, stance))
        decided, terminated = step.shared_done.tolist(), step.terminated.tolist()
        rewards = step.reward.tolist()
        return tuple(
            tuple(Outcome(decided[r][d], terminated[r][d], tuple(rewards[r][d])) for d in range(3))
            for r in range(self.num_rounds)
        )


@lru_cache(maxsize=8)
def rules_of(handler: ProtocolHandler) -> RoundRules:
    """Return the rules of a protocol, read on first use."""
    return RoundRules(handler)
