"""Abstract decision problem: the prover sends one message, and the verifier decides."""

from __future__ import annotations

from ratchet.protocols.base import DeterministicSingleVerifierProtocolHandler
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.text_specs import TextAgentSpec


@register_protocol_handler("adp")
class AdpProtocolHandler(DeterministicSingleVerifierProtocolHandler):
    """Abstract decision problem: the prover sends one message, and the verifier decides.

    ``verifier_first`` has no effect.
    """

    agent_names = ("prover", "verifier")
    max_message_rounds = 2

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether it is the agent's turn."""
        return (agent_name == "verifier") == (round == 1)

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the agent's name and headers of replies; the verifier only decides."""
        if agent_name == "verifier":
            return TextAgentSpec("Verifier")
        return TextAgentSpec("Expert", {"main": "Argument:"})
