"""A verifier without a prover, as a baseline."""

from __future__ import annotations

from ratchet.protocols.base import DeterministicSingleVerifierProtocolHandler
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.text_specs import TextAgentSpec


@register_protocol_handler("solo_verifier")
class SoloVerifierProtocolHandler(DeterministicSingleVerifierProtocolHandler):
    """A verifier without a prover, as a baseline.

    There is one round; an undecided episode is terminated after it.
    """

    agent_names = ("verifier",)
    max_message_rounds = 1

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return true: it is the verifier's turn."""
        return True

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the spec of a verifier that only decides."""
        return TextAgentSpec("Verifier")
