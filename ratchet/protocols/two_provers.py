"""The order of play that ``debate`` and ``mnip`` share: two provers with a channel each."""

from __future__ import annotations

from abc import abstractmethod

from ratchet.parameters.protocols import TwoProverProtocolParameters
from ratchet.protocols.base import LongProtocolHandler
from ratchet.protocols.text_specs import DECIDE_NOW, TextAgentSpec

OWN_CHANNEL = {"prover0": "prover0_channel", "prover1": "prover1_channel"}


class TwoProverProtocolHandler(LongProtocolHandler):
    """Two provers, each in its own channel, and a verifier in both.

    Simultaneous: the provers in one round, the verifier in the next. Sequential: one prover, the
    other, the verifier. ``verifier_first`` sets whether the period starts with its turn.
    """

    agent_names = ("prover0", "prover1", "verifier")
    message_channel_names = tuple(OWN_CHANNEL.values())

    @property
    @abstractmethod
    def parameters(self) -> TwoProverProtocolParameters:
        """The protocol's section of parameters."""

    @property
    def randomize_channel_order(self) -> bool:
        """The parameter of that name."""
        return self.parameters.randomize_channel_order

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether it is the agent's turn, and a channel it may write in."""
        turns = self._turns()
        may_write = OWN_CHANNEL.get(agent_name, channel_name) == channel_name
        return may_write and agent_name in turns[round % len(turns)]

    def _turns(self) -> list[tuple[str, ...]]:
        """Return the agents of each round of a period."""
        provers: list[tuple[str, ...]]
        if not self.parameters.sequential:
            provers = [("prover0", "prover1")]
        elif self.parameters.prover0_first:
            provers = [("prover0",), ("prover1",)]
        else:
            provers = [("prover1",), ("prover0",)]
        verifier = [("verifier",)]
        return [*verifier, *provers] if self.common.verifier_first else [*provers, *verifier]

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the agent's name and the headers of its replies."""
        if agent_name == "verifier":
            headers = {"prover0_channel": "To Expert 1:", "prover1_channel": "To Expert 2:"}
            return TextAgentSpec("Verifier", headers, last_round_system_message=DECIDE_NOW)
        human_name = {"prover0": "Expert_1", "prover1": "Expert_2"}[agent_name]
        return TextAgentSpec(human_name, {OWN_CHANNEL[agent_name]: "Argument:"})
