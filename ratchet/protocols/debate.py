"""Debate: two provers argue for opposite answers before a verifier, and all see all."""

from __future__ import annotations

from ratchet.parameters.protocols import DebateProtocolParameters
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.two_provers import TwoProverProtocolHandler


@register_protocol_handler("debate")
class DebateProtocolHandler(TwoProverProtocolHandler):
    """Debate: two provers argue for opposite answers before a verifier, and all see all.

    ``prover0`` is rewarded for a rejection, ``prover1`` for an acceptance.
    """

    @property
    def parameters(self) -> DebateProtocolParameters:
        """The section ``debate_protocol``."""
        parameters: DebateProtocolParameters = self.hyper_params.debate_protocol
        return parameters
