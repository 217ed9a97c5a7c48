"""The bounds on rounds that protocols with a section of their own share."""

from __future__ import annotations

from abc import abstractmethod

from ratchet.parameters.protocols import LongProtocolParameters
from ratchet.protocols.base import DeterministicSingleVerifierProtocolHandler


class LongProtocolHandler(DeterministicSingleVerifierProtocolHandler):
    """Goes back and forth for as many rounds as its section says."""

    @property
    @abstractmethod
    def parameters(self) -> LongProtocolParameters:
        """The protocol's own section."""

    @property
    def max_message_rounds(self) -> int:
        """As the protocol's section says."""
        return self.parameters.max_message_rounds

    @property
    def played_message_rounds(self) -> int:
        """As the protocol's section says; all if it says nothing."""
        return self.parameters.played_message_rounds or self.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        """As the protocol's section says."""
        return self.parameters.min_message_rounds
