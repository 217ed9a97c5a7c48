"""Nash interactive proofs: a prover and a verifier take turns in one channel."""

from __future__ import annotations

from ratchet.parameters.protocols import NipProtocolParameters
from ratchet.protocols.long_protocol import LongProtocolHandler
from ratchet.protocols.registry import register_protocol_handler


@register_protocol_handler("nip")
class NipProtocolHandler(LongProtocolHandler):
    """Prover and verifier alternate; the verifier begins if ``verifier_first``."""

    agent_names = ("prover", "verifier")

    @property
    def parameters(self) -> NipProtocolParameters:
        """The section ``nip_protocol``."""
        parameters: NipProtocolParameters = self.hyper_params.nip_protocol
        return parameters

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Say whose turn it is."""
        verifiers_turn = (round % 2 == 0) == self.common.verifier_first
        return verifiers_turn == (agent_name == "verifier")
