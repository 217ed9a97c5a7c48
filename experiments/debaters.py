"""Protocols in which stronger models argue before a weak judge of programs.

``OpenConsultancy``, ``OpenDebate``: an agent chooses the side that it argues for (after Kenton et
al., "On scalable oversight with weak LLMs judging strong LLMs", 2024, arXiv:2407.04622).
``ProposerCritic``: one agent argues that a program is right, and a critic examines it. The
counterparts with assigned sides are the protocols ``adp`` with sampled stances and ``debate``.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from torch import Tensor

from ratchet.protocols.adp import AdpProtocolHandler
from ratchet.protocols.base import VerifierOutcome
from ratchet.protocols.debate import DebateProtocolHandler
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.protocols.two_provers import OWN_CHANNEL

CRITIC = "prover0"
"""The proposer is ``prover1``."""


def argued_decision(argument: str) -> int:
    """Return 0 (reject) if an argument marks a difference between task and program, else 1."""
    return int("differ" not in argument)


class OpenConsultancy(AdpProtocolHandler):
    """One agent argues for a side of its choice, and is rewarded if the judge takes it."""

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the specs of ``adp``; the argument sets the prover's side."""
        spec = super().text_agent_spec(agent_name)
        return replace(spec, argued_decision=argued_decision) if agent_name == "prover" else spec


class _SeparateArguments(DebateProtocolHandler):
    """A debate whose debaters do not see each other's arguments."""

    @property
    def agent_channel_visibility(self) -> Set[tuple[str, str]]:
        """The judge sees both channels, a debater its own."""
        return {*OWN_CHANNEL.items(), *(("verifier", c) for c in self.message_channel_names)}


class OpenDebate(_SeparateArguments):
    """One debater chooses its side, and the other must argue for the opposite one.

    Play it sequentially, with ``prover0`` first.
    """

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the specs of ``debate``; the first argument sets the sides."""
        spec = super().text_agent_spec(agent_name)
        return replace(spec, argued_decision=argued_decision) if agent_name == "prover0" else spec


class ProposerCritic(_SeparateArguments):
    """A proposer is rewarded for acceptance, a critic of the program for correct decisions."""

    def rewards(self, outcome: VerifierOutcome, y: Tensor) -> Tensor:
        """Return the rewards of ``debate``, with that of the judge for the critic."""
        rewards = super().rewards(outcome, y).clone()
        judge = rewards[..., self.agent_index("verifier")]
        rewards[..., self.agent_index(CRITIC)] = judge
        return rewards
