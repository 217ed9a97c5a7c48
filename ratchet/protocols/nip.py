"""Nash interactive proofs: a prover and a verifier take turns in one channel."""

from __future__ import annotations

from ratchet.parameters.protocols import NipProtocolParameters
from ratchet.protocols.base import LongProtocolHandler
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.text_specs import DECIDE_NOW, TextAgentSpec


@register_protocol_handler("nip")
class NipProtocolHandler(LongProtocolHandler):
    """Nash interactive proof: a prover and a verifier take turns until the verifier decides.

    The verifier starts if ``verifier_first``.
    """

    agent_names = ("prover", "verifier")

    @property
    def parameters(self) -> NipProtocolParameters:
        """The section ``nip_protocol``."""
        parameters: NipProtocolParameters = self.hyper_params.nip_protocol
        return parameters

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether it is the agent's turn."""
        verifiers_turn = (round % 2 == 0) == self.common.verifier_first
        return verifiers_turn == (agent_name == "verifier")

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the agent's name and the headers of its replies."""
        if agent_name == "verifier":
            return TextAgentSpec(
                "Verifier", {"main": "Question:"}, last_round_system_message=DECIDE_NOW
            )
        return TextAgentSpec("Expert", {"main": "Answer:"})
