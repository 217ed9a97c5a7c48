"""Interaction protocols: order of play, channels and rewards.

Names are imported on first use; Ratchet itself imports the concrete modules, so that an edit of one
protocol does not change the code fingerprints of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.protocols.base import (
        DeterministicSingleVerifierProtocolHandler as DeterministicSingleVerifierProtocolHandler,
    )
    from ratchet.protocols.base import ProtocolHandler as ProtocolHandler
    from ratchet.protocols.base import (
        SingleVerifierProtocolHandler as SingleVerifierProtocolHandler,
    )
    from ratchet.protocols.registry import build_protocol_handler as build_protocol_handler
    from ratchet.protocols.registry import register_protocol_handler as register_protocol_handler

export_lazily(__name__)

BUILT_IN = {
    "adp": "ratchet.protocols.adp",
    "debate": "ratchet.protocols.debate",
    "environment": "ratchet.scenarios.environment_protocol",
    "merlin_arthur": "ratchet.protocols.merlin_arthur",
    "mnip": "ratchet.protocols.mnip",
    "multi_channel_test": "ratchet.protocols.multi_channel_test",
    "nip": "ratchet.protocols.nip",
    "solo_verifier": "ratchet.protocols.solo_verifier",
}
"""Name → the module that registers it."""
