"""Multi-prover nip: two provers argue for acceptance and can't see each other's channel."""

from __future__ import annotations

from ratchet.parameters.protocols import MnipProtocolParameters
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.two_provers import OWN_CHANNEL, TwoProverProtocolHandler


@register_protocol_handler("mnip")
class MnipProtocolHandler(TwoProverProtocolHandler):
    """Multi-prover nip: two provers argue for acceptance and can't see each other's channel."""

    agent_channel_visibility = frozenset(
        pair for prover, c in OWN_CHANNEL.items() for pair in ((prover, c), ("verifier", c))
    )
    prover_paid_decisions = {"prover0": 1, "prover1": 1}  # noqa: RUF012 -- never mutated

    @property
    def parameters(self) -> MnipProtocolParameters:
        """The section ``mnip_protocol``."""
        parameters: MnipProtocolParameters = self.hyper_params.mnip_protocol
        return parameters
