"""Nash interactive proofs: a prover and a verifier take turns in one channel."""

from __future__ import annotations

from ratchet.parameters.protocols import NipProtocolParameters
from ratchet.protocols.base import DeterministicSingleVerifierProtocolHandler
from ratchet.protocols.registry import register_protocol_handler


@register_protocol_handler("nip")
class NipProtocolHandler(DeterministicSingleVerifierProtocolHandler):
    """Prover and verifier alternate; the verifier begins if ``verifier_first``."""

    agent_names = ("prover", "verifier")

    @property
    def parameters(self) -> NipProtocolParameters:
        """The section ``nip_protocol``."""
        parameters: NipProtocolParameters = self.hyper_params.nip_protocol
        return parameters

    @property
    def max_message_rounds(self) -> int:
        """``nip_protocol.max_message_rounds``."""
        return self.parameters.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        """``nip_protocol.min_message_rounds``."""
        return self.parameters.min_message_rounds

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Say whose turn it is."""
        verifiers_turn = (round % 2 == 0) == self.common.verifier_first
        return verifiers_turn == (agent_name == "verifier")
