"""Three provers and three channels: for tests of everything that has channels."""

from __future__ import annotations

from ratchet.parameters.protocols import MultiChannelTestProtocolParameters
from ratchet.protocols.base import LongProtocolHandler
from ratchet.protocols.registry import register_protocol_handler

PERIOD: dict[str, tuple[str | None, ...]] = {
    "main": ("prover1", "prover2", "verifier"),
    "prover0_verifier": (None, "prover0", "verifier"),
    "prover_chat": ("prover0", "prover1", "prover2"),
}


@register_protocol_handler("multi_channel_test")
class MultiChannelTestProtocolHandler(LongProtocolHandler):
    """Test protocol: each channel has different turns of period 3; rewards only the verifier."""

    agent_names = ("prover0", "prover1", "prover2", "verifier")
    message_channel_names = tuple(PERIOD)
    agent_channel_visibility = frozenset(
        [(agent, "main") for agent in agent_names]
        + [(agent, "prover0_verifier") for agent in ("prover0", "verifier")]
        + [(agent, "prover_chat") for agent in ("prover0", "prover1", "prover2")]
    )
    prover_paid_decisions = {}  # noqa: RUF012 -- never mutated

    @property
    def parameters(self) -> MultiChannelTestProtocolParameters:
        """The section ``multi_channel_test_protocol``."""
        section: MultiChannelTestProtocolParameters = self.hyper_params.multi_channel_test_protocol
        return section

    @property
    def max_verifier_questions(self) -> int:
        """The verifier's messages, counted in each channel."""
        return int(self.can_be_active_mask[:, self.agent_index("verifier")].sum())

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether it is the agent's turn in that channel."""
        return PERIOD[channel_name][round % 3] == agent_name
