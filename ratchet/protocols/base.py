"""Protocols with one verifier, whose decision ends the game and determines the rewards.

Base classes between the general ``ProtocolHandler`` and the protocols, with one module each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.errors import ProtocolSpecificationError
from ratchet.parameters.protocols import LongProtocolParameters
from ratchet.protocols.handler import (
    Integers,
    KeyPathMapping,
    ProtocolHandler,
    ProtocolStep,
    rounds_and_seeds,
    with_silent_end,
)

__all__ = [
    "NO_DECISION",
    "DeterministicSingleVerifierProtocolHandler",
    "ProtocolHandler",
    "ProtocolStep",
    "SingleVerifierProtocolHandler",
    "VerifierOutcome",
]

NO_DECISION = 2


class VerifierOutcome(NamedTuple):
    """Outcome of a verifier's turn; all [*B].

    ``guess``: it could decide in a running episode; ``decided``: it did, and the decision counts;
    ``decision``: 0, 1 or 2, after ``force_guess``; ``terminated``: truncated in this step.
    """

    guess: Tensor
    decided: Tensor
    decision: Tensor
    terminated: Tensor


class SingleVerifierProtocolHandler(ProtocolHandler):
    """A protocol whose one verifier decides, in any order of play.

    The author writes ``agent_names``, ``max_message_rounds``, ``can_agent_be_active`` and
    ``get_active_agents_mask_from_rounds_and_seed``, and what differs from the defaults.
    """

    @property
    def verifier_name(self) -> str:
        """The name of the one verifier."""
        return self.verifier_names[0]

    @property
    def prover_paid_decisions(self) -> Mapping[str, int]:
        """Decision for which each prover is rewarded; omitted provers never are.

        A single prover is rewarded for 1; of two provers, the first for 0 and the second for 1.

        Raises
        ------
        ProtocolSpecificationError
            For more than two provers: such a protocol must define it.
        """
        if len(self.prover_names) > 2:
            raise ProtocolSpecificationError(
                f"{type(self).__name__} has {len(self.prover_names)} provers but does not"
                " define their decisions. Add a property prover_paid_decisions: prover → 0 or 1."
            )
        first_pays = 2 - len(self.prover_names)
        return {name: first_pays + index for index, name in enumerate(self.prover_names)}

    def get_verifier_guess_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return where the verifier is active in some channel, bool[*B]."""
        active = self.get_active_agents_mask_from_rounds_and_seed(round, seed)
        return active[..., self._verifier_index, :].any(-1)

    def step_interaction_protocol(self, env_td: KeyPathMapping) -> ProtocolStep:
        """Judge what the agents just did; see :class:`ProtocolHandler`."""
        shared_done = torch.as_tensor(env_td["done"])
        terminated = torch.as_tensor(env_td["terminated"])
        decision = torch.as_tensor(env_td["agents", "decision"])[..., self._verifier_index]
        y = torch.as_tensor(env_td["y"])
        outcome = self.judge(
            env_td["round"], env_td["seed"], y, decision, ended=shared_done | terminated
        )
        shared_done = shared_done | outcome.decided
        agent_done = torch.as_tensor(env_td["agents", "done"]) | shared_done.unsqueeze(-1)
        terminated = terminated | outcome.terminated
        return ProtocolStep(shared_done, agent_done, terminated, self.rewards(outcome, y))

    def judge(
        self, round: Integers, seed: Integers, y: Tensor, decision: Tensor, *, ended: Tensor
    ) -> VerifierOutcome:
        """Return the outcome of a decision.

        In episodes that ended before (``ended`` bool[*B]) no decision counts; the other arguments
        are int[*B].
        """
        rounds, seeds = rounds_and_seeds(round, seed)
        guess = self.get_verifier_guess_mask_from_rounds_and_seed(rounds, seeds) & ~ended
        decision = self.counted_decision(rounds, seeds, y, decision)
        decided = guess & (decision != NO_DECISION) & (rounds >= self.min_message_rounds - 1)
        terminated = (rounds >= self.played_message_rounds - 1) & ~decided & ~ended
        return VerifierOutcome(guess, decided, decision, terminated)

    def counted_decisions(self, env_td: KeyPathMapping) -> Tensor:
        """Return the agents' decisions in a step, int[*B, A], as sent unless forced."""
        decisions, index = super().counted_decisions(env_td), self._verifier_index
        y = torch.as_tensor(env_td["y"])
        counted = decisions.clone()
        counted[..., index] = self.counted_decision(
            env_td["round"], env_td["seed"], y, decisions[..., index]
        )
        return counted

    def counted_decision(
        self, round: Integers, seed: Integers, y: Tensor, decision: Tensor
    ) -> Tensor:
        """Return the verifier's decisions int[*B], forced wherever one would count."""
        if self.common.force_guess is None:
            return decision
        rounds, seeds = rounds_and_seeds(round, seed)
        may_decide = self.get_verifier_guess_mask_from_rounds_and_seed(rounds, seeds)
        counts = may_decide & (rounds >= self.min_message_rounds - 1)
        return torch.where(counts, self.apply_force_guess(decision, y), decision)

    def apply_force_guess(self, decision: Tensor, y: Tensor) -> Tensor:
        """Return decisions int[*B] as set by ``force_guess``, regardless of the verifier's."""
        match self.common.force_guess:
            case None:
                return decision
            case "zero":
                return torch.zeros_like(decision)
            case "one":
                return torch.ones_like(decision)
            case "y":
                return y.to(decision.dtype).expand(decision.shape)

    def rewards(self, outcome: VerifierOutcome, y: Tensor) -> Tensor:
        """Return all agents' rewards for a verifier's turn, float32[*B, A]."""
        verifier = self._verifier_reward(outcome, y).unsqueeze(-1)
        device = verifier.device
        if self.common.shared_reward:
            provers = verifier
        else:
            wants = self.on_device("_paid_decision", device)
            paid = outcome.decided.unsqueeze(-1) & (outcome.decision.unsqueeze(-1) == wants)
            provers = paid.to(verifier.dtype) * self.common.prover_reward
        is_paid = self.on_device("_is_paid_prover", device)
        is_verifier = self.on_device("_is_verifier", device)
        return verifier * is_verifier + provers * is_paid

    def prover_is_paid(self, stance: Tensor, decision: Tensor, y: Tensor) -> Tensor:
        """Return where a prover is rewarded if stances vary, bool[*B].

        ``stance`` int[*B] is 0 or 1, ``decision`` int[*B] the verifier's. By default a prover is
        rewarded for the decision that is its stance. Not called with a shared reward.
        """
        return decision == stance

    def check(self) -> None:
        """Check the protocol against itself; see :class:`ProtocolHandler`."""
        super().check()
        name = type(self).__name__
        if len(self.verifier_names) != 1:
            raise ProtocolSpecificationError(
                f"{name}: got verifiers {list(self.verifier_names)}, expected exactly one agent"
                ' with "verifier" in its name.'
            )
        for prover, decision in self.prover_paid_decisions.items():
            if prover not in self.prover_names or decision not in (0, 1):
                raise ProtocolSpecificationError(
                    f"{name}.prover_paid_decisions has {prover!r}: {decision!r}, expected 0 or 1"
                    f" for provers of {list(self.prover_names)}."
                )

    def _verifier_reward(self, outcome: VerifierOutcome, y: Tensor) -> Tensor:
        """Return the verifier's rewards float32[*B]."""
        common = self.common
        right = outcome.decided & (outcome.decision == y)
        wrong = outcome.decided & (outcome.decision != y)
        goes_on = outcome.guess & ~outcome.decided & ~outcome.terminated
        reward = torch.zeros(right.shape, dtype=torch.float32, device=right.device)
        for where, amount in (
            (right, common.verifier_reward),
            (wrong, common.verifier_incorrect_penalty),
            (outcome.terminated, common.verifier_terminated_penalty),
            (goes_on, common.verifier_no_guess_reward),
        ):
            reward = torch.where(where, amount, reward)
        return reward

    @cached_property
    def _verifier_index(self) -> int:
        return self.agent_index(self.verifier_name)

    @cached_property
    def _paid_decision(self) -> Tensor:
        """int[A], the decision that pays each agent; -1 for none."""
        return torch.tensor([self.prover_paid_decisions.get(a, -1) for a in self.agent_names])

    @cached_property
    def _is_paid_prover(self) -> Tensor:
        """bool[A]."""
        return self._paid_decision >= 0


class DeterministicSingleVerifierProtocolHandler(SingleVerifierProtocolHandler):
    """A protocol whose order of play depends only on the round.

    The author writes ``agent_names``, ``max_message_rounds`` and :meth:`is_agent_active`.
    """

    @abstractmethod
    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether the agent acts in the channel in that round."""

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return the same as :meth:`is_agent_active`: no seed changes it."""
        return self.is_agent_active(agent_name, round, channel_name)

    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return which agents act in which channels, bool[*B, A, C]."""
        rounds, _ = rounds_and_seeds(round, seed)
        table = self.on_device("_order_of_play", rounds.device)
        return table[rounds.clamp(max=self.max_message_rounds)]

    @cached_property
    def _order_of_play(self) -> Tensor:
        """bool[R + 1, A, C]; no agent acts in the last row."""
        return with_silent_end(self.can_be_active_mask)


class LongProtocolHandler(DeterministicSingleVerifierProtocolHandler):
    """A protocol whose parameters set the number of rounds."""

    @property
    @abstractmethod
    def parameters(self) -> LongProtocolParameters:
        """The protocol's section of parameters."""

    @property
    def max_message_rounds(self) -> int:
        """The parameter of that name."""
        return self.parameters.max_message_rounds

    @property
    def played_message_rounds(self) -> int:
        """The parameter of that name; ``max_message_rounds`` if not set."""
        return self.parameters.played_message_rounds or self.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        """The parameter of that name."""
        return self.parameters.min_message_rounds
